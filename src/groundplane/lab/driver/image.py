"""What a driver image's reference says: a full version to build, or a branch precompiled for one kernel.

Source: contracts/driver-lifecycle.md 6.6.
"""

import re
from typing import Final, NamedTuple

from ...node.devices.models import CUDA_VERSIONS

_FULL_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+)+")
_PRECOMPILED: Final = re.compile(r"(?P<branch>[0-9]+)-(?P<kernel>[0-9].*)-(?P<os>[a-z]+)[0-9.]+")


class DriverImage(NamedTuple):
    """`kernel` is that of a precompiled driver, empty for one that is built on the node; `os` is then the image's."""

    version: str
    kernel: str = ""
    os: str = ""

    @property
    def branch(self) -> int:
        """The driver's branch, such as 580; 0 if the version is none."""
        start = self.version.partition(".")[0]
        return int(start) if start.isdecimal() else 0


def parse(reference: str) -> DriverImage:
    """`580.126.20-ubuntu24.04`, or precompiled `580-6.8.0-60-generic-ubuntu22.04`, in an image's tag."""
    tag = reference.rpartition(":")[2]
    if found := _PRECOMPILED.fullmatch(tag):
        return DriverImage(found["branch"] + ".00", found["kernel"], found["os"])
    start = tag.split("-")[0]
    return DriverImage(start if _FULL_VERSION.fullmatch(start) else start + ".00")


def version_of(reference: str) -> str:
    """The driver version that an image brings."""
    return parse(reference).version


def published(reference: str) -> bool:
    """Whether NVIDIA has published drivers of that branch."""
    return parse(reference).branch <= max(CUDA_VERSIONS)
