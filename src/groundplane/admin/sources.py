"""Where a command's survey comes from when it is no live cluster: a file, a folder, an archive, standard input."""

import io
import sys
from pathlib import Path
from typing import Final

from ..diagnose import archive
from ..diagnose.survey import Survey

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
    return _told(archive.load_stream("standard input", io.BytesIO(sys.stdin.buffer.read(STDIN_MOST))))


def _told(captured: archive.Captured) -> Survey:
    """Its survey; a snapshot whose only documents are of no known kind is an error, not an empty cluster."""
    if not captured.survey.objects:
        told = "; ".join(captured.missing[:3]) or "no object of a kind that is looked at"
        raise archive.ArchiveError(f"the snapshot holds no object of a cluster: {told}")
    return captured.survey
