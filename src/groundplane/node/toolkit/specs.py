"""The CDI specs that the toolkit keeps: one for management containers, and those that the host's runtime shim reads.

The shim (`nvidia-container-runtime`) runs where no Python is, so what it would have to find out is found out here and
laid beside its config.toml: a spec of this node's GPUs, of devices that are asked for by a switch, and the properties
by which requirements are judged (contracts/toolkit-cdi.md 3.8, 4.4.6, 6). What stands in a spec is the generator's.

While the toolkit waits, the machine is looked at again and again. The driver is asked only when something that can be
seen without it has changed, since asking wakes the GPUs of a machine that has no persistence daemon; what failed is
tried again from time to time. A file is written only when its content changes.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec

from ..cdi import generate, write
from ..cdi.hooks import ENABLE_CUDA_COMPAT
from ..cdi.model import Spec, SpecError
from ..cdi.nodes import NO_GROUPS
from ..cdi.options import GenerateError, Mode, Wanted
from ..controlnodes import entries
from ..devices.source import DeviceError, Source
from ..hostroot import HostRoot
from ..ownprocess import DEVICES
from ..process import Log, Process
from . import install
from .options import Settings

LOOK_S: Final = 2.0
"""How often the machine is looked at, which takes 1 to 4 ms."""
PROPERTIES: Final = "properties.json"
"""What requirements may name, beside the shim's specs."""
NO_COMPAT_FEATURE: Final = "disable-cuda-compat-lib-hook"
"""A feature of config.toml (contracts/toolkit-cdi.md 4.6): no hook looks after an image's compatibility libraries."""

