"""Plans: what a command is about to do, step by step, printed before anything changes; and the record by which an
interrupted run goes on where it was.

A step says what it changes and which commands a person would type for it, so that the plan is also the recipe for
those who do it by hand. What a step does is a function that the command gives; this module runs the functions in
order, writes each step's end into a :class:`Journal`, and leaves out on a second run what the first has done.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ..node.hostroot import write_atomic

API_VERSION: Final = "groundplane.dev/v1alpha1"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is done."""

    id: str
    """Unique in its plan, and the same whenever the same thing is planned."""
    title: str
    changes: str = ""
    """What it changes on cluster or node; empty for a step that only looks."""
    commands: tuple[str, ...] = ()
    """What a person would type for the same, in order."""
    why: str = ""
    undo: str = ""
    """How it is taken back; empty where nothing needs to be, or can be: then :attr:`changes` says so."""
    repeat: bool = False
    """It is done on every run, even if an earlier one has done it: it looks, or waits for what may have changed."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a command will do, in order."""

    title: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = {}
    """What the plan was made for: releases, namespace, values. Two runs with other facts are not one."""

    @property
    def key(self) -> str:
        """Tells plans of different facts or steps apart."""
        whole = msgspec.json.encode([self.title, self.facts, [step.id for step in self.steps]], order="sorted")
        return hashlib.sha256(whole).hexdigest()[:16]

    def document(self) -> dict[str, Any]:
        """The plan as plain values for JSON and YAML."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {"apiVersion": API_VERSION, "kind": "Plan", **found}

    def text(self, done: Iterable[str] = ()) -> list[str]:
        """The plan for people; steps that are ``done`` are marked."""
        finished = set(done)
        lines = [self.title]
        for number, step in enumerate(self.steps, start=1):
            mark = " (done)" if step.id in finished and not step.repeat else ""
            lines.append(f"  {number}. {step.title}{mark}")
            rows = [("why", step.why), ("changes", step.changes or "nothing"), ("undo", step.undo)]
            lines += [f"       {label}: {value}" for label, value in rows if value]
            lines += [f"       $ {command}" for command in step.commands]
        return [*lines, *(f"note: {note}" for note in self.notes)]


class JournalError(Exception):
    """A record of an earlier run cannot be used; the message says which file, and what to do."""


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    plan: str
    title: str
    done: dict[str, Any] = {}


class Journal:
    """Which steps of a plan are done, in a file that survives the process; removed when the plan is at its end."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Take up the record of ``plan`` if there is one.

        Raises:
            JournalError: the file is of another plan, which was interrupted, or is no record.
        """
        self.path = path
        self._record = _Record(plan.key, plan.title)
        if not path.exists():
            return
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Record)
        except (msgspec.DecodeError, OSError) as error:
            raise JournalError(f"{path} is no record of a run: {error}; look at it, then remove it") from None
        if found.plan != plan.key:
            raise JournalError(
                f"{path} is the record of another run that was interrupted ({found.title}): finish that one with the "
                f"same arguments, or remove the file to give it up"
            )
        self._record = found

    @property
    def done(self) -> Mapping[str, Any]:
        """Steps that are done, each with what it left for later ones."""
        return self._record.done

    def note(self, step: str, result: Any = None) -> None:
        """A step is done."""
        self._record.done[step] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, msgspec.json.encode(self._record), mode=0o600)

    def close(self) -> None:
        """The plan is at its end: the next run begins anew."""
        self.path.unlink(missing_ok=True)


def home(*parts: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the administrator's records: ``GROUNDPLANE_HOME``, else ``~/.local/state/groundplane``."""
    base = environ.get("GROUNDPLANE_HOME")
    return Path(base or Path.home() / ".local" / "state" / "groundplane").joinpath(*parts)


Work = Callable[[], Awaitable[Any]]
"""Does a step; what it returns (plain values) is kept in the journal. Raises if the step could not be done."""


class Told:
    """Hears of a run's progress; commands print it, tests read it."""

    def begins(self, step: Step, number: int, of: int) -> None:
        """A step begins."""

    def skipped(self, step: Step, number: int, of: int) -> None:
        """An earlier run has done a step."""

    def ended(self, step: Step, number: int, of: int) -> None:
        """A step is done."""


class Lines(Told):
    """Tells each step in a line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def begins(self, step: Step, number: int, of: int) -> None:
        """A step begins."""
        self._tell(f"[{number}/{of}] {step.title}")

    def skipped(self, step: Step, number: int, of: int) -> None:
        """An earlier run has done a step."""
        self._tell(f"[{number}/{of}] {step.title}: done before")


async def carry_out(plan: Plan, work: Mapping[str, Work], journal: Journal, told: Told | None = None) -> None:
    """Do the steps in order; those that an earlier run has done are left out, unless they repeat.

    What a step raises ends the run, with the journal as it is: the next run takes that step up again. At the end the
    journal is closed.
    """
    told = told or Told()
    of = len(plan.steps)
    for number, step in enumerate(plan.steps, start=1):
        if step.id in journal.done and not step.repeat:
            told.skipped(step, number, of)
            continue
        told.begins(step, number, of)
        journal.note(step.id, await work[step.id]())
        told.ended(step, number, of)
    journal.close()
