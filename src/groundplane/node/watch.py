"""Changes in the file system, for asyncio: one inotify instance an event loop, polling where there is none.

A path is watched whether it exists or not. What is reported says where to look, in the order it happened as far as
the kernel tells; what is there now, the reader finds by looking (level-triggered). A reader that enters the watch
first and looks afterwards misses nothing.

Many node programs share one loop in the lab, and a user may have 128 inotify instances, so all watches of a loop share
one (:class:`_Hub`), which ends with its last user. Where inotify is missing or its limits are reached, that is logged
once and the paths are polled. Recursion, and what a change means, is left to others.
"""

import asyncio
import contextlib
import enum
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from asyncinotify import Event, Inotify, Mask, Watch

log = logging.getLogger(__name__)

POLL_FIRST_S: Final = 0.02
"""Seconds between two looks at polled paths just after a change; they double while nothing happens."""
POLL_MAX_S: Final = 1.0
MAX_PENDING: Final = 4096
"""Changes kept for a reader that does not come; then they are dropped and it is told to look for itself."""
_MAX_LINKS: Final = 40  # as Linux: ELOOP after 40 links
_MAX_TRIES: Final = 100  # of following a path whose folders are being replaced meanwhile


class Kind(enum.StrEnum):
    """What happened to a path."""

    CREATED = "created"
    DELETED = "deleted"
    """It is gone: deleted, or renamed to another name."""
    MODIFIED = "modified"
    """A file was written and closed, or a link on the way to the path now leads to another file."""
    MOVED = "moved"
    """Something was renamed to this path, maybe in place of what was there."""
    OVERFLOW = "overflow"
    """Changes were lost: look at this path, and all in it, yourself."""


class Change(NamedTuple):
    """One change. ``path`` is a watched path as it was given, or an entry of it where it is a folder."""

    path: Path
    kind: Kind


@contextlib.asynccontextmanager
async def paths(*watched: Path, polling: bool = False) -> AsyncIterator["Changes"]:
    """Watch some paths, from before the block is entered until it is left.

    Of a path that is a folder, its entries (not theirs in turn) are watched as well. A path that does not exist is
    waited for, and one that goes away and comes back is found again: when a folder comes, it and each of its entries
    are reported as created. Links on the way are followed as the kernel follows them, and noticed when they are
    replaced, as a kubelet does with the ``..data`` of a mounted ConfigMap. With ``polling`` inotify is not used.
    """
    changes = Changes(watched, polling=polling)
    try:
        yield changes
    finally:
        changes.close()


class Changes:
    """What happened to some watched paths and was not read yet. Made by :func:`paths`."""

    def __init__(self, watched: tuple[Path, ...], *, polling: bool) -> None:
        self._paths = watched
        self._pending: dict[Change, None] = {}  # in order; a change that repeats before it is read is one change
        self._ready = asyncio.Event()
        self._poller: _Poller | None = None
        self._trails: _Trails | None = None
        if polling:
            self._poller = _Poller(watched)
            return
        try:
            self._trails = _Trails(watched, self)
        except OSError as error:
            self._poll_from_now(error)

    @property
    def polled(self) -> bool:
        """Whether the paths are looked at from time to time, since the kernel cannot tell."""
        return self._poller is not None

    async def next(self, within_s: float | None = None) -> Change | None:
        """Wait for the next change, at most so many (real) seconds; None if none came. Cancelling loses none."""
        loop = asyncio.get_running_loop()
        deadline = None if within_s is None else loop.time() + within_s
        while not self._look():
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return None
            self._ready.clear()
            pause = left if self._poller is None else self._poller.pause(left)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ready.wait()
        change = next(iter(self._pending))
        del self._pending[change]
        return change

    def drain(self) -> list[Change]:
        """All changes that are known now; waits for none."""
        self._look()
        changes = list(self._pending)
        self._pending.clear()
        return changes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        change = await self.next()
        assert change is not None
        return change

    def close(self) -> None:
        """End the watch; changes that were not read stay readable."""
        if self._trails is not None:
            self._trails.close()
            self._trails = None

    def put(self, path: Path, kind: Kind) -> None:
        """Note a change."""
        change = Change(path, kind)
        self._pending.pop(change, None)
        self._pending[change] = None
        if len(self._pending) > MAX_PENDING:
            self.overflow()
        self._ready.set()

    def overflow(self) -> None:
        """Note that changes were lost."""
        self._pending = {Change(path, Kind.OVERFLOW): None for path in self._paths}
        self._ready.set()

    def fall_back(self, error: OSError) -> None:
        """Go on by polling."""
        self.close()
        self._poll_from_now(error)
        self.overflow()

    def _poll_from_now(self, error: OSError) -> None:
        _tell_polling(error)
        self._poller = _Poller(self._paths)

    def _look(self) -> bool:
        if self._poller is not None:
            for change in self._poller.compare():
                self.put(*change)
        return bool(self._pending)


