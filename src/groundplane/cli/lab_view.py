"""How the lab looks on a screen: a live table in a terminal, plain lines elsewhere.

A table is never cut: `FORMS` are tried from the widest to the narrowest, and the first that fits the console is drawn.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..lab.demo import Check, Figures, MigTurn, Outcome, Snapshot
from ..lab.layers import LAYERS, NodeRow, State
from . import live

PLAIN_WIDTH = 140
"""Columns of a console that is no terminal: a file or a pipe has no edge."""


class Mark(NamedTuple):
    """How a state is written: as a word, where there is little room, and in a sentence."""

    word: str
    short: str
    said: str
    style: str


MARKS = {
    State.ABSENT: Mark("-", "-", "not there", "dim"),
    State.WAITING: Mark("waiting", "wait", "waiting", "yellow"),
    State.HEALTHY: Mark("healthy", "ok", "healthy", "green"),
    State.FAILED: Mark("failed", "FAIL", "failed", "bold red"),
}

GPUS, PRODUCT = "nvidia.com/gpu", "product"
SHORTER = {"device plugin": "plugin", GPUS: "gpus"}
SHORTEST = SHORTER | {"hardware": "hw", "telemetry": "telem", "validated": "valid"}


class Form(NamedTuple):
    """One way to draw the table: its headings, whether states are words, blanks between columns, the product column."""

    headings: Mapping[str, str] = {}
    words: bool = True
    gap: int = 2
    product: bool = True


FORMS = (
    Form(),
    Form(SHORTER),
    Form(SHORTER, words=False),
    Form(SHORTEST, words=False),
    Form(SHORTEST, words=False, gap=1),
    Form(SHORTEST, words=False, gap=1, product=False),
)


def console() -> Console:
    """Return the console for standard output; what goes to a file or a pipe has room for the table's widest form."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def table(rows: Sequence[NodeRow], width: int) -> Table:
    """Return the node table for so many columns: one row a node, one column a layer, bottom layer first.

    Where even the narrowest form is too wide, names are folded; states stay whole.
    """
    forms = [(form.gap, _cells(form, rows)) for form in FORMS]
    return live.fitted(forms, width, right=(GPUS, SHORTER[GPUS]), folded=("node", PRODUCT))


def _cells(form: Form, rows: Sequence[NodeRow]) -> list[list[Text]]:
    """The table's cells, the headings first."""
    columns = ["node", *LAYERS, GPUS] + ([PRODUCT] if form.product else [])
    cells = [[Text(form.headings.get(name, name)) for name in columns]]
    for row in rows:
        marks = [
            Text(mark.word if form.words else mark.short, mark.style)
            for mark in map(MARKS.get, row.layers.values())
            if mark
        ]
        line = [Text(row.name), *marks, Text(str(row.gpus) if row.has_gpu else "-")]
        cells.append([*line, Text(row.product or "-")] if form.product else line)
    return cells


class Live(live.Live[Snapshot]):
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, _drawn)


def _drawn(snapshot: Snapshot, width: int) -> Group:
    head = Text(f"{snapshot.seconds:5.1f} s  {snapshot.message}", "bold")
    return Group(head, table(snapshot.rows, width))


class Lines:
    """One line for each node on which layers changed to a state."""

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
            for state, changed in groupby(self._changes(row), key=lambda change: change[1]):
                names = ", ".join(layer for layer, _ in changed)
                self._print(snapshot, f"{row.name}: {names} {MARKS[state].said}")

    def _changes(self, row: NodeRow) -> list[tuple[str, State]]:
        """The layers of a node that are in another state than before."""
        before = {layer: self._seen.get((row.name, layer), State.ABSENT) for layer in row.layers}
        changes = [(layer, state) for layer, state in row.layers.items() if state is not before[layer]]
        self._seen.update({(row.name, layer): state for layer, state in changes})
        return changes

    def _print(self, snapshot: Snapshot, text: str) -> None:
        self._console.print(f"{snapshot.seconds:6.2f} s  {text}", highlight=False, markup=False, soft_wrap=True)


# --- the end ----------------------------------------------------------------------------------------------------------

TEXT_WIDTH = 100
"""Columns of running text; a narrower console has its own."""
FIGURES: Mapping[str, Callable[[Figures], str]] = {
    "gpu": lambda each: str(each.gpu),
    "temp °C": lambda each: _number(each.temperature_c),
    "power W": lambda each: _number(each.power_w, 1),
    "used MiB": lambda each: _number(each.used_mib),
    "free MiB": lambda each: _number(each.free_mib),
    "xid": lambda each: _number(each.xid),
}
"""Columns of the figures' table, between the node and who uses the GPU."""


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def figures_table(figures: Mapping[str, Sequence[Figures]]) -> Table:
    """Return what the exporters tell: one row a GPU; names are folded where there is little room."""
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    view.add_column("node", overflow="fold")
    for heading in FIGURES:
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("used by (namespace/pod/container)", overflow="fold")
    for node, rows in figures.items():
        for each in rows:
            view.add_row(node, *(cell(each) for cell in FIGURES.values()), each.user or "-")
    return view


