"""Helm: what changes releases and renders charts, in this process or as the ``helm`` that is on the PATH.

One protocol with two makers behind it: :class:`InProcess` over helm-python-sdk (an optional dependency, imported when
it is used) and :class:`Executable`. Both are given charts as :class:`Chart`, a reference that is always pinned
(contracts/admin-workflow.md A51) and that :func:`fetch` turns into a file first, so that what is looked at, rendered
and installed is one and the same. What Helm says when something fails is told as an error of its own kind, with what it
means and how to go on. Long calls run beside the event loop, and end Helm's work when they are cancelled. Reading
releases needs no Helm: see ``releases``.
"""

import asyncio
import functools
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import yaml

from . import plans

T = TypeVar("T")
Document = dict[str, Any]

NVIDIA_REPOSITORY: Final = "https://helm.ngc.nvidia.com/nvidia"
NVIDIA_CHART: Final = "gpu-operator"
INDEX_LIMIT: Final = 64 << 20
"""Bytes of a repository's index that are read."""
DISCOVERY_S: Final = 60.0
"""How long the API server may take to tell of kinds that the chart has just defined, before Helm's word counts."""
_NOT_YET: Final = "ensure CRDs are installed first"
_VERSIONS_SHOWN: Final = 12


# --- Errors -----------------------------------------------------------------------------------------------------------


class HelmError(Exception):
    """Helm could not do what was asked; the message says what, and :attr:`fix` how to go on."""

    fix: str = ""

    def __init__(self, message: str, fix: str = "") -> None:
        self.fix = fix or self.fix
        super().__init__(message)

    def __str__(self) -> str:
        said = super().__str__()
        return f"{said}. {self.fix[:1].upper()}{self.fix[1:]}" if self.fix else said


class HelmMissing(HelmError):  # noqa: N818
    """There is no Helm to work with."""

    fix = "install groundplane[helm], or put a helm executable on the PATH; --print helm shows the commands instead"


class Unpinned(HelmError):  # noqa: N818
    """A chart without a version (A51)."""


class ChartNotFound(HelmError):  # noqa: N818
    """No such chart, or no such version of it; the message lists what there is."""


class ReleaseExists(HelmError):  # noqa: N818
    """A release of that name is there already."""

    fix = "change it with groundplane upgrade, or remove it with groundplane uninstall first"


class ReleasePending(HelmError):  # noqa: N818
    """A run of Helm for this release is under way, or was ended in the middle."""

    fix = (
        "with no helm running any more, --recover goes back to the last revision that was deployed (helm rollback), or "
        "takes a first installation away that never ended (helm uninstall)"
    )


class ReleaseMissing(HelmError):  # noqa: N818
    """No such release, or revision of it."""

    fix = "helm list --all-namespaces --all shows the releases that there are"


class TimedOut(HelmError):  # noqa: N818
    """The chart's objects were not ready in time. That says nothing about the nodes."""

    fix = (
        "look at the pods that are not ready (groundplane doctor); the same command goes on, --timeout gives more time"
    )


class NoRights(HelmError):  # noqa: N818
    """The API server refuses something to whoever runs Helm."""


class HookFailed(HelmError):  # noqa: N818
    """A job of the chart did not succeed (contracts/admin-workflow.md 9.4)."""

    fix = (
        "look at the job's pod: the hooks run the operator's image, and block for as long as it cannot be pulled "
        "(kubectl describe pod, kubectl get events)"
    )


class ValuesRefused(HelmError):  # noqa: N818
    """The chart does not accept the values, by its schema or its own checks."""

    fix = "correct the values; nothing has been changed"


class NotOwned(HelmError):  # noqa: N818
    """An object that the chart has is there already, and not this release's."""

    fix = "remove the object or the release that owns it, or give its name to this release, and run again"


class Unreachable(HelmError):  # noqa: N818
    """No answer from the API server or the chart repository."""


class _Told(NamedTuple):
    pattern: re.Pattern[str]
    error: type[HelmError]
    about: str
    """Said before Helm's own words."""


def _told(pattern: str, error: type[HelmError], about: str) -> _Told:
    return _Told(re.compile(pattern, re.I | re.S), error, about)


