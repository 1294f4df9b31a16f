"""The states for virtual machines, row by row: contracts/control-plane.md 4.1 (13 to 20), 4.3 and 4.4."""

import pytest
from operands import notation, rendering

VALIDATOR = "nvcr.io/nvidia/gpu-operator:main-latest"
IMAGE = {"repository": "r", "image": "own", "version": "1"}
MANAGER = {"repository": "r", "image": "manager", "version": "1"}
SECTIONS = {
    "vgpuManager": {"enabled": True, **IMAGE, "driverManager": MANAGER},
    "vgpuDeviceManager": {"enabled": True, **IMAGE},
    "vfioManager": {"enabled": True, **IMAGE, "driverManager": MANAGER},
    "sandboxDevicePlugin": {"enabled": True, **IMAGE},
    "kataSandboxDevicePlugin": {"enabled": True, **IMAGE},
    "kataManager": {"enabled": True, **IMAGE},
    "ccManager": {"enabled": True, **IMAGE, "defaultMode": "on"},
}


def policy(mode="kubevirt", **changes):
    """Changes that switch every sandbox section on; a None in ``changes`` takes the chart's value away too."""
    return overlay({"sandboxWorkloads": {"enabled": True, "mode": mode}, **SECTIONS}, changes)


def overlay(base, changes):
    nested = {
        key: overlay(base[key], value) for key, value in changes.items() if isinstance(value, dict) and key in base
    }
    return {**base, **changes, **nested}


VALIDATIONS = "run-nvidia-validations:/run/nvidia/validations:B"
CLEAR_NODE = {
    "image": "r/manager:1",
    "command": ["driver-manager"],
    "args": ["uninstall_driver"],
    "env": [
        "NODE_NAME<-spec.nodeName",
        "NVIDIA_VISIBLE_DEVICES=void",
        "ENABLE_GPU_POD_EVICTION=false",
        "ENABLE_AUTO_DRAIN=false",
        "OPERATOR_NAMESPACE<-metadata.namespace",
    ],
    "mounts": ["run-nvidia:/run/nvidia:B", "host-root:/host:ro:H", "host-sys:/sys"],
    "security": "privileged",
}
WAIT = {
    "image": VALIDATOR,
    "command": ["sh", "-c"],
    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    "mounts": ["run-nvidia-validations:/run/nvidia/validations:H"],
    "security": "privileged U0",
}


def check(component, mounts, security="privileged U0 S0", by_workload=True):
    workload = ["DEFAULT_GPU_WORKLOAD_CONFIG=container"] if by_workload else []
    return {
        "image": VALIDATOR,
        "command": ["sh", "-c"],
        "args": ["nvidia-validator"],
        "env": ["WITH_WAIT=true", f"COMPONENT={component}", "NODE_NAME<-spec.nodeName", *workload],
        "mounts": mounts,
        "security": security,
    }


HOST = "host-root:/host:ro:H"
CHECKS = {
    "vfio-pci-validation": check("vfio-pci", [HOST, VALIDATIONS]),
    "vgpu-manager-validation": check("vgpu-manager", [HOST, "driver-install-path:/run/nvidia/driver:H", VALIDATIONS]),
    "vgpu-devices-validation": check("vgpu-devices", [VALIDATIONS], "privileged U0"),
}
SMALL = {"limits": {"memory": "200Mi"}, "requests": {"cpu": "100m", "memory": "200Mi"}}

