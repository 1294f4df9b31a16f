"""Baseline and drift of a large cluster: time, memory and requests: `python -m bench.drift [NODES]`.

The lab is one process and the tool another, as in a cluster; nodes are hollow, with GPUs and operands of the shipped
operator. Nobody answers for a hollow node's exporter or nvidia-smi; that each node is asked, and in vain, is measured.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from groundplane.admin import baseline, drift
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.diagnose import findings, html
from groundplane.lab import cluster, resources

from . import table

LIMIT_S = 10.0
LIMIT_MIB = 200
LIMIT_LISTS = 50
GPUS = 8


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


def _peak_mib() -> float:
    """The most memory of this program; ``ru_maxrss`` would count the parent's before the program was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


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
        "mib": _peak_mib(),
        "lists": client.lists,
        "others": client.others,
        "kib": (folder / "saved.tar.gz").stat().st_size / 1024,
    }
    print(json.dumps(figures))


async def _measured(nodes: int, asked: bool) -> dict[str, Any]:
    async with cluster.Lab(hollow=nodes, hollow_gpus=GPUS) as lab:
        await lab.apply([cluster.data("guide-baseline.yaml")])

        def settled() -> bool:
            pods = lab.api.list(resources.PODS)["items"]
            return len(pods) >= 5 * nodes and all(pod["status"].get("phase") == "Running" for pod in pods)

        await lab.wait_until(settled, timeout_s=300, what=f"the operands of {nodes} nodes")
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = lab.kubeconfig(Path(folder) / "kubeconfig")
            arguments = ["-m", "bench.drift", "--tool", str(kubeconfig), *([] if asked else ["--no-ask"])]
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
    parser.add_argument("--no-ask", action="store_true", help="do not ask the nodes for GPUs and counters")
    arguments = parser.parse_args()
    if arguments.tool:
        _tool(arguments.tool, Path(arguments.tool).parent, not arguments.no_ask)
        return
    rows = []
    for nodes in arguments.nodes:
        figures = asyncio.run(_measured(nodes, not arguments.no_ask))
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
