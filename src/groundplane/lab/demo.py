"""The demo: from bare GPU nodes to a passed CUDA check, told step by step.

This module runs the story and reports what it sees; drawing it is the command's work. Nothing is assumed: every
row comes from the API, the CUDA result from the pods' logs and exit codes.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..api import names
from . import layers, resources
from .cluster import Lab
from .cluster import data as data

LOOK_EVERY_S = 0.1
"""Real seconds between two looks at the cluster."""

CUDA_CHECK_IMAGE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"


class Check(msgspec.Struct, frozen=True):
    """The outcome of the CUDA check pod on one node; ``log`` is what the pod printed."""

    node: str
    passed: bool
    log: str


class Snapshot(msgspec.Struct, frozen=True):
    """What is known at one moment; ``seconds`` are real seconds since the policy was applied."""

    seconds: float
    rows: list[layers.NodeRow]
    message: str


class Outcome(msgspec.Struct, frozen=True):
    """How the demo ended.

    ``layer_seconds``: when each layer had become healthy on every GPU node; ``ready_seconds``: when the whole stack
    had, None if never; ``problem``: the step that was given up, or the empty string. Seconds are real ones since the
    policy was applied.
    """

    rows: list[layers.NodeRow]
    layer_seconds: dict[str, float]
    checks: list[Check]
    ready_seconds: float | None
    total_seconds: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether every GPU node is healthy, offers GPUs and passed the CUDA check."""
        gpu_rows = [row for row in self.rows if row.has_gpu]
        return (
            not self.problem
            and bool(gpu_rows)
            and all(row.healthy and row.gpus for row in gpu_rows)
            and len(self.checks) == len(gpu_rows)
            and all(check.passed for check in self.checks)
        )


def cuda_check_pod(node: str) -> dict[str, Any]:
    """Return the pod that asks for one GPU of ``node`` and runs the CUDA check on it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"cuda-check-{node}", "namespace": "default", "labels": {"app": "cuda-check"}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "cuda-check",
                    "image": CUDA_CHECK_IMAGE,
                    "resources": {"limits": {names.GPU_RESOURCE: "1"}},
                }
            ],
        },
    }


class _GaveUpError(Exception):
    """A step of the story did not come to its end in time; the text names it."""


class _Watcher:
    """Judges the layers after each change and remembers when each one first became healthy everywhere."""

    def __init__(self, lab: Lab, report: Callable[[Snapshot], None]) -> None:
        self._lab = lab
        self._report = report
        self._started = time.monotonic()
        self.layer_seconds: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def rows(self) -> list[layers.NodeRow]:
        api = self._lab.api
        policies = api.list(api.resource("clusterpolicies", group=names.GROUP))["items"]
        return layers.judge(api.list(resources.NODES)["items"], api.list(resources.PODS)["items"], policies)

    def look(self, message: str) -> list[layers.NodeRow]:
        rows = self.rows()
        gpu_rows = [row for row in rows if row.has_gpu]
        for layer in layers.LAYERS:
            if gpu_rows and all(row.layers[layer] is layers.State.HEALTHY for row in gpu_rows):
                self.layer_seconds.setdefault(layer, self.seconds)
            else:
                self.layer_seconds.pop(layer, None)
        self._report(Snapshot(self.seconds, rows, message))
        return rows

    async def until(self, done: Callable[[list[layers.NodeRow]], bool], message: str, timeout_s: float) -> None:
        """Report until ``done`` holds; :class:`_GaveUpError` when it does not within ``timeout_s`` real seconds."""
        deadline = self.seconds + timeout_s
        while not done(self.look(message)):
            self._lab.check()
            if self.seconds > deadline:
                raise _GaveUpError(f"gave up after {timeout_s:g} s: {message}")
            await asyncio.sleep(LOOK_EVERY_S)


async def run(lab: Lab, report: Callable[[Snapshot], None], *, timeout_s: float = 60.0) -> Outcome:
    """Run the demo in a started lab, calling ``report`` several times a second.

    A step that does not end in ``timeout_s`` real seconds ends the demo, and the outcome names it. Raises
    :class:`~.cluster.LabError` when a part of the lab itself fails.
    """
    watcher = _Watcher(lab, report)
    expected = lab.gpu_node_names()
    ready_seconds: float | None = None
    try:
        await lab.apply([data("guide-baseline.yaml")])
        await watcher.until(
            lambda rows: (
                lab.policy_state() == "ready"
                and {row.name for row in rows if row.healthy and row.gpus}.issuperset(expected)
            ),
            "the operator brings the layers up, from the bottom",
            timeout_s,
        )
        ready_seconds = watcher.seconds
        await lab.apply([cuda_check_pod(node) for node in expected])
        await watcher.until(
            lambda _rows: all(_finished(lab, node) for node in expected),
            "CUDA check pods run on every GPU node",
            timeout_s,
        )
    except _GaveUpError as error:
        return Outcome(watcher.rows(), watcher.layer_seconds, [], ready_seconds, watcher.seconds, str(error))
    checks = [await _check(lab, node) for node in expected]
    return Outcome(watcher.rows(), watcher.layer_seconds, checks, ready_seconds, watcher.seconds)


def _phase(lab: Lab, node: str) -> str:
    pod = lab.api.get(resources.PODS, f"cuda-check-{node}", "default")
    return str(pod.get("status", {}).get("phase", ""))


def _finished(lab: Lab, node: str) -> bool:
    return _phase(lab, node) in ("Succeeded", "Failed")


async def _check(lab: Lab, node: str) -> Check:
    async with lab.client() as client:
        lines = [line async for line in client.logs(f"cuda-check-{node}", "default")]
    return Check(node, _phase(lab, node) == "Succeeded", "\n".join(line.rstrip("\n") for line in lines))
