"""The operator tells of broken nodes by itself: metric and Event for a fault, and their end; nothing twice.

With only the rights that the chart grants. Off, it makes not one request for it.
"""

import functools
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from e2e.world import policy_document

from groundplane.api import names
from groundplane.cluster.client import Client
from groundplane.diagnose import collect, doctor
from groundplane.diagnose.engine import Verdict
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE, OPERATOR_USER_AGENT, Lab
from groundplane.lab.faultbook import FAULTS
from groundplane.lab.faultbook.model import Where
from groundplane.lab.faults import Rule
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.operator.diagnosis.figures import Figures
from groundplane.operator.diagnosis.picture import judged

SPEED = 120.0
SECRET = "hunter2-do-not-tell"
NODES = [NodeSpec(name, gpus=(GpuSpec("A100", 2),)) for name in ("gpu-1", "gpu-2")] + [NodeSpec("cpu-1")]


class World:
    """A lab whose operator diagnoses, or does not."""

    def __init__(self, lab: Lab, client: Client) -> None:
        self.lab = lab
        self.client = client

    def where(self, node: str) -> Where:
        return Where(self.client, node, self.lab.host(node))

    def figures(self) -> Figures | None:
        more = self.lab.operator.metrics.more if self.lab.operator else ()
        return more[0] if more and isinstance(more[0], Figures) else None

    def series(self) -> list[str]:
        assert self.lab.operator is not None
        lines = self.lab.operator.metrics.expose().decode().splitlines()
        return [line for line in lines if line.startswith("groundplane_")]

    def events(self, node: str = "") -> list[dict[str, Any]]:
        """Ours, about a node or about all, as they were recorded."""
        found = self.lab.api.list(resources.EVENTS, "default")["items"]
        ours = [each for each in found if each["reason"] in names.DIAGNOSIS_REASONS]
        return [each for each in ours if node in ("", each["involvedObject"]["name"])]

    def said(self, node: str) -> list[tuple[str, str, int]]:
        return [(each["reason"], each["message"], each.get("count", 1)) for each in self.events(node)]

    async def doctor(self) -> Verdict:
        """What the doctor says when a person asks."""
        return doctor.diagnose(await collect.examine(self.client, namespace=OPERATOR_NAMESPACE))

    async def agree(self) -> None:
        """Until operator and doctor, who look at moments of their own, say the same. AssertionError if never."""
        for _ in range(40):
            told = judged(await collect.examine(self.client, namespace=OPERATOR_NAMESPACE, exec=False))
            asked = {node: ill.what for node, ill in told.nodes.items()}
            if asked == self.sick():
                return
            await self.looks(1)
        assert asked == self.sick()

    async def until(self, met: Callable[[], bool], what: str) -> None:
        await self.lab.wait_until(met, timeout_s=60.0, what=what)

    async def looks(self, count: int) -> None:
        """Until the operator has looked so often again."""
        for _ in range(count):
            await self._later_than(self.last_s)

    async def asked_of(self, looks: int) -> Counter[tuple[str, str, str]]:
        """What the operator asks, but for watches, during so many looks: verb, resource, namespace."""
        self.lab.faults.requests.clear()
        await self.looks(looks)
        mine = [each for each in self.lab.faults.requests if OPERATOR_USER_AGENT in each.user_agent]
        return Counter((each.verb, each.resource, each.namespace) for each in mine if each.verb != "watch")

    async def _later_than(self, moment: float) -> None:
        await self.until(lambda: self.last_s > moment, "the next look")

    @property
    def last_s(self) -> float:
        """When the operator's last look ended."""
        seen = self.figures()
        return seen.last_success_s if seen else 0.0

    def sick(self) -> dict[str, str]:
        """What the operator says of sick nodes."""
        seen = self.figures()
        return {node: ill.what for node, ill in seen.sick.items()} if seen else {}

    async def well(self) -> None:
        await self.until(lambda: self.last_s > 0 and not self.sick() and self.lab.idle, "all nodes to be well")
        await self.looks(3)
        await self.until(lambda: not self.sick() and self.lab.idle, "all nodes to be well still")


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    async with (
        Lab(NODES, speed=SPEED, rbac=True, operator_on_cluster_time=True, operator_options=options) as lab,
        lab.client(user_agent="test") as client,
    ):
        await lab.apply([policy_document()])
        await lab.wait_ready(timeout_s=60.0)
        yield World(lab, client)


def failing(found: list[tuple[str, str, int]], begins: str) -> list[int]:
    return [
        count for reason, message, count in found if reason == names.GPU_STACK_FAILING and message.startswith(begins)
    ]


