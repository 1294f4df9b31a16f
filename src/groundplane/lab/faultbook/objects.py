"""Faults in the cluster: settings that are edited, labels, pods of users, and pods that have to meet a fault anew."""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...api import crd, names
from ...cluster import kinds
from ...cluster.errors import AlreadyExists, NotFound
from ..host import SimulatedHost
from ..kubelet import features
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
FEATURES: Final = "feature.node.kubernetes.io/"


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


# --- Nodes ------------------------------------------------------------------------------------------------------------
def label(key: str, value: str | None) -> Act:
    """Set a label of the node, or take it away."""

    async def act(where: Where) -> None:
        await where.client.patch(kinds.NODE, where.node, {"metadata": {"labels": {key: value}}})

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
        kept = {key: None for key in node["metadata"].get("labels") or {} if key.startswith(FEATURES)}
        annotations = {features.SWITCHED_OFF: "true"}
        body = {"metadata": {"labels": kept, "annotations": annotations}}
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
_PLAIN: Final = "version: v1\n"
_CONFIG: Final[Mapping[tuple[str, ...], Any]] = {
    ("devicePlugin", "config"): {"name": _CONFIGURATIONS, "default": "plain"}
}


async def plugin_configurations(where: Where) -> None:
    """The policy names a ConfigMap of configurations, of which one is the default."""
    body = {"metadata": {"name": _CONFIGURATIONS, "namespace": where.namespace}, "data": {"plain": _PLAIN}}
    with contextlib.suppress(AlreadyExists):
        await where.client.create(kinds.CONFIG_MAP, body)
    await policy(_CONFIG)(where)


async def no_plugin_configurations(where: Where) -> None:
    """The policy names none."""
    await policy_back(*_CONFIG)(where)
    with contextlib.suppress(NotFound):
        await where.client.delete(kinds.CONFIG_MAP, _CONFIGURATIONS, where.namespace)


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
        if command := more.pop("command", None):
            container["command"] = command
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


async def nothing(_where: Where) -> None:
    """Nothing is to be done."""
    await asyncio.sleep(0)
