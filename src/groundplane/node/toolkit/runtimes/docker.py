"""Docker's ``daemon.json`` (contracts/toolkit-cdi.md 5.5): handlers, the default one, and the CDI feature."""

from collections.abc import Mapping, Sequence
from typing import Final

from ...process import Process
from ..settings import RuntimeConfigError, RuntimeSettings
from . import files
from .documents import ABSENT, JsonDocument, at, drop_with_empty_parents, same, undo
from .engine import Given, Plan, Taken, Texts
from .memory import Kept
from .sources import Loaded

DEFAULT: Final = "runc"


class Docker:
    """See :class:`~.engine.Engine`."""

    def paths(self, settings: RuntimeSettings) -> tuple[str, ...]:
        """As :meth:`.engine.Engine.paths`."""
        return (settings.config,)

    async def load(self, process: Process, settings: RuntimeSettings) -> Loaded:
        """As :meth:`.engine.Engine.load`."""
        text = files.read(process, settings.config).text
        return Loaded(JsonDocument(text or "", settings.config).plain, by_command=False)

    def original(self, settings: RuntimeSettings, path: str, now: str, kept: Kept | None) -> str | None:
        """As :meth:`.engine.Engine.original`."""
        if kept is None or now == kept.before:
            return now
        if now in kept.written:
            return kept.before
        document = JsonDocument(now, path)
        before = JsonDocument(kept.before or "", path).plain
        whole = frozenset(("runtimes", each.name) for each in settings.handlers)
        for written in reversed(kept.written):
            undo(before, JsonDocument(written, path).plain, document, whole)
        return None if kept.before is None and not document.plain else document.text

    def plan(self, process: Process, given: Given) -> Plan:
        """As :meth:`.engine.Engine.plan`."""
        settings = given.settings
        document = JsonDocument(given.originals[settings.config] or "", settings.config)
        for key in ("runtimes", "features"):
            if document.plain.get(key, {}) is None:
                document.put((key,), {})  # as Docker takes null
            if not isinstance(document.plain.get(key, {}), dict):
                raise RuntimeConfigError(f'{settings.config}: "{key}" is not an object; correct the file')
        for handler in settings.handlers:
            document.put(("runtimes", handler.name), {"path": handler.path, "args": []})
        if settings.default:
            document.put(("default-runtime",), settings.default)
        if settings.enable_cdi:
            document.put(("features", "cdi"), True)
        return Plan({settings.config: document.text})

    def reverted(self, taken: Taken) -> Texts:
        """As :meth:`.engine.Engine.reverted`."""
        settings = taken.settings
        text = taken.originals[settings.config]
        if text is None:
            return {settings.config: None}
        document = JsonDocument(text, settings.config)
        ours = {each.path for each in settings.handlers}
        gone = {
            each.name
            for each in settings.handlers
            if taken.kept is None or at(document.plain, ("runtimes", each.name, "path")) in ours
        }
        if self.default(document.plain) in gone:
            document.put(("default-runtime",), DEFAULT)
        for name in sorted(gone):
            if at(document.plain, ("runtimes", name)) is not ABSENT:
                drop_with_empty_parents(document, ("runtimes", name))
        return {settings.config: document.text}

    def binaries(self, plain: Mapping[str, object], name: str) -> Sequence[str]:
        """As :meth:`.engine.Engine.binaries`."""
        path = at(plain, ("runtimes", name, "path"))
        return [path] if isinstance(path, str) and path else []

    def default(self, plain: Mapping[str, object]) -> str:
        """As :meth:`.engine.Engine.default`."""
        name = at(plain, ("default-runtime",))
        return name if isinstance(name, str) else ""

    def effective(self, settings: RuntimeSettings, old: Texts, new: Texts) -> bool:
        """As :meth:`.engine.Engine.effective`."""
        return any(
            not same(JsonDocument(old[path] or "", path).plain, JsonDocument(new[path] or "", path).plain)
            for path in new
        )

    def remark(self, process: Process, given: Given) -> None:
        """As :meth:`.engine.Engine.remark`: nothing."""

    async def check(self, process: Process, given: Given) -> None:
        """As :meth:`.engine.Engine.check`: nothing that could be asked."""
