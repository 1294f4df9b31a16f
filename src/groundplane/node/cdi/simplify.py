"""A spec without repetitions, in the order that specs have (contracts/toolkit-cdi.md 3.6).

What is done to a container stays the same: of a block each entity is kept once, of a device what all devices get anyway
is left out, and what has no order is sorted. Pure.
"""

import posixpath
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from .model import ContainerEdits, Device, DeviceNode, Mount, Spec

ALL: Final = "all"
"""The name of the device that stands for all."""

_Entity = TypeVar("_Entity")
_REMOVED: Final = ("env", "device_nodes", "hooks", "mounts")
"""What is left out of a device where all devices get it. Groups stay: they belong to the nodes."""


def simplify(spec: Spec) -> Spec:
    """The simplest spec that does the same. Doing it again changes nothing."""
    common = _sorted(deduplicate(spec.container_edits))
    devices = (
        msgspec.structs.replace(each, container_edits=_sorted(_without(deduplicate(each.container_edits), common)))
        for each in spec.devices
    )
    return msgspec.structs.replace(
        spec, container_edits=common, devices=tuple(sorted(devices, key=lambda device: device.name))
    )


def with_all(spec: Spec, name: str = ALL) -> Spec:
    """A simplified spec with a device that has what every device has, unless there is one of that name or no device."""
    if not spec.devices or any(device.name == name for device in spec.devices):
        return spec
    merged = merge(device.container_edits for device in spec.devices)
    return simplify(msgspec.structs.replace(spec, devices=(*spec.devices, Device(name, merged))))


def merge(blocks: Iterable[ContainerEdits]) -> ContainerEdits:
    """Edits one after the other, each entity once."""
    blocks = tuple(blocks)
    rdts = [block.intel_rdt for block in blocks if block.intel_rdt is not None]
    return deduplicate(
        ContainerEdits(
            env=tuple(each for block in blocks for each in block.env),
            device_nodes=tuple(each for block in blocks for each in block.device_nodes),
            net_devices=tuple(each for block in blocks for each in block.net_devices),
            hooks=tuple(each for block in blocks for each in block.hooks),
            mounts=tuple(each for block in blocks for each in block.mounts),
            intel_rdt=rdts[-1] if rdts else None,
            additional_gids=tuple(each for block in blocks for each in block.additional_gids),
        )
    )


def deduplicate(edits: ContainerEdits) -> ContainerEdits:
    """Each entity once, the first of its kind; groups in ascending order."""
    return msgspec.structs.replace(
        edits,
        env=_once(edits.env),
        device_nodes=_once(edits.device_nodes),
        hooks=_once(edits.hooks),
        mounts=_once(edits.mounts),
        additional_gids=tuple(sorted(set(edits.additional_gids))),
    )


def _once(entities: Iterable[_Entity]) -> tuple[_Entity, ...]:
    return tuple(dict.fromkeys(entities))


def _without(edits: ContainerEdits, common: ContainerEdits) -> ContainerEdits:
    """Edits without what is in others too, but all of them where nothing would be left: a device must have some."""
    left = {
        field: tuple(each for each in getattr(edits, field) if each not in set(getattr(common, field)))
        for field in _REMOVED
    }
    if not any(left.values()) and not edits.net_devices and edits.intel_rdt is None:
        return edits
    return msgspec.structs.replace(edits, **left)


def _sorted(edits: ContainerEdits) -> ContainerEdits:
    return msgspec.structs.replace(
        edits,
        device_nodes=tuple(sorted(edits.device_nodes, key=_node_order)),
        mounts=tuple(sorted(edits.mounts, key=_mount_order)),
    )


def _node_order(node: DeviceNode) -> tuple[int, str, str]:
    return _depth(node.path), node.path, node.host_path


def _mount_order(mount: Mount) -> tuple[int, str, str]:
    return _depth(mount.container_path), mount.container_path, mount.host_path


def _depth(path: str) -> int:
    return posixpath.normpath(path).count("/")
