"""One server process: started, watched until it serves, killed, started again, and never left behind.

Processes die with the one that started them, even if that is killed: the kernel sends them SIGKILL (`setpriv
--pdeathsig`). That signal follows the *thread* that started the process: start them from one that lives as long as they
shall.
"""

import abc
import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

READY_S = 120.0
STOP_S = 10.0


class ProcessFailedError(RuntimeError):
    """A process ended, or did not come up in time; the text ends with the last lines of its log."""


class Started(abc.ABC):
    """What runs while its context is open; a start that fails half-way is taken back."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start all of it."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End what runs of it, also after a start that failed."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Process:
    """A server with a log file. `ready` is asked until it says yes; an OSError from it counts as no."""

    def __init__(
        self,
        name: str,
        argv: Iterable[str],
        *,
        log: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        pass_fds: Iterable[int] = (),
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log = log
        self._ready = ready
        self._environment = environment
        self._pass_fds = tuple(pass_fds)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. ProcessFailedError if it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise ProcessFailedError(f"{self.name} is not running:\n{self.tail()}")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code (or minus the signal that ended it), None while it runs."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start it; its output is added to the log. Nothing if it runs."""
        if self.running:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                with_parent(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=self._pass_fds,
                start_new_session=True,  # a terminal's Ctrl-C is for us: we end them in order
            )

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until it serves. ProcessFailedError if it ends before, or takes longer."""
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.running:
                raise ProcessFailedError(f"{self.name} ended before it was ready:\n{self.tail()}")
            with contextlib.suppress(OSError):
                if self._ready():
                    return
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"{self.name} is not ready after {timeout_s:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """SIGTERM, then SIGKILL if that does not end it in time."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self, lines: int = 25) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def with_parent(argv: Iterable[str]) -> list[str]:
    """The command, wrapped so that it is killed when its parent dies. FileNotFoundError where `setpriv` is missing."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise FileNotFoundError("setpriv is not on PATH; it is part of util-linux (Debian: apt-get install util-linux)")
    return [setpriv, "--pdeathsig", "KILL", "--", *argv]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_bound()) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def _bound() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found
