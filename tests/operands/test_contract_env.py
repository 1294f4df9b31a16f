"""Conditional environment (4.4) and the toolkit's runtime wiring (4.5) of contracts/control-plane.md."""

import pytest
from operands import notation, rendering

from groundplane.api.release import Release
from groundplane.operands.facts import OpenShift

PLUGIN = ("nvidia-device-plugin-daemonset", "nvidia-device-plugin")
MPS = ("nvidia-device-plugin-mps-control-daemon", "mps-control-daemon-ctr")
GFD = ("gpu-feature-discovery", "gpu-feature-discovery")
MIG = ("nvidia-mig-manager", "nvidia-mig-manager")
EXPORTER = ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter")
TOOLKIT = ("nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr")
VALIDATOR = "nvidia-operator-validator"


def container(which, changes=None, **more):
    name, main = which
    return notation.container(rendering.daemon_set(name, changes=changes, **more), main)


def env(which, changes=None, **more):
    return notation.env_dict(container(which, changes, **more))


def user(**values):
    return [{"name": name, "value": value} for name, value in values.items()]


# --- MIG strategy -----------------------------------------------------------------------------------------------------

MIG_VARIABLES = [
    (None, None, "all"),
    ("", None, "all"),
    ("none", "none", None),
    ("single", "single", "all"),
    ("mixed", "mixed", "all"),
]


@pytest.mark.parametrize("which", [PLUGIN, MPS, GFD])
@pytest.mark.parametrize(("strategy", "expected", "monitor"), MIG_VARIABLES)
def test_mig_strategy(which, strategy, expected, monitor):
    found = env(which, {"mig": {"strategy": strategy}})
    assert found.get("MIG_STRATEGY") == expected
    assert found.get("NVIDIA_MIG_MONITOR_DEVICES") == monitor


@pytest.mark.parametrize(("strategy", "expected"), [("mixed", "mixed"), (None, "")])
def test_plugin_validation_gets_the_strategy_as_it_is(strategy, expected):
    assert env((VALIDATOR, "plugin-validation"), {"mig": {"strategy": strategy}})["MIG_STRATEGY"] == expected


def test_user_env_against_mig_strategy():
    """The device plugin's user wins over mig.strategy; GFD's does not."""
    assert env(PLUGIN, {"devicePlugin": {"env": user(MIG_STRATEGY="none")}})["MIG_STRATEGY"] == "none"
    assert env(GFD, {"gfd": {"env": user(MIG_STRATEGY="none")}})["MIG_STRATEGY"] == "single"


# --- Device plugin ----------------------------------------------------------------------------------------------------


def test_device_plugin_without_cdi():
    found = env(PLUGIN, {"cdi": {"enabled": False}})
    assert found["DEVICE_LIST_STRATEGY"] == "envvar"
    assert not {"CDI_ENABLED", "CDI_ANNOTATION_PREFIX", "NVIDIA_CDI_HOOK_PATH"} & set(found)


@pytest.mark.parametrize("which", [PLUGIN, MIG])
def test_cdi_hook_follows_the_toolkits_folder(which):
    changes = {"toolkit": {"installDir": "/opt/nvidia"}}
    assert env(which, changes)["NVIDIA_CDI_HOOK_PATH"] == "/opt/nvidia/toolkit/nvidia-cdi-hook"
    without = env(which, {"toolkit": {"enabled": False}})
    assert without["CDI_ENABLED"] == "true"
    assert "NVIDIA_CDI_HOOK_PATH" not in without


def test_storage_and_copy_features():
    on = env(PLUGIN, {"gds": {"enabled": True}, "gdrcopy": {"enabled": True}})
    assert (on["GDS_ENABLED"], on["MOFED_ENABLED"], on["GDRCOPY_ENABLED"]) == ("true", "true", "true")
    assert not {"GDS_ENABLED", "MOFED_ENABLED", "GDRCOPY_ENABLED"} & set(env(PLUGIN))


def test_mps_root():
    changes = {"devicePlugin": {"mps": {"root": "/data/mps"}}}
    assert env(PLUGIN, changes)["MPS_ROOT"] == "/data/mps"
    for name, _ in (PLUGIN, MPS):
        rows = notation.volumes(notation.pod(rendering.daemon_set(name, changes=changes)))
        assert "mps-root=/data/mps(DC)" in rows
        assert "mps-shm=/data/mps/shm(-)" in rows


# --- config-manager ---------------------------------------------------------------------------------------------------

CONFIG = {"devicePlugin": {"config": {"name": "config", "default": "a100"}, "imagePullSecrets": ["plugin-secret"]}}
PROCESS = {PLUGIN: "nvidia-device-plugin", GFD: "gpu-feature-discovery", MPS: "/usr/bin/mps-control-daemon"}


