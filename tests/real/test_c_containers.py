"""Containers see GPUs on a real containerd and kubelet, from a node that nobody has configured.

contracts/toolkit-cdi.md 3 to 6 and 8. A workload's program is linked with the driver's libraries: with glibc and with
musl, in images with and without the loader's list of libraries, with and without a user namespace of its own.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from conftest import unavailable
from real import containers
from real.containers import CONFIG, DROP_IN, TOOLKIT, GpuNode, Wanted, until

from testing import gpuimages
from testing.gpuimages import FLAVOURS
from testing.realcluster import build
from testing.realcluster.node import Cluster

pytestmark = pytest.mark.real

STAYING = "staying"
DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
STARTED = ("driver 13000", "management 0")
"""What a program says that is linked with the driver's libraries."""
OPENED = ("libcuda.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4")
"""Libraries that programs, or the driver's own libraries, load by name."""
LIBRARIES = ("hookless", "hooks")


@pytest.fixture(scope="module")
def node() -> Iterator[GpuNode]:
    try:
        program = build.host_program()
        with Cluster([containers.setup()]) as cluster:
            made = GpuNode(cluster, program)
            made.start(Wanted(STAYING, FLAVOURS[0], command=(gpuimages.IDLE, "stay")))
            until("a pod runs", lambda: made.container(STAYING).get("ready"), report=lambda: made.events(STAYING))
            yield made
            made.end_programs()
    except build.UnavailableError as error:
        unavailable(str(error))


def pods(prefix: str, **more: Any) -> list[Wanted]:
    """A pod of every flavour with the host's users and with its own, and one that may not write to its root."""
    env = {**more.pop("env", {}), "GPUCHECK_OPEN": ",".join(OPENED)}
    made = [
        Wanted(f"{prefix}-{flavour.name}-{users}", flavour, host_users=users == "host", env=env, **more)
        for flavour in FLAVOURS
        for users in ("host", "own")
    ]
    return [*made, Wanted(f"{prefix}-read-only", FLAVOURS[1], read_only=True, env=env, **more)]


def given(devices: Sequence[str]) -> set[str]:
    """What a program says that has these devices and finds the driver's libraries."""
    return {*STARTED, *(f"library {name}" for name in OPENED), *(f"device {path} c 1:3" for path in devices)}


def test_from_a_node_without_configuration(node: GpuNode) -> None:
    """containerd is restarted once, pods go on, a second start has nothing to do, and all is taken back in the end."""
    before, staying = node.containerd_pid(), node.container(STAYING)
    config = node.path(CONFIG).read_bytes()
    toolkit = node.ready_toolkit()
    assert node.containerd_pid() != before
    assert node.path(CONFIG).read_bytes() == config, "it imports the folder already"
    assert f'BinaryName = "{TOOLKIT}/nvidia-container-runtime"' in node.path(DROP_IN).read_text()
    assert_goes_on(node, staying)
    toolkit.end("KILL")
    before, written = node.containerd_pid(), node.path(DROP_IN).read_bytes()
    toolkit = node.ready_toolkit()
    assert (node.containerd_pid(), node.path(DROP_IN).read_bytes()) == (before, written)
    node.end_toolkit(toolkit)
    assert node.path(CONFIG).read_bytes() == config
    assert not node.path(DROP_IN).exists()
    assert_goes_on(node, staying)


def assert_goes_on(node: GpuNode, staying: dict[str, object]) -> None:
    """A pod that ran before still does: the same container, and its process is there."""
    now = node.container(STAYING)
    assert (now["containerID"], now["restartCount"]) == (staying["containerID"], 0)
    tasks = node.run("ctr", "-n", "k8s.io", "tasks", "list").splitlines()
    (task,) = (line.split() for line in tasks if line.startswith(str(now["containerID"]).rpartition("/")[2]))
    assert task[2] == "RUNNING"
    node.run("kill", "-0", task[1])


