"""``baseline`` and ``drift`` as a person runs them: on a lab whose node programs run, and on files."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from baseline_world import PLANTED, World, secret
from click.testing import CliRunner, Result
from lab_thread import LabThread

from groundplane.admin import baseline
from groundplane.cli.main import main
from groundplane.lab import layers, nodes, resources
from groundplane.lab.cluster import Lab, data


def _run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert not isinstance(result.exception, Exception), result.exception
    return result


class Cluster(LabThread):
    """A lab in a thread of its own, so that commands can run their own loops."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Lab(nodes.generate(2)))

    async def up(self) -> None:
        await super().up()
        await self.lab.apply([data("guide-baseline.yaml"), secret(World().release)])

        def validated() -> bool:
            found = layers.judge(
                self.lab.api.list(resources.NODES)["items"], self.lab.api.list(resources.PODS)["items"]
            )
            return len(found) == 2 and all(row.healthy and row.gpus for row in found)

        await self.lab.wait_until(validated, timeout_s=100, what="two validated nodes")
        await self.lab.wait_ready(timeout_s=60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


def test_a_cluster_is_recorded_and_its_drift_told(cluster: Cluster, tmp_path: Path) -> None:
    where = ("--kubeconfig", cluster.kubeconfig)
    saved = tmp_path / "saved.tar.gz"
    result = _run("baseline", "save", saved, *where, "--inside")
    assert result.exit_code == 0, result.output
    assert "16 GPUs of 2 nodes" in result.output
    assert "counters of 16 GPUs" in result.output
    taken = baseline.load(saved)
    assert taken.complete
    assert taken.parts.hosts.keys() == taken.parts.nodes.keys()
    assert all(len(gpus) == 8 for gpus in taken.parts.gpus.values())
    assert not [each for each in PLANTED if each.encode() in b"".join(baseline.files(taken).values())]

    assert _run("drift", saved, *where, "--inside").exit_code == 0

    async def edit() -> None:
        async with cluster.lab.client() as client:
            path = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
            change = {"spec": {"vfioManager": {"env": [{"name": "MY_TOKEN", "value": "planted-live"}]}}}
            body = msgspec.json.encode(change)
            await client.raw("PATCH", path, body=body, content_type="application/merge-patch+json")
            node = next(iter(taken.parts.nodes))
            body = msgspec.json.encode({"metadata": {"labels": {"nvidia.com/rack": "7"}}})
            await client.raw("PATCH", f"/api/v1/nodes/{node}", body=body, content_type="application/merge-patch+json")

    cluster.do(edit())
    html = tmp_path / "drift.html"
    result = _run("drift", saved, *where, "-o", "json", "--html", html, "--no-exec")
    assert result.exit_code == 4, result.output
    document = json.loads(result.output)
    assert document["kind"] == "Drift"
    warned = {(each["id"], each["title"]) for each in document["findings"] if each["outcome"] == "warn"}
    assert ("A81", "ClusterPolicy/cluster-policy has changed") in warned
    assert ("A84", "nvidia.com labels have changed") in warned
    assert "nvidia.com labels have changed" in html.read_text()
    assert "planted" not in result.output + html.read_text()


def test_saved_baselines_are_shown_and_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other.tar.gz"
    baseline.save(World().baseline(), one)
    baseline.save(World().baseline(lambda world: world.gpus["gpu-1"].pop()), other)
    shown = _run("baseline", "show", one)
    assert shown.exit_code == 0
    assert "gpu-operator/gpu-operator v26.3.3 (revision 1)" in shown.output
    assert "5.15.0-122-generic" in shown.output
    document = json.loads(_run("baseline", "show", one, "-o", "json", "--part", "nodes").output)
    assert list(document["parts"]) == ["nodes"]
    assert "pods:" in _run("baseline", "show", one, "--part", "pods").output
    assert _run("drift", one, one).exit_code == 0
    result = _run("drift", one, other)
    assert result.exit_code == 3
    assert "GPUs are missing" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["drift", "{}/nothing"], 1, "does not exist"),
        (["baseline", "show", "{}"], 1, "has no manifest.json"),
        (["baseline", "save", "{}", "--kubeconfig", "{}/none"], 1, "exists already"),
        (["baseline", "save", "{}/new", "--kubeconfig", "{}/none"], 1, "none"),
        (["baseline", "save", "{}/new", "--cuda", "{}/none"], 2, "--cuda"),
        (["baseline"], 2, "save"),
        (["drift"], 2, "BASELINE"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    result = CliRunner().invoke(main, [each.format(tmp_path) for each in arguments])
    assert result.exit_code == code, result.output
    assert told in result.output
    assert "Traceback" not in result.output


def test_no_answer_from_the_cluster_leaves_no_file(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, users: [], "
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: a, context: {cluster: a}}]}"
    )
    result = CliRunner().invoke(main, ["baseline", "save", str(tmp_path / "new"), "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert "no answer from the API server" in result.output
    assert not (tmp_path / "new").exists()
