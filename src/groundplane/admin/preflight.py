"""Preflight as far as the API alone can tell: pure functions from a snapshot to findings.

Each check of the table (checks.py) that can be answered from objects has its function in one of the modules joined
here; what only a node knows ends in ``unknown`` and says so. The support matrix decides what is listed (lookups.py).
Nothing here asks a cluster, and nothing changes one.
"""

from collections.abc import Mapping
from typing import Final

from ..diagnose.findings import Finding, Outcome, grouped
from . import preflight_driver, preflight_platform, preflight_runtime
from .checks import Access, Check, of_command
from .inquiry import Function, Inquiry

_FUNCTIONS: Final[Mapping[str, Function]] = {
    **preflight_platform.ANSWERS,
    **preflight_driver.ANSWERS,
    **preflight_runtime.ANSWERS,
}


def preflight(inquiry: Inquiry, modes: frozenset[Access] = frozenset({Access.API})) -> list[Finding]:
    """Every check of preflight, in the findings' stable order.

    Checks without a function here are ``unknown``: they need a node (their row says what they need).
    """
    return grouped(finding for check in of_command("preflight") for finding in run(check, inquiry, modes))


def run(check: Check, inquiry: Inquiry, modes: frozenset[Access] = frozenset({Access.API})) -> list[Finding]:
    """One check's findings: its function's, or one that says why it was not answered."""
    function = _FUNCTIONS.get(check.id)
    if function is not None and (check.can_look(modes)):
        return list(function(inquiry)) or [
            inquiry.finding(check.id, Outcome.SKIP, f"{check.title}: no node to look at")
        ]
    return [inquiry.finding(check.id, Outcome.UNKNOWN, f"{check.title}: not looked at", cause=_needs(check))]


def _needs(check: Check) -> str:
    ways = {
        Access.EXEC: "commands in operand pods",
        Access.NODE: "a look on the node",
        Access.ARCHIVE: "an archive that has it",
        Access.API: "the API",
    }
    needed = [words for mode, words in ways.items() if mode in check.access and mode is not Access.API]
    return f"needs {' or '.join(needed)}" if needed else "has to be told by a person"
