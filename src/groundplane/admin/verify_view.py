"""What verify's checks look at, each thing worked out once: pods by node and DaemonSet, the install, warnings.

Shared by the modules of checks; nothing here judges.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from ..cluster.kinds import Kind
from ..diagnose import evidence
from ..diagnose.findings import Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object, Survey
from .checks import CHECKS
from .expected import OWNERS, Expected, Operand, labels_of, name_of
from .hops import Version
from .metricslook import Page
from .releases import History

OURS: Final = {
    "V1": Layer.OPERATOR,
    "V2": Layer.OPERATOR,
    "V3": Layer.TELEMETRY,
    "V4": Layer.OPERATOR,
}
"""Layers of the checks that the guide has no number for."""
PENDING_ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("pending-install", "pending-upgrade", "pending-rollback"),
        (
            "see that no run of Helm is under way",
            "take the release back to its last good revision: helm rollback NAME REVISION; after a first install: "
            "helm uninstall NAME, then install again",
        ),
    ),
    "uninstalling": ("finish it: helm uninstall NAME", "then install again"),
    "failed": ("read why: helm history NAME", "mend it and repeat the install or upgrade"),
}
"""What to do about a release in a state in which Helm refuses any change, or that failed."""
ONE_SHOT: Final = ("nvidia-cuda-validator", "nvidia-device-plugin-validator")
"""Label ``app`` of pods that a validator starts, and that end."""
_TAG: Final = re.compile(r":v?(\d+\.\d+\.\d+)(?:[-+@]|$)")


def finding(number: str, outcome: Outcome, title: str, *said: Evidence, **more: Any) -> Finding:
    """A finding of a check, in the layer of its row."""
    layer = OURS[number] if number in OURS else CHECKS[number].layer
    return Finding(id=number, layer=more.pop("layer", layer), outcome=outcome, title=title, evidence=said, **more)


def version_told(survey: Survey) -> Version | None:
    """The operator's release by its Deployment: its version label, else its image's tag."""
    for deployment in survey.of_kind("deployments"):
        if not is_operator(deployment):
            continue
        image = deployment["spec"]["template"]["spec"]["containers"][0].get("image", "")
        tag = _TAG.search(image)
        for text in (labels_of(deployment).get("app.kubernetes.io/version", ""), tag[1] if tag else ""):
            try:
                return Version.parse(text)
            except ValueError:
                continue
    return None


def is_operator(deployment: Object) -> bool:
    """Whether it is the operator's Deployment."""
    return labels_of(deployment).get("app") == "gpu-operator" or name_of(deployment) == "gpu-operator"


