"""The demo's story, and that it ends badly, naming step, what was seen and what to do, when something is not there."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from groundplane.api import names
from groundplane.lab import demo, demo_steps, layers, nodes, resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE, Lab
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.lab.programs import ContainerContext, Response
from groundplane.node.devices import simtelemetry
from groundplane.node.devices.profiles import MIB
from groundplane.node.devices.simulated import Machine

PATIENCE_S = 120.0
GPU_NODES = {"gpu-a": 8, "gpu-b": 8, "gpu-c": 4}


def ignore(_snapshot: demo.Snapshot) -> None:
    """Draw nothing."""


def at(step: str, act: Callable[[], None]) -> Callable[[demo.Snapshot], None]:
    """Do something once, when a step begins."""
    done: list[str] = []

    def report(snapshot: demo.Snapshot) -> None:
        if step in snapshot.message and not done:
            done.append(snapshot.message)
            act()

    return report


def machine(lab: Lab, node: str) -> Machine:
    return lab._pool[node].host.machine


def simulated(lab: Lab, node: str) -> list[tuple[float | None, ...]]:
    """The figures of a node's GPUs as its file of simulated GPUs has them: degrees, W, MiB used and free."""
    found: list[tuple[float | None, ...]] = []
    for card in machine(lab, node).read().cards.values():
        reading = simtelemetry.reading(card)
        assert reading.power_mw is not None and reading.memory_used is not None and reading.memory_free is not None
        memory = reading.memory_used // MIB, reading.memory_free // MIB
        found.append((reading.gpu_temp_c, reading.power_mw / 1000, *memory))
    return found


async def test_the_story_ends_with_gpus_on_offer_and_a_passed_check_on_every_gpu_node() -> None:
    specs = nodes.parse(demo.data("demo-nodes.yaml"), "demo-nodes.yaml")
    seen: list[demo.Snapshot] = []
    slices: list[str] = []

    def look_at_slices() -> None:
        placed = machine(lab, "gpu-a").read().placed()
        slices.extend(device.uuid for _, device in placed if str(device.profile) == "1g.10gb")

    note = at("a CUDA check pod runs on one nvidia.com/mig", look_at_slices)

    def report(snapshot: demo.Snapshot) -> None:
        seen.append(snapshot)
        note(snapshot)

    async with Lab(specs) as lab:
        outcome = await demo.run(lab, report, timeout_s=PATIENCE_S)
        figures = {node: simulated(lab, node) for node in GPU_NODES}
        driver_pods = {
            pod["spec"]["nodeName"]
            for pod in lab.api.list(resources.PODS, labels="app=nvidia-driver-daemonset")["items"]
        }
        uuids = {node: [gpu.uuid for gpu in lab._pool[node].host.gpus] for node in GPU_NODES}
        left = [pod["metadata"]["name"] for pod in lab.api.list(resources.PODS, "default")["items"]]
    assert outcome.problem == ""
    assert outcome.passed
    assert {row.name: row.gpus for row in outcome.rows} == {"cpu-a": 0, **GPU_NODES}
    assert {row.name: row.product for row in outcome.rows if row.has_gpu} == {
        "gpu-a": "NVIDIA-H100-80GB-HBM3",
        "gpu-b": "NVIDIA-H100-80GB-HBM3",
        "gpu-c": "NVIDIA-L40S",
    }
    assert driver_pods == {"gpu-a", "gpu-b"}, "the node with a driver on its host gets no driver container"
    assert set(outcome.layer_seconds) == set(layers.LAYERS)
    assert {check.node for check in outcome.checks} == set(GPU_NODES)
    for check in outcome.checks:
        (line,) = check.gpus
        assert sum(uuid in line for uuid in uuids[check.node]) == 1
        assert "Test PASSED" in check.log
    for node, told in outcome.figures.items():
        assert [(each.gpu, each.uuid) for each in told] == list(enumerate(uuids[node]))
        assert [each.user for each in told if each.user] == [f"default/gpu-user-{node}/user"]
        assert [(each.temperature_c, each.power_w, each.used_mib, each.free_mib) for each in told] == figures[node]
        assert not any(each.xid for each in told)
    assert set(outcome.figures) == set(GPU_NODES)
    assert seen[0].rows != seen[-1].rows
    assert not [name for name in left if name.startswith("gpu-user")]
    mig = outcome.mig
    assert mig is not None
    assert (mig.node, mig.index, mig.resource) == ("gpu-a", 0, "nvidia.com/mig-1g.10gb")
    assert mig.before == mig.after == {"nvidia.com/gpu": 8}
    assert mig.sliced == {
        "nvidia.com/gpu": 7,
        "nvidia.com/mig-1g.10gb": 2,
        "nvidia.com/mig-2g.20gb": 1,
        "nvidia.com/mig-3g.40gb": 1,
    }
    (line,) = mig.check.gpus
    assert len(slices) == 2
    assert sum(uuid in line for uuid in slices) == 1, "the check ran on one of the slices, and on nothing else"
    fault = outcome.fault
    assert fault is not None
    assert (fault.node, fault.fault, fault.cause) == ("gpu-b", "no-kernel-headers", "S10")
    assert fault.told[0] == "1 cause found: 3 GPU nodes, 1 not well"
    assert fault.told[2].startswith("CAUSE: L1 kernel: ") and fault.told[2].endswith("[S10]")
    assert any("linux-headers-6.8.0-60-generic" in line for line in fault.told)
    assert any(" ".join(line.split()).startswith("gpu-b L0 ok L1 FAIL L2 -") for line in fault.told)
    assert fault.healed == "Nothing fails: 3 GPU nodes, 0 not well"


