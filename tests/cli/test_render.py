"""``groundplane render`` and ``crds``: formats, nodes, and errors that name file and field."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from groundplane.api import names
from groundplane.cli import crds, render
from groundplane.operands import stack

POLICIES = sorted((Path(__file__).parent.parent / "data" / "clusterpolicy").glob("*.yaml"))
DEFAULT = str(next(path for path in POLICIES if path.name == "26.7.0-default.yaml"))


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(render.command, list(arguments), input=stdin)


def rendering(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_every_policy_renders_to_the_same_objects_in_every_format(path: Path) -> None:
    release = path.name.split("-")[0]
    document = rendering("-f", str(path), "--release", release)
    assert document["release"] == release
    assert [state["name"] for state in document["states"]] == [state.name for state in stack.STATES]
    objects = [item for state in document["states"] for item in state["objects"]]
    assert objects
    stream = run("-f", str(path), "--release", release)
    assert sorted(map(json.dumps, map(_sorted, yaml.safe_load_all(stream.stdout)))) == sorted(
        map(json.dumps, map(_sorted, objects))
    )
    assert yaml.safe_load(run("-f", str(path), "--release", release, "-o", "yaml").stdout) == document


def _sorted(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


def test_a_disabled_state_is_named_and_has_no_objects(tmp_path: Path) -> None:
    policy = yaml.safe_load(Path(DEFAULT).read_text())
    policy["spec"]["gfd"]["enabled"] = False
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(policy))
    states = {state["name"]: state for state in rendering("-f", str(tmp_path / "p.yaml"))["states"]}
    assert states["gpu-feature-discovery"] == {"name": "gpu-feature-discovery", "enabled": False, "objects": []}


def test_one_state_only() -> None:
    (state,) = rendering("-f", DEFAULT, "--state", "state-device-plugin")["states"]
    assert {item["kind"] for item in state["objects"]} >= {"DaemonSet", "ServiceAccount", "ConfigMap"}


def node(name: str, **labels: str) -> dict[str, Any]:
    known = {key.replace("__", "/"): value for key, value in labels.items()}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": known}, "status": {}}


def test_nodes_bring_their_label_changes(tmp_path: Path) -> None:
    gpu = node("gpu") | {"metadata": {"name": "gpu", "labels": {
        names.PCI_GPU_LABELS[0]: "true", names.OS_RELEASE_ID: "rhel", names.OS_RELEASE_VERSION_ID: "9.4",
        names.KERNEL_VERSION: "5.14.0-427.el9.x86_64"}}}  # fmt: skip
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}}
    (tmp_path / "n.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [gpu, bare]}))
    document = rendering("-f", DEFAULT, "--nodes", str(tmp_path / "n.yaml"))
    (change,) = document["nodes"]
    assert change["name"] == "gpu"
    assert change["labels"][names.GPU_PRESENT] == "true"
    assert change["labels"][names.DEPLOY_DRIVER] == "true"
    driver = next(state for state in document["states"] if state["name"] == "state-driver")
    images = [c["image"] for item in driver["objects"] if item["kind"] == "DaemonSet"
              for c in item["spec"]["template"]["spec"]["containers"]]  # fmt: skip
    assert images == ["nvcr.io/nvidia/driver:595.91.07-rhel9"]
    stream = run("-f", DEFAULT, "--nodes", str(tmp_path / "n.yaml")).stdout
    assert f"# node gpu: {names.GPU_PRESENT}=true" in stream


def test_a_policy_from_standard_input() -> None:
    result = run("-f", "-", stdin=Path(DEFAULT).read_text())
    assert result.exit_code == 0
    assert "nvidia-driver-daemonset" in result.stdout


def test_a_referenced_config_map_must_be_given_and_then_is_mounted(tmp_path: Path) -> None:
    policy = yaml.safe_load(Path(DEFAULT).read_text())
    policy["spec"]["driver"]["repoConfig"]["configMapName"] = "mirrors"
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(policy))
    refused = run("-f", str(path))
    assert refused.exit_code == 1
    assert "mirrors" in refused.stderr
    assert "state-driver" in refused.stderr
    given = tmp_path / "cm.yaml"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mirrors"}, "data": {"a.list": ""}}
    given.write_text(yaml.safe_dump(config))
    accepted = run("-f", str(path), "--with", str(given))
    assert accepted.exit_code == 0, accepted.output
    assert "/etc/apt/sources.list.d/a.list" in accepted.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-f", "/nowhere.yaml"], ["/nowhere.yaml"]),
        (["-f", DEFAULT, "--release", "24.9"], ["--release", "24.9", "26.3.3"]),
        (["-f", DEFAULT, "--state", "state-drivr"], ["state-drivr", "state-driver"]),
        (["-f", DEFAULT, "--os", "ubuntu"], ["--os", "ID:VERSION_ID"]),
        (["-f", DEFAULT, "--nodes", DEFAULT], [DEFAULT, "ClusterPolicy", "Node"]),
        (["-f", DEFAULT, "--with", DEFAULT], ["--with", "ClusterPolicy"]),
    ],
)
def test_bad_arguments_name_what_is_wrong(arguments: list[str], words: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert [word for word in words if word not in result.stderr] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [", ["standard input", "line"]),
        ("- 1", ["document 1", "mapping", "list"]),
        ("kind: Pod", ["ClusterPolicy", "Pod"]),
        ("", ["ClusterPolicy", "nothing"]),
        ("kind: ClusterPolicy\napiVersion: nvidia.com/v1\nmetadata: {name: a}\nspec: {driver: {enabled: 'yes'}}",
         ["spec.driver.enabled"]),
    ],
)  # fmt: skip
def test_a_bad_policy_names_the_place(text: str, words: list[str]) -> None:
    result = run("-f", "-", stdin=text)
    assert result.exit_code == 1
    assert [word for word in words if word not in result.stderr] == []


def test_an_unknown_field_is_warned_of_with_a_suggestion() -> None:
    policy = yaml.safe_load(Path(DEFAULT).read_text())
    policy["spec"]["driver"]["repositry"] = "x"
    result = run("-f", "-", stdin=yaml.safe_dump(policy))
    assert result.exit_code == 0
    assert "spec.driver.repositry" in result.stderr
    assert "spec.driver.repository" in result.stderr


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_crds(output: str) -> None:
    text = CliRunner().invoke(crds.command, ["-o", output]).stdout
    documents = json.loads(text)["items"] if output == "json" else list(yaml.safe_load_all(text))
    assert [each["metadata"]["name"] for each in documents] == [
        "clusterpolicies.nvidia.com",
        "nvidiadrivers.nvidia.com",
    ]
    assert all(list(each)[:3] == ["apiVersion", "kind", "metadata"] for each in documents)


def test_objects_name_their_owner_only_when_its_uid_is_known() -> None:
    policy = yaml.safe_load(Path(DEFAULT).read_text())
    policy["metadata"]["uid"] = "6f0d9f6c-0000-4000-8000-000000000001"
    owned = [item for item in yaml.safe_load_all(run("-f", "-", stdin=yaml.safe_dump(policy)).stdout) if item]
    free = [item for item in yaml.safe_load_all(run("-f", DEFAULT).stdout) if item]
    assert len(owned) == len(free)
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in owned} == {policy["metadata"]["uid"]}
    assert not any("ownerReferences" in item["metadata"] for item in free)


# --- NVIDIADrivers ----------------------------------------------------------------------------------------------------

MANAGER = {"repository": "r", "image": "manager", "version": "1"}


def nvidia_driver(name: str = "a", **spec: Any) -> dict[str, Any]:
    plain = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.126.20", "manager": MANAGER}
    metadata = {"name": name, "uid": f"uid-{name}"}
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "NVIDIADriver",
        "metadata": metadata,
        "spec": {**plain, **spec},
    }


def gpu_node(name: str, **labels: str) -> dict[str, Any]:
    found = {
        names.PCI_GPU_LABELS[0]: "true",
        names.KERNEL_VERSION: "6.8.0-60-generic",
        names.OS_RELEASE_ID: "ubuntu",
        names.OS_RELEASE_VERSION_ID: "24.04",
    }
    return {"kind": "Node", "metadata": {"name": name, "labels": {**found, **labels}}}


def written(folder: Path, *items: dict[str, Any], name: str = "items.yaml") -> str:
    (folder / name).write_text(yaml.safe_dump_all(items))
    return str(folder / name)


def test_a_driver_renders_for_a_sample_node(tmp_path: Path) -> None:
    document = rendering("-f", written(tmp_path, nvidia_driver()))
    assert document["policy"] == "a"
    shared, own = document["states"]
    assert [each["metadata"]["name"] for each in shared["objects"]] == ["nvidia-driver-startup-probe"]
    assert own["name"] == "NVIDIADriver a"
    assert [each["kind"] for each in own["objects"]][-1] == "DaemonSet"


@pytest.mark.parametrize("as_list", [True, False])
def test_drivers_render_for_the_nodes_that_are_theirs(tmp_path: Path, as_list: bool) -> None:
    drivers = [nvidia_driver("a", nodeSelector={"example.com/pool": "a"}), nvidia_driver("rest", default=True)]
    items = [{"apiVersion": "v1", "kind": "List", "items": drivers}] if as_list else drivers
    nodes = written(tmp_path, gpu_node("n1", **{"example.com/pool": "a"}), gpu_node("n2"), name="nodes.yaml")
    document = rendering("-f", written(tmp_path, *items), "--nodes", nodes)
    owners = {each["name"]: each["labels"][names.DRIVER_OWNER] for each in document["nodes"]}
    assert owners == {"n1": "a", "n2": "rest"}
    selectors = {
        state["name"]: item["spec"]["template"]["spec"]["nodeSelector"]
        for state in document["states"]
        for item in state["objects"]
        if item["kind"] == "DaemonSet"
    }
    assert selectors["NVIDIADriver a"]["example.com/pool"] == "a"
    assert selectors["NVIDIADriver rest"][names.DRIVER_OWNER] == "rest"
    stream = run("-f", written(tmp_path, *items), "--nodes", nodes).stdout
    assert f"# node n1: {names.DRIVER_OWNER}=a" in stream


def test_drivers_that_meet_on_a_node_are_refused(tmp_path: Path) -> None:
    result = run("-f", written(tmp_path, nvidia_driver("a"), nvidia_driver("b")))
    assert result.exit_code == 1
    assert "select node sample: [a b]" in result.stderr


def test_what_is_wrong_with_one_driver_leaves_the_other(tmp_path: Path) -> None:
    bad = nvidia_driver("bad", version=None, nodeSelector={"pool": "bad"})
    contrary = nvidia_driver("contrary", usePrecompiled=True, gds={"enabled": True}, nodeSelector={"pool": "c"})
    nodes = written(tmp_path, gpu_node("n1", pool="bad"), gpu_node("n2", pool="c"), gpu_node("n3"), name="nodes.yaml")
    result = run("-f", written(tmp_path, bad, contrary, nvidia_driver("good", default=True)), "--nodes", nodes)
    assert result.exit_code == 1
    assert "error: NVIDIADriver bad: spec: repository, image and version must be set together" in result.stderr
    assert "error: NVIDIADriver contrary: spec.gds.enabled and spec.usePrecompiled" in result.stderr
    assert "kind: DaemonSet" in result.stdout


def test_a_node_that_is_left_out_is_warned_of(tmp_path: Path) -> None:
    bare = gpu_node("bare")
    del bare["metadata"]["labels"][names.OS_RELEASE_ID]
    result = run("-f", written(tmp_path, nvidia_driver()), "--nodes", written(tmp_path, bare, name="nodes.yaml"))
    assert result.exit_code == 0
    assert f"warning: NVIDIADriver a: node bare is left out: no label {names.OS_RELEASE_ID}" in result.stderr


@pytest.mark.parametrize(
    ("change", "arguments", "text"),
    [
        ({"kind": "NVIDIADriver", "metadata": {}}, (), "metadata.name: missing; give the NVIDIADriver a name"),
        ({"spec": {"version": 580}}, (), "spec.version: expected a string"),
        ({}, ("--state", "state-driver"), "NVIDIADrivers have no states to choose from"),
        ({"spec": {}}, (), "spec.image: 'nvcr.io/nvidia/driver' has neither a tag nor a digest"),
        ({"spec": {"repositry": "x", "image": "r/d:1", "manager": MANAGER}}, (), "did you mean spec.repository?"),
    ],
)
def test_drivers_that_cannot_be_rendered(
    tmp_path: Path, change: dict[str, Any], arguments: tuple[str, ...], text: str
) -> None:
    result = run("-f", written(tmp_path, {**nvidia_driver(), **change}), *arguments)
    assert text in result.stderr


def test_the_manager_may_be_the_operators(tmp_path: Path) -> None:
    path = written(tmp_path, nvidia_driver(manager={}))
    assert "spec.manager: no image" in run("-f", path).stderr
    assert "image: r/m:2" in run("-f", path, "--manager-image", "r/m:2").stdout


def test_a_policy_beside_drivers_is_rendered_as_ever(tmp_path: Path) -> None:
    policy = yaml.safe_load(Path(DEFAULT).read_text())
    document = rendering("-f", written(tmp_path, policy, nvidia_driver()))
    assert [state["name"] for state in document["states"]] == [state.name for state in stack.STATES]
