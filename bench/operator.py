"""The operator at 100, 1,000 and 5,000 nodes: `python -m bench.operator [NODES ...]`.

The lab (API server, controllers, hollow kubelets) runs in this process; the operator is the shipped executable in a
process of its own, so its memory is its own. The reference is a bare client that patches the same nodes on the same
API server with 16 requests in flight: nobody can label nodes faster than that.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from groundplane.api import names
from groundplane.cluster import kinds
from groundplane.lab import cluster, demo, resources

from . import table

IN_FLIGHT = 16
QUIET_S = 60.0
USER_AGENT = "gpu-operator"
LIMITS_MIB = {1000: 90, 5000: 200}
JOINS = 10


class Operator:
    """The shipped operator as a child process."""

    def __init__(self, kubeconfig: Path) -> None:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "OPERATOR_NAMESPACE": cluster.OPERATOR_NAMESPACE}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "groundplane", "operator"),
                *("--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"),
            ],
            env=environment,
            stdout=self._log,
            stderr=self._log,
        )

    def check(self) -> None:
        """Raise with the end of the log when the process has ended."""
        if self._process.poll() is not None:
            self._log.seek(0)
            raise RuntimeError(f"the operator ended: {self._log.read()[-2000:].decode()}")

    def stop(self) -> tuple[float, float]:
        """End it; return its peak resident memory in MiB and its CPU seconds."""
        self._process.send_signal(signal.SIGTERM)
        _pid, _status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = 0
        self._log.close()
        unit = 1024 if sys.platform.startswith("linux") else 1024 * 1024
        return usage.ru_maxrss / unit, usage.ru_utime + usage.ru_stime


async def _until(operator: Operator | None, done: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        if operator is not None:
            operator.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {limit_s:g} s")
        await asyncio.sleep(0.01)


def _labelled(lab: cluster.Lab, counter: list[int]) -> Callable[[], bool]:
    """Count labelled nodes as changes happen, so that waiting costs nothing."""
    seen: set[str] = set()

    def note(_type: str, new: dict[str, Any], _old: object) -> None:
        if new["metadata"].get("labels", {}).get(names.DEPLOY_DRIVER):
            seen.add(str(new["metadata"]["name"]))

    lab.api.on_change(resources.NODES, note)
    return lambda: len(seen) >= counter[0]


async def _bare_client(count: int) -> float:
    """Seconds to patch the same nodes with the same labels, nothing else."""
    labels = dict.fromkeys(_container_labels(), "true")
    body = {"metadata": {"labels": labels, "annotations": {names.DRIVER_UPGRADE_ENABLED: "true"}}}
    async with cluster.Lab(hollow=count, operator=False) as lab:
        await _until(None, lambda: len(lab.api.select(resources.NODES)) >= count, 120, "nodes registered")
        async with lab.client(user_agent="bare") as client:
            nodes = [item["metadata"]["name"] for item in (await client.list(kinds.NODE)).items]
            gate = asyncio.Semaphore(IN_FLIGHT)

            async def one(name: str) -> None:
                async with gate:
                    await client.patch(kinds.NODE, name, body)

            began = time.monotonic()
            await asyncio.gather(*(one(name) for name in nodes))
            return time.monotonic() - began


def _container_labels() -> list[str]:
    return [
        *(names.GPU_PRESENT, names.DEPLOY_DRIVER, names.DEPLOY_TOOLKIT, names.DEPLOY_DEVICE_PLUGIN, names.DEPLOY_GFD),
        *(names.DEPLOY_DCGM, names.DEPLOY_DCGM_EXPORTER, names.DEPLOY_NODE_STATUS_EXPORTER),
        *(names.DEPLOY_OPERATOR_VALIDATOR, names.DEPLOY_CLIENT),
    ]


async def _measure(count: int, quiet_s: float) -> tuple[list[object], list[object]]:
    bare_s = await _bare_client(count)
    async with cluster.Lab(hollow=count, operator=False) as lab:
        await _until(None, lambda: len(lab.api.select(resources.NODES)) >= count, 120, "nodes registered")
        await lab.apply([demo.data("guide-baseline.yaml")])
        wanted = [count]
        labelled = _labelled(lab, wanted)
        with tempfile.TemporaryDirectory() as folder:
            operator = Operator(lab.kubeconfig(Path(folder) / "kubeconfig"))
            try:
                began = time.monotonic()
                await _until(operator, labelled, 300, "nodes labelled")
                labelled_s = time.monotonic() - began
                await _until(operator, lambda: lab.policy_state() == "ready", 600, "policy ready")
                ready_s = time.monotonic() - began
                cold = _requests(lab)
                await asyncio.sleep(min(10.0, quiet_s))
                before = _requests(lab)
                await asyncio.sleep(quiet_s)
                quiet = _requests(lab) - before
                joins = [await _join(lab, operator, number) for number in range(JOINS)]
            finally:
                peak_mib, cpu_s = operator.stop()
    writes = sum(number for (verb, _), number in cold.items() if verb in ("PATCH", "POST", "PUT", "DELETE"))
    work = {key: number for key, number in quiet.items() if key[1] != "leases" and key[0] != "WATCH"}
    row: list[object] = [count, bare_s, labelled_s, labelled_s / bare_s, ready_s, cold.total(), writes, peak_mib]
    row += [LIMITS_MIB.get(count), sum(work.values()), cpu_s, statistics.median(joins) * 1000]
    lines: list[object] = [
        f"{count}: {verb} {resource} x{number}" for (verb, resource), number in sorted(quiet.items())
    ]
    return row, lines


def _requests(lab: cluster.Lab) -> Counter[tuple[str, str]]:
    return Counter((seen.verb, seen.resource) for seen in lab.faults.requests if seen.user_agent.startswith(USER_AGENT))


async def _join(lab: cluster.Lab, operator: Operator, number: int) -> float:
    """Seconds from a node's creation until its labels are there."""
    name = f"late-{number:03d}"
    labels = {names.PCI_GPU_LABELS[0]: "true", "kubernetes.io/hostname": name}
    began = time.monotonic()
    lab.api.create(
        resources.NODES,
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}},
    )

    def done() -> bool:
        node = lab.api.get(resources.NODES, name)
        return bool(node["metadata"].get("labels", {}).get(names.DEPLOY_DRIVER))

    await _until(operator, done, 30, f"{name} labelled")
    return time.monotonic() - began


def main() -> None:
    """Measure each size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[100, 1000, 5000])
    parser.add_argument("--quiet-seconds", type=float, default=QUIET_S)
    arguments = parser.parse_args()
    rows, quiet = [], []
    for count in arguments.nodes:
        row, requests = asyncio.run(_measure(count, arguments.quiet_seconds))
        rows.append(row)
        quiet += requests
    columns = ["nodes", "bare s", "labelled s", "ratio", "ready s", "requests", "writes", "peak MiB", "limit MiB"]
    columns += [f"requests in {arguments.quiet_seconds:g} quiet s", "CPU s", "join ms"]
    table.show(
        f"operator, cold, driver on, hollow nodes ({table.machine()})", columns, rows, "ratio: to the bare client"
    )
    print("\nrequests in the quiet time, by kind (watches and the lease may be here, nothing else):")
    print("\n".join(f"  {line}" for line in map(str, quiet)) or "  none")


if __name__ == "__main__":
    main()
