"""``groundplane lab scenario``: what is drawn, what is printed, and the exit status."""

import io
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from groundplane.cli import lab_scenario
from groundplane.lab.scenarios import driver_upgrade
from groundplane.lab.scenarios.steps import Happening, Report
from groundplane.lab.scenarios.upgradewatch import Limits, Maxima
from groundplane.operator.upgrade.model import Counts
from groundplane.operator.upgrade.planning import Plan, Row

CAST = driver_upgrade.Cast.of(12)
STATES = {"upgrade-done": 3, "": 1, "wait-for-jobs-required": 1, "banana": 1, "upgrade-required": 6}
COUNTS = Counts(total=12, in_progress=1, done=3, failed=0, pending=6, unavailable=2, max_unavailable=5, slots=3)


def row(node: str, state: str, *what: str, to: str = "") -> Row:
    return Row(node=node, driver="", state=state, to=to, what=what)


def report(*rows: Row, operator: bool = True, happened: int = 2) -> Report:
    plan = Plan(release="26.7.0", off="", rows=rows, counts={"": COUNTS}, problems=())
    texts = tuple(Happening(float(number), f"thing {number}") for number in range(happened))
    return Report(7.25, STATES, plan if rows else None, ("a step",), texts, operator)


def console(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, color_system=None)


def text(found: Console) -> str:
    return found.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def drawn(shown: Report, width: int = 100) -> list[str]:
    found = console(width)
    found.print(lab_scenario.screen(shown, width))
    lines = [line.rstrip() for line in text(found).splitlines()]
    assert all(len(line) <= width for line in lines)
    return lines


def test_states_are_told_in_the_order_of_their_way() -> None:
    assert lab_scenario.counted(STATES) == (
        "1 without a state, 6 upgrade-required, 1 wait-for-jobs-required, 3 upgrade-done, 1 banana"
    )


def test_the_screen_has_counts_slots_and_the_nodes_amid_their_upgrade() -> None:
    rows = [
        row("a", "wait-for-jobs-required", "waits: for default/job " + "x" * 200),
        row("b", "cordon-required", "an event", to="wait-for-jobs-required"),
        row("c", "upgrade-required", "waits: no slot"),
        row("d", "upgrade-done"),
    ]
    lines = drawn(report(*rows, operator=False, happened=20), 150)
    assert lines[0].startswith("  7.2 s  1 without a state, 6 upgrade-required")
    assert lines[0].endswith("(no operator runs)")
    assert lines[1] == ("12 nodes: 3 done, 1 in progress, 6 pending, 0 failed; 2 of at most 5 unavailable; 3 may start")
    assert lines[2].split() == ["node", "state", "next"]
    assert lines[3].startswith("a     wait-for-jobs-required  waits: for default/job x")
    assert lines[3].endswith("…")
    assert lines[4] == "b     cordon-required         -> wait-for-jobs-required"
    assert lines[5:] == [f"{number:6.2f} s  thing {number}" for number in range(12, 20)]


def test_a_screen_has_an_end() -> None:
    lines = drawn(report(*(row(f"n{number:02d}", "drain-required", "waits") for number in range(30))))
    assert sum(line.startswith("n") and "drain-required" in line for line in lines) == 12
    assert any(line.startswith("and 18 more") for line in lines)
    assert len(drawn(report())) == 3, "before there is a plan"


def test_lines_tell_each_thing_once() -> None:
    found = console()
    with lab_scenario.Lines(found) as view:
        view.show(report())
        view.show(report())
        view.show(report(happened=3))
    lines = text(found).splitlines()
    assert [line.strip() for line in lines if "thing" in line] == [
        "0.00 s  thing 0",
        "1.00 s  thing 1",
        "2.00 s  thing 2",
    ]
    assert len(lines) == 4, "and how many nodes are in each state, where that has changed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "11"], "Error: --nodes: the story needs 12 nodes or more, not 11"),
        (["--speed", "0"], "Error: --speed must be above 0, not 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(lab_scenario.command, ["driver-upgrade", *arguments])
    assert (result.exit_code, result.output.strip()) == (1, said)


@pytest.mark.parametrize("problems", [(), ("a limit was not kept: n\n  seen: that",)])
def test_the_exit_status_says_how_it_ended(monkeypatch: pytest.MonkeyPatch, problems: tuple[str, ...]) -> None:
    async def run(_lab: Any, cast: driver_upgrade.Cast, show: Any, *, timeout_s: float) -> driver_upgrade.Outcome:
        assert (cast, timeout_s) == (CAST, 9.0)
        show(report(row("a", "drain-required", "waits")))
        return driver_upgrade.Outcome(
            cast=cast,
            happened=(),
            maxima=Maxima(in_progress=4, unavailable=6),
            limits=(Limits(6, 5), Limits(6, 11)),
            states=dict.fromkeys(cast.all, "upgrade-done"),
            cordoned=(cast.cordoned,),
            paths={},
            seconds=10.0,
            problems=problems,
        )

    monkeypatch.setattr(driver_upgrade, "run", run)
    result = CliRunner().invoke(lab_scenario.command, ["driver-upgrade", "--nodes", "12", "--timeout", "9"])
    assert result.exit_code == bool(problems)
    assert "  1.00 s  thing 1" in result.output
    assert "At the end: 12 upgrade-done\ncordoned: hollow-00000\n" in result.output
    assert "at most 4 nodes were in progress (6 allowed), at most 6 unavailable (5, later 11 allowed)" in result.output
    assert "12 nodes took 10.0 s (20 minutes of the cluster's time)" in result.output
    if problems:
        assert "\n" + problems[0] in result.output
        assert result.output.endswith("Error: the story did not end well: a limit was not kept: n\n")
