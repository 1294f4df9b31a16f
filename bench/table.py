"""Printing benchmark results: aligned columns, a ratio against a stated reference, and how it was measured."""

import os
import platform
from collections.abc import Sequence


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
    """Print one table; floats are shown with three significant digits."""
    cells = [[_text(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) if cells else len(name) for i, name in enumerate(columns)]
    print(f"\n{title}")
    print("  " + "  ".join(name.rjust(width) for name, width in zip(columns, widths, strict=True)))
    for row in cells:
        print("  " + "  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)))
    if note:
        print(f"  {note}")


def machine() -> str:
    """Return what the figures were measured on."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)
