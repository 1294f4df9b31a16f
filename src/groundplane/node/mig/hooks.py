"""Commands around a change of MIG: the hooks file, and running its entries (contracts/mig-exporter-validator.md 1.13).

A hook gets its own environment and the flags of the run, and nothing else of this process. None may go on for ever.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...api import goyaml
from ..process import Completed, Process
from .errors import MigError

LIMIT_S: Final = 600.0
"""How long a command may take. A hook that waits for what waits for us would never end."""
NAMES: Final = ("apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit")
_ENV: Final = ("/usr/bin/env", "/bin/env")


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A command, with what is given to it; ``workdir`` empty is the folder of this process."""

    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = {}
    workdir: str = ""

    def argv(self, more: Mapping[str, str], env: str) -> tuple[str, ...]:
        """The command line that runs it with its own environment, `more` over it, and no other."""
        folder = ("-C", self.workdir) if self.workdir else ()
        settings = (f"{name}={value}" for name, value in {**self.envs, **more}.items())
        return (env, "-i", *folder, *settings, self.command, *self.args)


class _File(msgspec.Struct, frozen=True):
    version: str = ""
    hooks: Mapping[str, list[Hook] | None] | None = None


def parse(text: str, source: str) -> dict[str, tuple[Hook, ...]]:
    """Read a hooks file; `source` names it in errors. Raises :class:`~.errors.MigError`."""
    form = "expected version: v1, and hooks: lists of {command, args, envs, workdir} by name"
    try:
        document = goyaml.loads(text)
        found = msgspec.convert({} if document is None else document, _File)
    except (goyaml.DocumentError, msgspec.ValidationError) as error:
        raise MigError(f"hooks file {source}: {error}; {form}") from error
    if found.version not in ("", "v1"):
        raise MigError(f"hooks file {source}: version {found.version!r}; {form}")
    hooks = {name: tuple(entries or ()) for name, entries in (found.hooks or {}).items()}
    for name, entries in hooks.items():
        for at, each in enumerate(entries):
            if not each.command:
                raise MigError(f"hooks file {source}: hooks.{name}[{at}].command is empty; {form}")
    return hooks


class Hooks:
    """Hooks by name, with the variables that each gets. `output` shows what they print."""

    def __init__(
        self,
        process: Process,
        hooks: Mapping[str, Sequence[Hook]],
        variables: Mapping[str, str],
        *,
        output: Callable[[str], None] | None = None,
    ) -> None:
        self._process = process
        self._hooks = hooks
        self._variables = variables
        self._output = output
        self.warn = process.log.error

    async def run(self, name: str) -> None:
        """Run a hook's entries in order; the first that fails ends it. Raises :class:`~.errors.MigError`."""
        for at, hook in enumerate(self._hooks.get(name, ())):
            where = f"error running {name} hook: entry {at}, {hook.command}"
            argv = hook.argv(self._variables, self._env())
            try:
                done = await within(self._process, LIMIT_S, self._process.execute(argv))
            except OSError as error:
                raise MigError(f"{where}: {error}") from error
            if done is None:
                raise MigError(
                    f"{where}: it was ended after {LIMIT_S:g} s; does it wait for something that waits for us?"
                )
            printed = (done.out + done.err).strip()
            if self._output is not None and printed:
                self._output(printed)
            if done.code:
                shown = f": {printed.splitlines()[-1]}" if printed else ""
                raise MigError(f"{where}: exit status {done.code}{shown}")

    def _env(self) -> str:
        return next((each for each in _ENV if self._process.path(each).exists()), _ENV[0])


async def within(process: Process, seconds: float, work: Any) -> Completed | None:
    """What a command comes to, or None if it took longer; it is ended then, as when this is cancelled."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(process.sleep(seconds))
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        waiting.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
