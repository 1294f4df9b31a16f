"""A machine with GPUs, a kubelet that lists pods, and the exporter as a program that is scraped over HTTP."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any

import aiohttp
import grpc.aio
from node.fakeprocess import FakeProcess, until
from prometheus_client.parser import text_string_to_metric_families

from groundplane.api.release import Release
from groundplane.node.devices.simulated import GpuEntry, Machine, SimulatedSource, describe
from groundplane.node.kubeletapi import POD_RESOURCES_SOCKET
from groundplane.node.kubeletapi.stubs import podresources_pb2 as wire
from groundplane.node.kubeletapi.stubs import podresources_pb2_grpc as rpc
from groundplane.node.metrics import main

COLLECTORS = "/etc/dcgm-exporter/default-counters.csv"
Sample = tuple[str, Mapping[str, str], float]


def samples(body: str) -> list[Sample]:
    """All samples, as Prometheus' own parser reads them; each name with each set of labels is there once."""
    found = [
        (sample.name.removesuffix("_total"), sample.labels, sample.value)  # which the parser gives to counters
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    ]
    assert len({(name, tuple(sorted(labels.items()))) for name, labels, _ in found}) == len(found)
    return found


def of(body: str, name: str, **labels: str) -> list[Sample]:
    """The samples of a series that have some labels."""
    return [each for each in samples(body) if each[0] == name and labels.items() <= each[1].items()]


def pod(name: str, *devices: str, resource: str = "nvidia.com/gpu", claims: Sequence[Any] = ()) -> Any:
    """A pod with one container and its devices."""
    found = [wire.ContainerDevices(resource_name=resource, device_ids=devices)] if devices else []
    container = wire.ContainerResources(name="main", devices=found, dynamic_resources=claims)
    return wire.PodResources(name=name, namespace="team", containers=[container])


class Kubelet(rpc.PodResourcesListerServicer):
    """The kubelet's pod-resources socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: list[Any] = []
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails: grpc.StatusCode | None = None
        self._server: Any = None

    async def start(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        self.answers.set()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.socket.unlink(missing_ok=True)

    async def List(self, request: Any, context: Any) -> Any:
        self.asked += 1
        await self.answers.wait()
        if self.fails is not None:
            await context.abort(self.fails, "not now")
        return wire.ListPodResourcesResponse(pod_resources=self.pods)


class World:
    """The machine, its kubelet, and one run of the exporter."""

    def __init__(self, folder: Path, gpus: Sequence[str | GpuEntry], **more: Any) -> None:
        self.folder = folder
        self.machine = Machine.create(folder / "devices.yaml", describe("host", gpus, "580.95.05", **more))
        self.loaded = True
        self.process: FakeProcess
        self.kubelet: Kubelet
        self.exit: asyncio.Task[int] | None = None
        self.url = ""
        self.session = aiohttp.ClientSession()

    def source(self) -> SimulatedSource:
        return SimulatedSource(self.folder / "devices.yaml", library=lambda: True, loaded=lambda: self.loaded)

    def prepare(
        self,
        *flags: str,
        env: Mapping[str, str] | None = None,
        release: Release = Release.DEFAULT,
        make_client: Callable[[], Any] | None = None,
    ) -> FakeProcess:
        """A process that is about to run: its files can be written now."""
        argv = ["dcgm-exporter", "--address", "127.0.0.1:0", "--collect-interval", "50", *flags]
        whole = {"NODE_NAME": "n1", **(env or {})}
        self.process = FakeProcess(
            self.folder, argv, whole, source=self.source(), make_client=make_client, release=release
        )
        self.kubelet = Kubelet(self.process.path(POD_RESOURCES_SOCKET))
        return self.process

    async def start(self, *flags: str, counters: str | None = None, **more: Any) -> None:
        """Run until it serves."""
        if not hasattr(self, "process"):
            self.prepare(*flags, **more)
        if counters is not None:
            self.process.write(COLLECTORS, counters)
        self.exit = asyncio.create_task(main.run(self.process))
        await until(lambda: self.exit.done() or "serving at port" in self.process.stderr, "the server")  # type: ignore[union-attr]
        assert not self.exit.done(), self.process.stderr
        port = re.search(r"serving at port ([0-9]+)", self.process.stderr)
        assert port is not None
        self.url = f"http://127.0.0.1:{port[1]}"

    async def get(self, path: str = "/metrics", **more: Any) -> aiohttp.ClientResponse:
        async with self.session.get(self.url + path, **more) as answer:
            await answer.read()
            return answer

    async def scrape(self) -> str:
        answer = await self.get()
        assert answer.status == 200, await answer.text()
        return await answer.text()

    async def scraped(self, condition: Callable[[str], Any], what: str) -> str:
        """The first scrape that fulfils a condition."""
        deadline = asyncio.get_running_loop().time() + 20
        while not condition(body := await self.scrape()):
            assert asyncio.get_running_loop().time() < deadline, (
                f"waited in vain for {what}; {self.process.stderr}\n{body}"
            )
            await asyncio.sleep(0.02)
        return body

    async def told(self, text: str) -> None:
        """Wait for something in the log."""
        await until(lambda: text in self.process.stderr, f"{text!r} in\n{self.process.stderr}")

    async def end(self, number: Signals = SIGTERM) -> int:
        assert self.exit is not None
        self.process.send(number)
        return await asyncio.wait_for(self.exit, 20)

    async def close(self) -> None:
        if self.exit is not None and not self.exit.done():
            self.exit.cancel()
            await asyncio.gather(self.exit, return_exceptions=True)
        if hasattr(self, "kubelet"):
            await self.kubelet.stop()
        await self.session.close()
