"""Which configuration a node uses: by its label, else a default, else a fallback (contracts/device-plugin-gfd.md 7)."""

from collections.abc import Collection, Sequence
from typing import Final

NAMED: Final = "default"
"""The name that fallback ``named`` looks for."""


class SelectionError(RuntimeError):
    """No configuration can be chosen; the message lists those that there are. Exit code 1."""


def choose(available: Collection[str], label: str, default: str, fallbacks: Sequence[str], source: str) -> str | None:
    """The name of the configuration, or None for an empty one.

    ``available`` are the names of the files in the folder ``source``, ``label`` the value of the node's label, empty
    if it has none. Raises :class:`SelectionError`.
    """
    if not available:
        raise SelectionError(f"no configuration is available: {source} has no file")
    names = f"available configs in {source}: {', '.join(sorted(available))}"
    for wanted, why in ((label, "the node's label"), (default, "the default config")):
        if wanted and wanted not in available:
            raise SelectionError(f'config "{wanted}", named by {why}, does not exist; {names}')
        if wanted:
            return wanted
    for fallback in fallbacks:
        if fallback == "named" and NAMED in available:
            return NAMED
        if fallback == "single" and len(available) == 1:
            return next(iter(available))
        if fallback == "empty":
            return None
        if fallback not in ("named", "single"):
            raise SelectionError(f'unknown fallback strategy "{fallback}"; expected named, single or empty')
    tried = f"no fallback strategy fits ({', '.join(fallbacks)})" if fallbacks else "there is no fallback strategy"
    raise SelectionError(f"the node has no label that names a config, there is no default config, and {tried}; {names}")
