"""`config-manager`: point a program to the configuration that its node's label names.

The node is read before anything is chosen, then watched; each change of the label's value is a new choice. The choice
is a symbolic link, replaced in one step, and the program is signalled if it changed (contracts/device-plugin-gfd.md 7).
Unlike NVIDIA's, this one also notices when the chosen file is edited: a changed ConfigMap needs no restart of pods.
"""

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from .. import nodelabel, options, watch
from ..process import Listed, Process, asked_to_end, wait_any
from . import selection, settings
from .selection import SelectionError
from .settings import Settings

if TYPE_CHECKING:
    from ...cluster.client import Client

EMPTY: Final = "/dev/null"
"""Where the link leads for an empty configuration."""


class SignalError(RuntimeError):
    """The program cannot be told. Exit code 1; once started anew, nothing is left to be told."""


async def run(process: Process) -> int:
    """`config-manager`."""
    from ...cluster.errors import ClusterError

    try:
        wanted = settings.load(process)
        async with process.client(wanted.kubeconfig) as client:
            manager = _Manager(process, wanted)
            work = _once(client, wanted, manager) if wanted.oneshot else _follow(process, wanted, client, manager)
            await wait_any(asked_to_end(process), work)
        return 0 if manager.has_chosen or not wanted.oneshot else 1
    except options.Leave as leave:
        return leave.tell(process)
    except (SelectionError, SignalError, ClusterError, OSError) as error:
        process.log.error(str(error))
        return 1


async def _once(client: "Client", wanted: Settings, manager: "_Manager") -> None:
    manager.apply(await nodelabel.read(client, wanted.node_name, wanted.node_label))


async def _follow(process: Process, wanted: Settings, client: "Client", manager: "_Manager") -> None:
    """Apply each value of the label, until something goes wrong."""
    labels = nodelabel.follow(process, client, wanted.node_name, wanted.node_label, manager.apply)
    async with _edits(process, wanted) as edits:
        await wait_any(labels, _each_edit(edits, manager))


# --- edits of the chosen file -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _edits(process: Process, wanted: Settings) -> AsyncIterator[watch.Changes]:
    """Changes in the folder of configurations; of no path where they are not wanted."""
    folders = [process.path(wanted.source)] if wanted.watch_content else []
    async with watch.paths(*folders) as changes:
        yield changes


async def _each_edit(edits: watch.Changes, manager: "_Manager") -> None:
    async for _ in edits:
        edits.drain()
        manager.look_at_content()


# --- the choice in place ----------------------------------------------------------------------------------------------


class _Manager:
    """The destination, and who reads it."""

    def __init__(self, process: Process, wanted: Settings) -> None:
        self._process = process
        self._wanted = wanted
        folder, self._name = os.path.split(wanted.destination)
        self._folder = folder or "/"
        self.has_chosen = False
        self._content: str | None = None
        """Digest of the chosen file's content as the program knows it; None if there was none to read."""

    def apply(self, label: str) -> None:
        """Choose, put the choice in place, and signal if it changed.

        Raises :class:`SelectionError`, :class:`SignalError`, and OSError if the link cannot be made.
        """
        wanted, log = self._wanted, self._process.log
        chosen = selection.choose(self._available(), label, wanted.default_config, wanted.fallbacks, wanted.source)
        log.info(f"label {wanted.node_label} is {label!r}: using {'an empty config' if chosen is None else chosen}")
        target = EMPTY if chosen is None else str(PurePosixPath(wanted.source) / chosen)
        changed = self._present() != self._process.path(target)
        if changed:
            self._link(target)
            log.info(f"{wanted.destination} now leads to {target}")
        else:
            log.info(f"already configured: {wanted.destination} leads to {target}")
        self._content = self._digest()
        self.has_chosen = True
        if changed and wanted.send_signal:
            self._signal()

    def look_at_content(self) -> None:
        """Signal if the chosen file was edited; one that is gone or cannot be read changes nothing."""
        now = self._digest()
        if now in (None, self._content):
            return
        self._content = now
        self._process.log.info(f"the content of {self._wanted.destination} has changed")
        if self._wanted.send_signal:
            try:
                self._signal()
            except SignalError as error:  # a program that is not there will read the file when it comes
                self._process.log.warning(str(error))

    def _available(self) -> set[str]:
        """Names of the files to choose from; a mounted ConfigMap's are links."""
        source = self._wanted.source
        try:
            names = [entry.name for entry in self._process.path(source).iterdir()]
        except OSError as error:
            raise SelectionError(f"no configuration is available: {source}: {error.strerror}") from None
        return {
            name for name in names if not name.startswith("..") and self._process.path(f"{source}/{name}").is_file()
        }

    @property
    def _destination(self) -> Path:
        """The link itself, not where it leads."""
        return self._process.path(self._folder) / self._name

    def _present(self) -> Path | None:
        """Where the destination leads, whether there is a file or not; None if there is no destination."""
        if not self._destination.is_symlink():
            return self._destination if self._destination.exists() else None
        try:
            return self._process.path(os.path.join(self._folder, self._destination.readlink()))  # noqa: PTH118
        except OSError:  # it leads nowhere but to itself
            return None

    def _link(self, target: str) -> None:
        """Replace the destination, whatever it is and wherever it leads, in one step."""
        new = self._destination.with_name(f".{self._name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(self._destination)

    def _digest(self) -> str | None:
        present = self._present()
        if present is None or not present.is_file():
            return None
        try:
            return hashlib.sha256(present.read_bytes()).hexdigest()
        except OSError:  # gone meanwhile
            return None

    def _signal(self) -> None:
        wanted = self._wanted
        found = find(list(self._process.processes()), wanted.process)
        if found is None:
            raise SignalError(
                f"no process {wanted.process} to signal was found: is it running, and does the pod share its process "
                "namespace (shareProcessNamespace)?"
            )
        try:
            self._process.kill(found.pid, wanted.signal)
        except (ProcessLookupError, PermissionError) as error:
            raise SignalError(
                f"process {wanted.process} ({found.pid}) cannot be signalled: {error.strerror}"
            ) from error
        self._process.log.info(f"sent signal {wanted.signal} to {wanted.process} ({found.pid})")


def find(processes: list[Listed], name: str) -> Listed | None:
    """The first process whose command line starts with just this word, else whose word is a path that ends so."""
    named = [each for each in processes if each.argv]
    exact = (each for each in named if each.argv[0] == name)
    alike = (each for each in named if PurePosixPath(each.argv[0]).name == PurePosixPath(name).name)
    return next(exact, None) or next(alike, None)
