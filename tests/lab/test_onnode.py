"""Stand-ins as real processes: what each does to the files, ports and sockets of its container."""

import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lab.onnode_bench import GPUS, Place

from groundplane.api import names
from groundplane.lab import images, nodes, onnode
from groundplane.lab.host import HostError
from groundplane.lab.onnode import container, host, process, serving
from groundplane.node.programs import PROGRAMS


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:  # short, for unix sockets
        made = Place(Path(folder))
        try:
            yield made
        finally:
            await made.close()


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
    library = place.base / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    assert library.is_symlink() is (driver is not None)
    assert driver is None or library.resolve().name == f"libnvidia-ml.so.{driver}"
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


def test_ports_accept_connections() -> None:
    with socket.create_connection(("127.0.0.1", serving.serve(0))) as bare:
        assert bare.recv(1) == b"", "accepted, then closed"


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
