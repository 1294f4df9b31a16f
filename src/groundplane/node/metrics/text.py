"""Prometheus' text format, as the exporter writes it (contracts/mig-exporter-validator.md 5.3).

Pure. The labels of an entity come in a fixed order, then those that are set for all its rows, then those of whoever
uses it, each sorted. Whatever they hold, the output stays readable to Prometheus: values are escaped, and no name is
there twice.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from .fields import Form, Value

CONTENT_TYPE: Final = "text/plain; charset=utf-8"

_BLANK_INTEGERS: Final = frozenset((*range(2147483632, 2147483636), *range(9223372036854775792, 9223372036854775796)))
_BLANK_DOUBLES: Final = frozenset(140737488355328.0 + at for at in range(4))
_BLANK_TEXTS: Final = frozenset(("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERMISSIONED>>>"))
_BLANKS: Final[frozenset[object]] = _BLANK_INTEGERS | _BLANK_DOUBLES | _BLANK_TEXTS
"""What DCGM stands for no value with."""


class Row(NamedTuple):
    """One sample: the entity that it is of, its value as printed, labels and attributes of its own."""

    entity: int
    value: str
    labels: Mapping[str, str] = {}
    attributes: Mapping[str, str] = {}
    settled: bool = False
    """Whether it is told already whose it is."""


class Family(NamedTuple):
    """A series with its samples."""

    name: str
    kind: str
    help: str
    rows: Sequence[Row]


def number(value: Value, form: Form) -> str | None:
    """How a value is printed; None for one that stands for none, or is none of Prometheus'."""
    if value is None or value in _BLANKS:
        return None
    if form is Form.INTEGER:
        return str(int(value))
    if form is Form.DOUBLE:
        return f"{float(value):.6f}"
    text = str(value)
    try:
        return text if math.isfinite(float(text)) and re.fullmatch(r"[0-9.eE+-]+", text) else None
    except ValueError:
        return None


_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
_ESCAPED: Final = re.compile(r'[\\"\n]')
_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": " "})


def escape(value: str) -> str:
    """A label's value between its quotes."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value) if _ESCAPED.search(value) else value


_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


def label_name(key: str) -> str:
    """A Kubernetes label's key as the name of a Prometheus label, which begins with no digit."""
    name = _NOT_IN_NAMES.sub("_", key)
    return f"_{name}" if not name or name[0].isdigit() else name


def labelled(base: Sequence[tuple[str, str]], labels: Mapping[str, str], attributes: Mapping[str, str]) -> str:
    """The text between the braces. A name of ``base`` wins over the others, an attribute over a label."""
    taken = {name for name, _ in base}
    parts = [f'{name}="{escape(value)}"' for name, value in base]
    parts += [
        f'{name}="{escape(labels[name])}"' for name in sorted(labels) if name not in taken and name not in attributes
    ]
    parts += [f'{name}="{escape(attributes[name])}"' for name in sorted(attributes) if name not in taken]
    return ",".join(parts)


def head(family: Family) -> str:
    """The two lines before a family's samples."""
    return f"# HELP {family.name} {family.help.translate(_HELP)}\n# TYPE {family.name} {family.kind}\n"


def document(lines: Iterable[str]) -> bytes:
    """The whole output."""
    return "".join(lines).encode()
