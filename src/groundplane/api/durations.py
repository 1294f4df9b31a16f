"""Durations as Prometheus writes them: ``15s``, ``1m30s``, ``500ms`` (contracts/control-plane.md 1.4)."""

import re
from typing import Final

_MILLISECONDS: Final = {
    "y": 365 * 24 * 3_600_000,
    "w": 7 * 24 * 3_600_000,
    "d": 24 * 3_600_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
"""Units from large to small, the order they must appear in; a year is 365 days."""

_SHAPE: Final = re.compile("".join(rf"(?:([0-9]+){unit})?" for unit in _MILLISECONDS), re.ASCII)


def parse(text: str) -> int:
    """The length of a Prometheus duration in milliseconds; ``0`` needs no unit.

    Raises:
        ValueError: not such a duration.
    """
    match = _SHAPE.fullmatch(text)
    if text == "0":
        return 0
    if match is None or not text:
        raise ValueError(f"{text!r} is no duration; write it like 15s, 1m30s or 500ms, units from large to small")
    return sum(int(count or 0) * size for count, size in zip(match.groups(), _MILLISECONDS.values(), strict=True))
