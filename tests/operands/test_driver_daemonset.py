"""The driver DaemonSet of a plain policy, row by row: contracts/control-plane.md 9.1, 9.2 and 9.12."""

import pytest
from operands import notation, rendering

DRIVER = "nvidia-driver-daemonset"
FILES = ("26.3.3-default", "26.7.0-default")
IMAGES = {
    "26.3.3-default": ("nvcr.io/nvidia/driver:580.126.20", "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.11.0"),
    "26.7.0-default": ("nvcr.io/nvidia/driver:595.91.07", "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.12.0"),
}
MANAGER_ENV = [
    "NODE_NAME<-spec.nodeName",
    "NVIDIA_VISIBLE_DEVICES=void",
    "ENABLE_GPU_POD_EVICTION=true",
    "ENABLE_AUTO_DRAIN=false",
    "DRAIN_USE_FORCE=false",
    "DRAIN_POD_SELECTOR_LABEL=",
    "DRAIN_TIMEOUT_SECONDS=0s",
    "DRAIN_DELETE_EMPTYDIR_DATA=false",
    "OPERATOR_NAMESPACE<-metadata.namespace",
]
MANAGER_MOUNTS = [
    "run-nvidia:/run/nvidia:B",
    "host-root:/host:ro:H",
    "host-sys:/sys",
    "run-mellanox-drivers:/run/mellanox/drivers:H",
]
SYSTEM_MOUNT = {
    "26.3.3-default": "sysfs-memory-online:/sys/devices/system/memory/auto_online_blocks",
    "26.7.0-default": "host-sys-devices-system:/sys/devices/system",
}
DRIVER_MOUNTS = [
    "run-nvidia:/run/nvidia:B",
    "run-nvidia-fabricmanager:/run/nvidia-fabricmanager",
    "run-nvidia-topologyd:/run/nvidia-topologyd",
    "var-log:/var/log",
    "dev-log:/dev/log",
    "host-os-release:/host-etc/os-release:ro",
    "mlnx-ofed-usr-src:/run/mellanox/drivers/usr/src:H",
    "run-mellanox-drivers:/run/mellanox/drivers:H",
    "SYSTEM",
    "firmware-search-path:/sys/module/firmware_class/parameters/path",
    "nv-firmware:/lib/firmware",
    "driver-startup-probe-script:/usr/local/bin/startup-probe.sh (sub=startup-probe.sh)",
]
SYSTEM_VOLUME = {
    "26.3.3-default": "sysfs-memory-online=/sys/devices/system/memory/auto_online_blocks(-)",
    "26.7.0-default": "host-sys-devices-system=/sys/devices/system(D)",
}
VOLUMES = [
    "run-nvidia=/run/nvidia(DC)",
    "var-log=/var/log(-)",
    "dev-log=/dev/log(-)",
    "host-os-release=/etc/os-release(-)",
    "run-nvidia-fabricmanager=/run/nvidia-fabricmanager(DC)",
    "run-nvidia-topologyd=/run/nvidia-topologyd(DC)",
    "mlnx-ofed-usr-src=/run/mellanox/drivers/usr/src(DC)",
    "run-mellanox-drivers=/run/mellanox/drivers(DC)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "host-root=/(-)",
    "host-sys=/sys(D)",
    "firmware-search-path=/sys/module/firmware_class/parameters/path(-)",
    "SYSTEM",
    "nv-firmware=/run/nvidia/driver/lib/firmware(DC)",
    "driver-startup-probe-script=nvidia-driver-startup-probe(0755)",
]
PRE_STOP = {
    "26.3.3-default": "rm -f /run/nvidia/validations/.driver-ctr-ready",
    "26.7.0-default": "rm -f /run/nvidia/validations/.driver-ctr-ready /run/nvidia/validations/.driver-daemons-status",
}


@pytest.fixture(params=FILES)
def file(request):
    return request.param


@pytest.fixture
def daemon_set(file):
    return rendering.daemon_set(DRIVER, file)


