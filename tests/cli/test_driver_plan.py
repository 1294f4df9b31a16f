"""``groundplane driver plan``: of a cluster amid an upgrade and of a file with its objects, in every form."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner
from e2e.upgrading import amid
from e2e.world import World

from groundplane.api import names
from groundplane.cli import driver
from groundplane.lab import resources
from groundplane.lab.cluster import Lab
from groundplane.operator.upgrade.states import State

Document = dict[str, Any]

WRITTEN = ("nodes", "pods", "daemonsets", "controllerrevisions", "clusterpolicies", "nvidiadrivers")


class Seen(NamedTuple):
    """What kubectl would print of the cluster, and what the command says of the cluster itself."""

    objects: list[Document]
    live: str


def run(*arguments: str, code: int = 0, input: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """What ``driver plan`` prints."""
    result = CliRunner().invoke(driver.command, ["plan", *arguments], input=input, env=env)
    assert result.exit_code == code, result.output
    return result.output


def printed(lab: Lab) -> list[Document]:
    """The cluster's objects as ``kubectl get ... -A -o yaml`` has them."""
    api = lab.api
    kinds = {"clusterpolicies": names.GROUP, "nvidiadrivers": names.GROUP}
    apps = {"daemonsets": resources.DAEMON_SETS, "controllerrevisions": resources.CONTROLLER_REVISIONS}
    core = {"nodes": resources.NODES, "pods": resources.PODS}
    found: list[Document] = []
    for plural in WRITTEN:
        resource = {**apps, **core}.get(plural) or api.resource(plural, group=kinds[plural])
        listed = api.list(resource)["items"]
        found += [{"apiVersion": resource.api_version, "kind": resource.kind, **each} for each in listed]
    return found


async def look(folder: Path) -> Seen:
    """Go amid an upgrade: one node waits for a pod, one is skipped, one has a label of nonsense."""
    async with World() as world:
        fleet = await amid(world)
        world.label("gpu-b", {names.UPGRADE_SKIP: "true"})
        await fleet.comes_to(gpu_b=State.UPGRADE_REQUIRED)
        world.label("gpu-c", {names.UPGRADE_STATE: "banana"})
        await fleet.said("gpu-c", "banana", type="Warning")
        kubeconfig = world.lab.kubeconfig(folder / "kubeconfig")
        live = await asyncio.to_thread(run, "--live", "--kubeconfig", str(kubeconfig))
        return Seen(printed(world.lab), live)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(look(tmp_path_factory.mktemp("plan")))


@pytest.fixture
def snapshot(seen: Seen, tmp_path: Path) -> Path:
    """A file of the cluster's objects, as kubectl writes several kinds: one List."""
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": seen.objects}))
    return file


PLANNED = [
    "gpu-a: wait-for-jobs-required: stays, cordoned",
    "      waits: it waits for default/job, without end as waitForCompletion.timeoutSeconds is 0",
    "gpu-b: upgrade-required: stays",
    "      waits: it is skipped: remove label nvidia.com/gpu-driver-upgrade.skip=true to have it upgraded",
]


def test_a_cluster_is_looked_at(seen: Seen) -> None:
    lines = seen.live.splitlines()
    assert lines[:4] == PLANNED
    assert lines[4] == "gpu-c: (unknown value): stays"
    assert any(
        line.startswith("problem: node gpu-c: label nvidia.com/gpu-driver-upgrade-state=banana") for line in lines
    )
    assert lines[-1] == ("3 nodes: 0 done, 1 in progress, 1 pending, 0 failed; 1 of at most 2 unavailable; 0 may start")


def test_a_file_says_the_same_as_the_cluster_that_it_was_taken_of(seen: Seen, snapshot: Path) -> None:
    assert run("--snapshot", str(snapshot)) == seen.live
    assert run("--snapshot", "-", input=snapshot.read_text()) == seen.live


def test_a_stream_of_documents_and_lists_of_one_kind_are_read_too(seen: Seen, tmp_path: Path) -> None:
    stream, lists = tmp_path / "stream.yaml", tmp_path / "lists.yaml"
    stream.write_text(yaml.safe_dump_all(seen.objects))
    by_kind: dict[str, list[Document]] = {}
    for each in seen.objects:
        by_kind.setdefault(each["kind"], []).append({k: v for k, v in each.items() if k not in ("apiVersion", "kind")})
    lists.write_text(yaml.safe_dump_all({"kind": f"{kind}List", "items": items} for kind, items in by_kind.items()))
    assert run("--snapshot", str(stream)) == run("--snapshot", str(lists)) == seen.live


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_plan_for_programs(snapshot: Path, form: str) -> None:
    text = run("--snapshot", str(snapshot), "-o", form)
    found = yaml.safe_load(text) if form == "yaml" else json.loads(text)
    assert (found["apiVersion"], found["kind"], found["release"]) == (
        "groundplane.dev/v1alpha1",
        "DriverPlan",
        "26.7.0",
    )
    rows = {row["node"]: row for row in found["rows"]}
    assert (rows["gpu-a"]["state"], rows["gpu-a"]["to"], rows["gpu-a"]["cordoned"]) == (
        "wait-for-jobs-required",
        "",
        True,
    )
    assert found["counts"][""] == {
        "total": 3,
        "in_progress": 1,
        "done": 0,
        "failed": 0,
        "pending": 1,
        "unavailable": 1,
        "max_unavailable": 2,
        "slots": 0,
    }
    assert len(found["problems"]) == 1


