"""How soon a node has its GPU labels, and what that holds in memory: `python -m bench.features`.

gpu-feature-discovery runs as a process of its own, with eight simulated GPUs. The time is from the start of the process
to the labels: a file, or an object of the lab's API server. Memory is what is resident after some passes. The reference
is an interpreter that imports what such a program cannot do without, and does nothing.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from groundplane.api import node_features
from groundplane.lab import api, http, resources
from groundplane.node import ownprocess
from groundplane.node.devices import simulated
from groundplane.node.hostroot import HostRoot

from . import process, table

PROGRAM = "gpu-feature-discovery"
LIMIT_MS, LIMIT_MIB = 200, 60
ROUNDS = 9
GPUS = 8
SETTLED_S = 1.0
"""Some passes later; a pass is every 50 ms here."""
DEADLINE_S = 30.0
NAMESPACE, NODE = "default", "node"
OBJECT = f"nvidia-features-for-{NODE}"
NEEDED = {"file": "asyncio, msgspec", "NodeFeature object": "asyncio, msgspec, aiohttp"}
"""Modules of the reference."""

Figures = tuple[float, float]
"""One start: seconds until the labels are there, MiB resident a while later."""


def _environment(folder: Path) -> dict[str, str]:
    """Modules are compiled once, as they are in the image."""
    return {"PYTHONPYCACHEPREFIX": str(folder / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}


def _start(folder: Path, **env: str) -> process.Child:
    settings = {
        ownprocess.SIMULATION_ENV: str(folder),
        "GFD_SLEEP_INTERVAL": "50ms",
        "NODE_NAME": NODE,
        "NAMESPACE": NAMESPACE,
        **_environment(folder),
        **env,
    }
    return process.Child([sys.executable, "-m", "bench.simulated_node", PROGRAM], settings)


async def _measured(child: process.Child, began: float, done: Callable[[], bool]) -> Figures:
    deadline = began + DEADLINE_S
    while not done():
        child.check()
        if time.perf_counter() > deadline:
            child.kill()
            raise RuntimeError(f"no labels within {DEADLINE_S:g} s: {child.output()[-2000:]}")
        await asyncio.sleep(0.001)
    took = time.perf_counter() - began
    await asyncio.sleep(SETTLED_S)
    resident = child.memory_mib("VmRSS")
    await child.stop()
    return took, resident


async def _to_file(folder: Path) -> Figures:
    file = folder / "gfd"
    began = time.perf_counter()
    child = _start(folder, GFD_USE_NODE_FEATURE_API="false", GFD_OUTPUT_FILE=str(file))
    return await _measured(child, began, file.exists)


class ApiServer:
    """The lab's API server, which knows NodeFeature objects."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"

    async def __aenter__(self) -> "ApiServer":
        self._api = api.Api()
        for definition in node_features.definitions():
            self._api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, definition)
        self._server = await http.serve(self._api)
        self.kubeconfig.write_text(
            "{apiVersion: v1, kind: Config, current-context: lab, "
            "contexts: [{name: lab, context: {cluster: lab, user: lab}}], users: [{name: lab, user: {}}], "
            f"clusters: [{{name: lab, cluster: {{server: '{self._server.url}'}}}}]}}"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    def has_object(self) -> bool:
        """Whether the node's labels are there."""
        return self._api.find(self._api.resource("nodefeatures"), OBJECT, NAMESPACE) is not None

    def forget(self) -> None:
        """Delete the object of the start before."""
        if self.has_object():
            self._api.delete(self._api.resource("nodefeatures"), OBJECT, NAMESPACE)


async def _to_object(folder: Path, host: ApiServer) -> Figures:
    host.forget()
    began = time.perf_counter()
    child = _start(folder, KUBECONFIG=str(host.kubeconfig))
    return await _measured(child, began, host.has_object)


def _reference_ms(folder: Path, modules: str) -> float:
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {modules}"], env=_environment(folder), check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) * 1000


async def _rows(folder: Path) -> list[list[object]]:
    rows: list[list[object]] = []
    async with ApiServer(folder) as host:
        runs: list[tuple[str, Callable[[], Awaitable[Figures]]]] = [
            ("file", lambda: _to_file(folder)),
            ("NodeFeature object", lambda: _to_object(folder, host)),
        ]
        for name, run in runs:
            found = [await run() for _ in range(ROUNDS + 1)][1:]  # the first compiles
            took = statistics.median(seconds for seconds, _ in found) * 1000
            fastest = min(seconds for seconds, _ in found) * 1000
            reference = await asyncio.to_thread(_reference_ms, folder, NEEDED[name])
            resident = max(mib for _, mib in found)
            rows.append([name, took, fastest, reference, took / reference, LIMIT_MS, resident, LIMIT_MIB])
    return rows


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = HostRoot(folder).path(ownprocess.DEVICES)
        file.parent.mkdir(parents=True)
        simulated.Machine.create(file, simulated.describe(NODE, ["H100"] * GPUS, "580.95.05"))
        rows = asyncio.run(_rows(folder))
    table.show(
        f"labels of {GPUS} GPUs, median of {ROUNDS} ({table.machine()})",
        ["labels in a", "ms", "fastest ms", "bare imports ms", "ratio", "limit ms", "resident MiB", "limit MiB"],
        rows,
        "from the start of the process, the interpreter's own start included",
    )


if __name__ == "__main__":
    main()