_told: WeakKeyDictionary[asyncio.AbstractEventLoop, bool] = WeakKeyDictionary()


def _tell_polling(error: OSError) -> None:
    loop = asyncio.get_running_loop()
    if loop not in _told:
        _told[loop] = True
        log.warning(
            "files are polled, up to %g s late: inotify: %s (limits are in /proc/sys/fs/inotify)", POLL_MAX_S, error
        )


# --- inotify ----------------------------------------------------------------------------------------------------------


class _Hub:
    """The one inotify instance of an event loop, and who wants to hear of which of its watches."""

    def __init__(self) -> None:
        self._inotify = _open()
        self._listeners: dict[int, tuple[Watch, set[_Trails]]] = {}
        asyncio.get_running_loop().add_reader(self._inotify.fd, self._read)

    def add(self, folder: str, mask: "Mask", listener: "_Trails") -> int:
        """Watch a folder for one more listener; the number of the watch. OSError if that cannot be."""
        watch = self._inotify.add_watch(folder, mask)
        self._listeners.setdefault(watch.wd, (watch, set()))[1].add(listener)
        return watch.wd

    def release(self, number: int, listener: "_Trails") -> None:
        """A listener wants to hear no more of a watch."""
        if number not in self._listeners:
            return
        watch, listeners = self._listeners[number]
        listeners.discard(listener)
        if not listeners:
            del self._listeners[number]
            with contextlib.suppress(OSError):  # the kernel has dropped it with its folder
                self._inotify.rm_watch(watch)

    def close(self) -> None:
        """End the instance."""
        asyncio.get_running_loop().remove_reader(self._inotify.fd)
        self._inotify.close()

    def _read(self) -> None:
        for event in self._inotify:
            if event.mask & type(event.mask).Q_OVERFLOW:
                for each in {one for _, listeners in self._listeners.values() for one in listeners}:
                    each.lost()
            elif event.watch is not None:
                self._tell(event.watch.wd, event)
            if not _is_open(self._inotify):
                return

    def _tell(self, number: int, event: "Event") -> None:
        _, listeners = self._listeners.get(number, (None, set()))
        if event.mask & type(event.mask).IGNORED:
            self._listeners.pop(number, None)
        for each in tuple(listeners):
            each.hear(number, event)


def _open() -> "Inotify":
    if sys.platform != "linux":
        raise OSError(f"there is none on {sys.platform}")
    try:
        from asyncinotify import Inotify
    except (ImportError, RuntimeError) as error:
        raise OSError(str(error)) from error
    return Inotify(cache_size=64, sync_timeout=0)


def _is_open(inotify: "Inotify") -> bool:
    try:
        return inotify.fd >= 0
    except ValueError:
        return False


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[_Hub, set["_Trails"]]] = WeakKeyDictionary()


def _join(user: "_Trails") -> _Hub:
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = (_Hub(), set())
    hub, users = _hubs[loop]
    users.add(user)
    return hub


