"""containerd's configuration, versions 1 to 4: handlers in a drop-in, and an import of it in the main file.

contracts/toolkit-cdi.md 5.3 and 9. The drop-in holds a whole copy of the CRI plugin's table, as containerd before 2.1
replaces plugins' tables by those of an import. Version 1 knows no imports and is edited in place, as is any version
where no drop-in is wanted.
"""

import copy
import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ...process import Process
from ..settings import Handler, RuntimeConfigError, RuntimeSettings
from . import distributions, files, sources
from .documents import ABSENT, Path, Plain, TomlDocument, at, drop_with_empty_parents, same, table_at, toml_text, undo
from .engine import Given, Plan, Taken, Texts
from .memory import Kept

NEWEST: Final = 4
SOCKET: Final = "/run/containerd/containerd.sock"
"""Where containerd listens if its configuration does not say."""
TABLES: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
"""The CRI plugin's table by configuration version; a newer version has that of 3."""
LOW_LEVEL: Final = ("runc", "crun")
HEAD: Final = (
    "# Written by nvidia-toolkit, and removed when it ends; put settings of your own into another file.\n"
    "# It repeats the CRI plugin's whole table, as containerd before 2.1 would forget what is not here.\n"
)


def version_of(plain: Plain, name: str) -> int | None:
    """A configuration's version; None for one that says nothing. RuntimeConfigError."""
    if not plain:
        return None
    version = plain.get("version", 1)
    if isinstance(version, bool) or not isinstance(version, int):
        raise RuntimeConfigError(f"{name}: unsupported type for version field: {version!r}; write a whole number")
    return max(version, 1)


def table_name(version: int) -> str:
    """The CRI plugin's table in a configuration of a version."""
    return TABLES[min(version, max(TABLES))]


def cri(plain: Plain, version: int, name: str) -> Plain:
    """The CRI plugin's table."""
    return table_at(plain, ("plugins", table_name(version)), name)


def socket_of(plain: Plain) -> str:
    """The socket that a configuration names (section 9): from version 4 on a plugin's, where ``grpc`` is ignored."""
    version = version_of(plain, "the configuration of containerd") or 2
    path: Path = ("plugins", "io.containerd.server.v1.grpc") if version >= NEWEST else ("grpc",)
    address = at(plain, (*path, "address"))
    return address if isinstance(address, str) and address else SOCKET


def inherited(containerd: Mapping[str, Any], default: str) -> Plain | None:
    """The handler's table that NVIDIA's handlers begin with: the default's, else runc's, else crun's."""
    for name in (default, *LOW_LEVEL):
        table = at(containerd, ("runtimes", name))
        if name and not name.startswith("nvidia") and isinstance(table, dict):
            return copy.deepcopy(table)
    return None


def handler_table(settings: RuntimeSettings, handler: Handler, base: Plain | None, version: int) -> Plain:
    """The table of one of NVIDIA's handlers."""
    if base is None:
        table: Plain = {"runtime_type": settings.runtime_type, "runtime_root": "", "runtime_engine": ""}
        table["privileged_without_host_devices"] = False
    else:
        table = copy.deepcopy(base)
    if not table.get("runtime_type"):
        table["runtime_type"] = settings.runtime_type
    prefixes = [f"{prefix}*" for prefix in settings.annotation_prefixes]
    if prefixes:
        present = table.get("container_annotations", [])
        if not isinstance(present, list) or not all(isinstance(each, str) for each in present):
            raise RuntimeConfigError(f"{settings.config}: container_annotations is not a list of strings: {present!r}")
        table["container_annotations"] = list(dict.fromkeys((*prefixes, *present)))
    table = merged(table, settings.override)
    options = table_at(table, ("options",), f"{settings.config}: the runtime that {handler.name} is made from").copy()
    options["BinaryName"] = handler.path
    if version == 1:
        options["Runtime"] = handler.path
    table["options"] = options
    return table


def merged(below: Any, above: Any) -> Any:
    """Two tables as one, where what the second says counts."""
    if not isinstance(below, dict) or not isinstance(above, Mapping):
        return copy.deepcopy(above)
    result = dict(below)
    for key, value in above.items():
        result[key] = merged(result[key], value) if key in result else copy.deepcopy(value)
    return result


def _renewed(stale: Any, fresh: Any) -> Any:
    """A table with the values of another one, as far as both have them."""
    if not isinstance(stale, dict) or not isinstance(fresh, dict):
        return copy.deepcopy(fresh)
    return {key: _renewed(value, fresh[key]) if key in fresh else value for key, value in stale.items()}


