"""The layers of a node's stack, from the bus up, and how each stands by what was seen.

A layer is healthy on proof only: its own, or that of a layer that cannot work without it. It fails where a finding
says so or its operand is not ready; above a failure it is not reached; all else is unknown. Pure; the rules are those
of contracts/admin-workflow.md 11.
"""

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..api import names
from . import evidence as seen
from . import pods
from .evidence import Evidence, NodeFacts, Object
from .findings import Layer


class State(enum.StrEnum):
    """How a layer stands."""

    HEALTHY = "healthy"
    FAILING = "failing"
    UNKNOWN = "unknown"
    STARTING = "starting"
    """Its operand is young and has not failed."""
    NOT_REACHED = "not reached"
    """A lower layer fails or starts, so that this one cannot be judged yet."""


class LayerState(msgspec.Struct, frozen=True):
    """How a layer of a node stands, and why it is said."""

    layer: Layer
    state: State
    why: str = ""


CRITERIA: Final[Mapping[Layer, str]] = {
    Layer.HARDWARE: "all expected devices on the bus, no unresolved Xid error",
    Layer.KERNEL: "headers available, no nouveau, modules' signatures accepted",
    Layer.DRIVER: "nvidia-smi ends with 0, the version is the wanted one",
    Layer.FABRIC: "fabric State Completed, Status Success, Fabric Manager of the driver's version",
    Layer.RUNTIME: "the runtime's handler or CDI works, names of CDI devices resolve",
    Layer.DEVICE_PLUGIN: "registered with the kubelet, all devices healthy",
    Layer.LABELS: "labels fresh, MIG state success",
    Layer.WORKLOAD: "pods are scheduled and run CUDA",
    Layer.TELEMETRY: "one series a GPU, with the pods' names where expected",
    Layer.OPERATOR: "reconciling, the last success is recent",
}
"""What healthy means (contracts/admin-workflow.md 11)."""
NEXT: Final[Mapping[Layer, str]] = {
    Layer.HARDWARE: "lspci -nn | grep -i 10de; dmesg | grep -iE 'nvrm|xid' (on the node)",
    Layer.KERNEL: "lsmod | grep -E 'nvidia|nouveau'; mokutil --sb-state (on the node)",
    Layer.DRIVER: "kubectl logs -n NAMESPACE DRIVER-POD --all-containers --tail=200; nvidia-smi (on the node)",
    Layer.FABRIC: "nvidia-smi -q | grep -A2 -i fabric; systemctl status nvidia-fabricmanager (on the node)",
    Layer.RUNTIME: "kubectl logs -n NAMESPACE -l app=nvidia-container-toolkit-daemonset --tail=200",
    Layer.DEVICE_PLUGIN: "kubectl logs -n NAMESPACE -l app=nvidia-device-plugin-daemonset --tail=200",
    Layer.LABELS: "kubectl logs -n NAMESPACE -l app=gpu-feature-discovery --tail=200",
    Layer.WORKLOAD: "groundplane doctor --pod NAMESPACE/NAME",
    Layer.TELEMETRY: "kubectl logs -n NAMESPACE -l app=nvidia-dcgm-exporter --tail=200",
    Layer.OPERATOR: "kubectl logs -n NAMESPACE -l app=gpu-operator --tail=200",
}
"""What to run where a layer is unknown."""
_NVSWITCH: Final = re.compile(r"(?:h100|h200|h800|a100|a800|b200|b300|gb200|v100)[^,]*sxm|hgx|dgx|nvl", re.IGNORECASE)
_OF_NODES: Final = tuple(layer for layer in Layer if layer is not Layer.OPERATOR)


