"""The toolkit from end to end: a node's container runtime as the operator hands it over, until the toolkit is ended."""

import asyncio
import json
import tomllib
from collections.abc import Sequence
from signal import SIGTERM
from typing import Any

import pytest
from node.fakeprocess import until
from node.toolkit.conftest import Node

from groundplane.node.process import Completed
from groundplane.node.toolkit import install

PROGRAM = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
HANDLERS = {"nvidia": PROGRAM, "nvidia-cdi": f"{PROGRAM}.cdi", "nvidia-legacy": f"{PROGRAM}.legacy"}
CONFIG_DIR, DROP_IN_DIR = "/runtime/config-dir", "/runtime/config-dir.d"

CONTAINERD = """\
# kept by a person
version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.k8s.io/pause:3.10"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true  # as the kubelet
"""
CRIO = """\
[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
"""
DOCKER = '{\n  "log-driver": "journald",\n  "features": {"buildkit": true}\n}\n'

RUNTIMES = {
    "containerd": {
        "RUNTIME_CONFIG": f"{CONFIG_DIR}/config.toml",
        "RUNTIME_DROP_IN_CONFIG": f"{DROP_IN_DIR}/99-nvidia.toml",
        "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
        "CONTAINERD_RUNTIME_CLASS": "nvidia",
        "RUNTIME_RESTART_MODE": "systemd",
    },
    "crio": {
        "RUNTIME_CONFIG": f"{CONFIG_DIR}/config.toml",
        "RUNTIME_DROP_IN_CONFIG": f"{DROP_IN_DIR}/99-nvidia.conf",
        "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/crio/crio.conf.d/99-nvidia.conf",
    },
    "docker": {"RUNTIME_CONFIG": f"{CONFIG_DIR}/daemon.json", "RUNTIME_RESTART_MODE": "systemd"},
}
FILES = {"containerd": CONTAINERD, "crio": CRIO, "docker": DOCKER}


def host(argv: Sequence[str], env: Any, stdin: str) -> Completed:
    """The host has systemctl, but no program of a runtime: its configuration is read from files."""
    if argv[2:4] == ["systemctl", "restart"] or tuple(argv[2:4]) == ("systemctl", "restart"):
        return Completed(0, "", "")
    return Completed(127, "", f"chroot: failed to run command '{argv[2]}': No such file or directory\n")


def use(node: Node, runtime: str, text: str | None = "") -> None:
    """Let the node have a runtime with this configuration, a usual one if nothing is said, none if None."""
    node.env.update(RUNTIME=runtime, **RUNTIMES[runtime])
    node.commands["chroot"] = host
    node.process.root.mkdir(CONFIG_DIR)
    node.process.root.mkdir(DROP_IN_DIR)
    if text is not None:
        node.write(RUNTIMES[runtime]["RUNTIME_CONFIG"], text or FILES[runtime])


def restarts(node: Node) -> int:
    return sum("systemctl" in command for command in node.process.executed)


async def running(node: Node, **env: str) -> "asyncio.Task[int]":
    task = node.start(**env)
    await until(lambda: task.done() or "Waiting for signal" in node.process.stderr, "the toolkit to wait")
    assert not task.done(), node.process.stderr
    return task


async def end(node: Node, task: "asyncio.Task[int]") -> None:
    node.process.send(SIGTERM)
    assert await asyncio.wait_for(task, 20) == 0, node.process.stderr


