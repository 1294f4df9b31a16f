"""Looking at nodes on a lab: inspector pods, operand pods of ours, NVIDIA's by plain commands, nodes that refuse."""

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from groundplane.admin import nodelook
from groundplane.admin.nodelook import NodeLook, Way, look
from groundplane.cluster.client import Client
from groundplane.cluster.errors import Forbidden
from groundplane.cluster.kinds import POD
from groundplane.diagnose.evidence import NodeFacts
from groundplane.lab import nodes, resources
from groundplane.lab.cluster import Lab

NAMESPACE = "gpu-operator"
WAITS = "trap 'exit 0' TERM; sleep 100000 & wait"
SPECS = nodes.parse(
    {
        "nodes": [
            {"name": "gpu-a", "gpus": [{"model": "H100-SXM5-80GB", "count": 2}], "hostDriver": "580.126.20"},
            {"name": "gpu-b", "gpus": [{"model": "L40S", "count": 1}]},
        ]
    },
    "the test",
)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[Lab, Client]]:
    async with Lab(SPECS, operator=False, speed=100) as lab, lab.client() as client:
        yield lab, client


def inspectors(lab: Lab) -> list[dict[str, Any]]:
    items = lab.api.list(resources.PODS, NAMESPACE)["items"]
    return [pod for pod in items if nodelook.LABEL in (pod["metadata"].get("labels") or {})]