async def test_a_node_with_one_gpu_offers_slices_only() -> None:
    async with Lab([NodeSpec("gpu", (GpuSpec("A30"),))]) as lab:
        outcome = await demo.run(lab, ignore, timeout_s=PATIENCE_S)
    assert outcome.passed, outcome.problem
    assert outcome.mig is not None
    assert outcome.mig.sliced == {"nvidia.com/mig-1g.6gb": 2, "nvidia.com/mig-2g.12gb": 1}
    assert outcome.mig.after == {"nvidia.com/gpu": 1}


async def test_without_a_gpu_that_knows_mig_that_step_is_left_out() -> None:
    async with Lab([NodeSpec("gpu", (GpuSpec("T4", 2),))]) as lab:
        outcome = await demo.run(lab, ignore, timeout_s=PATIENCE_S)
    assert outcome.passed, outcome.problem
    assert outcome.mig is None


async def test_the_story_does_not_end_well_when_an_image_is_missing() -> None:
    spec = nodes.parse(
        {"nodes": [{"name": "gpu", "gpus": [{"model": "T4"}], "missingImages": ["nvcr.io/nvidia/driver"]}]}, "test"
    )
    last: list[demo.Snapshot] = []
    async with Lab(spec) as lab:
        outcome = await demo.run(lab, last.append, timeout_s=4.0)
    assert not outcome.passed
    assert outcome.fault is None
    assert outcome.problem.startswith("gave up after 4 s: the operator brings the layers up, from the bottom\n")
    assert "\n  seen: gpu: driver is failed\n" in outcome.problem
    assert "\n  to do: look at the pods of the lowest layer" in outcome.problem
    assert outcome.ready_seconds is None
    assert outcome.checks == []
    (row,) = last[-1].rows
    assert row.layers["driver"] is layers.State.FAILED
    assert row.layers["device plugin"] is layers.State.WAITING
    assert row.gpus == 0


