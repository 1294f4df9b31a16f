"""The MPS control daemon of one shared resource: started with its limits, its log followed, and ended again.

Source: contracts/device-plugin-gfd.md 6. The daemon is NVIDIA's executable, which goes to the background by itself; it
is spoken to through ``client.ask``. A step that fails raises :class:`DaemonFailed`; the end tries every step and says
what failed. Which resources have a daemon, and what happens when one fails, is left to ``main``.
"""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from ..hostroot import HostRoot
from ..process import Process
from ..resources import Offer
from . import client, limits, paths
from .client import ControlFailed, why_not_run
from .tail import Tail

SELINUX_LABEL: Final = "system_u:object_r:container_file_t:s0"
"""What lets containers use the folder in which a daemon listens."""
HEALTH_EVERY_S: Final = 30.0
HEALTH_FAILURES: Final = 3
"""So many questions in a row without an answer mean that a daemon has died."""
_START_WITHIN_S: Final = 60.0
_QUIT_WITHIN_S: Final = 30.0
_EXCLUSIVE, _DEFAULT = "EXCLUSIVE_PROCESS", "DEFAULT"
_SMI: Final = "nvidia-smi"


class DaemonFailed(RuntimeError):  # noqa: N818 - reads as a fact
    """An MPS daemon could not be started, or has died; the text says of which resource, and why."""


class Daemon:
    """The daemon of one offer of whole GPUs."""

    def __init__(self, process: Process, offer: Offer) -> None:
        self.offer = offer
        self._process = process
        self._exclusive: list[str] = []
        self._launched = False
        self._tail = Tail(process, process.path(f"{paths.log_dir(offer.resource)}/control.log"))

    @property
    def resource(self) -> str:
        """The resource, as it is advertised."""
        return self.offer.resource

    async def start(self) -> None:
        """Start it, with its limits. Raises :class:`DaemonFailed`; then :meth:`stop` clears up."""
        problem = limits.too_many(self.offer)
        if problem:
            raise DaemonFailed(problem)
        self._process.log.info(f"Starting MPS daemon for {self.resource}")
        for device in self.offer.devices:
            self._exclusive.append(device.id)
            await self._set_compute_mode(device.id, _EXCLUSIVE)
        try:
            self._make_folders()
        except OSError as error:
            raise self._failed(f"{error.filename}: {error.strerror or error}") from error
        await self._launch()
        try:
            for command in limits.commands(self.offer):
                await client.ask(self._process, self.resource, command)
            self._marker.touch()
        except ControlFailed as error:
            raise self._failed(str(error)) from error
        except OSError as error:
            raise self._failed(f"{self._marker}: {error.strerror or error}") from error

    async def keep(self) -> None:
        """Print its log and see that it answers, until it does not. Raises :class:`DaemonFailed`."""
        following = asyncio.ensure_future(self._tail.run())
        try:
            await self._until_dead()
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    async def stop(self) -> None:
        """End it, as far as it was started; what fails is logged."""
        if self._launched:
            self._process.log.info(f"Stopping MPS daemon for {self.resource}")
            await quit_daemon(self._process, self.resource)
            self._tail.catch_up()
        while self._exclusive:
            try:
                await self._set_compute_mode(self._exclusive.pop(), _DEFAULT)
            except DaemonFailed as error:
                self._process.log.error(str(error))
        clear(self._process, self.resource)

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def _marker(self) -> Path:
        return self._process.path(paths.started_marker(self.resource))

    def _failed(self, why: str) -> DaemonFailed:
        return DaemonFailed(f"MPS daemon for {self.resource}: {why}")

    async def _set_compute_mode(self, uuid: str, mode: str) -> None:
        what = f"compute mode {mode} of GPU {uuid}"
        try:
            done = await self._process.execute([_SMI, "-i", uuid, "-c", mode])
        except OSError as error:
            raise self._failed(f"{what}: {why_not_run(_SMI, error)}") from error
        if done.code != 0:
            raise self._failed(f"{what}: {_SMI} ended with exit code {done.code}: {_said(done.out, done.err)}")

    def _make_folders(self) -> None:
        folders = [self._process.path(each(self.resource)) for each in (paths.pipe_dir, paths.log_dir)]
        for folder in folders:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if has_selinux(self._process.kernel):
            for each in (folders[0], *folders[0].rglob("*")):
                os.setxattr(each, "security.selinux", SELINUX_LABEL.encode() + b"\0", follow_symlinks=False)

    async def _launch(self) -> None:
        where = f"{paths.CONTROL} -d for {paths.pipe_dir(self.resource)}"
        env = {**client.environment(self.resource), paths.LOG_VARIABLE: paths.log_dir(self.resource)}
        self._launched = True
        try:
            async with asyncio.timeout(_START_WITHIN_S):
                done = await self._process.execute([paths.CONTROL, "-d"], env=env)
        except TimeoutError as error:
            raise self._failed(f"{where}: not in the background within {_START_WITHIN_S:g} s") from error
        except OSError as error:
            raise self._failed(f"{where}: {why_not_run(paths.CONTROL, error)}") from error
        if done.code != 0:
            raise self._failed(f"{where}: exit code {done.code}: {_said(done.out, done.err)}")

    async def _until_dead(self) -> None:
        failures = 0
        while True:
            await self._process.sleep(HEALTH_EVERY_S)
            try:
                await client.ask(self._process, self.resource, client.HEALTH_QUESTION)
                failures = 0
            except ControlFailed as error:
                failures += 1
                self._process.log.warning(f"MPS daemon for {self.resource} ({failures}/{HEALTH_FAILURES}): {error}")
                if failures == HEALTH_FAILURES:
                    raise self._failed("it no longer answers") from error


async def quit_daemon(process: Process, resource: str) -> None:
    """Ask a resource's daemon to end; that there is none is no error."""
    try:
        await client.ask(process, resource, "quit", within_s=_QUIT_WITHIN_S)
    except ControlFailed as error:
        process.log.warning(str(error))


def clear(process: Process, resource: str) -> None:
    """Remove the marker and the log of a daemon that has ended; what fails is logged."""
    try:
        process.path(paths.started_marker(resource)).unlink(missing_ok=True)
        log = process.path(paths.log_dir(resource))
        if log.exists():
            shutil.rmtree(log)
    except OSError as error:
        process.log.error(f"{error.filename}: {error.strerror or error}")


def left_over(process: Process) -> list[str]:
    """Resources whose daemon was started by a run that was killed before it could end it."""
    root = process.path(paths.ROOT)
    return sorted("/".join(marker.relative_to(root).parts[:-1]) for marker in root.glob("*/*/.started"))


def has_selinux(kernel: HostRoot) -> bool:
    """Whether the machine enforces or tells of SELinux: a kernel that was started without it knows no such file system.

    Its own file system need not be visible in a container.
    """
    if kernel.exists("/sys/fs/selinux/enforce"):
        return True
    try:
        return "selinuxfs" in kernel.read_text("/proc/filesystems").split()
    except OSError:
        return False


def _said(out: str, err: str) -> str:
    return " ".join((err or out).split()) or "it said nothing"
