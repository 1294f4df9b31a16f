"""Where a command's survey comes from when it is no live cluster: a file, a folder, an archive, standard input."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ..diagnose import archive
from ..diagnose.survey import Object, Survey

STDIN_MOST: Final = 1 << 30
"""Bytes that are read of standard input."""


def survey_of(path: str | Path) -> Survey:
    """The survey that ``--snapshot PATH`` means: kubectl's YAML or JSON, a folder of it, an archive; ``-`` is stdin.

    Raises:
        archive.ArchiveError: there is nothing of a cluster in it.
        OSError: it cannot be read.
    """
    if str(path) != "-":
        return _told(archive.load(Path(path)))
    data = sys.stdin.buffer.read(STDIN_MOST)
    name = "stdin.json" if data.lstrip()[:1] == b"{" else "stdin.yaml"  # files are read by what their name ends in
    return _told(archive.load_stream(name, io.BytesIO(data)))


def survey_of_all(paths: Sequence[str | Path], *, namespace: str = "") -> Survey:
    """One survey of several sources, each as :func:`survey_of` reads it; ``namespace`` is the operator's.

    A kind that one of them has was read; of those that none has, the first's reason stands. Raises as that one does.
    """
    found = [survey_of(path) for path in paths]
    objects: dict[str, tuple[Object, ...]] = {}
    for each in found:
        for plural, some in each.objects.items():
            objects[plural] = (*objects.get(plural, ()), *some)
    unread: dict[str, str] = {}
    for each in reversed(found):
        unread |= {plural: why for plural, why in each.unread.items() if plural not in objects}
    absent = frozenset.intersection(*(each.absent for each in found))
    first = found[0]
    return msgspec.structs.replace(
        first, objects=objects, unread=unread, absent=absent - set(objects), namespace=namespace or first.namespace
    )


def _told(captured: archive.Captured) -> Survey:
    """Its survey; a snapshot whose only documents are of no known kind is an error, not an empty cluster."""
    if not captured.survey.objects:
        told = "; ".join(captured.missing[:3]) or "no object of a kind that is looked at"
        raise archive.ArchiveError(f"the snapshot holds no object of a cluster: {told}")
    return captured.survey
