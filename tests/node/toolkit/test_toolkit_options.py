"""Options of the toolkit: contracts/toolkit-cdi.md 4.3, 5.1 and the per-runtime defaults."""

from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node.cdi.options import Libraries
from groundplane.node.options import Asked, OptionError, Values, read
from groundplane.node.toolkit import options
from groundplane.node.toolkit.options import COMMAND, CdiSettings, NriSettings, Settings, load
from groundplane.node.toolkit.restart import Mode
from groundplane.node.toolkit.settings import Handler


def values(folder: Path, *argv: str, release: Release = Release.V26_7, **env: str) -> Values:
    return read(COMMAND, FakeProcess(folder, ("nvidia-toolkit", *argv), env, release=release))


def settings(folder: Path, *argv: str, release: Release = Release.V26_7, **env: str) -> Settings:
    return load(FakeProcess(folder, ("nvidia-toolkit", *argv), env, release=release))


ROWS = (
    ("--no-daemon", "-n", ("NO_DAEMON",), "no_daemon", False, "true", True),
    ("--no-runtime-config", "", ("NO_RUNTIME_CONFIG",), "no_runtime_config", False, "true", True),
    ("--enable-nri-plugin", "-p", ("ENABLE_NRI_PLUGIN",), "nri", False, "true", True),
    ("--nri-plugin-index", "", ("NRI_PLUGIN_INDEX",), "nri_index", 10, "7", 7),
    ("--nri-socket", "", ("NRI_SOCKET",), "nri_socket", "/var/run/nri/nri.sock", "/s", "/s"),
    ("--nri-namespace", "", ("NRI_NAMESPACE",), "nri_namespace", "", "gpu", "gpu"),
    (
        *("--nri-management-cdi-device-namespaces", "", ("NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES",)),
        *("nri_management_namespaces", (), "a,b", ("a", "b")),
    ),
    ("--runtime", "-r", ("RUNTIME",), "runtime", "docker", "crio", "crio"),
    (
        *("--toolkit-install-dir", "--root", ("TOOLKIT_INSTALL_DIR", "ROOT")),
        *("install_dir", "/usr/local/nvidia", "/opt/nv", "/opt/nv"),
    ),
    (
        *("--toolkit-source-root", "", ("TOOLKIT_SOURCE_ROOT",)),
        *("source_root", "/usr/lib/groundplane/host", "/artifacts/deb", "/artifacts/deb"),
    ),
    ("--toolkit-package-type", "", ("TOOLKIT_PACKAGE_TYPE",), "package_type", "auto", "rpm", "rpm"),
    (
        *("--pid-file", "", ("TOOLKIT_PID_FILE", "PID_FILE")),
        *("pid_file", "/run/nvidia/toolkit/toolkit.pid", "/x/toolkit.pid", "/x/toolkit.pid"),
    ),
    ("--debug", "", ("TOOLKIT_DEBUG",), "debug", False, "true", True),
    ("--config", "", ("RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG"), "config", "", "/c", "/c"),
    ("--drop-in-config", "", ("RUNTIME_DROP_IN_CONFIG",), "drop_in", "", "/d", "/d"),
    ("--drop-in-config-host-path", "", ("RUNTIME_DROP_IN_CONFIG_HOST_PATH",), "drop_in_host_path", "", "/h", "/h"),
    ("--executable-path", "", ("RUNTIME_EXECUTABLE_PATH",), "executable", "", "/usr/bin/c", "/usr/bin/c"),
    ("--socket", "", ("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET"), "socket", "", "/s", "/s"),
    ("--restart-mode", "", ("RUNTIME_RESTART_MODE",), "restart_mode", "", "none", "none"),
    ("--enable-cdi-in-runtime", "", ("RUNTIME_ENABLE_CDI",), "enable_cdi_in_runtime", False, "true", True),
    ("--host-root", "", ("HOST_ROOT_MOUNT",), "host_root", "/host", "/h", "/h"),
    (
        *("--runtime-name", "--nvidia-runtime-name"),
        ("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"),
        *("runtime_name", "nvidia", "nv", "nv"),
    ),
    (
        *("--set-as-default", ""),
        ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"),
        *("set_as_default", True, "false", False),
    ),
    (
        *("--config-source", "--config-sources", ("RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE")),
        *("sources", ("command", "file"), "file=/a, command", ("file=/a", "command")),
    ),
    ("--use-legacy-config", "", ("CONTAINERD_USE_LEGACY_CONFIG",), "legacy_config", False, "true", True),
    ("--runtime-type", "", ("CONTAINERD_RUNTIME_TYPE",), "runtime_type", "io.containerd.runc.v2", "t", "t"),
    (
        *("--runtime-config-override", "", ("RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE")),
        *("override", "{}", '{"a": 1}', '{"a": 1}'),
    ),
    ("--hooks-dir", "", ("CRIO_HOOKS_DIR",), "hooks_dir", "/usr/share/containers/oci/hooks.d", "/h", "/h"),
    ("--hook-filename", "", ("CRIO_HOOK_FILENAME",), "hook_filename", "oci-nvidia-hook.json", "h.json", "h.json"),
    ("--config-mode", "", ("CRIO_CONFIG_MODE",), "config_mode", "config", "hook", "hook"),
    (
        *("--driver-root", "--nvidia-driver-root", ("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT")),
        *("driver_root", "/run/nvidia/driver", "/", "/"),
    ),
    (
        *("--driver-root-ctr-path", "", ("DRIVER_ROOT_CTR_PATH",)),
        *("driver_root_here", "/run/nvidia/driver", "/driver-root", "/driver-root"),
    ),
    ("--dev-root", "", ("NVIDIA_DEV_ROOT", "DEV_ROOT"), "dev_root", "", "/", "/"),
    ("--dev-root-ctr-path", "", ("DEV_ROOT_CTR_PATH",), "dev_root_here", "", "/host", "/host"),
    ("--nvidia-container-runtime.debug", "", ("NVIDIA_CONTAINER_RUNTIME_DEBUG",), "shim_debug", "", "/l", "/l"),
    (
        *("--nvidia-container-runtime.log-level", "", ("NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL",)),
        *("shim_log_level", "", "debug", "debug"),
    ),
    ("--nvidia-container-runtime.mode", "", ("NVIDIA_CONTAINER_RUNTIME_MODE",), "shim_mode", "", "cdi", "cdi"),
    (
        *("--nvidia-container-runtime.runtimes", "", ("NVIDIA_CONTAINER_RUNTIME_RUNTIMES",)),
        *("shim_runtimes", (), "crun,/usr/bin/runc", ("crun", "/usr/bin/runc")),
    ),
    (
        *("--nvidia-container-runtime.modes.cdi.default-kind", ""),
        ("NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND",),
        *("default_kind", "", "a/b", "a/b"),
    ),
    (
        *("--nvidia-container-runtime.modes.cdi.annotation-prefixes", ""),
        ("NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",),
        *("annotation_prefixes", (), "a/,b/", ("a/", "b/")),
    ),
    (
        *("--nvidia-container-runtime-hook.skip-mode-detection", ""),
        ("NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION",),
        *("skip_mode_detection", True, "false", False),
    ),
    ("--nvidia-container-cli.debug", "", ("NVIDIA_CONTAINER_CLI_DEBUG",), "cli_debug", "", "/l", "/l"),
    (
        *("--accept-nvidia-visible-devices-envvar-when-unprivileged", ""),
        ("ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED",),
        *("accept_env", True, "false", False),
    ),
    (
        *("--accept-nvidia-visible-devices-as-volume-mounts", ""),
        ("ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS",),
        *("accept_mounts", False, "true", True),
    ),
    ("--cdi-enabled", "--enable-cdi", ("CDI_ENABLED", "ENABLE_CDI"), "cdi", False, "true", True),
    ("--cdi-output-dir", "", ("CDI_OUTPUT_DIR",), "cdi_output_dir", "/var/run/cdi", "/c", "/c"),
    ("--cdi-kind", "", ("CDI_KIND",), "cdi_kind", "management.nvidia.com/gpu", "a/b", "a/b"),
    ("--create-device-nodes", "", ("CREATE_DEVICE_NODES",), "create_device_nodes", ("control",), "none", ("none",)),
    (
        *("--opt-in-features", "", ("NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES",)),
        *("features", (), "a,b", ("a", "b")),
    ),
    ("--libraries", "", ("CDI_LIBRARIES",), "libraries", "hookless", "hooks", "hooks"),
)
"""Flag, alias, variables in order, name, default, a text, and its value: the contract's 4.3, and our own."""


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_4_3_flag_variables_and_default(row: tuple[Any, ...], tmp_path: Path) -> None:
    flag, alias, variables, name, default, text, value = row
    assert values(tmp_path)[name] == default
    assert values(tmp_path, f"{flag}={text}")[name] == value
    if alias:
        assert values(tmp_path, f"{alias}={text}")[name] == value
    for variable in variables:
        assert values(tmp_path, **{variable: text})[name] == value
    if len(variables) > 1:
        given = {variables[0]: text, variables[-1]: "false" if isinstance(value, bool) and value else "other"}
        if not isinstance(value, bool):
            assert values(tmp_path, **given)[name] == value


