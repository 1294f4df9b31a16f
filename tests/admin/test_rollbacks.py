"""A rollback's plan for one cluster: A103 to A105 and every layer of the boundary, where it holds and where not."""

import base64
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from groundplane.admin import (
    baseline,
    chart,
    matrix,
    rollback_findings,
    rollback_run,
    rollback_seen,
    rollback_view,
    rollbacks,
    savepoint,
    upgrade_render,
    upgrade_watch,
)
from groundplane.admin.hops import Version
from groundplane.admin.rollbacks import Known, RollbackError, RollbackPlan
from groundplane.admin.upgrade_run import Limits, Run
from groundplane.api import names
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.findings import Outcome
from groundplane.diagnose.survey import Survey

Document = dict[str, Any]
V26_3, V26_7 = Version(26, 3, 3), Version(26, 7, 0)
MATRIX = matrix.shipped()
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "a",
        "labels": {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.deploy.driver": "true",
            "feature.node.kubernetes.io/pci-10de.present": "true",
            "feature.node.kubernetes.io/kernel-version.full": "6.8.0-60-generic",
            "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
            "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
        },
    },
    "spec": {},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"osImage": "Ubuntu 24.04 LTS", "kernelVersion": "6.8.0-60-generic", "kubeletVersion": "v1.34.1"},
    },
}


def policy(version: Version, values: Document | None = None) -> Document:
    return upgrade_render.policy_of({**chart.defaults(version), **(values or {})})


def revision(number: int, version: Version = V26_3, status: str = "superseded", **more: Any) -> Document:
    """A revision of NVIDIA's chart, as Helm stores it."""
    name, values = more.get("name", "gpu-operator"), more.get("values") or {}
    stored = {
        "name": name,
        "namespace": "gpu-operator",
        "version": number,
        "info": {"status": status},
        "chart": {"metadata": {"name": "gpu-operator", "version": str(version)}, "values": chart.defaults(version)},
        "config": values,
        "manifest": "---\n" + yaml.safe_dump(policy(version, values)),
    }
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(stored).encode()))).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": f"sh.helm.release.v1.{name}.v{number}", "namespace": "gpu-operator"},
        "data": {"release": data},
    }


HISTORY = (revision(1), revision(2, V26_7, "deployed"))
CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {},
}


def cluster(*more: Document, history: Any = HISTORY, node: Document = NODE, live: Document | None = None) -> Survey:
    documents = [node, live or policy(V26_7), DEFINITION, *history, *more]
    return Survey.of(copy.deepcopy(documents), version="v1.34.1", read=rollbacks.KINDS)


def planned(survey: Survey, known: Known = Known(), number: int | None = None) -> RollbackPlan:  # noqa: B008
    return rollbacks.plan(survey, rollbacks.way(survey, number), MATRIX, known)


def outcome(made: RollbackPlan, words: str) -> Outcome:
    (found,) = [each for each in made.findings if words in each.title]
    return found.outcome


def pod(name: str, **metadata: Any) -> Document:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "uid": name, **metadata},
        "spec": {"nodeName": "a", "containers": [container]},
        "status": {"phase": "Running"},
    }


# --- Which revision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "number", "found"),
    [
        (HISTORY, None, 1),
        (HISTORY, 1, 1),
        ((revision(1), revision(2, status="failed"), revision(3, V26_7, "deployed")), None, 1),
        (HISTORY, V26_3, 1),
        ((revision(1), revision(2), *HISTORY[1:], revision(3, V26_7, "deployed")), V26_3, 2),
        ((revision(1, status="deployed"), revision(2, V26_7, "failed")), None, 1),
        ((revision(1, status="deployed"), revision(2, V26_7, "pending-upgrade")), None, 1),
    ],
)
def test_a103_the_newest_complete_revision_before_is_meant(
    history: Any, number: int | Version | None, found: int
) -> None:
    assert rollbacks.way(cluster(history=history), number).wanted.revision == found


