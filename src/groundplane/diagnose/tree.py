"""A verdict for people: the one cause on top with its proof and its fix, then what follows, then the nodes' layers.

Lines with a style each, so that a terminal may colour them and a file need not; nothing here decides. Written to be
read at three in the morning: what is broken, where, how it is known, what to run, what to do, in this order.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from . import doctor, findings, layers
from .engine import WAITING, Cause, Verdict
from .evidence import Evidence
from .findings import Finding, Outcome, some
from .layers import LayerState, State


class Line(NamedTuple):
    """A line and what it is, for colours: ``head``, ``bad``, ``warn``, ``good``, ``dim``, ``command`` or plain."""

    text: str
    style: str = ""


EVIDENCE_SHOWN: Final = 4
UNKNOWN_SHOWN: Final = 10
ROWS_SHOWN: Final = 20
EXCERPT: Final = 400
"""Characters of a quoted line."""
LOG_LINES: Final = 20


def lines(verdict: Verdict, evidence: Evidence, *, everything: bool = False) -> list[str]:
    """The verdict as plain lines; ``everything`` folds nothing."""
    return [line.text for line in styled(verdict, evidence, everything=everything)]


def styled(verdict: Verdict, evidence: Evidence, *, everything: bool = False) -> list[Line]:
    """The same with styles."""
    states = doctor.standing(verdict, evidence)
    told = list(_headline(verdict, states, evidence))
    for number, cause in enumerate(verdict.causes, 1):
        told += [Line(""), *_cause(cause, number, len(verdict.causes), everything)]
    waiting = [each for each in verdict.unmatched if each.id == WAITING]
    failing = [each for each in verdict.unmatched if each.id != WAITING]
    for title, rows in (("Failures that no signature accounts for", failing), ("Not ready yet", waiting)):
        told += [Line(""), Line(title, "head")] if rows else []
        for finding in rows:
            told += _finding(finding, everything)
    told += _layers(states, doctor.operator(verdict, evidence), everything)
    told += _unknown(verdict, states, everything)
    if verdict.notes:
        told += [Line(""), Line("To be known", "head")]
        told += [
            Line(f"  {each.layer} {each.id}  {each.title}{_where(each, everything)}", "dim") for each in verdict.notes
        ]
    return list(map(_printable, told))


def brief(verdict: Verdict, evidence: Evidence) -> list[str]:
    """A screen's worth: how it stands (the first line), the first cause, and the layers of what is not well."""
    states = doctor.standing(verdict, evidence)
    told = [next(_headline(verdict, states, evidence))]
    for cause in verdict.causes[:1]:
        told += [Line(""), *_cause(cause, 1, len(verdict.causes), everything=False)]
    told += _layers(states, doctor.operator(verdict, evidence), everything=False)
    return [_printable(line).text for line in told]


def steps(walk: Sequence[Finding], named: tuple[str, str] | None) -> list[Line]:
    """The steps from a pod to its GPU (``podwhy``), the first that fails with all that is known of it."""
    if named is None:
        return []
    told = [Line(f"Why has pod {named[0]}/{named[1]} no GPU?", "head")]
    for finding in walk:
        good = finding.outcome in (Outcome.PASS, Outcome.SKIP)
        saw = f": {finding.evidence[0].excerpt[:EXCERPT]}" if good and finding.evidence else ""
        style = "good" if good else "bad" if finding.outcome is Outcome.FAIL else "warn"
        told.append(Line(f"  {finding.outcome.value:<8}{finding.title}{saw}", style))
        if not good:
            told += _body(finding, True)
    if all(each.outcome in (Outcome.PASS, Outcome.SKIP) for each in walk):
        told.append(
            Line("  Nothing of the pod itself is against it; what follows is of its node and the cluster", "dim")
        )
    return [*map(_printable, told), Line("")]


def _printable(line: Line) -> Line:
    return line._replace(text=findings.printable(line.text))


def _headline(verdict: Verdict, states: dict[str, tuple[LayerState, ...]], evidence: Evidence) -> Iterator[Line]:
    sick = [node for node, mine in states.items() if doctor.lowest(mine)]
    nodes = f"{len(states)} GPU nodes, {len(sick)} not well" if states else "no GPU node was seen"
    if verdict.healthy:
        text = "Nothing fails" if states else "No failure was found"
        yield Line(f"{text}: {nodes}", "good")
    elif verdict.causes:
        count = len(verdict.causes)
        yield Line(f"{count} cause{'s' if count > 1 else ''} found: {nodes}", "bad")
    elif any(each.id != WAITING for each in verdict.unmatched):
        yield Line(f"Failures without a known cause: {nodes}", "bad")
    elif verdict.unmatched:
        yield Line(f"Nothing is known to fail, and not all is ready: {nodes}", "warn")
    else:
        yield Line(f"No failure was found, but not all could be looked at: {nodes}", "warn")
    if at := evidence.context.get("at"):
        yield Line(f"as of {at}", "dim")


