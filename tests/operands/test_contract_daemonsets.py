"""Section 9.3 to 9.9 and 9.14 of contracts/control-plane.md, row by row, in both releases."""

import pytest
from operands import notation, rendering

VALIDATOR = "nvcr.io/nvidia/gpu-operator:main-latest"
IMAGES = {
    "26.3.3-default": {
        "toolkit": "nvcr.io/nvidia/k8s/container-toolkit:v1.19.1",
        "plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.19.3",
        "exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-distroless",
        "mig": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.14.2",
        "dcgm": "nvcr.io/nvidia/cloud-native/dcgm:4.5.2-1-ubuntu22.04",
        "validator": VALIDATOR,
    },
    "26.7.0-default": {
        "toolkit": "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0",
        "plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        "exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless",
        "mig": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.15.0",
        "dcgm": "nvcr.io/nvidia/cloud-native/dcgm:4.6.0-1-ubuntu24.04",
        "validator": VALIDATOR,
    },
}

WAIT_RUN_NVIDIA = {
    "image": "validator",
    "command": ["sh", "-c"],
    "env": [],
    "mounts": ["run-nvidia:/run/nvidia:H"],
    "security": "privileged U0",
}
WAIT_VALIDATIONS = {**WAIT_RUN_NVIDIA, "mounts": ["run-nvidia-validations:/run/nvidia/validations:H"]}
VALIDATE = {"image": "validator", "command": ["sh", "-c"], "args": ["nvidia-validator"]}

WORKLOAD_ENV = [
    f"VALIDATOR_IMAGE={VALIDATOR}",
    "VALIDATOR_IMAGE_PULL_POLICY=IfNotPresent",
    "VALIDATOR_RUNTIME_CLASS=nvidia",
]

