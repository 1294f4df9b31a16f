"""A person's place with a lab in it: an own home folder, the shipped commands as processes, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 60.0
"""Real seconds after which a command counts as hanging."""


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class LabHome:
    """Runs `groundplane` and `kubectl` with an own HOME; `close` ends the lab that was started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = Path(sys.executable).parent
        self.state = self.state_of("default")
        self.environment = {
            "HOME": str(folder),
            "GROUNDPLANE_HOME": str(folder / "groundplane"),
            "KUBECONFIG": str(self.state.with_name("kubeconfig")),
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "LANG": "C.UTF-8",
        }

    def run(self, *argv: str, stdin: str = "", limit_s: float = LIMIT_S, **environment: str) -> Result:
        """Run a command in the home folder to its end."""
        variables = self.environment | environment
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=limit_s, env=variables, cwd=self.folder
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *argv: str, stdin: str = "", **environment: str) -> str:
        """Run a command that must succeed; return its output."""
        result = self.run(*argv, stdin=stdin, **environment)
        assert result.code == 0, f"{' '.join(argv)}: exit status {result.code}\n{result.out}\n{result.err}"
        return result.out

    def kubectl(self, *argv: str, stdin: str = "", **environment: str) -> str:
        """Run a kubectl command that must succeed; return its output."""
        return self.ok("kubectl", *argv, stdin=stdin, **environment)

    def refused(self, *argv: str, stdin: str = "") -> str:
        """Run a kubectl command that must fail; return what it says."""
        result = self.run("kubectl", *argv, stdin=stdin)
        assert result.code != 0, f"kubectl {' '.join(argv)} succeeded:\n{result.out}"
        return result.err

    def lines_until(self, wanted: Callable[[list[str]], bool], act: Callable[[], None], *argv: str) -> list[str]:
        """Start a kubectl command that goes on; after its first line call `act`; read lines until `wanted` holds."""
        process = subprocess.Popen(["kubectl", *argv], stdout=subprocess.PIPE, text=True, env=self.environment)
        watchdog = threading.Timer(LIMIT_S, process.kill)
        watchdog.start()
        lines: list[str] = []
        try:
            assert process.stdout is not None
            while not wanted(lines):
                line = process.stdout.readline()
                assert line, f"kubectl {' '.join(argv)} ended after {lines}"
                lines.append(line)
                if len(lines) == 1:
                    act()
        finally:
            watchdog.cancel()
            process.kill()
            process.communicate()
        return lines

    def state_of(self, name: str) -> Path:
        """Where a running lab says what it is."""
        return self.folder / "groundplane" / "lab" / name / "lab.json"

    def close(self, name: str = "default") -> None:
        """End a lab as a person would, and by its process id if that fails."""
        state = self.state_of(name)
        if not state.exists():
            return
        pid = json.loads(state.read_text())["pid"]
        ended = self.run("groundplane", "lab", "down", "--name", name)
        if ended.code != 0 and alive(pid):
            os.kill(pid, signal.SIGKILL)
        assert ended.code == 0, ended.err
        until(lambda: not alive(pid), "the lab's process to be gone")


def alive(pid: int) -> bool:
    """Whether a process is there; one that has ended and was not yet collected by its parent counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that no kubectl command waits for."""
    ends = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < ends, f"waited in vain for {what}"
        time.sleep(0.1)
