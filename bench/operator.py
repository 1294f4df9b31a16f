"""The operator at 100, 1,000 and 5,000 nodes: `python -m bench.operator [NODES ...]`.

Two measurements a size; the operator is the shipped executable in a process of its own each time.

1. *Labelling*, on an API server alone: seconds until every node has its labels (from the first request, and from the
   start of the process), next to a bare client (its own process too) that patches the same nodes on the same server
   with 16 requests in flight (the stated reference) and with as many as the operator has.
2. *The whole way*, in a lab with DaemonSet controller, scheduler and hollow kubelets: labelled, policy ready, requests,
   memory, a quiet minute, and single nodes that join. The lab takes most of these seconds: it makes every pod.
"""

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from groundplane.lab import cluster, demo, resources
from groundplane.lab.kubelet import hollow
from groundplane.operator import settings

from . import process, table
from .cluster import ApiServer, Nodes, Requests, count, kubeconfig, until

OPERATOR_AGENT = "gpu-operator"
QUIET_S = 60.0
SETTLE_S = 10.0
"""Between ready and the quiet time: leases, events and the watches' echoes."""
JOINS = 10
LABEL_RATIO = 1.2
LIMITS_MIB = {1000: 90.0, 5000: 200.0}
JOIN_LIMIT_MS = 100.0
WRITES = ("create", "update", "patch", "delete", "deletecollection")


class Labelling(msgspec.Struct, frozen=True):
    """Seconds until all nodes are labelled: from the process' start, and from its first request."""

    cold_s: float
    asking_s: float
    usage: process.Usage
    server_cpu_s: float
    written_once: bool


def _policy() -> dict[str, Any]:
    document: dict[str, Any] = demo.data("guide-baseline.yaml")
    return document


async def _label(nodes: int, start: Callable[[ApiServer, Path], process.Child]) -> Labelling:
    """Have one child label all nodes of a fresh API server."""
    gc.collect()
    server = ApiServer(nodes, _policy())
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        async with server.serving():
            began, cpu = time.monotonic(), time.process_time()
            child = start(server, Path(folder))
            try:
                await until(lambda: bool(server.faults.requests), child.check, 60, "a first request")
                asked = time.monotonic()
                await until(lambda: len(server.nodes.labelled) >= nodes, child.check, 300, "nodes labelled")
                cpu = time.process_time() - cpu
            finally:
                usage = await child.stop()
            ended = max(server.nodes.labelled.values())
    gc.unfreeze()
    once = all(server.nodes.writes[name] == 1 for name in server.nodes.labelled)
    return Labelling(ended - began, ended - asked, usage, cpu, once)


def _bare(server: ApiServer, _folder: Path) -> process.Child:
    return process.bare_client(server.url, process.REFERENCE_IN_FLIGHT)


def _bare_alike(server: ApiServer, _folder: Path) -> process.Child:
    return process.bare_client(server.url, settings.NODE_WRITES_IN_FLIGHT)


def _operator(server: ApiServer, folder: Path) -> process.Child:
    return process.operator(kubeconfig(server.url, folder / "kubeconfig"), cluster.OPERATOR_NAMESPACE)


def labelling(nodes: int, rounds: int) -> list[object]:
    """One row of the first table: medians of ``rounds`` runs, taken in turns."""
    starts = (_bare, _bare_alike, _operator)
    turns = [[asyncio.run(_label(nodes, start)) for start in starts] for _ in range(rounds)]
    bare, alike, ours = (_Medians(runs) for runs in zip(*turns, strict=True))
    once = "yes" if all(run[-1].written_once for run in turns) else "NO"
    return [
        *(nodes, bare.asking_s, alike.asking_s, ours.asking_s),
        *(ours.asking_s / bare.asking_s, ours.asking_s / alike.asking_s, LABEL_RATIO),
        *(bare.cold_s, ours.cold_s, ours.cold_s / bare.cold_s),
        *(bare.cpu_s, ours.cpu_s, bare.server_cpu_s, ours.server_cpu_s, once),
    ]


class _Medians:
    """The middle of several runs of one client."""

    def __init__(self, runs: Sequence[Labelling]) -> None:
        self.cold_s = statistics.median(run.cold_s for run in runs)
        self.asking_s = statistics.median(run.asking_s for run in runs)
        self.cpu_s = statistics.median(run.usage.cpu_s for run in runs)
        self.server_cpu_s = statistics.median(run.server_cpu_s for run in runs)


class Whole(msgspec.Struct):
    """What one operator did in a whole lab."""

    labelled_s: float
    ready_s: float
    cold: Requests
    quiet: Requests
    joins_s: list[float]
    join_writes: int
    usage: process.Usage
    ready_mib: float
    node_writes: int


