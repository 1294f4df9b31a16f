"""The demo: from bare GPU nodes to a passed CUDA check, figures, MIG slices made and unmade, a fault found and mended.

This module runs the story and reports what it sees; drawing it is the command's work. Nothing is assumed: every row
comes from the API, the CUDA result from the pods' logs and exit codes, the figures from the exporters' pages, the
fault's cause from the doctor.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ..api import names
from ..cluster import client as cluster_client
from ..cluster import errors, kinds
from ..cluster.config import Config
from . import demo_fault, demo_mig, layers, resources
from .cluster import OPERATOR_NAMESPACE, Lab
from .cluster import data as data
from .demo_fault import FaultTurn
from .demo_mig import MigTurn
from .demo_steps import (
    CUDA_CHECK_IMAGE,
    NAMESPACE,
    Check,
    Snapshot,
    Step,
    StepError,
    Watcher,
    finished,
    offered,
    outcome,
    pod,
    told,
)
from .figures import Figures, FiguresError, parse

__all__ = ["Check", "FaultTurn", "Figures", "MigTurn", "Outcome", "Snapshot", "cuda_check_pod", "data", "policy", "run"]
GPU_USER_IMAGE = "nvcr.io/nvidia/cuda:12.5.0-base-ubuntu24.04"
EXPORTER = "nvidia-dcgm-exporter"
EXPORTER_PORT = 9400

LAYERS_STEP = Step(
    "the operator brings the layers up, from the bottom",
    "look at the pods of the lowest layer that is not healthy (kubectl describe pods -n gpu-operator)",
)
CHECK_STEP = Step(
    "CUDA check pods run on every GPU node",
    "read the check's output above; it names the GPU and the call, or the layer that is missing",
)
FIGURES_STEP = Step(
    "the exporters tell each GPU's figures, and who uses it",
    "see the exporter's log (kubectl logs -n gpu-operator daemonset/nvidia-dcgm-exporter) and docs/metrics.md",
)
_XID_ADVICE = "take the GPU out of use and see docs/metrics.md: an Xid error is what the driver tells of a fault"


class Outcome(msgspec.Struct, frozen=True):
    """How the demo ended.

    ``layer_seconds``: when each layer had become healthy on every GPU node; ``ready_seconds``: when the whole stack
    had, ``check_seconds``: when the CUDA checks had ended, None if never; ``figures``: what the exporter of each GPU
    node tells; ``mig``: the MIG step, None if no GPU knows MIG or it was not reached; ``fault``: what was broken and
    mended, None if that was not reached; ``problem``: the step that was given up, what was seen and what to do, or the
    empty string. Seconds are real ones since the policy was applied.
    """

    rows: list[layers.NodeRow]
    layer_seconds: dict[str, float]
    checks: list[Check]
    ready_seconds: float | None
    total_seconds: float
    problem: str = ""
    check_seconds: float | None = None
    figures: dict[str, list[Figures]] = {}
    mig: MigTurn | None = None
    fault: FaultTurn | None = None

    @property
    def passed(self) -> bool:
        """Whether every GPU node is healthy, offers GPUs, passed the CUDA check and has figures, MIG came and went, and
        so did the fault."""
        gpu_rows = [row for row in self.rows if row.has_gpu]
        return (
            not self.problem
            and bool(gpu_rows)
            and all(row.healthy and row.gpus for row in gpu_rows)
            and len(self.checks) == len(gpu_rows)
            and all(check.passed for check in self.checks)
            and all(_sound(self.figures.get(row.name, []), row.gpus) for row in gpu_rows)
            and (self.mig is None or (self.mig.check.passed and self.mig.after == self.mig.before))
            and self.fault is not None
        )


def _sound(figures: list[Figures], gpus: int) -> bool:
    return len(figures) == gpus and all(each.complete and not each.xid for each in figures)


def cuda_check_pod(node: str) -> dict[str, Any]:
    """Return the pod that asks for one GPU of ``node`` and runs the CUDA check on it."""
    return pod(f"cuda-check-{node}", node, names.GPU_RESOURCE, image=CUDA_CHECK_IMAGE)


def gpu_user_pod(node: str) -> dict[str, Any]:
    """Return a pod that holds one GPU of ``node`` until it is deleted, so that the exporter has a user to tell of."""
    return pod(
        f"gpu-user-{node}", node, names.GPU_RESOURCE, name="user", image=GPU_USER_IMAGE, command=["sleep", "infinity"]
    )


def policy(slicing: demo_mig.Slicing | None) -> dict[str, Any]:
    """The demo's ClusterPolicy: the guide's, with MIG devices as resources of their own, of the demo's layouts."""
    found: dict[str, Any] = data("guide-baseline.yaml")
    found["spec"]["mig"]["strategy"] = "mixed"
    if slicing is not None:
        found["spec"]["migManager"]["config"]["name"] = demo_mig.LAYOUTS
    return found


