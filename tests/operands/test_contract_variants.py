"""Variants against the default (9.11) and release against release (9.12): the listed differences and no others."""

import pytest
from operands import notation, rendering

RELEASES = ("26.3.3", "26.7.0")
GPU_CONTAINERS = {
    "gpu-feature-discovery": "gpu-feature-discovery",
    "nvidia-dcgm-exporter": "nvidia-dcgm-exporter",
    "nvidia-device-plugin-daemonset": "nvidia-device-plugin",
    "nvidia-device-plugin-mps-control-daemon": "mps-control-daemon-ctr",
    "nvidia-mig-manager": "nvidia-mig-manager",
    "nvidia-operator-validator": "toolkit-validation",
}
DRIVER_OBJECTS = {
    *(
        (kind, "nvidia-driver")
        for kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    ),
    ("ConfigMap", "nvidia-driver-startup-probe"),
    ("DaemonSet", "nvidia-driver-daemonset"),
}
TOOLKIT_OBJECTS = {
    *((kind, "nvidia-container-toolkit") for kind in ("ServiceAccount", "Role", "RoleBinding")),
    ("ConfigMap", "nvidia-container-toolkit-entrypoint"),
    ("DaemonSet", "nvidia-container-toolkit-daemonset"),
}
HOOK_CONTAINERS = {
    "nvidia-device-plugin-daemonset": "nvidia-device-plugin",
    "nvidia-mig-manager": "nvidia-mig-manager",
}


def pair(release, variant):
    return rendering.objects(f"{release}-default"), rendering.objects(f"{release}-{variant}")


def changed(before, after):
    return {key for key in before.keys() & after.keys() if before[key] != after[key]}


def without_env(daemon_set, container, *names):
    copy = rendering.merged(daemon_set, {})
    found = notation.container(copy, container)
    found["env"] = [each for each in found["env"] if each["name"] not in names]
    return copy


@pytest.mark.parametrize("release", RELEASES)
def test_host_driver(release):
    default, variant = pair(release, "host-driver")
    assert default.keys() - variant.keys() == DRIVER_OBJECTS
    assert not variant.keys() - default.keys()
    assert not changed(default, variant)


@pytest.mark.parametrize("release", RELEASES)
def test_host_driver_and_toolkit(release):
    default, variant = pair(release, "host-driver-and-toolkit")
    assert default.keys() - variant.keys() == DRIVER_OBJECTS | TOOLKIT_OBJECTS
    assert changed(default, variant) == {("DaemonSet", name) for name in HOOK_CONTAINERS}
    for name, container in HOOK_CONTAINERS.items():
        bare = without_env(default["DaemonSet", name], container, "NVIDIA_CDI_HOOK_PATH")
        assert variant["DaemonSet", name] == bare


@pytest.mark.parametrize("release", RELEASES)
def test_precompiled_changes_nothing_but_the_driver(release):
    default, variant = pair(release, "precompiled")
    assert default.keys() - variant.keys() == {("DaemonSet", "nvidia-driver-daemonset")}
    assert variant.keys() - default.keys() == {
        ("DaemonSet", "nvidia-driver-daemonset-6.8.0-60-generic-ubuntu24.04"),
    }
    assert not changed(default, variant)


@pytest.mark.parametrize("release", RELEASES)
def test_mig_mixed(release):
    default, variant = pair(release, "mig-mixed")
    touched = {
        "nvidia-device-plugin-daemonset": "nvidia-device-plugin",
        "nvidia-device-plugin-mps-control-daemon": "mps-control-daemon-ctr",
        "gpu-feature-discovery": "gpu-feature-discovery",
        "nvidia-operator-validator": "plugin-validation",
    }
    assert default.keys() == variant.keys()
    assert changed(default, variant) == {("DaemonSet", name) for name in touched}
    for name, container in touched.items():
        before, after = default["DaemonSet", name], variant["DaemonSet", name]
        assert notation.env_dict(notation.container(before, container))["MIG_STRATEGY"] == "single"
        assert notation.env_dict(notation.container(after, container))["MIG_STRATEGY"] == "mixed"
        assert without_env(before, container, "MIG_STRATEGY") == without_env(after, container, "MIG_STRATEGY")


@pytest.mark.parametrize("release", RELEASES)
def test_nri_leaves_the_driver_and_the_set_of_objects(release):
    default, variant = pair(release, "nri")
    assert default.keys() - variant.keys() == {
        ("RuntimeClass", name) for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")
    }
    touched = {*GPU_CONTAINERS, "nvidia-container-toolkit-daemonset"}
    assert changed(default, variant) == {("DaemonSet", name) for name in touched}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", GPU_CONTAINERS)
