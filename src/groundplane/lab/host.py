"""A simulated host: the file system, PCI devices, kernel modules and container runtime of one lab node.

State lives in the host's files below its `HostRoot` wherever a real host has a file for it (`/sys`, `/proc/modules`,
`/dev`, `/etc`, `/run`), so that a program finds what it would find on a node and a restart loses nothing else. Nothing
changes by itself: programs load modules, write configuration and restart the runtime. Running containers is the
kubelet's part.
"""

import hashlib
import itertools
import json
import os
import shutil
import struct
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import msgspec

from ..node.cdi.registry import Registry
from ..node.devices import kernelmessages
from ..node.devices.models import Model
from ..node.devices.simfile import DRIVER_VERSION, bus_id, gpu_uuid
from ..node.devices.simulated import Machine, describe
from ..node.hostroot import HostRoot
from ..node.ownprocess import DEVICES
from ..node.resources import MIG_MINORS
from ..node.toolkit.runtimes.distributions import DISTRIBUTIONS
from . import driverfiles
from .kernelmodules import CLIENT_MODULES, DISTRIBUTION, KernelModules, Module
from .kernelmodules import HostError as HostError
from .nodes import NodeSpec

SOCKET_PATH_LIMIT = 103
"""Longest path of a unix socket that both Linux and macOS accept, in bytes."""

LONGEST_SOCKET = "/var/lib/kubelet/device-plugins/nvidia-gpu.shared.sock"
DRIVER_ROOT = "/run/nvidia/driver"
CORE_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")
CONTROL_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NVIDIA_VENDOR = "0x10de"
DEVICE_LINKS, GPU_MAJOR = "/dev/char", 195
"""By which systemd finds devices; the lab's machines have them with their device nodes, as those are plain files."""
RULES_DROPPED = "/run/groundplane/rules-dropped"
MIG_INSTANCES, MIG_COMPUTES = 15, 8
"""GPU instances a GPU, and compute instances a GPU instance, for which the driver has capabilities."""
DESCRIPTION = "/var/lib/groundplane/node.json"
"""What the machine was made from, for other processes."""
BOOT_KERNEL = "/boot/default-kernel"
"""The release of the kernel that the next boot starts, where it is another than the node was described with."""
IN_FORCE = "/run/groundplane/handlers.json"
"""The handlers with which the container runtime was started last, for all who look at the machine."""
NO_DRIVER = "0.0"
"""What the description of a machine says of a driver as long as none was loaded."""
_OS_NAMES = {
    "ubuntu": "Ubuntu",
    "rhel": "Red Hat Enterprise Linux",
    "rhcos": "Red Hat Enterprise Linux CoreOS",
    "debian": "Debian",
}


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of a host. `pci_address` is domain:bus:device.function."""

    index: int
    uuid: str
    pci_address: str
    model: Model

    @property
    def device_node(self) -> str:
        """The GPU's character device."""
        return f"/dev/nvidia{self.index}"


