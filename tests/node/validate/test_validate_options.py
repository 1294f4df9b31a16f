"""Options, status files, signals: contracts/mig-exporter-validator.md 6.1 and 6.2."""

import asyncio
import signal
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess
from node.validate.validator_world import World

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.node.options import Leave, OptionError
from groundplane.node.validate import components, main, settings
from groundplane.node.validate.settings import COMPONENTS, Settings, WorkloadSettings

NEEDED = {"NODE_NAME": "n", "OPERATOR_NAMESPACE": "o", "METRICS_PORT": "8000"}


def load(folder: Path, *argv: str, release: Release = Release.DEFAULT, **env: str) -> Settings:
    return settings.load(FakeProcess(folder, ["nvidia-validator", *argv], env, release=release))


def test_6_1_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, COMPONENT="driver") == Settings(
        component="driver",
        node="",
        namespace="",
        with_wait=False,
        with_workload=True,
        cleanup_all=False,
        folder="/run/nvidia/validations",
        interval_s=5,
        port=0,
        default_workload="vm-passthrough",
        links=True,
        host_root="/",
        driver_dir="/run/nvidia/driver",
        driver_dir_here="/run/nvidia/driver",
        skip_gpu_init=False,
        rdma=False,
        host_mofed=False,
        pod=WorkloadSettings(),
    )


FLAGS = [
    (("--with-wait", "-w"), "WITH_WAIT", "true", "with_wait", True),
    (("--with-workload", "-l"), "WITH_WORKLOAD", "false", "with_workload", False),
    (("--cleanup-all", "-r"), "CLEANUP_ALL", "true", "cleanup_all", True),
    (("--node-name", "-n"), "NODE_NAME", "n1", "node", "n1"),
    (("--namespace", "-ns"), "OPERATOR_NAMESPACE", "ns1", "namespace", "ns1"),
    (("--output-dir", "-o"), "OUTPUT_DIR", "/out/", "folder", "/out"),
    (("--sleep-interval-seconds", "-s"), "SLEEP_INTERVAL_SECONDS", "7", "interval_s", 7),
    (("--metrics-port", "-p"), "METRICS_PORT", "8000", "port", 8000),
    (("--default-gpu-workload-config", "-g"), "DEFAULT_GPU_WORKLOAD_CONFIG", "vm-vgpu", "default_workload", "vm-vgpu"),
    (("--disable-dev-char-symlink-creation",), "DISABLE_DEV_CHAR_SYMLINK_CREATION", "true", "links", False),
    (("--host-root",), "HOST_ROOT", "/h", "host_root", "/h"),
    (("--driver-install-dir",), "DRIVER_INSTALL_DIR", "/d", "driver_dir", "/d"),
    (("--driver-install-dir-ctr-path",), "DRIVER_INSTALL_DIR_CTR_PATH", "/c", "driver_dir_here", "/c"),
    (("--driver-validation-skip-gpu-init",), "DRIVER_VALIDATION_SKIP_GPU_INIT", "true", "skip_gpu_init", True),
]


@pytest.mark.parametrize(("flags", "env", "text", "field", "value"), FLAGS)
def test_6_1_flags_and_environment(
    tmp_path: Path, flags: tuple[str, ...], env: str, text: str, field: str, value: object
) -> None:
    assert getattr(load(tmp_path, COMPONENT="driver", **{env: text}), field) == value
    for flag in flags:
        assert getattr(load(tmp_path, f"{flag}={text}", COMPONENT="driver"), field) == value


