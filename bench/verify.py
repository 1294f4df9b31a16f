"""Verify of a large cluster: time, memory and requests: `python -m bench.verify [NODES]`.

The lab is one process and the command another, as in a cluster; nodes are hollow, with GPUs and operands of the shipped
operator. Nobody answers for a hollow node's exporter, and no labels tell of its GPUs: that each is asked for, found
missing and told of, is measured.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from groundplane.admin import metricslook, verify, verify_gpus
from groundplane.cli.verify import METRICS_ASKED
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.diagnose import findings, survey

from . import largecluster, table
from .largecluster import GPUS, LIMIT_LISTS, LIMIT_MIB, LIMIT_S


async def _verified(kubeconfig: str) -> dict[str, Any]:
    """What `verify` does, in this process alone."""
    began = time.monotonic()
    async with Client(Config.detect(kubeconfig=kubeconfig)) as client:
        seen = await survey.live(client, verify.KINDS)
        read = time.monotonic() - began
        exporters = verify_gpus.exporters(verify.look(seen))
        pages = await metricslook.look(client, metricslook.chosen(exporters, METRICS_ASKED))
        asked = time.monotonic() - began - read
        lists = sum(count for (verb, *_), count in client.requests.items() if verb == "list")
        others = sum(client.requests.values()) - lists
    found = verify.verify(seen, metrics=pages)
    lines = findings.text(found)
    return {
        "nodes": len(seen.of_kind("nodes")),
        "read": read,
        "asked": asked,
        "all": time.monotonic() - began,
        "mib": largecluster.peak_mib(),
        "lists": lists,
        "others": others,
        "lines": len(lines),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[1000])
    parser.add_argument("--tool", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tool:
        print(json.dumps(asyncio.run(_verified(arguments.tool))))
        return
    rows = []
    for nodes in arguments.nodes:
        figures = asyncio.run(largecluster.measured("bench.verify", nodes))
        names = ("nodes", "read", "asked", "all", "mib", "lists", "others", "lines")
        rows.append([*(figures[name] for name in names), figures["all"] / LIMIT_S])
    table.show(
        f"verify, {GPUS} GPUs a node ({table.machine()})",
        ["nodes", "read s", "exporters s", "all s", "peak MiB", "lists", "other requests", "lines", "ratio"],
        rows,
        f"limits at 1,000 nodes: {LIMIT_S:g} s, {LIMIT_MIB} MiB, {LIMIT_LISTS} lists",
    )


if __name__ == "__main__":
    main()
