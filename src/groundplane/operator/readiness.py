"""Whether a DaemonSet has reached what its spec says (contracts/control-plane.md 4.2).

Pure: the DaemonSet's document, a tally of its pods and its newest revision go in, a verdict comes out. The tally is
kept up to date pod by pod (``rollouts.py``), so that a fleet's thousand driver pods are not counted over and over.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ..cluster.views import Meta, PodView

REVISION_HASH_LABEL: Final = "controller-revision-hash"
ON_DELETE: Final = "OnDelete"


class RevisionView(msgspec.Struct, frozen=True):
    """A ControllerRevision: its number and whose it is, without the stored template."""

    metadata: Meta = Meta()
    revision: int = 0

    @property
    def owner_uid(self) -> str:
        """UID of the DaemonSet it belongs to, empty without an owner."""
        return self.metadata.ownerReferences[0].uid if self.metadata.ownerReferences else ""


class Verdict(msgspec.Struct, frozen=True):
    """Ready or not, and why not, for a person. ``outdated``: pods of an older revision have yet to be replaced."""

    ready: bool
    why: str = ""
    outdated: bool = False


class PodTally(msgspec.Struct):
    """The pods of one DaemonSet, counted: how many run an old revision matters as much as how many run."""

    total: int = 0
    unready: int = 0
    hashes: Counter[str] = msgspec.field(default_factory=Counter)

    def count(self, pod: PodView, by: int = 1) -> None:
        """Add a pod, or with ``by=-1`` take one out again."""
        self.total += by
        if not is_running(pod):
            self.unready += by
        revision = pod.labels.get(REVISION_HASH_LABEL, "")
        self.hashes[revision] += by
        if not self.hashes[revision]:
            del self.hashes[revision]

    @classmethod
    def of(cls, pods: Iterable[PodView], owner_uid: str) -> "PodTally":
        """Count those of ``pods`` whose first owner is ``owner_uid``."""
        tally = cls()
        for pod in pods:
            if pod.owner_uid == owner_uid:
                tally.count(pod)
        return tally


READY: Final = Verdict(True)


def is_running(pod: PodView) -> bool:
    """Phase Running and every container Ready."""
    return pod.phase == "Running" and pod.ready


def newest_revision(name: str, uid: str, revisions: Iterable[RevisionView]) -> str:
    """The hash of the newest revision of DaemonSet ``name``, empty when there is none.

    Revisions are matched by their owner as well as by name: ``nvidia-driver-daemonset`` is a prefix of every
    precompiled driver's DaemonSet name too.
    """
    prefix = name + "-"
    mine = [r for r in revisions if r.owner_uid == uid and r.metadata.name.startswith(prefix)]
    newest = max(mine, key=lambda r: r.revision, default=None)
    return newest.metadata.name.removeprefix(prefix) if newest else ""


def needs_pods(daemon_set: Mapping[str, Any]) -> bool:
    """Whether its pods must be looked at: its update strategy is OnDelete."""
    strategy = daemon_set.get("spec", {}).get("updateStrategy") or {}
    return bool(strategy.get("type") == ON_DELETE)


def daemon_set(live: Mapping[str, Any] | None, pods: PodTally | None = None, revision: str = "") -> Verdict:
    """The verdict on one DaemonSet. ``pods`` and ``revision`` matter with strategy OnDelete only."""
    if live is None:
        return Verdict(False, "not created yet")
    metadata, status = live["metadata"], live.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return Verdict(False, "being deleted")
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return Verdict(False, "the DaemonSet controller has not seen its newest spec")
    desired = status.get("desiredNumberScheduled", 0)
    if desired == 0:
        return READY
    unavailable = status.get("numberUnavailable", 0)
    if unavailable:
        return Verdict(False, f"{unavailable} of {desired} pods are unavailable")
    if needs_pods(live):
        return _on_delete(pods or PodTally(), revision)
    for field in ("updatedNumberScheduled", "numberAvailable"):
        if status.get(field, 0) != desired:
            return Verdict(False, f"{field} is {status.get(field, 0)} of {desired}")
    return READY


def _on_delete(pods: PodTally, revision: str) -> Verdict:
    """Step 5 of 4.2: every pod must be of the newest revision, Running and Ready."""
    if not pods.total:
        return Verdict(False, "no pods yet")
    if not revision:
        return Verdict(False, "no ControllerRevision yet")
    old = pods.total - pods.hashes[revision]
    if old:
        why = f"{old} of {pods.total} pods run an older revision than {revision}, upgrade pending"
        return Verdict(False, why, outdated=True)
    if pods.unready:
        return Verdict(False, f"{pods.unready} of {pods.total} pods are not Running and Ready")
    return READY