_TABLE: Final = (
    _told(r"another operation \(install/upgrade/rollback\) is in progress", ReleasePending, "the release is pending"),
    _told(r"cannot re-?use a name that is still in use", ReleaseExists, "there is a release of that name"),
    _told(r"invalid ownership metadata|cannot be imported into the current release", NotOwned, "not this release's"),
    _told(r"secrets.{0,80} is forbidden|forbidden.{0,160}secrets", NoRights, "Helm keeps releases in Secrets"),
    _told(r"is forbidden|\bforbidden\b", NoRights, "the API server refuses it"),
    _told(r"(pre|post)-(install|upgrade|rollback|delete) hooks? failed|hook.{0,40}failed", HookFailed, "a hook failed"),
    _told(r"don't meet the specifications of the schema|: got \w+, want ", ValuesRefused, "the values have errors"),
    _told(r"execution error at", ValuesRefused, "the chart refuses the values"),
    _told(r"context deadline exceeded|timed? ?out|would exceed context deadline", TimedOut, "not ready in time"),
    _told(r"release: not found|release .{0,80}not found|no revision", ReleaseMissing, "not there"),
    _told(r"chart .{0,120}not found|no chart (version|name) found|no such file", ChartNotFound, "no chart"),
    _told(r"connection refused|no such host|cluster unreachable|i/o timeout|EOF$", Unreachable, "no answer"),
)  # fmt: skip


def classify(said: str) -> HelmError:
    """What Helm has said as an error of its kind; a plain :class:`HelmError` for what nobody knows."""
    words = " ".join(said.split())
    for row in _TABLE:
        if row.pattern.search(words):
            return row.error(f"{row.about}: {words}")
    return HelmError(f"Helm says: {words}")