def import_pattern(settings: RuntimeSettings) -> str:
    """What the main file is to import: all of the drop-in's folder, as the host sees it."""
    drop_in = settings.drop_in_host_path or settings.drop_in
    return f"{os.path.dirname(drop_in).rstrip('/')}/*.toml"  # noqa: PTH120


class Containerd:
    """See :class:`~.engine.Engine`."""

    def paths(self, settings: RuntimeSettings) -> tuple[str, ...]:
        """As :meth:`.engine.Engine.paths`."""
        return (settings.drop_in, settings.config) if settings.drop_in else (settings.config,)

    async def load(self, process: Process, settings: RuntimeSettings) -> sources.Loaded:
        """As :meth:`.engine.Engine.load`."""
        return await sources.load(process, settings, [(settings.executable or "containerd", "config", "dump")])

    # --- planning -----------------------------------------------------------------------------------------------------

    def plan(self, process: Process, given: Given) -> Plan:
        """As :meth:`.engine.Engine.plan`."""
        settings = given.settings
        top = TomlDocument(given.originals[settings.config] or "", settings.config)
        own_version = version_of(top.plain, settings.config)  # first, so that an error names the file
        source_version = version_of(given.source.plain, f"the configuration of {settings.runtime}")
        version = own_version or source_version or (1 if settings.legacy_config else 2)
        base, default = self._base(process, given, top, version, source_version)
        containerd = table_at(base, ("containerd",), f"{settings.config}: plugins.{table_name(version)}")
        options = inherited(containerd, default)
        if options is None and source_version is not None:
            told = cri(given.source.plain, source_version, "the source").get("containerd", {})
            options = inherited(_without(told, _ours(settings, told, {})), default)
        warnings = [] if options is not None else [_cannot_infer(settings, default)]
        warnings += _disabled(top)
        tables = {each.name: handler_table(settings, each, options, version) for each in settings.handlers}
        cdi = settings.enable_cdi and max(version, source_version or 0) < NEWEST
        if version == 1 or not settings.drop_in:
            planned = self._in_place(given, top, tables, version, cdi=cdi)
        else:
            planned = self._drop_in(given, top, base, tables, version, default, cdi=cdi)
        return Plan(planned, default, tuple(warnings))

    def _base(
        self, process: Process, given: Given, top: TomlDocument, version: int, source_version: int | None
    ) -> tuple[Plain, str]:
        """The CRI plugin's table without what is ours, and the default handler that it names or named before."""
        settings = given.settings
        view = cri(top.plain, version, settings.config)
        for plain, name in _imported(process, settings, top):
            if version_of(plain, name) is not None and table_name(version_of(plain, name) or 1) == table_name(version):
                view = merged(view, cri(plain, version, name))
        base = view
        if source_version is not None and table_name(source_version) == table_name(version):
            told = cri(given.source.plain, version, "the source")
            if not given.source.by_command:
                base = merged(view, told)
            elif self._ours_in_force(given):
                base = _renewed(told, view)
            else:
                base = told
        original = given.originals.get(settings.drop_in) if settings.drop_in else None
        if original:
            own = TomlDocument(original, settings.drop_in)
            if table_name(version_of(own.plain, settings.drop_in) or version) == table_name(version):
                base = merged(base, cri(own.plain, version, settings.drop_in))
        base = copy.deepcopy(base)
        containerd = table_at(base, ("containerd",), f"{settings.config}: plugins.{table_name(version)}")
        users = table_at(view, ("containerd",), f"{settings.config}: plugins.{table_name(version)}")
        ours = _ours(settings, containerd, users)
        default = _default(containerd)
        if default in ours:
            default = given.default or _default(users)
            default = "" if default in ours else default
        if containerd:
            base["containerd"] = _without(containerd, ours)
            if default:
                base["containerd"]["default_runtime_name"] = default
        return base, default

    def _ours_in_force(self, given: Given) -> bool:
        return any(text and _has_ours(given.settings, TomlDocument(text, path)) for path, text in given.now.items())

    def _drop_in(
        self,
        given: Given,
        top: TomlDocument,
        base: Plain,
        tables: Mapping[str, Plain],
        version: int,
        default: str,
        *,
        cdi: bool,
    ) -> Texts:
        settings = given.settings
        if not settings.drop_in.endswith(".toml"):
            raise RuntimeConfigError(
                f"{settings.drop_in}: containerd imports {import_pattern(settings)} only: "
                f"give the drop-in a name that ends with .toml"
            )
        table = merged(base, {"containerd": {"runtimes": tables}})
        table["containerd"].pop("default_runtime_name", None)
        if settings.default or default:  # always in one place, so that a second run writes the same
            table["containerd"] = {"default_runtime_name": settings.default or default, **table["containerd"]}
        if cdi:
            table["enable_cdi"] = True
        document = {"version": version, "plugins": {table_name(version): table}}
        original = given.originals[settings.drop_in]
        if original:
            own = TomlDocument(original, settings.drop_in).plain
            if own.get("version") == version:
                document = merged(own, document)
        self._import(settings, top, version)
        return {settings.drop_in: HEAD + toml_text(document), settings.config: top.text}

    def _import(self, settings: RuntimeSettings, top: TomlDocument, version: int) -> None:
        if not top.plain:
            top.put(("version",), version)
        imports = top.plain.get("imports", [])
        if not isinstance(imports, list) or not all(isinstance(each, str) for each in imports):
            raise RuntimeConfigError(f"{settings.config}: imports is not a list of strings; correct the file")
        if import_pattern(settings) not in imports:
            top.put(("imports",), [*imports, import_pattern(settings)])

    def _in_place(
        self, given: Given, top: TomlDocument, tables: Mapping[str, Plain], version: int, *, cdi: bool
    ) -> Texts:
        settings = given.settings
        table: Path = ("plugins", table_name(version))
        containerd: Path = (*table, "containerd")
        if not top.plain and version > 1:
            top.put(("version",), version)
        for name, handler in tables.items():
            top.put((*containerd, "runtimes", name), handler)
        if settings.default and version == 1 and settings.legacy_config:
            _legacy_default(settings, top, containerd)
        elif settings.default:
            top.put((*containerd, "default_runtime_name"), settings.default)
        elif at(top.plain, (*containerd, "default_runtime_name")) == settings.name:
            top.drop((*containerd, "default_runtime_name"))
        if cdi:
            top.put((*containerd, "enable_cdi") if version == 1 else (*table, "enable_cdi"), True)
        texts: Texts = {settings.drop_in: given.originals[settings.drop_in]} if settings.drop_in else {}
        return {**texts, settings.config: top.text}

    # --- what is ours -------------------------------------------------------------------------------------------------

    def original(self, settings: RuntimeSettings, path: str, now: str, kept: Kept | None) -> str | None:
        """As :meth:`.engine.Engine.original`."""
        if kept is not None:
            if now == kept.before:
                return now
            if now in kept.written:
                return kept.before
        document = TomlDocument(now, path)
        if settings.drop_in and path == settings.drop_in:
            if kept is None:
                return None if _has_ours(settings, document) else now
            _strip(settings, document, by_name=True)
            return document.text if document.plain.keys() - {"version"} else None
        if kept is not None:
            before = TomlDocument(kept.before or "", path).plain
            whole = frozenset(
                ("plugins", table, "containerd", "runtimes", each.name)
                for table in TABLES.values()
                for each in settings.handlers
            )
            for written in reversed(kept.written):
                added = TomlDocument(written, path).plain
                undo({**before, **{key: added[key] for key in ("version",) if key in added}}, added, document, whole)
            if not document.plain.keys() - {"version"} and "version" not in before:
                document.drop(("version",))  # it was there for the import's sake; a person's keys need it still
            if kept.before is None and not document.plain:
                return None
        return document.text

    def reverted(self, taken: Taken) -> Texts:
        """As :meth:`.engine.Engine.reverted`."""
        settings = taken.settings
        texts = dict(taken.originals)
        had_ours = False
        if settings.drop_in:
            now = taken.now[settings.drop_in]
            had_ours = bool(now) and _has_ours(settings, TomlDocument(now or "", settings.drop_in))
            kept = (taken.kept or {}).get(settings.drop_in)
            stays = texts[settings.drop_in]
            if stays is not None and (kept is None or kept.before is None or stays.startswith(HEAD)):
                texts[settings.config] = taken.now[settings.config]  # what a person made of our file, and its import
        text = texts[settings.config]
        if text:
            top = TomlDocument(text, settings.config)
            _strip(settings, top, by_name=taken.kept is None)
            alone = {"version": top.plain.get("version"), "imports": [import_pattern(settings)]}
            gone = taken.kept is None and had_ours and top.plain == alone
            texts[settings.config] = None if gone else top.text
        return {path: texts[path] for path in reversed(self.paths(settings))}

    # --- reading ------------------------------------------------------------------------------------------------------

    def binaries(self, plain: Mapping[str, object], name: str) -> Sequence[str]:
        """As :meth:`.engine.Engine.binaries`."""
        path = at(plain, ("plugins", _table_of(plain), "containerd", "runtimes", name, "options", "BinaryName"))
        return [path] if isinstance(path, str) and path else []

    def default(self, plain: Mapping[str, object]) -> str:
        """As :meth:`.engine.Engine.default`."""
        name = at(plain, ("plugins", _table_of(plain), "containerd", "default_runtime_name"))
        return name if isinstance(name, str) else ""

    def effective(self, settings: RuntimeSettings, old: Texts, new: Texts) -> bool:
        """As :meth:`.engine.Engine.effective`."""
        return any(not same(_read(old[path], path), _read(new[path], path)) for path in new)

    # --- the world ----------------------------------------------------------------------------------------------------

    def remark(self, process: Process, given: Given) -> None:
        """As :meth:`.engine.Engine.remark`."""
        settings = given.settings
        distribution = distributions.present(process, settings)
        if given.originals[settings.config] is None and distribution is not None:
            text = (
                f"{settings.config} does not exist, but {distribution.name} keeps containerd's configuration elsewhere"
            )
            if not given.source.by_command:
                raise RuntimeConfigError(f"{text}: set {distribution.remedy}")
            process.log.warning(f"{text}; if it is {distribution.name} that runs the pods, set {distribution.remedy}")
        own = distributions.of_config(process, settings)
        if own is not None and own.generated:
            process.log.warning(
                f"{own.name} writes {own.config} anew at each start, and what is added there is lost then: "
                f"what is to stay goes into {own.config}.tmpl"
            )

    async def check(self, process: Process, given: Given) -> None:
        """As :meth:`.engine.Engine.check`."""
        settings = given.settings
        path = distributions.host_path(process, settings)
        usual = path in ("", distributions.USUAL)
        if not settings.executable and (not usual or (not path and not given.source.by_command)):
            process.log.info(f"{settings.config} is not the usual configuration of the host's containerd: not verified")
            return
        argv = [settings.executable or "containerd", *(() if usual else ("-c", path)), "config", "dump"]
        done = await sources.execute(process, sources.chrooted(settings, *argv))
        if done.code in sources.NOT_RUN:
            process.log.info(f"the host's containerd cannot be run, so {settings.config} is not verified by it")
            return
        if done.code != 0:
            raise RuntimeConfigError(
                f"containerd refuses the changed configuration: {sources.last_line(done.err)}; if it is another "
                f"containerd that runs the pods, give its path below the host's root (RUNTIME_EXECUTABLE_PATH)"
            )
        dump = TomlDocument(done.out, "what containerd config dump prints").plain
        for handler in settings.handlers:
            if handler.path not in self.binaries(dump, handler.name):
                raise RuntimeConfigError(_lacking(process, given, handler))


