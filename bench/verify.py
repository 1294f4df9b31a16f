"""Verify of a large cluster: time, memory and requests: `python -m bench.verify [NODES]`.

The lab is one process and the command another, as in a cluster; nodes are hollow, with GPUs and operands of the shipped
operator. Nobody answers for a hollow node's exporter, and no labels tell of its GPUs: that each is asked for, found
missing and told of, is measured.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from groundplane.admin import metricslook, verify, verify_gpus
from groundplane.cli.verify import METRICS_ASKED
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.diagnose import findings, survey
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
        "mib": _peak_mib(),
        "lists": lists,
        "others": others,
        "lines": len(lines),
    }


async def _measured(nodes: int) -> dict[str, Any]:
    async with cluster.Lab(hollow=nodes, hollow_gpus=GPUS) as lab:
        await lab.apply([cluster.data("guide-baseline.yaml")])

        def settled() -> bool:
            pods = lab.api.list(resources.PODS)["items"]
            return len(pods) >= 5 * nodes and all(pod["status"].get("phase") == "Running" for pod in pods)

        await lab.wait_until(settled, timeout_s=300, what=f"the operands of {nodes} nodes")
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = lab.kubeconfig(Path(folder) / "kubeconfig")
            arguments = ["-m", "bench.verify", "--tool", str(kubeconfig)]
            process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        found: dict[str, Any] = json.loads(output)
        return found


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
        figures = asyncio.run(_measured(nodes))
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