# --- Charts -----------------------------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """A chart, pinned: a folder or archive (its own version counts), a name in a repository, or ``oci://``."""

    reference: str
    version: str = ""
    repository: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is a folder or an archive of this machine."""
        return not self.repository and not self.is_oci

    @property
    def is_oci(self) -> bool:
        """Whether a registry holds it."""
        return self.reference.startswith("oci://")

    def __str__(self) -> str:
        where = f"{self.repository.rstrip('/')}/{self.reference}" if self.repository else self.reference
        return f"{where} {self.version}".strip()


def chart_of(reference: str, version: str = "", repository: str = "") -> Chart:
    """The chart that a person named; without any, NVIDIA's from NVIDIA's repository.

    Raises:
        Unpinned: it is none of this machine, and no version was given.
        ChartNotFound: it looks like a path, and there is nothing.
    """
    if not reference:
        reference, repository = NVIDIA_CHART, repository or NVIDIA_REPOSITORY
    chart = Chart(reference, version, repository)
    if chart.is_local:
        if not Path(reference).exists():
            raise ChartNotFound(
                f"no chart at {reference}", "give a folder, a .tgz, oci://..., or a name with --repository URL"
            )
        return chart._replace(version=_own_version(chart))
    if not version:
        raise Unpinned(
            f"{chart} has no version: what is installed must be pinned", "give --version, such as --version v26.3.3"
        )
    return chart


def _own_version(chart: Chart) -> str:
    found = str(metadata(Path(chart.reference)).get("version") or "")
    if chart.version and chart.version.removeprefix("v") != found.removeprefix("v"):
        raise ChartNotFound(
            f"{chart.reference} is version {found}, not {chart.version}", "leave --version away, or give another chart"
        )
    return found


def metadata(path: Path) -> dict[str, Any]:
    """``Chart.yaml`` of a folder or an archive. Raises :class:`ChartNotFound` if it holds none."""
    try:
        text = (path / "Chart.yaml").read_bytes() if path.is_dir() else _of_archive(path, "Chart.yaml")
        found = yaml.safe_load(text)
    except (OSError, tarfile.TarError, KeyError, yaml.YAMLError) as error:
        raise ChartNotFound(f"{path} is no chart: {error}") from None
    if not isinstance(found, dict):
        raise ChartNotFound(f"{path} is no chart: its Chart.yaml holds no names and values")
    return found


def _of_archive(path: Path, name: str) -> bytes:
    with tarfile.open(path) as archive:
        member = next((each for each in archive if each.name.count("/") == 1 and each.name.endswith(f"/{name}")), None)
        stream = archive.extractfile(member) if member is not None else None
        if stream is None:
            raise KeyError(f"no {name} in it")
        return stream.read()


def definitions(path: Path) -> list[Document]:
    """The CustomResourceDefinitions of a chart's folder ``crds``, which Helm installs once and never updates.

    Raises :class:`ChartNotFound` for what is no chart.
    """
    found: list[Document] = []
    try:
        for text in _definition_texts(path):
            found += [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if isinstance(each, dict)]
    except (OSError, tarfile.TarError, yaml.YAMLError) as error:
        raise ChartNotFound(f"the definitions of {path} cannot be read: {error}") from None
    return [each for each in found if each.get("kind") == "CustomResourceDefinition"]


def _definition_texts(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        yield from (each.read_bytes() for each in sorted((path / "crds").glob("*.y*ml")))
        return
    with tarfile.open(path) as archive:
        for member in archive:
            parts = member.name.split("/")
            if len(parts) == 3 and parts[1] == "crds" and parts[2].endswith((".yaml", ".yml")):
                stream = archive.extractfile(member)
                if stream is not None:
                    yield stream.read()


def versions(repository: str, name: str, timeout_s: float = 20.0) -> tuple[str, ...]:
    """The versions of a chart that a repository has, newest first. Raises :class:`Unreachable`."""
    address = f"{repository.rstrip('/')}/index.yaml"
    if not address.startswith(("http://", "https://")):
        raise Unreachable(f"{repository} is no repository: expected http:// or https://")
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:
            index = yaml.load(answer.read(INDEX_LIMIT), Loader=yaml.CSafeLoader)
        entries = index["entries"].get(name) or ()
        return tuple(str(each["version"]) for each in entries)
    except (OSError, urllib.error.URLError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise Unreachable(f"{address} cannot be read: {error}") from None


def _missing(chart: Chart, said: str) -> HelmError:
    """Why a chart could not be fetched, with what the repository has instead."""
    if not chart.repository:
        return ChartNotFound(f"{chart} could not be fetched: {' '.join(said.split())}")
    try:
        there = versions(chart.repository, chart.reference)
    except Unreachable as error:
        return error
    if not there:
        return ChartNotFound(f"{chart.repository} has no chart {chart.reference}")
    if chart.version.removeprefix("v") in {each.removeprefix("v") for each in there}:
        return HelmError(f"{chart} could not be fetched: {' '.join(said.split())}")
    more = f" and {len(there) - _VERSIONS_SHOWN} more" if len(there) > _VERSIONS_SHOWN else ""
    return ChartNotFound(
        f"{chart.repository} has no version {chart.version} of {chart.reference}; it has "
        f"{', '.join(there[:_VERSIONS_SHOWN])}{more}"
    )


def cached(chart: Chart, pull: Callable[[Path], None]) -> Path:
    """The chart's folder or archive on this machine; ``pull`` brings it into an empty folder when it is not here yet.

    Fetched charts stay in the administrator's records: what was looked at is what is installed, also tomorrow.
    """
    if chart.is_local:
        return Path(chart.reference)
    key = hashlib.sha256("\0".join(chart).encode()).hexdigest()[:16]
    place = plans.home("charts", key)
    found = sorted(place.glob("*.tgz"))
    if found:
        return found[0]
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        pull(Path(folder))
        archives = sorted(Path(folder).glob("*.tgz"))
        if not archives:
            raise ChartNotFound(f"{chart} could not be fetched: nothing came")
        place.mkdir(exist_ok=True)
        shutil.move(archives[0], place / archives[0].name)
    return place / archives[0].name


# --- The protocol -----------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """A release as Helm told it after a change."""

    name: str
    namespace: str
    revision: int
    status: str
    notes: str = ""


class Helm(Protocol):
    """What changes releases. Every method raises :class:`HelmError` of a kind that fits."""

    @property
    def name(self) -> str:
        """What does the work, for people."""

    async def fetch(self, chart: Chart) -> Path:
        """The chart as a folder or archive of this machine."""

    async def defaults(self, chart: Chart) -> dict[str, Any]:
        """The chart's own values (A59, A94)."""

    async def render(
        self, chart: Chart, release: str, namespace: str, values: Mapping[str, Any], *, upgrade: bool = False
    ) -> list[Document]:
        """Every object of the chart, hooks too; asks no cluster. Refuses what the chart refuses."""

    async def install(
        self, chart: Chart, release: str, namespace: str, values: Mapping[str, Any], *, timeout_s: int
    ) -> Done:
        """Install, and wait for the chart's own objects."""

    async def upgrade(
        self,
        chart: Chart,
        release: str,
        namespace: str,
        values: Mapping[str, Any],
        *,
        timeout_s: int,
        hooks: bool = True,
    ) -> Done:
        """Upgrade to exactly these values (none of the earlier ones stay), and wait for the chart's own objects."""

    async def rollback(self, release: str, namespace: str, revision: int, *, timeout_s: int) -> None:
        """Go back to a revision."""

    async def uninstall(self, release: str, namespace: str, *, timeout_s: int, missing_ok: bool = False) -> None:
        """Remove a release with its history."""


