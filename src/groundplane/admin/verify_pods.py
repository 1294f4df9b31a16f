"""Verify's checks of components, pods and DaemonSets: what should be on each node, and what each pod says of itself."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..api import names
from ..cluster.views import PodView
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object
from ..operands import dcgm_exporter, device_plugin, driver, gfd, toolkit, validator
from ..operator import causes, readiness
from .expected import Operand, Place, labels_of, name_of
from .verify_view import View, finding

RESTARTS_MANY: Final = 5
"""Restarts of a container that runs now, from which it is told of: it may go down again."""
LAYERS: Final[Mapping[str, Layer]] = {
    driver.STATE: Layer.DRIVER,
    toolkit.STATE: Layer.RUNTIME,
    device_plugin.STATE: Layer.DEVICE_PLUGIN,
    gfd.STATE: Layer.LABELS,
    dcgm_exporter.STATE: Layer.TELEMETRY,
}
"""The layer that an operand stands for; of the others, the operator's."""
_NFD_NAME: Final = "app.kubernetes.io/name"
NFD: Final = "node-feature-discovery"
NFD_PARTS: Final = ("master", "worker", "gc")


def layer(operand: Operand) -> Layer:
    """The layer that an operand stands for."""
    return Layer.DRIVER if operand.driver else LAYERS.get(operand.state, Layer.OPERATOR)


def gpu_nodes(view: View) -> Iterator[Finding]:
    """V1: there are GPU nodes, they are Ready, and the operator has labelled them."""
    nodes, count = view.expected.nodes, len(view.survey.of_kind("nodes"))
    if not nodes:
        labelled = any(
            any(key.startswith(names.NFD_PREFIX) for key in labels_of(n)) for n in view.survey.of_kind("nodes")
        )
        yield finding(
            "V1",
            Outcome.FAIL,
            "no node has a GPU that the operator knows of",
            Evidence("nodes", f"{count}, none with {names.GPU_PRESENT}=true or {names.PCI_GPU_LABELS[0]}=true"),
            cause="node feature discovery runs and sees no GPU on the PCI bus, or the nodes were labelled false"
            if labelled
            else "no node has labels of node feature discovery: the operator waits for them and deploys nothing",
            confirm=f"kubectl get nodes -L {names.PCI_GPU_LABELS[0]},{names.GPU_PRESENT}",
            fix=("see that node feature discovery's worker runs on every node, then lspci -d 10de: on a GPU node",),
            action=Action.CHANGE_CONFIG,
        )
        return
    for name, why in view.unready_nodes.items():
        if name in nodes:
            said = Evidence(f"node/{name} conditions", why)
            yield finding(
                "V1", Outcome.FAIL, "a GPU node is not Ready", said, node=name, confirm=f"kubectl describe node {name}"
            )
    for name, changes in view.expected.unlabelled.items():
        if name in nodes:
            yield finding(
                "V1",
                Outcome.WARN,
                "the operator has yet to label GPU nodes",
                Evidence(f"node/{name} labels", ", ".join(changes)),
                node=name,
                cause="the operator does not run, may not change nodes, or has just seen the node",
                confirm=f"kubectl logs -n {view.survey.namespace} deployment/gpu-operator",
            )
    yield finding("V1", Outcome.PASS, f"{len(nodes)} of {count} nodes have GPUs")


# --- A63 --------------------------------------------------------------------------------------------------------------


def components(view: View) -> Iterator[Finding]:
    """A63: the operator, node feature discovery, and on every GPU node the pods that policy and labels ask for."""
    yield from _operator(view)
    yield from _node_features(view)
    missing = [each for each in view.expected.operands if each.name not in view.daemon_sets]
    for operand in missing:
        yield finding(
            "A63",
            Outcome.FAIL,
            f"DaemonSet {operand.name} is missing",
            Evidence(operand.state, "the policy asks for it"),
            layer=layer(operand),
            confirm=f"kubectl get daemonset {operand.name} -n {view.survey.namespace}",
            fix=("see the ClusterPolicy's conditions and the operator's log",),
        )
    gone = {operand.name for operand in missing}
    faults = [
        fault
        for places in view.expected.places.values()
        for place in places
        if place.operand not in gone and (fault := _place(view, place)) is not None
    ]
    yield from faults
    if not faults and not missing and view.expected.nodes:
        rows = Counter(len(view.expected.wanted(node)) for node in view.expected.nodes)
        told = ", ".join(f"{pods} on {nodes} nodes" for pods, nodes in sorted(rows.items(), reverse=True))
        yield finding("A63", Outcome.PASS, f"every GPU node has the operand pods it should have: {told}")


