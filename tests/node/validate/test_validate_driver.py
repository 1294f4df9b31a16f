"""The driver check: contracts/mig-exporter-validator.md 6.2 and 6.4; 9 #15 and #16."""

from collections.abc import Callable
from pathlib import Path

import pytest
from node.fakeprocess import until
from node.validate.validator_world import DRIVER_DIR, OWNER, World

from groundplane.api.release import Release
from groundplane.node import controlnodes
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.process import Completed
from groundplane.node.validate import driver


def ready(host: str, root: str, root_there: str, dev: str, dev_there: str) -> str:
    return (
        f"IS_HOST_DRIVER={host}\nNVIDIA_DRIVER_ROOT={root}\nDRIVER_ROOT_CTR_PATH={root_there}\n"
        f"NVIDIA_DEV_ROOT={dev}\nDEV_ROOT_CTR_PATH={dev_there}\n"
    )


HOST_READY = ready("true", "/", "/host", "/", "/host")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Device nodes that were made: no test makes real ones."""
    nodes: list[str] = []

    def make(path: Path, _major: int, _minor: int) -> None:
        path.write_text("")
        nodes.append(path.name)

    monkeypatch.setattr(controlnodes, "make_node", make)
    return nodes


# --- 6.4.1, 6.4.2: the host -------------------------------------------------------------------------------------------


async def test_6_4_host_driver(released: World) -> None:
    released.host_tool()
    released.devices()
    assert await released.run("driver") == 0
    assert released.status("driver-ready") == HOST_READY
    command = "nvidia-smi" if released.process.release is Release.V26_3 else "/usr/bin/nvidia-smi"
    assert released.process.executed == [("chroot", "/host", command)]
    assert released.process.stdout == "NVIDIA-SMI 580.126.20\n"


async def test_6_2_another_host_root(world: World) -> None:
    world.host_tool()
    world.devices()
    assert await world.run("driver", HOST_ROOT="/elsewhere") == 0
    assert world.status("driver-ready") == ready("true", "/elsewhere", "/host", "/elsewhere", "/host")


@pytest.mark.parametrize("folder", ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/opt/bin"])
async def test_6_4_2_folders_of_the_host(world: World, folder: str) -> None:
    world.host_tool(f"{folder}/nvidia-smi")
    world.devices()
    assert await world.run("driver") == 0
    assert world.process.executed[0] == ("chroot", "/host", f"{folder}/nvidia-smi")


def _empty(world: World) -> None:
    world.host_tool(text="")


def _no_right(world: World) -> None:
    world.host_tool(mode=0o644)


def _folder(world: World) -> None:
    world.process.root.mkdir("/host/usr/bin/nvidia-smi")


def _dangling(world: World) -> None:
    world.process.root.mkdir("/host/usr/bin")
    world.process.path("/host/usr/bin/").joinpath("nvidia-smi").symlink_to("/opt/nothing")


def _escaping(world: World) -> None:
    """It leads to a file of the container that is not the host's."""
    world.process.write("/secret/nvidia-smi", "#!").chmod(0o755)
    world.process.root.mkdir("/host/usr/bin")
    world.process.path("/host/usr/bin").joinpath("nvidia-smi").symlink_to("../../../secret/nvidia-smi")


def _loop(world: World) -> None:
    world.process.root.mkdir("/host/usr/bin")
    world.process.path("/host/usr/bin").joinpath("nvidia-smi").symlink_to("nvidia-smi")


def _failing(world: World) -> None:
    world.host_tool()
    world.smi_code = 9


@pytest.mark.parametrize("spoil", [_empty, _no_right, _folder, _dangling, _escaping, _loop, _failing])
async def test_6_4_2_no_host_driver(world: World, spoil: Callable[[World], None]) -> None:
    spoil(world)
    assert await world.run("driver") == 1
    assert world.status("driver-ready") is None
    assert "Error: driver validation: no driver on the host" in world.process.stderr


