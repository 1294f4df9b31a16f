"""The demo's last step: a node breaks, ``groundplane doctor`` names the cause, the node is mended, and all is well.

The fault is one of the lab's book (``faultbook``): it changes the machine or its registry and nothing else. What is
told is the shipped doctor's verdict on what it reads of the cluster; the step goes on only when that is the fault's
cause, and ends when there is nothing to find.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from ..cluster import client as cluster_client
from ..cluster import errors
from ..diagnose import doctor, tree
from ..diagnose.engine import Verdict
from ..diagnose.evidence import Evidence
from . import layers
from .cluster import Lab
from .demo_steps import Step, Watcher
from .faultbook import FAULTS, Fault, Where, trial
from .host import SimulatedHost

LOOK_EVERY_S: Final = 0.25
"""Real seconds between two examinations by the doctor, which read the whole cluster."""


class Choice(NamedTuple):
    """A fault that the demo can bring about, and in words how it is undone."""

    fault: str
    mended: str


CHOICES: Final = (
    Choice("no-kernel-headers", "the repositories have the kernel's headers again"),
    Choice("rhel-repositories-unreachable", "the repositories can be reached again"),
    Choice("plugin-image-gone", "the mirror has the image again"),
)
"""The most instructive first; the last can be on every GPU node."""

_ADVICE: Final = (
    "start a lab that stays, break a node there (groundplane lab fault apply {fault}) and ask groundplane doctor; "
    "docs/how-to/troubleshoot.md says how it judges"
)


class FaultTurn(msgspec.Struct, frozen=True):
    """A fault from beginning to end; seconds are real ones.

    ``title`` says what broke, ``cause`` which signature the doctor named, ``told`` what it printed of it, ``healed``
    what it printed in the end; ``found_seconds`` and ``healed_seconds``: how long until it named the cause, and until
    it found nothing any more.
    """

    node: str
    fault: str
    title: str
    mended: str
    cause: str
    told: tuple[str, ...]
    found_seconds: float
    healed: str
    healed_seconds: float


class Chosen(NamedTuple):
    """Which fault, and where."""

    node: str
    choice: Choice

    @property
    def fault(self) -> Fault:
        """What the book says of it."""
        return FAULTS[self.choice.fault]


def choose(hosts: Mapping[str, SimulatedHost]) -> Chosen | None:
    """The first fault that can be on one of the machines, on the last where it can; None without a GPU node."""
    for choice in CHOICES:
        for node, host in reversed(list(hosts.items())):
            if FAULTS[choice.fault].on.fits(host):
                return Chosen(node, choice)
    return None


class Turn:
    """The step itself."""

    def __init__(self, lab: Lab, client: cluster_client.Client, watcher: Watcher, chosen: Chosen) -> None:
        self._lab = lab
        self._client = client
        self._watcher = watcher
        self._chosen = chosen
        self._where = Where(client, chosen.node, lab.host(chosen.node))
        self._verdict = Verdict()
        self._evidence = Evidence()
        self._trouble = ""

    async def run(self) -> FaultTurn:
        """Break, diagnose, mend. Raises :class:`~.demo_steps.StepError`."""
        node, choice = self._chosen
        fault = self._chosen.fault
        await self._wait("groundplane doctor finds nothing yet", self._well)
        await fault.apply(self._where)
        found = await self._wait(f"{node} breaks: {fault.title}", self._named)
        cause, told = self._verdict.causes[0].finding.id, tree.brief(self._verdict, self._evidence)
        await fault.clear(self._where)
        healed = await self._wait(f"{node} is mended: {choice.mended}", self._well)
        last, *_ = tree.brief(self._verdict, self._evidence)
        return FaultTurn(node, choice.fault, fault.title, choice.mended, cause, tuple(told), found, last, healed)

    async def _wait(self, message: str, done: Callable[[list[layers.NodeRow]], Awaitable[bool]]) -> float:
        """Ask the doctor until the verdict is as it should be; how many real seconds that took."""
        step = Step(message, _ADVICE.format(fault=self._chosen.choice.fault))
        return await self._watcher.until(step, done, self._said, every_s=LOOK_EVERY_S)

    async def _asked(self) -> bool:
        """Whether the cluster could be examined; then there is a verdict."""
        try:
            self._evidence = await trial.examined(self._client)
        except errors.ClusterError as error:
            self._trouble = f"the cluster could not be examined: {error}"
            return False
        self._trouble = ""
        self._verdict = doctor.diagnose(self._evidence)
        return True

    async def _well(self, rows: list[layers.NodeRow]) -> bool:
        """Whether the doctor finds nothing; it is asked as soon as the pods look as if that could be."""
        if not all(row.healthy for row in rows if row.has_gpu):
            self._trouble = "pods of a layer are not healthy yet"
            return False
        return await self._asked() and self._verdict.healthy

    async def _named(self, _rows: list[layers.NodeRow]) -> bool:
        """Whether the fault's cause is on top, on its node, and no other cause is told."""
        if not await self._asked():
            return False
        (result,) = trial.judged(self._verdict, {self._chosen.node: self._chosen.choice.fault})
        return result.right and self._chosen.node in self._verdict.causes[0].finding.nodes

    def _said(self) -> str:
        """What the doctor said last."""
        if self._trouble:
            return self._trouble
        verdict = self._verdict
        told = [
            f"{each.layer} {each.title} [{each.id}] on {', '.join(each.nodes) or 'no node'}"
            for each in (*(cause.finding for cause in verdict.causes), *verdict.unmatched, *verdict.unknown)
        ]
        return f"groundplane doctor says: {'; '.join(told) or 'nothing fails'}"
