"""Sections ``resources`` and ``sharing`` of the shared configuration file: which resources there are, and how shared.

The file's sections are checked in full but honoured in part (contracts/device-plugin-gfd.md 1.4, 1.5); what is not
honoured is a warning. Reading the file is left to ``config``, what the machine's GPUs make of it to ``resources``.
"""

import enum
import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..api.release import Release
from .options import kind_of, member

RESOURCE_PREFIX: Final = "nvidia.com/"
"""What every resource name starts with."""


class SharingStrategy(enum.StrEnum):
    """How devices are shared."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


class Shared(msgspec.Struct, frozen=True):
    """A resource that is shared: its name, the name it is advertised under, and replicas a device."""

    name: str
    advertised: str
    replicas: int

    def document(self) -> dict[str, Any]:
        """The entry as it is in force, for the log."""
        rename = {"rename": self.advertised} if self.advertised != self.name else {}
        return {"name": self.name, **rename, "devices": "all", "replicas": self.replicas}


class Sharing(msgspec.Struct, frozen=True):
    """The honoured part of section ``sharing`` (contracts/device-plugin-gfd.md 1.5)."""

    strategy: SharingStrategy = SharingStrategy.NONE
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False
    resources: tuple[Shared, ...] = ()

    @property
    def mps(self) -> bool:
        """Whether devices are shared through MPS."""
        return self.strategy is SharingStrategy.MPS

    def of(self, resource: str) -> Shared | None:
        """The entry of a resource, by the name it has before it is renamed; the first one counts."""
        return next((each for each in self.resources if each.name == resource), None)

    def document(self) -> dict[str, Any]:
        """The section as it is in force, for the log."""
        section: dict[str, Any] = {}
        if self.rename_by_default:
            section["renameByDefault"] = True
        if self.fail_requests_greater_than_one:
            section["failRequestsGreaterThanOne"] = True
        if self.resources:
            section["resources"] = [each.document() for each in self.resources]
        return {"timeSlicing": {}, "mps": section} if self.mps else {"timeSlicing": section}


class Pattern(msgspec.Struct, frozen=True):
    """Devices whose name (of the GPU, or of the MIG profile) fits a pattern are a resource's.

    ``*`` stands for any run of characters, all others for themselves; the whole name must fit
    (contracts/device-plugin-gfd.md 1.4).
    """

    pattern: str
    name: str

    def fits(self, text: str) -> bool:
        """Whether a name fits."""
        return re.fullmatch(".*".join(map(re.escape, self.pattern.split("*"))), text, re.DOTALL) is not None

    def document(self) -> dict[str, str]:
        """The entry as it is in force, for the log."""
        return {"pattern": self.pattern, "name": self.name}


class Resources(msgspec.Struct, frozen=True):
    """Patterns in order, the first that fits counts."""

    gpus: tuple[Pattern, ...] = ()
    mig: tuple[Pattern, ...] = ()

    def document(self) -> dict[str, Any]:
        """The section as it is in force, for the log."""
        document: dict[str, Any] = {"gpus": [each.document() for each in self.gpus] or None}
        if self.mig:
            document["mig"] = [each.document() for each in self.mig]
        return document


class SectionError(ValueError):
    """A section cannot be read; the message starts with the place in the document."""


_DNS_1123: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_RESOURCE_NAME: Final = 63


def resource_name(text: str) -> str:
    """A full resource name (contracts/device-plugin-gfd.md 1.4). ValueError with the rule that is broken."""
    name = text if text.startswith(RESOURCE_PREFIX) else RESOURCE_PREFIX + text
    if len(name) > MAX_RESOURCE_NAME:
        raise ValueError(f'resource name "{name}" has more than {MAX_RESOURCE_NAME} characters')
    if not _DNS_1123.fullmatch(name.removeprefix(RESOURCE_PREFIX)):
        raise ValueError(
            f'resource name "{name}" is invalid: after "{RESOURCE_PREFIX}", lower case letters, digits, "-" and "." '
            "may stand, with a letter or digit at both ends"
        )
    return name


def parse_resources(section: Any) -> bool:
    """Whether a section ``resources`` has any entry; they are read for their mistakes only (1.4).

    Raises :class:`SectionError`.
    """
    items = [
        _item_of_resources(item, f"resources.{kind}[{number}]")
        for kind in ("gpus", "mig")
        for number, item in enumerate(_list(member(section, kind), f"resources.{kind}"))
    ]
    return bool(items)


def _item_of_resources(item: Any, place: str) -> Pattern:
    _mapping(item, place)
    return Pattern(
        pattern=_take(item, "pattern", place, str, "a string"), name=_name(_take(item, "name", place), place)
    )


def parse_sharing(section: Any, release: Release, warnings: list[str]) -> Sharing:
    """Read a section ``sharing`` and add to the warnings what of it is not honoured. Raises :class:`SectionError`."""
    slicing = _replicated(member(section, "timeSlicing"), "sharing.timeSlicing", warnings)
    mps = _replicated(member(section, "mps"), "sharing.mps", warnings)
    if mps is not None:
        wish = mps.fail_requests_greater_than_one
        fail = True if release is Release.V26_3 or wish is None else wish
        return Sharing(SharingStrategy.MPS, mps.rename_by_default, fail, mps.resources)
    if slicing is not None:
        fail = bool(slicing.fail_requests_greater_than_one)
        return Sharing(SharingStrategy.TIME_SLICING, slicing.rename_by_default, fail, slicing.resources)
    return Sharing()


class _Replicated(msgspec.Struct, frozen=True):
    rename_by_default: bool
    fail_requests_greater_than_one: bool | None
    resources: tuple[Shared, ...]


def _replicated(section: Any, place: str, warnings: list[str]) -> _Replicated | None:
    if section is None:
        return None
    _mapping(section, place)
    items = _list(member(section, "resources"), f"{place}.resources")
    if not items:
        raise SectionError(f"{place}: no resources specified")
    rename = bool(_optional(section, "renameByDefault", place, bool, "true or false"))
    fail = _optional(section, "failRequestsGreaterThanOne", place, bool, "true or false")
    shared = tuple(_shared(item, f"{place}.resources[{number}]", rename, warnings) for number, item in enumerate(items))
    for number, each in enumerate(shared):
        if any(each.name == before.name for before in shared[:number]):
            warnings.append(f"{place}.resources[{number}]: {each.name} is listed before; only its first entry counts")
    return _Replicated(rename, fail, shared)


def _shared(item: Any, place: str, rename_by_default: bool, warnings: list[str]) -> Shared:
    """An entry. Which devices, and a name of one's own, are checked but not honoured (1.5)."""
    _mapping(item, place)
    name = _name(_take(item, "name", place), place)
    replicas = _take(item, "replicas", place, int, "a whole number")
    if replicas < 2:
        raise SectionError(f"{place}.replicas: expected 2 or more, found {replicas}")
    if not _all_devices(member(item, "devices"), f"{place}.devices"):
        warnings.append(f"{place}.devices: choosing devices is not supported; all of {name} are shared")
    advertised = f"{name}.shared" if rename_by_default else name
    rename = member(item, "rename")
    if rename not in (None, "") and _name(rename, place, "rename") != advertised:
        warnings.append(f"{place}.rename: renaming is not supported; the resource is advertised as {advertised}")
    return Shared(name, advertised, replicas)


