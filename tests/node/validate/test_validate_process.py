"""The validator as a real process: exit codes, signals, being killed (contracts/mig-exporter-validator.md 6.1, 6.2)."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import groundplane

RUN = """
import os, sys
from groundplane.node import ownprocess
from groundplane.node.validate import main
sys.exit(ownprocess.run(main.run, ["nvidia-validator"], os.environ))
"""
DEADLINE_S = 30.0


class Started:
    """The program with component toolkit, whose tool is a script."""

    def __init__(self, folder: Path, script: str) -> None:
        self.ready, self.began = folder / "status/toolkit-ready", folder / "began"
        tools = folder / "bin"
        for made in (tools, folder / "status"):
            made.mkdir()
        tool = tools / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n: > {self.began}\n{script}\n")
        tool.chmod(0o755)
        self.ready.write_text("")
        env = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(groundplane.__file__).parents[1]),
            "COMPONENT": "toolkit",
            "WITH_WAIT": "true",
            "OUTPUT_DIR": str(folder / "status"),
        }
        self.child = subprocess.Popen(
            [sys.executable, "-c", RUN], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def end(self) -> tuple[int, str, str]:
        out, err = self.child.communicate(timeout=DEADLINE_S)
        return self.child.returncode, out, err


def test_success(tmp_path: Path) -> None:
    started = Started(tmp_path, "echo a GPU")
    code, out, err = started.end()
    assert (code, out) == (0, "a GPU\n")
    assert "toolkit is valid" in err
    assert started.ready.read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_it_midway_leaves_no_status_file(tmp_path: Path, number: signal.Signals) -> None:
    started = Started(tmp_path, "exec sleep 30")
    started.until(started.began.exists)
    assert not started.ready.exists(), "an earlier success is gone before anything is looked at"
    started.child.send_signal(number)
    code, _, _ = started.end()
    assert code == (-number if number == signal.SIGKILL else 1)
    assert not started.ready.exists()


def test_failure_is_not_success(tmp_path: Path) -> None:
    started = Started(tmp_path, "exit 9")
    assert started.child.stderr is not None
    told = next(line for line in started.child.stderr if "not ready" in line)
    assert "nvidia-smi ended with code 9 (ERROR_DRIVER_NOT_LOADED)" in told
    started.child.terminate()
    code, _, _ = started.end()
    assert code == 1
    assert not started.ready.exists()
