"""Does a live object still hold what we want? A pure comparison that knows what an API server does to objects.

An API server adds defaults, drops empty fields, rewrites quantities, and other writers (webhooks, users, controllers)
add fields and list items of their own; none of that is drift. What we set and no longer find is. Rules:

* Maps: every wanted key is compared; keys that only the live object has are somebody else's.
* Lists with a key (containers, env, volumes and the others of :data:`LIST_KEYS`, as server-side apply merges them):
  each wanted item is looked up by its key, and extra live items are somebody else's. Where order means something
  (:data:`ORDERED`), the wanted items must stand in the wanted order.
* Finalizers are a set. All other lists belong to one writer: same length, items compared by position.
* Empty and absent are the same ("", [], {}, null, and zero and false where Kubernetes omits them), except for the
  fields of :data:`ZERO_MATTERS`, where absent means something else.
* Quantities are compared by value (``1`` = ``1000m``).
* ``status``, the digest annotation, and what the server alone writes into ``metadata`` are not compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ..api import names

LIST_KEYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "containers": (("name",),),
    "initContainers": (("name",),),
    "ephemeralContainers": (("name",),),
    "env": (("name",),),
    "volumes": (("name",),),
    "volumeMounts": (("mountPath",),),
    "volumeDevices": (("devicePath",),),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),
    "imagePullSecrets": (("name",),),
    "secrets": (("name",),),
    "hostAliases": (("ip",),),
    "resourceClaims": (("name",),),
    "topologySpreadConstraints": (("topologyKey", "whenUnsatisfiable"),),
    "ownerReferences": (("uid",),),
}
"""Lists that several writers share, by field name: the item fields that identify an item (the first set that fits)."""

KEY_DEFAULTS: Final[Mapping[str, str]] = {"protocol": "TCP"}
ORDERED: Final = frozenset({"initContainers", "env"})
"""Init containers run in their order, and ``$(VAR)`` expands variables that stand before."""
SETS: Final = frozenset({"finalizers"})

ZERO_MATTERS: Final = frozenset(
    {
        "allowPrivilegeEscalation",
        "automountServiceAccountToken",
        "backoffLimit",
        "defaultMode",
        "enableServiceLinks",
        "fsGroup",
        "hostUsers",
        "maxSurge",
        "maxUnavailable",
        "minAvailable",
        "mode",
        "replicas",
        "revisionHistoryLimit",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "ttlSecondsAfterFinished",
    }
)
"""Fields that are pointers in Kubernetes' types and whose absence does not mean zero or false."""

QUANTITY_PARENTS: Final = frozenset({"limits", "requests", "capacity", "allocatable", "podFixed", "hard"})
QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "storage", "divisor"})

_SKIPPED: Final = frozenset({("status",), ("apiVersion",), ("kind",)}) | {
    ("metadata", field)
    for field in (
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "uid",
    )
}
_DIGEST: Final = ("metadata", "annotations", names.LAST_APPLIED_HASH)

Path = tuple[str, ...]


