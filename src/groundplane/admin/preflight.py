"""Preflight: pure functions from what was seen of a cluster and of its nodes to findings.

Each check of the table (checks.py) has its functions in the modules joined here: one that answers from objects of the
API, one that answers from what was found on nodes (``Inquiry.node_facts``), or both. What only a node knows and nobody
looked at ends in ``unknown`` and says so. The support matrix decides what is listed (lookups.py). Nothing here asks a
cluster, and nothing changes one.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from ..diagnose.findings import Finding, Layer, Outcome, grouped, natural
from . import preflight_driver, preflight_node, preflight_platform, preflight_runtime, snapshot
from .checks import CHECKS, Access, Check, of_command
from .inquiry import Function, Inquiry

KINDS: Final = (*snapshot.KINDS, "secrets")
"""What a survey for preflight reads, by plural; Secrets are Helm's releases, which say what is installed."""
API: Final = frozenset({Access.API, Access.ARCHIVE})
_FUNCTIONS: Final[Mapping[str, Function]] = {
    **preflight_platform.ANSWERS,
    **preflight_driver.ANSWERS,
    **preflight_runtime.ANSWERS,
}
_ON_NODES: Final[Mapping[str, Function]] = preflight_node.ANSWERS
NOBODY_LOOKED: Final = "nobody looked on the node: give --node-pods (or --exec), or run preflight --on-node there"
"""Why a check that only a node can answer has no answer."""


def preflight(inquiry: Inquiry, modes: frozenset[Access] = API) -> list[Finding]:
    """Every check of preflight, in the findings' stable order.

    What is known on nodes only is answered for those of :attr:`Inquiry.node_facts`, and ``unknown`` for the others.
    """
    found = [finding for check in of_command("preflight") for finding in run(check, inquiry, modes)]
    return grouped(_without_consequences(found))


NO_GPU: Final = "no GPU is seen (A13)"
_ABOVE_HARDWARE: Final = frozenset(Layer) - {Layer.HARDWARE, Layer.OPERATOR}


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    """Where no device is seen, nothing is said of the layers above (A13), of a node or of the whole cluster."""
    stopped = [each for each in findings if each.id == "A13" and each.outcome is Outcome.FAIL]
    nodes = {node for each in stopped for node in each.nodes}
    everywhere = any(not each.nodes for each in stopped)
    kept: list[Finding] = []
    for each in findings:
        if each.layer not in _ABOVE_HARDWARE or not (everywhere or (each.nodes and nodes >= set(each.nodes))):
            kept.append(each)
        else:
            title = f"{CHECKS[each.id].title}: not judged"
            kept.append(
                Finding(id=each.id, layer=each.layer, outcome=Outcome.SKIP, title=title, nodes=each.nodes, cause=NO_GPU)
            )
    return kept


def of_values(inquiry: Inquiry) -> list[Finding]:
    """What can be said of planned values alone, with no cluster: nothing is said of what only a cluster tells."""
    return [each for each in preflight(inquiry) if each.outcome is not Outcome.UNKNOWN]


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings for a first look: checks that were not made, for one reason, become one."""
    groups: dict[tuple[Outcome, str, tuple[str, ...]], list[Finding]] = {}
    kept: list[Finding] = []
    for each in findings:
        if each.cause and each.outcome in (Outcome.UNKNOWN, Outcome.SKIP):
            groups.setdefault((each.outcome, each.cause, each.nodes), []).append(each)
        else:
            kept.append(each)
    for (outcome, cause, _), group in groups.items():
        if len(group) < FOLDED_FROM:
            kept += group
            continue
        numbers = ", ".join(sorted({each.id for each in group}, key=natural))
        title = f"{len(group)} checks could not be made: {numbers}"
        if outcome is Outcome.SKIP:
            title = f"{len(group)} checks were not made, as {cause}: {numbers}"
        lowest = min(group, key=lambda each: each.layer)
        kept.append(msgspec.structs.replace(lowest, id="-", title=title, evidence=(), confirm="", fix=()))
    return kept


FOLDED_FROM: Final = 3
"""Checks that were not made for one reason, from which on they are told as one."""


def run(
    check: Check, inquiry: Inquiry, modes: frozenset[Access] = API, on_nodes: Mapping[str, Function] = _ON_NODES
) -> list[Finding]:
    """One check's findings: those of its functions, or one that says why it was not answered.

    What was found on a node takes the place of what the API could not tell of it.
    """
    seen = _seen(check, inquiry, on_nodes)
    answered = {node for finding in seen for node in finding.nodes}
    wrong = {node for finding in seen if finding.outcome is Outcome.FAIL for node in finding.nodes}
    function = _FUNCTIONS.get(check.id)
    found: list[Finding] = []
    if function is not None and check.can_look(modes):
        found = [each for each in function(inquiry) if not _superseded(each, answered, wrong)]
        if not found and not seen:
            return [inquiry.finding(check.id, Outcome.SKIP, f"{check.title}: no node to look at")]
        return [*(_why(each, check, inquiry) for each in found), *seen]
    return [*seen, *_not_looked_at(check, inquiry, answered)]


def _seen(check: Check, inquiry: Inquiry, on_nodes: Mapping[str, Function]) -> list[Finding]:
    function = on_nodes.get(check.id)
    return list(function(inquiry)) if function is not None and inquiry.node_facts else []


def _superseded(finding: Finding, answered: Set[str], wrong: Set[str]) -> bool:
    """Whether nodes told more: what the API did not know, or what it took for right."""
    better = {Outcome.UNKNOWN: answered, Outcome.PASS: wrong}.get(finding.outcome, frozenset())
    return bool(finding.nodes) and better >= set(finding.nodes)


def _why(finding: Finding, check: Check, inquiry: Inquiry) -> Finding:
    """A finding of a node that nobody looked at, with the reason."""
    on_nodes = check.access & {Access.NODE, Access.EXEC}
    if finding.outcome is not Outcome.UNKNOWN or finding.cause or not finding.node or not on_nodes:
        return finding
    return msgspec.structs.replace(finding, cause=_blind(inquiry, finding.node))


DOES_NOT_TELL: Final = "what was found on the node does not tell"


def _blind(inquiry: Inquiry, node: str) -> str:
    """Why nothing is known of the inside of a node."""
    return inquiry.node_unread.get(node) or (DOES_NOT_TELL if node in inquiry.node_facts else NOBODY_LOOKED)


def _not_looked_at(check: Check, inquiry: Inquiry, answered: Set[str]) -> Iterator[Finding]:
    title = f"{check.title}: not looked at"
    left = [node for node in inquiry.snapshot.candidates if node.name not in answered]
    if not (left or answered):
        yield inquiry.finding(check.id, Outcome.UNKNOWN, title, cause=NOBODY_LOOKED)
    for node in left:
        yield inquiry.finding(check.id, Outcome.UNKNOWN, title, node=node.name, cause=_blind(inquiry, node.name))