def with_system(rows, row):
    return [row if each == "SYSTEM" else each for each in rows]


def test_metadata(daemon_set):
    user = {"helm.sh/chart": "gpu-operator-v1.0.0-devel", "app.kubernetes.io/managed-by": "gpu-operator"}
    own = {"app": DRIVER, "app.kubernetes.io/component": "nvidia-driver", "nvidia.com/precompiled": "false"}
    metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]["metadata"]
    assert metadata["labels"] == {**own, **user, "nvidia.com/gpu-operator.state": "state-driver"}
    assert metadata["annotations"] == {"openshift.io/scc": "nvidia-driver"}
    assert template["labels"] == {**own, **user}
    assert template["annotations"] == {"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"}
    assert daemon_set["spec"]["selector"] == {"matchLabels": {"app": DRIVER}}
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == ("ClusterPolicy", True, True)


def test_pod(daemon_set, file):
    pod = notation.pod(daemon_set)
    lists = {"initContainers", "containers", "volumes", "affinity"}
    assert {key: value for key, value in pod.items() if key not in lists} == {
        "serviceAccountName": "nvidia-driver",
        "hostPID": True,
        "nodeSelector": {"nvidia.com/gpu.deploy.driver": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
    }
    assert pod["affinity"] == {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {
                        "matchExpressions": [
                            {"key": "app.kubernetes.io/component", "operator": "In", "values": ["nvidia-driver"]}
                        ]
                    },
                }
            ]
        }
    }
    assert notation.volumes(pod) == with_system(VOLUMES, SYSTEM_VOLUME[file])
    assert [each["name"] for each in pod["initContainers"]] == ["k8s-driver-manager"]
    assert [each["name"] for each in pod["containers"]] == ["nvidia-driver-ctr"]


def test_manager_container(daemon_set, file):
    manager = notation.container(daemon_set, "k8s-driver-manager")
    assert manager["image"] == IMAGES[file][1]
    assert (manager["command"], manager["args"]) == (["driver-manager"], ["uninstall_driver"])
    assert manager["imagePullPolicy"] == "IfNotPresent"
    *env, digest = notation.env(manager)
    assert env == MANAGER_ENV
    assert digest.startswith("DRIVER_CONFIG_DIGEST=")
    assert notation.mounts(manager) == MANAGER_MOUNTS
    assert notation.security(manager) == "privileged"
    assert "resources" not in manager


def test_driver_container(daemon_set, file):
    driver = notation.container(daemon_set, "nvidia-driver-ctr")
    assert driver["image"] == f"{IMAGES[file][0]}-ubuntu24.04"
    assert (driver["command"], driver["args"]) == (["nvidia-driver"], ["init"])
    *env, digest = notation.env(driver)
    assert env == ["NODE_NAME<-spec.nodeName", "NODE_IP<-status.hostIP", "KERNEL_MODULE_TYPE=auto"]
    assert digest == notation.env(notation.container(daemon_set, "k8s-driver-manager"))[-1]
    assert digest.partition("=")[2].isdigit()
    assert notation.mounts(driver) == with_system(DRIVER_MOUNTS, SYSTEM_MOUNT[file])
    assert notation.security(driver) == "privileged S0"
    assert driver["startupProbe"] == {
        "exec": {"command": ["sh", "/usr/local/bin/startup-probe.sh"]},
        "initialDelaySeconds": 60,
        "timeoutSeconds": 60,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 120,
    }
    assert "livenessProbe" not in driver
    assert "readinessProbe" not in driver
    assert driver["lifecycle"] == {"preStop": {"exec": {"command": ["/bin/sh", "-c", PRE_STOP[file]]}}}


