"""The kernel's log of a simulated machine: an ordinary file where a machine has ``/dev/kmsg``, a record a line.

Written by what plays the kernel and its drivers (``simulated.Machine``, the lab's hosts); programs read it as they
would the real one. A device of the machine that we run on is never written to.
"""

import time
from pathlib import Path
from typing import Final

PATH: Final = "/dev/kmsg"
KEPT: Final = 256 << 10
"""Bytes after which the older half is forgotten, as the kernel's ring does."""


def append(kmsg: Path, *lines: str, level: int = 6) -> None:
    """Add lines to the log of a simulated machine, if it has one; ``level``: 3 error, 4 warning, 6 information."""
    if kmsg.is_symlink() or not kmsg.is_file():
        return
    moment = time.monotonic_ns() // 1000
    with kmsg.open("a+b") as stream:
        number = stream.seek(0, 2)  # grows, as the kernel's sequence does
        for place, line in enumerate(lines):
            stream.write(f"{level},{number + place},{moment + place},-;{line}\n".encode())
        size = stream.tell()
    if size > KEPT:
        kept = kmsg.read_bytes()[-KEPT // 2 :].partition(b"\n")[2]
        kmsg.write_bytes(kept)


def texts(kmsg: Path) -> list[str]:
    """The messages, oldest first, as ``dmesg`` prints them: seconds since the start in brackets, then the text."""
    if not kmsg.is_file():
        return []
    found = []
    for line in kmsg.read_text(encoding="utf-8", errors="replace").splitlines():
        head, separator, text = line.partition(";")
        fields = head.split(",")
        if not separator or len(fields) < 3 or not fields[2].isdigit():
            found.append(line)
            continue
        seconds, rest = divmod(int(fields[2]), 1_000_000)
        found.append(f"[{seconds:5d}.{rest:06d}] {text}")
    return found


def xid(bus_id: str, number: int, text: str) -> str:
    """What the driver says of an Xid error of a GPU; ``bus_id`` is NVML's."""
    domain, _, rest = bus_id.lower().partition(":")
    where = f"{domain[-4:]}:{rest.partition('.')[0]}"
    return f"NVRM: Xid (PCI:{where}): {number}, pid='<unknown>', name=<unknown>, {text}"