def manager_env(oneshot, process):
    return [
        f"ONESHOT={'true' if oneshot else 'false'}",
        "KUBECONFIG=",
        "NODE_NAME<-spec.nodeName",
        "NODE_LABEL=nvidia.com/device-plugin.config",
        "CONFIG_FILE_SRCDIR=/available-configs",
        "CONFIG_FILE_DST=/config/config.yaml",
        "DEFAULT_CONFIG=a100",
        f"SEND_SIGNAL={'false' if oneshot else 'true'}",
        f"SIGNAL={'' if oneshot else '1'}",
        f"PROCESS_TO_SIGNAL={process}",
        "FALLBACK_STRATEGIES=empty",
    ]


@pytest.mark.parametrize("which", PROCESS)
def test_named_plugin_configuration(which):
    name, main = which
    rendered = rendering.daemon_set(name, changes=CONFIG)
    pod = notation.pod(rendered)
    assert pod["initContainers"][-1]["name"] == "config-manager-init"
    assert [each["name"] for each in pod["containers"]] == [main, "config-manager"]
    init = notation.container(rendered, "config-manager-init")
    sidecar = notation.container(rendered, "config-manager")
    assert notation.env(init) == manager_env(True, "")
    assert notation.env(sidecar) == manager_env(False, PROCESS[which])
    for each in (init, sidecar):
        assert each["command"] == ["config-manager"]
        assert each["image"] == "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    for each in (init, sidecar, notation.container(rendered, main)):
        assert notation.mounts(each)[-2:] == ["config:/config", "available-configs:/available-configs"]
    assert notation.env_dict(notation.container(rendered, main))["CONFIG_FILE"] == "/config/config.yaml"
    assert notation.volumes(pod)[-2:] == ["available-configs=config", "config=empty"]
    assert {"name": "plugin-secret"} in pod["imagePullSecrets"]
    assert pod.get("shareProcessNamespace") == (None if pod.get("hostPID") else True)


def test_a_missing_default_configuration_is_empty():
    changes = {"devicePlugin": {"config": {"name": "plugin-config"}}}
    rendered = rendering.daemon_set(PLUGIN[0], changes=changes)
    assert notation.env_dict(notation.container(rendered, "config-manager"))["DEFAULT_CONFIG"] == ""


# --- DCGM exporter ----------------------------------------------------------------------------------------------------


def exporter(changes, **more):
    return rendering.objects(changes={"dcgmExporter": changes}, **more)


def test_the_exporter_uses_the_host_engine_when_there_is_one():
    on = {"dcgm": {"enabled": True}}
    assert env(EXPORTER, on)["DCGM_REMOTE_HOSTENGINE_INFO"] == "nvidia-dcgm:5555"
    unset = {"dcgm": {"enabled": None}}
    assert env(EXPORTER, unset)["DCGM_REMOTE_HOSTENGINE_INFO"] == "nvidia-dcgm:5555"
    assert "DCGM_REMOTE_HOSTENGINE_INFO" not in env(EXPORTER)


@pytest.mark.parametrize(
    ("dcgm", "address", "host_network"),
    [(False, "localhost:5555", True), (True, "localhost:5555", False), (False, "10.0.0.1:5555", False)],
)
def test_a_host_engine_on_the_node_needs_the_hosts_network(dcgm, address, host_network):
    changes = {"dcgm": {"enabled": dcgm}, "dcgmExporter": {"env": user(DCGM_REMOTE_HOSTENGINE_INFO=address)}}
    rendered = rendering.daemon_set(EXPORTER[0], changes=changes)
    main = notation.container(rendered, EXPORTER[1])
    assert notation.env_dict(main)["DCGM_REMOTE_HOSTENGINE_INFO"] == address
    assert notation.pod(rendered).get("hostNetwork", False) is host_network


API_ACCESS = [
    ({"enablePodLabels": True}, True, True),
    ({"enablePodUID": True}, True, True),
    ({"env": user(DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS="True")}, True, True),
    ({"env": user(DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID="TRUE")}, True, True),
    ({"env": user(DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID="no")}, False, False),
    ({"env": user(KUBERNETES_VIRTUAL_GPUS="true")}, True, True),
    ({"env": user(DCGM_EXPORTER_CONFIGMAP_DATA="gpu-operator:metrics")}, True, False),
    ({"env": user(DCGM_EXPORTER_CONFIGMAP_DATA="none")}, False, False),
    ({"env": user(DCGM_EXPORTER_CONFIGMAP_DATA="")}, False, False),
    ({"podLabelAllowlistRegex": ["a"]}, False, False),
]


