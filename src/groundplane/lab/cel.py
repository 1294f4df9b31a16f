"""`x-kubernetes-validations`: the few CEL rules the lab can evaluate.

Understood are rules of the form `self == oldSelf`, comparisons of `self`, `self.<field>...`, `oldSelf...`, `size(...)`
and literals, `has(self.<field>...)`, joined by `!`, `&&`, `||`, `==`, `!=`, `<`, `<=`, `>`, `>=`, `in` and
parentheses, and `.startsWith()`, `.endsWith()`, `.contains()`, `.matches()`. `unsupported` finds anything else
when a definition is created, so that no rule is skipped silently. Rules that mention `oldSelf` hold only
between two versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .objects import invalid, quoted
from .status import Cause

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?)|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<op>&&|\|\||==|!=|<=|>=|[!<>()\[\],.]))"
)
_LITERALS = {"true": True, "false": False, "null": None}
_METHODS = ("startsWith", "endsWith", "contains", "matches", "size")
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "in")
MISSING = object()


class CelError(ValueError):
    """The rule is outside the supported subset, or cannot be evaluated on this value."""


def tokens(text: str) -> list[tuple[str, str]]:
    """Split a rule; raises CelError where it cannot be read."""
    found: list[tuple[str, str]] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CelError(f"cannot read {text[position:]!r}")
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    return found


class _Evaluation:
    """Parses and evaluates in one go; with `dry` only the syntax is checked."""

    def __init__(self, text: str, scope: Mapping[str, Any], *, dry: bool = False) -> None:
        self._tokens = [*tokens(text), ("end", "")]
        self._at = 0
        self._scope = scope
        self._dry = dry

    def run(self) -> Any:
        value = self._or()
        if self._tokens[self._at][0] != "end":
            raise CelError(f"unexpected {self._tokens[self._at][1]!r}")
        return value

    def _accept(self, *texts: str) -> str | None:
        kind, text = self._tokens[self._at]
        if kind in ("op", "name") and text in texts:
            self._at += 1
            return text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise CelError(f"expected {text!r}, found {self._tokens[self._at][1]!r}")

    def _or(self) -> Any:
        return self._joined("||", self._and, decides=True)

    def _and(self) -> Any:
        return self._joined("&&", self._comparison, decides=False)

    def _joined(self, operator: str, part: Callable[[], Any], *, decides: bool) -> Any:
        """Evaluate parts joined by || or &&: one that decides the outcome makes up for others that fail."""
        outcomes = [self._guarded(part)]
        while self._accept(operator):
            outcomes.append(self._guarded(part))
        if len(outcomes) > 1 and not self._dry:
            truths = [item if isinstance(item, CelError) else bool(item) for item in outcomes]
            failed = next((item for item in truths if isinstance(item, CelError)), None)
            outcomes = [decides if decides in truths else failed or (not decides)]
        if isinstance(outcomes[0], CelError):
            raise outcomes[0]
        return outcomes[0]

    def _guarded(self, part: Callable[[], Any]) -> Any:
        """Return a part's value, or the error of its evaluation; either way it is read to its end."""
        if self._dry:
            return part()
        start = self._at
        self._dry = True
        part()
        end, self._at, self._dry = self._at, start, False
        try:
            return part()
        except CelError as error:
            return error
        finally:
            self._at = end

    def _comparison(self) -> Any:
        left = self._unary()
        operator = self._accept(*_COMPARISONS)
        if operator is None:
            return left
        right = self._unary()
        return True if self._dry else _compare(left, operator, right)

    def _unary(self) -> Any:
        if self._accept("!"):
            value = self._unary()
            return self._dry or not value
        return self._postfix()

    def _primary(self) -> Any:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return float(text) if "." in text else int(text)
        if kind == "string":
            return re.sub(r"\\(.)", r"\1", text[1:-1])
        if text == "(":
            value = self._or()
            self._expect(")")
            return value
        if text == "[":
            return self._items("]")
        if kind == "name" and text in _LITERALS:
            return _LITERALS[text]
        if kind == "name" and text in self._scope:
            return self._scope[text]
        if kind == "name" and text in ("has", "size") and self._accept("("):
            value = self._or()
            self._expect(")")
            if text == "has":
                return value is not MISSING
            return 0 if self._dry else len(_present(value))
        raise CelError(f"{text!r} is not supported")

    def _items(self, end: str) -> list[Any]:
        items: list[Any] = []
        while not self._accept(end):
            items.append(self._or())
            self._accept(",")
        return items

    def _postfix(self) -> Any:
        value = self._primary()
        while True:
            if self._accept("."):
                kind, name = self._tokens[self._at]
                if kind != "name":
                    raise CelError(f"expected a field name, found {name!r}")
                self._at += 1
                value = self._method(value, name) if self._accept("(") else self._member(value, name)
            elif self._accept("["):
                index = self._or()
                self._expect("]")
                value = self._element(value, index)
            else:
                return value

    def _element(self, value: Any, index: Any) -> Any:
        if self._dry:
            return MISSING
        try:
            return _present(value)[index]
        except (KeyError, IndexError, TypeError) as error:
            raise CelError(f"no such element: {index!r}") from error

    def _member(self, value: Any, name: str) -> Any:
        if self._dry or value is MISSING:
            return MISSING
        if not isinstance(value, Mapping):
            raise CelError(f"no such field: {name}")
        return value.get(name, MISSING)

    def _method(self, value: Any, name: str) -> Any:
        arguments = self._items(")")
        if name not in _METHODS:
            raise CelError(f"{name}() is not supported")
        if self._dry:
            return True
        held = _present(value)
        if name == "size":
            return len(held)
        if name == "matches":
            return re.search(arguments[0], held) is not None
        if name == "contains":
            return arguments[0] in held
        return held.startswith(arguments[0]) if name == "startsWith" else held.endswith(arguments[0])


