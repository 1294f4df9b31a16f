"""The check itself: vectors, their sums by the CPU, and what each GPU makes of them.

Every GPU is checked, also after one has failed. The numbers are such that every sum is exact in 32-bit floating point,
so that the GPU's must be the CPU's bit by bit.
"""

import operator
from array import array
from collections.abc import Callable
from functools import lru_cache

from .model import NO_LIBRARY, Cuda, CudaError, Device, GpuReport, LibraryMissing, Report

_SPREAD = 2_654_435_761
"""Makes neighbours differ: a GPU that adds the wrong element is noticed (the golden ratio of 2^32)."""
_BITS = 16
_FRACTION = 8.0


@lru_cache(maxsize=1)
def vectors(elements: int) -> tuple[bytes, bytes]:
    """Two vectors of so many numbers: multiples of 1/8 below 8192. The last are kept: the lab has many checks."""
    left = array("f", (((index * _SPREAD) % 2**32 >> _BITS) / _FRACTION for index in range(elements)))
    right = array("f", ((((index + 1) * _SPREAD * 3) % 2**32 >> _BITS) / _FRACTION for index in range(elements)))
    return left.tobytes(), right.tobytes()


def add(left: bytes, right: bytes) -> bytes:
    """The sums, by the CPU."""
    return array("f", map(operator.add, _numbers(left), _numbers(right))).tobytes()


def compare(found: bytes, expected: bytes) -> tuple[int, str]:
    """How many sums are wrong, and the first of them for a person."""
    if found == expected:
        return 0, ""
    pairs = list(zip(_numbers(found), _numbers(expected), strict=True))
    wrong = [index for index, (one, other) in enumerate(pairs) if one != other]
    if not wrong:  # other bits of the same number, such as -0.0
        return 0, ""
    first = wrong[0]
    return len(wrong), f"element {first} is {pairs[first][0]:g}, not {pairs[first][1]:g}"


def run(cuda: Cuda, elements: int, clock: Callable[[], float]) -> Report:
    """Check every GPU; ``clock`` gives seconds."""
    try:
        version = cuda.start()
        devices = cuda.devices()
    except LibraryMissing as error:
        return Report(failure=str(error), code=NO_LIBRARY)
    except CudaError as error:
        return Report(failure=str(error), code=error.code)
    left, right = vectors(elements)
    expected = add(left, right)
    reports = []
    for device in devices:
        began = clock()
        try:
            found = cuda.add(device, left, right)
        except (CudaError, LibraryMissing) as error:
            reports.append(GpuReport(device, clock() - began, failure=str(error)))
            continue
        wrong, first = compare(found, expected)
        reports.append(GpuReport(device, clock() - began, wrong, first))
    return Report(cuda_version=version, gpus=tuple(reports))


def described(device: Device) -> str:
    """A GPU, for a person."""
    major, minor = device.compute
    return f"{device.name} (UUID: {device.uuid}), {device.memory_mib} MiB, compute capability {major}.{minor}"


def _numbers(vector: bytes) -> "array[float]":
    numbers = array("f")
    numbers.frombytes(vector)
    return numbers
