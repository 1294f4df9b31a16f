"""The table of checks (contracts/admin-workflow.md 2)."""

import pytest

from groundplane.admin.checks import CHECKS, Access, of_command
from groundplane.diagnose.findings import Layer


def test_every_row_of_the_guide_is_there_once_and_in_order() -> None:
    assert list(CHECKS) == [f"A{number}" for number in range(1, 113)]
    assert all(check.id == number for number, check in CHECKS.items())
    assert len({check.title for check in CHECKS.values()}) == 112


@pytest.mark.parametrize(
    ("command", "first", "last"),
    [
        ("preflight", 1, 50), ("install", 51, 62), ("verify", 63, 71), ("cuda-test", 72, 79), ("baseline", 80, 84),
        ("upgrade", 85, 102), ("rollback", 103, 105), ("doctor", 106, 111), ("must-gather", 112, 112),
    ],
)  # fmt: skip
def test_checks_by_command(command: str, first: int, last: int) -> None:
    assert [check.id for check in of_command(command)] == [  # type: ignore[arg-type]
        f"A{number}" for number in range(first, last + 1)
    ]


@pytest.mark.parametrize(
    ("number", "layer", "source", "title"),
    [
        (
            "A11",
            Layer.KERNEL,
            "docs",
            "All GPU nodes on one operating system when the ClusterPolicy manages the driver",
        ),
        ("A12", Layer.HARDWARE, "guide", "Hardware visible on the node"),
        ("A19", Layer.KERNEL, "ours", "No newer kernel installed and not running"),
        ("A45", Layer.WORKLOAD, "guide", "Ordinary pods need no runtimeClassName"),
    ],
)
def test_rows(number: str, layer: Layer, source: str, title: str) -> None:
    check = CHECKS[number]
    assert (check.layer, check.source, check.title) == (layer, source, title)


def test_access() -> None:
    assert CHECKS["A27"].access == {Access.NODE, Access.EXEC, Access.ARCHIVE}
    assert not CHECKS["A27"].can_look(frozenset({Access.API}))
    assert CHECKS["A2"].can_look(frozenset({Access.API}))
    assert CHECKS["A51"].can_look(frozenset())