def test_4_3_every_option_is_in_the_table() -> None:
    known = {row[3] for row in ROWS}
    assert {option.name for option in options.OPTIONS} - known == {"refresh"}


def test_4_3_management_namespaces_are_new_in_1_20(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="provided but not defined"):
        values(tmp_path, "--nri-management-cdi-device-namespaces=a", release=Release.V26_3)
    nri = settings(
        tmp_path, release=Release.V26_3, ENABLE_NRI_PLUGIN="true", NRI_NAMESPACE="n",
        NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES="a",
    ).nri  # fmt: skip
    assert nri == NriSettings("/var/run/nri/nri.sock", 10, "n", ())


PER_RUNTIME = (
    (
        "containerd",
        ("/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml", "/run/containerd/containerd.sock"),
        Mode.SIGNAL,
        ("command", "file"),
    ),
    (
        "crio",
        ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml", "/var/run/crio/crio.sock"),
        Mode.SYSTEMD,
        ("command", "file"),
    ),
    ("docker", ("/etc/docker/daemon.json", "", "/var/run/docker.sock"), Mode.SIGNAL, ("file",)),
)


@pytest.mark.parametrize(("runtime", "paths", "mode", "sources"), PER_RUNTIME)
def test_4_3_defaults_of_each_runtime(
    runtime: str, paths: tuple[str, str, str], mode: Mode, sources: tuple[str, ...], tmp_path: Path
) -> None:
    found = settings(tmp_path, RUNTIME=runtime)
    assert found.runtime is not None
    assert (found.runtime.config, found.runtime.drop_in, found.restart.socket) == paths
    assert found.restart.mode is mode
    assert found.runtime.sources == sources
    assert found.runtime.runtime == found.restart.runtime == runtime
    assert found.runtime.host_root == found.restart.host_root == "/host"


