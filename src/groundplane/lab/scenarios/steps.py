"""What the steps of a scenario share: waiting side by side while a person watches, and noting what was seen.

A :class:`Story` reports how the nodes stand, by the watch and by the same plan that ``groundplane driver plan`` prints.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from ...cluster.client import Client
from ...cluster.errors import ClusterError
from ...operator.upgrade import planning
from ...operator.upgrade.planning import Plan, PlanError
from ..cluster import OPERATOR_NAMESPACE, Lab
from .upgradewatch import UpgradeWatch

LOOK_EVERY_S: Final = 0.1
"""Real seconds between two looks of a step."""
REPORT_EVERY_S: Final = 0.25
PLAN_EVERY_S: Final = 2.0
"""Real seconds between two plans: each lists all nodes and pods."""


class StepError(Exception):
    """A step did not come to its end; the text says which, what was seen, and what to do."""


class Step(NamedTuple):
    """One step: what a person is told while it lasts, what to do where it fails."""

    message: str
    advice: str

    def fail(self, seen: str, timeout_s: float) -> NoReturn:
        """Give the step up."""
        raise StepError(f"not within {timeout_s:g} s: {self.message}\n  seen: {seen}\n  to do: {self.advice}")


class Happening(NamedTuple):
    """Something that happened: real seconds since the beginning, and what."""

    seconds: float
    text: str


class Report(msgspec.Struct, frozen=True):
    """How it stands at one moment: how many nodes are in each state, the plan of the last second (None: not known), the
    steps that are waited for, and what has happened."""

    seconds: float
    states: Mapping[str, int]
    plan: Plan | None
    steps: tuple[str, ...]
    happened: tuple[Happening, ...]
    operator: bool


class Story:
    """A scenario under way."""

    def __init__(self, lab: Lab, watch: UpgradeWatch, report: Callable[[Report], None], timeout_s: float) -> None:
        self.lab = lab
        self.watch = watch
        self.happened: list[Happening] = []
        self._report = report
        self._timeout_s = timeout_s
        self._started = time.monotonic()
        self._steps: dict[int, str] = {}
        self._plan: Plan | None = None

    @property
    def seconds(self) -> float:
        """Real seconds since the beginning."""
        return time.monotonic() - self._started

    def note(self, text: str) -> None:
        """Keep what happened."""
        self.happened.append(Happening(self.seconds, text))

    async def until(self, step: Step, done: Callable[[], bool], seen: Callable[[], str]) -> None:
        """Wait until ``done``. Raises :class:`StepError` with what is ``seen`` when the time limit is over."""
        began, key = self.seconds, id(step)
        self._steps[key] = step.message
        try:
            while not done():
                self.lab.check()
                if self.seconds > began + self._timeout_s:
                    step.fail(seen(), self._timeout_s)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            del self._steps[key]

    @contextlib.asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Report while the body runs, and once at its end."""
        tasks = [asyncio.create_task(self._reporting()), asyncio.create_task(self._planning())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._tell()
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _reporting(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(REPORT_EVERY_S)

    def _tell(self) -> None:
        steps, happened = tuple(self._steps.values()), tuple(self.happened)
        states = self.watch.counted()
        self._report(Report(self.seconds, states, self._plan, steps, happened, self.lab.operator_running))

    async def _planning(self) -> None:
        while True:
            with contextlib.suppress(PlanError, ClusterError):  # there is no plan before there is a policy
                self._plan = await self.plan()
            await asyncio.sleep(PLAN_EVERY_S)

    async def plan(self) -> Plan:
        """What the next pass would do. Raises PlanError and ClusterError."""
        async with self.lab.client(user_agent="groundplane-plan") as client:
            return await self._planned(client)

    async def _planned(self, client: Client) -> Plan:
        now = int(self.lab.clock.now().timestamp())
        return await planning.plan(client, namespace=OPERATOR_NAMESPACE, release=self.lab.release, now=now)

    async def log(self, pod: Mapping[str, Any], container: str, *, previous: bool = False) -> list[str]:
        """The lines that a container has written. Raises ClusterError where it has not run."""
        meta = pod["metadata"]
        async with self.lab.client() as client:
            lines = client.logs(meta["name"], meta["namespace"], container=container, previous=previous)
            return [line async for line in lines]
