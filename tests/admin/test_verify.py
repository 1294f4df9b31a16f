"""Verify: each check on a cluster with NVIDIA's operator where it holds, and on one where one thing is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
from verify_world import NOW, POLICIES, World

from groundplane.admin import metricslook, verify_gpus, verify_pods
from groundplane.admin.hops import Version
from groundplane.admin.verify import CHECKS, judge, look, verify
from groundplane.api import names
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.findings import Finding, Outcome, grouped

PAGE = "\n".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="GPU-{n}"}} 40' for n in range(8))
DRIVER, PLUGIN, EXPORTER = "nvidia-driver-daemonset", "nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter"


def bad(findings: list[Finding]) -> dict[str, Finding]:
    """What is not well, by id; the worst of each."""
    order = tuple(Outcome)
    found: dict[str, Finding] = {}
    for each in grouped(findings):
        if each.outcome not in (Outcome.PASS, Outcome.SKIP):
            before = found.get(each.id)
            if before is None or order.index(each.outcome) > order.index(before.outcome):
                found[each.id] = each
    return found


@pytest.mark.parametrize("policy", sorted(path.stem for path in POLICIES.glob("*.yaml")))
def test_nvidias_operator_in_good_health_passes(policy: str) -> None:
    world = World(policy)
    pages = {f"gpu-{n}": metricslook.parse(PAGE) for n in (1, 2)}
    findings = verify(world.survey(), wanted=Version.parse(f"v{world.release.value}"), metrics=pages)
    assert bad(findings) == {}
    assert {f"A{n}" for n in range(61, 72)} | {"V1", "V2", "V3", "V4"} <= {each.id for each in findings}


def _set(path: str, value: Any) -> Callable[[World], None]:
    """Set something of the world by a path of attributes and keys."""

    def change(world: World) -> None:
        first, *parts = path.split("/")
        where: Any = getattr(world, first)
        for part in parts[:-1]:
            where = where[int(part)] if part.isdigit() else where[part]
        last = parts[-1]
        where[int(last) if last.isdigit() else last] = value

    return change


def _pending(world: World) -> None:
    assert world.helm is not None
    world.helm["info"]["status"] = "pending-upgrade"


def _other_chart(world: World) -> None:
    assert world.helm is not None
    world.helm["chart"]["metadata"]["version"] = "v26.3.3"


def _no_pod(world: World) -> None:
    world.pods.remove(world.pod(PLUGIN))


def _crash(world: World) -> None:
    status = world.pod(PLUGIN)["status"]
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    status["containerStatuses"][0] |= {"ready": False, "state": waiting, "lastState": ended, "restartCount": 9}


def _cuda(world: World) -> None:
    for status in world.pod("nvidia-operator-validator")["status"]["initContainerStatuses"]:
        status["state"] = {"running": {"startedAt": NOW}}


def _outdated(world: World) -> None:
    world.pod(DRIVER)["metadata"]["labels"]["controller-revision-hash"] = "old"


def _taint(world: World) -> None:
    world.nodes[0]["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoSchedule"}]


def _drop_fields(world: World) -> None:
    schema = world.definitions[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["cdi"]["properties"]["nriPluginEnabled"]


def _no_gpus(world: World) -> None:
    for node in world.nodes:
        labels = node["metadata"]["labels"]
        for key in [key for key in labels if "nvidia.com" in key or "pci-10de" in key]:
            del labels[key]


def _condition(**changes: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.policy["status"]["conditions"][0] |= changes

    return change


def _seven(world: World) -> None:
    world.nodes[0]["status"]["allocatable"][names.GPU_RESOURCE] = "7"


def _event(world: World) -> None:
    about = {"kind": "Pod", "name": f"{PLUGIN}-gpu-1", "namespace": "gpu-operator"}
    world.events.append(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "gpu-operator"},
            "type": "Warning",
            "reason": "Unhealthy",
            "message": "probe failed: API_TOKEN=hunter2",
            "involvedObject": about,
            "lastTimestamp": "2026-01-01T02:00:00Z",
        }
    )


ALLOCATABLE = "nodes/0/status/allocatable"
WRONG: dict[str, tuple[Callable[[World], None], str, Outcome, str]] = {
    "not validated": (_no_pod, "A61", Outcome.FAIL, "not validated"),
    "release pending": (_pending, "A62", Outcome.FAIL, "pending-upgrade"),
    "another chart": (_other_chart, "A62", Outcome.FAIL, "wanted is"),
    "no plugin pod": (_no_pod, "A63", Outcome.FAIL, "has no pod"),
    "no DaemonSet": (lambda world: world.daemon_sets.pop(PLUGIN), "A63", Outcome.FAIL, "is missing"),
    "taint": (_taint, "A63", Outcome.FAIL, "kept off the node by a taint"),
    "operator down": (_set("operator/status", {}), "A63", Outcome.FAIL, "operator does not run"),
    "crash": (_crash, "A64", Outcome.FAIL, "ends with exit code 1"),
    "CUDA validation": (_cuda, "A64", Outcome.FAIL, "CUDA validation has not ended"),
    "state": (_set("policy/status/state", "notReady"), "A65", Outcome.FAIL, "not ready"),
    "condition": (_condition(status="False", reason="OperandNotReady"), "A65", Outcome.FAIL, "condition Ready"),
    "generation": (_condition(observedGeneration=1), "A65", Outcome.FAIL, "generation"),
    "hollow ready": (_condition(reason="NoGPUNodes"), "A65", Outcome.FAIL, "nothing deployed"),
    "reasons": (_condition(status="False", reason="DriverNotReady"), "A66", Outcome.FAIL, "DriverNotReady"),
    "driver outdated": (_outdated, "A67", Outcome.WARN, "not up to date"),
    "unavailable": (
        _set(f"daemon_sets/{PLUGIN}/status/numberUnavailable", 1),
        "A67",
        Outcome.FAIL,
        "not ready",
    ),
    "no GPU offered": (_set(ALLOCATABLE, {}), "A68", Outcome.FAIL, "offers no GPU"),
    "too few": (_seven, "A68", Outcome.FAIL, "does not offer"),
    "unhealthy": (_seven, "A69", Outcome.FAIL, "unhealthy"),
    "no labels": (lambda world: world.labels().pop(names.GPU_PRODUCT), "A70", Outcome.FAIL, "are missing"),
    "stale": (lambda world: world.labels().update({names.GFD_TIMESTAMP: "1"}), "A70", Outcome.FAIL, "older than"),
    "other driver": (
        lambda world: world.labels().update({f"{names.CUDA_DRIVER_VERSION}.full": "1.2.3"}),
        "A70",
        Outcome.FAIL,
        "another driver",
    ),
    "family": (lambda world: world.labels().pop("nvidia.com/gpu.family"), "A71", Outcome.WARN, "family"),
    "no GPU nodes": (_no_gpus, "V1", Outcome.FAIL, "no node has a GPU"),
    "old definition": (_drop_fields, "V2", Outcome.FAIL, "lacks 1 fields"),
    "warning": (_event, "V4", Outcome.WARN, "Unhealthy"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_what_is_wrong_is_found(case: str) -> None:
    change, number, outcome, said = WRONG[case]
    world = World()
    change(world)
    findings = grouped(verify(world.survey(), wanted=Version.parse("v26.7.0")))
    told = [each for each in findings if each.id == number and each.outcome is outcome]
    assert any(said in each.title for each in told), [(each.id, each.outcome, each.title) for each in findings]
    assert "hunter2" not in str(findings)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (metricslook.Page(problem="connection refused"), "does not answer"),
        (metricslook.Page(), "no series"),
        (metricslook.Page(frozenset({"GPU-1"}), 1), "lacks series"),
    ],
)
def test_an_exporter_that_lacks_gpus_is_found(page: metricslook.Page, said: str) -> None:
    found = bad(verify(World().survey(), metrics={"gpu-1": page}))
    assert said in found["V3"].title and found["V3"].nodes == ("gpu-1",)


def test_what_could_not_be_read_is_unknown_and_says_why() -> None:
    world = World()
    world.unread = {plural: f"no permission to list {plural}" for plural in ("secrets", "events", "pods")}
    world.pods, world.helm = [], None
    found = verify(world.survey())
    unknown = {each.id: each.cause for each in found if each.outcome is Outcome.UNKNOWN}
    assert {"A62", "A63", "A64", "V4"} <= set(unknown)
    assert "no permission to list events" in unknown["V4"]


def test_nothing_at_all_ends_in_no_error() -> None:
    world = World(nodes=1)
    survey = type(world.survey()).of([])
    assert {each.outcome for each in verify(survey)} <= {Outcome.UNKNOWN, Outcome.PASS}


def test_why_a_pod_is_not_here_is_said_of_every_operand() -> None:
    world = World()
    world.labels()[names.DEPLOY_DRIVER] = "pre-installed"
    rows = {row["operand"]: row for row in verify_pods.explained(look(world.survey()), "gpu-1")}
    assert not rows[DRIVER]["expected"] and "pre-installed" in rows[DRIVER]["why"]
    assert rows[PLUGIN]["expected"] and rows[PLUGIN]["pod"] == "Ready"
    assert "leaves it out" in rows["state-cc-manager"]["why"]


def test_a_gpu_that_fell_off_the_bus_is_found() -> None:
    facts = {"gpu-1": NodeFacts(name="gpu-1", facts={"gpus": [{"address": "0"}] * 7})}
    found = bad(verify(World().survey(), node_facts=facts))
    assert "another number of GPUs" in found["A68"].title


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, None),
        ({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": (32, False)}),
        ({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "0"}, {"nvidia.com/gpu": (0, False)}),
        (
            {
                "nvidia.com/gpu.count": "2",
                "nvidia.com/gpu.replicas": "1",
                "nvidia.com/mig-1g.10gb.count": "7",
                "nvidia.com/mig-1g.10gb.replicas": "2",
            },
            {"nvidia.com/gpu": (2, True), "nvidia.com/mig-1g.10gb": (14, False)},
        ),
    ],
)
def test_how_many_a_node_should_offer(labels: dict[str, str], expected: dict[str, Any] | None) -> None:
    assert verify_gpus.wanted(labels) == expected


def test_renamed_resources_count_as_what_they_share() -> None:
    node = {"status": {"allocatable": {"nvidia.com/gpu.shared": "16", "cpu": "3"}}}
    assert verify_gpus.offered(node) == {"nvidia.com/gpu": 16}


def test_exporters_that_are_asked_are_spread_evenly() -> None:
    every = [metricslook.Exporter(f"n{n}", "ns", "p") for n in range(100)]
    assert [each.node for each in metricslook.chosen(every, 4)] == ["n0", "n25", "n50", "n75"]
    assert len(metricslook.chosen(every, 0)) == 100


def test_every_check_can_be_left_out_alone() -> None:
    assert judge(look(World().survey())) and len({check.title for check in CHECKS}) == len(CHECKS)
