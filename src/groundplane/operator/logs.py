"""The operator's log: one JSON object a line, or plain lines for a developer (contracts/control-plane.md 5.7).

The keys are those that zap writes (``level``, ``ts``, ``logger``, ``msg``), so that log pipelines made for NVIDIA's
operator keep working. Only the process entry calls :func:`configure`; every module logs through stdlib ``logging``.
"""

import datetime
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

_LEVEL_NAMES: Final = {10: "debug", 20: "info", 30: "warn", 40: "error", 50: "panic"}


def _iso(seconds: float, digits: int, zone: str) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    fraction = f".{int(seconds % 1 * 10**digits):0{digits}d}" if digits else ""
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + fraction + zone


ENCODERS: Final[Mapping[str, Callable[[float], Any]]] = {
    "epoch": lambda seconds: seconds,
    "millis": lambda seconds: seconds * 1e3,
    "nano": lambda seconds: int(seconds * 1e9),
    "iso8601": lambda seconds: _iso(seconds, 3, "Z"),
    "rfc3339": lambda seconds: _iso(seconds, 0, "Z"),
    "rfc3339nano": lambda seconds: _iso(seconds, 6, "Z"),
}
"""How a Unix time is written, by the value of ``--zap-time-encoding``."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, time_encoding: str = "epoch") -> None:
        super().__init__()
        self._encode = ENCODERS[time_encoding]

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, Any] = {
            "level": _LEVEL_NAMES.get(record.levelno, record.levelname.lower()),
            "ts": self._encode(record.created),
            "logger": record.name.removeprefix("groundplane."),
            "msg": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = str(record.exc_info[1])
            entry["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class DevelFormatter(logging.Formatter):
    """Tab-separated lines for a person."""

    def __init__(self, time_encoding: str = "iso8601") -> None:
        super().__init__()
        self._encode = ENCODERS[time_encoding]

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and its traceback below."""
        level = _LEVEL_NAMES.get(record.levelno, record.levelname).upper()
        logger = record.name.removeprefix("groundplane.")
        line = f"{self._encode(record.created)}\t{level}\t{logger}\t{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(*, level: int, devel: bool, time_encoding: str, stream: TextIO | None = None) -> None:
    """Send every log record of this process to ``stream`` (standard error), and only there."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(DevelFormatter(time_encoding) if devel else JsonFormatter(time_encoding))
    logging.basicConfig(level=level, handlers=[handler], force=True)