def drift(desired: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Paths, as a person reads them, at which ``live`` does not hold what ``desired`` says; empty if all is held."""
    return [_shown(path) for path in _map(desired, live, ())]


def _shown(path: Path) -> str:
    text = ""
    for part in path:
        if part.startswith("[") or not text:
            text += part
        elif "." in part or "/" in part:
            text += f"[{part}]"
        else:
            text += f".{part}"
    return text


def _map(desired: Mapping[str, Any], live: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for key, wanted in desired.items():
        here = (*path, key)
        if here not in _SKIPPED and here != _DIGEST:
            yield from _value(wanted, live.get(key), here)


def _value(wanted: Any, found: Any, path: Path) -> Iterator[Path]:
    if found is None:
        if not _absent_is_equal(wanted, path):
            yield path
    elif isinstance(wanted, Mapping):
        if isinstance(found, Mapping):
            yield from _map(wanted, found, path)
        else:
            yield path
    elif isinstance(wanted, list | tuple):
        if isinstance(found, list | tuple):
            yield from _list(wanted, found, path)
        else:
            yield path
    elif not _scalar_equal(wanted, found, path):
        yield path


def _absent_is_equal(wanted: Any, path: Path) -> bool:
    """The server drops what is empty: a map with nothing but empty fields in it may be gone altogether, too."""
    if isinstance(wanted, Mapping):
        return not any(_map(wanted, {}, path))
    if wanted is None or wanted == "" or (isinstance(wanted, list | tuple) and not wanted):
        return True
    return path[-1] not in ZERO_MATTERS and isinstance(wanted, bool | int | float) and not wanted


def _scalar_equal(wanted: Any, found: Any, path: Path) -> bool:
    if wanted is None:
        return not found
    if isinstance(wanted, bool) != isinstance(found, bool):
        return False
    if wanted == found:
        return True
    if path[-1] in QUANTITY_FIELDS or (len(path) > 1 and path[-2] in QUANTITY_PARENTS):
        left, right = quantity(wanted), quantity(found)
        return left is not None and left == right
    return False


# --- lists -------------------------------------------------------------------------------------------------------


def _list(wanted: Sequence[Any], found: Sequence[Any], path: Path) -> Iterator[Path]:
    if path[-1] in SETS:
        if not set(map(str, wanted)) <= set(map(str, found)):
            yield path
        return
    keyed = _keyed(wanted, found, path[-1])
    if keyed is None:
        yield from _by_position(wanted, found, path)
    else:
        yield from _by_key(*keyed, path)


def _by_position(wanted: Sequence[Any], found: Sequence[Any], path: Path) -> Iterator[Path]:
    if len(wanted) != len(found):
        yield path
        return
    for index, (left, right) in enumerate(zip(wanted, found, strict=True)):
        yield from _value(left, right, (*path, f"[{index}]"))


def _by_key(wanted: Mapping[str, Any], found: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for key, item in wanted.items():
        if key in found:
            yield from _map(item, found[key], (*path, f"[{key}]"))
        else:
            yield (*path, f"[{key}]")
    if path[-1] not in ORDERED:
        return
    common = [key for key in wanted if key in found]
    if common != [key for key in found if key in wanted]:
        yield (*path, "[order]")


def _keyed(
    wanted: Sequence[Any], found: Sequence[Any], field: str
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]]] | None:
    """Both lists as maps by key; None where a list has no key, or items that lack or repeat it."""
    for fields in LIST_KEYS.get(field, ()):
        left, right = _index(wanted, fields), _index(found, fields)
        if left is not None and right is not None:
            return left, right
    return None


def _index(items: Sequence[Any], fields: tuple[str, ...]) -> dict[str, Mapping[str, Any]] | None:
    index: dict[str, Mapping[str, Any]] = {}
    for item in items:
        if not isinstance(item, Mapping) or not item.get(fields[0]):
            return None
        key = "/".join(str(item.get(field) or KEY_DEFAULTS.get(field, "")) for field in fields)
        if key in index:
            return None
        index[key] = item
    return index


# --- quantities --------------------------------------------------------------------------------------------------

_SUFFIXES: Final[Mapping[str, Decimal]] = {
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)},
    **{prefix: Decimal(1000) ** power for power, prefix in enumerate("kMGTPE", start=1)},
    "m": Decimal("1e-3"),
    "u": Decimal("1e-6"),
    "n": Decimal("1e-9"),
    "": Decimal(1),
}


def quantity(text: object) -> Decimal | None:
    """The value of a Kubernetes quantity (``100m``, ``1.5Gi``, ``1e3``, ``2``), None if it is none."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    number = str(text).strip()
    digits = number.rstrip("KMGTPEkmuni")
    try:
        return Decimal(digits) * _SUFFIXES[number[len(digits) :]]
    except (InvalidOperation, KeyError):
        return None
