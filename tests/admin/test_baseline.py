"""Baselines: what is recorded (A80 to A84), that it holds no secret, and that what is saved is what is read."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from baseline_world import PLANTED, SPEC, World
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.admin import baseline
from groundplane.admin.baseline import BaselineError, CudaTest
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.survey import Survey


def test_the_parts_of_a_cluster_are_recorded() -> None:
    taken = World().baseline()
    parts = taken.parts
    release = parts.helm["gpu-operator/gpu-operator"]
    assert (release.version, release.revision, release.status) == ("v26.3.3", 1, "deployed")  # A80
    assert release.values["driver"]["version"] == "580.95.05"
    assert release.computed["cdi"] == {"enabled": True}
    assert release.defaults == {"cdi": {"enabled": True}}
    assert len(release.manifest) == 64
    (policy,) = parts.resources  # A81
    assert policy.where == "ClusterPolicy/cluster-policy"
    assert [each["name"] for each in policy.spec["toolkit"]["env"]] == ["A", "B"]
    assert policy.chart == baseline.normal(SPEC)
    node = parts.nodes["gpu-1"]  # A82
    assert node.allocatable == {"nvidia.com/gpu": "2"} == node.capacity
    pod = parts.pods[0]  # A83
    assert pod.operand == "nvidia-device-plugin-daemonset"
    assert pod.images["nvidia-device-plugin"] == ["nvcr.io/nvidia/k8s-device-plugin:v0.18.0", f"sha256:{'a' * 64}"]
    assert (node.kernel, node.driver, node.gpu) == ("5.15.0-122-generic", "580.95.05", True)  # A84
    assert "nvidia.com/gfd.timestamp" not in node.labels
    assert parts.gpus["gpu-2"][1].vbios == "96.00"
    assert parts.definitions["clusterpolicies.nvidia.com"].served == ["v1"]
    assert taken.cluster == "3f0c3b7e-1111-2222-3333-444455556666"
    assert {part: each.state for part, each in taken.coverage.items() if each.state != "complete"} == {
        "hosts": "absent",
        "cuda": "absent",
    }


@pytest.mark.parametrize(
    ("plural", "part", "state"),
    [
        ("secrets", "helm", "absent"),  # A80
        ("clusterpolicies", "resources", "absent"),  # A81
        ("secrets", "resources", "partial"),
        ("nodes", "nodes", "absent"),  # A82
        ("nodes", "gpus", "absent"),
        ("pods", "pods", "absent"),  # A83
        ("customresourcedefinitions", "definitions", "absent"),  # A84
    ],
)
def test_what_may_not_be_read_is_said_with_the_permission_that_lacks(plural: str, part: str, state: str) -> None:
    world = World()
    world.unread = {plural: f"needs list on {plural}"}
    documents = world.documents
    kinds = {"clusterpolicies": "ClusterPolicy", "customresourcedefinitions": "CustomResourceDefinition"}
    kind = kinds.get(plural, plural.removesuffix("s").capitalize())
    world.documents = lambda: [each for each in documents() if each["kind"] != kind]  # type: ignore[method-assign]
    taken = world.baseline()
    assert taken.coverage[part].state == state
    assert f"needs list on {plural}" in taken.coverage[part].reasons
    assert not taken.complete


def test_gpus_of_a_node_that_does_not_answer_make_the_part_partial() -> None:
    taken = World().baseline(lambda world: world.gpus.pop("gpu-2"))
    assert taken.coverage["gpus"].state == "partial"
    assert taken.coverage["gpus"].lacking == ["gpu-2"]


def test_nothing_that_is_saved_has_a_secret(tmp_path: Path) -> None:
    world = World()
    world.spec["driver"]["env"] = [{"name": "REPO_PASSWORD", "value": PLANTED[3]}]
    world.hosts = {"gpu-1": {"fabric_state": f"API_TOKEN={PLANTED[0]}", "log": PLANTED[1]}, "gpu-2": {}}
    taken = world.baseline()
    whole = b"".join(baseline.files(taken).values()) + msgspec.json.encode(baseline.document(taken))
    assert not [secret for secret in PLANTED if secret.encode() in whole]
    assert sum(taken.redacted.values()) >= len(PLANTED)
    assert b"580.95.05" in whole


def test_the_same_cluster_makes_the_same_bytes_but_for_the_time(tmp_path: Path) -> None:
    one, other = World(), World()
    other.pods.reverse()
    other.nodes = dict(reversed(other.nodes.items()))
    other.spec["toolkit"]["env"].reverse()
    first, second = one.baseline(), other.baseline()
    assert baseline.files(first) == baseline.files(second)
    baseline.save(first, tmp_path / "a.tar.gz")
    baseline.save(second, tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    later = msgspec.structs.replace(first, at=first.at + 60)
    changed = [file for file, content in baseline.files(later).items() if content != baseline.files(first)[file]]
    assert changed == [baseline.MANIFEST]


@pytest.mark.parametrize("name", ["saved", "saved.tar.gz", "saved.tgz"])
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, name: str) -> None:
    world = World()
    world.hosts = {"gpu-1": {"secure_boot": False}, "gpu-2": {"secure_boot": True}}
    world.cuda = {"gpu-1": CudaTest(outcome="pass", seconds=3.5)}
    taken = world.baseline()
    baseline.save(taken, tmp_path / name)
    assert baseline.load(tmp_path / name) == msgspec.structs.replace(taken, source=str(tmp_path / name))
    with pytest.raises(BaselineError, match="exists already"):
        baseline.save(taken, tmp_path / name)
    baseline.save(taken, tmp_path / name, replace=True)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_directory_that_is_no_baseline_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(BaselineError, match="no baseline's directory"):
        baseline.save(World().baseline(), tmp_path / "mine", replace=True)


def _manifest(path: Path, **changes: Any) -> None:
    content = json.loads((path / baseline.MANIFEST).read_text())
    (path / baseline.MANIFEST).write_text(json.dumps({**content, **changes}))


def _cut(path: Path) -> None:
    (path / "nodes.json").write_bytes((path / "nodes.json").read_bytes()[:40])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_cut, "nodes.json is not what was saved"),
        (lambda path: (path / "pods.json").unlink(), "pods.json is missing"),
        (lambda path: (path / baseline.MANIFEST).unlink(), "has no manifest.json"),
        (lambda path: (path / baseline.MANIFEST).write_text("{"), "manifest.json is damaged"),
        (lambda path: (path / baseline.MANIFEST).write_text('{"kind": "List"}'), "is no baseline"),
        (lambda path: _manifest(path, schema=2, tool="9.9"), "made by groundplane 9.9"),
        (lambda path: _manifest(path, parts={}), "does not name"),
        (lambda path: _manifest(path, cluster=7), "manifest.json is damaged"),
    ],
)
def test_a_damaged_or_newer_baseline_is_told(tmp_path: Path, damage: Any, told: str) -> None:
    baseline.save(World().baseline(), tmp_path / "saved")
    damage(tmp_path / "saved")
    with pytest.raises(BaselineError, match=told):
        baseline.load(tmp_path / "saved")


def test_an_archive_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "saved.tar.gz"
    baseline.save(World().baseline(), path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BaselineError, match="damaged"):
        baseline.load(path)


def test_an_archive_cannot_have_files_of_its_own_choice_read(tmp_path: Path) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        link = tarfile.TarInfo("baseline/manifest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    path = tmp_path / "evil.tar.gz"
    path.write_bytes(gzip.compress(plain.getvalue()))
    with pytest.raises(BaselineError, match="has no manifest"):
        baseline.load(path)


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abn", min_size=1, max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(_DOCUMENTS, st.randoms())
def test_a_normal_form_is_its_own_and_knows_no_order(document: Any, random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return random.sample([shuffled(each) for each in value], len(value))
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in random.sample(list(value), len(value))}
        return value

    normal = baseline.normal(document)
    assert baseline.normal(normal) == normal
    assert baseline.normal(shuffled(document)) == normal


def test_the_result_of_a_cuda_test_is_read_by_node() -> None:
    findings = [{"nodes": ["gpu-1", "gpu-2"], "outcome": "pass"}, {"nodes": ["gpu-2"], "outcome": "fail"}]
    found = baseline.cuda_results({"findings": findings, "durations": {"gpu-1": 3.5}})
    assert found == {"gpu-1": CudaTest(outcome="pass", seconds=3.5), "gpu-2": CudaTest(outcome="fail")}
    with pytest.raises(BaselineError, match="cuda-test -o json"):
        baseline.cuda_results({"kind": "List"})


async def test_nodes_are_looked_at_from_inside_if_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    survey = Survey.of(world.documents(), version="v1.34.2", at=1.0, read=baseline.PLURALS)

    async def live(*_arguments: Any, **_more: Any) -> Survey:
        return survey

    class Look(msgspec.Struct):
        facts: dict[str, NodeFacts]
        unread: dict[str, str]

    async def look(nodes: list[str]) -> Look:
        assert nodes == ["gpu-1", "gpu-2"]
        return Look({"gpu-1": NodeFacts("gpu-1", {"secure_boot": True, "uptime_s": 7})}, {"gpu-2": "no operand there"})

    monkeypatch.setattr(baseline.surveys, "live", live)
    taken = await baseline.take(None, metrics=False, smi=False, look=look)  # type: ignore[arg-type]
    assert taken.parts.hosts["gpu-1"].facts == {"secure_boot": True}
    assert taken.coverage["hosts"].state == "partial"
    assert taken.coverage["hosts"].reasons == ["gpu-2: no operand there"]
    assert taken.coverage["gpus"].reasons == ["neither metrics nor nvidia-smi were to be read"]
