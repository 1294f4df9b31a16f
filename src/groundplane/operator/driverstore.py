"""The NVIDIADrivers as read: each version of each is decoded once, for all who ask."""

import logging
from typing import Any

import msgspec

from ..api import codec, nvidiadriver
from ..api.nvidiadriver import NVIDIADriver
from .caches import Caches
from .labels import Upgraded

log = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True):
    """An NVIDIADriver as read, or why it cannot be."""

    document: dict[str, Any]
    driver: NVIDIADriver | None
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Its UID."""
        return str(self.document["metadata"].get("uid", ""))

    @property
    def deleting(self) -> bool:
        """Its deletion was asked for."""
        return bool(self.document["metadata"].get("deletionTimestamp"))


class DriverStore:
    """What is known of all NVIDIADrivers."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._read: dict[str, tuple[int, Known]] = {}

    def all(self) -> list[Known] | None:
        """Every driver, by name, also those that are being deleted; None while they are not known."""
        documents = self._caches.drivers
        if documents is None:
            return None
        known = [self._known(each) for each in documents]
        if len(self._read) > len(known):
            there = {each.uid for each in known}
            self._read = {uid: each for uid, each in self._read.items() if uid in there}
        return known

    def upgraded(self) -> Upgraded:
        """Which drivers are upgraded automatically, as their policies in force say."""
        known = self.all()
        if known is None:
            return Upgraded(all_unknown=True)
        there = [each for each in known if not each.deleting]
        return Upgraded(
            frozenset(
                each.name
                for each in there
                if each.driver is not None and nvidiadriver.upgrade_policy(each.driver.spec).autoUpgrade
            ),
            frozenset(each.name for each in there if each.driver is None),
        )

    def _known(self, document: dict[str, Any]) -> Known:
        meta = document["metadata"]
        uid, generation = str(meta.get("uid", "")), int(meta.get("generation", 0))
        deleting = bool(meta.get("deletionTimestamp"))
        before = self._read.get(uid)
        if before is None or before[0] != generation or before[1].deleting != deleting:
            before = self._read[uid] = generation, decode(document)
            if before[1].problem:
                log.warning("NVIDIADriver %s cannot be read: %s", meta["name"], before[1].problem)
        return msgspec.structs.replace(before[1], document=document)


def decode(document: dict[str, Any]) -> Known:
    """Read a driver's document; never raises for what a person may have written. Its status does not count."""
    try:
        loaded = codec.load_nvidia_driver({key: value for key, value in document.items() if key != "status"})
    except codec.PolicyError as error:
        return Known(document, None, str(error))
    notes = tuple(f"unknown field {path} is ignored{_hint(path)}" for path in loaded.unknown)
    return Known(document, loaded.driver, notes=notes)


def _hint(path: str) -> str:
    guess = codec.suggest(path, codec.NVIDIA_DRIVER)
    return f"; did you mean {guess}?" if guess else ""