@pytest.mark.parametrize(
    ("history", "number", "said"),
    [
        (HISTORY, 7, "no revision 7; it has 2 (v26.7.0, deployed), 1 (v26.3.3, superseded)"),
        (HISTORY, 2, "in force already"),
        (HISTORY, Version(26, 3, 2), "no complete revision of v26.3.2; it has 2"),
        (HISTORY, Version(26, 7, 1), "that is an upgrade"),
        ((revision(1, status="deployed"),), None, "no complete revision before 1"),
        ((revision(1), revision(2, status="failed"), revision(3, V26_7, "deployed")), 2, "never complete"),
        ((revision(1, status="failed"),), None, "never deployed completely"),
        ((*HISTORY, revision(1, status="deployed", name="other")), None, "2 releases of chart gpu-operator"),
        ((), None, "no release of chart gpu-operator"),
    ],
)
def test_a103_there_is_no_way_back(history: Any, number: int | Version | None, said: str) -> None:
    with pytest.raises(RollbackError) as error:
        rollbacks.way(cluster(history=history), number)
    assert said in str(error.value)


def test_a103_without_the_right_to_secrets_it_says_so() -> None:
    survey = msgspec.structs.replace(cluster(history=()), objects={}, unread={"secrets": "list secrets is lacking"})
    with pytest.raises(RollbackError, match="list secrets is lacking"):
        rollbacks.way(survey)


def test_a103_a_pending_release_stops_it_unless_a_person_has_said_that_no_helm_runs() -> None:
    survey = cluster(history=(revision(1, status="deployed"), revision(2, V26_7, "pending-upgrade")))
    assert not planned(survey).go
    assert planned(survey, Known(recover=True)).go


# --- The four preconditions -------------------------------------------------------------------------------------------


def test_10_what_nodes_tell_decides_the_preconditions() -> None:
    survey = cluster()
    blind = planned(survey)
    assert [each.met for each in blind.preconditions.checks] == [True, None, None, True]
    pulls = {each.reference: {"status": 200} for each in blind.needed.images}
    seen = NodeFacts(name="a", facts={"headers": "installed", "pull": pulls})
    assert planned(survey, Known({"a": seen})).preconditions.met
    lacking = {**pulls, blind.needed.images[0].reference: {"status": 404, "problem": "not found"}}
    seen = NodeFacts(name="a", facts={"headers": "absent", "pull": lacking})
    bad = planned(survey, Known({"a": seen}))
    assert [each.met for each in bad.preconditions.checks] == [True, False, False, True]
    assert not bad.go


@pytest.mark.parametrize(
    ("facts", "image", "said"),
    [
        ({"headers": "available"}, "driver:580-ubuntu24.04", ""),
        ({"headers": "not installed"}, "driver:580-ubuntu24.04", None),
        ({"headers": "installed", "secure_boot": True}, "driver:580-ubuntu24.04", "Secure Boot"),
        ({"headers": "absent"}, "driver:580-ubuntu24.04", "headers of 6.8.0"),
        ({"headers": "absent"}, "driver:580-6.8.0-ubuntu24.04", ""),
    ],
)
def test_10_whether_a_driver_can_be_had_on_the_running_kernel(facts: Document, image: str, said: str | None) -> None:
    found = rollbacks.buildable(facts, "6.8.0", image)
    assert found == said if not said else said in str(found)


def test_10_the_same_driver_needs_no_building() -> None:
    same = {"driver": {**chart.defaults(V26_3)["driver"], "version": "580.126.20"}}
    survey = cluster(history=(revision(1, values=same), revision(2, V26_3, "deployed", values=same)))
    assert planned(survey).preconditions.checks[2].met


# --- The boundary on a cluster ----------------------------------------------------------------------------------------


def test_10_edits_are_shown_first_and_are_lost() -> None:
    edited = policy(V26_7)
    edited["spec"]["mig"] = {"strategy": "mixed"}
    edited["spec"]["driver"]["env"] = [{"name": "PROXY_PASSWORD", "value": "hunter2"}]
    made = planned(cluster(live=edited))
    assert outcome(made, "ClusterPolicy and default") is Outcome.WARN
    (change,) = made.changes
    assert "spec.mig.strategy" in " ".join(change.edited)
    text = "\n".join(rollback_view.text(made)) + rollback_view.documented(made, "now") + rollback_view.page(made, "")
    assert "LOST: ClusterPolicy cluster-policy: spec.mig.strategy" in text
    assert "hunter2" not in text + json.dumps(rollback_view.about(made))
    assert outcome(planned(cluster()), "ClusterPolicy and default") is Outcome.PASS