def _leave(user: "_Trails") -> None:
    loop = asyncio.get_running_loop()
    hub, users = _hubs[loop]
    users.discard(user)
    if not users:
        del _hubs[loop]
        hub.close()


class _Trail:
    """What is watched for one path, by number of the watch: the folders on the way to it, and itself if it is one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.names: dict[tuple[int, str], bool] = {}
        """Names of which any change matters, by folder; whether it is the end of the way."""
        self.entries: int | None = None
        self.exists = False

    @property
    def identity(self) -> tuple[bool, tuple[int, ...]]:
        """Differs when the path leads elsewhere than before: the kernel numbers no two folders alike."""
        return self.exists, tuple(self.numbers)


class _Trails:
    """The watched paths of one reader, followed by inotify."""

    def __init__(self, watched: tuple[Path, ...], changes: Changes) -> None:
        self._changes = changes
        self._held: set[int] = set()
        self._hub = _join(self)
        self._trails: dict[Path, _Trail] = {}
        try:
            for path in watched:
                self._trails[path] = self._follow(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._release(set())
        _leave(self)

    def lost(self) -> None:
        """Events were lost."""
        try:
            for path in self._trails:
                self._trails[path] = self._follow(path)
        except OSError as error:
            self._changes.fall_back(error)
            return
        self._release(self._wanted())
        self._changes.overflow()

    def hear(self, number: int, event: "Event") -> None:
        """Something happened in, or to, a watched folder."""
        try:
            for path in self._trails:
                self._hear(path, number, event)
        except OSError as error:
            self._changes.fall_back(error)

    def _hear(self, path: Path, number: int, event: "Event") -> None:
        trail = self._trails[path]
        if number not in trail.numbers:
            return
        if event.name is None:
            self._again(path)
            return
        kind = _kind(event)
        name = str(event.name)
        if number == trail.entries and kind is not None:
            self._changes.put(path / name, kind)
        end = trail.names.get((number, name))
        if end is None:
            return
        told = self._again(path)
        if end and not told and kind not in (None, Kind.DELETED) and self._trails[path].exists:
            self._changes.put(path, kind)  # as a new file may have the old one's number

    def _again(self, path: Path) -> bool:
        """Follow a path anew and report if it leads elsewhere than before; whether it did."""
        old, new = self._trails[path], self._follow(path)
        self._trails[path] = new
        self._release(self._wanted())
        if old.identity == new.identity or not (old.exists or new.exists):
            return False
        if not new.exists:
            self._changes.put(path, Kind.DELETED)
            return True
        self._changes.put(path, Kind.MODIFIED if old.exists and new.entries is None else Kind.CREATED)
        if new.entries is not None and new.entries != old.entries:
            for name in _names(path):
                self._changes.put(path / name, Kind.CREATED)
        return True

    def _wanted(self) -> set[int]:
        return {number for trail in self._trails.values() for number in trail.numbers}

    def _release(self, wanted: set[int]) -> None:
        for number in self._held - wanted:
            self._hub.release(number, self)
        self._held &= wanted

    def _follow(self, path: Path) -> _Trail:
        for _ in range(_MAX_TRIES):
            try:
                return self._walk(path)
            except (FileNotFoundError, NotADirectoryError):  # replaced while we looked
                continue
        raise OSError(f"{path}: its folders are replaced faster than they can be watched")

    def _walk(self, path: Path) -> _Trail:
        """Go the way the kernel goes; a folder is watched before it is looked into."""
        trail = _Trail()
        here, waiting, links = "/", _parts(os.path.abspath(path)), 0  # noqa: PTH100 - links must stay
        while waiting:
            part = waiting.pop(0)
            if part == "..":
                here = os.path.dirname(here)  # noqa: PTH120
                continue
            child = os.path.join(here, part)  # noqa: PTH118
            if waiting and stat.S_ISDIR(_mode(child)):
                self._add(trail, child, itself=True)
                here = child
                continue
            trail.names[(self._add(trail, here), part)] = not waiting
            mode = _mode(child)
            if stat.S_ISLNK(mode) and links < _MAX_LINKS:
                links += 1
                target = os.readlink(child)  # noqa: PTH115
                here = "/" if target.startswith("/") else here
                waiting = _parts(target) + waiting
            elif stat.S_ISDIR(mode) and waiting:
                waiting.insert(0, part)  # it has come just now
            else:
                trail.exists = mode != 0 and not waiting and not stat.S_ISLNK(mode)
                if stat.S_ISDIR(mode):
                    trail.entries = self._add(trail, child)
                break
        else:  # the last step led up, or there was none: the root
            trail.entries, trail.exists = self._add(trail, here), True
        return trail

    def _add(self, trail: _Trail, folder: str, *, itself: bool = False) -> int:
        number = self._hub.add(folder, _mask(itself=itself), self)
        self._held.add(number)
        trail.numbers.append(number)
        return number


def _mask(*, itself: bool) -> "Mask":
    """Events of a folder's entries, or only of the folder itself being moved or deleted."""
    from asyncinotify import Mask

    self_only = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR | Mask.MASK_ADD
    return self_only if itself else self_only | Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.CLOSE_WRITE


