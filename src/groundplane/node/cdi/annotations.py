"""Requests for CDI devices by annotation: how one is written and read (contracts/toolkit-cdi.md 1.5)."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from . import model

PREFIX: Final = "cdi.k8s.io/"
"""What keys of such annotations begin with."""
_MAX_NAME: Final = 63
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


class AnnotationError(ValueError):
    """A request that cannot be written, or that no runtime takes; the text says what is wrong with which part."""


def key(plugin: str, device_id: str) -> str:
    """The key of a plugin's request for a device (or whatever the id stands for). Raises :class:`AnnotationError`."""
    if not plugin or not device_id:
        raise AnnotationError("CDI annotation: a plugin's name and a device's id are needed")
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if len(name.encode()) > _MAX_NAME:
        raise AnnotationError(f"CDI annotation: the name {name!r} has more than {_MAX_NAME} characters")
    if not _NAME.fullmatch(name):
        raise AnnotationError(
            f"CDI annotation: the name {name!r} must begin and end with a letter or digit, and hold only these, _, - "
            "and ."
        )
    return PREFIX + name


def value(names: Iterable[str]) -> str:
    """The value that asks for devices by qualified names. Raises :class:`AnnotationError`."""
    wanted = tuple(names)
    for name in wanted:
        _qualified(name)
    return ",".join(wanted)


def update(annotations: Mapping[str, str], plugin: str, device_id: str, names: Iterable[str]) -> dict[str, str]:
    """Annotations with one more request.

    Raises :class:`AnnotationError`, also if there is a request under this key already.
    """
    added = key(plugin, device_id)
    if added in annotations:
        raise AnnotationError(f"CDI annotation: the key {added!r} is used already")
    return {**annotations, added: value(names)}


def parse(annotations: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of all requests, sorted, and the qualified names that they ask for, in the order of the keys.

    Raises :class:`AnnotationError` if any of the names is not qualified.
    """
    keys = tuple(sorted(name for name in annotations if name.startswith(PREFIX)))
    names = tuple(name for each in keys for name in annotations[each].split(","))
    for name in names:
        _qualified(name)
    return keys, names


def _qualified(name: str) -> None:
    try:
        model.parse_qualified(name)
    except model.SpecError as error:
        raise AnnotationError(str(error)) from None