class SimulatedHost:
    """One node's machine. Making it writes the files of a freshly installed and booted host that do not exist yet.

    With `attach` nothing is written: the machine is there already and others use it at the same time.
    """

    def __init__(self, root: HostRoot, spec: NodeSpec, *, attach: bool = False) -> None:
        self.root = root
        self.spec = spec
        self.gpus: tuple[Gpu, ...] = tuple(_gpus(spec))
        self.kernel_modules = KernelModules(root, spec.arch)
        self._check_socket_length()
        if not attach:
            self._install()
            self.boot()

    @classmethod
    def attached(cls, folder: Path) -> Self:
        """The machine in a folder, which another process has made. HostError if there is none."""
        root = HostRoot(folder)
        if not root.exists(DESCRIPTION):
            known = sorted(path.name for path in folder.parent.iterdir() if HostRoot(path).exists(DESCRIPTION))
            raise HostError(f"there is no node {folder.name!r}; there are {', '.join(known) or 'none'}")
        return cls(root, msgspec.json.decode(root.read_text(DESCRIPTION), type=NodeSpec), attach=True)

    def __repr__(self) -> str:
        return f"SimulatedHost({self.spec.name!r}, {self.root})"

    def _check_socket_length(self) -> None:
        longest = str(self.root.base) + LONGEST_SOCKET
        excess = len(os.fsencode(longest)) - SOCKET_PATH_LIMIT
        if excess > 0:
            raise HostError(
                f"folder {self.root.base} of node {self.spec.name!r} is {excess} bytes too long: unix sockets such as "
                f"{LONGEST_SOCKET} below it may have {SOCKET_PATH_LIMIT} bytes; use a shorter work folder or node name"
            )

    # --- the machine --------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        """Write what an installed system has on its disk."""
        spec, root = self.spec, self.root
        for folder in (
            "/etc",
            "/usr/bin",
            "/usr/local",
            "/var/log",
            "/var/lib/kubelet",
            "/proc",
            "/sys",
            "/dev",
            "/run",
        ):
            root.mkdir(folder)
        self._place(DESCRIPTION, msgspec.json.encode(spec).decode())
        if not root.exists(DEVICES):
            root.mkdir(DEVICES.rpartition("/")[0])
            described = describe(spec.name, list(spec.entries()), spec.host_driver or NO_DRIVER)
            Machine.create(root.path(DEVICES), described)
        self._place("/etc/os-release", _os_release(spec))
        self._place("/etc/hostname", spec.name + "\n")
        self._place("/etc/machine-id", hashlib.md5(spec.name.encode(), usedforsecurity=False).hexdigest() + "\n")
        if not os.path.lexists(root.base / "var" / "run"):
            root.symlink("/var/run", "/run")
        for path, text in _RUNTIME_FILES[spec.runtime.name].items():
            self._place(path, text)
        if spec.host_driver and not root.exists(driverfiles.SMI):
            driverfiles.write(root, spec.host_driver, driverfiles.HOST_LIBRARIES)

    def _place(self, path: str, text: str, *, mode: int = 0o644) -> None:
        if not self.root.exists(path):
            self.root.write_atomic(path, text, mode=mode)

    def boot(self) -> None:
        """Bring up the kernel's view: devices, no modules but a host driver's, an empty /run, a fresh runtime."""
        for path in ("/sys", "/proc", "/dev", "/run"):
            _empty(self.root.path(path))
        root, spec = self.root, self.spec
        root.write_atomic("/proc/modules", "")
        root.write_atomic("/proc/meminfo", "MemTotal:       1056784548 kB\n")
        root.write_atomic("/proc/cpuinfo", _CPU[spec.arch])
        root.write_atomic("/proc/sys/kernel/osrelease", self._boot_kernel() + "\n")
        root.write_atomic("/sys/class/dmi/id/product_name", "groundplane simulated server\n")
        root.write_atomic("/sys/devices/system/memory/auto_online_blocks", "online\n")
        root.write_atomic("/sys/module/firmware_class/parameters/path", "\n")
        root.mkdir("/sys/bus/pci/devices")
        root.mkdir("/dev/char")
        root.write_atomic("/dev/null", "")
        root.write_atomic("/dev/log", "")
        root.write_atomic(kernelmessages.PATH, "")
        self.say(f"Linux version {self.kernel} (simulated) (groundplane)", level=5)
        for gpu in self.gpus:
            self.write_pci(gpu)
        if spec.host_driver and self.gpus:
            for module in CORE_MODULES:
                self.load_module(module, version=spec.host_driver)
            self.create_device_nodes()
        self.read_runtime()

    def write_pci(self, gpu: Gpu) -> None:
        """Have a GPU on the bus."""
        folder = f"/sys/bus/pci/devices/{gpu.pci_address}"
        for name, value in (
            ("vendor", NVIDIA_VENDOR),
            ("device", "0x" + gpu.model.pci_id.lower()),
            ("class", gpu.model.pci_class),
            ("numa_node", str(gpu.index * 2 // max(1, len(self.gpus)))),
            ("subsystem_vendor", NVIDIA_VENDOR),
            ("subsystem_device", "0x0001"),
        ):
            self.root.write_atomic(f"{folder}/{name}", value + "\n")
        self.root.write_atomic(f"{folder}/config", _configuration_space(int(gpu.model.pci_id, 16)))
        ids = f"{NVIDIA_VENDOR.removeprefix('0x')}:{gpu.model.pci_id.lower()}"
        self.say(f"pci {gpu.pci_address}: [{ids}] type 00 class {gpu.model.pci_class}")

    def say(self, *lines: str, level: int = 6) -> None:
        """Write to the kernel's log: 3 is an error, 4 a warning, 6 information."""
        kernelmessages.append(self.root.path(kernelmessages.PATH), *lines, level=level)

    def pci_devices(self) -> list[dict[str, str]]:
        """What a program reads of the PCI bus: `address`, `vendor`, `device`, `class` of each device, by address."""
        found = []
        for folder in self.root.glob("/sys/bus/pci/devices/*"):
            fields = {name: self.root.read_text(f"{folder}/{name}").strip() for name in ("vendor", "device", "class")}
            found.append({"address": folder.rsplit("/", 1)[1], **fields})
        return found

    @property
    def kernel(self) -> str:
        """The running kernel's release."""
        return self.root.read_text("/proc/sys/kernel/osrelease").strip()

    def install_kernel(self, release: str) -> None:
        """Install a kernel, as an update does: it runs from the next boot on."""
        self.root.write_atomic(BOOT_KERNEL, release + "\n")

    def _boot_kernel(self) -> str:
        return self.root.read_text(BOOT_KERNEL).strip() if self.root.exists(BOOT_KERNEL) else self.spec.kernel

    @property
    def machine(self) -> Machine:
        """The hand on the simulated GPUs: to inject faults, to change MIG."""
        return Machine(self.root.path(DEVICES))

    # --- kernel modules and driver ------------------------------------------------------------------------------------

    def modules(self) -> list[str]:
        """Names of the loaded modules, in the order they were loaded."""
        return self.kernel_modules.names()

    def loaded(self, module: str) -> bool:
        """Whether a module is loaded, as programs test it."""
        return self.kernel_modules.loaded(module)

    def load_module(
        self,
        module: str,
        *,
        version: str = "",
        signer: str = DISTRIBUTION,
        open: bool = False,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Load a module; loading a loaded one changes nothing, as modprobe. HostError if secure boot forbids it.

        `signer` is who signed its file (nobody: empty), `open` says that it is NVIDIA's open flavour.
        """
        try:
            new = self.kernel_modules.load(Module(module, version, signer, open), parameters)
        except HostError:
            self.say(f"Loading of module {module} with an unavailable key is rejected", level=5)
            raise
        if not new:
            return
        if module == "nvidia":
            kind = "Open Kernel Module for" if open else "Kernel Module"
            self.say(
                "nvidia: loading out-of-tree module taints kernel.", f"NVRM: loading NVIDIA UNIX {kind}  {version}"
            )
            self.root.write_atomic(MIG_MINORS, "".join(f"{name} {minor}\n" for name, minor in _capabilities(self.gpus)))
            if DRIVER_VERSION.fullmatch(version):
                self.machine.set_driver(version)

    def unload_module(self, module: str) -> None:
        """Unload a module; HostError if something holds it, nothing if it is not loaded."""
        if self.kernel_modules.unload(module) and module == "nvidia":
            self.root.remove(MIG_MINORS)

    def gpus_in_use(self, gpus: Collection[Gpu]) -> AbstractContextManager[None]:
        """Inside the block a process has these GPUs open, so that the driver's modules cannot be unloaded."""
        return self.kernel_modules.held(CLIENT_MODULES if gpus else ())

    @property
    def driver_version(self) -> str | None:
        """Version of the loaded NVIDIA kernel module, or None."""
        path = "/sys/module/nvidia/version"
        return self.root.read_text(path).strip() if self.loaded("nvidia") and self.root.exists(path) else None

    def has_host_driver(self) -> bool:
        """Whether a driver is installed on the host itself and works there (`chroot / nvidia-smi`).

        It does not where the kernel's module is none, or of another version than the host's libraries.
        """
        return self.root.is_file(driverfiles.SMI) and self.driver_version in self.host_libraries()

    def host_libraries(self) -> list[str]:
        """The versions of the driver whose libraries are installed on the host itself."""
        return driverfiles.versions(self.root, driverfiles.HOST_LIBRARIES)

    def create_device_nodes(self) -> None:
        """Make the GPUs' and the driver's device nodes; the lab's are ordinary files."""
        for name in CONTROL_DEVICES:
            self.root.write_atomic(f"/dev/{name}", "")
        for gpu in self.gpus:
            self.root.write_atomic(gpu.device_node, "")
        for gpu in self.gpus:
            self.root.symlink(f"{DEVICE_LINKS}/{GPU_MAJOR}:{gpu.index}", f"..{gpu.device_node.removeprefix('/dev')}")
        minors = dict(_capabilities(self.gpus))
        for card, device in self.machine.read().placed():
            instance = f"gpu{card.gpu.minor}/gi{device.gi}"
            for name in (f"{instance}/access", f"{instance}/ci{device.ci}/access"):
                self.root.write_atomic(f"/dev/nvidia-caps/nvidia-cap{minors[name]}", "")

    def device_nodes(self) -> list[str]:
        """The NVIDIA device nodes that exist."""
        return self.root.glob("/dev/nvidia*")

    def remove_device_nodes(self) -> None:
        """Remove all NVIDIA device nodes."""
        for path in (*self.device_nodes(), *self.root.glob(f"{DEVICE_LINKS}/{GPU_MAJOR}:*")):
            self.root.remove(path)

    def reload_units(self) -> None:
        """Have systemd read its units again, which writes the device rules of all containers anew.

        It finds devices by their links in /dev/char, and drops rules of those that have none.
        """
        linked = {path.rpartition(":")[2] for path in self.root.glob(f"{DEVICE_LINKS}/{GPU_MAJOR}:*")}
        if any(str(gpu.index) not in linked for gpu in self.gpus):
            self.root.write_atomic(RULES_DROPPED, f"{self.rules_dropped + 1}\n")

    @property
    def rules_dropped(self) -> int:
        """How often systemd has dropped GPUs from the device rules of the containers that ran then."""
        return int(self.root.read_text(RULES_DROPPED)) if self.root.exists(RULES_DROPPED) else 0

    # --- container runtime --------------------------------------------------------------------------------------------

    def restart_runtime(self) -> None:
        """Make the container runtime read its configuration again. HostError, naming the file, if it is malformed."""
        self.read_runtime()

    def read_runtime(self) -> None:
        """Read the runtime's configuration, as it does on its start."""
        handlers = configured_handlers(self.spec.runtime.name, self.root)
        self.root.write_atomic(IN_FORCE, json.dumps(handlers))

    @property
    def runtime_handlers(self) -> dict[str, str]:
        """Path of the binary of each handler the running runtime knows, by name; empty for its own `runc`."""
        handlers = json.loads(self.root.read_text(IN_FORCE)) if self.root.exists(IN_FORCE) else {}
        return {name: str(table.get("binary", "")) for name, table in handlers.items()}

    def injects(self) -> bool:
        """Whether the container runtime has a way to give GPUs to containers: a handler, or CDI devices."""
        return any(name.startswith("nvidia") for name in self.runtime_handlers) or bool(self.cdi_devices())

    def cdi_devices(self) -> frozenset[str]:
        """The CDI devices that this host's spec files offer, by qualified name."""
        return frozenset(Registry.load(self.root.path).devices)


def _capabilities(gpus: tuple[Gpu, ...]) -> Iterator[tuple[str, int]]:
    """The driver's capabilities for MIG, those of every instance that there could be, with their minor numbers."""
    instances = (
        name
        for gpu in gpus
        for instance in range(MIG_INSTANCES)
        for name in (
            f"gpu{gpu.index}/gi{instance}/access",
            *(f"gpu{gpu.index}/gi{instance}/ci{compute}/access" for compute in range(MIG_COMPUTES)),
        )
    )
    yield from zip(("config", "monitor", *instances), itertools.count(1), strict=False)


_CPU = {
    "amd64": "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n",
    "arm64": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n",
}
"""What `/proc/cpuinfo` says of a processor, by architecture."""


def _configuration_space(device: int) -> bytes:
    """What a GPU that is no vGPU shows of itself on the PCI bus: 256 bytes with one capability, power management."""
    space = bytearray(256)
    space[0:4] = struct.pack("<HH", int(NVIDIA_VENDOR, 16), device)
    space[0x06] = 0x10  # there is a list of capabilities
    space[0x34] = 0x60
    space[0x60:0x62] = b"\x01\x00"
    return bytes(space)


def _gpus(spec: NodeSpec) -> Iterator[Gpu]:
    for index, model in enumerate(spec.cards()):
        yield Gpu(index, gpu_uuid(spec.name, index), bus_id(index), model)


def _os_release(spec: NodeSpec) -> str:
    name = _OS_NAMES.get(spec.os.id, spec.os.id.capitalize())
    lines = [f'NAME="{name}"', f"ID={spec.os.id}", f'VERSION_ID="{spec.os.version_id}"']
    lines.append(f'PRETTY_NAME="{name} {spec.os.version_id}"')
    if spec.os.ostree_version:
        lines.append(f"OSTREE_VERSION='{spec.os.ostree_version}'")
    return "\n".join(lines) + "\n"


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


# --- configuration of the three runtimes ---------------------------------------------------------

_CONTAINERD_TABLE = "io.containerd.cri.v1.runtime"
_CONTAINERD_OLD_TABLE = "io.containerd.grpc.v1.cri"
_RUNTIME_FILES: dict[str, dict[str, str]] = {
    "containerd": {
        "/etc/containerd/config.toml": (
            "version = 3\n\n"
            '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]\n'
            '  runtime_type = "io.containerd.runc.v2"\n'
        )
    },
    "cri-o": {"/etc/crio/crio.conf": '[crio.runtime]\ndefault_runtime = "crun"\n'},
    "docker": {"/etc/docker/daemon.json": "{}\n"},
}


def _toml(root: HostRoot, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(root.read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise HostError(
            f"container runtime refuses {path}: {error}; the node runs no containers until it is fixed"
        ) from error


CONTAINERD_FILE = "/etc/containerd/config.toml"
K3S_FILE = next(each.config for each in DISTRIBUTIONS if each.name == "K3s")
"""Where K3s keeps the configuration of its own containerd; a machine that has it runs that one."""


def containerd_configuration(root: HostRoot, path: str = CONTAINERD_FILE) -> dict[str, Any]:
    """What containerd 2.2 would have in force, as version 3: a file and what that imports, one over the other."""
    top = _toml(root, path) if root.exists(path) else {}
    merged: dict[str, Any] = {}
    for document in (top, *(_toml(root, found) for pattern in top.get("imports", []) for found in root.glob(pattern))):
        plugins = dict(document.get("plugins", {}))
        old = plugins.pop(_CONTAINERD_OLD_TABLE, None)
        if old is not None:
            plugins[_CONTAINERD_TABLE] = old
        merged = _over(merged, {**document, "plugins": plugins})
    base: dict[str, Any] = {"plugins": {_CONTAINERD_TABLE: {"containerd": {"runtimes": {"runc": {}}}}}}
    found: dict[str, Any] = _over(base, {**merged, "version": 3})
    return found


def _over(below: Any, above: Any) -> Any:
    """Two tables as one: what the second says counts, tables in both are merged."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: _over(below[key], value) if key in below else value for key, value in above.items()}


def _containerd(root: HostRoot) -> dict[str, dict[str, Any]]:
    own = K3S_FILE if root.exists(K3S_FILE) else CONTAINERD_FILE
    runtimes = containerd_configuration(root, own)["plugins"][_CONTAINERD_TABLE]["containerd"]["runtimes"]
    return {name: {"binary": table.get("options", {}).get("BinaryName", "")} for name, table in runtimes.items()}


def crio_configuration(root: HostRoot) -> dict[str, Any]:
    """What CRI-O would have in force: its file and its drop-ins, one over the other."""
    merged: dict[str, Any] = {"crio": {"runtime": {"runtimes": {"crun": {}}}}}
    paths = ["/etc/crio/crio.conf", "/etc/crio/config.toml"]
    for path in [path for path in paths if root.exists(path)] + root.glob("/etc/crio/crio.conf.d/*"):
        merged = _over(merged, _toml(root, path))
    return merged


def _crio(root: HostRoot) -> dict[str, dict[str, Any]]:
    runtimes = crio_configuration(root)["crio"]["runtime"]["runtimes"]
    return {name: {"binary": table.get("runtime_path", "")} for name, table in runtimes.items()}


def _docker(root: HostRoot) -> dict[str, dict[str, Any]]:
    path = "/etc/docker/daemon.json"
    try:
        document = json.loads(root.read_text(path)) if root.exists(path) else {}
    except json.JSONDecodeError as error:
        raise HostError(f"container runtime refuses {path}: {error}") from error
    runtimes = document.get("runtimes", {})
    return {"runc": {}, **{name: {"binary": table.get("path", "")} for name, table in runtimes.items()}}


_READERS = {"containerd": _containerd, "cri-o": _crio, "docker": _docker}


def configured_handlers(runtime: str, root: HostRoot) -> dict[str, dict[str, Any]]:
    """The handlers that a runtime's configuration below a root names. HostError, naming the file, if malformed."""
    return _READERS[runtime](root)
