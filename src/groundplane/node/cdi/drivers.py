"""The files of a driver, found below its root (contracts/toolkit-cdi.md 3.4): which there are, and where.

A :class:`DriverFiles` looks for names in folders as the root's own programs would: links lead to what they name below
the root, never out of it. What there is to look for stands in tables. How the files get into a container is left to
:mod:`.libraries` and :mod:`.generate`.
"""

import fnmatch
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ...api.release import Release
from ..hostroot import HostPathError, HostRoot
from ..process import Log, Process
from . import elf, ldcache
from .options import GenerateError, Wanted

_TRIPLETS: Final = ("x86_64-linux-gnu", "aarch64-linux-gnu")
LIBRARY_FOLDERS: Final = (
    *("/", "/usr/lib64", *(f"/usr/lib/{each}" for each in _TRIPLETS)),
    *(f"/usr/lib/{each}/nvidia/current" for each in _TRIPLETS),
    *("/lib64", *(f"/lib/{each}" for each in _TRIPLETS)),
    *(f"/lib/{each}/nvidia/current" for each in _TRIPLETS),
)
VDPAU: Final = "vdpau"
NVVM: Final = "libnvidia-nvvm70.so.*"
"""A library of the driver that has no driver version in its name."""
EXPLICIT_LIBRARIES: Final = (
    *("libEGL.so", "libGL.so", "libGLESv1_CM.so", "libGLESv2.so", "libGLX.so", "libGLdispatch.so", "libOpenCL.so"),
    *("libOpenGL.so", "libnvidia-api.so", "libnvidia-egl-xcb.so", "libnvidia-egl-xlib.so"),
)
"""Libraries without a version that feature ``enable-explicit-driver-libraries`` adds."""
GRAPHICS_LIBRARIES: Final = tuple(
    f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib")
)
"""Graphics libraries, which have versions of their own."""
ALLOCATOR, VULKAN_PRODUCER, GLX_SERVER = (
    "libnvidia-allocator.so",
    "libnvidia-vulkan-producer.so",
    "libglxserver_nvidia.so",
)
XORG_DRIVER: Final = "nvidia_drv.so"
_XORG_PARTS: Final = tuple(f"modules/{part}{kind}" for part in ("", "updates/") for kind in ("drivers", "extensions"))
_XORG_FOLDERS: Final = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")

BINARIES: Final = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-imex", "nvidia-imex-ctl"),
)
GRAPHICS_BINARIES: Final = ("nvidia-xconfig",)
_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

IPC: Final = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
IPC_FOLDERS: Final = ("/run", "/var/run")
MPS: Final = "/tmp/nvidia-mps"

FIRMWARE: Final = "nvidia/{}/gsp*.bin"
_FIRMWARE_FOLDERS: Final = ("/lib/firmware/updates/{0}", "/lib/firmware/updates", "/lib/firmware/{0}", "/lib/firmware")
_FIRMWARE_PATH: Final = "/sys/module/firmware_class/parameters/path"
_KERNEL_RELEASE: Final = "/proc/sys/kernel/osrelease"

CONFIGS: Final = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    *("egl/egl_external_platform.d/15_nvidia_gbm.json", "egl/egl_external_platform.d/10_nvidia_wayland.json"),
    *("egl/egl_external_platform.d/09_nvidia_wayland2.json", "egl/egl_external_platform.d/20_nvidia_xcb.json"),
    *("egl/egl_external_platform.d/20_nvidia_xlib.json", "nvidia/nvoptix.bin"),
    *("X11/xorg.conf.d/10-nvidia.conf", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
)
OPENCL: Final = "OpenCL/vendors/nvidia.icd"
"""A configuration file since toolkit 1.20."""
VULKAN: Final = (
    *("vulkan/icd.d/nvidia_icd.json", "vulkan/icd.d/nvidia_layers.json", "vulkan/implicit_layer.d/nvidia_layers.json"),
    *("vulkan/icd.d/nvidia_icd.x86_64.json", "vulkan/icd.d/nvidia_icd.aarch64.json"),
)
VULKAN_FOLDER: Final = "/etc"
"""Where a container has the Vulkan files, wherever the host has them."""
_CONFIG_FOLDER: Final = "/etc"
_DATA_FOLDERS: Final = "/usr/local/share:/usr/share"

_VERSIONED: Final = ("libcuda.so", "libnvidia-ml.so")
"""Libraries whose name tells the driver's version."""


class Driver(NamedTuple):
    """A driver as its files show it: its version, and the folders that have its libraries."""

    version: str
    folders: tuple[str, ...]


