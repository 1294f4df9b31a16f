"""Drift, rule by rule: each has a cluster that has not changed, and one that has (contracts/admin-workflow.md 8)."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from baseline_world import PLANTED, World

from groundplane.admin.baseline import Baseline, Coverage, CudaTest
from groundplane.admin.drift import RULES, about, drift, sections
from groundplane.diagnose.findings import Action, ExitCode, Finding, Outcome, Severity, exit_code, text
from groundplane.diagnose.html import page

Change = Callable[[World], object]


def _findings(change: Change, before: Change = lambda _: None) -> list[Finding]:
    return drift(World().baseline(before), World().baseline(change))


def _bad(findings: list[Finding]) -> list[tuple[str, str, str, str]]:
    return [
        (each.id, each.outcome.value, str(each.severity), each.title)
        for each in findings
        if each.outcome not in (Outcome.PASS, Outcome.SKIP)
    ]


def test_a_cluster_that_has_not_changed_passes_every_rule() -> None:
    findings = _findings(lambda world: setattr(world, "at", world.at + 1e6))
    assert exit_code(findings) == ExitCode.OK
    assert {each.id for each in findings if each.outcome is Outcome.PASS} == {"A80", "A81", "A82", "A83", "A84"}
    assert len(findings) == len(RULES)
    assert [each.title for each in findings if each.outcome is Outcome.SKIP] == [
        "facts of the nodes themselves are as recorded: not recorded",
        "the CUDA test ends as recorded: not recorded",
    ]


def _node(name: str, *path: str) -> Callable[[World], dict[str, Any]]:
    def found(world: World) -> dict[str, Any]:
        thing = world.nodes[name]
        for part in path:
            thing = thing[part]
        return thing

    return found


def _put(path: Callable[[World], dict[str, Any]], key: str, value: Any) -> Change:
    return lambda world: path(world).__setitem__(key, value)


def _labels(key: str, value: str) -> Change:
    return _put(_node("gpu-1", "metadata", "labels"), key, value)


def _info(key: str, value: str) -> Change:
    return _put(_node("gpu-1", "status", "nodeInfo"), key, value)


def _allocatable(amount: str) -> Change:
    return _put(_node("gpu-1", "status", "allocatable"), "nvidia.com/gpu", amount)


def _counter(name: str, value: float) -> Change:
    return lambda world: world.health["gpu-1"]["GPU-gpu-1-0"].update({f"DCGM_FI_DEV_{name}": value})


def _image_id(image: str) -> Change:
    return lambda world: world.pods[0]["status"]["containerStatuses"][0].update(imageID=image)


def _upgrade(world: World) -> None:
    world.release["version"] = 2
    world.release["chart"]["metadata"]["version"] = "v26.7.0"


def _swap(world: World) -> None:
    world.gpus["gpu-1"][0] = msgspec.structs.replace(world.gpus["gpu-1"][0], uuid="GPU-other")


WARN, FAIL, CRITICAL = "warn", "fail", "critical"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda world: world.release["config"].update(cdi={"enabled": False}), ("A80", WARN, "warning", "values")),
        (lambda world: world.release["config"]["driver"].update(version="590.1"), ("A80", WARN, "warning", "values")),
        (lambda world: world.release.update(version=2), ("A80", WARN, "warning", "revision")),
        (lambda world: world.release.update(namespace="other"), ("A80", WARN, "warning", "is gone")),
        (lambda world: world.spec.update(mig={"strategy": "mixed"}), ("A81", WARN, "warning", "outside Helm")),
        (lambda world: world.spec["driver"].update(version="590.1"), ("A81", WARN, "warning", "reverts it")),
        (lambda world: world.schema.update(x={"type": "string"}), ("A84", WARN, "warning", "the chart did not")),
        (_info("kernelVersion", "5.15.0-125-generic"), ("A84", WARN, "warning", "another kernel runs")),
        (_info("osImage", "Ubuntu 24.04"), ("A84", WARN, "warning", "another operating system")),
        (_info("kubeletVersion", "v1.35.0"), ("A84", WARN, "warning", "the kubelet")),
        (_info("containerRuntimeVersion", "cri-o://1.34"), ("A84", WARN, "warning", "container runtime")),
        (_labels("nvidia.com/cuda.driver-version.full", "590.1"), ("A84", WARN, "warning", "another driver version")),
        (_labels("nvidia.com/mig.config", "all-1g.10gb"), ("A84", WARN, "warning", "MIG layout")),
        (_labels("nvidia.com/gpu.product", "NVIDIA-A100"), ("A84", WARN, "warning", "nvidia.com labels")),
        (
            lambda world: world.nodes["gpu-1"].update(spec={"taints": [{"key": "x", "effect": "NoSchedule"}]}),
            ("A84", WARN, "warning", "taints"),
        ),
        (_allocatable("1"), ("A82", FAIL, CRITICAL, "fewer nvidia.com/gpu are allocatable")),
        (lambda world: world.nodes.pop("gpu-2"), ("A84", FAIL, CRITICAL, "a node with GPUs is gone")),
        (lambda world: world.gpus["gpu-1"].pop(), ("A84", FAIL, CRITICAL, "GPUs are missing")),
        (_swap, ("A84", FAIL, CRITICAL, "GPUs were swapped")),
        (_image_id(f"x@sha256:{'b' * 64}"), ("A83", WARN, "warning", "another image runs under the same tag")),
        (_counter("ECC_DBE_AGG_TOTAL", 1), ("A84", FAIL, CRITICAL, "uncorrectable memory errors")),
        (_counter("ROW_REMAP_FAILURE", 1), ("A84", FAIL, "fatal", "remapping of memory rows has failed")),
        (_counter("ROW_REMAP_PENDING", 1), ("A84", WARN, "warning", "waits for a reset")),
        (_counter("THERMAL_VIOLATION", 9e9), ("A84", WARN, "warning", "throttled by heat")),
        (_counter("NVLINK_REPLAY_ERROR_COUNT_TOTAL", 3), ("A84", WARN, "warning", "NVLink errors")),
        (_counter("XID_ERRORS", 79), ("A84", FAIL, "fatal", "Xid 79")),
        (_counter("XID_ERRORS", 13), ("A84", WARN, "warning", "Xid 13")),
        (lambda world: setattr(world, "uid", "other"), ("A84", WARN, "warning", "another cluster")),
    ],
)
def test_a_change_is_told_by_its_rule(change: Change, wanted: tuple[str, str, str, str]) -> None:
    found = _bad(_findings(change))
    number, outcome, severity, words = wanted
    assert [each for each in found if each[:3] == (number, outcome, severity) and words in each[3]], found
    assert exit_code(_findings(change)) == (ExitCode.FAIL if outcome == FAIL else ExitCode.WARN)


@pytest.mark.parametrize(
    "change",
    [
        _allocatable("4"),
        _counter("ECC_SBE_AGG_TOTAL", 5),
        _counter("XID_ERRORS", 63),
        _labels("nvidia.com/gfd.timestamp", "1790009999"),
        _labels("nvidia.com/gpu-driver-upgrade-state", "upgrade-done"),
        lambda world: world.nodes["gpu-1"]["metadata"].update(resourceVersion="99", annotations={"heartbeat": "1"}),
        lambda world: [pod["metadata"].update(name="other") for pod in world.pods],
        lambda world: world.spec["toolkit"]["env"].reverse(),
        lambda world: world.gpus["gpu-1"].reverse(),
        _image_id(""),
    ],
)
def test_what_is_better_or_of_no_account_is_no_warning(change: Change) -> None:
    assert _bad(_findings(change)) == []


def test_more_gpus_are_told_as_information() -> None:
    (finding,) = [each for each in _findings(_allocatable("4")) if each.id == "A82"]
    assert (finding.outcome, finding.severity) == (Outcome.PASS, Severity.INFO)
    assert finding.evidence[0].excerpt == "2 -> 4"


def test_an_upgrade_by_helm_is_no_edit_and_its_definitions_are_expected() -> None:
    def upgrade(world: World) -> None:
        _upgrade(world)
        world.schema["x"] = {"type": "string"}
        for spec in (world.spec, world.chart_spec):
            spec["driver"]["version"] = "590.1"

    found = _bad(_findings(upgrade))
    assert [each[0] for each in found] == ["A80"]
    assert "version, revision" in found[0][3]


def test_an_edit_before_the_baseline_is_told_still() -> None:
    def edit(world: World) -> None:
        world.spec["driver"]["version"] = "590.1"

    (finding,) = [each for each in _findings(edit, edit) if each.outcome is Outcome.WARN]
    assert finding.id == "A81"
    assert finding.action is Action.CHANGE_CONFIG
    assert finding.evidence[0].excerpt == "580.95.05 -> 590.1"


def test_diffs_name_lines_and_hold_no_secret() -> None:
    def edit(world: World) -> None:
        world.release["config"]["driver"]["version"] = "590.1"
        world.release["config"]["proxy"]["password"] = "planted-new-password"

    was, now = World().baseline(), World().baseline(edit)
    findings = drift(was, now)
    whole = "\n".join(text(findings, all_evidence=True)) + page(
        "x", facts=about(was, now), findings=findings, sections=sections(was, now)
    )
    assert "-  version: 580.95.05" in whole
    assert "+  version: '590.1'" in whole or "+  version: 590.1" in whole
    assert not [secret for secret in (*PLANTED, "planted-new") if secret in whole]


@pytest.mark.parametrize(("side", "part"), [(0, "helm"), (1, "nodes"), (0, "gpus"), (1, "pods"), (1, "health")])
def test_a_part_that_one_side_lacks_is_unknown(side: int, part: str) -> None:
    sides = [World().baseline(), World().baseline()]
    coverage = {**sides[side].coverage, part: Coverage(state="absent", reasons=["needs list on it"])}
    sides[side] = msgspec.structs.replace(sides[side], coverage=coverage)
    found = drift(*sides)
    unknown = [each for each in found if each.outcome is Outcome.UNKNOWN]
    assert len(unknown) == len([rule for rule in RULES if rule.part == part])
    assert all(each.evidence[0].excerpt == "needs list on it" for each in unknown)
    assert exit_code(found) == ExitCode.WARN


def test_nodes_that_were_not_read_are_unknown_and_the_others_are_compared() -> None:
    def change(world: World) -> None:
        del world.gpus["gpu-2"]
        world.gpus["gpu-1"].pop()

    found = {(each.outcome, each.nodes) for each in _findings(change) if each.outcome is not Outcome.PASS}
    assert (Outcome.UNKNOWN, ("gpu-2",)) in found
    assert (Outcome.FAIL, ("gpu-1",)) in found


@pytest.mark.parametrize(
    ("was", "now", "outcome", "words"),
    [
        (CudaTest(outcome="pass", seconds=3), CudaTest(outcome="pass", seconds=4), Outcome.PASS, "as recorded"),
        (CudaTest(outcome="pass", seconds=3), CudaTest(outcome="pass", seconds=7), Outcome.PASS, "2 times as long"),
        (CudaTest(outcome="pass"), CudaTest(outcome="fail"), Outcome.FAIL, "does not pass any more"),
    ],
)
def test_the_cuda_test(was: CudaTest, now: CudaTest, outcome: Outcome, words: str) -> None:
    def given(result: CudaTest) -> Change:
        return lambda world: world.cuda.update({"gpu-1": result})

    (finding,) = [each for each in _findings(given(now), given(was)) if "CUDA test" in each.title]
    assert finding.outcome is outcome
    assert words in finding.title


def test_facts_of_the_nodes_themselves() -> None:
    facts = {"secure_boot": False, "fabric_state": "Completed", "pci": ["10de:2330", "10de:2331"]}

    def given(**changes: Any) -> Change:
        return lambda world: setattr(world, "hosts", {"gpu-1": {**facts, **changes}, "gpu-2": copy.deepcopy(facts)})

    assert _bad(_findings(given(), given())) == []
    found = _bad(_findings(given(secure_boot=True, pci=["10de:2330"]), given()))
    assert {(each[1], each[3]) for each in found} == {
        ("warn", "the Secure Boot state has changed"),
        ("fail", "PCI devices are gone"),
    }


def test_a_gpu_that_moved_is_found_in_its_new_place() -> None:
    def move(world: World) -> None:
        world.gpus["gpu-2"].append(world.gpus["gpu-1"].pop())

    (finding,) = [each for each in _findings(move) if each.outcome is Outcome.FAIL]
    assert "is now in gpu-2" in finding.evidence[0].excerpt


def test_drift_is_the_same_of_a_saved_baseline(tmp_path: Any) -> None:
    from groundplane.admin import baseline

    was, now = World().baseline(), World().baseline(_allocatable("1"))
    baseline.save(was, tmp_path / "a.tar.gz")
    baseline.save(now, tmp_path / "b")
    loaded: list[Baseline] = [baseline.load(tmp_path / name) for name in ("a.tar.gz", "b")]
    assert drift(*loaded) == drift(was, now)
