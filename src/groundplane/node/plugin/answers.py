"""What a container gets that is given some devices: the check of a request, and the answer to it.

Pure functions of the configuration and the offered devices (contracts/device-plugin-gfd.md 4.3, 4.4, 4.6, 6). CDI specs
that the answers' names refer to are ``cdispec``'s; which devices are given is the kubelet's decision.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ..cdi.model import qualified
from ..cdi.modes import IMEX_NODE
from ..config import IdStrategy, ListStrategy, PluginConfig
from ..kubeletapi.stubs import deviceplugin_pb2 as wire
from ..mps import client as mps
from ..resources import REPLICA, Offer, physical_id
from ..sharing import SharingStrategy
from . import cdispec

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
IMEX_CHANNELS: Final = "NVIDIA_IMEX_CHANNELS"
VOLUME_ROOT: Final = "/var/run/nvidia-container-devices"
"""Where mounts of the null device tell the container runtime which devices are wanted."""
ANNOTATION: Final = "nvidia-device-plugin"
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class RequestError(ValueError):
    """A request that cannot be met; the text is the RPC's error."""


class Extras(msgspec.Struct, frozen=True):
    """What every container gets beside its devices: IMEX channels, and the modes that have a CDI device ``all``."""

    imex_channels: tuple[int, ...] = ()
    cdi_modes: tuple[str, ...] = ()


class Answers:
    """Answers to requests for one resource. ``present`` tells which of some nodes exist in the plugin's container."""

    def __init__(self, offer: Offer, config: PluginConfig, extras: Extras, present: Callable[[str], bool]) -> None:
        self._offer = offer
        self._config = config
        self._extras = extras
        self._present = present
        self._devices = {device.id: device for device in offer.devices}
        self._ids = frozenset(offer.ids())

    def allocate(self, requested: Sequence[str]) -> wire.ContainerAllocateResponse:
        """The answer to a container's request. Raises :class:`RequestError`."""
        self.check(requested)
        strategies = self._config.device_list_strategies
        devices = list(dict.fromkeys(physical_id(name) for name in requested))
        called = self._called(devices)
        answer = wire.ContainerAllocateResponse()
        self._add_cdi(answer, called)
        for flag, name in self._modes():
            if flag:
                answer.envs[f"NVIDIA_{name.upper()}"] = "enabled"
        if self._offer.strategy is SharingStrategy.MPS:
            self._add_mps(answer)
        if ListStrategy.ENVVAR in strategies:
            answer.envs[VISIBLE_DEVICES] = ",".join(called)
            if self._extras.imex_channels:
                answer.envs[IMEX_CHANNELS] = ",".join(map(str, self._extras.imex_channels))
        if ListStrategy.VOLUME_MOUNTS in strategies:
            answer.envs[VISIBLE_DEVICES] = VOLUME_ROOT
            marks = [*called, *(f"imex/{channel}" for channel in self._extras.imex_channels)]
            answer.mounts.extend(
                wire.Mount(container_path=f"{VOLUME_ROOT}/{mark}", host_path="/dev/null") for mark in marks
            )
        if self._config.pass_device_specs and not self._config.only_cdi:
            answer.devices.extend(self._device_specs(devices))
        return answer

    def check(self, requested: Sequence[str]) -> None:
        """Refuse what is not offered, and more than one of a shared resource where that is not allowed (4.3)."""
        for name in requested:
            if name not in self._ids:
                raise self._refusal(f"unknown device: {name}")
        shared = any(REPLICA in name for name in requested)
        if shared and len(requested) > 1 and self._offer.fail_requests_greater_than_one:
            raise self._refusal(f"maximum request size for shared resources is 1; found {len(requested)}")

    def _refusal(self, reason: str) -> RequestError:
        return RequestError(f'invalid allocation request for "{self._offer.resource}": invalid request: {reason}')

    def _called(self, devices: Iterable[str]) -> list[str]:
        """What the devices are called in the container's world."""
        if self._config.device_id_strategy is IdStrategy.UUID:
            return list(devices)
        return list(dict.fromkeys(self._devices[device].index for device in devices))

    def _modes(self) -> tuple[tuple[bool, str], ...]:
        config = self._config
        return (config.gdrcopy, cdispec.GDRCOPY), (config.gds, cdispec.GDS), (config.mofed, cdispec.MOFED)

    def _add_cdi(self, answer: wire.ContainerAllocateResponse, called: Iterable[str]) -> None:
        if not self._config.cdi:
            return
        names = [
            *(qualified(cdispec.kind(cdispec.GPU), name) for name in called),
            *(qualified(cdispec.kind(cdispec.IMEX), str(channel)) for channel in self._extras.imex_channels),
            *(qualified(cdispec.kind(mode), cdispec.ALL) for mode in self._extras.cdi_modes),
        ]
        if not names:
            return
        if ListStrategy.CDI_ANNOTATIONS in self._config.device_list_strategies:
            key = f"{self._config.cdi_annotation_prefix}{ANNOTATION}_{uuid.uuid4()}"
            answer.annotations[key] = ",".join(names)
        if ListStrategy.CDI_CRI in self._config.device_list_strategies:
            answer.cdi_devices.extend(wire.CDIDevice(name=name) for name in names)

    def _add_mps(self, answer: wire.ContainerAllocateResponse) -> None:
        resource = self._offer.resource
        for name, value in mps.environment(resource).items():
            answer.envs[name] = value
        answer.mounts.extend(
            wire.Mount(container_path=mount.container_path, host_path=mount.host_path)
            for mount in mps.mounts(resource, self._config.mps_root)
        )

    def _device_specs(self, devices: Iterable[str]) -> Iterable[wire.DeviceSpec]:
        """Control nodes that are there, then the devices' own, then IMEX channels: each once (4.4, required).

        Where devices have no nodes, on a Tegra (2.8), there are none to control them either.
        """
        control = CONTROL_NODES if any(device.paths for device in self._devices.values()) else ()
        paths = [
            *(node for node in control if self._present(node)),
            *(path for device in devices for path in self._devices[device].paths),
            *(IMEX_NODE.format(channel) for channel in self._extras.imex_channels),
        ]
        root = self._config.dev_root.rstrip("/")
        return [
            wire.DeviceSpec(container_path=path, host_path=f"{root}{path}", permissions="rw")
            for path in dict.fromkeys(paths)
        ]