async def operand(
    lab: Lab, client: Client, name: str, node: str, image: str, container: str, labels: dict[str, str], *, host: bool
) -> None:
    made: dict[str, Any] = {"name": container, "image": image, "command": ["sh", "-c", WAITS]}
    spec: dict[str, Any] = {"nodeName": node, "containers": [made]}
    if host:
        made["volumeMounts"] = [{"name": "host-root", "mountPath": "/host", "readOnly": True}]
        spec["volumes"] = [{"name": "host-root", "hostPath": {"path": "/"}}]
    await client.create(POD, {"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "spec": spec})

    def runs() -> bool:
        pod = lab.api.find(resources.PODS, name, NAMESPACE) or {}
        return bool(pod.get("status", {}).get("phase") == "Running")

    await lab.wait_until(runs, timeout_s=60, what=f"{name} runs")


async def test_inspector_pods_look_at_every_node_and_go() -> None:
    told: list[str] = []
    async with running() as (lab, client):
        found = await look(
            client, ["gpu-a", "gpu-b"], namespace=NAMESPACE, ways=[Way.PODS], image="groundplane:1", tell=told.append
        )
        assert found.unread == {}
        assert [len(found.facts[node].facts["gpus"]) for node in ("gpu-a", "gpu-b")] == [2, 1]
        assert found.facts["gpu-a"].facts["driver_version"] == "580.126.20"
        assert found.facts["gpu-a"].facts["nvidia_smi_rc"] == 0
        assert found.facts["gpu-b"].facts["containerd"]["config"] == "/etc/containerd/config.toml"
        assert inspectors(lab) == []
        assert told[-1] == "looked at 2 of 2 nodes"


async def test_our_operands_have_the_program_and_nvidias_are_asked_plainly() -> None:
    async with running() as (lab, client):
        app = {"app": "nvidia-container-toolkit-daemonset"}
        await operand(
            lab, client, "toolkit", "gpu-a", "container-toolkit:1", "nvidia-container-toolkit-ctr", app, host=True
        )
        driver = {"app.kubernetes.io/component": "nvidia-driver"}
        await operand(lab, client, "driver", "gpu-b", "driver:580", "nvidia-driver-ctr", driver, host=False)
        found = await look(client, ["gpu-a", "gpu-b", "gone"], namespace=NAMESPACE)
        ours, plain = found.facts["gpu-a"], found.facts["gpu-b"]
        assert ours.facts["host_tool"] == "/usr/bin/nvidia-smi"
        assert ours.facts["os"] == "ubuntu"
        assert plain.facts["kernel"] and len(plain.facts["gpus"]) == 1
        assert plain.facts["nouveau"] is False
        assert "containerd" not in plain.facts and plain.missing
        assert list(found.unread) == ["gone"] and "--node-pods" in found.unread["gone"]


@pytest.mark.parametrize(
    ("node", "image", "words"), [("gpu-a", "no-such:1", "inspector pod"), ("gone", "groundplane:1", "inspector pod")]
)
async def test_a_node_without_an_inspector_is_told_and_nothing_stays(node: str, image: str, words: str) -> None:
    async with running() as (lab, client):
        found = await look(client, [node], namespace=NAMESPACE, ways=[Way.PODS], image=image, timeout_s=2)
        assert words in found.unread[node] and not found.facts
        assert inspectors(lab) == []


async def test_an_interrupted_look_leaves_no_pod() -> None:
    async with running() as (lab, client):
        looking = asyncio.create_task(
            look(client, ["gone", "gpu-a"], namespace=NAMESPACE, ways=[Way.PODS], image="groundplane:1", timeout_s=60)
        )
        await lab.wait_until(lambda: bool(inspectors(lab)), timeout_s=30, what="an inspector is there")
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        assert inspectors(lab) == []


async def test_what_a_killed_run_left_behind_goes_with_the_next() -> None:
    async with running() as (lab, client):
        left = nodelook.inspector("gone", image="x", run="killed", namespace=NAMESPACE, deadline_s=1)
        await client.create(POD, left)
        fresh = nodelook.inspector("gone", image="x", run="other", namespace=NAMESPACE, deadline_s=100_000)
        await client.create(POD, fresh)
        old = lab.clock.now() - datetime.timedelta(hours=1)
        stored = lab.api.get(resources.PODS, left["metadata"]["name"], NAMESPACE)
        assert stored["metadata"]["creationTimestamp"]
        await look_with_clock(client, old)
        assert [pod["metadata"]["labels"][nodelook.LABEL] for pod in inspectors(lab)] == ["other"]


async def look_with_clock(client: Client, _old: datetime.datetime) -> None:
    """The next run, an hour later."""
    spare = nodelook._SPARE_S
    nodelook._SPARE_S = -3600  # type: ignore[misc]
    try:
        await look(client, ["gpu-a"], namespace=NAMESPACE, ways=[Way.PODS], image="groundplane:1")
    finally:
        nodelook._SPARE_S = spare  # type: ignore[misc]


async def test_without_permission_every_node_is_told_why() -> None:
    async with Lab(SPECS[:1], operator=False, rbac=True, speed=100) as lab:
        from groundplane.cluster.config import Config

        async with Client(Config(server=lab.url)) as client:
            found = await look(client, ["gpu-a"], namespace=NAMESPACE, ways=[Way.PODS, Way.EXEC], image="groundplane:1")
    assert not found.facts and "gpu-a" in found.unread


def test_two_looks_are_one() -> None:
    one = NodeLook({"a": NodeFacts("a")}, {"b": "no pod", "c": "away"})
    both = one.with_more(NodeLook({"b": NodeFacts("b")}, {"c": "still away"}))
    assert (list(both.facts), both.unread) == (["a", "b"], {"c": "still away"})


async def test_the_node_itself(tmp_path: Path) -> None:
    for folder in ("etc", "proc/sys/kernel", "sys/bus/pci/devices"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/hostname").write_text("here\n")
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-60-generic\n")
    found = await nodelook.look_here(str(tmp_path))
    assert found.facts["here"].facts["kernel"] == "6.8.0-60-generic"
    assert found.facts["here"].facts["gpus"] == []


SCRIPTED = """@@groundplane nvidia-smi
a table
@@groundplane-rc 14
@@groundplane cat /proc/modules
nvidia 1 3 - Live 0x0
nouveau 1 0 - Live 0x0
@@groundplane-rc 0
@@groundplane cat /proc/driver/nvidia/version
NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.20  Release
@@groundplane-rc 0
@@groundplane cat /etc/os-release
ID="rhel"
VERSION_ID="9.4"
@@groundplane-rc 0
@@groundplane pci
/sys/bus/pci/devices/0000:01:00.0 0x10de 0x2330 0x030200
/sys/bus/pci/devices/0000:02:00.0 0x10de 0x22a3 0x068000
/sys/bus/pci/devices/0000:00:1f.0 0x8086 0x1234 0x060100
@@groundplane-rc 0
@@groundplane dmesg
usb 1-1: new device
NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus
@@groundplane-rc 0
@@groundplane uname -r
cut off"""


def test_what_plain_commands_print() -> None:
    seen = nodelook.of_script(SCRIPTED, "n")
    facts = seen.facts
    assert (facts["nvidia_smi_rc"], facts["driver_version"], facts["module_type"]) == (14, "580.126.20", "proprietary")
    assert facts["nouveau"] is True and facts["module_uses"] == {"nvidia": 3, "nouveau": 0}
    assert (facts["os"], facts["os_version"]) == ("rhel", "9.4")
    assert [each["address"] for each in facts["gpus"]] == ["0000:01:00.0"]
    assert [each["device"] for each in facts["nvswitches"]] == ["22a3"]
    assert facts["pci"][-1] == "8086:1234"
    assert seen.commands["dmesg"].out == "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus"
    assert "kernel" not in facts and "nvidia-smi: exit code 14" in seen.missing
    assert NodeLook({"n": seen}).kernel[0].node == "n"


@pytest.mark.parametrize("printed", ["", "no JSON", "{", '{"name": 3}'])
def test_a_program_that_prints_no_document_is_told(printed: str) -> None:
    with pytest.raises(nodelook.Unread, match="did not print its document"):
        nodelook.parsed(printed, "n")


def test_secrets_in_what_a_program_printed_are_not_told() -> None:
    with pytest.raises(nodelook.Unread) as told:
        nodelook.parsed("no proxy at https://me:hunter2-very-secret@proxy:3128", "n")
    assert "hunter2" not in str(told.value) and "no proxy at" in str(told.value)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged', "are privileged"),
        ('pods is forbidden: User "me" cannot create resource "pods"', "create and delete of pods"),
    ],
)
def test_what_an_api_server_refuses(message: str, words: str) -> None:
    told = nodelook._reason(Forbidden(403, "Forbidden", message))
    assert message in told and words in told


async def test_a_namespace_that_is_not_there() -> None:
    async with running() as (_, client):
        found = await look(client, ["gpu-a"], namespace="none", ways=[Way.PODS], image="groundplane:1")
    assert found.unread == {"gpu-a": "namespace none does not exist: inspector pods need one that is there"}


STATES: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such"}}}, "ErrImagePull, no such"),
    (lambda: {"state": {"terminated": {"reason": "Error", "exitCode": 2}}}, "Error, exit code 2"),
]


@pytest.mark.parametrize(("state", "words"), STATES)
def test_what_a_pod_waits_for(state: Callable[[], dict[str, Any]], words: str) -> None:
    assert nodelook._waits_for({"status": {"containerStatuses": [state()]}}) == words
    pending = {"status": {"conditions": [{"status": "False", "message": "0/1 nodes are available"}]}}
    assert nodelook._waits_for(pending) == "0/1 nodes are available"
