"""Looking for a signature's clauses in evidence, within one node's share of it.

A :class:`Scope` is what was seen of one node, or of the cluster as a whole (node ``""``). Text is folded once: lower
case, runs of white space one space. Nothing is concluded here; a clause holds or not, and what proves it is quoted.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from . import evidence as seen
from .evidence import Evidence, Kind, Object
from .findings import Evidence as Quote
from .redact import redacted
from .signatures import TEXTS, Clause, Signature, Test, Token, tokens, way

EXCERPT: Final = 300
"""Characters of a line that are quoted."""


class Text:
    """A piece of prose with its origin, folded when it is first asked for."""

    def __init__(
        self, kind: Kind, where: str, text: str, when: str = "", container: str = "", reason: str = ""
    ) -> None:
        self.kind = kind
        self.where = f"{where} at {when}" if when else where
        self.text = text
        self.container = container
        self.reason = reason

    @cached_property
    def lines(self) -> str:
        """Folded line by line, for regular expressions."""
        return "\n".join([" ".join(line.split()) for line in self.text.lower().split("\n")])

    @cached_property
    def whole(self) -> str:
        """Folded as one, for texts that may go over lines."""
        return " ".join(self.text.lower().split())

    def find(self, token: Token) -> str | None:
        """The line that holds the token, as it was written; None if none does."""
        if token.expression:
            if token.needs not in self.lines or (pattern := token.pattern) is None:
                return None
            found = pattern.search(self.lines)
            return self._line(found.start()) if found else None
        if token.written not in self.whole:
            return None
        at = self.lines.find(token.written)
        return self._line(at if at >= 0 else self._start(token.written))

    def _line(self, at: int) -> str:
        line = self.text.split("\n")[self.lines.count("\n", 0, at)].strip()
        position = max(0, at - self.lines.rfind("\n", 0, at) - EXCERPT // 2)
        return line if len(line) <= EXCERPT else line[position : position + EXCERPT].strip()

    def _start(self, token: str) -> int:
        """Where a text that goes over lines begins, in :attr:`lines`."""
        found = re.search(r"\s+".join(map(re.escape, token.split(" "))), self.lines)
        return found.start() if found else 0


class Scope:
    """What was seen of one node, or, of the node ``""``, of nothing that is on one node."""

    def __init__(self, node: str, evidence: Evidence, whole: "Scope | None" = None) -> None:
        self.node = node
        self.evidence = evidence
        self.texts: list[Text] = []
        self.objects: dict[str, list[Object]] = {}
        self.facts: list[Mapping[str, Any]] = []
        self.labels: list[Mapping[str, str]] = []
        self.whole = whole or self
        """The scope of the whole evidence."""

    @cached_property
    def _by_kind(self) -> Mapping[Kind, list[Text]]:
        found: dict[Kind, list[Text]] = {kind: [] for kind in TEXTS}
        for text in self.texts:
            found[text.kind].append(text)
        return found

    def texts_of(self, clause: Clause) -> Iterator[Text]:
        """The texts that a clause looks in; those of unknown origin may be any."""
        kinds = clause.sources or TEXTS
        containers = tuple(way(clause.container)) if clause.container else ()
        reasons = tuple(way(clause.reason)) if clause.reason else ()
        for kind in TEXTS:
            for text in self._by_kind[kind]:
                unknown = kind is Kind.LOG and not text.container
                if kind not in kinds and not (unknown and text.where == PASTED):
                    continue
                if containers and not unknown and not _named(text.container, containers):
                    continue
                if reasons and kind is Kind.EVENT and text.reason and not _named(text.reason, reasons):
                    continue
                yield text


PASTED: Final = "the text"
"""Origin of a log of which nothing is known but its text; it may be a kernel's as well as a container's."""


def _named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# --- Scopes -----------------------------------------------------------------------------------------------------------


def scopes(evidence: Evidence) -> dict[str, Scope]:
    """The evidence by node; the cluster's part, of node ``""``, comes last.

    Where one node alone is named, it has all of it.
    """
    whole = Scope("*", evidence)
    found = {node: Scope(node, evidence, whole) for node in (*evidence.node_names, "")}
    for node, text in _texts(evidence):
        for scope in (found[node], whole):
            scope.texts.append(text)
    for thing in evidence.objects:
        for scope in (found[evidence.place(seen.node_of(thing))], whole):
            scope.objects.setdefault(str(thing.get("kind")), []).append(thing)
    for facts in evidence.nodes:
        for scope in (found[evidence.place(facts.name)], whole):
            scope.facts.append(_facts(facts))
    for node, mine in list(found.items()):
        if (labels := evidence.node_labels(node)) is not None:
            for scope in (mine, whole):
                scope.labels.append(labels)
    return found


def _facts(node: seen.NodeFacts) -> Mapping[str, Any]:
    commands = {line: msgspec.to_builtins(said) for line, said in node.commands.items()}
    if (rc := node.facts.get("nvidia_smi_rc")) is not None and not any(
        each.startswith("nvidia-smi") for each in commands
    ):
        commands["nvidia-smi"] = {"rc": rc}
    return {**node.facts, "commands": commands}


def _texts(evidence: Evidence) -> Iterator[tuple[str, Text]]:
    for log in evidence.logs:
        origin = "/".join(filter(None, (log.namespace, log.pod, log.container)))
        where = f"log of {origin}{' (previous)' if log.previous else ''}" if origin else PASTED
        yield evidence.place(log.node, log.namespace, log.pod), Text(Kind.LOG, where, log.text, log.when, log.container)
    for event in evidence.events:
        about = f"{event.kind or 'object'} {'/'.join(filter(None, (event.namespace, event.name)))}".strip()
        node = evidence.place(event.node, event.namespace, event.name if event.kind == "Pod" else "")
        yield node, Text(Kind.EVENT, f"event of {about}", event.message, event.when, reason=event.reason)
    for kernel in evidence.kernel:
        yield (
            evidence.place(kernel.node),
            Text(Kind.KERNEL, f"kernel log {kernel.node}".strip(), kernel.text, kernel.when),
        )
    for pod in evidence.of_kind("Pod"):
        for text in _pod_texts(pod):
            yield evidence.place(seen.node_of(pod)), text
    for facts in evidence.nodes:
        for what, said in _fact_texts(facts):
            yield evidence.place(facts.name), Text(Kind.NODE, f"node {facts.name}: {what}", said, facts.when)
    for what, said in evidence.context.items():
        if isinstance(said, str):
            yield evidence.only, Text(Kind.CONTEXT, what, said)


def _pod_texts(pod: Object) -> Iterator[Text]:
    status = pod.get("status") or {}
    where = f"status of pod {seen.namespace(pod)}/{seen.name(pod)}"
    for each in container_statuses(pod):
        for state in (each.get("state") or {}, each.get("lastState") or {}):
            for how in state.values():
                if isinstance(how, Mapping) and (how.get("message") or how.get("reason")):
                    said = f"{how.get('reason') or ''}: {how.get('message') or ''}"
                    yield Text(Kind.EVENT, f"{where}, {each.get('name')}", said, reason=str(how.get("reason") or ""))
    for condition in status.get("conditions") or ():
        if condition.get("message"):
            yield Text(Kind.EVENT, where, str(condition["message"]), reason=str(condition.get("reason") or ""))
    if status.get("message"):
        yield Text(Kind.EVENT, where, str(status["message"]), reason=str(status.get("reason") or ""))


def _fact_texts(facts: seen.NodeFacts) -> Iterator[tuple[str, str]]:
    for line, said in facts.commands.items():
        yield f"`{line}`", said.out
    for what, value in facts.facts.items():
        if isinstance(value, str):
            yield what, value
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield what, "\n".join(value)


def container_statuses(pod: Object) -> Iterator[Mapping[str, Any]]:
    """The statuses of a pod's containers, init containers first."""
    status = pod.get("status") or {}
    for part in ("initContainerStatuses", "containerStatuses"):
        yield from (each for each in status.get(part) or () if isinstance(each, Mapping))


