"""The driver's device numbers and control nodes: contracts/toolkit-cdi.md 2."""

import os
import stat
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import controlnodes
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.controlnodes import NodeError, create_control_nodes, majors, mig_minors, parse_majors

DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidiactl
 235 nvidia-caps
505	nvidia-uvm
not a line
x nvidia-x

Block devices:
  8 sd
"""


def test_2_names_and_numbers() -> None:
    found = parse_majors(DEVICES)
    assert {name: found.get(name) for name in ("nvidia", "nvidia-caps", "nvidia-uvm", "nvidiactl", "mem", "sd")} == {
        "nvidia": 195, "nvidia-caps": 235, "nvidia-uvm": 505, "nvidiactl": 195, "mem": None, "sd": None,
    }  # fmt: skip
    assert len(found) == 4


@pytest.mark.parametrize(
    ("text", "number"),
    [("195 nvidia-frontend\n", 195), ("195 nvidia-frontend\n196 nvidia\n", 196), ("196 nvidia\n", 196)],
)
def test_2_the_driver_before_550_40_has_another_name(text: str, number: int) -> None:
    assert parse_majors(text).get("nvidia") == number


def test_2_no_nvidia_device() -> None:
    with pytest.raises(NodeError, match="no NVIDIA devices found"):
        parse_majors("1 mem\n")


def test_2_no_list(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    assert len(majors(process.kernel)) == 0
    assert mig_minors(process.kernel, process.log) is None


def test_2_mig_minors(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    text = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu7/gi14/ci7/access 255\nbad\ngpu0/gi0 5\n"
    process.write_kernel(controlnodes.MIG_MINORS, text)
    assert mig_minors(process.kernel, process.log) == {
        "config": 1, "monitor": 2, "gpu0/gi0/access": 3, "gpu0/gi0/ci0/access": 4, "gpu7/gi14/ci7/access": 255,
    }  # fmt: skip
    assert process.stderr.count("Skipping line") == 2


class Maker:
    def __init__(self) -> None:
        self.made: list[tuple[str, int, int]] = []

    def __call__(self, path: Path, major: int, minor: int) -> None:
        path.write_text("")
        self.made.append((path.name, major, minor))


ALL = [("nvidiactl", 195, 255), ("nvidia-modeset", 195, 254), ("nvidia-uvm", 505, 0), ("nvidia-uvm-tools", 505, 1)]


def world(folder: Path, text: str = DEVICES, **env: str) -> FakeProcess:
    process = FakeProcess(folder, env=env)
    process.root.mkdir("/host/dev")
    process.write_kernel(controlnodes.PROC_DEVICES, text)
    return process


def test_2_nodes_in_their_order(tmp_path: Path) -> None:
    maker = Maker()
    create_control_nodes(world(tmp_path), "/host", make=maker)
    assert maker.made == ALL


def test_2_nodes_that_are_there_are_left_alone_whatever_they_are(tmp_path: Path) -> None:
    process, maker = world(tmp_path), Maker()
    process.write("/host/dev/nvidiactl", "mine")
    create_control_nodes(process, "/host", make=maker)
    assert maker.made == ALL[1:]
    assert process.root.read_text("/host/dev/nvidiactl") == "mine"
    create_control_nodes(process, "/host", make=maker)
    assert maker.made == ALL[1:]


def test_2_a_link_to_nothing_is_left_alone(tmp_path: Path) -> None:
    process, maker = world(tmp_path), Maker()
    process.root.symlink("/host/dev/nvidiactl", "/etc/elsewhere")
    create_control_nodes(process, "/host", make=maker)
    assert maker.made == ALL[1:]
    assert not process.path("/etc/elsewhere").exists()


def test_2_nothing_is_asked_where_nothing_is_missing(tmp_path: Path) -> None:
    process = world(tmp_path, text="1 mem\n")
    for name, _, _ in ALL:
        process.write(f"/host/dev/{name}", "")
    create_control_nodes(process, "/host/")


def test_2_a_module_that_is_not_loaded(tmp_path: Path) -> None:
    maker = Maker()
    with pytest.raises(NodeError, match=r"device node nvidia-uvm:.*is the kernel module nvidia-uvm loaded\?"):
        create_control_nodes(world(tmp_path, text="195 nvidia\n"), "/host", make=maker)
    assert maker.made == ALL[:2]


def test_a_node_that_another_made_meanwhile(tmp_path: Path) -> None:
    def make(path: Path, major: int, minor: int) -> None:
        raise FileExistsError(17, "File exists", str(path))

    process = world(tmp_path)
    create_control_nodes(process, "/host", make=make)
    assert process.stderr.count("already exists") == 4


def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    def make(path: Path, major: int, minor: int) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with pytest.raises(NodeError, match="device node /host/dev/nvidiactl: Read-only file system"):
        create_control_nodes(world(tmp_path), "/host", make=make)


def test_simulated_machines_get_ordinary_files(tmp_path: Path) -> None:
    process = world(tmp_path, text="1 mem\n", **{NULL_DEVICES: "true"})
    create_control_nodes(process, "/host")
    for name, _, _ in ALL:
        path = process.path(f"/host/dev/{name}")
        assert path.is_file()
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_2_a_real_node(tmp_path: Path) -> None:
    path = tmp_path / "null"
    before = os.umask(0o077)
    try:
        controlnodes.make_node(path, 1, 3)
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    finally:
        os.umask(before)
    status = path.stat()
    assert stat.S_ISCHR(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o666
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 3)
