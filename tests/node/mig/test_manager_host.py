"""Commands and files of the host (3.7), with this very machine's programs."""

import asyncio
import errno
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import hostroot
from groundplane.node.mig.manager import host
from groundplane.node.mig.manager.errors import ManagerError
from groundplane.node.mig.manager.host import Host, command
from groundplane.node.ownprocess import OwnProcess
from groundplane.node.process import Completed


async def test_a_command_runs_right_here_where_the_root_is_the_root() -> None:
    process = OwnProcess((), {"PATH": "/usr/bin:/bin"})
    assert await command(process, "/", ("echo", "a")) == "a\n"
    with pytest.raises(ManagerError, match=r"^false: exit status 1$"):
        await command(process, "", ("false",))
    with pytest.raises(ManagerError, match=r"^no-such-program cannot be run: no-such-program: it is not there$"):
        await command(process, "/", ("no-such-program",))


async def test_a_command_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = FakeProcess(tmp_path, pace=10000.0)
    ended = asyncio.Event()

    async def execute(*_: object, **__: object) -> Completed:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(process, "execute", execute)
    with pytest.raises(ManagerError, match=r"systemctl stop a \(below /host\) was ended after 600 s"):
        await Host(process, "/host").run("systemctl", "stop", "a")
    assert ended.is_set()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_file_that_cannot_be_written_is_named_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    process = FakeProcess(tmp_path)
    real = process.write("/host/run/a", "old")

    def full(*_: object) -> None:
        raise OSError(number, "told to fail")

    monkeypatch.setattr(hostroot.os, "fsync", full)
    with pytest.raises(ManagerError, match=r"^/host/run/a cannot be written, and is as it was: told to fail"):
        Host(process, "/host").write("/run/a", "new")
    assert [(each.name, each.read_text()) for each in real.parent.iterdir()] == [("a", "old")]


def test_links_of_the_host_stay_below_its_root(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    (process.root.mkdir("/host/run") / "link").symlink_to("/etc")
    Host(process, "/host").write("/run/link/file", "text")
    assert process.path("/host/etc/file").read_text() == "text"
    assert host.LIMIT_S == 600.0
