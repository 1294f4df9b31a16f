"""What the lab's table and lines look like: never cut, one line a change."""

import io

import pytest
from rich.console import Console

from groundplane.cli import lab_view
from groundplane.lab.demo import Check, Outcome, Snapshot
from groundplane.lab.layers import LAYERS, NodeRow, State

H100 = "NVIDIA-H100-80GB-HBM3"
LONG = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"


def row(name: str, state: State = State.HEALTHY, gpus: int = 8, product: str = H100, **other: State) -> NodeRow:
    layers = dict.fromkeys(LAYERS, state) | {"hardware": State.HEALTHY if gpus else State.ABSENT}
    return NodeRow(name, gpus, product, layers | other)


ROWS = [
    row("cpu-a", State.ABSENT, 0, ""),
    row("gpu-a"),
    row("gpu-b", State.WAITING, 8, ""),
    row("gpu-c", driver=State.FAILED),
]


def screen(width: int, *, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, force_terminal=terminal, color_system=None)


def drawn(rows: list[NodeRow], width: int) -> list[list[str]]:
    """The table's words, line by line; no line is wider than the console."""
    console = screen(width)
    console.print(lab_view.table(rows, width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    return [line.split() for line in lines]


WORDS = {State.ABSENT: "-", State.WAITING: "waiting", State.HEALTHY: "healthy", State.FAILED: "failed"}
SHORT = {State.ABSENT: "-", State.WAITING: "wait", State.HEALTHY: "ok", State.FAILED: "FAIL"}


@pytest.mark.parametrize(("width", "words"), [(80, SHORT), (100, SHORT), (118, WORDS), (120, WORDS), (200, WORDS)])
def test_every_state_and_product_is_whole(width: int, words: dict[State, str]) -> None:
    _, *lines = drawn(ROWS, width)
    assert lines == [
        [found.name, *(words[state] for state in found.layers.values()), str(found.gpus or "-"), found.product or "-"]
        for found in ROWS
    ]


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (80, "node hw driver runtime plugin labels telem valid gpus product"),
        (100, "node hardware driver runtime plugin labels telemetry validated gpus product"),
        (120, "node hardware driver runtime device plugin labels telemetry validated nvidia.com/gpu product"),
    ],
)
def test_headings_shorten_with_the_room(width: int, headings: str) -> None:
    assert " ".join(drawn(ROWS, width)[0]) == headings


def test_the_product_goes_before_a_state_is_cut() -> None:
    first, *lines = drawn([row("gpu-a", product=LONG)], 60)
    assert first[-1] == "gpus"
    assert lines == [["gpu-a", *["ok"] * 7, "8"]]


def test_a_name_that_fits_nowhere_is_folded_and_states_stay() -> None:
    name = "worker-with-a-very-long-name.region-7.example.internal"
    lines = drawn([row(name)], 60)
    assert "".join(line[0] for line in lines[1:]) == name
    assert lines[1][1:] == [*["ok"] * 7, "8"]


def test_lines_are_printed_once_a_change() -> None:
    console = screen(lab_view.PLAIN_WIDTH)
    with lab_view.Lines(console) as view:
        view.show(Snapshot(0.5, [row("gpu-a", State.WAITING)], "begins"))
        view.show(Snapshot(0.6, [row("gpu-a", State.WAITING)], "begins"))
        view.show(Snapshot(1.25, [row("gpu-a", State.WAITING, driver=State.HEALTHY)], "begins"))
        view.show(Snapshot(2.0, [row("gpu-a", driver=State.FAILED)], "goes on"))
        view.show(Snapshot(3.0, [row("gpu-a", driver=State.ABSENT)], "goes on"))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "  0.50 s  begins",
        "  0.50 s  gpu-a: hardware healthy",
        "  0.50 s  gpu-a: driver, runtime, device plugin, labels, telemetry, validated waiting",
        "  1.25 s  gpu-a: driver healthy",
        "  2.00 s  goes on",
        "  2.00 s  gpu-a: driver failed",
        "  2.00 s  gpu-a: runtime, device plugin, labels, telemetry, validated healthy",
        "  3.00 s  gpu-a: driver not there",
    ]


def test_live_leaves_nothing_behind_on_the_screen() -> None:
    console = screen(80, terminal=True)
    with lab_view.Live(console) as view:
        view.show(Snapshot(1.0, ROWS, "begins"))
        view.show(Snapshot(2.0, ROWS, "ends"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    after = text.rpartition("\x1b[?25h")[2]  # the cursor is shown again, then each drawn line is taken away
    assert after.replace("\r", "") == "\x1b[1A\x1b[2K" * (2 + len(ROWS))


def outcome(*, passed: bool = True, problem: str = "") -> Outcome:
    checks = [] if problem else [Check("gpu-a", passed, "first line\nTest PASSED" if passed else "first line\nno GPU")]
    times = dict.fromkeys(list(LAYERS)[:3] if problem else LAYERS, 1.5)
    return Outcome([row("gpu-a")], times, checks, None if problem else 2.0, 2.5, problem)


def concluded(result: Outcome, width: int = 80) -> str:
    console = screen(width)
    lab_view.conclude(console, result, 60)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_end_of_a_good_demo_fits_a_small_screen() -> None:
    text = concluded(outcome())
    assert "CUDA check (simulated GPUs): gpu-a passed" in text
    assert "telemetry 1.50" in text
    assert "Try next" in text
    assert len(text.splitlines()) < 24
    assert max(map(len, text.splitlines())) <= 80


def test_a_failed_check_shows_its_log() -> None:
    text = concluded(outcome(passed=False))
    assert "gpu-a FAILED" in text
    assert "  gpu-a: first line\n  gpu-a: no GPU\n" in text
    assert "Try next" not in text


def test_a_step_that_was_given_up_is_named() -> None:
    text = concluded(outcome(problem="gave up after 60 s: layers"), 200)
    assert "gave up after 60 s: layers" in text
    assert "  hardware 1.50, driver 1.50, runtime 1.50\n" in text
    assert "  not reached: device plugin, labels, telemetry, validated, ClusterPolicy, CUDA check\n" in text
    assert "To find out why" in text


@pytest.mark.parametrize(
    ("result", "good"),
    [
        (outcome(), True),
        (outcome(passed=False), False),
        (outcome(problem="gave up"), False),
        (Outcome([row("gpu-a", driver=State.FAILED)], {}, [Check("gpu-a", True, "")], 1.0, 1.0), False),
        (Outcome([row("cpu-a", State.ABSENT, 0)], {}, [], 1.0, 1.0), False),
    ],
)
def test_what_counts_as_a_good_end(result: Outcome, good: bool) -> None:
    assert result.passed is good