def _place(view: View, place: Place) -> Finding | None:
    """What is wrong with the presence of one operand on one node."""
    operand, there = view.operand[place.operand], view.placed.get((place.node, place.operand))
    say = functools.partial(finding, "A63", node=place.node, layer=layer(operand))
    why = Evidence(f"node/{place.node}", place.why)
    if place.kept_out:
        return say(
            Outcome.FAIL,
            f"{place.operand} is kept off the node by a taint",
            why,
            cause="the DaemonSets tolerate nvidia.com/gpu and what daemonsets.tolerations of the policy names",
            confirm=f"kubectl describe node {place.node}",
            fix=("add the taint to daemonsets.tolerations of the ClusterPolicy, or take it off the node",),
            action=Action.CHANGE_CONFIG,
        )
    if place.expected and not there:
        return say(
            Outcome.FAIL,
            f"{place.operand} has no pod on the node",
            why,
            cause=_absence(view, place),
            confirm=f"kubectl get pods -n {view.survey.namespace} -o wide --field-selector spec.nodeName={place.node}",
            fix=(f"kubectl describe daemonset {place.operand} -n {view.survey.namespace}",),
        )
    leaving = there and all(pod["metadata"].get("deletionTimestamp") for pod in there)
    if there and not place.expected and not leaving:
        return say(
            Outcome.WARN,
            f"{place.operand} runs on a node that it is not meant for",
            why,
            cause="the node's labels or the DaemonSet have just changed, or somebody else edits the DaemonSet",
        )
    return None


def _absence(view: View, place: Place) -> str:
    """Why a pod that should be there is not, as far as that can be seen."""
    if place.node in view.unready_nodes:
        return "the node is not Ready"
    if waits := view.expected.unlabelled.get(place.node):
        return f"the node does not have the labels yet that the operator gives it: {', '.join(waits)}"
    live = view.daemon_sets[place.operand]
    selector = live["spec"]["template"]["spec"].get("nodeSelector") or {}
    labels = labels_of(view.expected.nodes[place.node])
    if unfit := [f"{key}={value}" for key, value in selector.items() if labels.get(key) != value]:
        return f"the DaemonSet in the cluster asks for other labels than the policy leads to: {', '.join(unfit)}"
    return "the DaemonSet controller has made none: a quota, an admission webhook or a full node may refuse it"


def _operator(view: View) -> Iterator[Finding]:
    deployment = view.operator
    confirm = f"kubectl get deployments -n {view.survey.namespace}"
    if deployment is None:
        outcome = Outcome.WARN if view.tended else Outcome.FAIL
        yield finding("A63", outcome, "the operator's Deployment is not in this namespace", confirm=confirm)
        return
    status, wanted = deployment.get("status") or {}, int((deployment.get("spec") or {}).get("replicas") or 1)
    if not status.get("availableReplicas"):
        said = Evidence(
            f"Deployment {name_of(deployment)}", f"{status.get('availableReplicas') or 0} of {wanted} available"
        )
        yield finding(
            "A63",
            Outcome.FAIL,
            "the operator does not run",
            said,
            cause="nothing is deployed or mended while it is down",
            confirm=f"kubectl describe deployment {name_of(deployment)} -n {view.survey.namespace}",
            fix=(f"kubectl logs -n {view.survey.namespace} deployment/{name_of(deployment)} --previous",),
        )


def _node_features(view: View) -> Iterator[Finding]:
    """Node feature discovery in the operator's namespace, part by part; elsewhere its labels are proof enough."""
    owned = [
        *(
            (each, "availableReplicas", int((each.get("spec") or {}).get("replicas") or 1))
            for each in view.survey.of_kind("deployments")
        ),
        *(
            (each, "numberReady", int((each.get("status") or {}).get("desiredNumberScheduled") or 0))
            for each in view.survey.of_kind("daemonsets")
        ),
    ]
    parts = [each for each in owned if NFD in (labels_of(each[0]).get(_NFD_NAME), labels_of(each[0]).get("app"))]
    for thing, field, wanted in parts:
        ready = int((thing.get("status") or {}).get(field) or 0)
        if ready < wanted:
            yield finding(
                "A63",
                Outcome.FAIL if ready == 0 else Outcome.WARN,
                f"node feature discovery: {name_of(thing)} is not ready",
                Evidence(f"{thing.get('kind')} {name_of(thing)}", f"{ready} of {wanted} ready"),
                cause="nodes without its labels get no operands",
                confirm=f"kubectl get pods -n {view.survey.namespace} -l {_NFD_NAME}={NFD}",
            )


# --- A64 --------------------------------------------------------------------------------------------------------------


