"""A node program as a process of its own, on simulated GPUs: `python -m bench.simulated_node PROGRAM [ARGUMENTS]`.

``GROUNDPLANE_SIMULATION`` names the folder of the simulation, as on a test node; but the driver counts as there without
any file of it on this machine. It imports nothing else, so that time and memory are those of the shipped program.
"""

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from groundplane.node import ownprocess, programs

if TYPE_CHECKING:
    from groundplane.node.devices.source import Source


class Simulated(ownprocess.OwnProcess):
    """This process on a machine whose driver is there, though no library of it is."""

    def devices(self, driver_root: str = "/") -> "Source":
        """The description's GPUs."""
        from groundplane.node.devices import simulated

        file = self.kernel.path(ownprocess.DEVICES)
        return simulated.SimulatedSource(file, library=lambda: True, loaded=lambda: True)


async def run(argv: list[str]) -> int:
    """Run the program that the first word names."""
    program = programs.find(argv[0])
    if program is None:
        raise SystemExit(f"no node program {argv[0]!r}; there are {', '.join(sorted(programs.PROGRAMS))}")
    return await program(Simulated(argv, os.environ))


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:])))
