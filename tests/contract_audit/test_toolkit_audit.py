"""The container toolkit against contracts/toolkit-cdi.md: programs, files and sockets, from the contract alone."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import unavailable
from node.fakeprocess import FakeProcess, until

from deploy import golang, hostprogram
from groundplane.api.release import Release
from groundplane.node import unixsocket
from groundplane.node.ctk import main as ctk
from groundplane.node.devices.simulated import SimulatedSource
from groundplane.node.process import Completed, Listed
from groundplane.node.toolkit import main as toolkit
from testing import driverroots

OLD, NEW = Release.V26_3, Release.V26_7
VERSION = "580.95.05"
UUIDS = [f"GPU-{index:x}0000000-0000-4000-8000-000000000000" for index in range(12)]


# --- a machine --------------------------------------------------------------------------------------------------------


class Machine:
    """A machine: folders for the container's files and for /sys and /proc, a description of its GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.kernel = folder / "kernel"
        self.devices = folder / "devices.yaml"
        self.commands: dict[str, Any] = {}
        self.listed: list[Listed] = []
        self.root.mkdir()
        self.gpus({})

    def gpus(self, *gpus: dict[str, Any], version: str = VERSION) -> None:
        described = [{"model": "H100", "uuid": UUIDS[index], **gpu} for index, gpu in enumerate(gpus)]
        document = {"driverVersion": version, "gpus": described}
        temporary = self.devices.with_suffix(".new")
        temporary.write_text(yaml.safe_dump(document))
        temporary.rename(self.devices)

    def file(self, path: str, text: str | bytes = "", mode: int = 0o644) -> Path:
        real = self.root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(text.encode() if isinstance(text, str) else text)
        real.chmod(mode)
        return real

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def there(self, path: str) -> bool:
        return os.path.lexists(self.root / path.lstrip("/"))

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> None:
        real = self.root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(real, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        except PermissionError:
            unavailable("device nodes cannot be made")
        os.chown(real, 0, gid)
        real.chmod(mode)

    def nodes(self, dev: str = "/dev", gpus: int = 1) -> None:
        """The control nodes, and some GPUs'."""
        for name, major, minor in (
            *((f"nvidia{index}", 195, index) for index in range(gpus)),
            ("nvidiactl", 195, 255),
            ("nvidia-modeset", 195, 254),
            ("nvidia-uvm", 510, 0),
            ("nvidia-uvm-tools", 510, 1),
        ):
            self.node(f"{dev}/{name}", major, minor)

    def proc(self, path: str, text: str) -> None:
        real = self.kernel / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)

    def process(self, argv: Iterable[str], env: dict[str, str], release: Release = NEW, pace: float = 1.0) -> Any:
        source = SimulatedSource(self.devices, library=lambda: True, loaded=lambda: True)
        made = FakeProcess(self.folder, tuple(argv), env, source=source, release=release, pace=pace)
        made.commands = self.commands
        made.listed = self.listed
        return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def command(machine: Machine, *words: str, env: dict[str, str] | None = None, release: Release = NEW) -> Any:
    """`nvidia-ctk` to its end."""
    process = machine.process(("nvidia-ctk", *words), env or {}, release)
    process.code = await ctk.run(process)
    return process


# --- 1: CDI files and what they offer ---------------------------------------------------------------------------------

ENV = {"env": ["A=b"]}


def document(version: str = "1.1.0", kind: str = "vendor.com/class", **more: Any) -> dict[str, Any]:
    return {"cdiVersion": version, "kind": kind, "devices": [{"name": "dev", "containerEdits": ENV}], **more}


def edits(version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    return document(version, containerEdits=more)


async def listed(machine: Machine, files: dict[str, Any], *dirs: str) -> tuple[list[str], str]:
    for path, content in files.items():
        machine.file(path, content if isinstance(content, str) else json.dumps(content))
    words = [f"--spec-dir={each}" for each in dirs or ("/etc/cdi", "/var/run/cdi")]
    process = await command(machine, "cdi", "list", *words)
    assert process.code == 0
    return process.stdout.splitlines(), process.stderr


NODE = {"path": "/dev/null"}
MOUNT = {"hostPath": "/a", "containerPath": "/b"}
HOOK = {"hookName": "prestart", "path": "/bin/x"}
MINIMUM: list[tuple[str, str, dict[str, Any]]] = [
    ("0.3.0", "", {}),
    ("0.4.0", "0.3.0", {"containerEdits": {"mounts": [{**MOUNT, "type": "bind"}]}}),
    ("0.5.0", "0.4.0", {"containerEdits": {"deviceNodes": [{**NODE, "hostPath": "/dev/zero"}]}}),
    ("0.5.0", "0.4.0", {"devices": [{"name": "0", "containerEdits": ENV}]}),
    ("0.6.0", "0.5.0", {"annotations": {"a": "b"}}),
    ("0.6.0", "0.5.0", {"devices": [{"name": "dev", "containerEdits": ENV, "annotations": {"a": "b"}}]}),
    ("0.6.0", "0.5.0", {"kind": "vendor.com/class.sub"}),
    ("0.7.0", "0.6.0", {"containerEdits": {"additionalGids": [44]}}),
    ("0.7.0", "0.6.0", {"containerEdits": {"intelRdt": {"closID": "x"}}}),
    ("1.1.0", "1.0.0", {"containerEdits": {"netDevices": [{"hostInterfaceName": "eth0", "name": "eth1"}]}}),
    ("1.1.0", "1.0.0", {"containerEdits": {"intelRdt": {"schemata": ["x"]}}}),
    ("1.1.0", "1.0.0", {"containerEdits": {"intelRdt": {"enableMonitoring": True}}}),
]


@pytest.mark.parametrize(("least", "below", "parts"), MINIMUM)
async def test_1_2_a_version_that_is_lower_than_what_is_used_is_refused(
    machine: Machine, least: str, below: str, parts: dict[str, Any]
) -> None:
    files = {"/etc/cdi/good.json": {**document(least), **parts}}
    if below:
        files["/etc/cdi/bad.json"] = {**document(below), **parts, "kind": f"bad{parts.get('kind', '/class')[-6:]}"}
        if "kind" in parts:
            files["/etc/cdi/bad.json"]["kind"] = "bad/class.sub"
    names, errors = await listed(machine, files)
    assert len(names) == 1
    assert names[0].startswith("vendor.com/class")
    assert ("bad.json" in errors) == bool(below)
    assert "good.json" not in errors


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0", "v0.6.0"])
async def test_1_1_known_versions(machine: Machine, version: str) -> None:
    assert await listed(machine, {"/etc/cdi/a.yaml": document(version)}) == (["vendor.com/class=dev"], "")


GOOD: list[dict[str, Any]] = [
    edits(deviceNodes=[{**NODE, "type": kind, "permissions": "rwm", "fileMode": 438, "uid": 1, "gid": 2}])
    for kind in ("b", "c", "u", "p", "")
] + [
    *(
        edits(hooks=[{**HOOK, "hookName": each, "args": ["x"], "env": ["A="], "timeout": 3}])
        for each in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
    ),
    edits(mounts=[{**MOUNT, "options": ["ro"], "type": "bind"}]),
    edits(additionalGids=[0, 7]),
    document(kind="x/y"),
    document(kind="a_b-c.d1/E_f-g.h"),
    document(devices=[{"name": "0:1_a-b.C", "containerEdits": ENV}]),
    document(annotations={"example.com/KEY": "v"}),
    edits(intelRdt={"closID": "a", "l3CacheSchema": "b", "memBwSchema": "c"}),
]
BAD: list[Any] = [
    "",
    "---\n",
    "{",
    "- a",
    document("0.1.0"),
    document("0.2.0"),
    document("1.2.0"),
    document("9.0.0"),
    document(""),
    document(devices=[]),
    document(unknown=1),
    {"cdiVersion": "0.6.0", "kind": "vendor.com/class"},
    document(devices=[{"name": "dev", "containerEdits": {}}]),
    document(devices=[{"name": "dev"}]),
    document(devices=[{"name": "dev", "containerEdits": ENV}] * 2),
    document(devices=[{"name": "dev", "containerEdits": {"env": ["A=b"], "more": 1}}]),
    *(
        document(kind=kind)
        for kind in ("vendor", "/class", "vendor/", "1v/c", "v/1c", "v-/c", "v/c-", "v/c/d", "v/c=d")
    ),
    *(document(devices=[{"name": name, "containerEdits": ENV}]) for name in ("", "a/b", "-a", "a-", ".a", "a b", "é")),
    edits(env=["A"]),
    edits(env=["=b"]),
    edits(env=[""]),
    edits(deviceNodes=[{"path": ""}]),
    edits(deviceNodes=[{**NODE, "type": "x"}]),
    edits(deviceNodes=[{**NODE, "permissions": "rwx"}]),
    edits(mounts=[{"hostPath": "/a"}]),
    edits(mounts=[{"containerPath": "/a", "hostPath": ""}]),
    edits(hooks=[{**HOOK, "hookName": "never"}]),
    edits(hooks=[{**HOOK, "path": ""}]),
    edits(hooks=[{**HOOK, "path": "bin/x"}]),
    edits(hooks=[{**HOOK, "env": ["A"]}]),
    edits(hooks=[{**HOOK, "timeout": -1}]),
    edits(netDevices=[{"hostInterfaceName": "", "name": "a"}]),
    edits(netDevices=[{"hostInterfaceName": "a", "name": ""}]),
    edits(netDevices=[{"hostInterfaceName": "a", "name": "x"}, {"hostInterfaceName": "a", "name": "y"}]),
    edits(netDevices=[{"hostInterfaceName": "a", "name": "x"}, {"hostInterfaceName": "b", "name": "x"}]),
    edits(intelRdt={"enableCMT": True}),
    edits(intelRdt={"enableMBM": True}),
    edits(additionalGids=[-1]),
    edits(additionalGids=[1 << 32]),
    edits(additionalGIDs=[1]),
    document(annotations={"a b": "c"}),
    document(annotations={"a": "x" * (256 * 1024)}),
]


@pytest.mark.parametrize("content", GOOD)
async def test_1_1_and_1_3_what_a_file_may_say(machine: Machine, content: Any) -> None:
    names, errors = await listed(machine, {"/etc/cdi/a.yaml": content})
    assert (len(names), errors) == (1, "")


@pytest.mark.parametrize("content", BAD)
async def test_1_1_and_1_3_what_it_may_not_is_an_error_of_that_file_alone(machine: Machine, content: Any) -> None:
    names, errors = await listed(machine, {"/etc/cdi/a.yaml": content, "/etc/cdi/b.json": document(kind="o.com/o")})
    assert names == ["o.com/o=dev"]
    assert "/etc/cdi/a.yaml" in errors
    assert "/etc/cdi/b.json" not in errors


async def test_1_4_which_files_are_read_and_how_they_are_listed(machine: Machine) -> None:
    names, errors = await listed(
        machine,
        {
            "/etc/cdi/a.yaml": yaml.safe_dump(document(kind="b.com/b")),
            "/etc/cdi/b.json": document(kind="a.com/a", devices=[{"name": n, "containerEdits": ENV} for n in "zy"]),
            "/etc/cdi/c.yml": document(kind="c.com/c"),
            "/etc/cdi/d.txt": document(kind="d.com/d"),
            "/etc/cdi/sub/e.yaml": document(kind="e.com/e"),
            "/etc/cdi/f.yaml/x": "",
        },
        "/nowhere",
        "/etc/cdi",
    )
    assert (names, errors) == (["a.com/a=y", "a.com/a=z", "b.com/b=dev"], "")


async def test_1_4_conflicts(machine: Machine) -> None:
    def spec(*devices: str) -> Any:
        return document(devices=[{"name": name, "containerEdits": ENV} for name in devices])

    names, errors = await listed(
        machine,
        {
            "/etc/cdi/a.yaml": spec("twice", "a", "over"),
            "/etc/cdi/b.yaml": spec("twice", "b"),
            "/var/run/cdi/c.yaml": spec("over", "c"),
        },
    )
    prefix = "vendor.com/class="
    assert names == [prefix + each for each in ("a", "b", "c", "over")]
    assert "/etc/cdi/a.yaml" in errors
    assert "/etc/cdi/b.yaml" in errors
    assert "twice" in errors
    assert "over" not in errors.replace("overr", "")


# --- 3: generated specifications --------------------------------------------------------------------------------------

LIBS = "/usr/lib/x86_64-linux-gnu"
RO = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


@pytest.fixture
def driven(machine: Machine) -> Machine:
    """With a driver from Ubuntu's packages, two GPUs and their nodes."""
    driverroots.make(machine.root, VERSION, driverroots.Kind.UBUNTU)
    machine.gpus({"busId": "0000:0a:00.0"}, {"busId": "0000:0b:00.0"})
    machine.nodes(gpus=2)
    return machine


async def generated(machine: Machine, *words: str, release: Release = NEW, **env: str) -> dict[str, Any]:
    process = await command(machine, "cdi", "generate", *words, env=env, release=release)
    assert process.code == 0, process.stderr
    assert process.stdout.startswith("---\n") or "json" in "".join(words)
    return yaml.safe_load(process.stdout)  # type: ignore[no-any-return]


def names(spec: dict[str, Any]) -> list[str]:
    return [each["name"] for each in spec["devices"]]


def device(spec: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each["containerEdits"] for each in spec["devices"] if each["name"] == name]
    return found  # type: ignore[no-any-return]


def paths(edited: dict[str, Any]) -> list[str]:
    return [each["path"] for each in edited.get("deviceNodes", ())]


def targets(spec: dict[str, Any]) -> list[str]:
    return [each["containerPath"] for each in spec["containerEdits"]["mounts"]]


def hook_args(spec: dict[str, Any]) -> dict[str, list[str]]:
    return {each["args"][1]: each["args"][2:] for each in spec["containerEdits"].get("hooks", ())}


async def test_3_a_whole_specification_with_the_defaults(driven: Machine) -> None:
    spec = await generated(driven)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "nvidia.com/gpu")
    assert names(spec) == ["0", "1", UUIDS[0], UUIDS[1], "all"]
    node = {"path": "/dev/nvidia1", "major": 195, "minor": 1, "fileMode": 438, "permissions": "rwm"}
    assert device(spec, "1")["deviceNodes"] == [node]
    assert "minor" not in device(spec, "0")["deviceNodes"][0]
    assert paths(device(spec, "all")) == ["/dev/nvidia0", "/dev/nvidia1"]
    common = spec["containerEdits"]
    assert paths(common) == ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
    assert common["env"] == [f"NVIDIA_CTK_LIBCUDA_DIR={LIBS}", "NVIDIA_VISIBLE_DEVICES=void"]
    mounts = {each["containerPath"]: each for each in common["mounts"]}
    assert mounts[f"{LIBS}/libcuda.so.{VERSION}"] == {
        "hostPath": f"{LIBS}/libcuda.so.{VERSION}",
        "containerPath": f"{LIBS}/libcuda.so.{VERSION}",
        "options": RO,
    }
    for name in ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control"):
        assert f"/usr/bin/{name}" in mounts
    assert f"{LIBS}/libcuda.so.1" not in mounts
    assert any(re.search(rf"firmware/nvidia/{VERSION}/gsp.*\.bin", path) for path in mounts)
    order = [(path.count("/"), path) for path in mounts]
    assert order == sorted(order)
    assert "gid" not in json.dumps(spec).replace("additionalGids", "")
    for hook in common["hooks"]:
        assert (hook["hookName"], hook["path"]) == ("createContainer", "/usr/bin/nvidia-cdi-hook")
        assert (hook["args"][0], hook["env"]) == ("nvidia-cdi-hook", ["NVIDIA_CTK_DEBUG=false"])
    called = [each["args"][1] for each in common["hooks"]]
    assert [each for index, each in enumerate(called) if each not in called[:index]] == [
        *("create-symlinks", "enable-cuda-compat", "update-ldcache"),
        *("disable-device-node-modification", "update-application-profile"),
    ]
    args = hook_args(spec)
    assert args["enable-cuda-compat"] == [f"--host-driver-version={VERSION}"]
    assert args["update-ldcache"][:2] == ["--folder", LIBS]
    assert f"libcuda.so.1::{LIBS}/libcuda.so" in args["create-symlinks"]
    assert any(each.endswith(f"::{LIBS}/libGLX_indirect.so.0") for each in args["create-symlinks"])


async def test_3_5_hooks_of_release_26_3(driven: Machine) -> None:
    assert "update-application-profile" not in hook_args(await generated(driven, release=OLD))
    assert "enable-cuda-compat" not in hook_args(await generated(driven, "--mode=management", release=OLD))
    args = hook_args(await generated(driven, "--mode=management", release=NEW))
    assert "enable-cuda-compat" in args
    assert not {"disable-device-node-modification", "update-application-profile"} & set(args)


@pytest.mark.parametrize(
    ("words", "there", "gone"),
    [
        (["--disable-hook=update-ldcache"], ["create-symlinks"], ["update-ldcache"]),
        (["--disable-hook=all"], [], ["create-symlinks", "update-ldcache", "enable-cuda-compat"]),
        (["--disable-hook=all", "--enable-hook=chmod"], ["chmod"], ["create-symlinks"]),
        (["--enable-hook=chmod"], ["chmod", "create-symlinks"], []),
        ([], [], ["chmod"]),
    ],
)
async def test_3_5_choosing_hooks(driven: Machine, words: list[str], there: list[str], gone: list[str]) -> None:
    driven.node("/dev/dri/card0", 226, 0)
    driven.proc("/sys/bus/pci/devices/0000:0a:00.0/drm/card0/dev", "226:0\n")
    spec = await generated(driven, *words)
    called = {
        hook["args"][1]
        for each in (spec["containerEdits"], *(each["containerEdits"] for each in spec["devices"]))
        for hook in each.get("hooks", ())
    }
    assert set(there) <= called
    assert not set(gone) & called


async def test_3_5_hooks_of_nvidia_ctk_and_enabling_all(driven: Machine) -> None:
    spec = await generated(driven, "--nvidia-cdi-hook-path=/x/nvidia-ctk", "--ldconfig-path=/sbin/ldconfig")
    for hook in spec["containerEdits"]["hooks"]:
        assert (hook["path"], hook["args"][:2]) == ("/x/nvidia-ctk", ["nvidia-ctk", "hook"])
    (cache,) = [each["args"] for each in spec["containerEdits"]["hooks"] if each["args"][2] == "update-ldcache"]
    assert cache[3:5] == ["--ldconfig-path", "/sbin/ldconfig"]
    assert (await command(driven, "cdi", "generate", "--enable-hook=all")).code == 1


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        (["index"], ["0", "1", "all"]),
        (["type-index"], ["all", "gpu0", "gpu1"]),
        (["uuid"], [UUIDS[0], UUIDS[1], "all"]),
        (["index", "type-index"], ["0", "1", "all", "gpu0", "gpu1"]),
    ],
)
async def test_3_2_names(driven: Machine, strategies: list[str], expected: list[str]) -> None:
    spec = await generated(driven, *(f"--device-name-strategy={each}" for each in strategies))
    assert names(spec) == expected
    assert spec["cdiVersion"] == ("0.5.0" if "index" in strategies else "0.3.0")
    assert (
        names(await generated(driven, NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES=",".join(strategies))) == expected
    )


