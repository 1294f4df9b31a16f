"""GPUs in the lab's containers: CDI specs, NRI plugins over their real socket, and NVIDIA's runtime's stand-in."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lab.kubelet_bench import bench, container
from node.fakeprocess import FakeProcess

from groundplane.lab import resources
from groundplane.lab.host import HostError, SimulatedHost, containerd_configuration
from groundplane.lab.kubelet import injection, shim
from groundplane.lab.nodes import GpuSpec, NodeSpec, RuntimeSpec
from groundplane.node.hostroot import HostRoot
from groundplane.node.toolkit.nri.plugin import NriPlugin

SLEEP = "trap 'exit 0' TERM; sleep 1000000 & wait"
BINARY = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
CONFIG = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path, as sockets below it need."""
    return tmp_path_factory.mktemp("h")


def spec(kind: str, *devices: str, **edits: Any) -> str:
    made = [{"name": name, "containerEdits": edits or {"env": [f"DEVICE={name}"]}} for name in devices]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": made})


def annotated(value: str) -> dict[str, Any]:
    return {"annotations": {"nvidia.cdi.k8s.io/container.main": value}}


def plugin(host: SimulatedHost, folder: Path, namespace: str = "default") -> NriPlugin:
    process = FakeProcess(folder)
    process.root = host.root
    return NriPlugin(process, index=10, namespace=namespace)


async def test_an_nri_plugin_is_asked_for_each_container(folder: Path) -> None:
    async with bench() as b:
        kubelet = b.node()
        host = kubelet.host
        host.root.write_atomic("/var/run/cdi/x.json", spec("vendor.test/class", "one", env=["FOO=bar"]))
        await b.until(lambda: host.root.exists("/var/run/nri/nri.sock"), "the socket")
        connected = plugin(host, folder)
        await connected.start()
        await b.until(lambda: kubelet.nri.plugins() == ("10-nvidia-toolkit",), "the plugin in force")
        b.pod("p", container(script=f"echo FOO=$FOO; {SLEEP}"), metadata=annotated("vendor.test/class=one"))
        await b.until(lambda: b.ready("p") and "FOO=bar" in b.log("p"), "the device")
        b.pod("plain", container(script=f"echo FOO=$FOO; {SLEEP}"))
        await b.until(lambda: b.ready("plain") and "FOO=\n" in b.log("plain"), "no device")
        await connected.stop()
        await b.until(lambda: not kubelet.nri.plugins(), "the plugin gone")
        b.pod("q", container(script=f"echo FOO=$FOO; {SLEEP}"), metadata=annotated("vendor.test/class=one"))
        await b.until(lambda: b.ready("q") and "FOO=\n" in b.log("q"), "a container without the plugin")


async def test_a_malformed_cdi_spec_holds_nobody_but_those_who_ask_for_it(folder: Path) -> None:
    async with bench() as b:
        kubelet = b.node()
        host = kubelet.host
        host.root.write_atomic("/var/run/cdi/bad.json", "{")
        host.root.write_atomic("/var/run/cdi/good.json", spec("vendor.test/good", "one"))
        await b.until(lambda: host.root.exists("/var/run/nri/nri.sock"), "the socket")
        connected = plugin(host, folder)
        await connected.start()
        await b.until(kubelet.nri.plugins, "the plugin in force")
        b.pod("p", container(script=SLEEP), metadata=annotated("vendor.test/bad=one"))
        await b.until(lambda: b.waiting("p") == "CreateContainerError", "the error")
        waiting = b.status("p")["containerStatuses"][0]["state"]["waiting"]["message"]
        assert "unresolvable CDI devices vendor.test/bad=one" in waiting
        b.pod("q", container(script=SLEEP), metadata=annotated("vendor.test/good=one"))
        await b.until(lambda: b.ready("q"), "the one with a good spec")
        await connected.stop()
        assert b.api.list(resources.PODS)["items"]


def simulated(folder: Path, config: str = "", **specs: str) -> SimulatedHost:
    host = SimulatedHost(HostRoot(folder, durable=False), NodeSpec("n", gpus=(GpuSpec("A100-SXM4-40GB", 2),)))
    host.load_module("nvidia", version="580.1")
    host.create_device_nodes()
    if config:
        host.root.write_atomic(f"{CONFIG}/config.toml", config)
    for path, text in specs.items():
        host.root.write_atomic(path, text)
    return host


CDI = '[nvidia-container-runtime]\nmode = "cdi"\n[nvidia-container-runtime.modes.cdi]\ndefault-kind = "a.test/gpu"\n'
JIT = "runtime.nvidia.com/gpu="


@pytest.mark.parametrize(
    ("config", "binary", "env", "devices"),
    [
        ("", "", {}, ()),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": ""}, ()),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": " , "}, ()),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "void"}, ()),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "0,void"}, ()),
        ("", "", {"CUDA_VERSION": "10.0"}, (f"{JIT}all",)),
        ("", "", {"CUDA_VERSION": "12.0", "NVIDIA_REQUIRE_CUDA": "cuda>=12.0"}, ()),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "none"}, (f"{JIT}none",)),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "3,all"}, (f"{JIT}all",)),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "none,all"}, (f"{JIT}none",)),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "all,none"}, (f"{JIT}all",)),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": " 0 , GPU-1"}, (f"{JIT}0", f"{JIT}GPU-1")),
        ("", "", {"NVIDIA_VISIBLE_DEVICES": "x.test/gpu=a,x.test/gpu=b"}, ("x.test/gpu=a", "x.test/gpu=b")),
        (CDI, "", {"NVIDIA_VISIBLE_DEVICES": "all"}, ("a.test/gpu=all",)),
        (CDI, "", {"NVIDIA_VISIBLE_DEVICES": "0,x.test/gpu=a"}, ("a.test/gpu=0", "x.test/gpu=a")),
        (CDI, ".legacy", {"NVIDIA_VISIBLE_DEVICES": "0"}, (f"{JIT}0",)),
        ("", ".cdi", {"NVIDIA_VISIBLE_DEVICES": "0"}, ("nvidia.com/gpu=0",)),
    ],
)
def test_what_nvidias_runtime_is_asked_for(
    folder: Path, config: str, binary: str, env: Mapping[str, str], devices: tuple[str, ...]
) -> None:
    """contracts/toolkit-cdi.md 6.1 and 6.2."""
    assert shim.request(simulated(folder, config), BINARY + binary, env).devices == devices