async def test_9_16_a_link_in_the_host_is_resolved_in_the_host(world: World) -> None:
    world.host_tool("/opt/nvidia/nvidia-smi")
    world.process.root.mkdir("/host/usr/bin")
    world.process.path("/host/usr/bin").joinpath("nvidia-smi").symlink_to("/opt/nvidia/nvidia-smi")
    world.devices()
    assert await world.run("driver") == 0
    assert world.process.executed[0] == ("chroot", "/host", "/usr/bin/nvidia-smi")


async def test_6_4_2_v26_3_looks_at_one_place_and_follows_no_link(tmp_path: Path) -> None:
    async with World(tmp_path, Release.V26_3) as world:
        world.host_tool("/usr/sbin/nvidia-smi")
        assert await world.run("driver") == 1
        world.process.path("/host/usr/bin").mkdir()
        world.process.path("/host/usr/bin").joinpath("nvidia-smi").symlink_to("/usr/sbin/nvidia-smi")
        world.devices()
        assert await world.run("driver") == 0
        assert world.process.executed[-1] == ("chroot", "/host", "nvidia-smi")


async def test_6_4_1_wsl_is_a_host_driver_without_links(released: World) -> None:
    released.process.write("/host/usr/lib/wsl/lib/nvidia-smi", "elf")
    assert await released.run("driver") == 0
    assert released.status("driver-ready") == HOST_READY
    assert released.process.executed == []
    assert not any(released.process.path(driver.DEV_CHAR).iterdir())


async def test_6_1_skip_gpu_init(world: World) -> None:
    world.host_tool()
    world.devices()
    assert await world.run("driver", DRIVER_VALIDATION_SKIP_GPU_INIT="true") == 0
    assert world.process.executed == [("chroot", "/host", "/usr/bin/nvidia-smi", "--version")]


async def test_6_1_skip_gpu_init_is_of_v26_7(tmp_path: Path) -> None:
    async with World(tmp_path, Release.V26_3) as world:
        world.host_tool()
        world.devices()
        assert await world.run("driver", DRIVER_VALIDATION_SKIP_GPU_INIT="true") == 0
        assert world.process.executed == [("chroot", "/host", "nvidia-smi")]


# --- 6.4.3: the driver container --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dev", "content"),
    [
        (True, ready("false", DRIVER_DIR, "/driver-root", DRIVER_DIR, "/driver-root")),
        (False, ready("false", DRIVER_DIR, "/driver-root", "/", "/host")),
    ],
)
async def test_6_2_container_driver(released: World, dev: bool, content: str) -> None:
    released.container_driver(dev=dev)
    released.devices()
    assert await released.run("driver") == 0
    assert released.status("driver-ready") == content


async def test_6_2_other_install_directories(world: World) -> None:
    world.process.write("/mnt/driver/usr/lib64/libnvidia-ml.so.1", "elf")
    world.process.write("/mnt/driver/usr/sbin/nvidia-smi", "elf")
    world.process.root.mkdir("/mnt/driver/dev")
    world.devices()
    settings = {"DRIVER_INSTALL_DIR": "/opt/driver", "DRIVER_INSTALL_DIR_CTR_PATH": "/mnt/driver"}
    assert await world.run("driver", **settings) == 0
    assert world.status("driver-ready") == ready("false", "/opt/driver", "/driver-root", "/opt/driver", "/driver-root")
    assert world.process.executed == [("/mnt/driver/usr/sbin/nvidia-smi",)]
    assert world.smi_env[0]["LD_PRELOAD"] == "/mnt/driver/usr/lib64/libnvidia-ml.so.1"


