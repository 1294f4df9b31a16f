"""Each component of the container stack off and on again: its objects go and return, others are told or untouched."""

import dataclasses

import pytest
from e2e.switches import GPU_NODES, NO_UPGRADES, Switch, Told, check, objects, rights, told

from groundplane.api.release import Release

PLUGIN = "daemonsets/nvidia-device-plugin-daemonset"
MPS = "daemonsets/nvidia-device-plugin-mps-control-daemon"
MIG = "daemonsets/nvidia-mig-manager"
GFD = "daemonsets/gpu-feature-discovery"
EXPORTER = "daemonsets/nvidia-dcgm-exporter"
VALIDATOR = "daemonsets/nvidia-operator-validator"
TOOLKIT = "daemonsets/nvidia-container-toolkit-daemonset"
DRIVER = "daemonsets/nvidia-driver-daemonset"
CDI_CLASSES = objects("runtimeclasses/nvidia-cdi", "runtimeclasses/nvidia-legacy")
MIG_CONFIG_MAPS = ("default-mig-parted-config", "default-gpu-clients", "nvidia-mig-manager-entrypoint")

IN_RUNTIME_CLASS = {
    PLUGIN: "nvidia-device-plugin",
    MPS: "mps-control-daemon-ctr",
    EXPORTER: "nvidia-dcgm-exporter",
    GFD: "gpu-feature-discovery",
    MIG: "nvidia-mig-manager",
    VALIDATOR: "toolkit-validation",
}
"""DaemonSets whose pods name the RuntimeClass (4.3), and the container that the NRI annotation names (9.11)."""
VALIDATOR_CLASS = ("cuda-validation env VALIDATOR_RUNTIME_CLASS", "plugin-validation env VALIDATOR_RUNTIME_CLASS")


def env(container: str, *variables: str) -> list[str]:
    return [f"{container} env {variable}" for variable in variables]


def without_auto_upgrade() -> dict[str, frozenset[str]]:
    return dict.fromkeys(GPU_NODES, NO_UPGRADES)


def nri(*toolkit: str) -> dict[str, Told]:
    """What NRI changes; the toolkit's part differs between the releases (9.11)."""
    found = {}
    for key, container in IN_RUNTIME_CLASS.items():
        annotation = f"template.annotations.nvidia.cdi.k8s.io/container.{container}"
        found[key] = told(
            "9.11 nri", "pod runtimeClassName", annotation, *(VALIDATOR_CLASS if key == VALIDATOR else ())
        )
    container = "nvidia-container-toolkit-ctr"
    sockets = (f"{container} mount /runtime/nri-sock-dir/", "volume nri-socket")
    return found | {TOOLKIT: told("9.11 nri", *env(container, "ENABLE_NRI_PLUGIN", "NRI_SOCKET"), *sockets, *toolkit)}


def renamed() -> dict[str, Told]:
    found = {key: told("4.3", "pod runtimeClassName") for key in IN_RUNTIME_CLASS}
    found[VALIDATOR] = told("4.3, 4.4", "pod runtimeClassName", *VALIDATOR_CLASS)
    return found | {TOOLKIT: told("4.5", *env("nvidia-container-toolkit-ctr", "CONTAINERD_RUNTIME_CLASS"))}


def plugin_config(container: str, *, shares_processes: bool) -> Told:
    mounts = [f"{container} mount /config", f"{container} mount /available-configs"]
    more = ["container config-manager", "container config-manager-init", "volume config", "volume available-configs"]
    pod = ["pod shareProcessNamespace"] if shares_processes else []
    return told("4.3 *, 4.4", *env(container, "CONFIG_FILE"), *mounts, *more, *pod)


