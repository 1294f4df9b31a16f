"""Running the few tools that the builder needs, with errors for the reader, and the cache folder."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ImageError

_DEBIAN = "the image's base is made of Debian packages; build on Debian or Ubuntu, or use deploy/image/Containerfile"
_REMEDY = {
    "apt-get": _DEBIAN,
    "dpkg": _DEBIAN,
    "dpkg-deb": _DEBIAN,
    "git": "install git, or set SOURCE_DATE_EPOCH to the time that the image shall carry",
}
_LAST_LINES = 15


def cache_folder() -> Path:
    """Where downloads and finished layers are kept: `~/.cache/groundplane/image`, or below XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "groundplane" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def need(*tools: str) -> None:
    """ImageError, naming the tool and a remedy, if one is not on PATH."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise ImageError(f"{tool} is not on PATH: {_REMEDY.get(tool, f'install {tool}')}")


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    remedy: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its standard output. ImageError with its last lines if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LAST_LINES:])
        hint = f"\n{remedy}" if remedy else ""
        raise ImageError(f"{what} failed ({command[0]} ended with {done.returncode}):\n{tail}{hint}")
    return done.stdout


def pipe(producer: Sequence[str | Path], consumer: Sequence[str | Path], *, what: str) -> None:
    """Run two commands, the output of one being the input of the other. ImageError if either fails."""
    with subprocess.Popen([str(part) for part in producer], stdout=subprocess.PIPE) as source:
        done = subprocess.run(
            [str(part) for part in consumer], stdin=source.stdout, capture_output=True, text=True, check=False
        )
    if source.returncode != 0 or done.returncode != 0:
        raise ImageError(f"{what} failed: {done.stderr.strip() or f'{producer[0]} ended with {source.returncode}'}")
