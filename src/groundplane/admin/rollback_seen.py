"""What a cluster shows of the layers of a rollback, before it or after (``rollback.Snapshot``).

Pure: a survey, what was found on nodes, and baselines come in. What nobody has looked at stays None.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ..api import names
from ..diagnose.evidence import NodeFacts
from ..diagnose.survey import Survey
from .baseline import Baseline
from .disruption import Holder
from .rollback import Pairs
from .snapshot import TOOLKIT_APP

PLURALS: Final[Mapping[str, str]] = {"ComputeDomain": "computedomains", "GPUCluster": "gpuclusters"}
RUNTIME_CLASS: Final = "nvidia"
_INSTALLED: Final = "/usr/local/nvidia"


def definitions(survey: Survey) -> frozenset[str] | None:
    """The names of the cluster's CRDs; None if they could not be read."""
    if not survey.knows("customresourcedefinitions"):
        return None
    return frozenset(str(each["metadata"]["name"]) for each in survey.of_kind("customresourcedefinitions"))


def custom(survey: Survey) -> Mapping[str, tuple[str, ...]] | None:
    """Custom resources of new kinds by kind; None if one could not be read."""
    if not all(survey.knows(plural) for plural in PLURALS.values()):
        return None
    return {kind: tuple(map(_where, survey.of_kind(plural))) for kind, plural in PLURALS.items()}


def _where(thing: Mapping[str, Any]) -> str:
    metadata = thing["metadata"]
    space = metadata.get("namespace")
    return f"{space}/{metadata['name']}" if space else str(metadata["name"])


def runtime_class(survey: Survey) -> bool | None:
    """Whether RuntimeClass nvidia is there."""
    if not survey.knows("runtimeclasses"):
        return None
    return any(each["metadata"]["name"] == RUNTIME_CLASS for each in survey.of_kind("runtimeclasses"))


# --- Nodes from inside ------------------------------------------------------------------------------------------------


def host_files(found: Mapping[str, NodeFacts] | None, survey: Survey) -> Mapping[str, tuple[str, ...]] | None:
    """By node: what a toolkit has left that no stop takes away; None if no node was looked at.

    Where a toolkit runs, its own programs and specs are in use, and not left over.
    """
    if not found:
        return None
    running = {node for node, pods in survey.pods_by_node.items() if any(map(_is_toolkit, pods))}
    return {node: tuple(_left(seen.facts, used=node in running)) for node, seen in found.items()}


def _is_toolkit(pod: Mapping[str, Any]) -> bool:
    return (pod["metadata"].get("labels") or {}).get("app") == TOOLKIT_APP


def _left(facts: Mapping[str, Any], *, used: bool) -> Iterator[str]:
    programs = [str(each) for each in facts.get("toolkit") or () if str(each).startswith(_INSTALLED)]
    yield from (f"{path} (installed by a toolkit)" for path in programs if not used)
    specs: dict[str, list[str]] = {}
    for spec in facts.get("cdi_specs") or ():
        if isinstance(spec, Mapping) and "nvidia.com/" in str(spec.get("kind")):
            specs.setdefault(str(spec["kind"]), []).append(str(spec.get("path")))
    for kind, paths in sorted(specs.items()):
        if not used or len(paths) > 1:
            yield f"{', '.join(paths)} (CDI {'specs' if len(paths) > 1 else 'spec'} of {kind})"
    yield from (f"CDI: {error}" for error in facts.get("cdi_errors") or ())
    for path in facts.get("inactive_dropins") or ():
        yield f"{path} (a drop-in of the runtime that its configuration does not import)"
    yield from _edited_twice(facts)


def _edited_twice(facts: Mapping[str, Any]) -> Iterator[str]:
    """A runtime's configuration that was edited in its file and by a drop-in, as toolkits of two methods leave it."""
    for runtime in ("containerd", "crio"):
        told = facts.get(runtime)
        if not isinstance(told, Mapping):
            continue
        drop_ins = [str(each) for each in told.get("imported") or () if "nvidia" in str(each)]
        if len(drop_ins) > 1:
            yield f"{', '.join(drop_ins)} (several drop-ins of {runtime} are NVIDIA's)"


def images(needed: Iterable[str], found: Mapping[str, NodeFacts] | None) -> Mapping[str, bool | None] | None:
    """Whether each image can be pulled by the nodes that tried; None of an image that no node has tried.

    Without any node that tried, nobody has looked: None.
    """
    tried: dict[str, list[bool]] = {}
    for seen in (found or {}).values():
        for image, told in (seen.facts.get("pull") or {}).items():
            if isinstance(told, Mapping):
                tried.setdefault(str(image), []).append(not told.get("problem"))
    if not tried:
        return None
    return {image: all(tried[image]) if image in tried else None for image in needed}


# --- Against a baseline -----------------------------------------------------------------------------------------------

Told = Callable[[Baseline], Mapping[str, str]]


def _kernels(taken: Baseline) -> Mapping[str, str]:
    return {name: f"{node.kernel} ({node.os})" for name, node in taken.parts.nodes.items()}


def _runtimes(taken: Baseline) -> Mapping[str, str]:
    return {name: f"{node.runtime}, kubelet {node.kubelet}" for name, node in taken.parts.nodes.items()}


def _layouts(taken: Baseline) -> Mapping[str, str]:
    return {
        name: f"{names.MIG_CONFIG}={node.labels.get(names.MIG_CONFIG, '(none)')}"
        for name, node in taken.parts.nodes.items()
        if node.gpu
    }


def _firmware(taken: Baseline) -> Mapping[str, str]:
    return {
        name: "; ".join(f"{gpu.uuid} VBIOS {gpu.vbios or '?'} InfoROM {gpu.inforom or '?'}" for gpu in gpus)
        for name, gpus in taken.parts.gpus.items()
        if gpus
    }


AGAINST: Final[Mapping[str, Told]] = {
    "kernels": _kernels,
    "runtimes": _runtimes,
    "mig": _layouts,
    "firmware": _firmware,
}
"""Layers that only a baseline can tell of, by their field of ``rollback.Snapshot``."""


def pairs(was: Baseline | None, now: Baseline | None) -> Mapping[str, Pairs | None]:
    """What a baseline says of each of these layers, and what is now; None where either does not know it."""
    if was is None or now is None:
        return dict.fromkeys(AGAINST)
    return {field: _pairs(told(was), told(now)) for field, told in AGAINST.items()}


def _pairs(was: Mapping[str, str], now: Mapping[str, str]) -> Pairs | None:
    both = was.keys() & now.keys()
    return {node: (was[node], now[node]) for node in sorted(both)} if both else None


# --- Workloads --------------------------------------------------------------------------------------------------------


def to_evict(holders: Iterable[Holder]) -> tuple[str, ...]:
    """The pods that have to leave, and what becomes of each."""
    return tuple(f"{each.node}: {each.pod} ({_fate(each)})" for each in holders)


def _fate(holder: Holder) -> str:
    return f"{holder.controller} makes it anew" if holder.controller else "bare: nothing makes it anew"


def evicted(holders: Iterable[Holder], survey: Survey) -> tuple[str, ...] | None:
    """Of the pods that had to leave, those that are gone; what has no controller is gone for good."""
    if not survey.knows("pods"):
        return None
    there = {_where(each) for each in survey.of_kind("pods")}
    return to_evict(each for each in holders if each.pod not in there)
