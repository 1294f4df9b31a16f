"""PodDisruptionBudgets: how many of a budget's pods may be taken away right now.

The numbers go into the budget's status, where the API server's eviction looks before it lets a pod go; it also notes
there the pods it let go, which are counted as gone until they are or two minutes have passed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .. import placement
from ..resources import DEPLOYMENTS, POD_DISRUPTION_BUDGETS, REPLICA_SETS
from . import objects
from .cache import same
from .events import NORMAL
from .loop import Loop
from .objects import Doc, Key, Obj
from .shared import Shared

DISRUPTION_TIMEOUT_S = 120.0


class Budget(NamedTuple):
    """The status numbers of a budget."""

    allowed: int
    healthy: int
    desired: int
    expected: int


class NoScaleError(ValueError):
    """A pod's controller has no replica count, so a share of it means nothing."""


def budget(spec: Doc, healthy: int, pods: int, expected: int) -> Budget:
    """How many of `healthy` pods may go, given `pods` that match and `expected` that their controllers want."""
    if spec.get("maxUnavailable") is not None:
        unavailable = objects.percent_or_int(spec["maxUnavailable"], expected, round_up=True)
        desired = max(0, expected - unavailable)
    elif str(spec.get("minAvailable", 0)).endswith("%"):
        desired = objects.percent_or_int(spec["minAvailable"], expected, round_up=True)
    else:
        desired, expected = int(spec.get("minAvailable") or 0), pods
    allowed = max(0, healthy - desired) if expected > 0 else 0
    return Budget(allowed, healthy, desired, expected)


class DisruptionController:
    """Keeps the status of every budget."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._budgets = shared.owned(POD_DISRUPTION_BUDGETS)
        self._sets = shared.owned(REPLICA_SETS)
        self._deployments = shared.owned(DEPLOYMENTS)
        self._recorder = shared.events("controllermanager")
        self.loop: Loop[Key] = Loop("disruption", self._reconcile, shared.clock)
        self._budgets.subscribe(self._budget_changed)
        shared.pods.subscribe(self._pod_changed)
        self._sets.subscribe(self._owner_changed)
        self._deployments.subscribe(self._owner_changed)

    def _budget_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None and not same(old, new, "spec", "status.disruptedPods", "metadata.generation"):
            self.loop.add(objects.key(new))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        if not len(self._budgets) or same(
            old, new, "metadata.labels", "metadata.deletionTimestamp", "status.conditions", "status.phase"
        ):
            return
        for pod in (old, new):
            if pod is not None:
                for each in self._budgets.in_namespace(pod["metadata"]["namespace"]):
                    if placement.selects(each["spec"].get("selector"), objects.labels(pod)):
                        self.loop.add(objects.key(each))

    def _owner_changed(self, old: Obj | None, new: Obj | None) -> None:
        some = new if new is not None else old
        if len(self._budgets) and some is not None and not same(old, new, "spec.replicas"):
            for each in self._budgets.in_namespace(some["metadata"]["namespace"]):
                self.loop.add(objects.key(each))

    def _reconcile(self, key: Key) -> None:
        found = self._budgets.at(key)
        if found is None or objects.deleting(found):
            return
        selector = found["spec"].get("selector")
        pods = [
            pod for pod in self._shared.pods.in_namespace(key[0]) if placement.selects(selector, objects.labels(pod))
        ]
        disrupted = self._disrupted(found, pods)
        healthy = sum(
            objects.ready(pod) and not objects.deleting(pod) and pod["metadata"]["name"] not in disrupted
            for pod in pods
        )
        try:
            numbers = budget(found["spec"], healthy, len(pods), self._expected(found, pods))
        except NoScaleError as error:
            self._report(found, Budget(0, healthy, 0, 0), disrupted, ("False", "SyncFailed", str(error)))
            return
        said = ("True", "SufficientPods", "") if numbers.allowed else ("False", "InsufficientPods", "")
        self._report(found, numbers, disrupted, said)

    def _disrupted(self, found: Obj, pods: Sequence[Obj]) -> dict[str, str]:
        """The pods that eviction let go and that are still there and not yet being deleted."""
        present = {pod["metadata"]["name"] for pod in pods if not objects.deleting(pod)}
        kept = {}
        for name, since in ((found.get("status") or {}).get("disruptedPods") or {}).items():
            left = DISRUPTION_TIMEOUT_S - self._shared.clock.since(since)
            if name in present and left > 0:
                kept[name] = since
                self.loop.add_after(objects.key(found), left)
        return kept

    def _expected(self, found: Obj, pods: Sequence[Obj]) -> int:
        """The replicas that the pods' controllers want, each counted once; pods without a controller count nothing."""
        if found["spec"].get("maxUnavailable") is None and not str(found["spec"].get("minAvailable")).endswith("%"):
            return len(pods)
        wanted: dict[str, int] = {}
        for pod in pods:
            owner = objects.controller_of(pod)
            if owner is None:
                about = objects.object_reference(found, "policy/v1", "PodDisruptionBudget")
                name = found["metadata"]["name"]
                text = f"Pods selected by PodDisruptionBudget {name} include pods that no controller manages"
                self._recorder.event(about, NORMAL, "UnmanagedPods", text)
                continue
            if owner["kind"] != "ReplicaSet":
                resource = self._shared.api.of_kind(owner["kind"], owner["apiVersion"])
                raise NoScaleError(f"{resource.qualified} does not implement the scale subresource")
            replica_set = self._sets.get(owner["name"], pod["metadata"]["namespace"])
            above = objects.controller_of(replica_set) if replica_set is not None else None
            deployment = self._deployments.get(above["name"], pod["metadata"]["namespace"]) if above else None
            scaled = deployment if deployment is not None else replica_set
            if scaled is not None:
                wanted[objects.uid(scaled)] = int(scaled["spec"].get("replicas", 1))
        return sum(wanted.values())

    def _report(self, found: Obj, numbers: Budget, disrupted: dict[str, str], said: tuple[str, str, str]) -> None:
        status = dict(found.get("status") or {})
        value, reason, message = said
        generation = int(found["metadata"].get("generation") or 0)
        wanted = {
            "type": "DisruptionAllowed",
            "status": value,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
        }
        conditions: list[Obj] = list(status.get("conditions") or ())
        if not any(wanted.items() <= each.items() for each in conditions):
            conditions = objects.set_conditions(conditions, wanted, self._shared.clock.timestamp())
        status.pop("disruptedPods", None)
        new = {
            **status,
            **({"disruptedPods": disrupted} if disrupted else {}),
            "observedGeneration": generation,
            "disruptionsAllowed": numbers.allowed,
            "currentHealthy": numbers.healthy,
            "desiredHealthy": numbers.desired,
            "expectedPods": numbers.expected,
            "conditions": conditions,
        }
        self._shared.set_status(POD_DISRUPTION_BUDGETS, found, new)
