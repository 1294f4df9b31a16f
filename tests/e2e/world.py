"""A cluster that things happen to, a record of what must come of it, and a fresh cluster to compare it with.

A :class:`World` is a lab with the shipped operator over HTTP and nodes without programs. Everything that may happen is
a method, so that a random sequence is a list of method names with arguments (:mod:`e2e.happenings`). The world keeps
only what people and machines *wish*: the policies in the order they were made, the nodes, and the choices people have
written on nodes. :meth:`World.converged` lets it come to rest and compares it with a cluster started from those wishes
alone.

What persists of the past, and is given to the fresh cluster too, is exactly this (contracts/control-plane.md 3.1, 3.2):

- a person's ``=false`` or a manager's ``paused-for-`` value on a deploy label, until the node leaves, its operands are
  switched off, or its workload config may have changed; until then it *must* be there;
- ``nvidia.com/gpu.present=false`` on a node that has lost its GPU's labels;
- ``nvidia.com/mig.config`` on a node that can be split: written once, never taken away.

Everything else is a function of the policies and the nodes.
"""

import asyncio
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.cluster.lease import LeaseLost
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE, OPERATOR_USER_AGENT, Lab
from groundplane.lab.faults import Rule
from groundplane.lab.resources import Resource
from groundplane.lab.status import StatusError
from groundplane.operator import labels as node_labels

Document = dict[str, Any]

SPEED = 20.0
"""Cluster seconds a real second: the operator's timers follow the lab's clock."""
PATIENCE_S = 60.0
"""Real seconds that a cluster may take to come to rest, on a machine however busy."""
REST_TURNS = 5
"""Looks, one turn of everything apart, at which nothing may have changed for a cluster to be at rest."""
POLICY = "cluster-policy"
SECOND = "zz-second-policy"
DATA = Path(__file__).parent.parent / "data" / "clusterpolicy"

CONTAINER_KEYS = frozenset({*node_labels.DEPLOYED[node_labels.CONTAINER], names.DEPLOY_MIG_MANAGER})
"""Deploy labels that a node of workload config ``container`` may have."""
PCI_LABEL = names.PCI_GPU_LABELS[0]
KINDS_OF_NODES: Mapping[str, Mapping[str, str | None]] = {
    "plain": {},
    "mig": {names.MIG_CAPABLE: "true"},
    "other-kernel": {names.KERNEL_VERSION: "6.11.0-12-generic"},
    "cpu": {PCI_LABEL: None},
}
"""What distinguishes the nodes of the world: labels that others than the operator write."""