def configured(node: Node, runtime: str) -> dict[str, str]:
    """The handlers that the runtime has, with their programs."""
    if runtime == "docker":
        found = json.loads(node.read(f"{CONFIG_DIR}/daemon.json")).get("runtimes", {})
        return {name: table["path"] for name, table in found.items()}
    drop_in = RUNTIMES[runtime]["RUNTIME_DROP_IN_CONFIG"]
    if not node.exists(drop_in):
        return {}
    said = tomllib.loads(node.read(drop_in))
    if runtime == "crio":
        found = said["crio"]["runtime"]["runtimes"]
        return {name: table["runtime_path"] for name, table in found.items() if name.startswith("nvidia")}
    found = said["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    return {name: table["options"]["BinaryName"] for name, table in found.items() if name.startswith("nvidia")}


def files(node: Node) -> dict[str, bytes | str]:
    return {folder + name: text for folder in (CONFIG_DIR, DROP_IN_DIR) for name, text in node.tree(folder).items()}


@pytest.mark.parametrize("default", ["true", "false"])
@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
async def test_configure_and_take_back_to_the_byte(runtime: str, default: str, node: Node) -> None:
    use(node, runtime)
    before = files(node)
    task = await running(node, NVIDIA_RUNTIME_SET_AS_DEFAULT=default)
    assert configured(node, runtime) == HANDLERS
    assert restarts(node) == 1
    await end(node, task)
    assert restarts(node) == (1 if runtime == "crio" and default == "false" else 2)
    assert files(node) == before


@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
async def test_a_file_that_was_not_there_is_not_there_afterwards(runtime: str, node: Node) -> None:
    use(node, runtime, None)
    task = await running(node)
    assert configured(node, runtime) == HANDLERS
    await end(node, task)
    assert files(node) == {}


@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
async def test_no_daemon_leaves_all(runtime: str, node: Node) -> None:
    use(node, runtime)
    assert await node.start("--no-daemon") == 0, node.process.stderr
    assert configured(node, runtime) == HANDLERS
    assert node.exists(PROGRAM)


@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
async def test_8_11_a_second_start_restarts_nothing(runtime: str, node: Node) -> None:
    use(node, runtime)
    assert await node.start("-n", NVIDIA_RUNTIME_SET_AS_DEFAULT="true") == 0, node.process.stderr
    assert restarts(node) == 1
    before = files(node)
    assert await node.start("-n", NVIDIA_RUNTIME_SET_AS_DEFAULT="true") == 0, node.process.stderr
    assert restarts(node) == 0
    assert files(node) == before


MALFORMED = {"containerd": "version = \n[plugins", "docker": '{"runtimes": '}


@pytest.mark.parametrize("runtime", list(MALFORMED))
async def test_a_malformed_configuration_is_left_alone(runtime: str, node: Node) -> None:
    use(node, runtime)
    assert await node.start("-n") == 0, node.process.stderr
    node.write(RUNTIMES[runtime]["RUNTIME_CONFIG"], MALFORMED[runtime])
    before, installed = files(node), node.tree("/usr/local/nvidia/toolkit")
    assert await node.start("-n") == 1
    assert RUNTIMES[runtime]["RUNTIME_CONFIG"].rpartition("/")[2] in node.process.stderr
    assert restarts(node) == 0
    assert files(node) == before
    assert node.tree("/usr/local/nvidia/toolkit") == installed
    node.write(RUNTIMES[runtime]["RUNTIME_CONFIG"], FILES[runtime])
    task = await running(node)
    assert configured(node, runtime) == HANDLERS
    await end(node, task)


async def test_low_level_runtimes_of_the_configuration(node: Node) -> None:
    use(node, "crio")
    assert await node.start("-n") == 0, node.process.stderr
    path = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    found = tomllib.loads(node.read(path))["nvidia-container-runtime"]["runtimes"]
    assert found == ["/usr/libexec/crio/crun", "runc", "crun"]


@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
async def test_8_15_a_person_s_settings_outlive_the_toolkit(runtime: str, node: Node) -> None:
    """toolkit #132: the whole daemon.json went when the toolkit did."""
    use(node, runtime)
    task = await running(node)
    await end(node, task)
    assert node.read(RUNTIMES[runtime]["RUNTIME_CONFIG"]) == FILES[runtime]


async def test_8_1_the_drop_in_is_where_containerd_looks(node: Node) -> None:
    use(node, "containerd")
    task = await running(node)
    imports = tomllib.loads(node.read(f"{CONFIG_DIR}/config.toml"))["imports"]
    assert imports == ["/etc/containerd/conf.d/*.toml"]
    await end(node, task)


async def test_8_10_nri_touches_nothing_of_the_runtime(node: Node) -> None:
    """It fails for want of a socket, as nothing but that is missing."""
    use(node, "containerd")
    before = files(node)
    assert await node.start(ENABLE_NRI_PLUGIN="true", NRI_SOCKET="/runtime/nri-sock-dir/nri.sock") == 1
    assert "unable to start NRI plugin server" in node.process.stderr
    assert files(node) == before
    assert restarts(node) == 0
    assert node.exists(f"/usr/local/nvidia/toolkit/{install.SPECS}")


@pytest.mark.parametrize(
    "where",
    ['[grpc]\naddress = "/run/k3s/containerd.sock"\n', "version = 4\n[plugins.'io.containerd.server.v1.grpc']\n"],
)
async def test_9_a_failed_restart_names_the_socket_of_the_configuration(node: Node, where: str) -> None:
    """In either place: a person then sees that another socket is mounted than the one containerd listens on."""
    version4 = "version = 4" in where
    text = where + "address = '/run/k3s/containerd.sock'\n" if version4 else f"version = 2\n{where}"
    use(node, "containerd", text)
    mounted = {"RUNTIME_RESTART_MODE": "signal", "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock"}
    assert await node.start(pace=1000.0, **mounted) == 1
    assert "names the socket /run/k3s/containerd.sock of the host: RUNTIME_SOCKET must lead" in node.process.stderr
