"""Device plugin and GPU features beside NVIDIA's, on the same machines: `python -m bench.peer.plugin`.

NVIDIA's programs are used only as built binaries that the environment names; nothing of them is part of this project:

``GROUNDPLANE_PEER_PLUGIN``, ``GROUNDPLANE_PEER_GFD``
    the binaries (``go build ./cmd/nvidia-device-plugin ./cmd/gpu-feature-discovery`` in their repository, with the
    linker's flags of its Makefile)
``GROUNDPLANE_RELEASE``
    the release that groundplane's programs behave as: 26.3 beside 0.19 (the default), 26.7 beside 0.20

Both see the same simulated machines through the mock of the driver's library, each in a mount namespace of its own, so
this needs root, Linux and a C compiler, but no GPU. Prints on how many scenarios they agree, where they do not, and how
long each takes. Exit code 1 says that something differs that is not meant to.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import table
from groundplane.node import ownprocess
from groundplane.node.cdi.options import LIBRARIES_ENV, Libraries
from testing import mocknvml

from . import featurescenarios, nodecompare, nodefeatures, nodekubelet, pluginscenarios
from .nodecompare import Difference
from .nodekubelet import Figures
from .nodeworld import Command, Scenario
from .programs import Unusable

BINARIES = {"plugin": "GROUNDPLANE_PEER_PLUGIN", "features": "GROUNDPLANE_PEER_GFD"}
NAMES = {"plugin": "nvidia-device-plugin", "features": "gpu-feature-discovery"}
SCENARIOS = {"plugin": pluginscenarios, "features": featurescenarios}
RUNS = 7
ROUNDS = 2000


class Outcome(NamedTuple):
    """One scenario: what differs, each with the reason if it is meant."""

    scenario: str
    found: list[tuple[Difference, str | None]]

    @property
    def verdict(self) -> str:
        """In a word."""
        if not self.found:
            return "same"
        return "different" if any(why is None for _, why in self.found) else "deliberate"


class Race:
    """Both programs of one kind, and where they run."""

    def __init__(self, program: str, release: str, folder: Path) -> None:
        self.program = program
        self.release = release
        self._folder = folder / "w"
        self._library = mocknvml.build(folder / "library")
        peer = os.environ.get(BINARIES[program], "")
        if not os.access(peer, os.X_OK):
            raise Unusable(f"{BINARIES[program]} is {peer!r}: it must name NVIDIA's {NAMES[program]}")
        argv = (sys.executable, "-m", "groundplane.node", NAMES[program])
        self.commands = (
            Command("groundplane", argv, {ownprocess.RELEASE_ENV: release, LIBRARIES_ENV: Libraries.HOOKS}),
            Command("NVIDIA", (str(Path(peer).resolve()),)),
        )

    async def run(self, command: Command, scenario: Scenario, rounds: int = 0) -> tuple[dict[str, Any], Figures]:
        """One program in one scenario."""
        if self.program == "plugin":
            return await nodekubelet.observe(command, self._folder, self._library, scenario, rounds=rounds)
        return await nodefeatures.observe(command, self._folder, self._library, scenario)

    async def compare(self, scenario: Scenario) -> Outcome:
        """Both programs in one scenario."""
        ours, theirs = [(await self.run(command, scenario))[0] for command in self.commands]
        found = nodecompare.differences(ours, theirs)
        reasons = [(each, nodecompare.reason(self.program, self.release, scenario.name, each)) for each in found]
        return Outcome(scenario.name, reasons)


def _group(name: str) -> str:
    """What a scenario is about, from its name."""
    return re.split(r"[:,]|(?<=^model) |(?<=^name) |(?<=^compute) |(?<=^driver) |(?<=^memory) ", name)[0]


def show(program: str, outcomes: Sequence[Outcome]) -> None:
    """Print how far the programs agree."""
    groups: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        groups.setdefault(_group(outcome.scenario), Counter())[outcome.verdict] += 1
    verdicts = ("same", "deliberate", "different")
    rows = [[group, *(count[verdict] for verdict in verdicts)] for group, count in groups.items()]
    rows.append(["all", *(sum(count[verdict] for count in groups.values()) for verdict in verdicts)])
    table.show(f"{NAMES[program]} beside NVIDIA's: scenarios", ["about", *verdicts], rows)
    reasons = Counter(why for outcome in outcomes for why in {why for _, why in outcome.found if why})
    table.show("deliberate", ["scenarios", "what"], [[number, why] for why, number in reasons.most_common()])
    for outcome in outcomes:
        for found, why in outcome.found:
            if why is None:
                print(f"\n{outcome.scenario}: {found.place}\n  groundplane {_short(found.ours)}")
                print(f"  NVIDIA      {_short(found.theirs)}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 400 else f"{text[:400]}..."


async def measure(race: Race) -> None:
    """Print how long both take, and how much memory, run in turn."""
    scenario = SCENARIOS[race.program].measured()
    found: dict[str, list[Figures]] = {command.name: [] for command in race.commands}
    for _ in range(RUNS):
        for command in race.commands:
            found[command.name].append((await race.run(command, scenario, ROUNDS))[1])
    rows = []
    for name, runs in found.items():
        calls = [time for run in runs for time in run.allocate_ms]
        done = [statistics.median(run.done_ms for run in runs), max(run.done_ms for run in runs)]
        memory = statistics.median(run.memory_mib for run in runs)
        rows.append([name, *done, *(nodekubelet.share(calls, part) for part in (0.5, 0.99)), memory or None])
    what = "registered" if race.program == "plugin" else "labelled (oneshot)"
    columns = ["program", f"{what} ms, median", "slowest", "Allocate p50 ms", "p99", "MiB"]
    note = f"{RUNS} runs in turn; {scenario.name}; Python's client is in the times of Allocate"
    table.show(f"{NAMES[race.program]} ({table.machine()})", columns, rows, note)


async def _all(arguments: argparse.Namespace, folder: Path) -> bool:
    agreed = True
    for program in arguments.programs:
        race = Race(program, arguments.release, folder)
        scenarios = [each for each in SCENARIOS[program].scenarios() if re.search(arguments.only, each.name)]
        outcomes = []
        for scenario in scenarios if not arguments.skip_comparison else ():
            outcomes.append(await race.compare(scenario))
            if outcomes[-1].verdict == "different":
                print(f"  {program}: {scenario.name}: different", file=sys.stderr, flush=True)
        if outcomes:
            show(program, outcomes)
        agreed = agreed and all(outcome.verdict != "different" for outcome in outcomes)
        if not arguments.skip_figures:
            await measure(race)
    return agreed


def main(argv: Iterable[str] | None = None) -> int:
    """Compare, measure, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.peer.plugin", description="beside NVIDIA's node programs")
    parser.add_argument("programs", nargs="*", default=list(NAMES), help="plugin, features (default both)")
    parser.add_argument("--release", default=os.environ.get(ownprocess.RELEASE_ENV) or "26.3")
    parser.add_argument("--only", default="", metavar="REGEX", help="scenarios by their names")
    parser.add_argument("--skip-comparison", action="store_true")
    parser.add_argument("--skip-figures", action="store_true")
    arguments = parser.parse_args(None if argv is None else list(argv))
    if unknown := set(arguments.programs) - set(NAMES):
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    try:
        with tempfile.TemporaryDirectory(prefix="gp") as folder:
            return 0 if asyncio.run(_all(arguments, Path(folder))) else 1
    except Unusable as error:
        sys.stderr.write(f"bench.peer.plugin: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
