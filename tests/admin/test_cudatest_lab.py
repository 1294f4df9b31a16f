"""The CUDA test against a lab: pods come, compute and go, whatever happens meanwhile; and the commands around it."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from groundplane.admin import baseline, cudatest, metricslook, verify, verify_gpus
from groundplane.admin.cudatest_plan import APP, NodeTest, Options, manifest
from groundplane.api import names
from groundplane.cli.main import main
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.diagnose import survey
from groundplane.diagnose.findings import Outcome
from groundplane.lab import resources
from groundplane.lab.cluster import Lab, data
from groundplane.lab.nodes import generate

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 60.0


def _up(lab: Lab) -> bool:
    nodes = lab.api.list(resources.NODES)["items"]
    policy = lab.api.list(lab.api.resource("clusterpolicies", group=names.GROUP))["items"][0]
    pods = lab.api.list(resources.PODS)["items"]
    return policy.get("status", {}).get("state") == "ready" and all(
        node["status"]["allocatable"].get(names.GPU_RESOURCE)
        and "nvidia.com/gpu.count" in node["metadata"]["labels"]
        and any(
            pod["metadata"].get("labels", {}).get("app") == names.VALIDATOR_APP
            and pod["spec"].get("nodeName") == node["metadata"]["name"]
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
            for pod in pods
        )
        for node in nodes
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with Lab(generate(1, gpus=2)) as lab:  # in a folder of its own: pytest's are too long for nodes' sockets
        policy = data("guide-baseline.yaml")
        policy["spec"]["dcgmExporter"].pop("serviceMonitor", None)
        lab.api.create(lab.api.resource("clusterpolicies", group=names.GROUP), policy)
        async with asyncio.timeout(DEADLINE_S):
            while not _up(lab):
                lab.check()
                await asyncio.sleep(0.05)
        yield lab


@pytest_asyncio.fixture(loop_scope="module")
async def client(lab: Lab) -> AsyncIterator[Client]:
    async with Client(Config(server=lab.url)) as client:
        yield client


def left(lab: Lab) -> list[str]:
    pods = lab.api.list(resources.PODS)["items"]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"].get("labels", {}).get("app") == APP and not pod["metadata"].get("deletionTimestamp")
    ]


async def test_every_node_computes_and_nothing_is_left(lab: Lab, client: Client) -> None:
    told: list[str] = []
    found = await cudatest.cuda_test(client, Options(), told.append)
    assert {each.id: each.outcome for each in found} == dict.fromkeys(
        ("A72", "A73", "A74", "A75", "A76", "A77", "A78", "A79"), Outcome.PASS
    )
    assert told and not left(lab)


async def test_a_run_that_is_cancelled_leaves_nothing(lab: Lab, client: Client) -> None:
    task = asyncio.create_task(cudatest.cuda_test(client, Options(image="registry.lab/none/nothing:1", smi=False)))
    async with asyncio.timeout(DEADLINE_S):
        while not left(lab):
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not left(lab)


async def test_an_image_that_is_not_there_and_a_pod_that_can_never_run(lab: Lab, client: Client) -> None:
    found = await cudatest.cuda_test(client, Options(image="registry.lab/none/nothing:1"))
    assert {each.id for each in found if each.outcome is Outcome.FAIL} == {"A76"}
    assert not left(lab)


async def test_pods_of_a_killed_run_are_deleted_by_the_next_and_kept_ones_only_when_asked(
    lab: Lab, client: Client
) -> None:
    test = NodeTest("gpu-1", {names.GPU_RESOURCE: "1"})
    dead = manifest(test, "vectoradd", Options(run="dead"), now=0.0)
    kept = manifest(test, "vectoradd", Options(run="kept", keep=True))
    for pod in (dead, kept):
        lab.api.create(resources.PODS, pod, "default")
    assert await cudatest.clean(client, Options(run="next")) == [dead["metadata"]["name"]]
    assert await cudatest.clean(client, Options(run="next"), everything=True) == [kept["metadata"]["name"]]
    async with asyncio.timeout(DEADLINE_S):  # until the kubelet has let go of their GPUs
        while any(lab.api.find(resources.PODS, pod["metadata"]["name"], "default") for pod in (dead, kept)):
            await asyncio.sleep(0.01)


async def test_a_namespace_that_is_not_there(client: Client) -> None:
    found = await cudatest.cuda_test(client, Options(namespace="nowhere"))
    assert {each.id for each in found if each.outcome is Outcome.FAIL} == {"A72"}


async def test_verify_of_a_lab_finds_it_in_good_health(client: Client) -> None:
    seen = await survey.live(client, verify.KINDS)
    pages = await metricslook.look(client, verify_gpus.exporters(verify.look(seen)))
    found = verify.verify(seen, metrics=pages)
    assert not [each for each in found if each.outcome is Outcome.FAIL]
    assert [each.outcome for each in found if each.id == "V3"] == [Outcome.PASS]


# --- the commands -----------------------------------------------------------------------------------------------------


async def call(lab: Lab, tmp_path: Path, *arguments: str) -> Result:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(lab.url)))
    command = [arguments[0], "--kubeconfig", str(kubeconfig), *arguments[1:]]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "lab", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    }


async def test_verify_as_a_command(lab: Lab, tmp_path: Path) -> None:
    page = tmp_path / "verify.html"
    result = await call(lab, tmp_path, "verify", "-o", "json", "--explain", "gpu-1", "--html", str(page))
    document = json.loads(result.output)
    assert result.exit_code == 4 and document["kind"] == "Verification"  # the lab's operator has no Deployment
    assert {row["operand"] for row in document["explained"]["operands"]} >= {"nvidia-driver-daemonset"}
    assert "Operands by node" in page.read_text()
    assert (await call(lab, tmp_path, "verify", "--explain", "nope")).exit_code == 2
    assert (await call(lab, tmp_path, "verify", "--release", "latest")).exit_code == 2


async def test_cuda_test_as_a_command(lab: Lab, tmp_path: Path) -> None:
    planned = await call(lab, tmp_path, "cuda-test", "--dry-run", "-o", "json")
    assert planned.exit_code == 0 and json.loads(planned.output)["kind"] == "Plan"
    assert (await call(lab, tmp_path, "cuda-test", "--nodes", "nope")).exit_code == 2
    refused = await call(lab, tmp_path, "cuda-test")
    assert refused.exit_code == 1 and not left(lab)


async def test_what_cuda_test_says_is_what_a_baseline_reads(lab: Lab, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(lab.url)))
    process = await _process("cuda-test", "--kubeconfig", str(kubeconfig), "--yes", "--no-smi", "-o", "json")
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    document = json.loads(out)
    assert document["durations"]["gpu-1"] >= 0
    (result,) = baseline.cuda_results(document).values()
    assert (result.outcome, result.seconds) == ("pass", document["durations"]["gpu-1"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_a_process_that_is_ended_leaves_no_pod(lab: Lab, tmp_path: Path, end: signal.Signals) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(lab.url)))
    process = await _process("cuda-test", "--kubeconfig", str(kubeconfig), "--yes", "--image", "registry.lab/none/no:1")
    async with asyncio.timeout(DEADLINE_S):
        while not left(lab):
            await asyncio.sleep(0.01)
        process.send_signal(end)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in err
    assert not left(lab)


async def _process(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "groundplane.cli.main", *arguments, stdout=-1, stderr=-1
    )
