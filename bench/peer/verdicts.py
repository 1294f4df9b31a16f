"""What the race must show, line by line: pure, from the figures of one run of the harness.

A line is met, not met, or not measured, when the size it speaks of was not run.
"""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from . import audit
from .race import Labelling, Whole

LABEL_RATIO = 1.2
LABEL_SIZES = (1000, 5000)
PEAK_MIB = {1000: 90.0, 5000: 200.0}
JOIN_SIZE = 5000
JOIN_S = 0.100
LIMIT_SIZE = 5000


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """The bare client and groundplane, taking turns: each pair ran one after the other."""

    nodes: int
    bare: list[Labelling]
    ours: list[Labelling]

    @property
    def ratios(self) -> list[float]:
        """Of each pair, from the program's start to the last label."""
        return [ours.labelled_s / bare.labelled_s for bare, ours in zip(self.bare, self.ours, strict=True)]

    @property
    def ratio(self) -> float:
        """The middle of them."""
        return statistics.median(self.ratios)

    @property
    def bare_s(self) -> float:
        """The bare client's middle."""
        return statistics.median(each.labelled_s for each in self.bare)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run of one program."""

    program: str
    policy: str
    nodes: int
    run: Whole


class Verdict(msgspec.Struct, frozen=True):
    """One line: what must be reached, and what was."""

    wanted: str
    found: str
    answer: Literal["met", "NOT MET", "not measured"]


def _line(wanted: str, met: bool | None, found: str) -> Verdict:
    return Verdict(wanted, found, "not measured" if met is None else "met" if met else "NOT MET")


def judge(turns: Sequence[Turns], entries: Sequence[Entry], limit_mib: int) -> list[Verdict]:
    """All lines. ``entries`` may hold other programs' runs; only groundplane's are judged."""
    ours = [each for each in entries if each.program == "groundplane"]
    return [
        *(_labels(turns, nodes) for nodes in LABEL_SIZES),
        *(_peak([each for each in ours if each.nodes == nodes], nodes) for nodes in PEAK_MIB),
        _quiet(ours),
        _join([each for each in ours if each.nodes == JOIN_SIZE]),
        _alive([each for each in ours if each.nodes == LIMIT_SIZE], limit_mib),
    ]


def _labels(turns: Sequence[Turns], nodes: int) -> Verdict:
    wanted = f"labels on {nodes:,} nodes in at most {LABEL_RATIO:g} x the bare client's time"
    found = next((each for each in turns if each.nodes == nodes), None)
    if found is None:
        return _line(wanted, None, "")
    each = ", ".join(f"{ratio:.2f}" for ratio in found.ratios)
    return _line(wanted, found.ratio <= LABEL_RATIO, f"{found.ratio:.2f} x (median of {each})")


def _peak(runs: Sequence[Entry], nodes: int) -> Verdict:
    wanted = f"peak memory at {nodes:,} nodes at most {PEAK_MIB[nodes]:g} MiB"
    if not runs:
        return _line(wanted, None, "")
    worst = max(each.run.peak_mib for each in runs)
    return _line(wanted, worst <= PEAK_MIB[nodes], f"{worst:.0f} MiB")


def _quiet(runs: Sequence[Entry]) -> Verdict:
    wanted = "quiet time: watches and the lease only"
    if not runs:
        return _line(wanted, None, "")
    others = sum((audit.beyond_quiet(each.run.quiet) for each in runs), audit.Requests())
    listed = ", ".join(f"{number} {verb} {resource}" for (verb, resource), number in sorted(others.items()))
    return _line(wanted, not others, listed or f"nothing else in {len(runs)} runs")


def _join(runs: Sequence[Entry]) -> Verdict:
    wanted = f"one node joining {JOIN_SIZE:,}: labels within {JOIN_S * 1000:g} ms at the median, one write"
    if not runs:
        return _line(wanted, None, "")
    slowest, writes = max(each.run.join_s for each in runs), max(each.run.join_writes for each in runs)
    found = f"{slowest * 1000:.0f} ms, {writes} write{'s' if writes != 1 else ''}"
    return _line(wanted, slowest <= JOIN_S and writes == 1, found)


def _alive(runs: Sequence[Entry], limit_mib: int) -> Verdict:
    """A run that was killed ends the race with an error, so every run there is has lived under the limit."""
    wanted = f"at {LIMIT_SIZE:,} nodes under a limit of {limit_mib} MiB nothing is killed"
    if not runs or not limit_mib:
        return _line(wanted, None, "")
    return _line(wanted, True, f"{len(runs)} runs, peak {max(each.run.peak_mib for each in runs):.0f} MiB")
