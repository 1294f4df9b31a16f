"""`groundplane lab up --engine kubernetes`: the command, from its start to nothing left."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import unavailable

from testing.realcluster import build, node

pytestmark = pytest.mark.real

BIN = Path(sys.executable).parent
NODES = "nodes:\n- name: plain\n"


class Home:
    """A person's home with a lab in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "GROUNDPLANE_HOME": str(folder)}

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    if lacking := node.missing():
        unavailable(lacking)
    try:
        build.ensure((*build.CONTROL_PLANE, *build.NODE))
    except build.UnavailableError as error:
        unavailable(str(error))
    made = Home(tmp_path)
    try:
        yield made
    finally:
        made.run("groundplane", "lab", "down")


def test_it_comes_up_is_used_and_leaves_nothing(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(NODES)
    up = home.run("groundplane", "lab", "up", "--engine", "kubernetes", "--nodes", str(file))
    assert up.returncode == 0, up.stdout + up.stderr
    assert "lab is up: 1 nodes at https://localhost:" in up.stdout
    config = home.run("groundplane", "lab", "kubeconfig").stdout.strip()
    nodes = json.loads(home.run("kubectl", "--kubeconfig", config, "get", "nodes", "-o", "json").stdout)["items"]
    assert [each["metadata"]["name"] for each in nodes] == ["plain"]
    conditions = {each["type"]: each["status"] for each in nodes[0]["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    done = home.run(
        *("kubectl", "--kubeconfig", config, "-n", "gpu-operator", "rollout", "status", "deployment/gpu-operator"),
        "--timeout=300s",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pid = json.loads(next(home.folder.rglob("lab.json")).read_text())["pid"]
    down = home.run("groundplane", "lab", "down")
    assert down.returncode == 0, down.stdout + down.stderr
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.1)
    assert not _alive(pid)
    refused = home.run("kubectl", "--kubeconfig", config, "get", "nodes", "--request-timeout=5s")
    assert refused.returncode != 0


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