def choose(kubeconfig: str | None = None, context: str | None = None, *, executable: str = "") -> Helm:
    """Helm in this process if it is installed, else the one on the PATH; ``executable`` names one that is to be used.

    Raises :class:`HelmMissing`.
    """
    if executable:
        found = shutil.which(executable)
        if found is None:
            raise HelmMissing(f"no executable {executable}")
        return Executable(found, kubeconfig, context)
    try:
        import helm_python
    except ImportError:
        found = shutil.which("helm")
        if found is None:
            raise HelmMissing("there is no Helm: neither helm-python-sdk nor a helm executable") from None
        return Executable(found, kubeconfig, context)
    return InProcess(kubeconfig, context, helm_python)


async def _until_known(install: Callable[[], Any]) -> Any:
    """Install, again while the API server does not yet tell of a kind that the chart has just defined."""
    ends = time.monotonic() + DISCOVERY_S
    while True:
        try:
            return await install()
        except HelmError as error:
            if _NOT_YET not in str(error) or time.monotonic() > ends:
                raise
        await asyncio.sleep(0.5)


def parse(text: str) -> list[Document]:
    """Rendered text as documents."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if isinstance(each, dict)]


# --- In this process --------------------------------------------------------------------------------------------------


class InProcess:
    """Helm 4 as a library (helm-python-sdk)."""

    def __init__(self, kubeconfig: str | None, context: str | None, library: Any) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._library = library

    @property
    def name(self) -> str:
        """``Helm v4.x in this process``."""
        return f"Helm {self._library.helm_sdk_version()} in this process"

    def _config(self, namespace: str) -> Any:
        """A new one for each change: one that stays remembers which kinds there were."""
        return self._library.Config(kubeconfig_path=self._kubeconfig, kube_context=self._context, namespace=namespace)

    async def _call(self, work: Callable[[], T], cancel: Callable[[], None] | None = None) -> T:
        """Run in a thread; when this is cancelled, Helm is told, and its end is waited for."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        except self._library.HelmError as error:
            raise classify(str(error)) from None

    async def fetch(self, chart: Chart) -> Path:
        """The chart, pulled once."""

        def pull(folder: Path) -> None:
            try:
                self._library.pull(
                    chart.reference,
                    destination=folder,
                    version=chart.version,
                    repo_url=chart.repository or None,
                    plain_http=_plain_http(chart),
                )
            except self._library.HelmError as error:
                raise _missing(chart, str(error)) from None

        return await self._call(lambda: cached(chart, pull))

    async def defaults(self, chart: Chart) -> dict[str, Any]:
        """The chart's own values."""
        path = await self.fetch(chart)

        def read() -> dict[str, Any]:
            with self._library.Chart.load(path) as loaded:
                found: dict[str, Any] = loaded.values
            return found

        return await self._call(read)

    async def render(
        self, chart: Chart, release: str, namespace: str, values: Mapping[str, Any], *, upgrade: bool = False
    ) -> list[Document]:
        """Every object of the chart."""
        path = await self.fetch(chart)

        def draw() -> list[Document]:
            with self._library.Chart.load(path) as loaded:
                loaded.validate_schema(dict(values))
                texts = loaded.render(
                    dict(values), name=release, namespace=namespace, is_upgrade=upgrade, is_install=not upgrade
                )
            return [each for at, text in sorted(texts.items()) if not at.endswith("NOTES.txt") for each in parse(text)]

        return await self._call(draw)

    async def install(
        self, chart: Chart, release: str, namespace: str, values: Mapping[str, Any], *, timeout_s: int
    ) -> Done:
        """Install, and wait."""
        path = await self.fetch(chart)
        return _done(await _until_known(lambda: self._change("install", path, release, namespace, values, timeout_s)))

    async def upgrade(
        self,
        chart: Chart,
        release: str,
        namespace: str,
        values: Mapping[str, Any],
        *,
        timeout_s: int,
        hooks: bool = True,
    ) -> Done:
        """Upgrade, and wait. This library always runs hooks."""
        if not hooks:
            raise HelmError("Helm in this process cannot leave hooks away", "use a helm executable (--helm helm)")
        path = await self.fetch(chart)
        return _done(await self._change("upgrade", path, release, namespace, values, timeout_s, reset_values=True))

    async def _change(
        self,
        verb: str,
        path: Path,
        release: str,
        namespace: str,
        values: Mapping[str, Any],
        timeout_s: int,
        **more: Any,
    ) -> Mapping[str, Any]:
        context = self._library.HelmContext()

        def work() -> Mapping[str, Any]:
            with self._config(namespace) as config:
                found: Mapping[str, Any] = getattr(config, verb)(
                    path,
                    release,
                    dict(values),
                    context=context,
                    namespace=namespace,
                    timeout=timeout_s,
                    wait="watcher",
                    **more,
                )
            return found

        with context:
            return await self._call(work, context.cancel)

    async def rollback(self, release: str, namespace: str, revision: int, *, timeout_s: int) -> None:
        """Go back to a revision."""

        def work() -> None:
            with self._config(namespace) as config:
                config.rollback(release, version=revision, timeout=timeout_s, wait="watcher")

        await self._call(work)

    async def uninstall(self, release: str, namespace: str, *, timeout_s: int, missing_ok: bool = False) -> None:
        """Remove a release."""

        def work() -> None:
            with self._config(namespace) as config:
                config.uninstall(release, timeout=timeout_s, ignore_not_found=missing_ok, wait="watcher")

        await self._call(work)


