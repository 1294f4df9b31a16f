"""The layers of nodes while they come up: a live table on a terminal, a line for each change elsewhere.

What a node has reached is ``admin.progress``'s; how a table is fitted to a screen and redrawn is ``live``'s.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import click

from ..admin.progress import NodeProgress
from ..diagnose.findings import Layer
from ..diagnose.layers import State
from . import live

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

ROWS: Final = 40
"""Nodes that a table shows, those that wait first."""
MARKS: Final = {
    State.HEALTHY: ("ok", "green"),
    State.FAILING: ("FAIL", "bold red"),
    State.STARTING: ("wait", "yellow"),
    State.UNKNOWN: ("?", "yellow"),
    State.NOT_REACHED: ("-", "dim"),
}


class Seen(NamedTuple):
    """All nodes at a moment; ``operator`` is what the operator itself waits for, empty if it is well (L9)."""

    rows: Sequence[NodeProgress]
    operator: str


class Shows(Protocol):
    """A way to show nodes; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, seen: Seen) -> None:
        """Show how the nodes are now."""


def of_stderr() -> Shows:
    """A live table if standard error is a terminal, else lines."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return Table(console) if console.is_terminal else Lines()


class Table(live.Live[Seen]):
    """A table that is redrawn in place."""

    def __init__(self, console: "Console") -> None:
        super().__init__(console, drawn)


def drawn(seen: Seen, width: int) -> "RenderableType":
    """One row a node, one column a layer; nodes that wait come first, and what does not fit is counted."""
    from rich.console import Group
    from rich.text import Text

    rows = sorted(seen.rows, key=lambda row: (not row.waits, row.layer or Layer.OPERATOR, row.node))
    waiting = sum(1 for row in rows if row.waits)
    head = Text(f"{len(rows)} GPU nodes, {waiting} wait" + (f"; operator: {seen.operator}" if seen.operator else ""))
    columns = [Text(name) for name in ("node", *Layer, "waits for")]
    cells = [columns, *(_cells(row, seen.operator) for row in rows[:ROWS])]
    narrow = [[*line[:-1]] for line in cells]
    table = live.fitted([(2, cells), (1, cells), (1, narrow)], width, folded=("node", "waits for"))
    left = [Text(f"and {len(rows) - ROWS} more")] if len(rows) > ROWS else []
    return Group(head, table, *left)


def _cells(row: NodeProgress, operator: str) -> list["Text"]:
    from rich.text import Text

    states = {**row.states, Layer.OPERATOR: State.FAILING if operator else State.HEALTHY}
    marks = [Text(*MARKS[states.get(layer, State.UNKNOWN)]) for layer in Layer]
    return [Text(row.node), *marks, Text(f"{row.layer}: {row.waits}" if row.waits else "")]


class Lines:
    """A line on standard error for each node when what it waits for, or its lowest failing layer, changes."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, seen: Seen) -> None:
        """Print what has changed."""
        if seen.operator:
            self._say("", f"operator: L9 waits for {seen.operator}")
        for row in seen.rows:
            self._say(row.node, line(row), f", since {row.since}" if row.waits and row.since else "")

    def _say(self, of: str, text: str, more: str = "") -> None:
        if self._told.get(of) != text:
            click.echo(f"  {text}{more}", err=True)
            self._told[of] = text


def line(row: NodeProgress) -> str:
    """A node in a line: how far it is, and what it waits for."""
    reached = " ".join(layer for layer in Layer if row.states.get(layer) is State.HEALTHY)
    if not row.waits:
        return f"{row.node}: nothing waits; healthy {reached or 'nothing yet'}"
    return f"{row.node}: {row.layer} waits for {row.waits}; healthy {reached or 'nothing yet'}"