@pytest.mark.parametrize(("changes", "token", "cluster_role"), API_ACCESS)
def test_api_access_of_the_exporter(changes, token, cluster_role):
    made = exporter(changes)
    assert notation.pod(made["DaemonSet", EXPORTER[0]])["automountServiceAccountToken"] is token
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert ((kind, "nvidia-dcgm-exporter-read-pods") in made) is cluster_role


def test_pod_metadata_variables():
    section = {"enablePodLabels": True, "enablePodUID": True, "podLabelAllowlistRegex": ["^app$", "^team"]}
    found = env(EXPORTER, {"dcgmExporter": section})
    assert found["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"] == "true"
    assert found["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"] == "true"
    assert found["DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"] == "^app$,^team"


@pytest.mark.parametrize(
    ("mapping", "directory"),
    [({"enabled": True}, "/var/lib/dcgm-exporter/job-mapping"), ({"enabled": True, "directory": "/jobs"}, "/jobs")],
)
def test_job_mapping(mapping, directory):
    rendered = exporter({"hpcJobMapping": mapping})["DaemonSet", EXPORTER[0]]
    main = notation.container(rendered, EXPORTER[1])
    assert notation.env_dict(main)["DCGM_HPC_JOB_MAPPING_DIR"] == directory
    assert f"hpc-job-mapping:{directory}:ro" in notation.mounts(main)
    assert f"hpc-job-mapping={directory}(DC)" in notation.volumes(notation.pod(rendered))


def test_custom_metrics():
    rendered = exporter({"config": {"name": "my-metrics"}})["DaemonSet", EXPORTER[0]]
    main = notation.container(rendered, EXPORTER[1])
    assert notation.env_dict(main)["DCGM_EXPORTER_COLLECTORS"] == "/etc/dcgm-exporter/dcgm-metrics.csv"
    assert "metrics-config:/etc/dcgm-exporter/dcgm-metrics.csv:ro (sub=dcgm-metrics.csv)" in notation.mounts(main)
    rows = notation.volumes(notation.pod(rendered))
    assert "metrics-config=my-metrics dcgm-metrics.csv->dcgm-metrics.csv" in rows


def test_exporter_annotations_and_host_pid():
    rendered = exporter({"annotations": {"scrape": "me"}, "hostPID": True})["DaemonSet", EXPORTER[0]]
    assert rendered["spec"]["template"]["metadata"]["annotations"] == {"scrape": "me"}
    assert "scrape" not in rendered["metadata"]["annotations"]
    assert notation.pod(rendered)["hostPID"] is True


# --- Validator --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["driver", "toolkit", "cuda", "plugin"])
def test_component_env(component):
    changes = {"validator": {component: {"env": user(COMPONENT="x", MORE="1")}}}
    rendered = rendering.daemon_set(VALIDATOR, changes=changes)
    for each in notation.pod(rendered)["initContainers"]:
        mine = each["name"] == f"{component}-validation"
        assert notation.env_dict(each).get("MORE") == ("1" if mine else None)
        assert (notation.env_dict(each)["COMPONENT"] == "x") is mine


def test_component_env_reaches_the_checks_in_other_pods():
    changes = {"validator": {"driver": {"env": user(D="1")}, "toolkit": {"env": user(T="1")}}}
    made = rendering.objects(changes=changes)
    toolkit = notation.container(made["DaemonSet", TOOLKIT[0]], "driver-validation")
    assert notation.env_dict(toolkit)["D"] == "1"
    plugin = notation.container(made["DaemonSet", PLUGIN[0]], "toolkit-validation")
    assert notation.env(plugin) == ["T=1"]


def test_no_plugin_validation_without_a_device_plugin():
    rendered = rendering.daemon_set(VALIDATOR, changes={"devicePlugin": {"enabled": False}})
    names = [each["name"] for each in notation.pod(rendered)["initContainers"]]
    assert names == ["driver-validation", "toolkit-validation", "cuda-validation"]


@pytest.mark.parametrize("check", ["cuda-validation", "plugin-validation"])
def test_workload_env(check):
    changes = {
        "validator": {"imagePullPolicy": None, "imagePullSecrets": ["a", "b"]},
        "operator": {"runtimeClass": "gpu"},
    }
    found = env((VALIDATOR, check), changes)
    assert found["VALIDATOR_IMAGE"] == "nvcr.io/nvidia/gpu-operator:main-latest"
    assert found["VALIDATOR_IMAGE_PULL_POLICY"] == "IfNotPresent"
    assert found["VALIDATOR_IMAGE_PULL_SECRETS"] == "a,b"
    assert found["VALIDATOR_RUNTIME_CLASS"] == "gpu"
    assert "VALIDATOR_IMAGE_PULL_SECRETS" not in env((VALIDATOR, check))


