"""What the CUDA check needs of CUDA, as a protocol, and what it reports: plain data, which a child can print."""

from typing import Protocol

import msgspec

from .results import result


class LibraryMissing(RuntimeError):  # noqa: N818 - reads as a fact
    """libcuda.so.1 cannot be loaded, or is none that the check can use; the text says what was tried."""


class CudaError(RuntimeError):
    """A call failed: its name, CUDA's code, and maybe what the library said further."""

    def __init__(self, call: str, code: int, detail: str = "") -> None:
        found = result(code)
        super().__init__(f"{call}: {found.name} ({code}): {found.meaning}" + (f" [{detail}]" if detail else ""))
        self.call = call
        self.code = code


class Device(msgspec.Struct, frozen=True):
    """A GPU or MIG device that CUDA can use. ``ordinal`` is CUDA's number of it in this process."""

    ordinal: int
    name: str
    uuid: str
    memory_mib: int
    compute: tuple[int, int]


class Cuda(Protocol):
    """CUDA in one process. Each method raises :class:`CudaError`."""

    def start(self) -> int:
        """Initialise it: the CUDA version that the driver supports, 13010 for 13.1. Raises :class:`LibraryMissing`."""

    def devices(self) -> list[Device]:
        """The GPUs that this process may use."""

    def add(self, device: Device, left: bytes, right: bytes) -> bytes:
        """Add two vectors of 32-bit floating point numbers on a GPU."""


class GpuReport(msgspec.Struct, frozen=True):
    """One GPU: how long its check took in seconds, how many sums were wrong and the first of them, or what failed."""

    device: Device
    seconds: float
    wrong: int = 0
    first_wrong: str = ""
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether all sums are right and no call failed."""
        return not self.wrong and not self.failure


class Report(msgspec.Struct, frozen=True):
    """One process' check. ``failure`` is what kept it from any GPU, with CUDA's ``code``, or -1 without a library.

    ``driver`` is the driver's version, empty where the library does not tell. ``mig`` are the UUIDs of the MIG devices
    that the driver shows to this container, as CUDA shows a process but one of them.
    """

    cuda_version: int = 0
    driver: str = ""
    gpus: tuple[GpuReport, ...] = ()
    failure: str = ""
    code: int = 0
    mig: tuple[str, ...] = ()


NO_LIBRARY = -1
