"""Which problems of upgrades are told now: those that have lasted, each once in a while.

A pass finds what is wrong at its moment. Much of that is gone with the next news, as while a driver pod is being
replaced, and what stays is found by every pass. A person wants neither: a passing state is told when it has lasted, and
what has been told is repeated only while its event would otherwise be forgotten. Nothing here decides anything.
"""

from collections.abc import Iterable
from typing import Final

from .model import Problem

LASTING_S: Final = 60.0
"""How long a state that passes by itself in any upgrade must last before it is worth telling."""
REPEAT_S: Final = 1800.0
"""A problem that stays is told again after this time: the API server forgets an event after an hour."""
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 120.0

PASSING: Final = frozenset(
    {"DriverRevisionUnknown", "FactsMissing", "NoDriverOwner", "NoDriverPod", "NoValidatorPod", "UnscheduledPods"}
)
"""Reasons of which some are routine: between two pods of a DaemonSet, two listings, two owners."""
UNHEARD: Final = frozenset({"FactsMissing", "UnscheduledPods"})
"""Reasons whose end no watch may tell, so that another pass has to look (contracts/driver-lifecycle.md 3.2)."""

_Key = tuple[str, str]


class Troubles:
    """The problems of the passes so far, by reason and what each is about."""

    def __init__(self) -> None:
        self._since: dict[_Key, float] = {}
        self._told: dict[_Key, float] = {}
        self._retry_s = 0.0

    def found(self, problems: Iterable[Problem], now: float) -> tuple[tuple[Problem, ...], float | None]:
        """A pass found these at ``now`` (monotonic seconds): those to be told, and in how long to look again.

        None if nothing has to be looked at again.
        """
        keyed = {_key(each): each for each in problems}
        self._since = {key: self._since.get(key, now) for key in keyed}
        self._told = {key: at for key, at in self._told.items() if key in keyed}
        lasting = tuple([each for key, each in keyed.items() if self._lasts(key, now)])
        unheard = any(reason in UNHEARD for reason, _ in keyed)
        self._retry_s = min(max(RETRY_FIRST_S, 2 * self._retry_s), RETRY_MAX_S) if unheard else 0.0
        waits = [self._since[key] + LASTING_S - now for key in keyed if not self._lasts(key, now)]
        waits += [self._retry_s] if unheard else []
        return lasting, min(waits, default=None)

    def due(self, problem: Problem, now: float) -> bool:
        """Whether an event is to tell a problem of this pass now; it then counts as told."""
        key = _key(problem)
        told = self._told.get(key)
        if not self._lasts(key, now) or (told is not None and now - told < REPEAT_S):
            return False
        self._told[key] = now
        return True

    def _lasts(self, key: _Key, now: float) -> bool:
        return key[0] not in PASSING or now - self._since.get(key, now) >= LASTING_S


def _key(problem: Problem) -> _Key:
    """Reason and subject: what stands before the first colon, as the rest may count something."""
    return problem.reason, problem.message.partition(":")[0]
