"""Xid errors in the kernel's log: what the driver printed there, read as it comes.

Some errors never become NVML events (contracts/mig-exporter-validator.md 9 #10). A container may not be allowed to read
the log; then the events are all there is.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

PATH: Final = "/dev/kmsg"
FALLEN_OFF: Final = 79
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\): ([0-9]+)"
)
_OFF_BUS: Final = re.compile(
    r"NVRM:.*\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?.*fallen off the bus", re.IGNORECASE
)
_RECORD: Final = 8192


class Found(NamedTuple):
    """An Xid error: the GPU's address as ``domain:bus:device``, domain of eight digits, upper case; its number."""

    address: str
    code: int


def parse(line: str) -> Found | None:
    """What a line of the log tells of an Xid error (8); None if nothing."""
    if match := _XID.search(line):
        return Found(address(match[1]), int(match[2]))
    if match := _OFF_BUS.search(line):
        return Found(address(match[1]), FALLEN_OFF)
    return None


def address(bus_id: str) -> str:
    """A PCI address without its function, as :class:`Found` has it."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain or '0', 16):08X}:{rest.partition('.')[0].upper()}"


class KernelLog:
    """The log from now on."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._rest = b""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the log at its end. OSError if it cannot be read."""
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a pipe has no end to go to
            os.lseek(handle, 0, os.SEEK_END)
        return cls(handle)

    def close(self) -> None:
        """Let it go."""
        os.close(self._handle)

    def read(self) -> Iterator[Found]:
        """The errors that came since; does not wait."""
        while True:
            try:
                data = os.read(self._handle, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten before they were read; the next is there
                continue
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if found := parse(line.decode(errors="replace")):
                    yield found
