"""A simulated machine for tests of MIG, and a control whose calls fail, or end the program, at a chosen one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groundplane.node.devices import profiles, simfile
from groundplane.node.devices.model import Profile
from groundplane.node.devices.simulated import GpuEntry, Machine, SimulatedSource, describe
from groundplane.node.devices.simulatedmig import SimulatedMig
from groundplane.node.devices.source import DeviceError
from groundplane.node.mig import layout, state
from groundplane.node.mig.change import World
from groundplane.node.process import Completed

CHANGING = (
    "set_mode",
    "create_gpu_instance",
    "destroy_gpu_instance",
    "create_compute_instance",
    "destroy_compute_instance",
)


class Killed(BaseException):
    """The program is no more."""


class Failing:
    """A control of which one changing call fails (`error`), or from which on none is made any more (`killed`)."""

    def __init__(self, control: Any, at: int, *, error: DeviceError | None = None) -> None:
        self._control = control
        self._at = at
        self._error = error
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._control, name)
        if name not in CHANGING:
            return found

        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self._error is None and self.calls >= self._at:
                raise Killed
            if self.calls == self._at and self._error is not None:
                raise self._error
            return found(*arguments)

        return call


async def no_smi(arguments: Sequence[str]) -> Completed:
    raise AssertionError(f"nvidia-smi {arguments} is not needed on a simulated machine")


class Node:
    """A simulated machine, its source, and what changes are made with."""

    def __init__(self, folder: Path, gpus: Sequence[str | GpuEntry], **more: Any) -> None:
        self.machine = Machine.create(folder / "gpus.yaml", describe("node", gpus, "580.126.20", **more))
        self.source = SimulatedSource(folder / "gpus.yaml", library=lambda: True, loaded=lambda: True)
        self.source.open()
        self.debugged: list[str] = []
        self.warned: list[str] = []

    @property
    def control(self) -> Any:
        return self.source.mig()

    def world(self, control: Any = None) -> World:
        return World(control or self.control, no_smi, self.debugged.append, self.warned.append)

    def states(self) -> tuple[state.GpuState, ...]:
        return state.read(self.control)

    def shapes(self) -> list[tuple[bool | None, list[state.Shape]]]:
        """MIG mode and instances of each GPU, without their ids."""
        return [
            (None if found.modes is None else found.enabled, sorted(each.shape for each in found.instances))
            for found in self.states()
        ]

    def configs(self) -> list[dict[str, int]]:
        return [{str(profile): count for profile, count in sorted(each.config.items())} for each in self.states()]


def entry(
    config: str | None = "", devices: tuple[int, ...] | None = None, filters: tuple[str, ...] = ()
) -> layout.Entry:
    """An entry; `config` is `profile:count ...`, and None is MIG off."""
    return layout.Entry(
        where="mig-configs.a[0]",
        devices=devices,
        filters=filters,
        enabled=config is not None,
        instances=counts(config or ""),
    )


def counts(config: str) -> dict[Profile, int]:
    pairs = (part.split(":") for part in config.split())
    return {profiles.parse(name): int(count) for name, count in pairs}


class InMemory:
    """A simulated machine without a file, for many changes in little time."""

    def __init__(self, gpus: Sequence[str | GpuEntry], **more: Any) -> None:
        self._machine = simfile.machine(describe("node", gpus, "580.126.20", **more), "memory")

    def open(self) -> None:
        """It is always open."""

    def close(self) -> None:
        """It stays open."""

    def machine(self) -> simfile.SimulatedMachine:
        return self._machine

    def card(self, gpu: str) -> simfile.Card:
        return self._machine.cards[gpu]

    def change(self, how: Callable[[simfile.SimulatedMachine], simfile.Description]) -> None:
        self._machine = simfile.machine(how(self._machine), "memory")

    def world(self, control: Any = None) -> World:
        return World(control or self.control, no_smi, lambda _: None, lambda _: None)

    @property
    def control(self) -> SimulatedMig:
        return SimulatedMig(self)
