"""Hooks around a change (contracts/mig-exporter-validator.md 1.13)."""

import asyncio
import shutil

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import ownprocess
from groundplane.node.mig import change, hooks
from groundplane.node.mig.errors import MigError
from groundplane.node.process import Completed


class Recorded:
    """A change of which is noted what is asked of it; what it says differs is chosen."""

    def __init__(self, noted: list[str], *, mode: bool = False, config: bool = False, fails: str = "") -> None:
        self.noted, self.mode, self.config, self.fails = noted, mode, config, fails

    def check(self, *, mode_only: bool) -> None:
        self._note("check")

    def mode_differences(self) -> tuple[str, ...]:
        return ("mode",) if self.mode else ()

    async def apply_mode(self) -> None:
        self._note("mode")
        self.mode = False

    def config_differences(self) -> tuple[str, ...]:
        return ("config",) if self.config else ()

    async def apply_config(self) -> None:
        self._note("config")
        self.config = False

    def _note(self, what: str) -> None:
        self.noted.append(what)
        if self.fails == what:
            raise MigError(f"no {what}")


def around(folder, noted: list[str], *failing: str) -> hooks.Hooks:
    process = FakeProcess(folder)

    def env(argv, env, stdin) -> Completed:
        name = argv[-1]
        noted.append(name)
        return Completed(int(name in failing), "said\n", "")

    process.commands["env"] = env
    found = {name: (hooks.Hook(command="/run", args=(name,)),) for name in (*hooks.NAMES, "other")}
    return hooks.Hooks(process, found, {})


ALL = ["apply-start", "check", "pre-apply-mode", "mode", "pre-apply-config", "config", "apply-exit"]


@pytest.mark.parametrize(
    ("mode", "config", "mode_only", "noted"),
    [
        (True, True, False, ALL),
        (False, True, False, ["apply-start", "check", "pre-apply-config", "config", "apply-exit"]),
        (True, False, False, ["apply-start", "check", "pre-apply-mode", "mode", "apply-exit"]),
        (True, True, True, ["apply-start", "check", "pre-apply-mode", "mode", "apply-exit"]),
        (False, False, False, ["apply-start", "check", "apply-exit"]),
    ],
)
async def test_1_13_order(tmp_path, mode: bool, config: bool, mode_only: bool, noted: list[str]) -> None:
    found: list[str] = []
    await change.run(Recorded(found, mode=mode, config=config), around(tmp_path, found), mode_only=mode_only)
    assert found == noted


@pytest.mark.parametrize(
    ("failing", "fails", "noted", "words"),
    [
        (["apply-start"], "", ALL[:1], "error running apply-start hook: entry 0, /run: exit status 1: said"),
        (["pre-apply-mode"], "", [*ALL[:3], "apply-exit"], "error running pre-apply-mode hook"),
        (["pre-apply-config"], "", [*ALL[:5], "apply-exit"], "error running pre-apply-config hook"),
        (["apply-exit"], "", ALL, "error running apply-exit hook"),
        ([], "check", [*ALL[:2], "apply-exit"], "no check"),
        ([], "mode", [*ALL[:4], "apply-exit"], "no mode"),
        ([], "config", ALL, "no config"),
        (["apply-exit"], "config", ALL, "no config"),
    ],
)
async def test_1_13_failures(tmp_path, failing: list[str], fails: str, noted: list[str], words: str) -> None:
    found: list[str] = []
    with pytest.raises(MigError) as raised:
        await change.run(
            Recorded(found, mode=True, config=True, fails=fails), around(tmp_path, found, *failing), mode_only=False
        )
    assert found == noted
    assert words in str(raised.value)


async def test_1_13_a_change_that_does_not_hold_is_a_failure(tmp_path) -> None:
    class Claims(Recorded):
        async def apply_config(self) -> None:
            self.noted.append("config")

    found: list[str] = []
    with pytest.raises(MigError, match=r"selected configuration not currently applied$"):
        await change.run(Claims(found, config=True), around(tmp_path, found), mode_only=False)
    assert found[-1] == "apply-exit"


async def test_1_13_entries_run_in_order_until_one_fails(tmp_path) -> None:
    noted: list[str] = []
    process = FakeProcess(tmp_path)

    def env(argv, env, stdin) -> Completed:
        noted.append(argv[-1])
        return Completed(int(argv[-1] == "two"), "", "no luck")

    process.commands["env"] = env
    entries = tuple(hooks.Hook(command="/run", args=(name,)) for name in ("one", "two", "three"))
    with pytest.raises(MigError, match="entry 1, /run: exit status 1: no luck"):
        await hooks.Hooks(process, {"apply-start": entries}, {}).run("apply-start")
    assert noted == ["one", "two"]


