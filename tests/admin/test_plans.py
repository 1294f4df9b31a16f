"""Plans are printed before they are carried out, and a run that was interrupted goes on where it was."""

from pathlib import Path
from typing import Any

import pytest

from groundplane.admin.plans import Journal, JournalError, Plan, Step, Told, carry_out, home

LOOK = Step(id="look", title="look around", repeat=True)
MAKE = Step(
    id="make", title="make it", changes="a namespace", commands=("kubectl create namespace x",), undo="delete it"
)
USE = Step(id="use", title="use it", changes="a release", why="it was asked for")
PLAN = Plan(title="install v26.3.3", steps=(LOOK, MAKE, USE), notes=("nothing else",), facts={"release": "v26.3.3"})


class Record(Told):
    def __init__(self) -> None:
        self.said: list[str] = []

    def begins(self, step: Step, number: int, of: int) -> None:
        self.said.append(f"{number}/{of} {step.id}")

    def skipped(self, step: Step, number: int, of: int) -> None:
        self.said.append(f"skipped {step.id}")

    def ended(self, step: Step, number: int, of: int) -> None:
        self.said.append(f"ended {step.id}")


def work(done: list[str], fails: str = "") -> dict[str, Any]:
    def doing(name: str) -> Any:
        async def do() -> str:
            if name == fails:
                raise RuntimeError(name)
            done.append(name)
            return f"result of {name}"

        return do

    return {step.id: doing(step.id) for step in PLAN.steps}


def test_a_plan_says_what_it_changes_and_how_a_person_would_do_it() -> None:
    text = "\n".join(PLAN.text(done=["make", "look"]))
    assert text.startswith("install v26.3.3\n  1. look around\n       changes: nothing\n  2. make it (done)")
    assert (
        "       $ kubectl create namespace x" in text
        and "undo: delete it" in text
        and text.endswith("note: nothing else")
    )
    document = PLAN.document()
    assert document["kind"] == "Plan" and document["steps"][1]["changes"] == "a namespace"


async def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path, done = tmp_path / "a" / "run.json", list[str]()
    with pytest.raises(RuntimeError):
        await carry_out(PLAN, work(done, fails="use"), Journal(path, PLAN))
    assert done == ["look", "make"] and path.stat().st_mode & 0o777 == 0o600
    again, told = Journal(path, PLAN), Record()
    assert again.done["make"] == "result of make"
    await carry_out(PLAN, work(done), again, told)
    assert done == ["look", "make", "look", "use"]
    assert told.said == ["1/3 look", "ended look", "skipped make", "3/3 use", "ended use"]
    assert not path.exists()


async def test_the_record_of_another_run_is_not_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    Journal(path, PLAN).note("make")
    other = Plan(title="install v26.7.0", steps=PLAN.steps, facts={"release": "v26.7.0"})
    with pytest.raises(JournalError, match=r"another run that was interrupted \(install v26\.3\.3\)"):
        Journal(path, other)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": 1}'])
def test_a_damaged_record_is_told_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(JournalError, match="is no record of a run"):
        Journal(path, PLAN)
    assert path.read_text() == text


def test_records_are_kept_where_the_environment_says(tmp_path: Path) -> None:
    assert home("runs", environ={"GROUNDPLANE_HOME": str(tmp_path)}) == tmp_path / "runs"
    assert home("runs", environ={}) == Path.home() / ".local/state/groundplane/runs"
