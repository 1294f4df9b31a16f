"""When runs are done: at the start, when the label changes, and again after a failure.

contracts/mig-exporter-validator.md 3.3. One run at a time; of the values that arrive during one, the newest counts. An
empty label asks for nothing.
"""

import asyncio
from typing import Final

from ....api import names
from ...process import wait_any
from .cluster import State
from .run import Outcome, Parts, run

RETRY_S: Final = 60.0
"""How long after a failure it is tried again; twice as long after each further one, at most RETRY_MOST_S."""
RETRY_MOST_S: Final = 1800.0


class Loop:
    """Follows the label's values."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._value: str | None = None
        self._fresh = False
        self._changed = asyncio.Event()

    def see(self, value: str) -> None:
        """Take note of the label's value, which is another than the last time."""
        self._fresh = self._value is not None
        self._value = value
        self._changed.set()

    async def serve(self) -> None:
        """Do runs, for ever."""
        failures = 0
        await self._changed.wait()
        while True:
            if self._changed.is_set():
                failures = 0
                self._changed.clear()
            outcome = await self._once(self._value or "")
            failures = 0 if outcome.state is State.SUCCESS and outcome.undone else failures + 1
            await self._pause(outcome, failures)

    async def _once(self, value: str) -> Outcome:
        fresh, self._fresh = self._fresh, False
        if value:
            return await run(self._parts, value, fresh=fresh)
        return Outcome(State.SUCCESS, undone=await self._parts.undo.leftovers())

    async def _pause(self, outcome: Outcome, failures: int) -> None:
        """Wait for the next value, or after a failure for the time to try again."""
        if not failures:
            await self._changed.wait()
            return
        if self._changed.is_set():
            return
        delay = min(RETRY_S * 2.0 ** min(failures - 1, 16), RETRY_MOST_S)
        what = outcome.failure or "operands or host services are still paused"
        self._parts.process.log.warning(
            f"{what}; trying again in {delay:g} s, or at once when label {names.MIG_CONFIG} is set to another layout, "
            "or removed and set again"
        )
        await wait_any(self._changed.wait(), self._parts.process.sleep(delay))
