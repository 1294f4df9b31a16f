"""Host paths: every path of a node that a program touches goes through a `HostRoot`.

A node program sees the host's file system below a folder: `/host` in a container, `/` on the node itself, a temporary
folder in a test or in the lab. `HostRoot` maps a host path to the real one, resolves symbolic links as the host would
(an absolute link points into the root, `..` stops at it) and so never leaves the folder. It knows nothing of GPUs.
"""

import contextlib
import errno
import fnmatch
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

MAX_LINKS = 40
"""As Linux: ELOOP after 40 links."""


class HostPathError(OSError):
    """A host path that cannot be resolved; the message names the path and the reason."""


class HostRoot:
    """The file system of a host, seen from below `base`.

    What is written is flushed to disk, unless it need not survive a crash of this machine (`durable`).
    """

    def __init__(self, base: Path | str, *, durable: bool = True) -> None:
        self.base = Path(os.path.realpath(base))
        self.durable = durable

    def __repr__(self) -> str:
        return f"HostRoot({str(self.base)!r})"

    def path(self, host_path: str | PurePosixPath, *, follow: bool = True) -> Path:
        """Return the real path of a host path; it always lies in `base`. It need not exist.

        Symbolic links on the way are resolved inside the root; the last component only with `follow`. HostPathError on
        a chain of more than 40 links or a NUL character.
        """
        text = str(host_path)
        if "\0" in text:
            raise HostPathError(f"host path {text!r} contains a NUL character; no file can have that name")
        waiting = parts(text)
        resolved: list[str] = []
        links = 0
        base = str(self.base)
        while waiting:
            part = waiting.pop(0)
            if part == "..":
                resolved = resolved[:-1]
                continue
            here = "/".join((base, *resolved, part))  # texts: a node program asks this thousands of times
            if (waiting or follow) and os.path.islink(here):  # noqa: PTH114
                links += 1
                if links > MAX_LINKS:
                    raise HostPathError(f"host path {text!r}: more than {MAX_LINKS} symbolic links; is there a loop?")
                target = os.readlink(here)  # noqa: PTH115
                if target.startswith("/"):
                    resolved = []
                waiting = parts(target) + waiting
                continue
            resolved.append(part)
        return self.base.joinpath(*resolved)

    def host_path(self, real: Path) -> str:
        """Return the host path of a real path in the root; ValueError if it lies elsewhere."""
        return "/" + "/".join(real.relative_to(self.base).parts)

    def exists(self, host_path: str) -> bool:
        """Whether the path names an existing file or folder (links are followed)."""
        return self.path(host_path).exists()

    def is_dir(self, host_path: str) -> bool:
        """Whether the path names a folder."""
        return self.path(host_path).is_dir()

    def is_file(self, host_path: str) -> bool:
        """Whether the path names a regular file."""
        return self.path(host_path).is_file()

    def read_text(self, host_path: str) -> str:
        """Return a file's text (UTF-8); OSError as `Path.read_text`."""
        return self.path(host_path).read_text(encoding="utf-8")

    def write_atomic(self, host_path: str, text: str | bytes, *, mode: int = 0o644) -> Path:
        """Replace a file in one step: write beside it, flush to disk, rename. Missing folders are made (0755)."""
        real = self.path(host_path)
        real.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(real, text, mode=mode, durable=self.durable)
        return real

    def mkdir(self, host_path: str, *, mode: int = 0o755) -> Path:
        """Make a folder and its parents; an existing one is left alone."""
        real = self.path(host_path)
        real.mkdir(mode=mode, parents=True, exist_ok=True)
        return real

    def symlink(self, host_path: str, target: str) -> Path:
        """Make or replace a symbolic link; `target` is a path as the host sees it."""
        real = self.path(host_path, follow=False)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.unlink(missing_ok=True)
        real.symlink_to(target)
        return real

    def remove(self, host_path: str) -> bool:
        """Remove a file, a link (not its target) or a whole folder; whether there was one. The root itself stays."""
        real = self.path(host_path, follow=False)
        if real == self.base:
            raise HostPathError("refusing to remove the whole host root; name a file or folder in it")
        if real.is_dir() and not real.is_symlink():
            shutil.rmtree(real)
            return True
        if not os.path.lexists(real):
            return False
        real.unlink()
        return True

    def glob(self, pattern: str) -> list[str]:
        """Return the existing host paths that match a shell pattern (`*`, `?`, `[]` within one component), sorted."""
        return sorted(self._glob("/", parts(pattern)))

    def _glob(self, folder: str, parts: list[str]) -> Iterator[str]:
        if not parts:
            yield folder
            return
        part, rest = parts[0], parts[1:]
        real = self.path(folder)
        if not real.is_dir():
            return
        names = [part] if not _is_pattern(part) else fnmatch.filter(_visible(real, part), part)
        for name in names:
            if os.path.lexists(real / name):
                yield from self._glob(f"{folder.rstrip('/')}/{name}", rest)


def write_atomic(
    real: Path,
    content: str | bytes,
    *,
    mode: int = 0o644,
    durable: bool = True,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Replace a file in one step; readers see the old or the new content, never a part. The folder must exist.

    `durable`: it is on the disk before it is there under its name. `finish` gives the new file, under a name for the
    time being, what else it is to have, such as its owner.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, name = _nameless(real)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
            if name is None:
                name = _named(file.fileno(), real)
        if finish is not None:
            finish(name)
        name.replace(real)
    except BaseException:
        if name is not None:
            name.unlink(missing_ok=True)
        raise


_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})


def _nameless(real: Path) -> tuple[int, Path | None]:
    """A new file beside another, open, and its name.

    It has none where the file system can do so: CRI-O reads whatever is in its folder of configurations, and a program
    that is killed while it writes shall not leave half a file there.
    """
    try:
        handle = os.open(real.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        if os.path.exists(_descriptor(handle)):  # noqa: PTH110 - one system call
            return handle, None
        os.close(handle)  # there is no /proc, by which it could be given a name
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
    handle, text = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    return handle, Path(text)


def _named(handle: int, real: Path) -> Path:
    """Give a file that has no name one for the time being."""
    while True:
        name = real.parent / f".{real.name}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileExistsError):
            os.link(_descriptor(handle), name, src_dir_fd=handle, follow_symlinks=True)
            return name


def _descriptor(handle: int) -> str:
    return f"/proc/self/fd/{handle}"


def parts(path: str) -> list[str]:
    """The components of a path, without empty ones and `.`."""
    return [part for part in path.split("/") if part not in ("", ".")]


def _is_pattern(part: str) -> bool:
    return any(char in part for char in "*?[")


def _visible(folder: Path, pattern: str) -> list[str]:
    return [
        entry
        for entry in (child.name for child in folder.iterdir())
        if pattern.startswith(".") or not entry.startswith(".")
    ]
