"""Texts of table cells that several kinds share: ages, durations, selectors, lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from .objects import Document

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def path(document: Any, *keys: str, default: Any = None) -> Any:
    """Return the value at a path of keys, or the default where a key is missing or null."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
        if document is None:
            return default
    return document


def of_count(document: Document, key: str) -> int:
    """Return the number of entries of a map or list."""
    return len(document.get(key) or ())


def joined(items: Iterable[Any]) -> str:
    """Return items separated by commas."""
    return ",".join(str(item) for item in items)


def moment(text: str) -> datetime:
    """Return a time of the API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def human(seconds: float) -> str:
    """Return a duration as kubectl prints ages: 45s, 3m20s, 12m, 5h30m, 23h, 3d4h, 20d, 2y30d."""
    total = int(seconds)
    if total < 0:
        return "0s" if total >= -1 else "<invalid>"
    if total < 2 * _MINUTE:
        return f"{total}s"
    if total < 10 * _MINUTE:
        return _two(total, _MINUTE, "m", 1, "s")
    if total < 3 * _HOUR:
        return f"{total // _MINUTE}m"
    if total < 8 * _HOUR:
        return _two(total, _HOUR, "h", _MINUTE, "m")
    if total < 2 * _DAY:
        return f"{total // _HOUR}h"
    if total < 8 * _DAY:
        return _two(total, _DAY, "d", _HOUR, "h")
    if total < 2 * _YEAR:
        return f"{total // _DAY}d"
    return _two(total, _YEAR, "y", _DAY, "d") if total < 8 * _YEAR else f"{total // _YEAR}y"


def _two(total: int, big: int, big_name: str, small: int, small_name: str) -> str:
    rest = total % big // small
    return f"{total // big}{big_name}" + (f"{rest}{small_name}" if rest else "")


def since(text: str | None, now: datetime, missing: str = "<unknown>") -> str:
    """Return the time passed since a time of the API."""
    return human((now - moment(text)).total_seconds()) if text else missing


def age(document: Document, now: datetime) -> str:
    """Return how old an object is."""
    return since(document["metadata"].get("creationTimestamp"), now)


def duration(start: str, end: str | None, now: datetime) -> str:
    """Return the time from a start to an end, or to now."""
    return human(((moment(end) if end else now) - moment(start)).total_seconds())


def selector_text(selector: Document | None) -> str:
    """Return a label selector as text."""
    if selector is None:
        return "<none>"
    texts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    texts += [_term(term) for term in selector.get("matchExpressions") or []]
    return ",".join(texts) or "<none>"


def _term(term: Document) -> str:
    operator, values = term["operator"], ",".join(term.get("values") or ())
    forms = {
        "Exists": "{key}",
        "DoesNotExist": "!{key}",
        "In": "{key} in ({values})",
        "NotIn": "{key} notin ({values})",
    }
    return forms[operator].format(key=term["key"], values=values)
