"""Worlds for the exporter."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from node.metrics.exporterworld import World

from groundplane.node.devices.simulated import GpuEntry


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="gp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def world(short: Path) -> AsyncIterator[Callable[..., World]]:
    """Makes worlds."""
    made: list[World] = []

    def make(gpus: Sequence[str | GpuEntry], **more: Any) -> World:
        folder = short / str(len(made))
        folder.mkdir()
        made.append(World(folder, gpus, **more))
        return made[-1]

    yield make
    for each in made:
        await each.close()
