"""contracts/device-plugin-gfd.md 8.3: the NodeFeature object, against the lab's API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

import msgspec
import pytest
from node.fakeprocess import FakeProcess, until

from groundplane.api import node_features
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.cluster.errors import ConfigError
from groundplane.cluster.kinds import CRD, NODE_FEATURE, POD
from groundplane.lab import http
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults, Rule
from groundplane.node.devices.simulated import Machine, SimulatedSource, describe
from groundplane.node.features import main, output

NAMESPACE, NODE, POD_NAME = "default", "gpu-node-1", "gfd-x7k2p"
NAME = f"nvidia-features-for-{NODE}"
ENV = {"NAMESPACE": NAMESPACE, "NODE_NAME": NODE, "POD_NAME": POD_NAME, "GFD_NO_TIMESTAMP": "true"}
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gpu-feature-discovery", "uid": "d-1"}
POD_DOCUMENT: dict[str, Any] = {
    "metadata": {
        "name": POD_NAME,
        "namespace": NAMESPACE,
        "ownerReferences": [{**DAEMON_SET, "controller": True, "blockOwnerDeletion": True}],
    },
    "spec": {"containers": [{"name": "gfd", "image": "gfd"}]},
}


class World:
    def __init__(self, folder: Path, server: http.Server, faults: Faults, admin: Client) -> None:
        file = folder / "gpus.yaml"
        self.machine = Machine.create(file, describe(NODE, ["L4"] * 2, "580.95.05"))
        self.url = server.url
        self.faults = faults
        self.admin = admin
        self.process = FakeProcess(folder, ["gpu-feature-discovery"], ENV, make_client=self.client)
        self.process.devices = lambda driver_root="/": SimulatedSource(  # type: ignore[method-assign]
            file, library=lambda: True, loaded=lambda: True
        )

    def client(self) -> Client:
        return Client(Config(server=self.url), user_agent="gfd", retry=Retry(attempts=2, first_s=0.01, max_s=0.01))

    async def run_once(self, **env: str) -> int:
        self.process.env = {**ENV, "GFD_ONESHOT": "true", **env}
        return await self.run()

    async def run(self) -> int:
        async with asyncio.timeout(30):
            return await main.run(self.process)

    @contextlib.asynccontextmanager
    async def running(self, interval: str = "20ms") -> AsyncIterator[asyncio.Task[int]]:
        self.process.env = {**ENV, "GFD_SLEEP_INTERVAL": interval}
        task = asyncio.ensure_future(self.run())
        try:
            yield task
            self.process.send(SIGTERM)
            assert await task == 0
        finally:
            task.cancel()

    async def object(self) -> dict[str, Any]:
        return await self.admin.get(NODE_FEATURE, NAME, NAMESPACE)

    def requests(self) -> list[tuple[str, str]]:
        """What the program asked of the API server, without the reading of its pod."""
        mine = (each for each in self.faults.requests if each.user_agent == "gfd" and each.resource != "pods")
        return [(each.verb, each.resource) for each in mine]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    faults = Faults()
    server = await http.serve(Api(), faults=faults)
    async with Client(Config(server=server.url), user_agent="admin") as admin:
        for definition in node_features.definitions():
            await admin.create(CRD, definition)
        yield World(tmp_path, server, faults, admin)
    await server.close()


@pytest.fixture
async def pod(world: World) -> dict[str, Any]:
    return await world.admin.create(POD, POD_DOCUMENT)


async def test_8_3_created_if_absent(world: World, pod: dict[str, Any]) -> None:
    assert await world.run_once() == 0, world.process.stderr
    made = await world.object()
    assert made["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
    assert made["metadata"]["ownerReferences"] == [
        {**DAEMON_SET, "controller": True},
        {"apiVersion": "v1", "kind": "Pod", "name": POD_NAME, "uid": pod["metadata"]["uid"]},
    ]
    assert made["spec"]["features"] == {"flags": {}, "attributes": {}, "instances": {}}
    assert made["spec"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert made["spec"]["labels"]["nvidia.com/gpu.count"] == "2"
    assert len(made["spec"]["labels"]) == 24
    assert world.requests() == [("get", "nodefeatures"), ("create", "nodefeatures")]


async def test_8_3_updated_only_if_different(world: World, pod: dict[str, Any]) -> None:
    assert await world.run_once() == 0
    first = await world.object()
    world.faults.requests.clear()
    assert await world.run_once() == 0
    assert world.requests() == [("get", "nodefeatures")]
    assert (await world.object())["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    world.machine.remove(0)
    assert await world.run_once() == 0
    assert world.requests()[-1] == ("update", "nodefeatures")
    assert (await world.object())["spec"]["labels"]["nvidia.com/gpu.count"] == "1"


async def test_8_3_a_gpu_that_leaves(world: World, pod: dict[str, Any]) -> None:
    async with world.running():
        await until(lambda: ("create", "nodefeatures") in world.requests(), "the object")
        world.machine.change(lambda now: msgspec.structs.replace(now.description, gpus=()))
        await until(lambda: ("update", "nodefeatures") in world.requests(), "an update")
    assert (await world.object())["spec"]["labels"] == {}, "the object stays, without labels of GPUs that are not there"


async def test_8_3_it_is_restored_and_what_others_add_to_its_metadata_stays(world: World, pod: dict[str, Any]) -> None:
    assert await world.run_once() == 0
    made = await world.object()
    made["metadata"]["labels"] = {"mine": "yes", "nfd.node.kubernetes.io/node-name": "other"}
    made["metadata"]["annotations"] = {"note": "kept"}
    made["spec"]["labels"] = {"nvidia.com/gpu.count": "80", "foreign": "label"}
    await world.admin.replace(NODE_FEATURE, made)
    assert await world.run_once() == 0
    now = await world.object()
    assert now["metadata"]["labels"] == {"mine": "yes", "nfd.node.kubernetes.io/node-name": NODE}
    assert now["metadata"]["annotations"] == {"note": "kept"}
    assert now["spec"]["labels"]["nvidia.com/gpu.count"] == "2"
    assert "foreign" not in now["spec"]["labels"]


async def test_8_3_a_new_pod_is_a_new_owner(world: World, pod: dict[str, Any]) -> None:
    assert await world.run_once() == 0
    await world.admin.delete(POD, POD_NAME, NAMESPACE, grace_period_s=0)
    again = await world.admin.create(POD, POD_DOCUMENT)
    assert await world.run_once() == 0
    owners = (await world.object())["metadata"]["ownerReferences"]
    assert [each["uid"] for each in owners] == ["d-1", again["metadata"]["uid"]]


@pytest.mark.parametrize("code", [409, 404])
async def test_8_3_a_conflict_is_resolved(world: World, pod: dict[str, Any], code: int) -> None:
    assert await world.run_once() == 0
    world.machine.remove(0)
    world.faults.add(Rule("update", "nodefeatures", times=2 if code == 409 else 1, answer=code))
    if code == 404:  # deleted between reading and writing; then it is created, and somebody else was faster
        world.faults.add(Rule("create", "nodefeatures", times=1, answer=409))
    assert await world.run_once() == 0, world.process.stderr
    assert (await world.object())["spec"]["labels"]["nvidia.com/gpu.count"] == "1"


async def test_8_3_endless_conflicts_end_with_1(world: World, pod: dict[str, Any]) -> None:
    assert await world.run_once() == 0
    world.machine.remove(0)
    world.faults.add(Rule("update", "nodefeatures", times=None, answer=409))
    assert await world.run_once() == 1
    assert f"error writing labels to NodeFeature {NAMESPACE}/{NAME}: others changed it 5 times" in world.process.stderr


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_8_3_a_refusal_ends_with_1(world: World, pod: dict[str, Any], verb: str) -> None:
    world.faults.add(Rule(verb, "nodefeatures", times=None, answer=403))
    assert await world.run_once() == 1
    assert f"error writing labels to NodeFeature {NAMESPACE}/{NAME}: " in world.process.stderr


async def test_8_3_without_the_definition_of_nodefeatures(world: World, pod: dict[str, Any]) -> None:
    await world.admin.delete(CRD, "nodefeatures.nfd.k8s-sigs.io")
    assert await world.run_once() == 1
    assert "NodeFeature" in world.process.stderr


# --- owners: failures are never fatal (8.3) ---------------------------------------------------------------------------


async def owners_of(world: World) -> Any:
    assert await world.run_once() == 0, world.process.stderr
    assert "NodeFeature object gets no owner" in world.process.stderr
    return (await world.object())["metadata"].get("ownerReferences")


async def test_8_3_no_pod_no_owners(world: World) -> None:
    assert await owners_of(world) is None


async def test_8_3_a_pod_that_may_not_be_read(world: World, pod: dict[str, Any]) -> None:
    world.faults.add(Rule("get", "pods", times=None, answer=403))
    assert await owners_of(world) is None


@pytest.mark.parametrize("references", [None, [{**DAEMON_SET, "kind": "ReplicaSet", "controller": True}]])
async def test_8_3_a_pod_of_no_daemon_set(world: World, references: list[dict[str, Any]] | None) -> None:
    document = {**POD_DOCUMENT, "metadata": {"name": POD_NAME, "namespace": NAMESPACE, "ownerReferences": references}}
    await world.admin.create(POD, document)
    assert await owners_of(world) is None


async def test_8_3_no_pod_name(world: World) -> None:
    assert await world.run_once(POD_NAME="") == 0
    assert "no pod name" in world.process.stderr


async def test_8_3_owners_that_cannot_be_found_again_stay(world: World, pod: dict[str, Any]) -> None:
    assert await world.run_once() == 0
    before = (await world.object())["metadata"]["ownerReferences"]
    world.faults.add(Rule("get", "pods", times=None, answer=403))
    world.machine.remove(0)
    assert await world.run_once() == 0
    assert (await world.object())["metadata"]["ownerReferences"] == before


# --- starting and ending ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["NODE_NAME", "NAMESPACE"])
async def test_8_3_node_and_namespace_are_required(world: World, missing: str) -> None:
    assert await world.run_once(**{missing: ""}) == 1
    assert f"the NodeFeature API needs {missing}" in world.process.stderr
    assert world.requests() == []


async def test_no_api_server_is_known(world: World) -> None:
    def unknown() -> Any:
        raise ConfigError("not in a cluster: KUBERNETES_SERVICE_HOST is unset")

    world.process.make_client = unknown
    assert await world.run_once() == 1
    assert "no API server to write labels to: not in a cluster" in world.process.stderr


async def test_8_3_the_object_stays_when_the_program_ends(world: World, pod: dict[str, Any]) -> None:
    async with world.running("1h"):
        await until(lambda: ("create", "nodefeatures") in world.requests(), "the object")
    assert (await world.object())["spec"]["labels"]["nvidia.com/gpu.count"] == "2"


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_8_3_a_signal_ends_it_while_the_api_server_is_silent(
    world: World, pod: dict[str, Any], verb: str
) -> None:
    world.faults.add(Rule(verb, "nodefeatures", times=None, answer="hang"))
    async with world.running("1h"):
        await until(lambda: (verb, "nodefeatures") in world.requests(), "the request without an answer")


async def test_a_reload_opens_another_client(world: World, pod: dict[str, Any]) -> None:
    async with world.running("1h"):
        await until(lambda: ("create", "nodefeatures") in world.requests(), "the object")
        await world.admin.delete(NODE_FEATURE, NAME, NAMESPACE)
        world.process.send(SIGHUP)
        await until(lambda: world.requests().count(("create", "nodefeatures")) == 2, "the object again")


async def test_1_6_requests_keep_to_the_rate(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, pace=1000.0)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    process.sleep = sleep  # type: ignore[method-assign]
    process.monotonic = lambda: 0.0  # type: ignore[method-assign]
    pace = output.Pace(process, 5.0, 2)
    for _ in range(4):
        await pace.wait()
    assert waited == [pytest.approx(0.2), pytest.approx(0.4)]
    process.monotonic = lambda: 100.0  # type: ignore[method-assign]
    await pace.wait()
    assert len(waited) == 2

    unlimited = output.Pace(process, 0.0, 0)
    for _ in range(100):
        await unlimited.wait()
    assert len(waited) == 2
