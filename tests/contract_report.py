"""Counts the contract cases by engine and prints them at the end of a run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

_ENGINE = re.compile(r"(?:^|/)contract/.*[\[-](lab|kubernetes)(?=[\]-])")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print `contract cases: lab 143 passed, kubernetes 143 passed`, if any ran."""
    counts: dict[str, Counter[str]] = {"lab": Counter(), "kubernetes": Counter()}
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport) and (found := _ENGINE.search(report.nodeid)):
                counts[found[1]][outcome or "passed"] += _is_outcome(report, outcome)
    shown = [f"{name} {_told(count)}" for name, count in counts.items() if count.total()]
    if shown:
        terminalreporter.write_line("contract cases: " + ", ".join(shown))


def _is_outcome(report: pytest.TestReport, outcome: str) -> int:
    """A case counts once: what set it up or took it down counts only where that went wrong."""
    return int(report.when == "call" or outcome in ("failed", "error", "skipped"))


def _told(count: Counter[str]) -> str:
    return " ".join(
        f"{number} {outcome}" for outcome, number in sorted(count.items(), key=lambda it: it[0] != "passed") if number
    )
