"""The state machine: from what is, to what to do next for every node (contracts/driver-lifecycle.md 3)."""

from .model import Decision, Event, Pass, Snapshot


def decide(snapshot: Snapshot) -> Pass:
    """One pass over all nodes of one machine; every node moves one state at most (3.2 step 5)."""
    raise NotImplementedError


def failure(decision: Decision, why: str) -> Event:
    """The event for a decision whose patch or action the API server did not take."""
    raise NotImplementedError
