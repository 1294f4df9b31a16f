"""The kernel modules of a simulated host: loading, unloading, who uses which, parameters, and secure boot.

All of it is files below the host's root, as the kernel shows them: `/proc/modules`, `/sys/module/NAME/refcnt`,
`/sys/module/NAME/parameters`, `/proc/driver/nvidia`, and the variables of the firmware. What a module's loading means
for GPUs and device nodes is `host.py`'s part; which modules a driver consists of is the driver container's.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from ..node.hostroot import HostRoot

DISTRIBUTION: Final = "distribution"
"""Who signed the modules that come with the kernel, or from the distributor's packages."""

EFI_VARIABLES: Final = "/sys/firmware/efi/efivars"
SECURE_BOOT: Final = f"{EFI_VARIABLES}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""Four bytes of attributes, then 1 if the machine boots what is signed only."""
ENROLLED: Final = f"{EFI_VARIABLES}/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
"""The keys that the machine's owner has enrolled; here a line each, with the signer's name."""

MODULES: Final = "/proc/modules"
DRIVER_VERSION: Final = "/proc/driver/nvidia/version"
DRIVER_PARAMETERS: Final = "/proc/driver/nvidia/params"
_SHOWS_IN: Final = {"nvidia": (DRIVER_VERSION, DRIVER_PARAMETERS)}

NEEDS: Final[Mapping[str, str]] = {
    "nvidia_uvm": "nvidia",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
    "nvidia_peermem": "nvidia",
    "nvidia_fs": "nvidia",
    "nvidia_vgpu_vfio": "nvidia",
    "gdrdrv": "nvidia",
}
"""Which module uses symbols of which other, and so keeps it loaded."""

CLIENT_MODULES: Final = ("nvidia", "nvidia_uvm")
"""What a process with a GPU keeps open."""

_ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


class HostError(RuntimeError):
    """The simulated host refuses; the message is what the real one would say, or says what to do."""


class Module(msgspec.Struct, frozen=True):
    """A module's file: its version, who signed it (nobody: empty), whether it is NVIDIA's open flavour."""

    name: str
    version: str = ""
    signer: str = DISTRIBUTION
    open: bool = False