@pytest.mark.parametrize("libraries", LIBRARIES)
def test_by_environment_in_the_runtime_class(node: GpuNode, libraries: str) -> None:
    wanted = pods(
        f"class-{libraries}",
        arguments=(*DEVICES, "/dev/nvidia1"),
        env={"NVIDIA_VISIBLE_DEVICES": "0"},
        runtime_class="nvidia",
    )
    with node.running_toolkit(libraries):
        for name, said in node.reports(wanted).items():
            assert said >= {*given(DEVICES), "device /dev/nvidia1 missing"}, name


@pytest.mark.parametrize("libraries", LIBRARIES)
def test_by_the_device_plugin_in_the_default_runtime(node: GpuNode, libraries: str) -> None:
    wanted = pods(f"plugin-{libraries}", arguments=DEVICES[1:], limits={"nvidia.com/gpu": 1})
    with node.running_device_plugin(libraries):
        for name, said in node.reports(wanted).items():
            assert said >= {*given(DEVICES[1:]), "env NVIDIA_VISIBLE_DEVICES=void"}, name


def test_requests_that_get_no_gpu(node: GpuNode) -> None:
    """In the runtime class: none asked for, the driver's files alone, and one that is not there (6.2)."""
    in_class: dict[str, Any] = {"flavour": FLAVOURS[0], "runtime_class": "nvidia"}
    idle = Wanted("class-nothing", command=(gpuimages.IDLE,), **in_class)
    files = Wanted("class-none", arguments=DEVICES, env={"NVIDIA_VISIBLE_DEVICES": "none"}, **in_class)
    absent = Wanted("class-absent", env={"NVIDIA_VISIBLE_DEVICES": "99"}, **in_class)
    with node.running_toolkit():
        said = node.reports([idle, files])
        assert said["class-nothing"] == set()
        assert said["class-none"] >= {*STARTED, "device /dev/nvidia0 missing"}
        node.start(absent)
        refusal = node.ended(absent.name)["message"]
        assert re.search(r'unknown device \\*"99\\*": this node offers 0, 1, 2', refusal), refusal
        node.delete(absent.name)


MALFORMED = (
    (b"disable = false", b"disable = [", f"{CONFIG} is not valid TOML"),
    (b"version = 3", b'version = "three"', "unsupported type for version field"),
    (b"version = 3", b"version = 99", "expected containerd config version equal to or less than `4`"),
)
"""What is put in place of what in containerd's file, and what the toolkit says of it."""


@pytest.mark.parametrize(("old", "new", "said"), MALFORMED, ids=("no TOML", "no number", "too new"))
def test_a_configuration_that_is_malformed(node: GpuNode, old: bytes, new: bytes, said: str) -> None:
    """The toolkit ends, says what is wrong and leaves all as it is."""
    config = node.path(CONFIG).read_bytes()
    malformed = config.replace(old, new, 1)
    node.path(CONFIG).write_bytes(malformed)
    toolkit = node.toolkit()
    try:
        until("the toolkit ends", lambda: toolkit.exit_code is not None, report=toolkit.output)
        assert toolkit.exit_code == 1, toolkit.output()
        assert said in toolkit.output().splitlines()[-1]
        assert node.path(CONFIG).read_bytes() == malformed != config
        assert not node.path(DROP_IN).exists()
    finally:
        toolkit.end("KILL")
        node.path(CONFIG).write_bytes(config)


MOMENTS = ("Installing", "Using config", "wrote", "Sending SIGHUP", "Waiting for signal")
"""What the toolkit logs when it is killed, or before it waits where an earlier one has done that already."""


def test_killed_at_any_moment(node: GpuNode) -> None:
    """containerd starts whatever a toolkit left behind, and the next toolkit comes to its end."""
    staying = node.container(STAYING)
    for moment in MOMENTS:
        toolkit = node.toolkit()
        toolkit.until_logged(moment, MOMENTS[-1])
        toolkit.end("KILL")
        node.run("containerd", f"--config={CONFIG}", "config", "dump")
        node.restart_containerd()
    (wanted, *_) = pods("killed", arguments=DEVICES, env={"NVIDIA_VISIBLE_DEVICES": "0"}, runtime_class="nvidia")
    with node.running_toolkit():
        assert node.reports([wanted])[wanted.name] >= given(DEVICES)
    assert not node.path(DROP_IN).exists()
    assert_goes_on(node, staying)
