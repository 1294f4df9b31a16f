"""How CDI spec files are written: JSON or YAML, in one step, readable by all (contracts/toolkit-cdi.md 1.4).

A file whose content would be the same is left as it is, so that nobody who watches the folder is woken. What stands in
a spec is decided by whoever makes one.
"""

import enum
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml

from ..hostroot import write_atomic
from . import model

try:
    from yaml import CSafeDumper as _Dumper
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeDumper as _Dumper  # type: ignore[assignment]

STATIC_DIR: Final = "/etc/cdi"
"""The folder of lower priority, for what people write."""
DYNAMIC_DIR: Final = "/var/run/cdi"
"""The folder of highest priority, which is empty after a reboot."""
FOLDER_MODE: Final = 0o755
FILE_MODE: Final = 0o644


class Format(enum.Enum):
    """How a spec file is written; the value is the end of its name."""

    JSON = ".json"
    YAML = ".yaml"

    @classmethod
    def of(cls, name: str) -> "Format | None":
        """The format that a file's name tells, if it does."""
        return next((each for each in cls if name.endswith(each.value)), None)


def encode(spec: model.Spec, format: Format) -> bytes:
    """A spec as it is written, of the oldest version that has all it needs. Raises :class:`~.model.SpecError`."""
    if format is Format.JSON:
        return model.encode(spec)
    text: str = yaml.dump(
        model.document(spec),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1 << 20,
    )
    return b"---\n" + text.encode()


def file_name(kind: str, transient_id: str = "", *, format: Format = Format.YAML) -> str:
    """The name of a kind's spec file: ``<vendor>-<class>``, with ``_<id>`` if it is there only as long as something
    else that has this id (a container, say)."""
    transient = f"_{transient_id.replace('/', '_')}" if transient_id else ""
    return f"{kind.replace('/', '-', 1)}{transient}{format.value}"


def write(
    spec: model.Spec,
    path: Callable[[str], Path],
    folder: str = DYNAMIC_DIR,
    *,
    name: str = "",
    format: Format | None = None,
) -> str:
    """Write a spec's file and return its path (as the program sees it); ``path`` finds real paths.

    ``name`` is the file's, its kind's if not given. Its end says the format; if it has neither ``.json`` nor
    ``.yaml``, it gets that of ``format``, YAML if nothing is said.

    Raises:
        SpecError: the spec breaks a rule; an earlier file is left as it is.
        OSError: the file cannot be written; an earlier one is left as it is. The text says which and what to do.
    """
    name = name or file_name(spec.kind, format=format or Format.YAML)
    told = Format.of(name)
    if told is None:
        name += (format or Format.YAML).value
    target = f"{folder.rstrip('/')}/{name}"
    replace(target, encode(spec, told or format or Format.YAML), path)
    return target


def replace(target: str, content: bytes, path: Callable[[str], Path]) -> bool:
    """Let a file, that all may read, have this content, in one step; whether it had another before.

    Raises OSError as :func:`write`.
    """
    try:
        real = path(target)
        _make(real.parent)
        if real.is_file() and real.read_bytes() == content:
            if real.stat().st_mode & 0o777 != FILE_MODE:
                real.chmod(FILE_MODE)
            return False
        write_atomic(real, content, mode=FILE_MODE)
    except OSError as error:
        raise _explained(error, target) from error
    return True


def remove(kind: str, path: Callable[[str], Path], folder: str = DYNAMIC_DIR, *, format: Format = Format.YAML) -> None:
    """Remove a kind's spec file, if there is one."""
    path(f"{folder}/{file_name(kind, format=format)}").unlink(missing_ok=True)


def _make(folder: Path) -> None:
    """Make a folder and those above, as all may read whatever the umask."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        each.chmod(FOLDER_MODE)


_REMEDIES: Final = {
    errno.ENOSPC: "free some space on its file system",
    errno.EDQUOT: "free some space on its file system",
    errno.EROFS: "mount its file system writable",
    errno.EACCES: "let this program write there",
    errno.EPERM: "let this program write there",
    errno.EISDIR: "remove the folder of that name",
    errno.ENOTDIR: "remove the file that is where a folder must be",
}


def _explained(error: OSError, target: str) -> OSError:
    remedy = _REMEDIES.get(error.errno or 0)
    text = f"CDI spec not written, any earlier one is unchanged: {error.strerror or error}"
    return OSError(error.errno or errno.EIO, f"{text}; {remedy}" if remedy else text, target)
