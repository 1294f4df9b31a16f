"""NVML's error codes: their names, and which of our exceptions each one is. Both sources raise through it."""

from typing import Final

from .source import DeviceError, DriverNotLoaded, LibraryNotFound, Lost, NotFound, NotSupported

NAMES: Final[dict[int, str]] = {
    1: "ERROR_UNINITIALIZED",
    2: "ERROR_INVALID_ARGUMENT",
    3: "ERROR_NOT_SUPPORTED",
    4: "ERROR_NO_PERMISSION",
    5: "ERROR_ALREADY_INITIALIZED",
    6: "ERROR_NOT_FOUND",
    7: "ERROR_INSUFFICIENT_SIZE",
    8: "ERROR_INSUFFICIENT_POWER",
    9: "ERROR_DRIVER_NOT_LOADED",
    10: "ERROR_TIMEOUT",
    11: "ERROR_IRQ_ISSUE",
    12: "ERROR_LIBRARY_NOT_FOUND",
    13: "ERROR_FUNCTION_NOT_FOUND",
    14: "ERROR_CORRUPTED_INFOROM",
    15: "ERROR_GPU_IS_LOST",
    16: "ERROR_RESET_REQUIRED",
    17: "ERROR_OPERATING_SYSTEM",
    18: "ERROR_LIB_RM_VERSION_MISMATCH",
    19: "ERROR_IN_USE",
    20: "ERROR_MEMORY",
    21: "ERROR_NO_DATA",
    22: "ERROR_VGPU_ECC_NOT_SUPPORTED",
    23: "ERROR_INSUFFICIENT_RESOURCES",
    24: "ERROR_FREQ_NOT_SUPPORTED",
    25: "ERROR_ARGUMENT_VERSION_MISMATCH",
    26: "ERROR_DEPRECATED",
    27: "ERROR_NOT_READY",
    28: "ERROR_GPU_NOT_FOUND",
    29: "ERROR_INVALID_STATE",
    30: "ERROR_RESET_TYPE_NOT_SUPPORTED",
    999: "ERROR_UNKNOWN",
}
CODES: Final = {name: code for code, name in NAMES.items()}

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
UNKNOWN: Final = 999

_KINDS: Final[dict[int, type[DeviceError]]] = {
    NOT_SUPPORTED: NotSupported,
    NOT_FOUND: NotFound,
    DRIVER_NOT_LOADED: DriverNotLoaded,
    LIBRARY_NOT_FOUND: LibraryNotFound,
    FUNCTION_NOT_FOUND: NotSupported,
    GPU_IS_LOST: Lost,
    18: DriverNotLoaded,
    28: NotFound,
}


def error(code: int, doing: str, hint: str = "") -> DeviceError:
    """The exception for a code: what was being done, NVML's name of the error, and maybe a hint."""
    name = NAMES.get(code, f"ERROR_{code}")
    return _KINDS.get(code, DeviceError)(f"{doing}: {name}" + (f" ({hint})" if hint else ""), code)
