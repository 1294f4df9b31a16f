"""Which release of NVIDIA's GPU Operator groundplane behaves like.

The two releases differ in few observed places (contracts/control-plane.md 9.12). Where the contract says to use
the 26.7 rule, both do, and nothing asks for the release there.
"""

import enum
import re
from typing import Final, Self


class Release(enum.Enum):
    """A release whose interfaces groundplane keeps; the value is its full version."""

    V26_3 = "26.3.3"
    V26_7 = "26.7.0"
    DEFAULT = V26_7

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a release such as ``26.7``, ``v26.7.0`` or ``26.3.9``: major and minor number decide.

        Raises:
            ValueError: not a version, or no release of that series is supported; the message lists what is.
        """
        match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", text.strip())
        if match is not None:
            for release in cls:
                if release.value.startswith(f"{match[1]}.{match[2]}."):
                    return release
        supported = ", ".join(release.value for release in cls)
        raise ValueError(f"unknown GPU Operator release {text!r}; use one of {supported}")

    def __str__(self) -> str:
        return self.value


DEFAULT: Final = Release.DEFAULT
