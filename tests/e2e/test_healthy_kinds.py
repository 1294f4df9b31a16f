"""Healthy clusters of every kind give the doctor nothing to say; what only comes up, or is as its administrator wants
it, is no cause either.

Every lab here runs the shipped operator and node programs. The kinds that one cluster can have at once are in
``faultbook.trial.HEALTHY``; here is what a cluster has as a whole, and what happens to nodes that are well.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from e2e.driver_cluster import driver

from groundplane.api import names
from groundplane.cluster import kinds
from groundplane.diagnose import pods
from groundplane.diagnose.engine import Verdict
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE, Lab, data
from groundplane.lab.faultbook.trial import Trial
from groundplane.lab.nodes import GpuSpec, NodeSpec, RuntimeSpec

Document = dict[str, Any]

PATIENCE_S = 60.0
LIVELY, UNHURRIED = 60.0, 30.0
"""Cluster seconds in a real one; fewer where ages matter: a busy machine must not make young pods old."""

ONE, TWO = (GpuSpec("A100"),), (GpuSpec("A100", 2),)
CRIO, DOCKER = RuntimeSpec("cri-o", "1.34.1"), RuntimeSpec("docker", "28.1.1")
HOST_DRIVER = "595.91.07"
CONFIGURATION = "nvidia.com/device-plugin.config"


def shared(way: str, rename: bool) -> str:
    """A configuration of the device plugin: each GPU is offered four times."""
    resources_of = "resources: [{name: nvidia.com/gpu, replicas: 4}]"
    return f"version: v1\nsharing:\n  {way}:\n    renameByDefault: {str(rename).lower()}\n    {resources_of}\n"


SHARED = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "shared", "namespace": OPERATOR_NAMESPACE},
    "data": {
        "slices": shared("timeSlicing", rename=False),
        "slices-renamed": shared("timeSlicing", rename=True),
        "mps": shared("mps", rename=False),
        "mps-renamed": shared("mps", rename=True),
    },
}


class Kind(NamedTuple):
    """A cluster: its nodes, what differs in the policy's sections, what is there beside it, and what is on offer."""

    nodes: Sequence[NodeSpec]
    offered: Mapping[str, Mapping[str, int]]
    policy: Mapping[str, Mapping[str, Any]] = {}
    beside: Sequence[Document] = ()


def gpus(count: int) -> dict[str, int]:
    return {names.GPU_RESOURCE: count}


KINDS: dict[str, Kind] = {
    "CRI-O": Kind(
        [
            NodeSpec("plain", TWO, runtime=CRIO),
            NodeSpec("own", ONE, runtime=CRIO, host_driver=HOST_DRIVER),
            NodeSpec("cpu", runtime=CRIO),
        ],
        {"plain": gpus(2), "own": gpus(1)},
    ),
    "Docker, without CDI": Kind(
        [NodeSpec("plain", ONE, runtime=DOCKER), NodeSpec("own", ONE, runtime=DOCKER, host_driver=HOST_DRIVER)],
        {"plain": gpus(1), "own": gpus(1)},
        {"cdi": {"enabled": False}},
    ),
    "NVIDIADriver, host engine, node status, GDS and GDRCopy": Kind(
        [NodeSpec("plain", ONE), NodeSpec("own", ONE, host_driver=HOST_DRIVER)],
        {"plain": gpus(1), "own": gpus(1)},
        {
            "driver": {"useNvidiaDriverCRD": True},
            "dcgm": {"enabled": True},
            "nodeStatusExporter": {"enabled": True},
            "gds": {"enabled": True},
            "gdrcopy": {"enabled": True},
        },
        [driver("default", version=HOST_DRIVER)],
    ),
    "NRI": Kind([NodeSpec("plain", ONE)], {"plain": gpus(1)}, {"cdi": {"enabled": True, "nriPluginEnabled": True}}),
    "MIG, mixed": Kind(
        [
            NodeSpec("balanced", (GpuSpec("H100"),), labels={names.MIG_CONFIG: "all-balanced"}),
            NodeSpec("small", ONE, labels={names.MIG_CONFIG: "all-1g.10gb"}),
            NodeSpec("never", (GpuSpec("T4"),)),
        ],
        {
            "balanced": {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1},
            "small": {"nvidia.com/mig-1g.10gb": 7},
            "never": gpus(1),
        },
        {"mig": {"strategy": "mixed"}},
    ),
    "shared GPUs": Kind(
        [
            NodeSpec("slices", ONE),
            NodeSpec("slices-renamed", ONE, labels={CONFIGURATION: "slices-renamed"}),
            NodeSpec("mps", ONE, labels={CONFIGURATION: "mps"}),
            NodeSpec("mps-renamed", ONE, labels={CONFIGURATION: "mps-renamed"}),
        ],
        {
            "slices": gpus(4),
            "slices-renamed": {"nvidia.com/gpu.shared": 4},
            "mps": gpus(4),
            "mps-renamed": {"nvidia.com/gpu.shared": 4},
        },
        {"devicePlugin": {"config": {"name": "shared", "default": "slices"}}},
        [SHARED],
    ),
    "no container driver wanted": Kind(
        [NodeSpec("own", ONE, host_driver=HOST_DRIVER)], {"own": gpus(1)}, {"driver": {"enabled": False}}
    ),
}


