"""Options of a node program: from the command line, else the environment, else a file, else a default.

A program describes its options in a table (:class:`Command` of :class:`Option`); this module reads them with the syntax
and the precedence of NVIDIA's programs (contracts/device-plugin-gfd.md 1.1), so that one manifest serves either.
What is wrong is raised as :class:`OptionError`, which says which option and where its value came from; ``--help`` and
``--version`` as :class:`Asked`. What a value means, and reading the file, is left to the programs.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from .. import __version__
from ..api.release import Release
from .process import Process


class Leave(Exception):  # noqa: N818 - what happens, not what is wrong
    """A program must end before its work begins; :meth:`tell` says why and gives the exit code."""

    def tell(self, process: Process) -> int:
        """Print why, and return the exit code."""
        process.log.error(str(self))
        return 1


class Asked(Leave):
    """The command line asks for the help text or the version, which this holds."""

    def tell(self, process: Process) -> int:
        """Print it on standard output; 0."""
        process.out(str(self))
        return 0


class OptionError(Leave):
    """An option cannot be used; the message names it, where its value came from and what is expected."""


# --- types ------------------------------------------------------------------------------------------------------------


class Type(msgspec.Struct, frozen=True):
    """How values of an option are written.

    ``parse`` reads a text, ``decode`` what a JSON document holds; both raise ValueError with what was expected.
    ``show`` writes a value as JSON has it. ``empty`` is what an environment variable without content stands for
    (UNSET: as if it were not there). ``listed``: the flag may be repeated. ``word`` names the type in the help text.
    """

    word: str
    parse: Callable[[str], Any]
    decode: Callable[[Any], Any]
    empty: Any = msgspec.UNSET
    listed: bool = False
    show: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value


_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool:
    """A boolean as Go writes it. ValueError."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("expected true or false (or 1, t, T, TRUE, True, 0, f, F, FALSE, False)")


def _parse_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise ValueError("expected a whole number")
    return int(text)


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a number") from None


def _split(text: str) -> Iterator[str]:
    return (item.strip() for item in text.split(","))


def kind_of(value: Any) -> str:
    """What a JSON value is, for a person."""
    if value is None:
        return "null"
    for kinds, name in ((bool, "a boolean"), (int | float, "a number"), (str, "a string"), (list, "a list")):
        if isinstance(value, kinds):
            return name
    return "a mapping"


def _of_json(kind: type[Any], expected: str) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"expected {expected}, found {kind_of(value)}")
        return value

    return decode


def _list_of_json(decode: Callable[[Any], Any], expected: str, *, one: bool = False) -> Callable[[Any], Any]:
    def decode_all(value: Any) -> tuple[Any, ...]:
        if one and isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            raise ValueError(f"expected {expected}, found {kind_of(value)}")
        return tuple(decode(item) for item in value)

    return decode_all


_decode_string = _of_json(str, "a string")
_decode_int = _of_json(int, "a whole number")

BOOL: Final = Type("", parse_bool, _of_json(bool, "true or false"), empty=False)
STRING: Final = Type("string", str, _decode_string, empty="")
INT: Final = Type("int", _parse_int, _decode_int)
NUMBER: Final = Type("number", _parse_number, _of_json(int | float, "a number"))  # type: ignore[arg-type]
STRINGS: Final = Type(
    "strings",
    lambda text: tuple(filter(None, _split(text))),
    _list_of_json(_decode_string, "a list of strings"),
    empty=(),
    listed=True,
)
"""Comma-separated; empty items are left out."""
WORDS: Final = Type(
    "strings",
    lambda text: tuple(_split(text)),
    _list_of_json(_decode_string, "a string or a list of strings", one=True),
    empty=("",),
    listed=True,
)
"""Comma-separated, each item as it is, so that an empty one is refused; in a file, one string is one item."""
INTS: Final = Type(
    "ints",
    lambda text: tuple(_parse_int(item) for item in _split(text)),
    _list_of_json(_decode_int, "a list of whole numbers"),
    empty=(),
    listed=True,
)


# --- durations --------------------------------------------------------------------------------------------------------

INFINITE: Final = "infinite"
_UNITS_NS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_UNITS_NS["h"] = 60 * _UNITS_NS["m"]
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_MAX_NS: Final = 2**63 - 1


