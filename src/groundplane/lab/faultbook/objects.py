"""Faults in the cluster: settings that are edited, labels, pods of users, and pods that have to meet a fault anew."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from ...api import crd, names
from ...cluster import kinds
from ...cluster.client import PatchType
from ...cluster.errors import AlreadyExists, NotFound
from ..host import SimulatedHost
from ..kubelet import features
from .machine import KEPT as BACKUPS
from .machine import Change
from .model import Act, Where

KEPT: Final = "groundplane.dev/lab-kept"
"""Annotation with what fields were before faults changed them, for their clearing."""
DRIVER: Final = "nvidia-driver-daemonset"
TOOLKIT: Final = "nvidia-container-toolkit-daemonset"
PLUGIN: Final = "nvidia-device-plugin-daemonset"
VALIDATOR: Final = names.VALIDATOR_APP
DISCOVERY: Final = "gpu-feature-discovery"
EXPORTER: Final = "nvidia-dcgm-exporter"
MIG: Final = "nvidia-mig-manager"
WORKLOAD_NAMESPACE: Final = "default"
WORKLOAD: Final = "lab-fault"
PAUSE: Final = "registry.k8s.io/pause:3.10"
PATIENCE_S: Final = 180.0
"""Real seconds that something of the cluster is waited for, without which a fault cannot be brought about."""
AGAIN_S: Final = 0.1


def both(*acts: Act) -> Act:
    """One after the other."""

    async def act(where: Where) -> None:
        for each in acts:
            await each(where)

    return act


def then(change: Change, *apps: str) -> Act:
    """Change the machine, then have operands begin anew there, so that they meet it."""

    async def act(where: Where) -> None:
        change(where.host)
        await restarted(where, apps)

    return act


def driver_anew(*changes: Change) -> Act:
    """Change the machine, then have its driver installed anew as after a change of its configuration: nothing of what
    is loaded is kept."""

    async def act(where: Where) -> None:
        for change in changes:
            change(where.host)
        where.host.root.remove(names.DRIVER_STATE_FILE)
        await restarted(where, (DRIVER,))

    return act


def anew(*apps: str) -> Act:
    """Have operands begin anew on the node."""

    async def act(where: Where) -> None:
        await restarted(where, apps)

    return act


async def restarted(where: Where, apps: Sequence[str]) -> None:
    """Delete operands' pods on a node; their DaemonSets make others."""
    for app in apps:
        found = await where.client.list(
            kinds.POD, where.namespace, labels=f"app={app}", fields=f"spec.nodeName={where.node}"
        )
        for pod in found.items:
            try:
                await where.client.delete(kinds.POD, pod["metadata"]["name"], where.namespace, grace_period_s=1)
            except NotFound:
                continue


def ready(app: str) -> Act:
    """An operand's pod on the node is ready again, one that is not being deleted."""

    async def act(where: Where) -> None:
        async def done() -> bool:
            found = await where.client.list(
                kinds.POD, where.namespace, labels=f"app={app}", fields=f"spec.nodeName={where.node}"
            )
            return any(map(_ready, found.items)) and not any(map(_leaving, found.items))

        await until(done, f"no pod of {app} is ready on {where.node}")

    return act


