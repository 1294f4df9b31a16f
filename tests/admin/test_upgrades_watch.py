"""Drivers while they are replaced: states, ages, what is stuck, when it is over; hooks, canaries, what is kept."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from groundplane.admin import baseline, canary, plans, rollback, savepoint, upgrade_run, upgrade_watch
from groundplane.admin.upgrade_watch import Expected, Row, Watch
from groundplane.diagnose.findings import Evidence, Finding, Layer, Outcome
from groundplane.diagnose.survey import Survey

Document = dict[str, Any]
STATE = "nvidia.com/gpu-driver-upgrade-state"
SKIP = "nvidia.com/gpu-driver-upgrade.skip"
DEPLOY = "nvidia.com/gpu.deploy.driver"
NOW = 1_800_000_000.0


def node(name: str = "a", **labels: str) -> Document:
    found = {"nvidia.com/gpu.present": "true", **{key.replace("__", "/"): value for key, value in labels.items()}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": found}, "spec": {}}


def stated(state: str, name: str = "a", **more: str) -> Document:
    made = node(name, **more)
    made["metadata"]["labels"][STATE] = state
    return made


def driver(on: str = "a", digest: str = "2", ready: bool = True, waiting: str = "") -> Document:
    container: Document = {"name": "nvidia-driver-ctr", "image": "driver:1", "state": {}}
    if waiting:
        container["state"] = {"waiting": {"reason": waiting}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"driver-{on}",
            "namespace": "gpu-operator",
            "labels": {"app": "nvidia-driver-daemonset", "controller-revision-hash": digest},
            "ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "ds"}],
        },
        "spec": {"nodeName": on, "containers": []},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [container],
        },
    }


def daemon_set(generation: int = 2, observed: int = 2) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d", "namespace": "gpu-operator", "uid": "ds", "generation": generation},
        "spec": {"template": {"metadata": {"labels": {"app": "nvidia-driver-daemonset"}}, "spec": {}}},
        "status": {"observedGeneration": observed},
    }


def revision(number: int) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"d-{number}",
            "namespace": "gpu-operator",
            "labels": {"controller-revision-hash": str(number)},
            "ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "ds"}],
        },
        "revision": number,
    }


def policy(state: str = "ready") -> Document:
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "status": {"state": state},
    }


def cluster(*documents: Document) -> Survey:
    whole = (daemon_set(), revision(1), revision(2), policy())
    kinds = {each["kind"] for each in documents}
    return Survey.of([*documents, *(each for each in whole if each["kind"] not in kinds)], read=upgrade_watch.KINDS)


def look(*documents: Document, after_s: float = 0.0, automatic: bool = True) -> list[Row]:
    watch = Watch()
    watch.look(cluster(*documents), NOW, automatic=automatic)
    return watch.look(cluster(*documents), NOW + after_s, automatic=automatic)


CASES: dict[str, tuple[list[Row], str, str]] = {
    "A99 upgraded": (look(stated("upgrade-done"), driver()), "A101", "pass"),
    "A99 not begun": (look(stated("upgrade-required"), driver(digest="1")), "A99", "warn"),
    "A99 not by itself": (look(node(), driver(digest="1"), automatic=False), "A99", "warn"),
    "A100 stuck": (look(stated("pod-deletion-required"), driver(digest="1"), after_s=700), "A100", "fail"),
    "A100 takes its time": (look(stated("pod-deletion-required"), driver(digest="1"), after_s=60), "A99", "warn"),
    "A100 nobody begins": (look(stated("upgrade-required"), driver(digest="1"), after_s=700), "A100", "fail"),
    "A101 failed": (look(stated("upgrade-failed"), driver(digest="1")), "A101", "fail"),
    "A101 held": (look(stated("upgrade-required", **{SKIP: "true"}), driver(digest="1")), "A101", "warn"),
    "A102 the host's": (look(node(**{DEPLOY: "pre-installed"})), "A102", "skip"),
    "A100 no GPU": ([], "A100", "skip"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_node_s_upgrade_as_a_finding(case: str) -> None:
    rows, number, outcome = CASES[case]
    assert [(each.id, each.outcome.value) for each in upgrade_watch.judge(rows)] == [(number, outcome)]


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ((stated("pod-restart-required"), driver(waiting="ImagePullBackOff", ready=False)), "ImagePullBackOff"),
        ((stated("upgrade-required", **{SKIP: "true"}), driver()), "held by label"),
        ((node(),), "manages no driver here"),
        ((node(), driver()), "not yet looked at it"),
        ((stated("upgrade-perhaps"), driver()), "no state that a release writes"),
    ],
)
def test_a_node_says_what_it_waits_for_or_why_it_has_no_state(documents: tuple[Document, ...], said: str) -> None:
    (row,) = look(*documents)
    assert said in row.why


def test_ages_come_from_events_and_from_what_was_seen() -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "a"},
        "reason": "GPUDriverUpgrade",
        "lastTimestamp": "2027-01-15T07:50:00Z",
    }
    watch = Watch()
    (row,) = watch.look(cluster(stated("drain-required"), driver(), event), NOW)
    assert row.age_s == pytest.approx(600.0) and "for 10m00s" in str(row)
    (row,) = watch.look(cluster(stated("pod-restart-required"), driver(), event), NOW + 60)
    assert row.age_s == 0.0
    (row,) = watch.look(cluster(stated("pod-restart-required"), driver(), event), NOW + 90)
    assert row.age_s == 30.0
    assert upgrade_watch.told_age(3725) == "1h02m"


BEFORE = Expected({"d": 1}, True)


@pytest.mark.parametrize(
    ("documents", "expected", "left"),
    [
        ((stated("upgrade-done"), driver()), BEFORE, 0),
        ((stated("upgrade-done"), driver()), Expected({"d": 2}, True), 1),
        ((stated("upgrade-done"), driver(digest="1")), BEFORE, 1),
        ((stated("upgrade-done"), driver(ready=False)), BEFORE, 1),
        ((stated("uncordon-required"), driver()), BEFORE, 1),
        ((stated("upgrade-done"), driver(), daemon_set(3, 2)), BEFORE, 1),
        ((stated("upgrade-done"), driver(), policy("notReady")), BEFORE, 1),
        ((stated("upgrade-required", **{SKIP: "true"}), driver(digest="1")), BEFORE, 0),
        ((node(**{DEPLOY: "pre-installed"}),), BEFORE, 0),
        ((node(), driver(digest="1")), Expected({"d": 1}, True, False), 0),
    ],
)
def test_what_is_waited_for(documents: tuple[Document, ...], expected: Expected, left: int) -> None:
    survey = cluster(*documents)
    rows = Watch().look(survey, NOW, automatic=expected.automatic)
    assert len(list(upgrade_watch.waits(survey, rows, expected))) == left


def test_canaries_do_not_wait_for_the_others() -> None:
    survey = cluster(stated("upgrade-done"), driver(), stated("drain-required", "b"), driver("b", "1"))
    rows = Watch().look(survey, NOW)
    assert not list(upgrade_watch.waits(survey, rows, BEFORE, ("a",)))
    assert list(upgrade_watch.waits(survey, rows, BEFORE))


# --- Canaries ---------------------------------------------------------------------------------------------------------


def test_the_others_are_held_but_for_those_that_somebody_holds() -> None:
    survey = Survey.of([node("a", pool="c"), node("b"), node("c", **{SKIP: "true"})], read=("nodes",))
    assert canary.chosen(survey, "pool=c") == canary.chosen(survey, "pool") == ("a",)
    assert canary.chosen(survey, "pool=d") == ()
    assert canary.to_hold(survey, "pool=c") == ("b",)
    ours = node("d", **{SKIP: "true"})  # of a run that was given up
    ours["metadata"]["annotations"] = {"groundplane.dev/held-for-canary": "true"}
    survey = Survey.of([node("a", pool="c"), ours], read=("nodes",))
    assert canary.held(survey) == canary.to_hold(survey, "pool=c") == ("d",)
    assert list(rollback.leftovers(ours)) == [f"d: {SKIP}=true, of an upgrade with canaries"]


@pytest.mark.parametrize("text", ["", "=x", "a b", "a!=b", "a in (b)"])
def test_a_canary_label_that_is_none(text: str) -> None:
    with pytest.raises(canary.CanaryError, match="KEY=VALUE"):
        canary.parse(text)


# --- Hooks, drift, health ---------------------------------------------------------------------------------------------


def hook(reason: str, hooked: bool = True) -> Survey:
    notes = {"helm.sh/hook": "pre-upgrade"} if hooked else {}
    head = {"namespace": "gpu-operator"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**head, "name": "j", "annotations": notes}}
    waiting = {"name": "c", "image": "r/o:1", "state": {"waiting": {"reason": reason, "message": "denied"}}}
    owner = [{"kind": "Job", "name": "j"}]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**head, "name": "p", "ownerReferences": owner},
        "spec": {"nodeName": "n"},
        "status": {"containerStatuses": [waiting]},
    }
    return Survey.of([job, pod])


def test_a96_a_hook_that_cannot_pull_is_told_with_image_node_and_answer() -> None:
    said = upgrade_run.hook_stuck(hook("ImagePullBackOff"))
    assert said == "hook job j cannot pull r/o:1 on n (ImagePullBackOff: denied)"
    assert upgrade_run.hook_stuck(hook("ContainerCreating")) == ""
    assert upgrade_run.hook_stuck(hook("ImagePullBackOff", hooked=False)) == ""


@pytest.mark.parametrize(
    ("number", "layer", "title", "outcome"),
    [
        ("A80", Layer.OPERATOR, "values differ", "pass"),
        ("A83", Layer.OPERATOR, "digest differs", "pass"),
        ("A84", Layer.KERNEL, "another driver version is told", "pass"),
        ("A84", Layer.KERNEL, "another kernel runs", "warn"),
        ("A82", Layer.DEVICE_PLUGIN, "fewer GPUs", "warn"),
    ],
)
def test_a98_what_the_upgrade_is_for_is_no_drift(number: str, layer: Layer, title: str, outcome: str) -> None:
    finding = Finding(id=number, layer=layer, outcome=Outcome.WARN, title=title, evidence=(Evidence("a", "b"),))
    assert upgrade_run.planned(finding).outcome.value == outcome
    lost = Finding(id=number, layer=layer, outcome=Outcome.FAIL, title=title)
    assert upgrade_run.planned(lost) is lost


@pytest.mark.parametrize(
    ("counters", "outcome"),
    [({"DCGM_FI_DEV_XID_ERRORS": 79.0}, "warn"), ({"DCGM_FI_DEV_XID_ERRORS": 0.0}, "pass"), (None, "unknown")],
)
def test_a93_gpus_that_are_sick_before(counters: dict[str, float] | None, outcome: str) -> None:
    looked = (
        baseline.Looked(health={"a": {"GPU-1": counters}})
        if counters is not None
        else baseline.Looked(left_out={"health": "not looked at"})
    )
    taken = baseline.of_survey(cluster(node()), looked)
    assert [each.outcome.value for each in upgrade_run.health(taken)] == [outcome]


# --- What is kept -----------------------------------------------------------------------------------------------------


def stored() -> Document:
    import base64
    import gzip

    values = {"driver": {"env": [{"name": "TOKEN", "value": "hunter2"}]}}
    chart = {"metadata": {"name": "gpu-operator", "version": "v26.3.3"}, "values": {}}
    whole = {
        "name": "gpu-operator", "namespace": "gpu-operator", "version": 3, "info": {"status": "deployed"},
        "chart": chart, "config": values,
    }  # fmt: skip
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(whole).encode()))).decode()
    head = {"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1"}
    return {**head, "metadata": {"name": "s", "namespace": "gpu-operator"}, "data": {"release": data}}


def test_a88_what_is_kept_is_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    holder = driver("a")
    holder["metadata"] |= {"name": "train", "namespace": "t", "labels": {}, "ownerReferences": []}
    holder["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    survey = cluster(node(), stored(), holder)
    folder = tmp_path / "kept"
    taken = baseline.of_survey(survey)
    for _ in range(2):  # again after an interruption
        savepoint.save(folder, survey, "gpu-operator/gpu-operator", "v26.3.3", "v26.7.0", taken)
    files = {str(each.relative_to(folder)): each for each in folder.rglob("*") if each.is_file()}
    assert {"values.yaml", "clusterpolicies.yaml", "history.json", "nodes.json", "baseline/manifest.json"} <= set(files)
    assert {stat.S_IMODE(each.stat().st_mode) for each in files.values()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "hunter2" in files["values.yaml"].read_text()
    kept = savepoint.load(folder)
    assert (kept.revision, kept.target) == (3, "v26.7.0")
    assert [(each.pod, each.node, each.controller) for each in kept.workloads] == [("t/train", "a", "")]
    assert savepoint.newest(tmp_path, "v26.7.0") == folder
    assert savepoint.newest(tmp_path, "v26.3.3") is None
    with pytest.raises(savepoint.SavepointError, match="is no savepoint"):
        savepoint.load(tmp_path)


def test_a_run_goes_on_by_the_same_words_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))
    plan = plans.Plan(title="Upgrade x", steps=(plans.Step(id="helm", title="t"),))
    run = upgrade_run.Run(
        kind="upgrade", asked="one", plan=plan, name="n", namespace="ns", source="v26.3.3", target="v26.7.0", folder="f"
    )
    assert upgrade_run.interrupted("server", "ns", "n") is None
    journal = upgrade_run.begin(run, "server")
    journal.note("helm")
    found = upgrade_run.interrupted("server", "ns", "n")
    assert found == run and found.plan.key == plan.key
    assert upgrade_run.resumed(found, "one", "server") == run
    with pytest.raises(plans.JournalError, match="was interrupted: finish it with the same arguments"):
        upgrade_run.resumed(found, "other", "server")
    record = upgrade_run.place("server", "ns", "n") / "run.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    record.write_text("{")
    with pytest.raises(plans.JournalError, match="is no record of a run"):
        upgrade_run.interrupted("server", "ns", "n")
    journal.close()
    upgrade_run.end("server", run)
    assert upgrade_run.interrupted("server", "ns", "n") is None