def pods(view: View) -> Iterator[Finding]:
    """A64: the pods that should be there are Running and Ready, and do not restart over and over."""
    bad = count = 0
    for node, places in view.expected.places.items():
        for place in places:
            there = view.placed.get((node, place.operand))
            if not place.expected or not there:
                continue
            count += 1
            for found in _pod(view, view.operand[place.operand], node, there):
                bad += found.outcome is Outcome.FAIL
                yield found
    if count and not bad:
        yield finding("A64", Outcome.PASS, f"all {count} operand pods on GPU nodes are Running and Ready")


def _pod(view: View, operand: Operand, node: str, there: Sequence[Object]) -> Iterator[Finding]:
    """What one node's pods of an operand say; a pod that is on its way out does not count beside another."""
    staying = [pod for pod in there if not pod["metadata"].get("deletionTimestamp")] or list(there)
    well = next((pod for pod in staying if running(pod)), None)
    namespace = view.survey.namespace
    if well is None:
        pod = staying[0]
        cause = _cause(pod, view.unready_nodes)
        yield finding(
            "A64",
            Outcome.FAIL,
            f"{operand.name}: {cause.text}",
            Evidence(f"pod/{name_of(pod)}", _phase(pod)),
            node=node,
            layer=layer(operand),
            cause=cause.detail,
            confirm=f"kubectl describe pod {name_of(pod)} -n {namespace}",
            fix=(f"kubectl logs {name_of(pod)} -n {namespace} --all-containers --prefix",),
        )
        return
    for status in (well.get("status") or {}).get("containerStatuses") or ():
        if (restarts := int(status.get("restartCount") or 0)) >= RESTARTS_MANY:
            last = (status.get("lastState") or {}).get("terminated") or {}
            said = f"{restarts} restarts, last with exit code {last.get('exitCode', '?')} {last.get('reason', '')}"
            yield finding(
                "A64",
                Outcome.WARN,
                f"{operand.name}: container {status.get('name')} has restarted {RESTARTS_MANY} times or more",
                Evidence(f"pod/{name_of(well)}", said.rstrip()),
                node=node,
                layer=layer(operand),
                confirm=f"kubectl logs {name_of(well)} -n {namespace} -c {status.get('name')} --previous",
            )


def running(pod: Object) -> bool:
    """Phase Running, and every container Ready."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    return status.get("phase") == "Running" and bool(containers) and all(each.get("ready") for each in containers)


def _cause(pod: Object, unready: Mapping[str, str]) -> causes.Cause:
    try:
        found = causes.of_pod(msgspec.convert(_without_nulls(pod), causes.Pod), unready)
    except msgspec.ValidationError:
        found = None
    return found or causes.Cause(causes.WAITING, f"the pod is {_phase(pod)}, and does not say why", "")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _phase(pod: Object) -> str:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    ready = sum(bool(each.get("ready")) for each in containers)
    return f"{status.get('phase') or 'of no phase yet'}, {ready} of {len(containers)} containers ready"


CUDA_VALIDATION: Final = "cuda-validation"
CUDA_VALIDATOR: Final = "nvidia-cuda-validator"


def validators(view: View) -> Iterator[Finding]:
    """A64: on every node with a validator, the CUDA validation has ended well: its pod is Completed."""
    passed = silent = 0
    for node in view.expected.nodes:
        if not view.expected.runs(validator.STATE, node):
            continue
        pods_there = view.of_app(CUDA_VALIDATOR).get(node, [])
        failed = [pod for pod in pods_there if (pod.get("status") or {}).get("phase") == "Failed"]
        if any((pod.get("status") or {}).get("phase") == "Succeeded" for pod in pods_there) or _validated(view, node):
            passed += 1
        elif failed:
            yield finding(
                "A64",
                Outcome.FAIL,
                "the CUDA validator failed",
                Evidence(f"pod/{name_of(failed[0])}", _phase(failed[0])),
                node=node,
                layer=Layer.DRIVER,
                confirm=f"kubectl logs {name_of(failed[0])} -n {view.survey.namespace} --all-containers",
                fix=("read its log: it names the CUDA call that failed",),
            )
        else:
            silent += 1
            yield finding(
                "A64",
                Outcome.FAIL,
                "the CUDA validation has not ended",
                node=node,
                cause="the validator waits for driver, toolkit or device plugin, or its pod was taken away",
                confirm=f"kubectl get pods -n {view.survey.namespace} -l app={CUDA_VALIDATOR} -o wide",
            )
    if passed:
        yield finding("A64", Outcome.PASS, f"the CUDA validation has passed on {passed} nodes")


def _validated(view: View, node: str) -> bool:
    """Whether the validator's own pod says so: its init container for CUDA has ended well."""
    return any(
        status.get("name") == CUDA_VALIDATION and (status.get("state", {}).get("terminated") or {}).get("exitCode") == 0
        for pod in view.of_app(names.VALIDATOR_APP).get(node, ())
        for status in (pod.get("status") or {}).get("initContainerStatuses") or ()
    )


