"""`nvidia-ctk system`: contracts/toolkit-cdi.md 2."""

import os
import stat
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.controlnodes import MIG_MINORS, PROC_DEVICES
from groundplane.node.ctk import main
from groundplane.node.process import Completed

MAJORS = "195 nvidia\n235 nvidia-caps\n505 nvidia-uvm\n"
MINORS = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu1/gi0/access 100\ngpu9/gi0/access 200\n"
CONTROL_LINKS = {
    "195:254": "/dev/nvidia-modeset",
    "195:255": "/dev/nvidiactl",
    "505:0": "/dev/nvidia-uvm",
    "505:1": "/dev/nvidia-uvm-tools",
}


def machine(folder: Path, *argv: str, gpus: int = 2, majors: str = MAJORS, minors: str = "", **env: str) -> FakeProcess:
    process = FakeProcess(folder, ("nvidia-ctk", "system", *argv), env)
    process.write_kernel(PROC_DEVICES, majors)
    if minors:
        process.write_kernel(MIG_MINORS, minors)
    for number in range(gpus):
        pci(process, f"0000:0{number}:00.0", "0x10de", "0x030200")
    pci(process, "0000:0a:00.0", "0x10de", "0x068000")
    pci(process, "0000:0b:00.0", "0x1002", "0x030000")
    process.commands["chroot"] = process.commands["modprobe"] = lambda argv, env, stdin: Completed(0, "", "")
    return process


def pci(process: FakeProcess, address: str, vendor: str, kind: str) -> None:
    process.write_kernel(f"/sys/bus/pci/devices/{address}/vendor", f"{vendor}\n")
    process.write_kernel(f"/sys/bus/pci/devices/{address}/class", f"{kind}\n")


