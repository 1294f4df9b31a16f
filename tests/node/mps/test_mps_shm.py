"""`mps-control-daemon mount-shm` (contracts/device-plugin-gfd.md 6)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.mps import main, shm
from groundplane.node.process import Completed

MEMINFO = "MemTotal:       131900412 kB\nMemFree:        1024 kB\n"


@pytest.mark.parametrize(
    ("meminfo", "size"),
    [
        (MEMINFO, "65950206k"),
        ("SwapTotal: 12 kB\nMemTotal: 7 kB\n", "3k"),
        ("MemTotal: 64 MB\n", "32M"),
        ("MemTotal: 1024\n", "512"),
        ("MemTotal: lots kB\n", "65536k"),
        ("", "65536k"),
    ],
)
def test_section_6_size_is_half_of_the_memory(meminfo: str, size: str) -> None:
    assert shm.options(meminfo) == f"rw,nosuid,nodev,noexec,relatime,size={size}"


class Mounts:
    """The commands `mount` and `umount`, and how many layers are mounted at /mps/shm."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, layers: int = 0, *, stuck: bool = False) -> None:
        self.process = FakeProcess(folder, ["mps-control-daemon", "mount-shm"])
        self.layers, self.stuck = layers, stuck
        self.process.commands |= {"mount": self.mount, "umount": self.umount}
        shown = self.process.path("/mps/shm")
        monkeypatch.setattr(Path, "is_mount", lambda path: path == shown and self.layers > 0)

    def mount(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        self.layers += 1
        return Completed(0, "", "")

    def umount(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        if not self.stuck:
            self.layers -= 1
        return Completed(0, "", "")


@pytest.mark.parametrize("layers", [0, 1, 2])
async def test_section_6_what_is_mounted_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    mounts = Mounts(tmp_path, monkeypatch, layers)
    mounts.process.write_kernel("/proc/meminfo", MEMINFO)
    assert await main.run(mounts.process) == 0
    options = "rw,nosuid,nodev,noexec,relatime,size=65950206k"
    assert mounts.process.executed == [
        *[("umount", "/mps/shm")] * layers,
        ("mount", "-t", "tmpfs", "-o", options, "shm", "/mps/shm"),
    ]
    assert (mounts.layers, mounts.process.path("/mps/shm").is_dir()) == (1, True)


async def test_section_6_fallback_without_meminfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = Mounts(tmp_path, monkeypatch)
    assert await main.run(mounts.process) == 0
    assert mounts.process.executed[-1][4].endswith("size=65536k")
    assert "/proc/meminfo: No such file or directory; the shared memory gets 65536k" in mounts.process.stderr


async def test_a_mount_that_stays_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await main.run((mounts := Mounts(tmp_path, monkeypatch, 1, stuck=True)).process) == 1
    assert "still a mount point" in mounts.process.stderr


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (lambda *_: Completed(32, "", "mount: permission\n denied\n"), "exit code 32: mount: permission denied"),
        (None, "mount -t tmpfs"),
    ],
)
async def test_a_mount_that_fails_ends_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: None, said: str
) -> None:
    mounts = Mounts(tmp_path, monkeypatch)
    if mount is None:
        del mounts.process.commands["mount"]
    else:
        mounts.process.commands["mount"] = mount
    assert await main.run(mounts.process) == 1
    assert said in mounts.process.stderr


async def test_options_are_checked_first(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ["mps-control-daemon", "mount-shm", "again"])
    assert await main.run(process) == 1
    assert 'unexpected argument "again"' in process.stderr
