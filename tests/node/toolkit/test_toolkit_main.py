"""The toolkit's sequence: contracts/toolkit-cdi.md 4.4, with a container runtime's configuration that is the test's."""

import asyncio
import contextlib
import json
import os
import tomllib
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, Signals
from typing import Any

import pytest
import yaml
from node.fakeprocess import until
from node.toolkit.conftest import DRIVER, LIBRARIES, Node

from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.devices.simulated import Machine, describe
from groundplane.node.process import Completed
from groundplane.node.toolkit import install, runtimes, specs
from groundplane.node.toolkit.settings import HOST_PROGRAM, RuntimeConfigError, RuntimeSettings

MANAGEMENT = "/var/run/cdi/management.nvidia.com-gpu.yaml"
FOLDER = "/usr/local/nvidia/toolkit"
SHIM = f"{FOLDER}/{install.SPECS}"
PID_FILE = "/run/nvidia/toolkit/toolkit.pid"
PENDING = "/run/nvidia/toolkit/restart-pending"
RESTART = ("chroot", "/host", "systemctl", "restart", "containerd")


class FakeRuntimes:
    """What the runtimes' room answers, and what was asked of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.asked: list[str] = []
        self.changed: bool | Exception = True
        self.reverted: bool | Exception = True
        self.found: tuple[str, ...] | Exception = ("/usr/bin/runc", "runc")
        self.settings: RuntimeSettings | None = None
        self.block: asyncio.Event | None = None

    def _answer(self, name: str, settings: RuntimeSettings, answer: Any) -> Any:
        self.asked.append(name)
        self.settings = settings
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def low_level(self, process: Any, settings: RuntimeSettings) -> Any:
        return self._answer("low_level", settings, self.found)

    async def configure(self, process: Any, settings: RuntimeSettings) -> Any:
        if self.block is not None:
            self.asked.append("configuring")
            await self.block.wait()
        return self._answer("configure", settings, self.changed)

    async def revert(self, process: Any, settings: RuntimeSettings) -> Any:
        return self._answer("revert", settings, self.reverted)


@pytest.fixture
def fake(node: Node, monkeypatch: pytest.MonkeyPatch) -> FakeRuntimes:
    made = FakeRuntimes(node)
    for name in ("low_level", "configure", "revert"):
        monkeypatch.setattr(runtimes, name, getattr(made, name), raising=False)
    node.env.update(RUNTIME="containerd", RUNTIME_RESTART_MODE="systemd", CDI_REFRESH_INTERVAL="50ms")
    return made


async def waiting(node: Node) -> None:
    await until(lambda: "Waiting for signal" in node.process.stderr, "the toolkit to wait")


async def ended(node: Node, task: "asyncio.Task[int]", number: Signals = SIGTERM) -> int:
    node.process.send(number)
    return await asyncio.wait_for(task, 20)


async def test_4_4_the_whole_sequence(node: Node, fake: FakeRuntimes) -> None:
    task = node.start()
    await waiting(node)
    assert node.read(PID_FILE) == f"{os.getpid()}\n"
    assert fake.asked == ["low_level", "configure"]
    assert node.process.executed == [RESTART]
    config = tomllib.loads(node.read(f"{FOLDER}/.config/nvidia-container-runtime/config.toml"))
    assert config["nvidia-container-runtime"]["runtimes"] == ["/usr/bin/runc", "runc", "crun"]
    assert config["nvidia-container-runtime"]["mode"] == "cdi"
    assert config["nvidia-container-runtime"]["modes"]["cdi"]["default-kind"] == "management.nvidia.com/gpu"
    for name in ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"):
        assert node.exists(f"/driver-root/dev/{name}")
    spec = yaml.safe_load(node.read(MANAGEMENT))
    assert spec["kind"] == "management.nvidia.com/gpu"
    assert [device["name"] for device in spec["devices"]] == ["all"]
    assert await ended(node, task) == 0
    assert fake.asked == ["low_level", "configure", "revert"]
    assert node.process.executed == [RESTART, RESTART]
    assert not node.exists(PID_FILE)
    assert node.exists(f"{FOLDER}/nvidia-cdi-hook"), "running containers refer to it"
    assert node.exists(MANAGEMENT)


async def test_what_the_runtimes_room_is_told(node: Node, fake: FakeRuntimes) -> None:
    task = node.start(
        CONTAINERD_RUNTIME_CLASS="nvidia",
        RUNTIME_CONFIG="/runtime/config-dir/config.toml",
        RUNTIME_DROP_IN_CONFIG="/runtime/config-dir.d/99-nvidia.toml",
        RUNTIME_DROP_IN_CONFIG_HOST_PATH="/etc/containerd/conf.d/99-nvidia.toml",
    )
    await waiting(node)
    told = fake.settings
    assert told is not None
    assert (told.config, told.drop_in, told.drop_in_host_path) == (
        "/runtime/config-dir/config.toml",
        "/runtime/config-dir.d/99-nvidia.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    )
    assert (told.name, told.default, told.enable_cdi) == ("nvidia", "", True)
    assert [each.path for each in told.handlers] == [
        f"{FOLDER}/nvidia-container-runtime{end}" for end in ("", ".cdi", ".legacy")
    ]
    assert await ended(node, task) == 0


@pytest.mark.parametrize("number", [SIGHUP, SIGINT, SIGQUIT, SIGTERM])
async def test_4_4_2_a_signal_while_waiting_takes_the_configuration_back(
    number: Signals, node: Node, fake: FakeRuntimes
) -> None:
    task = node.start()
    await waiting(node)
    assert await ended(node, task, number) == 0
    assert "revert" in fake.asked


STAGES = ("before", "runtime options", "install", "specs", "configure", "restart")


@pytest.mark.parametrize("stage", STAGES)
async def test_4_4_2_a_signal_at_any_stage_before_takes_nothing_back(
    stage: str, node: Node, fake: FakeRuntimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also gpu-operator #432: containerd sends SIGTERM to the toolkit that has just restarted it (section 8, 12)."""

    loop, first = asyncio.get_running_loop(), [stage]

    def signalling(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if first:
                first.clear()
                loop.call_soon_threadsafe(node.process.send, SIGTERM)
            return function(*args, **kwargs)

        return call

    if stage == "runtime options":
        monkeypatch.setattr(runtimes, "low_level", signalling(fake.low_level))
    elif stage == "install":
        monkeypatch.setattr(install, "install", signalling(install.install))
    elif stage == "specs":
        monkeypatch.setattr(specs._Writer, "write", signalling(specs._Writer.write))
    elif stage == "configure":
        monkeypatch.setattr(runtimes, "configure", signalling(fake.configure))
    elif stage == "restart":
        node.commands["chroot"] = signalling(lambda argv, env, stdin: Completed(0, "", ""))
    task = node.start()
    if stage == "before":
        node.process.send(SIGTERM)
    assert await asyncio.wait_for(task, 20) == 0
    assert "revert" not in fake.asked
    assert "exiting early" in node.process.stderr
    assert not node.exists(PID_FILE)
    assert not node.exists(f"/usr/local/nvidia/{install.NEW}")
    task = node.start()
    await waiting(node)
    assert await ended(node, task) == 0


async def test_a_signal_in_the_middle_of_the_configuration_leads_to_a_restart_later(
    node: Node, fake: FakeRuntimes
) -> None:
    """The file may be as wanted already, yet the runtime has not read it."""
    fake.block = asyncio.Event()
    task = node.start()
    await until(lambda: "configuring" in fake.asked)
    assert await ended(node, task) == 0
    assert node.process.executed == []
    assert node.exists(PENDING)
    fake.block, fake.changed = None, False
    task = node.start()
    await waiting(node)
    assert node.process.executed == [RESTART]
    assert not node.exists(PENDING)
    assert await ended(node, task) == 0


async def test_8_11_no_restart_without_a_change(node: Node, fake: FakeRuntimes) -> None:
    """gpu-operator #991: a restart that nobody needs leaves other pods stuck."""
    fake.changed = fake.reverted = False
    task = node.start()
    await waiting(node)
    assert await ended(node, task) == 0
    assert node.process.executed == []
    assert not node.exists(PENDING)


async def test_4_4_1_a_second_one_ends(node: Node, fake: FakeRuntimes) -> None:
    first = node.start()
    await waiting(node)
    process = node.process
    assert await node.start() == 1
    assert "already running" in node.process.stderr
    node.process = process
    assert node.read(PID_FILE) == f"{os.getpid()}\n"
    assert await ended(node, first) == 0


async def test_4_4_7_no_daemon(node: Node, fake: FakeRuntimes) -> None:
    assert await node.start("--no-daemon") == 0
    assert fake.asked == ["low_level", "configure"]
    assert node.process.executed == [RESTART]
    assert not node.exists(PID_FILE)
    assert node.exists(MANAGEMENT)


async def test_no_runtime_config(node: Node, fake: FakeRuntimes) -> None:
    task = node.start(NO_RUNTIME_CONFIG="true")
    await waiting(node)
    assert await ended(node, task) == 0
    assert fake.asked == []
    assert node.process.executed == []
    config = tomllib.loads(node.read(f"{FOLDER}/.config/nvidia-container-runtime/config.toml"))
    assert config["nvidia-container-runtime"]["runtimes"] == ["runc", "crun"]


async def test_4_4_3_the_users_list_of_low_level_runtimes(node: Node, fake: FakeRuntimes) -> None:
    assert await node.start("-n", NVIDIA_CONTAINER_RUNTIME_RUNTIMES="youki") == 0
    assert fake.asked == ["configure"]
    config = tomllib.loads(node.read(f"{FOLDER}/.config/nvidia-container-runtime/config.toml"))
    assert config["nvidia-container-runtime"]["runtimes"] == ["youki"]


# --- steps that fail --------------------------------------------------------------------------------------------------


def _no_program(node: Node, fake: FakeRuntimes) -> None:
    node.process.root.remove(HOST_PROGRAM)


def _no_nodes(node: Node, fake: FakeRuntimes) -> None:
    node.env["CREATE_DEVICE_NODES"] = "none"
    node.process.root.remove("/driver-root/dev")
    node.process.root.mkdir("/driver-root/dev")


def _no_majors(node: Node, fake: FakeRuntimes) -> None:
    del node.env[NULL_DEVICES]


def _no_version(node: Node, fake: FakeRuntimes) -> None:
    node.library = False
    node.process.root.remove(LIBRARIES)


def _no_cdi_folder(node: Node, fake: FakeRuntimes) -> None:
    node.write("/var/run/cdi", "")


def _bad_source(node: Node, fake: FakeRuntimes) -> None:
    fake.found = RuntimeConfigError("/etc/containerd/config.toml: malformed")


def _bad_config(node: Node, fake: FakeRuntimes) -> None:
    fake.changed = RuntimeConfigError("/etc/containerd/config.toml: line 3: malformed")


def _bad_restart(node: Node, fake: FakeRuntimes) -> None:
    node.commands["chroot"] = lambda argv, env, stdin: Completed(1, "", "failed")


FAILURES = (
    (_bad_source, "unable to determine runtime options: /etc/containerd/config.toml: malformed"),
    (_no_program, "unable to install toolkit: the host's program"),
    (_no_majors, "unable to create device nodes: failed to create device node nvidia-modeset"),
    (_no_nodes, "unable to generate CDI specification: no NVIDIA device nodes found"),
    (_no_version, "unable to generate CDI specification: "),
    (_no_cdi_folder, "unable to generate CDI specification: "),
    (_bad_config, "unable to setup runtime containerd: /etc/containerd/config.toml: line 3: malformed"),
    (_bad_restart, "unable to setup runtime containerd: error restarting containerd"),
)


@pytest.mark.parametrize(("prepare", "text"), FAILURES, ids=[prepare.__name__ for prepare, _ in FAILURES])
async def test_4_4_a_step_that_fails_is_named(prepare: Any, text: str, node: Node, fake: FakeRuntimes) -> None:
    """Also kaito #2326 (section 8, 7): no spec is a failure that is told, never hidden."""
    prepare(node, fake)
    assert await asyncio.wait_for(node.start(), 20) == 1
    assert text in node.process.stderr
    assert "revert" not in fake.asked
    assert not node.exists(PID_FILE)


async def test_a_failure_leaves_an_earlier_spec_in_place(node: Node, fake: FakeRuntimes) -> None:
    node.write(MANAGEMENT, "earlier")
    _no_nodes(node, fake)
    assert await node.start() == 1
    assert node.read(MANAGEMENT) == "earlier"


async def test_a_refused_configuration_asks_for_no_restart(node: Node, fake: FakeRuntimes) -> None:
    _bad_config(node, fake)
    assert await node.start() == 1
    assert not node.exists(PENDING)


async def test_a_failed_restart_is_made_up_for(node: Node, fake: FakeRuntimes) -> None:
    _bad_restart(node, fake)
    assert await node.start() == 1
    fake.changed = False
    node.commands["chroot"] = lambda argv, env, stdin: Completed(0, "", "")
    assert await node.start("-n") == 0
    assert node.process.executed == [RESTART]


async def test_4_4_9_a_cleanup_that_fails(node: Node, fake: FakeRuntimes) -> None:
    fake.reverted = RuntimeConfigError("/etc/containerd/config.toml: malformed")
    task = node.start()
    await waiting(node)
    assert await ended(node, task) == 1
    assert "unable to cleanup runtime containerd: /etc/containerd/config.toml: malformed" in node.process.stderr
    assert not node.exists(PID_FILE)


async def test_wrong_options(node: Node, fake: FakeRuntimes) -> None:
    assert await node.start(RUNTIME="podman") == 1
    assert 'invalid runtime "podman"' in node.process.stderr
    assert await node.start("--help") == 0
    assert "Usage: nvidia-toolkit" in node.process.stdout
    assert not node.exists(FOLDER)


# --- NRI --------------------------------------------------------------------------------------------------------------


class FakePlugin:
    """Stands for the NRI plugin."""

    made: list["FakePlugin"]
    error: Exception | None = None

    def __init__(self, process: Any, **options: Any) -> None:
        self.options = options
        self.calls: list[str] = []
        self.made.append(self)

    async def start(self) -> None:
        self.calls.append("start")
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def plugins(node: Node, fake: FakeRuntimes, monkeypatch: pytest.MonkeyPatch) -> type[FakePlugin]:
    from groundplane.node.toolkit.nri import plugin

    FakePlugin.made, FakePlugin.error = [], None
    monkeypatch.setattr(plugin, "NriPlugin", FakePlugin)
    node.env.update(ENABLE_NRI_PLUGIN="true", NRI_SOCKET="/runtime/nri-sock-dir/nri.sock")
    return FakePlugin


async def test_4_4_8_nri_instead_of_a_configuration(node: Node, fake: FakeRuntimes, plugins: type[FakePlugin]) -> None:
    """Also section 8, 10: nothing of the runtime's configuration is touched, which may be read-only."""
    task = node.start(NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES="a,b")
    await waiting(node)
    (plugin,) = plugins.made
    assert plugin.options == {
        "socket": "/runtime/nri-sock-dir/nri.sock",
        "index": 10,
        "namespace": "gpu-operator",
        "management_namespaces": ("a", "b"),
    }
    assert plugin.calls == ["start"]
    assert await ended(node, task) == 0
    assert plugin.calls == ["start", "stop"]
    assert fake.asked == []
    assert node.process.executed == []


async def test_4_4_3_nri_takes_the_low_level_runtimes_of_the_earlier_installation(
    node: Node, fake: FakeRuntimes, plugins: type[FakePlugin]
) -> None:
    path = f"{FOLDER}/.config/nvidia-container-runtime/config.toml"
    node.write(path, '[nvidia-container-runtime]\nruntimes = ["/opt/bin/runc", "crun"]\n')
    task = node.start()
    await waiting(node)
    assert tomllib.loads(node.read(path))["nvidia-container-runtime"]["runtimes"] == ["/opt/bin/runc", "crun"]
    assert await ended(node, task) == 0


async def test_4_4_3_nri_without_an_earlier_installation(
    node: Node, fake: FakeRuntimes, plugins: type[FakePlugin]
) -> None:
    task = node.start()
    await waiting(node)
    assert "the low-level runtimes are runc, crun" in node.process.stderr
    assert await ended(node, task) == 0


async def test_an_nri_plugin_that_cannot_start(node: Node, fake: FakeRuntimes, plugins: type[FakePlugin]) -> None:
    from groundplane.node.toolkit.nri.plugin import NriError

    plugins.error = NriError("no NRI socket at /x")
    assert await node.start() == 1
    assert "unable to start NRI plugin server: no NRI socket at /x" in node.process.stderr


async def test_without_a_daemon_nri_is_ignored(node: Node, fake: FakeRuntimes, plugins: type[FakePlugin]) -> None:
    assert await node.start("--no-daemon") == 0
    assert plugins.made == []
    assert fake.asked == ["low_level", "configure"]


# --- specs ------------------------------------------------------------------------------------------------------------


def shim(node: Node) -> dict[str, Any]:
    root = node.process.path(SHIM)
    found: dict[str, Any] = {}
    for path in sorted(root.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # it has just gone
            found[path.name] = json.loads(path.read_text())
    return found


def devices(node: Node) -> list[str]:
    return [device["name"] for device in shim(node)["runtime.nvidia.com-gpu.json"]["devices"]]


async def test_the_shims_folder(node: Node, fake: FakeRuntimes) -> None:
    node.add_nodes("nvidia-fs0", "nvidia-caps-imex-channels/channel0")
    assert await node.start("-n") == 0
    found = shim(node)
    assert set(found) == {
        "runtime.nvidia.com-gpu.json",
        "nvidia.com-gds.json",
        "nvidia.com-imex-channel.json",
        "properties.json",
    }
    with node.source() as source:
        uuids = [gpu.uuid for gpu in source.inventory().gpus]
    assert devices(node) == ["0", "1", *sorted(uuids), "all", "none"]
    assert found["properties.json"]["driver"] == DRIVER
    assert [gpu["uuid"] for gpu in found["properties.json"]["gpus"]] == uuids
    assert found["properties.json"]["gpus"][0]["arch"] == "9.0"


async def test_gpus_that_do_not_answer_yet(node: Node, fake: FakeRuntimes) -> None:
    """The management spec is made of files alone; the shim's come with a refresh."""
    node.loaded = False
    task = node.start()
    await waiting(node)
    assert node.exists(MANAGEMENT)
    assert shim(node) == {}
    assert "stay as they are until the GPUs answer" in node.process.stderr
    node.loaded = True
    await until(lambda: "runtime.nvidia.com-gpu.json" in shim(node), "the refresh")
    assert await ended(node, task) == 0
    assert node.process.stderr.count("stay as they are until the GPUs answer") == 1


async def test_the_daemon_follows_the_gpus(node: Node, fake: FakeRuntimes) -> None:
    node.add_nodes("nvidia-caps/nvidia-cap30", "nvidia-fs0")
    task = node.start()
    await waiting(node)
    node.process.root.remove("/driver-root/dev/nvidia-fs0")
    node.add_nodes("nvidia2")
    await until(lambda: "/dev/nvidia2" in node.read(MANAGEMENT), "the management spec to follow")
    await until(lambda: "nvidia.com-gds.json" not in shim(node), "the mode's spec to go")
    assert await ended(node, task) == 0


async def test_a_refresh_without_a_change_writes_nothing(
    node: Node, fake: FakeRuntimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = node.start()
    await waiting(node)
    paths = [node.process.path(MANAGEMENT), *sorted(node.process.path(SHIM).iterdir())]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths]
    asked: list[int] = []
    monkeypatch.setattr(node.process.source, "open", lambda: asked.append(1))
    looked: list[int] = []
    look = specs.inputs
    monkeypatch.setattr(specs, "inputs", lambda *world: (looked.append(1), look(*world))[1])
    await until(lambda: len(looked) > 3, "some refreshes")
    assert asked == []
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths] == before
    assert await ended(node, task) == 0


async def test_a_refresh_that_fails_is_told_once_and_is_not_fatal(node: Node, fake: FakeRuntimes) -> None:
    task = node.start()
    await waiting(node)
    earlier = node.read(MANAGEMENT)
    node.process.root.remove(LIBRARIES)
    node.library = False
    await until(lambda: "CDI specification for management containers not written" in node.process.stderr)
    for _ in range(3):
        await asyncio.sleep(0.1)
    assert node.process.stderr.count("not written") == 1
    assert node.read(MANAGEMENT) == earlier
    assert await ended(node, task) == 0


async def test_8_6_specs_that_a_reboot_took_are_made_again(node: Node, fake: FakeRuntimes) -> None:
    """gpu-operator #531: /var/run is empty after a power loss."""
    assert await node.start("-n") == 0
    node.process.root.remove("/var/run/cdi")
    task = node.start()
    await waiting(node)
    assert node.exists(MANAGEMENT)
    node.process.root.remove("/var/run/cdi")
    await until(lambda: node.exists(MANAGEMENT), "the next refresh")
    assert await ended(node, task) == 0


async def test_no_cdi(node: Node, fake: FakeRuntimes) -> None:
    """The shim's specs are needed without CDI, too."""
    assert await node.start("-n", CDI_ENABLED="false") == 0
    assert not node.exists(MANAGEMENT)
    assert "runtime.nvidia.com-gpu.json" in shim(node)
    assert not node.exists("/driver-root/dev/nvidia-uvm")


async def test_hooks_or_none(node: Node, fake: FakeRuntimes) -> None:
    assert await node.start("-n", CDI_LIBRARIES="hookless") == 0
    assert "hooks" not in yaml.safe_load(node.read(MANAGEMENT))["containerEdits"]
    assert await node.start("-n", CDI_LIBRARIES="hooks") == 0
    (path,) = {hook["path"] for hook in yaml.safe_load(node.read(MANAGEMENT))["containerEdits"]["hooks"]}
    assert path == f"{FOLDER}/nvidia-cdi-hook"


async def test_paths_in_the_spec_are_the_hosts(node: Node, fake: FakeRuntimes) -> None:
    assert await node.start("-n") == 0
    text = node.read(MANAGEMENT)
    assert "/driver-root" not in text
    assert f"hostPath: /run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}" in text
    assert "hostPath: /run/nvidia/driver/dev/nvidia0" in text


async def test_the_shims_devices_follow_the_gpus(node: Node, fake: FakeRuntimes) -> None:
    task = node.start()
    await waiting(node)
    assert "1" in devices(node)
    Machine.create(node.devices, describe("n", ["H100-SXM5-80GB"], DRIVER))
    await until(lambda: "1" not in devices(node), "the shim's spec to follow")
    assert await ended(node, task) == 0
