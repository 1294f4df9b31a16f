"""How the lab looks on a screen: a live table in a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Self

import rich.live
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..lab.demo import Outcome, Snapshot
from ..lab.layers import LAYERS, NodeRow, State

MARKS = {
    State.ABSENT: ("-", "dim"),
    State.WAITING: ("waiting", "yellow"),
    State.HEALTHY: ("healthy", "green"),
    State.FAILED: ("failed", "bold red"),
}


def table(rows: list[NodeRow]) -> Table:
    """Return the node table: one row a node, one column a layer, bottom layer first."""
    view = Table(box=None, pad_edge=False)
    for column in ("node", *LAYERS, "nvidia.com/gpu", "product"):
        view.add_column(column, justify="right" if column == "nvidia.com/gpu" else "left", no_wrap=True)
    for row in rows:
        marks = [Text(*MARKS[state]) for state in row.layers.values()]
        view.add_row(row.name, *marks, str(row.gpus) if row.has_gpu else "-", row.product or "-")
    return view


class Live:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = rich.live.Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, value, trace)

    def show(self, snapshot: Snapshot) -> None:
        """Draw a snapshot."""
        head = Text(f"{snapshot.seconds:5.1f} s  {snapshot.message}", "bold")
        self._live.update(Group(head, table(snapshot.rows)))


class Lines:
    """One line for each change of a layer on a node."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[tuple[str, str], State] = {}
        self._message = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, snapshot: Snapshot) -> None:
        """Print what changed since the last snapshot."""
        if snapshot.message != self._message:
            self._message = snapshot.message
            self._print(snapshot, snapshot.message)
        for row in snapshot.rows:
            for layer, state in row.layers.items():
                before = self._seen.get((row.name, layer), State.ABSENT)
                if state is not before:
                    self._seen[row.name, layer] = state
                    self._print(snapshot, f"{row.name}: {layer} {MARKS[state][0]}")

    def _print(self, snapshot: Snapshot, text: str) -> None:
        self._console.print(f"{snapshot.seconds:6.2f} s  {text}", highlight=False, soft_wrap=True)


def conclude(console: Console, outcome: Outcome, speed: float) -> None:
    """Print how the demo ended: the table, the CUDA check, the time of each layer, what to try next."""
    width = max(console.width, 130) if not console.is_terminal else console.width
    console.print(table(outcome.rows), width=width)
    console.print("\nCUDA check (simulated GPUs):")
    for check in outcome.checks:
        verdict = "passed" if check.passed else "FAILED"
        lines = check.log.splitlines() or ["(no output)"]
        console.print(f"  {check.node}: {verdict}", highlight=False)
        for line in lines if not check.passed else lines[-1:]:
            console.print(f"      {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nLayer healthy on every GPU node after (real seconds; the lab's clock ran {speed:g} x):")
    for layer in LAYERS:
        seconds = outcome.layer_seconds.get(layer)
        console.print(f"  {layer:14} {'not reached' if seconds is None else f'{seconds:6.2f} s'}", highlight=False)
    console.print(f"  {'ClusterPolicy':14} {outcome.ready_seconds:6.2f} s   CUDA check {outcome.total_seconds:.2f} s")
    console.print(
        "\nTry next:\n"
        "  .venv/bin/groundplane lab up --nodes 3    a lab that stays; then use kubectl on it\n"
        "  .venv/bin/groundplane render -f tests/data/clusterpolicy/26.7.0-nri.yaml\n"
        "  docs/tutorial.md",
        highlight=False,
        markup=False,
    )