def _kind(event: "Event") -> Kind | None:
    mask = type(event.mask)
    for bit, kind in (
        (mask.CREATE, Kind.CREATED),
        (mask.DELETE | mask.MOVED_FROM, Kind.DELETED),
        (mask.MOVED_TO, Kind.MOVED),
        (mask.CLOSE_WRITE, Kind.MODIFIED),
    ):
        if event.mask & bit:
            return kind
    return None


def _mode(path: str) -> int:
    """The mode of what is at a path (not where a link leads); 0 if there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are all we need
    except OSError:  # gone again, which the watch will tell
        return []


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


# --- polling ----------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What tells whether an entry is the same as before. A socket's or device's times change only with a new one."""

    inode: int
    regular: bool
    modified_ns: int
    size: int


_Snapshot = dict[Path, _Seen]


class _Poller:
    """Watched paths that are looked at from time to time."""

    def __init__(self, watched: tuple[Path, ...]) -> None:
        self._paths = watched
        self._seen = self._snapshot()
        self._pause_s = POLL_FIRST_S

    def pause(self, left_s: float | None) -> float:
        """Seconds to wait until the next look, at most ``left_s``; longer each time until something changes."""
        pause = self._pause_s
        self._pause_s = min(self._pause_s * 2, POLL_MAX_S)
        return pause if left_s is None else min(pause, left_s)

    def compare(self) -> list[Change]:
        """Look, and say what has changed since the last look."""
        before, self._seen = self._seen, self._snapshot()
        changes = list(_differences(before, self._seen))
        if changes:
            self._pause_s = POLL_FIRST_S
        return changes

    def _snapshot(self) -> _Snapshot:
        seen: _Snapshot = {}
        for path in self._paths:
            found = _look(path)
            if found is None:
                continue
            seen[path] = found
            if path.is_dir():
                entries = ((path / name, _look(path / name, follow=False)) for name in _names(path))
                seen.update((entry, what) for entry, what in entries if what is not None)
        return seen


def _look(path: Path, *, follow: bool = True) -> _Seen | None:
    try:
        found = path.stat() if follow else path.lstat()
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):  # its times change with its entries, which are looked at themselves
        return _Seen(found.st_ino, False, 0, 0)
    return _Seen(found.st_ino, stat.S_ISREG(found.st_mode), found.st_mtime_ns, found.st_size)


def _differences(before: _Snapshot, after: _Snapshot) -> Iterator[Change]:
    for path in before:
        if path not in after:
            yield Change(path, Kind.DELETED)
    for path, now in after.items():
        then = before.get(path)
        if then is None:
            yield Change(path, Kind.CREATED)
        elif then != now:
            same = now.regular and then.inode == now.inode
            yield Change(path, Kind.MODIFIED if same else Kind.MOVED if now.regular else Kind.CREATED)
