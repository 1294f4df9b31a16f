"""Whether labels match: label selectors of objects, and where a pod may run by its node selector and affinity.

Pure, on documents as the API server gives them. An operator that is none of Kubernetes' is an error, never a guess.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Labels = Mapping[str, str]
Document = Mapping[str, Any]


def _number(text: object) -> int | None:
    try:
        return int(str(text))
    except ValueError:
        return None


def _compared(test: Callable[[int, int], bool]) -> Callable[[str | None, list[str]], bool]:
    def holds(value: str | None, values: list[str]) -> bool:
        mine, limit = _number(value), _number(values[0]) if values else None
        return mine is not None and limit is not None and test(mine, limit)

    return holds


_OPERATORS: Final[Mapping[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": _compared(lambda mine, limit: mine > limit),
    "Lt": _compared(lambda mine, limit: mine < limit),
}


def expressions(wanted: list[Document], labels: Labels) -> bool:
    """Whether labels fulfil all ``matchExpressions``. Raises ValueError for an unknown operator."""
    for each in wanted:
        holds = _OPERATORS.get(each.get("operator", ""))
        if holds is None:
            raise ValueError(f"selector: unknown operator {each.get('operator')!r}; use one of {', '.join(_OPERATORS)}")
        if not holds(labels.get(each["key"]), list(each.get("values") or ())):
            return False
    return True


def selects(selector: Document | None, labels: Labels) -> bool:
    """Whether a label selector selects: an empty one everything, none at all nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return wanted.items() <= labels.items() and expressions(selector.get("matchExpressions") or [], labels)


def may_run(pod: Document, node: str, labels: Labels) -> bool:
    """Whether a pod's ``nodeSelector`` and required node affinity allow a node; taints are left out."""
    if not (pod.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_term(term, node, labels) for term in required.get("nodeSelectorTerms") or [])


def _term(term: Document, node: str, labels: Labels) -> bool:
    by_label, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    return (
        bool(by_label or by_field) and expressions(by_label, labels) and expressions(by_field, {"metadata.name": node})
    )
