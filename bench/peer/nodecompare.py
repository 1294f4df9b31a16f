"""What differs between two observations of one scenario, and which of it is meant to.

Texts of errors are for people and are not compared, nor is an order that NVIDIA's programs leave to chance.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

ABSENT: Final = "(absent)"
_NODES: Final = re.compile(r"/devices$")
"""Device nodes of an answer: in no order, and some twice."""
_CALLED: Final = re.compile(r"/(NVIDIA_VISIBLE_DEVICES|cdi|mounts|[^/]*_UUID4)$")
"""What a container's devices are called: in the order of the request by UUID, in no order by index."""
_TEXTS: Final = re.compile(r"/error$")


class Difference(NamedTuple):
    """A place in two observations that is not the same."""

    place: str
    ours: Any
    theirs: Any


class Known(NamedTuple):
    """A difference that is meant: in which scenarios, at which places, why, and maybe in one release only."""

    scenario: str
    place: str
    why: str
    release: str = ""


_HARDENED = "unexpected arguments are refused"
_FROM_THE_START = "health is known from the start"
_ONE_MODEL = "several models: labels are those of one"
_BETWEEN = "another program's options in the file are not shown"
KNOWN: Final[dict[str, tuple[Known, ...]]] = {
    "plugin": (
        Known(r"^MIG (several types|graphics|all media|part compute).*mixed$", "", "patterns are anchored", "26.3"),
        Known("", r"/prefer/.*/spread$", "NVIDIA's 0.19 picks by chance among equals", "26.3"),
        Known("", r"/prefer/unknown must$", "a device that is not offered is refused"),
        Known(r"^arguments: (extra|--pass-device-specs true|-- --nothing|version|help)$", "", _HARDENED),
        Known(r"^devices: (\[null\]|null)$|rename: (''|null)", "", "null and an empty text are the default"),
        Known(r"^sharing: two entries$", "", "the first entry of a resource counts"),
        Known(r"^file: gfd section wrong$", "", "another program's section is ignored"),
        Known(r"^file: node feature api$", r"^/config/", _BETWEEN),
        Known(r"^sharing file: null$", "", "a section that is null is none"),
        Known("", r"^/config/sharing/.*/failRequestsGreaterThanOne$", "a default is not shown", "26.7"),
        Known(r"^init fails, cdi, fail false$", "", "failOnInitError=false waits, with CDI as without"),
        Known(
            r"^init fails, mixed|^fault: .*mixed$",
            r"^/config",
            "the configuration is logged before the driver is asked",
        ),
        Known(r"^fault: System.*Version", "", "a driver that does not tell its version is an error"),
        Known(r"^fault: DeviceGetPciInfo 3$", "", "a GPU on no bus is near no memory"),
        Known(r"^fault: DeviceGet(Topology|NvLink)", r"/prefer/", "where nothing is to be chosen nothing is asked"),
        Known(r"^fault: (DeviceRegister|DeviceGetSupported|EventSet|DeviceGet.*UUID)", r"/devices/", _FROM_THE_START),
        Known(r"^fault: DeviceGetDeviceHandleFromMig", "", "a MIG device that cannot be placed is unhealthy"),
    ),
    "features": (
        Known(r"^MIG (same size|of two models|and another model)|^display among|^two models", r"/labels/", _ONE_MODEL),
        Known(r"^arguments: (extra|--oneshot false)$", "", _HARDENED),
        Known(r"^fault: DeviceGet(UUID|PciInfo 999|MinorNumber 999)", "", "a GPU that does not answer is an error"),
        Known(r"GFD_OUTPUT_FILE='@/nowhere", "", "the file's folder is made"),
        Known("", r"/nvidia.com/gfd.timestamp$", "another moment"),
        Known(r"^file: (plugin|imex)", r"^/config/", _BETWEEN),
        Known(r"DISCOVERY_STRATEGY='(|other)'", r"^/config", "the configuration is logged before its check"),
    ),
}


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[Difference]:
    """The places at which two observations differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            yield from differences(ours.get(key, ABSENT), theirs.get(key, ABSENT), f"{place}/{key}")
    elif _lists_of_parts(ours, theirs) and not _unordered(ours, place):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif not _same(ours, theirs, place):
        yield Difference(place, ours, theirs)


def _lists_of_parts(ours: Any, theirs: Any) -> bool:
    """Whether both are lists of mappings or lists, as long as each other."""
    if not (isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs)):
        return False
    return any(isinstance(each, dict | list) for each in ours)


def _unordered(value: Any, place: str) -> bool:
    by_uuid = any(kind in str(value) for kind in ("GPU-", "MIG-"))
    return _NODES.search(place) is not None or (_CALLED.search(place) is not None and not by_uuid)


def _same(ours: Any, theirs: Any, place: str) -> bool:
    if _unordered(ours, place):
        return bool(_members(ours) == _members(theirs))
    return bool(ours == theirs) or _TEXTS.search(place) is not None or _both_refused(ours, theirs, place)


def _both_refused(ours: Any, theirs: Any, place: str) -> bool:
    """Whether both refuse to prefer any devices; why is for people."""
    if "/prefer/" not in place or not (isinstance(ours, list) and isinstance(theirs, list)):
        return False
    return ours[:1] == ["UNKNOWN"] and theirs[:1] == ["UNKNOWN"]


def _members(value: Any) -> Any:
    """What is in an answer, in no order; a node that is named twice counts once."""
    if isinstance(value, str):
        return set(value.split(","))
    return {str(each) for each in value} if isinstance(value, list) else value


def reason(program: str, release: str, scenario: str, found: Difference) -> str | None:
    """Why a difference is meant, or None if it is not."""
    for known in KNOWN[program]:
        if known.release not in ("", release):
            continue
        if re.search(known.scenario, scenario) and re.search(known.place, found.place):
            return known.why
    return None
