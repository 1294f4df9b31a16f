"""Services of the host that use GPUs: stopped before MIG is changed, started again after it.

contracts/mig-exporter-validator.md 3.7. systemd is asked with the host's own ``systemctl``. Which services are to be
started again is kept in a file below the host's ``/run``: a run that was killed is undone by the next one, and a
reboot, which starts services anyway, takes the file away.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ....api import goyaml
from ...process import Process
from .errors import ManagerError
from .host import Host

RECORD: Final = "/run/nvidia/mig-manager/stopped-services"
"""On the host: a service a line, in the order in which they were stopped."""
_FORM: Final = "expected version: v1, and systemd-services: a list of names"
_RUNNING: Final = frozenset({"active", "reloading", "refreshing", "activating", "deactivating"})
_PROPERTIES: Final = ("LoadState", "ActiveState", "UnitFileState", "Type")


class _File(msgspec.Struct, frozen=True):
    version: str = ""
    services: list[str] | None = msgspec.field(name="systemd-services", default=None)


def parse(text: str, source: str) -> tuple[str, ...]:
    """The services that a file lists; `source` names it in errors. Raises :class:`~.errors.ManagerError`."""
    try:
        document: Any = goyaml.loads(text)
        found = msgspec.convert({} if document is None else document, _File)
    except (goyaml.DocumentError, msgspec.ValidationError) as error:
        raise ManagerError(f"GPU clients file {source}: {error}; {_FORM}") from error
    if found.version != "v1":
        raise ManagerError(f"GPU clients file {source}: version {found.version!r}; {_FORM}")
    services = tuple(found.services or ())
    for name in services:
        if not name or name.startswith("-") or any(character.isspace() for character in name):
            raise ManagerError(f"GPU clients file {source}: {name!r} is not the name of a service; {_FORM}")
    return services


def load(process: Process, file: str) -> tuple[str, ...]:
    """The services of the host that use GPUs; none if there is no file. Raises :class:`~.errors.ManagerError`."""
    if not file:
        return ()
    try:
        return parse(process.path(file).read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise ManagerError(f"GPU clients file {file} cannot be read: {error}") from error


def decide(unit: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether to stop a service, and whether to start it again later, by systemd's properties of it."""
    if unit.get("ActiveState") in _RUNNING:
        return True, True
    if unit.get("LoadState") in ("not-found", "masked"):
        return False, False
    if unit.get("ActiveState") == "failed":
        return False, True
    if unit.get("UnitFileState") == "disabled" or unit.get("Type") == "oneshot":
        return False, False
    return False, True


class Services:
    """The host's services, and the record of those that are to be started again."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def stop(self, services: Sequence[str]) -> None:
        """Stop services in order. Raises :class:`~.errors.ManagerError`; what was stopped is in the record then."""
        for name in services:
            stop, again = decide(await self._properties(name))
            if again and name not in self.recorded():
                self._record([*self.recorded(), name])
            if stop:
                self._host.log.info(f"stopping {name}")
                await self._host.run("systemctl", "stop", name)

    async def restart(self) -> None:
        """Start what is in the record, the last first, without waiting for it, and end the record.

        All are tried. Raises :class:`~.errors.ManagerError` for those that failed, which stay in the record.
        """
        problems: dict[str, str] = {}
        for name in reversed(self.recorded()):
            self._host.log.info(f"starting {name}")
            try:
                await self._host.run("systemctl", "--no-block", "start", name)
            except ManagerError as error:
                problems[name] = str(error)
        self._record([name for name in self.recorded() if name in problems])
        if problems:
            raise ManagerError("; ".join(problems.values()))

    def recorded(self) -> list[str]:
        """What is to be started again."""
        try:
            return self._host.files.read_text(RECORD).split()
        except FileNotFoundError:
            return []

    def _record(self, services: Sequence[str]) -> None:
        if services:
            self._host.write(RECORD, "".join(f"{name}\n" for name in services))
        else:
            self._host.files.remove(RECORD)

    async def _properties(self, name: str) -> dict[str, str]:
        printed = await self._host.run("systemctl", "show", f"--property={','.join(_PROPERTIES)}", name)
        lines = (line.partition("=") for line in printed.splitlines())
        found = {key: value for key, separator, value in lines if separator}
        if "ActiveState" not in found:
            raise ManagerError(f"systemctl does not tell the state of {name}; it printed {printed.strip()!r}")
        return found
