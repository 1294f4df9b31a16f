"""A lab as a process: a second start, a kill, a taken port, what it leaves on the disk."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e.lab_home import LabHome, alive, until

POLICY = Path(__file__).parent.parent / "data" / "clusterpolicy" / "26.7.0-host-driver-and-toolkit.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[LabHome]:
    place = LabHome(tmp_path)
    yield place
    place.close()


def up(home: LabHome, *arguments: str) -> dict[str, object]:
    home.ok("groundplane", "lab", "up", "--nodes", "1", *arguments)
    running: dict[str, object] = json.loads(home.state.read_text())
    return running


def test_a_killed_lab_is_no_obstacle_and_leaves_no_files_once_the_next_one_starts(home: LabHome) -> None:
    first = up(home)
    left = Path((home.state.parent / "workdir").read_text())
    assert left.is_dir()
    pid = int(str(first["pid"]))
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the killed lab to be gone")
    assert home.run("groundplane", "lab", "status").code == 1
    second = up(home)
    assert second["pid"] != first["pid"]
    assert not left.exists()
    workdir = Path((home.state.parent / "workdir").read_text())
    home.ok("groundplane", "lab", "down")
    assert not workdir.exists()
    assert not home.state.exists()


def test_a_second_up_and_a_taken_port_are_refused(home: LabHome) -> None:
    running = up(home)
    again = home.run("groundplane", "lab", "up")
    assert again.code == 1
    assert f"already runs (pid {running['pid']})" in again.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = home.run("groundplane", "lab", "up", "--name", "other", "--port", str(port))
    assert refused.code == 1
    assert str(port) in refused.err
    assert "Traceback" not in refused.err


def test_a_policy_inside_a_list_is_applied_at_the_start(home: LabHome) -> None:
    path = home.folder / "list.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(POLICY.read_text())]}))
    up(home, "--policy", str(path))
    assert home.kubectl("get", "clusterpolicies", "-o", "name") == "clusterpolicy.nvidia.com/cluster-policy\n"