async def test_an_xid_error_is_told_with_its_gpu() -> None:
    async with Lab([NodeSpec("gpu", (GpuSpec("H100", 2),))]) as lab:
        outcome = await demo.run(
            lab, at("CUDA check pods run", lambda: machine(lab, "gpu").xid(1, 79)), timeout_s=PATIENCE_S
        )
        uuid = lab._pool["gpu"].host.gpus[1].uuid
    assert not outcome.passed
    assert f"GPU 1 of gpu ({uuid}): Xid 79" in outcome.problem or f"{uuid}" in outcome.checks[0].log
    assert outcome.mig is None


async def test_a_layout_that_cannot_be_had_is_told_with_its_cause() -> None:
    async with Lab([NodeSpec("gpu", (GpuSpec("H100", 2),))]) as lab:
        busy = at("labelled nvidia.com/mig.config", lambda: machine(lab, "gpu").set_busy(0))
        outcome = await demo.run(lab, busy, timeout_s=PATIENCE_S)
        state = lab.api.get(resources.NODES, "gpu")["metadata"]["labels"][names.MIG_CONFIG_STATE]
    assert not outcome.passed
    assert outcome.mig is None
    assert state == "failed"
    first, seen, advice = outcome.problem.splitlines()
    assert first == "failed: MIG: gpu is labelled nvidia.com/mig.config=one-gpu-sliced"
    assert seen.startswith("  seen: nvidia.com/mig.config.state=failed: ")
    assert "a client still uses the GPU" in seen
    assert "docs/mig.md" in advice


# --- figures, by exporters that are made for it -----------------------------------------------------------------------

GOOD = {"GPU_TEMP": 40, "POWER_USAGE": 70.5, "FB_USED": 0, "FB_FREE": 15000, "XID_ERRORS": 0}
USER = ',pod="gpu-user-gpu",namespace="default",container="user"'


def page(count: int = 2, user: str = USER, **changed: float | None) -> str:
    """An exporter's page about some GPUs; the last is of the user, and what is changed is of it."""
    rows = []
    for index in range(count):
        last = index == count - 1
        labels = f'gpu="{index}",UUID="GPU-{index}"' + (user if last else "")
        figures = GOOD | (changed if last else {})
        rows += [f"DCGM_FI_DEV_{name}{{{labels}}} {value}\n" for name, value in figures.items() if value is not None]
    return "".join(rows)


@pytest.fixture
async def one_node() -> AsyncIterator[Lab]:
    async with Lab([NodeSpec("gpu", (GpuSpec("T4", 2),))], operator=False) as made:
        await made.wait_until(
            lambda: made.api.find(resources.NODES, "gpu") is not None, timeout_s=PATIENCE_S, what="the node"
        )
        yield made


async def read_figures(lab: Lab, text: str | None, status: int = 200, offered: int = 2) -> str:
    """Let a node's exporter answer so, or have none; what the step ends with."""

    async def answer(_path: str) -> Response:
        return Response(status, text or "")

    async def exporter(ctx: ContainerContext) -> int:
        ctx.serve(demo.EXPORTER_PORT, answer)
        await ctx.stopped()
        return 0

    amounts = {"status": {"allocatable": {names.GPU_RESOURCE: str(offered)}}}
    lab.api.patch(resources.NODES, "gpu", amounts, type="merge", subresource="status")
    if text is not None:
        lab.programs.add_image("exporter", ("exporter",), {"exporter": exporter})
        pod = demo_steps.pod("exporter-1", "gpu", "cpu", image="exporter")
        pod["metadata"] |= {"namespace": OPERATOR_NAMESPACE, "labels": {"app": demo.EXPORTER}}
        await lab.apply([pod])

        def running() -> bool:
            found = lab.api.get(resources.PODS, "exporter-1", OPERATOR_NAMESPACE)
            return bool(found.get("status", {}).get("phase") == "Running")

        await lab.wait_until(running, timeout_s=PATIENCE_S, what="the exporter")
    async with lab.client() as client:
        story = demo._Story(lab, client, demo_steps.Watcher(lab, ignore, 0.2))
        try:
            await story._read_figures()
        except demo_steps.StepError as error:
            return str(error)
    return ""


