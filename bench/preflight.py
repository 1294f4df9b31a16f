"""Preflight of a large cluster: time, memory and requests: `python -m bench.preflight [NODES]`.

The lab is one process and the command another, as in a cluster; nodes are hollow, with GPUs and operands of the shipped
operator. The command is `groundplane preflight` itself, so that its printing counts too; nodes are not looked into.
"""

import argparse
import asyncio
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from groundplane.cli.main import main as groundplane
from groundplane.cluster.client import Client
from groundplane.lab import cluster, resources

from . import table

LIMIT_S = 10.0
LIMIT_MIB = 200
LIMIT_LISTS = 50
GPUS = 8


def _peak_mib() -> float:
    """The most memory of this program; ``ru_maxrss`` would count the parent's before the program was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


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
        "mib": _peak_mib(),
        "lists": lists,
        "others": sum(count for _, count in asked) - lists,
        "lines": len(printed.getvalue().splitlines()),
    }


async def _measured(nodes: int) -> dict[str, Any]:
    async with cluster.Lab(hollow=nodes, hollow_gpus=GPUS) as lab:
        await lab.apply([cluster.data("guide-baseline.yaml")])

        def pods() -> list[Any]:
            found: list[Any] = lab.api.list(resources.PODS)["items"]
            return found

        def settled() -> bool:
            seen = pods()
            return len(seen) >= 5 * nodes and all(pod["status"].get("phase") == "Running" for pod in seen)

        await lab.wait_until(settled, timeout_s=300, what=f"the operands of {nodes} nodes")
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = lab.kubeconfig(Path(folder) / "kubeconfig")
            arguments = ["-m", "bench.preflight", "--tool", str(kubeconfig)]
            process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        found: dict[str, Any] = json.loads(output)
        return {"nodes": nodes, "pods": len(pods()), **found}


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
        figures = asyncio.run(_measured(nodes))
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
