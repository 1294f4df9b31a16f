"""`groundplane lab demo`: its exit status is the demo's, and the step that failed is its last line."""

import pytest
from click.testing import CliRunner

from groundplane.cli import lab
from groundplane.lab.demo import Outcome

PROBLEM = "failed: MIG: gpu is labelled nvidia.com/mig.config=x\n  seen: state=failed\n  to do: see the log"


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (PROBLEM, "failed: MIG: gpu is labelled nvidia.com/mig.config=x"),
        ("", "see the tables and the CUDA check above"),
    ],
)
def test_a_demo_that_ends_badly_is_an_error_that_names_the_step(
    monkeypatch: pytest.MonkeyPatch, problem: str, told: str
) -> None:
    async def ends_badly(_nodes: str | None, _speed: float, _plain: bool) -> Outcome:
        return Outcome([], {}, [], None, 1.0, problem)

    monkeypatch.setattr(lab, "_demo", ends_badly)
    result = CliRunner().invoke(lab.command, ["demo"])
    assert result.exit_code == 1
    assert result.output.strip().endswith(f"Error: the demo did not end well: {told}")
