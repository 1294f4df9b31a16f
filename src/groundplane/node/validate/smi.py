"""Running the driver's own tool, `nvidia-smi`: its success is the proof, its exit code and last words the cause."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from ..devices import nvmlerrors
from ..process import Completed, Process
from .errors import NotReady

TOOL: Final = "nvidia-smi"
SLOW_S: Final = 30.0
"""Seconds after which a person is told that the tool has not answered yet, and again after as many."""
_LINES: Final = 4
"""Of what the tool printed, the last lines stand in the cause."""
_AWAITED: Final = f"a driver with which {TOOL} succeeds"


class Smi:
    """Runs the tool; with a limit, one that has not ended in time is a failure, and no other is started beside it."""

    def __init__(self, process: Process, *, limit_s: float | None = None) -> None:
        self._process = process
        self._limit_s = limit_s
        self._hanging: asyncio.Future[Completed] | None = None

    async def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, missing: str = "") -> str:
        """What the tool printed. Raises :class:`~.errors.NotReady`; ``missing`` is what it means that there is none."""
        shown = " ".join(argv)
        if self._hanging is not None and not self._hanging.done():
            raise NotReady(f"an earlier {TOOL} still has not ended: the driver hangs", _AWAITED)
        try:
            done = await self._watched(argv, env, shown)
        except FileNotFoundError:
            raise NotReady(
                f"{shown}: there is no such command" + (f": {missing}" if missing else ""), _AWAITED
            ) from None
        except OSError as error:
            raise NotReady(f"{shown} cannot be run: {error.strerror or error}", _AWAITED) from error
        if done.code != 0:
            raise NotReady(f"{shown} ended with {ended(done.code)}: {_last_words(done)}", _AWAITED)
        return done.out

    async def _watched(self, argv: Sequence[str], env: Mapping[str, str] | None, shown: str) -> Completed:
        """Run it, and say from time to time that it has not ended."""
        process, waited = self._process, 0.0
        running = asyncio.ensure_future(process.execute(argv, env=env))
        try:
            while True:
                pause_s = SLOW_S if self._limit_s is None else min(SLOW_S, self._limit_s - waited)
                pause = asyncio.ensure_future(process.sleep(pause_s))
                try:
                    await asyncio.wait((running, pause), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pause.cancel()
                if running.done():
                    return running.result()
                waited += pause_s
                if self._limit_s is not None and waited >= self._limit_s:
                    raise NotReady(f"{shown} has not ended after {waited:g} s: the driver hangs", _AWAITED)
                process.log.warning(
                    f"{shown} has not ended after {waited:g} s; the driver may hang: see the kernel's log"
                )
        finally:
            if not running.done():  # one that hangs in the kernel cannot be killed: nobody waits for it
                self._hanging = running
                running.cancel()
                running.add_done_callback(_drop)


def ended(code: int) -> str:
    """An exit code, with the name that it has: those of the tool are NVML's."""
    if code < 0:
        return f"signal {-code}"
    name = nvmlerrors.NAMES.get(code)
    return f"code {code} ({name})" if name else f"code {code}"


def _last_words(done: Completed) -> str:
    lines = [line.strip() for line in f"{done.out}\n{done.err}".splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:]) or "it printed nothing"


def _drop(running: "asyncio.Future[Completed]") -> None:
    if not running.cancelled():
        running.exception()
