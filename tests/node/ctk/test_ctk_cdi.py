"""`nvidia-ctk cdi generate` and `cdi transform root` (contracts/toolkit-cdi.md 3.9)."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from node.cdi import gpuworld
from node.cdi.gpuworld import World, gpu

from groundplane.node import hostroot
from groundplane.node.cdi import tegra
from groundplane.node.cdi.read import decode
from groundplane.node.ctk import main
from groundplane.node.ctk.cdi import GENERATE, TRANSFORM

NULL = {"GROUNDPLANE_NULL_DEVICES": "true"}


def machine(folder: Path, *args: str, **more: Any) -> World:
    """A machine with two GPUs, and a command line."""
    more.setdefault("gpus", (gpu(0), gpu(1)))
    world = World(folder, more.pop("gpus"), env={**NULL, **more.pop("env", {})}, **more)
    return command(world, *args)


def command(world: World, *args: str) -> World:
    world.process.argv = ("nvidia-ctk", "cdi", *args)
    world.process.stdout = world.process.stderr = ""
    return world


async def run(world: World) -> int:
    return await main.run(world.process)


def printed(world: World) -> dict[str, Any]:
    return yaml.safe_load(world.process.stdout)  # type: ignore[no-any-return]


def kept(world: World, path: str) -> dict[str, Any]:
    return yaml.safe_load(world.process.path(path).read_text())  # type: ignore[no-any-return]


def names(spec: dict[str, Any]) -> list[str]:
    return [each["name"] for each in spec["devices"]]


# --- the tables of options --------------------------------------------------------------------------------------------

P = "NVIDIA_CTK_CDI_GENERATE_"
OPTIONS = [
    ("output", ("output",), "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", ""),
    ("format", ("format",), f"{P}OUTPUT_FORMAT", ""),
    ("mode", ("mode", "discovery-mode"), f"{P}MODE", "auto"),
    ("device-name-strategy", ("device-name-strategy",), f"{P}DEVICE_NAME_STRATEGIES", ("index", "uuid")),
    ("driver-root", ("driver-root",), "NVIDIA_CTK_DRIVER_ROOT", ""),
    ("dev-root", ("dev-root",), "NVIDIA_CTK_DEV_ROOT", ""),
    ("nvidia-cdi-hook-path", ("nvidia-cdi-hook-path", "nvidia-ctk-path"), "NVIDIA_CTK_CDI_HOOK_PATH", ""),
    ("ldconfig-path", ("ldconfig-path",), f"{P}LDCONFIG_PATH", ""),
    ("vendor", ("vendor", "cdi-vendor"), f"{P}VENDOR", "nvidia.com"),
    ("class", ("class", "cdi-class"), f"{P}CLASS", "gpu"),
    ("device-id", ("device-id", "device-ids", "device", "devices"), f"{P}DEVICE_IDS", ("all",)),
    ("no-all-device", ("no-all-device",), f"{P}NO_ALL_DEVICE", False),
    ("disable-hook", ("disable-hook", "disable-hooks"), f"{P}DISABLED_HOOKS", ()),
    ("enable-hook", ("enable-hook", "enable-hooks"), f"{P}ENABLED_HOOKS", ()),
    ("feature-flag", ("feature-flag", "feature-flags"), f"{P}FEATURE_FLAGS", ()),
    ("libraries", ("libraries",), "CDI_LIBRARIES", "hooks"),
    ("config-search-path", ("config-search-path",), f"{P}CONFIG_SEARCH_PATHS", ()),
    ("library-search-path", ("library-search-path",), f"{P}LIBRARY_SEARCH_PATHS", ()),
    ("csv.file", ("csv.file",), f"{P}CSV_FILES", tegra.FILES),
    ("csv.ignore-pattern", ("csv.ignore-pattern",), f"{P}CSV_IGNORE_PATTERNS", ()),
    ("csv.compat-container-root", ("csv.compat-container-root",), f"{P}CSV_CONTAINER_COMPAT_ROOT", ""),
]


def test_the_options_of_generate_are_upstreams() -> None:
    found = [(each.name, each.flags, *each.env, each.default) for each in GENERATE.options]
    assert found == [tuple(each) for each in OPTIONS]


def test_the_options_of_transform_are_upstreams() -> None:
    found = {each.name: each.default for each in TRANSFORM.options}
    assert found == {"from": "", "to": "", "input": "-", "output": "", "relative-to": "host"}


# --- generate ---------------------------------------------------------------------------------------------------------


async def test_defaults(tmp_path: Path) -> None:
    world = machine(tmp_path, "generate")
    assert await run(world) == 0
    assert world.process.stdout.startswith("---\n")
    spec = printed(world)
    assert (spec["kind"], names(spec)) == ("nvidia.com/gpu", ["0", "1", gpu(0).uuid, gpu(1).uuid, "all"])
    hooks = spec["containerEdits"]["hooks"]
    assert {each["path"] for each in hooks} == {"/usr/bin/nvidia-cdi-hook"}
    assert world.source.opened == 0
    assert "Generated CDI spec of nvidia.com/gpu with 5 devices" in world.process.stderr


async def test_options_from_the_environment(tmp_path: Path) -> None:
    env = {
        f"{P}DEVICE_NAME_STRATEGIES": "type-index",
        f"{P}VENDOR": "example.com",
        f"{P}CLASS": "card",
        f"{P}DEVICE_IDS": "1",
        f"{P}NO_ALL_DEVICE": "true",
        f"{P}DISABLED_HOOKS": "all",
        f"{P}OUTPUT_FORMAT": "JSON",
    }
    world = machine(tmp_path, "generate", env=env)
    assert await run(world) == 0
    spec = json.loads(world.process.stdout)
    assert (spec["kind"], names(spec)) == ("example.com/card", ["gpu1"])
    assert "hooks" not in spec["containerEdits"]


@pytest.mark.parametrize(
    ("args", "path", "text"),
    [
        (("--output=/etc/cdi/a.json",), "/etc/cdi/a.json", "{"),
        (("--output=/etc/cdi/a.yaml",), "/etc/cdi/a.yaml", "---"),
        (("--output=/etc/cdi/a",), "/etc/cdi/a.yaml", "---"),
        (("--output=/etc/cdi/a", "--format=json"), "/etc/cdi/a.json", "{"),
        (("--output=/etc/cdi/a.yml",), "/etc/cdi/a.yml.yaml", "---"),
        (("--output=a.json",), "/work/a.json", "{"),
    ],
)
async def test_the_formats_and_names_of_files(tmp_path: Path, args: tuple[str, ...], path: str, text: str) -> None:
    world = machine(tmp_path, "generate", *args, env={"PWD": "/work"})
    assert await run(world) == 0
    real = world.process.path(path)
    assert real.read_text().startswith(text)
    assert real.stat().st_mode & 0o777 == 0o644
    assert world.process.stdout == ""
    assert "does not match" not in world.process.stderr


async def test_a_format_that_the_name_does_not_tell_is_warned_of(tmp_path: Path) -> None:
    world = machine(tmp_path, "generate", "--output=/etc/cdi/a.json", "--format=yaml")
    assert await run(world) == 0
    text = 'Requested output format "yaml" does not match format implied by output file name: "json"'
    assert text in world.process.stderr
    decode(world.process.path("/etc/cdi/a.json").read_bytes(), "a.json")
    json.loads(world.process.path("/etc/cdi/a.json").read_text())


WRONG = [
    (("--format=xml",), "invalid output format: xml"),
    (("--mode=gpu",), "invalid discovery mode: gpu"),
    (("--device-name-strategy=name",), "invalid device name strategy: name"),
    (("--vendor=_x",), "invalid CDI vendor name"),
    (("--class=g/x",), "invalid CDI class name"),
    (("--enable-hook=all",), "enabling all hooks is not supported"),
    (("--libraries=copy",), "invalid way for libraries: copy; must be one of hookless, hooks"),
    (("--unknown",), "flag provided but not defined: --unknown"),
    (("--device-id=7",), "failed to generate CDI spec: unknown device id '7'"),
    (("--mode=gds",), "device all: empty device edits"),
    (("--driver-root=/nowhere",), "failed to determine driver version"),
]


@pytest.mark.parametrize(("args", "text"), WRONG)
async def test_what_is_wrong_is_an_error_and_an_earlier_file_stays(
    tmp_path: Path, args: tuple[str, ...], text: str
) -> None:
    world = machine(tmp_path, "generate", "--output=/etc/cdi/a.yaml", *args)
    world.process.write("/etc/cdi/a.yaml", "earlier")
    assert await run(world) == 1
    assert text in world.process.stderr
    assert world.process.path("/etc/cdi/a.yaml").read_text() == "earlier"
    assert world.process.stdout == ""


async def test_mig_mode_without_mig_devices_leaves_an_earlier_file(tmp_path: Path) -> None:
    world = machine(tmp_path, "generate", "--output=/etc/cdi/a.yaml", gpus=(gpu(0, mig=True),))
    world.process.write("/etc/cdi/a.yaml", "earlier")
    assert await run(world) == 1
    assert "empty device edits" in world.process.stderr
    assert world.process.path("/etc/cdi/a.yaml").read_text() == "earlier"


async def test_a_full_disk_leaves_an_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = machine(tmp_path, "generate", "--output=/etc/cdi/a.yaml")
    world.process.write("/etc/cdi/a.yaml", "earlier")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hostroot.os, "fsync", full)
    assert await run(world) == 1
    assert "/etc/cdi/a.yaml" in world.process.stderr
    assert "No space left on device" in world.process.stderr
    assert [each.name for each in world.process.path("/etc/cdi").iterdir()] == ["a.yaml"]
    assert world.process.path("/etc/cdi/a.yaml").read_text() == "earlier"


async def test_none_is_a_device_alone(tmp_path: Path) -> None:
    world = machine(tmp_path, "generate", "--device-id=none")
    assert await run(world) == 0
    assert names(printed(world)) == ["none"]
    assert "Disabling generation of 'all' device" in world.process.stderr


async def test_management_needs_no_library(tmp_path: Path) -> None:
    world = machine(
        tmp_path, "generate", "--mode=management", "--vendor=management.nvidia.com", "--libraries=hookless", gpus=()
    )
    assert await run(world) == 0
    spec = printed(world)
    assert (spec["kind"], names(spec)) == ("management.nvidia.com/gpu", ["all"])
    assert "hooks" not in spec["containerEdits"]


@pytest.mark.parametrize(
    ("given", "there", "expected"),
    [
        ((), (), "/usr/bin/nvidia-cdi-hook"),
        ((), ("/opt/bin/nvidia-cdi-hook",), "/opt/bin/nvidia-cdi-hook"),
        (("--nvidia-cdi-hook-path=/x/hook",), ("/opt/bin/nvidia-cdi-hook",), "/x/hook"),
        (("--nvidia-ctk-path=nvidia-ctk",), ("/opt/bin/nvidia-ctk",), "/opt/bin/nvidia-ctk"),
        (("--nvidia-ctk-path=nvidia-ctk",), (), "/usr/bin/nvidia-ctk"),
    ],
)
async def test_the_hooks_program(tmp_path: Path, given: tuple[str, ...], there: tuple[str, ...], expected: str) -> None:
    world = machine(tmp_path, "generate", *given, env={"PATH": "/usr/local/bin:/opt/bin"})
    for path in there:
        world.process.write(path, "").chmod(0o755)
    assert await run(world) == 0
    hook = printed(world)["containerEdits"]["hooks"][0]
    assert hook["path"] == expected
    assert hook["args"][1] == ("hook" if expected.endswith("nvidia-ctk") else "create-symlinks")


@pytest.mark.parametrize(
    ("args", "config", "expected"),
    [
        ((), '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n', "/run/nvidia/driver"),
        (("--driver-root=/other",), '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n', "/other"),
        ((), '[nvidia-container-cli]\n#root = "/run/nvidia/driver"\n', ""),
        ((), "", ""),
    ],
)
async def test_the_driver_root_of_the_configuration(
    tmp_path: Path, args: tuple[str, ...], config: str, expected: str
) -> None:
    world = machine(tmp_path, "generate", *args, driver_root=expected)
    world.process.write("/etc/nvidia-container-runtime/config.toml", config)
    assert await run(world) == 0
    paths = {each["containerPath"]: each["hostPath"] for each in printed(world)["containerEdits"]["mounts"]}
    assert paths["/usr/bin/nvidia-smi"] == f"{expected}/usr/bin/nvidia-smi"
    assert world.process.driver_roots == [expected or "/"]


@pytest.mark.parametrize("text", ["not toml", "[nvidia-container-cli]\nroot = 7\n"])
async def test_a_configuration_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    world = machine(tmp_path, "generate", env={"NVIDIA_CTK_CONFIG_FILE_PATH": "/opt/config.toml"})
    world.process.write("/opt/config.toml", text)
    assert await run(world) == 1
    assert "/opt/config.toml" in world.process.stderr
    assert await run(command(world, "generate", "--driver-root=/")) == 0


async def test_coherent_gpus_have_files_of_their_own(tmp_path: Path) -> None:
    args = ("generate", "--feature-flag=enable-coherent-annotations", "--device-name-strategy=index")
    world = machine(tmp_path, *args, "--output=/etc/cdi/nvidia.yaml", gpus=(gpu(0, coherent=True), gpu(1)))
    assert await run(world) == 0
    found = {path.name: kept(world, f"/etc/cdi/{path.name}") for path in world.process.path("/etc/cdi").iterdir()}
    assert {name: (spec["kind"], names(spec)) for name, spec in found.items()} == {
        "nvidia.yaml": ("nvidia.com/gpu", ["0", "1", "all"]),
        "nvidia.coherent.yaml": ("nvidia.com/gpu.coherent", ["0", "all"]),
        "nvidia.noncoherent.yaml": ("nvidia.com/gpu.noncoherent", ["1", "all"]),
    }
    assert found["nvidia.coherent.yaml"]["cdiVersion"] == "0.6.0"
    assert await run(command(world, *args)) == 0
    assert len(list(yaml.safe_load_all(world.process.stdout))) == 3


async def test_unknown_features_and_hooks_are_warned_of(tmp_path: Path) -> None:
    world = machine(
        tmp_path, "generate", "--feature-flag=x", "--disable-hook=y", "--feature-flag=disable-nvsandbox-utils"
    )
    assert await run(world) == 0
    assert "there is no feature x" in world.process.stderr
    assert "there is no hook y" in world.process.stderr
    assert "nvsandbox-utils" not in world.process.stderr


# --- transform --------------------------------------------------------------------------------------------------------


async def generated(world: World, path: str, *args: str) -> World:
    assert await run(command(world, "generate", f"--output={path}", *args)) == 0
    return world


def host_paths(spec: dict[str, Any]) -> set[str]:
    return {each["hostPath"] for each in spec["containerEdits"]["mounts"]}


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_a_root_is_changed(tmp_path: Path, form: str) -> None:
    world = machine(tmp_path, driver_root="/drv")
    await generated(world, f"/a.{form}", "--driver-root=/drv")
    args = ("transform", "root", "--from=/drv", "--to=/run/nvidia/driver", f"--input=/a.{form}")
    assert await run(command(world, *args, "--output=/b.json")) == 0
    before, after = kept(world, f"/a.{form}"), json.loads(world.process.path("/b.json").read_text())
    assert host_paths(after) == {path.replace("/drv/", "/run/nvidia/driver/") for path in host_paths(before)}
    assert await run(command(world, *args)) == 0
    assert printed(world) == after


async def test_a_specification_on_standard_input(tmp_path: Path) -> None:
    world = await generated(machine(tmp_path), "/a.yaml")
    world.process.given = world.process.path("/a.yaml").read_bytes()
    assert await run(command(world, "transform", "root", "--from=/", "--to=/host")) == 0
    assert all(path.startswith("/host/") for path in host_paths(printed(world)))
    assert await run(command(world, "transform", "root", "--from=/x", "--to=/x")) == 0
    assert printed(world) == kept(world, "/a.yaml")


async def test_relative_to_the_container(tmp_path: Path) -> None:
    world = await generated(machine(tmp_path), "/a.yaml")
    args = ("transform", "root", "--from=/usr", "--to=/opt", "--input=/a.yaml", "--relative-to=container")
    assert await run(command(world, *args)) == 0
    found = {each["containerPath"]: each["hostPath"] for each in printed(world)["containerEdits"]["mounts"]}
    assert found["/opt/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--relative-to=image",), "invalid --relative-to value: image"),
        (("--input=/gone.yaml",), "failed to load CDI specification: /gone.yaml: No such file or directory"),
        (("--input=/bad.yaml",), "/bad.yaml"),
        ((), "standard input: there is no CDI spec in it"),
    ],
)
async def test_what_cannot_be_transformed(tmp_path: Path, args: tuple[str, ...], text: str) -> None:
    world = machine(tmp_path, "transform", "root", "--output=/b.yaml", *args)
    world.process.write("/bad.yaml", "kind: 7\nx: y\n")
    world.process.write("/b.yaml", "earlier")
    assert await run(world) == 1
    assert text in world.process.stderr
    assert world.process.path("/b.yaml").read_text() == "earlier"


async def test_help_and_list(tmp_path: Path) -> None:
    world = await generated(machine(tmp_path), "/etc/cdi/nvidia.yaml")
    assert await run(command(world, "list")) == 0
    assert world.process.stdout.splitlines()[:2] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert await run(command(world, "generate", "--help")) == 0
    assert all(f"--{flag}" in world.process.stdout for _, flags, _, _ in OPTIONS for flag in flags)
    assert gpuworld.VERSION not in world.process.stdout
