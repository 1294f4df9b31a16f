"""Which job of a batch system uses a GPU: a folder of files that its prolog writes (contracts/mig-exporter-validator.md
5.6)."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from .families import Entity

LABEL: Final = "hpc_job"


class JobsError(OSError):
    """The folder cannot be read; the text says which and why."""


def read(path: Callable[[str], Path], name: str, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The jobs of some GPUs (``0``) and GPU instances (``0.7``). Raises :class:`JobsError`.

    ``path`` maps a path of the container, such as the folder's `name`. Files that are not among `names` are left alone.
    """
    found: dict[str, tuple[str, ...]] = {}
    try:
        entries = [entry for entry in path(name).iterdir() if entry.name in names]
    except OSError as error:
        raise JobsError(f"the folder of job files {name} cannot be read: {error.strerror or error}") from error
    for entry in entries:
        try:
            if entry.is_file():
                lines = entry.read_text(encoding="utf-8", errors="replace").splitlines()
                found[entry.name] = tuple(dict.fromkeys(filter(None, map(str.strip, lines))))
        except FileNotFoundError:  # the job has ended meanwhile
            continue
        except OSError as error:
            raise JobsError(f"the job file {entry} cannot be read: {error.strerror}") from error
    return found


def of(entity: Entity, jobs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The jobs of an entity."""
    return jobs.get(file(entity), ())


def file(entity: Entity) -> str:
    """What the file of an entity's jobs is called."""
    return str(entity.gpu.index) if entity.gi is None else f"{entity.gpu.index}.{entity.gi}"
