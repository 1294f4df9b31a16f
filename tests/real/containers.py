"""What the tests of containers with GPUs share: a node that nobody has configured, programs on it, and pods.

The node programs run as processes of the node, as in a privileged pod that sees all of it. The machine's GPUs are
simulated and its device nodes are the null device under other names; containerd, runc, the kubelet, namespaces and
mounts are real.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundplane.node import kubeletapi
from testing import gpuimages, gpumachine
from testing.gpuimages import FLAVOURS, Flavour
from testing.realcluster.node import REPOSITORY, Cluster, Node, NodeSetup
from testing.realcluster.process import Process

NODE = "gpu-c"
GPUS = 10
SIMULATION = "/run/simulation"
DRIVER_ROOT = "/run/nvidia/driver"
INSTALL_DIR = "/usr/local/nvidia"
TOOLKIT = f"{INSTALL_DIR}/toolkit"
PID_FILE = "/run/nvidia/toolkit/toolkit.pid"
CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
HOST_PROGRAM = "/groundplane/host"
PODS = "/api/v1/namespaces/default/pods"
PATIENCE_S = 60.0

Document = dict[str, Any]


def setup() -> NodeSetup:
    """The node: nothing of NVIDIA's is on it."""
    return NodeSetup(NODE)


@dataclass
class Wanted:
    """A pod that is to be run."""

    name: str
    flavour: Flavour
    arguments: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""
    host_users: bool = True
    limits: Mapping[str, int] = field(default_factory=dict)
    read_only: bool = False


