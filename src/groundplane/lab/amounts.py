"""Resource amounts as whole numbers: Kubernetes quantities parsed exactly, never through floating point.

CPU is counted in thousandths of a core, everything else (bytes of memory and storage, pods, `nvidia.com/gpu` and other
extended resources) in units; a fraction is rounded up, as the scheduler does, so that nothing is ever over-committed.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

Amounts = dict[str, int]

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?$")
_FACTORS: Mapping[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


def exact(value: str | int | float) -> Fraction:
    """The number a quantity stands for ("1500m", "2Gi", "1e3", 4); ValueError if it is none."""
    found = _QUANTITY.match(str(value).strip())
    if found is None:
        raise ValueError(
            f"{value!r} is no quantity; expected a number with an optional suffix such as m, k, Mi, Gi or e3"
        )
    number, suffix, exponent = found.groups()
    factor = _FACTORS[suffix] if suffix else Fraction(10) ** int(exponent) if exponent else Fraction(1)
    return Fraction(number) * factor


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """A quantity as the API writes it: no fraction, the largest suffix of its own family; ValueError if it is none.

    `0.5` is `500m`, `1024Mi` is `1Gi`, `1.5Gi` is `1536Mi`. What is finer than a billionth is rounded up.
    """
    value = exact(text)
    if text.strip().endswith("i") and value.denominator == 1 and abs(value) >= 1024:
        number, power = value.numerator, 0
        while number % 1024 == 0 and power < len(_BINARY) - 1:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY[power]}"
    nano = value * 10**9
    number, power = -(-nano.numerator // nano.denominator), -9
    while number and number % 1000 == 0 and power < _LARGEST:
        number, power = number // 1000, power + 3
    if not number:
        return "0"
    if "e" in text or ("E" in text and not text.strip().endswith("E")):
        return f"{number}e{power}" if power else str(number)
    return f"{number}{_DECIMAL[power]}"


_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_LARGEST = 18


@lru_cache(maxsize=4096)
def amount(resource: str, value: str | int | float) -> int:
    """A quantity in the whole units in which `resource` is counted (CPU: thousandths), rounded up."""
    units = exact(value) * (1000 if resource == "cpu" else 1)
    return -(-units.numerator // units.denominator)


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """A resource list (`requests`, `allocatable`, `overhead`) in whole units."""
    return {name: amount(name, value) for name, value in (quantities or {}).items()}


def add(total: Amounts, more: Mapping[str, int]) -> None:
    """Add `more` to `total` in place."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def raise_to(total: Amounts, least: Mapping[str, int]) -> None:
    """Raise each resource of `total` to at least that of `least`, in place."""
    for name, value in least.items():
        if value > total.get(name, 0):
            total[name] = value


def pod_requests(spec: Mapping[str, Any]) -> Amounts:
    """What a pod needs of a node.

    The sum over its containers and sidecars (init containers with `restartPolicy: Always`), or the largest need
    while it initialises if that is more: an init container runs beside the sidecars started before it. The pod's own
    `resources` replace the sum for what they name. `spec.overhead` (the RuntimeClass's, set on admission) comes on
    top. A limit without a request counts as the request.
    """
    total: Amounts = {}
    for container in spec.get("containers") or ():
        add(total, _container_requests(container))
    sidecars: Amounts = {}
    initial: Amounts = {}
    for container in spec.get("initContainers") or ():
        needed = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            add(sidecars, needed)
            needed = sidecars
        else:
            add(needed, sidecars)
        raise_to(initial, needed)
    add(total, sidecars)
    raise_to(total, initial)
    total.update(_container_requests(spec))
    add(total, amounts(spec.get("overhead")))
    return total


def _container_requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
