"""The options of `driver-manager` (contracts/driver-lifecycle.md 5.1)."""

from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.driver import main, settings
from groundplane.node.options import Leave

FLAGS = [
    # flag, environment, default, a value, what it is then
    ("--drain-use-force", "DRAIN_USE_FORCE", False, "true", True),
    ("--drain-pod-selector-label", "DRAIN_POD_SELECTOR_LABEL", "", "a=b,c!=d", "a=b,c!=d"),
    ("--drain-timeout-seconds", "DRAIN_TIMEOUT_SECONDS", 0.0, "1m30s", 90.0),
    ("--drain-delete-emptydir-data", "DRAIN_DELETE_EMPTYDIR_DATA", False, "true", True),
    ("--enable-auto-drain", "ENABLE_AUTO_DRAIN", True, "false", False),
    ("--enable-gpu-pod-eviction", "ENABLE_GPU_POD_EVICTION", True, "false", False),
    ("--operator-namespace", "OPERATOR_NAMESPACE", "gpu-operator", "elsewhere", "elsewhere"),
    ("--node-label-for-gpu-pod-eviction", "NODE_LABEL_FOR_GPU_POD_EVICTION", "", "a/b", "a/b"),
    ("--gpu-direct-rdma-enabled", "GPU_DIRECT_RDMA_ENABLED", False, "true", True),
    ("--use-host-mofed", "USE_HOST_MOFED", False, "true", True),
    ("--kubeconfig", "KUBECONFIG", "", "/etc/k.conf", "/etc/k.conf"),
    ("--force-reinstall", "FORCE_REINSTALL", False, "true", True),
]


def load(tmp_path: Path, *arguments: str, **env: str) -> settings.Settings:
    return settings.load(FakeProcess(tmp_path, ("driver-manager", *arguments), {"NODE_NAME": "n", **env}))


@pytest.mark.parametrize(("flag", "variable", "default", "text", "value"), FLAGS)
def test_5_1_flags(tmp_path: Path, flag: str, variable: str, default: Any, text: str, value: Any) -> None:
    name = {"DRAIN_TIMEOUT_SECONDS": "drain_timeout_s"}.get(variable, variable.lower())
    assert getattr(load(tmp_path, "uninstall_driver"), name) == default
    assert getattr(load(tmp_path, "uninstall_driver", **{variable: text}), name) == value
    assert getattr(load(tmp_path, f"{flag}={text}", "uninstall_driver", **{variable: "x"}), name) == value


def test_5_1_the_table_is_whole() -> None:
    known = {option.env for option in settings.COMMAND.options}
    assert known == {("NODE_NAME",), *((variable,) for _, variable, *_ in FLAGS)}
    assert set(settings.COMMAND.words) == {"uninstall_driver", "preflight_check"}


DURATIONS = [("0", 0.0), ("0s", 0.0), ("300s", 300.0), ("5m", 300.0), ("1h1m1s", 3661.0), ("500ms", 0.5), ("", 0.0)]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_5_1_durations(tmp_path: Path, text: str, seconds: float) -> None:
    assert load(tmp_path, "uninstall_driver", DRAIN_TIMEOUT_SECONDS=text).drain_timeout_s == seconds


@pytest.mark.parametrize("text", ["300", "5 m", "abc", "-5s", "infinite"])
def test_5_1_durations_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(Leave, match="DRAIN_TIMEOUT_SECONDS"):
        load(tmp_path, "uninstall_driver", DRAIN_TIMEOUT_SECONDS=text)


def test_the_digest_is_of_the_environment(tmp_path: Path) -> None:
    assert load(tmp_path, "uninstall_driver").digest == ""
    assert load(tmp_path, "uninstall_driver", DRIVER_CONFIG_DIGEST=" 42 \n").digest == "42"


REFUSED = [
    # arguments, environment, what is said
    ((), {"NODE_NAME": "n"}, "say what to do: uninstall_driver or preflight_check"),
    (("uninstall",), {"NODE_NAME": "n"}, "it takes uninstall_driver, preflight_check"),
    (("uninstall_driver",), {}, "--node-name ($NODE_NAME) must not be empty"),
    (("preflight_check",), {}, "--node-name ($NODE_NAME) must not be empty"),
    (("uninstall_driver",), {"NODE_NAME": "n", "DRAIN_USE_FORCE": "yes"}, "DRAIN_USE_FORCE"),
    (("uninstall_driver", "--wrong"), {"NODE_NAME": "n"}, "flag provided but not defined: --wrong"),
]


@pytest.mark.parametrize(("arguments", "env", "said"), REFUSED)
async def test_what_cannot_be_asked(tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], said: str) -> None:
    process = FakeProcess(tmp_path, ("driver-manager", *arguments), env)
    assert await main.run(process) == 1
    assert said in process.stderr


async def test_preflight_check_only_logs(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("driver-manager", "preflight_check"), {"NODE_NAME": "n"})
    assert await main.run(process) == 0
    assert "preflight" in process.stderr and not process.executed


async def test_help(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("driver-manager", "--help"), {})
    assert await main.run(process) == 0
    assert "uninstall_driver" in process.stdout and "$DRAIN_TIMEOUT_SECONDS" in process.stdout