class View:
    """What was seen of one node, as the layers' proofs ask for it."""

    def __init__(self, node: str, evidence: Evidence, of_node: Sequence[Object], machine: Object | None) -> None:
        self.node = node
        self.machine = machine
        self.labels = evidence.node_labels(node) or {}
        mine = [each for each in evidence.nodes if evidence.place(each.name) == node]
        self.facts: NodeFacts = mine[-1] if mine else NodeFacts()
        self.now = seen.moment(evidence.context.get("at"))
        self.pods: dict[Layer, list[Object]] = {}
        self.workloads: list[Object] = []
        self.operands: list[Object] = []
        for pod in of_node:
            layer = pods.layer_of(pod)
            if layer is None:
                self.workloads.append(pod)
                continue
            self.operands.append(pod)
            if not str(seen.labels(pod).get("app") or "").endswith("-validator"):
                self.pods.setdefault(layer, []).append(pod)
        self.validator = [each for each in of_node if seen.labels(each).get("app") == names.VALIDATOR_APP]

    def passed(self, validation: str) -> bool:
        """Whether the validator's init container of that name has ended well."""
        return any(
            status.get("name") == validation
            and ((status.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
            for pod in self.validator
            for status in pods.statuses(pod)
        )

    def fact(self, name: str) -> Any:
        """A fact of the node; None if nobody looked."""
        return self.facts.facts.get(name)


def views(evidence: Evidence) -> dict[str, View]:
    """A view of every node that has a GPU, or may have one, in the evidence's order."""
    by_node: dict[str, list[Object]] = {}
    for pod in evidence.of_kind("Pod"):
        by_node.setdefault(evidence.place(seen.node_of(pod)), []).append(pod)
    machines = {seen.name(each): each for each in evidence.of_kind("Node")}
    found = {}
    for node in evidence.node_names:
        view = View(node, evidence, by_node.get(node, ()), machines.get(node))
        if is_gpu_node(view):
            found[node] = view
    return found


def is_gpu_node(view: View) -> bool:
    """Whether a node has a GPU by its labels; one that nobody labelled, by its operands, facts or resources."""
    labels = view.labels
    if labels.get(names.GPU_PRESENT) == "true" or any(labels.get(each) == "true" for each in names.PCI_GPU_LABELS):
        return True
    operands = set(view.pods) - {Layer.OPERATOR}
    return bool(
        operands or view.validator or any(pods.offered(view.machine or {})) or view.facts.facts or view.facts.commands
    )


# --- Proofs -----------------------------------------------------------------------------------------------------------


def _ready(view: View, layer: Layer) -> str:
    """The operands that carry a layer, if there are any and all are ready."""
    mine = view.pods.get(layer, ())
    return f"pod {seen.name(mine[0])} is ready" if mine and all(map(pods.ready, mine)) else ""


def _hardware(view: View) -> str:
    buses = view.fact("gpus")
    if isinstance(buses, list) and buses:
        return f"{len(buses)} GPUs on the bus"
    seen_by = next((label for label in names.PCI_GPU_LABELS if view.labels.get(label) == "true"), "")
    return f"label {seen_by}" if seen_by else ""


def _kernel(view: View) -> str:
    return "the driver's module is loaded" if view.fact("driver_version") else ""


def _driver(view: View) -> str:
    if view.fact("nvidia_smi_rc") == 0:
        return "nvidia-smi ends with 0"
    if any(line.startswith("nvidia-smi") and said.rc == 0 for line, said in view.facts.commands.items()):
        return "nvidia-smi ends with 0"
    if view.passed("driver-validation"):
        return "driver-validation passed"
    return _ready(view, Layer.DRIVER)


def _fabric(view: View) -> str:
    if view.fact("fabric_state") == "Completed" and view.fact("fabric_status") in ("Success", None):
        return "fabric State Completed"
    product = view.labels.get(names.GPU_PRODUCT, "")
    if view.fact("nvswitches") == [] or (product and not _NVSWITCH.search(product)):
        return "no NVSwitch system"
    return "cuda-validation passed" if view.passed("cuda-validation") else ""


def _runtime(view: View) -> str:
    if view.passed("toolkit-validation"):
        return "toolkit-validation passed"
    return _ready(view, Layer.RUNTIME)


def _plugin(view: View) -> str:
    capacity, offered = pods.offered(view.machine or {})
    if capacity and capacity == offered:
        return ", ".join(f"{name}: {amount:g}" for name, amount in sorted(offered.items())) + " on offer"
    return ""


def _labels(view: View) -> str:
    state = view.labels.get(names.MIG_CONFIG_STATE, "success")
    product = view.labels.get(names.GPU_PRODUCT)
    return f"label {names.GPU_PRODUCT}={product}" if product and state == "success" else ""


def _workload(view: View) -> str:
    using = [each for each in view.workloads if pods.wants_gpu(each)]
    if using and all(map(pods.ready, using)):
        return f"{len(using)} pods with GPUs run"
    return "cuda-validation passed" if view.passed("cuda-validation") else ""


_PROOFS: Final[Mapping[Layer, Callable[[View], str]]] = {
    Layer.HARDWARE: _hardware,
    Layer.KERNEL: _kernel,
    Layer.DRIVER: _driver,
    Layer.FABRIC: _fabric,
    Layer.RUNTIME: _runtime,
    Layer.DEVICE_PLUGIN: _plugin,
    Layer.LABELS: _labels,
    Layer.WORKLOAD: _workload,
    Layer.TELEMETRY: lambda view: _ready(view, Layer.TELEMETRY),
}
_CARRIES: Final[Mapping[Layer, tuple[Layer, ...]]] = {
    Layer.HARDWARE: (Layer.KERNEL, Layer.DRIVER),
    Layer.KERNEL: (Layer.DRIVER,),
    Layer.DRIVER: (Layer.RUNTIME, Layer.DEVICE_PLUGIN),
    Layer.RUNTIME: (Layer.DEVICE_PLUGIN,),
}
"""Layers whose own proof proves a lower one, as they do not work without it."""


def _not_ready(view: View, layer: Layer) -> str:
    for pod in view.pods.get(layer, ()):
        if not pods.ready(pod):
            return f"pod {seen.name(pod)} is not ready"
    return ""


_NOTHING: Final[Mapping[Layer, str]] = {}


def of_node(
    view: View, failing: Mapping[Layer, str] = _NOTHING, waiting: Mapping[Layer, str] = _NOTHING
) -> tuple[LayerState, ...]:
    """How the layers of a node stand; the findings hold those of ``failing`` for broken, and see no more of those of
    ``waiting`` than that their operands are not ready."""
    proofs: dict[Layer, str] = {layer: proof for layer in _OF_NODES if (proof := _PROOFS[layer](view))}
    found: list[LayerState] = []
    starting = pods.coming_up(view.operands, view.now)
    broken = False
    for layer in _OF_NODES:
        waits = waiting.get(layer) or ("" if layer in proofs else _not_ready(view, layer))
        why = failing.get(layer) or waits
        if broken:
            state = State.HEALTHY if layer in proofs and layer in _APART else State.NOT_REACHED
            found.append(LayerState(layer, state, proofs.get(layer, "") if state is State.HEALTHY else ""))
        elif why:
            young = layer not in failing and starting is not None and starting <= layer
            found.append(LayerState(layer, State.STARTING if young else State.FAILING, why))
            broken = True
        else:
            found.append(_standing(layer, proofs))
    return tuple(found)


def of_cluster(evidence: Evidence, failing: str = "") -> LayerState:
    """How the operator's layer stands, which is of the cluster, not of a node; ``failing`` says what fails of it."""
    if failing:
        return LayerState(Layer.OPERATOR, State.FAILING, failing)
    operators = [each for each in evidence.of_kind("Pod") if pods.is_operator(each) and not pods.ended(each)]
    if operators and not any(map(pods.ready, operators)):
        return LayerState(Layer.OPERATOR, State.FAILING, f"pod {seen.name(operators[0])} is not ready")
    for policy in evidence.of_kind("ClusterPolicy"):
        status: Mapping[str, Any] = policy.get("status") or {}
        if state := status.get("state"):
            why = f"it has looked at ClusterPolicy {seen.name(policy)}, which is {state}"
            return LayerState(Layer.OPERATOR, State.HEALTHY, why)
    return LayerState(Layer.OPERATOR, State.UNKNOWN)


_APART: Final = frozenset({Layer.TELEMETRY})
"""Layers that nothing stands upon: they may be well above a failure."""


def _standing(layer: Layer, proofs: Mapping[Layer, str]) -> LayerState:
    if layer in proofs:
        return LayerState(layer, State.HEALTHY, proofs[layer])
    for upper in _CARRIES.get(layer, ()):
        if upper in proofs:
            return LayerState(layer, State.HEALTHY, f"{upper} works: {proofs[upper]}")
    return LayerState(layer, State.UNKNOWN, "")


def waiting(view: View) -> Iterator[tuple[Layer, Object]]:
    """A node's operand pods that are not ready, the lowest layer first."""
    return pods.waiting(view.operands)
