"""The simulated part of a real node: shared by all containers as files, booted by the first that comes.

Also what a real node needs beforehand: its description and, for a driver on the host, that driver's files.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...node.cdi.roots import NULL_DEVICES
from ...node.hostroot import HostRoot, write_atomic
from ...node.ownprocess import SIMULATION_ENV
from .. import driverfiles, nodes
from ..host import Gpu, HostError, SimulatedHost
from ..nodes import NodeSpec
from . import FOLDER

SPEC = "node.yaml"
BASE_SPEC = "/etc/containerd/base-spec.json"
"""Where a test node has the OCI specification that containers start from."""

BYTES = "surrogateescape"
"""How the texts of `node_files` are to be encoded."""

MACHINE = "host"
HANDLERS = {
    "nvidia": "/usr/bin/nvidia-container-runtime",
    "nvidia-cdi": "/usr/bin/nvidia-container-runtime.cdi",
    "nvidia-legacy": "/usr/bin/nvidia-container-runtime.legacy",
}
"""Executables of a toolkit that is installed on the host, by the handlers they are for."""
_RUNTIME_CONFIG = f"""\
[nvidia-container-runtime]
mode = "cdi"
modules-file = "{FOLDER}/{MACHINE}/proc/modules"
"""
_SMI = f"""\
#!/bin/sh
own={driverfiles.DRIVER_BIN}/nvidia-smi
if [ -x "$own" ]; then
    exec "$own" "$@"
fi
export PYTHONPATH={Path(__file__).parents[3]} PYTHONDONTWRITEBYTECODE=1
exec {sys.executable} -m {__package__} nvidia-smi "$@"
"""
"""The driver's tool where it is the host's. It is injected into containers of groundplane's image, which have it; on
the host itself, and so below `chroot /host`, it is what a node shows of this project and its Python."""
_LOCK = ".lock"
_BOOTED = "/run/booted"


class NodeHost(SimulatedHost):
    """A simulated host that several processes use at the same time, on a node whose container runtime is real."""

    def __init__(self, root: HostRoot, spec: NodeSpec) -> None:
        super().__init__(root, spec, attach=True)
        if not root.exists(_BOOTED):
            self._boot_once()

    def _boot_once(self) -> None:
        with _locked(self.root.base):
            if not self.root.exists(_BOOTED):
                self._install()
                self.boot()
                self.root.write_atomic(_BOOTED, "")

    def read_runtime(self) -> None:
        """The runtime is real, and reads its configuration itself."""

    def gpus_in_use(self, gpus: Collection[Gpu]) -> AbstractContextManager[None]:
        """Nothing is counted: a process that is killed could not take its count back."""
        return nullcontext()

    def injects(self) -> bool:
        """What the real runtime offers no container can see; nothing is missing as far as it knows."""
        return True


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


def attach(folder: Path) -> NodeHost:
    """The node that a folder describes (`node.yaml` in it). HostError or NodeFileError if it cannot be had."""
    file = folder / SPEC
    if not file.exists():
        raise HostError(
            f"{file} does not exist; on a test node it describes the simulated machine (see groundplane.lab.onnode)"
        )
    found = nodes.load(file)
    if len(found) != 1:
        raise HostError(f"{file} describes {len(found)} nodes; it must describe the one that it lies on")
    return NodeHost(HostRoot(folder / MACHINE), found[0])


class NodeFiles(NamedTuple):
    """What is to be on a node: files, path to text, and links, path to target. Files in `/usr/bin` are executable."""

    files: dict[str, str]
    links: dict[str, str]


def node_files(spec: NodeSpec) -> NodeFiles:
    """What a real node must have before its services start.

    Bytes that are no text are in it as `BYTES` has them.

    All have their description and the machine that it describes, booted, so that programs without rights over it find
    it, and say to be the operating system that it describes. A node with a driver of its own has that driver's files,
    and what its administrator would install beside them: the configuration of NVIDIA's runtime, whose executables
    (`HANDLERS`) are to be put on the node too, and a CDI specification of its GPUs. containerd must read
    `/etc/containerd/conf.d/*.toml` and have its containers' base in `BASE_SPEC`. A toolkit that runs as a pod puts its
    own file beside that and takes it away again.
    """
    with tempfile.TemporaryDirectory(prefix="gp-") as name:
        folder = Path(name)
        document = {"nodes": [msgspec.to_builtins(spec)]}
        (folder / SPEC).write_bytes(msgspec.json.encode(document))
        attach(folder)
        found = NodeFiles({}, {})
        for path in sorted(folder.rglob("*")):
            at = f"{FOLDER}/{path.relative_to(folder)}"
            if path.is_symlink():
                found.links[at] = str(path.readlink())
            elif path.is_file() and not path.name.endswith(_LOCK):
                found.files[at] = path.read_text(errors=BYTES)
        found.files["/etc/os-release"] = (folder / MACHINE / "etc/os-release").read_text()
        if spec.host_driver:
            _preinstall(found, folder / MACHINE, spec.host_driver)
        return found


def _preinstall(found: NodeFiles, machine: Path, version: str) -> None:
    """Add the driver of the host, with the toolkit beside it, as an administrator installs them."""
    for file in driverfiles.tree(version, driverfiles.HOST_LIBRARIES):
        if file.target:
            found.links[file.path] = file.target
        else:
            found.files[file.path] = file.text
    found.files.update(
        {
            driverfiles.SMI: _SMI,
            "/etc/cdi/nvidia.yaml": _specification(machine),
            "/etc/nvidia-container-runtime/config.toml": _RUNTIME_CONFIG,
            "/etc/containerd/conf.d/10-nvidia.toml": "version = 3\n" + "".join(map(_handler, HANDLERS.items())),
        }
    )


def _specification(machine: Path) -> str:
    """What `nvidia-ctk cdi generate` says on the machine."""
    environment = {**os.environ, SIMULATION_ENV: str(machine), NULL_DEVICES: "true"}
    command = [sys.executable, "-m", "groundplane.node", "nvidia-ctk", "cdi"]
    generate = [*command, "generate", "--mode=nvml", "--libraries=hookless", f"--driver-root={machine}"]
    transform = [*command, "transform", "root", f"--from={machine}", "--to=/", "--input=-"]
    generated = subprocess.run(generate, env=environment, stdout=subprocess.PIPE, check=True)
    done = subprocess.run(transform, env=environment, input=generated.stdout, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def _handler(handler: tuple[str, str]) -> str:
    name, binary = handler
    table = f'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}'
    return (
        f'[{table}]\nruntime_type = "io.containerd.runc.v2"\nbase_runtime_spec = "{BASE_SPEC}"\n'
        f'[{table}.options]\nBinaryName = "{binary}"\nSystemdCgroup = false\n'
    )


def write_node_files(spec: NodeSpec, root: Path = Path("/")) -> None:
    """Write `node_files` below a root."""
    found = node_files(spec)
    for path, text in found.files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text.encode(errors=BYTES), mode=0o755 if path.startswith("/usr/bin/") else 0o644)
    for path, to in found.links.items():
        link = root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(to)
