"""The plugin with a real containerd and kubelet: pods ask by annotation (contracts/toolkit-cdi.md 7, 8 #9).

The plugin runs here, outside the node, on the socket of the node's containerd; what it gave is looked for in the
containers themselves: the kernel's view of their devices and environment.
"""

import itertools
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable
from node.fakeprocess import FakeProcess, until

from groundplane.node.toolkit.nri.plugin import NriPlugin
from testing.realcluster import build, node
from testing.realcluster.process import Process

pytestmark = pytest.mark.real

SYNCHRONIZED = "connected and synchronized"
"""What containerd logs when it has taken a plugin."""
SOCKET = "/run/nri/nri.sock"
"""The default, `/var/run` being a link, which cannot be followed from outside the node."""
KIND = "nri.groundplane.test/thing"
OWN = "default"
DOMAIN = "nvidia.cdi.k8s.io"
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": KIND,
    "devices": [
        {
            "name": name,
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/thing-{name}", "hostPath": "/dev/null"}],
                "env": [f"THING_{name.upper()}=here"],
            },
        }
        for name in ("one", "two")
    ],
}
PODS = f"/api/v1/namespaces/{OWN}/pods"
PATIENCE_S = 60.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[node.Cluster]:
    if lacking := node.missing():
        unavailable(lacking)
    setup = node.NodeSetup("nri", files={"/etc/cdi/things.json": json.dumps(SPEC)})
    try:
        with node.Cluster([setup]) as running:
            yield running
    except build.UnavailableError as error:
        unavailable(str(error))


class OnNode(FakeProcess):
    """A process whose files are those of a node."""

    def __init__(self, folder: Path, real: node.Node) -> None:
        super().__init__(folder)
        self._pid = real.pid

    def path(self, path: str) -> Path:
        return Path(f"/proc/{self._pid}/root/{path}")


@asynccontextmanager
async def plugin(process: OnNode) -> AsyncIterator[NriPlugin]:
    made = NriPlugin(process, socket=SOCKET, index=10, namespace=OWN)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def synchronized(real: node.Node, times: int) -> None:
    """Wait until containerd has taken the plugin so many times, which it logs: from then on it asks it."""
    await until(lambda: real.log("containerd").count(SYNCHRONIZED) >= times, "containerd", PATIENCE_S)


class Pods:
    """Pods on the node, and what is in their containers."""

    def __init__(self, cluster: node.Cluster, real: node.Node) -> None:
        self._cluster = cluster
        self._node = real

    async def run(self, annotations: Mapping[str, str], containers: tuple[str, ...] = ("ctr",)) -> list[set[str]]:
        """Run a pod; for each container, the things it has: `dev:NAME` and `env:NAME`."""
        name = self._create(annotations, containers)
        pod: dict[str, Any] = {}

        def runs() -> bool:
            pod.update(self._seen(name))
            return bool(pod.get("status", {}).get("phase") == "Running")

        await until(runs, f"{name} to run", PATIENCE_S)
        ids = {each["name"]: each["containerID"].rpartition("/")[2] for each in pod["status"]["containerStatuses"]}
        return [self._things(ids[each]) for each in containers]

    async def refused(self, annotations: Mapping[str, str]) -> str:
        """Run a pod whose container cannot be made: what its owner is told."""
        name = self._create(annotations, ("ctr",))

        def message() -> str:
            for each in self._seen(name).get("status", {}).get("containerStatuses", ()):
                waiting = each["state"].get("waiting", {})
                if waiting.get("reason") == "CreateContainerError":
                    return str(waiting["message"])
            return ""

        told: str = await until(message, f"{name} to be refused", PATIENCE_S)
        return told

    def _create(self, annotations: Mapping[str, str], containers: tuple[str, ...]) -> str:
        name = f"pod-{next(_numbers)}"
        body = {
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {
                "nodeName": self._node.name,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": each, "image": node.PAUSE_IMAGE, "imagePullPolicy": "Never"} for each in containers
                ],
            },
        }
        status, answer = self._cluster.control_plane.request("POST", PODS, body)
        assert status == 201, answer
        return name

    def _seen(self, name: str) -> dict[str, Any]:
        _, pod = self._cluster.control_plane.request("GET", f"{PODS}/{name}")
        return dict(pod)

    def _things(self, container: str) -> set[str]:
        tasks = self._node.run(["ctr", "-n", "k8s.io", "tasks", "list"]).stdout.splitlines()
        (pid,) = (line.split()[1] for line in tasks if line.startswith(container))
        environment = self._node.run(["cat", f"/proc/{pid}/environ"]).stdout.split("\0")
        found = {f"env:{entry[6:]}" for entry in environment if entry.startswith("THING_")}
        devices = Path(f"/proc/{self._node.pid}/root/proc/{pid}/root/dev")
        for device in devices.glob("thing-*"):
            status = device.stat()
            assert stat.S_ISCHR(status.st_mode)
            assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 3)
            found.add(f"dev:{device.name}")
        return found


