"""Nodes without machines on a real control plane: each is Ready as long as this runs, its pods count as running.

What a kubelet would write is written over HTTP: heartbeats, the status of pods that were bound to a node, the end of
pods that are deleted. Nothing runs. Nodes and pods look as they do on the lab's hollow nodes.
"""

import asyncio
import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from groundplane.cluster import errors, kinds
from groundplane.cluster.client import Client, PatchType
from groundplane.lab.kubelet import hollow

Document = Mapping[str, Any]

LEASES: Final = "kube-node-lease"
BEAT_S: Final = 10.0
"""Between two heartbeats; the control plane takes a node for lost after 40 s."""
AGAIN_S: Final = 0.2


def timestamp() -> str:
    """Now, as objects have it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class HollowNodes:
    """Serves some nodes through a client that may do everything. An asynchronous context manager.

    ``labels`` are set beside the usual ones; None takes a usual one away.
    """

    def __init__(
        self, client: Client, names: Sequence[str], *, gpus: int = 0, labels: Mapping[str, str | None] | None = None
    ) -> None:
        self._client = client
        self._names = tuple(names)
        self._gpus = gpus
        self._labels = dict(labels or {})
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for name in self._names:
            await self._register(name)
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._serve())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in self._names:
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(kinds.NODE, name)
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(kinds.LEASE, name, LEASES)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    def check(self) -> None:
        """Raise what a part of this has failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _register(self, name: str) -> None:
        document = hollow.node(name, timestamp(), self._gpus)
        wanted = {**document["metadata"]["labels"], **self._labels}
        document["metadata"]["labels"] = {key: value for key, value in wanted.items() if value is not None}
        del document["spec"]["podCIDR"]  # the controllers' to give
        await self._client.create(kinds.NODE, document)
        await self._status(kinds.NODE, name, None, document["status"])
        await self._renew(name)

    async def _status(self, kind: kinds.Kind, name: str, namespace: str | None, status: Document) -> None:
        await self._client.patch(
            kind, name, {"status": status}, namespace=namespace, type=PatchType.MERGE, subresource="status"
        )

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for name in self._names:
                await self._renew(name)

    async def _renew(self, name: str) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": LEASES},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
        }
        await self._client.apply(kinds.LEASE, lease, field_manager="kubelet")

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        mine = frozenset(self._names)
        while True:
            listing = await self._client.list(kinds.POD)
            for pod in listing.items:
                await self._pod(pod, mine)
            with contextlib.suppress(errors.Gone, errors.ConnectionLost):
                async with contextlib.aclosing(
                    self._client.watch(kinds.POD, resource_version=listing.resource_version)
                ) as events:
                    async for event in events:
                        if event.object is not None and event.type in ("ADDED", "MODIFIED"):
                            await self._pod(event.object, mine)
            await asyncio.sleep(AGAIN_S)

    async def _pod(self, pod: Document, mine: frozenset[str]) -> None:
        meta, status = pod["metadata"], pod.get("status") or {}
        if (pod.get("spec") or {}).get("nodeName") not in mine:
            return
        name, namespace = meta["name"], meta["namespace"]
        with contextlib.suppress(errors.NotFound, errors.Conflict):  # it is gone, or another one by now
            if meta.get("deletionTimestamp"):
                await self._client.delete(kinds.POD, name, namespace, uid=meta["uid"], grace_period_s=0)
            elif status.get("phase") not in ("Running", "Succeeded", "Failed"):
                await self._status(kinds.POD, name, namespace, hollow.running(pod, timestamp()))