def device(path: Path, major: int = 1, minor: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


def links(process: FakeProcess, folder: str = "/dev/char") -> dict[str, str]:
    path = process.path(folder)
    return {each.name: str(each.readlink()) for each in sorted(path.iterdir())} if path.exists() else {}


async def test_2_links_to_the_nodes_that_there_are(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks")
    names = (
        "nvidia0",
        "nvidiactl",
        "nvidia-caps/nvidia-cap1",
        "nvidia-fs0",
        "nvidia-nvswitch0",
        "nvidia-nvlink",
        "null",
    )
    for minor, name in enumerate(names, 3):
        device(process.path(f"/dev/{name}"), 1, minor)
    process.write("/dev/nvidia9", "no device")
    assert await main.run(process) == 0
    assert links(process) == {"1:3": "/dev/nvidia0", "1:4": "/dev/nvidiactl", "1:5": "/dev/nvidia-caps/nvidia-cap1"}


async def test_2_create_all(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all", "--dev-char-path=/host-dev-char")
    assert await main.run(process) == 0
    assert links(process, "/host-dev-char") == {**CONTROL_LINKS, "195:0": "/dev/nvidia0", "195:1": "/dev/nvidia1"}


async def test_2_create_all_with_mig(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", minors=MINORS, CREATE_ALL="true")
    assert await main.run(process) == 0
    caps = {f"235:{minor}": f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (1, 2, 12, 13, 100)}
    assert links(process) == {**CONTROL_LINKS, **caps, "195:0": "/dev/nvidia0", "195:1": "/dev/nvidia1"}


@pytest.mark.parametrize(
    ("majors", "minors", "text"),
    [
        ("505 nvidia-uvm\n", "", "missing required device major nvidia in"),
        ("195 nvidia\n", "", "missing required device major nvidia-uvm"),
        ("195 nvidia\n505 nvidia-uvm\n", MINORS, "missing required device major nvidia-caps"),
        ("1 mem\n", "", "no NVIDIA devices found"),
    ],
)
async def test_2_majors_that_are_required(majors: str, minors: str, text: str, tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all", majors=majors, minors=minors)
    assert await main.run(process) == 1
    assert f"failed to create links: {text}" in process.stderr
    assert links(process) == {}


async def test_2_the_old_name_of_the_major(tmp_path: Path) -> None:
    majors = "195 nvidia-frontend\n505 nvidia-uvm\n"
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all", majors=majors, gpus=1)
    assert await main.run(process) == 0
    assert links(process) == {**CONTROL_LINKS, "195:0": "/dev/nvidia0"}


async def test_no_gpus(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all", gpus=0)
    assert await main.run(process) == 0
    assert links(process) == {}


async def test_links_that_are_there(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all")
    process.root.symlink("/dev/char/195:0", "/run/nvidia/driver/dev/nvidia0")
    process.root.symlink("/dev/char/195:1", "/dev/nvidia1")
    kept = process.path("/dev/char/") / "195:1"
    inode = kept.lstat().st_ino
    assert await main.run(process) == 0
    assert links(process) == {**CONTROL_LINKS, "195:0": "/dev/nvidia0", "195:1": "/dev/nvidia1"}
    assert kept.lstat().st_ino == inode


async def test_a_folder_at_a_links_place_is_a_warning(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all")
    process.root.mkdir("/dev/char/195:0")
    assert await main.run(process) == 0
    assert "Could not create symlink /dev/char/195:0 => /dev/nvidia0" in process.stderr
    assert (process.path("/dev/char") / "195:1").is_symlink()


async def test_2_a_dry_run(tmp_path: Path) -> None:
    process = machine(
        *(tmp_path, "create-dev-char-symlinks", "--create-all", "--dry-run"),
        *("--load-kernel-modules", "--create-device-nodes"),
    )
    assert await main.run(process) == 0
    assert links(process) == {}
    assert process.executed == []
    assert "Running: /sbin/modprobe nvidia-uvm" in process.stderr
    assert "Running: mknod --mode=0666" in process.stderr
    assert "Creating link /dev/char/195:0 => /dev/nvidia0" in process.stderr
    assert not process.path("/dev/nvidiactl").exists()


async def test_2_modules_and_nodes_first(tmp_path: Path) -> None:
    process = machine(
        *(tmp_path, "create-dev-char-symlinks", "--create-all", "--load-kernel-modules", "--create-device-nodes"),
        "--driver-root=/run/nvidia/driver",
        GROUNDPLANE_NULL_DEVICES="true",
    )
    process.root.mkdir("/dev")
    assert await main.run(process) == 0
    assert process.executed == [
        ("chroot", "/run/nvidia/driver", "/sbin/modprobe", module)
        for module in ("nvidia", "nvidia-uvm", "nvidia-modeset")
    ]
    assert process.path("/dev/nvidia-uvm-tools").exists()
    assert CONTROL_LINKS.items() <= links(process).items()


async def test_2_without_all_they_are_ignored(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--load-kernel-modules", "--create-device-nodes")
    assert await main.run(process) == 0
    assert process.executed == []
    assert process.stderr.count("only applicable when create-all is set; ignoring") == 2


async def test_a_module_that_cannot_be_loaded(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-dev-char-symlinks", "--create-all", "--load-kernel-modules")
    process.commands["modprobe"] = lambda argv, env, stdin: Completed(1, "", "not found in directory\n")
    assert await main.run(process) == 1
    assert "failed to load module nvidia: /sbin/modprobe nvidia ended with 1: not found in directory" in process.stderr
    del process.commands["modprobe"]
    assert await main.run(process) == 1


async def test_create_device_nodes(tmp_path: Path) -> None:
    process = machine(
        *(tmp_path, "create-device-nodes", "--control-devices", "--load-kernel-modules"),
        NVIDIA_DRIVER_ROOT="/run/nvidia/driver",
        NVIDIA_DEV_ROOT="/host",
        GROUNDPLANE_NULL_DEVICES="true",
    )
    process.root.mkdir("/host/dev")
    assert await main.run(process) == 0
    assert process.executed[0][:2] == ("chroot", "/run/nvidia/driver")
    assert {path.name for path in process.path("/host/dev").iterdir()} == {
        *("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
    }


async def test_create_device_nodes_below_the_root_if_nothing_else_is_said(tmp_path: Path) -> None:
    process = machine(
        tmp_path, "create-device-nodes", "--control-devices", "--root=/r", GROUNDPLANE_NULL_DEVICES="true"
    )
    process.root.mkdir("/r/dev")
    assert await main.run(process) == 0
    assert process.path("/r/dev/nvidiactl").exists()
    assert process.executed == []


async def test_create_device_nodes_that_fails(tmp_path: Path) -> None:
    process = machine(tmp_path, "create-device-nodes", "--control-devices", majors="1 mem\n")
    assert await main.run(process) == 1
    assert "no NVIDIA devices found" in process.stderr


async def test_help_and_wrong_options(tmp_path: Path) -> None:
    for command in ("create-device-nodes", "create-dev-char-symlinks"):
        process = machine(tmp_path, command, "--help")
        assert await main.run(process) == 0
        assert "--dry-run" in process.stdout
        process = machine(tmp_path, command, "--nothing")
        assert await main.run(process) == 1
