"""GPU features as they are compared with NVIDIA's: one run in file mode, written down as plain values."""

import asyncio
import time
from pathlib import Path

from .nodekubelet import Figures, Plain, config_of, last_error
from .nodeworld import Command, Scenario, World

END_S = 4.0
LOOK_S = 0.01
_LABELS = "nvidia.com/"


async def observe(command: Command, folder: Path, library: Path, scenario: Scenario) -> tuple[Plain, Figures]:
    """Run the program on a machine: what it did, and its figures. Who has not ended after some seconds never will."""
    world = World(folder, library, scenario)
    figures = Figures()
    async with world.running(command) as running:
        deadline = running.began + END_S
        while running.code is None and time.perf_counter() < deadline:
            figures.memory_mib = max(figures.memory_mib, running.memory_mib("VmHWM"))
            await asyncio.sleep(LOOK_S)
        figures.done_ms = (time.perf_counter() - running.began) * 1000
        found: Plain = {"exit": running.code, "config": config_of(running.log), "files": {}}
        if running.code:
            found["error"] = last_error(running.log)
        found["printed"] = _labels("\n".join(line for line in running.log.splitlines() if line.startswith(_LABELS)))
        for path in (folder / "out").rglob("*"):
            if path.is_file() and path.name != ".keep":
                found["files"][path.name] = {
                    "mode": oct(path.stat().st_mode & 0o777),
                    "labels": _labels(path.read_text()),
                }
        return found, figures


def _labels(text: str) -> Plain:
    lines = (line.partition("=") for line in text.splitlines())
    return {key: value if sign else None for key, sign, value in lines}
