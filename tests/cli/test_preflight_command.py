"""``groundplane preflight`` as a person runs it: live, with too little permission, on files, and with mistakes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from lab_thread import LabThread
from preflight_world import V100, node

from groundplane.admin import chart, preflight_inputs, preflight_platform
from groundplane.admin.matrix import shipped
from groundplane.cli.main import main
from groundplane.diagnose.evidence import NodeFacts
from groundplane.lab.cluster import Lab

ROOT = Path(__file__).parents[2]
PLANTED = "hunter2-very-secret"


def run(*arguments: object, text: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["preflight", *map(str, arguments)], input=text)
    assert not isinstance(result.exception, Exception), result.exception
    return result


def found(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Findings by their number, of a run with ``-o json``."""
    by_number: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(result.stdout)["findings"]:
        by_number.setdefault(finding["id"], []).append(finding)
    return by_number


class Cluster(LabThread):
    """A lab with permissions, in a thread of its own; nobody says who they are, and may do what the test grants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Lab(hollow=3, hollow_gpus=8, rbac=True, operator=False))

    def grant(self, name: str, *resources: str) -> None:
        """Let everybody list some resources."""
        groups = ["", "nvidia.com", "admissionregistration.k8s.io", "config.openshift.io"]
        rules = [{"apiGroups": groups, "resources": list(resources), "verbs": ["get", "list"]}]
        subject = {"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        role = {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        self.do(
            self.lab.apply(
                [
                    {**head, "kind": "ClusterRole", "rules": rules},
                    {**head, "kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": role},
                ]
            )
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


def test_too_little_permission_is_told_by_name_and_is_no_pass(cluster: Cluster) -> None:
    where = ("--kubeconfig", cluster.kubeconfig, "-o", "json")
    nothing = run(*where)
    assert nothing.exit_code == 4
    assert {each["outcome"] for each in found(nothing)["A3"]} == {"unknown"}
    assert "nodes" in found(nothing)["A3"][0]["cause"] and "list" in found(nothing)["A3"][0]["cause"]
    assert not [each for each in found(nothing)["A1"] if each["outcome"] == "pass"]

    cluster.grant("nodes", "nodes")
    nodes = found(run(*where))
    assert {each["outcome"] for each in nodes["A3"]} <= {"pass", "warn"}
    (pods,) = nodes["A46"]
    assert pods["outcome"] == "unknown"
    assert "list" in pods["cause"] and "pods" in pods["cause"]
    assert "clusterpolicies" in nodes["A35"][0]["cause"]

    cluster.grant("most", "pods", "clusterpolicies", "nvidiadrivers", "clusterversions")
    most = found(run(*where))
    assert most["A35"][0]["outcome"] == "pass"
    assert most["A36"][0]["outcome"] == "unknown" and "namespaces" in most["A36"][0]["cause"]


def test_a_live_cluster(cluster: Cluster, tmp_path: Path) -> None:
    cluster.grant("all", *("nodes", "pods", "namespaces", "clusterpolicies", "nvidiadrivers", "clusterversions"))
    cluster.grant("hooks", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "secrets")
    where = ("--kubeconfig", cluster.kubeconfig)
    text = run(*where)
    assert "3 nodes, 3 with GPUs" in text.stdout and "Support matrix of" in text.stdout
    assert text.exit_code == 4
    document = yaml.safe_load(run(*where, "-o", "yaml").stdout)
    assert document["kind"] == "Preflight" and document["cluster"]["gpuNodes"] == 3
    page = tmp_path / "page.html"
    values = tmp_path / "values.yaml"
    fixed = run(*where, "--html", page, "--fix-values", values, "--release", "26.3.3")
    assert "With the proposed values" in fixed.stderr
    assert "<script" not in page.read_text() and "Values that fit this cluster" in page.read_text()
    assert yaml.safe_load(values.read_text())["driver"]["enabled"] is True
    again = run(*where, "--values", values, "--release", "26.3.3", "-o", "json")
    assert found(again)["values"][0]["outcome"] == "pass"
    piped = run(*where, "--fix-values", "-")
    assert yaml.safe_load(piped.stdout)["cdi"]["enabled"] is True


def _printed(tmp_path: Path, *nodes: dict[str, Any]) -> Path:
    path = tmp_path / "nodes.json"
    items = [{"apiVersion": "v1", "kind": "Node", **each} for each in nodes]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def test_what_kubectl_printed_is_judged_like_a_cluster(tmp_path: Path) -> None:
    path = _printed(tmp_path, node(), node("gpu-2", labels=V100))
    (tmp_path / "version.yaml").write_text("serverVersion: {gitVersion: v1.34.2}\n")
    (tmp_path / "policies.yaml").write_text("{apiVersion: v1, kind: ClusterPolicyList, items: []}\n")
    whole = run("--snapshot", tmp_path, "-o", "json")
    assert whole.exit_code == 4 and {each["outcome"] for each in found(whole)["A2"]} == {"pass"}
    piped = run("--snapshot", "-", "-o", "json", text=path.read_text())
    assert [each["nodes"] for each in found(piped)["A3"]] == [["gpu-1", "gpu-2"]]
    assert {each["outcome"] for each in found(piped)["A46"]} == {"unknown"}


def test_old_gpus_fail_under_the_default_driver(tmp_path: Path) -> None:
    path = _printed(tmp_path, node("gpu-2", labels=V100))
    values = tmp_path / "v.yaml"
    values.write_text("driver: {enabled: true}\n")
    failed = run("--snapshot", path, "-f", values, "-o", "json")
    assert failed.exit_code == 3
    assert any("pin driver.version=580" in fix for each in found(failed)["A42"] for fix in each["fix"])
    images = json.loads(run("--snapshot", path, "-f", values, "-o", "json", "--images").stdout)
    assert "nvcr.io/nvidia/driver:595.91.07-ubuntu24.04" in images["images"]
    assert images["packages"] == ["linux-headers-6.8.0-60-generic"]


def test_values_are_judged_before_there_is_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    values = tmp_path / "v.yaml"
    values.write_text(
        f"driver:\n  verson: x\n  enabled: 'yes'\ntoolkit:\n  env: [{{name: A_TOKEN, value: {PLANTED}}}]\n"
        f"registryPassword: {PLANTED}\n"
    )
    judged = run("-f", values)
    assert judged.exit_code == 3
    assert "there is no cluster" in judged.stderr
    assert f"{values} line 3: driver.enabled must be true or false, and is a text" in judged.stdout
    assert f"{values} line 2: the chart knows no driver.verson" in judged.stdout
    assert "did you mean driver.version?" in judged.stdout
    assert PLANTED not in judged.output
    values.write_text("cdi: {enabled: false, nriPluginEnabled: true}\n")
    refused = run("-f", values, "-o", "json")
    assert refused.exit_code == 3 and "refuses" in found(refused)["values"][0]["title"]
    nowhere = run()
    assert nowhere.exit_code == 1 and "kubeconfig" in nowhere.stderr.lower()


MISTAKES = [
    (["--release", "banana"], "no release of the GPU Operator"),
    (["--matrix", "missing.yaml"], "missing.yaml"),
    (["--values", "missing.yaml"], "missing.yaml cannot be read"),
    (["--snapshot", "empty"], "holds no file that ends in"),
    (["--on-node", "--snapshot", "x.yaml"], "--on-node looks at this node only"),
    (["--snapshot", "x.yaml", "--exec"], "--snapshot asks no cluster"),
    (["--root", "/host"], "--root is for --on-node"),
    (["--node-image", "x"], "are for --node-pods"),
    (["--reach", "http://x"], "are for --on-node and --node-pods"),
    (["--on-node", "--reach", "https://me:secret@mirror/x"], "without user and password"),
    (["--snapshot", "-", "--values", "-"], "standard input can be read once"),
    (["--values", "broken.yaml"], "broken.yaml, line 3"),
    (["--values", "list.yaml"], "found a list"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes_end_with_2_and_a_sentence(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.yaml").write_text("a: 1\nb: [\n")
    (tmp_path / "list.yaml").write_text("[1]\n")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_no_answer_from_the_server(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, users: [], "
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: a, context: {cluster: a}}]}"
    )
    result = run("--kubeconfig", kubeconfig)
    assert result.exit_code == 1
    assert "no answer from the API server" in result.stderr


def test_a_newer_matrix_counts_and_its_date_is_shown(tmp_path: Path) -> None:
    text = (ROOT / "src/groundplane/admin/data/support-matrix.yaml").read_text()
    other = tmp_path / "matrix.yaml"
    other.write_text(text.replace('data_as_of: "2026-08-21"', 'data_as_of: "2026-11-30"'))
    path = _printed(tmp_path, node())
    assert "Support matrix of 2026-11-30" in run("--snapshot", path, "--matrix", other).stdout
    other.write_text("schema_version: 99\n")
    assert run("--snapshot", path, "--matrix", other).exit_code == 2


def test_a_node_is_judged_without_a_cluster() -> None:
    facts = {
        "os": "ubuntu", "os_version": "24.04", "kernel": "6.8.0-60-generic", "gpus": [{"device": "1db1"}],
        "containerd": {"version": "2.1.4"}, "kubelet_version": "v1.34.2",
    }  # fmt: skip
    seen = NodeFacts(name="here", facts=facts)
    survey = preflight_inputs.of_node(seen)
    inquiry = preflight_inputs.inquiry_of(preflight_inputs.Wanted(shipped()), survey, {"here": seen})
    (here,) = inquiry.snapshot.gpu_nodes
    assert inquiry.snapshot.os_key(here) == "ubuntu24.04" and here.runtime == "containerd://2.1.4"
    assert inquiry.settings_source == "chart defaults" and "settings" not in inquiry.unread
    assert preflight_inputs.reaching(inquiry, ["http://mirror"]) == [
        "http://archive.ubuntu.com/ubuntu/dists/",
        "http://mirror",
    ]
    assert "nvcr.io/nvidia/driver:595.91.07-ubuntu24.04" in {
        each.reference for each in preflight_platform.needed(inquiry).images
    }


def test_the_charts_defaults_that_are_shipped_are_the_charts() -> None:
    """data/chart-values.json is made of deploy/chart: when this fails, make it anew."""
    folder = ROOT / "deploy" / "chart"
    wanted = {
        "values": yaml.safe_load((folder / "values.yaml").read_text()),
        "releases": yaml.safe_load((folder / "files" / "releases.yaml").read_text()),
    }
    assert json.loads((ROOT / "src/groundplane/admin/data" / chart.FILE).read_text()) == wanted
