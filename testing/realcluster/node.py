"""Whole nodes: containerd, CNI and the kubelet in namespaces of their own, joined to one control plane by a bridge.

    loopback --forward--> [fabric: API server 10.0.0.1:443 = 10.96.0.1:443] --bridge--> [node 10.0.0.11] 10.244.1.0/24

There is no kube-proxy: pods reach the API server and one another, but no other Service address, and there is no DNS. No
registry is reachable: images are loaded (`load_image`). Needs root. Nothing is changed on the machine but cgroups below
`/groundplane`, which go with the cluster. The nodes end with the process that started them.
"""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import build, cgroups, ociarchive, workfolder
from .controlplane import API_SERVICE_ADDRESS, ControlPlane, Placement
from .process import Process, ProcessFailedError, Started

FABRIC_ADDRESS = "10.0.0.1"
API_PORT = 443
PAUSE_IMAGE = "groundplane.test/pause:1"
PROGRAMS = ("unshare", "nsenter", "setpriv", "mount", "umount", "pivot_root", "ip")
REPOSITORY = Path(__file__).parents[2]
SYSTEM_FOLDERS = frozenset({Path("/"), Path("/usr"), Path("/usr/local")})
"""What a node has of the machine anyway, in a layer of its own above."""
_CRI = "io.containerd.cri.v1"