@pytest.mark.parametrize("argv", [("-m", "mixed"), ("--mig-strategy=none",), ("--kubeconfig", "/k")])
def test_6_1_flags_without_an_effect(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert load(tmp_path, *argv, COMPONENT="driver") == load(tmp_path, COMPONENT="driver", MIG_STRATEGY="")


def test_6_1_other_environment(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        COMPONENT="mofed",
        GPU_DIRECT_RDMA_ENABLED="true",
        USE_HOST_MOFED="true",
        VALIDATOR_IMAGE="image:1",
        VALIDATOR_IMAGE_PULL_POLICY="Always",
        VALIDATOR_IMAGE_PULL_SECRETS="a,b",
        VALIDATOR_RUNTIME_CLASS="nvidia",
    )
    assert found.rdma
    assert found.host_mofed
    assert found.pod == WorkloadSettings("image:1", "Always", ("a", "b"), "nvidia")


def test_6_1_skip_gpu_init_is_not_known_to_v26_3(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not defined"):
        load(tmp_path, "--driver-validation-skip-gpu-init", release=Release.V26_3, COMPONENT="driver")


@pytest.mark.parametrize("default", ["", "container", "vm-passthrough", "vm-vgpu", "nonsense"])
def test_6_1_default_workload(tmp_path: Path, default: str) -> None:
    found = load(tmp_path, COMPONENT="driver", DEFAULT_GPU_WORKLOAD_CONFIG=default)
    assert found.default_workload == (default if default not in ("", "nonsense") else "vm-passthrough")


@pytest.mark.parametrize("component", COMPONENTS)
def test_6_1_components(tmp_path: Path, component: str) -> None:
    for flag in ("--component", "-c"):
        assert load(tmp_path, flag, component, **NEEDED).component == component


REQUIRED = [
    *((component, "NODE_NAME") for component in ("plugin", "metrics", "vfio-pci", "vgpu-manager", "vgpu-devices")),
    *((component, "OPERATOR_NAMESPACE") for component in ("plugin", "cuda")),
    ("metrics", "METRICS_PORT"),
]


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("variable", sorted(NEEDED))
def test_6_1_required(tmp_path: Path, component: str, variable: str) -> None:
    env = {key: value for key, value in NEEDED.items() if key != variable}
    if (component, variable) not in REQUIRED:
        load(tmp_path, COMPONENT=component, **env)
        return
    with pytest.raises(Leave, match="port is 0" if variable == "METRICS_PORT" else f"for component {component}"):
        load(tmp_path, COMPONENT=component, **env)


BAD = [
    ({}, "no component is given"),
    ({"COMPONENT": ""}, "no component is given"),
    ({"COMPONENT": "gpu"}, "invalid component 'gpu'; expected one of driver, toolkit"),
    ({"COMPONENT": "driver", "SLEEP_INTERVAL_SECONDS": "0"}, "expected 1 or more seconds"),
    ({"COMPONENT": "driver", "SLEEP_INTERVAL_SECONDS": "x"}, "expected a whole number"),
    ({"COMPONENT": "driver", "WITH_WAIT": "yes"}, "expected true or false"),
    ({"COMPONENT": "driver", "OUTPUT_DIR": "here"}, "is no absolute path"),
    ({"COMPONENT": "metrics", "NODE_NAME": "n", "METRICS_PORT": "70000"}, "expected 1 to 65535"),
]


@pytest.mark.parametrize(("env", "text"), BAD)
async def test_6_1_errors(tmp_path: Path, env: dict[str, str], text: str) -> None:
    process = FakeProcess(tmp_path, ["nvidia-validator"], env)
    assert await main.run(process) == 1
    assert "Error: " in process.stderr
    assert text in process.stderr


async def test_help(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ["nvidia-validator", "--help"])
    assert await main.run(process) == 0
    assert "--component, -c" in process.stdout


# --- status files -----------------------------------------------------------------------------------------------------


async def test_6_2_the_folder_is_made_but_not_its_parent(world: World) -> None:
    assert await world.run("toolkit") == 0
    assert world.process.path(names.VALIDATIONS_DIR).stat().st_mode & 0o777 == 0o755
    assert await world.run("toolkit", OUTPUT_DIR="/run/other/deep") == 1
    assert (
        "cannot prepare the folder of status files /run/other/deep: No such file or directory" in world.process.stderr
    )
    assert "its parent folder must exist" in world.process.stderr


@pytest.mark.parametrize(("cleanup", "left"), [("false", {"a-ready", ".driver-ctr-ready", "sub"}), ("true", set())])
async def test_6_1_cleanup_all(world: World, cleanup: str, left: set[str]) -> None:
    for name in ("a-ready", ".driver-ctr-ready", "sub/file"):
        world.process.write(f"{names.VALIDATIONS_DIR}/{name}", "")
    world.process.write("/elsewhere/file", "mine")
    assert await world.run("toolkit", CLEANUP_ALL=cleanup) == 0
    assert world.files() == left | {"toolkit-ready"}


async def test_6_1_cleanup_follows_no_link(world: World) -> None:
    world.process.write("/elsewhere/file", "mine")
    world.process.root.mkdir(names.VALIDATIONS_DIR)
    folder = world.process.path(names.VALIDATIONS_DIR)
    folder.joinpath("link").symlink_to("/elsewhere")
    assert await world.run("toolkit", CLEANUP_ALL="true") == 0
    assert world.process.root.read_text("/elsewhere/file") == "mine"


async def test_6_2_a_link_in_the_place_of_a_status_file_is_not_followed(world: World) -> None:
    world.process.write("/elsewhere/file", "mine")
    world.process.root.mkdir(names.VALIDATIONS_DIR)
    link = world.process.path(names.VALIDATIONS_DIR) / "toolkit-ready"
    link.symlink_to(world.process.path("/elsewhere/file"))
    assert await world.run("toolkit") == 0
    assert not link.is_symlink()
    assert world.process.root.read_text("/elsewhere/file") == "mine"


@pytest.mark.parametrize("component", sorted(components.TABLE.keys() - {"vgpu-manager"}))
def test_6_2_names_of_the_files(component: str) -> None:
    assert components.TABLE[component].files == (f"{component}-ready",)


async def test_6_2_a_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("groundplane.node.validate.status.write_atomic", full)
    assert await world.run("toolkit") == 1
    expected = "cannot write status file /run/nvidia/validations/toolkit-ready: No space left on device; make room"
    assert expected in world.process.stderr
    assert world.status("toolkit-ready") is None


async def test_6_2_a_file_that_cannot_be_deleted(world: World) -> None:
    world.process.root.mkdir(f"{names.VALIDATIONS_DIR}/toolkit-ready/deep")
    assert await world.run("toolkit") == 1
    assert "cannot delete status file /run/nvidia/validations/toolkit-ready" in world.process.stderr
    assert world.process.executed == [], "nothing is validated whose earlier success would stay"


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
async def test_6_1_a_signal_ends_it_without_a_status_file(world: World, number: signal.Signals) -> None:
    world.process.write(f"{names.VALIDATIONS_DIR}/toolkit-ready", "")
    world.smi_code = 9
    world.start("toolkit", WITH_WAIT="true")
    await world.logged("toolkit is not ready")
    assert await world.stop(number) == 1
    assert world.status("toolkit-ready") is None
    assert f"Exiting due to signal {number.name}" in world.process.stderr


STEPS = ["toolkit", "driver", "plugin", "cuda", "vgpu-devices", "cc-manager", "nvidia-fs"]


@pytest.mark.parametrize("component", STEPS)
async def test_killed_midway_leaves_no_status_file(world: World, component: str) -> None:
    """Whatever is awaited, an earlier success is gone as soon as a validation has begun."""
    file = f"{component}-ready"
    world.process.write(f"{names.VALIDATIONS_DIR}/{file}", "")
    world.label(**{"nvidia.com/gpu.workload.config": "vm-vgpu", "nvidia.com/cc.capable": "true"})
    world.modules("nvidia")
    world.validator()
    world.smi_code = 9
    world.start(component, WITH_WAIT="true")
    while world.status(file) is not None:
        await asyncio.sleep(0.005)
    assert world.running is not None
    assert not world.running.done()
    world.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.running
    assert world.status(file) is None