def changed(snapshot: Path, change: Any) -> str:
    """The path of the snapshot after a change of its items."""
    document = yaml.safe_load(snapshot.read_text())
    change(document["items"])
    snapshot.write_text(yaml.safe_dump(document))
    return str(snapshot)


def policy(items: list[Document]) -> Document:
    """The policy among the objects."""
    return next(each for each in items if each["kind"] == "ClusterPolicy")


def test_upgrades_that_are_off_say_why_and_what_is_cleared(snapshot: Path) -> None:
    def off(items: list[Document]) -> None:
        policy(items)["spec"]["driver"]["upgradePolicy"]["autoUpgrade"] = False

    lines = run("--snapshot", changed(snapshot, off)).splitlines()
    assert lines[0] == "driver upgrades are off: spec.driver.upgradePolicy.autoUpgrade is not true"
    assert "gpu-a: wait-for-jobs-required -> (no state), cordoned" in lines
    assert any("kubectl uncordon gpu-a" in line for line in lines)


def test_a_node_that_was_left_cordoned_when_upgrades_were_turned_off_is_told(snapshot: Path) -> None:
    """driver-lifecycle 3.12: its label has gone, and with it every trace of the upgrade."""

    def off(items: list[Document]) -> None:
        policy(items)["spec"]["driver"]["upgradePolicy"]["autoUpgrade"] = False
        for node in (each for each in items if each["kind"] == "Node"):
            node["metadata"]["labels"].pop(names.UPGRADE_STATE, None)

    lines = run("--snapshot", changed(snapshot, off)).splitlines()
    at = lines.index("gpu-a: (no state): stays, cordoned")
    assert lines[at + 1].endswith("no upgrade will undo that: kubectl uncordon gpu-a")


def test_an_orphan_will_be_marked(snapshot: Path) -> None:
    """driver-lifecycle 3.9: only where its NVIDIADriver is upgraded."""

    def handed_over(items: list[Document]) -> None:
        policy(items)["spec"]["driver"]["useNvidiaDriverCRD"] = True
        image = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.126.20"}
        for name, on in (("on", True), ("off", False)):
            items.append(
                {
                    "apiVersion": "nvidia.com/v1alpha1",
                    "kind": "NVIDIADriver",
                    "metadata": {"name": name},
                    "spec": {**image, "upgradePolicy": {"autoUpgrade": on}},
                }
            )
        for each in items:
            labels = each["metadata"].get("labels") or {}
            if each["kind"] == "Node":
                owner = "off" if each["metadata"]["name"] == "gpu-c" else "on"
                labels.update({names.UPGRADE_STATE: "upgrade-done", names.DRIVER_OWNER: owner})
            if each["kind"] == "Pod" and labels.get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT:
                each["metadata"].pop("ownerReferences")

    text = run("--snapshot", changed(snapshot, handed_over))
    assert "gpu-b (on): upgrade-done -> upgrade-required" in text
    assert "gpu-c (off): upgrade-done -> (no state)" in text


def test_nothing_to_do_is_said(snapshot: Path) -> None:
    def done(items: list[Document]) -> None:
        for each in list(items):
            if each["kind"] == "Node":
                each["metadata"]["labels"].pop(names.UPGRADE_STATE)
                each["metadata"]["labels"].pop(names.UPGRADE_SKIP, None)
                each["spec"].pop("unschedulable", None)
            if each["kind"] == "Pod":
                items.remove(each)
            if each["kind"] == "DaemonSet":
                each["status"]["desiredNumberScheduled"] = 0

    assert "no node has anything to do" in run("--snapshot", changed(snapshot, done))


BAD: dict[str, tuple[str, str]] = {
    "no YAML": ("a: [", "is neither YAML nor JSON"),
    "a list": ("- 1\n- 2\n", "expected a mapping with apiVersion and kind, found list"),
    "a node with a wrong field": (
        "{apiVersion: v1, kind: Node, metadata: {name: n}, spec: {unschedulable: maybe}}",
        "Node n of the snapshot cannot be read",
    ),
    "a policy that cannot be": (
        "{apiVersion: nvidia.com/v1, kind: ClusterPolicy, metadata: {name: p}, spec: {driver: {enabled: perhaps}}}",
        "ClusterPolicy p cannot be read, so no driver is upgraded",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    text, said = BAD[case]
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    output = run("--snapshot", str(file), code=1)
    assert output.startswith("Error: ")
    assert said in output
    assert "Traceback" not in output


def test_a_file_that_is_not_there_and_two_sources_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in run("--snapshot", str(tmp_path / "no-such-file"), code=1)
    assert "exclude each other" in run("--live", "--snapshot", "x", code=2)
    assert "no-such-kubeconfig" in run("--kubeconfig", str(tmp_path / "no-such-kubeconfig"), code=1)


def test_a_driver_that_cannot_be_read_is_a_problem_of_its_nodes(tmp_path: Path) -> None:
    file = tmp_path / "driver.yaml"
    file.write_text("{apiVersion: nvidia.com/v1alpha1, kind: NVIDIADriver, metadata: {name: d}, spec: {version: [1]}}")
    output = run("--snapshot", str(file))
    assert "problem: NVIDIADriver d cannot be read" in output
    assert "spec.version: expected a string, found a list" in output


def test_an_empty_file_is_a_cluster_without_drivers(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert run("--snapshot", str(file)) == "driver upgrades are off: there is no NVIDIADriver\n"
    old = run("--snapshot", str(file), "--release", "26.3.3")
    assert old == "driver upgrades are off: there is no ClusterPolicy\n"