async def _whole(nodes: int, quiet_s: float) -> Whole:
    async with cluster.Lab(hollow=nodes, operator=False, speed=1.0) as lab:
        await until(lambda: len(lab.api.select(resources.NODES)) >= nodes, lab.check, 300, "nodes registered")
        await lab.apply([_policy()])
        seen = Nodes(lab.api)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            child = process.operator(lab.kubeconfig(Path(folder) / "kubeconfig"), cluster.OPERATOR_NAMESPACE)

            def check() -> None:
                child.check()
                lab.check()

            try:
                await until(lambda: len(seen.labelled) >= nodes, check, 600, "nodes labelled")
                labelled_s = max(seen.labelled.values()) - began
                await until(lambda: lab.policy_state() == "ready", check, 900, "policy ready")
                ready_s = time.monotonic() - began
                rss = child.memory_mib("VmRSS")
                await asyncio.sleep(SETTLE_S)
                cold = count(lab.faults, OPERATOR_AGENT)
                node_writes = seen.writes.total()
                await asyncio.sleep(quiet_s)
                quiet = count(lab.faults, OPERATOR_AGENT) - cold
                joins = [await _join(lab, seen, check, number) for number in range(JOINS)]
                await asyncio.sleep(1.0)
                join_writes = max(seen.writes[_late(number)] for number in range(JOINS))
            finally:
                usage = await child.stop()
    return Whole(labelled_s, ready_s, cold, quiet, joins, join_writes, usage, rss, node_writes)


def _late(number: int) -> str:
    return f"late-{number:03d}"


async def _join(lab: cluster.Lab, seen: Nodes, check: Callable[[], None], number: int) -> float:
    """Seconds from a node's creation until its labels are there."""
    name = _late(number)
    began = time.monotonic()
    lab.api.create(resources.NODES, hollow.node(name, lab.clock.timestamp()))
    await until(lambda: name in seen.labelled, check, 30, f"{name} labelled")
    await asyncio.sleep(0.2)
    return seen.labelled[name] - began


def _quiet(requests: Requests) -> Requests:
    """Requests that a quiet cluster must not see: all but watches and the lease."""
    return Requests({key: n for key, n in requests.items() if key[0] != "watch" and key[1] != "leases"})


def _row(nodes: int, found: Whole) -> list[object]:
    writes = sum(n for (verb, _), n in found.cold.items() if verb in WRITES)
    return [
        *(nodes, found.labelled_s, found.ready_s, found.cold.total(), writes, found.node_writes),
        *(found.usage.peak_mib, LIMITS_MIB.get(nodes), found.ready_mib, found.usage.cpu_s),
        *(_quiet(found.quiet).total(), statistics.median(found.joins_s) * 1000, JOIN_LIMIT_MS, found.join_writes),
    ]


def _details(title: str, requests: Requests) -> None:
    rows = [[verb, resource, number] for (verb, resource), number in sorted(requests.items())]
    table.show(title, ["verb", "resource", "requests"], rows)


def main() -> None:
    """Measure each size and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[100, 1000, 5000])
    parser.add_argument("--rounds", type=int, default=3, help="runs of the labelling measurement (default %(default)s)")
    parser.add_argument("--quiet-seconds", type=float, default=QUIET_S)
    parser.add_argument("--only", choices=["label", "whole"], help="one measurement only")
    arguments = parser.parse_args()
    if arguments.only != "whole":
        alike = f"bare s, {settings.NODE_WRITES_IN_FLIGHT} in flight"
        columns = ["nodes", "bare s", alike, "ours s", "ratio", "ratio alike", "limit"]
        columns += ["bare s with start", "ours s with start", "ratio"]
        columns += ["bare CPU s", "ours CPU s", "server CPU s, bare", "ours", "one write a node"]
        rows = [labelling(nodes, arguments.rounds) for nodes in arguments.nodes]
        note = f"median of {arguments.rounds}; from the first request, and from the process' start, to the last label"
        table.show(f"label all nodes, cold, on an API server alone ({table.machine()})", columns, rows, note)
    if arguments.only != "label":
        whole = {nodes: asyncio.run(_whole(nodes, arguments.quiet_seconds)) for nodes in arguments.nodes}
        columns = ["nodes", "labelled s", "ready s", "requests", "writes", "node writes", "peak MiB", "limit MiB"]
        columns += ["MiB at ready", "CPU s", f"requests in {arguments.quiet_seconds:g} quiet s", "join ms", "limit ms"]
        columns += ["writes a join"]
        rows = [_row(nodes, found) for nodes, found in whole.items()]
        note = "quiet requests: other than watches and the lease; join: median until a new node has its labels"
        table.show(f"the whole way in the lab, driver on, hollow nodes ({table.machine()})", columns, rows, note)
        for nodes, found in whole.items():
            _details(f"{nodes} nodes: the operator's requests until ready", found.cold)
            _details(f"{nodes} nodes: its requests in {arguments.quiet_seconds:g} quiet s", found.quiet)


if __name__ == "__main__":
    main()
