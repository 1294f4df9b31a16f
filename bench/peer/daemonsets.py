"""The DaemonSet controller's part, played by the harness: counts are filled in, no pod runs.

The status of a DaemonSet says that every node its selector matches runs a ready pod. A DaemonSet with strategy OnDelete
is judged by its pods, so it gets a ControllerRevision and one pod a node that says Running. Nothing is filled in before
:meth:`DaemonSets.begin`, so that labelling is measured with the API server to itself.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from groundplane.cluster import kinds
from groundplane.cluster.client import Client
from groundplane.cluster.errors import AlreadyExists, Conflict, NotFound
from groundplane.cluster.informer import Informer

REVISION_HASH = "controller-revision-hash"
IN_FLIGHT = 16
PAUSE_S = 0.02
"""Changes that come together are answered together."""

Document = dict[str, Any]


def node_selector(daemon_set: Mapping[str, Any]) -> dict[str, str]:
    """The labels a node must have to run a pod of the DaemonSet."""
    return dict(daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {})


def matching(daemon_set: Mapping[str, Any], nodes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Names of the nodes that it wants a pod on; ``nodes`` are labels by name."""
    wanted = node_selector(daemon_set).items()
    return [name for name, labels in nodes.items() if wanted <= labels.items()]


def status(daemon_set: Mapping[str, Any], count: int) -> Document:
    """The status that says: ``count`` pods, all there, all new, all ready."""
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    said = dict.fromkeys((*fields, "numberAvailable"), count)
    return {**said, "numberMisscheduled": 0, "observedGeneration": daemon_set["metadata"]["generation"]}


def revision_hash(daemon_set: Mapping[str, Any]) -> str:
    """A name for the pod template as it is."""
    return hashlib.sha256(msgspec.json.encode(daemon_set["spec"]["template"], order="deterministic")).hexdigest()[:10]


def owner(daemon_set: Mapping[str, Any]) -> Document:
    """The owner reference to a DaemonSet."""
    meta = daemon_set["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _owned(daemon_set: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> Document:
    namespace = daemon_set["metadata"]["namespace"]
    return {"name": name, "namespace": namespace, "labels": dict(labels), "ownerReferences": [owner(daemon_set)]}


def revision(daemon_set: Mapping[str, Any]) -> Document:
    """The ControllerRevision of the template as it is."""
    meta, labels = daemon_set["metadata"], daemon_set["spec"]["selector"]["matchLabels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": _owned(daemon_set, f"{meta['name']}-{revision_hash(daemon_set)}", labels),
        "revision": meta["generation"],
        "data": {},
    }


def pod(daemon_set: Mapping[str, Any], node: str) -> Document:
    """A pod of the DaemonSet on a node, without what it would run."""
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    name = f"{daemon_set['metadata']['name']}-{node}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _owned(daemon_set, name, {**labels, REVISION_HASH: revision_hash(daemon_set)}),
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10"}],
        },
    }


RUNNING: Document = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": "pause", "image": "pause", "imageID": "", "ready": True, "started": True, "restartCount": 0}
        ],
    }
}


class DaemonSets:
    """The part itself. ``nodes`` are labels by name and may grow; call :meth:`nodes_changed` then."""

    def __init__(self, client: Client, namespace: str, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._client = client
        self._nodes = nodes
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()
        self._pods: dict[tuple[str, str], str] = {}
        self._told: dict[str, Document] = {}
        self._seen: Informer[Document] = Informer(client, kinds.DAEMON_SET, dict, namespace=namespace)
        self._seen.subscribe(lambda _: self._changed.set())

    def begin(self) -> None:
        """Fill in from now on."""
        self._begun.set()
        self._changed.set()

    def nodes_changed(self) -> None:
        """A node has come or has other labels."""
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        watching = asyncio.create_task(self._seen.run())
        try:
            await self._work()
        finally:
            watching.cancel()

    async def _work(self) -> None:
        await self._begun.wait()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.gather(*(self._fill_in(each) for each in list(self._seen.values())))
            await asyncio.sleep(PAUSE_S)

    async def _fill_in(self, daemon_set: Document) -> None:
        """One DaemonSet. It may be gone or changed by now; then its event brings us back."""
        meta, names = daemon_set["metadata"], matching(daemon_set, self._nodes)
        said = status(daemon_set, len(names))
        if self._told.get(meta["uid"]) == said:
            return
        with contextlib.suppress(NotFound, Conflict):
            if (daemon_set["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
                await self._pods_of(daemon_set, names)
            patch = {"metadata": {"uid": meta["uid"]}, "status": said}
            await self._client.patch(
                kinds.DAEMON_SET, meta["name"], patch, namespace=meta["namespace"], subresource="status"
            )
            self._told[meta["uid"]] = said

    async def _pods_of(self, daemon_set: Document, names: list[str]) -> None:
        uid, wanted = daemon_set["metadata"]["uid"], revision_hash(daemon_set)
        waiting = [name for name in names if self._pods.get((uid, name)) != wanted]
        if waiting:
            with contextlib.suppress(AlreadyExists):
                await self._client.create(kinds.CONTROLLER_REVISION, revision(daemon_set))

        async def worker() -> None:
            while waiting:
                await self._make_pod(daemon_set, waiting.pop())

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))

    async def _make_pod(self, daemon_set: Document, node: str) -> None:
        """A pod of the newest template; one of an older template becomes it, as if it had been replaced."""
        document, key = pod(daemon_set, node), (daemon_set["metadata"]["uid"], node)
        name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
        if key in self._pods:
            patch = {"metadata": {"labels": document["metadata"]["labels"]}}
            await self._client.patch(kinds.POD, name, patch, namespace=namespace)
        else:
            await self._client.create(kinds.POD, document)
            await self._client.patch(kinds.POD, name, RUNNING, namespace=namespace, subresource="status")
        self._pods[key] = document["metadata"]["labels"][REVISION_HASH]