def test_10_drivers_are_reloaded_and_what_holds_gpus_is_named() -> None:
    made = planned(cluster(pod("train-1")))
    assert made.reloaded == ("a",)
    assert [each.pod for each in made.estimate.holders] == ["train/train-1"]
    for layer in ("driver pods", "loaded kernel modules", "evicted workloads"):
        assert outcome(made, layer) is Outcome.WARN
    idle = planned(cluster())
    assert outcome(idle, "loaded kernel modules") is outcome(idle, "evicted workloads") is Outcome.PASS


def test_10_custom_resources_of_new_kinds_go_first_in_order() -> None:
    made = planned(
        cluster(
            {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "g"}},
            {
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "ComputeDomain",
                "metadata": {"name": "d", "namespace": "t"},
            },
        )
    )
    (line,) = [each for each in made.boundary if each.layer.startswith("custom resources")]
    assert line.found == ("delete ComputeDomain t/d first", "delete GPUCluster g first")
    assert outcome(made, "custom resources") is Outcome.FAIL
    assert not made.go
    assert outcome(planned(cluster()), "custom resources") is Outcome.PASS


def test_10_objects_that_the_older_schema_refuses_are_named() -> None:
    driver = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "NVIDIADriver",
        "metadata": {"name": "mine"},
        "spec": {"driverType": "gpu", "image": "driver", "kernelModuleType": "newest"},
    }
    made = planned(cluster(driver))
    assert made.snapshot.rejected == ("NVIDIADriver mine (spec.kernelModuleType)",)
    fine = {**driver, "spec": {**driver["spec"], "kernelModuleType": "open", "unheardOf": 1}}  # type: ignore[dict-item]
    assert planned(cluster(fine)).snapshot.rejected == ()


@pytest.mark.parametrize(("more", "found"), [((CLASS,), Outcome.PASS), ((), Outcome.WARN)])
def test_10_the_runtime_class(more: tuple[Document, ...], found: Outcome) -> None:
    assert outcome(planned(cluster(*more)), "RuntimeClass nvidia") is found


def test_10_leftovers_of_an_upgrade_are_listed() -> None:
    node = copy.deepcopy(NODE)
    node["spec"] = {"unschedulable": True}
    node["metadata"]["labels"]["nvidia.com/gpu.deploy.dcgm"] = "paused-for-driver-upgrade"  # type: ignore[index]
    assert outcome(planned(cluster(node=node)), "node labels") is Outcome.WARN
    assert outcome(planned(cluster()), "node labels") is Outcome.PASS


TOOLKIT = {
    **pod("t"),
    "metadata": {"name": "t", "namespace": "gpu-operator", "labels": {"app": "nvidia-container-toolkit-daemonset"}},
}


@pytest.mark.parametrize(
    ("facts", "more", "left"),
    [
        ({"toolkit": ["/usr/local/nvidia/toolkit/nvidia-ctk"]}, (), 1),
        ({"toolkit": ["/usr/local/nvidia/toolkit/nvidia-ctk"]}, (TOOLKIT,), 0),
        ({"cdi_specs": [{"path": "/etc/cdi/n.yaml", "kind": "nvidia.com/gpu"}]}, (), 1),
        ({"cdi_specs": [{"path": p, "kind": "nvidia.com/gpu"} for p in ("/a.yaml", "/b.yaml")]}, (TOOLKIT,), 1),
        ({"inactive_dropins": ["/etc/containerd/conf.d/99-nvidia.toml"]}, (TOOLKIT,), 1),
        ({"containerd": {"imported": ["/c/98-nvidia.toml", "/c/99-nvidia.toml"]}}, (TOOLKIT,), 1),
    ],
)
def test_10_host_files_that_stay(facts: Document, more: tuple[Document, ...], left: int) -> None:
    found = rollback_seen.host_files({"a": NodeFacts(name="a", facts=facts)}, cluster(*more))
    assert found is not None
    assert len(found["a"]) == left
    assert rollback_seen.host_files({}, cluster()) is None