NRI_26_7 = (
    *env("nvidia-container-toolkit-ctr", "CONTAINERD_RUNTIME_CLASS", "RUNTIME_CONFIG", "CONTAINERD_CONFIG"),
    *env("nvidia-container-toolkit-ctr", "RUNTIME_DROP_IN_CONFIG", "RUNTIME_DROP_IN_CONFIG_HOST_PATH"),
    *env("nvidia-container-toolkit-ctr", "RUNTIME_SOCKET", "CONTAINERD_SOCKET"),
    *(f"nvidia-container-toolkit-ctr mount /runtime/{name}/" for name in ("config-dir", "config-dir.d", "sock-dir")),
    *(f"volume containerd-{name}" for name in ("config", "drop-in-config", "socket")),
)
HOOK_PATH = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
PLUGIN_HOOK = "nvidia-device-plugin env NVIDIA_CDI_HOOK_PATH"
MIG_HOOK = "nvidia-mig-manager env NVIDIA_CDI_HOOK_PATH"
HOST_ENGINE = "nvidia-dcgm-exporter env DCGM_REMOTE_HOSTENGINE_INFO"
LIST_STRATEGY = "nvidia-device-plugin env DEVICE_LIST_STRATEGY"
DCGM_EXPORTER = objects("services/nvidia-dcgm-exporter", EXPORTER) | rights("nvidia-dcgm-exporter", cluster=False)

