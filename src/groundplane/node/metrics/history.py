"""What happened to GPUs in the last minutes: Xid errors, and for which reasons clocks were held down.

An error may be told twice, by NVML's events and by the kernel's log. Both are kept, and the greater number counts, so
that one which only one of them tells is not lost and none counts twice (contracts/mig-exporter-validator.md 5.4 and 9,
#10).
"""

from collections import Counter, defaultdict, deque
from typing import Final, Literal, NamedTuple, TypeAlias

Origin: TypeAlias = Literal["driver", "kernel log"]

KEPT: Final = 4096
"""Entries that are kept of a GPU, newest first to stay."""

REASONS: Final = {
    0x1: "gpu_idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Why clocks are held down, by NVML's bit (5.4)."""


class Seen(NamedTuple):
    """An Xid error: its number, and when it was seen, in seconds since 1970."""

    code: int
    time: float


class History:
    """What happened, by the GPU's UUID. Moments are monotonic seconds."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each Xid error."""
        self._xids: dict[tuple[str, Origin], deque[tuple[float, int]]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._reasons: dict[str, deque[tuple[float, int]]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._last: dict[str, Seen] = {}

    def add_xid(self, uuid: str, code: int, at: float, time: float, origin: Origin = "driver") -> None:
        """Note an Xid error."""
        self._xids[uuid, origin].append((at, code))
        self._last[uuid] = Seen(code, time)
        self.version += 1

    def add_reasons(self, uuid: str, bits: int, at: float) -> None:
        """Note the reasons that a sample shows."""
        self._reasons[uuid].append((at, bits))

    def last_xid(self, uuid: str) -> Seen | None:
        """The newest Xid error, however old; None if there was none."""
        return self._last.get(uuid)

    def xids(self, uuid: str, since: float) -> dict[int, int]:
        """Occurrences of each Xid error from a moment on, by number."""
        counts = [
            Counter(code for at, code in self._xids.get((uuid, origin), ()) if at >= since)
            for origin in ("driver", "kernel log")
        ]
        return dict(sorted((counts[0] | counts[1]).items()))

    def reasons(self, uuid: str, since: float) -> dict[str, int]:
        """Samples from a moment on that show each reason."""
        counts: Counter[int] = Counter(
            bit for at, bits in self._reasons.get(uuid, ()) if at >= since for bit in REASONS if bits & bit
        )
        return {REASONS[bit]: counts[bit] for bit in sorted(counts)}
