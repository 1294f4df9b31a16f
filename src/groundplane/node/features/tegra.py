"""GPUs of Tegra systems on a chip, which NVML does not (fully) know: asked through CUDA's driver API.

The driver's version and the fabric are not known this way, and there is no MIG (contracts/device-plugin-gfd.md 8.2).
"""

import ctypes
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from ..devices.model import Gpu, Inventory
from ..devices.source import DeviceError, LibraryNotFound
from .vfio import UNKNOWN_VERSION

LIBRARY: Final = "libcuda.so.1"
FOLDERS: Final = (
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/cuda/compat",
)
_MAJOR, _MINOR = 75, 76  # attributes: CUDA compute capability
_NAME_BYTES: Final = 256


def find_library(path: Callable[[str], Path], roots: Iterable[str] = ("/",)) -> Path | None:
    """The file of CUDA's driver library; None where no folder has it."""
    candidates = (path(f"{root.rstrip('/')}{folder}/{LIBRARY}") for root in roots for folder in FOLDERS)
    return next((file for file in candidates if file.exists()), None)


def inventory(library: Path | None) -> Inventory:
    """The GPUs that CUDA's driver library tells of.

    Raises :class:`~..devices.source.LibraryNotFound` or another :class:`~..devices.source.DeviceError`.
    """
    if library is None:
        raise LibraryNotFound(f"could not find {LIBRARY} in {', '.join(FOLDERS)}")
    cuda = _Cuda(library)
    cuda.call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    return Inventory(UNKNOWN_VERSION, version.value, tuple(_gpu(cuda, index) for index in range(count.value)))


class _Cuda:
    """CUDA's driver library, loaded; its functions return 0 or an error's number."""

    def __init__(self, library: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise DeviceError(f"{library} cannot be loaded: {error}") from error

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises :class:`~..devices.source.DeviceError` with CUDA's name of the error."""
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise DeviceError(f"{LIBRARY} has no {function}") from None
        if code:
            raise DeviceError(f"{function}: {self._name(code)}", code)

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(code, ctypes.byref(text))
        except AttributeError:  # older than CUDA 6
            return f"error {code}"
        return text.value.decode() if text.value else f"error {code}"


def _gpu(cuda: _Cuda, index: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    cuda.call("cuDeviceGet", ctypes.byref(device), index)
    cuda.call("cuDeviceGetName", name, _NAME_BYTES, device)
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        found = ctypes.c_int()
        cuda.call("cuDeviceGetAttribute", ctypes.byref(found), attribute, device)
        capability.append(found.value)
    return Gpu(
        index=index,
        uuid="tegra",
        minor=index,
        name=name.value.decode("utf-8", "replace"),
        bus_id="",  # no PCI device: gpu.mode stays unknown
        memory_bytes=memory.value,
        compute=(capability[0], capability[1]),
    )
