"""The host's programs: one static executable under all its names, with its configuration, put in place as a whole.

contracts/toolkit-cdi.md 4.5. The new folder is built beside the old one, flushed to disk and exchanged with it in one
step, so that a container that starts at that moment, or a kill at any, finds the old folder or the new one, whole.
Running containers go on with the old files. What the folder's files say is left to others.
"""

import contextlib
import ctypes
import errno
import functools
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from ...api.release import Release
from ..process import Process

PROGRAMS: Final = (
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
)
PLAIN: Final[Mapping[Release, frozenset[str]]] = {
    Release.V26_3: frozenset(),
    Release.V26_7: frozenset({"nvidia-cdi-hook"}),
}
"""Programs that have no second name ending in ``.real``."""
LINKS: Final = {"nvidia-container-toolkit": "nvidia-container-runtime-hook"}
SPECS: Final = ".config/nvidia-container-runtime/cdi"
"""The folder of the shim's CDI specs. It is taken over from the earlier installation."""

NEW, OLD = ".toolkit.new", ".toolkit.old"
"""Beside the toolkit's folder: what is being built or was replaced, and what was replaced where folders cannot be
exchanged."""
_EXECUTABLE, _FILE, _FOLDER = 0o755, 0o644, 0o755
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_EXCHANGE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV})
_REMEDIES: Final = {
    errno.ENOSPC: "free some space on its file system",
    errno.EDQUOT: "free some space on its file system",
    errno.EROFS: "choose a folder on a writable file system (--toolkit-install-dir, toolkit.installDir in the policy)",
    errno.EACCES: "let this program write there",
    errno.EPERM: "let this program write there",
}


class InstallError(RuntimeError):
    """The programs cannot be installed; an earlier installation is as it was. The text says what to do."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be in the toolkit's folder (a path of this container): the program, and files by relative path."""

    folder: str
    program: str
    files: Mapping[str, str]
    release: Release
    durable: bool = True
    """Whether it must survive a crash of the machine."""


def names(release: Release) -> tuple[str, ...]:
    """All names of the executable."""
    real = (f"{name}.real" for name in PROGRAMS if name not in PLAIN[release])
    return (*PROGRAMS, *real)


def install(process: Process, wanted: Wanted) -> None:
    """Put the folder in place, instead of any that is there. Takes as long as the disk does; blocks.

    Raises :class:`InstallError`.
    """
    program = process.path(wanted.program)
    if not program.is_file():
        raise InstallError(
            f"the host's program {wanted.program} is not in this image; is --toolkit-source-root right? "
            "(the image of groundplane has it)"
        )
    folder = process.path(wanted.folder)
    new = folder.parent / NEW
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover(folder)
        _build(new, program, wanted, folder)
        _put(new, folder, wanted.durable)
    except OSError as error:
        with contextlib.suppress(OSError):
            recover(folder)
        remedy = _REMEDIES.get(error.errno or 0, "see that its folders are folders and this program may write there")
        raise InstallError(
            f"cannot install into {wanted.folder}: {error.filename or wanted.folder}: {error.strerror or error}; "
            f"{remedy}. An earlier installation is as it was"
        ) from None


def recover(folder: Path) -> None:
    """Clean up after an installation that was cut short: the toolkit's folder is whole afterwards, or missing if there
    never was one. OSError."""
    old = folder.parent / OLD
    if os.path.lexists(old):
        if os.path.lexists(folder):
            _remove(old)
        else:
            old.rename(folder)
    _remove(folder.parent / NEW)


def _build(new: Path, program: Path, wanted: Wanted, folder: Path) -> None:
    durable = wanted.durable
    _make(new)
    first, *others = names(wanted.release)
    _copy(program, new / first, _EXECUTABLE, durable)
    for name in others:
        _link(new / first, new / name, durable)
    for name, target in LINKS.items():
        (new / name).symlink_to(target)
    for relative, text in wanted.files.items():
        _make((new / relative).parent)
        _save(io.BytesIO(text.encode()), new / relative, _FILE, durable)
    _take_over(folder / SPECS, new / SPECS, durable)
    if durable:
        for path in _folders(new):
            _flush(path)


def _make(path: Path) -> None:
    """Make a folder that all may read, whatever the umask, and those above it that are missing."""
    if path.is_dir():
        return
    _make(path.parent)
    path.mkdir()
    path.chmod(_FOLDER)


def _save(source: BinaryIO, target: Path, mode: int, durable: bool) -> None:
    with target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fchmod(file.fileno(), mode)
        if durable:
            os.fsync(file.fileno())


def _copy(source: Path, target: Path, mode: int, durable: bool) -> None:
    with source.open("rb") as file:
        _save(file, target, mode, durable)


def _link(source: Path, target: Path, durable: bool) -> None:
    """Another name of a file; a copy where the file system has no such thing."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(source, target, _EXECUTABLE, durable)


def _take_over(old: Path, new: Path, durable: bool) -> None:
    """Take over the files of a folder, if there is one; links and folders in it are not the toolkit's."""
    if not old.is_dir():
        return
    _make(new)
    for path in sorted(old.iterdir()):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            _copy(path, new / path.name, _FILE, durable)


def _folders(path: Path) -> Iterator[Path]:
    """A folder and all in it, the innermost first."""
    for inner in sorted(path.iterdir()):
        if inner.is_dir() and not inner.is_symlink():
            yield from _folders(inner)
    yield path


def _flush(folder: Path) -> None:
    """Let a folder's entries be on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put(new: Path, folder: Path, durable: bool) -> None:
    """Let the new folder be at its place and the old one gone."""
    if not os.path.lexists(folder):
        new.rename(folder)
    elif not exchange(new, folder):
        folder.rename(folder.parent / OLD)  # a start after a kill here puts it back
        new.rename(folder)
    if durable:
        _flush(folder.parent)
    with contextlib.suppress(OSError):  # the new one is in force; what is left is removed at the next start
        recover(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- renameat2 --------------------------------------------------------------------------------------------------------

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths of one file system in one step; False if the system or the file system cannot. OSError."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


@functools.cache
def _renameat2() -> "ctypes._NamedFuncPointer | None":
    """The C library's function; musl and old ones have none."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        function = library.renameat2
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function
