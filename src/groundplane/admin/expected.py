"""Which operand pods a node should have, and why others are not there: from the policy, by the operands' own rules.

A ClusterPolicy, or NVIDIADrivers, are rendered as the operator renders them (``operator.plan``), for the nodes of a
survey; a node should have a pod of each DaemonSet whose node selector and affinity it fulfils and whose taints it
tolerates. Nothing is known here of single operands. DaemonSets that the cluster has and rendering does not know
(another release's, or one whose facts a survey lacks) count by their own selectors. Whether pods run is judged
elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from ..api import codec, names
from ..api.clusterpolicy import ClusterPolicy
from ..api.nvidiadriver import NVIDIADriver
from ..api.release import Release
from ..cluster import views
from ..diagnose.survey import Object, Survey
from ..operands.facts import references
from ..operands.nvidiadriver import references as driver_references
from ..operator import election, plan, plan_drivers
from ..operator.policy import candidate, decode
from . import selectors

OWNERS: Final = ("ClusterPolicy", "NVIDIADriver")
_AUTOMATIC: Final = tuple(
    {"key": key, "operator": "Exists", "effect": effect}
    for key, effect in (
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    )
)
"""What Kubernetes' DaemonSet controller has every one of its pods tolerate."""


class Operand(msgspec.Struct, frozen=True, kw_only=True):
    """A DaemonSet that should be, or is, in the cluster."""

    name: str
    state: str
    """The operand state it belongs to, such as ``state-device-plugin``."""
    template: Mapping[str, Any]
    """``spec.template`` of its pods."""
    live: bool = False
    """Known from the cluster only."""

    @property
    def pod(self) -> Mapping[str, Any]:
        """The spec of its pods."""
        spec: Mapping[str, Any] = self.template.get("spec") or {}
        return spec

    @property
    def app(self) -> str:
        """Label ``app`` of its pods."""
        return str(((self.template.get("metadata") or {}).get("labels") or {}).get("app", ""))

    @property
    def driver(self) -> bool:
        """Whether its pods are drivers: by component label too, as NVIDIADrivers' have an ``app`` of their own."""
        labels = (self.template.get("metadata") or {}).get("labels") or {}
        return labels.get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT or self.app == "nvidia-driver-daemonset"


class Place(msgspec.Struct, frozen=True):
    """Whether a node should have an operand's pod. ``kept_out``: it would, but for a taint that is not tolerated."""

    node: str
    operand: str
    expected: bool
    why: str
    kept_out: bool = False