async def test_3_2_devices_are_sorted_as_text(driven: Machine) -> None:
    driven.gpus(*[{}] * 11)
    for index in range(2, 11):
        driven.node(f"/dev/nvidia{index}", 195, index)
    spec = await generated(driven, "--device-name-strategy=index")
    assert names(spec) == ["0", "1", "10", *"23456789", "all"]
    assert paths(device(spec, "all"))[:4] == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia10", "/dev/nvidia2"]


MIG = {"mig": {"enabled": True, "instances": ["1g.10gb", "1g.10gb"]}}


async def test_3_2_and_3_3_mig(driven: Machine) -> None:
    driven.gpus({}, {**MIG, "minor": 1})
    minors = ["config 1", "monitor 2", "a bad line", "gpu0/gi7/access 9"]
    found = [(7, 30), (8, 33), (9, 36), (10, 39), (11, 42), (12, 45), (13, 48), (14, 51)]
    for instance, minor in found:
        minors += [f"gpu1/gi{instance}/access {minor}", f"gpu1/gi{instance}/ci0/access {minor + 1}"]
        driven.node(f"/dev/nvidia-caps/nvidia-cap{minor}", 511, minor, 0o444)
        driven.node(f"/dev/nvidia-caps/nvidia-cap{minor + 1}", 511, minor + 1, 0o444)
    driven.proc("/proc/driver/nvidia-caps/mig-minors", "\n".join(minors) + "\n")
    spec = await generated(driven, "--device-name-strategy=index", "--device-name-strategy=type-index")
    assert names(spec) == ["0", "1:0", "1:1", "all", "gpu0", "mig1:0", "mig1:1"]
    assert spec["cdiVersion"] == "0.5.0"
    nodes = paths(device(spec, "1:0"))
    assert nodes[0] == "/dev/nvidia1"
    assert len(nodes) == 3
    low, high = (int(each.rpartition("cap")[2]) for each in nodes[1:])
    assert high == low + 1
    assert low in {minor for _, minor in found}
    by_uuid = await generated(driven, "--device-name-strategy=uuid")
    assert [each[:4] for each in names(by_uuid)] == ["GPU-", "MIG-", "MIG-", "all"]


async def test_3_2_a_gpu_in_mig_mode_without_instances_fails_loudly_and_leaves_the_file(driven: Machine) -> None:
    driven.gpus({"mig": {"enabled": True, "instances": []}})
    before = driven.file("/etc/cdi/nvidia.yaml", "before")
    process = await command(driven, "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
    assert process.code != 0
    assert process.stderr
    assert before.read_text() == "before"
    assert [each.name for each in before.parent.iterdir()] == ["nvidia.yaml"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1"], ["1", UUIDS[1], "all"]),
        ([UUIDS[0]], ["0", UUIDS[0], "all"]),
        (["none"], ["none"]),
        (["0", "none"], ["none"]),
        (["7"], None),
        (["GPU-9"], None),
        (["0:0"], None),
        (["nonsense"], None),
    ],
)
async def test_3_2_requested_ids(driven: Machine, ids: list[str], expected: list[str] | None) -> None:
    words = [f"--device-id={each}" for each in ids]
    if expected is None:
        process = await command(driven, "cdi", "generate", *words)
        assert (process.code, process.stdout) == (1, "")
        assert ids[0] in process.stderr
        return
    spec = await generated(driven, *words)
    assert names(spec) == expected
    if expected == ["none"]:
        assert device(spec, "none") == {"env": ["NVCT_EMPTY_DEVICE="]}


async def test_3_9_no_all_vendor_class_and_formats(driven: Machine) -> None:
    spec = await generated(driven, "--no-all-device", "--vendor=v.com", "--class=c")
    assert (spec["kind"], names(spec)) == ("v.com/c", ["0", "1", UUIDS[0], UUIDS[1]])
    process = await command(driven, "cdi", "generate", "--format=json")
    assert json.loads(process.stdout)["kind"] == "nvidia.com/gpu"
    process = await command(driven, "cdi", "generate", "--output=/o/a.json")
    assert json.loads(driven.read("/o/a.json"))["kind"] == "nvidia.com/gpu"
    process = await command(driven, "cdi", "generate", "--output=/o/b.yaml", "--format=json")
    assert process.code == 0
    assert yaml.safe_load(driven.read("/o/b.yaml"))["kind"] == "nvidia.com/gpu"
    assert re.search(r"^W.*json", process.stderr, re.MULTILINE)
    assert stat.S_IMODE((driven.root / "o/b.yaml").stat().st_mode) == 0o644
    assert stat.S_IMODE((driven.root / "o").stat().st_mode) == 0o755
    env = {"NVIDIA_CTK_CDI_GENERATE_VENDOR": "e.com", "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": "/o/c.yaml"}
    await command(driven, "cdi", "generate", env=env)
    assert yaml.safe_load(driven.read("/o/c.yaml"))["kind"] == "e.com/gpu"
    assert driven.read("/o/c.yaml").startswith("---\n")
    assert (await command(driven, "cdi", "generate", "--mode=nonsense")).code == 1
    assert (await command(driven, "cdi", "generate", "--vendor=-")).code == 1
    assert (await command(driven, "cdi", "generate", "--device-name-strategy=x")).code == 1


async def test_3_3_gids_of_nodes(driven: Machine) -> None:
    driven.node("/dev/dri/renderD128", 226, 128, 0o660, 44)
    driven.node("/dev/dri/card1", 226, 1, 0o666, 45)
    for name in ("card1", "renderD128"):
        driven.proc(f"/sys/bus/pci/devices/0000:0a:00.0/drm/{name}/dev", "")
    (driven.root / "dev/dri/by-path").mkdir()
    (driven.root / "dev/dri/by-path/pci-0000:0a:00.0-card").symlink_to("../card1")
    (driven.root / "dev/dri/by-path/pci-0000:0a:00.0-render").symlink_to("../renderD9")
    spec = await generated(driven)
    edited = device(spec, "0")
    assert paths(edited) == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert [each.get("gid") for each in edited["deviceNodes"]] == [None, 45, 44]
    assert edited["additionalGids"] == [44]
    assert spec["cdiVersion"] == "0.7.0"
    links = [each["args"][2:] for each in edited["hooks"] if each["args"][1] == "create-symlinks"]
    assert links == [["--link", "../card1::/dev/dri/by-path/pci-0000:0a:00.0-card"]]
    spec = await generated(driven, "--feature-flag=no-additional-gids-for-device-nodes")
    assert "additionalGids" not in json.dumps(spec)


