"""Which pods the doctor looks at, and how they stand: operands of either operator, and what wants a GPU.

Pure, on the API's JSON. Operands are known by the labels that NVIDIA's operator and ours share
(contracts/admin-workflow.md 6.2), never by who installed them. What a state means is left to ``engine``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..api import names
from . import evidence as seen
from .evidence import Object
from .findings import Layer
from .match import container_statuses, number

_LAYER_OF: Final[tuple[tuple[str, Layer], ...]] = (
    ("nvidia-driver", Layer.DRIVER),
    ("nvidia-gpu-driver", Layer.DRIVER),
    ("nvidia-vgpu-manager", Layer.DRIVER),
    ("nvidia-container-toolkit", Layer.RUNTIME),
    ("nvidia-cuda-validator", Layer.RUNTIME),
    ("nvidia-operator-validator", Layer.DEVICE_PLUGIN),
    ("nvidia-device-plugin", Layer.DEVICE_PLUGIN),
    ("nvidia-plugin-validator", Layer.DEVICE_PLUGIN),
    ("nvidia-mps", Layer.DEVICE_PLUGIN),
    ("nvidia-sandbox", Layer.DEVICE_PLUGIN),
    ("nvidia-vfio", Layer.DEVICE_PLUGIN),
    ("nvidia-kata", Layer.DEVICE_PLUGIN),
    ("nvidia-cc", Layer.DEVICE_PLUGIN),
    ("nvidia-vgpu-device-manager", Layer.LABELS),
    ("gpu-feature-discovery", Layer.LABELS),
    ("nvidia-mig-manager", Layer.LABELS),
    ("nvidia-dcgm", Layer.TELEMETRY),
    ("nvidia-node-status-exporter", Layer.TELEMETRY),
    ("gpu-operator", Layer.OPERATOR),
)
"""The layer that an operand carries, by the beginning of its ``app`` label; the first that fits."""
_COMPONENTS: Final = frozenset({names.DRIVER_COMPONENT, names.VGPU_HOST_MANAGER_COMPONENT})
_DISCOVERY: Final = ("node-feature-discovery", "nfd")


def layer_of(pod: Object) -> Layer | None:
    """The layer that an operand's pod carries; None for a pod that is no operand of a GPU operator."""
    labels = seen.labels(pod)
    if labels.get(names.COMPONENT_LABEL) in _COMPONENTS:
        return Layer.DRIVER
    app = str(labels.get("app") or "")
    for begin, layer in _LAYER_OF:
        if app.startswith(begin):
            return layer
    named = str(labels.get("app.kubernetes.io/name") or "")
    if named == "gpu-operator" or named in _DISCOVERY or app in _DISCOVERY:
        return Layer.OPERATOR
    return None


def is_operator(thing: Object) -> bool:
    """Whether a pod or a Deployment is a GPU operator's own."""
    labels = seen.labels(thing)
    return "gpu-operator" in (labels.get("app"), labels.get("app.kubernetes.io/component"))


def gpu_request(container: Mapping[str, Any]) -> dict[str, Any]:
    """NVIDIA's resources that a container asks for, as limit or as request."""
    resources = _mapping(container, "resources")
    asked = {**_mapping(resources, "requests"), **_mapping(resources, "limits")}
    return {name: amount for name, amount in asked.items() if str(name).startswith("nvidia.com/")}


def wants_gpu(pod: Object) -> bool:
    """Whether a pod asks for a GPU: a resource of NVIDIA's, its RuntimeClass, or a claim of a device."""
    spec = _mapping(pod, "spec")
    if str(spec.get("runtimeClassName") or "").startswith("nvidia") or spec.get("resourceClaims"):
        return True
    return any(gpu_request(container) for container in containers(pod))


def containers(pod: Object) -> Iterator[Mapping[str, Any]]:
    """A pod's containers as they are specified, init containers first."""
    spec = _mapping(pod, "spec")
    for part in ("initContainers", "containers"):
        yield from (each for each in spec.get(part) or () if isinstance(each, Mapping))


def concerns_us(pod: Object, namespace: str) -> bool:
    """Whether the doctor judges a pod: an operand, any pod in the operator's namespace, or one that wants a GPU."""
    return seen.namespace(pod) == namespace or layer_of(pod) is not None or wants_gpu(pod)


def ended(pod: Object) -> bool:
    """Whether a pod has run to its end, well."""
    return _mapping(pod, "status").get("phase") == "Succeeded"


def leaving(pod: Object) -> bool:
    """Whether a pod is being deleted: what it says then is of no account."""
    return bool(_mapping(pod, "metadata").get("deletionTimestamp"))


def ready(pod: Object) -> bool:
    """Whether a pod is what it should be: Ready, or at its end without an error."""
    if ended(pod):
        return True
    status = _mapping(pod, "status")
    conditions = [each for each in status.get("conditions") or () if isinstance(each, Mapping)]
    told = {str(each.get("type")): each.get("status") for each in conditions}
    return status.get("phase") == "Running" and told.get("Ready") == "True"


