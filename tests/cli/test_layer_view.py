"""How nodes' layers are shown while they come up: a table that fits its screen, or a line for each change."""

import io
from typing import Any

import pytest
from rich.console import Console

from groundplane.admin.progress import NodeProgress
from groundplane.cli import layer_view
from groundplane.diagnose.findings import Layer
from groundplane.diagnose.layers import State

WELL = NodeProgress("gpu-a", dict.fromkeys(Layer, State.HEALTHY))
STUCK = NodeProgress(
    "gpu-b",
    {**dict.fromkeys(Layer, State.NOT_REACHED), Layer.HARDWARE: State.HEALTHY, Layer.DRIVER: State.FAILING},
    "driver-x: main ImagePullBackOff",
    Layer.DRIVER,
    "2026-01-01T00:00:00Z",
    True,
)


def drawn(width: int, *rows: NodeProgress, operator: str = "") -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(layer_view.drawn(layer_view.Seen(rows, operator), width))
    file: Any = console.file
    text: str = file.getvalue()
    return text


@pytest.mark.parametrize("width", [140, 100, 60])
def test_every_layer_has_a_column_and_waiting_nodes_come_first(width: int) -> None:
    text = drawn(width, WELL, STUCK)
    assert [word for word in text.split() if word in set(Layer)][:10] == list(Layer)
    assert text.index("gpu-b") < text.index("gpu-a")
    assert "FAIL" in text and "2 GPU nodes, 1 wait" in text
    assert max(map(len, text.splitlines())) <= width


def test_nodes_beyond_a_screen_are_counted() -> None:
    rows = [WELL._replace(node=f"gpu-{number}") for number in range(layer_view.ROWS + 7)]
    assert "and 7 more" in drawn(140, *rows)


def test_an_operator_that_is_not_well_is_the_layer_l9() -> None:
    assert "operator: op: Pending" in drawn(140, WELL, operator="op: Pending")


def test_lines_tell_changes_only(capsys: pytest.CaptureFixture[str]) -> None:
    with layer_view.Lines() as lines:
        for rows in ((STUCK,), (STUCK,), (STUCK._replace(waits="", layer=None), WELL)):
            lines.show(layer_view.Seen(rows, ""))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert told[0].startswith("  gpu-b: L2 waits for driver-x: main ImagePullBackOff; healthy L0")
    assert told[2] == "  gpu-a: nothing waits; healthy L0 L1 L2 L3 L4 L5 L6 L7 L8 L9"
