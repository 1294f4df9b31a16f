"""Shipped programs in containers of the lab: what they find of the simulated host, what they serve, what they leave."""

import asyncio
import contextlib
import errno
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.cluster.config import Config
from groundplane.lab import access, api, clock, driverfiles, host, http, images, nodes, programs, resources
from groundplane.lab.nodeprograms import LabProcess
from groundplane.node.hostroot import HostRoot
from groundplane.node.validate.cuda import main as cuda

VALIDATIONS = names.VALIDATIONS_DIR
GPUS = (nodes.GpuSpec("A100", 2),)
SMI, LIBRARY = "/usr/bin/nvidia-smi", "/usr/lib64/libnvidia-ml.so.1"


class Node:
    """One host with a Node object; runs programs as containers that see the host's files as operands do."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.api = api.Api()
        self.host = host.SimulatedHost(HostRoot(folder), nodes.NodeSpec("n", **fields))
        self.api.create(resources.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        self.host.root.mkdir("/run/nvidia")
        self.stopping = asyncio.Event()
        self.output = bytearray()
        self.url = ""

    def context(self, image: str, *argv: str, **env: str) -> programs.ContainerContext:
        root = self.host.root
        mounts = [programs.Mount("/host", root), programs.Mount("/driver-root", root, names.DRIVER_ROOT)]
        same = ("/run/nvidia", "/var/run/cdi", "/usr/local/nvidia", "/etc/containerd", "/proc", "/sys")
        mounts += [programs.Mount(path, root, path) for path in same]
        found = images.IMAGES[image]
        container = programs.Container(
            host=self.host,
            clock=clock.LabClock(1000),
            registry=programs.ProgramRegistry.standard(),
            pod={"metadata": {"name": "p", "namespace": "default"}, "spec": {}},
            spec={"name": "c", "image": f"lab/{image}:1"},
            image=found,
            rootfs=HostRoot(root.mkdir("/rootfs")),
            mounts=tuple(mounts),
            env={**found.env, **env},
            stopping=self.stopping,
            identity=lambda: Config(server=self.url, token="t"),
        )
        return programs.ContainerContext(container, argv or found.entrypoint, out=self.output.extend)

    async def run(self, image: str, *argv: str, **env: str) -> int:
        return await self.context(image, *argv, **env).run()

    async def validate(self, component: str, **env: str) -> int:
        more = {"DEFAULT_GPU_WORKLOAD_CONFIG": "vm-passthrough", "OPERATOR_NAMESPACE": "default", **env}
        return await self.run("gpu-operator", "nvidia-validator", COMPONENT=component, NODE_NAME="n", **more)

    def install_driver(self, version: str = "580.126.20") -> None:
        """Put a driver container's files where it shows them."""
        folder = self.host.root.mkdir(names.DRIVER_ROOT)
        driverfiles.write(HostRoot(folder), version, driverfiles.CONTAINER_LIBRARIES)

    def give(self, ctx: programs.ContainerContext, *gpus: int, driver: bool = True) -> programs.ContainerContext:
        """Give a container GPUs, as the container runtime does: device nodes and the driver."""
        given = tuple(self.host.gpus[index] for index in gpus)
        for gpu in given:
            ctx.container.rootfs.write_atomic(gpu.device_node, "")
        ctx.container.gpus, ctx.container.driver_injected = given, driver
        return ctx

    @property
    def text(self) -> str:
        return self.output.decode()


Made = Callable[..., Node]


@pytest.fixture
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Made]:
    """Makes nodes whose API servers are gone at the end."""
    async with contextlib.AsyncExitStack() as stack:
        waiting: list[Node] = []

        def make(**fields: Any) -> Node:
            waiting.append(Node(tmp_path_factory.mktemp("h"), **fields))
            return waiting[-1]

        make.stack = stack  # type: ignore[attr-defined]
        yield make


async def served(make: Made, **fields: Any) -> Node:
    """A node whose API server can be reached."""
    node = make(**fields)
    server = await http.serve(node.api, tokens={"t": access.User("pod", ("system:masters",))})
    make.stack.push_async_callback(server.close)  # type: ignore[attr-defined]
    node.url = server.url
    return node


