"""Rules of containerd's configuration: contracts/toolkit-cdi.md 5.1 to 5.3, 5.7, 8 and 9."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import CONFIGS, DROP_INS, HANDLERS, STATE, FakeContainerd, files, settings, toml

from groundplane.node.process import Completed
from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.settings import Handler, RuntimeConfigError

CONFIG, DROP_IN = CONFIGS["containerd"], DROP_INS["containerd"]
V2 = 'plugins."io.containerd.grpc.v1.cri"'
V3 = "plugins.'io.containerd.cri.v1.runtime'"
RUNC = 'runtime_type = "io.containerd.runc.v2"\noptions = {SystemdCgroup = true}\n'


def config(version: int, *, default: str = "", names: tuple[str, ...] = ("runc",)) -> str:
    table = {1: "plugins.cri", 2: V2}.get(version, V3)
    text = f"version = {version}\n\n[{table}]\nsandbox_image = 'pause'\n\n[{table}.containerd]\n"
    text += f"default_runtime_name = '{default}'\n" if default else ""
    return text + "".join(
        f'\n[{table}.containerd.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\n'
        f"options = {{BinaryName = '/usr/bin/{name}', SystemdCgroup = true}}\n"
        for name in names
    )


def cri(document: dict[str, Any]) -> dict[str, Any]:
    (table,) = document["plugins"].values()
    assert isinstance(table, dict)
    return table


# --- 5.3: versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "legacy", "version", "table", "cdi"),
    [
        ("root = '/x'\n", False, None, "cri", ("containerd", "enable_cdi")),
        ("version = 1\n", False, 1, "cri", ("containerd", "enable_cdi")),
        ("version = 2\n", False, 2, "io.containerd.grpc.v1.cri", ("enable_cdi",)),
        ("version = 3\n", False, 3, "io.containerd.cri.v1.runtime", ("enable_cdi",)),
        ("version = 4\n", False, 4, "io.containerd.cri.v1.runtime", None),
        ("", False, 2, "io.containerd.grpc.v1.cri", ("enable_cdi",)),
        (None, False, 2, "io.containerd.grpc.v1.cri", ("enable_cdi",)),
        (None, True, None, "cri", ("containerd", "enable_cdi")),
    ],
)
async def test_versions(
    tmp_path: Path, text: str | None, *, legacy: bool, version: int | None, table: str, cdi: tuple[str, ...] | None
) -> None:
    process = FakeProcess(tmp_path)
    if text is not None:
        process.write(CONFIG, text)
    await runtimes.configure(process, settings("containerd", enable_cdi=True, legacy_config=legacy))
    in_place = version in (None, 1)
    document = toml(process, CONFIG if in_place else DROP_IN)
    assert process.root.exists(DROP_IN) != in_place
    assert document.get("version") == version
    assert list(document["plugins"]) == [table]
    node: Any = document["plugins"][table]
    for key in cdi or ():
        node = node[key]
    assert node is True or (cdi is None and "enable_cdi" not in node), "version 4 knows no enable_cdi (section 9)"


@pytest.mark.parametrize("value", ['"2"', "2.0", "true", "[2]"])
async def test_version_must_be_a_number(tmp_path: Path, value: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, f"version = {value}\n")
    before = files(process)
    with pytest.raises(RuntimeConfigError, match=r"config\.toml: unsupported type for version field"):
        await runtimes.configure(process, settings("containerd"))
    assert files(process) == before


@pytest.mark.parametrize(("prints", "main", "wanted"), [(2, None, 2), (3, None, 3), (4, None, 4), (3, 2, 2), (4, 3, 3)])
async def test_drop_in_version(tmp_path: Path, prints: int, main: int | None, wanted: int) -> None:
    """9: that of the main file, or else what the runtime can read."""
    process = FakeProcess(tmp_path)
    FakeContainerd(process, prints=prints, newest=prints)
    if main:
        process.write(CONFIG, config(main))
    await runtimes.configure(process, settings("containerd", sources=("command", "file")))
    assert toml(process, DROP_IN)["version"] == wanted
    assert toml(process, CONFIG)["version"] == wanted
    if main:
        assert cri(toml(process, DROP_IN))["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True


# --- 5.3: handlers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "names", "inherited"),
    [
        ("", ("runc", "crun"), "runc"),
        ("", ("crun", "kata"), "crun"),
        ("kata", ("runc", "kata"), "kata"),
        ("nvidia", ("runc", "nvidia"), "runc"),
        ("nvidia-foreign", ("crun", "nvidia-foreign"), "crun"),
        ("gone", ("runc",), "runc"),
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_inherits(tmp_path: Path, version: int, default: str, names: tuple[str, ...], inherited: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(version, default=default, names=names).replace("/usr/bin/", f"/{inherited}/"))
    await runtimes.configure(process, settings("containerd"))
    document = toml(process, CONFIG if version == 1 else DROP_IN)
    for handler in HANDLERS:
        options = {"BinaryName": handler.path, "SystemdCgroup": True}
        assert cri(document)["containerd"]["runtimes"][handler.name] == {
            "runtime_type": "io.containerd.runc.v2",
            "options": {**options, "Runtime": handler.path} if version == 1 else options,
        }


async def test_nothing_to_inherit(tmp_path: Path) -> None:
    """8 #13: a person is warned of the missing SystemdCgroup."""
    process = FakeProcess(tmp_path)
    await runtimes.configure(process, settings("containerd", handlers=HANDLERS[:1], runtime_type="io.containerd.x.v9"))
    assert cri(toml(process, DROP_IN))["containerd"]["runtimes"]["nvidia"] == {
        "runtime_type": "io.containerd.x.v9",
        "runtime_root": "",
        "runtime_engine": "",
        "privileged_without_host_devices": False,
        "options": {"BinaryName": HANDLERS[0].path},
    }
    assert "could not infer options from the runtimes runc, crun" in process.stderr
    assert "SystemdCgroup = true" in process.stderr


