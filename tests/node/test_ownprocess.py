"""A node program as a process of its own: signals, commands, other processes, the multi-call entry."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from groundplane.api.release import Release
from groundplane.node import __main__ as entry
from groundplane.node import ownprocess, programs
from groundplane.node.ownprocess import OwnProcess
from groundplane.node.process import wait_any

Check = Callable[[OwnProcess], Awaitable[int]]


def run(program: Check, argv: tuple[str, ...] = ("program",), env: dict[str, str] | None = None) -> int:
    return ownprocess.run(program, argv, {"PATH": os.environ["PATH"], **(env or {})})  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_signals_are_kept_until_they_are_asked_for(number: signal.Signals) -> None:
    async def program(process: OwnProcess) -> int:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.01)
        assert await process.signal(5.0) is number
        assert await process.signal(0.0) is None
        waiting = asyncio.ensure_future(process.signal())
        await asyncio.sleep(0)
        waiting.cancel()
        os.kill(os.getpid(), number)
        assert await process.signal(5.0) is number, "a cancelled wait has lost a signal"
        return 7

    assert run(program) == 7


def test_a_command_gets_environment_and_input_and_tells_code_and_output() -> None:
    async def program(process: OwnProcess) -> int:
        done = await process.execute(["sh", "-c", 'cat; echo "$A$B" >&2; exit 3'], env={"B": "two"}, stdin="in")
        assert done == (3, "in", "onetwo\n")
        with pytest.raises(FileNotFoundError):
            await process.execute(["/no/such/program"])
        return 0

    assert run(program, env={"A": "one"}) == 0


def test_a_daemon_that_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    async def program(process: OwnProcess) -> int:
        script = f"echo started; sleep 100 & echo $! > {tmp_path}/pid"
        async with asyncio.timeout(50):
            assert await process.execute(["sh", "-c", script]) == (0, "started\n", "")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        return 0

    assert run(program) == 0


def test_a_cancelled_command_is_killed(tmp_path: Path) -> None:
    async def program(process: OwnProcess) -> int:
        pid = tmp_path / "pid"
        command = asyncio.ensure_future(process.execute(["sh", "-c", f"echo $$ > {pid}; exec sleep 100"]))
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
        return 0

    assert run(program) == 0


def test_processes_are_told_by_their_argv() -> None:
    child = subprocess.Popen(["bash", "-c", "exec -a nvidia-device-plugin sleep 100"])
    try:

        async def program(process: OwnProcess) -> int:
            while True:
                found = {each.pid: each.argv for each in process.processes()}
                if found[child.pid][:1] == ("nvidia-device-plugin",):
                    break
                await asyncio.sleep(0.01)
            process.kill(child.pid, signal.SIGTERM)
            return 0

        assert run(program) == 0
        assert child.wait(20) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_a_simulated_machine_has_its_kernel_below_its_folder(tmp_path: Path) -> None:
    async def program(process: OwnProcess) -> int:
        assert process.kernel.base == tmp_path
        assert process.path("/etc") == Path("/etc")
        assert process.path("/dev/shm") == Path("/dev/shm")
        assert process.path("/dev/nvidia-caps/nvidia-cap1") == tmp_path / "dev/nvidia-caps/nvidia-cap1"
        (tmp_path / "driver").mkdir()
        (tmp_path / "driver/dev").symlink_to("/dev")
        assert process.path(f"{tmp_path}/driver/dev/nvidia0") == tmp_path / "dev/nvidia0"
        assert process.path("/dev") == process.path("/host/dev") == tmp_path / "dev"
        assert process.path("/dev/gdrdrv") == Path("/dev/gdrdrv")
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/gdrdrv").touch()
        assert process.path("/dev/gdrdrv") == process.path("/host/dev/gdrdrv") == tmp_path / "dev/gdrdrv"
        assert process.path("/host/etc") == Path("/host/etc")
        assert process.release is Release.V26_3
        return 0

    env = {ownprocess.SIMULATION_ENV: str(tmp_path), ownprocess.RELEASE_ENV: "26.3"}
    assert run(program, env=env) == 0


def test_relative_paths_are_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(process: OwnProcess) -> int:
        assert process.path("layouts.yaml") == tmp_path / "layouts.yaml"
        assert process.path("../x") == tmp_path.parent / "x"
        assert process.path("/etc/hosts") == Path("/etc/hosts")
        assert process.path("") == process.path("/") == Path("/")
        return 0

    monkeypatch.chdir(tmp_path)
    assert run(program) == 0


def test_an_entry_of_the_log_is_headed_as_kubernetes_programs_do(capfd: pytest.CaptureFixture[str]) -> None:
    async def program(process: OwnProcess) -> int:
        process.log.warning("one\ntwo")
        return 0

    run(program)
    lines = capfd.readouterr().err.splitlines()
    assert [line[0] for line in lines] == ["W", "W"]
    assert [line.split()[2:] for line in lines] == [["1", "one"], ["1", "two"]]


@pytest.mark.parametrize("name", sorted(programs.PROGRAMS))
def test_every_program_of_the_table_is_there(name: str) -> None:
    assert programs.find(f"/usr/bin/{name}") is not None


def test_an_unknown_program_is_named_with_those_there_are() -> None:
    done = subprocess.run([sys.executable, "-m", "groundplane.node", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 127
    assert "nonsense: no such node program; there are config-manager, " in done.stderr


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv(ownprocess.RELEASE_ENV, "1.0")
    assert entry.main(["config-manager"]) == 2
    assert "GROUNDPLANE_RELEASE: unknown GPU Operator release '1.0'" in capfd.readouterr().err


async def test_the_first_to_end_ends_the_wait_and_its_error_is_raised() -> None:
    cancelled = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("found")

    await wait_any(forever(), asyncio.sleep(0))
    with pytest.raises(ValueError, match="found"):
        await wait_any(forever(), fails())
    assert cancelled == [True, True]
