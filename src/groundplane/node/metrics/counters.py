"""Which series are wanted: the counters file, a line each of field name, type and help text.

Pure. Rules and aliases: contracts/mig-exporter-validator.md 5.1. Where the text comes from (a file, a ConfigMap, what
is shipped) is ``main``'s to know.
"""

import csv
from collections.abc import Iterator
from typing import Final, NamedTuple

from . import fields
from .fields import Field, Form

TYPES: Final = frozenset(("gauge", "counter", "histogram", "summary", "label"))
LABEL: Final = "label"


class CountersError(ValueError):
    """A counters file cannot be used; the text names file, line, what was found and what is expected."""


class Counter(NamedTuple):
    """A series that is wanted. ``field`` is None for those that are derived (5.4)."""

    name: str
    kind: str
    help: str
    field: Field | None

    @property
    def order(self) -> int:
        """Where it stands in the output."""
        return self.field.id if self.field is not None else fields.DERIVED[self.name]


class Counters(NamedTuple):
    """The series and labels that are wanted, in the order of the output; and what a person should know of the file."""

    series: tuple[Counter, ...]
    labels: tuple[Counter, ...]
    warnings: tuple[str, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """The quantities of a reading that they are computed from."""
        found = {name for each in (*self.series, *self.labels) if each.field is not None for name in each.field.needs}
        for each in self.series:
            found.update(_DERIVED_NEEDS.get(each.name, ()))
        return frozenset(found)

    def has(self, name: str) -> bool:
        """Whether a series is wanted."""
        return any(each.name == name for each in self.series)


_DERIVED_NEEDS: Final = {
    fields.CLOCK_EVENTS_COUNT: ("event_reasons",),
    fields.GPU_HEALTH_STATUS: (
        *("event_reasons", "pcie_replays", "ecc_dbe_volatile", "retired_pending", "remap_pending", "remap_failure"),
        *("nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors"),
        *("thermal_violation_ns", "inforom_image"),
    ),
}


def parse(text: str, source: str) -> Counters:
    """Read a counters file; ``source`` names it in errors. Raises :class:`CountersError` with all that is wrong."""
    problems: list[str] = []
    warnings: list[str] = []
    found: dict[str, Counter] = {}
    for line, content in _lines(text):
        try:
            row = _row(content)
            counter = _counter(row)
        except CountersError as error:
            problems.append(f"{source}, line {line}: {error}")
            continue
        except LookupError as error:
            warnings.append(f"{source}, line {line}: {error.args[0]}")
            continue
        if counter.name in found:
            warnings.append(f"{source}, line {line}: {row[0]} is the same series as one above; this line is left out")
        elif counter.field is not None and counter.field.form is Form.TEXT and counter.kind != LABEL:
            warnings.append(f"{source}, line {line}: {row[0]} is a text and makes no series; give it the type label")
        else:
            found[counter.name] = counter
    if problems:
        raise CountersError("\n".join(problems))
    ordered = sorted(found.values(), key=lambda each: each.order)
    return Counters(
        tuple(each for each in ordered if each.kind != LABEL),
        tuple(each for each in ordered if each.kind == LABEL),
        tuple(warnings),
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that say something, with their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _row(line: str) -> list[str]:
    try:
        (row,) = csv.reader([line], strict=True)
    except csv.Error as error:
        raise CountersError(f"{error}; {_FORM}; {_QUOTED}") from error
    return [each.strip() for each in row]


_FORM = "expected a field's name, its type and a help text, separated by commas"
_QUOTED = "a help text with a comma must be in double quotes, which follow the comma without a blank"


def _counter(row: list[str]) -> Counter:
    """A line's counter. CountersError if it is wrong, LookupError if it can give no rows here."""
    if len(row) != 3:
        raise CountersError(f"{len(row)} fields; {_FORM}; {_QUOTED}")
    name, kind, about = row
    derived = name in fields.DERIVED
    field = fields.find(name)
    if not derived and field is None and not fields.is_dcgm(name):
        raise CountersError(f"{name!r} is the name of no field; {_FORM}")
    if kind not in TYPES or (derived and kind == LABEL):
        raise CountersError(f"{name}: {kind!r} is no type of a series; expected one of {', '.join(sorted(TYPES))}")
    if derived:
        return Counter(name, kind, about, None)
    if field is None:
        raise LookupError(f"{name} cannot be told without DCGM; it is left out")
    return Counter(fields.series(name, field), kind, about, field)
