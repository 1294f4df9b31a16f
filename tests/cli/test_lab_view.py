"""What the lab's table and lines look like: never cut, one line a change."""

import io

import msgspec
import pytest
from rich.console import Console

from groundplane.cli import lab_view
from groundplane.lab.demo import Check, FaultTurn, Figures, MigTurn, Outcome, Snapshot
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


UUID = "GPU-5fb45082-cbde-57fe-ad61-5c13f6a88a81"
LINE = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID}), 81559 MiB: 50000 sums are right, 0.012 s"
SLICE = "GPU 0: NVIDIA H100 80GB HBM3 MIG 1g.10gb (UUID: MIG-0c3f): 50000 sums are right, 0.012 s"
FIGURES = Figures(0, "", "", UUID, "default/gpu-user-gpu-a/user", 34, 70.25, 512, 80528, 0)
WHOLE = {"nvidia.com/gpu": 1}
TURN = MigTurn(
    node="gpu-a",
    index=0,
    resource="nvidia.com/mig-1g.10gb",
    before=WHOLE,
    sliced={"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1},
    after=WHOLE,
    check=Check("gpu-a", True, f"Driver 595.91.07, CUDA 13.2\n{SLICE}\nTest PASSED"),
    there_seconds=0.4,
    back_seconds=0.5,
)

SEEN = "log of gpu-operator/nvidia-driver-daemonset-x/nvidia-driver-ctr at 2026-12-01T05:23:25Z"
TOLD = (
    "1 cause found: 3 GPU nodes, 1 not well",
    "",
    "CAUSE: L1 kernel: no headers for the running kernel in the reachable repositories  [S10]",
    "  on       gpu-b",
    f"  seen     {SEEN}",
    "           | Could not resolve Linux kernel version: no repository has linux-headers-6.8.0-60-generic",
    "  fix      1. add a repository that still has it (driver.repoConfig), or a proxy to one that has",
    "           2. boot a kernel whose headers are published",
)
FAULT = FaultTurn(
    node="gpu-b",
    fault="no-kernel-headers",
    title="no repository has the headers",
    mended="the repositories have them again",
    cause="S10",
    told=TOLD,
    found_seconds=0.75,
    healed="Nothing fails: 3 GPU nodes, 0 not well",
    healed_seconds=1.5,
)


def outcome(*, passed: bool = True, problem: str = "", **changed: object) -> Outcome:
    log = f"Driver 595.91.07, CUDA 13.2\n{LINE}\nTest PASSED" if passed else "first line\nno GPU"
    found = Outcome(
        [row("gpu-a", gpus=1)],
        dict.fromkeys(list(LAYERS)[:3] if problem else LAYERS, 1.5),
        [] if problem else [Check("gpu-a", passed, log)],
        None if problem else 2.0,
        4.25,
        problem,
        None if problem else 2.5,
        {} if problem else {"gpu-a": [FIGURES]},
        None if problem else TURN,
        None if problem else FAULT,
    )
    return msgspec.structs.replace(found, **changed)


def concluded(result: Outcome, width: int = 80) -> str:
    console = screen(width)
    lab_view.conclude(console, result, 60)
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return text


def joined(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def test_the_end_of_a_good_demo_says_all_and_fits_a_small_screen() -> None:
    text = concluded(outcome())
    assert "CUDA check (simulated GPUs): gpu-a passed" in text
    assert f"gpu-a: {LINE}" in joined(text)
    assert "Test PASSED" not in text
    assert "telemetry 1.50" in text
    assert "CUDA check 2.50" in text
    assert "The whole demo took 4.25." in text
    assert "Try next" in text
    assert len(text.splitlines()) < 55


def test_figures_are_a_row_a_gpu_and_what_is_not_told_is_a_dash() -> None:
    second = Figures(1, "", "", "GPU-2", temperature_c=35)
    text = concluded(outcome(figures={"gpu-a": [FIGURES, second]}), 100)
    lines = [line.split() for line in text.splitlines()]
    at = next(number for number, words in enumerate(lines) if words[:2] == ["node", "gpu"])
    assert lines[at + 1] == ["gpu-a", "0", "34", "70.2", "512", "80528", "0", "default/gpu-user-gpu-a/user"]
    assert lines[at + 2] == ["gpu-a", "1", "35", *["-"] * 5]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_long_names_of_users_are_folded_and_figures_stay(width: int) -> None:
    user = f"a-namespace-of-a-team/{'trainer-of-a-large-model-' * 3}0/worker"
    figures = msgspec.structs.replace(FIGURES, user=user)
    text = concluded(outcome(figures={"gpu-a": [figures]}), width)
    assert "70.2" in text and "80528" in text
    assert user in "".join(line.split()[-1] for line in text.splitlines() if line.split())


def test_slices_and_what_a_pod_computed_on_one_are_told() -> None:
    text = joined(concluded(outcome()))
    assert "MIG: GPU 0 of gpu-a in slices and back, by label nvidia.com/mig.config" in text
    assert "before: nvidia.com/gpu 1 sliced (0.40 s): nvidia.com/mig-1g.10gb 2, nvidia.com/mig-2g.20gb 1," in text
    assert "back (0.50 s): nvidia.com/gpu 1" in text
    assert f"gpu-a: {SLICE}" in text


def test_without_a_gpu_that_knows_mig_nothing_is_said_of_it() -> None:
    result = outcome(mig=None)
    assert result.passed
    assert "MIG:" not in concluded(result)


def test_what_the_doctor_said_is_quoted_and_folded_below_its_own_text() -> None:
    text = concluded(outcome())
    assert "\nFault on gpu-b: no repository has the headers\n  groundplane doctor, 0.75 s later:\n" in text
    assert all(" ".join(line.split()) in joined(text) for line in TOLD)
    assert (
        "\n               | Could not resolve Linux kernel version: no repository has\n"
        "                 linux-headers-6.8.0-60-generic\n"
        "      fix      1. add a repository that still has it (driver.repoConfig), or a\n"
        "               proxy to one that has\n"
        "               2. boot a kernel whose headers are published\n"
        "  Mended: the repositories have them again; groundplane doctor, 1.50 s later:\n"
        "    Nothing fails: 3 GPU nodes, 0 not well\n"
    ) in text


def test_a_failed_check_shows_its_log() -> None:
    text = concluded(outcome(passed=False))
    assert "gpu-a FAILED" in text
    assert "  gpu-a: first line\n  gpu-a: no GPU\n" in text
    assert "Try next" not in text


def test_a_step_that_was_given_up_is_named_with_what_was_seen_and_what_to_do() -> None:
    problem = "gave up after 60 s: layers\n  seen: gpu-a: driver is waiting\n  to do: look at the pods"
    text = concluded(outcome(problem=problem), 200)
    assert "\ngave up after 60 s: layers\n  seen: gpu-a: driver is waiting\n  to do: look at the pods\n" in text
    assert "  hardware 1.50, driver 1.50, runtime 1.50\n" in text
    assert "  not reached: device plugin, labels, telemetry, validated, ClusterPolicy, CUDA check\n" in text
    assert "To find out why" in text


ILL = msgspec.structs.replace(FIGURES, xid=79)


@pytest.mark.parametrize(
    ("result", "good"),
    [
        (outcome(), True),
        (outcome(mig=None), True),
        (outcome(passed=False), False),
        (outcome(problem="gave up"), False),
        (outcome(problem="gave up", checks=outcome().checks, figures=outcome().figures), False),
        (outcome(rows=[row("gpu-a", gpus=1, driver=State.FAILED)]), False),
        (outcome(rows=[row("cpu-a", State.ABSENT, 0)], checks=[]), False),
        (outcome(figures={}), False),
        (outcome(figures={"gpu-a": [ILL]}), False),
        (outcome(figures={"gpu-a": [msgspec.structs.replace(FIGURES, power_w=None)]}), False),
        (outcome(rows=[row("gpu-a", gpus=2)]), False),
        (outcome(mig=msgspec.structs.replace(TURN, after={})), False),
        (outcome(fault=None), False),
        (outcome(mig=msgspec.structs.replace(TURN, check=Check("gpu-a", False, ""))), False),
    ],
)
def test_what_counts_as_a_good_end(result: Outcome, good: bool) -> None:
    assert result.passed is good