def test_nri_gives_devices_by_annotation_instead_of_runtime_class(release, name):
    default, variant = pair(release, "nri")
    expected = rendering.merged(default["DaemonSet", name], {})
    del expected["spec"]["template"]["spec"]["runtimeClassName"]
    key = f"nvidia.cdi.k8s.io/container.{GPU_CONTAINERS[name]}"
    expected["spec"]["template"]["metadata"]["annotations"] = {key: "management.nvidia.com/gpu=all"}
    for each in notation.pod(expected)["initContainers"]:
        if each["name"] in ("cuda-validation", "plugin-validation"):
            each["env"] = [row for row in each["env"] if row["name"] != "VALIDATOR_RUNTIME_CLASS"]
    assert variant["DaemonSet", name] == expected


RUNTIME_ENV = [
    "CONTAINERD_RUNTIME_CLASS=nvidia",
    "RUNTIME_CONFIG=/runtime/config-dir/config.toml",
    "CONTAINERD_CONFIG=/runtime/config-dir/config.toml",
    "RUNTIME_DROP_IN_CONFIG=/runtime/config-dir.d/99-nvidia.toml",
    "RUNTIME_DROP_IN_CONFIG_HOST_PATH=/etc/containerd/conf.d/99-nvidia.toml",
    "RUNTIME_SOCKET=/runtime/sock-dir/containerd.sock",
    "CONTAINERD_SOCKET=/runtime/sock-dir/containerd.sock",
]
CONTAINERD = ("containerd-config", "containerd-drop-in-config", "containerd-socket")


@pytest.mark.parametrize(("release", "keeps_runtime_files"), [("26.3.3", True), ("26.7.0", False)])
def test_nri_toolkit(release, keeps_runtime_files):
    default, variant = pair(release, "nri")
    name = "nvidia-container-toolkit-daemonset"
    before, after = default["DaemonSet", name], variant["DaemonSet", name]
    main = "nvidia-container-toolkit-ctr"

    def kept(rows):
        return rows if keeps_runtime_files else [row for row in rows if not row.startswith(CONTAINERD)]

    env = notation.env(notation.container(before, main))
    position = env.index("CRIO_CONFIG_MODE=config") + 1
    env = [*env[:position], "ENABLE_NRI_PLUGIN=true", *env[position:]]
    env = env if keeps_runtime_files else [row for row in env if row not in RUNTIME_ENV]
    assert "RUNTIME=containerd" in env
    container = notation.container(after, main)
    assert notation.env(container) == [*env, "NRI_SOCKET=/runtime/nri-sock-dir/nri.sock"]
    mounts = kept(notation.mounts(notation.container(before, main)))
    assert notation.mounts(container) == [*mounts, "nri-socket:/runtime/nri-sock-dir/"]
    volumes = kept(notation.volumes(notation.pod(before)))
    assert notation.volumes(notation.pod(after)) == [*volumes, "nri-socket=/var/run/nri(DC)"]


def test_release_differences():
    """26.3.3 to 26.7.0 (9.12): images, three roles and the driver; nothing else."""
    old, new = rendering.objects("26.3.3-default"), rendering.objects("26.7.0-default")
    assert old.keys() == new.keys()

    def without_images(obj):
        if isinstance(obj, dict):
            return {key: without_images(each) for key, each in obj.items() if key != "image"}
        return [without_images(each) for each in obj] if isinstance(obj, list) else obj

    differing = {key for key in old if without_images(old[key]) != without_images(new[key])}
    assert differing == {
        ("ClusterRole", "nvidia-driver"),
        ("ClusterRole", "nvidia-mig-manager"),
        ("Role", "nvidia-dcgm-exporter"),
        ("ConfigMap", "nvidia-driver-startup-probe"),
        ("DaemonSet", "nvidia-driver-daemonset"),
    }


@pytest.mark.parametrize("release", RELEASES)
def test_the_default_runs_eight_daemon_sets_and_nothing_of_the_switched_off_states(release):
    made = rendering.objects(f"{release}-default")
    assert {name for kind, name in made if kind == "DaemonSet"} == {
        "nvidia-driver-daemonset",
        "nvidia-container-toolkit-daemonset",
        *GPU_CONTAINERS,
    }
    assert not [key for key in made if "sandbox" in key[1] or "vgpu" in key[1] or key[1] == "nvidia-dcgm"]
