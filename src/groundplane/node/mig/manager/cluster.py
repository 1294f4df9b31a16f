"""What the manager reads and writes in the cluster: its node's labels and annotations, and pods on its node.

Rights are those of contracts/mig-exporter-validator.md 3.6. Nothing here decides what is written.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from ....api import names
from ....api.release import Release
from ....cluster import errors, kinds
from ...nodelabel import NodeView
from ...process import Process
from . import operands
from .errors import ManagerError
from .settings import Settings

if TYPE_CHECKING:
    from ....cluster.client import Client

WAIT_S: Final = 300.0
"""How long pods of one kind may take to go."""
POLL_S: Final = 1.0
CLIENT_POLL_S: Final = 5.0


class State(enum.StrEnum):
    """How far the layout is, as the node's label says (3.4)."""

    PENDING = "pending"
    REBOOTING = "rebooting"
    SUCCESS = "success"
    FAILED = "failed"


class Now(msgspec.Struct, frozen=True):
    """The node at one moment: its labels, and the layout for which it was rebooted, if any."""

    labels: Mapping[str, str]
    rebooted_for: str = ""

    @property
    def state(self) -> str:
        """What the state label says; empty if there is none."""
        return self.labels.get(names.MIG_CONFIG_STATE, "")


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    ownerReferences: list[dict[str, Any]] = []


class _PodSpec(msgspec.Struct):
    nodeSelector: dict[str, str] = {}


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _NameOnly(msgspec.Struct):
    metadata_only: ClassVar[bool] = True
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class Cluster:
    """The node, and the pods on it. Methods raise ClusterError."""

    def __init__(self, process: Process, client: "Client", wanted: Settings) -> None:
        self._process = process
        self._client = client
        self._node = wanted.node_name
        self._namespace = wanted.namespace

    async def now(self) -> Now:
        """The node as it is."""
        metadata = (await self._client.get(kinds.NODE, self._node, view=NodeView)).metadata
        return Now(metadata.labels, metadata.annotations.get(names.MIG_CONFIG_REBOOTED, ""))

    async def write(
        self,
        state: State,
        labels: Mapping[str, str] | None = None,
        *,
        failure: str = "",
        rebooted_for: str | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> None:
        """Write the state, and labels with it, in one step. What has failed is told as long as it has.

        ``rebooted_for`` is kept if nothing is said of it, and None takes it away.
        """
        annotations: dict[str, str | None] = {names.MIG_CONFIG_FAILURE: failure or None}
        if rebooted_for is not msgspec.UNSET:
            annotations[names.MIG_CONFIG_REBOOTED] = rebooted_for
        body = {"labels": {**(labels or {}), names.MIG_CONFIG_STATE: state.value}, "annotations": annotations}
        await self._client.patch(kinds.NODE, self._node, {"metadata": body}, view=NodeView)

    async def label(self, labels: Mapping[str, str]) -> None:
        """Write labels, if there are any to write."""
        if labels:
            await self._client.patch(kinds.NODE, self._node, {"metadata": {"labels": dict(labels)}}, view=NodeView)

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def operands_gone(self) -> None:
        """Wait until the paused operands' pods have gone. Raises :class:`~.errors.ManagerError`."""
        for app in operands.APPS:
            await self._gone(app, POLL_S)
        if self._process.release is not Release.V26_3:
            await self._gone("", CLIENT_POLL_S)

    async def _gone(self, app: str, poll_s: float) -> None:
        """Wait for pods of an app, or of third parties' DaemonSets."""
        deadline = self._process.monotonic() + WAIT_S
        while left := [f"{pod.namespace}/{pod.name}" for pod in await (self._pods(app) if app else self._clients())]:
            if self._process.monotonic() >= deadline:
                what = f"app={app}" if app else f"DaemonSets with nodeSelector {names.DEPLOY_CLIENT}"
                raise ManagerError(
                    f"timed out after {WAIT_S:g} s waiting for pods of {what} to go: {', '.join(left)}; find out what "
                    "keeps them (kubectl describe pod), end them, and set the label anew"
                )
            await self._process.sleep(poll_s)

    async def delete(self, apps: Iterable[str]) -> None:
        """Delete pods of some apps on this node; it is not waited for."""
        for app in apps:
            for pod in await self._pods(app):
                try:
                    await self._client.delete(kinds.POD, pod.name, pod.namespace)
                except errors.NotFound:
                    continue
                self._process.log.info(f"deleted pod {pod.namespace}/{pod.name}")

    async def _pods(self, app: str) -> list[_Metadata]:
        fields = f"spec.nodeName={self._node}"
        found = await self._client.list(kinds.POD, self._namespace, labels=f"app={app}", fields=fields, view=_NameOnly)
        return [pod.metadata for pod in found.items]

    async def _clients(self) -> list[_Metadata]:
        found = await self._client.list(kinds.POD, fields=f"spec.nodeName={self._node}", view=_Pod)
        return [
            pod.metadata
            for pod in found.items
            if names.DEPLOY_CLIENT in pod.spec.nodeSelector
            and any(owner.get("kind") == "DaemonSet" for owner in pod.metadata.ownerReferences)
        ]
