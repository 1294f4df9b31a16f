"""The CDI specs of the devices that the plugin hands out (contracts/device-plugin-gfd.md 4.5).

Five classes: GPUs with the driver's files, IMEX channels, and the modes gdrcopy, gds and mofed with a device ``all``
each. What a device gives a container is the shared generator's; here is what it is asked for: the devices that are
offered, by the names that answers use, below the container's driver root and dev root, as the host has them.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, cast

import msgspec

from ..cdi import generate, hooks, modes, write
from ..cdi.model import ContainerEdits, Device, DeviceNode, Spec
from ..cdi.nodes import Nodes
from ..cdi.options import GenerateError, Libraries, Mode, Strategy, Wanted
from ..cdi.roots import Roots, simulated
from ..config import IdStrategy, PluginConfig
from ..devices.model import Gpu, Inventory
from ..devices.source import DeviceError, Source
from ..platforms import Platform
from ..process import Process
from ..resources import PhysicalDevice

VENDOR: Final = "k8s.device-plugin.nvidia.com"
GPU, IMEX, GDRCOPY, GDS, MOFED = "gpu", "imex-channel", "gdrcopy", "gds", "mofed"
CLASSES: Final = (GPU, IMEX, GDRCOPY, GDS, MOFED)
ALL: Final = "all"
MODES: Final = {GDRCOPY: Mode.GDRCOPY, GDS: Mode.GDS, MOFED: Mode.MOFED}
"""Modes by the classes of their devices."""

_STRATEGIES: Final = {IdStrategy.UUID: Strategy.UUID, IdStrategy.INDEX: Strategy.INDEX}
_ALONE: Final = {Platform.WSL: Mode.WSL, Platform.TEGRA: Mode.CSV}
"""Platforms on which one device stands for all GPUs."""


class Offered(msgspec.Struct, frozen=True):
    """What the plugin hands out: devices of a kind of machine, and the IMEX channels that containers get with one."""

    platform: Platform
    inventory: Inventory
    devices: tuple[PhysicalDevice, ...] = ()
    channels: tuple[int, ...] = ()


def kind(device_class: str) -> str:
    """The kind of a class of devices."""
    return f"{VENDOR}/{device_class}"


def roots(config: PluginConfig, process: Process) -> Roots:
    """Where driver and nodes are; the container's dev root is its driver root if that has a folder ``dev`` (4.5)."""
    here = config.container_driver_root.rstrip("/")
    dev = here if process.path(f"{here}/dev").is_dir() else ""
    return Roots(here, dev, config.driver_root.rstrip("/"), config.dev_root.rstrip("/"))


def specs(process: Process, config: PluginConfig, offered: Offered) -> Iterator[Spec]:
    """All specs that have a device, in the order of :data:`CLASSES`. Raises :class:`GenerateError`."""
    wanted = _wanted(process, config)
    machine = cast(Source, _Machine(offered))
    if offered.devices:
        yield _gpus(process, wanted, machine, offered)
    if offered.channels:
        yield _channels(process, wanted, offered.channels)
    for enabled, device_class in ((config.gdrcopy, GDRCOPY), (config.gds, GDS), (config.mofed, MOFED)):
        if enabled:
            yield from _mode(process, wanted, machine, device_class)


def _wanted(process: Process, config: PluginConfig) -> Wanted:
    _warn(process, config)
    return Wanted(
        mode=Mode.NVML,
        kind=kind(GPU),
        roots=roots(config, process),
        strategies=(_STRATEGIES[config.device_id_strategy],),
        libraries=config.cdi_libraries,
        hook_path=config.cdi_hook_path,
        disabled_hooks=frozenset(config.cdi_disable_hooks),
        features=frozenset(config.cdi_feature_flags),
        all_device=False,
        null_devices=simulated(process),
    )


