"""How far the DaemonSets' rollouts are: their verdicts, kept current event by event (contracts/control-plane.md 4.2).

A DaemonSet with strategy RollingUpdate tells by its own status. One with OnDelete tells only by its pods, so the pods
behind its selector are watched and tallied as they change: a thousand driver pods coming up cost a thousand small sums,
and a pass over the policy is asked for only when some verdict flips: ready or not, waiting for outdated pods or not.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..cluster.informer import Change, Informer
from ..cluster.views import PodView
from . import readiness
from .readiness import PodTally, RevisionView, Verdict

log = logging.getLogger(__name__)

DaemonSets = Callable[[], Iterable[Mapping[str, Any]]]
PodInformer = Callable[[str], Informer[PodView]]
"""Makes an informer for the pods behind a label selector."""


class PodsBehind:
    """The pods of one selector, tallied by their owner's UID."""

    def __init__(self, informer: Informer[PodView], changed: Callable[[str], None]) -> None:
        self.informer = informer
        self._changed = changed
        self._tallies: dict[str, PodTally] = {}
        informer.subscribe(self._heard)

    def tally(self, owner_uid: str) -> PodTally:
        """The pods of one owner."""
        return self._tallies.get(owner_uid) or PodTally()

    def _heard(self, change: Change[PodView]) -> None:
        for pod, by in ((change.old, -1), (change.new, 1)):
            if pod is not None:
                self._count(pod, by)
        for owner in {pod.owner_uid for pod in (change.old, change.new) if pod is not None}:
            self._changed(owner)

    def _count(self, pod: PodView, by: int) -> None:
        tally = self._tallies.setdefault(pod.owner_uid, PodTally())
        tally.count(pod, by)
        if not tally.total:
            del self._tallies[pod.owner_uid]


class Rollouts:
    """The verdict on each of our DaemonSets."""

    def __init__(
        self,
        daemon_sets: DaemonSets,
        revisions: Informer[RevisionView],
        pod_informer: PodInformer,
        *,
        start: Callable[[Informer[Any]], None],
        stop: Callable[[Informer[Any]], None],
        flipped: Callable[[], None],
    ) -> None:
        self._daemon_sets = daemon_sets
        self._revisions = revisions
        self._pod_informer = pod_informer
        self._start_informer = start
        self._stop_informer = stop
        self._flipped = flipped
        self._pods: dict[str, PodsBehind] = {}
        self._said: dict[str, tuple[bool, bool]] = {}
        """What was last said of each DaemonSet, by UID: ready, outdated."""

    def start(self) -> None:
        """Listen to revisions, and watch the pods of the DaemonSets that are there already."""
        self._revisions.subscribe(self._revision_changed)
        self._watch_pods()

    async def known(self, patience_s: float) -> None:
        """Wait until all pods that matter have been listed, ``patience_s`` seconds at most."""
        for behind in list(self._pods.values()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await behind.informer.wait_settled()

    def verdict(self, live: Mapping[str, Any] | None) -> Verdict:
        """The verdict on a DaemonSet, ``None`` for one that does not exist."""
        if live is None or not readiness.needs_pods(live):
            return readiness.daemon_set(live)
        behind = self._pods.get(selector_of(live))
        if behind is None or not behind.informer.synced:
            return Verdict(False, "its pods are not known yet")
        meta = live["metadata"]
        revision = readiness.newest_revision(meta["name"], meta["uid"], self._revisions.values())
        return readiness.daemon_set(live, behind.tally(meta["uid"]), revision)

    def daemon_set_changed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """One of our DaemonSets came, changed or went: watch the right pods, and see whether its verdict flipped."""
        self._watch_pods()
        if new is not None:
            self._check(new)
        elif old is not None:
            self._said.pop(old["metadata"]["uid"], None)

    def _watch_pods(self) -> None:
        wanted = {selector_of(ds) for ds in self._daemon_sets() if readiness.needs_pods(ds)}
        for selector in self._pods.keys() - wanted:
            self._stop_informer(self._pods.pop(selector).informer)
        for selector in wanted - self._pods.keys():
            informer = self._pod_informer(selector)
            self._pods[selector] = PodsBehind(informer, self._owner_changed)
            self._start_informer(informer)

    def _owner_changed(self, uid: str) -> None:
        for live in self._daemon_sets():
            if live["metadata"]["uid"] == uid:
                self._check(live)

    def _revision_changed(self, change: Change[RevisionView]) -> None:
        revision = change.new or change.old
        if revision is not None:
            self._owner_changed(revision.owner_uid)

    def pods_synced(self) -> None:
        """Some pods have been listed for the first time: their absence means something now."""
        for live in self._daemon_sets():
            self._check(live)

    def _check(self, live: Mapping[str, Any]) -> None:
        uid, verdict = live["metadata"]["uid"], self.verdict(live)
        said = verdict.ready, verdict.outdated
        if self._said.get(uid) != said:
            self._said[uid] = said
            self._flipped()


def selector_of(daemon_set: Mapping[str, Any]) -> str:
    """A DaemonSet's pod selector as the API server's ``labelSelector`` text."""
    selector = daemon_set.get("spec", {}).get("selector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items()))
