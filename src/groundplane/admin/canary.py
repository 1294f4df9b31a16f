"""A canary pool: the nodes whose drivers are upgraded first, while the others keep theirs (A89).

The operator leaves a node's driver alone as long as it has the label ``nvidia.com/gpu-driver-upgrade.skip=true``
(contracts/admin-workflow.md 9.3). The others are held by it and let go when the canaries are well. Labels that somebody
else had set are never touched: ours have an annotation beside them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..api import names
from ..cluster import kinds
from ..cluster.client import PatchType
from ..diagnose.survey import Object, Survey

if TYPE_CHECKING:
    from ..cluster.client import Client

MANAGER: Final = "groundplane-upgrade"


class CanaryError(ValueError):
    """The label is none; the message says how it is written."""


def parse(text: str) -> tuple[str, str]:
    """``key=value``, or ``key`` for any value. Raises :class:`CanaryError`."""
    key, _, value = text.partition("=")
    if not key or any(letter in text for letter in " ,!()"):
        raise CanaryError(f"{text!r} is no label: write KEY=VALUE, or KEY for any value")
    return key, value


def managed(survey: Survey) -> tuple[str, ...]:
    """GPU nodes."""
    return tuple(_name(each) for each in survey.of_kind("nodes") if _labels(each).get(names.GPU_PRESENT) == "true")


def chosen(survey: Survey, label: str) -> tuple[str, ...]:
    """GPU nodes with a label."""
    key, value = parse(label)
    wanted = set(managed(survey))
    return tuple(
        _name(each)
        for each in survey.of_kind("nodes")
        if _name(each) in wanted and key in _labels(each) and (not value or _labels(each)[key] == value)
    )


def to_hold(survey: Survey, label: str) -> tuple[str, ...]:
    """The nodes that have to be held, so that only the canaries' drivers are upgraded; not those that others hold."""
    others = set(managed(survey)) - set(chosen(survey, label))
    mine = set(held(survey))
    nodes = (each for each in survey.of_kind("nodes") if _name(each) in others)
    return tuple(_name(each) for each in nodes if not _skipped(each) or _name(each) in mine)


def held(survey: Survey) -> tuple[str, ...]:
    """The nodes that a run has held."""
    return tuple(_name(each) for each in survey.of_kind("nodes") if names.HELD_FOR_CANARY in _annotations(each))


async def hold(client: "Client", nodes: Iterable[str]) -> list[str]:
    """Hold nodes; again changes nothing."""
    return await _patched(client, nodes, "true")


async def let_go(client: "Client", nodes: Iterable[str]) -> list[str]:
    """Let the nodes go that were held."""
    return await _patched(client, nodes, None)


async def _patched(client: "Client", nodes: Iterable[str], value: str | None) -> list[str]:
    done = []
    for node in nodes:
        metadata = {"labels": {names.UPGRADE_SKIP: value}, "annotations": {names.HELD_FOR_CANARY: value}}
        body = {"metadata": metadata}
        await client.patch(kinds.NODE, node, body, type=PatchType.MERGE, field_manager=MANAGER)
        done.append(node)
    return done


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _labels(node: Object) -> dict[str, str]:
    return node["metadata"].get("labels") or {}


def _annotations(node: Object) -> dict[str, str]:
    return node["metadata"].get("annotations") or {}


def _skipped(node: Object) -> bool:
    return _labels(node).get(names.UPGRADE_SKIP) == "true"
