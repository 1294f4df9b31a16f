"""What the manager reads and writes in the cluster: its node, and the pods on it.

Rights are those of contracts/driver-lifecycle.md 5 (Mounts): pods go by eviction only, so that budgets are honoured.
What is written, and in which order, is decided in ``labels`` and ``uninstall``.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from ...api import names
from ...api.release import Release
from ...cluster import errors, eviction, gpupods, kinds
from ...cluster.client import PatchType
from ...cluster.eviction import EvictionError, Pod
from ...cluster.views import MetaView
from ..process import Process
from . import labels
from .errors import DriverError
from .settings import Settings

if TYPE_CHECKING:
    from ...cluster.client import Client

ATTEMPTS: Final = 7
FIRST_S: Final = 1.0
JITTER: Final = 0.2
"""Labels are written up to seven times, after pauses that double, each longer by up to a fifth: a node must not stay
paused because the API server was away."""
WAIT_S: Final = 300.0
"""How long the pods of one operand may take to go."""
POLL_S: Final = 5.0


class _Spec(msgspec.Struct):
    unschedulable: bool = False


class _Metadata(msgspec.Struct):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Node(msgspec.Struct):
    """The node, as far as it matters here."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self.metadata.labels

    @property
    def policy(self) -> bool:
        """Whether the operator upgrades this node's driver by itself, and so evicts its workloads."""
        return self.metadata.annotations.get(names.DRIVER_UPGRADE_ENABLED) == "true"

    @property
    def cordoned_here(self) -> bool:
        """Whether this program, in this or an earlier run, has cordoned it."""
        return names.DRIVER_MANAGER_CORDONED in self.metadata.annotations


class _PodMetadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _PodName(msgspec.Struct):
    metadata_only: ClassVar[bool] = True
    metadata: _PodMetadata = msgspec.field(default_factory=_PodMetadata)


class Cluster:
    """The node and its pods. Methods raise ClusterError, besides what they name."""

    def __init__(
        self,
        process: Process,
        client: "Client",
        wanted: Settings,
        *,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._process = process
        self._client = client
        self._wanted = wanted
        self._name = wanted.node_name
        self._rand = rand
        self._claims = gpupods.ClaimReader(client)

    # --- the node -----------------------------------------------------------------------------------------------------

    async def node(self) -> Node:
        """The node as it is."""
        return await self._client.get(kinds.NODE, self._name, view=Node)

    async def label(self, changes: Mapping[str, str]) -> None:
        """Write labels in one step, again and again for a minute if it fails."""
        delay = FIRST_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._patch({"metadata": {"labels": dict(changes)}})
                return
            except errors.ClusterError as error:
                if attempt == ATTEMPTS:
                    raise
                self._process.log.warning(f"labels of node {self._name} are not written yet (try {attempt}): {error}")
            await self._process.sleep(delay * (1.0 + JITTER * self._rand()))
            delay *= 2.0

    async def cordon(self) -> bool:
        """Keep new pods off the node, and note that it was us. Whether it is us who do: others' cordon stays theirs."""
        node = await self.node()
        if node.spec.unschedulable:
            return node.cordoned_here
        mark = {names.DRIVER_MANAGER_CORDONED: "true"}
        await self._patch({"metadata": {"annotations": mark}, "spec": {"unschedulable": True}})
        return True

    async def uncordon(self) -> None:
        """Let pods come again, and remove the note."""
        mark = {names.DRIVER_MANAGER_CORDONED: None}
        await self._patch({"metadata": {"annotations": mark}, "spec": {"unschedulable": None}})

    async def _patch(self, body: Mapping[str, object]) -> None:
        await self._client.patch(kinds.NODE, self._name, body, type=PatchType.STRATEGIC, view=MetaView)

    # --- operands' pods -----------------------------------------------------------------------------------------------

    async def operands_gone(self, found: Mapping[str, str]) -> None:
        """Wait until paused operands' pods are gone; ``found`` are the node's labels before. Raises DriverError."""
        for app in labels.apps(found, self._process.release):
            await self.app_gone(app)
        if labels.clients(found, self._process.release):
            await self._gone(f"DaemonSets with nodeSelector {names.DEPLOY_CLIENT}", self._clients)

    async def app_gone(self, app: str) -> None:
        """Wait until the operand's pods of this node are gone. Raises DriverError."""
        await self._gone(f"app={app}", lambda: self._pods(app))

    async def _gone(self, what: str, pods: Callable[[], Awaitable[Sequence[str]]]) -> None:
        deadline = self._process.monotonic() + WAIT_S
        while left := await pods():
            if self._process.monotonic() >= deadline:
                raise DriverError(
                    f"timed out after {WAIT_S:g} s waiting for pods of {what} to go: {', '.join(left)}; find out what "
                    "keeps them (kubectl describe pod) and end them"
                )
            self._process.log.info(f"waiting for pods of {what} to go: {', '.join(left)}")
            await self._process.sleep(POLL_S)

    async def _pods(self, app: str) -> list[str]:
        namespace, fields = self._wanted.operator_namespace, f"spec.nodeName={self._name}"
        found = await self._client.list(kinds.POD, namespace, labels=f"app={app}", fields=fields, view=_PodName)
        return sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found.items)

    async def _clients(self) -> list[str]:
        pods = await eviction.pods_on(self._client, self._name)
        return [str(pod) for pod in pods if pod.daemon_set and names.DEPLOY_CLIENT in pod.spec.nodeSelector]

    # --- workloads ----------------------------------------------------------------------------------------------------

    async def gpu_pods(self) -> list[Pod]:
        """The pods of this node that hold GPUs."""
        pods = await eviction.pods_on(self._client, self._name)
        return gpupods.to_unload(pods, await self._claims_of(pods))

    async def evict_gpu_pods(self) -> None:
        """Evict all pods that hold GPUs, or none of them. Raises EvictionError."""
        choice = await eviction.chosen(self._client, await self.gpu_pods(), self._wanted.rules)
        if choice.kept:
            kept = "; ".join(map(str, choice.kept))
            raise EvictionError(f"not every pod that holds a GPU may be evicted, so none is: {kept}")
        if choice.deletable:
            self._process.log.info(f"evicting pods that hold GPUs: {', '.join(map(str, choice.deletable))}")
        await eviction.evict(
            self._client,
            self._name,
            choice.deletable,
            timeout_s=self._wanted.drain_timeout_s,
            sleep=self._process.sleep,
            tell=self._process.log.info,
        )

    async def drain(self) -> None:
        """Drain the node. Raises EvictionError."""
        await eviction.drain(
            self._client,
            self._name,
            self._wanted.rules,
            labels=self._wanted.drain_pod_selector_label,
            timeout_s=self._wanted.drain_timeout_s,
            sleep=self._process.sleep,
            tell=self._process.log.info,
        )

    async def claim_holders(self) -> list[Pod]:
        """The pods of this node, but finished ones, that have a ResourceClaim with a GPU."""
        pods = [pod for pod in await eviction.pods_on(self._client, self._name) if not pod.finished]
        claims = await self._claims.of(pods)
        return [pod for pod in pods if gpupods.holds_claim(pod, claims)]

    async def _claims_of(self, pods: Sequence[Pod]) -> gpupods.Claims | None:
        return None if self._process.release is Release.V26_3 else await self._claims.of(pods)