class _End:
    """Prints how a demo ended, part by part."""

    def __init__(self, console: Console, outcome: Outcome) -> None:
        self._console = console
        self._outcome = outcome

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def filled(self, text: str, indent: str = "  ", further: str = "") -> None:
        """Print running text, folded at the end of a line."""
        width = min(self._console.width, TEXT_WIDTH)
        beside = indent + further
        self.say(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=beside, break_on_hyphens=False))

    def checks(self) -> None:
        checks = self._outcome.checks
        if checks:
            verdicts = ", ".join(f"{check.node} {'passed' if check.passed else 'FAILED'}" for check in checks)
            self.say(f"\nCUDA check (simulated GPUs): {verdicts}")
        for check in checks:
            self.check(check)

    def check(self, check: Check) -> None:
        """Each GPU's line, and of a check that failed all that it said."""
        for line in check.gpus if check.passed else check.log.splitlines() or ["(no output)"]:
            self.filled(f"{check.node}: {line}", further="  ")

    def figures(self) -> None:
        if self._outcome.figures:
            self.say("\nWhat the exporter tells of each GPU:")
            self._console.print(figures_table(self._outcome.figures))

    def mig(self) -> None:
        if (turn := self._outcome.mig) is not None:
            self.say(f"\nMIG: GPU {turn.index} of {turn.node} in slices and back, by label nvidia.com/mig.config")
            for text in _turns(turn):
                self.filled(text, further="  ")
            self.check(turn.check)

    def fault(self) -> None:
        if (turn := self._outcome.fault) is not None:
            self.filled(f"Fault on {turn.node}: {turn.title}", "\n", "  ")
            self.filled(f"groundplane doctor, {turn.found_seconds:.2f} s later:")
            for line in turn.told:
                self.quoted(line)
            self.filled(f"Mended: {turn.mended}; groundplane doctor, {turn.healed_seconds:.2f} s later:", further="  ")
            self.quoted(turn.healed)

    def quoted(self, line: str) -> None:
        """A line of the doctor's, folded below its own text."""
        margin = len(line) - len(line.lstrip())
        beside = _LABELLED if margin == _LABEL_AT else margin + len(_QUOTE)
        self.filled(line, _QUOTED, " " * beside)

    def problem(self) -> None:
        if self._outcome.problem:
            self.say("")
            for line in self._outcome.problem.splitlines():
                self.filled(line.strip(), "  " if line.startswith(" ") else "", "  ")

    def times(self, speed: float) -> None:
        outcome = self._outcome
        self.say(f"\nHealthy on every GPU node after (real seconds; the lab's clock ran {speed:g} x):")
        times = {layer: outcome.layer_seconds.get(layer) for layer in LAYERS}
        times |= {"ClusterPolicy": outcome.ready_seconds, "CUDA check": outcome.check_seconds}
        reached = ", ".join(f"{what} {seconds:.2f}" for what, seconds in times.items() if seconds is not None)
        missed = ", ".join(what for what, seconds in times.items() if seconds is None)
        for text in filter(None, (reached, missed and f"not reached: {missed}")):
            self.filled(text)
        self.filled(f"The whole demo took {outcome.total_seconds:.2f}.")


_QUOTED = "    "
"""Before what the doctor said."""
_LABEL_AT, _LABELLED, _QUOTE = 2, 11, "| "
"""Columns of the doctor's lines: where labels such as `because` begin, where what they label does; before excerpts."""


def _turns(turn: MigTurn) -> list[str]:
    """What was on offer, one state a line."""
    moments = {"before": turn.before, f"sliced ({turn.there_seconds:.2f} s)": turn.sliced}
    moments |= {f"back ({turn.back_seconds:.2f} s)": turn.after}
    return [
        f"{moment}: " + ", ".join(f"{name} {count}" for name, count in offer.items())
        for moment, offer in moments.items()
    ]


def conclude(console: Console, outcome: Outcome, speed: float) -> None:
    """Print how the demo ended: layers, CUDA check, figures, MIG, fault, what went wrong, times, and what to try."""
    end = _End(console, outcome)
    console.print(table(outcome.rows, console.width))
    end.checks()
    end.figures()
    end.mig()
    end.fault()
    end.problem()
    end.times(speed)
    end.say(NEXT if outcome.passed else LOOK)


NEXT = """
Try next:
  .venv/bin/groundplane lab up        a lab that stays, for kubectl
  .venv/bin/groundplane render -f tests/data/clusterpolicy/26.7.0-nri.yaml
  docs/tutorial.md                    preflight to rollback in ten minutes
  docs/lab-tour.md                    a first hour with the lab
  docs/mig.md, docs/metrics.md        MIG layouts, and what the figures mean"""
LOOK = """
To find out why, start a lab of these nodes that stays, and look with kubectl:
  .venv/bin/groundplane lab up --nodes FILE --policy POLICY
  kubectl get events -A; kubectl get pods -A; kubectl describe clusterpolicy"""