async def test_empty_runtime_type(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(2).replace('"io.containerd.runc.v2"', '""'))
    await runtimes.configure(process, settings("containerd"))
    assert cri(toml(process, DROP_IN))["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"


async def test_annotations_and_override(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(
        CONFIG, config(3).replace("options =", "container_annotations = ['io.x/*', 'cdi.k8s.io/*']\noptions =")
    )
    wanted = settings(
        "containerd",
        annotation_prefixes=("cdi.k8s.io/", "example.com/"),
        override={"snapshotter": "nydus", "options": {"SystemdCgroup": False, "BinaryName": "/not/this"}},
    )
    await runtimes.configure(process, wanted)
    table = cri(toml(process, DROP_IN))["containerd"]["runtimes"]["nvidia-cdi"]
    assert table["container_annotations"] == ["cdi.k8s.io/*", "example.com/*", "io.x/*"]
    assert table["snapshotter"] == "nydus"
    assert table["options"] == {"SystemdCgroup": False, "BinaryName": HANDLERS[1].path}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ("", "nvidia", "nvidia"),
        ("runc", "nvidia", "nvidia"),
        ("runc", "nvidia-cdi", "nvidia-cdi"),
        ("runc", "", "runc"),
        ("", "", None),
        ("nvidia", "", None),
    ],
)
async def test_default(tmp_path: Path, version: int, before: str, wanted: str, after: str | None) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(version, default=before))
    await runtimes.configure(process, settings("containerd", default=wanted))
    document = toml(process, CONFIG if version == 1 else DROP_IN)
    assert cri(document)["containerd"].get("default_runtime_name") == after


async def test_legacy_default(tmp_path: Path) -> None:
    """5.3: version 1 with the legacy configuration has a table for the default runtime."""
    process = FakeProcess(tmp_path)
    await runtimes.configure(process, settings("containerd", default="nvidia", legacy_config=True))
    containerd = cri(toml(process, CONFIG))["containerd"]
    path = HANDLERS[0].path
    assert "default_runtime_name" not in containerd
    assert containerd["default_runtime"] == {
        "runtime_type": "io.containerd.runc.v2",
        "runtime_root": "",
        "runtime_engine": "",
        "privileged_without_host_devices": False,
        "options": {"BinaryName": path, "Runtime": path},
    }
    await runtimes.revert(process, settings("containerd", default="nvidia", legacy_config=True))
    assert files(process) == {}


