"""GPU figures as an exporter's page tells them: what a person wants to see of each GPU, read by Prometheus' own parser.

Pure. A figure that the page does not have is None; none is made up. Fetching the page is the caller's part.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

SERIES: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_FB_USED": "used_mib",
    "DCGM_FI_DEV_FB_FREE": "free_mib",
    "DCGM_FI_DEV_XID_ERRORS": "xid",
}
"""Which field holds which of the exporter's series."""
_USER: Final = ("namespace", "pod", "container")


class FiguresError(ValueError):
    """A page is none of an exporter's; the text says what is wrong with it."""


class Figures(msgspec.Struct, frozen=True, order=True):
    """One GPU, or one GPU instance of it: degrees Celsius, W, MiB, the last Xid error (0: none).

    ``profile`` and ``instance`` are those of a GPU instance, and empty for a whole GPU; ``user`` is
    namespace/pod/container of who uses it, or empty.
    """

    gpu: int
    profile: str
    instance: str
    uuid: str
    user: str = ""
    temperature_c: float | None = None
    power_w: float | None = None
    used_mib: float | None = None
    free_mib: float | None = None
    xid: float | None = None

    @property
    def complete(self) -> bool:
        """Whether the page has all of its figures."""
        return all(getattr(self, field) is not None for field in SERIES.values())


def parse(page: str) -> list[Figures]:
    """Read a page; GPUs by index. Raises :class:`FiguresError`."""
    found: dict[tuple[str, ...], Figures] = {}
    try:
        for name, labels, value in _samples(page):
            key = (labels["gpu"], labels.get("GPU_I_PROFILE", ""), labels.get("GPU_I_ID", ""), labels["UUID"])
            before = found.get(key) or Figures(int(key[0]), *key[1:], user=_user(labels))
            found[key] = msgspec.structs.replace(before, **{SERIES[name]: value})
    except (KeyError, ValueError) as error:
        raise FiguresError(f"not in Prometheus' text format, or not of GPUs: {error!r}") from error
    return sorted(found.values())


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(page):
        if family.name in SERIES:
            yield from ((family.name, sample.labels, sample.value) for sample in family.samples)


def _user(labels: Mapping[str, str]) -> str:
    return "/".join(labels[name] for name in _USER) if labels.get("pod") else ""
