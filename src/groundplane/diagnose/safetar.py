"""Reading packed files of unknown origin: members one after another, within bounds, never written anywhere.

A member is given only if it is a regular file with a plain relative name. Links, devices, absolute names and names
that climb are told as trouble, as are archives that end early or unfold to more than they may (:class:`Limits`). What
could be read before the trouble is given. What members mean is ``archive``'s part.
"""

import gzip
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tarfile import EmptyHeaderError, ReadError, TruncatedHeaderError  # type: ignore[attr-defined]
from typing import BinaryIO, Final, NamedTuple, Self, cast

_CHUNK: Final = 1 << 18
_SPARE: Final = 16 << 20
"""Bytes beyond its limit that a member may have in memory before its beginning is dropped."""
_HEADER_MOST: Final = 1 << 20
"""Bytes of an extended header: a name of any honest length."""


class Limits(NamedTuple):
    """How much is read at most."""

    members: int = 50_000
    member_bytes: int = 128 << 20
    """Of a longer member the end is kept."""
    total_bytes: int = 1 << 30
    """Unpacked; reading stops there."""


class Member(NamedTuple):
    """A regular file, or trouble: then ``data`` is empty and ``trouble`` a sentence."""

    name: str
    data: bytes = b""
    trouble: str = ""


_ENDS: Final = 16
"""How often the end may be met; tarfile reads on to the end that a header claims, block by block."""


class _TooMuchError(Exception):
    """The archive unfolds to more than it may."""


class _Bounded:
    """A stream that gives so many bytes and no more."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._left, self._ends = file, most, 0

    def read(self, size: int = _CHUNK) -> bytes:
        data = self._file.read(size)
        if not data and size:
            self._ends += 1
            if self._ends > _ENDS:
                raise EOFError("a file claims to be longer than the archive")
        self._left -= len(data)
        if self._left < 0:
            raise _TooMuchError
        return data


class _TarInfo(tarfile.TarInfo):
    """A header whose extensions are of bounded length; tarfile would read them into memory whatever they claim."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        plain = (*tarfile.REGULAR_TYPES, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
        if self.type not in (*plain, tarfile.DIRTYPE, tarfile.FIFOTYPE) and self.size > _HEADER_MOST:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return cast("tarfile.TarInfo", super()._proc_member(archive))  # type: ignore[misc]

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """As it is, but an archive without its end is damaged: tarfile would take it for whole."""
        try:
            return super().fromtarfile(tarfile)
        except (EmptyHeaderError, TruncatedHeaderError):
            raise ReadError("the end of the archive lacks") from None


_BROKEN: Final = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError, RecursionError)


def members(path: Path, limits: Limits = Limits()) -> Iterator[Member]:  # noqa: B008  (a constant)
    """The files of a folder, of a tar (gzip or plain), or the one file, also a gzip. Raises :class:`OSError`."""
    if path.is_dir():
        yield from _folder(path, limits)
        return
    with path.open("rb") as file:
        yield from unpacked(path.name, file, limits)


def unpacked(name: str, file: BinaryIO, limits: Limits = Limits()) -> Iterator[Member]:  # noqa: B008  (a constant)
    """The same of an open file that can seek."""
    packed = file.read(2) == b"\x1f\x8b"

    def again() -> BinaryIO:
        file.seek(0)
        return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file

    if _is_tar(again()):
        yield from _tar(again(), limits)
    else:
        yield _tail(name.removesuffix(".gz"), _Bounded(again(), limits.total_bytes), limits.member_bytes)


def _is_tar(file: BinaryIO) -> bool:
    try:
        head = file.read(512)
    except _BROKEN:
        return False
    return head[257:262] == b"ustar"


def _tail(name: str, file: "_Bounded", most: int) -> Member:
    """The end of a stream; what stops it early is told beside what was read."""
    data, trouble = bytearray(), ""
    try:
        while chunk := file.read(_CHUNK):
            data += chunk
            if len(data) > most + _SPARE:
                del data[:-most]
    except _TooMuchError:
        trouble = f"{name} unfolds to more than may be read; the rest was left out"
    except _BROKEN as error:
        trouble = f"{name} is damaged or ends early ({error or type(error).__name__}); what came before was read"
    del data[:-most]
    return Member(name, bytes(data), trouble)


def _tar(file: BinaryIO, limits: Limits) -> Iterator[Member]:
    count = 0
    try:
        with tarfile.open(
            fileobj=cast("BinaryIO", _Bounded(file, limits.total_bytes)), mode="r|", tarinfo=_TarInfo, errors="replace"
        ) as archive:
            for info in archive:
                count += 1
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps every header; millions of them are a bomb, too
                if count > limits.members:
                    yield Member("", trouble=f"more than {limits.members} files; the rest was left out")
                    return
                if info.isdir():
                    continue
                if (trouble := _refused(info)) or (inner := archive.extractfile(info)) is None:
                    yield Member("", trouble=trouble or f"{info.name!r} cannot be read")
                    continue
                most = _Bounded(cast("BinaryIO", inner), limits.total_bytes)
                yield _tail(_plain(info.name), most, limits.member_bytes)
    except _TooMuchError:
        yield Member("", trouble=f"it unfolds to more than {limits.total_bytes} bytes; the rest was left out")
    except _BROKEN as error:
        yield Member("", trouble=f"it is damaged or ends early ({error or type(error).__name__}); the rest is lost")


def _plain(name: str) -> str:
    return str(PurePosixPath(name))


def _refused(info: tarfile.TarInfo) -> str:
    shown = repr(info.name[:200])
    if not info.isreg():
        return f"{shown} is no regular file and was not read"
    parts = PurePosixPath(info.name).parts
    if info.name.startswith("/") or ".." in parts or "\0" in info.name:
        return f"{shown} points out of the archive and was not read"
    return ""


def _folder(root: Path, limits: Limits) -> Iterator[Member]:
    count, left = 0, limits.total_bytes
    for place, folders, files in os.walk(root):  # links to folders are not followed
        folders.sort()  # a folder's own files come before its folders', so our archive's head first
        for file in sorted(files):
            path = Path(place, file)
            name = path.relative_to(root).as_posix()
            count += 1
            if count > limits.members or left <= 0:
                yield Member("", trouble="more files than may be read; the rest was left out")
                return
            member = _file(path, name, limits)
            left -= len(member.data)
            yield member


def _file(path: Path, name: str, limits: Limits) -> Member:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return Member("", trouble=f"{name!r} was not read: {error.strerror}")
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return Member("", trouble=f"{name!r} is no regular file and was not read")
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if packed:
            unpacked = _Bounded(cast("BinaryIO", gzip.GzipFile(fileobj=file)), limits.total_bytes)
            return _tail(name.removesuffix(".gz"), unpacked, limits.member_bytes)
        file.seek(max(0, os.fstat(handle).st_size - limits.member_bytes))
        return Member(name, file.read(limits.member_bytes))