# --- A67 --------------------------------------------------------------------------------------------------------------


def daemon_sets(view: View) -> Iterator[Finding]:
    """A67: desired is ready is up to date. Of a DaemonSet that is updated on deletion, its pods' revision decides."""
    revisions = [
        msgspec.convert(_without_nulls(each), readiness.RevisionView)
        for each in view.survey.of_kind("controllerrevisions")
    ]
    good = 0
    for operand in view.expected.operands:
        live = view.daemon_sets.get(operand.name)
        if live is None:
            continue  # A63 says so
        bad = list(_daemon_set(view, operand, live, revisions))
        good += not bad
        yield from bad
    if good:
        yield finding("A67", Outcome.PASS, f"{good} DaemonSets have as many pods ready and up to date as they want")


def _daemon_set(
    view: View, operand: Operand, live: Object, revisions: Sequence[readiness.RevisionView]
) -> Iterator[Finding]:
    uid, tally, revision, old = str(live["metadata"].get("uid", "")), None, "", []
    if readiness.needs_pods(live):
        mine = [pod for (_, owner), group in view.placed.items() if owner == operand.name for pod in group]
        tally = readiness.PodTally()
        for pod in mine:
            tally.count(msgspec.convert(_without_nulls(pod), PodView))
        revision = readiness.newest_revision(operand.name, uid, revisions)
        old = [pod for pod in mine if revision and labels_of(pod).get(readiness.REVISION_HASH_LABEL) != revision]
    verdict = readiness.daemon_set(live, tally, revision)
    if verdict.ready:
        return
    status = live.get("status") or {}
    counts = ", ".join(
        f"{word} {status.get(field, 0)}"
        for word, field in (
            ("desired", "desiredNumberScheduled"),
            ("ready", "numberReady"),
            ("up to date", "updatedNumberScheduled"),
            ("available", "numberAvailable"),
        )
    )
    outdated = verdict.outdated
    yield finding(
        "A67",
        Outcome.WARN
        if outdated and status.get("numberReady") == status.get("desiredNumberScheduled")
        else Outcome.FAIL,
        f"{operand.name}: pods are not up to date" if outdated else f"DaemonSet {operand.name} is not ready",
        Evidence(f"DaemonSet {operand.name}", f"{verdict.why}; {counts}"),
        nodes=tuple(sorted({str((pod.get("spec") or {}).get("nodeName") or "") for pod in old} - {""})),
        layer=layer(operand),
        cause="its pods are replaced only when they are deleted: a driver reload takes GPUs away from pods"
        if outdated
        else "",
        confirm=f"kubectl get daemonset {operand.name} -n {view.survey.namespace} -o wide",
        fix=("see how far the upgrade is: groundplane driver plan",) if outdated else (),
        action=Action.UPGRADE_COMPONENT if outdated else Action.NONE,
    )


# --- why is this pod (not) here ---------------------------------------------------------------------------------------


def explained(view: View, node: str) -> list[dict[str, Any]]:
    """Of every operand and every state that the policy leaves out: whether a node should have it, and why."""
    if node not in view.expected.nodes:
        why = f"the node has no GPU: neither {names.GPU_PRESENT}=true nor a label of node feature discovery says so"
        return [
            {"operand": each.name, "state": each.state, "expected": False, "pod": "", "why": why}
            for each in view.expected.operands
        ]
    rows = [
        {
            "operand": place.operand,
            "state": view.operand[place.operand].state,
            "expected": place.expected,
            "pod": _word(view.placed.get((node, place.operand))),
            "why": place.why,
        }
        for place in view.expected.places[node]
    ]
    left_out = [
        {"operand": state, "state": state, "expected": False, "pod": "", "why": "the policy leaves it out"}
        for state in view.expected.disabled
    ]
    return [*rows, *left_out]


def _word(there: Sequence[Object] | None) -> str:
    if not there:
        return ""
    return "Ready" if any(map(running, there)) else str((there[0].get("status") or {}).get("phase") or "Pending")


def summary(view: View) -> Iterator[tuple[str, str, str, str]]:
    """A row an operand: on how many nodes it is expected, on how many it runs, and why it is not on the others."""
    for operand in view.expected.operands:
        places = [place for row in view.expected.places.values() for place in row if place.operand == operand.name]
        runs = sum(any(map(running, view.placed.get((place.node, operand.name), ()))) for place in places)
        why = Counter(place.why for place in places if not place.expected)
        told = "; ".join(f"{reason} ({count} nodes)" for reason, count in why.most_common(3))
        yield operand.name, str(sum(place.expected for place in places)), str(runs), told
