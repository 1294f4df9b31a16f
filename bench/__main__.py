"""`python -m bench` (`make bench`): every benchmark, one after the other."""

import subprocess
import sys

MODULES = [
    "bench.startup",
    "bench.client",
    "bench.plugin",
    "bench.features",
    "bench.toolkit",
    "bench.mig",
    "bench.exporter",
    "bench.validator",
    "bench.lab",
    "bench.operator",
    "bench.upgrade",
    "bench.preflight",
    "bench.verify",
    "bench.drift",
    "bench.doctor",
    "bench.archive",
    "bench.diagnosis",
]


def main() -> int:
    """Run each benchmark in a process of its own; return 1 when one fails."""
    return max(subprocess.run([sys.executable, "-m", module]).returncode for module in MODULES)


if __name__ == "__main__":
    sys.exit(main())