OBJECT_KINDS: tuple[tuple[str, str], ...] = (
    ("apps", "daemonsets"),
    ("", "services"),
    ("", "configmaps"),
    ("", "serviceaccounts"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("node.k8s.io", "runtimeclasses"),
    ("monitoring.coreos.com", "servicemonitors"),
    ("monitoring.coreos.com", "prometheusrules"),
)
FLEETING = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


def policy_document(name: str = POLICY, file: str = "26.7.0-default.yaml") -> Document:
    """A policy as NVIDIA's chart renders it, with an image for every operand so that each can be switched on."""
    document: Document = yaml.safe_load((DATA / file).read_text(encoding="utf-8"))
    document["metadata"]["name"] = name
    spec = document["spec"]
    spec["vgpuManager"] |= {"repository": "registry.example", "version": "595.1"}
    return document


# --- the end state ----------------------------------------------------------------------------------------------------


def resource_of(lab: Lab, group: str, plural: str) -> Resource | None:
    """The resource, ``None`` where its CRD is not installed."""
    try:
        return lab.api.resource(plural, group=group)
    except StatusError as error:
        if error.code != 404:
            raise
        return None


def operand_objects(lab: Lab) -> dict[str, Document]:
    """Every object that a ClusterPolicy owns or that bears the operator's label, by ``plural/name``."""
    found: dict[str, Document] = {}
    for group, plural in OBJECT_KINDS:
        resource = resource_of(lab, group, plural)
        for obj in lab.api.list(resource)["items"] if resource else ():
            meta = obj["metadata"]
            owners = {owner["kind"] for owner in meta.get("ownerReferences") or ()}
            if "ClusterPolicy" in owners or names.STATE_LABEL in (meta.get("labels") or {}):
                found[f"{plural}/{meta['name']}"] = obj
    return found


def normal(obj: Mapping[str, Any]) -> Document:
    """An object without what differs between two clusters that are otherwise alike."""
    document = copy.deepcopy(dict(obj))
    meta = document["metadata"]
    for key in FLEETING:
        meta.pop(key, None)
    for owner in meta.get("ownerReferences") or ():
        owner.pop("uid")
    annotations = meta.get("annotations") or {}
    annotations.pop("deprecated.daemonset.template.generation", None)
    if names.LAST_APPLIED_HASH in annotations:
        annotations[names.LAST_APPLIED_HASH] = "(hash over the policy's UID too)"
    for key in ("observedGeneration", "collisionCount"):  # the latter when a predecessor's revisions were still there
        (document.get("status") or {}).pop(key, None)
    if document["kind"] == "Service":
        for address in ("clusterIP", "clusterIPs"):
            document["spec"].pop(address, None)
    return document


def policy_status(policy: Mapping[str, Any]) -> Document:
    """A policy's state and conditions without times; generations count only as being up to date."""
    status = policy.get("status") or {}
    generation = policy["metadata"]["generation"]
    conditions = {
        condition["type"]: {
            **{key: condition.get(key) for key in ("status", "reason", "message")},
            "current": condition.get("observedGeneration") == generation,
        }
        for condition in status.get("conditions") or ()
    }
    return {"state": status.get("state"), "conditions": conditions}


def end_state(lab: Lab) -> Document:
    """All that a person could compare of two clusters."""
    api = lab.api
    policies = api.list(api.resource("clusterpolicies", group=names.GROUP))["items"]
    nodes = api.list(resources.NODES)["items"]
    pods = api.list(resources.PODS, OPERATOR_NAMESPACE)["items"]
    return {
        "objects": {key: normal(obj) for key, obj in operand_objects(lab).items()},
        "nodes": {
            node["metadata"]["name"]: {
                "labels": node["metadata"].get("labels"),
                "annotations": node["metadata"].get("annotations"),
                "taints": [taint["key"] for taint in node["spec"].get("taints") or ()],
            }
            for node in nodes
        },
        "policies": {policy["metadata"]["name"]: policy_status(policy) for policy in policies},
        "pods": sorted(
            [owner["name"], pod["spec"].get("nodeName", ""), pod.get("status", {}).get("phase", "")]
            for pod in pods
            for owner in pod["metadata"].get("ownerReferences") or ()
        ),
    }


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two documents differ, as lines for a person."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            line
            for key in sorted({*one, *other}, key=str)
            for line in differences(one.get(key, "(missing)"), other.get(key, "(missing)"), f"{path}[{key}]")
        ]
    return [] if one == other else [f"{path}: {_short(one)} instead of {_short(other)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 300 else text[:300] + "…"


# --- the world --------------------------------------------------------------------------------------------------------


class World:
    """A lab and what is wished of it. An asynchronous context manager."""

    def __init__(self, *, leader_elect: bool = False, release: Release = Release.DEFAULT) -> None:
        self.release = release
        self.lab = Lab(
            speed=SPEED,
            operator=False,
            operator_release=release,
            operator_on_cluster_time=True,
            operator_options={"leader_elect": leader_elect, "renew_deadline_s": 10.0},
        )
        self.policies: dict[str, Document] = {}
        self.nodes: dict[str, dict[str, str | None]] = {}
        self.capable: set[str] = set()
        self.cpu_only: set[str] = set()
        self.choices: dict[str, dict[str, str]] = {}
        self._workloads_known = True

    async def __aenter__(self) -> Self:
        await self.lab.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.lab.close()

    # --- policies -----------------------------------------------------------------------------------------------------

    @property
    def _policy_resource(self) -> Resource:
        return self.lab.api.resource("clusterpolicies", group=names.GROUP)

    async def create_policy(self, document: Document) -> None:
        """Create a policy; the clock moves on, so that no two policies are of the same age."""
        await self.lab.clock.sleep(2.0)
        self.lab.api.create(self._policy_resource, document)
        self.policies[document["metadata"]["name"]] = document
        self._workloads_may_change()

    def delete_policy(self, name: str) -> None:
        """Delete a policy; its objects are garbage-collected."""
        self.lab.api.delete(self._policy_resource, name)
        del self.policies[name]
        self._workloads_may_change()

    def edit_policy(self, name: str, section: str, field: str, value: Any) -> None:
        """Set ``spec.<section>.<field>``, or remove it with None."""
        spec = self.policies[name]["spec"]
        section_now = dict(spec.get(section) or {})
        section_now.pop(field, None)
        spec[section] = section_now if value is None else {**section_now, field: value}
        if section == "sandboxWorkloads":
            self._workloads_may_change()
        self._store_policy(name)

    def refused_edit(self, name: str, section: str, field: str, value: Any) -> None:
        """An edit that the API server refuses by the CRD's schema: nothing changes."""
        spec = copy.deepcopy(self.policies[name]["spec"])
        spec.setdefault(section, {})[field] = value
        try:
            self._update(name, spec)
        except StatusError as error:
            assert error.code == 422, error
        else:
            raise AssertionError(f"spec.{section}.{field}={value!r} was not refused")

    def _store_policy(self, name: str) -> None:
        self._update(name, self.policies[name]["spec"])

    def _update(self, name: str, spec: Document) -> None:
        live = self.lab.api.get(self._policy_resource, name)
        self.lab.api.update(self._policy_resource, {**live, "spec": copy.deepcopy(spec)}, manager="kubectl-edit")

    # --- nodes --------------------------------------------------------------------------------------------------------

    def join(self, name: str, kind: str) -> None:
        """A machine joins; nothing happens when it is there."""
        if name in self.nodes:
            return
        self.nodes[name] = dict(KINDS_OF_NODES[kind])
        if kind == "mig":
            self.capable.add(name)
        if kind == "cpu":
            self.cpu_only.add(name)
        self.lab.hollow.join(name, self.nodes[name])

    def leave(self, name: str) -> None:
        """A machine leaves, with everything written on its Node."""
        if name not in self.nodes:
            return
        del self.nodes[name]
        self.choices.pop(name, None)
        self.capable.discard(name)
        self.cpu_only.discard(name)
        self.lab.hollow.leave(name)

    def label(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set or, with None, remove labels of a node, by hand or by node feature discovery."""
        if name not in self.nodes:
            return
        self.lab.api.patch(
            resources.NODES, name, {"metadata": {"labels": dict(changes)}}, type="merge", manager="kubectl-label"
        )

    def wish(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Label a node with what the operator only reads."""
        if name in self.nodes:
            self.label(name, changes)
            self.nodes[name] |= changes

    def blink(self, name: str, value: str | None) -> None:
        """Node feature discovery takes the label of a GPU away, or brings it back."""
        if name not in self.cpu_only:
            self.wish(name, {PCI_LABEL: value})

    def choose(self, name: str, key: str, value: str | None) -> None:
        """A person (or a manager) writes a deploy label, or removes it."""
        if name not in self.nodes:
            return
        self.label(name, {key: value})
        self.choices.setdefault(name, {}).pop(key, None)
        if value is not None and self._heeded(name, key):
            self.choices[name][key] = value

    def _heeded(self, name: str, key: str) -> bool:
        """Whether ``key`` is for certain one of the deploy labels that this node may have."""
        sandbox = any(policy["spec"]["sandboxWorkloads"].get("enabled") for policy in self.policies.values())
        off = self.nodes[name].get(names.DEPLOY_OPERANDS) == "false"
        return self._workloads_known and not sandbox and not off and key in CONTAINER_KEYS

    def switch_operands(self, name: str, value: str | None) -> None:
        """``nvidia.com/gpu.deploy.operands``: with ``false`` every deploy label of the node is taken away."""
        self.wish(name, {names.DEPLOY_OPERANDS: value})
        self._workloads_may_change(name)

    def set_workload(self, name: str, value: str | None) -> None:
        """The node's workload config."""
        self.wish(name, {names.WORKLOAD_CONFIG: value})
        self._workloads_may_change(name)

    def _workloads_may_change(self, *nodes: str) -> None:
        """Deploy labels may be taken away from some nodes, or from all, until the operator has seen to it."""
        self._workloads_known = False
        for name in nodes or list(self.choices):
            self.choices.pop(name, None)

    # --- objects ------------------------------------------------------------------------------------------------------

    def delete_object(self, number: int) -> None:
        """A person deletes one of the operator's objects."""
        if chosen := self._object(number):
            resource, obj = chosen
            self.lab.api.delete(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))

    def edit_object(self, number: int) -> None:
        """A person changes or removes what the operator has written on an object."""
        chosen = self._object(number)
        if chosen is None or chosen[0].plural == "serviceaccounts":  # one that exists is left as it is (4.1)
            return
        resource, obj = chosen
        self.lab.api.patch(
            resource,
            obj["metadata"]["name"],
            spoil(obj, number),
            ns=obj["metadata"].get("namespace"),
            type="merge",
            manager="kubectl-edit",
        )

    def _object(self, number: int) -> tuple[Resource, Document] | None:
        objects = operand_objects(self.lab)
        if not objects:
            return None
        key = sorted(objects)[number % len(objects)]
        obj = objects[key]
        if obj["metadata"].get("deletionTimestamp"):
            return None
        groups = {plural: group for group, plural in OBJECT_KINDS}
        plural = key.partition("/")[0]
        return self.lab.api.resource(plural, group=groups[plural]), obj

    # --- the operator and the API server ------------------------------------------------------------------------------

    @property
    def operator_runs(self) -> bool:
        """Whether the operator's process is alive."""
        return self.lab.operator_running

    def start_operator(self) -> None:
        """Start the operator's process, if it is not alive."""
        if not self.operator_runs:
            self.lab.start_operator()

    async def kill_operator(self) -> None:
        """SIGKILL."""
        await self.lab.kill_operator()

    async def stop_operator(self) -> None:
        """SIGTERM."""
        await self.lab.stop_operator()

    def revive(self) -> None:
        """As a kubelet does: a process that has ended by itself is started again. Only a lost lease is a reason."""
        ended = self.lab.operator_error
        if ended is not None:
            if not isinstance(ended, LeaseLost):
                raise AssertionError("the operator failed") from ended
            self.lab.start_operator()

    def fault(self, verb: str, resource: str, answer: int | str, times: int) -> None:
        """The API server fails some of the operator's next requests."""
        retry_after = 1 if answer in (429, 503) else None
        self.lab.faults.add(
            Rule(
                verb,
                resource,
                times=times,
                answer=answer,
                retry_after=retry_after,
                user_agent=OPERATOR_USER_AGENT,
            )
        )

    def drop_watches(self) -> None:
        """Every open watch breaks."""
        self.lab.faults.drop_watches()

    def forget_history(self) -> None:
        """The API server forgets what was, as etcd does when it is compacted, and every watch breaks: 410 Gone."""
        self.lab.api.store.compact()
        self.lab.faults.drop_watches()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def at_rest(self) -> None:
        """Until operator, controllers and nodes have nothing to do, and nothing has changed for some turns."""
        quiet, revision = 0, -1
        while quiet < REST_TURNS:
            self.lab.check_tasks()
            self.revive()
            await asyncio.sleep(0.005)
            now = self._revision()
            busy = not self.lab.idle or self._restart_outdated_pods()
            quiet = 0 if busy or now != revision else quiet + 1
            revision = now
        self._workloads_known = True

    def _revision(self) -> int:
        """The newest change of anything but leases and events, which change while a cluster is at rest."""
        store = self.lab.api.store
        watched = [resources.NODES, resources.PODS, resources.NAMESPACES, self._policy_resource]
        watched += [found for each in OBJECT_KINDS if (found := resource_of(self.lab, *each))]
        histories = [store.table(resource.storage).history for resource in watched]
        return max((history[-1].revision for history in histories if history), default=0)

    def _restart_outdated_pods(self) -> bool:
        """What a person does after an edit of a DaemonSet that is updated ``OnDelete``: pods of old revisions go."""
        api = self.lab.api
        found = False
        for daemon_set in api.list(resources.DAEMON_SETS, OPERATOR_NAMESPACE)["items"]:
            if daemon_set["spec"]["updateStrategy"]["type"] != "OnDelete":
                continue
            uid = daemon_set["metadata"]["uid"]
            mine = [each for each in api.list(resources.CONTROLLER_REVISIONS)["items"] if _owned_by(each, uid)]
            newest = max(mine, key=lambda each: int(each["revision"]), default=None)
            for pod in api.list(resources.PODS, OPERATOR_NAMESPACE)["items"] if newest else ():
                current = newest["metadata"]["labels"]["controller-revision-hash"]
                meta = pod["metadata"]
                if _owned_by(pod, uid) and meta["labels"].get("controller-revision-hash") != current:
                    api.delete(resources.PODS, meta["name"], meta["namespace"], grace_period_s=0)
                    found = True
        return found

    def assert_choices_kept(self) -> None:
        """What people decided on nodes is still there."""
        for name, chosen in self.choices.items():
            have = self.lab.api.get(resources.NODES, name)["metadata"]["labels"]
            for key, value in chosen.items():
                assert have.get(key) == value, f"node {name}: {key}={value} was chosen, it is {have.get(key)!r}"

    def beginnings(self) -> dict[str, dict[str, str | None]]:
        """The nodes of the fresh cluster: as wished, with what persists of the past."""
        found = {}
        for name, wished in self.nodes.items():
            have = self.lab.api.get(resources.NODES, name)["metadata"]["labels"]
            found[name] = {**wished, **{key: have[key] for key in have if self._persists(name, key, have[key])}}
        return found

    def _persists(self, node: str, key: str, value: str) -> bool:
        if key == names.GPU_PRESENT:
            return value == "false" and self.nodes[node].get(PCI_LABEL, "true") != "true"
        if key == names.MIG_CONFIG:
            return node in self.capable
        kept = value == "false" or value.startswith(node_labels.PAUSED_PREFIX)
        return key.startswith(names.DEPLOY_PREFIX) and kept

    async def converged(self) -> None:
        """Come to rest and be what a fresh start of the same wishes is. Raises :class:`AssertionError` if not."""
        wrong: list[str] = ["the cluster does not come to rest"]
        try:
            async with asyncio.timeout(PATIENCE_S):
                while wrong:
                    await self.at_rest()
                    self.assert_choices_kept()
                    expected = await fresh_start(self.policies, self.beginnings(), self.release)
                    wrong = differences(end_state(self.lab), expected)
                    if wrong and await self._stays_at_rest():
                        break
        except TimeoutError:
            pass
        assert not wrong, "\n".join(wrong)

    async def _stays_at_rest(self) -> bool:
        """Whether nothing more happens: the operator looks at everything again and finds nothing to do."""
        revision = self._revision()
        await self.lab.clock.sleep(10.0)
        await self.at_rest()
        return self._revision() == revision


def _owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or ())


