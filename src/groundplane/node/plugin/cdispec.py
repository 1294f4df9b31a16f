"""The CDI specs of the devices that the plugin hands out (contracts/device-plugin-gfd.md 4.5).

Five classes: GPUs with the driver's files, IMEX channels, and the modes gdrcopy, gds and mofed with a device ``all``
each. The specs need no hook on the host: a library is mounted under its own name and under the name that programs load
it by. Everything is looked for below the container's driver root and dev root, and named as the host has it. Generation
for other producers, hooks and transformation are the toolkit's.
"""

import platform
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ..cdi import write
from ..cdi.model import ContainerEdits, Device, DeviceNode, Mount, Spec
from ..config import IdStrategy, PluginConfig
from ..hostroot import HostRoot
from ..process import Log, Process
from ..resources import PhysicalDevice
from . import imex

VENDOR: Final = "k8s.device-plugin.nvidia.com"
GPU, IMEX, GDRCOPY, GDS, MOFED = "gpu", "imex-channel", "gdrcopy", "gds", "mofed"
CLASSES: Final = (GPU, IMEX, GDRCOPY, GDS, MOFED)
ALL: Final = "all"
NULL_DEVICES: Final = "GROUNDPLANE_NULL_DEVICES"
"""Set to ``true`` on machines whose GPUs are simulated: every node in a spec is the null device under another name."""

COMMON_NODES: Final = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm", "/dev/nvidiactl")

MODE_NODES: Final = {
    GDRCOPY: ("/dev/gdrdrv",),
    GDS: ("/dev/nvidia-fs*",),
    MOFED: ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
}
MODE_MOUNTS: Final = {GDS: ("/run/udev", "/etc/cufile.json")}
MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
ENV: Final = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Keeps an NVIDIA runtime from adding devices a second time."""

_TRIPLETS: Final = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_FOLDERS: Final = ("/usr/lib64", "/usr/lib/{}", "/usr/lib/{}/nvidia/current", "/lib64", "/lib/{}", "/usr/lib/wsl/lib")
LIBRARIES: Final = (
    *("libcuda.so.1", "libcudadebugger.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"),
    *("libnvidia-nvvm.so.4", "libnvidia-opencl.so.1", "libnvidia-cfg.so.1", "libnvidia-gpucomp.so.{}"),
    *("libnvidia-allocator.so.1", "libnvidia-encode.so.1", "libnvcuvid.so.1", "libnvidia-opticalflow.so.1"),
    *("libnvidia-fbc.so.1", "libnvidia-rtcore.so.{}", "libnvoptix.so.1", "libnvidia-ngx.so.1"),
    *("libEGL_nvidia.so.0", "libGLX_nvidia.so.0", "libGLESv1_CM_nvidia.so.1", "libGLESv2_nvidia.so.2"),
    *("libnvidia-glcore.so.{}", "libnvidia-eglcore.so.{}", "libnvidia-glsi.so.{}", "libnvidia-tls.so.{}"),
    *("libnvidia-glvkspirv.so.{}", "libdxcore.so"),
)
"""Libraries by the names that programs load them by; ``{}`` stands for the driver's version."""
BINARIES: Final = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-imex", "nvidia-imex-ctl"),
)
_BINARY_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

DescribeNode = Callable[[str], DeviceNode]


def kind(device_class: str) -> str:
    """The kind of a class of devices."""
    return f"{VENDOR}/{device_class}"


def describe_node(null_devices: bool) -> DescribeNode:
    """How nodes stand in a spec: by their path, so that the runtime looks them up, or as the null device."""
    if null_devices:
        return lambda path: DeviceNode(path, type="c", major=1, minor=3)
    return DeviceNode


class Roots(msgspec.Struct, frozen=True):
    """Where the driver's files and the device nodes are: as this program sees them, and as the host does."""

    driver: str
    dev: str
    host_driver: str
    host_dev: str

    @classmethod
    def of(cls, config: PluginConfig, process: Process) -> "Roots":
        """The container's dev root is its driver root if that has a folder ``dev`` (4.5)."""
        here = config.container_driver_root.rstrip("/")
        dev = here if process.path(f"{here}/dev").is_dir() else ""
        return cls(here, dev, config.driver_root.rstrip("/"), config.dev_root.rstrip("/"))


class Finder:
    """Finds nodes and files below the container's roots, and says what the host calls them."""

    def __init__(self, process: Process, roots: Roots, describe: DescribeNode, *, any_kind: bool = False) -> None:
        self._process = process
        self._driver = HostRoot(process.path(roots.driver or "/"))
        self._roots = roots
        self._describe = describe
        self._any_kind = any_kind

    def is_node(self, path: str) -> bool:
        """Whether there is such a character device (where nodes are simulated, whatever it is)."""
        try:  # not a HostRoot: a link in the dev root, such as a driver container's /dev, is the container's affair
            mode = self._process.path(self._roots.dev + path).stat().st_mode
        except OSError:
            return False
        return self._any_kind or stat.S_ISCHR(mode)

    def nodes(self, pattern: str) -> list[str]:
        """The nodes that fit a pattern."""
        folder, _, name = pattern.rpartition("/")
        entries = self._process.path(self._roots.dev + folder).glob(name)
        return [path for path in sorted(f"{folder}/{entry.name}" for entry in entries) if self.is_node(path)]

    def node(self, path: str) -> DeviceNode:
        """A node as it stands in a spec; the host's path only if it differs."""
        host = self._roots.host_dev + path
        described = self._describe(path)
        return described if host == path else msgspec.structs.replace(described, host_path=host)

    def channel(self, path: str) -> DeviceNode:
        """An IMEX channel's node; one that is at its plain path only is the host's own (4.6)."""
        return self.node(path) if self.is_node(path) else self._describe(path)

    def file(self, folders: Iterable[str], name: str) -> tuple[str, str] | None:
        """A file of the driver in the first folder that has it: its path, and that of what its links lead to."""
        for folder in folders:
            path = f"{folder}/{name}"
            if self._driver.is_file(path):
                return path, self._driver.host_path(self._driver.path(path))
        return None

    def mount(self, path: str, at: str = "") -> Mount:
        """A mount of a driver's file, at its own place unless said otherwise."""
        return Mount(self._roots.host_driver + path, at or path, MOUNT_OPTIONS)

    def exists(self, path: str) -> bool:
        """Whether the driver's root has such a file or folder."""
        return self._driver.exists(path)


