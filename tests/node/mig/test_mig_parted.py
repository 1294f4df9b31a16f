"""The program nvidia-mig-parted (contracts/mig-exporter-validator.md 1.12)."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from signal import Signals

import pytest
import yaml
from node.fakeprocess import FakeProcess, until
from node.mig.migworld import Node

from groundplane.node.devices.simulated import GpuEntry, Mig
from groundplane.node.mig import parted
from groundplane.node.process import Completed

A100, H100, T4 = "A100-SXM4-40GB", "H100-SXM5-80GB", "T4"
LAYOUTS = """
version: v1
mig-configs:
  all-disabled:
  - {devices: all, mig-enabled: false}
  small:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 4}}
  too-much:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 8}}
  filtered:
  - {devices: all, device-filter: "0xBAD", mig-enabled: true, mig-devices: {1g.10gb: 4}}
"""


class Shell:
    """Runs the program again and again on one machine."""

    def __init__(self, folder: Path, *gpus: str | GpuEntry) -> None:
        self.folder = folder
        self.node = Node(folder, gpus)
        self.node.source.close()
        self.process = self.new()
        self.process.write("/layouts.yaml", LAYOUTS)

    def new(self, *argv: str, env: Mapping[str, str] | None = None) -> FakeProcess:
        return FakeProcess(self.folder, ("nvidia-mig-parted", *argv), env, source=self.node.source)

    async def run(self, *argv: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> tuple[int, str, str]:
        self.process = self.new(*argv, env=env)
        self.process.given = stdin
        code = await parted.run(self.process)
        return code, self.process.stdout, self.process.stderr

    def shapes(self) -> object:
        with self.node.source:
            return self.node.shapes()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, A100, H100, T4)


async def test_1_12_a_layout_comes_and_goes(shell: Shell) -> None:
    small = ("-f", "/layouts.yaml", "-c", "small")
    assert await shell.run("assert", "--valid-config", *small) == (0, "Selected MIG configuration is valid\n", "")
    code, out, err = await shell.run("assert", *small)
    assert (code, out) == (1, "")
    assert err.endswith("selected configuration not currently applied\n")
    assert await shell.run("apply", "--mode-only", *small) == (0, "MIG configuration applied successfully\n", "")
    mode = (0, "Selected MIG mode settings from configuration currently applied\n", "")
    assert await shell.run("assert", "-m", *small) == mode
    assert (await shell.run("assert", *small))[0] == 1
    assert await shell.run("apply", *small) == (0, "MIG configuration applied successfully\n", "")
    assert await shell.run("assert", *small) == (0, "Selected MIG configuration currently applied\n", "")
    off = ("-f", "/layouts.yaml", "--selected-config=all-disabled")
    assert (await shell.run("apply", *off))[0] == 0
    assert (await shell.run("assert", *off))[0] == 0


async def test_1_12_environment(shell: Shell) -> None:
    env = {"MIG_PARTED_CONFIG_FILE": "/layouts.yaml", "MIG_PARTED_SELECTED_CONFIG": "small", "MIG_PARTED_DEBUG": "true"}
    code, out, err = await shell.run("apply", env=env)
    assert (code, out) == (0, "MIG configuration applied successfully\n")
    assert "creating 1g.10gb at 0:2" in err
    only = {**env, "MIG_PARTED_VALID_CONFIG": "true", "MIG_PARTED_SELECTED_CONFIG": "too-much"}
    assert (await shell.run("assert", env=only))[1] == "Selected MIG configuration is valid\n"
    modes = {**env, "MIG_PARTED_MODE_CHANGE_ONLY": "1", "MIG_PARTED_SELECTED_CONFIG": "too-much"}
    assert (await shell.run("assert", env=modes))[0] == 0
    assert (await shell.run("assert", "-m=false", env=modes))[0] == 1


async def test_standard_input(shell: Shell) -> None:
    one = b'{"version": "v1", "mig-configs": {"x": [{"devices": "all", "mig-enabled": false}]}}'
    assert (await shell.run("assert", "-f", "-", stdin=one))[0] == 0
    assert (await shell.run("assert", "-f", "-", stdin=b"\xff"))[0] == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["assert"], "missing required flags 'config-file'"),
        (["apply"], "missing required flags 'config-file'"),
        (["checkpoint"], "missing required flags 'checkpoint-file'"),
        (["restore"], "missing required flags 'checkpoint-file'"),
        (["export", "-o", "toml"], "unrecognized 'output-format': toml"),
        (["generate-config", "--output-format=xml"], "unrecognized 'output-format': xml"),
        (["frobnicate"], 'unexpected argument "frobnicate"'),
        (["-d"], "no command; it takes apply, assert"),
        (["apply", "--frobnicate"], "flag provided but not defined: --frobnicate"),
        (["assert", "-f", "/none.yaml"], "config file /none.yaml cannot be read"),
        (["assert", "-f", "/layouts.yaml"], "missing required flag 'selected-config' when more than one config"),
        (["apply", "-f", "/layouts.yaml", "-c", "nope"], "selected mig-config not present: 'nope'; available are"),
        (["apply", "-f", "/layouts.yaml", "-c", "too-much"], "room for 4 x 1"),
        (["apply", "-f", "/layouts.yaml", "-c", "small", "-k", "/hooks.yaml"], "hooks file /hooks.yaml cannot be read"),
        (["restore", "-f", "/none.json"], "checkpoint file /none.json cannot be read"),
        (["restore", "-f", "/layouts.yaml"], "checkpoint file /layouts.yaml: "),
    ],
)
async def test_what_is_wrong_is_told_and_nothing_is_changed(shell: Shell, argv: list[str], words: str) -> None:
    before = shell.node.machine.file.read_bytes()
    code, out, err = await shell.run(*argv)
    assert (code, out) == (1, "")
    assert words in err
    assert shell.node.machine.file.read_bytes() == before


async def test_1_3_a_malformed_filter_is_told_loudly(shell: Shell) -> None:
    for argv in (["apply"], ["assert"]):
        code, _, err = await shell.run(*argv, "-f", "/layouts.yaml", "-c", "filtered")
        assert code == 1
        assert "GPU 0" in err
    code, _, err = await shell.run("assert", "-a", "-f", "/layouts.yaml", "-c", "filtered")
    assert (code, err) == (0, ""), "0xBAD is a number, of which no GPU is"
    text = LAYOUTS.replace('"0xBAD"', "A100")
    code, _, err = await shell.run("assert", "-a", "-f", "-", "-c", "filtered", stdin=text.encode())
    assert code == 0
    assert "mig-configs.filtered[0].device-filter: 'A100' is malformed and matches no GPU" in err


async def test_help_and_version(shell: Shell) -> None:
    for argv in ([], ["--help"], ["-h"]):
        code, out, err = await shell.run(*argv)
        assert (code, err) == (0, "")
        assert all(word in out for word in ("apply", "assert", "export", "checkpoint", "restore", "generate-config"))
    code, out, _ = await shell.run("apply", "--help")
    assert code == 0
    assert all(each in out for each in ("--hooks-file, -k", "--skip-reset, -s", "$MIG_PARTED_MODE_CHANGE_ONLY"))
    assert (await shell.run("--version"))[1].startswith("nvidia-mig-parted version ")


async def test_1_12_export(shell: Shell) -> None:
    await shell.run("apply", "-f", "/layouts.yaml", "-c", "small")
    code, out, _ = await shell.run("export", "-l", "mine")
    assert code == 0
    assert list(yaml.safe_load(out)["mig-configs"]) == ["mine"]
    _, as_json, _ = await shell.run("export", "--output-format", "json", env={"MIG_PARTED_CONFIG_LABEL": "mine"})
    assert json.loads(as_json) == yaml.safe_load(out)
    again = await shell.run("assert", "-f", "-", stdin=out.encode())
    assert again == (0, "Selected MIG configuration currently applied\n", "")


async def test_1_12_checkpoint_and_restore(shell: Shell) -> None:
    await shell.run("apply", "-f", "/layouts.yaml", "-c", "small")
    before = shell.shapes()
    assert await shell.run("checkpoint", "-f", "/run/state.json") == (
        0,
        "MIG configuration checkpointed successfully\n",
        "",
    )
    await shell.run("apply", "-f", "/layouts.yaml", "-c", "all-disabled")
    assert shell.shapes() != before
    restored = await shell.run("restore", env={"MIG_PARTED_CHECKPOINT_FILE": "/run/state.json"})
    assert restored == (0, "MIG configuration restored successfully\n", "")
    assert shell.shapes() == before


async def test_1_12_generate_config(shell: Shell) -> None:
    code, out, _ = await shell.run("generate-config")
    assert code == 0
    assert {"all-disabled", "all-balanced", "all-1g.10gb"} < set(yaml.safe_load(out)["mig-configs"])
    assert await shell.run("generate-config", "-f", "/out/layouts.json", "-o", "json") == (0, "", "")
    assert json.loads(shell.process.path("/out/layouts.json").read_text()) == yaml.safe_load(out)
    for name in yaml.safe_load(out)["mig-configs"]:
        assert (await shell.run("apply", "-f", "/out/layouts.json", "-c", name))[0] == 0, name
    code, _, err = await shell.run("apply", "-f", "/out/layouts.json", "-c", "all-1g.5gb")
    assert "GPU 1 (NVIDIA H100 80GB HBM3, 00000000:18:00.0) is matched by no entry of the layout" in err


async def test_2_every_generated_layout_can_be_applied(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "RTX-PRO-6000", "RTX-PRO-6000")
    _, out, _ = await shell.run("generate-config")
    for name in yaml.safe_load(out)["mig-configs"]:
        argv = ("-f", "-", "-c", name)
        assert (await shell.run("apply", *argv, stdin=out.encode()))[0] == 0, name
        assert (await shell.run("assert", *argv, stdin=out.encode()))[0] == 0, name


async def test_a_full_disk_keeps_the_old_file(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    await shell.run("checkpoint", "-f", "/state.json")
    old = shell.process.path("/state.json").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parted, "write_atomic", full)
    code, out, err = await shell.run("checkpoint", "-f", "/state.json")
    assert (code, out) == (1, "")
    assert "/state.json cannot be written, and is as it was: [Errno 28] No space left on device" in err
    assert shell.process.path("/state.json").read_bytes() == old


HOOKS = """
version: v1
hooks:
  apply-start: [{command: /bin/start, envs: {OWN: "1", MIG_PARTED_SKIP_RESET: own}}]
  apply-exit: [{command: /bin/exit}]
