"""Kernel modules: whether one is loaded, what the kernel lists, and unloading one with the container's ``rmmod``.

On a machine whose GPUs are simulated a module is its entries below ``/proc`` and ``/sys``, and those are taken away.
Loading is ``charlinks``'; which modules go in which order is the programs' business.
"""

from typing import Final, NamedTuple

from .cdi.roots import simulated
from .process import Process

PROC_MODULES: Final = "/proc/modules"
_GOES_WITH: Final = {"nvidia": ("/proc/driver/nvidia", "/proc/driver/nvidia-caps")}
"""What a simulated module has besides, by name."""


class ModuleError(Exception):
    """A module cannot be unloaded; the text names it and says why."""


class Row(NamedTuple):
    """A line of ``/proc/modules``: size in bytes, how often it is used, and by what; as the kernel writes them."""

    name: str
    size: str
    uses: str
    users: str

    def __str__(self) -> str:
        return f"{self.name:<20} {self.size:<10} {self.uses:<15} {self.users}".rstrip()


HEAD: Final = Row("Module", "Size", "Ref Count", "Used by")


def loaded(process: Process, module: str) -> bool:
    """Whether a module is loaded and can be unloaded: it has a count of its uses."""
    return process.kernel.exists(f"/sys/module/{module}/refcnt")


def rows(process: Process) -> list[Row]:
    """The loaded modules. OSError."""
    lines = (line.split() for line in process.kernel.read_text(PROC_MODULES).splitlines())
    return [Row(*words[:4]) for words in lines if len(words) >= 4]


async def unload(process: Process, module: str) -> None:
    """Unload a module. Raises :class:`ModuleError`, mostly because something uses it."""
    if simulated(process):
        _take_away(process, module)
        return
    try:
        done = await process.execute(("rmmod", module))
    except OSError as error:
        raise ModuleError(f"module {module} cannot be unloaded: rmmod cannot be run: {error}") from error
    if done.code:
        said = (done.err or done.out).strip() or f"rmmod ended with {done.code}"
        raise ModuleError(f"module {module} cannot be unloaded: {said}")


def _take_away(process: Process, module: str) -> None:
    kernel = process.kernel
    try:
        uses = int(kernel.read_text(f"/sys/module/{module}/refcnt"))
    except FileNotFoundError:
        raise ModuleError(f"module {module} cannot be unloaded: it is not loaded") from None
    if uses:
        raise ModuleError(f"module {module} cannot be unloaded: it is in use ({uses} users)")
    listed, counts = without(kernel.read_text(PROC_MODULES), module)
    kernel.write_atomic(PROC_MODULES, listed)
    for used, count in counts.items():
        kernel.write_atomic(f"/sys/module/{used}/refcnt", f"{count}\n")
    for path in (f"/sys/module/{module}", *_GOES_WITH.get(module, ())):
        kernel.remove(path)


def without(listed: str, module: str) -> tuple[str, dict[str, int]]:
    """A list as in ``/proc/modules`` once a module has gone, and the counts of those that it has used, by name."""
    counts, kept = {}, []
    for line in listed.splitlines():
        words = line.split()
        if words[:1] == [module]:
            continue
        users = words[3].split(",") if len(words) > 3 else []
        if module in users:
            counts[words[0]] = max(0, int(words[2]) - 1)
            others = (f"{user}," for user in users if user not in ("", module))
            words[2:4] = [str(counts[words[0]]), "".join(others) or "-"]
            line = " ".join(words)
        kept.append(f"{line}\n")
    return "".join(kept), counts