LIBRARIES = ["", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64"]


@pytest.mark.parametrize("folder", [*LIBRARIES, "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"])
async def test_6_4_3_where_the_library_is(world: World, folder: str) -> None:
    world.container_driver(folder=folder)
    world.devices()
    assert await world.run("driver", LD_PRELOAD="/lib/other.so") == 0
    assert world.smi_env[0]["LD_PRELOAD"] == f"{DRIVER_DIR}{folder}/libnvidia-ml.so.1:/lib/other.so"


async def test_6_4_3_links_in_the_driver_root_stay_in_it(world: World) -> None:
    world.process.write(f"{DRIVER_DIR}/usr/lib64/libnvidia-ml.so.580.126.20", "elf")
    world.process.write(f"{DRIVER_DIR}/usr/bin/nvidia-smi", "elf")
    world.process.write("/evil", "elf")
    folder = world.process.path(f"{DRIVER_DIR}/usr/lib64")
    folder.joinpath("libnvidia-ml.so.1").symlink_to("/usr/lib64/libnvidia-ml.so.580.126.20")
    world.process.path(DRIVER_DIR).joinpath("libnvidia-ml.so.1").symlink_to("/evil")
    world.devices()
    assert await world.run("driver") == 0
    assert world.smi_env[0]["LD_PRELOAD"] == f"{DRIVER_DIR}/usr/lib64/libnvidia-ml.so.580.126.20"


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("libnvidia-ml.so.1", f"the driver root {DRIVER_DIR} has no libnvidia-ml.so.1 in /, /usr/lib64"),
        ("nvidia-smi", f"the driver root {DRIVER_DIR} has no nvidia-smi in /, /usr/bin, /usr/sbin, /bin, /sbin"),
    ],
)
async def test_6_4_3_what_is_missing_is_named(world: World, missing: str, text: str) -> None:
    world.container_driver()
    for path in list(world.process.path(DRIVER_DIR).rglob(missing)):
        path.unlink()
    assert await world.run("driver") == 1
    assert text in world.process.stderr
    assert "awaited: an installation of the driver there" in world.process.stderr


MANAGED = [
    (OWNER, True),
    ({**OWNER, "apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver"}, True),
    ({**OWNER, "controller": False}, False),
    ({**OWNER, "kind": "GPUCluster"}, False),
    ({**OWNER, "apiVersion": "example.com/v1"}, False),
    (None, False),
]


@pytest.mark.parametrize(("owner", "managed"), MANAGED)
async def test_6_4_3_the_operators_driver_must_have_said_that_it_is_ready(
    world: World, owner: dict[str, object] | None, managed: bool
) -> None:
    world.container_driver()
    world.devices()
    world.driver_container(owner=owner, ready=False)
    assert await world.run("driver") == (1 if managed else 0)
    assert (".driver-ctr-ready is not there; awaited: the driver's pod on this node" in world.process.stderr) is managed


# --- 6.4.4: what the driver container has loaded ----------------------------------------------------------------------

ALL_FLAGS = "GDRCOPY_ENABLED: true\nGDS_ENABLED: true\nGPU_DIRECT_RDMA_ENABLED: true\nANOTHER: true\n"


async def test_6_4_4_further_components(world: World) -> None:
    world.container_driver()
    world.devices()
    world.driver_container(ALL_FLAGS)
    world.modules("gdrdrv", "nvidia_fs", "nvidia_peermem")
    assert await world.run("driver") == 0
    assert world.files() >= {"driver-ready", "gdrcopy-ready", "nvidia-fs-ready", "nvidia-peermem-ready"}


@pytest.mark.parametrize("missing", ["gdrdrv", "nvidia_fs", "nvidia_peermem"])
async def test_6_4_4_a_missing_component(world: World, missing: str) -> None:
    world.container_driver()
    world.devices()
    world.driver_container(ALL_FLAGS)
    world.modules(*{"gdrdrv", "nvidia_fs", "nvidia_peermem"} - {missing})
    assert await world.run("driver") == 1
    assert f"kernel module {missing} is not loaded" in world.process.stderr
    assert world.status("driver-ready") is None


@pytest.mark.parametrize("flags", ["", "{}", "1: true", "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nUNKNOWN: true\n"])
async def test_6_4_4_nothing_further(world: World, flags: str) -> None:
    world.container_driver()
    world.devices()
    world.driver_container(flags)
    assert await world.run("driver") == 0
    assert world.files() == {"driver-ready", ".driver-ctr-ready"}


