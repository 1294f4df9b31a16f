"""Rules of CRI-O's and Docker's configuration: contracts/toolkit-cdi.md 5.4, 5.5 and 8."""

import json
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import CONFIGS, DEST, DROP_INS, HANDLERS, STATE, docker, files, settings, toml

from groundplane.node.process import Completed
from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.settings import RuntimeConfigError

CRIO_DROP_IN = DROP_INS["crio"]
DAEMON = CONFIGS["docker"]
CRUN = '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'

# --- CRI-O ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("working", "executed"),
    [
        ("crio status config", [("chroot", "/host", "crio", "status", "config")]),
        (
            "crio-status config",
            [("chroot", "/host", "crio", "status", "config"), ("chroot", "/host", "crio-status", "config")],
        ),
    ],
)
async def test_crio_commands(tmp_path: Path, working: str, executed: list[tuple[str, ...]]) -> None:
    """5.2: `crio status config`, then `crio-status config`."""
    process = FakeProcess(tmp_path)
    process.commands["chroot"] = lambda argv, env, stdin: (
        Completed(0, CRUN, "")
        if " ".join(argv[2:]).endswith(working) and argv[2] == working.split()[0]
        else Completed(1, "", "no such command")
    )
    wanted = settings("crio", sources=("command", "file"))
    assert await runtimes.low_level(process, wanted) == ("/usr/bin/crun", "runc", "crun")
    assert process.executed == executed


