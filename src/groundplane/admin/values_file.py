"""A values file as a person wrote it: read with the line of every value, and checked before anything is installed.

What is wrong is said with its line: a name that no chart knows (with the name that was probably meant), a value of
another type than the chart's, a combination that the chart refuses (contracts/admin-workflow.md 5.2, 5.3). Texts name
paths and types, never values: a values file may hold secrets.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from ..api import goyaml
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from . import chart, trees, value_changes
from .hops import Version
from .trees import Path
from .values import known, nearest

ID: Final = "values"
"""Of the findings of this module."""
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "driver.kernelModuleType": ("auto", "open", "proprietary"),
    "mig.strategy": ("none", "single", "mixed"),
    "daemonsets.updateStrategy": ("RollingUpdate", "OnDelete"),
    "sandboxWorkloads.defaultWorkload": ("container", "vm-passthrough", "vm-vgpu"),
    "sandboxWorkloads.mode": ("kubevirt", "kata"),
}
"""Values of which there are only these."""


class ValuesError(ValueError):
    """A values file cannot be read; the message says where and what is wrong."""


class ValuesFile(NamedTuple):
    """What a values file has."""

    source: str
    tree: dict[str, Any]
    lines: Mapping[Path, int]
    """The line of every name, from 1."""

    def where(self, path: Path) -> str:
        """``FILE line 12``, of a value or of the nearest map around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.source} line {self.lines[path]}" if path else self.source


def read(text: str, source: str) -> ValuesFile:
    """Read a values file. Raises :class:`ValuesError` naming the file and the line."""
    try:
        tree, node = goyaml.loads(text), goyaml.compose(text.encode())
    except goyaml.DocumentError as error:
        said = str(error).replace('in "<unicode string>"', f"in {source}").replace('in "<byte string>"', f"in {source}")
        raise ValuesError(f"{source} is not YAML: {said}") from None
    if tree is None:
        return ValuesFile(source, {}, {})
    if not isinstance(tree, dict):
        raise ValuesError(f"{source} has no values: expected names and values, found {_kind(tree)}")
    return ValuesFile(source, tree, dict(_lines(node, ())))


def _lines(node: yaml.Node | None, at: Path) -> Iterator[tuple[Path, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = (*at, str(key.value))
        yield path, key.start_mark.line + 1
        yield from _lines(value, path)


def judge(file: ValuesFile, release: Version, defaults: Mapping[str, Any] | None = None) -> list[Finding]:
    """What is wrong with the values of a file for a release; ``defaults`` are its chart's, where they are at hand."""
    base = chart.defaults(release) if defaults is None else defaults
    found = [*_types(file, base), *_choices(file), *_unknown(file, base)]
    if not any(each.outcome is Outcome.FAIL for each in found):
        found += _refused(file, base, release)
    if not found:
        title = f"{file.source}: {sum(1 for _ in trees.leaves(file.tree))} values, all known to the chart of {release}"
        found = [_finding(Outcome.PASS, title)]
    return found


def _finding(outcome: Outcome, title: str, where: str = "", said: str = "", **more: Any) -> Finding:
    evidence = (Evidence(where, said),) if where else ()
    action = Action.CHANGE_CONFIG if outcome in (Outcome.FAIL, Outcome.WARN) else Action.NONE
    return Finding(id=ID, layer=Layer.OPERATOR, outcome=outcome, title=title, evidence=evidence, action=action, **more)


def _types(file: ValuesFile, defaults: Mapping[str, Any]) -> Iterator[Finding]:
    """Values that the chart's templates cannot use: a map where there is none, a text for a switch."""
    for path in file.lines:
        mine, default = trees.get(file.tree, path), trees.get(defaults, path)
        wanted = _wanted(mine, default)
        if wanted:
            name, where = trees.dotted(path), file.where(path)
            title = f"{where}: {name} must be {wanted}, and is {_kind(mine)}"
            yield _finding(Outcome.FAIL, title, where, name, fix=(f"write {name} as {wanted}",))


def _wanted(mine: Any, default: Any) -> str:
    """What a value should have been; empty if it is right, removed by null, or nobody knows."""
    if mine is None or default is None:
        return ""
    if isinstance(default, bool | Mapping | list):
        kind = next(kind for kind in (bool, Mapping, list) if isinstance(default, kind))
        return "" if isinstance(mine, kind) else _kind(default)
    return _kind(default) if isinstance(mine, Mapping | list | bool) else ""


def _kind(value: Any) -> str:
    names = ((bool, "true or false"), (Mapping, "a map"), (list, "a list"), (str, "a text"), (int, "a number"))
    return next((name for kind, name in names if isinstance(value, kind)), "nothing" if value is None else "a number")


def _choices(file: ValuesFile) -> Iterator[Finding]:
    for name, choices in CHOICES.items():
        path = trees.parse(name)
        mine = trees.get(file.tree, path)
        if isinstance(mine, str) and mine not in choices:
            where = file.where(path)
            title = f"{where}: {name} is none of {', '.join(choices)}"
            yield _finding(Outcome.FAIL, title, where, name, fix=(f"set {name} to one of {', '.join(choices)}",))


def _unknown(file: ValuesFile, defaults: Mapping[str, Any]) -> Iterator[Finding]:
    seen: set[Path] = set()
    for path, _ in trees.leaves(file.tree):
        if known(defaults, path):
            continue
        first = next(path[:depth] for depth in range(1, len(path) + 1) if not known(defaults, path[:depth]))
        if first in seen:
            continue
        seen.add(first)
        name, where, near = trees.dotted(first), file.where(first), nearest(defaults, first)
        fix = f"did you mean {near}?" if near else f"remove {name}"
        title = f"{where}: the chart knows no {name}; Helm ignores it without a word"
        yield _finding(Outcome.WARN, title, where, name, fix=(fix,))


def _refused(file: ValuesFile, defaults: Mapping[str, Any], release: Version) -> Iterator[Finding]:
    merged = trees.merge(defaults, file.tree)
    for refusal in value_changes.refused(merged, release, value_changes.NOTHING_KNOWN):
        path = next((path for name in refusal.paths if (path := trees.parse(name)) in file.lines), ())
        where = file.where(path)
        problem, _, fix = refusal.text.partition(": ")
        title = f"{where}: the chart of {release} refuses: {problem}"
        yield _finding(Outcome.FAIL, title, where, ", ".join(refusal.paths), fix=(fix,) if fix else ())
