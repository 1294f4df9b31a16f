"""The protocol of a source of GPUs, and its errors.

A source is opened (the driver's library is loaded and initialised) before it is asked; opening is tried again as often
as one likes, since a driver may come later. Reading is synchronous and takes milliseconds; ``watch`` waits without
blocking the loop. Two sources exist: ``nvml.NvmlSource`` and ``simulated.SimulatedSource``; the same tests hold for
both.
"""

import enum
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import msgspec

from .model import Inventory, Placed

if TYPE_CHECKING:
    from .mig import MigControl
    from .telemetry import Telemetry


class DeviceError(RuntimeError):
    """The driver refuses or fails; the text holds NVML's name of the error, ``code`` its number (0 if it has none)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class LibraryNotFound(DeviceError):  # noqa: N818 - reads as a fact
    """The driver's library (libnvidia-ml.so.1) is in none of the places it is looked for."""


class DriverNotLoaded(DeviceError):  # noqa: N818
    """The library is there but the kernel module is not loaded, or is of another version."""


class NotSupported(DeviceError):  # noqa: N818
    """The GPU or the driver knows no such thing."""


class NotFound(DeviceError):  # noqa: N818
    """There is no such GPU or MIG device."""


class Lost(DeviceError):  # noqa: N818
    """The GPU has fallen off the bus."""


class EventKind(enum.IntFlag):
    """Kinds of events, numbered as NVML numbers them."""

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    XID = 0x8


class Event(msgspec.Struct, frozen=True):
    """Something happened to a GPU. ``uuid`` is empty where it cannot be told; ``xid`` is 0 for other kinds.

    ``gi`` and ``ci`` are :data:`~.model.NO_INSTANCE` for the whole GPU.
    """

    kind: EventKind
    uuid: str
    xid: int = 0
    gi: int = 0xFFFFFFFF
    ci: int = 0xFFFFFFFF


class Level(enum.IntEnum):
    """The nearest common ancestor of two GPUs in the PCI tree, nearest first, numbered as NVML numbers them."""

    SAME_BOARD = 0
    SINGLE_SWITCH = 10
    MULTIPLE_SWITCHES = 20
    HOST_BRIDGE = 30
    SAME_NODE = 40
    CROSS_CPU = 50


class Pair(NamedTuple):
    """How two GPUs are connected: their level, and the number of active NVLinks that lead from one to the other."""

    level: Level
    nvlinks: int


class Watch(Protocol):
    """Events of some GPUs, from the moment the watch was made."""

    unsupported: frozenset[str]
    """UUIDs of GPUs that are too old to tell events (not monitored, healthy)."""
    failed: Mapping[str, DeviceError]
    """GPUs that could not be registered for another reason, by UUID."""

    async def next(self) -> Event:
        """Wait for the next event. Cancelling loses none. Raises :class:`DeviceError` if waiting fails; ask again."""

    async def close(self) -> None:
        """End the watch."""


class Source(Protocol):
    """The GPUs of one machine."""

    def open(self) -> None:
        """Load and initialise the driver's library.

        Raises :class:`LibraryNotFound`, :class:`DriverNotLoaded` or another :class:`DeviceError`.

        Opening an open source changes nothing.
        """

    def close(self) -> None:
        """Give the library back; closing a closed source changes nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def has_library(self) -> bool:
        """Whether the driver's library is found, without loading it (contracts/device-plugin-gfd.md 1.3, 2.2)."""

    def inventory(self) -> Inventory:
        """Read everything. Raises :class:`DeviceError` for what the contract calls fatal (2.10)."""

    def topology(self, uuids: Collection[str]) -> dict[frozenset[str], Pair]:
        """How each two of the GPUs are connected, keyed by the two UUIDs. Raises :class:`DeviceError`."""

    def placement(self, mig_uuid: str) -> Placed:
        """Where a MIG device is. Raises :class:`DeviceError` with NVML's name of the error."""

    def check(self, uuid: str) -> None:
        """Ask a GPU for a sign of life. Raises :class:`Lost` or another :class:`DeviceError` if it gives none."""

    def watch(self, uuids: Collection[str], kinds: EventKind) -> Watch:
        """Watch GPUs (not MIG devices) for events, as far as each supports the kinds."""

    def telemetry(self) -> "Telemetry":
        """Who reads the figures of the GPUs (clocks, power, errors ...); the source must be open, and stay so."""

    def mig(self) -> "MigControl":
        """What reads and changes MIG of these GPUs, while the source is open."""
