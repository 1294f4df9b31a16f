"""`nvidia-ctk cdi list` (contracts/toolkit-cdi.md 1.4, 3.9)."""

from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.cdi import write
from groundplane.node.cdi.model import ContainerEdits, Device, Spec
from groundplane.node.ctk import cdilist


@pytest.fixture
def process(tmp_path: Path) -> FakeProcess:
    return FakeProcess(tmp_path, ["nvidia-ctk"])


def add(process: FakeProcess, file: str, *names: str, kind: str = "nvidia.com/gpu") -> None:
    devices = tuple(Device(name, ContainerEdits(env=("A=B",))) for name in names)
    process.write(file, write.encode(Spec(kind=kind, devices=devices), write.Format.YAML))


async def listed(process: FakeProcess, *arguments: str) -> list[str]:
    assert await cdilist.list_devices(process, arguments) == 0
    return process.stdout.splitlines()


async def test_nothing(process: FakeProcess) -> None:
    assert await listed(process) == []
    assert (process.stdout, process.stderr) == ("", "")


async def test_names_in_order(process: FakeProcess) -> None:
    add(process, "/var/run/cdi/a.yaml", "10", "2", "all")
    add(process, "/etc/cdi/b.yaml", "all", kind="management.nvidia.com/gpu")
    assert await listed(process) == [
        "management.nvidia.com/gpu=all",
        "nvidia.com/gpu=10",
        "nvidia.com/gpu=2",
        "nvidia.com/gpu=all",
    ]
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (["--spec-dir", "/x"], "", ["nvidia.com/gpu=x"]),
        (["--spec-dir=/x", "--spec-dir", "/y"], "", ["nvidia.com/gpu=x", "nvidia.com/gpu=y"]),
        (["--spec-dir=/x,/y"], "", ["nvidia.com/gpu=x", "nvidia.com/gpu=y"]),
        ([], "/y", ["nvidia.com/gpu=y"]),
        ([], "/x,/y", ["nvidia.com/gpu=x", "nvidia.com/gpu=y"]),
        (["--spec-dir=/x"], "/y", ["nvidia.com/gpu=x"]),
        (["--spec-dir=/none"], "", []),
    ],
)
async def test_folders(process: FakeProcess, arguments: list[str], env: str, expected: list[str]) -> None:
    for name in "xy":
        add(process, f"/{name}/{name}.yaml", name)
    add(process, "/etc/cdi/z.yaml", "z")
    process.env = {"NVIDIA_CTK_CDI_SPEC_DIRS": env} if env else {}
    assert await listed(process, *arguments) == expected


async def test_what_is_wrong_is_told_and_the_rest_is_listed(process: FakeProcess) -> None:
    add(process, "/etc/cdi/a.yaml", "0", "1")
    add(process, "/etc/cdi/b.yaml", "1", "2")
    process.write("/etc/cdi/c.yaml", "")
    process.write("/etc/cdi/d.json", "{foo: 1}")
    assert await listed(process) == ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]
    for text in (
        'conflicting device "nvidia.com/gpu=1" (specs "/etc/cdi/b.yaml", "/etc/cdi/a.yaml")',
        "failed to load CDI spec /etc/cdi/c.yaml: there is no CDI spec in it",
        "failed to load CDI spec /etc/cdi/d.json: line 1: foo: unknown field",
    ):
        assert process.stderr.count(text) == 1
    assert all(line.startswith("W") for line in process.stderr.splitlines())


async def test_a_wrong_option_is_told(process: FakeProcess) -> None:
    assert await cdilist.list_devices(process, ["--spec-dirs=/x"]) == 1
    assert "flag provided but not defined: --spec-dirs" in process.stderr


async def test_help(process: FakeProcess) -> None:
    assert await cdilist.list_devices(process, ["--help"]) == 0
    assert "--spec-dir" in process.stdout
    assert "NVIDIA_CTK_CDI_SPEC_DIRS" in process.stdout
