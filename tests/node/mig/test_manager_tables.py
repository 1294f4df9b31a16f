"""Tables of nvidia-mig-manager: options (3.1), operands (3.6), host services (3.7)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.node.cdi.roots import Roots
from groundplane.node.mig.manager import main, operands, services, settings
from groundplane.node.mig.manager.errors import ManagerError
from groundplane.node.options import OptionError

# --- 3.1 --------------------------------------------------------------------------------------------------------------

OPTIONS = {
    ("kubeconfig",): (("KUBECONFIG",), ""),
    ("node-name", "n"): (("NODE_NAME",), ""),
    ("config-file", "f"): (("CONFIG_FILE",), ""),
    ("reconfigure-script", "s"): (("RECONFIGURE_SCRIPT",), "/usr/bin/reconfigure-mig.sh"),
    ("host-root-mount", "m"): (("HOST_ROOT_MOUNT",), "/host"),
    ("host-nvidia-dir", "i"): (("HOST_NVIDIA_DIR",), "/usr/local/nvidia"),
    ("host-mig-manager-state-file", "o"): (
        ("HOST_MIG_MANAGER_STATE_FILE",),
        "/etc/systemd/system/nvidia-mig-manager.service.d/override.conf",
    ),
    ("host-kubelet-systemd-service", "k"): (("HOST_KUBELET_SYSTEMD_SERVICE",), "kubelet.service"),
    ("gpu-clients-file", "g"): (("GPU_CLIENTS_FILE",), ""),
    ("with-reboot", "r"): (("WITH_REBOOT",), False),
    ("with-shutdown-host-gpu-clients", "d"): (("WITH_SHUTDOWN_HOST_GPU_CLIENTS",), False),
    ("default-gpu-clients-namespace", "p"): (("DEFAULT_GPU_CLIENTS_NAMESPACE",), "default"),
    ("nvidia-driver-root", "driver-root", "t"): (("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"), "/run/nvidia/driver"),
    ("driver-root-ctr-path", "a"): (("DRIVER_ROOT_CTR_PATH",), "/run/nvidia/driver"),
    ("dev-root", "b"): (("NVIDIA_DEV_ROOT",), ""),
    ("dev-root-ctr-path", "j"): (("DEV_ROOT_CTR_PATH",), ""),
    ("cdi-enabled",): (("CDI_ENABLED",), False),
    ("nvidia-cdi-hook-path",): (("NVIDIA_CDI_HOOK_PATH",), "/usr/local/nvidia/toolkit/nvidia-cdi-hook"),
    ("libraries",): (("CDI_LIBRARIES",), "hookless"),
}


def loaded(folder: Path, *argv: str, **env: str) -> settings.Settings:
    return settings.load(FakeProcess(folder, ("nvidia-mig-manager", *argv), env))


def test_3_1_there_is_one_row_for_each_option() -> None:
    assert {each.flags: (each.env, each.default) for each in settings.COMMAND.options} == OPTIONS


@pytest.mark.parametrize(
    ("argv", "env", "field", "value"),
    [
        (["-n", "x"], {"NODE_NAME": "y"}, "node_name", "x"),
        ([], {"NODE_NAME": "y"}, "node_name", "y"),
        (["-n", "x", "-r"], {}, "with_reboot", True),
        (["-n", "x"], {"WITH_REBOOT": "true"}, "with_reboot", True),
        (["-n", "x"], {"WITH_SHUTDOWN_HOST_GPU_CLIENTS": ""}, "with_services", False),
        (["-n", "x", "-d"], {}, "with_services", True),
        (["-n", "x"], {"DEFAULT_CONFIG_FILE": "/d"}, "default_config_file", "/d"),
        (["-n", "x"], {"POD_NAME": "p", "POD_NAMESPACE": "ns"}, "pod_namespace", "ns"),
        (["-n", "x", "-p", "gpu-operator"], {}, "namespace", "gpu-operator"),
        (["-n", "x"], {}, "one_root", True),
        (["-n", "x"], {"NVIDIA_DEV_ROOT": "/"}, "one_root", False),
        (["-n", "x"], {"NVIDIA_DRIVER_ROOT": "/", "NVIDIA_DEV_ROOT": "/"}, "one_root", True),
        (
            ["-n", "x", "-t", "/opt/nv", "-a", "/driver-root", "-b", "/", "-j", "/host"],
            {},
            "roots",
            Roots("/driver-root", "/host", "/opt/nv", ""),
        ),
        (["-n", "x"], {"DRIVER_ROOT": "/old"}, "roots", Roots(*["/run/nvidia/driver"] * 2, *["/old"] * 2)),
    ],
)
def test_3_1_values(tmp_path: Path, argv: list[str], env: dict[str, str], field: str, value: Any) -> None:
    assert getattr(loaded(tmp_path, *argv, **env), field) == value


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], r"--node-name \(\$NODE_NAME\) must not be empty"),
        (["-n", "x", "-p", ""], "namespace of the operands must not be empty"),
        (["-n", "x", "--libraries", "some"], "invalid value 'some'; expected hookless, hooks"),
        (["-n", "x", "--frobnicate"], "flag provided but not defined"),
    ],
)
async def test_3_1_mistakes(tmp_path: Path, argv: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        loaded(tmp_path, *argv)
    assert await main.run(FakeProcess(tmp_path, ("nvidia-mig-manager", *argv))) == 1


# --- 3.6 --------------------------------------------------------------------------------------------------------------

P = operands.PAUSED
NEITHER = "paused-for-driver-upgrade"
LABELS = [  # before, paused, restored
    ("false", "false", "false"),
    ("true", P, "true"),
    ("", P, "true"),
    ("anything", P, "true"),
    (P, P, "true"),
    (None, P, "true"),
    (NEITHER, NEITHER, NEITHER),  # another manager's mark is its own
]
CLIENT = [
    *((before, paused, restored) for before, paused, restored in LABELS if before),
    ("", "", ""),
    (None, None, None),
]


def written(before: dict[str, str], change: dict[str, str], name: str) -> str | None:
    return {**before, **change}.get(name)


@pytest.mark.parametrize("release", [Release.V26_3, Release.V26_7])
@pytest.mark.parametrize("name", operands.ALWAYS)
@pytest.mark.parametrize(("before", "paused", "restored"), LABELS)
def test_3_6_operands(name: str, before: str | None, paused: str, restored: str, release: Release) -> None:
    labels = {} if before is None else {name: before}
    assert written(labels, operands.pause(labels, release), name) == paused
    assert written(labels, operands.restore({name: paused}, release), name) == restored


@pytest.mark.parametrize(("before", "paused", "restored"), CLIENT)
def test_3_6_third_parties(before: str | None, paused: str | None, restored: str | None) -> None:
    name = names.DEPLOY_CLIENT
    labels = {} if before is None else {name: before}
    assert written(labels, operands.pause(labels, Release.V26_7), name) == paused
    then = {} if paused is None else {name: paused}
    assert written(then, operands.restore(then, Release.V26_7), name) == restored
    assert name not in operands.pause(labels, Release.V26_3)


def test_3_6_names() -> None:
    short = ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm")
    assert tuple(f"nvidia.com/gpu.deploy.{each}" for each in short) == operands.ALWAYS
    assert operands.PAUSED == "paused-for-mig-change"
    apps = ("nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-dcgm")
    assert (apps, "nvidia-operator-validator") == (operands.APPS, operands.VALIDATOR)
    assert operands.WORKLOADS == ("nvidia-cuda-validator", "nvidia-device-plugin-validator")


values = st.sampled_from(["true", "false", "", "other", P, NEITHER])


@given(st.dictionaries(st.sampled_from([*operands.ALWAYS, names.DEPLOY_CLIENT, "other"]), values))
def test_what_is_paused_comes_back_and_nothing_else_changes(before: dict[str, str]) -> None:
    paused = {**before, **operands.pause(before, Release.V26_7)}
    after = {**paused, **operands.restore(paused, Release.V26_7)}
    undone = {**paused, **operands.paused(paused)}
    assert P not in {after[name] for name in after if name != "other"}
    assert P not in undone.values()
    assert {name for name, value in before.items() if value in ("false", NEITHER)} == {
        name for name, value in after.items() if value in ("false", NEITHER)
    }
    assert after.get("other") == before.get("other")
    assert operands.pause(paused, Release.V26_7) == {}
    assert operands.restore(after, Release.V26_7) == {}


# --- 3.7 --------------------------------------------------------------------------------------------------------------

UNITS = [  # load state, active state, unit file state, type; stopped, started again
    (("loaded", "active", "enabled", "simple"), (True, True)),
    (("loaded", "active", "disabled", "oneshot"), (True, True)),
    (("loaded", "activating", "enabled", "notify"), (True, True)),
    (("loaded", "reloading", "enabled", "notify"), (True, True)),
    (("not-found", "inactive", "", ""), (False, False)),
    (("not-found", "active", "", "simple"), (True, True)),
    (("masked", "inactive", "masked", ""), (False, False)),
    (("loaded", "failed", "enabled", "simple"), (False, True)),
    (("loaded", "failed", "disabled", "simple"), (False, True)),
    (("loaded", "failed", "enabled", "oneshot"), (False, True)),
    (("loaded", "inactive", "disabled", "simple"), (False, False)),
    (("loaded", "inactive", "enabled", "oneshot"), (False, False)),
    (("loaded", "inactive", "enabled", "simple"), (False, True)),
    (("loaded", "inactive", "static", "simple"), (False, True)),
]


@pytest.mark.parametrize(("unit", "decision"), UNITS)
def test_3_7_what_is_stopped_and_started(unit: tuple[str, str, str, str], decision: tuple[bool, bool]) -> None:
    properties = dict(zip(("LoadState", "ActiveState", "UnitFileState", "Type"), unit, strict=True))
    assert services.decide(properties) == decision


def test_3_7_the_file_of_services() -> None:
    assert services.parse("version: v1\nsystemd-services:\n- a.service\n- b\n", "f") == ("a.service", "b")
    assert services.parse("version: v1\n", "f") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: v2\n",
        "version: v1\nsystemd-services: a\n",
        "version: v1\nsystemd-services: [1]\n",
        "version: v1\nsystemd-services: ['']\n",
        "version: v1\nsystemd-services: ['--force']\n",
        "version: v1\nsystemd-services: ['a b']\n",
        "version: [\n",
        "[]",
    ],
)
def test_3_7_mistakes_in_the_file(text: str) -> None:
    with pytest.raises(ManagerError, match=r"(?s)^GPU clients file f: .*; expected version: v1"):
        services.parse(text, "f")


def test_the_operators_own_list_can_be_read() -> None:
    from groundplane.operands import mig_manager

    assert services.parse(mig_manager.clients(), "f") == tuple(f"{name}.service" for name in mig_manager.HOST_CLIENTS)
