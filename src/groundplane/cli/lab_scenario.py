"""``groundplane lab scenario``: stories that a lab goes through: a live table in a terminal, lines elsewhere."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import click

from .live import Live

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from ..lab.scenarios.driver_upgrade import Cast, Outcome
    from ..lab.scenarios.steps import Happening, Report
    from ..operator.upgrade.planning import Row

SPEED = 120.0
HAPPENED_SHOWN = 8
ROWS_SHOWN = 12
HEADINGS = ("node", "state", "next")
GAP = 2
LEAST_ROOM = 10
"""Columns that the last one has at least, however narrow the screen."""


@click.group("scenario")
def command() -> None:
    """Watch a whole story in a lab of its own, which goes when it ends."""


@command.command("driver-upgrade")
@click.option("--nodes", default=100, show_default=True, help="How many nodes, 12 or more; few of them run programs.")
@click.option("--speed", default=SPEED, show_default=True, help="Cluster seconds in one real second.")
@click.option("--timeout", default=120.0, show_default=True, help="Real seconds that one step may take.")
@click.option("--plain", is_flag=True, help="Lines instead of a live table.")
def driver_upgrade(nodes: int, speed: float, timeout: float, plain: bool) -> None:
    """Give a cluster a new driver, a few nodes at a time, while much comes in between: budgets, jobs, faults, people,
    kernels, the operator's death. The exit status says whether all came as it must."""
    from ..lab.cluster import LabError
    from ..lab.scenarios.driver_upgrade import Cast

    if speed <= 0:
        raise click.ClickException(f"--speed must be above 0, not {speed:g}")
    try:
        cast = Cast.of(nodes)
    except ValueError as error:
        raise click.ClickException(f"--nodes: {error}") from error
    try:
        outcome = asyncio.run(_driver_upgrade(cast, speed, timeout, plain))
    except LabError as error:
        raise click.ClickException(str(error)) from error
    if not outcome.passed:
        raise click.ClickException(f"the story did not end well: {outcome.problems[0].partition(chr(10))[0]}")


async def _driver_upgrade(cast: "Cast", speed: float, timeout_s: float, plain: bool) -> "Outcome":
    size, programs = len(cast.all), len(cast.programs)
    click.echo(f"A cluster of {size} nodes starts in this process; {programs} of them run the node programs.")
    from ..lab.scenarios import driver_upgrade as story
    from . import lab_view

    console = lab_view.console()
    view: View = Live(console, screen) if console.is_terminal and not plain else Lines(console)
    async with story.lab(cast, speed) as lab:
        with view:
            outcome = await story.run(lab, cast, view.show, timeout_s=timeout_s)
    conclude(console, outcome, speed)
    return outcome


# --- while it runs ----------------------------------------------------------------------------------------------------


class View(Protocol):
    """Shows how a story stands."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, report: "Report") -> None:
        """Show a report."""


class Lines:
    """What happened, a line each, and how many nodes are in each state where that has changed since the last line."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._shown = 0
        self._states: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, report: "Report") -> None:
        """Print what is new."""
        fresh = report.happened[self._shown :]
        self._shown = len(report.happened)
        for each in fresh:
            _say(self._console, _told(each))
        if fresh and report.states != self._states:
            self._states = dict(report.states)
            _say(self._console, f"{'':10}{counted(report.states)}")


def screen(report: "Report", width: int) -> "RenderableType":
    """The whole picture: counts, slots, nodes that are amid their upgrade with why they wait, what happened last."""
    from rich.console import Group
    from rich.text import Text

    from .driver import counted as slots

    operator = "" if report.operator else "  (no operator runs)"
    parts: list[RenderableType] = [Text(f"{report.seconds:5.1f} s  {counted(report.states)}{operator}", "bold")]
    if report.plan is not None:
        parts += [Text(slots(counts), "dim") for counts in report.plan.counts.values()]
        parts.append(table(report.plan.rows, width))
    parts += [Text(_cut(_told(each), width)) for each in report.happened[-HAPPENED_SHOWN:]]
    return Group(*parts)


def table(rows: Sequence["Row"], width: int) -> "Table":
    """The nodes that are amid their upgrade: state, and what is done or waited for, cut at the end of a line."""
    from rich.table import Table

    from ..operator.upgrade import states

    amid = [row for row in rows if states.parse(row.state) in states.IN_PROGRESS]
    cells = [(row.node, row.state, f"-> {row.to}" if row.to else "; ".join(row.what)) for row in amid[:ROWS_SHOWN]]
    if len(amid) > ROWS_SHOWN:
        cells.append((f"and {len(amid) - ROWS_SHOWN} more", "", ""))
    room = width - sum(max(map(len, column)) + GAP for column in list(zip(HEADINGS, *cells, strict=True))[:2])
    view = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for heading in HEADINGS:
        view.add_column(heading, no_wrap=True)
    for node, state, what in cells:
        view.add_row(node, state, _cut(what, max(room, LEAST_ROOM)))
    return view


def counted(states: Mapping[str, int]) -> str:
    """How many nodes are in each state, in the order in which a node goes through them."""
    from ..operator.upgrade.states import State

    known = {state.value: None for state in State}
    order = [*known, *(each for each in states if each not in known)]
    return ", ".join(f"{states[each]} {each or 'without a state'}" for each in order if states.get(each))


def _told(each: "Happening") -> str:
    return f"{each.seconds:6.2f} s  {each.text}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _say(console: "Console", text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


# --- the end ----------------------------------------------------------------------------------------------------------


def conclude(console: "Console", outcome: "Outcome", speed: float) -> None:
    """Print how the story ended."""
    first, later = outcome.limits
    _say(console, f"\nAt the end: {counted(Counter(outcome.states.values()))}")
    if outcome.cordoned:
        _say(console, f"cordoned: {', '.join(outcome.cordoned)}")
    _say(
        console,
        f"at most {outcome.maxima.in_progress} nodes were in progress ({first.parallel} allowed), "
        f"at most {outcome.maxima.unavailable} unavailable ({first.unavailable}, later {later.unavailable} allowed)",
    )
    _say(
        console,
        f"{len(outcome.cast.all)} nodes took {outcome.seconds:.1f} s "
        f"({outcome.seconds * speed / 60:.0f} minutes of the cluster's time)",
    )
    for problem in outcome.problems:
        _say(console, f"\n{problem}")