def specs(
    config: PluginConfig,
    devices: Iterable[PhysicalDevice],
    channels: Iterable[int],
    driver_version: str,
    finder: Finder,
    kernel: HostRoot,
    log: Log,
) -> Iterator[Spec]:
    """All specs that have a device, in the order of :data:`CLASSES`."""
    gpus = tuple(
        Device(
            device.id if config.device_id_strategy is IdStrategy.UUID else device.index,
            ContainerEdits(device_nodes=_sorted(finder.node(path) for path in _nodes(device, finder, kernel))),
        )
        for device in devices
    )
    if gpus:
        named = tuple(sorted(gpus, key=lambda device: device.name))
        yield Spec(kind=kind(GPU), devices=named, container_edits=_common(driver_version, finder, log))
    numbered = tuple(
        Device(str(channel), ContainerEdits(device_nodes=(finder.channel(imex.NODE.format(channel)),)))
        for channel in channels
    )
    if numbered:
        yield Spec(kind=kind(IMEX), devices=numbered)
    for wanted, mode in ((config.gdrcopy, GDRCOPY), (config.gds, GDS), (config.mofed, MOFED)):
        if wanted:
            edits = _mode(mode, finder)
            if edits:
                yield Spec(kind=kind(mode), devices=(Device(ALL, edits),))
            else:
                log.warning(f"{mode} is enabled, but none of {', '.join(MODE_NODES[mode])} is there: it is left out")


def _nodes(device: PhysicalDevice, finder: Finder, kernel: HostRoot) -> list[str]:
    """A device's nodes, and those for graphics where it can do that (contracts/toolkit-cdi.md 3.3)."""
    found = list(device.paths)
    if device.gpu is not None and (device.mig is None or "gfx" in device.mig.profile.suffix):
        found += _graphics_nodes(device.gpu.sysfs, finder, kernel)
    return found


def _graphics_nodes(sysfs: str, finder: Finder, kernel: HostRoot) -> list[str]:
    entries = [*kernel.glob(f"{sysfs}/drm/card*"), *kernel.glob(f"{sysfs}/drm/renderD*")]
    nodes = [f"/dev/dri/{entry.rpartition('/')[2]}" for entry in entries]
    return [node for node in nodes if finder.is_node(node)]


def _common(driver_version: str, finder: Finder, log: Log) -> ContainerEdits:
    missing = [node for node in COMMON_NODES if not finder.is_node(node)]
    if missing:
        log.warning(f"device nodes {', '.join(missing)} are not there: containers will not have them")
    mounts = _driver_mounts(driver_version, finder)
    if not mounts:
        log.warning("no file of the driver was found: containers will not have its libraries")
    nodes = (finder.node(node) for node in COMMON_NODES if node not in missing)
    return ContainerEdits(env=ENV, device_nodes=_sorted(nodes), mounts=mounts)


def _driver_mounts(driver_version: str, finder: Finder) -> tuple[Mount, ...]:
    """Libraries under their own names and those they are loaded by, and executables."""
    folders = [folder.format(_TRIPLETS.get(platform.machine(), "")) for folder in _FOLDERS]
    found: dict[str, Mount] = {}
    for name in LIBRARIES:
        library = finder.file(folders, name.format(driver_version))
        if library is not None:
            path, target = library
            found[target] = finder.mount(target)
            found[path] = finder.mount(target, path)
    for name in BINARIES:
        binary = finder.file(_BINARY_FOLDERS, name)
        if binary is not None:
            path, target = binary
            found[path] = finder.mount(target, path)
    return tuple(sorted(found.values(), key=lambda mount: (mount.container_path.count("/"), mount.container_path)))


def _mode(mode: str, finder: Finder) -> ContainerEdits:
    nodes = [finder.node(path) for pattern in MODE_NODES[mode] for path in finder.nodes(pattern)]
    if not nodes:
        return ContainerEdits()
    mounts = tuple(finder.mount(path) for path in MODE_MOUNTS.get(mode, ()) if finder.exists(path))
    return ContainerEdits(device_nodes=_sorted(nodes), mounts=mounts)


def _sorted(nodes: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
    """Nodes, each once, in the order of depth and path."""
    unique = {node.path: node for node in nodes}
    return tuple(sorted(unique.values(), key=lambda node: (node.path.count("/"), node.path)))


def write_all(found: Iterable[Spec], path: Callable[[str], Path]) -> tuple[str, ...]:
    """Write the specs, remove those of an earlier start that no longer are, and return the classes that there are.

    Raises SpecError or OSError.
    """
    written = []
    for spec in found:
        write.write(spec, path, format=write.Format.JSON)
        written.append(spec.device_class)
    for device_class in CLASSES:
        if device_class not in written:
            write.remove(kind(device_class), path, format=write.Format.JSON)
    return tuple(written)