class Duration(msgspec.Struct, frozen=True):
    """A time span in nanoseconds, or endless if ``ns`` is None; written as Go writes it, or ``infinite``."""

    ns: int | None

    @property
    def seconds(self) -> float:
        """In seconds; ``inf`` if endless."""
        return float("inf") if self.ns is None else self.ns / 1e9

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Read ``1m30s``, ``1.5h``, ``-2us``, ``0`` or ``infinite``. ValueError (a number needs a unit)."""
        if text == INFINITE:
            return cls(None)
        sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
        if rest == "0":
            return cls(0)
        total, at = Decimal(0), 0
        for part in _PART.finditer(rest):
            if part.start() != at:
                break
            total += Decimal(part[1]) * _UNITS_NS[part[2]]
            at = part.end()
        if at != len(rest) or not rest:
            raise ValueError(f'expected a duration such as 30s, 1m30s or "{INFINITE}"; a number needs its unit')
        ns = int(total)
        if ns > _MAX_NS:
            raise ValueError("the duration is longer than 292 years")
        return cls(sign * ns)

    @classmethod
    def decode(cls, value: Any) -> "Duration":
        """A duration in a document: a text, or a number of nanoseconds. ValueError."""
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a duration such as 30s, or nanoseconds, found {kind_of(value)}")
        return cls(int(value))

    def __str__(self) -> str:
        if self.ns is None:
            return INFINITE
        sign, ns = "-" if self.ns < 0 else "", abs(self.ns)
        if ns == 0:
            return "0s"
        for unit in ("ns", "us", "ms"):
            if ns < 1000 * _UNITS_NS[unit] and ns < _UNITS_NS["s"]:
                return f"{sign}{_decimal(ns, _UNITS_NS[unit])}{unit.replace('u', 'µ')}"
        minutes, rest = divmod(ns, _UNITS_NS["m"])
        hours, minutes = divmod(minutes, 60)
        head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
        return f"{sign}{head}{_decimal(rest, _UNITS_NS['s'])}s"


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


DURATION: Final = Type("duration", Duration.parse, Duration.decode, show=str)


# --- options ----------------------------------------------------------------------------------------------------------


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option.

    ``flags`` are its names on the command line without dashes, the first of which a person is told; ``env`` the
    environment variables in order: the first that is there counts. ``key`` is its place in the file. ``since`` is the
    first operator release that has it.
    """

    name: str
    type: Type = STRING
    default: Any = ""
    flags: tuple[str, ...]
    env: tuple[str, ...] = ()
    key: str = ""
    help: str = ""
    since: Release | None = None


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program: its name, what it is for, its options, and the words (subcommands) it takes, if any."""

    name: str
    about: str
    options: tuple[Option, ...]
    words: Mapping[str, str] = {}

    def known(self, release: Release) -> tuple[Option, ...]:
        """The options that a release has."""
        releases = list(Release)
        reached = releases.index(release)
        return tuple(each for each in self.options if each.since is None or releases.index(each.since) <= reached)


class Values(msgspec.Struct, frozen=True):
    """The values of a program's options, by name; ``sources`` says of each where it came from, for a person.

    ``word`` is the subcommand, or empty.
    """

    options: tuple[Option, ...]
    found: Mapping[str, Any]
    sources: Mapping[str, str]
    word: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def over(self, document: Mapping[str, Any], where: str) -> "Values":
        """The same, where what neither the command line nor the environment sets comes from a file's document.

        Raises :class:`OptionError`.
        """
        found, sources = dict(self.found), dict(self.sources)
        for option in self.options:
            value = at(document, option.key) if option.key else None
            if value is None:
                continue
            try:
                decoded = option.type.decode(value)  # a wrong type is wrong even where the value is overridden
            except ValueError as error:
                raise OptionError(f"{where}: {option.key}: {error}") from None
            if sources[option.name] == DEFAULT:
                found[option.name] = decoded
                sources[option.name] = where
        return Values(self.options, found, sources, self.word)

    def mistake(self, name: str, text: str) -> OptionError:
        """An error about an option's value: what is wrong, followed by the option and where its value came from."""
        option = next(each for each in self.options if each.name == name)
        return OptionError(f"{text} ({_dashed(option.flags[0])}, from {self.sources[name]})")


DEFAULT: Final = "its default"


def member(document: Any, key: str) -> Any:
    """A mapping's value under a key, as Go finds it: exactly, else whatever the case; None if there is none."""
    if not isinstance(document, Mapping):
        return None
    if key in document:
        return document[key]
    lower = key.lower()
    return next((value for name, value in document.items() if isinstance(name, str) and name.lower() == lower), None)


def at(document: Any, path: str) -> Any:
    """What a document holds at a dotted path; None if it has no such place."""
    for key in path.split("."):
        document = member(document, key)
    return document