# DaemonSet -> what it is. `mode` is the one it is rendered in; everything that is not listed must be absent.
DAEMON_SETS = {
    "nvidia-vgpu-manager-daemonset": {
        "state": "state-vgpu-manager",
        "account": "nvidia-vgpu-manager",
        "scc": "nvidia-vgpu-manager",
        "deploy": "vgpu-manager",
        "pod": {"hostPID": True, "hostIPC": True, "terminationGracePeriodSeconds": 120},
        "template_annotations": {"kubectl.kubernetes.io/default-container": "nvidia-vgpu-manager-ctr"},
        "init": {"k8s-driver-manager": CLEAR_NODE},
        "containers": {
            "nvidia-vgpu-manager-ctr": {
                "image": "r/own:1-ubuntu24.04",
                "command": ["nvidia-driver"],
                "args": ["init"],
                "env": [],
                "mounts": [
                    "run-nvidia:/run/nvidia:B",
                    "host-os-release:/host-etc/os-release",
                    "vfio:/dev/vfio",
                    "cgroup:/sys/fs/cgroup",
                    "var-log:/var/log",
                    "dev-log:/dev/log",
                    "firmware-search-path:/sys/module/firmware_class/parameters/path",
                    "nv-firmware:/lib/firmware",
                ],
                "security": "privileged S0",
            }
        },
        "volumes": [
            "run-nvidia=/run/nvidia(DC)",
            "host-os-release=/etc/os-release(-)",
            "cgroup=/sys/fs/cgroup(D)",
            "vfio=/dev/vfio(D)",
            "host-root=/(-)",
            "host-sys=/sys(D)",
            "var-log=/var/log(D)",
            "dev-log=/dev/log(-)",
            "firmware-search-path=/sys/module/firmware_class/parameters/path(-)",
            "nv-firmware=/run/nvidia/driver/lib/firmware(DC)",
        ],
    },
    "nvidia-vgpu-device-manager": {
        "state": "state-vgpu-device-manager",
        "account": "nvidia-vgpu-device-manager",
        "scc": "nvidia-vgpu-device-manager",
        "deploy": "vgpu-device-manager",
        "init": {
            "vgpu-manager-validation": {
                "image": VALIDATOR,
                "command": ["sh", "-c"],
                "env": [],
                "mounts": [VALIDATIONS],
                "security": "privileged U0",
            }
        },
        "containers": {
            "nvidia-vgpu-device-manager": {
                "image": "r/own:1",
                "env": [
                    "NAMESPACE<-metadata.namespace",
                    "NODE_NAME<-spec.nodeName",
                    "CONFIG_FILE=/vgpu-config/config.yaml",
                    "DEFAULT_VGPU_CONFIG=default",
                ],
                "mounts": [
                    "vgpu-config:/vgpu-config",
                    "host-sys:/sys",
                    "host-root:/host:H",
                    "driver-install-dir:/driver-root:H",
                ],
                "security": "privileged",
            }
        },
        "volumes": [
            "vgpu-config=default-vgpu-devices-config",
            "host-sys=/sys(D)",
            "host-root=/(-)",
            "driver-install-dir=/run/nvidia/driver(DC)",
            "run-nvidia-validations=/run/nvidia/validations(DC)",
        ],
        "config_maps": ["default-vgpu-devices-config"],
    },
    "nvidia-sandbox-validator": {
        "state": "state-sandbox-validation",
        "account": "nvidia-sandbox-validator",
        "deploy": "sandbox-validator",
        "labels": {"app.kubernetes.io/part-of": "gpu-operator"},
        "selector": {"app": "nvidia-sandbox-validator", "app.kubernetes.io/part-of": "gpu-operator"},
        "init": CHECKS,
        "containers": {
            "nvidia-sandbox-validator": {
                "image": VALIDATOR,
                "command": ["sh", "-c"],
                "args": ["echo 'all validations passed'; while true; do sleep 86400; done"],
                "env": [],
                "mounts": [VALIDATIONS],
                "security": "privileged U0",
                "pre_stop": ["sh", "-c", "rm -f /run/nvidia/validations/*"],
            }
        },
        "volumes": [
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "driver-install-path=/run/nvidia/driver(-)",
            "host-root=/(-)",
        ],
    },
    "nvidia-vfio-manager": {
        "state": "state-vfio-manager",
        "account": "nvidia-vfio-manager",
        "deploy": "vfio-manager",
        "by_name": True,
        "pod": {"terminationGracePeriodSeconds": 30},
        "init": {"k8s-driver-manager": CLEAR_NODE},
        "containers": {
            "nvidia-vfio-manager": {
                "image": "r/own:1",
                "command": ["/bin/sh", "-c"],
                "args": ["vfio-manage bind --all && while true; do sleep 86400; done"],
                "env": ["HOST_ROOT=/host"],
                "mounts": ["host-sys:/sys", "host-lib-modules:/lib/modules:ro", "host-root:/host"],
                "security": "privileged S0",
                "pre_stop": ["/bin/sh", "-c", "vfio-manage unbind --all"],
                "resources": SMALL,
            }
        },
        "volumes": [
            "host-sys=/sys(D)",
            "host-lib-modules=/lib/modules(D)",
            "run-nvidia=/run/nvidia(DC)",
            "host-root=/(-)",
        ],
    },
    "nvidia-sandbox-device-plugin-daemonset": {
        "state": "state-sandbox-device-plugin",
        "account": "nvidia-sandbox-device-plugin",
        "scc": "nvidia-sandbox-device-plugin",
        "deploy": "sandbox-device-plugin",
        "init": {"vfio-pci-validation": WAIT, "vgpu-devices-validation": WAIT},
        "containers": {
            "nvidia-sandbox-device-plugin-ctr": {
                "image": "r/own:1",
                "env": ["NODE_NAME<-spec.nodeName", "POD_NAMESPACE<-metadata.namespace"],
                "mounts": [
                    "device-plugin:/var/lib/kubelet/device-plugins",
                    "vfio:/dev/vfio",
                    "cdi-root:/var/run/cdi",
                ],
                "security": "privileged",
            }
        },
        "volumes": [
            "device-plugin=/var/lib/kubelet/device-plugins(-)",
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "vfio=/dev/vfio(-)",
            "cdi-root=/var/run/cdi(DC)",
        ],
    },
    "nvidia-kata-sandbox-device-plugin-daemonset": {
        "state": "state-kata-device-plugin",
        "mode": "kata",
        "account": "nvidia-kata-sandbox-device-plugin",
        "scc": "nvidia-kata-sandbox-device-plugin",
        "deploy": "kata-sandbox-device-plugin",
        "init": {"vfio-pci-validation": WAIT},
        "containers": {
            "nvidia-kata-sandbox-device-plugin-ctr": {
                "image": "r/own:1",
                "env": [
                    "NODE_NAME<-spec.nodeName",
                    "POD_NAMESPACE<-metadata.namespace",
                    "POD_SERVICE_ACCOUNT<-spec.serviceAccountName",
                ],
                "mounts": ["device-plugin:/var/lib/kubelet/device-plugins", "cdi-root:/var/run/cdi"],
                "security": "privileged",
            }
        },
        "volumes": [
            "device-plugin=/var/lib/kubelet/device-plugins(-)",
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "cdi-root=/var/run/cdi(DC)",
        ],
    },
    "nvidia-cc-manager": {
        "state": "state-cc-manager",
        "mode": "kata",
        "account": "nvidia-cc-manager",
        "deploy": "cc-manager",
        "by_name": True,
        "pod": {"terminationGracePeriodSeconds": 30},
        "init": {},
        "containers": {
            "nvidia-cc-manager": {
                "image": "r/own:1",
                "env": ["NODE_NAME<-spec.nodeName", "NVIDIA_VISIBLE_DEVICES=void", "DEFAULT_CC_MODE=on"],
                "mounts": ["host-sys:/sys", "run-nvidia:/run/nvidia"],
                "security": "privileged S0",
                "pre_stop": ["/bin/rm", "-f", "/run/nvidia/validations/.cc-manager-ctr-ready"],
                "resources": SMALL,
            }
        },
        "volumes": ["host-sys=/sys(D)", "run-nvidia=/run/nvidia(DC)"],
    },
}
FILES = ("26.3.3-default", "26.7.0-default")