def test_10_what_only_a_baseline_tells() -> None:
    older = copy.deepcopy(NODE)
    older["status"]["nodeInfo"]["kernelVersion"] = "6.8.0-31-generic"  # type: ignore[index]
    older["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.1"  # type: ignore[index]
    older["metadata"]["labels"]["nvidia.com/mig.config"] = "all-1g.10gb"  # type: ignore[index]
    survey = cluster()
    layers = ("kernel, initramfs", "container runtime", "MIG geometry")
    same, other = (planned(survey, Known(was=baseline.of_survey(cluster(node=each)))) for each in (NODE, older))
    assert {outcome(same, each) for each in layers} == {Outcome.PASS}
    assert {outcome(other, each) for each in layers} == {Outcome.WARN}
    assert {outcome(planned(survey), each) for each in (*layers, "firmware")} == {Outcome.UNKNOWN}


def test_a104_every_layer_has_its_finding() -> None:
    made = planned(cluster())
    assert sum(each.id == "A104" for each in made.findings) == len(made.boundary) == 16
    again = list(rollback_findings.of_boundary(made.boundary, after=True))
    assert all("to know of" not in each.title for each in again)


def test_a105_the_plan_by_layers_has_every_layer_once() -> None:
    made = planned(cluster(pod("train-1")))
    text = rollback_view.documented(made, "2026-12-01T00:00:00Z")
    assert [each for each in made.boundary if text.count(f"**{each.layer}**") != 1] == []
    assert "helm rollback gpu-operator 1 --namespace gpu-operator" in text
    assert "train/train-1 (bare)" in text
    order = [text.index(f". {each.title}\n") for each in rollback_view.CHAPTERS]
    assert order == sorted(order)


# --- When Helm is done ------------------------------------------------------------------------------------------------

BACK = (revision(1), revision(2, V26_7), revision(3, status="deployed"))


def row(**more: Any) -> upgrade_watch.Row:
    return upgrade_watch.Row(**{"node": "a", "state": "upgrade-done", "why": "", "age_s": 1.0, "current": True, **more})


def left(survey: Survey, run: Run, *rows: upgrade_watch.Row) -> dict[str, Outcome]:
    found = rollback_run.after(survey, run, Known(), list(rows))
    return {each.title.partition(":")[0]: each.outcome for each in found}


def test_a104_after_a_rollback_what_is_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))
    before = cluster(pod("train-1"))
    run = rollback_run.of_plan(planned(before), before, "asked", Limits())
    savepoint.save(Path(run.folder), before, run.where, run.source, run.target, baseline.of_survey(before))
    done = cluster(CLASS, pod("train-1"), history=BACK, live=policy(V26_3))
    well = left(done, run, row())
    layers = ("ClusterPolicy and default NVIDIADriver", "driver pods", "node labels, taints, cordon")
    assert {well[each] for each in (*layers, "evicted workloads", "RuntimeClass nvidia")} == {Outcome.PASS}
    assert well["CRDs"] is Outcome.WARN
    cordoned = {**NODE, "spec": {"unschedulable": True}}
    ill = left(cluster(history=BACK, live=policy(V26_7), node=cordoned), run, row(current=False))
    assert {ill[each] for each in (*layers, "evicted workloads", "RuntimeClass nvidia")} == {Outcome.WARN}


def test_a104_without_its_savepoint_it_is_not_known_what_was_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))
    run = rollback_run.of_plan(planned(cluster()), cluster(), "asked", Limits())
    assert left(cluster(history=BACK, live=policy(V26_3)), run, row())["evicted workloads"] is Outcome.UNKNOWN


@pytest.mark.parametrize(("held", "steps"), [(False, 0), (True, 1)])
def test_nodes_that_an_upgrade_held_are_let_go(held: bool, steps: int) -> None:
    node = copy.deepcopy(NODE)
    node["metadata"]["annotations"] = {names.HELD_FOR_CANARY: "true"} if held else {}  # type: ignore[index]
    node["metadata"]["labels"]["nvidia.com/gpu-driver-upgrade.skip"] = "true"  # type: ignore[index]
    survey = cluster(node=node)
    run = rollback_run.of_plan(planned(survey), survey, "asked", Limits(cuda=False))
    ids = [each.id for each in run.plan.steps]
    assert ids.count("let-go") == steps
    assert [each for each in ids if each != "let-go"] == ["snapshot", "helm", "drivers", "verify", "boundary", "drift"]
