"""The MIG layout file: named lists of entries that say which GPUs are cut how. Pure.

Reading is strict, and all problems of a file are told at once, each with its entry and the remedy
(contracts/mig-exporter-validator.md 1.1 to 1.5). Which instances fit a GPU is ``planner``'s knowledge.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
import yaml

try:
    from yaml import CSafeDumper as _SafeDumper
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

from ...api import goyaml
from ..devices import profiles
from ..devices.mig import MigGpu
from ..devices.model import Profile
from ..options import kind_of
from .errors import LayoutError

VERSION: Final = "v1"
ALL: Final = "all"
_TOP: Final = ("version", "mig-configs")
_KEYS: Final = ("device-filter", "devices", "mig-enabled", "mig-devices")


# --- device filters (1.3) ---------------------------------------------------------------------------------------------

_BASES: Final = (
    (re.compile(r"0[xX]_?([0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)"), 16),
    (re.compile(r"0[bB]_?([01]+(?:_[01]+)*)"), 2),
    (re.compile(r"0[oO]?_?([0-7]+(?:_[0-7]+)*)"), 8),
    (re.compile(r"(0|[1-9][0-9]*(?:_[0-9]+)*)"), 10),
)
_LARGEST: Final = 0xFFFFFFFF


def _base_zero(text: str) -> int | None:
    """A number whose base its prefix tells, of 32 bits at most."""
    for pattern, base in _BASES:
        if found := pattern.fullmatch(text):
            digits = found[1].replace("_", "").lstrip("0") or "0"
            value = int(digits, base) if len(digits) <= _LARGEST.bit_length() else _LARGEST + 1
            return value if value <= _LARGEST else None
    return None


class Filter(NamedTuple):
    """PCI ids that a GPU must have, device in the high half and vendor in the low; ``subsystem`` None is any board."""

    device: int
    subsystem: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a filter; None if it is malformed."""
        first, colon, rest = text.partition(":")
        device = _base_zero(first)
        subsystem = _base_zero(rest) if colon else None
        return None if device is None or (colon and subsystem is None) else cls(device, subsystem)

    def matches(self, gpu: MigGpu) -> bool:
        """Whether a GPU has these ids."""
        return gpu.pci_id == self.device and self.subsystem in (None, gpu.subsystem_id)

    def __str__(self) -> str:
        return f"0x{self.device:08X}" + (f":0x{self.subsystem:08X}" if self.subsystem is not None else "")