# --- 5.3: imports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("imports", "host_path", "after"),
    [
        ("", "", ["/etc/containerd/conf.d/*.toml"]),
        ("imports = []", "", ["/etc/containerd/conf.d/*.toml"]),
        ("imports = ['/b', '/a']", "", ["/b", "/a", "/etc/containerd/conf.d/*.toml"]),
        ("imports = ['/etc/containerd/conf.d/*.toml', '/a']", "", ["/etc/containerd/conf.d/*.toml", "/a"]),
        (
            "",
            "/var/lib/rancher/k3s/agent/etc/containerd/d/9.toml",
            ["/var/lib/rancher/k3s/agent/etc/containerd/d/*.toml"],
        ),
    ],
)
async def test_imports(tmp_path: Path, imports: str, host_path: str, after: list[str]) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, f"version = 2\n{imports}\n")
    await runtimes.configure(process, settings("containerd", drop_in_host_path=host_path))
    assert toml(process, CONFIG) == {"version": 2, "imports": after}


@pytest.mark.parametrize("imports", ["'/a'", "[1]", "{}"])
async def test_imports_must_be_texts(tmp_path: Path, imports: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, f"version = 2\nimports = {imports}\n")
    with pytest.raises(RuntimeConfigError, match="imports is not a list of strings"):
        await runtimes.configure(process, settings("containerd"))


async def test_drop_in_must_be_imported(tmp_path: Path) -> None:
    """8 #1: a drop-in that no import covers is never written."""
    with pytest.raises(RuntimeConfigError, match=r"ends with \.toml"):
        await runtimes.configure(
            FakeProcess(tmp_path), settings("containerd", drop_in="/etc/containerd/conf.d/99.conf")
        )


async def test_other_plugins_are_not_copied(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(3) + "\n[plugins.'io.containerd.gc.v1.scheduler']\npause_threshold = 0.02\n")
    await runtimes.configure(process, settings("containerd"))
    assert list(toml(process, DROP_IN)["plugins"]) == ["io.containerd.cri.v1.runtime"]


async def test_tables_of_other_drop_ins_are_copied(tmp_path: Path) -> None:
    """Before 2.1 our drop-in replaces what others say of the CRI plugin, so it says that too."""
    process = FakeProcess(tmp_path)
    (process.root.base / "host").symlink_to("/")
    process.write(CONFIG, "imports = ['/etc/containerd/conf.d/*.toml']\n" + config(2))
    process.write("/etc/containerd/conf.d/50-registry.toml", f"version = 2\n[{V2}.registry]\nconfig_path = '/certs'\n")
    await runtimes.configure(process, settings("containerd"))
    assert cri(toml(process, DROP_IN))["registry"] == {"config_path": "/certs"}


async def test_without_drop_in(tmp_path: Path) -> None:
    """No drop-in: any version is edited in place, and taken back."""
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(3))
    wanted = settings("containerd", drop_in="", default="nvidia")
    await runtimes.configure(process, wanted)
    assert process.root.read_text(CONFIG).startswith(config(3).partition("[")[0])
    assert cri(toml(process, CONFIG))["containerd"]["default_runtime_name"] == "nvidia"
    await runtimes.revert(process, wanted)
    assert process.root.read_text(CONFIG) == config(3)


async def test_cri_disabled(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, 'disabled_plugins = ["cri"]\n')
    await runtimes.configure(process, settings("containerd"))
    assert "disables containerd's CRI plugin (cri)" in process.stderr


# --- 5.2: sources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "sandbox"),
    [
        (("file",), "file"),
        ((" file = /other.toml ",), "other"),
        (("command", "file"), "command"),
        (("file=/other.toml", "command"), "other"),
        ((" command ",), "command"),
    ],
)
async def test_sources(tmp_path: Path, sources: tuple[str, ...], sandbox: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(2).replace("'pause'", "'file'"))
    process.write("/other.toml", config(2).replace("'pause'", "'other'"))
    dump = config(2).replace("'pause'", "'command'")
    process.commands["chroot"] = lambda argv, env, stdin: Completed(0, dump, "")
    texts = await runtimes.preview(process, settings("containerd", sources=sources))
    assert cri(tomllib.loads(texts[DROP_IN]))["sandbox_image"] == sandbox


@pytest.mark.parametrize(
    ("host_root", "executable", "argv"),
    [
        ("/host", "", ("chroot", "/host", "containerd", "config", "dump")),
        ("/", "", ("containerd", "config", "dump")),
        ("", "", ("containerd", "config", "dump")),
        ("/h", "/opt/bin/containerd", ("chroot", "/h", "/opt/bin/containerd", "config", "dump")),
    ],
)
async def test_command(tmp_path: Path, host_root: str, executable: str, argv: tuple[str, ...]) -> None:
    process = FakeProcess(tmp_path)
    wanted = settings("containerd", host_root=host_root, executable=executable, sources=("command", "file"))
    await runtimes.low_level(process, wanted)
    assert process.executed == [argv]