class View(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A survey, and what should be in it."""

    survey: Survey
    expected: Expected
    history: History
    assumed: str = ""
    """A note, if the release whose rules count had to be assumed."""
    wanted: Version | None = None
    node_facts: Mapping[str, evidence.NodeFacts] = {}
    metrics: Mapping[str, Page] | None = None

    @cached_property
    def operator(self) -> Object | None:
        """The operator's Deployment."""
        return next((each for each in self.survey.of_kind("deployments") if is_operator(each)), None)

    @property
    def tended(self) -> bool:
        """Whether some operator, wherever it runs, has written the status of a ClusterPolicy."""
        return any((each.get("status") or {}).get("state") for each in self.survey.of_kind("clusterpolicies"))

    @property
    def uses_drivers(self) -> bool:
        """Whether drivers are NVIDIADrivers'."""
        policy = self.expected.policy
        return policy is not None and bool(policy.spec.driver.useNvidiaDriverCRD)

    @cached_property
    def chart_definitions(self) -> tuple[Object, ...]:
        """Definitions that Helm has kept with the deployed chart; none with many charts."""
        last = self.history.deployed() or self.history.last()
        return last.definitions() if last is not None else ()

    def sets(self, kind: Kind, path: str) -> bool:
        """Whether the values of the release have a key that is called as the last part of a dropped field."""
        last = self.history.last()
        return last is not None and _has_key(last.values, path.rsplit(".", 1)[-1].removesuffix("[]"))

    @cached_property
    def daemon_sets(self) -> Mapping[str, Object]:
        """The DaemonSets of the operator's namespace, by name."""
        return {name_of(each): each for each in self.survey.of_kind("daemonsets")}

    @cached_property
    def own_pods(self) -> tuple[Object, ...]:
        """Pods of the operator's namespace."""
        mine = self.survey.namespace
        return tuple(pod for pod in self.survey.of_kind("pods") if pod["metadata"].get("namespace") == mine)

    @cached_property
    def placed(self) -> Mapping[tuple[str, str], list[Object]]:
        """Operand pods by node and DaemonSet; the DaemonSet is the pod's owner, or selects a pod without one."""
        found: dict[tuple[str, str], list[Object]] = {}
        for pod in self.own_pods:
            node = (pod.get("spec") or {}).get("nodeName") or pinned(pod)
            owner = self.owner(pod)
            if node and owner and labels_of(pod).get("app") not in ONE_SHOT:
                found.setdefault((node, owner), []).append(pod)
        return found

    def owner(self, pod: Object) -> str:
        """Name of the DaemonSet that a pod is of."""
        owners = pod["metadata"].get("ownerReferences")
        if owners:
            return str(owners[0].get("name", "")) if owners[0].get("kind") == "DaemonSet" else ""
        labels = labels_of(pod)
        return next((each.name for each in self.expected.operands if each.app and each.app == labels.get("app")), "")

    def of_app(self, app: str) -> Mapping[str, list[Object]]:
        """Pods with a label ``app``, by node."""
        return self._by_app.get(app, {})

    @cached_property
    def _by_app(self) -> Mapping[str, Mapping[str, list[Object]]]:
        found: dict[str, dict[str, list[Object]]] = {}
        for pod in self.own_pods:
            app, node = labels_of(pod).get("app"), (pod.get("spec") or {}).get("nodeName")
            if app and node:
                found.setdefault(app, {}).setdefault(node, []).append(pod)
        return found

    @cached_property
    def unready_nodes(self) -> Mapping[str, str]:
        """Why nodes are not Ready, by name."""
        found = {}
        for node in self.survey.of_kind("nodes"):
            ready = next(
                (each for each in (node.get("status") or {}).get("conditions") or () if each.get("type") == "Ready"),
                None,
            )
            if ready is not None and ready.get("status") != "True":
                found[name_of(node)] = f"{ready.get('reason', '')}: {ready.get('message', '')}"
        return found

    @cached_property
    def operand(self) -> Mapping[str, Operand]:
        """Operands by name."""
        return {each.name: each for each in self.expected.operands}

    # --- events -------------------------------------------------------------------------------------------------------

    @property
    def since(self) -> str:
        """When the release was last changed, RFC 3339 in UTC; the operator's Deployment's age without Helm."""
        last = self.history.deployed() or self.history.last()
        if last is not None and last.updated:
            return utc(last.updated)
        return str((self.operator or {}).get("metadata", {}).get("creationTimestamp") or "")

    @cached_property
    def warnings(self) -> tuple[Object, ...]:
        """Warning events about operands, younger than the install."""
        return tuple(
            event
            for event in self.survey.of_kind("events")
            if event.get("type") == "Warning" and self._operands(event.get("involvedObject") or {})
            if _when(event) >= self.since
        )

    def _operands(self, about: Mapping[str, Any]) -> bool:
        if about.get("kind") in OWNERS:
            return True
        if about.get("namespace") != self.survey.namespace:
            return False
        name = str(about.get("name", ""))
        return about.get("kind") in ("DaemonSet", "Deployment") or name in self._pods

    @cached_property
    def _pods(self) -> Mapping[str, Object]:
        return {name_of(pod): pod for pod in self.own_pods}

    def is_over(self, event: Object) -> bool:
        """Whether its pod became ready, or ended well, after it."""
        pod = self._pods.get(str((event.get("involvedObject") or {}).get("name", "")))
        if pod is None or (event.get("involvedObject") or {}).get("kind") != "Pod":
            return False
        status = pod.get("status") or {}
        if status.get("phase") == "Succeeded":
            return True
        conditions: list[Object] = status.get("conditions") or []
        ready: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
        return ready.get("status") == "True" and str(ready.get("lastTransitionTime") or "") >= _when(event)

    def operand_word(self, about: Mapping[str, Any]) -> str:
        """What an event is about, the same for the pods of one operand."""
        pod = self._pods.get(str(about.get("name", "")))
        if about.get("kind") == "Pod" and pod is not None:
            return f"pods of {self.owner(pod) or labels_of(pod).get('app') or 'the namespace'}"
        return f"{about.get('kind')} {about.get('name')}"

    def node_of(self, about: Mapping[str, Any]) -> str:
        """The node of the pod that an event is about."""
        pod = self._pods.get(str(about.get("name", "")))
        return str((pod or {}).get("spec", {}).get("nodeName") or "")


def pinned(pod: Object) -> str:
    """The node that a DaemonSet's pod is meant for while it is not bound: its affinity names it."""
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def utc(stamp: str) -> str:
    """An RFC 3339 time as the API server writes it; as it is if it is none."""
    import datetime

    try:
        moment = datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp))
    except ValueError:
        return stamp
    if moment.tzinfo is None:
        return stamp
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _when(event: Object) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    stamp = series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or ""
    return utc(str(stamp))


def _has_key(values: Any, key: str) -> bool:
    if isinstance(values, Mapping):
        return key in values or any(_has_key(each, key) for each in values.values())
    if isinstance(values, list | tuple):
        return any(_has_key(each, key) for each in values)
    return False
