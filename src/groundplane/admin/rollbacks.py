"""A rollback's plan for one cluster: which revision, the boundary filled in, whether it can be done, what it costs.

contracts/admin-workflow.md 10. Pure: a survey comes in, what is to be said comes out. The table and its rules are
``rollback``'s, drivers and workloads ``upgrades``' and ``disruption``'s; carrying the plan out is ``rollback_run``'s.
"""

from typing import Final, NamedTuple

from ..diagnose.survey import Survey
from . import releases
from .releases import Revision

KINDS: Final = (
    *("nodes", "pods", "clusterpolicies", "nvidiadrivers", "daemonsets", "deployments", "configmaps"),
    *("customresourcedefinitions", "poddisruptionbudgets", "resourceclaims", "runtimeclasses", "secrets"),
    *("controllerrevisions", "gpuclusters", "computedomains"),
)
"""What a plan reads, by plural."""


class RollbackError(Exception):
    """There is nothing that could be gone back to; the message says why, and what to do."""


class Way(NamedTuple):
    """From which revision to which."""

    running: Revision
    wanted: Revision
    history: tuple[Revision, ...]
    """All of the release, newest first."""

    @property
    def pending(self) -> bool:
        """Whether Helm is, or was killed, in the middle of a change."""
        return self.history[0].status in releases.PENDING


_RESTORABLE: Final = ("superseded", "deployed")


def way(survey: Survey, revision: int | None = None, release: str = "") -> Way:
    """The way back; to the newest complete revision before the one in force if none is named.

    ``release`` is ``namespace/name``, of the only one by default. Raises :class:`RollbackError`.
    """
    history = _history(survey, release)
    running = next((each for each in history if each.status == "deployed"), None)
    if running is None:
        raise RollbackError(
            f"release {history[0].where} was never deployed completely (it is {history[0].status}): finish it with "
            "groundplane install, or take it away with groundplane uninstall"
        )
    return Way(running, _wanted(history, running, revision), history)


def _history(survey: Survey, release: str) -> tuple[Revision, ...]:
    found = releases.history(survey)
    if found.unread:
        raise RollbackError(f"the release's history is not known: {found.unread}")
    if not found.revisions:
        broken = f" ({'; '.join(found.broken)})" if found.broken else ""
        raise RollbackError(f"no release of chart {releases.CHART} is in the cluster{broken}: there is no way back")
    if release and not found.of(release):
        raise RollbackError(f"no release {release}; there are {', '.join(found.releases)}")
    if not release and len(found.releases) > 1:
        raise RollbackError(
            f"the cluster has {len(found.releases)} releases of chart {releases.CHART}: {', '.join(found.releases)}. "
            "Name one (--namespace, --name); remove the other (groundplane uninstall)"
        )
    return found.of(release or found.releases[0])


def _wanted(history: tuple[Revision, ...], running: Revision, revision: int | None) -> Revision:
    there = listed(history)
    if revision is not None:
        found = next((each for each in history if each.revision == revision), None)
        if found is None:
            raise RollbackError(f"release {running.where} has no revision {revision}; it has {there}")
        if found is running:
            raise RollbackError(f"revision {revision} is in force already; there are {there}")
        if found.status not in _RESTORABLE:
            raise RollbackError(f"revision {revision} is {found.status}, and was never complete; there are {there}")
        return found
    before = [each for each in history if each.revision < running.revision and each.status in _RESTORABLE]
    if not before:
        raise RollbackError(
            f"release {running.where} has no complete revision before {running.revision}, which is in force; there are "
            f"{there}. groundplane install or helm upgrade with the older chart is the way left"
        )
    return before[0]


def listed(history: tuple[Revision, ...]) -> str:
    """Revisions in one line, newest first."""
    return ", ".join(f"{each.revision} ({each.chart_version}, {each.status})" for each in history)