class Expected(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What should be in a cluster."""

    release: Release
    policy: ClusterPolicy | None
    """The one in force; None if there is none, or none that can be read: see :attr:`problems`."""
    operands: tuple[Operand, ...] = ()
    disabled: tuple[str, ...] = ()
    """States that the policy leaves out."""
    problems: tuple[str, ...] = ()
    """What the operator would refuse, or cannot be rendered from a survey."""
    nodes: Mapping[str, Object] = {}
    """Every node that has a GPU, by name; its labels as the operator would have them."""
    unlabelled: Mapping[str, tuple[str, ...]] = {}
    """Labels of nodes that the operator has yet to set or to take away, by node, for a person."""

    @cached_property
    def places(self) -> Mapping[str, tuple[Place, ...]]:
        """Every GPU node's answer on every operand, in the order of the operands."""
        return {name: tuple(_place(operand, node) for operand in self.operands) for name, node in self.nodes.items()}

    def wanted(self, node: str) -> list[str]:
        """Names of the DaemonSets of which a node should have a pod."""
        return [place.operand for place in self.places.get(node, ()) if place.expected]

    def runs(self, state: str, node: str) -> bool:
        """Whether an operand of a state is expected on a node."""
        mine = {operand.name for operand in self.operands if operand.state == state}
        return any(place.operand in mine and place.expected for place in self.places.get(node, ()))


def labels_of(thing: Mapping[str, Any]) -> Mapping[str, str]:
    """An object's labels."""
    found: Mapping[str, str] = (thing.get("metadata") or {}).get("labels") or {}
    return found


def name_of(thing: Mapping[str, Any]) -> str:
    """An object's name."""
    return str((thing.get("metadata") or {}).get("name", ""))


def untolerated(pod: Mapping[str, Any], node: Object, automatic: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Taints of a node that keep a pod off it, as ``key=value:Effect``; those that only discourage do not count."""
    tolerations = [*(pod.get("tolerations") or ()), *automatic]
    return [
        f"{taint.get('key')}{'=' + str(taint['value']) if taint.get('value') else ''}:{taint.get('effect')}"
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint.get("effect") != "PreferNoSchedule" and not any(_tolerates(each, taint) for each in tolerations)
    ]


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    same = (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(toleration["key"] == taint.get("key")) and (exists or same)


def _place(operand: Operand, node: Object) -> Place:
    name, labels = name_of(node), labels_of(node)
    if not selectors.may_run(operand.pod, name, labels):
        return Place(name, operand.name, False, _unfit(operand.pod, labels))
    if taints := untolerated(operand.pod, node, _AUTOMATIC):
        why = f"the node's taint {', '.join(taints)} is not tolerated by its pods"
        return Place(name, operand.name, False, why, kept_out=True)
    return Place(name, operand.name, True, "the node's labels are those that the DaemonSet asks for")


def _unfit(pod: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Why the labels of a node do not suit."""
    wrong = [
        f"{key} is {labels[key]!r} and must be {value!r}" if key in labels else f"{key}={value} is not set"
        for key, value in (pod.get("nodeSelector") or {}).items()
        if labels.get(key) != value
    ]
    return "node label " + "; ".join(wrong) if wrong else "the DaemonSet's node affinity excludes the node"


# --- from a survey ----------------------------------------------------------------------------------------------------


def in_force(survey: Survey) -> Object | None:
    """The ClusterPolicy that counts, as the operator chooses it."""
    stored = {name_of(each): each for each in survey.of_kind("clusterpolicies")}
    return stored.get(election.active(map(candidate, stored.values())) or "")


def expected(survey: Survey, release: Release = Release.DEFAULT) -> Expected:
    """What a cluster should have by the policy in force; raises nothing for what a person may have written."""
    document = in_force(survey)
    decoded = decode(document) if document is not None else None
    policy = decoded.policy if decoded is not None else None
    if policy is None:
        problems = (decoded.problem,) if decoded is not None else ()
        live = tuple(_live(survey, ()))
        nodes = {name_of(node): node for node in survey.of_kind("nodes") if has_gpu(labels_of(node))}
        return Expected(release=release, policy=None, operands=live, problems=problems, nodes=nodes)
    return _of_policy(survey, policy, release)


def has_gpu(labels: Mapping[str, str]) -> bool:
    """Whether a node says that it has a GPU: by the operator's label, which a person may set, else by NFD's."""
    present = labels.get(names.GPU_PRESENT)
    return present == "true" if present else any(labels.get(label) == "true" for label in names.PCI_GPU_LABELS)


def _of_policy(survey: Survey, policy: ClusterPolicy, release: Release) -> Expected:
    drivers, problems = _drivers(survey) if policy.spec.driver.useNvidiaDriverCRD else ([], [])
    for driver in drivers:
        views.keep(driver.spec.nodeSelector or {})
    seen = plan.node_views(survey.of_kind("nodes"))
    keys = {name_of(each): tuple(sorted(each.get("data") or ())) for each in survey.of_kind("configmaps")}
    known = references(policy.spec)
    offline = plan.offline(
        policy,
        seen,
        namespace=survey.namespace,
        release=release,
        default_images=_images(survey),
        service_monitor_crd=survey.knows("servicemonitors") and "servicemonitors" not in survey.absent,
        config_maps={name: keys.get(name) for name in known.config_maps},
        secrets=dict.fromkeys(known.secrets, ()),
    )
    rendered, changes = list(offline.rendered), {change.name: dict(change.labels) for change in offline.nodes}
    problems += offline.problems
    if drivers:
        wanted = driver_references(driver.spec for driver in drivers)
        theirs = plan_drivers.offline(
            drivers,
            seen,
            namespace=survey.namespace,
            release=release,
            default_images=_images(survey),
            config_maps={name: keys.get(name) for name in wanted.config_maps},
            secrets=dict.fromkeys(wanted.secrets, ()),
        )
        rendered += theirs.rendered
        problems += [*theirs.problems, *theirs.warnings]
        for change in theirs.nodes:
            if owner := change.labels.get(names.DRIVER_OWNER):
                changes.setdefault(change.name, {})[names.DRIVER_OWNER] = owner
    operands = [
        Operand(name=manifest["metadata"]["name"], state=each.state, template=manifest["spec"]["template"])
        for each in rendered
        for manifest in each.objects
        if manifest.get("kind") == "DaemonSet"
    ]
    nodes = {name_of(node): _labelled(node, changes.get(name_of(node), {})) for node in survey.of_kind("nodes")}
    return Expected(
        release=release,
        policy=policy,
        operands=(*operands, *_live(survey, operands)),
        disabled=tuple(each.state for each in rendered if not each.enabled),
        problems=tuple(problems),
        nodes={name: node for name, node in nodes.items() if has_gpu(labels_of(node))},
        unlabelled={name: tuple(_told(change)) for name, change in changes.items() if change},
    )


def _drivers(survey: Survey) -> tuple[list[NVIDIADriver], list[str]]:
    found, problems = [], []
    for document in survey.of_kind("nvidiadrivers"):
        try:
            found.append(codec.load_nvidia_driver({k: v for k, v in document.items() if k != "status"}).driver)
        except codec.PolicyError as error:
            problems.append(f"NVIDIADriver {name_of(document)}: {error}")
    return found, problems


def _images(survey: Survey) -> Mapping[str, str]:
    """Image variables of the operator's own container, by which images are chosen that the policy does not name."""
    return {
        str(variable["name"]): str(variable.get("value") or "")
        for deployment in survey.of_kind("deployments")
        if labels_of(deployment).get("app") == "gpu-operator" or name_of(deployment) == "gpu-operator"
        for container in deployment["spec"]["template"]["spec"].get("containers") or ()
        for variable in container.get("env") or ()
        if str(variable.get("name", "")).endswith("_IMAGE")
    }


def _live(survey: Survey, rendered: Iterable[Operand]) -> Iterator[Operand]:
    """DaemonSets of the cluster that a policy or a driver owns, and that are not among the rendered ones."""
    known = {operand.name for operand in rendered}
    for each in survey.of_kind("daemonsets"):
        owners = (each["metadata"].get("ownerReferences") or [{}])[0]
        if owners.get("kind") in OWNERS and name_of(each) not in known:
            state = labels_of(each).get(names.STATE_LABEL) or name_of(each)
            yield Operand(name=name_of(each), state=state, template=each["spec"]["template"], live=True)


def _labelled(node: Object, change: Mapping[str, str | None]) -> Object:
    if not change:
        return node
    labels = {key: value for key, value in {**labels_of(node), **change}.items() if value is not None}
    return {**node, "metadata": {**node["metadata"], "labels": labels}}


def _told(change: Mapping[str, str | None]) -> Iterator[str]:
    for key, value in sorted(change.items()):
        yield f"{key}={value}" if value is not None else f"{key} (to be taken away)"