async def test_all_sources_fail(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, "version = 2\n")
    before = files(process)
    wanted = settings("containerd", sources=("command",))
    with pytest.raises(RuntimeConfigError, match=r"cannot be read from any source .command.: containerd config dump"):
        await runtimes.configure(process, wanted)
    assert files(process) == before


async def test_unknown_source(tmp_path: Path) -> None:
    with pytest.raises(RuntimeConfigError, match='unsupported config source "commnad"'):
        await runtimes.configure(FakeProcess(tmp_path), settings("containerd", sources=("commnad", "file")))


async def test_malformed_main_file_is_refused_whatever_the_command_says(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.commands["chroot"] = lambda argv, env, stdin: Completed(0, config(2), "")
    process.write(CONFIG, "version = 2\n[plugins\n")
    before = files(process)
    with pytest.raises(RuntimeConfigError, match=r"is not valid TOML: .*line 2"):
        await runtimes.configure(process, settings("containerd", sources=("command", "file")))
    assert files(process) == before


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_low_level(tmp_path: Path, version: int) -> None:
    """4.4, step 3."""
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(version, default="kata", names=("crun", "runc", "kata")))
    assert await runtimes.low_level(process, settings("containerd")) == (
        *("/usr/bin/kata", "/usr/bin/runc", "/usr/bin/crun"),
        *("runc", "crun"),
    )
    process.write(CONFIG, config(version, default="nvidia", names=("nvidia", "crun")))
    assert await runtimes.low_level(process, settings("containerd")) == ("/usr/bin/crun", "runc", "crun")


async def test_low_level_after_our_own_default(tmp_path: Path) -> None:
    """Our own executables are never below themselves, whatever the handler is called."""
    process = FakeProcess(tmp_path)
    FakeContainerd(process)
    process.write(CONFIG, config(3))
    own = (Handler("gpu", HANDLERS[0].path), *HANDLERS[1:])
    wanted = settings("containerd", handlers=own, name="gpu", default="gpu", sources=("command", "file"))
    before = await runtimes.low_level(process, wanted)
    await runtimes.configure(process, wanted)
    assert await runtimes.low_level(process, wanted) == before == ("/usr/bin/runc", "runc", "crun")


# --- 9: verification --------------------------------------------------------------------------------------------------


async def test_refused_by_containerd(tmp_path: Path) -> None:
    """8 #2, 9: what the running containerd cannot read is not left there."""
    process = FakeProcess(tmp_path)
    FakeContainerd(process, prints=2, newest=2)
    process.write(CONFIG, config(3))
    before = files(process)
    with pytest.raises(RuntimeConfigError, match="containerd refuses the changed configuration: containerd: expected"):
        await runtimes.configure(process, settings("containerd", sources=("file",)))
    assert files(process) == before