# --- Toolkit: runtime wiring (4.5) ------------------------------------------------------------------------------------


def wiring(runtime, changes=None, release=Release.V26_7, **more):
    rendered = rendering.daemon_set(TOOLKIT[0], rendering.DEFAULTS[release], changes, runtime=runtime, **more)
    main = notation.container(rendered, TOOLKIT[1])
    return notation.env_dict(main), notation.mounts(main), notation.volumes(notation.pod(rendered))


def only(rows, *prefixes):
    return [row for row in rows if row.startswith(prefixes)]


WIRED = {
    "containerd": (
        {
            "RUNTIME": "containerd",
            "CONTAINERD_RUNTIME_CLASS": "nvidia",
            "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
            "CONTAINERD_CONFIG": "/runtime/config-dir/config.toml",
            "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml",
            "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
            "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock",
            "CONTAINERD_SOCKET": "/runtime/sock-dir/containerd.sock",
        },
        [
            "containerd-config=/etc/containerd(DC)",
            "containerd-drop-in-config=/etc/containerd/conf.d(DC)",
            "containerd-socket=/run/containerd(-)",
        ],
    ),
    "crio": (
        {
            "RUNTIME": "crio",
            "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
            "CRIO_CONFIG": "/runtime/config-dir/config.toml",
            "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.conf",
            "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/crio/crio.conf.d/99-nvidia.conf",
        },
        ["crio-config=/etc/crio(DC)", "crio-drop-in-config=/etc/crio/crio.conf.d(DC)"],
    ),
    "docker": (
        {
            "RUNTIME": "docker",
            "RUNTIME_CONFIG": "/runtime/config-dir/daemon.json",
            "DOCKER_CONFIG": "/runtime/config-dir/daemon.json",
            "RUNTIME_SOCKET": "/runtime/sock-dir/docker.sock",
            "DOCKER_SOCKET": "/runtime/sock-dir/docker.sock",
        },
        ["docker-config=/etc/docker(DC)", "docker-socket=/var/run(-)"],
    ),
}


@pytest.mark.parametrize("runtime", WIRED)
def test_runtime_wiring(runtime):
    variables, expected_volumes = WIRED[runtime]
    found, mounts, volumes = wiring(runtime)
    touched = ("RUNTIME", "CONTAINERD_", "CRIO_CONFIG", "DOCKER_")
    relevant = {key: value for key, value in found.items() if key.startswith(touched) and key != "CRIO_CONFIG_MODE"}
    assert relevant == variables
    assert only(volumes, f"{runtime}-config", f"{runtime}-drop", f"{runtime}-socket") == expected_volumes
    for row in expected_volumes:
        name = row.partition("=")[0]
        kind = name.removeprefix(f"{runtime}-")
        paths = {"config": "config-dir", "drop-in-config": "config-dir.d", "socket": "sock-dir"}
        assert f"{name}:/runtime/{paths[kind]}/" in mounts


MICROK8S = user(
    CONTAINERD_CONFIG="/var/snap/microk8s/current/args/containerd-template.toml",
    CONTAINERD_SOCKET="/var/snap/microk8s/common/run/containerd.sock",
    RUNTIME_CONFIG_SOURCE="file=/var/snap/microk8s/current/args/containerd.toml",
)


def test_microk8s():
    found, _, volumes = wiring("containerd", {"toolkit": {"env": MICROK8S}})
    assert found["CONTAINERD_CONFIG"] == found["RUNTIME_CONFIG"] == "/runtime/config-dir/containerd-template.toml"
    assert found["CONTAINERD_SOCKET"] == found["RUNTIME_SOCKET"] == "/runtime/sock-dir/containerd.sock"
    assert found["RUNTIME_CONFIG_SOURCE"] == "file=/host/var/snap/microk8s/current/args/containerd.toml"
    assert "containerd-config=/var/snap/microk8s/current/args(DC)" in volumes
    assert "containerd-socket=/var/snap/microk8s/common/run(-)" in volumes


