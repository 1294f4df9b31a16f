"""Stand-ins as real processes: what each does to the files, ports, sockets and the API server of its container."""

import asyncio
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.onnode_bench import GPUS, Place

from groundplane.api import names
from groundplane.cluster.config import Config
from groundplane.lab import access, api, http, images, nodes, onnode, resources
from groundplane.lab.host import HostError
from groundplane.lab.onnode import apiclient, container, host, process, serving
from groundplane.lab.status import StatusError
from groundplane.node.programs import PROGRAMS

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
RUNC = """version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "/etc/containerd/base.json"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "/opt/runc"
  SystemdCgroup = false
"""
FAKE_CONTAINERD = """
import signal, socket, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
listener = socket.create_server(sys.argv[1], family=socket.AF_UNIX)
print("up", flush=True)
while True:
    listener.accept()[0].close()
"""


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:  # short, for unix sockets
        made = Place(Path(folder))
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[api.Api, dict[str, str]]]:
    """A lab API server with the node, and the environment by which a process finds it."""
    lab = api.Api()
    lab.create(resources.NODES, NODE)
    running = await http.serve(lab, tokens={"t": access.User("pod", ("system:masters",))})
    document = {
        "clusters": [{"name": "c", "cluster": {"server": running.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    yield lab, {"KUBECONFIG": str(file)}
    await running.close()


# --- the machine that containers share --------------------------------------------------------------------------------


def test_the_first_program_boots_the_machine_and_later_ones_find_it_as_it_is(place: Place) -> None:
    first = place.host
    assert len(first.pci_devices()) == 2
    first.load_module("nvidia", version="580.1")
    second = place.host
    assert (second.modules(), second.driver_version) == (["nvidia"], "580.1")
    assert [gpu.uuid for gpu in first.gpus] == [gpu.uuid for gpu in second.gpus]


def test_many_first_programs_boot_once(place: Place) -> None:
    script = (
        "from pathlib import Path; from groundplane.lab.onnode import host; import sys;"
        "host.attach(Path(sys.argv[1])).root.write_atomic(f'/run/seen/{sys.argv[2]}', '')"
    )
    started = [subprocess.Popen([sys.executable, "-c", script, str(place.shared), str(n)]) for n in range(4)]
    assert [each.wait(60) for each in started] == [0] * 4
    assert len(place.host.root.glob("/run/seen/*")) == 4, "a second boot would have emptied /run"


def test_a_program_without_rights_uses_a_booted_machine(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.host.gpus

    def refuse(*_args: Any, **_more: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(host.os, "open", refuse)
    assert place.host.gpus
    place.host.root.remove("/run/booted")
    with pytest.raises(HostError, match="must run as root"):
        host.attach(place.shared)


def test_a_node_without_description_or_with_two_is_refused(place: Place) -> None:
    place.describe([nodes.NodeSpec("a"), nodes.NodeSpec("b")])
    with pytest.raises(HostError, match="describes 2 nodes"):
        host.attach(place.shared)
    (place.shared / host.SPEC).unlink()
    with pytest.raises(HostError, match="does not exist"):
        host.attach(place.shared)


@pytest.mark.parametrize("driver", [None, "550.1.2"])
def test_what_a_node_needs_beforehand(place: Place, driver: str | None) -> None:
    spec = nodes.NodeSpec("n", gpus=GPUS, host_driver=driver)
    host.write_node_files(spec, place.base)
    assert nodes.load(place.root.path(f"{onnode.FOLDER}/{host.SPEC}")) == [spec]
    tool = place.root.path("/usr/bin/nvidia-smi")
    assert tool.exists() is (driver is not None)
    assert driver is None or tool.stat().st_mode & stat.S_IXUSR
    machine = place.root.path(onnode.FOLDER) / "host"
    assert not (machine / ".lock").exists()
    before = sorted(machine.rglob("*"))
    found = host.attach(place.root.path(onnode.FOLDER))
    assert (found.driver_version, len(found.pci_devices())) == (driver, 2)
    assert sorted(machine.rglob("*")) == before, "it is booted; a program without rights over it may come first"


# --- what a container sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("injected", "nodes_of", "visible", "seen"),
    [
        (False, (), "all", ()),
        (True, (), "all", (0, 1)),
        (True, (), "void", ()),
        (True, (), "", ()),
        (True, (), "1", (1,)),
        (True, (), "uuid", (0,)),
        (True, (), "management.nvidia.com/gpu=1", (1,)),
        (True, (1,), "all", (1,)),
        (False, (0,), "void", (0,)),
    ],
)
def test_gpus_of_a_container(
    place: Place, injected: bool, nodes_of: tuple[int, ...], visible: str, seen: tuple[int, ...]
) -> None:
    if injected:
        place.inject_driver()
    for index in nodes_of:
        place.root.write_atomic(f"/dev/nvidia{index}", "")
    value = place.host.gpus[0].uuid if visible == "uuid" else visible
    found = container.visible_gpus(place.host, {"NVIDIA_VISIBLE_DEVICES": value}, place.root)
    assert tuple(gpu.index for gpu in found) == seen


def test_unmounting_leaves_the_folder_that_other_containers_have_mounted(place: Place) -> None:
    folder = place.root.mkdir(names.DRIVER_ROOT)
    place.root.write_atomic(names.DRIVER_ROOT + "/usr/bin/nvidia-smi", "")
    place.root.symlink(names.DRIVER_ROOT + "/dev", "/dev")
    before = folder.stat().st_ino
    place.context().container.unmount(names.DRIVER_ROOT)
    assert (list(folder.iterdir()), folder.stat().st_ino) == ([], before)
    place.context().container.unmount("/run/nothing/here")


def test_a_program_is_taken_from_its_own_image() -> None:
    def module(env: dict[str, str], name: str = "nvidia-driver") -> str:
        found = process._program(name, env)
        assert found is not None
        return found[1].__name__

    assert module({}) == "run"
    assert module({onnode.IMAGE_ENV: "vgpu-manager"}) == "vgpu_manager"
    assert module({onnode.IMAGE_ENV: "vgpu-manager"}, "nv-hostengine") == "run", "one image has them all"
    assert process._program("nothing", {}) is None


def test_the_namespace_is_the_service_accounts(tmp_path: Path) -> None:
    assert container.namespace({}, tmp_path) == "default"
    assert container.namespace({"OPERATOR_NAMESPACE": "o"}, tmp_path) == "o"
    (tmp_path / "namespace").write_text("s\n")
    assert container.namespace({"OPERATOR_NAMESPACE": "o"}, tmp_path) == "s"


def test_ports_accept_connections() -> None:
    with socket.create_connection(("127.0.0.1", serving.serve(0))) as bare:
        assert bare.recv(1) == b"", "accepted, then closed"


# --- the API server ---------------------------------------------------------------------------------------------------


async def test_the_client_speaks_to_a_server_as_the_lab_does_to_itself(server: tuple[api.Api, dict[str, str]]) -> None:
    lab, env = server
    client = apiclient.Client(Config.from_kubeconfig(env["KUBECONFIG"]))

    def work() -> dict[str, Any]:
        body = {"metadata": {"labels": {"a": "b"}}}
        patched = client.patch(resources.NODES, "n", body, type="merge", manager="me")
        assert patched["metadata"]["labels"] == {"a": "b"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "p-", "labels": {"app": "x"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        }
        name = client.create(resources.PODS, pod, "default")["metadata"]["name"]
        found = client.list(resources.PODS, "default", labels="app=x", fields="spec.nodeName=n")["items"]
        assert [item["metadata"]["name"] for item in found] == [name]
        client.delete(resources.PODS, name, "default", grace_period_s=0)
        assert client.find(resources.PODS, name, "default") is None
        with pytest.raises(StatusError, match='pods "q" not found') as error:
            client.get(resources.PODS, "q", "default")
        assert (error.value.code, error.value.reason) == (404, "NotFound")
        with pytest.raises(StatusError) as error:
            client.create(resources.PODS, {"kind": "Pod"}, "default")
        assert 400 <= error.value.code < 500
        return client.get(resources.NODES, "n")

    assert (await asyncio.to_thread(work))["metadata"]["labels"] == {"a": "b"}
    assert lab.get(resources.NODES, "n")["metadata"]["labels"] == {"a": "b"}


def test_a_server_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = apiclient.Client(Config(server=f"http://127.0.0.1:{port}"))
    with pytest.raises(StatusError, match=f"127.0.0.1:{port} does not answer") as error:
        client.find(resources.NODES, "n")
    assert error.value.code == 503


def test_the_token_is_read_again_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    client = apiclient.Client(Config(server="http://x", token_file=token))
    for text in ("one\n", "two\n"):
        token.write_text(text)
        assert client._authorization() == {"Authorization": f"Bearer {text.strip()}"}


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("nvidia-smi",), 9, "couldn't communicate with the NVIDIA driver"),
        (("nothing",), 127, "no stand-in of this name"),
        (("nvidia-driver", "fly"), 1, "unknown command 'fly'"),
        (("nvidia-device-plugin",), 127, "no stand-in of this name"),
    ],
)
async def test_exit_codes_and_output(place: Place, argv: tuple[str, ...], code: int, words: str) -> None:
    ended, text = await place.run(*argv)
    assert ended == code
    assert words in text


async def test_settings_that_cannot_work_are_told(place: Place) -> None:
    assert await place.run("nvidia-smi", **{onnode.SPEED_ENV: "fast"}) == (
        2, f"nvidia-smi: {onnode.SPEED_ENV} is 'fast'; give a positive number such as 20\n",
    )  # fmt: skip


def test_a_program_outside_of_a_cluster_is_told_what_it_misses(tmp_path: Path) -> None:
    refusing = process._api({}, tmp_path)
    with pytest.raises(StatusError, match="needs the API server, but not in a cluster: KUBERN"):
        refusing.get(resources.NODES, "n")


async def test_driver_installs_and_unloads_at_sigterm(place: Place) -> None:
    reference = "nvcr.io/nvidia/driver:580.126.20-ubuntu24.04"
    running = await place.start(
        "nvidia-driver", "init", **{onnode.REFERENCE_ENV: reference, onnode.IMAGE_ENV: "driver"}
    )
    await running.until("now waiting for signal")
    assert place.host.driver_version == "580.126.20"
    tool = place.root.path(names.DRIVER_ROOT + "/usr/bin/nvidia-smi")
    assert tool.stat().st_mode & stat.S_IXUSR
    assert place.root.path(names.DRIVER_ROOT + "/dev", follow=False).readlink() == Path("/dev")
    code, text = await place.run("nvidia-smi", "-L")
    assert (code, text.count("GPU ")) == (0, 2)
    assert await running.stop() == 0
    assert (place.host.loaded("nvidia"), place.host.device_nodes()) == (False, [])
    assert place.root.is_dir(names.DRIVER_ROOT)
    assert not list(place.root.path(names.DRIVER_ROOT).iterdir())


def test_every_program_of_the_operands_images_is_found() -> None:
    for image in images.IMAGES.values():
        for name in image.executables:
            found = process._program(name, {})
            assert (found is None) == (name in PROGRAMS), "node programs have an entry of their own"