@pytest.mark.parametrize(
    "flags",
    [
        *(
            "- a",
            "text",
            "GDS_ENABLED: maybe",
            "GDS_ENABLED: 'true'",
            "{",
            "A: 1",
            "A: 2026-99-99",
            "[" * 9000,
            "&a [*a]",
        ),
        "A: &a [x, x]\nB: &b [*a, *a]\n" + "".join(f"{c}: &{c} [{f'*{chr(ord(c) - 1)}, ' * 9}]\n" for c in "cdefghij"),
    ],
    ids=range(10),
)
async def test_6_4_4_a_file_that_is_malformed_ends_it_even_with_wait(world: World, flags: str) -> None:
    world.container_driver()
    world.devices()
    world.driver_container(flags)
    assert await world.run("driver", WITH_WAIT="true") == 1
    assert "/run/nvidia/validations/.driver-ctr-ready of the driver container" in world.process.stderr


# --- 6.4.5: links in /dev/char ----------------------------------------------------------------------------------------

LINKS = {"195:254": "nvidia-modeset", "195:255": "nvidiactl", "195:0": "nvidia0", "505:0": "nvidia-uvm"}
LINKS["505:1"] = "nvidia-uvm-tools"


def links(world: World) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in world.process.path(driver.DEV_CHAR).iterdir()}


async def test_6_4_5_links_and_nodes_of_a_host_driver(world: World, made: list[str]) -> None:
    world.host_tool()
    world.devices()
    assert await world.run("driver") == 0
    assert links(world) == {link: f"/dev/{name}" for link, name in LINKS.items()}
    assert made == ["nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"]
    assert (world.process.path("/host/dev") / "nvidiactl").exists()


async def test_6_4_5_links_into_the_driver_containers_dev(world: World) -> None:
    world.container_driver(dev=True)
    world.devices()
    assert await world.run("driver") == 0
    assert links(world) == {link: f"{DRIVER_DIR}/dev/{name}" for link, name in LINKS.items()}
    assert (world.process.path(f"{DRIVER_DIR}/dev") / "nvidiactl").exists()


LOADS = [
    ("host", False, True),
    ("host", True, False),
    ("container with dev", False, True),
    ("container with dev", True, False),
    ("container", False, False),
]


@pytest.mark.parametrize(("kind", "loaded", "loads"), LOADS)
async def test_6_4_5_when_modules_are_loaded(world: World, kind: str, loaded: bool, loads: bool) -> None:
    if kind == "host":
        world.host_tool()
    else:
        world.container_driver(dev="dev" in kind)
    world.devices(loaded=loaded)
    assert await world.run("driver") == 0
    root = "/host" if kind == "host" else DRIVER_DIR
    expected = [("chroot", root, "/sbin/modprobe", name) for name in ("nvidia", "nvidia-uvm", "nvidia-modeset")]
    assert world.process.executed[1:] == (expected if loads else [])


async def test_6_4_5_and_9_15_failure_is_fatal_with_advice(world: World) -> None:
    world.host_tool()
    world.devices()
    world.process.write_kernel("/proc/devices", "195 nvidia\n")
    assert await world.run("driver", WITH_WAIT="true") == 1
    for text in ("is the kernel module nvidia-uvm loaded?", "DISABLE_DEV_CHAR_SYMLINK_CREATION", "ClusterPolicy"):
        assert text in world.process.stderr
    assert world.status("driver-ready") is None


async def test_6_4_5_a_link_that_cannot_be_made_is_fatal(world: World) -> None:
    world.host_tool()
    world.devices()
    folder = world.process.path(driver.DEV_CHAR)
    (folder / "195:0").mkdir()
    assert await world.run("driver") == 1
    assert "Could not create symlink /host-dev-char/195:0 => /dev/nvidia0: Is a directory" in world.process.stderr


async def test_6_4_5_modprobe_that_fails(world: World) -> None:
    world.host_tool()
    world.devices(loaded=False)
    world.process.commands["chroot"] = lambda argv, env, stdin: (
        Completed(1, "", "modprobe: FATAL: Module nvidia not found\n")
        if "modprobe" in argv[2]
        else Completed(0, "", "")
    )
    assert await world.run("driver") == 1
    assert "Module nvidia not found" in world.process.stderr