DAEMON_SETS = {
    "nvidia-container-toolkit-daemonset": {
        "state": "state-container-toolkit",
        "scc": "hostmount-anyuid",
        "account": "nvidia-container-toolkit",
        "node_selector": {"nvidia.com/gpu.deploy.container-toolkit": "true"},
        "pod": {"hostPID": True},
        "runtime_class": None,
        "init": {
            "driver-validation": {
                **VALIDATE,
                "env": ["WITH_WAIT=true", "COMPONENT=driver", "OPERATOR_NAMESPACE<-metadata.namespace"],
                "mounts": [
                    "driver-install-dir:/run/nvidia/driver:H",
                    "run-nvidia-validations:/run/nvidia/validations:B",
                    "host-root:/host:ro:H",
                    "host-dev-char:/host-dev-char",
                ],
                "security": "privileged U0 S0",
            }
        },
        "containers": {
            "nvidia-container-toolkit-ctr": {
                "image": "toolkit",
                "command": ["/bin/sh", "-c"],
                "args": ["/bin/entrypoint.sh"],
                "env": [
                    "ROOT=/usr/local/nvidia",
                    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=management.nvidia.com/gpu",
                    "NVIDIA_VISIBLE_DEVICES=void",
                    "TOOLKIT_PID_FILE=/run/nvidia/toolkit/toolkit.pid",
                    "NRI_NAMESPACE<-metadata.namespace",
                    "CDI_ENABLED=true",
                    "NVIDIA_RUNTIME_SET_AS_DEFAULT=false",
                    "NVIDIA_CONTAINER_RUNTIME_MODE=cdi",
                    "CRIO_CONFIG_MODE=config",
                    "RUNTIME=containerd",
                    "CONTAINERD_RUNTIME_CLASS=nvidia",
                    "RUNTIME_CONFIG=/runtime/config-dir/config.toml",
                    "CONTAINERD_CONFIG=/runtime/config-dir/config.toml",
                    "RUNTIME_DROP_IN_CONFIG=/runtime/config-dir.d/99-nvidia.toml",
                    "RUNTIME_DROP_IN_CONFIG_HOST_PATH=/etc/containerd/conf.d/99-nvidia.toml",
                    "RUNTIME_SOCKET=/runtime/sock-dir/containerd.sock",
                    "CONTAINERD_SOCKET=/runtime/sock-dir/containerd.sock",
                ],
                "mounts": [
                    "nvidia-container-toolkit-entrypoint:/bin/entrypoint.sh:ro (sub=entrypoint.sh)",
                    "toolkit-root:/run/nvidia/toolkit",
                    "run-nvidia-validations:/run/nvidia/validations",
                    "toolkit-install-dir:/usr/local/nvidia",
                    "crio-hooks:/usr/share/containers/oci/hooks.d",
                    "driver-install-dir:/driver-root:H",
                    "host-root:/host:ro:H",
                    "cdi-root:/var/run/cdi",
                    "containerd-config:/runtime/config-dir/",
                    "containerd-drop-in-config:/runtime/config-dir.d/",
                    "containerd-socket:/runtime/sock-dir/",
                ],
                "security": "privileged S0",
            }
        },
        "volumes": [
            "nvidia-container-toolkit-entrypoint=nvidia-container-toolkit-entrypoint(0700)",
            "toolkit-root=/run/nvidia/toolkit(DC)",
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "driver-install-dir=/run/nvidia/driver(DC)",
            "host-root=/(-)",
            "toolkit-install-dir=/usr/local/nvidia(-)",
            "crio-hooks=/run/containers/oci/hooks.d(-)",
            "host-dev-char=/dev/char(-)",
            "cdi-root=/var/run/cdi(DC)",
            "containerd-config=/etc/containerd(DC)",
            "containerd-drop-in-config=/etc/containerd/conf.d(DC)",
            "containerd-socket=/run/containerd(-)",
        ],
    },
    "nvidia-operator-validator": {
        "state": "state-operator-validation",
        "scc": None,
        "labels": {"app.kubernetes.io/part-of": "gpu-operator"},
        "account": "nvidia-operator-validator",
        "node_selector": {"nvidia.com/gpu.deploy.operator-validator": "true"},
        "init": {
            "driver-validation": {
                **VALIDATE,
                "env": ["WITH_WAIT=true", "COMPONENT=driver", "OPERATOR_NAMESPACE<-metadata.namespace"],
                "mounts": [
                    "host-root:/host:ro:H",
                    "driver-install-dir:/run/nvidia/driver:H",
                    "run-nvidia-validations:/run/nvidia/validations:B",
                    "host-dev-char:/host-dev-char",
                ],
                "security": "privileged U0 S0",
            },
            "toolkit-validation": {
                **VALIDATE,
                "env": ["NVIDIA_VISIBLE_DEVICES=all", "WITH_WAIT=false", "COMPONENT=toolkit"],
                "mounts": ["run-nvidia-validations:/run/nvidia/validations:B"],
                "security": "privileged U0",
            },
            "cuda-validation": {
                **VALIDATE,
                "env": [
                    "WITH_WAIT=false",
                    "COMPONENT=cuda",
                    "NODE_NAME<-spec.nodeName",
                    "OPERATOR_NAMESPACE<-metadata.namespace",
                    *WORKLOAD_ENV,
                ],
                "mounts": ["run-nvidia-validations:/run/nvidia/validations:B"],
                "security": "privileged U0",
            },
            "plugin-validation": {
                **VALIDATE,
                "env": [
                    "COMPONENT=plugin",
                    "WITH_WAIT=false",
                    "WITH_WORKLOAD=false",
                    "MIG_STRATEGY=single",
                    "NODE_NAME<-spec.nodeName",
                    "OPERATOR_NAMESPACE<-metadata.namespace",
                    *WORKLOAD_ENV,
                ],
                "mounts": ["run-nvidia-validations:/run/nvidia/validations:B"],
                "security": "privileged U0",
            },
        },
        "containers": {
            "nvidia-operator-validator": {
                "image": "validator",
                "command": ["sh", "-c"],
                "env": [],
                "mounts": ["run-nvidia-validations:/run/nvidia/validations:B"],
                "security": "privileged U0",
                "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "rm -f /run/nvidia/validations/*-ready"]}}},
            }
        },
        "volumes": [
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "driver-install-dir=/run/nvidia/driver(-)",
            "host-root=/(-)",
            "host-dev-char=/dev/char(-)",
        ],
    },
    "nvidia-device-plugin-daemonset": {
        "state": "state-device-plugin",
        "scc": "hostmount-anyuid",
        "account": "nvidia-device-plugin",
        "node_selector": {"nvidia.com/gpu.deploy.device-plugin": "true"},
        "init": {"toolkit-validation": WAIT_VALIDATIONS},
        "containers": {
            "nvidia-device-plugin": {
                "image": "plugin",
                "command": ["/bin/sh", "-c"],
                "args": ["/bin/entrypoint.sh"],
                "env": [
                    "PASS_DEVICE_SPECS=true",
                    "FAIL_ON_INIT_ERROR=true",
                    "DEVICE_LIST_STRATEGY=cdi-annotations,cdi-cri",
                    "DEVICE_ID_STRATEGY=uuid",
                    "NVIDIA_VISIBLE_DEVICES=all",
                    "NVIDIA_DRIVER_CAPABILITIES=all",
                    "MPS_ROOT=/run/nvidia/mps",
                    "MIG_STRATEGY=single",
                    "NVIDIA_MIG_MONITOR_DEVICES=all",
                    "CDI_ENABLED=true",
                    "CDI_ANNOTATION_PREFIX=cdi.k8s.io/",
                    "NVIDIA_CDI_HOOK_PATH=/usr/local/nvidia/toolkit/nvidia-cdi-hook",
                ],
                "mounts": [
                    "nvidia-device-plugin-entrypoint:/bin/entrypoint.sh:ro (sub=entrypoint.sh)",
                    "device-plugin:/var/lib/kubelet/device-plugins",
                    "run-nvidia-validations:/run/nvidia/validations",
                    "driver-install-dir:/driver-root:H",
                    "host-root:/host:ro:H",
                    "cdi-root:/var/run/cdi",
                    "mps-shm:/dev/shm",
                    "mps-root:/mps",
                ],
                "security": "privileged",
            }
        },
        "volumes": [
            "nvidia-device-plugin-entrypoint=nvidia-device-plugin-entrypoint(0700)",
            "device-plugin=/var/lib/kubelet/device-plugins(-)",
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "driver-install-dir=/run/nvidia/driver(DC)",
            "host-root=/(-)",
            "cdi-root=/var/run/cdi(DC)",
            "mps-root=/run/nvidia/mps(DC)",
            "mps-shm=/run/nvidia/mps/shm(-)",
        ],
    },
    "nvidia-device-plugin-mps-control-daemon": {
        "state": "state-mps-control-daemon",
        "scc": "hostmount-anyuid",
        "account": "nvidia-device-plugin",
        "node_selector": {"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/mps.capable": "true"},
        "pod": {"hostPID": True},
        "init": {
            "toolkit-validation": WAIT_RUN_NVIDIA,
            "mps-control-daemon-mounts": {
                "image": "plugin",
                "command": ["mps-control-daemon", "mount-shm"],
                "env": [],
                "mounts": ["mps-root:/mps:B"],
                "security": "privileged",
            },
        },
        "containers": {
            "mps-control-daemon-ctr": {
                "image": "plugin",
                "command": ["mps-control-daemon"],
                "env": [
                    "NODE_NAME<-spec.nodeName",
                    "NVIDIA_VISIBLE_DEVICES=all",
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                    "MIG_STRATEGY=single",
                    "NVIDIA_MIG_MONITOR_DEVICES=all",
                ],
                "mounts": ["mps-shm:/dev/shm", "mps-root:/mps"],
                "security": "privileged",
            }
        },
        "volumes": [
            "run-nvidia=/run/nvidia(D)",
            "mps-root=/run/nvidia/mps(DC)",
            "mps-shm=/run/nvidia/mps/shm(-)",
        ],
    },
    "gpu-feature-discovery": {
        "state": "gpu-feature-discovery",
        "scc": None,
        "labels": {"app.kubernetes.io/part-of": "nvidia-gpu"},
        "account": "nvidia-gpu-feature-discovery",
        "node_selector": {"nvidia.com/gpu.deploy.gpu-feature-discovery": "true"},
        "init": {"toolkit-validation": WAIT_RUN_NVIDIA},
        "containers": {
            "gpu-feature-discovery": {
                "image": "plugin",
                "command": ["gpu-feature-discovery"],
                "env": [
                    "GFD_SLEEP_INTERVAL=60s",
                    "GFD_FAIL_ON_INIT_ERROR=true",
                    "NAMESPACE<-metadata.namespace",
                    "NODE_NAME<-spec.nodeName",
                    "POD_NAME<-metadata.name",
                    "MIG_STRATEGY=single",
                    "NVIDIA_MIG_MONITOR_DEVICES=all",
                ],
                "mounts": ["output-dir:/etc/kubernetes/node-feature-discovery/features.d", "host-sys:/sys:ro"],
                "security": "privileged",
            }
        },
        "volumes": [
            "output-dir=/etc/kubernetes/node-feature-discovery/features.d(-)",
            "host-sys=/sys(-)",
            "run-nvidia=/run/nvidia(D)",
        ],
    },
    "nvidia-dcgm-exporter": {
        "state": "state-dcgm-exporter",
        "scc": "nvidia-dcgm-exporter",
        "account": "nvidia-dcgm-exporter",
        "node_selector": {"nvidia.com/gpu.deploy.dcgm-exporter": "true"},
        "pod": {"automountServiceAccountToken": False},
        "init": {"toolkit-validation": WAIT_RUN_NVIDIA},
        "containers": {
            "nvidia-dcgm-exporter": {
                "image": "exporter",
                "env": [
                    "DCGM_EXPORTER_LISTEN=:9400",
                    "DCGM_EXPORTER_KUBERNETES=true",
                    "DCGM_EXPORTER_COLLECTORS=/etc/dcgm-exporter/dcp-metrics-included.csv",
                    "NODE_NAME<-spec.nodeName",
                ],
                "mounts": ["pod-gpu-resources:/var/lib/kubelet/pod-resources:ro"],
                "security": "privileged",
                "ports": [{"name": "metrics", "containerPort": 9400}],
                "livenessProbe": {
                    "httpGet": {"path": "/health", "port": 9400},
                    "initialDelaySeconds": 45,
                    "periodSeconds": 5,
                    "timeoutSeconds": 1,
                    "failureThreshold": 3,
                },
                "readinessProbe": {
                    "httpGet": {"path": "/health", "port": 9400},
                    "initialDelaySeconds": 45,
                    "periodSeconds": 10,
                    "timeoutSeconds": 1,
                    "failureThreshold": 3,
                },
            }
        },
        "volumes": ["pod-gpu-resources=/var/lib/kubelet/pod-resources(-)", "run-nvidia=/run/nvidia(-)"],
    },
    "nvidia-mig-manager": {
        "state": "state-mig-manager",
        "scc": None,
        "account": "nvidia-mig-manager",
        "node_selector": {"nvidia.com/gpu.deploy.mig-manager": "true"},
        "pod": {"hostPID": True, "hostIPC": True},
        "init": {"toolkit-validation": WAIT_VALIDATIONS},
        "containers": {
            "nvidia-mig-manager": {
                "image": "mig",
                "command": ["/bin/sh", "-c"],
                "args": ["/bin/entrypoint.sh"],
                "env": [
                    "NODE_NAME<-spec.nodeName",
                    "POD_NAME<-metadata.name",
                    "POD_NAMESPACE<-metadata.namespace",
                    "GPU_CLIENTS_FILE=/gpu-clients/clients.yaml",
                    "DEFAULT_GPU_CLIENTS_NAMESPACE<-metadata.namespace",
                    "DEFAULT_CONFIG_FILE=/mig-parted-config/config-default.yaml",
                    "CDI_ENABLED=true",
                    "NVIDIA_CDI_HOOK_PATH=/usr/local/nvidia/toolkit/nvidia-cdi-hook",
                ],
                "mounts": [
                    "nvidia-mig-manager-entrypoint:/bin/entrypoint.sh:ro (sub=entrypoint.sh)",
                    "run-nvidia-validations:/run/nvidia/validations",
                    "host-sys:/sys",
                    "host-root:/host:H",
                    "gpu-clients:/gpu-clients",
                    "mig-parted-config:/mig-parted-config",
                    "driver-install-dir:/driver-root:H",
                    "cdi-root:/var/run/cdi",
                ],
                "security": "privileged",
            }
        },
        "volumes": [
            "nvidia-mig-manager-entrypoint=nvidia-mig-manager-entrypoint(0700)",
            "host-sys=/sys(D)",
            "run-nvidia-validations=/run/nvidia/validations(DC)",
            "driver-install-dir=/run/nvidia/driver(DC)",
            "host-root=/(-)",
            "gpu-clients=default-gpu-clients(0644)",
            "mig-parted-config=default-mig-parted-config(0644) config.yaml->config-default.yaml",
            "cdi-root=/var/run/cdi(DC)",
        ],
    },
    "nvidia-dcgm": {
        "state": "state-dcgm",
        "scc": "hostmount-anyuid",
        "account": "nvidia-dcgm",
        "node_selector": {"nvidia.com/gpu.deploy.dcgm": "true"},
        "init": {"toolkit-validation": WAIT_RUN_NVIDIA},
        "containers": {
            "nvidia-dcgm-ctr": {
                "image": "dcgm",
                "env": [],
                "mounts": [],
                "security": "privileged",
                "ports": [{"name": "dcgm", "containerPort": 5555}],
                "livenessProbe": {"tcpSocket": {"port": 5555}, "initialDelaySeconds": 15},
                "readinessProbe": {"tcpSocket": {"port": 5555}, "initialDelaySeconds": 15},
            }
        },
        "volumes": ["run-nvidia=/run/nvidia(D)"],
    },
    "nvidia-node-status-exporter": {
        "state": "state-node-status-exporter",
        "scc": "nvidia-node-status-exporter",
        "account": "nvidia-node-status-exporter",
        "node_selector": {"nvidia.com/gpu.deploy.node-status-exporter": "true"},
        "runtime_class": None,
        "init": {},
        "containers": {
            "nvidia-node-status-exporter": {
                "image": "validator",
                "command": ["nvidia-validator"],
                "env": [
                    "NVIDIA_VISIBLE_DEVICES=void",
                    "COMPONENT=metrics",
                    "METRICS_PORT=8000",
                    "NODE_NAME<-spec.nodeName",
                    "OPERATOR_NAMESPACE<-metadata.namespace",
                ],
                "mounts": ["run-nvidia:/run/nvidia:H", "host-root:/host:ro:H"],
                "security": "privileged U0",
                "ports": [{"name": "node-status", "containerPort": 8000}],
            }
        },
        "volumes": ["run-nvidia=/run/nvidia(D)", "host-root=/(-)"],
    },
}
# The chart leaves these two off; everything else about them is as in the default policy.
OFF_BY_DEFAULT = {
    "nvidia-dcgm": {"dcgm": {"enabled": True}},
    "nvidia-node-status-exporter": {"nodeStatusExporter": {"enabled": True}},
}
CHART_LABELS = {"helm.sh/chart": "gpu-operator-v1.0.0-devel", "app.kubernetes.io/managed-by": "gpu-operator"}

CASES = [(file, name) for file in IMAGES for name in DAEMON_SETS]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    file, name = request.param
    rendered = rendering.daemon_set(name, file, OFF_BY_DEFAULT.get(name))
    return rendered, DAEMON_SETS[name], IMAGES[file], name


def test_metadata_and_selector(case):
    rendered, expected, _, name = case
    own = {"app": name, **expected.get("labels", {})}
    assert rendered["apiVersion"] == "apps/v1"
    metadata = rendered["metadata"]
    assert metadata["namespace"] == "gpu-operator"
    assert metadata["labels"] == {**own, **CHART_LABELS, "nvidia.com/gpu-operator.state": expected["state"]}
    assert metadata.get("annotations") == ({"openshift.io/scc": expected["scc"]} if expected["scc"] else None)
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "name": "cluster-policy",
            "uid": "7d6b0f4e-0000-4000-8000-000000000001",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    template = rendered["spec"]["template"]["metadata"]
    assert template == {"labels": {**own, **CHART_LABELS}}, "the state label is for objects only, not for pods"
    assert rendered["spec"]["selector"] == {"matchLabels": own}


def test_pod_settings(case):
    rendered, expected, _, _ = case
    pod = dict(notation.pod(rendered))
    for listed in ("containers", "initContainers", "volumes"):
        pod.pop(listed, None)
    runtime_class = expected.get("runtime_class", "nvidia")
    assert pod == {
        "serviceAccountName": expected["account"],
        "nodeSelector": expected["node_selector"],
        "priorityClassName": "system-node-critical",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
        **expected.get("pod", {}),
    }
    assert rendered["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


def test_containers_in_order(case):
    rendered, expected, _, _ = case
    pod = notation.pod(rendered)
    assert [each["name"] for each in pod.get("initContainers", [])] == list(expected["init"])
    assert [each["name"] for each in pod["containers"]] == list(expected["containers"])


def test_each_container(case):
    rendered, expected, images, _ = case
    for name, wanted in {**expected["init"], **expected["containers"]}.items():
        found = dict(notation.container(rendered, name))
        assert notation.env(found) == wanted["env"], name
        assert notation.mounts(found) == wanted["mounts"], name
        assert notation.security(found) == wanted["security"], name
        assert found["image"] == images[wanted["image"]], name
        assert found["imagePullPolicy"] == "IfNotPresent", name
        for key in ("command", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources"):
            assert found.get(key) == wanted.get(key), f"{name}: {key}"
        if "args" in wanted or "command" not in wanted:
            assert found.get("args") == wanted.get("args"), name


def test_volumes_in_order(case):
    rendered, expected, _, _ = case
    assert notation.volumes(notation.pod(rendered)) == expected["volumes"]


@pytest.mark.parametrize(
    "name",
    [name for name, each in DAEMON_SETS.items() if each["init"].get("toolkit-validation", {}).get("env") == []],
)
def test_the_toolkit_wait_looks_for_its_file_every_five_seconds(name):
    (script,) = notation.container(rendering.daemon_set(name, changes=OFF_BY_DEFAULT.get(name)), "toolkit-validation")[
        "args"
    ]
    assert "/run/nvidia/validations/toolkit-ready" in script
    assert "sleep 5" in script