@dataclass(frozen=True)
class NodeSetup:
    """How a node is made.

    `files` are written into the node before its services start (path: text; executable below a `bin`), `links` are made
    there (path: target), and `programs` are put there from files of the machine.
    `container_mounts` are folders of the node that every container sees at the same path, `container_environment`
    variables that every container has. Without `cni` the node has no pod network, as a cluster whose network
    add-on was forgotten.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, Path] = field(default_factory=dict)
    container_mounts: Sequence[str] = ()
    container_environment: Mapping[str, str] = field(default_factory=dict)
    cni: bool = True


def missing() -> str:
    """What this machine lacks to run nodes; empty if nothing."""
    if os.geteuid() != 0:
        return "whole nodes need root (namespaces, mounts, cgroups): run as root"
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"not on PATH: {', '.join(lacking)} (Debian: apt-get install util-linux iproute2)"
    try:
        for hierarchy in cgroups.hierarchies():
            if not os.access(hierarchy, os.W_OK):
                return f"{hierarchy} is not writable: cgroups cannot be made"
    except OSError as error:
        return f"no cgroups: {error}"
    probe = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"namespaces cannot be made: {done.stderr.strip()}" if done.returncode else ""


class Node:
    """One running node."""

    def __init__(self, setup: NodeSetup, index: int, cluster: "Cluster") -> None:
        self.setup = setup
        self.name = setup.name
        self.address = f"10.0.0.{10 + index}"
        self.pods = f"10.244.{index}.0/24"
        self.work = cluster.workdir / "nodes" / setup.name
        self.cgroup = f"{cluster.cgroup}/{setup.name}"
        self._index = index
        self._cluster = cluster
        self._process = Process("node " + setup.name, (), log=self.work / "init.log", ready=lambda: True)

    @property
    def pid(self) -> int:
        """The process id, on the machine, of the node's first process."""
        return _only_child(self._process.pid)

    @property
    def program_folders(self) -> list[str]:
        """Where the node has containerd, the kubelet and their programs, for PATH."""
        return [f"/groundplane-bin/{index}" for index in range(len(self._folders()))]

    def start(self) -> None:
        """Make the namespaces and join the network; does not wait for the kubelet."""
        for folder in ("kubelet", "scratch"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        config = self.work / "config.json"
        config.write_text(json.dumps(self._config()))
        command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL"]
        command += [sys.executable, "-m", "testing.realcluster.nodeinit", str(config)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
        log = self.work / "init.log"
        self._process = Process("node " + self.name, command, log=log, ready=self._forked, environment=environment)
        self._process.start()
        self._process.wait_ready(10)
        self._cluster.connect(self._index, self.pid, self.address, self.pods)

    def _forked(self) -> bool:
        return bool(_children(self._process.pid))

    def stop(self) -> None:
        """End all that runs in the node, and remove its cgroups. ProcessFailedError if something keeps running."""
        if self._process.running:
            for child in _children(self._process.pid):
                os.kill(child, signal.SIGTERM)
            self._process.stop()
        left = cgroups.remove(self.cgroup)
        if left:
            raise ProcessFailedError(f"node {self.name} has ended, but processes are left in {left[0]}")

    def run(
        self, argv: Iterable[str], *, stdin: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node, as an administrator who is logged in there."""
        enter = ["nsenter", f"--target={self.pid}", "--all", "--root", "--wd=/"]
        path = ":".join([*self.program_folders, os.defpath, "/usr/sbin"])
        command = [*enter, "env", f"PATH={path}", *argv]
        with stdin.open("rb") if stdin else Path(os.devnull).open("rb") as source:
            return subprocess.run(command, stdin=source, capture_output=True, text=True, check=check)

    def kill(self, service: str) -> None:
        """SIGKILL to `kubelet` or `containerd`, which is started again."""
        pid = (self.work / f"{service}.pid").read_text().strip()
        self.run(["kill", "-KILL", pid])

    def log(self, service: str) -> str:
        """What `kubelet` or `containerd` has logged."""
        return (self.work / f"{service}.log").read_text(errors="replace")

    def load_image(self, archive: Path) -> None:
        """Load the images of an OCI archive into the node's containerd."""
        done = self.run(["ctr", "-n", "k8s.io", "images", "import", "--digests", "-"], stdin=archive, check=False)
        if done.returncode:
            raise ProcessFailedError(f"{archive} cannot be loaded into {self.name}: {done.stderr}")

    # --- what is written for it ---------------------------------------------------------------------------------------

    def _folders(self) -> list[Path]:
        return self._cluster.binaries.folders

    def _config(self) -> dict[str, Any]:
        config = "/groundplane/kubelet.yaml"
        kubelet = [
            "kubelet",
            f"--config={config}",
            "--kubeconfig=/groundplane/kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        ]
        if self.setup.labels:
            kubelet.append("--node-labels=" + ",".join(f"{key}={value}" for key, value in self.setup.labels.items()))
        server = f"https://{API_SERVICE_ADDRESS}:{API_PORT}"
        self._cluster.control_plane.write_kubeconfig(self.work / "kubeconfig", f"system:node:{self.name}", server)
        return {
            "name": self.name,
            "work": str(self.work),
            "path": [str(folder) for folder in self._folders()],
            "seen": _own_folders(),
            "address": self.address,
            "gateway": FABRIC_ADDRESS,
            "cgroup": self.cgroup,
            "links": dict(self.setup.links),
            "programs": self._programs(),
            "container_mounts": list(self.setup.container_mounts),
            "container_environment": dict(self.setup.container_environment),
            "services": {"containerd": ["containerd", "--config=/etc/containerd/config.toml"], "kubelet": kubelet},
            "files": {
                "/etc/containerd/config.toml": _containerd_config(self._folders()),
                config: yaml.safe_dump(_kubelet_config(self.cgroup)),
                **({"/etc/cni/net.d/10-groundplane.conflist": json.dumps(_cni(self.pods))} if self.setup.cni else {}),
                **self.setup.files,
            },
        }

    def _programs(self) -> dict[str, str]:
        """Copies of the programs in the node's work folder, by the paths where they shall be."""
        folder = self.work / "programs"
        folder.mkdir(parents=True, exist_ok=True)
        found = {}
        for number, (path, source) in enumerate(self.setup.programs.items()):
            shutil.copyfile(source, folder / str(number))
            found[path] = f"/groundplane/programs/{number}"
        return found


class Cluster(Started):
    """A control plane and nodes while the context is open. `port` of 127.0.0.1 leads to its API server (0: a free one).

    Raises build.UnavailableError where this machine cannot run it (`missing` says why), ProcessFailedError where
    something does not come up.
    """

    def __init__(
        self,
        nodes: Iterable[NodeSetup],
        *,
        users: Mapping[str, tuple[str, ...]] | None = None,
        audit: bool = False,
        workdir: Path | None = None,
        port: int = 0,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self._own_workdir = workdir is None
        self.workdir = workfolder.make() if workdir is None else workdir
        self.cgroup = workfolder.cgroup(self.workdir)
        self._setups = list(nodes)
        self._users = {**dict(users or {}), **{f"system:node:{each.name}": ("system:nodes",) for each in self._setups}}
        self._audit = audit
        self._port = port
        self._log = log
        self._fabric = Process("fabric", (), log=self.workdir / "fabric.log", ready=lambda: True)
        self._forward: Process | None = None
        self._listener: socket.socket | None = None
        self.binaries = build.Binaries()
        self.nodes: dict[str, Node] = {}
        self.control_plane: ControlPlane

    def start(self) -> None:
        """Start the control plane, then the nodes; returns when every node that has a pod network is Ready."""
        if lacking := missing():
            raise build.UnavailableError(lacking)
        self.binaries = build.ensure(build.NODE, log=self._log)
        build.ensure(build.CONTROL_PLANE, log=self._log)
        self.workdir.mkdir(parents=True, exist_ok=True)
        port = self._start_fabric()
        self.control_plane = ControlPlane(
            workdir=self.workdir / "control-plane",
            users=self._users,
            audit=self._audit,
            placement=Placement(
                prefix=self._inside("env"),
                bind="0.0.0.0",
                advertise=FABRIC_ADDRESS,
                secure_port=API_PORT,
                public_port=port,
            ),
        )
        self.control_plane.start()
        for index, setup in enumerate(self._setups, start=1):
            self.nodes[setup.name] = Node(setup, index, self)
            self.nodes[setup.name].start()
        pause = ociarchive.write(self.binaries["pause"], PAUSE_IMAGE, self.workdir / "pause.tar")
        for node in self.nodes.values():
            self._await(f"containerd of {node.name}", node, functools.partial(_containerd_answers, node))
            node.load_image(pause)
        for node in self.nodes.values():
            if node.setup.cni:
                self._await(f"node {node.name}", node, functools.partial(self.ready, node.name))

    def stop(self) -> None:
        """End everything, the nodes first."""
        for node in self.nodes.values():
            node.stop()
        if hasattr(self, "control_plane"):
            self.control_plane.stop()
        if self._forward is not None:
            self._forward.stop()
        if self._listener is not None:
            self._listener.close()
        self._fabric.stop()
        for group in (self.cgroup, workfolder.CGROUP):  # the last stays while other clusters run
            cgroups.remove(group, patience_s=0)
        if self._own_workdir:
            workfolder.remove(self.workdir)

    def ready(self, name: str) -> bool:
        """Whether a node reports Ready=True."""
        status, node = self.control_plane.request("GET", f"/api/v1/nodes/{name}")
        conditions = node.get("status", {}).get("conditions", []) if status == 200 else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def load_image(self, archive: Path) -> None:
        """Load the images of an OCI archive into every node."""
        for node in self.nodes.values():
            node.load_image(archive)

    def connect(self, index: int, pid: int, address: str, pods: str) -> None:
        """Join a node's network namespace to the fabric."""
        cable = f"node{index}"
        _ip(f"link add {cable} netns {self._fabric.pid} type veth peer name eth0 netns {pid}")
        for command in (f"link set {cable} master bridge0", f"link set {cable} up", f"route add {pods} via {address}"):
            subprocess.run([*self._inside("ip"), *command.split()], check=True)

    def _inside(self, program: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self._fabric.pid}/ns/net", "--", program)

    def _start_fabric(self) -> int:
        """Make the control plane's network and the way into it; the port on the machine's loopback address."""
        self._fabric = Process(
            "fabric", ("unshare", "--net", "sleep", "infinity"), log=self.workdir / "fabric.log", ready=self._unshared
        )
        self._fabric.start()
        self._fabric.wait_ready(10)
        for command in (
            "link set lo up",
            "link add bridge0 type bridge",
            f"address add {FABRIC_ADDRESS}/24 dev bridge0",
            f"address add {API_SERVICE_ADDRESS}/32 dev bridge0",
            "link set bridge0 up",
        ):
            subprocess.run([*self._inside("ip"), *command.split()], check=True)
        subprocess.run([*self._inside("sh"), "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True)
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=256)
        descriptor = self._listener.fileno()
        forward = [*self._inside(sys.executable), "-m", "testing.realcluster.forward"]
        self._forward = Process(
            "forward",
            [*forward, str(descriptor), FABRIC_ADDRESS, str(API_PORT)],
            log=self.workdir / "forward.log",
            ready=lambda: True,
            environment={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            pass_fds=(descriptor,),
        )
        self._forward.start()
        return int(self._listener.getsockname()[1])

    def _unshared(self) -> bool:
        ours, theirs = (Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", self._fabric.pid))
        return ours != theirs

    def _await(self, what: str, node: Node, done: Callable[[], bool], timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            node.pid  # noqa: B018 - raises with the log if the node has ended
            if time.monotonic() > deadline:
                logs = "\n".join(node.log(each)[-3000:] for each in ("containerd", "kubelet"))
                raise ProcessFailedError(f"{what} is not ready after {timeout_s:g} s:\n{logs}")
            time.sleep(0.2)


def _own_folders() -> list[str]:
    """Where this Python and this project are: a node shows them, too, wherever on the machine they are mounted."""
    python = [Path(sys.prefix), Path(sys.base_prefix)]
    shown = [REPOSITORY, *(each for each in python if each not in SYSTEM_FOLDERS)]
    return [str(each) for each in shown if not any(each.is_relative_to(other) for other in shown if other != each)]


def _containerd_answers(node: Node) -> bool:
    return node.run(["ctr", "version"], check=False).returncode == 0


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _only_child(pid: int) -> int:
    (child,) = _children(pid)
    return child


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def _containerd_config(folders: Sequence[Path]) -> str:
    runtime = f'[plugins."{_CRI}.runtime"'
    programs = {
        path.name: f"/groundplane-bin/{index}" for index, folder in enumerate(folders) for path in folder.iterdir()
    }
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
imports = ["/etc/containerd/conf.d/*.toml"]

{runtime}]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
{runtime}.cni]
  bin_dirs = ["{programs["bridge"]}"]
  conf_dir = "/etc/cni/net.d"
{runtime}.containerd]
  default_runtime_name = "runc"
{runtime}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "/etc/containerd/base-spec.json"
{runtime}.containerd.runtimes.runc.options]
  BinaryName = "{programs["runc"]}/runc"
  SystemdCgroup = false
[plugins."{_CRI}.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
"""


def _kubelet_config(cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "serializeImagePulls": False,
        "maxPods": 200,
        "registerNode": True,
    }


def _cni(pods: str) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "name": "groundplane",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
            }
        ],
    }
