"""Steps of the demo that are given up as soon as what is wrong is seen, so that no test waits for a time limit."""

from collections.abc import Awaitable, Callable
from typing import Any

from groundplane.lab.demo_steps import Step, Watcher
from groundplane.lab.layers import NodeRow


class Impatient(Watcher):
    """Gives up the step with ``at`` in its message once ``when`` is in what is seen."""

    at = ""
    when = ""

    async def until(
        self, step: Step, done: Callable[[list[NodeRow]], Awaitable[bool]], seen: Callable[[], str], **more: Any
    ) -> float:
        async def ended(rows: list[NodeRow]) -> bool:
            if await done(rows):
                return True
            if self.at and self.at in step.message and self.when in seen():
                self._timeout_s = 0.0
            return False

        return await super().until(step, ended, seen, **more)
