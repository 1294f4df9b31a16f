"""Daemons of the driver: started beside the modules, stopped before they are unloaded.

A daemon is a process of the simulated host: `/proc/PID/comm` and `/proc/PID/status`, with the daemon's own file that
names its number. One in uninterruptible sleep (`State: D`) does not end, whatever it is sent; what the host shows is
the truth. Source: contracts/driver-lifecycle.md 6.3 and 6.7.
"""

import itertools
from typing import Final, NamedTuple

from ..host import SimulatedHost
from ..programs import ContainerContext

STOP_S: Final = 5.0
"""Cluster seconds that each daemon gets to end."""

RUNS, STUCK = "S (sleeping)", "D (disk sleep)"


class Daemon(NamedTuple):
    """`comm` is the process' name as the kernel cuts it, `title` what the log calls it."""

    comm: str
    title: str
    pid_file: str


PERSISTENCE: Final = Daemon(
    "nvidia-persiste", "NVIDIA persistence daemon", "/run/nvidia-persistenced/nvidia-persistenced.pid"
)
GRID: Final = Daemon("nvidia-gridd", "NVIDIA Grid daemon", "/run/nvidia-gridd/nvidia-gridd.pid")
TOPOLOGY: Final = Daemon("nvidia-topology", "NVIDIA topology daemon", "/run/nvidia-topologyd/nvidia-topologyd.pid")
FABRIC: Final = Daemon(
    "nv-fabricmanage", "NVIDIA fabric manager daemon", "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
)
SUBNET: Final = Daemon("nvlsm", "NVLink Subnet Manager daemon", "/run/nvidia-fabricmanager/nvlsm.pid")
ALL: Final = (PERSISTENCE, GRID, TOPOLOGY, FABRIC, SUBNET)
"""In the order in which they are stopped."""


def spawn(host: SimulatedHost, comm: str, state: str = RUNS) -> int:
    """Start a process of the host; its number."""
    pid = next(number for number in itertools.count(1000) if not host.root.exists(f"/proc/{number}"))
    host.root.write_atomic(f"/proc/{pid}/comm", comm + "\n")
    set_state(host, pid, state)
    return pid


def set_state(host: SimulatedHost, pid: int, state: str) -> None:
    """Let the kernel show a process in a state."""
    host.root.write_atomic(f"/proc/{pid}/status", f"Pid:\t{pid}\nState:\t{state}\n")


def running(host: SimulatedHost, comm: str) -> list[int]:
    """The numbers of the host's processes of a name."""
    found = (path for path in host.root.glob("/proc/*/comm") if host.root.read_text(path).strip() == comm)
    return sorted(int(path.split("/")[2]) for path in found)


def kill(host: SimulatedHost, pid: int) -> bool:
    """End a process; whether it is gone."""
    status = f"/proc/{pid}/status"
    if host.root.exists(status) and STUCK in host.root.read_text(status):
        return False
    host.root.remove(f"/proc/{pid}")
    return True


def start(ctx: ContainerContext, daemon: Daemon) -> None:
    """Start a daemon, which leaves its number in its file."""
    ctx.write(daemon.pid_file, f"{spawn(ctx.host, daemon.comm)}\n")


async def stop(ctx: ContainerContext) -> bool:
    """Stop all daemons that left their number; False, with the reason in the log, at the first that does not end."""
    for daemon in ALL:
        if not ctx.exists(daemon.pid_file):
            continue
        ctx.log(f"Stopping {daemon.title}...")
        if not kill(ctx.host, int(ctx.path(daemon.pid_file).read_text())):
            await ctx.clock.sleep(STOP_S)
            ctx.error(f"Could not stop {daemon.title}")
            return False
        ctx.remove(daemon.pid_file)
    return True


def end_with_container(ctx: ContainerContext) -> None:
    """What happens to a container's daemons when it is killed: all die but those that cannot."""
    for daemon in ALL:
        if ctx.exists(daemon.pid_file) and kill(ctx.host, int(ctx.path(daemon.pid_file).read_text())):
            ctx.remove(daemon.pid_file)