def test_5_1_handlers() -> None:
    program = "/r/toolkit/nvidia-container-runtime"
    named = (Handler("nvidia-cdi", f"{program}.cdi"), Handler("nvidia-legacy", f"{program}.legacy"))
    for name, plain in (
        *(("nvidia", "nvidia"), ("gpu", "gpu")),
        *(("nvidia-cdi", "nvidia"), ("nvidia-legacy", "nvidia")),
    ):
        assert options.handlers(name, "/r/toolkit") == (Handler(plain, program), *named)


@pytest.mark.parametrize("name", ["nvidia", "nvidia-cdi", "nvidia-legacy", "gpu"])
def test_5_1_the_default_is_the_configured_name(name: str, tmp_path: Path) -> None:
    default = settings(tmp_path, NVIDIA_RUNTIME_NAME=name).runtime
    other = settings(tmp_path, NVIDIA_RUNTIME_NAME=name, NVIDIA_RUNTIME_SET_AS_DEFAULT="false").runtime
    assert default is not None
    assert other is not None
    assert default.default == default.name == other.name == name
    assert other.default == ""
    assert name in {handler.name for handler in default.handlers}


REFUSED = (
    ({"RUNTIME": "podman"}, 'invalid runtime "podman"; expected one of containerd | crio | docker'),
    ({"NRI_PLUGIN_INDEX": "100"}, r"nri-plugin-index must be in the range \[0,99\]"),
    ({"NRI_PLUGIN_INDEX": "-1"}, r"nri-plugin-index must be in the range \[0,99\]"),
    ({"ENABLE_NRI_PLUGIN": "true"}, "the NRI namespace must be specified when the NRI plugin is enabled"),
    ({"ROOT": ""}, "the install root must be specified"),
    ({"ROOT": "here"}, "absolute"),
    ({"TOOLKIT_PID_FILE": "/run/other.pid"}, "invalid toolkit.pid path /run/other.pid"),
    ({"TOOLKIT_PACKAGE_TYPE": "apk"}, 'invalid package type "apk"'),
    ({"RUNTIME_RESTART_MODE": "twice"}, 'invalid restart mode specified: "twice"; expected one of signal, systemd'),
    ({"RUNTIME": "crio", "RUNTIME_RESTART_MODE": "signal"}, "CRI-O cannot be restarted by a signal"),
    ({"RUNTIME": "crio", "CRIO_CONFIG_MODE": "other"}, 'invalid cri-o config mode: "other"'),
    ({"RUNTIME_CONFIG_OVERRIDE": "{"}, "as JSON"),
    ({"RUNTIME_CONFIG_OVERRIDE": "[]"}, "expected a JSON object"),
    ({"CDI_KIND": "gpu"}, "invalid CDI kind"),
    ({"CDI_KIND": "nvidia.com/gpu-"}, "invalid CDI kind.*class 'gpu-'"),
    ({"CREATE_DEVICE_NODES": "all"}, 'invalid --create-device-nodes value: "all"'),
    ({"NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES": "a b"}, 'invalid feature "a b"'),
    ({"NVIDIA_RUNTIME_NAME": ""}, "must have a name"),
    ({"CDI_LIBRARIES": "both"}, 'invalid value "both"; expected hookless | hooks'),
    ({"CDI_REFRESH_INTERVAL": "-1s"}, "negative"),
    ({"CDI_REFRESH_INTERVAL": "30"}, "a number needs its unit"),
    ({"NO_DAEMON": "maybe"}, "environment variable NO_DAEMON"),
)


