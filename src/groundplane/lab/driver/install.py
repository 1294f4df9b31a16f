"""What an installation of the driver consists of: user space, a package for the kernel, modules, the mounted root.

Each function is a step of contracts/driver-lifecycle.md 6.3; `container.py` runs them in order.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from ...api import names
from ...node.hostroot import HostRoot
from .. import driverfiles
from ..kernelmodules import DISTRIBUTION
from ..programs import ContainerContext
from . import fabric, image, modules, packages
from .image import DriverImage

USER_SPACE_S: Final = 5.0
"""Cluster seconds that installing libraries and programs takes."""
BUILD_S: Final = 15.0
"""Cluster seconds that building the modules takes."""

IMAGE_SIGNER: Final = "nvidia-driver-container"
"""Who signed the modules of precompiled images that are no distributor's (6.10)."""
HOOK_FOLDER: Final = "/run/kernel/postinst.d"
HOOK: Final = f"{HOOK_FOLDER}/update-nvidia-driver"
_HOOK_TEXT: Final = """\
#!/bin/sh
# Builds the driver for a kernel that was just installed.
exec chroot /run/nvidia/driver nvidia-driver update --kernel "$1"
"""


class Options(msgspec.Struct, frozen=True):
    """What the command line says: threads, and for `update` kernel, signing key and tag."""

    max_threads: int = 1
    kernel: str = ""
    sign: str = ""
    tag: str = ""


class Package(msgspec.Struct, frozen=True):
    """Modules built for a kernel, and who signed them."""

    kernel: str
    signer: str = ""


class Installation:
    """One image's installation on one host."""

    def __init__(self, ctx: ContainerContext, options: Options, *, reference: str = "") -> None:
        self.ctx = ctx
        self.options = options
        self.image: DriverImage = image.parse(reference or str(ctx.container.spec["image"]))
        self.kernel = options.kernel or ctx.host.kernel
        self.open = False

    @property
    def digest(self) -> str:
        """The configuration's digest, or an empty text."""
        return self.ctx.env.get("DRIVER_CONFIG_DIGEST", "")

    def is_loaded(self) -> bool:
        """Whether the wanted driver is loaded already, so that only user space is to be installed.

        Precompiled images never take this path.
        """
        state = self.ctx.path(names.DRIVER_STATE_FILE)
        return (
            not self.image.kernel
            and bool(self.digest)
            and self.ctx.host.loaded("nvidia")
            and state.is_file()
            and state.read_text().strip() == self.digest
        )

    async def user_space(self) -> None:
        """Install libraries and programs in the container."""
        self.ctx.log("Installing userspace components (libraries and binaries)...")
        await self.ctx.clock.sleep(USER_SPACE_S)

    def choose_kind(self) -> None:
        """Decide on open or proprietary modules. KindError."""
        recommended = modules.recommended(self.image, self.ctx.host)
        setting = self.ctx.env.get("KERNEL_MODULE_TYPE") or "auto"
        if setting == "auto" and recommended is None:
            self.ctx.log("nvidia-installer recommends no kernel module type; the driver's branch decides")
        self.open = modules.kind_is_open(setting, self.image.branch, recommended)
        self.ctx.log(f"Kernel module type: {'open' if self.open else 'proprietary'}")

    # --- the package --------------------------------------------------------------------------------------------------
    @property
    def _packages(self) -> str:
        kind = "kernel-open" if self.open else "kernel"
        return f"/usr/src/nvidia-{self.image.version}/{kind}/precompiled"

    def package(self) -> Package | None:
        """A package for the kernel that was built before, or None."""
        folder = self.ctx.path(self._packages)
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        found = (msgspec.json.decode(file.read_bytes(), type=Package) for file in files)
        return next((each for each in found if each.kernel == self.kernel), None)

    async def build(self, *, headers: bool = True) -> Package:
        """Build the modules; the kernel's headers come from the repositories, unless they are there. RefusedError."""
        ctx = self.ctx
        if headers:
            await packages.headers(ctx, self.kernel, packages.update(ctx))
        ctx.log(f"Compiling NVIDIA driver kernel modules with {self.options.max_threads} threads...")
        await ctx.clock.sleep(BUILD_S)
        if self.options.sign:
            ctx.log("Signing NVIDIA driver kernel modules...")
        made = Package(self.kernel, self.options.sign)
        ctx.log("Building NVIDIA driver package...")
        self.keep(made)
        return made

    def keep(self, made: Package) -> None:
        """Put a package where :meth:`package` finds it."""
        name = "-".join(part for part in ("nvidia-modules", made.kernel, self.options.tag) if part)
        self.ctx.write(f"{self._packages}/{name}", msgspec.json.encode(made).decode())

    async def select(self) -> Package:
        """The modules for the running kernel: precompiled, built before, or built now. RefusedError."""
        if not self.image.kernel:
            self.ctx.log("Checking NVIDIA driver packages...")
            return self.package() or await self.build()
        found = packages.update(self.ctx)
        if self.image.kernel != self.kernel or not any(each.has(self.kernel) for each in found):
            raise packages.RefusedError(
                f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{self.kernel}; the image is for "
                f"kernel {self.image.kernel}"
            )
        return Package(self.kernel, DISTRIBUTION if self.image.os == "ubuntu" else IMAGE_SIGNER)

    # --- loading and the root -----------------------------------------------------------------------------------------
    def load(self, package: Package, parameters: Mapping[str, list[str]], *, again: tuple[str, ...] = ()) -> None:
        """Write modprobe's files and load the modules, then those that had to go for them. HostError."""
        ctx = self.ctx
        for path, text in modules.modprobe_files(parameters).items():
            ctx.log(f"Configuring module parameters in {path}")
            ctx.write(path, text)
        ctx.log("Installing NVIDIA driver kernel modules...")
        build = modules.Build(self.image.version, self.open, package.signer, parameters)
        modules.load(ctx, build, rdma=ctx.flag("GPU_DIRECT_RDMA_ENABLED"))
        for module in again:
            ctx.log(f"+ modprobe {module}")
            ctx.host.load_module(module, signer=package.signer)

    def mount(self, package: Package, parameters: Mapping[str, list[str]]) -> None:
        """Show the container's files at the driver root."""
        ctx = self.ctx
        ctx.log("Mounting NVIDIA driver rootfs...")
        root = HostRoot(ctx.path(names.DRIVER_ROOT), durable=False)
        driverfiles.write(root, self.image.version, driverfiles.CONTAINER_LIBRARIES)
        root.mkdir(f"/usr/src/nvidia-{self.image.version}")
        for path, text in modules.modprobe_files(parameters).items():
            root.write_atomic(path, text)
        for module in (*modules.LOADED, modules.PEERMEM):
            root.write_atomic(modules.file(package.kernel, module), package.signer)
        ctx.symlink(names.DRIVER_ROOT + "/dev", "/dev")
        if ctx.path(HOOK_FOLDER).is_dir():
            ctx.log("Writing kernel update hook...")
            ctx.write(HOOK, _HOOK_TEXT, mode=0o755)

    def unmount(self) -> None:
        """Take the driver root away."""
        self.ctx.log("Unmounting NVIDIA driver rootfs...")
        self.ctx.container.unmount(names.DRIVER_ROOT)

    def remember(self) -> None:
        """Store the digest of what is loaded; precompiled images do not."""
        if not self.image.kernel:
            self.ctx.write(names.DRIVER_STATE_FILE, self.digest + "\n")

    async def daemons(self) -> None:
        """Start the daemons. RefusedError."""
        await fabric.start(self.ctx)
