"""The race on a real kube-apiserver: `python -m bench.peer [--nodes 100,1000,5000]`.

Each program (a bare client, groundplane, and NVIDIA's operator where GROUNDPLANE_PEER_OPERATOR names its binary) gets a
fresh control plane with the same nodes. Building the control plane takes about ten minutes, once.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

import msgspec

from bench import table
from testing.realcluster import build
from testing.realcluster.process import ProcessFailedError

from . import programs, race, report, stage, verdicts
from .programs import Program
from .verdicts import Entry, Turns

POLICIES = ("26.3.3-host-driver", "26.3.3-default")
"""Without and with a driver to install."""
STOPPED = 130
"""Exit status after SIGINT or SIGTERM, as a shell has it."""
MEMORY_LIMIT_MIB = 350
"""What NVIDIA's chart gives its operator."""


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


async def _turns(nodes: int, rounds: int, limit_mib: int) -> Turns:
    found: dict[str, list[race.Labelling]] = {"bare": [], "groundplane": []}
    for number in range(rounds):
        for program in (programs.bare(), programs.groundplane()):
            result = await race.label(program, nodes, POLICIES[0], limit_mib)
            found[program.name].append(result)
            _say(f"{nodes} nodes, round {number + 1}: {program.name} labelled in {result.labelled_s:.2f} s")
    return Turns(nodes=nodes, bare=found["bare"], ours=found["groundplane"])


async def _entry(program: Program, policy: str, nodes: int, arguments: argparse.Namespace) -> Entry:
    run = await race.whole(program, nodes, policy, arguments.memory_limit_mib, arguments.quiet_s)
    _say(f"{nodes} nodes, {policy}: {program.name} ready in {run.ready_s:.1f} s")
    return Entry(program=program.name, policy=policy, nodes=nodes, run=run)


def _stop_in_order() -> None:
    """Have SIGINT and SIGTERM cancel the race, whose contexts end every process."""
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    if running is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, running.cancel)


async def _race(arguments: argparse.Namespace, peer: Program | None) -> tuple[list[Turns], list[Entry]]:
    _stop_in_order()
    racers = [programs.groundplane(), *([peer] if peer else [])]
    turns: list[Turns] = []
    entries: list[Entry] = []
    for nodes in arguments.nodes:
        if arguments.rounds:
            turns.append(await _turns(nodes, arguments.rounds, arguments.memory_limit_mib))
        for policy in arguments.policies:
            entries += [await _entry(program, policy, nodes, arguments) for program in racers]
    return turns, entries


def _numbers(text: str) -> list[int]:
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 100,1000")
    return numbers


def _policies(text: str) -> list[str]:
    chosen = [part for part in text.split(",") if part]
    there = sorted(path.stem for path in stage.POLICIES.glob("*.yaml"))
    if unknown := [name for name in chosen if name not in there]:
        raise argparse.ArgumentTypeError(f"no policy {', '.join(unknown)}; there are {', '.join(there)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peer", description=__doc__)
    add = parser.add_argument
    add("--nodes", type=_numbers, default=[100, 1000, 5000], help="sizes, by commas (default 100,1000,5000)")
    add("--rounds", type=int, default=3, help="turns of labelling against the bare client (default %(default)s)")
    add("--policies", type=_policies, default=POLICIES, metavar="NAMES", help="of the whole runs; empty: none of them")
    add("--quiet-s", type=float, default=60.0, help="seconds of the quiet time (default %(default)g)")
    add("--memory-limit-mib", type=int, default=MEMORY_LIMIT_MIB, help="of groundplane; 0: none (default %(default)s)")
    add("--skip-peer", action="store_true", help="leave NVIDIA's operator out")
    add("-o", "--output", choices=["table", "json"], default="table")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Race and report; 1 if a line that was measured is not met, 2 if it cannot be run."""
    arguments = _parser().parse_args(argv)
    try:
        peer = None if arguments.skip_peer else programs.peer()
        turns, entries = asyncio.run(_race(arguments, peer))
    except (programs.Unusable, build.UnavailableError, race.Failed, ProcessFailedError) as error:
        sys.stderr.write(f"bench.peer: {error}\n")
        return 2
    except asyncio.CancelledError:
        return STOPPED
    results = report.Results(
        machine=table.machine(),
        turns=turns,
        entries=entries,
        verdicts=verdicts.judge(turns, entries, arguments.memory_limit_mib),
        quiet_s=arguments.quiet_s,
        limit_mib=arguments.memory_limit_mib,
        peer_note="" if peer else "left out" if arguments.skip_peer else f"not given ({programs.OPERATOR_VARIABLE})",
    )
    if arguments.output == "json":
        print(msgspec.json.format(msgspec.json.encode(report.document(results))).decode())
    else:
        report.show(results)
    return int(any(verdict.answer == "NOT MET" for verdict in results.verdicts))


if __name__ == "__main__":
    sys.exit(main())