SWITCHES = {
    "driver": Switch(
        "driver",
        "enabled",
        False,
        gone=objects(DRIVER, "configmaps/nvidia-driver-startup-probe") | rights("nvidia-driver"),
        marks=without_auto_upgrade(),
    ),
    "driver auto-upgrade (3.3)": Switch(
        "driver", "upgradePolicy", {"autoUpgrade": False}, marks=without_auto_upgrade()
    ),
    "driver precompiled (4.6, 9.11)": Switch(
        "driver",
        "usePrecompiled",
        True,
        gone=objects(DRIVER),
        came=objects(f"{DRIVER}-6.8.0-60-generic-ubuntu24.04"),
    ),
    "toolkit": Switch(
        "toolkit",
        "enabled",
        False,
        gone=objects(TOOLKIT, "configmaps/nvidia-container-toolkit-entrypoint")
        | rights("nvidia-container-toolkit", cluster=False),
        told={
            PLUGIN: told("4.4, 9.11", PLUGIN_HOOK),
            MIG: told("4.4, 9.11", MIG_HOOK),
        },
        variables={(PLUGIN, PLUGIN_HOOK): (HOOK_PATH, None), (MIG, MIG_HOOK): (HOOK_PATH, None)},
    ),
    "devicePlugin": Switch(
        "devicePlugin",
        "enabled",
        False,
        gone=objects(PLUGIN, MPS, "configmaps/nvidia-device-plugin-entrypoint")
        | rights("nvidia-device-plugin")
        | rights("nvidia-device-plugin-mps-control-daemon"),
        told={VALIDATOR: told("4.3", "container plugin-validation")},
    ),
    "devicePlugin.config": Switch(
        "devicePlugin",
        "config",
        {"name": "own", "default": "one"},
        told={
            PLUGIN: plugin_config("nvidia-device-plugin", shares_processes=True),
            GFD: plugin_config("gpu-feature-discovery", shares_processes=True),
            MPS: plugin_config("mps-control-daemon-ctr", shares_processes=False),
        },
    ),
    "dcgm": Switch(
        "dcgm",
        "enabled",
        False,
        base={"dcgm": {"enabled": True}},
        gone=objects("daemonsets/nvidia-dcgm", "services/nvidia-dcgm") | rights("nvidia-dcgm", cluster=False),
        told={EXPORTER: told("4.4", HOST_ENGINE)},
        variables={(EXPORTER, HOST_ENGINE): ("nvidia-dcgm:5555", None)},
    ),
    "dcgmExporter": Switch("dcgmExporter", "enabled", False, gone=DCGM_EXPORTER),
    "dcgmExporter.enablePodLabels (4.1)": Switch(
        "dcgmExporter",
        "enablePodLabels",
        True,
        came=objects(
            "clusterroles/nvidia-dcgm-exporter-read-pods", "clusterrolebindings/nvidia-dcgm-exporter-read-pods"
        ),
        told={
            EXPORTER: told(
                "4.3 †, 4.4",
                "pod automountServiceAccountToken",
                *env("nvidia-dcgm-exporter", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"),
            )
        },
    ),
    "gfd": Switch("gfd", "enabled", False, gone=objects(GFD) | rights("nvidia-gpu-feature-discovery")),
    "migManager": Switch(
        "migManager",
        "enabled",
        False,
        gone=objects(MIG, *(f"configmaps/{name}" for name in MIG_CONFIG_MAPS)) | rights("nvidia-mig-manager"),
    ),
    "migManager.config": Switch(
        "migManager",
        "config",
        {"name": "own", "default": "all-disabled"},
        gone=objects("configmaps/default-mig-parted-config"),
        told={
            MIG: told(
                "4.4, 9.9",
                *env("nvidia-mig-manager", "CONFIG_FILE", "DEFAULT_CONFIG_FILE"),
                "volume mig-parted-config",
            )
        },
    ),
    "migManager.gpuClientsConfig": Switch(
        "migManager",
        "gpuClientsConfig",
        {"name": "own"},
        gone=objects("configmaps/default-gpu-clients"),
        told={MIG: told("4.1, 9.9", "volume gpu-clients")},
    ),
    "nodeStatusExporter": Switch(
        "nodeStatusExporter",
        "enabled",
        True,
        came=objects("daemonsets/nvidia-node-status-exporter", "services/nvidia-node-status-exporter")
        | rights("nvidia-node-status-exporter"),
    ),
    "cdi": Switch(
        "cdi",
        "enabled",
        False,
        gone=CDI_CLASSES,
        told={
            PLUGIN: told(
                "4.4",
                *env("nvidia-device-plugin", "CDI_ENABLED", "CDI_ANNOTATION_PREFIX", "DEVICE_LIST_STRATEGY"),
                *env("nvidia-device-plugin", "NVIDIA_CDI_HOOK_PATH"),
            ),
            MIG: told("4.4", *env("nvidia-mig-manager", "CDI_ENABLED", "NVIDIA_CDI_HOOK_PATH")),
            TOOLKIT: told(
                "4.4",
                *env("nvidia-container-toolkit-ctr", "CDI_ENABLED", "CRIO_CONFIG_MODE"),
                *env("nvidia-container-toolkit-ctr", "NVIDIA_CONTAINER_RUNTIME_MODE"),
                *env("nvidia-container-toolkit-ctr", "NVIDIA_RUNTIME_SET_AS_DEFAULT"),
            ),
        },
        variables={(PLUGIN, LIST_STRATEGY): ("cdi-annotations,cdi-cri", "envvar")},
    ),
    "nri (5.1)": Switch(
        "cdi",
        "nriPluginEnabled",
        True,
        gone=CDI_CLASSES | objects("runtimeclasses/nvidia"),
        told=nri(*NRI_26_7),
    ),
    "nri, 26.3.3": Switch(
        "cdi",
        "nriPluginEnabled",
        True,
        gone=CDI_CLASSES | objects("runtimeclasses/nvidia"),
        told=nri(),
        release=Release.V26_3,
    ),
    "operator.runtimeClass (5.1)": Switch(
        "operator",
        "runtimeClass",
        "gpu",
        gone=objects("runtimeclasses/nvidia"),
        came=objects("runtimeclasses/gpu"),
        told=renamed(),
    ),
}
SWITCHES["driver, 26.3.3"] = dataclasses.replace(SWITCHES["driver"], release=Release.V26_3)


@pytest.mark.parametrize("name", SWITCHES)
async def test_off_and_on_again(name: str) -> None:
    await check(SWITCHES[name])