def unwell(container: Mapping[str, Any]) -> str:
    """Why a container's log is worth reading: how it failed, or that it was restarted and is not ready; else empty."""
    state = _mapping(container, "state")
    waiting, over = _mapping(state, "waiting"), _mapping(state, "terminated")
    if reason := str(waiting.get("reason") or ""):
        return "" if reason in ("PodInitializing", "ContainerCreating") else reason
    if over and over.get("exitCode") not in (0, None):
        return str(over.get("reason") or "Error")
    if not over and not container.get("ready"):
        return "restarted" if (number(container.get("restartCount")) or 0) > 0 else "not ready"
    return ""


def has_run(container: Mapping[str, Any]) -> bool:
    """Whether a container has run at all, so that there is a log of its present run."""
    state = _mapping(container, "state")
    return bool(state.get("running") is not None or state.get("terminated") or _mapping(container, "lastState"))


def restarted(container: Mapping[str, Any]) -> bool:
    """Whether there is a log of the run before the present one."""
    return (number(container.get("restartCount")) or 0) > 0


def waiting(of_node: Iterable[Object]) -> Iterator[tuple[Layer, Object]]:
    """A node's operand pods that are not ready, the lowest layer first; of one layer, validators last."""
    found = [(layer, pod) for pod in of_node if (layer := layer_of(pod)) is not None and not ready(pod)]
    found.sort(key=lambda each: (each[0], validates(each[1])))
    yield from found


def validates(pod: Object) -> bool:
    """Whether it is a validator's, which fails as long as a lower layer is not there."""
    return str(seen.labels(pod).get("app") or "").endswith("-validator")


STARTING_S: Final = 300.0
"""An operand that has not failed may take so long until it is ready."""
DRIVER_STARTING_S: Final = 1800.0
"""A driver that is built on the node takes more: its startup probe allows 21 minutes, after images were pulled."""


SETTLING_S: Final = 90.0
"""Once an operand is ready, what follows from it takes so long: registration, labels, another try of what failed."""


def coming_up(of_node: Sequence[Object], now: float | None, born: float | None = None) -> Layer | None:
    """The lowest layer of a node that comes up: what is not there yet from it on is waited for.

    Its operand is not ready, but young and without a failure; or it has only just become ready. A node that was
    ``born`` lately (or its policy, or it was booted) starts its operands anew; without any it comes up from the driver
    on. None if nothing comes up, if the lowest that is not ready fails, or if ``now`` is not known; both are seconds
    since 1970.
    """
    if now is None:
        return None
    operands = [(layer, pod) for pod in of_node if (layer := layer_of(pod)) is not None]
    if not operands:
        return Layer.DRIVER if born is not None and now - born <= STARTING_S else None
    found = [layer for layer, pod in operands if _just_ready(pod, now)]
    lowest, pod = next(waiting(of_node), (None, None))
    if lowest is not None and pod is not None:
        starts = _starts(lowest, pod, now, born)
        found = [layer for layer in found if layer < lowest] + ([lowest] if starts else [])
    return min(found, default=None)


def _starts(layer: Layer, pod: Object, now: float, born: float | None) -> bool:
    made = seen.moment(_mapping(pod, "metadata").get("creationTimestamp"))
    booted = born if born is not None and made is not None and born > made else None
    since = made if booted is None else booted
    limit = DRIVER_STARTING_S if layer is Layer.DRIVER else STARTING_S
    if since is None or now - since > limit:
        return False
    mine = list(statuses(pod))
    if mine and all(map(_has_come, mine)):
        return False  # its node does not answer any more
    if booted is not None:
        return all(unwell(each) in ("", "not ready", "restarted") for each in mine)
    return not any(restarted(each) or unwell(each) not in ("", "not ready") for each in mine)


def _has_come(container: Mapping[str, Any]) -> bool:
    over = _mapping(_mapping(container, "state"), "terminated")
    return bool(container.get("ready")) or (bool(over) and over.get("exitCode") == 0)


def _just_ready(pod: Object, now: float) -> bool:
    """Whether a pod has become ready a moment ago, not after a failure."""
    if not ready(pod) or ended(pod) or any(map(restarted, statuses(pod))):
        return False
    conditions = [each for each in _mapping(pod, "status").get("conditions") or () if isinstance(each, Mapping)]
    since = next(
        (seen.moment(each.get("lastTransitionTime")) for each in conditions if each.get("type") == "Ready"), None
    )
    return since is not None and now - since <= SETTLING_S


def statuses(pod: Object) -> Iterator[Mapping[str, Any]]:
    """The statuses of a pod's containers, init containers first."""
    return container_statuses(pod)


def offered(node: Object) -> tuple[dict[str, float], dict[str, float]]:
    """NVIDIA's resources of a node, as capacity and as allocatable.

    Without what another resource has replaced: the kubelet keeps a capacity for a while, of which nothing is on offer
    any more, after MIG or sharing has given GPUs another name.
    """
    status = _mapping(node, "status")
    capacity, allocatable = (
        {name: value for name, amount in _mapping(status, part).items() if _ours(name) and (value := number(amount))}
        for part in ("capacity", "allocatable")
    )
    if allocatable and names.GPU_RESOURCE not in allocatable:
        capacity.pop(names.GPU_RESOURCE, None)
    return capacity, allocatable


def _ours(resource: str) -> bool:
    return resource.startswith("nvidia.com/")


def _mapping(thing: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = thing.get(key)
    return found if isinstance(found, Mapping) else {}
