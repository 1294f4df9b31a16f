"""How long the executable takes to answer: `python -m bench.startup`."""

import statistics
import subprocess
import sys
import time

from . import table

LIMIT_S = 0.150
ROUNDS = 15
BARE = [sys.executable, "-c", "pass"]


def _times(argv: list[str]) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return times


def main() -> None:
    """Print the table; the reference is a bare interpreter's start."""
    bare = statistics.median(_times(BARE))
    rows = []
    for arguments in (["--help"], ["--version"], ["lab", "--help"], ["render", "--help"]):
        times = _times([sys.executable, "-m", "groundplane", *arguments])
        took = statistics.median(times)
        rows.append([" ".join(arguments), took * 1000, min(times) * 1000, bare * 1000, took / bare, LIMIT_S * 1000])
    table.show(
        f"start-up, median of {ROUNDS} ({table.machine()})",
        ["command", "ms", "fastest ms", "bare python ms", "ratio", "limit ms"],
        rows,
    )


if __name__ == "__main__":
    main()
