"""A label of the program's own node: read once, or followed through every change of its value.

What a value means is the program's business. Only the metadata of the one node is asked for and watched.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from .process import Process, wait_any

if TYPE_CHECKING:
    from ..cluster.client import Client
    from ..cluster.informer import Informer


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class NodeView(msgspec.Struct):
    """A node's metadata."""

    metadata_only: ClassVar[bool] = True
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


async def read(client: "Client", node: str, label: str) -> str:
    """The label's value now; empty if it, or the node, is not there. Raises ClusterError."""
    from ..cluster import errors
    from ..cluster.kinds import NODE

    try:
        found = await client.get(NODE, node, view=NodeView)
    except errors.NotFound:
        return ""
    return found.metadata.labels.get(label, "")


async def follow(process: Process, client: "Client", node: str, label: str, apply: Callable[[str], None]) -> None:
    """Call `apply` with the label's value (as of :func:`read`), then with each other value, until it raises.

    An API server that cannot be watched is told in the log and asked again.
    """
    from ..cluster.informer import Informer
    from ..cluster.kinds import NODE

    informer = Informer(
        client, NODE, NodeView, fields=f"metadata.name={node}", sleep=process.sleep, clock=process.monotonic
    )
    informer.on_trouble(lambda: _tell_trouble(process, informer))
    await wait_any(informer.run(), _each(informer, node, label, apply))


def _tell_trouble(process: Process, informer: "Informer[NodeView]") -> None:
    if informer.last_error is not None:
        process.log.warning(f"the node's label cannot be watched: {informer.last_error}; trying again")


async def _each(informer: "Informer[NodeView]", node: str, label: str, apply: Callable[[str], None]) -> None:
    changed = asyncio.Event()
    informer.subscribe(lambda _: changed.set())
    await informer.wait_synced()
    last: str | None = None
    while True:
        changed.clear()
        found = informer.get(node)
        value = found.metadata.labels.get(label, "") if found is not None else ""
        if value != last:
            apply(value)
            last = value
        await changed.wait()
