"""The Deployment controller: one ReplicaSet a template, replicas moved from the old ones to the new one.

The arithmetic of a rolling update is in pure functions (`Limits`, `scale_new`, `scale_old`); pods are the ReplicaSet
controller's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..resources import DEPLOYMENTS, REPLICA_SETS
from ..status import StatusError
from . import objects
from .cache import same
from .events import NORMAL
from .loop import Loop
from .objects import Doc, Key, Obj
from .shared import Shared

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
"""Earlier revisions of a ReplicaSet that became the present one again."""
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
DEFAULT_HISTORY_LIMIT = 10
DEFAULT_DEADLINE_S = 600

PAUSED = ("Unknown", "DeploymentPaused", "Deployment is paused")
RESUMED = ("Unknown", "DeploymentResumed", "Deployment is resumed")
"""What the condition Progressing says of a Deployment that is held back, and of one that goes on."""


class Limits(NamedTuple):
    """What a Deployment wants: replicas, and how far an update may go above and below."""

    replicas: int
    surge: int
    unavailable: int


class Counts(NamedTuple):
    """A ReplicaSet's wanted and available pods."""

    wanted: int
    available: int


def limits_of(deployment: Doc) -> Limits:
    """A Deployment's replicas and update limits as numbers; at least one of the limits is above zero."""
    spec = deployment["spec"]
    replicas = int(spec.get("replicas", 1))
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        return Limits(replicas, 0, replicas)
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = objects.percent_or_int(rolling.get("maxSurge", "25%"), replicas, round_up=True)
    unavailable = objects.percent_or_int(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
    return Limits(replicas, surge, min(replicas, unavailable if surge or unavailable else 1))


def scale_new(limits: Limits, new: Counts, old: Sequence[Counts]) -> int:
    """How many pods the new ReplicaSet should want now: up to what the surge leaves free."""
    total = new.wanted + sum(each.wanted for each in old)
    if new.wanted >= limits.replicas:
        return limits.replicas
    room = limits.replicas + limits.surge - total
    return new.wanted + max(0, min(room, limits.replicas - new.wanted))


def scale_old(limits: Limits, new: Counts, old: Sequence[Counts]) -> list[int]:
    """How many pods each old ReplicaSet (oldest first) should want now.

    Never fewer than `replicas - unavailable` pods stay available. Unavailable pods of old ReplicaSets go first.
    """
    total = new.wanted + sum(each.wanted for each in old)
    least = limits.replicas - limits.unavailable
    spare = max(0, total - least - (new.wanted - new.available))
    wanted, available = [each.wanted for each in old], [each.available for each in old]
    for place, each in enumerate(old):
        gone = min(spare, max(0, each.wanted - each.available))
        wanted[place] -= gone
        spare -= gone
    spare = min(spare, max(0, new.available + sum(available) - least))
    for place in range(len(old)):
        gone = min(spare, wanted[place])
        wanted[place] -= gone
        spare -= gone
    return wanted


def template_of(replica_set: Doc) -> Obj:
    """A ReplicaSet's template as its Deployment wrote it: without the hash label."""
    template = replica_set["spec"]["template"]
    metadata = template.get("metadata") or {}
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name != HASH_LABEL}
    return {**template, "metadata": {**metadata, "labels": labels}}


def revision_of(obj: Doc) -> int:
    """The revision annotation of a Deployment or ReplicaSet, 0 if it has none."""
    return int((obj["metadata"].get("annotations") or {}).get(REVISION) or 0)


def counts_of(replica_set: Doc) -> Counts:
    """A ReplicaSet's numbers."""
    available = int((replica_set.get("status") or {}).get("availableReplicas") or 0)
    return Counts(int(replica_set["spec"].get("replicas", 1)), available)