@pytest.mark.parametrize("simulated", [False, True])
async def test_6_4_5_opt_out(world: World, simulated: bool) -> None:
    world.host_tool()
    env = {NULL_DEVICES: "true"} if simulated else {"DISABLE_DEV_CHAR_SYMLINK_CREATION": "true"}
    assert await world.run("driver", **env) == 0
    assert world.status("driver-ready") == HOST_READY
    assert links(world) == {}


async def test_9_15_links_that_are_there_stay_and_wrong_ones_are_replaced(world: World) -> None:
    world.host_tool()
    world.devices()
    folder = world.process.path(driver.DEV_CHAR)
    (folder / "195:0").symlink_to("/dev/nvidia0")
    (folder / "195:255").symlink_to("../nvidiactl0")
    before = (folder / "195:0").lstat().st_ino
    assert await world.run("driver") == 0
    assert (folder / "195:0").lstat().st_ino == before
    assert links(world) == {link: f"/dev/{name}" for link, name in LINKS.items()}


async def test_a_dev_root_that_is_read_only_costs_its_nodes_only(
    world: World, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.os, "access", lambda _path, _mode: False)
    world.host_tool()
    world.devices()
    assert await world.run("driver") == 0
    assert made == []
    assert len(links(world)) == len(LINKS)
    assert "/host/dev is read-only in this container" in world.process.stderr


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_6_3_it_waits_for_each_layer_of_the_driver_container(world: World) -> None:
    """And says at any moment what is missing and who is to bring it (9 #17)."""
    world.driver_container(ready=False)
    world.start("driver", WITH_WAIT="true")
    await world.logged("s: no driver on the host")
    await world.logged(".driver-ctr-ready is not there; awaited: the driver's pod on this node")
    world.process.write("/run/nvidia/validations/.driver-ctr-ready", "GDS_ENABLED: true\n")
    await world.logged("has no libnvidia-ml.so.1")
    world.smi_code = 18
    world.container_driver()
    await world.logged("nvidia-smi ended with code 18 (ERROR_LIB_RM_VERSION_MISMATCH): NVIDIA-SMI has failed; awaited")
    world.modules("nvidia")
    world.smi_code = 0
    await world.logged("s: nvidia-fs: kernel module nvidia_fs is not loaded")
    assert world.status("driver-ready") is None
    world.devices()
    world.modules("nvidia_fs")
    assert await world.ended() == 0
    assert world.status("driver-ready") == ready("false", DRIVER_DIR, "/driver-root", "/", "/host")


async def test_6_4_4_a_driver_that_comes_without_what_was_waited_for(world: World) -> None:
    """Its flags are read again each time: RDMA was switched off while the module was waited for."""
    world.container_driver()
    world.devices()
    world.driver_container("GPU_DIRECT_RDMA_ENABLED: true\n")
    world.modules("nvidia")
    world.start("driver", WITH_WAIT="true")
    await world.logged("s: nvidia-peermem: kernel module nvidia_peermem is not loaded")
    world.process.write("/run/nvidia/validations/.driver-ctr-ready", "GPU_DIRECT_RDMA_ENABLED: false\n")
    assert await world.ended() == 0
    assert world.files() == {"driver-ready", ".driver-ctr-ready"}


async def test_6_3_a_host_driver_that_comes_while_it_waits(world: World) -> None:
    world.start("driver", WITH_WAIT="true")
    await world.logged("driver is not ready")
    world.devices()
    world.host_tool()
    assert await world.ended() == 0
    assert world.status("driver-ready") == HOST_READY


async def test_9_17_an_api_server_that_refuses(world: World) -> None:
    world.url = "http://127.0.0.1:9"
    assert await world.run("driver") == 1
    assert "looking for the operator's driver DaemonSets" in world.process.stderr
    assert "awaited: an answer of the API server" in world.process.stderr


async def test_what_waits_says_the_same_again_only_after_a_minute(world: World) -> None:
    world.process.commands = {}
    began = world.process.monotonic()
    world.start("toolkit", WITH_WAIT="true", SLEEP_INTERVAL_SECONDS="1")
    said = "toolkit is not ready after"
    await until(lambda: world.process.stderr.count(said) >= 3, "three entries")
    assert world.process.stderr.count(said) <= 1 + (world.process.monotonic() - began) / 60
    assert await world.stop() == 1
