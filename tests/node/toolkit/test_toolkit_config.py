"""The config.toml of the host's programs: contracts/toolkit-cdi.md 4.6."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess

from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.toolkit import config
from groundplane.node.toolkit.options import load

EXPECTED = """\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
swarm-resource = ""

[nvidia-container-cli]
  debug = ""
  environment = []
  ldcache = ""
  ldconfig = "@/run/nvidia/driver/sbin/ldconfig"
  load-kmods = true
  no-cgroups = false
  path = "/usr/local/nvidia/toolkit/nvidia-container-cli"
  root = "/run/nvidia/driver"
  user = ""

[nvidia-container-runtime]
  debug = "/dev/null"
  log-level = "info"
  mode = "auto"
  runtimes = ["runc", "crun"]

  [nvidia-container-runtime.modes]

    [nvidia-container-runtime.modes.cdi]
      annotation-prefixes = ["cdi.k8s.io/"]
      default-kind = "nvidia.com/gpu"
      spec-dirs = ["/etc/cdi", "/var/run/cdi"]

    [nvidia-container-runtime.modes.csv]
      mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

    [nvidia-container-runtime.modes.legacy]
      cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
  path = "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"
  skip-mode-detection = true

[nvidia-ctk]
  path = "/usr/local/nvidia/toolkit/nvidia-ctk"
"""


def written(process: FakeProcess, *runtimes: str) -> str:
    return config.of_host(process, load(process), runtimes or config.LOW_LEVEL)


def test_4_6_as_a_whole(tmp_path: Path) -> None:
    assert written(FakeProcess(tmp_path)) == EXPECTED


def test_on_a_simulated_machine_the_shim_looks_at_its_modules(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, env={NULL_DEVICES: "true"})
    said = tomllib.loads(written(process))
    assert said[SHIM]["modules-file"] == str(process.kernel.path("/proc/modules"))


CLI, SHIM = "nvidia-container-cli", "nvidia-container-runtime"
CHANGED: tuple[tuple[dict[str, str], tuple[str, ...], Any], ...] = (
    ({"NVIDIA_CONTAINER_RUNTIME_DEBUG": "/var/log/x"}, (SHIM, "debug"), "/var/log/x"),
    ({"NVIDIA_CONTAINER_RUNTIME_DEBUG": ""}, (SHIM, "debug"), "/dev/null"),
    ({"NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL": "debug"}, (SHIM, "log-level"), "debug"),
    ({"NVIDIA_CONTAINER_RUNTIME_MODE": "cdi"}, (SHIM, "mode"), "cdi"),
    ({"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "a.com/b"}, (SHIM, "modes", "cdi", "default-kind"), "a.com/b"),
    (
        {"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": "a/,b/"},
        (SHIM, "modes", "cdi", "annotation-prefixes"),
        ["a/", "b/"],
    ),
    ({"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": ""}, (SHIM, "modes", "cdi", "annotation-prefixes"), []),
    ({"NVIDIA_CONTAINER_CLI_DEBUG": "/var/log/y"}, (CLI, "debug"), "/var/log/y"),
    (
        {"NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION": "false"},
        ("nvidia-container-runtime-hook", "skip-mode-detection"),
        False,
    ),
    (
        {"ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false"},
        ("accept-nvidia-visible-devices-envvar-when-unprivileged",),
        False,
    ),
    (
        {"ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true"},
        ("accept-nvidia-visible-devices-as-volume-mounts",),
        True,
    ),
    ({"NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES": "b,a"}, ("features",), {"a": True, "b": True}),
    ({"NVIDIA_DRIVER_ROOT": "/"}, (CLI, "root"), "/"),
    ({"NVIDIA_DRIVER_ROOT": "/"}, (CLI, "ldconfig"), "@/sbin/ldconfig"),
    ({"ROOT": "/opt/n"}, (CLI, "path"), "/opt/n/toolkit/nvidia-container-cli"),
    ({"ROOT": "/opt/n"}, ("nvidia-ctk", "path"), "/opt/n/toolkit/nvidia-ctk"),
)


@pytest.mark.parametrize(("env", "path", "value"), CHANGED, ids=[".".join(path) for _, path, _ in CHANGED])
def test_4_6_values_that_options_change(env: dict[str, str], path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    said: Any = tomllib.loads(written(FakeProcess(tmp_path, env=env)))
    for key in path:
        said = said[key]
    assert said == value


def test_4_6_no_features_no_table(tmp_path: Path) -> None:
    assert "features" not in tomllib.loads(written(FakeProcess(tmp_path)))


def test_4_6_low_level_runtimes(tmp_path: Path) -> None:
    said = tomllib.loads(written(FakeProcess(tmp_path), "/usr/bin/crun", "runc"))
    assert said[SHIM]["runtimes"] == ["/usr/bin/crun", "runc"]


def test_4_6_the_real_ldconfig_is_looked_for_in_this_container_and_named_as_on_the_host(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, env={"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "DRIVER_ROOT_CTR_PATH": "/d"})
    process.write("/d/usr/sbin/ldconfig.real", "")
    process.root.symlink("/d/sbin", "/usr/sbin")  # a link of the driver root, absolute as it is there
    assert tomllib.loads(written(process))[CLI]["ldconfig"] == "@/run/nvidia/driver/sbin/ldconfig.real"


SUSE = (
    ('ID="sles"\nID_LIKE="suse"\n', "root:video"),
    ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "root:video"),
    ("ID_LIKE='opensuse'\n", "root:video"),
    ("ID=ubuntu\nID_LIKE=debian\n", ""),
    ('ID="suse"\n', ""),
    ('#ID_LIKE="suse"\n', ""),
    ("", ""),
)


@pytest.mark.parametrize(("text", "user"), SUSE)
@pytest.mark.parametrize("path", config.OS_RELEASE)
def test_4_6_user_of_a_suse(text: str, user: str, path: str, tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    process.write(f"/host{path}", text)
    assert tomllib.loads(written(process))[CLI]["user"] == user


KEYS = st.text("abcdefghijklmnopqrstuvwxyz-_", min_size=1, max_size=8)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = TEXTS | st.booleans() | st.lists(TEXTS, max_size=3)
DOCUMENTS = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=4),
    lambda inner: st.dictionaries(KEYS, VALUES | inner, max_size=4),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_what_is_written_is_read_again(said: dict[str, Any]) -> None:
    assert tomllib.loads(config.render(said)) == said


def test_the_runtimes_of_an_installed_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(EXPECTED)
    assert config.installed_runtimes(path) == ("runc", "crun")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[nvidia-container-runtime\n",
        "nvidia-container-runtime = 1\n",
        "[nvidia-container-runtime]\nruntimes = 1\n",
        "[nvidia-container-runtime]\nruntimes = [1]\n",
    ],
)
def test_an_installed_file_that_says_nothing(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(config.ConfigError, match=r"config\.toml"):
        config.installed_runtimes(path)
