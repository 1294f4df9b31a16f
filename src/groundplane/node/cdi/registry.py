"""The CDI devices that a machine offers: which spec files there are, and which of two that claim a device counts.

As container runtimes find them (contracts/toolkit-cdi.md 1.4). Files are read once, when the registry is loaded. What a
file must hold is ``read``'s and ``model``'s, what a device does to a container ``apply``'s.
"""

import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from . import model, read
from .write import DYNAMIC_DIR, STATIC_DIR, Format

DIRS: Final = (STATIC_DIR, DYNAMIC_DIR)
"""Where spec files are looked for if nothing else is said; the last has the highest priority."""


class Loaded(msgspec.Struct, frozen=True):
    """A spec with the file that it is from and the priority of that file's folder."""

    path: str
    priority: int
    spec: model.Spec


class Registry(msgspec.Struct, frozen=True):
    """The devices that can be resolved, by qualified name in order of the names; and what was wrong, by path.

    Of two files that claim a device, the one in the folder of higher priority counts. If they are of the same priority,
    both are in error, and nobody gets the device; what else they offer stays. Such a conflict is final: a file of
    higher priority does not settle one between files of lower priority. It would be kinder if it did, but the runtimes'
    library drops the name, and whoever asks this registry wants to know what a runtime will do.
    """

    specs: tuple[Loaded, ...]
    devices: Mapping[str, tuple[model.Spec, model.Device]]
    errors: Mapping[str, tuple[str, ...]]

    @classmethod
    def load(cls, path: Callable[[str], Path], dirs: Sequence[str] = DIRS) -> "Registry":
        """Read all spec files of some folders, the last of which has the highest priority; ``path`` finds real paths.

        Nothing is raised: what cannot be read is in ``errors``, and a folder that is not there has no files.
        """
        specs: list[Loaded] = []
        errors: dict[str, list[str]] = defaultdict(list)
        for priority, folder in enumerate(dirs):
            try:
                names = _names(path(folder))
            except OSError as error:
                errors[folder].append(f"{folder}: {error.strerror or error}; make it a folder that can be read")
                continue
            for name in names:
                file = f"{folder.rstrip('/')}/{name}"
                try:
                    specs.append(Loaded(file, priority, _read(file, path)))
                except (model.SpecError, OSError) as error:
                    errors[file].append(_text(file, error))
        return cls.of_loaded(specs, errors)

    @classmethod
    def of(cls, specs: Iterable[model.Spec]) -> "Registry":
        """The devices of some specs that are in no file, all of the same priority."""
        return cls.of_loaded([Loaded(f"spec {number}", 0, spec) for number, spec in enumerate(specs)])

    @classmethod
    def of_loaded(cls, specs: Sequence[Loaded], wrong: Mapping[str, Sequence[str]] | None = None) -> "Registry":
        """The devices of some specs, and what was wrong with others, by path."""
        errors = defaultdict(list, {file: list(texts) for file, texts in (wrong or {}).items()})
        claims: dict[str, list[tuple[Loaded, model.Device]]] = defaultdict(list)
        for loaded in specs:
            for device in loaded.spec.devices:
                claims[model.qualified(loaded.spec.kind, device.name)].append((loaded, device))
        devices: dict[str, tuple[model.Spec, model.Device]] = {}
        for name, claimants in sorted(claims.items()):
            conflicts = list(_conflicts(loaded for loaded, _ in claimants))
            for one, other in conflicts:
                for each in (one, other):
                    errors[each.path].append(f'conflicting device "{name}" (specs "{one.path}", "{other.path}")')
            if not conflicts:
                loaded, device = max(claimants, key=lambda claim: claim[0].priority)
                devices[name] = (loaded.spec, device)
        told = {file: tuple(texts) for file, texts in sorted(errors.items())}
        return cls(tuple(specs), MappingProxyType(devices), MappingProxyType(told))

    def warnings(self) -> Iterator[str]:
        """What was wrong, for a person: each text once."""
        yield from dict.fromkeys(text for texts in self.errors.values() for text in texts)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if Format.of(entry.name) and not entry.is_dir())
    except FileNotFoundError:
        return []


def _read(file: str, path: Callable[[str], Path]) -> model.Spec:
    real = path(file)
    if not stat.S_ISREG(real.stat().st_mode):
        raise model.SpecError(f"{file}: not a regular file; remove it")
    return read.decode(real.read_bytes(), file)


def _text(file: str, error: Exception) -> str:
    text = f"{file}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    return f"failed to load CDI spec {text}"


def _conflicts(claimants: Iterable[Loaded]) -> Iterator[tuple[Loaded, Loaded]]:
    """Pairs of a claimant and the first one of its priority."""
    first: dict[int, Loaded] = {}
    for loaded in claimants:
        other = first.setdefault(loaded.priority, loaded)
        if other is not loaded:
            yield loaded, other