async def test_figures_that_are_all_there_end_the_step(one_node: Lab) -> None:
    assert await read_figures(one_node, page()) == ""


@pytest.mark.parametrize(
    ("text", "status", "offered", "seen"),
    [
        (None, 200, 2, "gpu has no pod of the exporter"),
        ("", 200, 2, "the exporter has the figures of 0 of 2 GPUs"),
        (page(count=1), 200, 2, "the exporter has the figures of 1 of 2 GPUs"),
        (page(POWER_USAGE=None), 200, 2, "the exporter has the figures of 1 of 2 GPUs"),
        (page(user=""), 200, 2, "gpu: no GPU is told to be used by gpu-user-gpu: no such pod"),
        (page(), 200, 1, "gpu offers 1 of 2 GPUs; the device plugin's log there says why"),
        (page(XID_ERRORS=79), 200, 1, "GPU 1 of gpu (GPU-1): Xid 79"),
        ("down\n", 200, 2, "exporter-1 on gpu: not in Prometheus' text format"),
        ("no figures\n", 500, 2, "exporter-1 on gpu: GET /api/v1/namespaces/gpu-operator/pods/exporter-1:9400/proxy"),
    ],
)
async def test_figures_that_are_not_there_are_told(
    one_node: Lab, text: str | None, status: int, offered: int, seen: str
) -> None:
    told = await read_figures(one_node, text, status, offered)
    first, found, advice = told.splitlines()
    assert first.endswith("the exporters tell each GPU's figures, and who uses it")
    assert found.removeprefix("  seen: ").startswith(seen) or seen in found
    assert "docs/metrics.md" in advice


@pytest.mark.parametrize(
    ("gpus", "host_driver", "layer"),
    [([], None, "hardware"), ([{"model": "T4"}], None, "driver"), ([{"model": "T4"}], "580.126.20", "runtime")],
)
async def test_the_check_names_the_lowest_missing_layer(
    gpus: list[dict[str, Any]], host_driver: str | None, layer: str
) -> None:
    spec = nodes.parse({"nodes": [{"name": "bare", "gpus": gpus, "hostDriver": host_driver}]}, "test")
    pod = demo.cuda_check_pod("bare")
    del pod["spec"]["containers"][0]["resources"]  # no plugin offers a GPU there, so nothing could be asked for
    async with Lab(spec, operator=False) as lab:
        await lab.apply([pod])

        def phase() -> str:
            found = lab.api.get(resources.PODS, "cuda-check-bare", "default")
            return str(found.get("status", {}).get("phase"))

        await lab.wait_until(lambda: phase() in ("Failed", "Succeeded"), timeout_s=PATIENCE_S, what="the check's end")
        async with lab.client() as client:
            log = "".join([line async for line in client.logs("cuda-check-bare", "default")])
        assert phase() == "Failed"
    assert f"Missing layer: {layer}: " in log


async def test_a_runtime_class_of_another_name_reaches_the_gpu_all_the_same() -> None:
    spec = nodes.parse({"nodes": [{"name": "gpu", "gpus": [{"model": "T4"}]}]}, "test")
    policy = demo.data("guide-baseline.yaml")
    policy["spec"]["operator"]["runtimeClass"] = "accelerated"
    async with Lab(spec) as lab:
        await lab.apply([policy])
        await lab.wait_ready(timeout_s=PATIENCE_S)

        def row() -> layers.NodeRow:
            (only,) = layers.judge(lab.api.list(resources.NODES)["items"], lab.api.list(resources.PODS)["items"])
            return only

        await lab.wait_until(lambda: row().healthy and row().gpus == 1, timeout_s=PATIENCE_S, what="a healthy node")
        names = {item["metadata"]["name"] for item in lab.api.list(resources.RUNTIME_CLASSES)["items"]}
    assert names == {"accelerated", "nvidia-cdi", "nvidia-legacy"}
