"""How long the validator's chain takes on a healthy node: `python -m bench.validator`.

Each component runs as a process of its own, one after the other, as the init containers of the validator's pod do:
driver, toolkit, cuda with its workload pod, device plugin. The time of each is from the start of the process to its
end, the interpreter's own start included. The driver's tool answers at once, and a workload pod succeeds as soon as it
is there, so that what is measured is the validator. The CUDA check is measured beside it, on eight simulated GPUs.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundplane.node import ownprocess
from groundplane.node.hostroot import HostRoot
from groundplane.node.process import Completed

from . import table

if TYPE_CHECKING:
    from groundplane.cluster.client import Client
    from groundplane.node.devices.source import Source

CHAIN = ("driver", "toolkit", "cuda", "plugin")
CHECK = "vectorAdd"
LIMIT_S, LIMIT_MIB = 1.0, 60.0
ROUNDS = 9
GPUS = 8
NODE, NAMESPACE, VALIDATOR = "node", "gpu-operator", "nvidia-operator-validator"
ROOT_ENV, KUBECONFIG_ENV, PEAK_ENV = "BENCH_ROOT", "BENCH_KUBECONFIG", "BENCH_PEAK"


# --- the measured process ---------------------------------------------------------------------------------------------


class Prepared(ownprocess.OwnProcess):
    """This process on a healthy machine: its files are below a folder, and the driver's tool answers at once."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__(argv, env)
        self._below = HostRoot(env[ROOT_ENV])

    def path(self, path: str) -> Path:
        """Below the folder."""
        return self._below.path(path)

    async def execute(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        """The driver's tool succeeds."""
        return Completed(0, "NVIDIA-SMI 580.126.20\n", "")

    def client(self, kubeconfig: str = "") -> "Client":
        """A client of the benchmark's API server."""
        return super().client(self.env[KUBECONFIG_ENV])

    def devices(self, driver_root: str = "/") -> "Source":
        """The description's GPUs, with a driver."""
        from groundplane.node.devices import simulated

        file = self.kernel.path(ownprocess.DEVICES)
        return simulated.SimulatedSource(file, library=lambda: True, loaded=lambda: True)


def _child(argv: list[str]) -> int:
    """Run one program, and write down what memory it held at most."""

    async def run() -> int:
        process = Prepared(argv, os.environ)
        if argv[0] == CHECK:
            from groundplane.node.devices.simulated import SimulatedSource
            from groundplane.node.validate.cuda import main as check
            from groundplane.node.validate.cuda.simulated import SimulatedCuda, targets

            source = process.devices()
            assert isinstance(source, SimulatedSource)
            return await check.run(process, simulated=SimulatedCuda(source, lambda m: targets(m.cards.values())))
        from groundplane.node.validate import main

        return await main.run(process)

    code = asyncio.run(run())
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    Path(os.environ[PEAK_ENV]).write_text(peak)
    return code


# --- the node and its cluster -----------------------------------------------------------------------------------------


class Cluster:
    """The lab's API server, with a kubelet whose pods succeed at once."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"

    async def __aenter__(self) -> "Cluster":
        from groundplane.lab import api, http, resources

        self._api, self._pods = api.Api(), resources.PODS
        self._api.create(resources.NODES, {"metadata": {"name": NODE}})
        amounts = {"nvidia.com/gpu": str(GPUS)}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        self._api.patch(resources.NODES, NODE, status, type="merge", subresource="status", manager="kubelet")
        self._api.create(resources.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        self._api.create(resources.SERVICE_ACCOUNTS, {"metadata": {"name": VALIDATOR}}, NAMESPACE)
        self._api.create(resources.DAEMON_SETS, _daemon_set(), NAMESPACE)
        self._server = await http.serve(self._api)
        self.kubeconfig.write_text(
            "{apiVersion: v1, kind: Config, current-context: lab, "
            "contexts: [{name: lab, context: {cluster: lab, user: lab}}], users: [{name: lab, user: {}}], "
            f"clusters: [{{name: lab, cluster: {{server: '{self._server.url}'}}}}]}}"
        )
        self._kubelet = asyncio.create_task(self._run_pods())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._kubelet.cancel()
        await asyncio.gather(self._kubelet, return_exceptions=True)
        await self._server.close()

    async def _run_pods(self) -> None:
        done: dict[str, Any] = {"status": {"phase": "Succeeded"}}
        while True:
            for pod in self._api.list(self._pods, NAMESPACE)["items"]:
                if (pod.get("status") or {}).get("phase") != "Succeeded":
                    name = pod["metadata"]["name"]
                    self._api.patch(
                        self._pods, name, done, ns=NAMESPACE, type="merge", subresource="status", manager="kubelet"
                    )
            await asyncio.sleep(0.005)


def _daemon_set() -> dict[str, Any]:
    selector = {"app": VALIDATOR}
    pod = {"containers": [{"name": VALIDATOR, "image": "image"}]}
    template = {"metadata": {"labels": selector}, "spec": pod}
    return {"metadata": {"name": VALIDATOR}, "spec": {"selector": {"matchLabels": selector}, "template": template}}


def _machine(folder: Path) -> None:
    """A host with a driver, the links of which are made, and GPUs on the bus."""
    from groundplane.node.devices import simulated
    from groundplane.node.validate import driver

    root, kernel = HostRoot(folder / "root"), HostRoot(folder / "kernel")
    tool = root.write_atomic(f"{driver.HOST}/usr/bin/nvidia-smi", "#!/bin/sh\n")
    tool.chmod(0o755)
    for path in ("/run/nvidia", f"{driver.HOST}/dev", driver.DEV_CHAR, "/dev", "/tmp"):
        root.mkdir(path)
    for name in ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"):
        root.write_atomic(f"{driver.HOST}/dev/{name}", "")
    kernel.write_atomic("/proc/devices", "Character devices:\n195 nvidia\n505 nvidia-uvm\n")
    kernel.write_atomic(driver.MODULE, "1\n")
    for index in range(GPUS):
        root.write_atomic(f"/dev/nvidia{index}", "")
        for name, value in (("vendor", "0x10de"), ("class", "0x030200")):
            kernel.write_atomic(f"/sys/bus/pci/devices/0000:{index + 1}0:00.0/{name}", f"{value}\n")
    file = kernel.path(ownprocess.DEVICES)
    file.parent.mkdir(parents=True)
    simulated.Machine.create(file, simulated.describe(NODE, ["H100"] * GPUS, "580.126.20"))


# --- measuring --------------------------------------------------------------------------------------------------------

Figures = tuple[float, float]
"""Seconds from start to end, and MiB held at most."""


async def _run(folder: Path, kubeconfig: Path, program: str, **env: str) -> Figures:
    peak = folder / "peak"
    settings = {
        **os.environ,
        ownprocess.SIMULATION_ENV: str(folder / "kernel"),
        ROOT_ENV: str(folder / "root"),
        KUBECONFIG_ENV: str(kubeconfig),
        PEAK_ENV: str(peak),
        "NODE_NAME": NODE,
        "OPERATOR_NAMESPACE": NAMESPACE,
        "VALIDATOR_IMAGE": "image",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
        "PYTHONDONTWRITEBYTECODE": "",
        **env,
    }
    began = time.perf_counter()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.validator", program, env=settings, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await child.communicate()
    took = time.perf_counter() - began
    if child.returncode != 0:
        raise RuntimeError(f"{program} {env} ended with {child.returncode}: {out.decode()[-2000:]}")
    return took, int(peak.read_text()) / 1024


def _validation(folder: Path, kubeconfig: Path, component: str) -> Callable[[], Awaitable[Figures]]:
    workload = str(component == "cuda").lower()
    return lambda: _run(folder, kubeconfig, "nvidia-validator", COMPONENT=component, WITH_WORKLOAD=workload)


async def _measure(folder: Path) -> list[list[object]]:
    async with Cluster(folder) as cluster:
        runs = {component: _validation(folder, cluster.kubeconfig, component) for component in CHAIN}
        runs[CHECK] = lambda: _run(folder, cluster.kubeconfig, CHECK)
        found: dict[str, list[Figures]] = {name: [] for name in runs}
        for _ in range(ROUNDS + 1):  # the first compiles
            for name, run in runs.items():
                found[name].append(await run())
    rows: list[list[object]] = []
    for name, figures in found.items():
        times = [seconds for seconds, _ in figures[1:]]
        rows.append([name, statistics.median(times), min(times), None, max(mib for _, mib in figures[1:]), LIMIT_MIB])
    chains = [sum(found[name][at][0] for name in CHAIN) for at in range(1, ROUNDS + 1)]
    rows.insert(len(CHAIN), ["the chain", statistics.median(chains), min(chains), LIMIT_S, None, None])
    return rows


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _machine(folder)
        rows = asyncio.run(_measure(folder))
    table.show(
        f"validation of a healthy node, median of {ROUNDS} ({table.machine()})",
        ["component", "s", "fastest s", "limit s", "peak MiB", "limit MiB"],
        rows,
        f"each a process of its own, from its start to its end; {CHECK}: on {GPUS} simulated GPUs",
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(_child(sys.argv[1:]))
    main()