class Program:
    """A node program as a process of the node."""

    def __init__(self, node: Node, name: str, environment: Mapping[str, str], log: Path) -> None:
        self._node = node
        self.log = log
        found = {
            "PATH": ":".join((*node.program_folders, os.defpath, "/usr/sbin")),
            "PYTHONPATH": f"{REPOSITORY}/src",
            "PYTHONDONTWRITEBYTECODE": "1",
            **gpumachine.environment(SIMULATION),
            **environment,
        }
        command = ["nsenter", f"--target={node.pid}", "--all", "--root", "--wd=/", "env", "-i"]
        command += [f"{key}={value}" for key, value in found.items()]
        self.process = Process(
            name, [*command, sys.executable, "-m", "groundplane.node", name], log=log, ready=lambda: True
        )
        self.process.start()

    def output(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self.process.exit_code

    def signal(self, name: str) -> None:
        """Send a signal to the program itself, of which `nsenter` is the parent."""
        child = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in child:
            subprocess.run(["kill", f"-{name}", pid], check=False)

    def until_logged(self, *texts: str) -> None:
        """Wait until it has logged one of these. ProcessFailedError, with its log, if it ends before."""

        def logged() -> bool:
            if any(text in self.output() for text in texts):
                return True
            self.process.pid  # noqa: B018 - raises if it has ended
            return False

        until(f"{self.process.name} logs {texts}", logged, report=self.output)

    def end(self, name: str = "TERM", timeout_s: float = 30.0) -> None:
        """End it by a signal and wait until it is gone."""
        if self.process.running:
            self.signal(name)
            until(f"{self.process.name} ends", lambda: not self.process.running, timeout_s, self.output)


def until(what: str, check: Callable[[], Any], timeout_s: float = PATIENCE_S, report: Callable[[], str] = str) -> Any:
    """Wait until `check` is true and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}\n{report()}"
        time.sleep(0.1)
    return found


class GpuNode:
    """The node with its simulated machine, and what is done with it."""

    def __init__(self, cluster: Cluster, host_program: Path) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[NODE]
        self._programs: list[Program] = []
        self._fill(host_program)

    def _fill(self, host_program: Path) -> None:
        """Put machine, driver, host program and images on the node."""
        with tempfile.TemporaryDirectory(prefix="gp-machine-") as scratch:
            gpumachine.simulate(Path(scratch, "machine"), GPUS)
            gpumachine.install_driver(Path(scratch, "driver"))
            shutil.copytree(Path(scratch, "machine"), self.path(SIMULATION))
            shutil.copytree(Path(scratch, "driver"), self.path(DRIVER_ROOT), symlinks=True)
        for node in self.path(f"{SIMULATION}/dev").iterdir():  # runc mounts the host's own into a user namespace
            self.run("mknod", "--mode=0666", f"/dev/{node.name}", "c", "1", "3")
        self.path(HOST_PROGRAM).mkdir()
        shutil.copy(host_program, self.path(HOST_PROGRAM))
        with tempfile.TemporaryDirectory(prefix="gp-images-") as scratch:
            self.node.load_image(gpuimages.write(FLAVOURS, Path(scratch, "images.tar")))
        for handler in ("nvidia", "nvidia-cdi", "nvidia-legacy"):
            self.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": handler}, "handler": handler})

    # --- files and commands of the node -------------------------------------------------------------------------------

    def path(self, path: str) -> Path:
        """A path of the node, as this process reaches it."""
        return Path(f"/proc/{self.node.pid}/root{path}")

    def run(self, *argv: str) -> str:
        """Run a command on the node; its output."""
        return self.node.run(argv).stdout

    def containerd_pid(self) -> str:
        """The process id of containerd, on the node."""
        return (self.node.work / "containerd.pid").read_text().strip()

    def restart_containerd(self) -> None:
        """Kill containerd and wait until it serves again."""
        before = self.containerd_pid()
        self.node.run(["kill", "-KILL", before], check=False)  # it may be ending already
        until("containerd is another", lambda: self.containerd_pid() != before)
        until("containerd serves", self.serves)

    def serves(self) -> bool:
        """Whether containerd answers."""
        return self.node.run(["ctr", "version"], check=False).returncode == 0

    # --- programs -----------------------------------------------------------------------------------------------------

    def program(self, name: str, environment: Mapping[str, str]) -> Program:
        """Start a node program."""
        log = self.node.work / f"{name}-{len(self._programs)}.log"
        self._programs.append(Program(self.node, name, environment, log))
        return self._programs[-1]

    def toolkit(self, libraries: str = "hookless", **more: str) -> Program:
        """Start the toolkit as the operator would, with CDI enabled."""
        environment = {
            "RUNTIME": "containerd",
            "ROOT": INSTALL_DIR,
            "TOOLKIT_SOURCE_ROOT": HOST_PROGRAM,
            "TOOLKIT_PID_FILE": PID_FILE,
            "HOST_ROOT_MOUNT": "/",
            "CDI_ENABLED": "true",
            "CDI_LIBRARIES": libraries,
            "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
            "RUNTIME_CONFIG": CONFIG,
            "RUNTIME_DROP_IN_CONFIG": DROP_IN,
            "RUNTIME_SOCKET": "/run/containerd/containerd.sock",
            "DRIVER_ROOT": DRIVER_ROOT,
            "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
            "DEV_ROOT": "/",
            "DEV_ROOT_CTR_PATH": "/",
            "CREATE_DEVICE_NODES": "none",
        }
        return self.program("nvidia-toolkit", {**environment, **more})

    def ready_toolkit(self, libraries: str = "hookless", **more: str) -> Program:
        """Start the toolkit and wait until it waits, and containerd serves as it is configured then."""
        before = self.containerd_pid()
        started = self.toolkit(libraries, **more)
        started.until_logged("Waiting for signal")
        self._restarted(before, started)
        return started

    @contextmanager
    def running_toolkit(self, libraries: str = "hookless") -> Iterator[Program]:
        """The toolkit while the context is open."""
        toolkit = self.ready_toolkit(libraries)
        try:
            yield toolkit
        finally:
            self.end_toolkit(toolkit)

    @contextmanager
    def running_device_plugin(self, libraries: str) -> Iterator[Program]:
        """The device plugin while the context is open."""
        plugin = self.device_plugin(libraries)
        try:
            yield plugin
        finally:
            plugin.end()

    def end_toolkit(self, toolkit: Program) -> None:
        """End the toolkit as the kubelet would, and wait until containerd serves as it is configured then."""
        before = self.containerd_pid()
        known = len(toolkit.output())
        toolkit.end()
        self._restarted(before, toolkit, known)

    def _restarted(self, before: str, toolkit: Program, known: int = 0) -> None:
        """Wait until containerd is another, if the toolkit has told it to restart, and serves."""
        if "Successfully signaled" in toolkit.output()[known:]:
            until("containerd is another", lambda: self.containerd_pid() != before)
        until("containerd serves", self.serves)

    def device_plugin(self, libraries: str) -> Program:
        """Start the device plugin, and wait until the kubelet offers its GPUs."""
        self.path("/groundplane/plugin.yaml").write_text("version: v1\n")
        environment = {
            "CONFIG_FILE": "/groundplane/plugin.yaml",
            "DEVICE_LIST_STRATEGY": "cdi-cri",
            "CDI_LIBRARIES": libraries,
            "NVIDIA_CDI_HOOK_PATH": f"{TOOLKIT}/nvidia-cdi-hook",
            "NVIDIA_DRIVER_ROOT": DRIVER_ROOT,
            "CONTAINER_DRIVER_ROOT": DRIVER_ROOT,
            "NVIDIA_DEV_ROOT": "/",
            "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
            "DEV_ROOT_CTR_PATH": "/",
            "KUBELET_SOCKET": kubeletapi.KUBELET_SOCKET,
        }
        before = self.node.log("kubelet").count("nvidia.com/gpu")
        started = self.program("nvidia-device-plugin", environment)

        def offered() -> bool:
            started.process.pid  # noqa: B018 - raises with the log if it has ended
            status = self.get(f"/api/v1/nodes/{NODE}")["status"]
            anew = self.node.log("kubelet").count("nvidia.com/gpu") > before
            return anew and bool(status["allocatable"].get("nvidia.com/gpu") == str(GPUS))

        until("the kubelet offers the GPUs", offered, report=started.output)
        return started

    def end_programs(self) -> None:
        """End what still runs."""
        for program in self._programs:
            program.end("KILL")

    # --- pods ---------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Document:
        """An object that must be there."""
        status, answer = self.cluster.control_plane.request("GET", path)
        assert status == 200, f"GET {path}: {status} {answer}"
        return dict(answer)

    def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object."""
        status, answer = self.cluster.control_plane.request("POST", path, body)
        assert status == 201, f"POST {path}: {status} {answer}"

    def start(self, wanted: Wanted) -> None:
        """Create a pod on the node."""
        container = {
            "name": "main",
            "image": wanted.flavour.reference,
            "imagePullPolicy": "Never",
            "args": list(wanted.arguments),
            **({"command": list(wanted.command)} if wanted.command else {}),
            "env": [{"name": key, "value": value} for key, value in wanted.env.items()],
            "resources": {"limits": {key: str(value) for key, value in wanted.limits.items()}},
            "securityContext": {"readOnlyRootFilesystem": wanted.read_only},
        }
        spec: Document = {
            "nodeName": NODE,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "hostUsers": wanted.host_users,
            "containers": [container],
            **({"runtimeClassName": wanted.runtime_class} if wanted.runtime_class else {}),
        }
        self.create(PODS, {"metadata": {"name": wanted.name}, "spec": spec})

    def container(self, name: str) -> Document:
        """The status of a pod's container; empty before it has one."""
        found = self.get(f"{PODS}/{name}").get("status", {}).get("containerStatuses", [])
        return dict(found[0]) if found else {}

    def reports(self, wanted: Iterable[Wanted]) -> dict[str, set[str]]:
        """Run pods to their end, at the same time; what each says, by name. They are deleted."""
        pods = list(wanted)
        for each in pods:
            self.start(each)
        found = {each.name: self._report(each.name) for each in pods}
        for each in pods:
            self.delete(each.name)
        return found

    def ended(self, name: str) -> Document:
        """How a pod's container ended, once it has."""
        return dict(
            until(
                f"pod {name} ends",
                lambda: self.container(name).get("state", {}).get("terminated"),
                report=lambda: self.events(name),
            )
        )

    def _report(self, name: str) -> set[str]:
        ended = self.ended(name)
        assert ended["exitCode"] == 0, f"{name}: {ended}\n{self.events(name)}\n{self._logs(name)}"
        return set(ended.get("message", "").splitlines())

    def delete(self, name: str) -> None:
        """Delete a pod and wait until it is gone."""
        path = f"{PODS}/{name}"
        self.cluster.control_plane.request("DELETE", path, {"gracePeriodSeconds": 0})

    def events(self, name: str) -> str:
        """What happened to a pod, for a person."""
        listed = self.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}")["items"]
        return "\n".join(
            [
                *(f"{each['reason']}: {each['message']}" for each in listed),
                json.dumps(self.container(name).get("state")),
            ]
        )

    def _logs(self, name: str) -> str:
        found = self.path("/var/log/pods").glob(f"default_{name}_*/main/*.log")
        return "\n".join(path.read_text(errors="replace") for path in found)