def spoil(obj: Mapping[str, Any], number: int) -> Document:
    """A merge patch that breaks what the operator wrote on an object; which part depends on ``number``."""
    kind = obj["kind"]
    if kind == "DaemonSet":
        pod = copy.deepcopy(obj["spec"]["template"]["spec"])
        container = pod["containers"][0]
        parts: list[Document] = [
            {"image": "registry.example/wrong:1"},
            {"env": []},
            {"volumeMounts": []},
            {"securityContext": {"privileged": False}},
        ]
        container |= parts[number % len(parts)]
        return {"spec": {"template": {"spec": {"containers": pod["containers"]}}}}
    if kind == "ConfigMap":
        return {"data": dict.fromkeys(obj.get("data") or {}, "spoilt")}
    if kind in ("Role", "ClusterRole"):
        return {"rules": []}
    if kind in ("RoleBinding", "ClusterRoleBinding"):
        return {"subjects": None}
    return {"metadata": {"annotations": {names.LAST_APPLIED_HASH: "1"}, "ownerReferences": None}}


_fresh: dict[str, Document] = {}
"""The end states of fresh clusters, by what they were started from."""


async def fresh_start(
    policies: Mapping[str, Document],
    nodes: Mapping[str, Mapping[str, str | None]],
    release: Release = Release.DEFAULT,
) -> Document:
    """The end state of a cluster in which nothing ever happened but its start."""
    key = json.dumps([str(release), list(policies.values()), dict(sorted(nodes.items()))], sort_keys=True)
    if key not in _fresh:
        async with World(release=release) as world:
            for name, wished in nodes.items():
                world.lab.hollow.join(name, wished)
            for policy in policies.values():
                await world.create_policy(copy.deepcopy(policy))
            world.start_operator()
            await world.at_rest()
            _fresh[key] = end_state(world.lab)
    return _fresh[key]