def test_other_objects_of_the_state(file):
    (state,) = [each for each in rendering.states(file) if each.state == "state-driver"]
    kinds = [(each["kind"], each["metadata"]["name"]) for each in state.objects]
    assert kinds == [
        ("ServiceAccount", "nvidia-driver"),
        ("Role", "nvidia-driver"),
        ("RoleBinding", "nvidia-driver"),
        ("ClusterRole", "nvidia-driver"),
        ("ClusterRoleBinding", "nvidia-driver"),
        ("ConfigMap", "nvidia-driver-startup-probe"),
        ("DaemonSet", DRIVER),
    ]
    probe = state.objects[5]
    assert probe["metadata"]["labels"] == {
        "app": DRIVER,
        "app.kubernetes.io/component": "nvidia-driver",
        "nvidia.com/gpu-operator.state": "state-driver",
    }
    assert list(probe["data"]) == ["startup-probe.sh"]


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_cluster_rights(release):
    role = rendering.objects(rendering.DEFAULTS[release])["ClusterRole", "nvidia-driver"]
    rows = notation.rules(role)
    assert ("resource.k8s.io/resourceclaims: get,list" in rows) == (release.value == "26.7.0")
    assert "/nodes: get,list,patch,update,watch" in rows
    assert "/pods/eviction: create" in rows
    assert "apps/daemonsets: get" in rows


@pytest.mark.parametrize(
    ("driver", "there"),
    [
        ({"enabled": True}, True),
        ({"enabled": None}, True),
        ({"enabled": False}, False),
        ({"enabled": True, "useNvidiaDriverCRD": True}, False),
        ({"enabled": False, "useNvidiaDriverCRD": True}, False),
    ],
)
def test_enabled(driver, there, file):
    objects = rendering.objects(file, {"driver": driver})
    for key in (
        ("DaemonSet", DRIVER),
        ("ConfigMap", "nvidia-driver-startup-probe"),
        ("ServiceAccount", "nvidia-driver"),
        ("ClusterRole", "nvidia-driver"),
    ):
        assert (key in objects) == there


@pytest.mark.parametrize("file", ["26.3.3-nri", "26.7.0-nri"])
def test_nri_leaves_the_driver_alone(file):
    plain = f"{rendering.release_of(file).value}-default"
    assert rendering.daemon_set(DRIVER, file) == rendering.daemon_set(DRIVER, plain)


def test_without_gpu_nodes_it_is_rendered_without_a_suffix():
    found = rendering.daemon_set(
        DRIVER,
        changes={"driver": {"repoConfig": {"configMapName": "repos"}}},
        nodes=(),
        config_maps={"repos": ("a.list",)},
    )
    driver = notation.container(found, "nvidia-driver-ctr")
    assert driver["image"] == IMAGES["26.7.0-default"][0]
    assert not [row for row in notation.mounts(driver) if row.startswith("repos:")]


def test_always_on_delete():
    changes = {"daemonsets": {"updateStrategy": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "3"}}}
    assert rendering.daemon_set(DRIVER, changes=changes)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_labels_of_the_policy_do_not_break_the_selector():
    changes = {"daemonsets": {"labels": {"app": "mine", "team": "gpu"}, "annotations": {"note": "x"}}}
    found = rendering.daemon_set(DRIVER, changes=changes)
    template = found["spec"]["template"]["metadata"]
    assert template["labels"]["app"] == DRIVER
    assert template["labels"]["team"] == found["metadata"]["labels"]["team"] == "gpu"
    assert template["annotations"]["note"] == found["metadata"]["annotations"]["note"] == "x"


@pytest.mark.parametrize("value", ["mine", "nvidia-driver"])
def test_no_label_of_the_policy_moves_a_pod_in_or_out_of_the_drivers_anti_affinity(value):
    changes = {"daemonsets": {"labels": {"app.kubernetes.io/component": value, "team": "gpu"}}}
    made = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for (kind, name), each in rendering.objects(changes=changes).items()
        if kind == "DaemonSet"
    }
    drivers = {name for name, labels in made.items() if labels.get("app.kubernetes.io/component") == "nvidia-driver"}
    assert drivers == {"nvidia-driver-daemonset"}
    assert all(labels["team"] == "gpu" for labels in made.values())
    others = {labels.get("app.kubernetes.io/component") for name, labels in made.items() if name not in drivers}
    assert others == ({None} if value == "nvidia-driver" else {"mine"})
