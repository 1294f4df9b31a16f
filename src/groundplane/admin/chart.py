"""The names and defaults of the gpu-operator chart's values, as they come with groundplane.

For what has to be known before any chart is fetched: whether a values file has names that no chart knows, and what a
chart will refuse. The names are those of NVIDIA's charts and of ours, which are the same (deploy/chart/values.yaml;
data/chart-values.json is made of it). A chart that is at hand has better: its own values.
"""

import functools
from importlib.resources import files
from typing import Any, Final

import msgspec

from . import values
from .hops import Version

FILE: Final = "chart-values.json"


class _Shipped(msgspec.Struct, frozen=True):
    values: dict[str, Any]
    releases: dict[str, dict[str, Any]]


@functools.cache
def _shipped() -> _Shipped:
    return msgspec.json.decode((files(__package__) / "data" / FILE).read_bytes(), type=_Shipped)


def releases() -> tuple[Version, ...]:
    """The releases whose defaults are known, oldest first."""
    return tuple(sorted(Version.parse(name) for name in _shipped().releases))


def nearest(release: Version) -> Version:
    """The release whose defaults stand for another's: the newest that is not newer, else the oldest."""
    return max((each for each in releases() if each <= release), default=releases()[0])


def defaults(release: Version) -> dict[str, Any]:
    """The chart's values where nobody has set any, of :func:`nearest`."""
    shipped = _shipped()
    return values.chart_defaults(shipped.values, shipped.releases, nearest(release))
