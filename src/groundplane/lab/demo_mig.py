"""The demo's MIG step: a label has one GPU cut into slices, a pod computes on one of them, and all goes back.

The layout is made from what the node's GPUs offer, by the rules by which the MIG manager makes its own; a ConfigMap
brings it, which the policy names.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ..api import names
from ..cluster import client as cluster_client
from ..cluster import kinds
from ..node.devices.models import Model
from ..node.devices.simulatedmig import VENDOR
from ..node.mig import generate, layout
from . import layers, resources
from .cluster import OPERATOR_NAMESPACE, Lab
from .demo_steps import (
    CUDA_CHECK_IMAGE,
    NAMESPACE,
    Check,
    Step,
    Watcher,
    finished,
    listed,
    offered,
    outcome,
    pod,
    told,
)
from .nodes import NodeSpec

LAYOUTS = "demo-mig-layouts"
"""The ConfigMap of layouts."""
SLICED, WHOLE = "one-gpu-sliced", "all-disabled"
CHECK_POD = "cuda-check-mig"
_LOOK = (
    "see the MIG manager's log (kubectl logs -n gpu-operator daemonset/nvidia-mig-manager) and docs/mig.md, which says "
    "what each state means"
)


class Slicing(msgspec.Struct, frozen=True):
    """Which GPU is cut, and into how many devices of which resource."""

    node: str
    gpus: int
    """How many GPUs the node has."""
    index: int
    layouts: Mapping[str, layout.Layout]

    @property
    def slices(self) -> dict[str, int]:
        """The resources that the node offers of the GPU."""
        instances = self.layouts[SLICED][-1].instances
        return {names.MIG_RESOURCE_PREFIX + profile.in_resource: count for profile, count in instances.items()}

    def config_map(self) -> dict[str, Any]:
        """The layouts as the MIG manager reads them."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": LAYOUTS, "namespace": OPERATOR_NAMESPACE},
            "data": {"config.yaml": layout.dump(self.layouts, "yaml")},
        }


class MigTurn(msgspec.Struct, frozen=True):
    """What a node offered before, while one GPU was sliced, and after; the CUDA check ran on one of ``resource``.

    ``there_seconds`` and ``back_seconds``: how long each change took until the resources were on offer, in real ones.
    """

    node: str
    index: int
    resource: str
    before: Mapping[str, int]
    sliced: Mapping[str, int]
    after: Mapping[str, int]
    check: Check
    there_seconds: float
    back_seconds: float


def choose(specs: Mapping[str, NodeSpec]) -> Slicing | None:
    """The first GPU that knows MIG, and how it is cut; None where no GPU does."""
    for name, spec in specs.items():
        for index, card in enumerate(spec.cards()):
            if card.kinds:
                return Slicing(name, sum(group.count for group in spec.gpus), index, _layouts(card, index))
    return None


def _layouts(card: Model, index: int) -> dict[str, layout.Layout]:
    device = str(layout.Filter(int(card.pci_id, 16) << 16 | VENDOR))
    offers = [generate.Offer(device, profile, kind.most) for profile, kind in card.kinds.items()]
    made = generate.layouts(offers)
    most = max(card.kinds, key=lambda profile: card.kinds[profile].most)
    (entry,) = made.get("all-balanced") or made[f"all-{most.in_resource}"]
    return {
        WHOLE: made["all-disabled"],
        SLICED: (*made["all-disabled"], msgspec.structs.replace(entry, devices=(index,))),
    }


class Turn:
    """The step itself."""

    def __init__(self, lab: Lab, client: cluster_client.Client, watcher: Watcher, slicing: Slicing) -> None:
        self._lab = lab
        self._client = client
        self._watcher = watcher
        self._slicing = slicing
        self._node = slicing.node

    async def run(self) -> MigTurn:
        """There and back. Raises :class:`~.demo_steps.StepError`."""
        slicing = self._slicing
        before = self._offered()
        wanted = slicing.slices
        whole = before.get(names.GPU_RESOURCE, 0) - 1
        there = await self._change(SLICED, {**({names.GPU_RESOURCE: whole} if whole else {}), **wanted})
        sliced = self._offered()
        resource = min(wanted)
        check = await self._check(resource)
        back = await self._change(WHOLE, before)
        after = self._offered()
        await self._settle()
        return MigTurn(self._node, slicing.index, resource, before, sliced, after, check, there, back)

    def _document(self) -> dict[str, Any]:
        return self._lab.api.get(resources.NODES, self._node)

    def _offered(self) -> dict[str, int]:
        return offered(self._document())

    async def _change(self, name: str, wanted: Mapping[str, int]) -> float:
        """Ask for a layout, and wait until it is there; how many real seconds that took."""
        step = Step(f"MIG: {self._node} is labelled {names.MIG_CONFIG}={name}", _LOOK)
        asked = {"metadata": {"labels": {names.MIG_CONFIG: name}}}
        await self._client.patch(kinds.NODE, self._node, asked, field_manager="lab")

        async def done(_rows: list[layers.NodeRow]) -> bool:
            meta = self._document()["metadata"]
            state = meta["labels"].get(names.MIG_CONFIG_STATE)
            if state == "failed":
                cause = (meta.get("annotations") or {}).get(names.MIG_CONFIG_FAILURE, "no cause is told")
                step.fail(f"{names.MIG_CONFIG_STATE}=failed: {cause}")
            return state == "success" and self._offered() == wanted

        def seen() -> str:
            state = self._document()["metadata"]["labels"].get(names.MIG_CONFIG_STATE, "not set")
            return f"{names.MIG_CONFIG_STATE}={state}; on offer {listed(self._offered())}, not {listed(wanted)}"

        return await self._watcher.until(step, done, seen)

    async def _check(self, resource: str) -> Check:
        """Run the CUDA check on a slice."""
        step = Step(
            f"MIG: a CUDA check pod runs on one {resource}",
            "see the pod's events (kubectl describe pod) and the device plugin's log on that node",
        )
        await self._lab.apply([pod(CHECK_POD, self._node, resource, image=CUDA_CHECK_IMAGE)])

        async def done(_rows: list[layers.NodeRow]) -> bool:
            return finished(self._lab, CHECK_POD)

        await self._watcher.until(step, done, lambda: told(self._lab.api.find(resources.PODS, CHECK_POD, NAMESPACE)))
        check = await outcome(self._lab, self._client, CHECK_POD, self._node)
        if not check.passed:
            step.fail(check.log or "the pod printed nothing")
        return check

    async def _settle(self) -> None:
        """Wait until all that was paused for the change runs again."""
        step = Step(
            f"MIG: {self._node} has its GPU whole again; what was paused comes back",
            "see what the pods wait for (kubectl describe pods -n gpu-operator)",
        )

        def unhealthy() -> list[str]:
            (row,) = (row for row in self._watcher.rows() if row.name == self._node)
            healthy = (layers.State.HEALTHY, layers.State.ABSENT)
            return [f"{layer} is {state.value}" for layer, state in row.layers.items() if state not in healthy]

        async def done(_rows: list[layers.NodeRow]) -> bool:
            return not unhealthy()

        await self._watcher.until(step, done, lambda: f"{self._node}: {', '.join(unhealthy())}")
