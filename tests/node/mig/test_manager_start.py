"""What nvidia-mig-manager does at its start (2), and the CDI spec of management containers (3.5, step 12)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from node.fakeprocess import until
from node.mig.managerworld import ME, NAMESPACE, ON, POD, World

from groundplane.lab import resources
from groundplane.lab.faults import Rule
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.devices.simulated import GpuEntry, Mig
from groundplane.node.mig import generate
from groundplane.node.mig.generate import GENERATED, NoProfiles
from groundplane.node.mig.manager import main, operands
from groundplane.node.process import Completed

H100, T4 = "H100-SXM5-80GB", "T4"
SPEC = "/var/run/cdi/management.nvidia.com-gpu.yaml"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
Make = Callable[..., Awaitable[World]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes the world of a test."""
    made: list[tuple[World, Any]] = []

    async def start(*gpus: Any) -> World:
        world = World(tmp_path, *(gpus or (H100,)))
        made.append((world, await world.serve()))
        return world

    yield start
    for world, server in made:
        if world.running is not None and not world.running.done():
            await world.kill()
        await server.close()


# --- 2 ----------------------------------------------------------------------------------------------------------------


def config_map(world: World) -> dict[str, Any] | None:
    return world.api.find(resources.CONFIG_MAPS, f"{ME}-mig-config", NAMESPACE)