_WATCHED: Final = (
    *("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*", "/dev/dri/*", "/dev/infiniband/*"),
    "/dev/gdrdrv",
)
_CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"
_INSTANCES: Final = ("gpu*/mig/gi*", "gpu*/mig/gi*/ci*")
"""What there is below it for each MIG GPU instance and compute instance."""
_VERSIONS: Final = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")
_LIBRARIES: Final = ("/", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/bin")
"""Folders whose entries change when the driver's files do."""


class SpecsError(RuntimeError):
    """The management specification cannot be written; an earlier one is as it was. The text says what to do."""


class Specs:
    """The specs of one run."""

    def __init__(self, process: Process, settings: Settings) -> None:
        self._process = process
        self._settings = settings
        self._told: frozenset[_Entry] = frozenset()
        self._seen: object = None
        self._whole = False
        self._due = 0.0

    @property
    def interval_s(self) -> float | None:
        """How long to wait for the next :meth:`refresh`; None if there is to be none.

        Simulated machines are many in one process, and their time may fly.
        """
        interval = self._settings.refresh_s
        return interval if interval is None or self._settings.null_devices else min(LOOK_S, interval)

    async def first(self) -> None:
        """Write all. Raises :class:`SpecsError` if management containers would have no spec.

        Where no GPU answers yet, the shim's are left to a refresh.
        """
        if failure := await self._write():
            raise SpecsError(failure)

    async def refresh(self) -> None:
        """Write what has changed. What fails is said once, and tried again when the interval is over."""
        seen: object = None
        try:
            seen = await self._look()
            if seen != self._seen or (not self._whole and self._process.monotonic() >= self._due):
                await self._write(tell=True)
        except Exception as error:  # noqa: BLE001 - whatever it is: the node's runtime must still be cleaned up one day
            self._done(seen, whole=False, entries=[_entry_of(error)])

    async def _look(self) -> object:
        """What can be seen of the machine and of the specs."""
        process, settings = self._process, self._settings
        return await asyncio.to_thread(lambda: (inputs(process, settings), outputs(process, settings)))

    async def _write(self, *, tell: bool = False) -> str:
        """Write all, in a thread, as the driver may let its caller wait; why management containers got no spec, if so.

        What the thread logs is logged here, once for as long as it holds.
        """
        log = _Kept(self._process)
        writer = _Writer(cast(Process, _Logging(self._process, log)), self._settings)
        seen = await asyncio.to_thread(writer.write)
        if writer.failure and tell:
            log.error(f"CDI specification for management containers not written: {writer.failure}")
        self._done(seen, whole=writer.whole, entries=log.entries)
        return writer.failure

    def _done(self, seen: object, *, whole: bool, entries: Sequence["_Entry"]) -> None:
        """Note how far a round came; log what the one before did not."""
        for entry in dict.fromkeys(entries):
            if entry not in self._told:
                _say(self._process.log, *entry)
        self._told = frozenset(entries)
        self._seen, self._whole = seen, whole
        self._due = self._process.monotonic() + (self._settings.refresh_s or 0.0)


_Entry: TypeAlias = tuple[str, str]
"""A line of the log: its level and its text."""


def _entry_of(error: Exception) -> _Entry:
    return ("E", f"CDI specifications not refreshed: {type(error).__name__}: {error}")


class _Kept(Log):
    """A log that is kept, to be written later."""

    def __init__(self, process: Process) -> None:
        super().__init__(lambda text: None, process.now)
        self.entries: list[_Entry] = []

    def _entry(self, level: str, text: str) -> None:
        self.entries.append((level, text))


def _say(log: Log, level: str, text: str) -> None:
    """Write a kept entry."""
    {"I": log.info, "W": log.warning, "E": log.error}[level](text)


class _Logging:
    """A process with another log."""

    def __init__(self, process: Process, log: Log) -> None:
        self._process = process
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


class _Writer:
    """Writes the specs once. Afterwards ``failure`` says why there is no management spec, if there is none, and
    ``whole`` whether nothing is left to be written."""

    def __init__(self, process: Process, settings: Settings) -> None:
        self._process = process
        self._settings = settings
        self._hook_path = f"{settings.folder}/nvidia-cdi-hook"
        self.failure = ""
        self.whole = False

    def write(self) -> object:
        """Write the management spec, then the shim's; what can be seen of the machine before and the specs after."""
        process, settings = self._process, self._settings
        seen = inputs(process, settings)
        source = process.devices(settings.roots.driver or "/")
        silence: Exception | None = None
        try:
            source.open()
        except DeviceError as error:
            silence = error
        try:
            self._management(source)  # of files alone if the driver does not answer
            if silence is None:
                silence = self._shim(source)
        finally:
            source.close()
        if silence is not None:
            process.log.warning(
                f"the CDI specifications for {settings.folder}/nvidia-container-runtime stay as they are until the "
                f"GPUs answer: {silence}"
            )
        self.whole = silence is None and not self.failure
        return seen, outputs(process, settings)

    def _management(self, source: Source) -> None:
        settings = self._settings
        if settings.cdi is None:
            return
        try:
            spec = generate.generate(self._process, source, self._for_management(settings.cdi.kind))
            write.write(spec, self._process.path, settings.cdi.folder)
        except (GenerateError, SpecError, OSError) as error:
            self.failure = str(error)

    def _for_management(self, kind: str) -> Wanted:
        settings = self._settings
        return Wanted(
            mode=Mode.MANAGEMENT,
            roots=settings.roots,
            kind=kind,
            libraries=settings.libraries,
            hook_path=self._hook_path,
            null_devices=settings.null_devices,
        )

    def _shim(self, source: Source) -> Exception | None:
        """Write what the shim needs and remove what it does not need any more; what is wrong, if it cannot be done."""
        folder = f"{self._settings.folder}/{install.SPECS}"
        written = {PROPERTIES}
        try:
            for spec in self._for_shim(source):
                name = write.write(spec, self._process.path, folder, format=write.Format.JSON)
                written.add(name.rpartition("/")[2])
            write.replace(f"{folder}/{PROPERTIES}", _json(generate.properties(source)), self._process.path)
            for path in self._process.path(folder).iterdir():
                if path.name not in written and not path.is_dir():
                    path.unlink()
        except (DeviceError, GenerateError, SpecError, OSError) as error:
            return error
        return None

    def _for_shim(self, source: Source) -> tuple[Spec, ...]:
        settings = self._settings
        return generate.specs_for_shim(
            self._process,
            source,
            settings.roots,
            libraries=settings.libraries,
            hook_path=self._hook_path,
            disabled_hooks=(ENABLE_CUDA_COMPAT,) if NO_COMPAT_FEATURE in settings.features else (),
            features={NO_GROUPS}.intersection(settings.features),
        )


def _json(said: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"


def inputs(process: Process, settings: Settings) -> object:
    """What can be seen of GPUs and driver without asking the driver; it changes when they do."""
    return (
        tuple((each.path, each.status.st_rdev) for each in entries(process, settings.roots.dev, _WATCHED)),
        tuple(_instances(process.kernel)),
        tuple(_text(process.kernel, path) for path in _VERSIONS),
        _stamp(process.kernel.path(DEVICES)),  # of a simulated machine
        tuple(_stamp(process.path(f"{settings.roots.driver}{folder}")) for folder in _LIBRARIES),
    )


def outputs(process: Process, settings: Settings) -> object:
    """What can be seen of the written specs; it changes when somebody else changes or removes them."""
    folder = f"{settings.folder}/{install.SPECS}"
    paths = [folder, f"{folder}/{PROPERTIES}"]
    if settings.cdi is not None:
        paths.append(f"{settings.cdi.folder}/{write.file_name(settings.cdi.kind)}")
    return tuple(_stamp(process.path(path)) for path in paths)


def _instances(kernel: HostRoot) -> Iterator[tuple[str, int]]:
    """MIG instances; one that is made again has another inode."""
    folder = kernel.path(_CAPABILITIES)
    for path in (path for pattern in _INSTANCES for path in sorted(folder.glob(pattern))):
        with contextlib.suppress(OSError):
            yield str(path), path.stat().st_ino


def _text(kernel: HostRoot, path: str) -> str:
    try:
        return kernel.read_text(path)
    except (OSError, ValueError):
        return ""


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells a file or folder from a changed one; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
