"""What stands in the toolkit's way in place of its files."""

import os
import stat
from pathlib import Path

import pytest

from groundplane.node.toolkit import lock


def test_what_is_no_file_is_no_pid_file_and_stays(tmp_path: Path) -> None:
    """The program that ends removes its pid file, and links to it are followed: that must not be a device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "toolkit.pid").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "toolkit.pid"):
        with pytest.raises(lock.LockError, match="not a regular file; give another path"), lock.held(path, "the file"):
            pass
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "toolkit.pid").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are made by root only")
def test_a_device_is_no_pid_file_and_stays(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("rb").close()
    except PermissionError:
        pytest.skip("device nodes cannot be made or opened here")
    with pytest.raises(lock.LockError, match="not a regular file"), lock.held(device, "the file"):
        pass
    assert stat.S_ISCHR(device.stat().st_mode)
