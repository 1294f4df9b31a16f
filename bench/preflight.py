"""Preflight of a large cluster: time, memory and requests: `python -m bench.preflight [NODES]`.

The lab is one process and the command another, as in a cluster; nodes are hollow, with GPUs and operands of the shipped
operator. The command is `groundplane preflight` itself, so that its printing counts too; nodes are not looked into.
"""

import argparse
import asyncio
import contextlib
import io
import json
import time
from typing import Any

from groundplane.cli.main import main as groundplane
from groundplane.cluster.client import Client

from . import largecluster, table
from .largecluster import GPUS, LIMIT_LISTS, LIMIT_MIB, LIMIT_S


def _judged(kubeconfig: str) -> dict[str, Any]:
    """What `preflight` does, in this process alone; its clients tell what they asked for."""
    requests: list[Any] = []
    close = Client.close

    async def counted(client: Client) -> None:
        requests.append(client.requests)
        await close(client)

    Client.close = counted  # type: ignore[method-assign, assignment]
    printed = io.StringIO()
    began = time.monotonic()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        groundplane(["preflight", "--kubeconfig", kubeconfig])
    took = time.monotonic() - began
    asked = [(verb, count) for each in requests for (verb, *_), count in each.items()]
    lists = sum(count for verb, count in asked if verb == "list")
    return {
        "all": took,
        "mib": largecluster.peak_mib(),
        "lists": lists,
        "others": sum(count for _, count in asked) - lists,
        "lines": len(printed.getvalue().splitlines()),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[1000])
    parser.add_argument("--tool", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tool:
        print(json.dumps(_judged(arguments.tool)))
        return
    rows = []
    for nodes in arguments.nodes:
        figures = asyncio.run(largecluster.measured("bench.preflight", nodes))
        names = ("nodes", "pods", "all", "mib", "lists", "others", "lines")
        ratios = (figures["all"] / LIMIT_S, figures["mib"] / LIMIT_MIB, figures["lists"] / LIMIT_LISTS)
        rows.append([*(figures[name] for name in names), *ratios])
    table.show(
        f"preflight, {GPUS} GPUs a node ({table.machine()})",
        ["nodes", "pods", "all s", "peak MiB", "lists", "other requests", "lines", "time", "memory", "requests"],
        rows,
        f"limits at 1,000 nodes: {LIMIT_S:g} s, {LIMIT_MIB} MiB, {LIMIT_LISTS} lists; the last columns are ratios to "
        "them",
    )


if __name__ == "__main__":
    main()