def _lacking(process: Process, given: Given, handler: Handler) -> str:
    """What is wrong where containerd does not have a handler that was written, and what to do."""
    settings = given.settings
    text = (
        f'containerd config dump does not have the runtime "{handler.name}" with {handler.path} after it was added to '
        f"{settings.drop_in or settings.config}"
    )
    top = TomlDocument(given.originals[settings.config] or "", settings.config)
    for name in top.plain.get("imports", []):
        if not set("*?[") & set(name) and not process.path(distributions.on_host(settings, name)).exists():
            return f"{text}: containerd imports nothing after {name}, which does not exist: take it out of the imports"
    return (
        f"{text}: set CONTAINERD_CONFIG to the file that containerd reads, and see that no file that is imported "
        f"later has a runtime of that name"
    )


def _read(text: str | None, path: str) -> Plain:
    return TomlDocument(text or "", path).plain


def _table_of(plain: Mapping[str, object]) -> str:
    return table_name(version_of(dict(plain), "the configuration of containerd") or 2)


def _default(containerd: Mapping[str, Any]) -> str:
    name = containerd.get("default_runtime_name")
    return name if isinstance(name, str) else ""


def _own_names(settings: RuntimeSettings, containerd: Mapping[str, Any]) -> set[str]:
    """Handlers whose executable is one of ours."""
    ours = {each.path for each in settings.handlers}
    runtimes = containerd.get("runtimes", {})
    if not isinstance(runtimes, dict):
        return set()
    return {name for name, table in runtimes.items() if at(table, ("options", "BinaryName")) in ours}