# --- Clauses ----------------------------------------------------------------------------------------------------------


class Match(NamedTuple):
    """A signature that fits a scope, and what proves it."""

    signature: Signature
    node: str
    quotes: tuple[Quote, ...]


def match(signature: Signature, scope: Scope) -> Match | None:
    """The signature, if all that it asks for is in the scope and nothing that contradicts it."""
    if scope.node and all(clause.anywhere for clause in signature.when):
        return None  # of the whole cluster: said once, of no node
    quotes: list[Quote] = []
    for clause in signature.when:
        found = holds(clause, scope)
        if found is None:
            return None
        quotes += found
    if not quotes or any(holds(clause, scope) is not None for clause in signature.unless):
        return None
    return Match(signature, scope.node, tuple(dict.fromkeys(quotes)))


def holds(clause: Clause, scope: Scope) -> list[Quote] | None:
    """What proves the clause; None if it does not hold. Empty only for ``if_seen`` where nothing was looked at."""
    if clause.anywhere:
        scope = scope.whole
    form = next(form for form in _LOOKS if getattr(clause, form) is not None)
    found = _LOOKS[form](clause, scope)
    if found is None and clause.if_seen and not _looked(form, clause, scope):
        return []
    return found


def _looked(form: str, clause: Clause, scope: Scope) -> bool:
    """Whether anything was seen in which the clause could have been found."""
    looked = {
        "text": lambda: any(True for _ in scope.texts_of(clause)),
        "object": lambda: bool(scope.objects.get(clause.object or "")),
        "label": lambda: bool(scope.labels),
        "node": lambda: any(way(test.at)[0] in facts for facts in scope.facts for test in clause.node or ()),
        "ctx": lambda: any(way(test.at)[0] in scope.evidence.context for test in clause.ctx or ()),
    }
    if form in looked:
        return looked[form]()
    inner = [*(clause.any or ()), *(clause.all or ())]
    return any(_looked(next(form for form in _LOOKS if getattr(each, form) is not None), each, scope) for each in inner)


