"""Where CDI specs are kept, and how one gets there: in one step, readable by all (contracts/toolkit-cdi.md 1.4)."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..hostroot import write_atomic
from . import model

DYNAMIC_DIR: Final = "/var/run/cdi"
"""The folder of highest priority, which is empty after a reboot."""


def file_name(kind: str) -> str:
    """The name of a kind's spec file: ``<vendor>-<class>.json``."""
    return f"{kind.replace('/', '-')}.json"


def write(spec: model.Spec, path: Callable[[str], Path], folder: str = DYNAMIC_DIR) -> str:
    """Write a spec's file and return its path (as the program sees it); ``path`` finds real paths.

    Raises:
        SpecError: the spec breaks a rule; an earlier file is left as it is.
        OSError: the file cannot be written.
    """
    content = model.encode(spec)
    name = f"{folder}/{file_name(spec.kind)}"
    real = path(name)
    real.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomic(real, content, mode=0o644)
    return name


def remove(kind: str, path: Callable[[str], Path], folder: str = DYNAMIC_DIR) -> None:
    """Remove a kind's spec file, if there is one."""
    path(f"{folder}/{file_name(kind)}").unlink(missing_ok=True)
