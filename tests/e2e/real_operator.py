"""The shipped operator on a real control plane: a namespace of its own, its rights, nodes as real ones look.

Nodes have no kubelet: nothing runs on them, and their DaemonSets want no pods.
"""

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Self

from deploy.chart import generate
from groundplane.api import crd, names
from groundplane.cluster import errors, kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.kinds import Kind
from groundplane.lab.cluster import data
from groundplane.operator.process import Operator
from groundplane.operator.settings import Settings
from testing.realcluster.controlplane import ControlPlane

Document = dict[str, Any]
Missing = tuple[str, str, str]
"""API group, resource and verb."""

USER = "operator"
POLICY = "cluster-policy"
PATIENCE_S = 60.0
_serial = itertools.count(1)

LABELS = {
    names.PCI_GPU_LABELS[0]: "true",
    names.KERNEL_VERSION: "6.8.0-60-generic",
    names.OS_RELEASE_ID: "ubuntu",
    names.OS_RELEASE_VERSION_ID: "24.04",
}


class RealWorld:
    """One operator and its surroundings on a shared control plane. An asynchronous context manager."""

    def __init__(self, plane: ControlPlane, *, nodes: int = 1) -> None:
        self.namespace = f"operator-{next(_serial)}"
        self.operator: Operator | None = None
        self._plane = plane
        self._nodes = [f"{self.namespace}-gpu-{number}" for number in range(nodes)]
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._exit = contextlib.AsyncExitStack()
        self.admin: Client

    async def __aenter__(self) -> Self:
        self.admin = await self._exit.enter_async_context(Client(Config.detect(self._plane.kubeconfig())))
        await self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        await self.apply(crd.cluster_policy_crd())
        await self.until("the CRD to be served", self._served)
        for name in self._nodes:
            await self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": LABELS}})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        leftovers = [(kinds.CLUSTER_POLICY, POLICY), *((kinds.NODE, name) for name in self._nodes)]
        leftovers += [(kinds.CLUSTER_ROLE, self.namespace), (kinds.CLUSTER_ROLE_BINDING, self.namespace)]
        leftovers += [(kinds.NAMESPACE, self.namespace)]
        for kind, name in leftovers:
            with contextlib.suppress(errors.NotFound):
                await self.admin.delete(kind, name)
        await self._exit.aclose()

    async def _served(self) -> bool:
        try:
            await self.admin.list(kinds.CLUSTER_POLICY)
        except errors.NotFound:
            return False
        return True

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def apply(self, document: Mapping[str, Any], *, manager: str = "admin") -> Document:
        """Server-side apply as the administrator."""
        return await self.admin.apply(kinds.of(document), document, field_manager=manager)

    async def made_by_nvidia(self, document: Mapping[str, Any]) -> Document:
        """Create an object in the name of NVIDIA's operator: its fields are owned by an update, as that one writes."""
        await self.apply(document, manager="gpu-operator")
        kind, meta = kinds.of(document), document["metadata"]
        live = await self.admin.get(kind, meta["name"], meta.get("namespace"))
        fields = [{**each, "operation": "Update"} for each in live["metadata"]["managedFields"]]
        change = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"], "managedFields": fields}}
        return await self.admin.patch(kind, meta["name"], change, namespace=meta.get("namespace"))

    async def grant(self, *, but: Iterable[Missing] = ()) -> None:
        """Give the operator's user what the chart gives it, less some permissions."""
        gone = set(but)
        rights = generate.rights()
        for place, namespace in (("cluster", ""), ("namespace", self.namespace), ("events", "default")):
            rules = [rule for part in rights[place].values() for rule in part]
            kind = "Role" if namespace else "ClusterRole"
            meta = {"name": self.namespace, **({"namespace": namespace} if namespace else {})}
            head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
            await self.apply({**head, "kind": kind, "rules": self._less(rules, gone)})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": self.namespace}
            subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
            await self.apply({**head, "kind": f"{kind}Binding", "roleRef": reference, "subjects": [subject]})

    def _less(self, rules: Iterable[Document], gone: set[Missing]) -> list[Document]:
        found = []
        for rule in rules:
            for resource in rule["resources"]:
                kept = [verb for verb in rule["verbs"] if (rule["apiGroups"][0], resource, verb) not in gone]
                named = [self.namespace if name == "gpu-operator" else name for name in rule.get("resourceNames", ())]
                if kept:
                    only = {"resourceNames": named} if named else {}
                    found.append({"apiGroups": rule["apiGroups"], "resources": [resource], "verbs": kept, **only})
        return found

    async def policy(self, change: Callable[[Document], None] = lambda _: None) -> Document:
        """Create or change the policy."""
        document: Document = copy.deepcopy(data("guide-baseline.yaml"))
        document["metadata"] = {"name": POLICY}
        change(document["spec"])
        return await self.apply(document)

    async def condition(self, kind: str = "Error") -> Document:
        """One condition of the policy, empty if it is not there."""
        try:
            found = await self.admin.get(kinds.CLUSTER_POLICY, POLICY)
        except errors.NotFound:
            return {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return next((each for each in conditions if each["type"] == kind), {})

    async def events(self, word: str) -> list[Document]:
        """The policy's events whose message contains ``word``."""
        found = (await self.admin.list(kinds.EVENT, "default")).items
        return [each for each in found if each["involvedObject"]["name"] == POLICY and word in each["message"]]

    async def find(self, kind: Kind, name: str, namespace: str | None = None) -> Document | None:
        """One object, None if it is not there."""
        try:
            return await self.admin.get(kind, name, namespace)
        except errors.NotFound:
            return None

    # --- the operator -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the operator."""
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        settings = Settings(
            namespace=self.namespace, metrics_address="127.0.0.1:0", health_address="127.0.0.1:0", leader_elect=True
        )
        async with Client(Config.detect(self._plane.kubeconfig(USER)), user_agent="gpu-operator") as client:
            self.operator = Operator(settings, client)
            await self.operator.run(self._stop)

    async def stop(self) -> None:
        """End the operator as SIGTERM does."""
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    async def until(self, what: str, done: Callable[[], Any]) -> None:
        """Wait until ``await done()`` is true; fails with ``what`` after a time that only a broken operator needs."""
        last: Any = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (last := await done()):
                    if self._task is not None and self._task.done():
                        self._task.result()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}; the last look gave {last!r}") from None


@contextlib.asynccontextmanager
async def real_world(plane: ControlPlane, *missing: Missing, nodes: int = 1) -> AsyncIterator[RealWorld]:
    """A world whose operator has been started without some permissions, on a policy."""
    async with RealWorld(plane, nodes=nodes) as world:
        await world.grant(but=missing)
        await world.policy()
        world.start()
        yield world
