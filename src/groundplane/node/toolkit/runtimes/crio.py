"""CRI-O's configuration (contracts/toolkit-cdi.md 5.4): handlers in a drop-in, or a hook file.

The main file is never changed, unless no drop-in is wanted. CRI-O merges its files key by key, so the drop-in holds the
handlers alone, and what else a person has written there stays.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...process import Process
from ..settings import RuntimeConfigError, RuntimeSettings
from . import sources
from .documents import Path, Plain, TomlDocument, at, drop_with_empty_parents, same, table_at, undo
from .engine import Given, Plan, Taken, Texts
from .memory import Kept

RUNTIME: Final[Path] = ("crio", "runtime")
RUNTIMES: Final[Path] = (*RUNTIME, "runtimes")
DEFAULT: Final[Path] = (*RUNTIME, "default_runtime")
LOW_LEVEL: Final = ("runc", "crun")
HOOK: Final = "hook"
MODES: Final = ("config", HOOK)
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def hook_file(settings: RuntimeSettings) -> str:
    """The path of the hook file."""
    return f"{settings.hooks_dir.rstrip('/')}/{settings.hook_filename}"


def hook_text(hook_path: str) -> str:
    """What a hook file says that calls an executable, a path of the host, before a container starts."""
    folder, _, name = hook_path.rpartition("/")
    path = _PATH if folder in _PATH.split(":") else f"{_PATH}:{folder}"
    hook: dict[str, Any] = {
        "version": "1.0.0",
        "hook": {"path": hook_path, "args": [name, "prestart"], "env": [f"PATH={path}"]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return json.dumps(hook, indent=2) + "\n"


class Crio:
    """See :class:`~.engine.Engine`."""

    def paths(self, settings: RuntimeSettings) -> tuple[str, ...]:
        """As :meth:`.engine.Engine.paths`."""
        if settings.config_mode not in MODES:
            raise RuntimeConfigError(
                f'invalid cri-o config mode: "{settings.config_mode}": expected one of {", ".join(MODES)}'
            )
        if settings.config_mode == HOOK:
            return (hook_file(settings),)
        return (settings.drop_in or settings.config,)

    async def load(self, process: Process, settings: RuntimeSettings) -> sources.Loaded:
        """As :meth:`.engine.Engine.load`."""
        if settings.config_mode == HOOK:
            return sources.Loaded({}, by_command=False)
        commands = [(settings.executable or "crio", "status", "config"), ("crio-status", "config")]
        return await sources.load(process, settings, commands)

    def original(self, settings: RuntimeSettings, path: str, now: str, kept: Kept | None) -> str | None:
        """As :meth:`.engine.Engine.original`."""
        if kept is not None and now == kept.before:
            return now
        if kept is not None and now in kept.written:
            return kept.before
        if settings.config_mode == HOOK:
            return None if kept is not None or now == hook_text(settings.hook_path) else now
        document = TomlDocument(now, path)
        if kept is not None:
            before = TomlDocument(kept.before or "", path).plain
            whole = frozenset((*RUNTIMES, each.name) for each in settings.handlers)
            for written in reversed(kept.written):
                undo(before, TomlDocument(written, path).plain, document, whole)
            if kept.before is None and not document.plain:
                return None
        return document.text

    def plan(self, process: Process, given: Given) -> Plan:
        """As :meth:`.engine.Engine.plan`."""
        settings = given.settings
        (path,) = self.paths(settings)
        if settings.config_mode == HOOK:
            warning = 'The "hook" config for cri-o is deprecated'
            return Plan({path: hook_text(settings.hook_path)}, warnings=(warning,))
        document = TomlDocument(given.originals[path] or "", path)
        runtime = table_at(given.source.plain, RUNTIME, "the configuration of CRI-O")
        told = self.default(given.source.plain)
        default = (given.default if self._is_own(settings, runtime, told) else told) or ""
        base = _inherited(settings, runtime, default)
        for handler in settings.handlers:
            table = {**copy.deepcopy(base or {}), "runtime_path": handler.path, "runtime_type": "oci"}
            document.put((*RUNTIMES, handler.name), table)
        if settings.default:
            document.put(DEFAULT, settings.default)
        elif at(document.plain, DEFAULT) == settings.name:
            document.drop(DEFAULT)
        names = ", ".join(name for name in (default, *LOW_LEVEL) if name)
        warnings = () if base is not None else (f"could not infer options from CRI-O's runtimes {names}",)
        return Plan({path: document.text}, default, warnings)

    def reverted(self, taken: Taken) -> Texts:
        """As :meth:`.engine.Engine.reverted`."""
        settings = taken.settings
        (path,) = self.paths(settings)
        text = taken.originals[path]
        if settings.config_mode == HOOK:
            if taken.now[path] is None:
                raise RuntimeConfigError(f"error removing hook: {path} does not exist; somebody has removed it already")
            return {path: text if taken.kept is not None else None}
        if taken.kept is None and text is not None and settings.default:
            document = TomlDocument(text, path)
            if at(document.plain, DEFAULT) in {each.name for each in settings.handlers}:
                drop_with_empty_parents(document, DEFAULT)
            text = document.text
        return {path: text}

    def binaries(self, plain: Mapping[str, object], name: str) -> Sequence[str]:
        """As :meth:`.engine.Engine.binaries`."""
        path = at(plain, (*RUNTIMES, name, "runtime_path"))
        return [path] if isinstance(path, str) and path else []

    def default(self, plain: Mapping[str, object]) -> str:
        """As :meth:`.engine.Engine.default`."""
        name = at(plain, DEFAULT)
        return name if isinstance(name, str) else ""

    def effective(self, settings: RuntimeSettings, old: Texts, new: Texts) -> bool:
        """Handlers that are no longer there need no restart, as nobody asks for them; nor do hooks."""
        if settings.config_mode == HOOK:
            return False
        (path,) = self.paths(settings)
        before, after = (TomlDocument(texts[path] or "", path) for texts in (old, new))
        for handler in settings.handlers:
            if not isinstance(at(after.plain, (*RUNTIMES, handler.name)), dict):
                drop_with_empty_parents(before, (*RUNTIMES, handler.name))
        return not same(before.plain, after.plain)

    def remark(self, process: Process, given: Given) -> None:
        """As :meth:`.engine.Engine.remark`: nothing."""

    async def check(self, process: Process, given: Given) -> None:
        """As :meth:`.engine.Engine.check`: nothing that could be asked."""

    def _is_own(self, settings: RuntimeSettings, runtime: Plain, name: str) -> bool:
        ours = {each.path for each in settings.handlers}
        return (
            name in {each.name for each in settings.handlers} or at(runtime, ("runtimes", name, "runtime_path")) in ours
        )


def _inherited(settings: RuntimeSettings, runtime: Plain, default: str) -> Plain | None:
    for name in (default, *LOW_LEVEL):
        table = at(runtime, ("runtimes", name))
        if name and not name.startswith("nvidia") and isinstance(table, dict):
            return table
    return None
