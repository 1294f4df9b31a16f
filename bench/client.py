"""What a request costs us: our client against lightkube's AsyncClient, PATCHing one node's labels.

``python -m bench.client [--requests N] [--in-flight N]`` starts a trivial HTTP server in a process of its own, which
answers every PATCH with a node of 50 labels, and prints requests a second and CPU time of the client a request. The
server is the same for both, so the ratio of CPU times is the clients' own; requests a second are bounded by the server
too.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import lightkube
import msgspec
from aiohttp import web
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from bench.table import machine, show
from groundplane.cluster import kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.views import NodeView

LABELS = {f"nvidia.com/gpu.deploy.component-{number}": "true" for number in range(50)}
NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)
NODE = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1", "uid": "1", "resourceVersion": "1", "labels": LABELS},
        "status": {"nodeInfo": dict.fromkeys(NODE_INFO, "value")},
    }
).encode()
PATCH: dict[str, Any] = {"metadata": {"labels": dict(list(LABELS.items())[:12])}}
WARM_UP = 50

Send = Callable[[], Awaitable[object]]


class Result(msgspec.Struct, frozen=True):
    """One client's run. ``wall_s`` and ``cpu_s`` are for all requests together."""

    client: str
    requests: int
    wall_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        return self.requests / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.requests * 1e6


def serve(ready: Connection) -> None:
    """The server process: answers until it is terminated; sends its port first."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=NODE, content_type="application/json")

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


async def measure(name: str, requests: int, in_flight: int, send: Send) -> Result:
    """``requests`` calls of ``send``, ``in_flight`` at a time, after a warm-up that is not counted."""

    async def worker(count: int) -> None:
        for _ in range(count):
            await send()

    await worker(WARM_UP)
    shares = [requests // in_flight + (number < requests % in_flight) for number in range(in_flight)]
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker(share) for share in shares))
    return Result(name, requests, time.perf_counter() - wall, time.process_time() - cpu)


async def ours(url: str, requests: int, in_flight: int) -> Result:
    """Our client, decoding the answer into the operator's node view."""
    async with Client(Config(server=url, token="secret"), max_in_flight=in_flight) as client:
        return await measure(
            "groundplane", requests, in_flight, lambda: client.patch(kinds.NODE, "node-1", PATCH, view=NodeView)
        )


async def theirs(url: str, requests: int, in_flight: int) -> Result:
    """lightkube's client, decoding the answer into its Node model, as it always does."""
    client = lightkube.AsyncClient(config=KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="secret")))
    return await measure(
        "lightkube", requests, in_flight, lambda: client.patch(Node, "node-1", PATCH, patch_type=PatchType.MERGE)
    )


def compare(requests: int = 2000, in_flight: int = 16) -> tuple[Result, Result]:
    """Both clients against one server: (ours, lightkube's)."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        if not here.poll(30):
            raise RuntimeError("the server process did not start within 30 s")
        url = f"http://127.0.0.1:{here.recv()}"
        return asyncio.run(ours(url, requests, in_flight)), asyncio.run(theirs(url, requests, in_flight))
    finally:
        server.terminate()
        server.join()


def report(results: tuple[Result, Result]) -> None:
    """Print the results, and the ratios of lightkube's figures to ours."""
    own, other = results
    show(
        "PATCH of a node with 50 labels, one client process against one server process",
        ["client", "PATCHes", "seconds", "PATCHes/s", "CPU us/PATCH"],
        [[r.client, r.requests, r.wall_s, round(r.per_second), round(r.cpu_us)] for r in results],
        f"ratio to lightkube: {own.per_second / other.per_second:.1f} x the PATCHes a second, "
        f"1/{other.cpu_us / own.cpu_us:.1f} of the CPU time each; {machine()}",
    )


def main(argv: list[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=2000, help="PATCHes a client (default %(default)s)")
    parser.add_argument("--in-flight", type=int, default=16, help="PATCHes at a time (default %(default)s)")
    args = parser.parse_args(argv)
    report(compare(args.requests, args.in_flight))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