async def until(condition: Callable[[], Any], node: Node) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, node.text
        await asyncio.sleep(0.005)


# --- the validator ----------------------------------------------------------------------------------------------------


async def test_validator_driver_facts(made: Made) -> None:
    node = await served(made, gpus=GPUS)
    assert await node.validate("driver") == 1
    assert not node.host.root.exists(f"{VALIDATIONS}/driver-ready")
    node.install_driver()
    assert await node.validate("driver") == 1
    assert "ended with code 9 (ERROR_DRIVER_NOT_LOADED)" in node.text
    node.host.load_module("nvidia", version="580.126.20")
    assert await node.validate("driver") == 0
    assert node.host.root.read_text(f"{VALIDATIONS}/driver-ready") == (
        "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n"
        "NVIDIA_DEV_ROOT=/\nDEV_ROOT_CTR_PATH=/host\n"
    )


async def test_validator_finds_the_hosts_driver(made: Made) -> None:
    node = await served(made, gpus=GPUS, host_driver="580.126.20")
    assert await node.validate("driver") == 0
    ready = node.host.root.read_text(f"{VALIDATIONS}/driver-ready")
    assert ready.startswith("IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\nDRIVER_ROOT_CTR_PATH=/host\n")


@pytest.mark.parametrize(
    ("component", "prepare", "file"),
    [
        ("nvidia-fs", lambda n: n.host.load_module("nvidia_fs"), "nvidia-fs-ready"),
        ("gdrcopy", lambda n: n.host.load_module("gdrdrv"), "gdrcopy-ready"),
        ("nvidia-peermem", lambda n: n.host.load_module("nvidia_peermem"), "nvidia-peermem-ready"),
        ("vfio-pci", lambda n: n.context("k8s-driver-manager", "vfio-manage", "bind", "--all"), "vfio-pci-ready"),
    ],
)
async def test_validator_components_wait_for_the_host(made: Made, component: str, prepare: Any, file: str) -> None:
    node = await served(made, gpus=GPUS)
    assert await node.validate(component) == 1
    assert not node.host.root.exists(f"{VALIDATIONS}/{file}")
    prepared = prepare(node)
    if prepared is not None:
        assert await prepared.run() == 0
    assert await node.validate(component) == 0
    assert node.host.root.read_text(f"{VALIDATIONS}/{file}") == ""


async def test_validator_names_its_components_and_what_the_toolkit_lacks(made: Made) -> None:
    node = made()
    assert await node.validate("everything") == 1
    assert "driver, toolkit, cuda, plugin" in node.text
    assert await node.validate("toolkit") == 1
    assert "the container runtime has not brought the driver into this container" in node.text


# --- the driver manager -----------------------------------------------------------------------------------------------

CLEAR = ("k8s-driver-manager", "driver-manager", "uninstall_driver")


async def test_driver_manager_marks_a_host_driver(made: Made) -> None:
    node = await served(made, gpus=GPUS, host_driver="580.126.20")
    assert await node.run(*CLEAR, NODE_NAME="n") == 1
    assert node.api.get(resources.NODES, "n")["metadata"]["labels"] == {names.DEPLOY_DRIVER: "pre-installed"}


@pytest.mark.parametrize(
    ("digest", "unloaded"), [("7", False), ("8", True)], ids=["same configuration", "other configuration"]
)
async def test_driver_manager_unloads_and_gives_labels_back(made: Made, digest: str, unloaded: bool) -> None:
    node = await served(made, gpus=GPUS)
    for module in ("nvidia", "nvidia_uvm", "nvidia_modeset", "gdrdrv"):
        node.host.load_module(module, version="580.126.20")
    node.install_driver()
    node.host.root.write_atomic(names.DRIVER_STATE_FILE, "7\n")
    before = {names.DEPLOY_TOOLKIT: "true", names.DEPLOY_DCGM: "false", names.DEPLOY_GFD: "x"}
    node.api.patch(resources.NODES, "n", {"metadata": {"labels": before}}, type="merge")
    assert await node.run(*CLEAR, NODE_NAME="n", DRIVER_CONFIG_DIGEST=digest) == 0, node.text
    assert node.host.loaded("nvidia") is not unloaded
    assert node.host.modules() == [] or not unloaded
    assert node.host.root.exists(names.DRIVER_STATE_FILE) is not unloaded
    assert node.host.root.glob(f"{names.DRIVER_ROOT}/*") == []
    found = node.api.get(resources.NODES, "n")["metadata"]["labels"]
    assert {key: value for key, value in found.items() if value} == before


