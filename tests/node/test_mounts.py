"""Unmounting all below a folder (contracts/driver-lifecycle.md 5.6): the list, and real mounts where they can be."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import mounts
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.process import Completed

ROOT = "/run/nvidia/driver"
LINES = f"""\
20 1 0:1 / / rw - overlay overlay rw
21 20 0:2 / /run/nvidia rw shared:1 - tmpfs tmpfs rw
22 21 0:3 / {ROOT} rw shared:2 - overlay overlay rw
23 22 0:4 / {ROOT}/sys rw - sysfs sysfs rw
24 22 0:5 /a\\040b {ROOT}/a\\040b\\134c rw - tmpfs tmpfs rw
25 21 0:6 / {ROOT}s rw - tmpfs tmpfs rw
26 22 0:7 / {ROOT} rw - tmpfs tmpfs rw
short line
"""


def test_points_at_and_below_a_folder() -> None:
    wanted = [ROOT, f"{ROOT}/sys", f"{ROOT}/a b\\c", ROOT]
    assert list(mounts.points(LINES, ROOT)) == list(mounts.points(LINES, f"{ROOT}/")) == wanted
    assert list(mounts.points(LINES, "/run/nvidia/driver/sys")) == [f"{ROOT}/sys"]
    assert list(mounts.points(LINES, "/elsewhere")) == []


class Machine(FakeProcess):
    """A process with mounts, of which some stay."""

    def __init__(self, folder: Path, *stay: str, env: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, env=env)
        self.stay = stay
        self.commands["umount"] = self._umount
        self.write(mounts.MOUNTINFO, LINES)
        self.root.mkdir(ROOT)

    def _umount(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        point = argv[-1]
        if point in self.stay:
            return Completed(1, "", f"umount: {point}: busy\n")
        lines = self.root.read_text(mounts.MOUNTINFO).splitlines()
        at = max(i for i, line in enumerate(lines) if list(mounts.points(line, point))[:1] == [point])
        self.write(mounts.MOUNTINFO, "".join(f"{line}\n" for i, line in enumerate(lines) if i != at))
        return Completed(0, "", "")


async def test_the_newest_goes_first(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert await mounts.unmount(machine, ROOT) == [ROOT, f"{ROOT}/sys", f"{ROOT}/a b\\c", ROOT]
    asked = [ROOT, f"{ROOT}/a b\\c", f"{ROOT}/sys", ROOT]
    assert machine.executed == [("umount", "-l", point) for point in asked]
    assert f"{ROOT}s " in machine.root.read_text(mounts.MOUNTINFO)
    assert machine.path(ROOT).is_dir()


async def test_what_stays_mounted_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"{ROOT}/sys")
    with pytest.raises(mounts.MountError) as caught:
        await mounts.unmount(machine, ROOT)
    assert str(caught.value) == f"{ROOT} cannot be unmounted: {ROOT}/sys: umount: {ROOT}/sys: busy"


async def test_no_folder_no_mounts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.root.remove(ROOT)
    assert await mounts.unmount(machine, ROOT) == []
    assert not machine.executed


async def test_without_umount(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    del machine.commands["umount"]
    with pytest.raises(mounts.MountError, match="umount cannot be run"):
        await mounts.unmount(machine, ROOT)


async def test_on_a_simulated_machine_the_files_go_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, env={NULL_DEVICES: "true"})
    machine.root.remove(mounts.MOUNTINFO)
    machine.write(f"{ROOT}/usr/bin/nvidia-smi", "")
    machine.path(ROOT).joinpath("dev").symlink_to("/dev")
    folder = machine.path(ROOT).stat().st_ino
    assert await mounts.unmount(machine, ROOT) == []
    assert not list(machine.path(ROOT).iterdir()) and not machine.executed
    assert machine.path(ROOT).stat().st_ino == folder, "other containers have it mounted"
    with pytest.raises(FileNotFoundError):
        await mounts.unmount(unreadable(tmp_path / "real"), ROOT)


def unreadable(folder: Path) -> Machine:
    machine = Machine(folder)
    machine.root.remove(mounts.MOUNTINFO)
    return machine


REAL = """
import asyncio, os, pathlib, subprocess, sys
from groundplane.node import mounts
from groundplane.node.ownprocess import OwnProcess

root = sys.argv[1]
def mount(*words):
    subprocess.run(["mount", *words], check=True)
mount("--make-rprivate", "/")
mount("-t", "tmpfs", "tmpfs", root)
top = f"{root}/driver"
os.mkdir(top)
mount("--make-shared", root)
mount("-t", "tmpfs", "rootfs", top)
os.makedirs(f"{top}/dev/with space")
mount("-t", "tmpfs", "dev", f"{top}/dev")
os.makedirs(f"{top}/dev/with space")
mount("-t", "tmpfs", "inner", f"{top}/dev/with space")
mount("-t", "tmpfs", "again", top)
os.mkdir(f"{root}/other")
mount("-t", "tmpfs", "other", f"{root}/other")
held = open(f"{top}/file", "w")  # lazily: what is open does not keep the mount

async def main():
    process = OwnProcess(["x"], dict(os.environ))
    gone = await mounts.unmount(process, top)
    left = list(mounts.points(pathlib.Path("/proc/self/mountinfo").read_text(), root))
    print(len(gone) >= 4, left == [root, f"{root}/other"], os.listdir(top) == [])

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_real_mounts(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", REAL, str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"mounts cannot be made here: {done.stderr}")
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
