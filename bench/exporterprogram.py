"""The metrics exporter as a process of its own, on simulated GPUs: `python -m bench.exporterprogram`.

The driver counts as there without any file of it on this machine. It imports nothing else, so that time and memory are
those of the shipped program.
"""

import asyncio
import gc
import os
import sys

from groundplane.node.metrics import main

from .simulated_node import Simulated


async def run() -> int:
    """Run it with this process's environment."""
    return await main.run(Simulated(["dcgm-exporter"], os.environ))


if __name__ == "__main__":
    gc.freeze()  # as the real program's start does
    sys.exit(asyncio.run(run()))