async def test_2_layouts_are_made_and_shown(make: Make) -> None:
    world = await make(GpuEntry(H100, mig=Mig(True)))
    world.pod(POD, "nvidia-mig-manager")
    world.ask("all-1g.10gb.me")
    world.start(CONFIG_FILE="")
    await world.comes_to("success")
    file = world.folder / "root" / GENERATED.lstrip("/")
    text = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert [line[:1] for line in text.splitlines()[:3]] == ["#", "#", "v"]
    assert {"all-disabled", "all-enabled", "all-balanced", "all-7g.80gb"} <= set(yaml.safe_load(text)["mig-configs"])
    shown = config_map(world)
    assert shown is not None
    assert shown["data"] == {"config.yaml": text}
    assert shown["metadata"]["labels"] == {
        "app.kubernetes.io/component": "nvidia-mig-manager",
        "nvidia.com/node-name": ME,
    }
    (owner,) = shown["metadata"]["ownerReferences"]
    pod = world.api.get(resources.PODS, POD, NAMESPACE)["metadata"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", POD, pod["uid"])
    assert world.configs() == [{"1g.10gb+me": 1}]


async def test_2_the_config_map_is_updated(make: Make) -> None:
    world = await make()
    world.pod(POD, "nvidia-mig-manager")
    old = {"metadata": {"name": f"{ME}-mig-config"}, "data": {"config.yaml": "old", "other": "kept"}}
    world.api.create(resources.CONFIG_MAPS, old, NAMESPACE)
    world.start(CONFIG_FILE="")
    await until(lambda: (config_map(world) or old)["data"]["config.yaml"] != "old", "an updated ConfigMap")
    assert "all-balanced" in (config_map(world) or old)["data"]["config.yaml"]


@pytest.mark.parametrize("wrong", ["forbidden", "no pod", "no name"])
async def test_2_a_config_map_that_cannot_be_written_is_a_warning(make: Make, wrong: str) -> None:
    world = await make(GpuEntry(H100, mig=Mig(True)))
    if wrong != "no pod":
        world.pod(POD, "nvidia-mig-manager")
    if wrong == "forbidden":
        world.faults.add(Rule("*", "configmaps", answer=403, times=None))
    world.ask("all-balanced")
    world.start(CONFIG_FILE="", **({"POD_NAME": ""} if wrong == "no name" else {}))
    await world.comes_to("success")
    assert f"ConfigMap {ME}-mig-config of this node's layouts is not written: " in world.process.stderr
    assert config_map(world) is None


async def test_2_a_custom_file_always_wins(make: Make) -> None:
    world = await make(T4)
    world.ask("all-disabled")
    world.start(DEFAULT_CONFIG_FILE="/nowhere")
    await world.comes_to("success")
    assert not (world.folder / "root" / GENERATED.lstrip("/")).exists()
    assert config_map(world) is None


@pytest.mark.parametrize("there", [True, False])
async def test_2_drivers_that_tell_no_profiles(make: Make, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Any) -> Any:
        raise NoProfiles("no MIG profiles discovered for MIG-capable GPUs")

    monkeypatch.setattr(generate, "discover", none)
    world = await make()
    world.ask("small")
    file = "/mig-parted-config/config.yaml" if there else "/nowhere.yaml"
    world.start(CONFIG_FILE="", DEFAULT_CONFIG_FILE=file)
    if there:
        await world.comes_to("success")
        assert f"using {file}" in world.process.stderr
        return
    assert world.running is not None
    assert await world.running == 1
    assert "no MIG profiles discovered for MIG-capable GPUs; there is no fallback (/nowhere.yaml)" in (
        world.process.stderr
    )


async def test_2_no_capable_gpu_is_an_error_and_what_was_paused_goes_on(make: Make) -> None:
    world = await make(T4)
    world.change(labels={**dict.fromkeys(ON, operands.PAUSED), "nvidia.com/mig.config.state": "pending"})
    world.process.write("/host/run/nvidia/mig-manager/stopped-services", "nvsm.service\n")
    assert await main.run(world.new(CONFIG_FILE="")) == 1
    assert (world.state, world.deploy(), world.record()) == ("failed", ON, [])
    assert world.done == ["systemctl --no-block start nvsm.service"]


async def test_2_a_file_that_cannot_be_written(make: Make) -> None:
    world = await make()
    world.process.write("/etc/nvidia-mig-manager", "a file where a folder must be")
    process = world.new(CONFIG_FILE="")
    assert await main.run(process) == 1
    assert f"{GENERATED} cannot be written, and is as it was" in process.stderr


# --- 3.5, step 12 -----------------------------------------------------------------------------------------------------

CDI = {"CDI_ENABLED": "true", "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", NULL_DEVICES: "true"}


def driver(world: World, root: str = "/driver-root", dev: str = "/driver-root") -> None:
    for name in (f"{LIBRARY}.580.126.20", f"{LIBRARY}.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.126.20"):
        world.process.write(f"{root}{name}", "")
    world.process.write(f"{root}/usr/bin/nvidia-smi", "")
    for node in ("nvidia0", "nvidia-caps/nvidia-cap1"):
        world.process.write(f"{dev}/dev/{node}", "")
    world.process.write_kernel("/proc/sys/kernel/osrelease", "6.8.0-test\n")


def spec(world: World) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((world.folder / "root" / SPEC.lstrip("/")).read_text())
    return found


async def test_3_5_12_the_spec_is_written_with_the_hosts_paths(make: Make) -> None:
    world = await make()
    driver(world)
    world.ask("small")
    world.start(**CDI)
    await world.comes_to("success")
    written = spec(world)
    assert written["kind"] == "management.nvidia.com/gpu"
    nodes = {node["path"] for node in written["devices"][0]["containerEdits"]["deviceNodes"]}
    assert nodes >= {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    mounts = [mount["hostPath"] for mount in written["containerEdits"]["mounts"]]
    assert f"/run/nvidia/driver{LIBRARY}.580.126.20" in mounts
    assert not [mount for mount in mounts if mount.startswith("/driver-root")]


async def test_3_5_12_simulated_instances_have_nodes_as_nvidia_smi_makes_them(make: Make) -> None:
    world = await make()
    driver(world)
    minors = [(f"gpu0/gi{gi}", 9 * gi) for gi in range(15)]
    world.process.write_kernel(
        "/proc/driver/nvidia-caps/mig-minors",
        "".join(f"{name}/access {minor}\n{name}/ci0/access {minor + 1}\n" for name, minor in minors),
    )
    world.ask("small")
    world.start(**CDI)
    await world.comes_to("success")
    with world.node.source as source:
        instances = [each.gi for each in source.inventory().gpus[0].mig_devices]
    assert len(instances) == 4
    wanted = {f"/dev/nvidia-caps/nvidia-cap{9 * gi + part}" for gi in instances for part in (0, 1)}
    nodes = {node["path"] for node in spec(world)["devices"][0]["containerEdits"]["deviceNodes"]}
    assert nodes >= wanted
    folder = world.folder / "root/driver-root/dev/nvidia-caps"
    assert {f"/dev/nvidia-caps/{each.name}" for each in folder.iterdir()} == {*wanted, "/dev/nvidia-caps/nvidia-cap1"}


async def test_3_5_12_a_spec_that_cannot_be_written_fails_and_is_not_forgotten(make: Make) -> None:
    world = await make()
    world.ask("small")
    world.start(**CDI)
    await world.comes_to("failed")
    assert world.failure.startswith("writing the CDI spec of management containers: ")
    assert (world.configs(), world.deploy()) == ([{"1g.10gb": 4}], ON)
    driver(world)
    await world.comes_to("success")
    assert spec(world)["kind"] == "management.nvidia.com/gpu"


@pytest.mark.parametrize(
    ("env", "argv", "preload"),
    [
        ({}, ("/driver-root", "nvidia-smi"), None),
        (
            {"NVIDIA_DRIVER_ROOT": "/opt/nvidia", "NVIDIA_DEV_ROOT": "/", "DEV_ROOT_CTR_PATH": "/host"},
            ("/host", "/opt/nvidia/usr/bin/nvidia-smi"),
            f"/opt/nvidia{LIBRARY}.1",
        ),
    ],
)
async def test_3_5_12_nvidia_smi_makes_nodes(
    make: Make, env: Mapping[str, str], argv: Sequence[str], preload: str | None
) -> None:
    world = await make()
    driver(world)
    asked: list[tuple[tuple[str, ...], str | None]] = []

    def chroot(command: Sequence[str], env: Mapping[str, str], _: str) -> Completed:
        asked.append((tuple(command[1:]), env.get("LD_PRELOAD")))
        return Completed(9, "", "no devices were found")

    world.ask("small")
    world.start(**{**CDI, NULL_DEVICES: "false", **env})
    world.process.commands["chroot"] = chroot
    await world.comes_to("failed")
    assert asked[0] == (tuple(argv), preload)
    assert world.failure == (
        f"writing the CDI spec of management containers: {argv[1]} (below {argv[0]}): exit status 9: "
        "no devices were found"
    )
    assert not (world.folder / "root" / SPEC.lstrip("/")).exists()


async def test_3_5_12_a_driver_without_nvidia_smi(make: Make) -> None:
    world = await make()
    world.ask("small")
    world.start(**{**CDI, NULL_DEVICES: "false", "NVIDIA_DEV_ROOT": "/", "DEV_ROOT_CTR_PATH": "/host"})
    await world.comes_to("failed")
    assert "nvidia-smi is not below the driver root /driver-root" in world.failure
