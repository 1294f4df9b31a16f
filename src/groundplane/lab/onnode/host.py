"""The simulated part of a real node: shared by all containers as files, booted by the first that comes.

Also what a real node needs beforehand: its description and, for a driver on the host, that driver's files.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Iterator, MutableSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...node.hostroot import HostRoot, write_atomic
from .. import nodes
from ..host import HOST_DRIVER_FILES, HostError, SimulatedHost, configured_handlers, driver_file
from ..nodes import NodeSpec
from ..standins import toolkit
from . import FOLDER

SPEC = "node.yaml"
BASE_SPEC = "/etc/containerd/base-spec.json"
"""Where a test node has the OCI specification that containers start from."""

BYTES = "surrogateescape"
"""How the texts of `node_files` are to be encoded."""

MACHINE = "host"
_LOCK = ".lock"
_BOOTED = "/run/booted"
_HANDLERS = "/run/runtime-handlers.json"
_NRI = "/run/nri-plugins"


class _FileSet(MutableSet[str]):
    """A set of names, each an empty file of a folder that processes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, name: object) -> bool:
        return (self._folder / str(name)).exists()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(entry.name for entry in self._folder.iterdir()) if self._folder.is_dir() else ())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, value: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / value).touch()

    def discard(self, value: str) -> None:
        (self._folder / value).unlink(missing_ok=True)


class NodeHost(SimulatedHost):
    """A simulated host that several processes use at the same time, on a node whose container runtime is real.

    `machine` is the node's own root as this process sees it, and `runtime_socket` the runtime's socket, where it has
    them (the toolkit's container does).
    """

    def __init__(
        self, root: HostRoot, spec: NodeSpec, *, machine: Path | None = None, runtime_socket: Path | None = None
    ) -> None:
        self._machine = machine
        self._runtime_socket = runtime_socket
        super().__init__(root, spec, attach=True)
        if not root.exists(_BOOTED):
            self._boot_once()
        self.nri_plugins = _FileSet(root.path(_NRI))

    def _boot_once(self) -> None:
        with _locked(self.root.base):
            if not self.root.exists(_BOOTED):
                self._install()
                self.boot()
                self.root.write_atomic(_BOOTED, "")

    def read_runtime(self) -> None:
        """Note the handlers that the node's own configuration names now, for all processes."""
        handlers: dict[str, Any] = {}
        if self._machine is not None:
            handlers = configured_handlers(self.spec.runtime.name, HostRoot(self._machine))
        self.root.write_atomic(_HANDLERS, json.dumps(handlers))

    def restart_runtime(self) -> None:
        """Note the new handlers and end the runtime with SIGHUP, as NVIDIA's toolkit does; the node starts it again.

        HostError if this process does not see the node's root or the runtime's socket.
        """
        if self._machine is None or self._runtime_socket is None:
            raise HostError("cannot restart the container runtime: the pod mounts neither the node's / nor its socket")
        self.read_runtime()
        os.kill(peer(self._runtime_socket), signal.SIGHUP)

    @property
    def runtime_handlers(self) -> dict[str, str]:
        """Path of each handler's binary, by name, as of the runtime's last start."""
        found = json.loads(self.root.read_text(_HANDLERS)) if self.root.exists(_HANDLERS) else {}
        return {name: str(table.get("binary", "")) for name, table in found.items()}


def peer(path: Path) -> int:
    """The process that listens on a unix socket. HostError if nobody does or it is in a PID namespace out of sight."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError as error:
            raise HostError(f"cannot reach the container runtime at {path}: {error}") from error
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    if pid == 0:
        raise HostError(f"the process behind {path} is in another PID namespace; give the pod hostPID: true")
    return pid


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes of the node out; HostError if this one may not write to the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise HostError(
            f"the simulated host cannot be booted: {error}; the first program of a node must run as root and find the "
            f"node's {FOLDER} at the same path"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def attach(folder: Path, *, machine: Path | None = None, runtime_socket: Path | None = None) -> NodeHost:
    """The node that a folder describes (`node.yaml` in it). HostError or NodeFileError if it cannot be had."""
    file = folder / SPEC
    if not file.exists():
        raise HostError(
            f"{file} does not exist; on a test node it describes the simulated machine (see groundplane.lab.onnode)"
        )
    found = nodes.load(file)
    if len(found) != 1:
        raise HostError(f"{file} describes {len(found)} nodes; it must describe the one that it lies on")
    return NodeHost(HostRoot(folder / MACHINE), found[0], machine=machine, runtime_socket=runtime_socket)


def node_files(spec: NodeSpec) -> dict[str, str]:
    """The files a real node must have before its services start, path to text; those in `/usr/bin` are executable.

    Bytes that are no text are in it as `BYTES` has them.

    All have their description and the machine that it describes, booted, so that programs without rights over it find
    it, and say to be the operating system that it describes. A node with a driver of its own has that driver's files,
    and NVIDIA's runtime too, as its administrator would install it: containerd must read
    `/etc/containerd/conf.d/*.toml` and have its containers' base in `BASE_SPEC`. A toolkit that runs as a pod puts its
    own file beside that and takes it away again.
    """
    with tempfile.TemporaryDirectory(prefix="gp-") as name:
        folder = Path(name)
        document = {"nodes": [msgspec.to_builtins(spec)]}
        (folder / SPEC).write_bytes(msgspec.json.encode(document))
        attach(folder)
        made = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(_LOCK))
        files = {f"{FOLDER}/{path.relative_to(folder)}": path.read_text(errors=BYTES) for path in made}
        files["/etc/os-release"] = (folder / MACHINE / "etc/os-release").read_text()
    return files | (_preinstalled(spec.host_driver) if spec.host_driver else {})


def _preinstalled(version: str) -> dict[str, str]:
    mounts = [(path, path) for path in HOST_DRIVER_FILES]
    binaries = {handler: f"/usr/bin/{name}" for handler, name in toolkit.HANDLERS.items()}
    loaded = f"{FOLDER}/{MACHINE}{toolkit.LOADED}"
    drop_in = toolkit.containerd_drop_in(binaries, {"base_runtime_spec": BASE_SPEC}, {"SystemdCgroup": False})
    return {
        **{path: driver_file(path, version) for path in HOST_DRIVER_FILES},
        **{path: toolkit.runtime_script(path.rpartition("/")[2], mounts, loaded) for path in binaries.values()},
        "/etc/containerd/conf.d/10-nvidia.toml": drop_in,
    }


def write_node_files(spec: NodeSpec, root: Path = Path("/")) -> None:
    """Write `node_files` below a root."""
    for path, text in node_files(spec).items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text.encode(errors=BYTES), mode=0o755 if path.startswith("/usr/bin/") else 0o644)
