"""The reference page of the checks A1..A112, made from their table and from the code that answers them.

``docs/reference/checks.md`` is the result, kept in the repository; run this module to write it again. Which function
answers a check, and what it says when the check fails, is read from the source itself, so that the page cannot promise
what nobody has written.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from .checks import CHECKS, Access, Check

COMMAND: Final = "python -m groundplane.admin.reference > docs/reference/checks.md"
_ROOMS: Final = ("admin", "diagnose", "cli")
_LEFT_OUT: Final = frozenset({"checks.py", "reference.py"})
_NUMBER: Final = re.compile(r"A\d{1,3}")
_BAD: Final = frozenset({"FAIL", "WARN"})
_TITLES_SHOWN: Final = 2

_HEADER: Final = f"""\
<!-- Generated from src/groundplane/admin: do not edit. To write it again: {COMMAND} -->
# Checks

Everything the users' guide has an administrator check, decide, run or record, by its number. Findings carry the number,
so that a line of a report leads here.

*Looks by*: `api` what the API server shows, `exec` commands and logs in operand pods, `node` on the node itself,
`archive` an archive of must-gather or of NVIDIA's script; any one is enough, and with none of them a check ends in
`unknown`, never in a pass. *Source*: the users' guide, NVIDIA's documentation, or our own addition. *Answered by*: the
function that judges it; where there is none, the step that the command carries out. *Says*: what a finding that is no
pass says; `…` stands for what was found.
"""
_COLUMNS: Final = ("Number", "Check", "Layer", "Looks by", "Source", "Answered by", "Says")
COMMANDS: Final[Mapping[str, str]] = {
    "preflight": "`groundplane preflight`: can this cluster take the operator, and with which values",
    "install": "`groundplane install`: a pinned release, the least values, and the layers as they come up",
    "verify": "`groundplane verify`: is what is installed what it should be",
    "cuda-test": "`groundplane cuda-test`: does a CUDA program run on every GPU node",
    "baseline": "`groundplane baseline save`, compared by `groundplane drift`",
    "upgrade": "`groundplane upgrade plan` and `run`",
    "rollback": "`groundplane rollback plan` and `run`",
    "doctor": "`groundplane doctor`: the lowest layer that is broken, and why",
    "must-gather": "`groundplane must-gather`: evidence for somebody else, without secrets",
}
"""The heading of each command's table."""


class Answer(NamedTuple):
    """A function that answers a check: its module below ``groundplane``, its name, what it says of failures."""

    module: str
    function: str
    titles: tuple[str, ...]

    @property
    def where(self) -> str:
        """``module.function``."""
        return f"{self.module}.{self.function}"


def answers() -> dict[str, list[Answer]]:
    """By number, the functions of :data:`_ROOMS` that answer it, in the order of their modules."""
    found: dict[str, list[Answer]] = defaultdict(list)
    for room in _ROOMS:
        for path in sorted(files("groundplane").joinpath(room).iterdir(), key=lambda each: each.name):
            if path.name.endswith(".py") and path.name not in _LEFT_OUT:
                for number, answer in _in_module(path, f"{room}.{path.name.removesuffix('.py')}"):
                    if answer not in found[number]:
                        found[number].append(answer)
    return found


def _in_module(path: Traversable, module: str) -> Iterator[tuple[str, Answer]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    for function in functions.values():
        for number in _numbers(function):
            yield number, Answer(module, function.name, _titles(function))
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for row in ast.walk(statement):  # a table's row: the number, and the function beside it
            if not isinstance(row, ast.Call | ast.Tuple):
                continue
            parts = row.args if isinstance(row, ast.Call) else row.elts
            named = [part.id for part in parts if isinstance(part, ast.Name) and part.id in functions]
            for part in parts:
                if (number := _number(part)) and named:
                    yield number, Answer(module, named[-1], _titles(functions[named[-1]]))


def _numbers(function: ast.AST) -> set[str]:
    return {number for each in ast.walk(function) if (number := _number(each))}


def _number(part: ast.AST) -> str:
    value = part.value if isinstance(part, ast.Constant) else None
    return value if isinstance(value, str) and _NUMBER.fullmatch(value) and value in CHECKS else ""


def _titles(function: ast.AST) -> tuple[str, ...]:
    """What a function says in findings that fail or warn, as far as it is written out where they are made."""
    found: list[str] = []
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        given = [*call.args, *(each.value for each in call.keywords if each.arg in ("outcome", "title"))]
        outcomes = {each.attr for each in given if isinstance(each, ast.Attribute)} & _BAD
        texts = [text for each in given if (text := _written(each)) and " " in text]
        if outcomes and texts and texts[0] not in found:
            found.append(texts[0])
    return tuple(found[:_TITLES_SHOWN])


def _written(part: ast.AST) -> str:
    """A text as its source has it, with an ellipsis for what is put in."""
    if isinstance(part, ast.Constant):
        return part.value if isinstance(part.value, str) else ""
    if isinstance(part, ast.JoinedStr):
        return "".join(_written(each) or "…" for each in part.values)
    if isinstance(part, ast.IfExp):
        return _written(part.body)
    return ""


def fixed(check: Check) -> tuple[str, ...]:
    """The columns that the table alone decides."""
    looks = ", ".join(f"`{mode}`" for mode in Access if mode in check.access) or "at nothing"
    return (check.id, check.title, f"{check.layer} {check.layer.words}", looks, check.source)


def page() -> str:
    """The whole page."""
    found = answers()
    parts = [_HEADER]
    for command, heading in COMMANDS.items():
        checks = [each for each in CHECKS.values() if each.command == command]
        rows = [_row(_COLUMNS), _row(["---"] * len(_COLUMNS)), *(_row(_cells(each, found)) for each in checks)]
        parts.append(f"## {heading}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _cells(check: Check, found: Mapping[str, list[Answer]]) -> list[str]:
    own = found.get(check.id, [])
    where = ", ".join(f"`{answer.where}`" for answer in own) or f"`groundplane {check.command}`"
    says = list(dict.fromkeys(title for answer in own for title in answer.titles))[:_TITLES_SHOWN]
    return [*fixed(check), where, "; ".join(says)]


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;').replace('<', '&lt;').replace(chr(10), ' ') for cell in cells)} |"


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write(page())


if __name__ == "__main__":
    main()
