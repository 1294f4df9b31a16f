"""A machine that both sources show: the simulated one reads its file, NVML's goes through the mock library."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from groundplane.node.devices import nvml, simfile
from groundplane.node.devices.nvmlerrors import CODES
from groundplane.node.devices.simulated import GpuEntry, Machine, SimulatedSource, describe
from groundplane.node.devices.source import Source
from testing import mocknvml


class World(Machine):
    """A machine whose changes both sources see, a source of it, and whether library and kernel module are there."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.library = True
        self.loaded = True

    def source(self) -> Source:
        return SimulatedSource(self.file, library=lambda: self.library, loaded=lambda: self.loaded)

    def opened(self) -> Source:
        source = self.source()
        source.open()
        return source


class MockedWorld(World):
    """The same, seen through the mock library. `extra` are further arguments of `mocknvml.write`."""

    built: Path | None = None

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.extra: dict[str, Any] = {}
        self.sources: list[Source] = []

    def source(self) -> Source:
        source = nvml.NvmlSource(lambda: self.built if self.library else None)
        self.sources.append(source)
        return source

    def opened(self) -> Source:
        self.show()
        return super().opened()

    def show(self, **extra: Any) -> None:
        """Let the library see the machine as it is, with further arguments for it."""
        self.extra |= extra
        self._show(self.read())

    def _show(self, machine: simfile.SimulatedMachine) -> None:
        error = machine.description.library_error
        init = CODES["ERROR_DRIVER_NOT_LOADED"] if not self.loaded else CODES[error] if error else 0
        mocknvml.write(self.file.with_name("nvml.txt"), machine, init=init, **self.extra)

    def _write(self, description: simfile.Description) -> simfile.SimulatedMachine:
        machine = super()._write(description)
        self._show(machine)
        return machine


Make = Callable[..., World]


@pytest.fixture(scope="session")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mock library."""
    if mocknvml.compiler() is None:
        pytest.skip("there is no C compiler, with which the mock library is built")
    try:
        return mocknvml.build(tmp_path_factory.mktemp("nvml"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the mock library does not build:\n{error.stderr}")


def _of(kind: type[World], folder: Path) -> Make:
    def make(gpus: Sequence[str | GpuEntry], **more: Any) -> World:
        return kind.create(folder / "gpus.yaml", describe("host", gpus, "580.126.20", **more))

    return make


@pytest.fixture
def mocked(tmp_path: Path, built_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes machines that are seen through the mock library."""
    monkeypatch.setenv(mocknvml.VARIABLE, str(tmp_path / "nvml.txt"))
    monkeypatch.setattr(nvml, "WAIT_MS", 20)
    monkeypatch.setattr(nvml, "AFTER_FAILURE_S", 0.0)
    made: list[World] = []

    class Here(MockedWorld):
        built = built_library

    def make(gpus: Sequence[str | GpuEntry], **more: Any) -> World:
        made.append(_of(Here, tmp_path)(gpus, **more))
        return made[-1]

    yield make
    for world in made:
        assert isinstance(world, MockedWorld)
        for source in world.sources:
            source.close()
    deadline = time.monotonic() + 20
    while nvml._library._users:  # threads of watches that were closed
        assert time.monotonic() < deadline, "a watch was not closed"
        time.sleep(0.005)


@pytest.fixture(params=["simulated", "nvml"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes machines for each source in turn."""
    if request.param == "simulated":
        return _of(World, tmp_path)
    found: Make = request.getfixturevalue("mocked")
    return found


async def _soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, 20)


@pytest.fixture
def soon() -> Callable[[Any], Any]:
    """Await something that comes within a generous time."""
    return _soon
