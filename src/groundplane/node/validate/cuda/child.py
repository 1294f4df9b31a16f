"""The child process in which the driver's library is used: `python -m groundplane.node.validate.cuda.child`.

Arguments: the library, the number of elements, and a file that always holds the name of the call that is being made
(or ``-``), by which its parent can say where the library hangs. It prints its report as JSON.
"""

import os
import sys
import time
from collections.abc import Callable

import msgspec

from ...devices.source import DeviceError
from . import check
from .driverapi import DriverApi
from .model import Report

_WIDTH = 80


def telling(file: str) -> Callable[[str], None]:
    """Keeps a file's only line."""
    if file == "-":
        return lambda _call: None
    handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)

    def tell(call: str) -> None:
        os.pwrite(handle, call.encode().ljust(_WIDTH), 0)

    return tell


def mig_devices() -> tuple[str, ...]:
    """The MIG devices that the driver shows to this container; none if it cannot be asked."""
    from ...devices.nvml import NvmlSource

    try:
        with NvmlSource() as source:
            return tuple(device.uuid for gpu in source.inventory().gpus for device in gpu.mig_devices)
    except DeviceError:
        return ()


def main(library: str, elements: str, file: str) -> None:
    """Check, and print the report."""
    tell = telling(file)
    report = check.run(DriverApi(library, tell), int(elements), time.monotonic)
    tell("asking NVML for MIG devices")
    report = msgspec.structs.replace(report, mig=mig_devices())
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


def read(text: str) -> Report:
    """The report that a child printed, on its last line. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text.strip().rpartition("\n")[2], type=Report)


if __name__ == "__main__":
    main(*sys.argv[1:])