def _present(value: Any) -> Any:
    if value is MISSING:
        raise CelError("no such key")
    return value


def _compare(left: Any, operator: str, right: Any) -> bool:
    left, right = _present(left), _present(right)
    if operator == "==":
        return bool(left == right)
    if operator == "!=":
        return bool(left != right)
    if operator == "in":
        return left in right
    try:
        return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])
    except TypeError as error:
        raise CelError(f"no such overload: {left!r} {operator} {right!r}") from error


def unsupported(rule: str) -> str:
    """Return why a rule is outside the supported subset, or an empty text."""
    try:
        _Evaluation(rule, {"self": MISSING, "oldSelf": MISSING}, dry=True).run()
    except CelError as error:
        return str(error)
    return ""


def problems(rules: Mapping[str, Any], value: Any, old: Any, path: str) -> Iterator[Cause]:
    """Yield the validation rules of one node that do not hold."""
    for entry in rules.get("x-kubernetes-validations") or ():
        rule = entry["rule"]
        if "oldSelf" in rule and old is None:
            continue
        try:
            holds = _Evaluation(rule, {"self": value, "oldSelf": old}).run()
        except CelError as error:
            yield invalid(path, _kind(value), f"{error} evaluating rule: {rule}")
            continue
        if not holds:
            where = path + entry.get("fieldPath", "")
            text = entry.get("message") or f"failed rule: {rule}"
            yield _failed(entry.get("reason") or "FieldValueInvalid", where, value, text)


def _failed(reason: str, path: str, value: Any, text: str) -> Cause:
    """Return the cause of a rule that does not hold, which may choose among a few reasons."""
    words = {"FieldValueForbidden": "Forbidden", "FieldValueRequired": "Required value"}
    if reason in words:
        return Cause(reason, f"{words[reason]}: {text}", path)
    if reason == "FieldValueDuplicate":
        return Cause(reason, f"Duplicate value: {quoted(_kind(value))}", path)
    return invalid(path, _kind(value), text)


def _kind(value: Any) -> Any:
    return "object" if isinstance(value, dict) else value
