"""The toolkit's pid file: contracts/toolkit-cdi.md 4.4.1."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from groundplane.node.toolkit.lock import LockError, held

SHOWN = "/run/nvidia/toolkit/toolkit.pid"


def test_the_file_holds_the_process_number_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "run" / "toolkit.pid"
    with held(path, SHOWN):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


def test_a_second_one_is_told_and_leaves_the_first_ones_number(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.pid"
    with held(path, SHOWN):
        with pytest.raises(LockError, match=f"{SHOWN}.*already running.*process {os.getpid()}"), held(path, SHOWN):
            pytest.fail("the lock was held twice")
        assert path.read_text() == f"{os.getpid()}\n"
    with held(path, SHOWN):
        pass


def test_a_file_that_was_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.pid"
    path.write_text("123456789\n")
    with held(path, SHOWN):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_lock_on_a_removed_file_is_none(tmp_path: Path) -> None:
    """Somebody opened the file just before its holder removed it: the next one makes and locks a new one."""
    path = tmp_path / "toolkit.pid"
    with held(path, SHOWN):
        late = os.open(path, os.O_RDWR)
    fcntl.flock(late, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with held(path, SHOWN):
        assert path.read_text() == f"{os.getpid()}\n"
        assert not os.path.samestat(os.fstat(late), path.stat())
    os.close(late)


def test_what_happens_in_the_block_is_not_the_locks(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.pid"
    with pytest.raises(FileNotFoundError, match="something else"), held(path, SHOWN):
        raise FileNotFoundError("something else")
    assert not path.exists()


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(LockError, match=f"unable to create pidfile {SHOWN}"), held(tmp_path / "run/toolkit.pid", SHOWN):
        pass


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.pid"
    code = (
        "import os, pathlib, signal, sys\n"
        "from groundplane.node.toolkit.lock import held\n"
        "with held(pathlib.Path(sys.argv[1]), 'x'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.exists()
    with held(path, SHOWN):
        assert path.read_text() == f"{os.getpid()}\n"