async def run(lab: Lab, report: Callable[[Snapshot], None], *, timeout_s: float = 60.0) -> Outcome:
    """Run the demo in a started lab, calling ``report`` several times a second.

    A step that does not end in ``timeout_s`` real seconds ends the demo, and the outcome names it. Raises
    :class:`~.cluster.LabError` when a part of the lab itself fails.
    """
    once = cluster_client.Retry(attempts=1)  # what fails is asked again by the step, which has a time limit
    async with cluster_client.Client(Config(server=lab.url), user_agent="groundplane-demo", retry=once) as client:
        story = _Story(lab, client, Watcher(lab, report, timeout_s))
        problem = ""
        try:
            await story.tell()
        except StepError as error:
            problem = str(error)
        return story.outcome(problem)


class _Story:
    """The steps, and what they have found so far."""

    def __init__(self, lab: Lab, client: cluster_client.Client, watcher: Watcher) -> None:
        self._lab = lab
        self._client = client
        self._watcher = watcher
        self._nodes = lab.gpu_nodes()
        self._slicing = demo_mig.choose(self._nodes)
        self._checks: list[Check] = []
        self._check_seconds: float | None = None
        self._figures: dict[str, list[Figures]] = {}
        self._mig: MigTurn | None = None
        self._fault: FaultTurn | None = None

    def outcome(self, problem: str) -> Outcome:
        """What there is to say at the end."""
        watcher = self._watcher
        return Outcome(
            watcher.rows(),
            watcher.layer_seconds,
            self._checks,
            watcher.ready_seconds,
            watcher.seconds,
            problem,
            self._check_seconds,
            self._figures,
            self._mig,
            self._fault,
        )

    async def tell(self) -> None:
        """All steps. Raises :class:`~.demo_steps.StepError`."""
        await self._bring_up()
        await self._check_cuda()
        await self._read_figures()
        for node in self._nodes:
            await self._client.delete(kinds.POD, f"gpu-user-{node}", NAMESPACE)
        if self._slicing is not None:
            self._mig = await demo_mig.Turn(self._lab, self._client, self._watcher, self._slicing).run()
        chosen = demo_fault.choose({node: self._lab.host(node) for node in self._nodes})
        if chosen is not None:
            self._fault = await demo_fault.Turn(self._lab, self._client, self._watcher, chosen).run()

    # --- the stack ----------------------------------------------------------------------------------------------------

    async def _bring_up(self) -> None:
        if self._slicing is not None:
            await self._lab.apply([self._slicing.config_map()])
        await self._lab.apply([policy(self._slicing)])

        async def done(rows: list[layers.NodeRow]) -> bool:
            up = {row.name for row in rows if row.healthy and row.gpus}
            return self._lab.policy_state() == "ready" and up.issuperset(self._nodes)

        await self._watcher.until(LAYERS_STEP, done, self._lowest)
        self._watcher.ready_seconds = self._watcher.seconds

    def _lowest(self) -> str:
        """The lowest layer that is not healthy, on each node where there is one."""
        found = []
        for row in self._watcher.rows():
            if row.name not in self._nodes:
                continue
            states = [(layer, state) for layer, state in row.layers.items() if state is not layers.State.HEALTHY]
            found += [f"{row.name}: {layer} is {state.value}" for layer, state in states[:1]]
        return "; ".join(found) or f"the ClusterPolicy is {self._lab.policy_state() or 'without a state'}"

    # --- the CUDA check -----------------------------------------------------------------------------------------------

    async def _check_cuda(self) -> None:
        await self._lab.apply([make(node) for node in self._nodes for make in (cuda_check_pod, gpu_user_pod)])
        pods = [f"cuda-check-{node}" for node in self._nodes]

        async def done(_rows: list[layers.NodeRow]) -> bool:
            return all(finished(self._lab, name) for name in pods)

        def seen() -> str:
            late = [name for name in pods if not finished(self._lab, name)]
            return "; ".join(told(self._found(name)) for name in late)

        await self._watcher.until(CHECK_STEP, done, seen)
        self._check_seconds = self._watcher.seconds
        self._checks = [await outcome(self._lab, self._client, f"cuda-check-{node}", node) for node in self._nodes]
        failed = [told(self._found(f"cuda-check-{check.node}")) for check in self._checks if not check.passed]
        if failed:
            CHECK_STEP.fail("; ".join(failed))

    def _found(self, name: str) -> dict[str, Any] | None:
        """One of the demo's pods."""
        return self._lab.api.find(resources.PODS, name, NAMESPACE)

    # --- figures ------------------------------------------------------------------------------------------------------

    async def _read_figures(self) -> None:
        trouble: dict[str, str] = {}

        async def done(_rows: list[layers.NodeRow]) -> bool:
            trouble.clear()
            for node, spec in self._nodes.items():
                trouble[node] = await self._figures_of(node, sum(group.count for group in spec.gpus))
            self._require_health()
            return not any(trouble.values())

        await self._watcher.until(FIGURES_STEP, done, lambda: "; ".join(filter(None, trouble.values())))

    def _require_health(self) -> None:
        """Give up where a GPU has told of an error: nothing that is waited for can be relied on then."""
        ill = [
            f"GPU {each.gpu} of {node} ({each.uuid}): Xid {each.xid:.0f}"
            for node, figures in self._figures.items()
            for each in figures
            if each.xid
        ]
        if ill:
            FIGURES_STEP._replace(advice=_XID_ADVICE).fail("; ".join(ill))

    async def _figures_of(self, node: str, count: int) -> str:
        """Read the page of a node's exporter; what is still missing there."""
        found = self._lab.api.list(
            resources.PODS, OPERATOR_NAMESPACE, labels=f"app={EXPORTER}", fields=f"spec.nodeName={node}"
        )["items"]
        if not found:
            return f"{node} has no pod of the exporter"
        name = found[0]["metadata"]["name"]
        path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{name}:{EXPORTER_PORT}/proxy/metrics"
        try:
            self._figures[node] = parse((await self._client.raw("GET", path)).decode())
        except (errors.ClusterError, FiguresError) as error:
            return f"{name} on {node}: {error}"
        return self._missing(node, count)

    def _missing(self, node: str, count: int) -> str:
        figures = self._figures[node]
        whole = [each for each in figures if each.complete]
        if len(whole) < count:
            return f"{node}: the exporter has the figures of {len(whole)} of {count} GPUs"
        on_offer = offered(self._lab.api.get(resources.NODES, node)).get(names.GPU_RESOURCE, 0)
        if on_offer < count:
            return f"{node} offers {on_offer} of {count} GPUs; the device plugin's log there says why"
        user = f"gpu-user-{node}"
        if not any(f"/{user}/" in each.user for each in figures):
            return f"{node}: no GPU is told to be used by {user}: {told(self._found(user))}"
        return ""