@pytest.fixture(params=[(file, name) for file in FILES for name in DAEMON_SETS], ids=lambda each: "-".join(each))
def case(request):
    file, name = request.param
    want = DAEMON_SETS[name]
    return want, rendering.daemon_set(name, file, policy(want.get("mode", "kubevirt")))


def test_metadata(case):
    want, found = case
    metadata, template = found["metadata"], found["spec"]["template"]["metadata"]
    name, user = metadata["name"], {"helm.sh/chart": "gpu-operator-v1.0.0-devel"}
    user["app.kubernetes.io/managed-by"] = "gpu-operator"
    key = "name" if want.get("by_name") else "app"
    labels = want.get("labels", {})
    state = {"nvidia.com/gpu-operator.state": want["state"]}
    assert metadata["labels"] == {"app": name, **labels, **user, **state}
    assert template["labels"] == {key: name, **labels, **user}
    assert found["spec"]["selector"]["matchLabels"] == want.get("selector", {key: name})
    assert metadata.get("annotations") == ({"openshift.io/scc": want["scc"]} if "scc" in want else None)
    assert template.get("annotations") == want.get("template_annotations")
    assert found["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


def test_pod(case):
    want, found = case
    pod = notation.pod(found)
    lists = {"initContainers", "containers", "volumes"}
    assert {key: value for key, value in pod.items() if key not in lists} == {
        "serviceAccountName": want["account"],
        "nodeSelector": {f"nvidia.com/gpu.deploy.{want['deploy']}": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
        **want.get("pod", {}),
    }
    assert notation.volumes(pod) == want["volumes"]
    assert [each["name"] for each in pod.get("initContainers", [])] == list(want["init"])
    assert [each["name"] for each in pod["containers"]] == list(want["containers"])


def test_containers(case):
    want, found = case
    for name, row in {**want["init"], **want["containers"]}.items():
        container = notation.container(found, name)
        assert container["image"] == row["image"]
        assert container.get("command") == row.get("command")
        if row is not WAIT and "wait" not in container.get("args", [""])[0]:
            assert container.get("args") == row.get("args")
        assert notation.env(container) == row["env"]
        assert notation.mounts(container) == row["mounts"]
        assert notation.security(container) == row["security"]
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        assert hook == row.get("pre_stop")
        assert container.get("resources") == row.get("resources")


@pytest.mark.parametrize("name", DAEMON_SETS)
def test_other_objects_of_the_state(name):
    want = DAEMON_SETS[name]
    results = rendering.states(changes=policy(want.get("mode", "kubevirt")))
    (state,) = [each for each in results if each.state == want["state"]]
    account = ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]
    assert [(each["kind"], each["metadata"]["name"]) for each in state.objects] == [
        *((kind, want["account"]) for kind in account),
        *(("ConfigMap", config_map) for config_map in want.get("config_maps", [])),
        ("DaemonSet", name),
    ]


# --- Enablement (4.1) -------------------------------------------------------------------------------------------------
KUBEVIRT = ["vgpu-manager", "vgpu-device-manager", "sandbox-validation", "vfio-manager", "sandbox-device-plugin"]
KATA = [*KUBEVIRT[:-1], "kata-device-plugin"]
ALL = [*KUBEVIRT, "kata-device-plugin", "kata-manager", "cc-manager"]


def states_on(changes, file="26.7.0-default"):
    on = {each.state for each in rendering.states(file, changes) if each.enabled}
    return [name for name in ALL if f"state-{name}" in on]


@pytest.mark.parametrize(
    ("file", "changes", "states"),
    [
        ("26.7.0-default", policy("kubevirt"), KUBEVIRT),
        ("26.7.0-default", policy("kata"), [*KATA, "cc-manager"]),
        ("26.3.3-default", policy("kubevirt"), [*KUBEVIRT, "kata-manager"]),
        ("26.3.3-default", policy("kata"), [*KATA, "kata-manager", "cc-manager"]),
        ("26.7.0-default", policy(None), KUBEVIRT),
        ("26.7.0-default", policy("unknown"), KUBEVIRT),
        ("26.3.3-default", policy("kata", sandboxWorkloads={"enabled": False}), []),
        ("26.3.3-default", policy("kata", sandboxWorkloads={"enabled": None}), []),
        (
            "26.3.3-default",
            policy("kata", **{name: {"enabled": None} for name in SECTIONS}),
            ["sandbox-validation"],
        ),
        ("26.3.3-default", policy("kata", **{n: {"enabled": False} for n in SECTIONS}), ["sandbox-validation"]),
        ("26.7.0-default", policy(driver={"useNvidiaDriverCRD": True}), KUBEVIRT[1:]),
    ],
)
def test_enabled(file, changes, states):
    assert states_on(changes, file) == states


def test_all_states_come_in_order():
    names = [each.state for each in rendering.states()]
    assert names[-8:] == [f"state-{name}" for name in ALL[:3]] + [f"state-{name}" for name in ALL[3:]]


# --- Common options ---------------------------------------------------------------------------------------------------
OWN = {
    "nvidia-vgpu-manager-daemonset": ("vgpuManager", "nvidia-vgpu-manager-ctr"),
    "nvidia-vgpu-device-manager": ("vgpuDeviceManager", "nvidia-vgpu-device-manager"),
    "nvidia-vfio-manager": ("vfioManager", "nvidia-vfio-manager"),
    "nvidia-sandbox-device-plugin-daemonset": ("sandboxDevicePlugin", "nvidia-sandbox-device-plugin-ctr"),
    "nvidia-kata-sandbox-device-plugin-daemonset": (
        "kataSandboxDevicePlugin",
        "nvidia-kata-sandbox-device-plugin-ctr",
    ),
    "nvidia-kata-manager": ("kataManager", "nvidia-kata-manager"),
    "nvidia-cc-manager": ("ccManager", "nvidia-cc-manager"),
    "nvidia-sandbox-validator": ("validator", "nvidia-sandbox-validator"),
}
KATA_ONLY = {"nvidia-kata-sandbox-device-plugin-daemonset", "nvidia-cc-manager"}
RESOURCES = {"limits": {"memory": "1Gi"}}


@pytest.mark.parametrize("name", OWN)
def test_common_options(name):
    section, container_name = OWN[name]
    changes = {
        "args": ["mine"],
        "env": [{"name": "A", "value": "1"}],
        "resources": RESOURCES,
        "hostNetwork": True,
        "imagePullPolicy": "Always",
        "imagePullSecrets": ["own"],
    }
    mode = "kata" if name in KATA_ONLY else "kubevirt"
    found = rendering.daemon_set(name, "26.3.3-default", policy(mode, **{section: changes}))
    pod, container = notation.pod(found), notation.container(found, container_name)
    assert container["args"] == ["mine"]
    assert "A=1" in notation.env(container)
    assert container["resources"] == RESOURCES
    assert container["imagePullPolicy"] == "Always"
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert {"name": "own"} in pod["imagePullSecrets"]
    init = [each.get("resources") for each in pod.get("initContainers", [])]
    assert init == [None] * len(init), "26.3.3 leaves init containers alone"


@pytest.mark.parametrize("name", ["nvidia-vgpu-manager-daemonset", "nvidia-vfio-manager", "nvidia-sandbox-validator"])
def test_resources_of_init_containers_since_26_7(name):
    found = rendering.daemon_set(name, changes=policy(**{OWN[name][0]: {"resources": RESOURCES}}))
    assert all(each["resources"] == RESOURCES for each in notation.pod(found)["initContainers"])


@pytest.mark.parametrize(
    ("section", "variable"),
    [
        ("vgpuManager", "VGPU_MANAGER_IMAGE"),
        ("vgpuDeviceManager", "VGPU_DEVICE_MANAGER_IMAGE"),
        ("vfioManager", "VFIO_MANAGER_IMAGE"),
        ("sandboxDevicePlugin", "SANDBOX_DEVICE_PLUGIN_IMAGE"),
        ("kataSandboxDevicePlugin", "KATA_SANDBOX_DEVICE_PLUGIN_IMAGE"),
        ("kataManager", "KATA_MANAGER_IMAGE"),
        ("ccManager", "CC_MANAGER_IMAGE"),
    ],
)
def test_missing_image(section, variable):
    mode = "kata" if section in ("kataSandboxDevicePlugin", "ccManager") else "kubevirt"
    nothing = dict.fromkeys(("repository", "image", "version"))
    error = rendering.error(policy(mode, **{section: nothing}), "26.3.3-default")
    assert f"spec.{section}" in error.message
    assert variable in error.message


@pytest.mark.parametrize("section", ["vgpuManager", "vfioManager"])
def test_driver_manager_options(section):
    manager = {"env": [{"name": "ENABLE_AUTO_DRAIN", "value": "true"}], "imagePullSecrets": ["m"]}
    name = {"vgpuManager": "nvidia-vgpu-manager-daemonset", "vfioManager": "nvidia-vfio-manager"}[section]
    changes = policy(**{section: {"driverManager": manager, "imagePullSecrets": ["own"]}})
    found = rendering.daemon_set(name, changes=changes)
    assert "ENABLE_AUTO_DRAIN=true" in notation.env(notation.container(found, "k8s-driver-manager"))
    assert notation.pod(found)["imagePullSecrets"] == [{"name": "m"}, {"name": "own"}]
    nothing = dict.fromkeys(("repository", "image", "version"))
    error = rendering.error(policy(**{section: {"driverManager": nothing}}))
    assert f"spec.{section}.driverManager" in error.message


def test_user_labels_never_touch_a_selector():
    changes = policy("kata", daemonsets={"labels": {"name": "mine", "app": "mine", "team": "x"}})
    for name in ("nvidia-vfio-manager", "nvidia-cc-manager"):
        found = rendering.daemon_set(name, changes=changes)
        labels = found["spec"]["template"]["metadata"]["labels"]
        assert (labels["name"], labels["team"]) == (name, "x")
        assert "app" not in labels


def test_tolerations_reach_every_operand():
    wanted = [{"key": "gpu", "operator": "Exists"}]
    for name, want in DAEMON_SETS.items():
        changes = policy(want.get("mode", "kubevirt"), daemonsets={"tolerations": wanted})
        assert notation.pod(rendering.daemon_set(name, changes=changes))["tolerations"] == wanted


# --- Each state's own options -----------------------------------------------------------------------------------------
def test_vgpu_manager_module_parameters():
    changes = policy(vgpuManager={"kernelModuleConfig": {"name": "params"}})
    found = rendering.daemon_set("nvidia-vgpu-manager-daemonset", changes=changes, config_maps={"params": ("b", "a")})
    mounts = notation.mounts(notation.container(found, "nvidia-vgpu-manager-ctr"))
    assert mounts[-2:] == ["params:/drivers/a:ro (sub=a)", "params:/drivers/b:ro (sub=b)"]
    assert notation.volumes(notation.pod(found))[-1] == "params=params a->a b->b"
    error = rendering.error(changes, config_maps={"params": None})
    assert error.state == "state-vgpu-manager"
    assert "spec.vgpuManager.kernelModuleConfig.name" in error.message


@pytest.mark.parametrize(
    ("config", "default"), [({"name": "mine"}, "default"), ({"name": "mine", "default": "x"}, "x")]
)
def test_vgpu_device_manager_config(config, default):
    env = [{"name": "DEFAULT_VGPU_CONFIG", "value": "ignored"}]
    changes = policy(vgpuDeviceManager={"config": {"default": None, **config}, "env": env})
    objects = rendering.objects(changes=changes)
    assert ("ConfigMap", "default-vgpu-devices-config") not in objects
    found = objects["DaemonSet", "nvidia-vgpu-device-manager"]
    assert notation.volumes(notation.pod(found))[0] == "vgpu-config=mine"
    env = notation.env_dict(notation.container(found, "nvidia-vgpu-device-manager"))
    assert env["DEFAULT_VGPU_CONFIG"] == default


def test_vgpu_device_manager_waits_for_either_kind_of_manager():
    found = rendering.daemon_set("nvidia-vgpu-device-manager", changes=policy())
    (script,) = notation.container(found, "vgpu-manager-validation")["args"]
    for file in ("vgpu-manager-ready", "host-vgpu-manager-ready"):
        assert f"[ -f /run/nvidia/validations/{file} ]" in script


@pytest.mark.parametrize(
    ("mode", "enabled", "there"),
    [("kata", True, True), ("kata", False, False), ("kubevirt", True, False)],
)
def test_sandbox_validator_waits_for_the_cc_manager_where_it_runs(mode, enabled, there):
    found = rendering.daemon_set("nvidia-sandbox-validator", changes=policy(mode, ccManager={"enabled": enabled}))
    names = [each["name"] for each in notation.pod(found)["initContainers"]]
    assert names == (["cc-manager-validation"] if there else []) + list(CHECKS)
    if there:
        container = notation.container(found, "cc-manager-validation")
        want = check("cc-manager", [VALIDATIONS], by_workload=False)
        assert notation.env(container) == want["env"]
        assert notation.mounts(container) == want["mounts"]
        assert notation.security(container) == want["security"]


@pytest.mark.parametrize(
    ("section", "container"),
    [
        ("vfioPCI", "vfio-pci-validation"),
        ("vgpuManager", "vgpu-manager-validation"),
        ("vgpuDevices", "vgpu-devices-validation"),
    ],
)
def test_sandbox_validator_component_env(section, container):
    env = [{"name": "A", "value": "1"}, {"name": "WITH_WAIT", "value": "false"}]
    changes = policy(validator={section: {"env": env}}, sandboxWorkloads={"defaultWorkload": "vm-vgpu"})
    found = rendering.daemon_set("nvidia-sandbox-validator", changes=changes)
    rows = notation.env(notation.container(found, container))
    assert rows[0] == "WITH_WAIT=false"
    assert rows[-2:] == ["DEFAULT_GPU_WORKLOAD_CONFIG=vm-vgpu", "A=1"]
    others = [each for each in CHECKS if each != container]
    assert not any("A=1" in notation.env(notation.container(found, each)) for each in others)


@pytest.mark.parametrize(
    ("name", "container", "layer", "workload"),
    [
        ("nvidia-sandbox-device-plugin-daemonset", "vfio-pci-validation", "vfio-pci", "vm-passthrough"),
        ("nvidia-sandbox-device-plugin-daemonset", "vgpu-devices-validation", "vgpu-devices", "vm-vgpu"),
        ("nvidia-kata-sandbox-device-plugin-daemonset", "vfio-pci-validation", "vfio-pci", "vm-passthrough"),
    ],
)
def test_device_plugins_wait_for_their_layer(name, container, layer, workload, tmp_path, shell):
    mode = "kata" if name in KATA_ONLY else "kubevirt"
    (script,) = notation.container(rendering.daemon_set(name, changes=policy(mode)), container)["args"]
    (tmp_path / "workload-type").write_text("container\n")
    assert shell(script) == 0, "another workload needs no wait"
    (tmp_path / "workload-type").write_text(f"{workload}\n")
    assert shell(script) is None, "the layer is not there yet"
    (tmp_path / f"{layer}-ready").touch()
    assert shell(script) == 0


@pytest.fixture
def shell(tmp_path):
    """Runs a script whose validations folder is ``tmp_path``; None when it still waits (its sleep gives up)."""
    import os
    import subprocess

    (tmp_path / "bin").mkdir()
    sleep = tmp_path / "bin/sleep"
    sleep.write_text("#!/bin/sh\nkill -KILL $PPID\n")
    sleep.chmod(0o755)

    def run(script):
        text = script.replace("/run/nvidia/validations", str(tmp_path))
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        code = subprocess.run(["sh", "-c", text], env=env, capture_output=True, check=False).returncode
        return None if code < 0 else code

    return run


@pytest.mark.parametrize("mode", ["on", "off", "devtools", None])
def test_cc_manager_mode(mode):
    found = rendering.daemon_set("nvidia-cc-manager", changes=policy("kata", ccManager={"defaultMode": mode}))
    rows = notation.env(notation.container(found, "nvidia-cc-manager"))
    assert rows[2:] == ([f"DEFAULT_CC_MODE={mode}"] if mode else [])


def test_scc_of_each_account_bears_its_own_name():
    from groundplane.operands.facts import OpenShift

    objects = rendering.objects(changes=policy("kata"), openshift=OpenShift(version="4.17"), runtime="crio")
    names = {name for kind, name in objects if kind == "SecurityContextConstraints"}
    assert {"nvidia-cc-manager", "nvidia-vfio-manager", "nvidia-sandbox-validator"} <= names
    for name in names:
        assert objects["SecurityContextConstraints", name]["users"] == [f"system:serviceaccount:gpu-operator:{name}"]


def test_custom_host_root():
    changes = policy(hostPaths={"rootFS": "/sysroot", "driverInstallDir": "/opt/driver"})
    found = rendering.daemon_set("nvidia-vfio-manager", changes=changes)
    assert notation.env(notation.container(found, "nvidia-vfio-manager")) == ["HOST_ROOT=/sysroot"]
    assert "host-root=/sysroot(-)" in notation.volumes(notation.pod(found))
    manager = rendering.daemon_set("nvidia-vgpu-device-manager", changes=changes)
    assert "driver-install-dir=/opt/driver(DC)" in notation.volumes(notation.pod(manager))