async def test_3_3_management(driven: Machine) -> None:
    for name in (
        *("nvidia-fs0", "nvidia-nvswitch0", "nvidia-nvlink", "nvidia-caps/nvidia-cap1", "nvidia-caps/other"),
        *("nvidia-caps-imex-channels/channel3", "nvidia-other"),
    ):
        driven.node(f"/dev/{name}", 240, 3)
    driven.file("/dev/nvidia-file")
    spec = await generated(driven, "--mode=management", "--vendor=management.nvidia.com")
    assert (spec["kind"], names(spec), spec["cdiVersion"]) == ("management.nvidia.com/gpu", ["all"], "0.3.0")
    assert paths(device(spec, "all")) == [
        *("/dev/nvidia-modeset", "/dev/nvidia-other", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        *("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"),
        *("/dev/nvidia-caps-imex-channels/channel3", "/dev/nvidia-caps/nvidia-cap1"),
    ]
    assert spec["containerEdits"]["env"][-1] == "NVIDIA_VISIBLE_DEVICES=void"


async def test_3_3_management_without_nodes(machine: Machine) -> None:
    driverroots.make(machine.root, VERSION, driverroots.Kind.UBUNTU)
    process = await command(machine, "cdi", "generate", "--mode=management")
    assert process.code == 1
    assert "no NVIDIA device nodes found" in process.stderr


async def test_3_4_sockets_of_daemons(driven: Machine) -> None:
    driven.file("/run/nvidia-persistenced/socket")
    driven.file("/var/run/nvidia-persistenced/socket")
    driven.file("/run/nvidia-fabricmanager/socket")
    mounts = {each["containerPath"]: each for each in (await generated(driven))["containerEdits"]["mounts"]}
    options = ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
    for name in ("nvidia-persistenced", "nvidia-fabricmanager"):
        assert mounts[f"/run/{name}/socket"]["options"] == options
    assert "/var/run/nvidia-persistenced/socket" not in mounts


async def test_3_7_driver_roots(machine: Machine) -> None:
    driverroots.make(machine.root / "run/drv", VERSION, driverroots.Kind.CONTAINER)
    machine.gpus({})
    machine.nodes("/run/drv/dev")
    spec = await generated(machine, "--driver-root=/run/drv")
    (node,) = device(spec, "0")["deviceNodes"]
    assert (node["path"], node["hostPath"]) == ("/dev/nvidia0", "/run/drv/dev/nvidia0")
    for mount in spec["containerEdits"]["mounts"]:
        assert mount["hostPath"] == "/run/drv" + mount["containerPath"]
    machine.nodes()
    spec = await generated(machine, "--driver-root=/run/drv", "--dev-root=/", "--mode=nvml", "--no-all-device")
    assert "hostPath" not in device(spec, "0")["deviceNodes"][0]


async def test_3_7_transform(machine: Machine) -> None:
    spec = document(
        "0.5.0",
        containerEdits={
            "deviceNodes": [{"path": "/dev/a", "hostPath": "/run/drv/dev/a"}, {"path": "/dev/b"}],
            "mounts": [
                {"hostPath": "/run/drv/lib", "containerPath": "/run/drv/lib"},
                {"hostPath": "/run/drv-old/lib", "containerPath": "/o"},
            ],
            "hooks": [
                {"hookName": "createContainer", "path": "/run/drv/h", "args": ["h", "/run/drv/x::/run/drv/y"]},
                {"hookName": "prestart", "path": "/run/drv/h", "args": ["h", "/run/drv/x::/run/drv/y", "/run/drv-old"]},
                {"hookName": "startContainer", "path": "/run/drv/h", "args": ["/run/drv/x"]},
            ],
        },
    )
    machine.file("/in.json", json.dumps(spec))
    words = ("cdi", "transform", "root", "--from=/run/drv", "--to=/new", "--input=/in.json", "--output=/out.json")
    assert (await command(machine, *words)).code == 0
    done = json.loads(machine.read("/out.json"))["containerEdits"]
    assert done["deviceNodes"][0]["hostPath"] == "/new/dev/a"
    assert [each["hostPath"] for each in done["mounts"]] == ["/new/lib", "/run/drv-old/lib"]
    assert [each["containerPath"] for each in done["mounts"]] == ["/run/drv/lib", "/o"]
    assert [each["path"] for each in done["hooks"]] == ["/new/h", "/new/h", "/run/drv/h"]
    assert [each["args"][-1] for each in done["hooks"]] == ["/run/drv/x::/run/drv/y", "/run/drv-old", "/run/drv/x"]
    assert done["hooks"][1]["args"][1] == "/new/x::/new/y"
    assert (await command(machine, *words, "--relative-to=container")).code == 0
    done = json.loads(machine.read("/out.json"))["containerEdits"]
    assert [each["hostPath"] for each in done["mounts"]] == ["/run/drv/lib", "/run/drv-old/lib"]
    assert [each["containerPath"] for each in done["mounts"]] == ["/new/lib", "/o"]
    assert [each["path"] for each in done["hooks"]] == ["/run/drv/h", "/run/drv/h", "/new/h"]
    assert (await command(machine, *words, "--relative-to=nothing")).code == 1


GATED: list[tuple[str, list[str], list[str]]] = [
    ("gds", ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], ["/run/udev", "/etc/cufile.json"]),
    ("mofed", ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"], []),
    ("gdrcopy", ["/dev/gdrdrv"], []),
    ("nvswitch", ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"], []),
]


@pytest.mark.parametrize(("mode", "nodes", "mounts"), GATED)
async def test_3_8_gated_modes(machine: Machine, mode: str, nodes: list[str], mounts: list[str]) -> None:
    machine.file("/etc/cufile.json")
    (machine.root / "run/udev").mkdir(parents=True)
    process = await command(machine, "cdi", "generate", f"--mode={mode}", "--output=/s.yaml")
    assert process.code == 1
    assert "empty device edits" in process.stderr
    assert not machine.there("/s.yaml")
    for each in nodes:
        machine.node(each, 230, 1)
    spec = await generated(machine, f"--mode={mode}", f"--class={mode}")
    assert (spec["kind"], names(spec)) == (f"nvidia.com/{mode}", ["all"])
    both = (device(spec, "all"), spec.get("containerEdits", {}))
    assert sorted(path for each in both for path in paths(each)) == nodes
    assert {m["containerPath"] for each in both for m in each.get("mounts", ())} == set(mounts)
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


@pytest.mark.parametrize(
    ("ids", "new", "old"),
    [
        (["3"], ["3"], ["3"]),
        (["channel3"], ["3"], ["3"]),
        (["x"], None, None),
        (["4"], None, ["4"]),
        (["1048576"], None, ["1048576"]),
    ],
)
async def test_3_8_imex(machine: Machine, ids: list[str], new: list[str] | None, old: list[str] | None) -> None:
    machine.node("/dev/nvidia-caps-imex-channels/channel3", 234, 3)
    words = ["--mode=imex", "--class=imex-channel", *(f"--device-id={each}" for each in ids)]
    for release, expected in ((NEW, new), (OLD, old)):
        process = await command(machine, "cdi", "generate", *words, release=release)
        if expected is None:
            assert process.code == 1, release
            continue
        assert process.code == 0, process.stderr
        spec = yaml.safe_load(process.stdout)
        assert [each for each in names(spec) if each != "all"] == expected
        assert paths(device(spec, expected[0])) == [f"/dev/nvidia-caps-imex-channels/channel{expected[0]}"]


async def test_3_8_wsl(machine: Machine) -> None:
    machine.node("/dev/dxg", 10, 125)
    store = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1"
    machine.file("/usr/lib/wsl/lib/libdxcore.so")
    for name in ("libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ml.so.1", "nvcubins.bin", "nvidia-smi", "x.dll"):
        machine.file(f"{store}/{name}")
    machine.file("/usr/lib/wsl/drivers/other/y.dll")
    for release in (NEW, OLD):
        spec = await generated(machine, "--mode=wsl", release=release)
        assert names(spec) == ["all"]
        assert paths(device(spec, "all")) == ["/dev/dxg"]
        found = set(targets(spec))
        assert {"/usr/lib/wsl/lib/libdxcore.so", f"{store}/libcuda.so.1.1", f"{store}/nvidia-smi"} <= found
        assert (f"{store}/x.dll" in found) == (release is NEW)
        assert not any("other" in each for each in found)
        assert list(hook_args(spec)) == ["create-symlinks", "update-ldcache"]


# --- 2: device numbers ------------------------------------------------------------------------------------------------

DEVICES = (
    "Character devices:\n  1 mem\nbad\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n511 nvidia-caps\n\nBlock devices:\n"
)


def pci(machine: Machine, *addresses: str) -> None:
    for address in addresses:
        for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330"), ("driver/x", "")):
            machine.proc(f"/sys/bus/pci/devices/{address}/{name}", text + "\n")


def links(machine: Machine, folder: str = "/dev/char") -> dict[str, str]:
    there = machine.root / folder.lstrip("/")
    return {each.name: str(each.readlink()) for each in there.iterdir()} if there.is_dir() else {}


@pytest.mark.parametrize("name", ["nvidia", "nvidia-frontend"])
async def test_2_links_to_all_nodes(machine: Machine, name: str) -> None:
    machine.proc("/proc/devices", DEVICES.replace("195 nvidia\n", f"195 {name}\n"))
    machine.proc("/proc/driver/nvidia-caps/mig-minors", "config 1\ngpu0/gi7/access 30\n")
    pci(machine, "0000:0a:00.0", "0000:0b:00.0")
    words = ("system", "create-dev-char-symlinks", "--create-all")
    dry = await command(machine, *words, "--dry-run")
    assert (dry.code, links(machine)) == (0, {})
    done = await command(machine, *words)
    assert done.code == 0, done.stderr
    found = links(machine)
    expected = {
        **{f"195:{minor}": f"/dev/nvidia{minor}" for minor in (0, 1)},
        "195:255": "/dev/nvidiactl",
        "195:254": "/dev/nvidia-modeset",
        "510:0": "/dev/nvidia-uvm",
        "510:1": "/dev/nvidia-uvm-tools",
        "511:1": "/dev/nvidia-caps/nvidia-cap1",
        "511:30": "/dev/nvidia-caps/nvidia-cap30",
    }
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("gone", ["195 nvidia\n", "510 nvidia-uvm\n", "511 nvidia-caps\n"])
async def test_2_a_number_that_is_missing_is_an_error(machine: Machine, gone: str) -> None:
    machine.proc("/proc/devices", DEVICES.replace(gone, "").replace("195 nvidiactl\n", ""))
    machine.proc("/proc/driver/nvidia-caps/mig-minors", "config 1\n")
    pci(machine, "0000:0a:00.0")
    assert (await command(machine, "system", "create-dev-char-symlinks", "--create-all")).code == 1


async def test_2_links_to_the_nodes_that_are_there(machine: Machine) -> None:
    machine.nodes()
    machine.node("/dev/null", 1, 3)
    assert (await command(machine, "system", "create-dev-char-symlinks", "--dev-char-path=/c")).code == 0
    assert set(links(machine, "/c")) == {"195:0", "195:254", "195:255", "510:0", "510:1"}


# --- 4: the toolkit ---------------------------------------------------------------------------------------------------

DEST = "/usr/local/nvidia/toolkit"
PID = "/run/nvidia/toolkit/toolkit.pid"
SPEC = "/var/run/cdi/management.nvidia.com-gpu.yaml"
CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
PLAIN = {
    "RUNTIME": "containerd",
    "HOST_ROOT_MOUNT": "/",
    "RUNTIME_RESTART_MODE": "none",
    "RUNTIME_CONFIG_SOURCE": "file",
}
OPERATOR = {
    "RUNTIME": "containerd",
    "ROOT": "/usr/local/nvidia",
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "TOOLKIT_PID_FILE": PID,
    "NRI_NAMESPACE": "gpu-operator",
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
    "CRIO_CONFIG_MODE": "config",
    "CONTAINERD_RUNTIME_CLASS": "nvidia",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
    "HOST_ROOT_MOUNT": "/",
    "RUNTIME_RESTART_MODE": "none",
    "RUNTIME_CONFIG_SOURCE": "file",
}


class Toolkits:
    """Starts toolkits on a machine; all are ended with the test."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._tasks: list[asyncio.Task[int]] = []

    def start(self, *words: str, env: dict[str, str] | None = None, **more: Any) -> Any:
        process = self.machine.process(("nvidia-toolkit", *words), PLAIN if env is None else env, **more)
        process.task = asyncio.create_task(toolkit.run(process))
        self._tasks.append(process.task)
        return process

    async def waiting(self, *words: str, **more: Any) -> Any:
        """A toolkit that has done all and waits."""
        process = self.start(*words, **more)
        await until(lambda: process.task.done() or re.search("[Ww]aiting for", process.stderr), "a waiting toolkit")
        assert not process.task.done(), process.stderr
        return process

    async def once(self, *words: str, code: int = 0, **more: Any) -> Any:
        process = self.start("--no-daemon", *words, **more)
        assert await asyncio.wait_for(process.task, 60) == code, process.stderr
        return process

    async def end(self, process: Any, code: int = 0) -> None:
        process.send(signal.SIGTERM)
        assert await asyncio.wait_for(process.task, 60) == code, process.stderr

    async def cycle(self, *words: str, **more: Any) -> Any:
        process = await self.waiting(*words, **more)
        await self.end(process)
        return process


@pytest.fixture
async def toolkits(machine: Machine) -> AsyncIterator[Toolkits]:
    program = machine.file("/usr/lib/groundplane/host/groundplane-host", b"\x7fELF", 0o755)
    assert program.is_file()
    made = Toolkits(machine)
    yield made
    for task in made._tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


@pytest.fixture
def operand(machine: Machine) -> Machine:
    """A machine as the operand finds it: the driver is a container's."""
    driverroots.make(machine.root / "driver-root", VERSION, driverroots.Kind.CONTAINER)
    machine.gpus({})
    machine.nodes("/driver-root/dev")
    return machine


FLAGS = """
--no-daemon,-n|NO_DAEMON|
--no-runtime-config|NO_RUNTIME_CONFIG|
--enable-nri-plugin,-p|ENABLE_NRI_PLUGIN|
--nri-plugin-index|NRI_PLUGIN_INDEX|10
--nri-socket|NRI_SOCKET|/var/run/nri/nri.sock
--nri-namespace|NRI_NAMESPACE|
--nri-management-cdi-device-namespaces|NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES|
--runtime,-r|RUNTIME|docker
--toolkit-install-dir,--root|TOOLKIT_INSTALL_DIR,ROOT|/usr/local/nvidia
--toolkit-source-root|TOOLKIT_SOURCE_ROOT|
--toolkit-package-type|TOOLKIT_PACKAGE_TYPE|auto
--pid-file|TOOLKIT_PID_FILE,PID_FILE|/run/nvidia/toolkit/toolkit.pid
--debug|TOOLKIT_DEBUG|
--config|RUNTIME_CONFIG,CONTAINERD_CONFIG,DOCKER_CONFIG|
--drop-in-config|RUNTIME_DROP_IN_CONFIG|
--drop-in-config-host-path|RUNTIME_DROP_IN_CONFIG_HOST_PATH|
--executable-path|RUNTIME_EXECUTABLE_PATH|
--socket|RUNTIME_SOCKET,CONTAINERD_SOCKET,DOCKER_SOCKET|
--restart-mode|RUNTIME_RESTART_MODE|
--enable-cdi-in-runtime|RUNTIME_ENABLE_CDI|
--host-root|HOST_ROOT_MOUNT|/host
--runtime-name,--nvidia-runtime-name,--runtime-class|NVIDIA_RUNTIME_NAME,CONTAINERD_RUNTIME_CLASS,DOCKER_RUNTIME_NAME|nvidia
--set-as-default|NVIDIA_RUNTIME_SET_AS_DEFAULT,CONTAINERD_SET_AS_DEFAULT,DOCKER_SET_AS_DEFAULT|true
--config-source|RUNTIME_CONFIG_SOURCES,RUNTIME_CONFIG_SOURCE|command,file
--use-legacy-config|CONTAINERD_USE_LEGACY_CONFIG|
--runtime-type|CONTAINERD_RUNTIME_TYPE|io.containerd.runc.v2
--runtime-config-override|RUNTIME_CONFIG_OVERRIDE,CONTAINERD_RUNTIME_CONFIG_OVERRIDE|{}
--hooks-dir|CRIO_HOOKS_DIR|/usr/share/containers/oci/hooks.d
--hook-filename|CRIO_HOOK_FILENAME|oci-nvidia-hook.json
--config-mode|CRIO_CONFIG_MODE|config
--driver-root|NVIDIA_DRIVER_ROOT,DRIVER_ROOT|/run/nvidia/driver
--driver-root-ctr-path|DRIVER_ROOT_CTR_PATH|/run/nvidia/driver
--dev-root|NVIDIA_DEV_ROOT,DEV_ROOT|
--dev-root-ctr-path|DEV_ROOT_CTR_PATH|
--nvidia-container-runtime.debug|NVIDIA_CONTAINER_RUNTIME_DEBUG|
--nvidia-container-runtime.log-level|NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL|
--nvidia-container-runtime.mode|NVIDIA_CONTAINER_RUNTIME_MODE|
--nvidia-container-runtime.runtimes|NVIDIA_CONTAINER_RUNTIME_RUNTIMES|
--nvidia-container-runtime.modes.cdi.default-kind|NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND|
--nvidia-container-runtime.modes.cdi.annotation-prefixes|NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES|
--nvidia-container-runtime-hook.skip-mode-detection|NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION|true
--nvidia-container-cli.debug|NVIDIA_CONTAINER_CLI_DEBUG|
--accept-nvidia-visible-devices-envvar-when-unprivileged|ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED|true
--accept-nvidia-visible-devices-as-volume-mounts|ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS|
--cdi-enabled,--enable-cdi|CDI_ENABLED,ENABLE_CDI|
--cdi-output-dir|CDI_OUTPUT_DIR|/var/run/cdi
--cdi-kind|CDI_KIND|management.nvidia.com/gpu
--create-device-nodes|CREATE_DEVICE_NODES|control
--opt-in-features|NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES|
"""


async def test_4_3_flags_variables_and_defaults(toolkits: Toolkits) -> None:
    process = toolkits.start("--help")
    assert await process.task == 0
    options = {}
    for head, text in re.findall(r"^  (-\S.*)\n        (.*)$", process.stdout, re.MULTILINE):
        options[head.split(",")[0].split(" ")[0]] = (re.sub(" (string|strings|int)$", "", head).split(", "), text)
    for line in FLAGS.strip().splitlines():
        flags, env, default = line.split("|")
        first = flags.split(",")[0]
        given, text = options[first]
        assert set(flags.split(",")) <= set(given), line
        assert text.endswith("; " + " or ".join(f"${each}" for each in env.split(","))), line
        assert not default or f"default {default};" in text, line


async def test_4_4_installs_and_writes_and_leaves_what_containers_need(toolkits: Toolkits, operand: Machine) -> None:
    operand.file(CONFIG, "version = 2\n")
    operand.file(f"{DEST}/old-file", "x")
    process = await toolkits.waiting(env=OPERATOR)
    assert operand.read(PID).strip() == str(os.getpid())
    assert not operand.there(f"{DEST}/old-file")
    for name in (
        *("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"),
        *("nvidia-container-runtime-hook", "nvidia-cdi-hook"),
    ):
        assert os.access(operand.root / f"{DEST}/{name}".lstrip("/"), os.X_OK), name
    assert not operand.there(f"{DEST}/nvidia-cdi-hook.real")
    link = operand.root / f"{DEST}/nvidia-container-toolkit".lstrip("/")
    assert str(link.readlink()) == "nvidia-container-runtime-hook"
    assert stat.S_IMODE((operand.root / DEST.lstrip("/")).stat().st_mode) == 0o755
    spec = yaml.safe_load(operand.read(SPEC))
    assert (spec["kind"], names(spec)) == ("management.nvidia.com/gpu", ["all"])
    node = [each for each in device(spec, "all")["deviceNodes"] if each["path"] == "/dev/nvidia0"]
    assert node[0]["hostPath"] == "/run/nvidia/driver/dev/nvidia0"
    assert all(each["hostPath"].startswith("/run/nvidia/driver/") for each in spec["containerEdits"]["mounts"])
    assert stat.S_IMODE((operand.root / SPEC.lstrip("/")).stat().st_mode) == 0o644
    await toolkits.end(process)
    assert not operand.there(PID)
    assert not operand.there(DROP_IN)
    assert operand.read(CONFIG) == "version = 2\n"
    assert operand.there(f"{DEST}/nvidia-container-runtime")
    assert operand.there(SPEC)


async def test_4_6_config_toml(toolkits: Toolkits, operand: Machine) -> None:
    operand.file("/driver-root/usr/sbin/ldconfig.real")
    operand.file(CONFIG, "version = 2\n")
    await toolkits.once(env=OPERATOR)
    text = operand.read(f"{DEST}/.config/nvidia-container-runtime/config.toml")
    written = tomllib.loads(text)
    top = [line.split(" ")[0] for line in text.split("\n[")[0].splitlines() if " = " in line]
    assert top == sorted(top)
    runtime = written["nvidia-container-runtime"]
    assert runtime.pop("runtimes") == ["runc", "crun"]
    modes = runtime.pop("modes")
    assert modes["cdi"] == {
        "annotation-prefixes": ["cdi.k8s.io/"],
        "default-kind": "management.nvidia.com/gpu",
        "spec-dirs": ["/etc/cdi", "/var/run/cdi"],
    }
    assert modes["csv"] == {"mount-spec-path": "/etc/nvidia-container-runtime/host-files-for-container.d"}
    assert modes["legacy"] == {"cuda-compat-mode": "ldconfig"}
    assert runtime == {"debug": "/dev/null", "log-level": "info", "mode": "cdi"}
    assert written["nvidia-container-cli"] == {
        "debug": "",
        "ldcache": "",
        "user": "",
        "environment": [],
        "load-kmods": True,
        "no-cgroups": False,
        "ldconfig": "@/run/nvidia/driver/sbin/ldconfig.real",
        "path": f"{DEST}/nvidia-container-cli",
        "root": "/run/nvidia/driver",
    }
    hook = {"path": f"{DEST}/nvidia-container-runtime-hook", "skip-mode-detection": True}
    assert written["nvidia-container-runtime-hook"] == hook
    assert written["nvidia-ctk"] == {"path": f"{DEST}/nvidia-ctk"}
    assert written["accept-nvidia-visible-devices-as-volume-mounts"] is False
    assert written["accept-nvidia-visible-devices-envvar-when-unprivileged"] is True
    assert written["disable-require"] is False
    assert written["supported-driver-capabilities"] == "compat32,compute,display,graphics,ngx,utility,video"
    assert written["swarm-resource"] == ""
    assert not written.get("features")


async def test_4_6_settings_of_config_toml(toolkits: Toolkits, machine: Machine) -> None:
    machine.file("/etc/os-release", 'ID="sles"\nID_LIKE="suse"\n')
    env = {
        **PLAIN,
        "NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES": "disable-imex-channel-creation,ignore-imex-channel-requests",
        "NVIDIA_CONTAINER_RUNTIME_RUNTIMES": "a,b",
        "NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL": "debug",
        "NVIDIA_CONTAINER_RUNTIME_DEBUG": "/d",
        "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": "x/,y/",
        "NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION": "false",
        "NVIDIA_CONTAINER_CLI_DEBUG": "/c",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true",
        "TOOLKIT_INSTALL_DIR": "/opt/nv",
        "ROOT": "/not/this",
    }
    await toolkits.once(env=env)
    written = tomllib.loads(machine.read("/opt/nv/toolkit/.config/nvidia-container-runtime/config.toml"))
    assert not machine.there("/not")
    assert written["features"] == {"disable-imex-channel-creation": True, "ignore-imex-channel-requests": True}
    assert written["nvidia-container-cli"]["user"] == "root:video"
    assert written["nvidia-container-cli"]["debug"] == "/c"
    assert written["nvidia-container-cli"]["ldconfig"] == "@/run/nvidia/driver/sbin/ldconfig"
    runtime = written["nvidia-container-runtime"]
    assert (runtime["runtimes"], runtime["log-level"], runtime["debug"]) == (["a", "b"], "debug", "/d")
    assert runtime["modes"]["cdi"]["annotation-prefixes"] == ["x/", "y/"]
    assert runtime["modes"]["cdi"]["default-kind"] == "nvidia.com/gpu"
    assert runtime["mode"] == "auto"
    assert written["nvidia-container-runtime-hook"]["skip-mode-detection"] is False
    assert written["accept-nvidia-visible-devices-as-volume-mounts"] is True
    assert written["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False


RUNTIMES = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{default}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.mine.options]
BinaryName = "/opt/mine"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "/usr/sbin/runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "/usr/bin/crun"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("mine", ["/opt/mine", "/usr/sbin/runc", "/usr/bin/crun", "runc", "crun"]),
        ("crun", ["/usr/bin/crun", "/usr/sbin/runc", "runc", "crun"]),
        ("nvidia", ["/usr/sbin/runc", "/usr/bin/crun", "runc", "crun"]),
    ],
)
async def test_4_4_low_level_runtimes(toolkits: Toolkits, machine: Machine, default: str, expected: list[str]) -> None:
    machine.file(CONFIG, RUNTIMES.format(default=default))
    await toolkits.once()
    written = tomllib.loads(machine.read(f"{DEST}/.config/nvidia-container-runtime/config.toml"))
    assert written["nvidia-container-runtime"]["runtimes"] == expected


