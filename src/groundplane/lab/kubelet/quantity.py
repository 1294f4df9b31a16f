"""Kubernetes quantities: `250m`, `1.5Gi`, `2e3` as exact numbers."""

import re
from fractions import Fraction

_SUFFIXES = {
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:[eE]([+-]?[0-9]+)|([a-zA-Z]*))")


def amount(text: str) -> Fraction:
    """The exact value of a quantity; ValueError if it is none."""
    found = _QUANTITY.fullmatch(text.strip())
    if not found or (found[3] or "") not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity; expected a number with a suffix such as m, Ki, Mi, Gi, k, M, G")
    scale = Fraction(10) ** int(found[2]) if found[2] else _SUFFIXES[found[3] or ""]
    return Fraction(found[1].rstrip(".")) * scale


def ceil_divide(value: Fraction, divisor: Fraction) -> int:
    """`value / divisor`, rounded up to a whole number."""
    return -int(-(value / divisor) // 1)