async def test_handler_is_lacking(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    containerd = FakeContainerd(process)
    process.write(CONFIG, config(3))
    before = files(process)
    containerd.lacks = True
    with pytest.raises(
        RuntimeConfigError, match='does not have the runtime "nvidia" with /usr/local/nvidia/toolkit/nvid'
    ):
        await runtimes.configure(process, settings("containerd"))
    assert files(process) == before


async def test_refused_again_after_a_good_one(tmp_path: Path) -> None:
    """What was remembered before is remembered still, so that the first configuration can be taken back."""
    process = FakeProcess(tmp_path)
    containerd = FakeContainerd(process)
    process.write(CONFIG, config(3))
    original = files(process)
    await runtimes.configure(process, settings("containerd"))
    before = files(process)
    containerd.lacks = True
    with pytest.raises(RuntimeConfigError):
        await runtimes.configure(process, settings("containerd", default="nvidia"))
    assert files(process) == before
    await runtimes.revert(process, settings("containerd"))
    assert files(process) == original


async def test_no_containerd_to_ask(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    (process.root.base / "host").symlink_to("/")
    process.commands["chroot"] = lambda argv, env, stdin: Completed(
        127, "", "chroot: failed to run command 'containerd'"
    )
    process.write(CONFIG, config(3))
    assert await runtimes.configure(process, settings("containerd", sources=("command", "file")))
    assert "is not verified by it" in process.stderr


# --- 5.7: distributions -----------------------------------------------------------------------------------------------

RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"


@pytest.mark.parametrize(
    ("marker", "remedy"),
    [
        (
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "CONTAINERD_CONFIG=/var/lib/rancher/k3s/agent/etc/containerd/config.toml, "
            "CONTAINERD_SOCKET=/run/k3s/containerd/containerd.sock",
        ),
        (RKE2, f"CONTAINERD_CONFIG={RKE2}, CONTAINERD_SOCKET=/run/k3s/containerd/containerd.sock"),
        (
            "/etc/k0s/containerd.toml",
            "CONTAINERD_CONFIG=/etc/k0s/containerd.d/nvidia.toml, CONTAINERD_SOCKET=/run/k0s/containerd.sock",
        ),
        (
            "/var/snap/microk8s/current/args/containerd-template.toml",
            "CONTAINERD_CONFIG=/var/snap/microk8s/current/args/containerd-template.toml, "
            "CONTAINERD_SOCKET=/var/snap/microk8s/common/run/containerd.sock, "
            "RUNTIME_CONFIG_SOURCE=file=/var/snap/microk8s/current/args/containerd.toml",
        ),
    ],
)
async def test_distribution_elsewhere(tmp_path: Path, marker: str, remedy: str) -> None:
    """8 #14: nothing is guessed."""
    process = FakeProcess(tmp_path)
    process.write(f"/host{marker}", config(2))
    before = files(process)
    with pytest.raises(RuntimeConfigError) as caught:
        await runtimes.configure(process, settings("containerd", sources=("command", "file")))
    assert str(caught.value).endswith(f"set {remedy}")
    assert files(process) == before

    process.write(CONFIG, config(2))
    assert await runtimes.configure(process, settings("containerd")), "the configured file is there"


async def test_distribution_beside_a_containerd(tmp_path: Path) -> None:
    """8 #2: another containerd answers; a person is told."""
    process = FakeProcess(tmp_path)
    process.write(f"/host{RKE2}", config(2))
    process.commands["chroot"] = lambda argv, env, stdin: Completed(0, config(2, names=("runc",)) + _handlers(), "")
    assert await runtimes.configure(process, settings("containerd", sources=("command", "file")))
    assert f"if it is RKE2 that runs the pods, set CONTAINERD_CONFIG={RKE2}" in process.stderr


def _handlers() -> str:
    return "".join(
        f"[{V2}.containerd.runtimes.{each.name}]\noptions = {{BinaryName = '{each.path}'}}\n" for each in HANDLERS
    )


async def test_distributions_own_file(tmp_path: Path) -> None:
    """The mounted folder is the distribution's: its file is configured, with a word on what rewrites it."""
    process = FakeProcess(tmp_path)
    process.write(f"/host{RKE2}", config(2))
    process.path("/runtime").mkdir()
    process.path("/runtime/config-dir").symlink_to(f"/host{RKE2.rpartition('/')[0]}")
    wanted = settings("containerd", config="/runtime/config-dir/config.toml", drop_in="/runtime/conf.d/99-nvidia.toml")
    assert await runtimes.configure(process, wanted)
    assert f"RKE2 writes {RKE2} anew at each start" in process.stderr
    assert "imports" in process.root.read_text(f"/host{RKE2}")


@pytest.mark.parametrize(
    "text",
    [
        '{{ template "base" . }}\n\n[plugins.x]\na = 1\n',
        'version = 2\n{{- if .NodeConfig.SELinux }}\n[plugins."io.containerd.grpc.v1.cri"]\n{{end}}\n',
    ],
)
async def test_template(tmp_path: Path, text: str) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, text)
    with pytest.raises(RuntimeConfigError, match="it is a template, not TOML"):
        await runtimes.configure(process, settings("containerd"))
    assert process.root.read_text(CONFIG) == text


async def test_unknown_runtime(tmp_path: Path) -> None:
    with pytest.raises(RuntimeConfigError, match='invalid runtime "podman": expected one of containerd, crio, docker'):
        await runtimes.configure(FakeProcess(tmp_path), msgspec.structs.replace(settings("docker"), runtime="podman"))


# --- cleanup without a memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_cleanup_without_memory(tmp_path: Path, version: int) -> None:
    """5.3: the handlers and a default that is one of them go, all else stays."""
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(version, default="nvidia", names=("runc", "nvidia", "nvidia-legacy", "kata")))
    process.write(DROP_IN, config(2, names=("nvidia",)).replace("/usr/bin/nvidia", HANDLERS[0].path))
    await runtimes.revert(process, settings("containerd", default="nvidia"))
    assert process.root.read_text(CONFIG) == config(version, names=("runc", "kata"))
    assert not process.root.exists(DROP_IN)