@pytest.mark.parametrize(("env", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_4_3_refused(env: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=text):
        settings(tmp_path, **env)


def test_nothing_is_asked_of_a_runtime_that_is_left_alone(tmp_path: Path) -> None:
    assert settings(tmp_path, NO_RUNTIME_CONFIG="true", RUNTIME="crio", RUNTIME_RESTART_MODE="signal").runtime is None
    assert settings(tmp_path, ENABLE_NRI_PLUGIN="true", NRI_NAMESPACE="n", RUNTIME="containerd").runtime is None


def test_4_3_nri_is_ignored_without_a_daemon(tmp_path: Path) -> None:
    found = settings(tmp_path, ENABLE_NRI_PLUGIN="true", NO_DAEMON="true", RUNTIME="containerd")
    assert found.nri is None
    assert found.runtime is not None
    assert "--no-daemon" in found.remarks[0]


CDI_ROWS = (
    ({}, None, False, False),
    ({"CDI_ENABLED": "true"}, CdiSettings("management.nvidia.com/gpu", "/var/run/cdi"), True, True),
    ({"CDI_ENABLED": "true", "CDI_OUTPUT_DIR": ""}, None, False, False),
    ({"CDI_ENABLED": "true", "RUNTIME_ENABLE_CDI": "false"}, CdiSettings("management.nvidia.com/gpu", "/var/run/cdi"),
     True, False),
    ({"RUNTIME_ENABLE_CDI": "true"}, None, False, True),
    ({"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": "none"}, CdiSettings("management.nvidia.com/gpu", "/var/run/cdi"),
     False, True),
    ({"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": ""}, CdiSettings("management.nvidia.com/gpu", "/var/run/cdi"),
     False, True),
    ({"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": "control", "CDI_KIND": "x.com/y"},
     CdiSettings("x.com/y", "/var/run/cdi"), True, True),
)  # fmt: skip


@pytest.mark.parametrize(("env", "cdi", "nodes", "in_runtime"), CDI_ROWS)
def test_4_3_cdi(env: dict[str, str], cdi: CdiSettings | None, nodes: bool, in_runtime: bool, tmp_path: Path) -> None:
    found = settings(tmp_path, **env)
    assert found.runtime is not None
    assert (found.cdi, found.control_nodes, found.runtime.enable_cdi) == (cdi, nodes, in_runtime)


ROOT_VARIABLES = ("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH", "NVIDIA_DEV_ROOT", "DEV_ROOT_CTR_PATH")
ROOTS = (
    ((), ("/run/nvidia/driver", "/run/nvidia/driver", "/run/nvidia/driver", "/run/nvidia/driver")),
    (("/", "/host", "/", "/host"), ("/host", "/host", "", "")),
    (("/run/nvidia/driver", "/driver-root", "/", "/host"), ("/driver-root", "/host", "/run/nvidia/driver", "")),
    (("/run/d", "/driver-root"), ("/driver-root", "/driver-root", "/run/d", "/run/d")),
)
"""Variables as the driver's validation leaves them (contracts/mig-exporter-validator.md 6.2), and roots."""


@pytest.mark.parametrize(("given", "expected"), ROOTS)
def test_4_3_roots(given: tuple[str, ...], expected: tuple[str, ...], tmp_path: Path) -> None:
    roots = settings(tmp_path, **dict(zip(ROOT_VARIABLES, given, strict=False))).roots
    assert (roots.driver, roots.dev, roots.host_driver, roots.host_dev) == expected


def test_paths_and_state_follow_from_the_install_directory(tmp_path: Path) -> None:
    found = settings(tmp_path, RUNTIME="crio", ROOT="/opt/nvidia/")
    assert found.folder == "/opt/nvidia/toolkit"
    assert found.runtime is not None
    assert found.runtime.state == "/opt/nvidia/toolkit-state/crio.json"
    assert found.runtime.hook_path == "/opt/nvidia/toolkit/nvidia-container-runtime-hook"
    assert found.program == "/usr/lib/groundplane/host/groundplane-host"
    assert settings(tmp_path, TOOLKIT_SOURCE_ROOT="/artifacts/").program == "/artifacts/groundplane-host"


def test_docker_has_no_drop_in_and_no_command(tmp_path: Path) -> None:
    found = settings(tmp_path, RUNTIME_DROP_IN_CONFIG="/d/99.json", RUNTIME_EXECUTABLE_PATH="/usr/bin/dockerd")
    assert found.runtime is not None
    assert (found.runtime.drop_in, found.runtime.executable) == ("", "")
    assert len(found.remarks) == 3


def test_a_drop_in_can_be_switched_off(tmp_path: Path) -> None:
    found = settings(tmp_path, RUNTIME="containerd", RUNTIME_DROP_IN_CONFIG="").runtime
    assert found is not None
    assert found.drop_in == ""


def test_a_crio_hook_is_deprecated(tmp_path: Path) -> None:
    found = settings(tmp_path, RUNTIME="crio", CRIO_CONFIG_MODE="hook")
    assert found.runtime is not None
    assert found.runtime.config_mode == "hook"
    assert any("deprecated" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 30.0), ("5s", 5.0), ("0", None), ("0s", None), ("infinite", None), ("1m", 60.0)]
)
def test_refresh_interval(text: str, seconds: float | None, tmp_path: Path) -> None:
    env = {"CDI_REFRESH_INTERVAL": text} if text else {}
    assert settings(tmp_path, **env).refresh_s == seconds


def test_how_libraries_get_into_containers(tmp_path: Path) -> None:
    assert settings(tmp_path).libraries is Libraries.HOOKLESS
    assert settings(tmp_path, "--libraries", "hooks").libraries is Libraries.HOOKS


def test_debug_tells_each_option_and_where_it_came_from(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("nvidia-toolkit", "--debug"), {"RUNTIME": "crio"})
    load(process)
    assert "--runtime is 'crio', from environment variable RUNTIME" in process.stderr
    assert "--host-root is '/host', from its default" in process.stderr
    quiet = FakeProcess(tmp_path)
    load(quiet)
    assert quiet.stderr == ""


def test_help_names_every_variable(tmp_path: Path) -> None:
    with pytest.raises(Asked) as asked:
        values(tmp_path, "--help")
    assert all(f"${variable}" in str(asked.value) for row in ROWS for variable in row[2])