def _in_text(clause: Clause, scope: Scope) -> list[Quote] | None:
    wanted = tokens(clause.text)
    for text in scope.texts_of(clause):
        for token in wanted:
            if (line := text.find(token)) is not None:
                return [Quote(source=text.where, excerpt=redacted(line))]
    return None


def _any(clause: Clause, scope: Scope) -> list[Quote] | None:
    return next((found for each in clause.any or () if (found := holds(each, scope)) is not None), None)


def _all(clause: Clause, scope: Scope) -> list[Quote] | None:
    quotes: list[Quote] = []
    for each in clause.all or ():
        if (found := holds(each, scope)) is None:
            return None
        quotes += found
    return quotes


def _in_objects(clause: Clause, scope: Scope) -> list[Quote] | None:
    things = [each for each in scope.objects.get(clause.object or "", ()) if tested(clause.select, each) is not None]
    found = [(thing, said) for thing in things if (said := tested(clause.where, thing)) is not None]
    if not found or (clause.every and len(found) < len(things)):
        return None
    thing, said = found[0]
    called = "/".join(filter(None, (seen.namespace(thing), seen.name(thing))))
    return [Quote(source=f"{clause.object} {called}", excerpt=said or "seen")]


def _in_labels(clause: Clause, scope: Scope) -> list[Quote] | None:
    return _first(clause.label or (), scope.labels, "labels of the node")


def _in_facts(clause: Clause, scope: Scope) -> list[Quote] | None:
    return _first(clause.node or (), scope.facts, "facts of the node")


