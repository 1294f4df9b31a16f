"""Device nodes, found below the dev root, as they stand in a spec (contracts/toolkit-cdi.md 2 and 3.3).

A :class:`Nodes` finds and describes them. Which nodes a device has is told for GPUs and MIG devices here, for other
modes by :mod:`.modes`.
"""

import fnmatch
import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ..devices.model import Gpu, MigDevice
from ..process import Process
from ..resources import MIG_MINORS, ResourceError, read_mig_minors
from .model import ContainerEdits, DeviceNode
from .options import GenerateError, Wanted
from .roots import Roots

CONTROL: Final = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm", "/dev/nvidiactl")
"""The driver's nodes that every container with a GPU gets."""
CAPABILITY: Final = "/dev/nvidia-caps/nvidia-cap{}"
GRAPHICS_ATTRIBUTE: Final = "gfx"
"""Attribute of MIG profiles that can do graphics."""
NO_GROUPS: Final = "no-additional-gids-for-device-nodes"
_DRI: Final = "/dev/dri"
_BY_PATH: Final = "/dev/dri/by-path"
_NESTED: Final = (_DRI, "/dev/nvidia-caps")
_PERMISSIONS: Final = "rwm"
_FOR_OTHERS: Final = 0o006


class Nodes:
    """Device nodes below a dev root; paths are the container's, which are also the root's."""

    def __init__(self, process: Process, wanted: Wanted) -> None:
        self._process = process
        self._roots: Roots = wanted.roots
        self._null = wanted.null_devices
        self._groups = NO_GROUPS not in wanted.features
        self._caps: Mapping[str, int] | None = None

    @property
    def place(self) -> str:
        """The dev root, for a person."""
        return self._roots.dev or "/"

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """Paths of nodes that fit, each once; wildcards are in the last component."""
        return list(dict.fromkeys(path for each in patterns for path in self._matching(each) if self.is_node(path)))

    def _matching(self, pattern: str) -> list[str]:
        folder, _, name = pattern.rpartition("/")
        literal = name.partition("*")[0]
        if literal == name:
            return [pattern]
        try:  # the folder of the node that is looked for: where nodes are simulated, it is not the container's /dev
            names = os.listdir(self._process.path(f"{self._roots.dev}{folder}/{literal}").parent)  # noqa: PTH208
        except OSError:
            return []
        return [f"{folder}/{each}" for each in sorted(fnmatch.filter(names, name))]

    def is_node(self, path: str) -> bool:
        """Whether there is such a character device; where nodes are simulated, an ordinary file is one."""
        try:
            mode = self._process.path(self._roots.dev + path).stat().st_mode
        except OSError:
            return False
        return stat.S_ISCHR(mode) or (self._null and stat.S_ISREG(mode))

    def edits(self, paths: Iterable[str]) -> ContainerEdits:
        """The edits that give a container some nodes; those that are not there are told of and left out."""
        nodes, groups = [], []
        for path in paths:
            if not self.is_node(path):
                self._process.log.warning(f"no device node {self._roots.dev}{path}: containers will not have it")
                continue
            node = self.node(path)
            nodes.append(node)
            groups += self._group(node)
        return ContainerEdits(device_nodes=tuple(nodes), additional_gids=tuple(groups))

    def node(self, path: str) -> DeviceNode:
        """A node as it stands in a spec, with the host's path only if that differs."""
        host = self._roots.host_dev + path
        return msgspec.structs.replace(self._described(path), host_path="" if host == path else host)

    def _described(self, path: str) -> DeviceNode:
        if self._null:
            return DeviceNode(path, type="c", major=1, minor=3)
        try:
            status = self._process.path(self._roots.dev + path).stat()
        except OSError:
            return DeviceNode(path)
        return DeviceNode(
            path,
            major=os.major(status.st_rdev),
            minor=os.minor(status.st_rdev),
            file_mode=stat.S_IMODE(status.st_mode) or None,
            permissions=_PERMISSIONS,
            gid=status.st_gid or None,
        )

    def _group(self, node: DeviceNode) -> list[int]:
        """The node's group, where its members may do more than others."""
        if not self._groups or not node.gid or node.file_mode is None:
            return []
        return [] if node.file_mode & _FOR_OTHERS == _FOR_OTHERS else [node.gid]

    # --- GPUs ---------------------------------------------------------------------------------------------------------

    def gpu(self, gpu: Gpu) -> list[str]:
        """A whole GPU's nodes, those for graphics included."""
        return [self._main(gpu), *self.graphics(gpu)]

    def mig(self, gpu: Gpu, device: MigDevice) -> list[str]:
        """A MIG device's nodes. Raises :class:`GenerateError` if the driver does not tell its capabilities."""
        instance = f"gpu{gpu.minor}/gi{device.gi}"
        names = (f"{instance}/access", f"{instance}/ci{device.ci}/access")
        capabilities = [CAPABILITY.format(self._capability(device, name)) for name in names]
        return [self._main(gpu), *capabilities, *(self.graphics(gpu) if does_graphics(device) else ())]

    def _main(self, gpu: Gpu) -> str:
        if gpu.minor is None:
            raise GenerateError(f"GPU {gpu.uuid} has no minor number, so that its device node is not known")
        return gpu.device_node

    def _capability(self, device: MigDevice, name: str) -> int:
        try:
            if self._caps is None:
                self._caps = read_mig_minors(self._process.kernel)
            return self._caps[name]
        except KeyError:
            raise GenerateError(f"MIG device {device.uuid}: capability {name} is missing in {MIG_MINORS}") from None
        except ResourceError as error:
            raise GenerateError(str(error)) from error

    def graphics(self, gpu: Gpu) -> list[str]:
        """A GPU's nodes for graphics, as the kernel names them."""
        if not gpu.bus_id:
            return []
        kernel = self._process.kernel
        found = [path for kind in ("card*", "renderD*") for path in kernel.glob(f"{gpu.sysfs}/drm/{kind}")]
        return [f"{_DRI}/{posixpath.basename(path)}" for path in found]

    def by_path(self, gpu: Gpu, nodes: Iterable[str]) -> list[str]:
        """Links ``target::path`` by which a GPU's nodes for graphics are found by its place on the bus."""
        there = set(nodes)
        bus = posixpath.basename(gpu.sysfs)
        links = []
        for name in (f"pci-{bus}-card", f"pci-{bus}-render"):
            try:
                target = str((self._process.path(self._roots.dev + _BY_PATH) / name).readlink())
            except OSError:
                continue
            if posixpath.normpath(posixpath.join(_BY_PATH, target)) in there:
                links.append(f"{target}::{_BY_PATH}/{name}")
        return links


def does_graphics(device: MigDevice) -> bool:
    """Whether a MIG device can do graphics."""
    return GRAPHICS_ATTRIBUTE in device.profile.suffix.split("+")


def nested(nodes: Iterable[str]) -> list[str]:
    """Folders of nodes whose mode some runtimes get wrong."""
    folders = dict.fromkeys(posixpath.dirname(path) for path in nodes)
    return [folder for folder in folders if folder in _NESTED]
