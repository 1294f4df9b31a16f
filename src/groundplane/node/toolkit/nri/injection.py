"""Which CDI devices a container gets, by its pod's annotations (contracts/toolkit-cdi.md 7.3). Pure.

A request is never a reason for a container not to start: what is not allowed or makes no sense is left out, and said.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ....api import names
from ....api.release import Release
from ...cdi import model


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Who may have what. `namespace` is the toolkit's own; `management_namespaces` are others that may manage GPUs."""

    release: Release
    namespace: str
    management_namespaces: tuple[str, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A container that is being made, and the annotations of its pod."""

    namespace: str
    pod: str
    container: str
    annotations: Mapping[str, str]

    def __str__(self) -> str:
        return f"container {self.container} of pod {self.namespace}/{self.pod}"


class Injection(msgspec.Struct, frozen=True):
    """What a container gets: qualified names of CDI devices in the order asked for; and what a person should know."""

    devices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


NOTHING: Final = Injection()
SHOWN: Final = 5
SHOWN_CHARACTERS: Final = 200
"""How much of what a user wrote is told: so many names, and so much of each."""


def decide(rule: Rule, asked: Asked) -> Injection:
    """What a container gets. Each device once: a runtime takes a second mention for a quarrel between plugins."""
    key = _key(asked)
    if key is None:
        return NOTHING
    value = asked.annotations[key]
    if refusal := _refusal(rule, asked.namespace, value):
        text = f"{asked} gets no CDI devices, though annotation {key} asks for {_shown(value)}: {refusal}"
        return Injection((), (text,))
    items = dict.fromkeys(item for each in value.split(",") if (item := each.strip()))
    malformed = [item for item in items if not model.is_qualified(item)]
    if not malformed:
        return Injection(tuple(items))
    text = f"{asked}: annotation {key}: left out, for it is no CDI device VENDOR/CLASS=DEVICE: {listed(malformed)}"
    left_out = frozenset(malformed)
    return Injection(tuple(item for item in items if item not in left_out), (text,))


def listed(items: Sequence[str]) -> str:
    """Items as they are told: the first ones, and how many there are where that is not all."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(map(_shown, items[:SHOWN])) + more


def _shown(text: str) -> str:
    """A user's text as it is told: an annotation may be 256 KiB long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


def _key(asked: Asked) -> str | None:
    """The annotation that holds for a container: its own before its pod's, whatever its value."""
    domain = names.NRI_CDI_ANNOTATION
    keys = (f"{domain}/container.{asked.container}", f"{domain}/pod", domain)
    return next((key for key in keys if key in asked.annotations), None)


def _refusal(rule: Rule, namespace: str, value: str) -> str:
    """Why a pod may not have what an annotation asks for; empty if it may."""
    if rule.release is Release.V26_3:
        return "" if namespace == rule.namespace else f"only pods of namespace {rule.namespace} may ask"
    allowed = (rule.namespace, *rule.management_namespaces)
    if names.MANAGEMENT_CDI_KIND not in value or namespace in allowed:
        return ""
    return (
        f"only pods of {', '.join(allowed)} may have {names.MANAGEMENT_CDI_KIND} (NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES)"
    )