async def test_driver_manager_reports_a_driver_in_use(made: Made) -> None:
    node = await served(made, gpus=GPUS)
    node.host.load_module("nvidia", version="580.126.20")
    node.host.root.write_atomic("/sys/module/nvidia/refcnt", "1\n")
    assert await node.run(*CLEAR, NODE_NAME="n") == 1
    assert "Could not unload NVIDIA driver kernel modules, driver is in use" in node.text
    assert node.host.loaded("nvidia")


async def test_driver_manager_takes_gpus_back_from_virtual_machines(made: Made) -> None:
    node = await served(made, gpus=GPUS)
    assert await node.run("k8s-driver-manager", "vfio-manage", "bind", "--all") == 0
    links = [f"/sys/bus/pci/devices/{gpu.pci_address}/driver" for gpu in node.host.gpus]
    assert all(node.host.root.path(link, follow=False).is_symlink() for link in links)
    assert await node.run(*CLEAR, NODE_NAME="n") == 0
    assert not any(node.host.root.path(link, follow=False).is_symlink() for link in links)


@pytest.mark.parametrize(
    ("reference", "release"),
    [
        ("nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.11.0", Release.V26_3),
        ("nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.12.0", Release.V26_7),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.19.0", Release.V26_3),
        ("localhost:5000/k8s-device-plugin:v0.20.0", Release.V26_7),
        ("k8s-driver-manager", Release.V26_7),
    ],
)
def test_programs_behave_like_the_release_that_their_image_came_with(
    tmp_path_factory: pytest.TempPathFactory, reference: str, release: Release
) -> None:
    ctx = Node(tmp_path_factory.mktemp("h")).context("k8s-driver-manager")
    ctx.container.spec = {**ctx.container.spec, "image": reference}
    assert LabProcess(ctx).release is release


# --- the CUDA check ---------------------------------------------------------------------------------------------------


async def test_cuda_check_names_the_lowest_missing_layer(made: Made) -> None:
    node = made(gpus=GPUS)
    ctx = node.context("cuda-sample", "vectorAdd")

    async def layer() -> str:
        node.output.clear()
        code = await ctx.run()
        assert (code == 0) is node.text.endswith("Test PASSED\nDone\n")
        return node.text.partition("Missing layer: ")[2].partition(":")[0]

    assert await layer() == "driver"
    node.host.load_module("nvidia", version="580.126.20")
    assert await layer() == "runtime"
    node.give(ctx)
    assert await layer() == "device plugin"
    assert "this container was given no GPU; request one in its limits (nvidia.com/gpu" in node.text
    node.give(ctx, 1)
    assert await layer() == ""
    assert node.host.gpus[1].uuid in node.text and node.host.gpus[0].uuid not in node.text
    other = made()
    assert await other.run("cuda-sample", "vectorAdd") == cuda.NO_LIBRARY_CODE
    assert "Missing layer: hardware: this node has no NVIDIA GPU" in other.text


async def test_cuda_check_sees_the_hosts_state(made: Made) -> None:
    node = made(gpus=GPUS)
    node.host.load_module("nvidia", version="580.126.20")
    ctx = node.give(node.context("cuda-sample", "vectorAdd"), 0, 1)
    node.host.machine.lose(node.host.gpus[1].uuid)
    assert await ctx.run() == cuda.CALL_FAILED
    assert "CUDA_ERROR_UNKNOWN (999)" in node.text
    assert "Test FAILED: 1 of 2 GPUs failed" in node.text


