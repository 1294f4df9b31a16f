"""``python -m bench.diagnosis``: what the operator's diagnosis of 1,000 nodes costs: all healthy, and 20 broken.

The cluster is the lab's with hollow nodes, the operator a process of its own. Broken nodes have a driver pod that
crashes, with everything above it waiting. Figures: time and requests of a look, memory of the operator with the
diagnosis off, on, and after looks at what is broken.
"""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from groundplane.api import names
from groundplane.cluster import kinds
from groundplane.lab.cluster import OPERATOR_NAMESPACE, Lab, data
from groundplane.operator.main import USER_AGENT

from . import table

NODES: Final = 1000
BROKEN: Final = 20
INTERVAL_S: Final = 10
PATIENCE_S: Final = 240.0
LOOKS: Final = 3
LOOK_LIMIT_S: Final = 5.0
"""A look at what is broken may take so long: half of the shortest interval."""
QUIET_LIMIT: Final = 3
"""Requests of a look at a healthy cluster."""


class Process:
    """An operator as a process, and what it serves."""

    def __init__(self, lab: Lab, port: int, process: asyncio.subprocess.Process) -> None:
        self._lab = lab
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._process = process

    async def series(self) -> dict[str, float]:
        """Values by series; empty before it serves."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self._url) as answer:
                lines = (await answer.text()).splitlines()
        except aiohttp.ClientError:
            return {}
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    async def until(self, met: Callable[[dict[str, float]], bool], what: str) -> dict[str, float]:
        """The series as soon as they are as wanted."""
        async with asyncio.timeout(PATIENCE_S):
            while not met(found := await self.series()):
                if self._process.returncode is not None:
                    raise RuntimeError(f"the operator ended while waiting for {what}")
                await asyncio.sleep(0.2)
        return found

    @property
    def memory_mib(self) -> int:
        """Resident memory."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) // 1024  # type: ignore[index]

    async def looks(self) -> tuple[float, Counter[tuple[str, str]]]:
        """The longest of some looks in seconds, and the requests of one, but watches, by verb and resource."""
        last = "groundplane_diagnosis_last_success_timestamp_seconds"
        longest = 0.0
        seen = (await self.series())[last]
        self._lab.faults.requests.clear()
        for _ in range(LOOKS):
            found = await self.until(lambda found, seen=seen: found.get(last, 0.0) > seen, "a look")  # type: ignore[misc]
            seen = found[last]
            longest = max(longest, found["groundplane_diagnosis_duration_seconds"])
        made = Counter(
            (each.verb, each.subresource or each.resource)
            for each in self._lab.faults.requests
            if USER_AGENT in each.user_agent and each.verb != "watch"
        )
        return longest, Counter({key: round(count / LOOKS) for key, count in made.items()})


@contextlib.asynccontextmanager
async def operator(lab: Lab, folder: Path, *flags: str) -> AsyncIterator[Process]:
    """An operator on the lab."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kubeconfig = lab.kubeconfig(folder / "kubeconfig")
    listen = (f"--metrics-bind-address=127.0.0.1:{port}", "--health-probe-bind-address=0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "groundplane.cli.main", "operator", *listen, *flags),
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "OPERATOR_NAMESPACE": OPERATOR_NAMESPACE},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Process(lab, port, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def label(lab: Lab) -> None:
    """Nodes say which GPUs they have, as the discovery on hollow nodes does not."""
    async with lab.client() as client:
        gate = asyncio.Semaphore(32)

        async def one(number: int) -> None:
            async with gate:
                change = {"metadata": {"labels": {names.GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB"}}}
                await client.patch(kinds.NODE, f"hollow-{number:05d}", change)

        await asyncio.gather(*map(one, range(NODES)))


async def spoil(lab: Lab) -> None:
    """Some nodes' driver crashes, and what is above it waits."""
    broken = {f"hollow-{number:05d}" for number in range(0, NODES, NODES // BROKEN)}
    async with lab.client() as client:
        more = ""
        while True:
            part = await client.page(kinds.POD, OPERATOR_NAMESPACE, more=more)
            for pod in part.items:
                if pod["spec"].get("nodeName") in broken:
                    crashes = pod["metadata"]["labels"].get("app", "").startswith("nvidia-driver")
                    status = unready(pod, crashes)
                    name = pod["metadata"]["name"]
                    await client.patch(
                        kinds.POD, name, {"status": status}, namespace=OPERATOR_NAMESPACE, subresource="status"
                    )
            more = part.more
            if not more:
                return


def unready(pod: dict[str, Any], crashes: bool) -> dict[str, Any]:
    """The status of a pod that crashes, or waits for what is below it."""
    reason = "CrashLoopBackOff" if crashes else "PodInitializing"
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "sha256:1",
            "ready": False,
            "restartCount": 9 if crashes else 0,
            "state": {"waiting": {"reason": reason}},
        }
        for each in pod["spec"]["containers"]
    ]
    conditions = [{"type": "Ready", "status": "False"}]
    return {"phase": "Running" if crashes else "Pending", "conditions": conditions, "containerStatuses": containers}


async def measured(folder: Path) -> bool:
    """Print the table; True if within the limits."""
    async with Lab(hollow=NODES, hollow_gpus=8, operator=False) as lab:
        await label(lab)
        await lab.apply([data("guide-baseline.yaml")])
        async with operator(lab, folder) as off:
            await off.until(lambda found: found.get("gpu_operator_reconciliation_status") == 1, "a ready policy")
            without = off.memory_mib
        async with operator(lab, folder) as off:
            await off.until(lambda found: found.get("gpu_operator_reconciliation_status") == 1, "a ready policy")
            again = off.memory_mib
        async with operator(lab, folder, "--diagnosis", f"--diagnosis-interval={INTERVAL_S}s") as on:
            await on.until(
                lambda found: found.get("groundplane_diagnosis_last_success_timestamp_seconds", 0) > 0, "a look"
            )
            await on.until(lambda found: found["groundplane_diagnosis_sick_nodes"] == 0, "all nodes to be well")
            quiet_s, quiet = await on.looks()
            healthy = on.memory_mib
            await spoil(lab)
            found = await on.until(
                lambda found: found["groundplane_diagnosis_sick_nodes"] == BROKEN, "the broken nodes"
            )
            sick_s, sick = await on.looks()
            rows: list[list[object]] = [
                ["off, first start", None, None, without],
                ["off, started again", None, None, again],
                ["on, healthy", quiet_s, sum(quiet.values()), healthy],
                [f"on, {BROKEN} broken", sick_s, sum(sick.values()), on.memory_mib],
            ]
    table.show(
        f"diagnosis of {NODES} nodes ({table.machine()})", ["", "look s", "requests", "MiB"], rows, _told(sick, found)
    )
    return quiet_s < LOOK_LIMIT_S and sick_s < LOOK_LIMIT_S and sum(quiet.values()) <= QUIET_LIMIT


def _told(requests: Counter[tuple[str, str]], found: dict[str, float]) -> str:
    causes = [name for name in found if name.startswith("groundplane_diagnosis_cause_nodes")]
    asked = ", ".join(f"{count} {verb} {what}" for (verb, what), count in sorted(requests.items()))
    return f"requests of a look at what is broken: {asked}\n  causes: {'; '.join(causes)}"


def main() -> int:
    """Exit code 1 if a limit is missed."""
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(measured(Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
