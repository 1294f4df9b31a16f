"""The device plugin's half of MPS: what a client's container needs, and whether the daemon answers.

Asked only for resources that are really shared by MPS (contracts/device-plugin-gfd.md 6, required): others have no
daemon, and nothing to wait for. Which those are is the plugin's to know, from the config file.
"""

import asyncio
from typing import Final, NamedTuple

from ..process import Process
from . import paths

NO_ROOT: Final = "using MPS requires --mps-root to be specified"
RETRY_S: Final = 30.0
"""After a daemon did not answer, the plugin starts anew in so many seconds."""
ANSWER_WITHIN_S: Final = 10.0
HEALTH_QUESTION: Final = "get_default_active_thread_percentage"


class MpsError(RuntimeError):
    """MPS cannot be used as configured; the plugin ends with exit code 1."""


class DaemonNotReady(RuntimeError):  # noqa: N818 - reads as a fact
    """A resource's MPS daemon does not answer (yet). The plugin tries again every :data:`RETRY_S` seconds."""


class ControlFailed(RuntimeError):  # noqa: N818
    """A command to an MPS daemon failed; the text names the command, the pipe directory and the cause."""


class Mount(NamedTuple):
    """A folder of the host in a client's container, always read-write."""

    container_path: str
    host_path: str


def require_root(mps_root: str) -> None:
    """Raise :class:`MpsError` unless the MPS root on the host is given (contracts/device-plugin-gfd.md 1.3)."""
    if not mps_root:
        raise MpsError(NO_ROOT)


def refuse_mig(resource: str) -> MpsError:
    """The error of a plugin that would serve MIG devices by MPS, which does not know them."""
    return MpsError(
        f"sharing by MPS is not supported for MIG devices, but {resource!r} has some: "
        "take the resource out of sharing.mps, or share it with sharing.timeSlicing"
    )


def environment(resource: str) -> dict[str, str]:
    """Variables of a client's container."""
    return {paths.PIPE_VARIABLE: paths.pipe_dir(resource)}


def mounts(resource: str, mps_root: str) -> tuple[Mount, ...]:
    """Mounts of a client's container; ``mps_root`` is the MPS root on the host."""
    root = mps_root.rstrip("/")
    return Mount(paths.pipe_dir(resource), f"{root}/{resource}/pipe"), Mount("/dev/shm", f"{root}/shm")


async def check(process: Process, resource: str) -> None:
    """Ask a resource's daemon a question; returns if it answers. Raises :class:`DaemonNotReady`, with the reason."""
    try:
        await ask(process, resource, HEALTH_QUESTION)
    except ControlFailed as error:
        raise DaemonNotReady(f"error waiting for MPS daemon: {error}") from error


async def ask(process: Process, resource: str, command: str, *, within_s: float = ANSWER_WITHIN_S) -> str:
    """Send a command to a resource's daemon and return its answer. Raises :class:`ControlFailed`."""
    where = f"command {command!r} to the MPS daemon at {paths.pipe_dir(resource)}"
    try:
        async with asyncio.timeout(within_s):
            done = await process.execute([paths.CONTROL], env=environment(resource), stdin=f"{command}\n")
    except TimeoutError as error:
        raise ControlFailed(f"{where}: no answer within {within_s:g} s") from error
    except OSError as error:
        raise ControlFailed(f"{where}: {why_not_run(paths.CONTROL, error)}") from error
    if done.code != 0:
        said = " ".join((done.err or done.out).split()) or "it said nothing"
        raise ControlFailed(f"{where}: {paths.CONTROL} ended with exit code {done.code}: {said}")
    return done.out.strip()


def why_not_run(executable: str, error: OSError) -> str:
    """Why an executable that comes with the driver cannot be run, for a person."""
    if isinstance(error, FileNotFoundError):
        return (
            f"{executable} is not in this container; the container runtime puts it there with the driver "
            "(runtime class nvidia, NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES=compute,utility or all)"
        )
    return f"{executable} cannot be run: {error.strerror or error}"