class KernelModules:
    """The modules of one host."""

    def __init__(self, root: HostRoot, arch: str = "amd64") -> None:
        self._root = root
        self._arch = arch

    def names(self) -> list[str]:
        """Names of the loaded modules, in the order they were loaded."""
        return [line.split()[0] for line in self._root.read_text(MODULES).splitlines()]

    def loaded(self, module: str) -> bool:
        """Whether a module is loaded, as programs test it."""
        return self._root.exists(f"/sys/module/{module}/refcnt")

    def uses(self, module: str) -> int:
        """How often a module is used, by other modules and by processes; 0 if it is not loaded."""
        return int(self._root.read_text(f"/sys/module/{module}/refcnt").strip() or 0) if self.loaded(module) else 0

    def load(self, module: Module, parameters: Mapping[str, str] | None = None) -> bool:
        """Load a module; whether it was not loaded before. HostError, with the kernel's text, if it may not be."""
        if self.loaded(module.name):
            return False
        self._check_signature(module)
        name, root = module.name, self._root
        root.write_atomic(MODULES, root.read_text(MODULES) + f"{name} 16384 0 - Live 0x0000000000000000\n")
        root.write_atomic(f"/sys/module/{name}/refcnt", "0\n")
        if module.version:
            root.write_atomic(f"/sys/module/{name}/version", module.version + "\n")
        self._show(module, parameters or {})
        if name in NEEDS and self.loaded(NEEDS[name]):
            self._count(NEEDS[name], 1, name)
        return True

    def _show(self, module: Module, parameters: Mapping[str, str]) -> None:
        """Parameters where the module shows them: nvidia's only below /proc, without their prefix."""
        if module.name == "nvidia" and module.version:
            kind = "Open Kernel Module for" if module.open else ""
            processor = _ARCHITECTURES[self._arch]
            title = f"NVIDIA UNIX {kind} {processor}" if kind else f"NVIDIA UNIX {processor} Kernel Module"
            self._root.write_atomic(DRIVER_VERSION, f"NVRM version: {title}  {module.version}  (simulated)\n")
            rows = (f"{key.removeprefix('NVreg_')}: {value}\n" for key, value in parameters.items())
            self._root.write_atomic(DRIVER_PARAMETERS, "".join(rows))
            return
        for key, value in parameters.items():
            if re.fullmatch(r"\w+", key):
                self._root.write_atomic(f"/sys/module/{module.name}/parameters/{key}", value + "\n")

    def unload(self, module: str) -> bool:
        """Unload a module; whether it was loaded. HostError if something uses it."""
        if not self.loaded(module):
            return False
        if holders := self.uses(module):
            raise HostError(f"rmmod: ERROR: Module {module} is in use ({holders} users)")
        kept = [line for line in self._root.read_text(MODULES).splitlines() if line.split()[0] != module]
        self._root.write_atomic(MODULES, "".join(line + "\n" for line in kept))
        for path in (f"/sys/module/{module}", *_SHOWS_IN.get(module, ())):
            self._root.remove(path)
        if module in NEEDS and module in self._users(NEEDS[module]):
            self._count(NEEDS[module], -1, module)
        return True

    @contextlib.contextmanager
    def held(self, modules: Collection[str]) -> Iterator[None]:
        """Those of the modules that are loaded are in use inside the block, as by a process that has a device open."""
        taken = [module for module in modules if self.loaded(module)]
        for module in taken:
            self.hold(module)
        try:
            yield
        finally:
            for module in taken:
                self.release(module)

    def hold(self, module: str) -> None:
        """Count a process that uses a loaded module."""
        self._count(module, 1)

    def release(self, module: str) -> None:
        """Take back what `hold` counted; after a reboot there is nothing to take back."""
        if self.uses(module):
            self._count(module, -1)

    def _users(self, module: str) -> list[str]:
        for line in self._root.read_text(MODULES).splitlines():
            name, _, _, users, *_ = line.split()
            if name == module:
                return [user for user in users.split(",") if user not in ("", "-")]
        return []

    def _count(self, module: str, change: int, user: str = "") -> None:
        """Change how often a module is used, and by which other, in both places where the kernel shows it."""
        users = self._users(module)
        if user:
            users = [*users, user] if change > 0 else [each for each in users if each != user]
        count = max(0, self.uses(module) + change)
        shown = "".join(f"{each}," for each in users) or "-"
        rows = (line.split() for line in self._root.read_text(MODULES).splitlines())
        lines = (
            " ".join([name, size, str(count), shown, *rest] if name == module else [name, size, uses, by, *rest])
            for name, size, uses, by, *rest in rows
        )
        self._root.write_atomic(MODULES, "".join(line + "\n" for line in lines))
        self._root.write_atomic(f"/sys/module/{module}/refcnt", f"{count}\n")

    # --- secure boot --------------------------------------------------------------------------------------------------

    @property
    def secure_boot(self) -> bool:
        """Whether the firmware says so."""
        return self._root.exists(SECURE_BOOT) and self._root.path(SECURE_BOOT).read_bytes()[4:5] == b"\x01"

    def _check_signature(self, module: Module) -> None:
        """HostError, as modprobe words it, for a module whose key the machine does not know."""
        if not self.secure_boot or module.signer == DISTRIBUTION:
            return
        enrolled = self._root.read_text(ENROLLED).splitlines() if self._root.exists(ENROLLED) else []
        if module.signer and module.signer in enrolled:
            return
        release = self._root.read_text("/proc/sys/kernel/osrelease")
        old = int(release.partition(".")[0]) < 5  # newer kernels hand out one error for every bad signature
        reason = "Required key not available" if old else "Key was rejected by service"
        raise HostError(f"modprobe: ERROR: could not insert '{module.name}': {reason}")
