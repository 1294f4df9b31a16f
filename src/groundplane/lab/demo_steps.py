"""What the demo's steps share: waiting while a person watches, and saying what a step saw when it was given up.

A step looks at the cluster through the API alone, as a person with kubectl would.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

from ..api import names
from ..cluster import client as cluster_client
from . import layers, resources
from .cluster import Lab

LOOK_EVERY_S = 0.05
"""Real seconds between two looks at the cluster."""
NAMESPACE = "default"
"""Where the demo's own pods run."""
CUDA_CHECK_IMAGE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"

Document = Mapping[str, Any]


class Snapshot(msgspec.Struct, frozen=True):
    """What is known at one moment; ``seconds`` are real seconds since the policy was applied."""

    seconds: float
    rows: list[layers.NodeRow]
    message: str


class Check(msgspec.Struct, frozen=True):
    """The outcome of the CUDA check pod on one node; ``log`` is what the pod printed."""

    node: str
    passed: bool
    log: str

    @property
    def gpus(self) -> list[str]:
        """The log's lines about a GPU, one each."""
        return [line for line in self.log.splitlines() if "GPU-" in line or "MIG-" in line]


class StepError(Exception):
    """A step of the demo did not come to its end; the text says which, what was seen, and what to do."""


class Step(NamedTuple):
    """One step: what a person is told while it lasts, what to do where it fails."""

    message: str
    advice: str

    def fail(self, seen: str, why: str = "") -> NoReturn:
        """Give the step up."""
        raise StepError(f"{why or 'failed'}: {self.message}\n  seen: {seen}\n  to do: {self.advice}")


class Watcher:
    """Judges the layers after each change and remembers when each one first became healthy everywhere."""

    def __init__(self, lab: Lab, report: Callable[[Snapshot], None], timeout_s: float) -> None:
        self._lab = lab
        self._report = report
        self._timeout_s = timeout_s
        self._started = time.monotonic()
        self.layer_seconds: dict[str, float] = {}
        self.ready_seconds: float | None = None
        """When the whole stack had come up; from then on ``layer_seconds`` stays."""

    @property
    def seconds(self) -> float:
        """Real seconds since the beginning."""
        return time.monotonic() - self._started

    def rows(self) -> list[layers.NodeRow]:
        """The layers of every node now."""
        api = self._lab.api
        policies = api.list(api.resource("clusterpolicies", group=names.GROUP))["items"]
        return layers.judge(api.list(resources.NODES)["items"], api.list(resources.PODS)["items"], policies)

    def look(self, message: str) -> list[layers.NodeRow]:
        """Judge and report."""
        rows = self.rows()
        if self.ready_seconds is None:
            self._note([row for row in rows if row.has_gpu])
        self._report(Snapshot(self.seconds, rows, message))
        return rows

    def _note(self, gpu_rows: list[layers.NodeRow]) -> None:
        for layer in layers.LAYERS:
            if gpu_rows and all(row.layers[layer] is layers.State.HEALTHY for row in gpu_rows):
                self.layer_seconds.setdefault(layer, self.seconds)
            else:
                self.layer_seconds.pop(layer, None)

    async def until(
        self,
        step: Step,
        done: Callable[[list[layers.NodeRow]], Awaitable[bool]],
        seen: Callable[[], str],
        *,
        every_s: float = LOOK_EVERY_S,
    ) -> float:
        """Report until ``done`` holds, which is asked every so many real seconds; how many of them that took.

        Raises :class:`StepError` with what is ``seen`` when it does not within the time limit.
        """
        began = self.seconds
        while not await done(self.look(step.message)):
            self._lab.check()
            if self.seconds > began + self._timeout_s:
                step.fail(seen(), f"gave up after {self._timeout_s:g} s")
            await asyncio.sleep(every_s)
        return self.seconds - began


# --- pods -------------------------------------------------------------------------------------------------------------


def pod(name: str, node: str, resource: str, /, **container: Any) -> dict[str, Any]:
    """A pod that asks for one device of ``node``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "cuda-check"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [{"name": "cuda-check", "resources": {"limits": {resource: "1"}}, **container}],
        },
    }


def phase(lab: Lab, name: str) -> str:
    """A pod's phase; empty where there is no such pod."""
    found = lab.api.find(resources.PODS, name, NAMESPACE)
    return str((found or {}).get("status", {}).get("phase", ""))


def finished(lab: Lab, name: str) -> bool:
    """Whether a pod has ended."""
    return phase(lab, name) in ("Succeeded", "Failed")


async def outcome(lab: Lab, client: cluster_client.Client, name: str, node: str) -> Check:
    """How a CUDA check pod ended."""
    lines = [line async for line in client.logs(name, NAMESPACE)]
    return Check(node, phase(lab, name) == "Succeeded", "\n".join(lines))


def told(found: Document | None) -> str:
    """What a pod's status says of why it does not go on."""
    if found is None:
        return "no such pod"
    status: Document = found.get("status", {})
    texts = [
        f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
        for key in ("initContainerStatuses", "containerStatuses")
        for container in status.get(key) or ()
        if (waiting := (container.get("state") or {}).get("waiting"))
    ]
    texts += [
        f"{container['name']} ended with exit code {terminated.get('exitCode')}"
        for container in status.get("containerStatuses") or ()
        if (terminated := (container.get("state") or {}).get("terminated")) and terminated.get("exitCode")
    ]
    texts += [str(status["message"])] if status.get("message") else []
    texts += [
        str(condition.get("message", ""))
        for condition in status.get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    return f"pod {found['metadata']['name']} is {status.get('phase', 'new')}: {'; '.join(texts) or 'nothing is told'}"


def offered(node: Document) -> dict[str, int]:
    """The GPUs and MIG devices that a node offers."""
    allocatable: Mapping[str, Any] = node.get("status", {}).get("allocatable") or {}
    prefixes = (names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)
    found = {name: int(value) for name, value in sorted(allocatable.items()) if name.startswith(prefixes)}
    return {name: count for name, count in found.items() if count}


def listed(offer: Mapping[str, int]) -> str:
    """What a node offers, for a person."""
    return ", ".join(f"{name}: {count}" for name, count in offer.items()) or "no GPUs"