@pytest.mark.parametrize(
    ("runtime", "given", "folder"),
    [
        ("containerd", {"RUNTIME_CONFIG": "/a/x.toml"}, "containerd-config=/a(DC)"),
        ("containerd", {"RUNTIME_CONFIG": "/a/x.toml", "CONTAINERD_CONFIG": "/b/y.toml"}, "containerd-config=/b(DC)"),
        ("crio", {"CRIO_CONFIG": "/c/z.conf", "RUNTIME_CONFIG": "/a/x"}, "crio-config=/c(DC)"),
        ("docker", {"DOCKER_CONFIG": "/d/d.json", "RUNTIME_CONFIG": "/a/x"}, "docker-config=/d(DC)"),
        ("docker", {"DOCKER_SOCKET": "/e/d.sock"}, "docker-socket=/e(-)"),
        ("crio", {"RUNTIME_DROP_IN_CONFIG": "/f/50.conf"}, "crio-drop-in-config=/f(DC)"),
        ("containerd", {"RUNTIME_DROP_IN_CONFIG": "/f/50.toml"}, "containerd-drop-in-config=/f(DC)"),
    ],
)
def test_overrides_of_host_paths(runtime, given, folder):
    found, _, volumes = wiring(runtime, {"toolkit": {"env": user(**given)}})
    assert folder in volumes
    if drop_in := given.get("RUNTIME_DROP_IN_CONFIG"):
        assert found["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] == drop_in


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("file", "file"),
        ("command", "command"),
        ("command,file=/etc/x.toml", "command,file=/host/etc/x.toml"),
        ("file=/a,file=/b", "file=/host/a,file=/host/b"),
        ("other=/a", "other=/a"),
    ],
)
def test_config_sources_are_read_through_the_hosts_root(given, expected):
    found, _, _ = wiring("containerd", {"toolkit": {"env": user(RUNTIME_CONFIG_SOURCE=given)}})
    assert found["RUNTIME_CONFIG_SOURCE"] == expected


def test_runtime_and_class_beat_the_user():
    changes = {
        "toolkit": {"env": user(RUNTIME="docker", CONTAINERD_RUNTIME_CLASS="mine", CDI_ENABLED="false")},
        "operator": {"runtimeClass": "gpu"},
    }
    found, _, _ = wiring("containerd", changes)
    assert (found["RUNTIME"], found["CONTAINERD_RUNTIME_CLASS"]) == ("containerd", "gpu")
    assert found["CDI_ENABLED"] == "false", "other variables are the user's"


@pytest.mark.parametrize("path", ["config.toml", "etc/x", "/etc/"])
def test_an_override_must_be_an_absolute_file(path):
    error = rendering.error({"toolkit": {"env": user(CONTAINERD_CONFIG=path)}})
    assert error.state == "state-container-toolkit"
    assert "CONTAINERD_CONFIG" in error.message and repr(path) in error.message


def test_an_unknown_runtime_is_an_error():
    error = rendering.error({}, runtime="podman")
    assert "podman" in error.message and "containerd" in error.message


@pytest.mark.parametrize(
    ("runtime", "cdi", "mode"),
    [("crio", False, "hook"), ("crio", True, "config"), ("containerd", True, "config"), ("containerd", False, None)],
)
def test_crio_config_mode(runtime, cdi, mode):
    found, _, _ = wiring(runtime, {"cdi": {"enabled": cdi}})
    assert found.get("CRIO_CONFIG_MODE") == mode
    assert found.get("CDI_ENABLED") == ("true" if cdi else None)


@pytest.mark.parametrize(
    ("runtime", "openshift", "path"),
    [
        ("containerd", None, "/run/containers/oci/hooks.d"),
        ("docker", None, "/run/containers/oci/hooks.d"),
        ("crio", None, "/usr/share/containers/oci/hooks.d"),
        ("crio", OpenShift(version="4.18"), "/run/containers/oci/hooks.d"),
    ],
)
def test_crio_hooks(runtime, openshift, path):
    _, mounts, volumes = wiring(runtime, openshift=openshift)
    assert f"crio-hooks={path}(-)" in volumes
    assert "crio-hooks:/usr/share/containers/oci/hooks.d" in mounts


def test_install_dir_moves_variable_volume_and_mount():
    found, mounts, volumes = wiring("containerd", {"toolkit": {"installDir": "/opt/nvidia"}})
    assert found["ROOT"] == "/opt/nvidia"
    assert "toolkit-install-dir:/opt/nvidia" in mounts
    assert "toolkit-install-dir=/opt/nvidia(-)" in volumes


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_nri_socket_override(release):
    changes = {"cdi": {"nriPluginEnabled": True}, "toolkit": {"env": user(NRI_SOCKET="/srv/nri/my.sock")}}
    found, mounts, volumes = wiring("containerd", changes, release)
    assert found["NRI_SOCKET"] == "/runtime/nri-sock-dir/my.sock"
    assert "nri-socket:/runtime/nri-sock-dir/" in mounts
    assert "nri-socket=/srv/nri(DC)" in volumes
