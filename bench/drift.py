"""Baseline and drift of a large cluster: time, memory and requests: `python -m bench.drift [NODES]`.

The lab is one process and the tool another, as in a cluster; nodes are hollow, with GPUs and operands of the shipped
operator. Nobody answers for a hollow node's exporter or nvidia-smi; that each node is asked, and in vain, is measured.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from groundplane.admin import baseline, drift
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.diagnose import findings, html

from . import largecluster, table
from .largecluster import GPUS, LIMIT_LISTS, LIMIT_MIB, LIMIT_S


class _Counted(Client):
    """A client that counts its requests."""

    lists = 0
    others = 0

    async def _send(self, request: Any) -> bytes:
        if request.verb == "list":
            self.lists += 1
        else:
            self.others += 1
        return await super()._send(request)


async def _taken(kubeconfig: str, asked: bool) -> tuple[baseline.Baseline, _Counted]:
    client = _Counted(Config.detect(kubeconfig=kubeconfig))
    async with client:
        return await baseline.take(client, metrics=asked, smi=asked), client


def _tool(kubeconfig: str, folder: Path, asked: bool) -> None:
    """What `baseline save` and `drift --html` do, in this process alone; prints the figures as JSON."""
    began = time.monotonic()
    taken, _ = asyncio.run(_taken(kubeconfig, asked))
    baseline.save(taken, folder / "saved.tar.gz", replace=True)
    saved = time.monotonic() - began
    began = time.monotonic()
    now, client = asyncio.run(_taken(kubeconfig, asked))
    was = baseline.load(folder / "saved.tar.gz")
    found = drift.drift(was, now)
    findings.text(found)
    page = html.page("drift", facts=drift.about(was, now), findings=found, sections=drift.sections(was, now))
    html.write(folder / "drift.html", page)
    figures = {
        "nodes": len(now.parts.nodes),
        "save": saved,
        "drift": time.monotonic() - began,
        "mib": largecluster.peak_mib(),
        "lists": client.lists,
        "others": client.others,
        "kib": (folder / "saved.tar.gz").stat().st_size / 1024,
    }
    print(json.dumps(figures))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[1000])
    parser.add_argument("--tool", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    parser.add_argument("--no-ask", action="store_true", help="do not ask the nodes for GPUs and counters")
    arguments = parser.parse_args()
    if arguments.tool:
        _tool(arguments.tool, Path(arguments.tool).parent, not arguments.no_ask)
        return
    rows = []
    for nodes in arguments.nodes:
        figures = asyncio.run(largecluster.measured("bench.drift", nodes, *(["--no-ask"] if arguments.no_ask else [])))
        names = ("nodes", "save", "drift", "mib", "lists", "others", "kib")
        rows.append([*(figures[name] for name in names), figures["drift"] / LIMIT_S])
    table.show(
        f"baseline and drift, {GPUS} GPUs a node ({table.machine()})",
        ["nodes", "save s", "drift s", "peak MiB", "lists", "other requests", "file KiB", "ratio"],
        rows,
        f"limits at 1,000 nodes: {LIMIT_S:g} s, {LIMIT_MIB} MiB, {LIMIT_LISTS} lists",
    )


if __name__ == "__main__":
    main()
