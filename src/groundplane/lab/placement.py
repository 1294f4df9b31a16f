"""Which nodes a pod may run on: pure rules over plain objects, shared by the scheduler and the DaemonSet controller.

Labels, node affinity, taints and label selectors are judged here; resources in `amounts`, and anything that needs the
other pods of the cluster in the scheduler itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Labels = Mapping[str, str]
Doc = Mapping[str, Any]

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": NO_SCHEDULE}


def _integers(value: str | None, operands: Sequence[str]) -> tuple[int, int] | None:
    """Both sides of Gt/Lt as integers; None if a side is missing or no integer (then nothing matches)."""
    try:
        return (int(value or ""), int(operands[0])) if len(operands) == 1 else None
    except ValueError:
        return None


def _greater(value: str | None, operands: Sequence[str]) -> bool:
    sides = _integers(value, operands)
    return sides is not None and sides[0] > sides[1]


def _less(value: str | None, operands: Sequence[str]) -> bool:
    sides = _integers(value, operands)
    return sides is not None and sides[0] < sides[1]


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, operands: value is not None and value in operands,
    "NotIn": lambda value, operands: value is None or value not in operands,
    "Exists": lambda value, operands: value is not None,
    "DoesNotExist": lambda value, operands: value is None,
    "Gt": _greater,
    "Lt": _less,
}


def requirement_holds(requirement: Doc, labels: Labels) -> bool:
    """Whether one `{key, operator, values}` holds; an unknown operator holds nowhere."""
    operator = _OPERATORS.get(str(requirement.get("operator")))
    return operator is not None and operator(labels.get(requirement["key"]), requirement.get("values") or ())


def selects(selector: Doc | None, labels: Labels) -> bool:
    """Whether a LabelSelector selects these labels; None selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        requirement_holds(requirement, labels) for requirement in selector.get("matchExpressions") or ()
    )


def selects_map(selector: Labels | None, labels: Labels) -> bool:
    """Whether a plain map selector (Service, `nodeSelector`) holds; empty or None holds everywhere."""
    return all(labels.get(key) == value for key, value in (selector or {}).items())


def node_labels(node: Doc) -> Labels:
    """A node's labels, empty if it has none."""
    labels: Labels = node["metadata"].get("labels") or {}
    return labels


def node_term_holds(term: Doc, node: Doc) -> bool:
    """Whether one node selector term holds; an empty term holds nowhere."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    names = {"metadata.name": node["metadata"]["name"]}
    return all(requirement_holds(field, names) for field in fields) and all(
        requirement_holds(expression, node_labels(node)) for expression in expressions
    )


def required_node_affinity(spec: Doc) -> Doc | None:
    """A pod spec's required node affinity (a node selector), if any."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required: Doc | None = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required


def node_selected(spec: Doc, node: Doc) -> bool:
    """Whether a pod spec's `nodeSelector` and required node affinity admit a node."""
    required = required_node_affinity(spec)
    return selects_map(spec.get("nodeSelector"), node_labels(node)) and (
        required is None or any(node_term_holds(term, node) for term in required.get("nodeSelectorTerms") or ())
    )


def pinned_nodes(spec: Doc) -> frozenset[str] | None:
    """The only node names a pod can run on, when each affinity term names them; None if it is not so bound.

    Lets the scheduler look at one node instead of all for a DaemonSet's pod.
    """
    if spec.get("nodeName"):
        return frozenset((spec["nodeName"],))
    required = required_node_affinity(spec)
    if required is None:
        return None
    names: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        named = [
            frozenset(field.get("values") or ())
            for field in term.get("matchFields") or ()
            if field.get("key") == "metadata.name" and field.get("operator") == "In"
        ]
        if not named:
            return None
        names |= frozenset.intersection(*named)
    return frozenset(names)


def preferred_node_weight(spec: Doc, node: Doc) -> int:
    """The sum of the weights of the preferred node affinity terms that hold."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return sum(
        int(term.get("weight") or 0)
        for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        if node_term_holds(term.get("preference") or {}, node)
    )


def tolerates(toleration: Doc, taint: Doc) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    exists = (toleration.get("operator") or "Equal") == "Exists"
    if not toleration.get("key"):
        return exists
    return toleration["key"] == taint["key"] and (
        exists or (toleration.get("value") or "") == (taint.get("value") or "")
    )


def first_untolerated(spec: Doc, taints: Iterable[Doc], effects: Sequence[str]) -> Doc | None:
    """The first taint of these effects that none of the pod spec's tolerations covers."""
    tolerations = spec.get("tolerations") or ()
    for taint in taints:
        if taint.get("effect") in effects and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None


def taints_of(node: Doc) -> Sequence[Doc]:
    """A node's taints, empty if it has none."""
    taints: Sequence[Doc] = (node.get("spec") or {}).get("taints") or ()
    return taints


def cordoned(node: Doc) -> bool:
    """Whether a node takes no new pods (`spec.unschedulable`)."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def daemon_fit(spec: Doc, node: Doc) -> tuple[bool, bool]:
    """Whether a daemon pod of this spec should be started on a node, and whether a running one may stay.

    Cordoning never keeps a daemon away; an untolerated NoSchedule taint keeps a new pod away and lets a running one
    stay; an untolerated NoExecute taint and a node that is not selected do neither.
    """
    if spec.get("nodeName") and spec["nodeName"] != node["metadata"]["name"]:
        return False, False
    if not node_selected(spec, node):
        return False, False
    taints = taints_of(node)
    if first_untolerated(spec, taints, (NO_EXECUTE,)) is not None:
        return False, False
    return first_untolerated(spec, taints, (NO_SCHEDULE,)) is None, True