async def test_a_fault_is_told_until_it_is_cleared_and_only_once() -> None:
    fault, headers = FAULTS["exporter-image-gone"], FAULTS["no-kernel-headers"]
    async with world(diagnosis=True) as made:
        await made.well()
        assert not any("node=" in line or "cause=" in line for line in made.series())
        await fault.apply(made.where("gpu-1"))
        await made.until(lambda: bool(failing(made.said("gpu-1"), "L8 P07: ")), "an Event about the fault")
        assert 'groundplane_node_layer_failing{layer="L8",node="gpu-1"} 1.0' in made.series()
        assert 'groundplane_node_layer_failing{layer="L2",node="gpu-1"} 0.0' in made.series()
        (cause,) = [each.finding for each in (await made.doctor()).causes if "gpu-1" in each.finding.nodes]
        labels = f'cause="P07",layer="L8",severity="{cause.severity}",title="{cause.title}"'
        assert f"groundplane_diagnosis_cause_nodes{{{labels}}} 1.0" in made.series()
        (message,) = {each["message"] for each in made.events("gpu-1") if each["message"].startswith("L8")}
        assert message == f"L8 P07: {cause.title}; fix: {cause.fix[0]}; confirm: {cause.confirm}"
        before = made.said("gpu-1")
        assert failing(before, "L8 P07: ") == [1]

        await made.lab.kill_operator()
        made.lab.start_operator()
        await made.until(lambda: "gpu-1" in made.sick(), "the next operator to see it")
        await made.looks(3)
        assert made.said("gpu-1") == before, "what was said is not repeated"

        await headers.apply(made.where("gpu-2"))
        await made.until(lambda: bool(failing(made.said("gpu-2"), "L1 S10: ")), "an Event about what only a log tells")
        await made.agree()

        await headers.clear(made.where("gpu-2"))
        await fault.clear(made.where("gpu-1"))
        over = f"{message.partition('; ')[0]}; this is over"
        await made.until(
            lambda: (names.GPU_STACK_RECOVERED, over, 1) in made.said("gpu-1"), "an Event about the end of the fault"
        )
        await made.until(lambda: not made.sick(), "all nodes to be well again")
        assert not any("node=" in line for line in made.series())
        await made.until(  # an Event needs two looks that agree
            lambda: any(reason == names.GPU_STACK_RECOVERED for reason, _, _ in made.said("gpu-2")),
            "an Event about the end of the other fault",
        )
        seen = made.figures()
        assert seen is not None and seen.failures == 0 and not seen.unseen
        assert made.lab.operator is not None and made.lab.operator.metrics.get("missing_permissions") == 0


async def test_what_a_log_says_is_in_no_event_and_no_metric_and_a_quiet_cluster_costs_three_requests_a_look() -> None:
    async with world(diagnosis=True) as made:
        await made.well()
        look = {("list", "daemonsets", "gpu-operator"), ("list", "pods", "gpu-operator"), ("list", "events", "default")}
        asked = await made.asked_of(looks=4)
        for _ in range(5):  # what is left of the cluster's coming up may still be under way
            if set(asked) == look:
                break
            asked = await made.asked_of(looks=4)
        assert set(asked) == look
        assert all(3 <= count <= 5 for count in asked.values())

        await made.lab.apply([leaking_pod()])
        await made.until(lambda: bool(failing(made.said("gpu-1"), "L7 unmatched: ")), "an Event about the pod")
        assert any(each.subresource == "log" for each in made.lab.faults.requests), "its log was read"
        everything = [*made.series(), *(each["message"] for each in made.events())]
        assert not [line for line in everything if SECRET in line]


def leaking_pod() -> dict[str, Any]:
    """A pod that prints a secret and fails."""
    container = {"name": "leak", "image": "busybox", "command": ["sh", "-c", f"echo password={SECRET}; exit 1"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "leaking", "namespace": OPERATOR_NAMESPACE},
        "spec": {"nodeName": "gpu-1", "restartPolicy": "Never", "containers": [container]},
    }


async def test_switched_off_it_costs_no_request() -> None:
    async with world() as made:
        await FAULTS["exporter-image-gone"].apply(made.where("gpu-1"))
        await made.until(lambda: made.lab.policy_state() != "ready", "the fault to be seen")
        await made.lab.clock.sleep(300.0)
        asked = [each for each in made.lab.faults.requests if OPERATOR_USER_AGENT in each.user_agent]
        assert not [each for each in asked if each.subresource == "log"]
        assert not [
            each
            for each in asked
            if each.resource == "events" and each.verb in ("list", "watch", "get") and each.namespace == "default"
        ]
        assert made.events() == [] and made.series() == []


def test_switched_off_nothing_of_the_doctor_is_loaded() -> None:
    code = (
        "import sys, groundplane.operator.main, groundplane.operator.process\n"
        "rooms = ('groundplane.diagnose', 'groundplane.operator.diagnosis')\n"
        "print([name for name in sys.modules if name.startswith(rooms)])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


async def test_what_goes_wrong_while_diagnosing_touches_nothing_else() -> None:
    async with world(diagnosis=True) as made:
        await made.well()
        for answer in (500, 403):
            seen = made.figures()
            assert seen is not None
            before = seen.failures
            rule = made.lab.faults.add(Rule("list", "pods", times=None, answer=answer, namespace=OPERATOR_NAMESPACE))
            await made.until(functools.partial(_more_failures, seen, before), "a look to fail")
            assert made.lab.policy_state() == "ready" and made.lab.operator_error is None
            made.lab.faults.remove(rule)
            await made.looks(1)

        # Without its rights it tells what it can, and names what is missing.
        role = made.lab.api.of_kind("RoleBinding", "rbac.authorization.k8s.io/v1")
        for namespace in ("default", OPERATOR_NAMESPACE):
            made.lab.api.delete(role, "gpu-operator-diagnosis", namespace)
        operator = made.lab.operator
        assert operator is not None
        await made.until(lambda: operator.metrics.get("missing_permissions") == 1, "the missing right to be named")
        await FAULTS["exporter-image-gone"].apply(made.where("gpu-1"))
        await made.until(lambda: made.sick().keys() == {"gpu-1"}, "the fault to be seen")
        assert 'groundplane_node_layer_failing{layer="L8",node="gpu-1"} 1.0' in made.series()
        await made.until(
            lambda: made.sick()["gpu-1"].startswith("L8 P07: "), "the Events that may be read to be heeded"
        )


def _more_failures(seen: Figures, before: int) -> bool:
    return seen.failures > before