async def until(done: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Wait for something that comes by itself. Raises TimeoutError, which says what is ``otherwise``."""
    end = time.monotonic() + PATIENCE_S
    while not await done():
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise} after {PATIENCE_S:g} s")
        await asyncio.sleep(AGAIN_S)


def _ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _leaving(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


# --- Settings ---------------------------------------------------------------------------------------------------------
Path = tuple[str, ...]


def policy(changes: Mapping[Path, Any]) -> Act:
    """Edit fields of the ClusterPolicy's spec; what they were is kept in an annotation."""

    async def act(where: Where) -> None:
        for found in (await where.client.list(kinds.CLUSTER_POLICY)).items:
            kept = _kept(found)
            for path in changes:
                kept.setdefault(".".join(path), _value(found["spec"], path))
            await _patch(where, found, changes, kept)

    return act


def policy_back(*paths: Path) -> Act:
    """Give fields of the ClusterPolicy's spec the values that they had."""

    async def act(where: Where) -> None:
        for found in (await where.client.list(kinds.CLUSTER_POLICY)).items:
            kept = _kept(found)
            before = {path: kept.pop(".".join(path)) for path in paths if ".".join(path) in kept}
            await _patch(where, found, before, kept)

    return act


async def _patch(where: Where, found: Mapping[str, Any], changes: Mapping[Path, Any], kept: Mapping[str, Any]) -> None:
    note = json.dumps(kept, sort_keys=True) if kept else None
    body: dict[str, Any] = {"metadata": {"annotations": {KEPT: note}}}
    for path, value in changes.items():
        at: dict[str, Any] = body.setdefault("spec", {})
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
    await where.client.patch(kinds.CLUSTER_POLICY, found["metadata"]["name"], body)


def _kept(found: Mapping[str, Any]) -> dict[str, Any]:
    note = (found["metadata"].get("annotations") or {}).get(KEPT)
    kept: dict[str, Any] = json.loads(note) if note else {}
    return kept


def _value(thing: Any, path: Path) -> Any:
    for key in path:
        thing = thing.get(key) if isinstance(thing, Mapping) else None
    return thing


_POLICIES_KEPT: Final = f"{BACKUPS}/clusterpolicies.json"


async def no_policy(where: Where) -> None:
    """The ClusterPolicies are deleted, and all that they brought up goes with them; a backup is on the node."""
    found = (await where.client.list(kinds.CLUSTER_POLICY)).items
    where.host.root.write_atomic(_POLICIES_KEPT, json.dumps(list(map(_made, found))))
    for each in found:
        await where.client.delete(kinds.CLUSTER_POLICY, each["metadata"]["name"])


def _made(policy: Mapping[str, Any]) -> dict[str, Any]:
    """A policy as it can be made again."""
    metadata = {key: policy["metadata"][key] for key in ("name", "labels", "annotations") if key in policy["metadata"]}
    return {"apiVersion": policy["apiVersion"], "kind": policy["kind"], "metadata": metadata, "spec": policy["spec"]}


async def policies_again(where: Where) -> None:
    """The ClusterPolicies are made again from the backup."""
    if not where.host.root.exists(_POLICIES_KEPT):
        return
    for body in json.loads(where.host.root.read_text(_POLICIES_KEPT)):
        with contextlib.suppress(AlreadyExists):
            await where.client.create(kinds.CLUSTER_POLICY, body)
    where.host.root.remove(_POLICIES_KEPT)


# --- Nodes ------------------------------------------------------------------------------------------------------------
def label(key: str, value: str | None) -> Act:
    """Set a label of the node, or take it away."""

    async def act(where: Where) -> None:
        await where.client.patch(kinds.NODE, where.node, {"metadata": {"labels": {key: value}}})

    return act


def unlabelled(key: str) -> Act:
    """Some program has taken the node's label away."""

    async def act(where: Where) -> None:
        async def done() -> bool:
            return key not in (await where.client.get(kinds.NODE, where.node))["metadata"]["labels"]

        await until(done, f"{where.node} still has the label {key}")

    return act


def taint(key: str) -> Act:
    """Taint every GPU node."""

    async def act(where: Where) -> None:
        for node in await _gpu_nodes(where):
            taints = [*(node["spec"].get("taints") or ()), {"key": key, "value": "lab", "effect": "NoExecute"}]
            await where.client.patch(kinds.NODE, node["metadata"]["name"], {"spec": {"taints": taints}})

    return act


def no_taint(key: str) -> Act:
    """Take a taint away from every node."""

    async def act(where: Where) -> None:
        for node in (await where.client.list(kinds.NODE)).items:
            taints = [each for each in node["spec"].get("taints") or () if each["key"] != key]
            await where.client.patch(kinds.NODE, node["metadata"]["name"], {"spec": {"taints": taints or None}})

    return act


def node_taint(key: str) -> Act:
    """Taint the node so that nothing new comes that does not tolerate it."""

    async def act(where: Where) -> None:
        node = await where.client.get(kinds.NODE, where.node)
        taints = [each for each in node["spec"].get("taints") or () if each["key"] != key]
        taints.append({"key": key, "value": "present", "effect": "NoSchedule"})
        await where.client.patch(kinds.NODE, where.node, {"spec": {"taints": taints}})

    return act


def no_node_taint(key: str) -> Act:
    """Take the node's taint away."""

    async def act(where: Where) -> None:
        node = await where.client.get(kinds.NODE, where.node)
        taints = [each for each in node["spec"].get("taints") or () if each["key"] != key]
        await where.client.patch(kinds.NODE, where.node, {"spec": {"taints": taints or None}})

    return act


async def no_discovery(where: Where) -> None:
    """Node feature discovery ends on all nodes, and takes its labels along, as when it is uninstalled."""
    for node in (await where.client.list(kinds.NODE)).items:
        body = {"metadata": {"annotations": {features.SWITCHED_OFF: "true"}}}
        await where.client.patch(kinds.NODE, node["metadata"]["name"], body)


async def discovery(where: Where) -> None:
    """Node feature discovery runs again on all nodes."""
    for node in (await where.client.list(kinds.NODE)).items:
        body = {"metadata": {"annotations": {features.SWITCHED_OFF: None}}}
        await where.client.patch(kinds.NODE, node["metadata"]["name"], body)


async def _gpu_nodes(where: Where) -> list[dict[str, Any]]:
    found = (await where.client.list(kinds.NODE, labels=f"{names.GPU_PRESENT}=true")).items
    return list(found)


# --- Definitions ------------------------------------------------------------------------------------------------------
_DEFINITION: Final = "clusterpolicies.nvidia.com"
_NEWER: Final = ("hostPaths", "kataManager")
"""Fields of the policy that an older definition has not."""


async def old_definition(where: Where) -> None:
    """The ClusterPolicy's definition is one that came with an older chart."""
    found = await where.client.get(kinds.CRD, _DEFINITION)
    for version in found["spec"]["versions"]:
        for field in _NEWER:
            version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(field, None)
    await where.client.patch(kinds.CRD, _DEFINITION, {"spec": {"versions": found["spec"]["versions"]}})


async def new_definition(where: Where) -> None:
    """The ClusterPolicy's definition is the one of this operator."""
    for definition in crd.definitions():
        if definition["metadata"]["name"] == _DEFINITION:
            await where.client.patch(kinds.CRD, _DEFINITION, {"spec": {"versions": definition["spec"]["versions"]}})


# --- The device plugin's configurations -------------------------------------------------------------------------------
_CONFIGURATIONS: Final = "lab-plugin-configurations"
_CONFIG: Final[Mapping[tuple[str, ...], Any]] = {
    ("devicePlugin", "config"): {"name": _CONFIGURATIONS, "default": "plain"}
}


def plugin_configurations(default: str = "version: v1\n") -> Act:
    """The policy names a ConfigMap of configurations, of which this one is the default."""

    async def act(where: Where) -> None:
        body = {"metadata": {"name": _CONFIGURATIONS, "namespace": where.namespace}, "data": {"plain": default}}
        with contextlib.suppress(AlreadyExists):
            await where.client.create(kinds.CONFIG_MAP, body)
        await policy(_CONFIG)(where)

    return act


async def no_plugin_configurations(where: Where) -> None:
    """The policy names none."""
    await policy_back(*_CONFIG)(where)
    with contextlib.suppress(NotFound):
        await where.client.delete(kinds.CONFIG_MAP, _CONFIGURATIONS, where.namespace)


# --- MIG layouts ------------------------------------------------------------------------------------------------------
_LAYOUTS: Final = "lab-mig-layouts"
_LAYOUT: Final[Mapping[tuple[str, ...], Any]] = {("migManager", "config", "name"): _LAYOUTS}


def mig_layouts(text: str) -> Act:
    """The policy names a ConfigMap with a site's own layouts."""

    async def act(where: Where) -> None:
        body = {"metadata": {"name": _LAYOUTS, "namespace": where.namespace}, "data": {"config.yaml": text}}
        with contextlib.suppress(AlreadyExists):
            await where.client.create(kinds.CONFIG_MAP, body)
        await policy(_LAYOUT)(where)

    return act


async def undivided(where: Where) -> None:
    """The MIG manager divides no GPU of the node any more."""
    await label(names.MIG_CONFIG, "all-disabled")(where)

    async def done() -> bool:
        labels = (await where.client.get(kinds.NODE, where.node))["metadata"]["labels"]
        divided = any(card.entry.mig.enabled for card in where.host.machine.read().cards.values())
        return not divided and labels.get(names.MIG_CONFIG_STATE) == "success"

    await until(done, f"the GPUs of {where.node} are still divided")


async def no_mig_layouts(where: Where) -> None:
    """The policy names none, and the usual ones are there."""
    await policy_back(*_LAYOUT)(where)
    with contextlib.suppress(NotFound):
        await where.client.delete(kinds.CONFIG_MAP, _LAYOUTS, where.namespace)


# --- The operator -----------------------------------------------------------------------------------------------------
_OPERATOR: Final = "gpu-operator"
_LITTLE: Final = "32Mi"


async def little_memory(where: Where) -> None:
    """The operator's Deployment has a limit that it does not get by with; a lab without an operator pod gets one."""
    try:
        found = await where.client.get(kinds.DEPLOYMENT, _OPERATOR, where.namespace)
    except NotFound:
        await where.client.create(kinds.DEPLOYMENT, _operator(where.namespace))
        return
    container = found["spec"]["template"]["spec"]["containers"][0]
    kept = json.dumps(container.get("resources") or {})
    await _resources(where, container["name"], {"limits": {"memory": _LITTLE}, "requests": None}, kept)


async def enough_memory(where: Where) -> None:
    """The limit is as it was, or the pod goes."""
    with contextlib.suppress(NotFound):
        found = await where.client.get(kinds.DEPLOYMENT, _OPERATOR, where.namespace)
        notes = found["metadata"].get("annotations") or {}
        if KEPT in notes:
            name = found["spec"]["template"]["spec"]["containers"][0]["name"]
            await _resources(where, name, json.loads(notes[KEPT]), None)
        elif WORKLOAD in (found["metadata"].get("labels") or {}):
            await where.client.delete(kinds.DEPLOYMENT, _OPERATOR, where.namespace)


async def _resources(where: Where, container: str, resources: Mapping[str, Any], kept: str | None) -> None:
    spec = {"containers": [{"name": container, "resources": dict(resources)}]}
    body = {"metadata": {"annotations": {KEPT: kept}}, "spec": {"template": {"spec": spec}}}
    await where.client.patch(kinds.DEPLOYMENT, _OPERATOR, body, namespace=where.namespace, type=PatchType.STRATEGIC)


def _operator(namespace: str) -> dict[str, Any]:
    labels = {"app": _OPERATOR, WORKLOAD: "operator"}
    container = {
        "name": _OPERATOR,
        "image": "groundplane:lab",
        "command": ["gpu-operator"],
        "env": [{"name": "OPERATOR_NAMESPACE", "value": namespace}],
        "resources": {"limits": {"memory": _LITTLE}},
    }
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "metadata": {"name": _OPERATOR, "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


# --- A second driver --------------------------------------------------------------------------------------------------
async def second_driver(where: Where) -> None:
    """A driver pod that belongs to no DaemonSet is on the node beside the right one."""
    found = await where.client.list(
        kinds.POD, where.namespace, labels=f"app={DRIVER}", fields=f"spec.nodeName={where.node}"
    )
    for pod in found.items[:1]:
        spec = {key: value for key, value in pod["spec"].items() if key not in ("initContainers", "affinity")}
        body = {
            "metadata": {
                "name": pod_name(where.host, "driver"),
                "namespace": where.namespace,
                "labels": {"app": "nvidia-driver-left-behind"},
            },
            "spec": {**spec, "nodeName": where.node},
        }
        with contextlib.suppress(AlreadyExists):
            await where.client.create(kinds.POD, body)


async def no_second_driver(where: Where) -> None:
    """It is deleted."""
    with contextlib.suppress(NotFound):
        await where.client.delete(kinds.POD, pod_name(where.host, "driver"), where.namespace, grace_period_s=0)


# --- Workloads --------------------------------------------------------------------------------------------------------
def pod_name(host: SimulatedHost, what: str) -> str:
    """The name of a workload's pod on a node."""
    return f"{WORKLOAD}-{what}-{host.spec.name}"


def workload(what: str, image: str, resources: Mapping[str, str], **spec: Any) -> Act:
    """A user's pod, on the node."""

    async def act(where: Where) -> None:
        container = {"name": "main", "image": image, "resources": {"limits": dict(resources)}}
        more = dict(spec)
        for part, field in (("command", "command"), ("probe", "readinessProbe")):
            if given := more.pop(part, None):
                container[field] = given
        body = {
            "metadata": {"name": pod_name(where.host, what), "namespace": WORKLOAD_NAMESPACE},
            "spec": {
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": {"kubernetes.io/hostname": where.node},
                "containers": [container],
                **more,
            },
        }
        try:
            await where.client.create(kinds.POD, body)
        except AlreadyExists:
            return

    return act


def no_workload(what: str) -> Act:
    """The user's pod is deleted."""

    async def act(where: Where) -> None:
        try:
            await where.client.delete(kinds.POD, pod_name(where.host, what), WORKLOAD_NAMESPACE, grace_period_s=0)
        except NotFound:
            return

    return act


def runs(what: str) -> Act:
    """The user's pod has begun; whatever comes next meets it on the node."""

    async def act(where: Where) -> None:
        name = pod_name(where.host, what)

        async def done() -> bool:
            pod = await where.client.get(kinds.POD, name, WORKLOAD_NAMESPACE)
            return any(map(_begun, pod.get("status", {}).get("containerStatuses") or ()))

        await until(done, f"the pod {name} has not begun")

    return act


def _begun(container: Mapping[str, Any]) -> bool:
    state = container.get("state") or {}
    return "running" in state or "terminated" in state or bool(container.get("restartCount"))


async def nothing(_where: Where) -> None:
    """Nothing is to be done."""
    await asyncio.sleep(0)
