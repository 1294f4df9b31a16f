"""Comparing nodes that are sick of one cause with the healthy nodes of their pool.

What all the sick have and none of the healthy is the strongest evidence there is of why it is them
(contracts/admin-workflow.md 11). What the failure itself takes from a node (labels that no discovery writes any more)
is left out. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..api import names
from . import evidence as seen
from . import findings, pods
from .evidence import Evidence, Object
from .findings import natural

_OWN: Final = ("kubernetes.io/hostname", "nvidia.com/gfd.timestamp", "node.kubernetes.io/instance-name")
_OWN_PREFIXES: Final = ("feature.node.kubernetes.io/", "nvidia.com/gpu-driver-upgrade", "nvidia.com/gpu.deploy.")
"""Labels that tell nodes apart by nature, or follow from how they stand."""
_POOL: Final = (names.GPU_PRODUCT, "node.kubernetes.io/instance-type", "nvidia.com/gpu.machine")
SHOWN: Final = 4
"""Differences that are told of a cause."""


def differences(evidence: Evidence, sick: Sequence[str], healthy: Iterable[str]) -> list[findings.Evidence]:
    """What all of the sick nodes have and none of the healthy nodes of their pool has; empty where nothing compares."""
    machines = {seen.name(each): each for each in evidence.of_kind("Node")}
    images = _images(evidence)
    mine = [_traits(machines[node], images.get(node, {})) for node in sick if node in machines]
    pool = {_pool(machines[node]) for node in sick if node in machines}
    others = [node for node in healthy if node in machines and _akin(_pool(machines[node]), pool)]
    if not mine or len(mine) < len(sick) or not others:
        return []
    theirs = [_traits(machines[node], images.get(node, {})) for node in others]
    told = []
    for trait in mine[0]:
        here = {each.get(trait, "") for each in mine}
        there = {each.get(trait, "") for each in theirs}
        if len(here) == 1 and not here & there and "" not in there:
            told.append((trait, next(iter(here)), sorted(there, key=natural)))
    return [_quote(trait, here, there, others) for trait, here, there in told[:SHOWN]]


def _quote(trait: str, here: str, there: Sequence[str], others: Sequence[str]) -> findings.Evidence:
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return findings.Evidence(
        source=f"compared with healthy nodes of the pool ({others[0]}{more})",
        excerpt=f"{trait} is {here} here, {' or '.join(there[:3])} there",
    )


def _pool(node: Object) -> tuple[str, ...]:
    labels = seen.labels(node)
    return tuple(str(labels.get(each) or "") for each in _POOL)


def _akin(pool: tuple[str, ...], others: set[tuple[str, ...]]) -> bool:
    """Whether pools are the same; what one does not tell (its labels are gone) is no difference."""
    return any(all(not a or not b or a == b for a, b in zip(pool, other, strict=True)) for other in others)


_INFO: Final = {
    "kernelVersion": "kernel",
    "osImage": "operating system",
    "containerRuntimeVersion": "container runtime",
    "kubeletVersion": "kubelet",
    "architecture": "architecture",
}


def _traits(node: Object, images: Mapping[str, str]) -> dict[str, str]:
    info: Mapping[str, Any] = (node.get("status") or {}).get("nodeInfo") or {}
    found = {words: str(info[field]) for field, words in _INFO.items() if info.get(field)}
    labels = seen.labels(node)
    driver = str(labels.get("nvidia.com/cuda.driver-version.full") or "")
    found |= {"driver version": driver} if driver else {}
    taints = (node.get("spec") or {}).get("taints") or ()
    keys = sorted(f"{each.get('key')}:{each.get('effect')}" for each in taints if isinstance(each, Mapping))
    found["taints"] = ", ".join(key for key in keys if not key.startswith("node.kubernetes.io/")) or "none"
    found |= {f"image of {app}": image for app, image in images.items()}
    for label, value in labels.items():
        if label not in _OWN and not label.startswith(_OWN_PREFIXES) and value:
            found[f"label {label}"] = str(value)
    return found


def _images(evidence: Evidence) -> dict[str, dict[str, str]]:
    """The images of operands by node and ``app``, by digest where it is known."""
    found: dict[str, dict[str, str]] = {}
    for pod in evidence.of_kind("Pod"):
        node, app = seen.node_of(pod), str(seen.labels(pod).get("app") or "")
        if not node or not app or pods.layer_of(pod) is None:
            continue
        status: Mapping[str, Any] = next(iter((pod.get("status") or {}).get("containerStatuses") or ()), {})
        if image := str(status.get("imageID") or ""):
            found.setdefault(node, {})[app] = image
    return found
