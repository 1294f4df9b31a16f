"""The node-status exporter: contracts/mig-exporter-validator.md 6.7."""

import asyncio
import socket
from collections.abc import Mapping

import aiohttp
import pytest
from node.fakeprocess import until
from node.validate.validator_world import NODE, World
from prometheus_client.parser import text_string_to_metric_families

from groundplane.api import names
from groundplane.node.process import Completed
from groundplane.node.validate import main
from groundplane.node.validate.context import Context
from groundplane.node.validate.exporter import GAUGES, Exporter
from groundplane.node.validate.settings import Settings

READY = "gpu_operator_node_{}_ready"
VALID = "gpu_operator_node_driver_validation"
DEVICES = "gpu_operator_node_device_plugin_devices_total"
SEEN = "gpu_operator_node_device_plugin_validation_last_success_ts_seconds"
PCI = "gpu_operator_nvidia_pci_devices_total"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def scrape(port: int, path: str = "/metrics") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


def values(text: str) -> dict[str, float]:
    """The gauges of this node."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if sample.name in GAUGES]
    assert all(sample.labels == {"node": NODE} for sample in samples)
    return {sample.name: sample.value for sample in samples}


class Exported:
    """An exporter that runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.port = free_port()

    async def start(self) -> None:
        self.world.start("metrics", METRICS_PORT=str(self.port))
        await self.world.logged("Serving the node's metrics on port")

    async def shows(self, **expected: float) -> dict[str, float]:
        """Wait until the metrics have values; all of them then."""
        async with asyncio.timeout(20):
            while True:
                found = values((await scrape(self.port))[1])
                if expected.items() <= found.items():
                    return found
                await asyncio.sleep(0.01)


@pytest.fixture
def exported(world: World) -> Exported:
    return Exported(world)


async def test_6_7_gauges(exported: Exported, world: World) -> None:
    began = world.process.now().timestamp()
    await exported.start()
    code, text = await scrape(exported.port)
    assert code == 200
    assert values(text).keys() == GAUGES.keys()
    assert values(text)["gpu_operator_node_metrics_ready_ts_seconds"] >= int(began)
    for name in ("process_resident_memory_bytes", "python_info", "python_gc_collections_total"):
        assert name in text, "the client library's own series"
    assert all(f"# TYPE {name} gauge" in text for name in GAUGES)
    assert (await scrape(exported.port, "/"))[0] == 404


async def test_6_7_status_files(exported: Exported, world: World) -> None:
    await exported.start()
    components = ("driver", "toolkit", "plugin", "cuda")
    await exported.shows(**{READY.format(name): 0 for name in components})
    for name in components:
        world.process.write(f"{names.VALIDATIONS_DIR}/{name}-ready", "")
        await exported.shows(**{READY.format(name): 1})
    world.process.root.remove(f"{names.VALIDATIONS_DIR}/cuda-ready")
    found = await exported.shows(**{READY.format("cuda"): 0})
    assert found[READY.format("plugin")] == 1


async def test_6_7_driver_validation_is_quiet_and_leaves_status_files_alone(exported: Exported, world: World) -> None:
    world.smi_code = 9
    world.container_driver()
    world.driver_container("GDS_ENABLED: true\n")
    world.modules("nvidia")
    for name in ("driver-ready", "nvidia-fs-ready"):
        world.process.write(f"{names.VALIDATIONS_DIR}/{name}", "old")
    await exported.start()
    await world.logged("ended with code 9")
    assert (await exported.shows(**{VALID: 0}))[f"{VALID}_last_success_ts_seconds"] == 0
    world.smi_code = 0
    await world.logged("kernel module nvidia_fs is not loaded")
    await exported.shows(**{VALID: 0})
    world.modules("nvidia_fs")
    assert (await exported.shows(**{VALID: 1}))[f"{VALID}_last_success_ts_seconds"] > 0
    world.smi_code = 15
    found = await exported.shows(**{VALID: 0})
    assert found[f"{VALID}_last_success_ts_seconds"] > 0
    assert world.status("driver-ready") == world.status("nvidia-fs-ready") == "old"
    assert world.process.stdout == ""
    assert not any(world.process.path("/host-dev-char").iterdir())


@pytest.mark.parametrize(
    ("capacity", "total"),
    [
        ({}, 0),
        ({"nvidia.com/gpu": "8", "cpu": "64"}, 8),
        ({"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}, 15),
        ({"nvidia.com/gpu.shared": "80"}, 80),
    ],
)
async def test_6_7_devices(exported: Exported, world: World, capacity: Mapping[str, str], total: int) -> None:
    world.resources(capacity, {})
    await exported.start()
    await world.logged(f"The node offers {total} GPU devices")
    assert (await exported.shows(**{DEVICES: total}))[SEEN] == 0 if not total else True
    if total:
        found = await exported.shows(**{DEVICES: total})
        assert found[SEEN] > 0


async def test_6_7_devices_when_the_api_server_is_gone(exported: Exported, world: World) -> None:
    world.url = "http://127.0.0.1:9"
    await exported.start()
    assert (await exported.shows(**{DEVICES: -1}))[SEEN] == 0


async def test_6_7_pci_devices(exported: Exported, world: World) -> None:
    await exported.start()
    await exported.shows(**{PCI: -1})
    world.pci("0000:10:00.0")
    world.pci("0000:10:00.1", kind="0x040300")
    world.pci("0000:c5:00.0", kind="0x068000")
    world.pci("0000:40:00.0", kind="0x020000", vendor="0x15b3")
    await exported.shows(**{PCI: 3})


async def test_6_7_a_tool_that_hangs_counts_as_a_failure_and_no_second_is_started(world: World) -> None:
    world.host_tool()
    started: list[object] = []

    async def execute(*args: object, **_more: object) -> Completed:
        started.append(args)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # as a process that hangs in the kernel, which no signal ends
                if stop.is_set():
                    raise

    stop = asyncio.Event()
    world.process.execute = execute  # type: ignore[method-assign]
    settings = Settings(component="metrics", node=NODE)
    async with Context(world.process, settings, smi_limit_s=main.SMI_LIMIT_S) as context:
        exporter = Exporter(context)
        for _ in range(2):
            await exporter.look_at_driver()
            assert f'{VALID}{{node="{NODE}"}} 0.0' in exporter.text().decode()
        assert len(started) == 1
        assert "the driver hangs" in world.process.stderr
        stop.set()
        hanging = context.smi._hanging
        assert hanging is not None
        hanging.cancel()
        await until(hanging.done)


async def test_6_7_a_port_that_is_taken(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert await world.run("metrics", METRICS_PORT=str(taken.getsockname()[1])) == 1
    assert "Error: cannot listen on port" in world.process.stderr


async def test_6_1_a_signal_ends_the_exporter(exported: Exported, world: World) -> None:
    await exported.start()
    assert await world.stop() == 1