def test_1_13_the_file() -> None:
    found = hooks.parse(
        """
version: v1
hooks:
  apply-start:
  - command: /bin/true
  - {command: /bin/sh, args: ["-c", "exit 0"], envs: {A: b}, workdir: /tmp}
  unheard-of:
  - command: /bin/false
  apply-exit:
""",
        "hooks.yaml",
    )
    assert found["apply-start"] == (
        hooks.Hook(command="/bin/true"),
        hooks.Hook(command="/bin/sh", args=("-c", "exit 0"), envs={"A": "b"}, workdir="/tmp"),
    )
    assert found["apply-exit"] == ()
    assert hooks.parse("", "hooks.yaml") == {}


@pytest.mark.parametrize(
    "text",
    [
        "version: v2",
        "[]",
        "hooks: []",
        "version: v1\nhooks: {a: [{args: [b]}]}",
        "version: v1\nhooks: {a: [{command: ''}]}",
        "version: v1\nhooks: {a: [{command: x, envs: {A: 1}}]}",
        "hooks: [",
    ],
)
def test_1_13_bad_files(text: str) -> None:
    with pytest.raises(MigError, match=r"(?s)hooks file hooks\.yaml: .*expected version: v1, and hooks"):
        hooks.parse(text, "hooks.yaml")


@pytest.mark.skipif(shutil.which("env") is None, reason="there is no env")
async def test_1_13_a_hook_gets_its_own_environment_and_the_flags_only(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    process = ownprocess.OwnProcess(["nvidia-mig-parted"], {"SECRET": "1", "PATH": "/usr/bin:/bin"})
    script = f"/usr/bin/env | sort > {tmp_path}/env; pwd > {tmp_path}/pwd; echo shown; echo more >&2"
    hook = hooks.Hook(command="/bin/sh", args=("-c", script), envs={"MINE": "a b=c", "FLAG": "x"}, workdir="/usr")
    shown: list[str] = []
    await hooks.Hooks(process, {"apply-start": (hook,)}, {"FLAG": "true"}, output=shown.append).run("apply-start")
    own = {line for line in (tmp_path / "env").read_text().splitlines() if not line.startswith(("PWD", "SHLVL", "_="))}
    assert own == {"MINE=a b=c", "FLAG=true"}
    assert (tmp_path / "pwd").read_text() == "/usr\n"
    assert shown == ["shown\nmore"]


async def test_a_command_that_is_not_there(tmp_path) -> None:
    process = ownprocess.OwnProcess(["nvidia-mig-parted"], {})
    hook = hooks.Hook(command=str(tmp_path / "none"))
    with pytest.raises(MigError, match=r"error running apply-start hook: entry 0, .*none: exit status 127"):
        await hooks.Hooks(process, {"apply-start": (hook,)}, {}).run("apply-start")


async def test_1_13_a_hook_may_not_go_on_for_ever(tmp_path) -> None:
    process = FakeProcess(tmp_path, pace=100_000)
    ended = asyncio.Event()

    async def execute(argv, *, env=None, stdin="") -> Completed:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    process.execute = execute  # type: ignore[method-assign]
    with pytest.raises(MigError, match="it was ended after 600 s; does it wait for something that waits for us"):
        await hooks.Hooks(process, {"apply-exit": (hooks.Hook(command="/x"),)}, {}).run("apply-exit")
    assert ended.is_set()


async def test_a_signal_ends_a_hook_and_apply_exit_runs(tmp_path) -> None:
    noted: list[str] = []
    process = FakeProcess(tmp_path)

    async def execute(argv, *, env=None, stdin="") -> Completed:
        noted.append(argv[-1])
        if argv[-1] == "pre-apply-config":
            await asyncio.Event().wait()
        return Completed(0, "", "")

    process.execute = execute  # type: ignore[method-assign]
    found = {name: (hooks.Hook(command="/run", args=(name,)),) for name in hooks.NAMES}
    running = asyncio.ensure_future(
        change.run(Recorded(noted, config=True), hooks.Hooks(process, found, {}), mode_only=False)
    )
    while "pre-apply-config" not in noted:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert noted == ["apply-start", "check", "pre-apply-config", "apply-exit"]