# --- entries ----------------------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a layout. ``devices`` are indices, None is all; ``filters`` are as written, any of them may match.

    ``instances`` counts compute instances by profile, none of them zero. ``where`` is its place in the file.
    """

    where: str = ""
    devices: tuple[int, ...] | None
    filters: tuple[str, ...] = ()
    enabled: bool
    instances: Mapping[Profile, int] = {}

    @property
    def explicit(self) -> bool:
        """Whether it names GPUs by index, so that one that knows no MIG is a mistake and not merely left out."""
        return self.devices is not None

    def matches(self, gpu: MigGpu) -> bool:
        """Whether it is about a GPU (1.3, 1.4)."""
        if self.devices is not None and gpu.index not in self.devices:
            return False
        return not self.filters or any(found.matches(gpu) for found in map(Filter.parse, self.filters) if found)

    @property
    def malformed(self) -> tuple[str, ...]:
        """Filters that match nothing, since they cannot be read."""
        return tuple(text for text in self.filters if Filter.parse(text) is None)


Layout = tuple[Entry, ...]
"""A named layout: its entries in the order of the file."""


def targets(layout: Layout, gpus: Sequence[MigGpu]) -> dict[int, Entry]:
    """The entry that counts for each GPU, by index: the last that matches. GPUs without one are left out (1.4)."""
    return {gpu.index: entry for entry in layout for gpu in gpus if entry.matches(gpu)}


def warnings(layout: Layout, gpus: Sequence[MigGpu] | None = None) -> Iterator[str]:
    """What a person should know of a layout that is valid: filters that cannot match, entries without a GPU here."""
    for entry in layout:
        for text in entry.malformed:
            yield (
                f"{entry.where}.device-filter: {text!r} is malformed and matches no GPU; expected PCI ids such as "
                '"0x20B010DE" or "0x25B610DE:0x14A910DE"'
            )
        if gpus is not None and not entry.malformed and not any(map(entry.matches, gpus)):
            here = ", ".join(sorted({f"{Filter(gpu.pci_id)}" for gpu in gpus})) or "none"
            yield f"{entry.where} matches no GPU of this node (it has {len(gpus)}: {here})"


def select(layouts: Mapping[str, Layout], name: str) -> Layout:
    """The layout of a name, which may be omitted where there is only one. Raises :class:`LayoutError` (1.4)."""
    if not name and len(layouts) == 1:
        return next(iter(layouts.values()))
    if not name and layouts:
        raise LayoutError(
            "missing required flag 'selected-config' when more than one config available; "
            f"available are {', '.join(layouts)}"
        )
    if name not in layouts:
        available = f"available are {', '.join(layouts)}" if layouts else "the file has no mig-configs"
        raise LayoutError(f"selected mig-config not present: {name!r}; {available}")
    return layouts[name]


# --- reading ----------------------------------------------------------------------------------------------------------


def parse(text: str, source: str) -> dict[str, Layout]:
    """Read a layout file; `source` names it in errors. Raises :class:`LayoutError` with all problems (1.1, 1.2)."""
    try:
        document = goyaml.loads(text)
    except goyaml.DocumentError as error:
        raise LayoutError(f"{source} is not valid YAML: {error}") from error
    problems = [f"{where}: there twice; each name is used once" for where in _repeated(text)]
    layouts = _document(document, problems)
    if problems:
        raise LayoutError("\n".join(f"{source}: {problem}" for problem in problems))
    return layouts


def _document(document: Any, problems: list[str]) -> dict[str, Layout]:
    if document is None or document == {}:
        return {}
    if not isinstance(document, dict):
        problems.append(f"expected a mapping with version and mig-configs, found {kind_of(document)}")
        return {}
    _check_keys("", document, _TOP, problems)
    if "version" not in document:
        problems.append('version: missing; expected "v1"')
    elif document["version"] != VERSION:
        problems.append(f'version: {document["version"]!r}; the only version is "v1"')
    if "mig-configs" not in document:
        return {}
    configs = document["mig-configs"]
    if not isinstance(configs, dict) or not configs:
        found = "none" if configs in (None, {}) else kind_of(configs)
        problems.append(f"mig-configs: expected at least one name with its entries, found {found}")
        return {}
    return {name: _layout(f"mig-configs.{name}", entries, problems) for name, entries in configs.items()}


def _layout(where: str, entries: Any, problems: list[str]) -> Layout:
    if not isinstance(entries, list) or not entries:
        found = "none" if entries in (None, []) else kind_of(entries)
        problems.append(f"{where}: expected a list of at least one entry, found {found}")
        return ()
    return tuple(_entry(f"{where}[{at}]", entry, problems) for at, entry in enumerate(entries))


def _entry(where: str, entry: Any, problems: list[str]) -> Entry:
    nothing = Entry(where=where, devices=(), enabled=False)
    if not isinstance(entry, dict):
        problems.append(f"{where}: expected a mapping with devices and mig-enabled, found {kind_of(entry)}")
        return nothing
    _check_keys(f"{where}.", entry, _KEYS, problems)
    problems += [f"{where}.{key}: missing; {_EXPECTED[key]}" for key in ("devices", "mig-enabled") if key not in entry]
    read: dict[str, Any] = {}
    for key, decode in _DECODERS.items():
        if key not in entry:
            continue
        try:
            read[key] = decode(entry[key])
        except ValueError as error:
            problems.append(f"{where}.{key}: {error}")
    enabled = read.get("mig-enabled", False)
    if "mig-enabled" in read:
        problems += _disagreeing(where, enabled, entry)
    return Entry(
        where=where,
        devices=read.get("devices", ()),
        filters=read.get("device-filter", ()),
        enabled=enabled,
        instances=read.get("mig-devices", {}),
    )


def _disagreeing(where: str, enabled: bool, entry: Mapping[str, Any]) -> Iterator[str]:
    if enabled and entry.get("mig-devices") is None:
        yield f"{where}.mig-devices: missing, though mig-enabled is true; {_EXPECTED['mig-devices']}"
    if not enabled and entry.get("mig-devices"):
        yield f"{where}.mig-devices: mig-enabled is false; leave mig-devices out, or set mig-enabled to true"


_EXPECTED: Final = {
    "devices": "expected all, or a list of GPU indices such as [0, 1]",
    "mig-enabled": "expected true or false",
    "mig-devices": "expected counts by profile such as {1g.10gb: 7}, or {} for no instances",
    "device-filter": 'expected PCI ids such as "0x20B010DE", or a list of such',
}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _devices(value: Any) -> tuple[int, ...] | None:
    if value == ALL:
        return None
    if isinstance(value, list) and all(map(_whole, value)):
        return tuple(value)
    odd = next((each for each in value if not _whole(each)), value) if isinstance(value, list) else value
    advice = "; UUIDs and PCI addresses are not accepted" if isinstance(odd, str) else ""
    raise ValueError(f"found {odd!r}; {_EXPECTED['devices']}{advice}")


def _enabled(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"found {value!r}; {_EXPECTED['mig-enabled']}, without quotes")


def _filters(value: Any) -> tuple[str, ...]:
    texts = [] if value in (None, "") else [value] if isinstance(value, str) else value
    if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
        return tuple(texts)
    raise ValueError(f"found {value!r}; {_EXPECTED['device-filter']}, in quotes")


def _instances(value: Any) -> dict[Profile, int]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"found {kind_of(value)}; {_EXPECTED['mig-devices']}")
    counts: Counter[Profile] = Counter()
    for text, count in value.items():
        profile = profiles.parse(text)
        if not _whole(count) or count < 0:
            raise ValueError(f"{text}: found {count!r}; expected how many there are to be, 0 or more")
        counts[profile] += count
    if value and not any(counts.values()):
        raise ValueError("all counts are 0; at least one must be more, or write {} for no instances")
    return {profile: count for profile, count in counts.items() if count}


_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "devices": _devices,
    "mig-enabled": _enabled,
    "mig-devices": _instances,
    "device-filter": _filters,
}


def _check_keys(where: str, mapping: Mapping[str, Any], known: Sequence[str], problems: list[str]) -> None:
    problems += [f"{where}{key}: not known; known are {', '.join(known)}" for key in mapping if key not in known]


def _repeated(text: str) -> Iterator[str]:
    """Places of keys that a mapping has twice; a reader of YAML would silently take the last."""
    try:
        node = yaml.compose(text, Loader=_SafeLoader)
    except yaml.YAMLError:  # JSON that is no YAML, such as with tabs
        return
    if node is not None:
        yield from _repeated_below("", node, set())


def _repeated_below(where: str, node: Any, visited: set[int]) -> Iterator[str]:
    if id(node) in visited:  # an alias
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for at, each in enumerate(node.value):
            yield from _repeated_below(f"{where}[{at}]", each, visited)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            place = f"{where}.{key.value}" if where else str(key.value)
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                yield place
            seen.add(str(key.value))
            yield from _repeated_below(place, value, visited)


# --- writing ----------------------------------------------------------------------------------------------------------

FORMATS: Final = ("yaml", "json")


def dump(layouts: Mapping[str, Layout], output: str) -> str:
    """Write a layout file, as `yaml` or `json`; :func:`parse` reads the same from it."""
    document = {
        "version": VERSION,
        "mig-configs": {name: [_written(entry) for entry in layout] for name, layout in layouts.items()},
    }
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120))


class _InOneLine(list[Any]):
    """A list that is written in brackets."""


class _Dumper(_SafeDumper):
    """Writes as the Go program does: lists of entries below each other, lists of devices and filters in one line."""


_NO_TEXT: Final = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null)|[-+.]*[0-9][-+.0-9a-fA-FxXoO_]*")
"""What a reader of YAML 1.1 may take for something else than a text."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _NO_TEXT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # type: ignore[no-any-return,unused-ignore]


_Dumper.add_representer(str, _text)
_Dumper.add_representer(
    _InOneLine, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def _written(entry: Entry) -> dict[str, Any]:
    filters = {"device-filter": entry.filters[0] if len(entry.filters) == 1 else _InOneLine(entry.filters)}
    return {
        **(filters if entry.filters else {}),
        "devices": ALL if entry.devices is None else _InOneLine(entry.devices),
        "mig-enabled": entry.enabled,
        "mig-devices": {str(profile): count for profile, count in sorted(entry.instances.items())},
    }
