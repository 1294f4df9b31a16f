"""`groundplane lab faults`, `break` and `repair`: on the folder of a lab that runs."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from groundplane.cli import lab
from groundplane.lab import driverfaults, nodes
from groundplane.lab.driver.packages import FILE
from groundplane.lab.host import SimulatedHost
from groundplane.node.hostroot import HostRoot


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedHost]:
    with tempfile.TemporaryDirectory(prefix="gp-") as short:  # unix sockets below it have few bytes for their names
        yield from _running(Path(short), monkeypatch)


def _running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedHost]:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(folder / "home"))
    home = folder / "home/lab/default"
    home.mkdir(parents=True)
    spec = nodes.NodeSpec("gpu-1", gpus=(nodes.GpuSpec("H100"),))
    running = lab.Running(os.getpid(), "http://127.0.0.1:1", "none", 1)
    (home / "lab.json").write_bytes(msgspec.json.encode(running))
    (home / "workdir").write_text(str(folder / "w"))
    with (home / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield SimulatedHost(HostRoot(folder / "w/gpu-1", durable=False), spec)


def run(*argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(lab.command, argv)
    return result.exit_code, result.output


def test_every_fault_is_listed() -> None:
    code, text = run("faults")
    assert code == 0
    for name, fault in driverfaults.FAULTS.items():
        assert f"{name}\n    {fault.program} says: {fault.shows}\n" in text


def test_a_node_is_broken_and_repaired(host: SimulatedHost) -> None:
    code, text = run("break", "gpu-1", "no-kernel-headers")
    assert code == 0, text
    assert "Could not resolve Linux kernel version" in text and "delete the driver's pod on gpu-1" in text
    assert host.root.exists(FILE)
    assert run("repair", "gpu-1", "no-kernel-headers") == (0, "gpu-1: no-kernel-headers is repaired\n")
    assert not host.root.exists(FILE)


def test_a_setting_is_named(host: SimulatedHost) -> None:
    assert (
        "put KERNEL_MODULE_TYPE=closed into the driver's environment" in run("break", "gpu-1", "kernel-module-type")[1]
    )


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("break", "gpu-2", "secure-boot"), "there is no node 'gpu-2'; there are gpu-1"),
        (("break", "gpu-1", "fire"), "there is no fault 'fire'; there are daemons-not-ready"),
        (("repair", "gpu-1", "secure-boot", "--name", "other"), "no lab named 'other' is running"),
    ],
)
def test_what_is_not_there_is_named(host: SimulatedHost, argv: tuple[str, ...], told: str) -> None:
    code, text = run(*argv)
    assert code == 1 and told in text


def test_a_lab_of_real_nodes_is_not_broken_from_here(host: SimulatedHost) -> None:
    (Path(os.environ["GROUNDPLANE_HOME"]) / "lab/default/workdir").unlink()
    code, text = run("break", "gpu-1", "secure-boot")
    assert code == 1 and "real Kubernetes" in text
