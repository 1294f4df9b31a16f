"""Where the runtime's configuration in force is read from: the runtime's own command, or a file.

contracts/toolkit-cdi.md 5.2. The first source that succeeds counts.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ...process import Completed, Process, wait_any
from ..settings import RuntimeConfigError, RuntimeSettings
from . import files
from .documents import Plain, TomlDocument, toml_plain

COMMAND: Final = "command"
FILE: Final = "file"
NOT_RUN: Final = frozenset({125, 126, 127})
"""Exit codes of ``chroot`` that say that the command was not run."""
TIMED_OUT: Final = 124
LIMIT_S: Final = 60.0
"""How long a command of the host may take."""


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, and whether the runtime itself has told it."""

    plain: Plain
    by_command: bool


def chrooted(settings: RuntimeSettings, *argv: str) -> tuple[str, ...]:
    """A command line for the host's programs."""
    return argv if settings.host_root in ("", "/") else ("chroot", settings.host_root, *argv)


async def load(process: Process, settings: RuntimeSettings, commands: Sequence[Sequence[str]]) -> Loaded:
    """The configuration from the first source that succeeds; ``commands`` are tried in turn for ``command``.

    Raises RuntimeConfigError if none does, or for an unknown source.
    """
    wanted = [_split(source) for source in settings.sources]
    failures: list[str] = []
    for kind, path in wanted:
        try:
            if kind == FILE:
                return Loaded(_of_file(process, path or settings.config), by_command=False)
            if path:
                process.log.warning(f'the configuration source "{kind}" takes no path: {path} is ignored')
            return Loaded(await _of_commands(process, settings, commands), by_command=True)
        except RuntimeConfigError as error:
            failures.append(str(error))
            if len(wanted) > len(failures):
                process.log.info(f"configuration of {settings.runtime}: {error}; trying the next source")
    if not failures:
        return Loaded({}, by_command=False)
    raise RuntimeConfigError(
        f"the configuration of {settings.runtime} cannot be read from any source ({', '.join(settings.sources)}): "
        + "; ".join(failures)
    )


def _split(source: str) -> tuple[str, str]:
    kind, _, path = (part.strip() for part in source.partition("="))
    if kind not in (COMMAND, FILE):
        raise RuntimeConfigError(f'unsupported config source "{source}": expected command, file or file=<path>')
    return kind, path


def _of_file(process: Process, path: str) -> Plain:
    text = files.read(process, path).text
    return {} if text is None else TomlDocument(text, path).plain


async def _of_commands(process: Process, settings: RuntimeSettings, commands: Sequence[Sequence[str]]) -> Plain:
    failures = []
    for argv in commands:
        done = await execute(process, chrooted(settings, *argv))
        if done.code == 0:
            try:
                return toml_plain(done.out)
            except ValueError as error:
                failures.append(f"{' '.join(argv)} printed no TOML: {error}")
        else:
            failures.append(f"{' '.join(argv)} failed (exit code {done.code}): {last_line(done.err)}")
    raise RuntimeConfigError("; ".join(failures))


async def execute(process: Process, argv: Sequence[str]) -> Completed:
    """Run a command; one that cannot be run ends with a code of :data:`NOT_RUN`, as below ``chroot``.

    One that takes longer than :data:`LIMIT_S` is killed; it has failed.
    """
    found = Completed(TIMED_OUT, "", f"{' '.join(argv)} did not end within {LIMIT_S:g} s and was killed")

    async def run() -> None:
        nonlocal found
        found = await process.execute(argv)

    try:
        await wait_any(run(), process.sleep(LIMIT_S))
    except OSError as error:
        return Completed(127, "", f"{argv[0]}: {error.strerror or error}")
    return found


def last_line(text: str) -> str:
    """The last line of what a command has said, which is its error."""
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()