async def test_crio_without_anything_to_inherit(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    await runtimes.configure(process, settings("crio", handlers=HANDLERS[:1]))
    assert toml(process, CRIO_DROP_IN) == {
        "crio": {"runtime": {"runtimes": {"nvidia": {"runtime_path": HANDLERS[0].path, "runtime_type": "oci"}}}}
    }
    assert not process.root.exists(CONFIGS["crio"])


async def test_crio_second_run_by_its_command(tmp_path: Path) -> None:
    """What CRI-O tells after the first run has our default; the original one is remembered."""
    process = FakeProcess(tmp_path)
    process.write(CONFIGS["crio"], CRUN)

    def status(argv: Any, env: Any, stdin: str) -> Completed:
        own = process.root.read_text(CRIO_DROP_IN) if process.root.exists(CRIO_DROP_IN) else ""
        return Completed(0, _merged(own), "")

    process.commands["chroot"] = status
    wanted = settings("crio", default="nvidia", sources=("command",))
    assert await runtimes.configure(process, wanted)
    before = files(process)
    assert not await runtimes.configure(process, wanted)
    assert files(process) == before


def _merged(drop_in: str) -> str:
    if not drop_in:
        return CRUN
    return drop_in + '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'


async def test_crio_drop_in_of_a_person(tmp_path: Path) -> None:
    """What a person has written into the drop-in stays in force, and comes back as it was."""
    process = FakeProcess(tmp_path)
    text = "# ours\n[crio.runtime]\nlog_level = 'debug'   # loud\n"
    process.write(CRIO_DROP_IN, text)
    await runtimes.configure(process, settings("crio", default="nvidia"))
    assert toml(process, CRIO_DROP_IN)["crio"]["runtime"]["log_level"] == "debug"
    assert "# ours" in process.root.read_text(CRIO_DROP_IN)
    await runtimes.revert(process, settings("crio", default="nvidia"))
    assert process.root.read_text(CRIO_DROP_IN) == text


@pytest.mark.parametrize(("default", "restart"), [("", False), ("nvidia", True)])
async def test_crio_restart_after_revert(tmp_path: Path, default: str, *, restart: bool) -> None:
    """5.4: CRI-O is restarted at the end only if the default was set."""
    process = FakeProcess(tmp_path)
    await runtimes.configure(process, settings("crio", default=default))
    assert await runtimes.revert(process, settings("crio", default=default)) is restart
    assert files(process) == {}


@pytest.mark.parametrize("default", ["", "nvidia"])
async def test_crio_cleanup_without_memory(tmp_path: Path, default: str) -> None:
    """5.4: only a default that we set goes, the handlers stay."""
    process = FakeProcess(tmp_path)
    wanted = settings("crio", default=default)
    await runtimes.configure(process, wanted)
    process.root.remove(STATE)
    before = toml(process, CRIO_DROP_IN)
    assert await runtimes.revert(process, wanted) is bool(default)
    before["crio"]["runtime"].pop("default_runtime", None)
    assert toml(process, CRIO_DROP_IN) == before


@pytest.mark.parametrize(
    ("hook_path", "path"),
    [
        (
            f"{DEST}/nvidia-container-runtime-hook",
            f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{DEST}",
        ),
        ("/usr/bin/nvidia-container-runtime-hook", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ],
)
async def test_crio_hook(tmp_path: Path, hook_path: str, path: str) -> None:
    process = FakeProcess(tmp_path)
    wanted = settings("crio", config_mode="hook", hook_path=hook_path)
    assert not await runtimes.configure(process, wanted)
    assert json.loads(process.root.read_text("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json")) == {
        "version": "1.0.0",
        "hook": {
            "path": hook_path,
            "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": [f"PATH={path}"],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    assert "deprecated" in process.stderr
    assert not await runtimes.revert(process, wanted)
    assert files(process) == {}
    with pytest.raises(RuntimeConfigError, match="error removing hook: "):
        await runtimes.revert(process, wanted)


async def test_crio_hook_without_memory(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    wanted = settings("crio", config_mode="hook", hook_path="/usr/bin/hook", state="")
    await runtimes.configure(process, wanted)
    assert not await runtimes.revert(process, wanted)
    assert files(process) == {}


async def test_crio_unknown_mode(tmp_path: Path) -> None:
    with pytest.raises(RuntimeConfigError, match='invalid cri-o config mode: "hoook"'):
        await runtimes.configure(FakeProcess(tmp_path), settings("crio", config_mode="hoook"))


# --- Docker -----------------------------------------------------------------------------------------------------------


async def test_docker_new_file(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    await runtimes.configure(process, settings("docker", handlers=HANDLERS[:1], default="nvidia", enable_cdi=True))
    assert process.root.read_text(DAEMON) == (
        '{\n    "runtimes": {\n        "nvidia": {\n'
        f'            "path": "{HANDLERS[0].path}",\n            "args": []\n'
        '        }\n    },\n    "default-runtime": "nvidia",\n    "features": {\n        "cdi": true\n    }\n}'
    )
    assert process.path(DAEMON).stat().st_mode & 0o777 == 0o644
    await runtimes.revert(process, settings("docker"))
    assert files(process) == {}


async def test_docker_keeps_other_features(tmp_path: Path) -> None:
    """5.5 BETTER: the peer forgets them."""
    process = FakeProcess(tmp_path)
    process.write(DAEMON, '{"features": {"buildkit": true, "containerd-snapshotter": false}}')
    await runtimes.configure(process, settings("docker", enable_cdi=True))
    assert docker(process)["features"] == {"buildkit": True, "containerd-snapshotter": False, "cdi": True}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"runtimes": {"nvidia": {"path": "x"}}, "default-runtime": "nvidia"}, {"default-runtime": "runc"}),
        (
            {"runtimes": {"nvidia-cdi": {}, "a": {}}, "default-runtime": "a"},
            {"runtimes": {"a": {}}, "default-runtime": "a"},
        ),
        ({"features": {"cdi": True}, "debug": True}, {"features": {"cdi": True}, "debug": True}),
        ({"runtimes": {"nvidia": {}, "nvidia-legacy": {}}}, {}),
    ],
)
async def test_docker_cleanup_without_memory(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """5.5, 8 #15: the file stays, with all that is not ours."""
    process = FakeProcess(tmp_path)
    process.write(DAEMON, json.dumps(before, indent=2))
    await runtimes.revert(process, settings("docker"))
    assert docker(process) == after


async def test_docker_low_level(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(DAEMON, '{"default-runtime": "x", "runtimes": {"crun": {"path": "/crun"}, "x": {"path": "/x"}}}')
    assert await runtimes.low_level(process, settings("docker", sources=())) == ("/x", "/crun", "runc", "crun")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not valid JSON: Expecting property name"),
        ("[]", "it holds no object"),
        ('{"a": 1, "a": 2}', '"a" is there twice'),
        ('{"a": NaN}', "NaN is no JSON value"),
        ('{"runtimes": []}', '"runtimes" is not an object'),
        ('{"features": true}', '"features" is not an object'),
        ("{} // comment", "is not valid JSON: Extra data"),
    ],
)
async def test_docker_malformed(tmp_path: Path, text: str, error: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(DAEMON, text)
    with pytest.raises(RuntimeConfigError) as caught:
        await runtimes.configure(process, settings("docker", enable_cdi=True))
    assert error in str(caught.value)
    assert DAEMON in str(caught.value)
    assert files(process) == {DAEMON[1:]: (text.encode(), 0o644)}
