"""How a driver's libraries get into a container (contracts/toolkit-cdi.md 3.4, 3.5), in one of two ways.

As upstream: each is mounted where the host has it, and hooks make the links that it is loaded by. Or without hooks:
each is mounted under every name that it is loaded by, in folders that loaders search. Which libraries a driver has is
told by :mod:`.drivers`.

Folders without hooks. A spec does not know the image, so that the folders are those of all loaders: ``/usr/lib64`` is
searched by glibc as RHEL, Fedora, SUSE and Amazon build it; ``/usr/lib`` by glibc as Debian, Ubuntu and Arch build it,
and by musl; either on x86-64 and aarch64. Two cover all, and more would cost: a mount takes 0.15 ms of a container's
start. An image of Debian's kind may hold libraries of a driver itself, which its loader's cache names: over those that
images hold and that must fit the kernel's module the host's are mounted in Debian's folder, too. Modules that programs
look for in a subfolder of their distribution's library folder (VDPAU, GBM) are put there. What only the driver's own
windows load is left out.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Final

from ...api.release import Release
from . import elf
from .drivers import (
    ALLOCATOR,
    EXPLICIT_LIBRARIES,
    GLX_SERVER,
    GRAPHICS_LIBRARIES,
    NVVM,
    VDPAU,
    VULKAN_PRODUCER,
    Driver,
    DriverFiles,
)
from .model import Mount
from .roots import Roots

LOADER_FOLDERS: Final = ("/usr/lib64", "/usr/lib")
"""Where every library is mounted without hooks."""
DEBIAN_FOLDER: Final = "/usr/lib/{}-linux-gnu"
"""Where, on a machine of some architecture, :data:`SHADOWED` libraries are mounted, too."""
SHADOWED: Final = frozenset(
    {
        *("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvcuvid.so"),
        "libnvidia-encode.so",
    }
)
"""Libraries that images hold though they should not, by names without versions."""
MODULE_FOLDERS: Final = ("/usr/lib64", DEBIAN_FOLDER)
"""Library folders whose subfolders have modules."""
UNUSED: Final = frozenset({"libnvidia-gtk2.so", "libnvidia-gtk3.so", "libnvidia-wayland-client.so"})
"""Libraries that nothing in a container loads: they draw the windows of the driver's settings."""

READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
IPC_OPTIONS: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
EXPLICIT: Final = "enable-explicit-driver-libraries"
NO_GRAPHICS: Final = "disable-graphics"
"""Our own feature: no libraries for graphics, since without hooks they are more than half of all mounts."""
GRAPHICS: Final = frozenset(
    {
        *("libEGL_nvidia.so", "libGLESv1_CM_nvidia.so", "libGLESv2_nvidia.so", "libGLX_nvidia.so", "libnvoptix.so"),
        *("libnvidia-allocator.so", "libnvidia-api.so", "libnvidia-eglcore.so", "libnvidia-fbc.so"),
        *("libnvidia-glcore.so", "libnvidia-glsi.so", "libnvidia-glvkspirv.so", "libnvidia-ngx.so"),
        *("libnvidia-present.so", "libnvidia-rtcore.so", "libnvidia-tls.so", "libnvidia-vksc-core.so"),
        *(VULKAN_PRODUCER, "libvdpau_nvidia.so", "libnvidia-cfg.so", *sorted(UNUSED)),
    }
)
"""Libraries for graphics, by names without versions."""

ALIASES: Final = {
    "libcuda.so": "libcuda.so",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so",
    "libGLX_nvidia.so": "libGLX_indirect.so.0",
    VULKAN_PRODUCER: VULKAN_PRODUCER,
    GLX_SERVER: GLX_SERVER,
}
"""Names, beside the SONAME, by which programs load a library without hooks; by the library's name without versions."""
_GBM: Final = "gbm/nvidia-drm_gbm.so"
"""The allocator's name as a module of GBM."""


