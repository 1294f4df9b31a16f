"""IMEX channels that containers may be given, as far as they are there (contracts/device-plugin-gfd.md 4.6)."""

import stat
from collections.abc import Iterable
from pathlib import Path

from ..cdi.modes import IMEX_NODE
from ..process import Process


class ChannelMissing(RuntimeError):  # noqa: N818 - reads as a fact
    """A required channel does not exist; the plugin cannot start."""


def available(
    process: Process, channels: Iterable[int], dev_root: str, *, required: bool, any_kind: bool = False
) -> tuple[int, ...]:
    """The channels that exist, below the container's dev root or at their plain path.

    They must be character devices, unless ``any_kind`` (where devices are simulated).

    Raises:
        ChannelMissing: one does not, and ``required``.
    """
    found = []
    for channel in channels:
        node = IMEX_NODE.format(channel)
        if any(_is_node(process.path(f"{root}{node}"), any_kind) for root in dict.fromkeys((dev_root, ""))):
            found.append(channel)
        elif required:
            raise ChannelMissing(f"requested IMEX channel channel{channel} does not exist")
        else:
            process.log.warning(f"IMEX channel channel{channel} does not exist ({node}): containers will not have it")
    return tuple(found)


def _is_node(path: Path, any_kind: bool) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return any_kind or stat.S_ISCHR(mode)
