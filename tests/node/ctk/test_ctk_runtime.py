"""`nvidia-ctk runtime configure`: contracts/toolkit-cdi.md 5.8."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.ctk import main
from groundplane.node.process import Completed

CONTAINERD, CONTAINERD_DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
DAEMON = "/etc/docker/daemon.json"
RUNC = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


async def run(process: FakeProcess, *arguments: str) -> int:
    process.argv = ("nvidia-ctk", "runtime", "configure", *arguments)
    return await main.run(process)


def docker(path: str = "nvidia-container-runtime", name: str = "nvidia") -> dict[str, Any]:
    return {"runtimes": {name: {"path": path, "args": []}}}


@pytest.mark.parametrize(
    ("arguments", "document"),
    [
        ((), docker()),
        (("--nvidia-runtime-name=gpu", "--nvidia-runtime-path=/a"), docker("/a", "gpu")),
        (("--runtime-path", "/b"), docker("/b")),
        (("--nvidia-set-as-default",), {**docker(), "default-runtime": "nvidia"}),
        (("--set-as-default", "--nvidia-runtime-name", "x"), {**docker(name="x"), "default-runtime": "x"}),
        (("--cdi.enabled",), {**docker(), "features": {"cdi": True}}),
        (("--cdi.enabled=false",), docker()),
        (("--config-source=command",), docker()),
        (("--executable-path=/dockerd",), docker()),
        (("--config-mode=config-file",), docker()),
        (("--config-mode=other",), docker()),
        (("--drop-in-config=",), docker()),
    ],
)
async def test_docker(tmp_path: Path, arguments: tuple[str, ...], document: dict[str, Any]) -> None:
    process = FakeProcess(tmp_path)
    assert await run(process, *arguments) == 0, process.stderr
    assert json.loads(process.root.read_text(DAEMON)) == document
    assert f"Wrote updated config to {DAEMON}" in process.stderr
    assert "It is recommended that docker daemon be restarted." in process.stderr
    assert await run(process, *arguments) == 0
    assert "nothing to do" in process.stderr


async def test_containerd(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONTAINERD, RUNC)
    assert await run(process, "--runtime=containerd", "--cdi.enabled") == 0, process.stderr
    assert tomllib.loads(process.root.read_text(CONTAINERD))["imports"] == ["/etc/containerd/conf.d/*.toml"]
    table = tomllib.loads(process.root.read_text(CONTAINERD_DROP_IN))["plugins"]["io.containerd.grpc.v1.cri"]
    assert table["enable_cdi"] is True
    assert table["containerd"]["runtimes"]["nvidia"] == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"BinaryName": "/usr/bin/nvidia-container-runtime"},
    }
    assert list(table["containerd"]["runtimes"]) == ["runc", "nvidia"], "a single handler"


async def test_other_files(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write("/c.toml", RUNC)
    arguments = ("--runtime=containerd", "--config=/c.toml", "--drop-in-config=/d/n.toml")
    assert await run(process, *arguments) == 0
    assert tomllib.loads(process.root.read_text("/c.toml"))["imports"] == ["/d/*.toml"]
    assert process.root.exists("/d/n.toml")
    assert not process.root.exists(CONTAINERD)


async def test_without_drop_in(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONTAINERD, RUNC)
    assert await run(process, "--runtime=containerd", "--drop-in-config=") == 0
    assert "nvidia" in process.root.read_text(CONTAINERD)
    assert not process.root.exists(CONTAINERD_DROP_IN)


async def test_command_source(tmp_path: Path) -> None:
    """Of the machine itself: no chroot; and what was written is verified by it."""
    process = FakeProcess(tmp_path)
    process.write(CONTAINERD, RUNC)
    handler = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\nruntime_type = 'x'\n"
    handler += "options = {BinaryName = '/usr/bin/nvidia-container-runtime'}\n"
    process.commands["mine"] = lambda argv, env, stdin: Completed(0, "version = 3\n" + handler, "")
    arguments = ("--runtime=containerd", "--config-source=command", "--executable-path=/opt/mine")
    assert await run(process, *arguments) == 0, process.stderr
    assert process.executed == [("/opt/mine", "config", "dump")] * 2


async def test_crio(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    assert await run(process, "--runtime=crio", "--set-as-default", "--cdi.enabled") == 0
    assert tomllib.loads(process.root.read_text(CRIO_DROP_IN)) == {
        "crio": {
            "runtime": {
                "default_runtime": "nvidia",
                "runtimes": {"nvidia": {"runtime_path": "/usr/bin/nvidia-container-runtime", "runtime_type": "oci"}},
            }
        }
    }
    assert "Ignoring cdi.enabled flag for crio" in process.stderr


async def test_dry_run(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONTAINERD, RUNC)
    assert await run(process, "--runtime=containerd", "--dry-run") == 0
    assert process.root.read_text(CONTAINERD) == RUNC
    assert not process.root.exists(CONTAINERD_DROP_IN)
    assert "runtimes.nvidia.options]" in process.stdout
    assert process.stdout.index("runtimes.nvidia]") < process.stdout.index("imports = ")
    assert "Drop-in config" in process.stderr
    assert "Top-level config" in process.stderr

    assert await run(process, "--dry-run") == 0
    assert json.loads(process.stdout.rpartition("\n{")[2].join("{ ")) == docker()
    assert not process.root.exists(DAEMON)


@pytest.mark.parametrize("mode", ["oci-hook", "hook"])
async def test_hook(tmp_path: Path, mode: str) -> None:
    process = FakeProcess(tmp_path)
    assert await run(process, f"--config-mode={mode}") == 0
    hook = json.loads(process.stdout)
    assert hook["hook"]["path"] == "/usr/bin/nvidia-container-runtime-hook"
    path = "/usr/share/containers/oci/hooks.d/nvidia.json"
    arguments = (f"--config-mode={mode}", f"--oci-hook-path={path}", "--nvidia-runtime-hook-path=/opt/hook")
    assert await run(process, *arguments) == 0, process.stderr
    written = json.loads(process.root.read_text(path))
    assert written["hook"]["path"] == "/opt/hook"
    assert written["hook"]["env"][0].endswith(":/opt")
    assert f'The "{mode}" config-mode is deprecated' in process.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--runtime=podman",), "unrecognized runtime 'podman'"),
        (("--config-source=both",), "unrecognized Config Source: both"),
        (("--drop-in-config=/x",), "runtime docker does not support drop-in configs"),
        (("--runtime=crio", "--drop-in-config=x"), 'the drop-in-config path "x" is not an absolute path'),
        (("--runtime=crio", "--runtime-path=x"), 'the NVIDIA runtime path "x" is not an absolute path'),
        (
            ("--config-mode=hook", "--nvidia-runtime-hook-path=x"),
            'the NVIDIA runtime hook path "x" is not an absolute path',
        ),
        (("--nonsense",), "flag provided but not defined: --nonsense"),
    ],
)
async def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    process = FakeProcess(tmp_path)
    assert await run(process, *arguments) == 1
    assert error in process.stderr
    assert not list(process.root.base.rglob("*"))


async def test_malformed(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(DAEMON, "{")
    assert await run(process) == 1
    assert f"unable to update config: {DAEMON} is not valid JSON" in process.stderr
    assert process.root.read_text(DAEMON) == "{"


async def test_help(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    assert await run(process, "--help") == 0
    assert "--drop-in-config" in process.stdout