class Placing:
    """What a driver's libraries are mounted as, and linked to."""

    def __init__(self, files: DriverFiles, roots: Roots) -> None:
        self._files = files
        self._roots = roots
        self._read: dict[str, elf.Library | None] = {}

    def mount(self, path: str, at: str = "", options: tuple[str, ...] = READ_ONLY) -> Mount:
        """A mount of a driver's file or folder, at its own place unless said otherwise.

        A link that would lead the host out of the driver's root is followed here, below the root.
        """
        real = self._files.real(path) if self._roots.host_driver and self._files.leaves(path) else path
        return Mount(self._roots.host_driver + real, at or path, options)

    # --- with hooks ---------------------------------------------------------------------------------------------------

    def links(self, libraries: Iterable[str]) -> list[str]:
        """Links ``target::path`` that programs need: fixed ones, and SONAME and ``.so`` where the host has them."""
        return list(dict.fromkeys(link for path in libraries for link in (*_fixed(path), *self._as_on_host(path))))

    def _as_on_host(self, path: str) -> Iterator[str]:
        folder, name = posixpath.split(path)
        library = self._library(path)
        if library is None or name.count(".") < 2:
            return
        soname = library.soname or name
        if soname != name and self._files.link(f"{folder}/{soname}"):
            yield f"{name}::{folder}/{soname}"
        plain = stem(soname)
        if plain != soname and plain and self._files.link(f"{folder}/{plain}"):
            yield f"{soname}::{folder}/{plain}"

    def graphics_links(self, libraries: Iterable[str], version: str) -> Iterator[str]:
        """Links of graphics libraries, which are not found by their SONAME."""
        for path in libraries:
            folder, name = posixpath.split(path)
            if name == f"{ALLOCATOR}.{version}":
                yield f"../{ALLOCATOR}.1::{folder}/{_GBM}"
            for plain in (VULKAN_PRODUCER, GLX_SERVER):
                if name == f"{plain}.{version}":
                    yield f"{name}::{folder}/{plain}"

    # --- without hooks ------------------------------------------------------------------------------------------------

    def by_names(self, libraries: Iterable[str], version: str = "") -> Iterator[Mount]:
        """A mount for each name that a library is loaded by, in each folder; of libraries of one name the first.

        ``version`` is the driver's.
        """
        seen: set[str] = set()
        for path in libraries:
            for at in self._places(path, version):
                if at not in seen:
                    seen.add(at)
                    yield self.mount(path, at)

    def _places(self, path: str, version: str) -> Iterator[str]:
        folder, name = posixpath.split(path)
        plain = stem(name)
        if plain in UNUSED:
            return
        if folder.rpartition("/")[2] == VDPAU:
            yield from self._in_modules(path, *(f"{VDPAU}/{loaded}" for loaded in self.names(path)))
            return
        folders = (*LOADER_FOLDERS, *(self._formatted(path, DEBIAN_FOLDER) if plain in SHADOWED else ()))
        yield from (f"{each}/{loaded}" for loaded in self.names(path) for each in folders)
        if name == f"{ALLOCATOR}.{version}":
            yield from self._in_modules(path, _GBM)

    def _in_modules(self, path: str, *names: str) -> Iterator[str]:
        yield from (f"{each}/{name}" for each in self._formatted(path, *MODULE_FOLDERS) for name in names)

    def _formatted(self, path: str, *folders: str) -> list[str]:
        """Folders of the architecture that a library is for, as far as that is known."""
        library = self._library(path)
        machine = library.machine if library is not None else ""
        return [each.format(machine) for each in folders if machine or "{}" not in each]

    def folders(self) -> tuple[str, ...]:
        """Where a container has the libraries, for an environment variable."""
        return LOADER_FOLDERS

    def modules(self, modules: Iterable[str]) -> Iterator[Mount]:
        """The X server's modules, at their own place, under the names that the server loads them by."""
        for path in modules:
            folder, name = posixpath.split(path)
            yield self.mount(path, f"{folder}/{ALIASES.get(stem(name), name)}")

    def names(self, path: str) -> tuple[str, ...]:
        """The names that a library is loaded by: its SONAME, and aliases.

        Of a file that is no ELF file: the names of links to it, else its own.
        """
        name = posixpath.basename(path)
        library = self._library(path)
        if library is not None:
            loaded = [library.soname or name]
        else:
            folder = posixpath.dirname(path)
            loaded = [each for each, target in self._files.links(folder) if target == path and ".so." in each] or [name]
        alias = ALIASES.get(stem(name))
        return tuple(dict.fromkeys((*loaded, *([alias] if alias else ()))))

    def _library(self, path: str) -> elf.Library | None:
        if path not in self._read:
            self._read[path] = self._files.library(path)
        return self._read[path]


def stem(name: str) -> str:
    """A library's name without its version: up to and with ``.so``, empty if it has none."""
    head, dot, _ = name.partition(".so")
    return f"{head}.so" if dot else ""


def of_driver(files: DriverFiles, driver: Driver, features: Iterable[str], release: Release) -> list[str]:
    """A driver's libraries, in the order in which they are found (3.4)."""
    folders = (*driver.folders, *(f"{each}/{VDPAU}" for each in driver.folders))
    found = files.libraries(f"*.so.{driver.version}", folders)
    if release is not Release.V26_3:
        found += files.libraries(NVVM, driver.folders)
    if EXPLICIT in features:
        found += [path for name in EXPLICIT_LIBRARIES for path in files.libraries(name, driver.folders)]
    without = GRAPHICS if NO_GRAPHICS in features else frozenset()
    return [path for path in dict.fromkeys(found) if stem(posixpath.basename(path)) not in without]


def of_graphics(files: DriverFiles, driver: Driver) -> list[str]:
    """Graphics libraries that have no driver version in their name, and the driver's own that need links."""
    patterns = (*GRAPHICS_LIBRARIES, f"{ALLOCATOR}.{driver.version}", f"{VULKAN_PRODUCER}.{driver.version}")
    return list(dict.fromkeys(path for pattern in patterns for path in files.libraries(pattern)))


def folders_of(libraries: Iterable[str]) -> list[str]:
    """The folders of files that are named as libraries are."""
    named = (path for path in libraries if _is_library(posixpath.basename(path)))
    return list(dict.fromkeys(posixpath.dirname(path) for path in named))


def _is_library(name: str) -> bool:
    head, dot, rest = name.rpartition(".so")
    return bool(dot) and name.startswith("lib") and len(head) > len("lib") and (not rest or rest.startswith("."))


_FIXED: Final = {
    "libcuda.so": ("libcuda.so.1", "libcuda.so"),
    "libGLX_nvidia.so": ("", "libGLX_indirect.so.0"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
}
"""Links that are made wherever there is such a library: target (the library itself if empty) and name."""


def _fixed(path: str) -> Iterator[str]:
    folder, name = posixpath.split(path)
    plain = stem(name)
    if plain in _FIXED and name.removeprefix(plain).count(".") >= 2:
        target, link = _FIXED[plain]
        yield f"{target or name}::{folder}/{link}"
