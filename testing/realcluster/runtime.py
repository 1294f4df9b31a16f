"""containerd without a kubelet, in namespaces of its own, and single containers as the kubelet would have them started.

`/run`, where all that it keeps is, is its own; all else is the machine's. It ends, with all that runs in it,
with the process that started it. Needs root; nothing is changed on the machine but cgroups below `/groundplane`, which
go with it.

Requests are those of CRI (runtime.v1), of which only the few fields that are used here are known: a message is a
mapping of field numbers.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import grpc

from . import build, cgroups, ociarchive, workfolder
from .node import missing
from .process import Process, ProcessFailedError, Started

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "pause")
PAUSE_IMAGE = "groundplane.test/pause:1"
SOCKET = "/run/containerd/containerd.sock"
CDI_FOLDER = "/run/cdi"
"""Where it looks for CDI specs."""
DEFAULT_HANDLER = "runc"
_HOST_NAMESPACE = 2
_CONFIG = """version = 3
root = "/run/containerd-root"
state = "/run/containerd"
[plugins."io.containerd.cri.v1.runtime"]
  cdi_spec_dirs = ["{cdi}"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
"""
_HANDLER = """[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
  BinaryName = "{binary}"
"""
_START = """set -e
mount --make-rprivate /
mount -t tmpfs run /run
mkdir {cdi}
mount -t proc proc /proc
containerd --config={config} &
wait $!"""

Message: TypeAlias = "Mapping[int, Value]"
Value: TypeAlias = "int | str | Message | Sequence[str] | Sequence[Message]"


class Runtime(Started):
    """containerd while the context is open. `handlers` are runtime handlers beside runc's: name and binary.

    Raises build.UnavailableError where this machine cannot run it, ProcessFailedError where it does not come up.
    """

    def __init__(
        self,
        *,
        handlers: Mapping[str, Path] | None = None,
        workdir: Path | None = None,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self._own_workdir = workdir is None
        self.workdir = workfolder.make() if workdir is None else workdir
        self.cgroup = f"{workfolder.cgroup(self.workdir)}/runtime"
        self._handlers = dict(handlers or {})
        self._log = log
        self._sandboxes: dict[str, tuple[str, Message]] = {}
        self._made = 0
        self.binaries = build.Binaries()
        self._process = Process("containerd", (), log=self.workdir / "containerd.log", ready=lambda: True)
        self._channel: grpc.Channel | None = None

    def start(self) -> None:
        """Start it, with an empty pod for each handler."""
        if lacking := missing():
            raise build.UnavailableError(lacking)
        self.binaries = build.ensure(PROGRAMS, log=self._log)
        cgroups.create(self.cgroup)
        config = self.workdir / "containerd.toml"
        handlers = {DEFAULT_HANDLER: self.binaries["runc"], **self._handlers}
        tables = (_HANDLER.format(name=name, binary=binary) for name, binary in handlers.items())
        config.write_text(_CONFIG.format(pause=PAUSE_IMAGE, cdi=CDI_FOLDER) + "".join(tables))
        command = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child=SIGKILL", "sh", "-c"]
        command.append(_START.format(config=shlex.quote(str(config)), cdi=CDI_FOLDER))
        self._process = Process(
            "containerd", command, log=self._process.log, ready=self._answers, environment=self._environment()
        )
        self._process.start()
        self._process.wait_ready(30)
        self._channel = grpc.insecure_channel(f"unix:/proc/{self._first()}/root{SOCKET}")
        self.load_image(ociarchive.write(self.binaries["pause"], PAUSE_IMAGE, self.workdir / "pause.tar"))
        for handler in handlers:
            self._sandboxes[handler] = self._sandbox(handler)

    def stop(self) -> None:
        """End it and all its containers, and remove its cgroups."""
        if self._channel is not None:
            self._channel.close()
        self._process.kill()  # the kernel ends all of its PID namespace with it
        left = cgroups.remove(workfolder.cgroup(self.workdir))
        cgroups.remove(workfolder.CGROUP, patience_s=0)
        if self._own_workdir:
            workfolder.remove(self.workdir)
        if left:
            raise ProcessFailedError(f"containerd has ended, but processes are left in {left[0]}")

    # --- beside it ----------------------------------------------------------------------------------------------------

    def run(self, argv: Iterable[str], *, stdin: bytes = b"") -> bytes:
        """Run a command beside containerd; its output. ProcessFailedError if it fails."""
        enter = ["nsenter", f"--target={self._first()}", "--mount", "--pid", "--ipc", "--wd=/", "env"]
        command = [*enter, f"PATH={self._environment()['PATH']}", *argv]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        if done.returncode:
            raise ProcessFailedError(f"{list(argv)} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, into folders that there are, as containerd sees them."""
        for path, content in files.items():
            self.run(["dd", f"of={path}"], stdin=content)

    def load_image(self, archive: Path) -> None:
        """Load the images of an OCI archive."""
        self.run(["ctr", "-n", "k8s.io", "images", "import", str(archive)])

    # --- containers ---------------------------------------------------------------------------------------------------

    def create_and_start(
        self,
        image: str,
        command: Sequence[str],
        *,
        handler: str = DEFAULT_HANDLER,
        env: Mapping[str, str] | None = None,
        devices: Iterable[str] = (),
    ) -> str:
        """Start a container with CDI devices; its id. grpc.RpcError if containerd refuses."""
        sandbox, config = self._sandboxes[handler]
        self._made += 1
        container: Message = {
            1: {1: f"container-{self._made}"},
            2: {1: image},
            3: command,
            6: [{1: key, 2: value} for key, value in (env or {}).items()],
            15: {},
            17: [{1: device} for device in devices],
        }
        made = self._call("CreateContainer", {1: sandbox, 2: container, 3: config})
        self._call("StartContainer", {1: made})
        return made

    def remove(self, container: str) -> None:
        """Kill a container and remove it."""
        self._call("RemoveContainer", {1: container})

    def _sandbox(self, handler: str) -> tuple[str, Message]:
        """An empty pod in the network of this process; its id and configuration."""
        namespaces: Message = {1: _HOST_NAMESPACE}
        linux: Message = {1: self.cgroup, 2: {1: namespaces}}
        config: Message = {1: {1: f"pod-{handler}", 2: handler, 3: "default"}, 8: linux}
        return self._call("RunPodSandbox", {1: config, 2: handler}), config

    def _call(self, method: str, message: Message) -> str:
        """Ask, and return the answer's first field, an id; empty if there is none."""
        if self._channel is None:
            raise ProcessFailedError("containerd is not running")
        answer: bytes = self._channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(encode(message), timeout=60)
        return answer[2 : 2 + answer[1]].decode() if answer else ""

    # --- its process --------------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        try:
            self.run(["ctr", "version"])
        except (ProcessFailedError, IndexError):  # not yet
            return False
        return True

    def _first(self) -> str:
        """The process id, on the machine, of the first process in its namespaces."""
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]

    def _environment(self) -> dict[str, str]:
        folders = [*map(str, self.binaries.folders), os.defpath, "/usr/sbin", "/sbin"]
        return {"PATH": ":".join(folders), "HOME": "/root"}


def encode(message: Message) -> bytes:
    """A protobuf message from field numbers and values; a sequence is a repeated field."""
    return b"".join(_field(number, value) for number, value in message.items())


def _field(number: int, value: object) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, str):
        content = value.encode()
    elif isinstance(value, Mapping):
        content = encode(value)
    else:
        assert isinstance(value, Sequence)
        return b"".join(_field(number, each) for each in value)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
