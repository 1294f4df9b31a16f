"""How accurate the doctor is: every fault of the lab, what it is taken for, and false alarms on healthy nodes.

``python -m bench.doctor_accuracy [FAULT...]`` breaks labs, faults of nodes many at once and the others one after the
other, asks the shipped doctor live and of an archive, clears them, and prints the confusion table. It ends with 1 if a
fault was mistaken or left something behind, or if a healthy cluster got a finding. ``--patience`` is how many seconds
the doctor's first right answer is waited for.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence

from groundplane.lab.faultbook import FAULTS, fault
from groundplane.lab.faultbook import trial as trials
from groundplane.lab.faultbook.trial import Result, node_for

ROW = "{:32} {:5} {:20} {:20} {:6} {:6} {:6} {:>7} {:6}"


async def at_once(placed: dict[str, str], patience_s: float) -> list[Result]:
    """Faults of nodes, each on its own."""
    specs = [node_for(FAULTS[name], node) for node, name in placed.items()]
    async with trials.trial(specs) as tried:
        return await tried.whole(placed, patience_s)


async def in_turn(names: Sequence[str], patience_s: float) -> list[Result]:
    """Faults that are tried alone, on one lab."""
    found: list[Result] = []
    async with trials.trial(trials.COMMON) as tried:
        for name in names:
            found += await tried.whole({tried.place(name): name}, patience_s)
    return found


async def alarms() -> int:
    """Findings on a healthy cluster that has a node of every kind."""
    async with trials.trial(trials.HEALTHY) as tried:
        verdict = await tried.healthy()
        return len(verdict.causes) + len(verdict.unmatched)


async def measure(names: Sequence[str], patience_s: float) -> tuple[list[Result], int]:
    """All results, and the findings on a healthy cluster."""
    found: list[Result] = []
    for placed in trials.rounds(names):
        found += await at_once(placed, patience_s)
        _tell(len(found), len(names))
    for alone in trials.alone(names):
        found += await in_turn(alone, patience_s)
        _tell(len(found), len(names))
    return found, await alarms()


def _tell(done: int, of: int) -> None:
    print(f"{done} of {of} faults tried", file=sys.stderr)


def show(found: Sequence[Result], alarms: int, seconds: float) -> None:
    """The confusion table and its sums."""
    print(ROW.format("fault", "layer", "causes", "diagnosed", "layer", "cause", "alarms", "archive", "cured"))
    for each in sorted(found, key=lambda each: (each.layer, each.fault)):
        told = ", ".join(each.causes) or ", ".join(f"{note} (note)" for note in each.notes) or "nothing"
        wanted = ", ".join(FAULTS[each.fault].causes)
        marks = ["right" if good else "WRONG" for good in (each.layer_right, each.cause_right)]
        ends = [each.false_alarms, "same" if each.archived else "OTHER", "yes" if each.cured else "NO"]
        print(ROW.format(each.fault, each.layer.value, wanted, told[:20], *marks, *ends))
    count, beside = len(found) or 1, sum(each.false_alarms for each in found)
    archived, cured = sum(each.archived for each in found), sum(each.cured for each in found)
    print(
        f"\n{len(found)} faults: layer right {sum(each.layer_right for each in found) / count:.1%}, cause right "
        f"{sum(each.cause_right for each in found) / count:.1%}, archive as live {archived / count:.1%}, nothing left "
        f"when cleared {cured / count:.1%}; false alarms {beside}"
        f" beside faults, {alarms} on {len(trials.HEALTHY)} healthy nodes; {seconds:.0f} s"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="these only")
    parser.add_argument("--patience", type=float, default=30.0, metavar="SECONDS")
    given = parser.parse_args()
    for name in given.faults:
        fault(name)
    logging.disable(logging.WARNING)
    begin = time.monotonic()
    found, false = asyncio.run(measure(given.faults or list(FAULTS), given.patience))
    show(found, false, time.monotonic() - begin)
    return 0 if all(each.sound for each in found) and not false else 1


if __name__ == "__main__":
    sys.exit(main())
