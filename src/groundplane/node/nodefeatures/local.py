"""Features that other programs of the node leave in files, `key=value` a line: NFD's folder features.d.

Source: contracts/device-plugin-gfd.md 9. Parsing is pure; a moment decides which lines have expired. A file or line
that is wrong is left out alone, and said.
"""

import datetime
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

MAX_BYTES: Final = 65536
_DIRECTIVE: Final = "# +"
_EVER: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class Local(msgspec.Struct, frozen=True):
    """What some files ask for: labels, and features that are offered to rules. ``problems`` are for a person."""

    labels: dict[str, str] = {}
    features: dict[str, str] = {}
    problems: tuple[str, ...] = ()


class _Next(msgspec.Struct):
    """What the directives so far say of the lines that follow."""

    expires: datetime.datetime = _EVER
    label: bool = True
    feature: bool = True


def read(folder: Path, now: datetime.datetime) -> Local:
    """All files of a folder in the order of their names, later ones winning; nothing if there is no such folder."""
    found = Local()
    try:
        files = sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=lambda e: e.name)
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        return Local(problems=(f"{folder}: {error.strerror or error}",))
    for file in files:
        found = _over(found, _read_file(file, now))
    return found


def _over(one: Local, other: Local) -> Local:
    return Local(one.labels | other.labels, one.features | other.features, one.problems + other.problems)


def _read_file(file: Path, now: datetime.datetime) -> Local:
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return Local()
        if status.st_size > MAX_BYTES:
            return Local(problems=(f"{file}: {status.st_size} bytes, more than {MAX_BYTES}: the file is left out",))
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Local(problems=(f"{file}: {error.strerror or error}: the file is left out",))
    return parse(text, now, str(file))


def parse(text: str, now: datetime.datetime, name: str = "features.d") -> Local:
    """The features of one file's text; ``name`` is for messages."""
    found = Local(labels={}, features={})
    problems = []
    following = _Next()
    for number, line in _lines(text):
        if line.startswith("#"):
            problem = _direct(line, following)
            if problem:
                problems.append(f"{name}:{number}: {problem}")
            continue
        key, equals, value = line.partition("=")
        said = value if equals else "true"
        if following.expires >= now:
            if following.label:
                found.labels[key] = said
            if following.feature:
                found.features[key] = said
        following.label = following.feature = True
    return msgspec.structs.replace(found, problems=tuple(problems))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _direct(line: str, following: _Next) -> str:
    """Take a directive in; what is wrong with it, or nothing. Other comments say nothing to us."""
    if not line.startswith(_DIRECTIVE):
        return ""
    key, equals, value = line.removeprefix(_DIRECTIVE).partition("=")
    match key.strip():
        case "expiry-time":
            moment = _moment(value.strip())
            if moment is None:
                return f"{line!r}: expected '# +expiry-time=' and a time as in 2026-01-31T12:00:00Z (RFC 3339)"
            following.expires = moment
        case "no-label" if not equals:
            following.label = False
        case "no-feature" if not equals:
            following.feature = False
        case _:
            return f"{line!r}: no such directive; there are +expiry-time=<time>, +no-label, +no-feature"
    return ""


def _moment(text: str) -> datetime.datetime | None:
    """A time of RFC 3339, which has a zone."""
    try:
        moment = msgspec.convert(text, datetime.datetime)
    except msgspec.ValidationError:
        return None
    return moment if moment.tzinfo is not None else None
