"""``groundplane preflight --exec`` and ``--node-pods`` on a lab whose nodes run the shipped programs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lab_thread import LabThread

from groundplane.admin import nodelook
from groundplane.cli.main import main
from groundplane.lab import cluster as labs
from groundplane.lab import nodes, resources

NAMESPACE = "gpu-operator"
SPECS = nodes.parse(
    {
        "nodes": [
            {"name": "gpu-a", "gpus": [{"model": "H100-SXM5-80GB", "count": 2}]},
            {"name": "gpu-b", "gpus": [{"model": "L40S", "count": 1}], "hostDriver": "580.126.20"},
        ]
    },
    "the test",
)
IMAGE = "groundplane:1"


class Cluster(LabThread):
    """A lab with real programs and the operator, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, labs.Lab(SPECS, speed=100))

    def until(self, seen: Callable[[], bool], what: str) -> None:
        self.do(self.lab.wait_until(seen, timeout_s=100, what=what))

    def inspectors(self) -> list[str]:
        pods = self.lab.api.list(resources.PODS, NAMESPACE)["items"]
        return [pod["metadata"]["name"] for pod in pods if nodelook.LABEL in (pod["metadata"].get("labels") or {})]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


def run(cluster: Cluster, *arguments: object) -> Result:
    given = ["preflight", "--kubeconfig", str(cluster.kubeconfig), *map(str, arguments)]
    result = CliRunner().invoke(main, given)
    assert not isinstance(result.exception, Exception), result.exception
    return result


def outcomes(result: Result, number: str) -> dict[str, str]:
    """A check's outcome by node."""
    findings = json.loads(result.stdout)["findings"]
    return {node: each["outcome"] for each in findings if each["id"] == number for node in each["nodes"]}


BOTH = ("gpu-a", "gpu-b")


def test_inspector_pods_answer_what_only_nodes_know(cluster: Cluster, tmp_path: Path) -> None:
    """Before anything is installed: nothing labels nodes, so that even that there are GPUs is found on them."""
    blind = run(cluster, "-o", "json")
    assert outcomes(blind, "A15") == dict.fromkeys(BOTH, "unknown")
    given = ("--node-pods", "--node-image", IMAGE, "--no-network")
    seen = run(cluster, *given, "-o", "json")
    document = json.loads(seen.stdout)
    assert document["cluster"]["nodesLookedAt"] == 2 and document["cluster"]["gpuNodes"] == 2
    assert "looked at 2 of 2 nodes" in seen.stderr and cluster.inspectors() == []
    for number in ("A12", "A13", "A20", "A25", "A27", "A29", "A32"):
        assert outcomes(seen, number) == dict.fromkeys(BOTH, "pass"), number
    (host,) = [each for each in document["findings"] if each["id"] == "A9" and "gpu-b" in each["nodes"]]
    assert "the driver is the host's" in host["title"]
    text = run(cluster, *given)
    assert "2 nodes, 2 with GPUs, 2 looked at from inside" in text.stdout
    values = tmp_path / "values.yaml"
    assert run(cluster, *given, "--fix-values", values).exit_code in (3, 4) and "driver" in values.read_text()


def test_what_nodes_reach_is_asked_by_inspectors(cluster: Cluster) -> None:
    address = "http://127.0.0.1:9/"
    seen = run(cluster, "--node-pods", "--node-image", IMAGE, "--reach", address, "-o", "json")
    assert outcomes(seen, "A33") == dict.fromkeys(BOTH, "fail")
    (access,) = [each for each in json.loads(seen.stdout)["findings"] if each["id"] == "A33"]
    assert any(address in each["source"] for each in access["evidence"])
    assert cluster.inspectors() == []


def test_an_image_that_is_none_is_told_for_every_node(cluster: Cluster) -> None:
    seen = run(cluster, "--node-pods", "--node-image", "no-such:1", "-o", "json")
    assert seen.exit_code == 4 and outcomes(seen, "A15") == dict.fromkeys(BOTH, "unknown")
    (headers,) = [each for each in json.loads(seen.stdout)["findings"] if each["id"] == "A15"]
    assert "inspector pod cannot run" in headers["cause"] and cluster.inspectors() == []


def test_an_interrupt_leaves_no_inspector_behind(cluster: Cluster) -> None:
    """As a process of its own, with SIGINT while its pods are there."""
    arguments = ["preflight", "--kubeconfig", str(cluster.kubeconfig), "--node-pods", "--node-image", IMAGE]
    program = "import sys; from groundplane.cli.main import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        cluster.until(lambda: bool(cluster.inspectors()) or process.poll() is not None, "an inspector")
        assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1 and "Aborted" in told and "Traceback" not in told
    assert cluster.inspectors() == []


def test_a_namespace_that_forbids_privileged_pods_is_told(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "closed", "labels": labels}}
    cluster.do(cluster.lab.apply([manifest]))
    seen = run(cluster, "-n", "closed", "--node-pods", "--node-image", IMAGE, "-o", "json")
    assert seen.exit_code == 3
    findings = {each["id"]: each for each in json.loads(seen.stdout)["findings"]}
    assert findings["A36"]["outcome"] == "fail" and "enforces Pod Security level baseline" in findings["A36"]["title"]
    assert findings["A15"]["cause"].startswith("namespace closed enforces Pod Security level baseline")
    assert "pod-security.kubernetes.io/enforce=privileged" in findings["A15"]["cause"]
    assert not cluster.lab.api.list(resources.PODS, "closed")["items"]


def test_before_there_is_a_namespace_inspectors_are_in_the_default_one(cluster: Cluster) -> None:
    seen = run(cluster, "-n", "not-yet", "--node-pods", "--node-image", IMAGE, "--no-network", "-o", "json")
    assert json.loads(seen.stdout)["cluster"]["nodesLookedAt"] == 2
    assert not cluster.lab.api.list(resources.PODS, "default")["items"]


def test_commands_in_operand_pods(cluster: Cluster) -> None:
    """Once the operator has its operands there; last, as it changes the nodes."""
    cluster.do(cluster.lab.apply([labs.data("guide-baseline.yaml")]))

    def ready() -> bool:
        pods = cluster.lab.api.list(resources.PODS, NAMESPACE)["items"]
        up = [pod for pod in pods if pod["metadata"].get("labels", {}).get("app") == "nvidia-operator-validator"]
        return len(up) == 2 and all(pod.get("status", {}).get("phase") == "Running" for pod in up)

    cluster.until(ready, "the validators to run")
    seen = run(cluster, "--exec", "-o", "json")
    assert json.loads(seen.stdout)["cluster"]["nodesLookedAt"] == 2
    for number in ("A12", "A20", "A25", "A31"):
        assert outcomes(seen, number) == dict.fromkeys(BOTH, "pass"), number
    assert not [
        each for each in json.loads(seen.stdout)["findings"] if each["id"] == "A23" and each["outcome"] == "fail"
    ]
    assert cluster.inspectors() == []