def _warn(process: Process, config: PluginConfig) -> None:
    """Tell of what is asked for and has no effect."""
    for what, asked, known in (
        ("features", config.cdi_feature_flags, generate.FEATURES),
        ("hooks to leave out", config.cdi_disable_hooks, {*hooks.NAMES, hooks.EVERY}),
    ):
        unknown = [each for each in asked if each not in known]
        if unknown:
            process.log.warning(f"unknown CDI {what}: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if config.cdi_disable_hooks and config.cdi_libraries is Libraries.HOOKLESS:
        process.log.warning("CDI hooks to leave out have no effect: libraries get into containers without any")


def _gpus(process: Process, wanted: Wanted, machine: Source, offered: Offered) -> Spec:
    mode = _ALONE.get(offered.platform)
    if mode is None:
        return generate.generate(process, machine, wanted)
    spec = generate.generate(process, machine, msgspec.structs.replace(wanted, mode=mode))
    (device,) = offered.devices
    name = device.index if Strategy.INDEX in wanted.strategies else device.id
    return msgspec.structs.replace(spec, devices=(msgspec.structs.replace(spec.devices[0], name=name),))


class _Machine:
    """The source of GPUs as far as the generator asks one, with what is offered of those that were found."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered

    def inventory(self) -> Inventory:
        """The GPUs; nothing is asked of the driver anew. Raises DeviceError where it was not asked at all."""
        found = self._offered.inventory
        if not found.driver_version:
            raise DeviceError("on this machine the driver is not asked for its GPUs")
        return found if self._offered.platform in _ALONE else _as_offered(self._offered)


def _as_offered(offered: Offered) -> Inventory:
    """The machine's GPUs as they are handed out: as a whole, whatever their MIG mode, or by some of their parts."""
    gpus: dict[int, Gpu] = {}
    for device in offered.devices:
        if device.gpu is None:
            continue
        if device.mig is None:
            gpus[device.gpu.index] = msgspec.structs.replace(device.gpu, mig=None, mig_devices=())
            continue
        known = gpus.get(device.gpu.index) or msgspec.structs.replace(device.gpu, mig_devices=())
        parts = (*known.mig_devices, device.mig)
        gpus[device.gpu.index] = msgspec.structs.replace(known, mig=True, mig_devices=parts)
    return msgspec.structs.replace(offered.inventory, gpus=tuple(gpus[index] for index in sorted(gpus)))


def _channels(process: Process, wanted: Wanted, channels: Iterable[int]) -> Spec:
    """IMEX channels, that the runtime looks up; one that is not below the dev root but at its plain path is the host's
    own (4.6)."""
    below = Nodes(process, wanted)
    driver, host_driver = wanted.roots.driver, wanted.roots.host_driver
    plain = Nodes(process, msgspec.structs.replace(wanted, roots=Roots(driver, "", host_driver, "")))

    def edits(channel: int) -> ContainerEdits:
        path = modes.IMEX_NODE.format(channel)
        node = (below if below.is_node(path) else plain).node(path)
        return ContainerEdits(device_nodes=(node if wanted.null_devices else DeviceNode(path, node.host_path),))

    return Spec(kind=kind(IMEX), devices=tuple(Device(str(channel), edits(channel)) for channel in channels))


def _mode(process: Process, wanted: Wanted, machine: Source, device_class: str) -> Iterator[Spec]:
    mode = MODES[device_class]
    try:
        yield generate.generate(process, machine, msgspec.structs.replace(wanted, mode=mode, kind=kind(device_class)))
    except GenerateError:
        nodes = ", ".join(modes.GATED[mode].nodes)
        process.log.warning(f"{device_class} is enabled, but none of {nodes} is there: it is left out")


def write_all(found: Iterable[Spec], path: Callable[[str], Path]) -> tuple[str, ...]:
    """Write the specs, remove those of an earlier start that no longer are, and return the classes that there are.

    Raises GenerateError, SpecError or OSError.
    """
    written = []
    for spec in found:
        write.write(spec, path, format=write.Format.JSON)
        written.append(spec.device_class)
    for device_class in CLASSES:
        if device_class not in written:
            write.remove(kind(device_class), path, format=write.Format.JSON)
    return tuple(written)
