"""CUDA by the driver's own library, libcuda.so.1, through ctypes: no toolkit is needed.

Every call goes through :meth:`DriverApi.call`, which says before it is made that it is (a library may hang), and raises
its result as :class:`~.model.CudaError`.
"""

import ctypes
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...devices.nvml import LIBRARY_FOLDERS
from . import kernel
from .model import CudaError, Device, LibraryMissing

SONAME: Final = "libcuda.so.1"
_NAME_BYTES: Final = 256
_MAJOR, _MINOR = 75, 76
"""Attributes of a device: its compute capability."""
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
"""Options of the compiler: a buffer for what it says, and how long that is."""
_LOG_BYTES: Final = 4096
_MIB: Final = 1 << 20
_NOT_BROUGHT: Final = (
    "has the container runtime brought the driver? See the pod's runtime class or CDI devices, NVIDIA_VISIBLE_DEVICES, "
    "and the container toolkit's pod on this node"
)

Handle = ctypes.c_void_p
Address = ctypes.c_uint64
_Taken = list[tuple[str, Any]]
"""What is to be given back: the call that does, and its argument."""


class DriverApi:
    """CUDA, as the driver has it. ``telling`` is told the name of each call before it is made."""

    def __init__(self, library: str = SONAME, telling: Callable[[str], None] = lambda _call: None) -> None:
        self._path = library
        self._telling = telling
        self._library: Any = None

    def start(self) -> int:
        """Load the library and initialise it."""
        self._library = self._load()
        self.call("cuInit", ctypes.c_uint(0))
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def _load(self) -> Any:
        """The library as the loader finds it, else from a folder that the container runtime may have put it into."""
        places = [self._path]
        if self._path == SONAME:
            places += [path for path in (f"{folder}/{SONAME}" for folder in LIBRARY_FOLDERS) if Path(path).exists()]
        first: OSError | None = None
        for place in places:
            self._telling(f"loading {place}")
            try:
                return ctypes.CDLL(place)
            except OSError as error:
                first = first or error
        raise LibraryMissing(f"{self._path} cannot be loaded: {first}; {_NOT_BROUGHT}") from first

    def devices(self) -> list[Device]:
        """The GPUs that CUDA counts."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(ordinal) for ordinal in range(count.value)]

    def _device(self, ordinal: int) -> Device:
        device = self._handle(ordinal)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), device)
        memory = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        capability = (self._attribute(_MAJOR, device), self._attribute(_MINOR, device))
        text = name.value.decode(errors="replace")
        return Device(ordinal, text, self._uuid(device), memory.value // _MIB, capability)

    def _handle(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        return device

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device)
        return value.value

    def _uuid(self, device: ctypes.c_int) -> str:
        """The device's UUID; a MIG device's is another than that of its GPU."""
        gpu = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid", gpu, device)
        if not hasattr(self._library, "cuDeviceGetUuid_v2"):  # before CUDA 11.4
            return f"GPU-{uuid.UUID(bytes=gpu.raw)}"
        own = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", own, device)
        return f"{'GPU' if own.raw == gpu.raw else 'MIG'}-{uuid.UUID(bytes=own.raw)}"

    # --- adding -------------------------------------------------------------------------------------------------------

    def add(self, device: Device, left: bytes, right: bytes) -> bytes:
        """Add two vectors on a GPU, and give back all that this took."""
        taken: _Taken = []
        try:
            found = self._add(self._handle(device.ordinal), left, right, taken)
        except (CudaError, LibraryMissing):  # what failed first is what is told
            self._give_back(taken)
            raise
        failed = self._give_back(taken)
        if failed is not None:
            raise failed
        return found

    def _give_back(self, taken: _Taken) -> CudaError | None:
        """Give back all that was taken, the last first; the first error of doing so."""
        first = None
        for name, what in reversed(taken):
            try:
                self.call(name, what)
            except CudaError as error:
                first = first or error
        return first

    def _add(self, device: ctypes.c_int, left: bytes, right: bytes, taken: _Taken) -> bytes:
        context = Handle()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        taken.append((self._newest("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"), device))
        self.call("cuCtxSetCurrent", context)
        function = self._function(taken)
        size, count = len(left), len(left) // ctypes.sizeof(ctypes.c_float)
        addresses = [self._memory(size, taken) for _ in range(3)]
        for address, vector in zip(addresses, (left, right), strict=False):
            self.call("cuMemcpyHtoD_v2", address, ctypes.c_char_p(vector), ctypes.c_size_t(size))
        self._launch(function, count, addresses)
        self.call("cuCtxSynchronize")
        found = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", found, addresses[2], ctypes.c_size_t(size))
        return found.raw

    def _function(self, taken: _Taken) -> Handle:
        module, function = Handle(), Handle()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            program = ctypes.c_char_p(kernel.PTX)
            self.call("cuModuleLoadDataEx", ctypes.byref(module), program, ctypes.c_uint(2), options, values)
        except CudaError as error:
            said = " ".join(log.value.decode(errors="replace").split())
            raise CudaError(error.call, error.code, said) from error
        taken.append(("cuModuleUnload", module))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(kernel.NAME.encode()))
        return function

    def _memory(self, size: int, taken: _Taken) -> Address:
        address = Address()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        taken.append(("cuMemFree_v2", address))
        return address

    def _launch(self, function: Handle, count: int, addresses: list[Address]) -> None:
        arguments = (*addresses, ctypes.c_uint(count))
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        grid = (kernel.blocks(count), 1, 1, kernel.THREADS, 1, 1)
        shared_bytes, stream, extra = ctypes.c_uint(0), Handle(), Handle()
        self.call("cuLaunchKernel", function, *map(ctypes.c_uint, grid), shared_bytes, stream, pointers, extra)

    # --- calling ------------------------------------------------------------------------------------------------------

    def _newest(self, *names: str) -> str:
        return next((name for name in names if hasattr(self._library, name)), names[-1])

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise LibraryMissing(f"{self._path} has no function {name}: the driver is older than CUDA 9.0") from None
        self._telling(name)
        code: int = function(*arguments)
        if code != 0:
            raise CudaError(name, code)
