"""What CDI devices do to a container: their edits, applied to its OCI configuration in the order of the runtimes.

Rules of contracts/toolkit-cdi.md 1.6, in detail those of the library that runtimes use. A configuration is what
``config.json`` holds, as a plain mapping. Which devices there are is ``registry``'s to say.
"""

import copy
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from . import model
from .model import ContainerEdits, DeviceNode, Mount
from .registry import Registry


class Status(Protocol):
    """What must be known of a file: as :class:`os.stat_result` has it."""

    @property
    def st_mode(self) -> int:
        """Its kind and permissions."""

    @property
    def st_rdev(self) -> int:
        """Major and minor number of a device node."""


Lstat = Callable[[str], Status]
"""What is known of a host path, without following it if it is a link. Raises OSError."""

_TYPES: Final = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


class ApplyError(ValueError):
    """A container cannot get the devices; the text says which, or which node of the host is missing or wrong."""


class UnresolvableError(ApplyError):
    """No spec offers some of the devices, which the text lists."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")
        self.names = tuple(names)


def edits(registry: Registry, names: Iterable[str]) -> ContainerEdits:
    """The edits of some devices, by qualified names, as one: those of each spec the first time that it is asked, then
    those of the device.

    Raises :class:`UnresolvableError`.
    """
    wanted = tuple(names)
    unresolved = [name for name in wanted if name not in registry.devices]
    if unresolved:
        raise UnresolvableError(unresolved)
    blocks: list[ContainerEdits] = []
    seen: set[int] = set()
    for name in wanted:
        spec, device = registry.devices[name]
        if id(spec) not in seen:
            seen.add(id(spec))
            blocks.append(spec.container_edits)
        blocks.append(device.container_edits)
    return merged(blocks)


def merged(blocks: Iterable[ContainerEdits]) -> ContainerEdits:
    """Edits one after another, as one; the last word on cache and memory bandwidth counts."""
    found: dict[str, Any] = {}
    for block in blocks:
        for field in msgspec.structs.fields(ContainerEdits):
            value = getattr(block, field.name)
            if field.name != "intel_rdt":
                found[field.name] = (*found.get(field.name, ()), *value)
            elif value is not None:
                found[field.name] = value
    return ContainerEdits(**found)


def inject(registry: Registry, names: Iterable[str], oci: dict[str, Any], *, lstat: Lstat = os.lstat) -> dict[str, Any]:
    """An OCI configuration with some devices, by qualified names; the given one stays as it is.

    Raises :class:`ApplyError`.
    """
    return apply(edits(registry, names), oci, lstat=lstat)


def apply(wanted: ContainerEdits, oci: dict[str, Any], *, lstat: Lstat = os.lstat) -> dict[str, Any]:
    """An OCI configuration with some edits; the given one stays as it is.

    Raises :class:`ApplyError` where a device node must be looked up on the host and is not there, or is another.
    """
    config = copy.deepcopy(oci)
    _apply_env(wanted, config)
    for node in wanted.device_nodes:
        _apply_node(_complete(node, lstat), config)
    for net_device in wanted.net_devices:
        _at(config, "linux", "netDevices")[net_device.host_interface_name] = {"name": net_device.name}
    _apply_mounts(wanted, config)
    for hook in wanted.hooks:
        written = msgspec.to_builtins(hook)
        _list(_at(config, "hooks"), written.pop("hookName")).append(_plain(written))
    if wanted.intel_rdt is not None:
        _at(config, "linux")["intelRdt"] = _plain(msgspec.to_builtins(wanted.intel_rdt))
    for gid in filter(None, wanted.additional_gids):
        gids = _list(_at(config, "process", "user"), "additionalGids")
        if gid not in gids:
            gids.append(gid)
    return config


def _apply_env(wanted: ContainerEdits, config: dict[str, Any]) -> None:
    if not wanted.env:
        return
    env = _list(_at(config, "process"), "env")
    places = {variable.partition("=")[0]: number for number, variable in enumerate(env)}
    for variable in wanted.env:
        place = places.setdefault(variable.partition("=")[0], len(env))
        env[place : place + 1] = [variable]


def _complete(node: DeviceNode, lstat: Lstat) -> DeviceNode:
    """A node with what its spec leaves to the host."""
    host_path = node.host_path or node.path
    complete = bool(node.type) and (node.major != 0 or node.type == "p")
    try:
        found = lstat(host_path)
        kind = _TYPES.get(stat.S_IFMT(found.st_mode))
        if kind is None:
            raise OSError("not a device node")
    except OSError as error:
        if complete:
            return node
        raise ApplyError(f'failed to stat CDI host device "{host_path}": {error.strerror or error}') from error
    if node.file_mode is None:
        node = msgspec.structs.replace(node, file_mode=stat.S_IMODE(found.st_mode))
    if complete:
        return node
    if node.type not in ("", kind):
        raise ApplyError(f'CDI device ("{node.path}", "{host_path}"), host type mismatch ({node.type}, {kind})')
    node = msgspec.structs.replace(node, type=kind)
    if kind != "p" and not node.major:
        node = msgspec.structs.replace(node, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))
    return node


def _apply_node(node: DeviceNode, config: dict[str, Any]) -> None:
    user = (config.get("process") or {}).get("user") or {}
    uid = node.uid if node.uid is not None else user.get("uid") or None
    gid = node.gid if node.gid is not None else user.get("gid") or None
    device = {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor}
    device |= {
        key: value for key, value in (("fileMode", node.file_mode), ("uid", uid), ("gid", gid)) if value is not None
    }
    devices = _list(_at(config, "linux"), "devices")
    _drop_first(devices, "path", node.path)
    place = _first(devices, "path", node.path)  # where a configuration has a path twice, the second one's
    devices[place : place + 1] = [device]
    if node.type in ("b", "c"):
        rule = {"allow": True, "type": node.type, "major": node.major, "minor": node.minor}
        access = "" if node.permissions == model.NO_PERMISSIONS else node.permissions or "rwm"
        _list(_at(config, "linux", "resources"), "devices").append(rule | ({"access": access} if access else {}))


def _apply_mounts(wanted: ContainerEdits, config: dict[str, Any]) -> None:
    if not wanted.mounts:
        return
    mounts = _list(config, "mounts")
    namespaces = (config.get("linux") or {}).get("namespaces") or ()
    mapped = any(namespace.get("type") == "user" for namespace in namespaces)
    for mount in wanted.mounts:
        entry = {
            "destination": mount.container_path,
            "type": mount.type,
            "source": mount.host_path,
            "options": [*mount.options, *(_id_mapping(mount) if mapped else ())],
        }
        _drop_first(mounts, "destination", mount.container_path)
        mounts.append({key: value for key, value in entry.items() if value})
    mounts.sort(key=lambda mount: _depth(mount.get("destination", "")))


def _id_mapping(mount: Mount) -> tuple[str, ...]:
    """The option by which a bind mount's owners are those of the container's user namespace."""
    if {"idmap", "ridmap"} & set(mount.options):
        return ()
    binds = [option for option in mount.options if option in ("bind", "rbind")] or ["bind"] * (mount.type == "bind")
    return ({"bind": "idmap", "rbind": "ridmap"}[binds[-1]],) if binds else ()


def _depth(destination: str) -> int:
    clean = posixpath.normpath(destination)
    return clean.count("/") - clean.startswith("//")


def _first(entries: list[dict[str, Any]], key: str, value: str) -> int:
    """The place of the first entry that has a value, or that after the last."""
    return next((place for place, each in enumerate(entries) if each.get(key) == value), len(entries))


def _drop_first(entries: list[dict[str, Any]], key: str, value: str) -> None:
    place = _first(entries, key, value)
    del entries[place : place + 1]


def _at(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The mapping at a place, which is made if there is none."""
    for key in keys:
        if config.get(key) is None:
            config[key] = {}
        config = config[key]
    return config


def _list(config: dict[str, Any], key: str) -> list[Any]:
    if config.get(key) is None:
        config[key] = []
    found: list[Any] = config[key]
    return found


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {key: list(each) if isinstance(each, tuple) else each for key, each in value.items()}
