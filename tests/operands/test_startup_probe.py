"""The driver's startup probe, run under a real shell on a made-up node (contracts/driver-lifecycle.md 6.8, 6.9)."""

import os
import subprocess

import pytest

from groundplane.api.release import Release
from groundplane.operands import startup_probe

BOTH = list(Release)


@pytest.fixture
def node(tmp_path):
    """A folder that stands for the node; the script's absolute paths are moved into it."""
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/refcnt").write_text("1\n")
    (tmp_path / "bin").mkdir()
    smi(tmp_path, 0)
    return tmp_path


def smi(node, code):
    program = node / "bin/nvidia-smi"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)


def run(node, release, **env):
    text = startup_probe.script(release)
    for path in ("/run/nvidia", "/sys/module"):
        text = text.replace(path, f"{node}{path}")
    env = {"PATH": f"{node}/bin:{os.environ['PATH']}", **env}
    return subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, check=False)


def ready_file(node):
    return node / "run/nvidia/validations/.driver-ctr-ready"


@pytest.mark.parametrize("release", BOTH)
def test_passes_and_says_what_is_on(node, release):
    result = run(node, release, GDS_ENABLED="true")
    assert result.returncode == 0, result
    assert ready_file(node).read_text() == (
        "GDRCOPY_ENABLED: false\nGDS_ENABLED: true\nGPU_DIRECT_RDMA_ENABLED: false\n"
    )
    assert [each.name for each in ready_file(node).parent.iterdir()] == [".driver-ctr-ready"]


@pytest.mark.parametrize("release", BOTH)
def test_module_missing(node, release):
    (node / "sys/module/nvidia/refcnt").unlink()
    smi(node, 1)
    result = run(node, release)
    assert (result.returncode, result.stdout) == (1, "NVIDIA kernel module not loaded\n")
    assert ready_file(node).parent.is_dir()
    assert not ready_file(node).exists()


@pytest.mark.parametrize("release", BOTH)
def test_driver_does_not_answer(node, release):
    smi(node, 9)
    result = run(node, release)
    assert (result.returncode, result.stdout) == (1, "nvidia-smi failed\n")
    assert not ready_file(node).exists()


@pytest.mark.parametrize(("status", "code"), [("Ready\n", 0), ("NotReady\n", 1), ("", 1), ("Ready or not", 1)])
def test_daemons(node, status, code):
    file = node / "run/nvidia/validations/.driver-daemons-status"
    file.parent.mkdir(parents=True)
    file.write_text(status)
    result = run(node, Release.V26_7)
    assert result.returncode == code
    assert result.stdout.startswith("NVIDIA driver daemons are not ready") == bool(code)
    assert run(node, Release.V26_3).returncode == 0, "26.3.3 does not know the file"