# --- what serves ------------------------------------------------------------------------------------------------------


async def test_exporter_serves_the_hosts_gpus_and_its_port_goes_with_it(made: Made) -> None:
    node = made(gpus=GPUS)
    node.host.load_module("nvidia", version="580.126.20")
    ctx = node.give(node.context("dcgm-exporter"), 0, 1)
    running = asyncio.create_task(ctx.run())
    ports = ctx.container.ports
    await until(lambda: 9400 in ports or running.done(), node)
    handler = ports[9400]
    assert handler is not None
    assert (await handler("/health"))[:2] == (200, "OK")
    found = await handler("/metrics")
    assert (found.status, found.content_type.partition(";")[0]) == (200, "text/plain")
    assert found.body.count("DCGM_FI_DEV_GPU_TEMP{") == 2
    assert (await handler("/nothing")).status == 404
    node.stopping.set()
    assert await asyncio.wait_for(running, 20) == 0
    assert not ports


async def test_exporter_without_a_driver_ends(made: Made) -> None:
    node = made(gpus=GPUS)
    assert await node.run("dcgm-exporter") == 1
    assert "the driver cannot be asked for figures" in node.text


async def test_node_status_exporter_in_a_container(made: Made) -> None:
    node = await served(made, gpus=GPUS)
    ctx = node.context(
        "gpu-operator", "nvidia-validator", COMPONENT="metrics", NODE_NAME="n", METRICS_PORT="8000",
        OPERATOR_NAMESPACE="default",
    )  # fmt: skip
    running = asyncio.create_task(ctx.run())
    await until(lambda: 8000 in ctx.container.ports or running.done(), node)
    handler = ctx.container.ports[8000]
    assert handler is not None
    await until(lambda: "NVIDIA's devices on the PCI bus: 2" in node.text, node)
    assert 'gpu_operator_nvidia_pci_devices_total{node="n"} 2.0' in (await handler("/metrics")).body
    node.stopping.set()
    assert await asyncio.wait_for(running, 20) == 1


async def test_a_port_is_taken_once_and_zero_is_any(made: Made) -> None:
    process = LabProcess(made().context("busybox", "sh"))
    runner = web.ServerRunner(web.Server(_hello))
    await runner.setup()
    server = runner.server
    assert server is not None
    async with process.serve(server, None, 80):
        with pytest.raises(OSError) as refused:
            async with process.serve(server, None, 80):
                raise AssertionError("it was taken")
        assert refused.value.errno == errno.EADDRINUSE
    async with process.serve(server, None, 0) as one, process.serve(server, None, 0) as other:
        assert len({one, other, 80}) == 3
        handler = process._ctx.container.ports[one]
        assert handler is not None
        assert (await handler("/x?y=1")).body == "hello /x?y=1"
    await runner.cleanup()


async def _hello(request: web.BaseRequest) -> web.Response:
    return web.Response(text=f"hello {request.raw_path}")


async def test_what_is_no_http_answer_is_an_error(made: Made) -> None:
    class Mute(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"SSH-2.0\r\n")
            self.transport.close()

    process = LabProcess(made().context("busybox", "sh"))
    async with process.serve(Mute, None, 22):
        handler = process._ctx.container.ports[22]
        assert handler is not None
        with pytest.raises(OSError, match="no HTTP answer"):
            await handler("/")


async def test_who_asks_a_server_with_tls_speaks_it_and_believes_any_certificate(made: Made, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = str(tmp_path / "tls.key"), str(tmp_path / "tls.crt")
    subject = ["-subj", "/CN=elsewhere", "-days", "1", "-keyout", key, "-out", certificate]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        *subject,
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    process = LabProcess(made().context("busybox", "sh"))
    runner = web.ServerRunner(web.Server(_hello))
    await runner.setup()
    server = runner.server
    assert server is not None
    async with process.serve(server, None, 443, tls=context):
        handler = process._ctx.container.ports[443]
        assert handler is not None
        assert (await handler("/"))[:2] == (200, "hello /")
    await runner.cleanup()
