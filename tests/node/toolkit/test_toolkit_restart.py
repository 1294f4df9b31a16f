"""Restarting the container runtime: contracts/toolkit-cdi.md 5.6."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess, until

from groundplane.node.process import Completed, Listed
from groundplane.node.toolkit.restart import Mode, Pending, Restart, RestartError, restart

SOCKET = "/run/containerd/containerd.sock"

SERVER = """
    import contextlib, os, signal, socket, sys
    path, greeting = sys.argv[1], sys.argv[2].encode()
    signal.signal(signal.SIGHUP, lambda *_: (print("hangup", flush=True), os._exit(0)))
    os.chdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.basename(path))
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if greeting:  # waits to be asked, as Docker does
                asked = b""
                while not asked.endswith(greeting):
                    part = connection.recv(100)
                    if not part:
                        break
                    asked += part
                print(asked.decode().encode("unicode_escape").decode(), flush=True)
            with contextlib.suppress(OSError):
                connection.sendall(b"hello")
                connection.recv(1)
"""


class RealKill(FakeProcess):
    """A process whose signals arrive."""

    def kill(self, pid: int, number: int) -> None:
        self.killed.append((pid, number))
        os.kill(pid, number)


def wanted(runtime: str = "containerd", mode: Mode = Mode.SIGNAL, host_root: str = "/host") -> Restart:
    return Restart(runtime=runtime, mode=mode, socket=SOCKET, host_root=host_root)


@contextlib.contextmanager
def served(path: Path, greeting: str = "") -> Iterator["subprocess.Popen[str]"]:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", textwrap.dedent(SERVER), str(path), greeting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        try:
            yield server
        finally:
            server.kill()


async def line(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    return await asyncio.to_thread(server.stdout.readline)


async def test_5_6_signal_to_whoever_serves_the_socket(tmp_path: Path) -> None:
    process = RealKill(tmp_path)
    begun: list[int] = []
    with served(process.path(SOCKET)) as server:
        await restart(process, wanted(), lambda: begun.append(len(process.killed)))
        assert await line(server) == "hangup\n"
        assert process.killed == [(server.pid, signal.SIGHUP)]
    assert begun == [1]


async def test_5_6_docker_is_asked_for_something_first(tmp_path: Path) -> None:
    process = RealKill(tmp_path)
    with served(process.path(SOCKET), "\r\n\r\n") as server:
        await restart(process, wanted("docker"))
        assert await line(server) == "GET /info HTTP/1.0\\r\\n\\r\\n\n"
        assert await line(server) == "hangup\n"


async def test_a_socket_whose_path_is_long(tmp_path: Path) -> None:
    process = RealKill(tmp_path / ("long" * 30))
    with served(process.path(SOCKET)) as server:
        await restart(process, wanted())
        assert await line(server) == "hangup\n"


async def test_5_6_six_attempts_five_seconds_apart(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, pace=1000)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    process.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(RestartError, match=rf"unable to signal containerd in 6 attempts: .*{SOCKET}: No such file"):
        await restart(process, wanted(), lambda: pytest.fail("nothing was restarted"))
    assert slept == [5.0] * 5
    assert process.stderr.count("Error signaling containerd, attempt") == 5


async def test_5_6_a_runtime_that_comes_late(tmp_path: Path) -> None:
    process = RealKill(tmp_path, pace=100)
    task = asyncio.create_task(restart(process, wanted()))
    await until(lambda: "attempt 1/6" in process.stderr)
    with served(process.path(SOCKET)) as server:
        await task
        assert await line(server) == "hangup\n"


async def test_a_process_that_cannot_be_seen_is_not_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hostPID the kernel says 0, which to `kill` is the toolkit's own process group."""
    process = FakeProcess(tmp_path, pace=100000)

    def foreign(self: socket.socket, size: int, room: int) -> object:
        return b"h", [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, bytes(12))], 0, ""

    monkeypatch.setattr(socket.socket, "recvmsg", foreign)
    with (
        served(process.path(SOCKET)),
        pytest.raises(RestartError, match="hostPID: true"),
    ):
        await restart(process, wanted())
    assert process.killed == []


async def test_a_runtime_that_hangs_up(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, pace=100000)
    path = process.path(SOCKET)
    path.parent.mkdir(parents=True)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_unix_server(hang_up, path):
        with pytest.raises(RestartError, match="closed the connection without a word"):
            await restart(process, wanted())


async def test_a_process_that_has_ended_meanwhile_is_asked_for_again(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, pace=100)
    with served(process.path(SOCKET)) as server:
        task = asyncio.create_task(restart(process, wanted()))
        await until(lambda: "its process has ended meanwhile" in process.stderr)
        process.listed.append(Listed(server.pid, ("containerd",)))
        await task
        assert process.killed == [(server.pid, signal.SIGHUP)]


@pytest.mark.parametrize(
    ("runtime", "host_root", "command"),
    [
        ("containerd", "/host", ("chroot", "/host", "systemctl", "restart", "containerd")),
        ("crio", "/host", ("chroot", "/host", "systemctl", "restart", "crio")),
        ("docker", "/", ("systemctl", "restart", "docker")),
        ("docker", "", ("systemctl", "restart", "docker")),
    ],
)
async def test_5_6_systemd(runtime: str, host_root: str, command: tuple[str, ...], tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    begun: list[int] = []
    process.commands[command[0]] = lambda argv, env, stdin: Completed(0, "", "")
    await restart(process, wanted(runtime, Mode.SYSTEMD, host_root), lambda: begun.append(len(process.executed)))
    assert process.executed == [command]
    assert begun == [0], "the command may end this very container"


async def test_5_6_systemd_that_fails(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    with pytest.raises(
        RestartError, match=r"error restarting containerd using systemd: chroot /host systemctl.*chroot"
    ):
        await restart(process, wanted(mode=Mode.SYSTEMD))
    process.commands["chroot"] = lambda argv, env, stdin: Completed(5, "", "Unit not found.\n")
    with pytest.raises(RestartError, match=r"ended with 5: Unit not found\.; see journalctl -u containerd"):
        await restart(process, wanted(mode=Mode.SYSTEMD))


async def test_5_6_none_warns_only(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    await restart(process, wanted(mode=Mode.NONE))
    assert process.executed == process.killed == []
    assert "Skipping restart of containerd due to --restart-mode=none" in process.stderr


async def test_5_6_crio_has_no_signal(tmp_path: Path) -> None:
    with pytest.raises(RestartError, match="crio cannot be restarted by a signal"):
        await restart(FakeProcess(tmp_path), wanted("crio"))


def test_a_restart_that_is_pending(tmp_path: Path) -> None:
    pending = Pending(tmp_path / "run" / "restart-pending")
    assert not pending
    pending.set()
    pending.set()
    assert pending
    pending.clear()
    pending.clear()
    assert not pending
