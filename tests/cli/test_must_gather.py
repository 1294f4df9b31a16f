"""must-gather as a command on a lab: one file, private, without secrets, and the doctor judges it as it does live."""

import base64
import hashlib
import json
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lab_thread import LabThread

from groundplane.cli.main import main
from groundplane.diagnose import archive
from groundplane.lab.cluster import Lab

PLANTED = (
    "hunter2hunter2",
    "tok-4f9d8a7b6c",
    "s3cr3tvalue",
    "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl",
    "userpw99",
    "users-own-word",
)


class Cluster(LabThread):
    """A hollow lab in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Lab(hollow=3, hollow_gpus=8, operator=False))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("lab"))
    env = [{"name": "NGC_API_TOKEN", "value": PLANTED[1]}, {"name": "PROXY", "value": f"http://u:{PLANTED[4]}@proxy"}]
    head = {"name": "planted", "namespace": "gpu-operator"}
    cluster.do(
        cluster.lab.apply(
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}},
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": head,
                    "type": "helm.sh/release.v1",
                    "data": {"release": base64.b64encode(PLANTED[0].encode()).decode()},
                },
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {**head, "annotations": {"note": f"Authorization: Bearer {PLANTED[3]}"}},
                    "data": {"conf": f"password: {PLANTED[2]}\n", "again": f"it is {PLANTED[0]} here"},
                },
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": head,
                    "spec": {"containers": [{"name": "c", "image": "i", "env": env}]},
                },
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "users", "namespace": "default"},
                    "spec": {
                        "containers": [
                            {"name": "c", "image": "i", "env": [{"name": "HARMLESS", "value": PLANTED[5]}]},
                        ]
                    },
                },
            ]
        )
    )
    yield cluster
    cluster.close()


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert not isinstance(result.exception, Exception), result.exception
    return result


def gathered(cluster: Cluster, path: Path, *more: str) -> dict[str, bytes]:
    result = run("must-gather", "--kubeconfig", cluster.kubeconfig, "--no-exec", "--file", path, *more)
    assert result.exit_code == 0, result.output
    assert not any(each in result.output for each in PLANTED)
    with tarfile.open(path) as tar:
        return {each.name: file.read() for each in tar if (file := tar.extractfile(each)) is not None}


def test_no_planted_secret_is_in_any_byte_and_the_counts_are_told(cluster: Cluster, tmp_path: Path) -> None:
    files = gathered(cluster, tmp_path / "it.tar.gz")
    everything = b"\n".join((*map(str.encode, files), *files.values()))
    for each in PLANTED:
        assert each.encode() not in everything, each
        assert base64.b64encode(each.encode()) not in everything, each
    manifest = json.loads(files["must-gather/manifest.json"])
    assert sum(manifest["redacted"].values()) >= len(PLANTED) - 1  # the users' own is left out, not masked
    there = {name for name, row in manifest["files"].items() if "sha256" in row}
    assert there == {name.removeprefix("must-gather/") for name in files} - {"manifest.json"}
    for name in there:
        data = files[f"must-gather/{name}"]
        row = manifest["files"][name]
        assert (row["sha256"], row["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data)), name
    absent = {name: row["status"] for name, row in manifest["files"].items() if name not in there}
    assert absent == {"nodes": "skipped", "objects/secrets.0000.jsonl": "skipped"}
    assert manifest["files"]["objects/configmaps.0000.jsonl"]["redacted"]["value by name"] >= 1
    assert b"planted" in files["must-gather/objects/configmaps.0000.jsonl"]
    assert stat.S_IMODE((tmp_path / "it.tar.gz").stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["it.tar.gz"]


def test_the_doctor_judges_it_as_it_judges_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "it.tar.gz"
    files = gathered(cluster, path)
    live = run("doctor", "--kubeconfig", cluster.kubeconfig, "--no-exec", "-o", "json")
    offline = run("doctor", "--from", path, "-o", "json")
    assert live.exit_code == offline.exit_code
    assert json.loads(live.stdout)["findings"] == json.loads(offline.stdout)["findings"]
    assert json.loads(files["must-gather/doctor.json"])["findings"] == json.loads(offline.stdout)["findings"]


def test_pseudonyms_are_the_same_throughout_and_no_nodes_name_is_left(cluster: Cluster, tmp_path: Path) -> None:
    names = [each["metadata"]["name"] for each in archive_nodes(cluster, tmp_path / "plain.tgz")]
    everything = b"\n".join(gathered(cluster, tmp_path / "it.tgz", "--pseudonyms").values())
    assert names and b"node-01" in everything
    assert not any(f'"{each}"'.encode() in everything for each in names if not each.startswith("node-0"))


def archive_nodes(cluster: Cluster, path: Path) -> tuple[dict[str, Any], ...]:
    gathered(cluster, path)
    return archive.load(path).survey.of_kind("nodes")


def test_a_workload_is_asked_for_and_wrong_names_are_usage_errors(cluster: Cluster, tmp_path: Path) -> None:
    common = ("must-gather", "--kubeconfig", cluster.kubeconfig, "--file", tmp_path / "it.tgz", "--workload")
    assert run(*common, "planted").exit_code == 2
    refused = run(*common, "a/b")
    assert refused.exit_code == 1 and "Include them?" in refused.output
    assert not list(tmp_path.iterdir())
    assert run("must-gather", "--kubeconfig", cluster.kubeconfig, "--file", tmp_path / "no" / "it.tgz").exit_code == 1
