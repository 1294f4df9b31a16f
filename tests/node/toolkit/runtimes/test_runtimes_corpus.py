"""A corpus of configurations as distributions write them: configured, configured again, and taken back.

contracts/toolkit-cdi.md 5.3 to 5.5; "configure after configure is a no-op, revert after configure restores the bytes".
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import (
    CONFIGS,
    DROP_INS,
    HANDLERS,
    STATE,
    TABLES,
    FakeContainerd,
    corpus,
    docker,
    files,
    settings,
    toml,
)

from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.runtimes.documents import at, same

CONTAINERD = corpus("containerd")
CRIO = corpus("crio")
DOCKER = corpus("docker")
ALL = [(path.parent.name, path) for path in (*CONTAINERD, *CRIO, *DOCKER)]


def identify(value: Any) -> str:
    return value.name if isinstance(value, Path) else str(value)


def test_there_are_enough() -> None:
    assert len(ALL) >= 40


@pytest.mark.parametrize("default", ["", "nvidia"])
@pytest.mark.parametrize(("runtime", "path"), ALL, ids=identify)
async def test_round_trip(tmp_path: Path, runtime: str, path: Path, default: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIGS[runtime], path.read_bytes()).chmod(0o640)
    wanted = settings(runtime, default=default, enable_cdi=True)
    before = files(process)

    assert await runtimes.configure(process, wanted)
    configured = files(process)
    assert not await runtimes.configure(process, wanted)
    assert files(process) == configured
    assert configured[CONFIGS[runtime][1:]][1] == 0o640

    await runtimes.revert(process, wanted)
    assert files(process) == before
    if b'"nvidia"' not in path.read_bytes():  # a handler of that name goes where nothing is remembered (5.3, cleanup)
        assert not await runtimes.revert(process, wanted)
        assert files(process) == before


@pytest.mark.parametrize("path", CONTAINERD, ids=identify)
async def test_containerd_outcome(tmp_path: Path, path: Path) -> None:
    """The handlers are there with what runc (or the default) has, and the file gains nothing but what it must."""
    process = FakeProcess(tmp_path)
    before = tomllib.loads(path.read_text())
    process.write(CONFIGS["containerd"], path.read_bytes())
    await runtimes.configure(process, settings("containerd", default="nvidia"))

    version = before.get("version", 1 if before else 2)
    top = toml(process, CONFIGS["containerd"])
    if version == 1:
        assert not process.root.exists(DROP_INS["containerd"])
        changed = top
    else:
        changed = toml(process, DROP_INS["containerd"])
        assert top.pop("imports") == list(dict.fromkeys((*before.pop("imports", []), "/etc/containerd/conf.d/*.toml")))
        assert same(top, before or {"version": 2})
        lines = process.root.read_text(CONFIGS["containerd"]).splitlines()
        assert all(line in lines or "imports" in line or "]" in line for line in path.read_text().splitlines())
    assert changed.get("version", 1) == version

    cri = changed["plugins"][TABLES[version]]
    own = at(before, ("plugins", TABLES[version]))
    base = inherited(own if isinstance(own, dict) else {})
    for handler in HANDLERS:
        table = cri["containerd"]["runtimes"][handler.name]
        options = {**base.get("options", {}), "BinaryName": handler.path}
        if version == 1:
            options["Runtime"] = handler.path
        assert table["options"] == options
        assert table["runtime_type"] == base.get("runtime_type", "io.containerd.runc.v2")
    assert cri["containerd"]["default_runtime_name"] == "nvidia"
    if isinstance(own, dict):  # a whole copy: nothing of the user's is forgotten by containerd before 2.1
        kept = {name: table for name, table in runtimes_of(own).items() if not name.startswith("nvidia")}
        assert kept.items() <= runtimes_of(cri).items()
        assert {key: value for key, value in own.items() if key != "containerd"}.items() <= cri.items()


def runtimes_of(cri: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = cri.get("containerd", {}).get("runtimes", {})
    return found


def inherited(cri: dict[str, Any]) -> dict[str, Any]:
    default = cri.get("containerd", {}).get("default_runtime_name", "")
    names = ("" if default.startswith("nvidia") else default, "runc", "crun")
    found = next((runtimes_of(cri)[name] for name in names if name in runtimes_of(cri)), {})
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("cuts", [False, True], ids=["merges", "replaces"])
@pytest.mark.parametrize("default", ["", "nvidia"])
@pytest.mark.parametrize("path", CONTAINERD, ids=identify)
async def test_containerd_by_its_command(tmp_path: Path, path: Path, default: str, *, cuts: bool) -> None:
    """With the command as source, the second run sees what the first wrote, and is a no-op all the same."""
    process = FakeProcess(tmp_path)
    version = tomllib.loads(path.read_text()).get("version", 1)
    containerd = FakeContainerd(process, prints=max(version, 2), newest=4, cuts=cuts)
    process.write(CONFIGS["containerd"], path.read_bytes())
    before, dumped = files(process), containerd.dump(CONFIGS["containerd"])
    wanted = settings("containerd", default=default, sources=("command", "file"), enable_cdi=True)

    assert await runtimes.configure(process, wanted)
    configured = files(process)
    assert not await runtimes.configure(process, wanted)
    assert files(process) == configured
    process.root.remove(STATE)
    assert not await runtimes.configure(process, wanted), "the memory may be lost"
    assert {key: value for key, value in files(process).items() if key != STATE[1:]} == {
        key: value for key, value in configured.items() if key != STATE[1:]
    }
    process.write(STATE, configured[STATE[1:]][0])  # type: ignore[arg-type]

    await runtimes.revert(process, wanted)
    assert files(process) == before
    assert containerd.dump(CONFIGS["containerd"]) == dumped


@pytest.mark.parametrize("path", CRIO, ids=identify)
async def test_crio_outcome(tmp_path: Path, path: Path) -> None:
    """5.4: the main file stays as it is; the drop-in has the handlers, with what is inherited."""
    process = FakeProcess(tmp_path)
    process.write(CONFIGS["crio"], path.read_bytes())
    await runtimes.configure(process, settings("crio", default="nvidia"))
    assert process.root.path(CONFIGS["crio"]).read_bytes() == path.read_bytes()

    runtime = tomllib.loads(path.read_text()).get("crio", {}).get("runtime", {})
    tables = runtime.get("runtimes", {})
    names = (runtime.get("default_runtime", ""), "runc", "crun")
    base = next((tables[name] for name in names if name in tables), {})
    assert toml(process, DROP_INS["crio"]) == {
        "crio": {
            "runtime": {
                "default_runtime": "nvidia",
                "runtimes": {
                    each.name: {**base, "runtime_path": each.path, "runtime_type": "oci"} for each in HANDLERS
                },
            }
        }
    }


@pytest.mark.parametrize("path", DOCKER, ids=identify)
async def test_docker_outcome(tmp_path: Path, path: Path) -> None:
    """5.5: handlers, default and feature; all else as it was, in its order and layout."""
    process = FakeProcess(tmp_path)
    process.write(CONFIGS["docker"], path.read_bytes())
    await runtimes.configure(process, settings("docker", default="nvidia", enable_cdi=True))
    before = json.loads(path.read_text() or "{}")
    after = docker(process)
    assert after == {
        **before,
        "runtimes": {**before.get("runtimes", {}), **{each.name: {"path": each.path, "args": []} for each in HANDLERS}},
        "default-runtime": "nvidia",
        "features": {**before.get("features", {}), "cdi": True},
    }
    assert list(after)[: len(before)] == list(before)
    touched = ("nvidia", "default-runtime", "features", "cdi", "buildkit", "runtimes", "path", "rgs", "snapshotter")
    text = process.root.path(CONFIGS["docker"]).read_bytes().decode()
    for line in path.read_bytes().decode().splitlines():
        if not any(word in line for word in touched) and line.strip(" \t{},"):
            assert line in text