ONE = {"dev:thing-one", "env:ONE=here"}
TWO = {"dev:thing-two", "env:TWO=here"}


async def test_devices_by_annotation_through_restarts_of_containerd(cluster: node.Cluster, tmp_path: Path) -> None:
    real = cluster.nodes["nri"]
    pods = Pods(cluster, real)
    process = OnNode(tmp_path, real)
    wanted = {f"{DOMAIN}/container.ctr": f"{KIND}=one"}

    assert await pods.run(wanted) == [set()], "nobody reads the annotation while the plugin is away"
    async with plugin(process):
        await synchronized(real, 1)
        assert await pods.run(wanted, ("ctr", "sidecar")) == [ONE, set()]
        assert await pods.run({f"{DOMAIN}/pod": f" {KIND}=two, {KIND}=one,{KIND}=two,"}, ("a", "b")) == [ONE | TWO] * 2
        assert await pods.run({DOMAIN: f"nonsense,{KIND}=one"}) == [ONE], "what is malformed is left out"
        assert await pods.run({}) == [set()]
        assert await pods.run({"cdi.k8s.io/thing": f"{KIND}=one"}) == [set()], "another's annotation"

        told = await pods.refused({f"{DOMAIN}/container.ctr": f"{KIND}=three"})
        assert f"unresolvable CDI devices {KIND}=three" in told, "that container's owner is told"

        real.kill("containerd")
        await synchronized(real, 2)
        assert await pods.run(wanted) == [ONE], "the plugin is back"
    assert await pods.run(wanted) == [set()], "a plugin that is stopped keeps no container from starting"
    assert process.stderr.count("again") == 2  # announced, and done


PROGRAM = f"""
import asyncio, os
from groundplane.node.ownprocess import OwnProcess
from groundplane.node.toolkit.nri.plugin import NriPlugin

async def main():
    process = OwnProcess(["nvidia-toolkit"], os.environ)
    plugin = NriPlugin(process, index=20, namespace="{OWN}")
    await plugin.start()
    await process.signal()
    await plugin.stop()

asyncio.run(main())
"""


async def test_a_plugin_that_hangs_or_is_killed_keeps_no_container_from_starting(
    cluster: node.Cluster, tmp_path: Path
) -> None:
    real = cluster.nodes["nri"]
    pods = Pods(cluster, real)
    wanted = {f"{DOMAIN}/pod": f"{KIND}=one"}
    taken = real.log("containerd").count(SYNCHRONIZED)
    enter = ["nsenter", f"--target={real.pid}", "--mount", "--root", "--wd=/"]
    log = tmp_path / "plugin.log"
    running = Process("plugin", [*enter, sys.executable, "-c", PROGRAM], log=log, ready=lambda: True)
    running.start()
    try:
        await synchronized(real, taken + 1)
        assert await pods.run(wanted) == [ONE]

        os.kill(running.pid, signal.SIGSTOP)
        assert await pods.run(wanted) == [set()], "containerd waits for it as long as a request may take, and goes on"
        os.kill(running.pid, signal.SIGCONT)
        await synchronized(real, taken + 2)
        assert await pods.run(wanted) == [ONE], "it is back"

        running.kill()
        assert await pods.run(wanted) == [set()]
    finally:
        running.kill()
    assert f"CDI devices '{KIND}=one'" in log.read_text()
