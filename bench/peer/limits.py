"""A memory limit for one process, as its container would have one: a memory cgroup, version 1 or 2.

Where no cgroup can be made (no root, a read-only /sys) the limit is the shell's ``ulimit -d``: then an allocation
beyond it fails instead of the process being killed, and what is counted is the data segment.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOTS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
"""Where memory cgroups are made, and the file that holds the limit: version 1, version 2."""
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
MIB = 1 << 20


@contextlib.contextmanager
def command(argv: Sequence[str], limit_mib: int) -> Iterator[list[str]]:
    """The command that runs ``argv`` under a limit; 0 is none. The process must have ended when the context does."""
    if not limit_mib:
        yield list(argv)
        return
    group = _cgroup(limit_mib)
    if group is None:
        yield ["sh", "-c", f'ulimit -d {limit_mib * 1024} && exec "$@"', "limited", *argv]
        return
    try:
        yield ["sh", "-c", ENTER, str(group), *argv]
    finally:
        group.rmdir()


def _cgroup(limit_mib: int) -> Path | None:
    """A new memory cgroup with this limit, ``None`` where none can be made."""
    for root, file in ROOTS:
        if not os.access(root, os.W_OK) or not (root / "cgroup.procs").exists():
            continue
        group = Path(tempfile.mkdtemp(prefix="groundplane-bench-", dir=root))
        try:
            (group / file).write_text(str(limit_mib * MIB))
        except OSError:  # the memory controller is not delegated to us here
            group.rmdir()
            continue
        return group
    return None