BAD_SETTINGS = [
    ({"RUNTIME": "podman"}, "invalid runtime"),
    ({"PID_FILE": "/run/other.pid"}, "toolkit.pid"),
    ({"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "n", "NRI_PLUGIN_INDEX": "100"}, "nri-plugin-index"),
    ({"ENABLE_NRI_PLUGIN": "true"}, "amespace"),
    ({"CDI_ENABLED": "true", "CDI_KIND": "nvidia.com"}, "nvidia.com"),
    ({"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": "all"}, "all"),
    ({"RUNTIME_CONFIG_SOURCE": "nonsense"}, "nonsense"),
    ({"RUNTIME_RESTART_MODE": "nonsense"}, "nonsense"),
    ({"RUNTIME": "crio", "RUNTIME_RESTART_MODE": "signal"}, "signal"),
    ({"RUNTIME_CONFIG_OVERRIDE": "[]"}, "verride"),
    ({"RUNTIME_CONFIG_OVERRIDE": "{"}, "verride"),
    ({"NO_DAEMON": "perhaps"}, "perhaps"),
]


@pytest.mark.parametrize(("env", "said"), BAD_SETTINGS)
async def test_4_3_what_is_refused(toolkits: Toolkits, machine: Machine, env: dict[str, str], said: str) -> None:
    machine.file(CONFIG, "version = 2\n")
    process = toolkits.start(env={**PLAIN, **env})
    assert await asyncio.wait_for(process.task, 20) == 1
    assert said in process.stderr
    assert machine.read(CONFIG) == "version = 2\n"
    assert not machine.there(PID)


async def test_4_4_one_at_a_time(toolkits: Toolkits, machine: Machine) -> None:
    first = await toolkits.waiting()
    other = toolkits.start()
    assert await asyncio.wait_for(other.task, 20) == 1
    assert "already running" in other.stderr
    assert machine.read(PID).strip() == str(os.getpid())
    await toolkits.end(first)
    await toolkits.cycle()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
async def test_4_4_a_signal_before_it_waits_takes_nothing_back(
    toolkits: Toolkits, machine: Machine, number: signal.Signals
) -> None:
    machine.file(CONFIG, "version = 2\n")
    process = toolkits.start()
    process.send(number)
    assert await asyncio.wait_for(process.task, 20) == 0
    assert not machine.there(PID)


async def test_4_4_no_nodes_is_fatal_and_named(toolkits: Toolkits, operand: Machine) -> None:
    shutil.rmtree(operand.root / "driver-root/dev")
    operand.file(CONFIG, "version = 2\n")
    operand.file(SPEC, "before")
    process = toolkits.start(env={**OPERATOR, "CREATE_DEVICE_NODES": "none"})
    assert await asyncio.wait_for(process.task, 20) == 1
    assert "no NVIDIA device nodes found" in process.stderr
    assert "CDI" in process.stderr
    assert operand.read(SPEC) == "before"
    assert operand.read(CONFIG) == "version = 2\n"
    assert not operand.there(DROP_IN)


async def test_2_and_4_4_control_nodes_are_made(toolkits: Toolkits, operand: Machine) -> None:
    dev = operand.root / "driver-root/dev"
    shutil.rmtree(dev)
    operand.node("/driver-root/dev/nvidia-uvm", 1, 3, 0o600)
    operand.proc("/proc/devices", DEVICES)
    await toolkits.once(env=OPERATOR)
    found = {each.name: each.stat() for each in dev.iterdir()}
    numbers = {name: (os.major(each.st_rdev), os.minor(each.st_rdev)) for name, each in found.items()}
    assert numbers == {
        "nvidiactl": (195, 255),
        "nvidia-modeset": (195, 254),
        "nvidia-uvm": (1, 3),
        "nvidia-uvm-tools": (510, 1),
    }
    assert {stat.S_IMODE(each.st_mode) for name, each in found.items() if name != "nvidia-uvm"} == {0o666}
    assert stat.S_IMODE(found["nvidia-uvm"].st_mode) == 0o600


async def test_4_3_without_an_output_folder_there_is_no_cdi(toolkits: Toolkits, operand: Machine) -> None:
    process = await toolkits.once(env={**OPERATOR, "CDI_OUTPUT_DIR": ""})
    assert re.search("^W", process.stderr, re.MULTILINE)
    assert not operand.there("/var/run/cdi")


@pytest.mark.parametrize("env", [{"NO_RUNTIME_CONFIG": "true"}, {"NO_DAEMON": "true", "NO_RUNTIME_CONFIG": "true"}])
async def test_4_4_no_runtime_config(toolkits: Toolkits, machine: Machine, env: dict[str, str]) -> None:
    machine.file(CONFIG, "version = [")
    process = toolkits.start(env={**PLAIN, **env})
    if "NO_DAEMON" not in env:
        await until(lambda: "aiting" in process.stderr)
        await toolkits.end(process)
    assert await process.task == 0
    assert machine.read(CONFIG) == "version = ["
    assert machine.there(f"{DEST}/nvidia-ctk")


async def test_4_4_no_daemon_takes_nothing_back(toolkits: Toolkits, machine: Machine) -> None:
    await toolkits.once()
    assert machine.there(DROP_IN)
    assert not machine.there(PID)


# --- 5: the runtime's configuration -----------------------------------------------------------------------------------

TABLES = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
USERS = """# mine
version = {version}
root = "/data"
imports = ["/etc/containerd/own/*.toml"] # keep

[plugins]
  [plugins."{table}"]
    sandbox_image = "pause:1" # old
    unknown_key = 7
    [plugins."{table}".containerd]
      {default}
      [plugins."{table}".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."{table}".containerd.runtimes.runc.options]
          SystemdCgroup = true
          Root = "/r"
  [plugins."other"]
    a = 1
"""
NAMES = {
    "nvidia": f"{DEST}/nvidia-container-runtime",
    "nvidia-cdi": f"{DEST}/nvidia-container-runtime.cdi",
    "nvidia-legacy": f"{DEST}/nvidia-container-runtime.legacy",
}


def users(version: int, default: str = "") -> str:
    said = f'default_runtime_name = "{default}"' if default else ""
    text = USERS.format(version=version, table=TABLES[version], default=said)
    return text.replace('imports = ["/etc/containerd/own/*.toml"] # keep\n', "") if version == 1 else text


def cri(machine: Machine, version: int, path: str = DROP_IN) -> dict[str, Any]:
    return tomllib.loads(machine.read(path))["plugins"][TABLES[version]]  # type: ignore[no-any-return]


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("version", [2, 3, 4])
async def test_5_3_containerd(toolkits: Toolkits, machine: Machine, version: int, default: bool) -> None:
    text = users(version)
    machine.file(CONFIG, text, 0o600)
    env = {**PLAIN, "RUNTIME_ENABLE_CDI": "true", "NVIDIA_RUNTIME_SET_AS_DEFAULT": str(default).lower()}
    process = await toolkits.waiting(env=env)
    written = tomllib.loads(machine.read(DROP_IN))
    assert written["version"] == version
    assert set(written["plugins"]) == {TABLES[version]}
    table = written["plugins"][TABLES[version]]
    assert (table["sandbox_image"], table["unknown_key"]) == ("pause:1", 7)
    assert table.get("enable_cdi") in ((True,) if version < 4 else (True, None))
    handlers = table["containerd"]["runtimes"]
    assert set(handlers) == {"runc", *NAMES}
    for name, path in NAMES.items():
        assert handlers[name] == {
            "runtime_type": "io.containerd.runc.v2",
            "options": {"SystemdCgroup": True, "Root": "/r", "BinaryName": path},
        }
    assert table["containerd"].get("default_runtime_name") == ("nvidia" if default else None)
    assert machine.read(CONFIG) == text.replace('own/*.toml"]', 'own/*.toml", "/etc/containerd/conf.d/*.toml"]')
    assert stat.S_IMODE((machine.root / CONFIG.lstrip("/")).stat().st_mode) == 0o600
    before = (machine.read(CONFIG), machine.read(DROP_IN))
    await toolkits.end(process)
    assert machine.read(CONFIG) == text
    assert not machine.there(DROP_IN)
    await toolkits.once(env=env)
    await toolkits.once(env=env)
    assert (machine.read(CONFIG), machine.read(DROP_IN)) == before


@pytest.mark.parametrize("head", ["version = 1\n", ""])
async def test_5_3_version_1_is_edited_in_place_and_restored(toolkits: Toolkits, machine: Machine, head: str) -> None:
    text = users(1, "crun").replace("version = 1\n", head)
    machine.file(CONFIG, text)
    process = await toolkits.waiting(env={**PLAIN, "RUNTIME_ENABLE_CDI": "true"})
    assert not machine.there(DROP_IN)
    table = cri(machine, 1, CONFIG)
    assert table["containerd"]["default_runtime_name"] == "nvidia"
    assert table["containerd"]["enable_cdi"] is True
    for name, path in NAMES.items():
        assert table["containerd"]["runtimes"][name]["options"]["BinaryName"] == path
        assert table["containerd"]["runtimes"][name]["options"]["Runtime"] == path
    assert "imports" not in tomllib.loads(machine.read(CONFIG))
    await toolkits.end(process)
    assert machine.read(CONFIG) == text


@pytest.mark.parametrize("there", [None, "", "# nothing\n"])
async def test_5_3_a_missing_or_empty_file(toolkits: Toolkits, machine: Machine, there: str | None) -> None:
    if there is not None:
        machine.file(CONFIG, there)
    process = await toolkits.waiting()
    top = tomllib.loads(machine.read(CONFIG))
    assert top["imports"] == ["/etc/containerd/conf.d/*.toml"]
    written = tomllib.loads(machine.read(DROP_IN))
    assert top["version"] == written["version"]
    handler = written["plugins"][TABLES[written["version"]]]["containerd"]["runtimes"]["nvidia"]
    assert handler == {
        "runtime_type": "io.containerd.runc.v2",
        "runtime_root": "",
        "runtime_engine": "",
        "privileged_without_host_devices": False,
        "options": {"BinaryName": NAMES["nvidia"]},
    }
    await toolkits.end(process)
    assert machine.there(CONFIG) == (there is not None)
    assert there is None or machine.read(CONFIG) == there
    assert not machine.there(DROP_IN)


@pytest.mark.parametrize("text", ["version = ", 'version = "two"\n', "version = 2.5\n", "a = 1\na = 2\n"])
async def test_5_3_a_malformed_file_is_refused_and_left(toolkits: Toolkits, machine: Machine, text: str) -> None:
    machine.file(CONFIG, text)
    process = await toolkits.once(code=1)
    assert re.search(r"^E.*(config\.toml|configuration of containerd)", process.stderr, re.MULTILINE)
    assert machine.read(CONFIG) == text
    assert not machine.there(DROP_IN)


@pytest.mark.parametrize(
    ("name", "default"), [("nvidia", "nvidia"), ("nvidia-cdi", "nvidia-cdi"), ("gpu", "gpu"), ("nvidia-legacy",) * 2]
)
async def test_5_1_names_of_handlers(toolkits: Toolkits, machine: Machine, name: str, default: str) -> None:
    machine.file(CONFIG, users(2))
    await toolkits.once(env={**PLAIN, "NVIDIA_RUNTIME_NAME": name})
    table = cri(machine, 2)["containerd"]
    plain = "gpu" if name == "gpu" else "nvidia"
    assert set(table["runtimes"]) == {"runc", plain, "nvidia-cdi", "nvidia-legacy"}
    assert table["runtimes"][plain]["options"]["BinaryName"] == NAMES["nvidia"]
    assert table["default_runtime_name"] == default


@pytest.mark.parametrize(
    ("before", "as_default", "after"),
    [("nvidia", "false", None), ("crun", "false", "crun"), ("crun", "true", "nvidia"), ("", "false", None)],
)
async def test_5_3_the_default(
    toolkits: Toolkits, machine: Machine, before: str, as_default: str, after: str | None
) -> None:
    machine.file(CONFIG, users(2, before))
    await toolkits.cycle(env={**PLAIN, "NVIDIA_RUNTIME_SET_AS_DEFAULT": as_default})
    if before != "nvidia":
        assert machine.read(CONFIG) == users(2, before)
    process = await toolkits.waiting(env={**PLAIN, "NVIDIA_RUNTIME_SET_AS_DEFAULT": as_default})
    assert cri(machine, 2)["containerd"].get("default_runtime_name") == after
    await toolkits.end(process)


async def test_5_3_annotations_and_overrides(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    prefixes = "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES"
    await toolkits.once(
        env={**PLAIN, prefixes: "a/,b/", "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/host/dir/99-nvidia.toml"}
    )
    for name in NAMES:
        assert cri(machine, 2)["containerd"]["runtimes"][name]["container_annotations"] == ["a/*", "b/*"]
    assert tomllib.loads(machine.read(CONFIG))["imports"][-1] == "/host/dir/*.toml"


async def test_5_3_handlers_of_the_main_file(toolkits: Toolkits, machine: Machine) -> None:
    """Left alone at setup, removed at cleanup if they are the toolkit's."""
    text = users(2)
    added = f'\n[plugins."{TABLES[2]}".containerd.runtimes.nvidia.options]\nBinaryName = "{NAMES["nvidia"]}"\n'
    machine.file(CONFIG, text + added)
    process = await toolkits.waiting()
    assert added in machine.read(CONFIG)
    await toolkits.end(process)
    assert "nvidia" not in cri(machine, 2, CONFIG)["containerd"]["runtimes"]
    assert tomllib.loads(machine.read(CONFIG)) == tomllib.loads(text)


async def test_5_3_a_link_stays_one(toolkits: Toolkits, machine: Machine) -> None:
    machine.file("/etc/containerd/real.toml", users(2))
    (machine.root / CONFIG.lstrip("/")).symlink_to("real.toml")
    process = await toolkits.waiting()
    assert "conf.d" in machine.read("/etc/containerd/real.toml")
    await toolkits.end(process)
    assert str((machine.root / CONFIG.lstrip("/")).readlink()) == "real.toml"
    assert machine.read(CONFIG) == users(2)


def toml(value: Any, path: tuple[str, ...] = ()) -> str:
    """A document as TOML."""
    lines = [f"[{'.'.join(json.dumps(each) for each in path)}]"] if path else []
    lines += [f"{json.dumps(key)} = {json.dumps(each)}" for key, each in value.items() if not isinstance(each, dict)]
    text = "\n".join(lines) + "\n"
    return text + "".join(toml(each, (*path, key)) for key, each in value.items() if isinstance(each, dict))


class Containerd:
    """`containerd config dump` of a containerd before 2.1: a drop-in's plugin table replaces the main file's."""

    def __init__(self, machine: Machine, dumped: int = 3) -> None:
        self.machine = machine
        self.dumped = dumped
        self.asked: list[tuple[str, ...]] = []
        self.broken = False
        self.blind = False

    def __call__(self, argv: Any, env: Any, stdin: str) -> Completed:
        words = tuple(argv)
        self.asked.append(words)
        if words[0] == "chroot":
            words = words[2:]
        if words[0].rpartition("/")[2] != "containerd" or "dump" not in words or self.broken:
            return Completed(1, "", "not so")
        merged: dict[str, Any] = {
            "version": self.dumped,
            "imports": ["x"],
            "plugins": {
                TABLES[self.dumped]: {
                    "enable_selinux": False,
                    "containerd": {
                        "default_runtime_name": "runc",
                        "runtimes": {"runc": {"runtime_type": "t", "options": {"SystemdCgroup": True}}},
                    },
                },
                "more": {"a": 1},
            },
        }
        main = self.machine.root / CONFIG.lstrip("/")
        files = [tomllib.loads(main.read_text())] if main.exists() else []
        for pattern in files[0].get("imports", ()) if files and not self.blind else ():
            files += [tomllib.loads(each.read_text()) for each in sorted(self.machine.root.glob(pattern.lstrip("/")))]
        for each in files:
            for table in each.get("plugins", {}).values():
                merged["plugins"][TABLES[self.dumped]] = {**merged["plugins"][TABLES[self.dumped]], **table}
        return Completed(0, toml(merged), "")


@pytest.mark.parametrize("host", ["/host", "/"])
async def test_5_2_the_source_is_what_the_daemon_says(toolkits: Toolkits, machine: Machine, host: str) -> None:
    dump = Containerd(machine)
    machine.commands.update(chroot=dump, containerd=dump)
    env = {**PLAIN, "HOST_ROOT_MOUNT": host, "RUNTIME_CONFIG_SOURCE": " command , file "}
    process = await toolkits.waiting(env=env)
    expected = ("containerd", "config", "dump")
    assert dump.asked[0] == (expected if host == "/" else ("chroot", "/host", *expected))
    table = cri(machine, 3)
    assert table["enable_selinux"] is False
    assert table["containerd"]["runtimes"]["nvidia"]["options"] == {
        "SystemdCgroup": True,
        "BinaryName": NAMES["nvidia"],
    }
    assert table["containerd"]["default_runtime_name"] == "nvidia"
    before = (machine.read(CONFIG), machine.read(DROP_IN))
    await toolkits.once(env={**env, "TOOLKIT_PID_FILE": "/run/two/toolkit.pid"})
    assert (machine.read(CONFIG), machine.read(DROP_IN)) == before
    await toolkits.end(process)
    assert not machine.there(CONFIG)
    assert not machine.there(DROP_IN)


async def test_5_2_executable_and_file_sources(toolkits: Toolkits, machine: Machine) -> None:
    dump = Containerd(machine)
    machine.commands.update(chroot=dump)
    env = {**PLAIN, "HOST_ROOT_MOUNT": "/host", "RUNTIME_CONFIG_SOURCE": "command"}
    await toolkits.cycle(env={**env, "RUNTIME_EXECUTABLE_PATH": "/opt/containerd"})
    assert dump.asked[0] == ("chroot", "/host", "/opt/containerd", "config", "dump")
    dump.broken = True
    await toolkits.once(env=env, code=1)
    assert not machine.there(CONFIG)
    machine.file("/etc/other.toml", users(2).replace("pause:1", "pause:2"))
    await toolkits.once(env={**env, "RUNTIME_CONFIG_SOURCES": "command, file = /etc/other.toml"})
    assert cri(machine, 2)["sandbox_image"] == "pause:2"


@pytest.mark.parametrize("fault", ["broken", "blind"])
async def test_9_what_the_daemon_would_not_load_is_put_back(toolkits: Toolkits, machine: Machine, fault: str) -> None:
    machine.file(CONFIG, users(3))
    dump = Containerd(machine)
    inner = dump.__call__

    def ask(argv: Any, env: Any, stdin: str) -> Completed:
        setattr(dump, fault, machine.there(DROP_IN))
        return inner(argv, env, stdin)

    machine.commands.update(chroot=ask)
    env = {**PLAIN, "HOST_ROOT_MOUNT": "/host", "RUNTIME_CONFIG_SOURCE": "command,file"}
    await toolkits.once(env=env, code=1)
    assert machine.read(CONFIG) == users(3)
    assert not machine.there(DROP_IN)


# 5.4 and 5.5

CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
CRIO = """[crio.runtime]
default_runtime = "{default}"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/bin/conmon"
"""


@pytest.mark.parametrize("as_default", [False, True])
async def test_5_4_crio(toolkits: Toolkits, machine: Machine, as_default: bool) -> None:
    machine.file("/etc/crio/crio.conf", CRIO.format(default="crun"))
    machine.commands["systemctl"] = lambda argv, env, stdin: Completed(0, "", "")
    env = {**PLAIN, "RUNTIME": "crio", "NVIDIA_RUNTIME_SET_AS_DEFAULT": str(as_default).lower()}
    del env["RUNTIME_RESTART_MODE"]
    process = await toolkits.waiting(env=env)
    written = tomllib.loads(machine.read(CRIO_DROP_IN))["crio"]["runtime"]
    for name, path in NAMES.items():
        assert written["runtimes"][name] == {
            "runtime_path": path,
            "runtime_type": "oci",
            "runtime_root": "/run/crun",
            "monitor_path": "/usr/bin/conmon",
        }
    assert written.get("default_runtime") == ("nvidia" if as_default else None)
    assert machine.read("/etc/crio/crio.conf") == CRIO.format(default="crun")
    await toolkits.end(process)
    assert not machine.there(CRIO_DROP_IN)
    assert machine.read("/etc/crio/crio.conf") == CRIO.format(default="crun")
    restarts = [each for each in process.executed if each[:2] == ("systemctl", "restart")]
    assert restarts == [("systemctl", "restart", "crio")] * (2 if as_default else 1)


async def test_5_4_crio_from_its_status(toolkits: Toolkits, machine: Machine) -> None:
    asked = []

    def crio(argv: Any, env: Any, stdin: str) -> Completed:
        asked.append(tuple(argv))
        return Completed(0, CRIO.format(default="crun"), "") if "crio-status" in argv else Completed(1, "", "no")

    machine.commands.update(chroot=crio)
    env = {**PLAIN, "RUNTIME": "crio", "HOST_ROOT_MOUNT": "/host", "RUNTIME_CONFIG_SOURCE": "command"}
    await toolkits.once(env=env)
    assert asked[:2] == [
        ("chroot", "/host", "crio", "status", "config"),
        ("chroot", "/host", "crio-status", "config"),
    ]
    written = tomllib.loads(machine.read(CRIO_DROP_IN))["crio"]["runtime"]["runtimes"]["nvidia"]
    assert written["monitor_path"] == "/usr/bin/conmon"


async def test_5_4_crio_without_anything_and_hook_mode(toolkits: Toolkits, machine: Machine) -> None:
    await toolkits.once(env={**PLAIN, "RUNTIME": "crio"})
    handler = tomllib.loads(machine.read(CRIO_DROP_IN))["crio"]["runtime"]["runtimes"]["nvidia"]
    assert handler == {"runtime_path": NAMES["nvidia"], "runtime_type": "oci"}
    process = await toolkits.waiting(
        env={**PLAIN, "RUNTIME": "crio", "CRIO_CONFIG_MODE": "hook", "CRIO_HOOKS_DIR": "/h"}
    )
    hook = json.loads(machine.read("/h/oci-nvidia-hook.json"))
    assert hook == {
        "version": "1.0.0",
        "hook": {
            "path": f"{DEST}/nvidia-container-runtime-hook",
            "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": [f"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{DEST}"],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    assert "deprecated" in process.stderr
    await toolkits.end(process)
    assert not machine.there("/h/oci-nvidia-hook.json")


DAEMON = '{\n    "log-level": "warn",\n    "features": {\n        "buildkit": true\n    },\n    "exec-opts": []\n}\n'


async def test_5_5_docker(toolkits: Toolkits, machine: Machine) -> None:
    machine.file("/etc/docker/daemon.json", DAEMON)
    env = {**PLAIN, "RUNTIME": "docker", "RUNTIME_ENABLE_CDI": "true"}
    process = await toolkits.waiting(env=env)
    text = machine.read("/etc/docker/daemon.json")
    written = json.loads(text)
    assert '\n    "runtimes": {' in text
    assert written == {
        "log-level": "warn",
        "exec-opts": [],
        "features": {"buildkit": True, "cdi": True},
        "runtimes": {name: {"path": path, "args": []} for name, path in NAMES.items()},
        "default-runtime": "nvidia",
    }
    await toolkits.end(process)
    left = json.loads(machine.read("/etc/docker/daemon.json"))
    assert "runtimes" not in left
    assert left.get("default-runtime") in (None, "runc")
    assert (left["log-level"], left["features"]["buildkit"]) == ("warn", True)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1} x'])
async def test_5_5_a_malformed_daemon_json_is_left(toolkits: Toolkits, machine: Machine, text: str) -> None:
    machine.file("/etc/docker/daemon.json", text)
    await toolkits.once(env={**PLAIN, "RUNTIME": "docker"}, code=1)
    assert machine.read("/etc/docker/daemon.json") == text


# 5.6


class Daemon:
    """A daemon at its socket, that says something: at once, or when it is asked."""

    def __init__(self, machine: Machine, path: str, greets: bool = True) -> None:
        self.path = machine.root / path.lstrip("/")
        self.greets = greets
        self.heard = b""
        machine.listed.append(Listed(os.getpid(), ("daemon",)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.greets:
            writer.write(b"\0\0\0\x04\0\0\0\0\0")
        self.heard += await reader.read(4096)
        if not self.greets:
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n{}")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def __aenter__(self) -> "Daemon":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with unixsocket.reachable(self.path) as address:
            self._server = await asyncio.start_unix_server(self._serve, address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


@pytest.mark.parametrize(
    ("runtime", "socket"), [("containerd", "/run/containerd/containerd.sock"), ("docker", "/var/run/docker.sock")]
)
async def test_5_6_signal(toolkits: Toolkits, machine: Machine, runtime: str, socket: str) -> None:
    env = {**PLAIN, "RUNTIME": runtime}
    del env["RUNTIME_RESTART_MODE"]
    hangup = (os.getpid(), signal.SIGHUP)
    async with Daemon(machine, socket, greets=runtime == "containerd") as daemon:
        process = await toolkits.waiting(env=env)
        assert process.killed == [hangup]
        assert daemon.heard.startswith(b"GET /info HTTP/1.0\r\n" if runtime == "docker" else b"")
        again = await toolkits.once(env={**env, "TOOLKIT_PID_FILE": "/run/two/toolkit.pid"})
        assert again.killed == []  # nothing changed
        await toolkits.end(process)
        assert process.killed == [hangup, hangup]


async def test_5_6_a_daemon_that_is_not_there(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    process = toolkits.start(env={**PLAIN, "RUNTIME_RESTART_MODE": "signal"}, pace=1000.0)
    assert await asyncio.wait_for(process.task, 30) == 1
    assert "containerd.sock" in process.stderr


async def test_5_6_systemd(toolkits: Toolkits, machine: Machine) -> None:
    asked = []

    def run(argv: Any, env: Any, stdin: str) -> Completed:
        asked.append(tuple(argv))
        return Completed(0, "", "")

    machine.commands.update(chroot=run)
    for runtime in ("crio", "containerd"):
        asked.clear()
        env = {**PLAIN, "RUNTIME": runtime, "HOST_ROOT_MOUNT": "/host", "RUNTIME_RESTART_MODE": "systemd"}
        await toolkits.once(env=env)
        assert [each for each in asked if "systemctl" in each] == [("chroot", "/host", "systemctl", "restart", runtime)]


# 5.8


async def test_5_8_runtime_configure(machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    words = ("runtime", "configure", "--runtime=containerd")
    dry = await command(machine, *words, "--dry-run", "--set-as-default", "--cdi.enabled")
    assert dry.code == 0
    assert "BinaryName" in dry.stdout
    assert "conf.d" in dry.stdout
    assert machine.read(CONFIG) == users(2)
    done = await command(machine, *words, "--nvidia-set-as-default", "--cdi.enabled", "--nvidia-runtime-name=gpu")
    assert done.code == 0
    table = cri(machine, 2)
    assert set(table["containerd"]["runtimes"]) == {"runc", "gpu"}
    assert table["containerd"]["runtimes"]["gpu"]["options"]["BinaryName"].endswith("nvidia-container-runtime")
    assert (table["containerd"]["default_runtime_name"], table["enable_cdi"]) == ("gpu", True)
    done = await command(machine, "runtime", "configure", "--nvidia-runtime-path=/x/r")
    assert done.code == 0
    assert json.loads(machine.read("/etc/docker/daemon.json")) == {"runtimes": {"nvidia": {"args": [], "path": "/x/r"}}}
    done = await command(machine, "runtime", "configure", "--runtime=crio", "--config=/c.conf")
    assert tomllib.loads(machine.read("/etc/crio/crio.conf.d/99-nvidia.toml"))["crio"]["runtime"]["runtimes"]["nvidia"]
    assert not machine.there("/c.conf")
    done = await command(
        machine,
        "runtime",
        "configure",
        "--runtime=crio",
        "--config-mode=oci-hook",
        "--oci-hook-path=/h.json",
        "--nvidia-runtime-hook-path=/x/hook",
    )
    assert json.loads(machine.read("/h.json"))["hook"]["path"] == "/x/hook"
    assert (await command(machine, "runtime", "configure", "--runtime=podman")).code == 1


# --- 6: the runtime wrapper -------------------------------------------------------------------------------------------

HOST_NAMES = (
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-cdi-hook",
)


def host_folder(folder: Path) -> Path:
    """The host's program under its names, and under those of the wrapped executables."""
    try:
        program = hostprogram.host_program()
    except golang.UnavailableError as error:
        unavailable(str(error))
    shutil.copy(program, folder / "nvidia-ctk")
    for name in HOST_NAMES:
        os.link(folder / "nvidia-ctk", folder / name)
        os.link(folder / "nvidia-ctk", folder / f"{name}.real")
    return folder


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host's folder after a toolkit was there, for a machine with two GPUs, one of them in MIG mode."""
    machine = Machine(tmp_path_factory.mktemp("host"))
    driverroots.make(machine.root / "driver-root", VERSION, driverroots.Kind.CONTAINER)
    machine.gpus({}, MIG)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        machine.file(f"/driver-root/dev/{name}")
    for minor in range(200):
        machine.file(f"/driver-root/dev/nvidia-caps/nvidia-cap{minor}")
    caps = [
        f"gpu1/gi{gi}/{name} {gi * 2 + add}" for gi in range(7, 15) for add, name in enumerate(("access", "ci0/access"))
    ]
    machine.proc("/proc/driver/nvidia-caps/mig-minors", "\n".join(caps))
    machine.file("/usr/lib/groundplane/host/groundplane-host", b"\x7fELF", 0o755)
    env = {**OPERATOR, "GROUNDPLANE_NULL_DEVICES": "true", "CREATE_DEVICE_NODES": "none", "NO_DAEMON": "true"}

    async def install() -> int:
        return await toolkit.run(machine.process(("nvidia-toolkit",), env))

    assert asyncio.run(install()) == 0
    folder = tmp_path_factory.mktemp("installed")
    installed = machine.root / f"{DEST}/.config".lstrip("/")
    shutil.copytree(installed, folder / ".config")
    return host_folder(folder)


SPECS = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {"env": ["COMMON=1", "PATH=/changed"]},
    "devices": [
        {"name": name, "containerEdits": {"env": [f"DEV_{name.replace(':', '_').replace('-', '_')}=1"]}}
        for name in ("0", "1", "0:1", "GPU-a", "all", "none")
    ],
}
MANAGEMENT = {
    "cdiVersion": "0.5.0",
    "kind": "management.nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"env": ["MANAGEMENT=1"]}}],
}
EDITS = {
    "cdiVersion": "0.7.0",
    "kind": "x/y",
    "containerEdits": {
        "env": ["A=common", "PATH=/new", "B=common"],
        "mounts": [
            {"hostPath": "/tmp", "containerPath": "/deep/er/down"},
            {"hostPath": "/tmp", "containerPath": "/data", "options": ["ro"], "type": "bind"},
        ],
        "hooks": [
            {"hookName": "createContainer", "path": "/bin/true", "args": ["true", "x"], "env": ["K=v"], "timeout": 3}
        ],
        "additionalGids": [0, 44],
        "intelRdt": {"closID": "common"},
    },
    "devices": [
        {
            "name": "z",
            "containerEdits": {
                "env": ["A=device"],
                "deviceNodes": [
                    {"path": "/dev/zero"},
                    {
                        "path": "/dev/made",
                        "hostPath": "/nowhere",
                        "type": "c",
                        "major": 7,
                        "minor": 8,
                        "permissions": "r",
                    },
                ],
                "intelRdt": {"closID": "device"},
            },
        },
        {"name": "gone", "containerEdits": {"deviceNodes": [{"path": "/dev/not-there"}]}},
        {"name": "wrong", "containerEdits": {"deviceNodes": [{"path": "/dev/zero", "type": "b"}]}},
    ],
}


class Shim:
    """Containers on a host with the wrapper, whose low-level runtime keeps what it was given."""

    def __init__(self, folder: Path, host: Path) -> None:
        self.host = host
        self.bundle = folder / "bundle"
        (self.bundle / "rootfs").mkdir(parents=True)
        self.specs = folder / "cdi"
        self.specs.mkdir()
        for index, each in enumerate((SPECS, MANAGEMENT, EDITS)):
            (self.specs / f"{index}.json").write_text(json.dumps(each))
        self.given = folder / "given"
        self.runc = folder / "runc"
        self.runc.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.given}\nexit 7\n')
        self.runc.chmod(0o755)
        self.modules = folder / "modules"
        self.modules.write_text("nvidia_uvm 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n")
        self.config = host / ".config/nvidia-container-runtime" / f"{folder.name}.toml"
        self.set()

    def set(
        self, mode: str = "cdi", top: str = "", runtime: str = "", more: str = "", prefixes: str = '"cdi.k8s.io/"'
    ) -> None:
        self.config.write_text(
            f'{top}\n[nvidia-container-runtime]\nmode = "{mode}"\nruntimes = ["/no/such", "{self.runc}"]\n{runtime}\n'
            f'modules-file = "{self.modules}"\n'
            f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{self.specs}"]\ndefault-kind = "nvidia.com/gpu"\n'
            f"annotation-prefixes = [{prefixes}]\n{more}\n"
        )

    def write(self, *env: str, caps: bool = False, **more: Any) -> None:
        capabilities = ["CAP_SYS_ADMIN"] if caps else ["CAP_CHOWN"]
        document = {
            "ociVersion": "1.2.0",
            "root": {"path": "rootfs"},
            "process": {
                "args": ["sh"],
                "cwd": "/",
                "env": ["PATH=/bin", *env],
                "user": {"uid": 0, "gid": 0},
                "capabilities": {"bounding": capabilities, "effective": []},
            },
            "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
            **more,
        }
        (self.bundle / "config.json").write_text(json.dumps(document, indent=1))

    def text(self) -> str:
        return (self.bundle / "config.json").read_text()

    def run(self, *words: str, name: str = "nvidia-container-runtime.real", code: int = 7, ok: bool = True) -> Any:
        self.given.unlink(missing_ok=True)
        done = subprocess.run(
            [str(self.host / name), *(words or ("--root", "/r", "create", "--bundle", str(self.bundle), "id"))],
            env={"PATH": "/usr/bin:/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.config)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if ok:
            assert done.returncode == code, done.stderr
        else:
            assert done.returncode not in (0, 7)
            assert not self.given.exists()
        return done

    def env(self) -> list[str]:
        return [each for each in json.loads(self.text())["process"]["env"] if each.startswith(("DEV_", "MANAGEMENT"))]

    def asks(self, *env: str, caps: bool = False, name: str = "nvidia-container-runtime.real", **more: Any) -> Any:
        """The environment that devices were given to a container by, or None if it was left alone."""
        self.write(*env, caps=caps, **more)
        before = self.text()
        self.run(name=name)
        return None if self.text() == before else self.env()


@pytest.fixture
def shim(tmp_path: Path, host: Path) -> Iterable[Shim]:
    made = Shim(tmp_path, host)
    yield made
    made.config.unlink()


def test_6_1_only_create_is_intercepted(shim: Shim) -> None:
    shim.write("NVIDIA_VISIBLE_DEVICES=0")
    before = shim.text()
    for words in (["state", "id"], ["delete", "--force", "create"], ["--log", "create", "start", "id"], ["--version"]):
        shim.run(*words)
        assert shim.given.read_text().splitlines() == words
        assert shim.text() == before
    shim.run()
    assert shim.given.read_text().splitlines() == ["--root", "/r", "create", "--bundle", str(shim.bundle), "id"]
    assert shim.text() != before


def test_6_1_no_low_level_runtime(shim: Shim) -> None:
    shim.runc.unlink()
    assert shim.run("state", "x", ok=False).stderr


def test_4_5_without_the_driver_containers_start_as_they_are(shim: Shim) -> None:
    shim.modules.write_text("nvidia_uvm 1 0 - Live 0x0\n")
    shim.write("NVIDIA_VISIBLE_DEVICES=0")
    before = shim.text()
    for name in HOST_NAMES[:3]:
        done = shim.run(name=name)
        assert shim.text() == before
        assert done.stderr


LEGACY_IMAGE = "CUDA_VERSION=12.4"
VISIBLE: list[tuple[list[str], list[str] | None]] = [
    ([], None),
    ([LEGACY_IMAGE], ["DEV_all=1"]),
    ([LEGACY_IMAGE, "NVIDIA_REQUIRE_CUDA=cuda>=1.0"], None),
    (["NVIDIA_VISIBLE_DEVICES="], None),
    ([LEGACY_IMAGE, "NVIDIA_VISIBLE_DEVICES="], None),
    (["NVIDIA_VISIBLE_DEVICES= , ,"], None),
    (["NVIDIA_VISIBLE_DEVICES=void"], None),
    (["NVIDIA_VISIBLE_DEVICES=0,void"], None),
    (["NVIDIA_VISIBLE_DEVICES=none"], ["DEV_none=1"]),
    (["NVIDIA_VISIBLE_DEVICES=1,all"], ["DEV_all=1"]),
    (["NVIDIA_VISIBLE_DEVICES=none,all"], ["DEV_none=1"]),
    (["NVIDIA_VISIBLE_DEVICES=all,none"], ["DEV_all=1"]),
    (["NVIDIA_VISIBLE_DEVICES=0, 1 ,0:1"], ["DEV_0=1", "DEV_1=1", "DEV_0_1=1"]),
    (["NVIDIA_VISIBLE_DEVICES=GPU-a"], ["DEV_GPU_a=1"]),
    (["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"], ["DEV_1=1"]),
    (["NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all,0"], ["MANAGEMENT=1", "DEV_0=1"]),
]


@pytest.mark.parametrize(("env", "expected"), VISIBLE)
def test_6_2_the_variable(shim: Shim, env: list[str], expected: list[str] | None) -> None:
    assert shim.asks(*env) == expected
    shim.set("auto")
    if "gpu=" in "".join(env) and ",0" not in "".join(env):
        assert shim.asks(*env) == expected  # all are qualified
    shim.set("legacy")
    assert shim.asks(*env, name="nvidia-container-runtime.cdi.real") == expected


def test_6_2_annotations_then_mounts_then_variables(shim: Shim) -> None:
    mount = {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/1", "type": "bind"}
    annotations = {
        "cdi.k8s.io/b": "nvidia.com/gpu=0",
        "cdi.k8s.io/a": "nvidia.com/gpu=GPU-a,nvidia.com/gpu=0:1",
        "x/y": "z",
    }
    asked = "NVIDIA_VISIBLE_DEVICES=all"
    assert shim.asks(asked, annotations=annotations, mounts=[mount]) == ["DEV_GPU_a=1", "DEV_0_1=1", "DEV_0=1"]
    assert shim.asks(asked, mounts=[mount]) == ["DEV_all=1"]
    shim.set(top="accept-nvidia-visible-devices-as-volume-mounts = true")
    more = [
        mount,
        {**mount, "destination": "/var/run/nvidia-container-devices/cdi/management.nvidia.com/gpu/all"},
        {**mount, "destination": "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu=0:1"},
        {**mount, "destination": "/var/run/nvidia-container-devices/imex/0"},
        {**mount, "destination": "/elsewhere/0"},
        {**mount, "source": "/dev/zero", "destination": "/var/run/nvidia-container-devices/0"},
        mount,
    ]
    assert sorted(shim.asks(asked, mounts=more)) == ["DEV_0_1=1", "DEV_1=1", "MANAGEMENT=1"]
    assert shim.asks(asked, annotations=annotations, mounts=more) == ["DEV_GPU_a=1", "DEV_0_1=1", "DEV_0=1"]
    shim.set(prefixes='"mine/"')
    assert shim.asks(annotations={"mine/x": "nvidia.com/gpu=0", "cdi.k8s.io/b": "nvidia.com/gpu=1"}) == ["DEV_0=1"]


def test_6_2_unprivileged_containers(shim: Shim) -> None:
    shim.set(top="accept-nvidia-visible-devices-envvar-when-unprivileged = false")
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=0") is None
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=0", caps=True) == ["DEV_0=1"]
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=0", annotations={"cdi.k8s.io/b": "nvidia.com/gpu=1"}) == ["DEV_1=1"]


def test_6_2_swarm_resources(shim: Shim) -> None:
    shim.set(top='swarm-resource = "DOCKER_A, DOCKER_B"')
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=all", "DOCKER_A=0", "DOCKER_B=1") == ["DEV_0=1", "DEV_1=1"]
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=all") == ["DEV_all=1"]


def test_6_1_modes(shim: Shim) -> None:
    shim.write("NVIDIA_VISIBLE_DEVICES=0")
    shim.set("nonsense")
    assert "invalid" in shim.run(ok=False).stderr
    hooks = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/bin/mine"}]}
    for mode in ("cdi", "jit-cdi"):
        shim.set(mode)
        shim.write("NVIDIA_VISIBLE_DEVICES=0", hooks=hooks)
        shim.run()
        assert [each["path"] for each in json.loads(shim.text())["hooks"]["prestart"]] == ["/bin/mine"]
    assert shim.asks(annotations={"cdi.k8s.io/b": "nvidia.com/gpu=1"}) is None  # cdi mode only


@pytest.mark.parametrize("mode", ["auto", "jit-cdi"])
def test_6_1_devices_without_a_kind_are_generated(shim: Shim, mode: str) -> None:
    def nodes() -> list[str]:
        return [each["path"] for each in json.loads(shim.text()).get("linux", {}).get("devices", [])]

    shim.set(mode)
    for asked in ("0", UUIDS[0], "runtime.nvidia.com/gpu=0" if mode == "jit-cdi" else "0"):
        shim.write(f"NVIDIA_VISIBLE_DEVICES={asked}")
        shim.run()
        assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(nodes())
        assert "/dev/nvidia1" not in nodes()
        assert "NVIDIA_VISIBLE_DEVICES=void" in json.loads(shim.text())["process"]["env"]
    shim.write("NVIDIA_VISIBLE_DEVICES=none")
    shim.run()
    assert "/dev/nvidia0" not in nodes()
    assert json.loads(shim.text())["mounts"]
    shim.write("NVIDIA_VISIBLE_DEVICES=1:0")
    shim.run()
    assert len([each for each in nodes() if "nvidia-cap" in each]) == 2
    assert "/dev/nvidia0" not in nodes()
    for bad in ("7", "1", "GPU-nothing", "MIG-nothing"):
        shim.write(f"NVIDIA_VISIBLE_DEVICES={bad}")
        before = shim.text()
        shim.run(ok=False)
        assert shim.text() == before


def test_6_1_generated_and_other_devices_do_not_mix(shim: Shim) -> None:
    shim.write("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0,nvidia.com/gpu=0")
    assert shim.run(ok=False).stderr
    shim.write("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0")
    shim.run()
    assert "/dev/nvidia0" in shim.text()


REQUIRED: list[tuple[list[str], bool]] = [
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.0"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1"], False),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1 cuda<=13.0"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.0,driver<500"], False),
    (["NVIDIA_REQUIRE_CUDA=cuda>=99,driver>=1 driver>=580,driver<581"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.0", "NVIDIA_REQUIRE_X=driver<500"], False),
    (["NVIDIA_REQUIRE_CUDA=cuda!=13.0"], False),
    (["NVIDIA_REQUIRE_CUDA=cuda=13.0"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda<13.0"], False),
    (["NVIDIA_REQUIRE_CUDA=brand=nvidia"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda>=99 brand=tesla,driver>=1 brand=nvidia,driver>=570"], True),
    (["NVIDIA_REQUIRE_CUDA=brand=tesla"], False),
    (["NVIDIA_REQUIRE_CUDA=arch>=9.0"], True),
    (["NVIDIA_REQUIRE_CUDA=arch>9.0"], False),
    (["NVIDIA_REQUIRE_CUDA=weather=fine"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda"], False),
    (["NVIDIA_REQUIRE_JETPACK=cuda>=99"], True),
    (["NVIDIA_REQUIRE_JETPACK_X=cuda>=99"], True),
    (["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=true"], True),
    (["CUDA_VERSION=99.1.2"], False),
    (["CUDA_VERSION=13.0.7"], True),
]


@pytest.mark.parametrize(("env", "met"), REQUIRED)
def test_6_4_requirements(shim: Shim, env: list[str], met: bool) -> None:
    shim.set("legacy")
    shim.write("NVIDIA_VISIBLE_DEVICES=0", *env)
    shim.run(ok=met)
    if not met:
        shim.set("legacy", top="disable-require = true")
        shim.run()


def test_1_6_edits(shim: Shim) -> None:
    shim.write(
        "B=image",
        annotations={"cdi.k8s.io/a": "x/y=z"},
        mounts=[
            {"source": "a", "destination": "/data/below"},
            {"source": "b", "destination": "/data"},
            {"source": "c", "destination": "/proc"},
        ],
        linux={"devices": [{"path": "/dev/zero", "type": "c", "major": 9, "minor": 9}]},
    )
    shim.run()
    done = json.loads(shim.text())
    assert done["process"]["env"] == ["PATH=/new", "B=common", "A=device"]
    zero, made = done["linux"]["devices"]
    assert (zero["path"], zero["type"], zero["major"], zero["minor"]) == ("/dev/zero", "c", 1, 5)
    assert (made["path"], made["type"], made["major"], made["minor"]) == ("/dev/made", "c", 7, 8)
    rules = [
        (each["type"], each["major"], each["minor"], each["access"]) for each in done["linux"]["resources"]["devices"]
    ]
    assert rules == [("c", 1, 5, "rwm"), ("c", 7, 8, "r")]
    assert [each["destination"] for each in done["mounts"]] == ["/proc", "/data", "/data/below", "/deep/er/down"]
    data = done["mounts"][1]
    assert (data["source"], data["options"], data["type"]) == ("/tmp", ["ro"], "bind")
    assert done["hooks"]["createContainer"] == [
        {"path": "/bin/true", "args": ["true", "x"], "env": ["K=v"], "timeout": 3}
    ]
    assert done["process"]["user"]["additionalGids"] == [44]
    assert done["linux"]["intelRdt"]["closID"] == "device"


def test_1_6_owner_of_nodes(shim: Shim) -> None:
    shim.write(annotations={"cdi.k8s.io/a": "x/y=z"})
    document = json.loads(shim.text())
    document["process"]["user"] = {"uid": 5, "gid": 6}
    (shim.bundle / "config.json").write_text(json.dumps(document))
    shim.run()
    assert {(each["uid"], each["gid"]) for each in json.loads(shim.text())["linux"]["devices"]} == {(5, 6)}


@pytest.mark.parametrize("asked", ["x/y=gone", "x/y=wrong", "x/y=z,x/y=gone", "unqualified", "x/y=z,unqualified"])
def test_1_6_what_cannot_be_applied_changes_nothing(shim: Shim, asked: str) -> None:
    shim.write(annotations={"cdi.k8s.io/a": asked})
    before = shim.text()
    shim.run(ok=False)
    assert shim.text() == before


def test_1_6_and_8_5_unresolvable(shim: Shim) -> None:
    shim.write(annotations={"cdi.k8s.io/a": "x/y=z,x/y=a,management.nvidia.com/gpu=GPU-a"})
    before = shim.text()
    assert "unresolvable CDI devices x/y=a, management.nvidia.com/gpu=GPU-a" in shim.run(ok=False).stderr
    assert shim.text() == before


# 3.5: hooks


def hook(shim: Shim, *words: str, code: int = 0) -> str:
    shim.write()
    state = json.dumps({"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": 1, "bundle": str(shim.bundle)})
    done = subprocess.run(
        [str(shim.host / "nvidia-cdi-hook"), *words],
        input=state,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode == 0) == (code == 0), done.stderr
    return done.stderr


def test_3_5_unknown_hooks_and_flags(shim: Shim) -> None:
    assert hook(shim, "never-heard-of", "--flag=1", "x")
    assert hook(shim, "create-symlinks", "--never-heard-of", code=1)
    done = subprocess.run(
        [str(shim.host / "nvidia-ctk"), "hook", "never-heard-of"],
        input="{}",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


def test_3_5_create_symlinks(shim: Shim) -> None:
    root = shim.bundle / "rootfs"
    (root / "lib").mkdir()
    (root / "tmp").mkdir()
    (root / "lib/file").write_text("x")
    (root / "out").symlink_to("/tmp")
    (root / "up").symlink_to("../../../../../../../../tmp")
    arguments = ["libx.so.1::/lib/libx.so", "new::/lib/file", "/a/b::/new/dir/c", "t::/out/linked", "t::/up/linked2"]
    for _ in range(2):
        hook(shim, "create-symlinks", *(word for each in arguments for word in ("--link", each)))
        assert str((root / "lib/libx.so").readlink()) == "libx.so.1"
        assert str((root / "lib/file").readlink()) == "new"
        assert str((root / "new/dir/c").readlink()) == "/a/b"
        assert str((root / "tmp/linked").readlink()) == "t"
        assert str((root / "tmp/linked2").readlink()) == "t"
    assert not os.path.lexists("/tmp/linked")
    for bad in ("a", "a::b::c", "::"):
        hook(shim, "create-symlinks", "--link", bad, code=1)


def test_3_5_chmod(shim: Shim) -> None:
    folder = shim.bundle / "rootfs/dev/dri"
    folder.mkdir(parents=True, mode=0o700)
    hook(shim, "chmod", "--mode", "755", "--path", "/dev/dri")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    hook(shim, "chmod", "--path", "/dev/dri", code=1)
    hook(shim, "chmod", "--mode", "9", "--path", "/dev/dri", code=1)


@pytest.mark.parametrize(
    ("libraries", "host_version", "used"),
    [
        (["libcuda.so.590.44.01"], "580.95.05", True),
        (["libcuda.so.580.99.01"], "580.95.05", False),
        (["libcuda.so.550.1"], "580.95.05", False),
        (["libcuda.so.590.1", "libcuda.so.591.1"], "580.95.05", False),
        ([], "580.95.05", False),
        (["libcuda.so.590.44.01"], "", False),
    ],
)
def test_3_5_enable_cuda_compat(shim: Shim, libraries: list[str], host_version: str, used: bool) -> None:
    folder = shim.bundle / "rootfs/usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (shim.bundle / "rootfs/etc").mkdir()
    for name in libraries:
        (folder / name).write_text("")
    hook(shim, "enable-cuda-compat", *([f"--host-driver-version={host_version}"] if host_version else []))
    found = list((shim.bundle / "rootfs").glob("etc/ld.so.conf.d/00-compat-*.conf"))
    assert [each.read_text().strip() for each in found] == (["/usr/local/cuda/compat"] if used else [])


def test_3_5_update_ldcache_never_touches_the_host(shim: Shim) -> None:
    shim.write()
    for root in ("", "/"):
        document = json.loads(shim.text())
        document["root"]["path"] = root
        (shim.bundle / "config.json").write_text(json.dumps(document))
        state = json.dumps(
            {"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": 1, "bundle": str(shim.bundle)}
        )
        done = subprocess.run(
            [str(shim.host / "nvidia-cdi-hook"), "update-ldcache", "--folder", "/usr/lib"],
            input=state,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode != 0


def test_3_5_update_application_profile(shim: Shim) -> None:
    dev = shim.bundle / "rootfs/dev"
    dev.mkdir()
    hook(shim, "update-application-profile")
    made = shim.bundle / "rootfs/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    assert not made.exists()
    for name in ("nvidia0", "nvidia3", "nvidia64", "nvidiactl"):
        minor = int(name[6:]) if name[6:].isdigit() else 255
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(195, minor))
    hook(shim, "update-application-profile")
    text = made.read_text()
    assert "EGLVisibleDGPUDevices" in text
    assert re.search(r"\b(0x9|9)\b", text)
    assert text.count("\n") <= 1
    json.loads(text.replace("0x9", "9"))
    assert stat.S_IMODE(made.stat().st_mode) == 0o444
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o555


# --- 7: the NRI plugin ------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def message(*fields: tuple[int, Any]) -> bytes:
    """A message of protocol buffers."""
    out = b""
    for tag, value in fields:
        if isinstance(value, int):
            out += number(tag << 3) + number(value)
            continue
        data = value.encode() if isinstance(value, str) else value
        out += number(tag << 3 | 2) + number(len(data)) + data
    return out


def fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        key = varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
            continue
        assert key & 7 == 2
        size = varint()
        found.setdefault(key >> 3, []).append(data[position : position + size])
        position += size
    return found


class Nri:
    """A runtime's side of NRI, byte by byte."""

    def __init__(self, machine: Machine, path: str = "/var/run/nri/nri.sock") -> None:
        self.path = machine.root / path.lstrip("/")
        self.registered: list[dict[int, list[Any]]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.answers: dict[int, dict[int, list[Any]]] = {}
        self.sizes: list[int] = []
        self.split = 1 << 20
        self.deaf = False
        """It hangs up on each plugin."""
        self._stream = -1

    async def __aenter__(self) -> "Nri":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with unixsocket.reachable(self.path) as address:
            self._server = await asyncio.start_unix_server(self._serve, address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self.writers:
            each.close()

    def send(self, connection: int, stream: int, kind: int, data: bytes) -> None:
        whole = len(data).to_bytes(4, "big") + stream.to_bytes(4, "big") + bytes([kind, 0]) + data
        for start in range(0, len(whole), self.split):
            part = whole[start : start + self.split]
            self.writers[-1].write(connection.to_bytes(4, "big") + len(part).to_bytes(4, "big") + part)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        if self.deaf:
            writer.close()
            return
        waiting = {1: b"", 2: b""}
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                connection = int.from_bytes(await reader.readexactly(4), "big")
                size = int.from_bytes(await reader.readexactly(4), "big")
                waiting[connection] += await reader.readexactly(size)
                data = waiting[connection]
                if len(data) < 10 or len(data) < 10 + int.from_bytes(data[:4], "big"):
                    continue
                end = 10 + int.from_bytes(data[:4], "big")
                stream, kind, body = int.from_bytes(data[4:8], "big"), data[8], fields(data[10:end])
                waiting[connection] = data[end:]
                if connection == 2:
                    assert (kind, stream % 2) == (1, 1)
                    assert body[1] == [b"nri.pkg.api.v1alpha1.Runtime"]
                    assert body[2] == [b"RegisterPlugin"]
                    self.send(2, stream, 2, b"")
                    self.registered.append(fields(body[3][0]))
                else:
                    assert kind == 2
                    self.answers[stream] = body

    async def call(self, method: str, payload: bytes = b"") -> dict[int, list[Any]]:
        self._stream += 2
        request = message(
            (1, "nri.pkg.api.v1alpha1.Plugin"), (2, method), (3, payload), (4, 2_000_000_000), (77, "new")
        )
        stream = self._stream
        self.send(1, stream, 1, request)
        await until(lambda: stream in self.answers, f"an answer to {method}")
        return self.answers.pop(stream)

    async def configured(self, times: int = 1) -> int:
        await until(lambda: len(self.registered) >= times, "a registered plugin")
        self._stream = -1
        answer = await self.call("Configure", message((2, "containerd"), (3, "v2"), (4, 5000), (5, 2000), (6, "0.1")))
        return fields(answer[2][0])[2][0]  # type: ignore[no-any-return]

    async def devices(self, namespace: str, container: str = "c", **annotations: str) -> list[str]:
        prefix = "nvidia.cdi.k8s.io"
        keys = {"all": prefix, "pod": f"{prefix}/pod"}
        given = [
            (6, message((1, keys.get(key, f"{prefix}/container.{key}")), (2, value)))
            for key, value in annotations.items()
        ]
        pod = message((1, "i"), (2, "p"), (3, "u"), (4, namespace), *given, (99, "unknown"))
        answer = await self.call("CreateContainer", message((1, pod), (2, message((1, "c"), (2, "i"), (3, container)))))
        assert 1 not in answer or fields(answer[1][0]).get(1, [0]) == [0]
        response = fields((answer.get(2) or [b""])[0])
        assert not set(response) - {1}
        found = []
        for adjustment in response.get(1, ()):
            assert not set(fields(adjustment)) - {8}
            found += [fields(each)[1][0].decode() for each in fields(adjustment).get(8, ())]
        return found


NRI_ENV = {
    **OPERATOR,
    "ENABLE_NRI_PLUGIN": "true",
    "CDI_ENABLED": "false",
    "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES": "more,yet",
}
ALL = "management.nvidia.com/gpu=all"


async def test_7_nri(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, "version = 2\n")
    async with Nri(machine) as nri:
        process = toolkits.start(env=NRI_ENV)
        assert await nri.configured() == 8
        assert nri.registered[0][2] == [b"10"]
        assert re.fullmatch(rb"[A-Za-z0-9_.+-]+", nri.registered[0][1][0])
        answer = fields((await nri.call("Synchronize", message((3, 1)))).get(2, [b""])[0])
        assert answer.get(2) == [1]
        answer = await nri.call("Synchronize", message((1, message((1, "p"))), (2, message((1, "c")))))
        assert fields((answer.get(2) or [b""])[0]) == {}
        nri.split = 3
        assert await nri.devices("gpu-operator", c=ALL, pod="x.com/y=0", all="x.com/z=1") == [ALL]
        nri.split = 1 << 20
        assert await nri.devices("gpu-operator", "d", c=ALL, pod="x.com/y=0", all="x.com/z=1") == ["x.com/y=0"]
        assert await nri.devices("gpu-operator", "d", c=ALL, all="x.com/z=1,x.com/z=2") == ["x.com/z=1", "x.com/z=2"]
        assert await nri.devices("gpu-operator", "d", c=ALL) == []
        assert await nri.devices("default", pod="x.com/y=0") == ["x.com/y=0"]
        assert await nri.devices("default", pod=f"x.com/y=0,{ALL}") == []
        assert await nri.devices("more", pod=ALL) == [ALL]
        assert await nri.devices("yet", pod=ALL) == [ALL]
        assert await nri.devices("gpu-operator", pod=" x.com/y=0 , ,not-a-name,x.com/y=1") == ["x.com/y=0", "x.com/y=1"]
        unknown = await nri.call("NeverHeardOf")
        assert fields(unknown[1][0])[1] == [12]
        await until(lambda: "aiting" in process.stderr)
        await toolkits.end(process)
    assert machine.read(CONFIG) == "version = 2\n"
    assert not machine.there(DROP_IN)
    assert process.killed == []


async def test_7_3_release_26_3_serves_its_own_namespace_only(toolkits: Toolkits, machine: Machine) -> None:
    async with Nri(machine) as nri:
        process = toolkits.start("--nri-plugin-index=7", env=NRI_ENV, release=OLD)
        assert await nri.configured() == 8
        assert nri.registered[0][2] == [b"07"]
        assert await nri.devices("gpu-operator", pod="x.com/y=0") == ["x.com/y=0"]
        assert await nri.devices("gpu-operator", pod=ALL) == [ALL]
        assert await nri.devices("default", pod="x.com/y=0") == []
        await toolkits.end(process)


async def test_7_3_and_8_9_reconnects(toolkits: Toolkits, machine: Machine) -> None:
    async with Nri(machine) as nri:
        process = toolkits.start(env=NRI_ENV, pace=50.0)
        await nri.configured()
        for times in (2, 3):
            nri.writers[-1].close()
            assert await nri.configured(times) == 8
        await toolkits.end(process)
        await asyncio.sleep(0.1)
        assert len(nri.registered) == 3


async def test_7_3_a_missing_socket_fails_the_start(toolkits: Toolkits, machine: Machine) -> None:
    process = toolkits.start(env=NRI_ENV)
    assert await asyncio.wait_for(process.task, 20) == 1
    assert "nri.sock" in process.stderr
    assert not machine.there(PID)


async def test_4_3_nri_is_ignored_without_a_daemon(toolkits: Toolkits, machine: Machine) -> None:
    await toolkits.once(env=NRI_ENV)
    assert machine.there(DROP_IN)


# --- more of 6 --------------------------------------------------------------------------------------------------------


def test_6_1_where_the_bundle_is(shim: Shim) -> None:
    for words in (
        ["create", f"--bundle={shim.bundle}", "id"],
        ["create", "-b", str(shim.bundle), "id"],
        ["--log-format", "json", "--log", "/l", "create", "--console-socket", "/c", "-bundle", str(shim.bundle), "id"],
    ):
        shim.write("NVIDIA_VISIBLE_DEVICES=0")
        before = shim.text()
        shim.run(*words)
        assert shim.given.read_text().splitlines() == words
        assert shim.text() != before, words


def test_6_2_privileged_is_what_the_bounding_set_says(shim: Shim) -> None:
    shim.set(top="accept-nvidia-visible-devices-envvar-when-unprivileged = false")
    shim.write("NVIDIA_VISIBLE_DEVICES=0")
    document = json.loads(shim.text())
    document["process"]["capabilities"] = {"bounding": ["CAP_CHOWN"], "effective": ["CAP_SYS_ADMIN"]}
    (shim.bundle / "config.json").write_text(json.dumps(document))
    shim.run()
    assert shim.env() == []
    del document["process"]["capabilities"]
    (shim.bundle / "config.json").write_text(json.dumps(document))
    shim.run()
    assert shim.env() == []


@pytest.mark.parametrize(
    ("said", "legacy"),
    [
        ("", True),
        ("all", True),
        ("compute,utility", True),
        ("compute, video", None),
        ("graphics,display,ngx,compat32", True),
        ("compute,nonsense", False),
    ],
)
def test_6_3_capabilities(shim: Shim, said: str, legacy: bool | None) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=0", *([f"NVIDIA_DRIVER_CAPABILITIES={said}"] if said else [])]
    for mode in ("cdi", "jit-cdi", "auto"):
        shim.set(mode)
        shim.write(*env)
        shim.run()
    shim.set("legacy")
    shim.write(*env)
    if legacy is not None:
        shim.run(ok=legacy)


def test_6_3_what_the_node_supports(shim: Shim) -> None:
    shim.set("legacy", top='supported-driver-capabilities = "compute,utility"')
    shim.write("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics")
    shim.run(ok=False)
    shim.write("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
    shim.run()


def test_4_6_ldconfig_of_the_container_is_refused(shim: Shim) -> None:
    shim.set("legacy", more='[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"')
    shim.write("NVIDIA_VISIBLE_DEVICES=0")
    shim.run(ok=False)
    allowed = "\n[features]\nallow-ldconfig-from-container = true"
    shim.set("legacy", more=f'[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"{allowed}')
    shim.run()


# --- more of 3 --------------------------------------------------------------------------------------------------------


async def test_3_2_mig_by_older_names(driven: Machine) -> None:
    driven.gpus({}, MIG)
    caps = [
        f"gpu1/gi{gi}/{name} {gi * 2 + add}" for gi in range(7, 15) for add, name in enumerate(("access", "ci0/access"))
    ]
    for minor in range(14, 30):
        driven.node(f"/dev/nvidia-caps/nvidia-cap{minor}", 511, minor, 0o666)
    driven.proc("/proc/driver/nvidia-caps/mig-minors", "\n".join(caps))
    for device_id in (f"MIG-{UUIDS[1]}/7/0", "1:0"):
        spec = await generated(driven, f"--device-id={device_id}", "--device-name-strategy=index")
        assert names(spec) == ["1:0", "all"]
        assert paths(device(spec, "1:0")) == [
            "/dev/nvidia1",
            "/dev/nvidia-caps/nvidia-cap14",
            "/dev/nvidia-caps/nvidia-cap15",
        ]
    for bad in (f"MIG-{UUIDS[1]}/1/0", f"MIG-{UUIDS[0]}/7/0", "1:7", "1", UUIDS[1]):
        assert (await command(driven, "cdi", "generate", f"--device-id={bad}")).code == 1, bad


async def test_3_4_version_by_the_libraries_and_their_places(machine: Machine) -> None:
    """Without NVML the version is the suffix of libcuda, then of libnvidia-ml."""
    machine.node("/dev/nvidia0", 195, 0)
    process = await command(machine, "cdi", "generate", "--mode=management")
    assert process.code == 1
    for folder, name in (
        ("/usr/lib64", "libnvidia-ml.so.570.1"),
        ("/lib/aarch64-linux-gnu/nvidia/current", "libcuda.so.570.2.3"),
    ):
        machine.file(f"{folder}/{name}")
        machine.devices.unlink(missing_ok=True)
        found = targets(await generated(machine, "--mode=management"))
        assert f"{folder}/{name}" in found
    assert "/usr/lib64/libnvidia-ml.so.570.1" not in found


async def test_3_4_vdpau_firmware_and_configuration(driven: Machine) -> None:
    driven.file(f"{LIBS}/vdpau/libvdpau_nvidia.so.{VERSION}")
    driven.file("/custom/nvidia/580.95.05/gsp_x.bin")
    driven.file("/data/egl/egl_external_platform.d/15_nvidia_gbm.json")
    driven.file("/data/vulkan/icd.d/nvidia_icd.json")
    shutil.rmtree(driven.root / "usr/share/vulkan", ignore_errors=True)
    shutil.rmtree(driven.root / "etc/vulkan", ignore_errors=True)
    driven.proc("/sys/module/firmware_class/parameters/path", "/custom\n")
    spec = await generated(driven, XDG_DATA_DIRS="/data:/usr/share")
    found = {each["containerPath"]: each["hostPath"] for each in spec["containerEdits"]["mounts"]}
    assert f"{LIBS}/vdpau/libvdpau_nvidia.so.{VERSION}" in found
    assert "/custom/nvidia/580.95.05/gsp_x.bin" in found
    assert "/data/egl/egl_external_platform.d/15_nvidia_gbm.json" in found.values()
    assert found["/etc/vulkan/icd.d/nvidia_icd.json"] == "/data/vulkan/icd.d/nvidia_icd.json"
    assert f"{LIBS}/vdpau" in hook_args(spec)["update-ldcache"]


async def test_3_4_shared_memory_of_mps(driven: Machine) -> None:
    (driven.root / "tmp/nvidia-mps").mkdir(parents=True)
    (mount,) = [
        each
        for each in (await generated(driven))["containerEdits"]["mounts"]
        if each["containerPath"] == "/tmp/nvidia-mps"
    ]
    assert mount["options"] == ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
    spec = await generated(driven, "--feature-flag=disable-ipc-discoverer")
    assert "/tmp/nvidia-mps" not in targets(spec)


async def test_3_6_what_is_common_leaves_the_devices(machine: Machine) -> None:
    """Unless that would leave a device empty: here its only node is a control node's."""
    driverroots.make(machine.root, VERSION, driverroots.Kind.RHEL)
    machine.gpus({}, {})
    machine.nodes(gpus=2)
    spec = await generated(machine)
    common = set(paths(spec["containerEdits"]))
    for each in spec["devices"]:
        assert not common & set(paths(each["containerEdits"]))
        assert "env" not in each["containerEdits"]
    whole = json.dumps(spec)
    assert (await generated(machine, "--format=yaml")) == json.loads(whole)


async def test_3_1_auto(machine: Machine) -> None:
    """WSL has /dev/dxg and its library; with NVML the mode is nvml all the same."""
    driverroots.make(machine.root, VERSION, driverroots.Kind.UBUNTU)
    machine.gpus({})
    machine.nodes()
    spec = await generated(machine, "--mode=auto")
    assert "0" in names(spec)
    assert await generated(machine, "--discovery-mode=nvml") == spec
    assert await generated(machine, NVIDIA_CTK_CDI_GENERATE_MODE="nvml") == spec


async def test_3_9_the_driver_root_of_the_configuration(machine: Machine) -> None:
    driverroots.make(machine.root / "drv", VERSION, driverroots.Kind.CONTAINER)
    machine.gpus({})
    machine.nodes("/drv/dev")
    machine.file("/etc/nvidia-container-runtime/config.toml", '[nvidia-container-cli]\nroot = "/drv"\n')
    spec = await generated(machine)
    assert device(spec, "0")["deviceNodes"][0]["hostPath"] == "/drv/dev/nvidia0"
    machine.file("/c.toml", "")
    process = await command(machine, "cdi", "generate", env={"NVIDIA_CTK_CONFIG_FILE_PATH": "/c.toml"})
    assert "/drv" not in process.stdout


async def test_3_9_list_by_its_variable(machine: Machine) -> None:
    machine.file("/a/x.json", json.dumps(document()))
    machine.file("/b/x.json", json.dumps(document(kind="b.com/b")))
    process = await command(machine, "cdi", "list", env={"NVIDIA_CTK_CDI_SPEC_DIRS": "/a,/b"})
    assert process.stdout.splitlines() == ["b.com/b=dev", "vendor.com/class=dev"]


# --- more of 4 and 5 --------------------------------------------------------------------------------------------------


async def test_3_5_the_operands_hooks(toolkits: Toolkits, operand: Machine) -> None:
    await toolkits.once(env={**OPERATOR, "CDI_LIBRARIES": "hooks"})
    spec = yaml.safe_load(operand.read(SPEC))
    assert {each["path"] for each in spec["containerEdits"]["hooks"]} == {f"{DEST}/nvidia-cdi-hook"}
    await toolkits.once(env={**OPERATOR, "CDI_LIBRARIES": "hooks"}, release=OLD)
    called = [each["args"][1] for each in yaml.safe_load(operand.read(SPEC))["containerEdits"]["hooks"]]
    assert "enable-cuda-compat" not in called
    assert "update-ldcache" in called


async def test_8_6_the_specification_comes_back(toolkits: Toolkits, operand: Machine) -> None:
    process = await toolkits.waiting(env=OPERATOR)
    before = operand.read(SPEC)
    await toolkits.end(process)
    (operand.root / SPEC.lstrip("/")).unlink()
    process = await toolkits.waiting(env=OPERATOR)
    assert operand.read(SPEC) == before
    await toolkits.end(process)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"CDI_ENABLED": "true"}, True),
        ({"CDI_ENABLED": "true", "RUNTIME_ENABLE_CDI": "false"}, None),
        ({"RUNTIME_ENABLE_CDI": "true"}, True),
    ],
)
async def test_4_3_cdi_in_the_runtime(
    toolkits: Toolkits, operand: Machine, env: dict[str, str], expected: bool | None
) -> None:
    operand.file(CONFIG, users(2))
    await toolkits.once(env={**PLAIN, "DRIVER_ROOT_CTR_PATH": "/driver-root", **env})
    assert cri(operand, 2).get("enable_cdi") == expected


async def test_4_4_nri_keeps_the_low_level_runtimes(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, RUNTIMES.format(default="mine"))
    await toolkits.once()
    async with Nri(machine) as nri:
        process = toolkits.start(env=NRI_ENV)
        await nri.configured()
        written = tomllib.loads(machine.read(f"{DEST}/.config/nvidia-container-runtime/config.toml"))
        assert written["nvidia-container-runtime"]["runtimes"][0] == "/opt/mine"
        await toolkits.end(process)


async def test_5_3_the_oldest_default(toolkits: Toolkits, machine: Machine) -> None:
    """Version 1 with --use-legacy-config has a table for the default runtime."""
    text = users(1)
    machine.file(CONFIG, text)
    process = await toolkits.waiting(env={**PLAIN, "CONTAINERD_USE_LEGACY_CONFIG": "true"})
    table = cri(machine, 1, CONFIG)["containerd"]
    assert "default_runtime_name" not in table
    assert table["default_runtime"]["options"]["BinaryName"] == NAMES["nvidia"]
    await toolkits.end(process)
    assert machine.read(CONFIG) == text


async def test_5_3_an_import_that_is_there_is_not_repeated(toolkits: Toolkits, machine: Machine) -> None:
    text = users(3).replace('"/etc/containerd/own/*.toml"', '"/etc/containerd/conf.d/*.toml", "/x.toml"')
    machine.file(CONFIG, text)
    process = await toolkits.waiting()
    assert machine.read(CONFIG) == text
    await toolkits.end(process)
    assert machine.read(CONFIG) == text


async def test_5_3_overrides(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    await toolkits.once(env={**PLAIN, "RUNTIME_CONFIG_OVERRIDE": '{"a": 1}', "CONTAINERD_RUNTIME_TYPE": "t.v3"})
    assert cri(machine, 2)["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"


async def test_5_3_what_a_person_wrote_meanwhile_stays(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    process = await toolkits.waiting()
    changed = machine.read(CONFIG).replace("pause:1", "pause:9") + "\n# later\n"
    machine.file(CONFIG, changed)
    await toolkits.end(process)
    assert machine.read(CONFIG) == users(2).replace("pause:1", "pause:9") + "\n# later\n"


SOCKETS = [
    (2, '\n[grpc]\n  address = "/run/x.sock"\n'),
    (3, '\n[grpc]\n  address = "/run/x.sock"\n'),
    (4, '\n[plugins."io.containerd.server.v1.grpc"]\n  address = "/run/x.sock"\n'),
]


@pytest.mark.parametrize(("version", "said"), SOCKETS)
async def test_9_the_socket_in_either_place(toolkits: Toolkits, machine: Machine, version: int, said: str) -> None:
    machine.file(CONFIG, users(version) + said)
    env = {**PLAIN, "RUNTIME_RESTART_MODE": "signal"}
    async with Daemon(machine, "/run/x.sock"):
        process = await toolkits.once(env=env)
        assert process.killed == [(os.getpid(), signal.SIGHUP)]
    async with Daemon(machine, "/run/given.sock"):  # the socket that is given goes before
        machine.file(CONFIG, users(version) + said + "# changed\n[debug]\nlevel='x'\n")
        shutil.rmtree(machine.root / "etc/containerd/conf.d")
        process = await toolkits.once(env={**env, "CONTAINERD_SOCKET": "/run/given.sock"})
        assert process.killed == [(os.getpid(), signal.SIGHUP)]


async def test_9_the_socket_below_the_hosts_root(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, users(2) + '[grpc]\naddress = "/run/x.sock"\n')
    env = {**PLAIN, "RUNTIME_RESTART_MODE": "signal", "HOST_ROOT_MOUNT": "/host"}
    async with Daemon(machine, "/host/run/x.sock"):
        process = await toolkits.once(env=env)
        assert process.killed == [(os.getpid(), signal.SIGHUP)]


@pytest.mark.parametrize("main", [2, 3])
async def test_9_a_drop_in_has_the_main_files_version(toolkits: Toolkits, machine: Machine, main: int) -> None:
    """Whatever `config dump` says, which has the newest."""
    text = users(main)
    machine.file(CONFIG, text)
    dump = Containerd(machine)
    machine.commands.update(chroot=dump)
    env = {**PLAIN, "HOST_ROOT_MOUNT": "/host", "RUNTIME_CONFIG_SOURCE": "command,file"}
    process = await toolkits.waiting(env=env)
    assert tomllib.loads(machine.read(DROP_IN))["version"] == main
    assert cri(machine, main)["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == NAMES["nvidia"]
    await toolkits.end(process)
    assert machine.read(CONFIG) == text
    assert not machine.there(DROP_IN)


@pytest.mark.parametrize(
    ("place", "runtime"),
    [
        ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
        ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
        ("/etc/k0s/containerd.toml", "/run/k0s/containerd.sock"),
        ("/var/snap/microk8s/current/args/containerd-template.toml", "/var/snap/microk8s/common/run/containerd.sock"),
    ],
)
async def test_8_14_distributions(toolkits: Toolkits, machine: Machine, place: str, runtime: str) -> None:
    machine.file(f"/host{place}", "version = 2\n")
    machine.file(f"/host{runtime}", "")
    env = {**PLAIN, "HOST_ROOT_MOUNT": "/host", "CONTAINERD_CONFIG": "/runtime/config-dir/config.toml"}
    env |= {"RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml"}
    process = await toolkits.once(env=env, code=1)
    assert runtime in process.stderr
    assert "CONTAINERD_CONFIG" in process.stderr


# --- as processes -----------------------------------------------------------------------------------------------------


class Programs:
    """Programs as processes on a simulated machine; all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "devices").mkdir()
        described = {"driverVersion": VERSION, "gpus": [{"model": "H100"}]}
        devices = folder / "var/lib/groundplane/devices.yaml"
        devices.parent.mkdir(parents=True)
        devices.write_text(yaml.safe_dump(described))
        self.env = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "GROUNDPLANE_SIMULATION": str(folder),
            "RUNTIME": "containerd",
            "RUNTIME_CONFIG": str(folder / "config.toml"),
            "RUNTIME_DROP_IN_CONFIG": str(folder / "conf.d/99-nvidia.toml"),
            "RUNTIME_CONFIG_SOURCE": "file",
            "RUNTIME_RESTART_MODE": "none",
            "HOST_ROOT_MOUNT": "/",
            "ROOT": str(folder / "install"),
            "TOOLKIT_PID_FILE": str(folder / "run/toolkit.pid"),
            "TOOLKIT_SOURCE_ROOT": str(folder / "source"),
        }
        (folder / "source").mkdir()
        (folder / "source/groundplane-host").write_bytes(b"\x7fELF")
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-m", "groundplane.node", "nvidia-toolkit", *words],
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(made)
        return made

    def wait(self, program: subprocess.Popen[str]) -> None:
        assert program.stderr is not None
        seen = ""
        for line in program.stderr:
            seen += line
            if "aiting for" in line:
                return
        raise AssertionError(seen)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    for each in made.running:
        each.kill()
        each.wait()
        if each.stderr is not None:
            each.stderr.close()


def test_4_4_processes(programs: Programs) -> None:
    config, drop_in, pid = (
        programs.folder / each for each in ("config.toml", "conf.d/99-nvidia.toml", "run/toolkit.pid")
    )
    config.write_text(users(2))
    first = programs.start()
    programs.wait(first)
    assert pid.read_text().strip() == str(first.pid)
    assert drop_in.exists()
    other = programs.start()
    assert "already running" in other.communicate(timeout=60)[1]
    assert other.returncode == 1
    assert pid.read_text().strip() == str(first.pid)
    first.kill()
    first.communicate()
    assert drop_in.exists()
    third = programs.start()
    programs.wait(third)
    assert pid.read_text().strip() == str(third.pid)
    third.terminate()
    third.communicate(timeout=60)
    assert third.returncode == 0
    assert config.read_text() == users(2)
    assert not drop_in.exists()
    assert not pid.exists()


def test_4_4_killed_at_any_moment_the_installed_programs_are_whole(programs: Programs) -> None:
    (programs.folder / "config.toml").write_text(users(2))
    done = programs.start("--no-daemon")
    done.communicate(timeout=60)
    assert done.returncode == 0
    there = sorted(each.name for each in (programs.folder / "install/toolkit").iterdir())
    for delay in (0.2, 0.3, 0.4, 0.5):
        killed = programs.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            killed.wait(timeout=delay)
        killed.kill()
        killed.communicate()
        assert sorted(each.name for each in (programs.folder / "install/toolkit").iterdir()) == there
        tomllib.loads((programs.folder / "config.toml").read_text())
    last = programs.start()
    programs.wait(last)
    last.terminate()
    last.communicate(timeout=60)
    assert [each.name for each in (programs.folder / "install").iterdir() if each.name.startswith("toolkit")]
    assert sorted(each.name for each in (programs.folder / "install").iterdir())[0] == "toolkit"


# --- the rest ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Shim]:
    """A host with GDRCopy, GDS and two IMEX channels."""
    folder = tmp_path / "machine"
    folder.mkdir()
    machine = Machine(folder)
    driverroots.make(machine.root / "driver-root", VERSION, driverroots.Kind.CONTAINER)
    machine.gpus({})
    for name in (
        *("nvidia0", "nvidiactl", "gdrdrv", "nvidia-fs0"),
        *("nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels/channel7"),
    ):
        machine.file(f"/driver-root/dev/{name}")
    machine.file("/usr/lib/groundplane/host/groundplane-host", b"\x7fELF", 0o755)
    env = {**OPERATOR, "GROUNDPLANE_NULL_DEVICES": "true", "CREATE_DEVICE_NODES": "none", "NO_DAEMON": "true"}

    async def install() -> int:
        return await toolkit.run(machine.process(("nvidia-toolkit",), env))

    assert asyncio.run(install()) == 0
    host = tmp_path / "host"
    host.mkdir()
    shutil.copytree(machine.root / f"{DEST}/.config".lstrip("/"), host / ".config")
    made = Shim(tmp_path, host_folder(host))
    made.set("jit-cdi")
    yield made


GATES: list[tuple[list[str], list[str]]] = [
    ([], []),
    (["NVIDIA_GDRCOPY=enabled"], ["/dev/gdrdrv"]),
    (["NVIDIA_GDRCOPY=true"], []),
    (["NVIDIA_GDRCOPY=Enabled"], []),
    (["NVIDIA_GDS=enabled"], ["/dev/nvidia-fs0"]),
    (["NVIDIA_MOFED=enabled", "NVIDIA_NVSWITCH=enabled"], []),
    (["NVIDIA_IMEX_CHANNELS=0,7"], [f"/dev/nvidia-caps-imex-channels/channel{each}" for each in "07"]),
    (["NVIDIA_IMEX_CHANNELS=all"], []),
]


@pytest.mark.parametrize(("env", "expected"), GATES)
def test_6_3_gated_devices(gated: Shim, env: list[str], expected: list[str]) -> None:
    def nodes() -> list[str]:
        given = [each["path"] for each in json.loads(gated.text())["linux"]["devices"]]
        return [each for each in given if each not in ("/dev/nvidia0", "/dev/nvidiactl")]

    for mode in ("jit-cdi", "legacy"):
        gated.set(mode)
        gated.write("NVIDIA_VISIBLE_DEVICES=0", *env)
        gated.run()
        assert nodes() == expected
    gated.set("jit-cdi", more="[features]\nignore-imex-channel-requests = true")
    gated.write("NVIDIA_VISIBLE_DEVICES=0", *env)
    gated.run()
    assert nodes() == [each for each in expected if "imex" not in each]


def test_6_3_an_imex_channel_that_is_not_there(gated: Shim) -> None:
    gated.write("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=3")
    before = gated.text()
    gated.run(ok=False)
    assert gated.text() == before


async def test_3_4_the_loaders_cache_is_not_needed(machine: Machine) -> None:
    """Libraries elsewhere are found by --library-search-path."""
    machine.nodes()
    machine.gpus({})
    machine.file(f"/opt/nv/libcuda.so.{VERSION}")
    assert (await command(machine, "cdi", "generate")).code == 1
    spec = await generated(machine, "--library-search-path=/opt/nv")
    assert targets(spec) == [f"/opt/nv/libcuda.so.{VERSION}"]


async def test_3_9_coherent_annotations(driven: Machine) -> None:
    process = await command(
        driven, "cdi", "generate", "--feature-flag=enable-coherent-annotations", "--output=/etc/cdi/nvidia.yaml"
    )
    assert process.code == 0, process.stderr
    assert driven.there("/etc/cdi/nvidia.yaml")
    kinds = {yaml.safe_load(each.read_text())["kind"] for each in (driven.root / "etc/cdi").iterdir()}
    assert kinds <= {"nvidia.com/gpu", "nvidia.com/gpu.coherent", "nvidia.com/gpu.noncoherent"}
    assert (await command(driven, "cdi", "generate", "--feature-flag=nonsense")).code in (0, 1)


async def test_3_1_csv(machine: Machine) -> None:
    folder = "/etc/nvidia-container-runtime/host-files-for-container.d"
    machine.file(f"{folder}/devices.csv", "dev, /dev/nvhost-ctrl\ndev, /dev/not-there\n")
    machine.file(
        f"{folder}/drivers.csv", "lib, /usr/lib/libx.so\ndir, /lib/firmware/t\nsym, /usr/lib/libx.so.1\nnonsense\n"
    )
    machine.file(f"{folder}/other.csv", "lib, /usr/lib/other.so\n")
    machine.node("/dev/nvhost-ctrl", 240, 0)
    machine.file("/usr/lib/libx.so")
    machine.file("/usr/lib/other.so")
    (machine.root / "lib/firmware/t").mkdir(parents=True)
    (machine.root / "usr/lib/libx.so.1").symlink_to("libx.so")
    process = await command(machine, "cdi", "generate", "--mode=csv")
    assert process.code == 0, process.stderr
    spec = yaml.safe_load(process.stdout)
    text = json.dumps(spec)
    assert spec["kind"] == "nvidia.com/gpu"
    for there in ("/dev/nvhost-ctrl", "/usr/lib/libx.so", "/lib/firmware/t", "libx.so::/usr/lib/libx.so.1"):
        assert there in text, there
    assert "other.so" not in text
    assert "not-there" not in text


async def test_5_8_dry_run_and_no_drop_in(machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    words = ("runtime", "configure", "--runtime=containerd")
    assert (await command(machine, *words, "--drop-in-config=")).code == 0
    assert not machine.there(DROP_IN)
    assert "nvidia" in cri(machine, 2, CONFIG)["containerd"]["runtimes"]
    assert machine.read(CONFIG).startswith("# mine\n")
    dry = await command(machine, "runtime", "configure", "--dry-run")
    assert json.loads(dry.stdout)["runtimes"]["nvidia"]["path"]
    assert not machine.there("/etc/docker/daemon.json")
    machine.file("/x.toml", "version = [")
    assert (await command(machine, *words, "--config=/x.toml")).code == 1
    assert machine.read("/x.toml") == "version = ["


async def test_5_8_configure_twice_is_as_once(machine: Machine) -> None:
    for runtime, path in (("docker", "/etc/docker/daemon.json"), ("crio", CRIO_DROP_IN), ("containerd", DROP_IN)):
        words = ("runtime", "configure", f"--runtime={runtime}", "--set-as-default", "--cdi.enabled")
        assert (await command(machine, *words)).code == 0
        before = machine.read(path)
        assert (await command(machine, *words)).code == 0
        assert machine.read(path) == before


async def test_8_15_what_is_the_users_stays(toolkits: Toolkits, machine: Machine) -> None:
    """Nor is a file deleted that has anything of the user's."""
    text = '{\n  "runtimes": {"mine": {"path": "/m"}},\n  "default-runtime": "mine", "insecure-registries": ["a:1"]\n}'
    machine.file("/etc/docker/daemon.json", text)
    process = await toolkits.waiting(env={**PLAIN, "RUNTIME": "docker"})
    assert set(json.loads(machine.read("/etc/docker/daemon.json"))["runtimes"]) == {"mine", *NAMES}
    await toolkits.end(process)
    assert json.loads(machine.read("/etc/docker/daemon.json"))["runtimes"] == {"mine": {"path": "/m"}}
    assert json.loads(machine.read("/etc/docker/daemon.json"))["insecure-registries"] == ["a:1"]


async def test_8_11_a_restart_that_failed_is_still_owed(toolkits: Toolkits, machine: Machine) -> None:
    env = {**PLAIN, "RUNTIME_RESTART_MODE": "signal"}
    await toolkits.once(env=env, code=1, pace=1000.0)
    async with Daemon(machine, "/run/containerd/containerd.sock"):
        process = await toolkits.once(env=env)
        assert process.killed == [(os.getpid(), signal.SIGHUP)]
        process = await toolkits.once(env=env)
        assert process.killed == []


async def test_7_3_a_runtime_that_hangs_up_is_tried_again(toolkits: Toolkits, machine: Machine) -> None:
    async with Nri(machine) as nri:
        process = toolkits.start(env=NRI_ENV, pace=20.0)
        await nri.configured()
        await until(lambda: "aiting" in process.stderr)
        nri.deaf = True
        nri.writers[-1].close()
        await until(lambda: len(nri.writers) > 4)
        assert not process.task.done()
        nri.deaf = False
        assert await nri.configured(2) == 8
        await toolkits.end(process)


async def test_7_1_what_is_not_understood_harms_nothing(toolkits: Toolkits, machine: Machine) -> None:
    async with Nri(machine) as nri:
        process = toolkits.start(env=NRI_ENV)
        await nri.configured()
        answer = await nri.call("CreateContainer", b"\xff\xff\xff")
        assert not fields((answer.get(2) or [b""])[0]).get(1)
        for method in ("StateChange", "RunPodSandbox", "PostCreateContainer", "StopContainer"):
            assert await nri.call(method) is not None
        assert await nri.devices("gpu-operator", pod=ALL) == [ALL]
        big = ",".join(f"x.com/y={index}" for index in range(5000))
        assert len(await nri.devices("gpu-operator", pod=big)) == 5000
        assert await nri.devices("gpu-operator", "c", all="x.com/y=0", pod="", c="") in ([], ["x.com/y=0"])
        await toolkits.end(process)


def test_1_4_and_6_2_two_specifications_that_claim_one_device(shim: Shim) -> None:
    (shim.specs / "twin.json").write_text(json.dumps({**MANAGEMENT, "cdiVersion": "0.5.0"}))
    shim.write(annotations={"cdi.k8s.io/a": "management.nvidia.com/gpu=all"})
    before = shim.text()
    done = shim.run(ok=False)
    assert "unresolvable CDI devices management.nvidia.com/gpu=all" in done.stderr
    assert shim.text() == before
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=0") == ["DEV_0=1"]
    (shim.specs / "bad.json").write_text("{")
    assert shim.asks("NVIDIA_VISIBLE_DEVICES=0") == ["DEV_0=1"]


def test_1_6_common_edits_once_in_the_order_of_requests(shim: Shim) -> None:
    shim.write(annotations={"cdi.k8s.io/a": "management.nvidia.com/gpu=all,nvidia.com/gpu=1,nvidia.com/gpu=0"})
    shim.run()
    env = json.loads(shim.text())["process"]["env"]
    assert env == ["PATH=/changed", "MANAGEMENT=1", "COMMON=1", "DEV_1=1", "DEV_0=1"]


async def test_4_5_a_folder_that_is_a_link(toolkits: Toolkits, machine: Machine) -> None:
    """As on hosts whose /usr/local is elsewhere."""
    (machine.root / "data").mkdir()
    (machine.root / "usr/local").mkdir(parents=True)
    (machine.root / "usr/local/nvidia").symlink_to("/data")
    await toolkits.once()
    await toolkits.once()
    assert machine.there("/data/toolkit/nvidia-ctk")
    assert (machine.root / "usr/local/nvidia").is_symlink()


@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
async def test_4_4_every_step_that_fails_is_named(toolkits: Toolkits, machine: Machine, runtime: str) -> None:
    (machine.root / "usr/lib/groundplane/host/groundplane-host").unlink()
    process = await toolkits.once(env={**PLAIN, "RUNTIME": runtime}, code=1)
    assert re.search("^E.*install", process.stderr, re.MULTILINE)
    assert "groundplane-host" in process.stderr
    assert not machine.there(PID)


async def test_3_4_what_release_26_7_adds(driven: Machine) -> None:
    driven.file(f"{LIBS}/libnvidia-nvvm70.so.4")
    driven.file("/etc/OpenCL/vendors/nvidia.icd")
    for release in (OLD, NEW):
        found = targets(await generated(driven, release=release))
        assert (f"{LIBS}/libnvidia-nvvm70.so.4" in found) == (release is NEW)
        assert ("/etc/OpenCL/vendors/nvidia.icd" in found) == (release is NEW)


@pytest.mark.parametrize(("profile", "graphics"), [("1g.24gb+gfx", True), ("1g.24gb", False)])
async def test_3_3_graphics_in_mig(driven: Machine, profile: str, graphics: bool) -> None:
    mig = {"enabled": True, "instances": [profile]}
    driven.gpus({"model": "RTX-PRO-6000", "mig": mig, "busId": "0000:0a:00.0"})
    driven.node("/dev/dri/card0", 226, 0)
    driven.proc("/sys/bus/pci/devices/0000:0a:00.0/drm/card0/dev", "")
    caps = [
        f"gpu0/gi{gi}/{name} {gi * 2 + add}" for gi in range(15) for add, name in enumerate(("access", "ci0/access"))
    ]
    driven.proc("/proc/driver/nvidia-caps/mig-minors", "\n".join(caps))
    for minor in range(30):
        driven.node(f"/dev/nvidia-caps/nvidia-cap{minor}", 511, minor)
    spec = await generated(driven, "--device-name-strategy=index")
    assert names(spec) == ["0:0", "all"]
    assert ("/dev/dri/card0" in paths(device(spec, "0:0"))) == graphics


async def test_4_5_release_26_3_wraps_the_hook_too(toolkits: Toolkits, machine: Machine) -> None:
    await toolkits.once(release=OLD)
    assert machine.there(f"{DEST}/nvidia-cdi-hook.real")
    await toolkits.once(release=NEW)
    assert not machine.there(f"{DEST}/nvidia-cdi-hook.real")


async def test_4_4_another_kind_and_folder(toolkits: Toolkits, operand: Machine) -> None:
    await toolkits.once(env={**OPERATOR, "CDI_KIND": "v.com/c", "CDI_OUTPUT_DIR": "/etc/cdi"})
    assert yaml.safe_load(operand.read("/etc/cdi/v.com-c.yaml"))["kind"] == "v.com/c"
    assert not operand.there(SPEC)


async def test_3_7_a_driver_and_nodes_of_the_host(toolkits: Toolkits, machine: Machine) -> None:
    """The host's own driver, and a driver's container whose nodes are the host's."""
    machine.gpus({})
    machine.nodes("/host/dev")
    for folder, driver_root in (("/host", "/"), ("/driver-root", "/run/nvidia/driver")):
        driverroots.make(machine.root / folder.lstrip("/"), VERSION, driverroots.Kind.CONTAINER)
        env = {"NVIDIA_DRIVER_ROOT": driver_root, "DRIVER_ROOT_CTR_PATH": folder}
        env |= {"NVIDIA_DEV_ROOT": "/", "DEV_ROOT_CTR_PATH": "/host"}
        await toolkits.once(env={**OPERATOR, **env})
        spec = yaml.safe_load(machine.read(SPEC))
        for node in device(spec, "all")["deviceNodes"]:
            assert node.get("hostPath", node["path"]) == node["path"]
            assert node["path"].startswith("/dev/nvidia")
        mounts = spec["containerEdits"]["mounts"]
        prefix = driver_root.rstrip("/")
        assert any(each["hostPath"].startswith(f"{prefix}/usr/") for each in mounts)
        assert not any(each["hostPath"].startswith(("/host", "/driver-root")) for each in mounts)


def test_3_5_the_hosts_program_needs_nothing_of_the_host(host: Path) -> None:
    """Neither a loader, which would heed LD_PRELOAD, nor a shell."""
    elf = (host / "nvidia-cdi-hook").read_bytes()
    assert elf[:5] == b"\x7fELF\x02"
    start, size, count = (
        int.from_bytes(elf[place : place + width], "little") for place, width in ((32, 8), (54, 2), (56, 2))
    )
    kinds = [int.from_bytes(elf[start + index * size :][:4], "little") for index in range(count)]
    assert 1 in kinds
    assert not {2, 3} & set(kinds)  # dynamic section, interpreter


def test_3_5_disable_device_node_modification_without_the_driver(shim: Shim) -> None:
    if Path("/proc/driver/nvidia/params").exists():
        pytest.skip("a machine with a driver")
    assert hook(shim, "disable-device-node-modification") == ""
    assert list((shim.bundle / "rootfs").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--nri-plugin-index=99", "--no-runtime-config"], 0),
        (["--never-heard-of"], 1),
        (["stray"], 1),
        (["--runtime="], 1),
        (["--toolkit-package-type=tar"], 1),
    ],
)
async def test_4_3_command_lines(toolkits: Toolkits, machine: Machine, words: list[str], code: int) -> None:
    process = toolkits.start("--no-daemon", *words)
    assert (await asyncio.wait_for(process.task, 20) == 0) == (code == 0), process.stderr
    assert machine.there(DEST) == (code == 0)


async def test_8_12_a_runtime_that_ends_the_toolkit_as_it_restarts(
    toolkits: Toolkits, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was configured stays in force, and the next toolkit need not restart the runtime again."""
    machine.file(CONFIG, users(2))
    env = {**PLAIN, "RUNTIME_RESTART_MODE": "signal"}
    kill = FakeProcess.kill

    def killed(self: FakeProcess, pid: int, number: int) -> None:
        kill(self, pid, number)
        self.send(signal.SIGTERM)

    async with Daemon(machine, "/run/containerd/containerd.sock"):
        with monkeypatch.context() as patch:
            patch.setattr(FakeProcess, "kill", killed)
            process = toolkits.start(env=env)
            assert await asyncio.wait_for(process.task, 20) == 0
        assert machine.there(DROP_IN)
        assert "conf.d" in machine.read(CONFIG)
        assert not machine.there(PID)
        process = await toolkits.waiting(env=env)
        assert process.killed == []
        await toolkits.end(process)
        assert process.killed == [(os.getpid(), signal.SIGHUP)]
        assert machine.read(CONFIG) == users(2)


async def test_4_4_what_cannot_be_taken_back_is_an_error_and_left(toolkits: Toolkits, machine: Machine) -> None:
    machine.file(CONFIG, users(2))
    process = await toolkits.waiting()
    machine.file(CONFIG, "version = [")
    await toolkits.end(process, code=1)
    assert machine.read(CONFIG) == "version = ["
    assert re.search("^E", process.stderr, re.MULTILINE)
    assert not machine.there(PID)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
async def test_4_4_each_signal_ends_the_wait(toolkits: Toolkits, machine: Machine, number: signal.Signals) -> None:
    machine.file(CONFIG, users(2))
    process = await toolkits.waiting()
    process.send(number)
    assert await asyncio.wait_for(process.task, 20) == 0
    assert machine.read(CONFIG) == users(2)


async def test_5_6_the_daemon_is_tried_six_times(toolkits: Toolkits, machine: Machine) -> None:
    process = toolkits.start(env={**PLAIN, "RUNTIME_RESTART_MODE": "signal"}, pace=1000.0)
    begun = asyncio.get_running_loop().time()
    assert await asyncio.wait_for(process.task, 30) == 1
    assert process.stderr.count("attempt ") == 5
    assert "6 attempts" in process.stderr
    assert (asyncio.get_running_loop().time() - begun) * 1000 > 25


async def test_4_1_as_the_operator_mounts_things(toolkits: Toolkits, operand: Machine) -> None:
    """With paths of the container that are others on the host."""
    operand.file("/runtime/config-dir/config.toml", users(2))
    env = {
        **OPERATOR,
        "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
        "CONTAINERD_CONFIG": "/runtime/config-dir/config.toml",
        "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml",
        "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
    }
    process = await toolkits.waiting(env=env)
    top = tomllib.loads(operand.read("/runtime/config-dir/config.toml"))
    assert top["imports"] == ["/etc/containerd/own/*.toml", "/etc/containerd/conf.d/*.toml"]
    table = cri(operand, 2, "/runtime/config-dir.d/99-nvidia.toml")
    assert table["enable_cdi"] is True
    assert set(table["containerd"]["runtimes"]) == {"runc", *NAMES}
    assert "default_runtime_name" not in table["containerd"]
    await toolkits.end(process)
    assert operand.read("/runtime/config-dir/config.toml") == users(2)
    assert not operand.there(CONFIG)
    assert not operand.there("/runtime/config-dir.d/99-nvidia.toml")