"""


async def test_1_13_hooks_get_the_flags(shell: Shell) -> None:
    shell.process.write("/hooks.yaml", HOOKS)
    ran: list[tuple[str, ...]] = []

    def env(argv, env, stdin) -> Completed:
        ran.append(tuple(argv[2:]))
        return Completed(0, "from a hook", "")

    for debug in (False, True):
        argv = ["apply", "-f", "/layouts.yaml", "-c", "small", "-k", "/hooks.yaml"]
        shell.process = shell.new(*(["-d"] if debug else []), *argv)
        shell.process.commands["env"] = env
        assert await parted.run(shell.process) == 0
        assert ("from a hook" in shell.process.stderr) == debug
    assert ran[0] == (
        "OWN=1",
        "MIG_PARTED_SKIP_RESET=false",
        "MIG_PARTED_CONFIG_FILE=/layouts.yaml",
        "MIG_PARTED_SELECTED_CONFIG=small",
        "MIG_PARTED_HOOKS_FILE=/hooks.yaml",
        "MIG_PARTED_MODE_CHANGE_ONLY=false",
        "/bin/start",
    )
    assert [argv[-1] for argv in ran] == ["/bin/start", "/bin/exit"] * 2


async def test_a_signal_ends_it_between_two_steps(shell: Shell) -> None:
    shell.process.write("/hooks.yaml", HOOKS)
    shell.process = shell.new("apply", "-f", "/layouts.yaml", "-c", "small", "-k", "/hooks.yaml")
    asked: list[str] = []

    async def execute(argv, *, env=None, stdin="") -> Completed:
        asked.append(argv[-1])
        if argv[-1] == "/bin/start":
            await asyncio.Event().wait()
        return Completed(0, "", "")

    shell.process.execute = execute  # type: ignore[method-assign]
    running = asyncio.ensure_future(parted.run(shell.process))
    await until(lambda: asked)
    shell.process.send(Signals.SIGTERM)
    assert await running == 1
    assert "ended by SIGTERM; run it again to bring it to its end" in shell.process.stderr
    assert asked == ["/bin/start"], "apply-exit does not follow an apply-start that failed"


@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        ("nvidia 1 0 - Live 0x0\n", True),
        ("snd 1\nnvidia 55 0\n", True),
        ("nvidia_uvm 1 0 - Live 0x0\nnvidiafb 1\n", False),
        ("", False),
        (None, True),
    ],
)
async def test_1_10_the_module_must_be_loaded(shell: Shell, modules: str | None, loaded: bool) -> None:
    if modules is not None:
        shell.process.write_kernel("/proc/modules", modules)
    code, _, err = await shell.run("export")
    assert code == (0 if loaded else 1)
    assert loaded or "the NVIDIA driver is not loaded (/proc/modules has no module nvidia)" in err


async def test_the_driver_root_is_that_of_the_manager(shell: Shell) -> None:
    await shell.run("export", env={"DRIVER_ROOT_CTR_PATH": "/driver-root"})
    assert shell.process.driver_roots == ["/driver-root"]
    await shell.run("export")
    assert shell.process.driver_roots == ["/"]


@pytest.mark.parametrize(("root", "command"), [("/", ()), ("", ()), ("/driver-root", ("chroot",))])
async def test_nvidia_smi_is_the_drivers(shell: Shell, root: str, command: tuple[str, ...]) -> None:
    for name in ("nvidia-smi", "chroot"):
        shell.process.commands[name] = lambda argv, env, stdin: Completed(0, "", "")
    await parted.nvidia_smi(shell.process, root)(["-r", "-i", "1"])
    (argv,) = shell.process.executed
    assert argv[-4:] == ("nvidia-smi", "-r", "-i", "1")
    assert argv[: len(command)] == command
    assert len(argv) == (6 if command else 4)


async def test_a_busy_gpu(tmp_path: Path) -> None:
    shell = Shell(tmp_path, GpuEntry(A100, mig=Mig(True, ("1g.5gb",)), busy=True))
    before = shell.node.machine.file.read_bytes()
    code, out, err = await shell.run("apply", "-f", "/layouts.yaml", "-c", "small")
    assert (code, out) == (1, "")
    assert "ERROR_IN_USE" in err
    assert "a client still uses the GPU" in err
    assert shell.node.machine.file.read_bytes() == before