async def test_cleanup_removes_what_setup_made(tmp_path: Path) -> None:
    """5.3 BETTER: also where the memory was lost, and with the command as source."""
    process = FakeProcess(tmp_path)
    wanted = settings("containerd", sources=("command", "file"))
    FakeContainerd(process)
    await runtimes.configure(process, wanted)
    process.root.remove(STATE)
    await runtimes.revert(process, wanted)
    assert files(process) == {"host": "/"}


async def test_import_stays_if_the_file_has_more(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(CONFIG, config(2))
    await runtimes.configure(process, settings("containerd"))
    configured = process.root.read_text(CONFIG)
    process.root.remove(STATE)
    await runtimes.revert(process, settings("containerd"))
    assert process.root.read_text(CONFIG) == configured
    assert not process.root.exists(DROP_IN)


async def test_own_handlers_are_not_the_original(tmp_path: Path) -> None:
    """A main file that an older toolkit edited: setup leaves its handlers, cleanup takes them out."""
    process = FakeProcess(tmp_path)
    text = config(2, default="nvidia", names=("runc", "nvidia")).replace("/usr/bin/nvidia", HANDLERS[0].path)
    process.write(CONFIG, text)
    await runtimes.configure(process, settings("containerd"))
    assert "nvidia" in cri(toml(process, CONFIG))["containerd"]["runtimes"]
    await runtimes.revert(process, settings("containerd"))
    assert process.root.read_text(CONFIG) == config(2)


async def test_handlers_of_a_person_with_our_executable(tmp_path: Path) -> None:
    """As on AKS' GPU nodes: other names for NVIDIA's runtime stay in force, also where tables are replaced."""
    process = FakeProcess(tmp_path)
    FakeContainerd(process, prints=2, cuts=True)
    text = config(2, default="nvidia-gpu", names=("nvidia-gpu", "untrusted"))
    text = text.replace("/usr/bin/nvidia-gpu", HANDLERS[0].path).replace("/usr/bin/untrusted", HANDLERS[0].path)
    process.write(CONFIG, text)
    before = files(process)
    wanted = settings("containerd", sources=("command", "file"))
    assert await runtimes.configure(process, wanted)
    table = cri(toml(process, DROP_IN))["containerd"]
    assert list(table["runtimes"]) == ["nvidia-gpu", "untrusted", *(each.name for each in HANDLERS)]
    assert table["default_runtime_name"] == "nvidia-gpu"
    assert not await runtimes.configure(process, wanted)
    await runtimes.revert(process, wanted)
    assert files(process) == before


async def test_renamed(tmp_path: Path) -> None:
    """A handler's former name is not taken on from what we wrote ourselves."""
    process = FakeProcess(tmp_path)
    FakeContainerd(process)
    process.write(CONFIG, config(3))
    former = (Handler("gpu", HANDLERS[0].path), *HANDLERS[1:])
    sources = ("command", "file")
    await runtimes.configure(
        process, settings("containerd", handlers=former, name="gpu", default="gpu", sources=sources)
    )
    await runtimes.configure(process, settings("containerd", sources=sources))
    table = cri(toml(process, DROP_IN))["containerd"]
    assert list(table["runtimes"]) == ["runc", *(each.name for each in HANDLERS)]
    assert "default_runtime_name" not in table


@pytest.mark.parametrize(
    ("text", "socket"),
    [
        ("", "/run/containerd/containerd.sock"),
        ("version = 2\n[grpc]\naddress = '/run/k3s/c.sock'\n", "/run/k3s/c.sock"),
        ("[grpc]\naddress = '/run/v1.sock'\n", "/run/v1.sock"),
        ("version = 3\n[grpc]\naddress = ''\n", "/run/containerd/containerd.sock"),
        ("version = 4\n[grpc]\naddress = '/ignored'\n", "/run/containerd/containerd.sock"),
        ("version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = '/run/v4.sock'\n", "/run/v4.sock"),
    ],
)
async def test_socket(tmp_path: Path, text: str, socket: str) -> None:
    """9: in either place."""
    process = FakeProcess(tmp_path)
    process.write(CONFIG, text)
    assert await runtimes.socket(process, settings("containerd")) == socket
    assert await runtimes.socket(process, settings("docker")) == ""
