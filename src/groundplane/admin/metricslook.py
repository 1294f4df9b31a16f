"""What the exporters of a cluster answer, asked through the API server's proxy of their pods.

A look is bounded: some nodes, evenly spread, a limited number at once, a time limit each and a limit on a page's size.
Which GPUs a page should have is judged elsewhere. Works for any exporter that has DCGM's series and labels.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from ..cluster import errors
from ..cluster.kinds import POD
from ..diagnose import pods

if TYPE_CHECKING:
    from ..cluster.client import Client

T = TypeVar("T")

PORT: Final = 9400
"""Where an exporter listens whose pod names no port."""
AT_ONCE: Final = 16
TIMEOUT_S: Final = 15.0
_SERIES: Final = re.compile(r"^(DCGM_FI_\w+)\{([^}]*)\}", re.MULTILINE)
_UUID: Final = re.compile(r'(?:^|,)\s*UUID="([^"]*)"')


class Page(msgspec.Struct, frozen=True):
    """What an exporter said. ``uuids`` are of the GPUs that have a series; ``problem`` why there is no page."""

    uuids: frozenset[str] = frozenset()
    series: int = 0
    problem: str = ""
    forbidden: bool = False
    """It could not be asked, for want of a permission."""


class Exporter(NamedTuple):
    """An exporter's pod."""

    node: str
    namespace: str
    pod: str


def parse(page: str) -> Page:
    """The GPUs of a page in Prometheus' text format."""
    uuids: set[str] = set()
    count = 0
    for _, labels in _SERIES.findall(page):
        count += 1
        if found := _UUID.search(labels):
            uuids.add(found[1])
    return Page(frozenset(uuids), count)


def chosen(things: Sequence[T], limit: int) -> list[T]:
    """At most ``limit`` of them, evenly spread; all if ``limit`` is 0 or less."""
    if limit <= 0 or len(things) <= limit:
        return list(things)
    return [things[index * len(things) // limit] for index in range(limit)]


def port_of(pod: Mapping[str, Any], default: int = PORT) -> int:
    """The port that a pod names ``metrics``."""
    ports = (port for container in pods.containers(pod) for port in container.get("ports") or ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "metrics"), default)


async def text_of(client: "Client", namespace: str, pod: str, port: int = PORT) -> str:
    """A pod's page, through the API server's proxy. Raises ClusterError."""
    path = POD.path(namespace, f"{pod}:{port}", "proxy") + "/metrics"
    return (await client.raw("GET", path)).decode("utf-8", "replace")


async def look(client: "Client", exporters: Iterable[Exporter]) -> Mapping[str, Page]:
    """Ask exporters for their pages, :data:`AT_ONCE` at a time; a page by node. Raises nothing of the cluster's."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(each: Exporter) -> tuple[str, Page]:
        try:
            async with slots, asyncio.timeout(TIMEOUT_S):
                return each.node, parse(await text_of(client, each.namespace, each.pod))
        except TimeoutError:
            return each.node, Page(problem=f"no answer within {TIMEOUT_S:g} s")
        except errors.Forbidden as error:
            return each.node, Page(problem=str(error), forbidden=True)
        except errors.ClusterError as error:
            return each.node, Page(problem=str(error))

    return dict(await asyncio.gather(*map(ask, exporters)))
