"""What the benches of the administrator's commands share: a large hollow cluster, and the command as another process.

The lab is one process and the command another, as in a cluster: so memory is the command's alone.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from groundplane.lab import cluster, resources

LIMIT_S = 10.0
LIMIT_MIB = 200
LIMIT_LISTS = 50
"""At 1,000 nodes."""
GPUS = 8


def peak_mib() -> float:
    """The most memory of this program; ``ru_maxrss`` would count the parent's before the program was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


async def measured(module: str, nodes: int, *more: str) -> dict[str, Any]:
    """The figures that a bench's own process prints when it is given the kubeconfig of a cluster of so many nodes."""
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
            arguments = ["-m", module, "--tool", str(kubeconfig), *more]
            process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        found: dict[str, Any] = json.loads(output)
        return {"nodes": nodes, "pods": len(pods()), **found}
