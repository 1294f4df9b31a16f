"""``python -m bench doctor``: the doctor on a cluster of 1,000 nodes of which 20 are broken, and on one pasted log.

The cluster is the lab's with hollow nodes; broken ones have a driver pod that crashes and offer no GPU. All operands
have logs, longer than the doctor reads; the drivers' that crash say why. Figures: the whole command as a process,
requests by kind, and the size of the evidence.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.cluster import kinds
from groundplane.diagnose import collect, doctor
from groundplane.lab.cluster import Lab

NODES: Final = 1000
BROKEN: Final = 20
LIMIT_S: Final = 10.0
PASTE_LIMIT_S: Final = 0.3
NAMESPACE: Final = "gpu-operator"
LOG: Final = (
    "Creating directory NVIDIA-Linux-x86_64-580.95.05\nCould not resolve Linux kernel version\n"
    "Stopping NVIDIA persistence daemon...\n"
)
LINES: Final = 300
"""Of every operand's log."""
APPS: Final = (
    "nvidia-driver-daemonset",
    "nvidia-container-toolkit-daemonset",
    "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery",
    "nvidia-dcgm-exporter",
    "nvidia-operator-validator",
)


def pod(app: str, node: str, broken: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """An operand's pod and its status; a broken node's driver crashes and all above it waits."""
    crashes = broken and app == APPS[0]
    state: dict[str, Any] = {"running": {}}
    if broken:
        state = {"waiting": {"reason": "CrashLoopBackOff" if crashes else "PodInitializing"}}
    container = {"name": app, "ready": not broken, "restartCount": 9 if crashes else 0, "state": state}
    if crashes:
        container["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
    spec = {"nodeName": node, "containers": [{"name": app, "image": f"nvcr.io/nvidia/{app}:v1"}]}
    meta = {"name": f"{app}-{node}", "namespace": NAMESPACE, "labels": {"app": app}}
    status = {
        "phase": "Pending" if broken and not crashes else "Running",
        "conditions": [{"type": "Ready", "status": str(not broken)}],
        "containerStatuses": [{**container, "image": "x", "imageID": "sha256:1"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, status


def log(app: str, node: str, broken: bool) -> str:
    """What an operand says in a day; the driver that crashes says its cause between the lines of its steps."""
    lines = [
        f"I1201 {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.{number * 7919 % 1000000:06}       1 "
        f"{app} on {node}: GPU-{number * 2654435761 % (1 << 32):08x} is looked at, state ok, {number} of {LINES} lines"
        for number in range(LINES)
    ]
    if broken and app == APPS[0]:
        lines[-40:-40] = LOG.splitlines()
    return "\n".join(lines) + "\n"


async def fill(lab: Lab) -> None:
    """Operands on every hollow node, where kubelets run them; then some are broken."""
    async with lab.client() as client:
        gate = asyncio.Semaphore(32)
        nodes = [f"hollow-{number:05d}" for number in range(NODES)]
        broken = set(nodes[:: NODES // BROKEN])

        async def place(node: str) -> None:
            labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-A100"}
            async with gate:
                await client.patch(kinds.NODE, node, {"metadata": {"labels": labels}})
                for app in APPS:
                    await client.create(kinds.POD, pod(app, node, False)[0])

        async def spoil(node: str) -> None:
            for app in APPS:
                document, status = pod(app, node, True)
                name = document["metadata"]["name"]
                await client.patch(kinds.POD, name, {"status": status}, namespace=NAMESPACE, subresource="status")

        await asyncio.gather(*map(place, nodes))
        for node in nodes:
            for app in APPS:
                lab.write_hollow_log(NAMESPACE, f"{app}-{node}", log(app, node, node in broken))
        pods = [(f"{app}-{node}", NAMESPACE) for app in APPS for node in nodes]
        await lab.wait_until(lambda: _run(lab, *pods[-1]) and _run(lab, *pods[0]), timeout_s=60, what="pods to run")
        await asyncio.sleep(2)
        await asyncio.gather(*map(spoil, sorted(broken)))


def _run(lab: Lab, name: str, namespace: str) -> bool:
    found = lab.api.find(lab.api.resource("pods"), name, namespace) or {}
    return bool(found.get("status", {}).get("phase") == "Running")


async def cluster() -> bool:
    """The command on the whole cluster; True if it was quick enough and found all that is broken."""
    async with Lab(hollow=NODES, hollow_gpus=8, operator=False) as lab:
        await fill(lab)
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = lab.kubeconfig(Path(folder) / "kubeconfig")
            begin = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "groundplane.cli.main", "doctor", "-o", "json"),
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
                stdout=subprocess.PIPE,
            )
            out, _ = await process.communicate()
            took = time.monotonic() - begin
        async with lab.client() as client:
            evidence = await collect.examine(client)
        begin = time.monotonic()
        doctor.diagnose(evidence)
        judged = time.monotonic() - begin
    found = msgspec.json.decode(out)
    sick = {node for each in found["findings"] if each["outcome"] in ("fail", "warn") for node in each["nodes"]}
    print(f"{NODES} nodes, {BROKEN} broken: {took:.1f} s as a process (limit {LIMIT_S:g} s), {judged:.1f} s of judging")
    print(f"nodes found broken: {len(sick)}; evidence: {len(evidence.objects)} objects, {len(evidence.logs)} logs")
    return took < LIMIT_S and len(sick) == BROKEN


def paste() -> bool:
    """The command on one pasted log, as a process; the best of five."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        path.write_text(LOG)
        times = []
        for _ in range(5):
            begin = time.monotonic()
            command = [sys.executable, "-m", "groundplane.cli.main", "doctor", "--from", str(path)]
            code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
            times.append(time.monotonic() - begin)
    print(
        f"one pasted log: {min(times) * 1000:.0f} ms as a process (limit {PASTE_LIMIT_S * 1000:g} ms), exit code {code}"
    )
    return min(times) < PASTE_LIMIT_S and code == 3


def main() -> int:
    """Exit code 1 if a limit is missed."""
    return 0 if all([paste(), asyncio.run(cluster())]) else 1


if __name__ == "__main__":
    sys.exit(main())