def _ours(settings: RuntimeSettings, containerd: Mapping[str, Any], users: Mapping[str, Any]) -> set[str]:
    """Handlers that are not to be taken on: ours, and of those with our executables all that a person did not write."""
    written = table_at(users, ("runtimes",), f"{settings.config}: containerd")
    return {each.name for each in settings.handlers} | (_own_names(settings, containerd) - set(written))


def _without(containerd: Mapping[str, Any], gone: set[str]) -> Plain:
    """The table of handlers without some, and without a default that is one of them."""
    result = dict(containerd)
    if isinstance(result.get("runtimes"), dict):
        result["runtimes"] = {name: table for name, table in result["runtimes"].items() if name not in gone}
    if _default(result) in gone:
        del result["default_runtime_name"]
    return result


def _has_ours(settings: RuntimeSettings, document: TomlDocument) -> bool:
    return any(
        _own_names(settings, table)
        for name in TABLES.values()
        if isinstance(table := at(document.plain, ("plugins", name, "containerd")), dict)
    )


def _strip(settings: RuntimeSettings, document: TomlDocument, *, by_name: bool) -> None:
    """Take our handlers out, and a default that is one of them; unless ``by_name``, only those with our executables."""
    names = {each.name for each in settings.handlers}
    ours = {each.path for each in settings.handlers}
    for table in TABLES.values():
        path: Path = ("plugins", table, "containerd")
        containerd = at(document.plain, path)
        if not isinstance(containerd, dict):
            continue
        gone = names if by_name else names & _own_names(settings, containerd)
        if _default(containerd) in gone:
            document.drop((*path, "default_runtime_name"))
        if at(containerd, ("default_runtime", "options", "BinaryName")) in ours:
            drop_with_empty_parents(document, (*path, "default_runtime"))
        for name in sorted(gone):
            if at(containerd, ("runtimes", name)) is not ABSENT:
                drop_with_empty_parents(document, (*path, "runtimes", name))