def test_nvidias_runtime_without_the_driver_or_with_a_broken_configuration(folder: Path) -> None:
    host = simulated(folder, "[[[")
    with pytest.raises(HostError, match=r"config\.toml is malformed"):
        shim.request(host, BINARY, {"NVIDIA_VISIBLE_DEVICES": "all"})
    host.unload_module("nvidia")
    assert shim.request(host, BINARY, {"NVIDIA_VISIBLE_DEVICES": "all"}) == shim.NOTHING


def test_what_a_container_gets_of_cdi_devices(folder: Path) -> None:
    host = simulated(folder)
    nodes = [{"path": "/dev/nvidia1", "type": "c", "major": 1, "minor": 3}]
    mount = {"hostPath": "/opt/libcuda.so.580.1", "containerPath": "/usr/lib64/libcuda.so.1", "options": ["ro"]}
    text = spec("x.test/gpu", "b", deviceNodes=nodes, mounts=[mount], env=["A=b=c"])
    host.root.write_atomic("/etc/cdi/x.yaml", text)
    got = injection.inject(host, handler="", env={}, named=["x.test/gpu=b", "x.test/gpu=b"])
    assert [gpu.index for gpu in got.gpus] == [1]
    assert (got.driver, got.env) == (True, {"A": "b=c"})
    assert got.mounts == (
        ("/usr/lib64/libcuda.so.1", "/opt/libcuda.so.580.1", True),
        ("/dev/nvidia1", "/dev/nvidia1", False),
    )
    assert injection.inject(host, handler="", env={"NVIDIA_VISIBLE_DEVICES": "all"}, named=[]) == injection.Injection()


async def test_the_runtimes_socket_tells_the_process_that_a_signal_goes_to(folder: Path) -> None:
    """5.6, over the lab's socket."""
    async with bench() as b:
        kubelet = b.node()
        path = kubelet.host.root.path("/run/containerd/containerd.sock")
        await b.until(path.exists, "the socket")
        found = await asyncio.to_thread(_peer, path)
        assert found == os.getpid()


def _peer(path: Any) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        client.connect(str(path))
        client.sendall(b"GET /info HTTP/1.0\r\n\r\n")
        _, ancillary, _, _ = client.recvmsg(64, socket.CMSG_SPACE(struct.calcsize("3i")))
    ((_, _, data),) = ancillary
    return int(struct.unpack("3i", data)[0])


@pytest.mark.parametrize(
    ("runtime", "argv", "code", "text"),
    [
        ("containerd", ("chroot", "/host", "systemctl", "restart", "containerd"), 0, ""),
        ("containerd", ("chroot", "/host", "systemctl", "restart", "crio"), 5, "Unit crio.service not found"),
        ("cri-o", ("chroot", "/host", "systemctl", "restart", "crio"), 0, ""),
        ("cri-o", ("chroot", "/host", "systemctl", "show", "dcgm.service"), 0, "LoadState=not-found"),
        ("containerd", ("chroot", "/host", "containerd", "config", "dump"), 0, "io.containerd.runc.v2"),
        ("cri-o", ("chroot", "/host", "crio", "status", "config"), 0, 'default_runtime = "crun"'),
        ("cri-o", ("chroot", "/host", "containerd", "config", "dump"), 127, "No such file or directory"),
        ("containerd", ("chroot", "/host", "nvidia-smi"), 127, "No such file or directory"),
        ("containerd", ("chroot", "/etc", "nvidia-smi"), 125, "not the root of the host"),
        ("containerd", ("chroot", "/host"), 125, "expected a folder and a command"),
        ("containerd", ("chroot", "/host", "modprobe", "nvidia-uvm"), 0, ""),
    ],
)
async def test_commands_of_a_host(runtime: str, argv: tuple[str, ...], code: int, text: str) -> None:
    async with bench() as b:
        kubelet = b.node(runtime=RuntimeSpec(runtime))
        mounts = [{"name": "host", "mountPath": "/host"}]
        b.pod("p", container(script=SLEEP, volumeMounts=mounts), volumes=[{"name": "host", "hostPath": {"path": "/"}}])
        await b.until(lambda: b.ready("p"), "a pod")
        assert (await b.exec("p", *argv))[0] == code
        assert text in (await b.exec("p", *argv))[1]
        assert kubelet.host.loaded("nvidia_uvm") is ("modprobe" in argv)


def test_what_containerd_has_in_force(folder: Path) -> None:
    """contracts/toolkit-cdi.md 9: files of several versions, one over the other."""
    host = simulated(folder)
    write = host.root.write_atomic
    write("/etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
          '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\nSystemdCgroup = true\n')  # fmt: skip
    write("/etc/containerd/conf.d/1.toml", 'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.'
          'nvidia.options]\nBinaryName = "/x"\n')  # fmt: skip
    found = containerd_configuration(host.root)
    runtimes = found["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    assert runtimes == {"runc": {"options": {"SystemdCgroup": True}}, "nvidia": {"options": {"BinaryName": "/x"}}}
    assert found["version"] == 3