_DEVICE: Final = re.compile(
    r"[0-9]+(:[0-9]+)?|(GPU|MIG)-{uuid}|MIG-GPU-{uuid}/[0-9]+/[0-9]+".replace(
        "{uuid}", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    )
)


def _all_devices(value: Any, place: str) -> bool:
    """Whether all devices are meant, as they are by default."""
    if value is None or value == "all":
        return True
    items = value if isinstance(value, list) else [value]
    accepted: Callable[[Any], bool] = _is_device if isinstance(value, list) else _is_count
    for item in items:
        if not accepted(item):
            raise SectionError(
                f"{place}: {json.dumps(item)} is none of: all, a number of devices above 0, or a list of GPU indices "
                '(0), MIG indices ("0:1") and UUIDs (GPU-..., MIG-..., MIG-GPU-.../<gi>/<ci>)'
            )
    return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_device(value: Any) -> bool:
    if isinstance(value, str):
        return _DEVICE.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _mapping(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise SectionError(f"{place}: expected a mapping, found {kind_of(value)}")


def _list(value: Any, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise SectionError(f"{place}: expected a list, found {kind_of(value)}")
    return value


def _optional(item: Any, key: str, place: str, kind: type[Any], expected: str) -> Any:
    value = member(item, key)
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise SectionError(f"{place}.{key}: expected {expected}, found {kind_of(value)}")
    return value


def _take(item: Any, key: str, place: str, kind: type[Any] = str, expected: str = "a string") -> Any:
    value = _optional(item, key, place, kind, expected)
    if value in (None, ""):
        raise SectionError(f"{place}: {key} is missing; each entry needs one")
    return value


def _name(text: Any, place: str, key: str = "name") -> str:
    if not isinstance(text, str):
        raise SectionError(f"{place}.{key}: expected a string, found {kind_of(text)}")
    try:
        return resource_name(text)
    except ValueError as error:
        raise SectionError(f"{place}.{key}: {error}") from None