class DriverFiles:
    """Files below a driver root; all paths are the root's own.

    ``library_folders`` and ``config_folders`` are looked in instead of the usual ones; they are the root's, or the
    process' and below the root.
    """

    def __init__(self, process: Process, wanted: Wanted) -> None:
        self._here = wanted.roots.driver
        self._root = HostRoot(process.path(self._here or "/"))
        self._kernel = process.kernel
        self._log: Log = process.log
        self._env = process.env
        self._library_folders = tuple(self._inside(each) for each in wanted.library_search_paths)
        self._config_folders = tuple(self._inside(each) for each in wanted.config_search_paths)
        self._entries: dict[str, tuple[str, ...]] = {}
        self._cached: tuple[str, ...] | None = None
        self._not_there: dict[str, None] = {}

    @property
    def place(self) -> str:
        """The root, for a person."""
        return self._here or "/"

    def _inside(self, path: str) -> str:
        return path[len(self._here) :] or "/" if f"{path}/".startswith(f"{self._here}/") else path

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, folders: Iterable[str], pattern: str, *, folder: bool = False) -> list[str]:
        """Files (or, if asked for, folders) that fit a pattern in some folders, in order.

        A pattern's wildcards are in its last component. Links that lead nowhere are told of and left out.
        """
        found: dict[str, None] = {}
        for each in folders:
            for path in self._matching(posixpath.join(each, pattern.lstrip("/"))):
                if self._is(path, folder=folder):
                    found[path] = None
        return list(found)

    def first(self, folders: Iterable[str], name: str) -> list[str]:
        """The first of :meth:`find`, if any."""
        return self.find(folders, name)[:1]

    def there(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return self._root.exists(path)

    def real(self, path: str) -> str:
        """The path that links lead to."""
        return self._root.host_path(self._root.path(path))

    def leaves(self, path: str) -> bool:
        """Whether links on the way lead elsewhere if they are not followed as the root's own programs would."""
        return os.path.realpath(self._root.base / path.lstrip("/")) != str(self._root.path(path))

    def link(self, path: str) -> str:
        """What a link says, or an empty text if it is none."""
        real = self._root.path(path, follow=False)
        return str(real.readlink()) if real.is_symlink() else ""

    def links(self, folder: str) -> Iterator[tuple[str, str]]:
        """Names of links in a folder, each with the path that it leads to."""
        for name in self._names(folder):
            path = posixpath.join(folder, name)
            try:
                target = self.real(path) if self.link(path) else ""
            except HostPathError as error:
                self._log.warning(f"{self._here}{path} is left out: {error}")
                continue
            if target:
                yield name, target

    def library(self, path: str) -> elf.Library | None:
        """What a library says of itself; None if it is no ELF file, or cannot be read, which is told of."""
        try:
            return elf.read(self._root.path(path))
        except OSError as error:
            self._log.warning(f"{self._here}{path} cannot be read: {error}")
            return None

    def _matching(self, pattern: str) -> Iterator[str]:
        folder, _, name = pattern.rpartition("/")
        folder = folder or "/"
        if not any(char in name for char in "*?["):
            if name in self._names(folder):
                yield posixpath.join(folder, name)
            return
        for each in fnmatch.filter(self._names(folder), name):
            yield posixpath.join(folder, each)

    def _names(self, folder: str) -> tuple[str, ...]:
        if folder not in self._entries:
            try:
                names = sorted(os.listdir(self._root.path(folder)))  # noqa: PTH208 - names only
                self._entries[folder] = tuple(name for name in names if self._is_text(folder, name))
            except (FileNotFoundError, NotADirectoryError):
                self._entries[folder] = ()
            except OSError as error:
                self._log.warning(f"{self._here}{folder} cannot be read: {error}; what is there is left out")
                self._entries[folder] = ()
        return self._entries[folder]

    def _is_text(self, folder: str, name: str) -> bool:
        """Whether a name can stand in a spec."""
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = name.encode(errors="replace").decode()
            self._log.warning(f"{self._here}{folder}/{shown} is left out: its name is not UTF-8 text")
            return False
        return True

    def _is(self, path: str, *, folder: bool) -> bool:
        try:
            real = self._root.path(path)
            if not real.exists():
                self._log.warning(f"{self._here}{path} is a link that leads nowhere: it is left out")
                return False
            return real.is_dir() is folder
        except HostPathError as error:
            self._log.warning(f"{self._here}{path} is left out: {error}")
            return False

    # --- libraries ----------------------------------------------------------------------------------------------------

    def libraries(self, pattern: str, folders: Sequence[str] = ()) -> list[str]:
        """Libraries that fit a pattern, in given folders, else the usual ones, else the loader's cache.

        Paths are those that links lead to, each once.
        """
        if folders or self._library_folders:
            return self._resolved(self.find(folders or self._library_folders, pattern))
        return self._resolved(self.find(LIBRARY_FOLDERS, pattern)) or self._in_cache(pattern)

    def _resolved(self, paths: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(self.real(path) for path in paths))

    def _in_cache(self, pattern: str) -> list[str]:
        """Libraries of the loader's cache, or behind them, whose names fit; the cache names them by what loads them."""
        if self._cached is None:
            self._cached = tuple(self._read_cache())
        return self._resolved(path for path in self._cached if fnmatch.fnmatchcase(posixpath.basename(path), pattern))

    def _read_cache(self) -> Iterator[str]:
        try:
            path = self._root.path(ldcache.PATH)
            if path.exists() and (not path.is_file() or path.stat().st_size > ldcache.MAX_SIZE):
                raise ldcache.LdCacheError(f"it is no file, or longer than {ldcache.MAX_SIZE >> 20} MiB")
            paths = ldcache.libraries(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ldcache.LdCacheError) as error:
            self._log.warning(f"{self._here}{ldcache.PATH} cannot be used: {error}")
            return
        for each in paths:
            try:
                if self.there(each):
                    yield from dict.fromkeys((each, self.real(each)))
            except OSError as error:
                self._log.warning(f"{self._here}{each}, of {ldcache.PATH}, is left out: {error}")

    def driver(self, version: str, release: Release) -> Driver:
        """The driver that is there; ``version`` is what the library says, if it can be asked.

        Raises :class:`GenerateError` if no library of the driver is found.
        """
        for name in _VERSIONED:
            found = self.libraries(f"{name}.{version or '*.*'}")
            if not found:
                continue
            library = self._loaded(name, found)
            told = version or posixpath.basename(library).removeprefix(f"{name}.")
            if release is Release.V26_3:
                return Driver(told, (posixpath.dirname(library),))
            libraries = self.libraries(f"lib*.so.{told}")
            return Driver(told, tuple(dict.fromkeys(posixpath.dirname(path) for path in libraries)))
        names = " and ".join(f"{name}.{version or '<version>'}" for name in _VERSIONED)
        raise GenerateError(
            f"failed to determine driver version: {names} are in no library folder below {self.place}; "
            "is the driver installed there? Name its root with the driver root option"
        )

    def _loaded(self, name: str, found: Sequence[str]) -> str:
        """Of libraries of several versions, the one that programs load."""
        for path in found:
            if self.real(posixpath.join(posixpath.dirname(path), f"{name}.1")) == path:
                return path
        return found[0]

    # --- other files --------------------------------------------------------------------------------------------------

    def binaries(self, names: Iterable[str]) -> Iterator[str]:
        """The first executable of each name, in the order of the search path."""
        path = [each for each in self._env.get("PATH", "").split(":") if each.startswith("/")]
        folders = tuple(dict.fromkeys((*path, *_PATH)))
        for name in names:
            found = (each for each in self.find(folders, name) if self._root.path(each).stat().st_mode & 0o111)
            yield from self._told(name, next(found, None))

    def firmware(self, version: str) -> list[str]:
        """The GPUs' system processors' firmware."""
        custom = self._kernel_text(_FIRMWARE_PATH)
        release = self._kernel_text(_KERNEL_RELEASE)
        folders = [each.format(release) for each in _FIRMWARE_FOLDERS if release or "{0}" not in each]
        pattern = FIRMWARE.format(version)
        found = self.find(([custom] if custom else []) + folders, pattern)
        if not found:
            self._missing(pattern)
        return found

    def _kernel_text(self, path: str) -> str:
        try:
            return self._kernel.read_text(path).strip()
        except OSError:
            return ""

    def ipc(self) -> Iterator[str]:
        """Sockets of the driver's daemons, and MPS' folder."""
        for name in IPC:
            yield from self._told(name, next(filter(self.there, (f"{each}/{name}" for each in IPC_FOLDERS)), None))
        if self.there(MPS):
            yield MPS

    def configs(self, names: Iterable[str]) -> Iterator[str]:
        """Configuration files, in every folder that has them."""
        for name in names:
            found = self.find(self._configured(), name)
            yield from found
            if not found:
                self._missing(name)

    def vulkan(self) -> Iterator[tuple[str, str]]:
        """The first Vulkan file of each name, with its name; they may be below the root itself, too."""
        for name in VULKAN:
            found = self.first((*self._configured(), "/"), name)
            yield from ((path, name) for path in found)

    def _configured(self) -> tuple[str, ...]:
        if self._config_folders:
            return self._config_folders
        data = self._env.get("XDG_DATA_DIRS") or _DATA_FOLDERS
        return (_CONFIG_FOLDER, *(each for each in data.split(":") if each.startswith("/")))

    def xorg(self, driver: Driver) -> Iterator[str]:
        """The X server's modules."""
        folders = [
            *(f"{each}/nvidia/xorg" for each in driver.folders),
            *(f"{folder}/{part}" for folder in driver.folders for part in (f"xorg/{each}" for each in _XORG_PARTS)),
            *(f"{folder}/{part}" for folder in _XORG_FOLDERS for part in _XORG_PARTS),
        ]
        for name in (XORG_DRIVER, f"{GLX_SERVER}.{driver.version}"):
            yield from self._told(name, next(iter(self.first(folders, name)), None))

    def _told(self, name: str, found: str | None) -> Iterator[str]:
        if found is None:
            self._missing(name)
        else:
            yield found

    def _missing(self, name: str) -> None:
        self._not_there[name] = None

    def tell_missing(self) -> None:
        """Warn, once, of the files that were looked for in vain."""
        if self._not_there:
            names = ", ".join(self._not_there)
            self._log.warning(f"not found below {self.place}, so that containers will not have it: {names}")
        self._not_there = {}