def read(command: Command, process: Process, arguments: Sequence[str] | None = None) -> Values:
    """Read a program's options from its command line and environment; the file's come :meth:`~Values.over` them.

    ``arguments`` are those of a subcommand, where the program has read the words before them itself.

    Raises :class:`OptionError` or :class:`Asked`.
    """
    options = command.known(process.release)
    given, word = _parse_arguments(command, options, process, process.argv[1:] if arguments is None else arguments)
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in options:
        texts, source = given.get(option.name), f"the command line ({_dashed(option.flags[0])})"
        if texts is None:
            variable = next((each for each in option.env if each in process.env), None)
            if variable is not None and (process.env[variable] or option.type.empty is not msgspec.UNSET):
                texts, source = [process.env[variable]], f"environment variable {variable}"
                if not process.env[variable]:
                    found[option.name], sources[option.name] = option.type.empty, source
                    continue
        if texts is None:
            found[option.name], sources[option.name] = option.default, DEFAULT
        else:
            found[option.name], sources[option.name] = _parse(option, texts, source), source
    return Values(options, found, sources, word)


_SHOWN: Final = 200
"""Characters of a wrong value that a person is shown."""


def _parse(option: Option, texts: Sequence[str], source: str) -> Any:
    wanted = texts if option.type.listed else texts[-1:]
    try:
        if any("\udc80" <= character <= "\udcff" for text in wanted for character in text):
            raise ValueError("it is not UTF-8 text")
        parsed = [option.type.parse(text) for text in wanted]
    except ValueError as error:
        name = _dashed(option.flags[0])
        shown = ", ".join(f'"{text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."}"' for text in wanted)
        shown = shown.encode(errors="replace").decode()
        raise OptionError(f"invalid value {shown} for {name} from {source}: {error}") from None
    return tuple(item for items in parsed for item in items) if option.type.listed else parsed[0]


def _parse_arguments(
    command: Command, options: Sequence[Option], process: Process, arguments: Sequence[str]
) -> tuple[dict[str, list[str]], str]:
    """Texts by option, and the subcommand: as Go's flag package, which takes one dash or two."""
    by_flag = {flag: option for option in options for flag in option.flags}
    given: dict[str, list[str]] = {}
    word = ""
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        match = re.fullmatch(r"--?([^-=][^=]*)(=.*)?", argument, re.DOTALL)
        if match is None:
            if argument in command.words and not word:
                word = argument
                continue
            raise OptionError(_unexpected(command, argument))
        flag, text = match[1], match[2]
        option = by_flag.get(flag)
        if option is None:
            raise _asked_or_unknown(command, options, flag, process)
        if text is not None:
            given.setdefault(option.name, []).append(text[1:])
        elif option.type is BOOL:
            given.setdefault(option.name, []).append("true")
        elif waiting:
            given.setdefault(option.name, []).append(waiting.pop(0))
        else:
            raise OptionError(f"flag needs an argument: {_dashed(flag)}")
    return given, word


def _unexpected(command: Command, argument: str) -> str:
    words = f"; it takes {', '.join(command.words)}" if command.words else ""
    return (
        f'{command.name}: unexpected argument "{argument}"{words} '
        f"(a flag's value may follow it, but true and false only after an equals sign: --flag=false)"
    )


def _asked_or_unknown(command: Command, options: Sequence[Option], flag: str, process: Process) -> Leave:
    if flag in ("help", "h"):
        return Asked(help_text(command, options))
    if flag in ("version", "v"):
        return Asked(f"{command.name} version {__version__}, for GPU Operator {process.release}\n")
    return OptionError(f"flag provided but not defined: {_dashed(flag)}; see {command.name} --help")


def help_text(command: Command, options: Sequence[Option]) -> str:
    """What ``--help`` prints."""
    lines = [command.about, "", f"Usage: {command.name} [options]{' [command]' if command.words else ''}", ""]
    if command.words:
        lines += ["Commands:", *(f"  {word}\n        {about}" for word, about in command.words.items()), ""]
    lines.append("Options:")
    for option in options:
        names = ", ".join(map(_dashed, option.flags))
        lines.append(f"  {names} {option.type.word}".rstrip())
        details = [option.help] if option.help else []
        default = option.type.show(option.default)
        if default not in ("", [], False):
            shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
            details.append(f"default {shown if default is not True else 'true'}")
        if option.env:
            details.append(" or ".join(f"${name}" for name in option.env))
        lines.append(f"        {'; '.join(details)}")
    lines += ["  --help, -h", "        print this", "  --version, -v", "        print the version", ""]
    return "\n".join(lines)


def _dashed(flag: str) -> str:
    return f"-{flag}" if len(flag) == 1 else f"--{flag}"