def _legacy_default(settings: RuntimeSettings, top: TomlDocument, containerd: Path) -> None:
    """The default of containerd before 1.3: a table of its own."""
    path = next(each.path for each in settings.handlers if each.name == settings.default)
    table = at(top.plain, (*containerd, "default_runtime"))
    if not isinstance(table, dict):
        table = {"runtime_type": settings.runtime_type, "runtime_root": "", "runtime_engine": ""}
        table["privileged_without_host_devices"] = False
    top.put((*containerd, "default_runtime"), merged(table, {"options": {"BinaryName": path, "Runtime": path}}))


def _cannot_infer(settings: RuntimeSettings, default: str) -> str:
    names = ", ".join(name for name in (default, *LOW_LEVEL) if name)
    return (
        f"could not infer options from the runtimes {names} in {settings.config}: where the kubelet uses the systemd "
        f"cgroup driver, write SystemdCgroup = true into runc's options there, which NVIDIA's runtimes then take on"
    )


def _disabled(top: TomlDocument) -> Iterator[str]:
    disabled = top.plain.get("disabled_plugins", [])
    for name in disabled if isinstance(disabled, list) else []:
        if name in TABLES.values():
            yield f"{top.name} disables containerd's CRI plugin ({name}): the kubelet cannot use this containerd"


def _imported(process: Process, settings: RuntimeSettings, top: TomlDocument) -> Iterator[tuple[Plain, str]]:
    """What the main file imports, but for our drop-in, as far as it can be seen below the host's root."""
    own = process.path(settings.drop_in) if settings.drop_in else None
    imports = top.plain.get("imports", [])
    for pattern in imports if isinstance(imports, list) else []:
        folder, _, names = str(pattern).rpartition("/")
        if not folder.startswith("/"):
            main = distributions.host_path(process, settings) or settings.config
            folder = f"{os.path.dirname(main)}/{folder}".rstrip("/")  # noqa: PTH120
        if folder == os.path.dirname(import_pattern(settings)):  # noqa: PTH120
            shown = os.path.dirname(settings.drop_in)  # noqa: PTH120
        else:
            shown = distributions.on_host(settings, folder)
        try:
            real = process.path(shown)
            found = sorted(fnmatch.filter((each.name for each in real.iterdir()), names)) if real.is_dir() else []
        except OSError as error:
            reason = error.strerror or error
            raise RuntimeConfigError(f"{settings.config}: the import {pattern!r} cannot be read: {reason}") from None
        for name in found:
            if real / name != own:
                path = f"{shown}/{name}"
                yield TomlDocument(files.read(process, path).text or "", path).plain, path
