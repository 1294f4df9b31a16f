"""What a container runtime's module offers: which files it has, what they are to say, and what of them is ours."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from ...process import Process
from ..settings import RuntimeSettings
from .memory import Kept
from .sources import Loaded

Texts: TypeAlias = dict[str, str | None]
"""Files by path: the text, or None for one that does not exist (or is not to)."""


class Given(msgspec.Struct, frozen=True):
    """What a configuration is planned from.

    ``originals`` are the files without what is ours, ``now`` the files as they are; ``default`` is the default handler
    that is remembered from before, if any.
    """

    settings: RuntimeSettings
    originals: Texts
    now: Texts
    source: Loaded
    default: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What the files are to say, in the order in which they are to be written, and the default handler before."""

    files: Texts
    default: str = ""
    warnings: tuple[str, ...] = ()


class Taken(msgspec.Struct, frozen=True):
    """What is there when a configuration is taken back; ``kept`` is what is remembered, None if nothing is."""

    settings: RuntimeSettings
    now: Texts
    originals: Texts
    kept: Mapping[str, Kept] | None


class Engine(Protocol):
    """A container runtime. None of these writes anything; all may raise RuntimeConfigError."""

    def paths(self, settings: RuntimeSettings) -> tuple[str, ...]:
        """The files it may change, in the order in which they are written; they are taken back in the other order."""

    async def load(self, process: Process, settings: RuntimeSettings) -> Loaded:
        """The configuration that is in force, from the first of the sources that has it."""

    def original(self, settings: RuntimeSettings, path: str, now: str, kept: Kept | None) -> str | None:
        """A file without what is ours."""

    def plan(self, process: Process, given: Given) -> Plan:
        """What the files are to say."""

    def reverted(self, taken: Taken) -> Texts:
        """What the files are to say when the configuration is taken back."""

    def binaries(self, plain: Mapping[str, object], name: str) -> Sequence[str]:
        """The low-level executables that a handler of a configuration names, if any."""

    def default(self, plain: Mapping[str, object]) -> str:
        """The default handler of a configuration, empty if none is named."""

    def effective(self, settings: RuntimeSettings, old: Texts, new: Texts) -> bool:
        """Whether the runtime would behave differently."""

    def remark(self, process: Process, given: Given) -> None:
        """Say what a person should know before files are written; an error for what must not be."""

    async def check(self, process: Process, given: Given) -> None:
        """Look whether the files that were just written are in force."""