def _in_context(clause: Clause, scope: Scope) -> list[Quote] | None:
    return _first(clause.ctx or (), [scope.evidence.context], "context")


def _first(tests: Iterable[Test], things: Iterable[Mapping[str, Any]], source: str) -> list[Quote] | None:
    said = next((said for thing in things if (said := tested(tests, thing)) is not None), None)
    return None if said is None else [Quote(source=source, excerpt=said)]


_LOOKS: Final[Mapping[str, Callable[[Clause, Scope], list[Quote] | None]]] = {
    "text": _in_text,
    "any": _any,
    "all": _all,
    "object": _in_objects,
    "label": _in_labels,
    "node": _in_facts,
    "ctx": _in_context,
}


# --- Tests ------------------------------------------------------------------------------------------------------------

_NOWHERE: Final = object()


def tested(tests: Iterable[Test], thing: Mapping[str, Any]) -> str | None:
    """What the thing says at the tests' places, ``a.b: value``; None if a test does not hold."""
    said: list[str] = []
    for test in tests:
        values = list(values_at(thing, way(test.at)))
        if not values and test.default is not msgspec.UNSET:
            values = [test.default]
        if test.present is False:
            if values:
                return None
            said.append(f"no {'.'.join(way(test.at))}")
            continue
        fits = next((value for value in values if _fits(test, value, thing)), _NOWHERE)
        if fits is _NOWHERE:
            return None
        said.append(f"{'.'.join(way(test.at))}: {_short(fits)}")
    return ", ".join(said)


def _short(value: Any) -> str:
    return redacted(str(value))[:EXCERPT]


def values_at(thing: Any, keys: Sequence[str]) -> Iterator[Any]:
    """The values at the end of a way (:class:`~.signatures.Test`)."""
    if not keys:
        yield thing
        return
    key, *rest = keys
    if isinstance(thing, list):
        field, _, wanted = key.partition("=")
        for each in thing:
            if key == "*" or (wanted and isinstance(each, Mapping) and each.get(field) == wanted):
                yield from values_at(each, rest)
    elif isinstance(thing, Mapping):
        if key.endswith("*"):
            for name, each in thing.items():
                if name.startswith(key[:-1]):
                    yield from values_at(each, rest)
        elif key in thing:
            yield from values_at(thing[key], rest)


def _fits(test: Test, value: Any, thing: Mapping[str, Any]) -> bool:
    if test.equals is not msgspec.UNSET and not _same(value, test.equals):
        return False
    if test.one_of is not None and not any(_same(value, each) for each in test.one_of):
        return False
    if test.not_in is not None and any(_same(value, each) for each in test.not_in):
        return False
    if test.like is not None and not _has(value, tokens(test.like)):
        return False
    if test.unlike is not None and _has(value, tokens(test.unlike)):
        return False
    if test.differs_at is not None and _other(thing, test.differs_at) in (None, value):
        return False
    return _in_limits(test, number(value), thing)


def _other(thing: Mapping[str, Any], at: str | list[str]) -> Any:
    return next(values_at(thing, way(at)), None)


def _in_limits(test: Test, value: float | None, thing: Mapping[str, Any]) -> bool:
    if test.below_at is not None:
        most = number(_other(thing, test.below_at))
        if value is None or most is None or value >= most:
            return False
    if test.above is not None and (value is None or value <= test.above):
        return False
    return test.below is None or (value is not None and value < test.below)


def _same(value: Any, wanted: Any) -> bool:
    """Whether they are the same, where labels and quantities write numbers and truths as texts."""
    if isinstance(value, str) and not isinstance(wanted, str):
        return value == (str(wanted).lower() if isinstance(wanted, bool) else str(wanted))
    return bool(value == wanted)


def _has(value: Any, wanted: Iterable[Token]) -> bool:
    text = Text(Kind.OBJECT, "", str(value))
    return any(text.find(token) is not None for token in wanted)


def number(value: Any) -> float | None:
    """A number, also one that is written as text; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None