def _cause(cause: Cause, number: int, count: int, everything: bool) -> Iterator[Line]:
    finding = cause.finding
    what = "SYMPTOM" if cause.symptom else "CAUSE"
    which = f" {number} of {count}" if count > 1 else ""
    style = "warn" if finding.outcome is Outcome.WARN else "bad"
    yield Line(f"{what}{which}: {finding.layer} {finding.layer.words}: {finding.title}  [{finding.id}]", style)
    yield from _body(finding, everything)
    yield from _consequences(cause.consequences, everything)


def _finding(finding: Finding, everything: bool) -> Iterator[Line]:
    style = "bad" if finding.outcome is Outcome.FAIL else "warn"
    yield Line(f"  {finding.layer} {finding.layer.words}: {finding.title}", style)
    yield from _body(finding, everything)


def _body(finding: Finding, everything: bool) -> Iterator[Line]:
    if finding.nodes:
        yield Line(f"  on       {some(finding.nodes, everything=everything)}")
    if finding.cause:
        yield Line(f"  because  {finding.cause}")
    shown = finding.evidence if everything else finding.evidence[:EVIDENCE_SHOWN]
    for piece in shown:
        yield from _quote(piece)
    if left := len(finding.evidence) - len(shown):
        yield Line(f"           and {left} more (--all)", "dim")
    if finding.confirm:
        yield Line(f"  confirm  {finding.confirm}", "command")
    for index, step in enumerate(finding.fix, 1):
        yield Line(f"  {'fix' if index == 1 else '   '}      {f'{index}. ' if len(finding.fix) > 1 else ''}{step}")


def _quote(piece: findings.Evidence) -> Iterator[Line]:
    yield Line(f"  seen     {piece.source}", "dim")
    for line in piece.excerpt.splitlines()[-LOG_LINES:]:
        yield Line(f"           | {line[:EXCERPT]}")


def _consequences(follows: Sequence[Finding], everything: bool) -> Iterator[Line]:
    if not follows:
        return
    if not everything:
        ids = ", ".join(dict.fromkeys(f"{each.layer} {each.id}" for each in follows))
        yield Line(f"  follows  {ids}: look again when the cause is gone (--all tells more)", "dim")
        return
    for each in follows:
        yield Line(f"  follows  {each.layer} {each.id}: {each.title}{_where(each, everything)}", "dim")


_MARKS: Final = {
    State.HEALTHY: "ok",
    State.FAILING: "FAIL",
    State.STARTING: "wait",
    State.UNKNOWN: "?",
    State.NOT_REACHED: "-",
}


def _layers(states: dict[str, tuple[LayerState, ...]], operator: LayerState, everything: bool) -> Iterator[Line]:
    """The tree: each sick node's layers, and the operator's, which is of the cluster; healthy nodes are counted."""
    sick = {node: mine for node, mine in states.items() if everything or doctor.lowest(mine)}
    if not sick:
        return
    yield Line("")
    yield Line("Layers by node", "head")
    shown = list(sick.items()) if everything else list(sick.items())[:ROWS_SHOWN]
    width = max(len(node) for node in ("cluster", *(node for node, _ in shown)))
    for node, mine in shown:
        row = "  ".join(f"{each.layer} {_MARKS[each.state]}" for each in mine)
        yield Line(f"  {node:<{width}}  {row}")
        broken = doctor.lowest(mine)
        if broken is not None:
            style = "warn" if broken.state is State.STARTING else "bad"
            yield Line(f"  {'':<{width}}  {broken.layer} {broken.layer.words}: {broken.why}", style)
            yield Line(f"  {'':<{width}}  healthy means: {layers.CRITERIA[broken.layer]}", "dim")
    if left := len(sick) - len(shown):
        yield Line(f"  and {left} more (--all)", "dim")
    if left := len(states) - len(sick):
        yield Line(f"  {left} GPU nodes without a failure", "good")
    style = {State.HEALTHY: "good", State.FAILING: "bad"}.get(operator.state, "warn")
    why = f": {operator.why}" if operator.why else ""
    yield Line(f"  {'cluster':<{width}}  {operator.layer} {_MARKS[operator.state]}  {operator.layer.words}{why}", style)


def _unknown(verdict: Verdict, states: dict[str, tuple[LayerState, ...]], everything: bool) -> Iterator[Line]:
    unseen: dict[findings.Layer, list[str]] = {}
    for node, mine in states.items():
        for each in mine:
            if each.state is State.UNKNOWN:
                unseen.setdefault(each.layer, []).append(node)
    if verdict.healthy and not everything:
        return
    if not verdict.unknown and not unseen:
        return
    yield Line("")
    yield Line("Unknown", "head")
    shown = verdict.unknown if everything else verdict.unknown[:UNKNOWN_SHOWN]
    for finding in shown:
        for piece in finding.evidence:
            yield Line(f"  {finding.title}: {piece.excerpt[:EXCERPT]}", "warn")
        yield Line(f"           run {finding.confirm}", "command")
    if left := len(verdict.unknown) - len(shown):
        yield Line(f"  and {left} more (--all)", "dim")
    for layer, nodes in sorted(unseen.items()):
        yield Line(f"  {layer} {layer.words} was not seen on {some(nodes, everything=everything)}", "warn")
        yield Line(f"           run {layers.NEXT[layer]}", "command")


def _where(finding: Finding, everything: bool) -> str:
    return f"  [{some(finding.nodes, everything=everything)}]" if finding.nodes else ""