def _plain_http(chart: Chart) -> bool:
    """Registries on this machine speak plain HTTP, as for container engines."""
    return chart.is_oci and bool(re.match(r"oci://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/", chart.reference))


def _done(told: Mapping[str, Any]) -> Done:
    info = told.get("info")
    status = info.get("status") if isinstance(info, Mapping) else told.get("status")
    revision = told.get("revision") or told.get("version") or 0
    return Done(
        name=str(told.get("name") or ""),
        namespace=str(told.get("namespace") or ""),
        revision=int(revision),
        status=str(status or ""),
        notes=str((info.get("notes") if isinstance(info, Mapping) else told.get("notes")) or ""),
    )


# --- The executable ---------------------------------------------------------------------------------------------------

END_S: Final = 20.0
"""How long a ``helm`` that was asked to end may take for noting that in its release."""


class Executable:
    """A ``helm`` of the machine, version 3 or 4. Values go to it in a file that only we can read."""

    def __init__(self, path: str, kubeconfig: str | None = None, context: str | None = None) -> None:
        self._path = path
        self._where = [
            *(["--kubeconfig", kubeconfig] if kubeconfig else []),
            *(["--kube-context", context] if context else []),
        ]

    @property
    def name(self) -> str:
        """The executable's path."""
        return self._path

    async def _run(self, *arguments: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                self._path,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise HelmMissing(f"{self._path} cannot be run: {error}") from None
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            await _end(process)
            raise
        if process.returncode != 0:
            raise classify(err.decode(errors="replace").strip() or f"helm ended with {process.returncode}")
        return out.decode(errors="replace")

    async def fetch(self, chart: Chart) -> Path:
        """The chart, pulled once."""
        if chart.is_local:
            return Path(chart.reference)
        arguments = ["pull", chart.reference, "--version", chart.version]
        arguments += ["--repo", chart.repository] if chart.repository else []
        arguments += ["--plain-http"] if _plain_http(chart) else []
        with tempfile.TemporaryDirectory() as folder:
            try:
                return cached(chart, _nothing)
            except ChartNotFound:
                pass
            try:
                await self._run(*arguments, "--destination", folder)
            except HelmError as error:
                raise await asyncio.to_thread(_missing, chart, str(error)) from None
            return cached(chart, functools.partial(_copy, Path(folder)))

    async def defaults(self, chart: Chart) -> dict[str, Any]:
        """The chart's own values."""
        found = yaml.load(await self._run("show", "values", str(await self.fetch(chart))), Loader=yaml.CSafeLoader)
        return found if isinstance(found, dict) else {}

    async def render(
        self, chart: Chart, release: str, namespace: str, values: Mapping[str, Any], *, upgrade: bool = False
    ) -> list[Document]:
        """Every object of the chart."""
        path = str(await self.fetch(chart))
        with _file_of(values) as file:
            more = ["--is-upgrade"] if upgrade else []
            text = await self._run("template", release, path, "--namespace", namespace, "--values", file, *more)
        return parse(text)

    async def install(
        self, chart: Chart, release: str, namespace: str, values: Mapping[str, Any], *, timeout_s: int
    ) -> Done:
        """Install, and wait."""
        path = str(await self.fetch(chart))
        with _file_of(values) as file:
            arguments = ["install", release, path, "--namespace", namespace, "--values", file, *_waiting(timeout_s)]
            text = await _until_known(lambda: self._run(*arguments, "--output", "json", *self._where))
        return _done(json.loads(text))

    async def upgrade(
        self,
        chart: Chart,
        release: str,
        namespace: str,
        values: Mapping[str, Any],
        *,
        timeout_s: int,
        hooks: bool = True,
    ) -> Done:
        """Upgrade, and wait."""
        path = str(await self.fetch(chart))
        with _file_of(values) as file:
            arguments = ["upgrade", release, path, "--namespace", namespace, "--reset-values", "--values", file]
            arguments += [*_waiting(timeout_s), *([] if hooks else ["--no-hooks"]), "--disable-openapi-validation"]
            text = await self._run(*arguments, "--output", "json", *self._where)
        return _done(json.loads(text))

    async def rollback(self, release: str, namespace: str, revision: int, *, timeout_s: int) -> None:
        """Go back to a revision."""
        await self._run(
            "rollback", release, str(revision), "--namespace", namespace, *_waiting(timeout_s), *self._where
        )

    async def uninstall(self, release: str, namespace: str, *, timeout_s: int, missing_ok: bool = False) -> None:
        """Remove a release."""
        more = ["--ignore-not-found"] if missing_ok else []
        await self._run("uninstall", release, "--namespace", namespace, *_waiting(timeout_s), *more, *self._where)


def _waiting(timeout_s: int) -> Sequence[str]:
    return ("--wait", "--timeout", f"{timeout_s}s")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask a helm to end, as Ctrl-C does: it then marks its release as failed; kill one that does not listen."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _nothing(_folder: Path) -> None:
    """Bring no chart: then only one that is here already is found."""


def _copy(source: Path, folder: Path) -> None:
    for archive in source.glob("*.tgz"):
        shutil.move(archive, folder / archive.name)


@contextmanager
def _file_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Values as a file of our own, for as long as it is needed; JSON is YAML."""
    handle, name = tempfile.mkstemp(prefix="values-", suffix=".yaml")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dict(values), file)
        yield name
    finally:
        Path(name).unlink()
