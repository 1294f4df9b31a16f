"""`groundplane lab demo`: its exit status is the demo's, and the step that failed is its last line."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from impatience import Impatient

from groundplane.cli import lab
from groundplane.lab import demo
from groundplane.lab.demo import Outcome
from groundplane.lab.faultbook import FAULTS

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


def test_a_demo_whose_doctor_names_another_cause_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS["plugin-image-gone"]._replace(causes=("S99",))
    monkeypatch.setitem(FAULTS, "plugin-image-gone", fault)  # type: ignore[arg-type]
    monkeypatch.setattr(Impatient, "at", "gpu breaks: ")
    monkeypatch.setattr(Impatient, "when", "[P04]")
    monkeypatch.setattr(demo, "Watcher", Impatient)
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: gpu, gpus: [{model: T4}], hostDriver: 595.91.07}]\n", encoding="utf-8")
    result = CliRunner().invoke(lab.command, ["demo", "--plain", "--nodes", str(nodes)])
    assert result.exit_code == 1
    assert "seen: groundplane doctor says: L5 the device plugin's image cannot be pulled [P04]" in result.output
    last = result.output.strip().splitlines()[-1]
    assert last.endswith("gave up after 0 s: gpu breaks: the mirror lacks the device plugin's image")