class DeploymentController:
    """Keeps every Deployment's ReplicaSets."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._deployments = shared.owned(DEPLOYMENTS)
        self._sets = shared.owned(REPLICA_SETS)
        self._recorder = shared.events("deployment-controller")
        self._by_uid: dict[str, Key] = {}
        self.loop: Loop[Key] = Loop("deployment", self._reconcile, shared.clock)
        self._deployments.subscribe(self._deployment_changed)
        self._sets.subscribe(self._set_changed)
        shared.pods.subscribe(self._pod_changed)

    def _deployment_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and new is None:
            self._by_uid.pop(objects.uid(old), None)
        if new is not None and not same(
            old, new, "metadata.generation", "metadata.deletionTimestamp", "metadata.annotations"
        ):
            self._by_uid[objects.uid(new)] = objects.key(new)
            self.loop.add(objects.key(new))

    def _set_changed(self, old: Obj | None, new: Obj | None) -> None:
        for replica_set in (old, new):
            key = self._by_uid.get(objects.controller_uid(replica_set)) if replica_set is not None else None
            if key is not None:
                self.loop.add(key)
        if new is not None and not objects.controller_uid(new):
            for deployment in self._deployments.in_namespace(new["metadata"].get("namespace") or ""):
                self.loop.add(objects.key(deployment))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        """A Deployment that recreates waits for its old pods to go; nothing else needs the pods themselves."""
        if old is None or (new is not None and not objects.finished(new)):
            return
        owner = objects.controller_of(old)
        replica_set = self._sets.get(owner["name"], old["metadata"]["namespace"]) if owner is not None else None
        key = self._by_uid.get(objects.controller_uid(replica_set)) if replica_set is not None else None
        if key is not None:
            self.loop.add(key)

    def _reconcile(self, key: Key) -> None:
        deployment = self._deployments.at(key)
        if deployment is None:
            return
        candidates = [*self._sets.by_owner[objects.uid(deployment)], *self._sets.orphans[key[0]]]
        selector = deployment["spec"]["selector"]
        owned = self._shared.claim(self._sets, deployment, DEPLOYMENTS, selector, candidates)
        wanted = template_of({"spec": deployment["spec"]})
        matching = sorted((each for each in owned if template_of(each) == wanted), key=objects.created)
        new = matching[0] if matching else None
        if not objects.deleting(deployment):
            old = sorted((each for each in owned if each is not new), key=objects.created)
            new = self._advance(deployment, new, old)
        self._report(key, new)

    def _advance(self, deployment: Obj, new: Obj | None, old: list[Obj]) -> Obj | None:
        spec = deployment["spec"]
        if (spec.get("strategy") or {}).get("type") == "Recreate" and not spec.get("paused"):
            for each in old:
                self._scale(deployment, each, 0)
            if self._any_pods(old):
                return new
        if spec.get("paused"):
            return self._resize(deployment, new, old)
        new = self._current_set(deployment, new, old)
        limits = limits_of(deployment)
        numbers = [counts_of(each) for each in old]
        new = self._scale(deployment, new, scale_new(limits, counts_of(new), numbers))
        for each, replicas in zip(old, scale_old(limits, counts_of(new), numbers), strict=True):
            self._scale(deployment, each, replicas)
        if self._complete(deployment, new):
            self._trim(deployment, old)
        return new

    def _resize(self, deployment: Obj, new: Obj | None, old: Sequence[Obj]) -> Obj | None:
        """Follow the replicas of a paused Deployment: in its only set with pods, or the newest if none has any."""
        sets = [*old, *([new] if new is not None else [])]
        with_pods = [each for each in sets if counts_of(each).wanted]
        if sets and len(with_pods) <= 1:
            self._scale(deployment, (with_pods or sets)[-1], limits_of(deployment).replicas)
        return new

    def _any_pods(self, sets: Sequence[Obj]) -> bool:
        return any(not objects.finished(pod) for each in sets for pod in self._shared.pods.by_owner[objects.uid(each)])

    def _complete(self, deployment: Doc, new: Doc) -> bool:
        wanted = int(deployment["spec"].get("replicas", 1))
        return counts_of(new) == Counts(wanted, wanted)

    # --- ReplicaSets --------------------------------------------------------------------------------------------------

    def _current_set(self, deployment: Obj, new: Obj | None, old: Sequence[Obj]) -> Obj:
        revision = max((revision_of(each) for each in old), default=0) + 1
        if new is None:
            new = self._create_set(deployment, revision, old)
        elif revision_of(new) < revision:
            annotations = dict(new["metadata"].get("annotations") or {})
            if earlier := annotations.get(REVISION):
                annotations[HISTORY] = ",".join(filter(None, (annotations.get(HISTORY), earlier)))
            annotations[REVISION] = str(revision)
            new = self._shared.edit_metadata(REPLICA_SETS, new, annotations=annotations)
        if revision_of(deployment) != revision_of(new):
            present = self._deployments.at(objects.key(deployment))
            if present is not None:
                self._note_revision(present, revision_of(new))
        return new

    def _note_revision(self, deployment: Obj, revision: int) -> None:
        """Write the revision through the status endpoint: it is no change of the Deployment's generation."""
        metadata = deployment["metadata"]
        annotations = {**(metadata.get("annotations") or {}), REVISION: str(revision)}
        noted = {**deployment, "metadata": {**metadata, "annotations": annotations}}
        self._shared.update(DEPLOYMENTS, noted, subresource="status")

    def _create_set(self, deployment: Obj, revision: int, old: Sequence[Obj]) -> Obj:
        limits, spec, metadata = limits_of(deployment), deployment["spec"], deployment["metadata"]
        collisions = int((deployment.get("status") or {}).get("collisionCount") or 0)
        digest = objects.template_hash(spec["template"], collisions)
        template = spec["template"]
        pod_metadata = template.get("metadata") or {}
        labels = {**(pod_metadata.get("labels") or {}), HASH_LABEL: digest}
        selector = spec["selector"]
        annotations = {
            name: value for name, value in (metadata.get("annotations") or {}).items() if name != LAST_APPLIED
        }
        document = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{metadata['name']}-{digest}",
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": {**annotations, REVISION: str(revision), **_sizes(limits)},
                "ownerReferences": [objects.owner_reference(deployment, "apps/v1", "Deployment")],
            },
            "spec": {
                "replicas": scale_new(limits, Counts(0, 0), [counts_of(each) for each in old]),
                "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH_LABEL: digest}},
                "template": {**template, "metadata": {**pod_metadata, "labels": labels}},
                **({"minReadySeconds": spec["minReadySeconds"]} if spec.get("minReadySeconds") else {}),
            },
        }
        try:
            made = self._shared.create(REPLICA_SETS, document, metadata["namespace"])
        except StatusError as error:
            present = self._deployments.at(objects.key(deployment))
            if error.reason == "AlreadyExists" and present is not None:
                status = {**(present.get("status") or {}), "collisionCount": collisions + 1}
                self._shared.set_status(DEPLOYMENTS, present, status)
            raise
        self._say_scaled(deployment, made, "up", 0, made["spec"]["replicas"])
        return made

    def _scale(self, deployment: Obj, replica_set: Obj, replicas: int) -> Obj:
        before = int(replica_set["spec"].get("replicas", 1))
        if before == replicas:
            return replica_set
        annotations = {**(replica_set["metadata"].get("annotations") or {}), **_sizes(limits_of(deployment))}
        changed = {
            **replica_set,
            "metadata": {**replica_set["metadata"], "annotations": annotations},
            "spec": {**replica_set["spec"], "replicas": replicas},
        }
        scaled = self._shared.update(REPLICA_SETS, changed)
        self._say_scaled(deployment, scaled, "up" if replicas > before else "down", before, replicas)
        return scaled

    def _say_scaled(self, deployment: Obj, replica_set: Doc, way: str, before: int, after: int) -> None:
        about = objects.object_reference(deployment, "apps/v1", "Deployment")
        text = f"Scaled {way} replica set {replica_set['metadata']['name']} from {before} to {after}"
        self._recorder.event(about, NORMAL, "ScalingReplicaSet", text)

    def _trim(self, deployment: Obj, old: Sequence[Obj]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit", DEFAULT_HISTORY_LIMIT)
        idle = [
            each
            for each in sorted(old, key=revision_of)
            if not counts_of(each).wanted and not (each.get("status") or {}).get("replicas")
        ]
        for each in idle[: max(0, len(idle) - limit)]:
            self._shared.delete(REPLICA_SETS, each)

    # --- status -------------------------------------------------------------------------------------------------------

    def _report(self, key: Key, new: Obj | None) -> None:
        deployment = self._deployments.at(key)
        if deployment is None:
            return
        sets = self._sets.by_owner[objects.uid(deployment)]
        current = self._sets.at(objects.key(new)) if new is not None else None
        total = _sum(sets, "replicas")
        counts = {
            "replicas": total,
            "updatedReplicas": _sum([current] if current else [], "replicas"),
            "readyReplicas": _sum(sets, "readyReplicas"),
            "availableReplicas": _sum(sets, "availableReplicas"),
            "unavailableReplicas": max(
                0, max(total, sum(counts_of(each).wanted for each in sets)) - _sum(sets, "availableReplicas")
            ),
        }
        before = deployment.get("status") or {}
        status: Obj = {
            "observedGeneration": int(deployment["metadata"].get("generation") or 0),
            **{name: count for name, count in counts.items() if count},
            **({"collisionCount": before["collisionCount"]} if before.get("collisionCount") else {}),
            "conditions": self._conditions(deployment, current, counts),
        }
        self._shared.set_status(DEPLOYMENTS, deployment, status)

    def _conditions(self, deployment: Obj, new: Obj | None, counts: Mapping[str, int]) -> list[Obj]:
        conditions = (deployment.get("status") or {}).get("conditions") or []
        limits = limits_of(deployment)
        enough = counts["availableReplicas"] >= limits.replicas - limits.unavailable
        available = (
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
            if enough
            else ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        )
        conditions = self._put(conditions, "Available", *available)
        known = objects.condition(deployment, "Progressing")
        reason = known.get("reason") if known is not None else None
        if deployment["spec"].get("paused"):
            if reason == "ProgressDeadlineExceeded":
                return [dict(each) for each in conditions]
            return self._put(conditions, "Progressing", *PAUSED)
        if new is None:
            return [dict(each) for each in conditions]
        moved = self._moved(deployment, counts)
        return self._put(conditions, "Progressing", *self._progress(deployment, new, counts, moved), renew=moved)

    def _put(
        self, conditions: Sequence[Doc], kind: str, status: str, reason: str, message: str, *, renew: bool = False
    ) -> list[Obj]:
        said = (status, reason, message)
        known = next((each for each in conditions if each["type"] == kind), None)
        if known is not None and not renew and (known["status"], known.get("reason"), known.get("message")) == said:
            return [dict(each) for each in conditions]
        now = self._shared.clock.timestamp()
        new = {"type": kind, "status": status, "reason": reason, "message": message, "lastUpdateTime": now}
        return objects.set_conditions(conditions, new, now)

    def _moved(self, deployment: Obj, counts: Mapping[str, int]) -> bool:
        """Whether the numbers got better since the last report; that puts the deadline off."""
        before = deployment.get("status") or {}
        old_before = int(before.get("replicas") or 0) - int(before.get("updatedReplicas") or 0)
        return counts["replicas"] - counts["updatedReplicas"] < old_before or any(
            counts[field] > int(before.get(field) or 0)
            for field in ("updatedReplicas", "readyReplicas", "availableReplicas")
        )

    def _progress(self, deployment: Obj, new: Obj, counts: Mapping[str, int], moved: bool) -> tuple[str, str, str]:
        replicas, name = limits_of(deployment).replicas, new["metadata"]["name"]
        if counts["replicas"] == counts["updatedReplicas"] == counts["availableReplicas"] == replicas:
            return "True", "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'
        known = objects.condition(deployment, "Progressing")
        if known is not None and known.get("reason") == PAUSED[1]:
            self._watch_deadline(deployment, 0.0)
            return RESUMED
        if known is None:
            self._watch_deadline(deployment, 0.0)
            return "True", "NewReplicaSetCreated", f'Created new replica set "{name}"'
        observed = (deployment.get("status") or {}).get("observedGeneration")
        renewed = observed != deployment["metadata"].get("generation")
        if moved or renewed or known.get("reason") == "NewReplicaSetAvailable":
            self._watch_deadline(deployment, 0.0)
            return "True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.'
        deadline = deployment["spec"].get("progressDeadlineSeconds", DEFAULT_DEADLINE_S)
        passed = self._shared.clock.since(str(known.get("lastUpdateTime") or known["lastTransitionTime"]))
        if passed > deadline and not deployment["spec"].get("paused"):
            return "False", "ProgressDeadlineExceeded", f'ReplicaSet "{name}" has timed out progressing.'
        if known["status"] != "False":
            self._watch_deadline(deployment, passed)
        return str(known["status"]), str(known["reason"]), str(known["message"])

    def _watch_deadline(self, deployment: Obj, passed: float) -> None:
        deadline = deployment["spec"].get("progressDeadlineSeconds", DEFAULT_DEADLINE_S)
        self.loop.add_after(objects.key(deployment), max(1.0, deadline - passed + 1))


def _sizes(limits: Limits) -> dict[str, str]:
    return {DESIRED: str(limits.replicas), MAXIMUM: str(limits.replicas + limits.surge)}


def _sum(sets: Sequence[Obj], field: str) -> int:
    values: list[Any] = [(each.get("status") or {}).get(field) for each in sets]
    return sum(int(value or 0) for value in values)
