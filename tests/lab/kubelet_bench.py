"""A small cluster for kubelet tests: API, controllers, scheduler and kubelets on simulated hosts; HTTP where asked."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from groundplane.api import node_features
from groundplane.lab import api as lab_api
from groundplane.lab import clock as lab_clock
from groundplane.lab import http, nodes, programs, resources
from groundplane.lab.kubelet import Kubelet

REAL_LIMIT_S = 20.0
Pod = Mapping[str, Any]


class Bench:
    """One API and some kubelets, each with a task that can be stopped and started."""

    def __init__(self, folder: Path, speed: float) -> None:
        self.clock = lab_clock.LabClock(speed)
        self.api = lab_api.Api(clock=self.clock)
        self.programs = programs.ProgramRegistry.standard()
        self.folder = folder
        self.kubelets: dict[str, Kubelet] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.others: list[asyncio.Task[Any]] = []

    def node(self, name: str = "n1", **fields: Any) -> Kubelet:
        spec = nodes.NodeSpec(name, **fields)
        self.kubelets[name] = Kubelet(self.api, spec, self.clock, self.programs, self.folder)
        self.start(name)
        return self.kubelets[name]

    def start(self, name: str = "n1") -> None:
        self.tasks[name] = asyncio.create_task(self.kubelets[name].run())

    async def stop(self, name: str = "n1") -> None:
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def namespace(self, name: str) -> None:
        self.api.create(resources.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def pod(self, name: str, *containers: Mapping[str, Any], node: str = "n1", **spec: Any) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", **spec.pop("metadata", {})},
            "spec": {"nodeName": node, "containers": [dict(c) for c in containers], **spec},
        }
        self.api.create(resources.PODS, document, "default")

    def get(self, name: str, ns: str = "default") -> dict[str, Any]:
        return self.api.find(resources.PODS, name, ns) or {}

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get(name).get("status") or {}
        return status

    def waiting(self, name: str) -> str:
        entries = [*self.status(name).get("initContainerStatuses", ()), *self.status(name).get("containerStatuses", ())]
        reasons = [entry["state"].get("waiting", {}).get("reason") for entry in entries]
        return " ".join(reason for reason in reasons if reason)

    def reasons(self, name: str) -> list[str]:
        items = self.api.list(resources.EVENTS)["items"]
        return [item["reason"] for item in items if item["involvedObject"]["name"] == name]

    def ready(self, name: str) -> bool:
        conditions = self.status(name).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def restarts(self, name: str) -> int:
        return sum(entry["restartCount"] for entry in self.status(name).get("containerStatuses", ()))

    def log(self, name: str, container: str = "", node: str = "n1", ns: str = "default") -> str:
        return self.kubelets[node].process(ns, name, container).log.text

    async def exec(self, name: str, *argv: str, node: str = "n1") -> tuple[int, str]:
        output = bytearray()
        code = await self.kubelets[node].exec("default", name, "", list(argv), None, output.extend, output.extend)
        return code, output.decode()

    async def until(self, done: Callable[[], object], what: str) -> None:
        """Wait for a condition; the limit is there to fail a hung test, not to time anything."""
        try:
            async with asyncio.timeout(REAL_LIMIT_S):
                while not done():
                    self.check()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}") from None

    def check(self) -> None:
        for task in (*self.tasks.values(), *self.others):
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error


def container(name: str = "main", script: str = "", **fields: Any) -> dict[str, Any]:
    command = {"command": ["sh", "-c", script]} if script else {}
    return {"name": name, "image": "registry.lab/busybox:1", **command, **fields}


@contextlib.asynccontextmanager
async def bench(speed: float = 200.0, *, served: bool = False) -> AsyncIterator[Bench]:
    """A cluster. `served`: over HTTP too, as node programs need that speak to the API server, with NodeFeatures."""
    folder = Path(tempfile.mkdtemp(prefix="gp-"))
    made = Bench(folder, speed)
    server = None
    try:
        if served:
            server = await http.serve(made.api)
            for definition in node_features.definitions():
                made.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, definition)
        yield made
    finally:
        for name in list(made.tasks):
            await made.stop(name)
        for kubelet in made.kubelets.values():
            await kubelet.power_off()
        for task in made.others:
            task.cancel()
        await asyncio.gather(*made.others, return_exceptions=True)
        if server is not None:
            await server.close()
        shutil.rmtree(folder)