def policy(sections: Mapping[str, Mapping[str, Any]]) -> Document:
    """The users' guide's policy with other values."""
    found: Document = data("guide-baseline.yaml")
    for section, values in sections.items():
        found["spec"][section] |= values
    return found


@asynccontextmanager
async def cluster(kind: Kind, speed: float) -> AsyncIterator[Trial]:
    async with Lab(kind.nodes, speed=speed) as lab, lab.client(user_agent="groundplane-trial") as client:
        await lab.apply([*kind.beside, policy(kind.policy)])
        yield Trial(lab, client)


def node(lab: Lab, name: str) -> Document:
    return lab.api.get(resources.NODES, name)


def offered(lab: Lab, name: str) -> dict[str, float]:
    _, found = pods.offered(node(lab, name))
    return {resource: amount for resource, amount in found.items() if amount}


def told(verdict: Verdict) -> list[tuple[str, tuple[str, ...], str]]:
    said = [*(cause.finding for cause in verdict.causes), *verdict.unmatched, *verdict.unknown]
    return [(each.id, each.nodes, each.title) for each in said]


async def well(tried: Trial, done: Callable[[], bool]) -> None:
    """Ask the doctor until that is so and it finds nothing; all that it says before is that something waits."""
    end = time.monotonic() + PATIENCE_S
    while True:
        there = done()
        verdict = await tried.live()
        assert not verdict.causes, told(verdict)
        assert {each.id for each in verdict.unmatched} <= {"waiting"}, told(verdict)
        if there and verdict.healthy:
            return
        assert time.monotonic() < end, told(verdict)
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("name", KINDS)
async def test_a_healthy_cluster_gives_no_finding(name: str) -> None:
    kind = KINDS[name]
    async with cluster(kind, LIVELY) as tried:

        def there() -> bool:
            return all(offered(tried.lab, each) == amounts for each, amounts in kind.offered.items())

        await tried.lab.wait_ready(timeout_s=PATIENCE_S)
        await tried.lab.wait_until(there, timeout_s=PATIENCE_S, what=f"{kind.offered} on offer")
        verdict = await tried.healthy(PATIENCE_S)
        assert told(verdict) == []


async def comes_to(tried: Trial, causes: list[tuple[str, tuple[str, ...]]]) -> None:
    """Ask the doctor until these are the causes, and nothing fails that they do not account for."""
    end = time.monotonic() + PATIENCE_S
    while True:
        verdict = await tried.live()
        found = [(cause.finding.id, cause.finding.nodes) for cause in verdict.causes]
        if found == causes and not verdict.unmatched:
            return
        assert time.monotonic() < end, told(verdict)
        await asyncio.sleep(0.2)


async def test_a_cluster_without_a_gpu_node_is_told_that_none_is_found() -> None:
    async with cluster(Kind([NodeSpec("cpu")], {}), LIVELY) as tried:
        await comes_to(tried, [("S55", ())])


async def test_what_happens_to_nodes_that_are_well_is_no_cause() -> None:
    """They come up, are cordoned, get another driver, are joined by a new one, and are taken out of the stack; but a
    kubelet that ends is."""
    async with cluster(Kind([NodeSpec("first", ONE)], {}), UNHURRIED) as tried:
        lab, client = tried.lab, tried.client
        await well(tried, lambda: lab.policy_state() == "ready" and offered(lab, "first") == gpus(1))

        await client.patch(kinds.NODE, "first", {"spec": {"unschedulable": True}})
        await well(tried, lambda: True)
        await client.patch(kinds.NODE, "first", {"spec": {"unschedulable": None}})

        before = lab.host("first").driver_version
        await client.patch(kinds.CLUSTER_POLICY, "cluster-policy", {"spec": {"driver": {"version": "590.44.01"}}})
        await well(
            tried,
            lambda: (
                lab.host("first").driver_version == "590.44.01" != before
                and node(lab, "first")["metadata"]["labels"].get(names.UPGRADE_STATE) == "upgrade-done"
            ),
        )

        lab.add_node(NodeSpec("second", ONE))
        await well(
            tried, lambda: lab.api.find(resources.NODES, "second") is not None and offered(lab, "second") == gpus(1)
        )

        await client.patch(kinds.NODE, "second", {"metadata": {"labels": {names.DEPLOY_OPERANDS: "false"}}})

        def left() -> bool:
            return not any(
                each["spec"].get("nodeName") == "second" and pods.layer_of(each) is not None and not pods.ended(each)
                for each in lab.api.list(resources.PODS)["items"]
            )

        await lab.wait_until(left, timeout_s=PATIENCE_S, what="a node without operands")
        await well(tried, lambda: True)

        kubelet = lab._tasks.pop("kubelet/first")
        kubelet.cancel()
        await asyncio.gather(kubelet, return_exceptions=True)
        await comes_to(tried, [("NR01", ("first",))])
