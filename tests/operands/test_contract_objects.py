"""What each state consists of: 4.1, 5.1, 5.4, 5.5, 5.8, 9.10 and 9.12 of contracts/control-plane.md."""

import pytest
import yaml
from operands import notation, rendering

from groundplane.api.release import Release
from groundplane.operands.facts import OpenShift

V3, V7 = Release.V26_3, Release.V26_7
ALL_ON = {
    "dcgm": {"enabled": True},
    "nodeStatusExporter": {"enabled": True},
    "dcgmExporter": {"enablePodLabels": True, "serviceMonitor": {"enabled": True}},
}


def full(account, cluster=True):
    names = [("ServiceAccount", account), ("Role", account), ("RoleBinding", account)]
    return names + ([("ClusterRole", account), ("ClusterRoleBinding", account)] if cluster else [])


STATES = {
    "pre-requisites": [("RuntimeClass", "nvidia"), ("RuntimeClass", "nvidia-cdi"), ("RuntimeClass", "nvidia-legacy")],
    "state-operator-metrics": [("Service", "gpu-operator"), ("ServiceMonitor", "gpu-operator")],
    "state-driver": [
        *full("nvidia-driver"),
        ("ConfigMap", "nvidia-driver-startup-probe"),
        ("DaemonSet", "nvidia-driver-daemonset"),
    ],
    "state-container-toolkit": [
        *full("nvidia-container-toolkit", cluster=False),
        ("ConfigMap", "nvidia-container-toolkit-entrypoint"),
        ("DaemonSet", "nvidia-container-toolkit-daemonset"),
    ],
    "state-operator-validation": [*full("nvidia-operator-validator"), ("DaemonSet", "nvidia-operator-validator")],
    "state-device-plugin": [
        *full("nvidia-device-plugin"),
        ("ConfigMap", "nvidia-device-plugin-entrypoint"),
        ("DaemonSet", "nvidia-device-plugin-daemonset"),
    ],
    "state-mps-control-daemon": [
        *full("nvidia-device-plugin-mps-control-daemon"),
        ("DaemonSet", "nvidia-device-plugin-mps-control-daemon"),
    ],
    "state-dcgm": [
        *full("nvidia-dcgm", cluster=False),
        ("DaemonSet", "nvidia-dcgm"),
        ("Service", "nvidia-dcgm"),
    ],
    "state-dcgm-exporter": [
        *full("nvidia-dcgm-exporter", cluster=False),
        ("ClusterRole", "nvidia-dcgm-exporter-read-pods"),
        ("ClusterRoleBinding", "nvidia-dcgm-exporter-read-pods"),
        ("Service", "nvidia-dcgm-exporter"),
        ("ServiceMonitor", "nvidia-dcgm-exporter"),
        ("DaemonSet", "nvidia-dcgm-exporter"),
    ],
    "gpu-feature-discovery": [*full("nvidia-gpu-feature-discovery"), ("DaemonSet", "gpu-feature-discovery")],
    "state-mig-manager": [
        *full("nvidia-mig-manager"),
        ("ConfigMap", "default-mig-parted-config"),
        ("ConfigMap", "default-gpu-clients"),
        ("ConfigMap", "nvidia-mig-manager-entrypoint"),
        ("DaemonSet", "nvidia-mig-manager"),
    ],
    "state-node-status-exporter": [
        *full("nvidia-node-status-exporter"),
        ("Service", "nvidia-node-status-exporter"),
        ("ServiceMonitor", "nvidia-node-status-exporter"),
        ("DaemonSet", "nvidia-node-status-exporter"),
    ],
}
SANDBOX_STATES = [
    "state-vgpu-manager",
    "state-vgpu-device-manager",
    "state-sandbox-validation",
    "state-vfio-manager",
    "state-sandbox-device-plugin",
    "state-kata-device-plugin",
    "state-kata-manager",
    "state-cc-manager",
]


def test_states_in_order_with_their_objects():
    results = rendering.states(changes=ALL_ON, service_monitor_crd=True)
    assert [each.state for each in results] == [*STATES, *SANDBOX_STATES]
    for result in results:
        found = {(each["kind"], each["metadata"]["name"]) for each in result.objects}
        assert found == set(STATES.get(result.state, [])), result.state
        assert result.enabled == (result.state in STATES)


def test_every_object_is_labelled_with_its_state_and_owned():
    for result in rendering.states(changes=ALL_ON, service_monitor_crd=True):
        for each in result.objects:
            metadata = each["metadata"]
            assert metadata["labels"]["nvidia.com/gpu-operator.state"] == result.state
            (owner,) = metadata["ownerReferences"]
            assert owner["controller"] and owner["blockOwnerDeletion"] and owner["kind"] == "ClusterPolicy"
            cluster_wide = each["kind"] in ("ClusterRole", "ClusterRoleBinding", "RuntimeClass")
            assert metadata.get("namespace") == (None if cluster_wide else "gpu-operator")


# Which switch turns a state off, and what an unset switch means in code (1.2, 4.1).
SWITCHES = [
    ("pre-requisites", {"cdi": {"nriPluginEnabled": True}}, {"cdi": {"nriPluginEnabled": None}}, True),
    ("state-driver", {"driver": {"enabled": False}}, {"driver": {"enabled": None}}, True),
    ("state-driver", {"driver": {"useNvidiaDriverCRD": True}}, {}, True),
    ("state-container-toolkit", {"toolkit": {"enabled": False}}, {"toolkit": {"enabled": None}}, True),
    ("state-device-plugin", {"devicePlugin": {"enabled": False}}, {"devicePlugin": {"enabled": None}}, True),
    ("state-mps-control-daemon", {"devicePlugin": {"enabled": False}}, {"devicePlugin": {"enabled": None}}, True),
    ("state-dcgm", {"dcgm": {"enabled": False}}, {"dcgm": {"enabled": None}}, True),
    ("state-dcgm-exporter", {"dcgmExporter": {"enabled": False}}, {"dcgmExporter": {"enabled": None}}, True),
    ("gpu-feature-discovery", {"gfd": {"enabled": False}}, {"gfd": {"enabled": None}}, True),
    ("state-mig-manager", {"migManager": {"enabled": False}}, {"migManager": {"enabled": None}}, True),
    (
        "state-node-status-exporter",
        {"nodeStatusExporter": {"enabled": False}},
        {"nodeStatusExporter": {"enabled": None}},
        False,
    ),
]


@pytest.mark.parametrize(("state", "off", "unset", "default"), SWITCHES)
def test_switches(state, off, unset, default):
    def is_on(changes):
        (result,) = [each for each in rendering.states(changes=changes) if each.state == state]
        assert bool(result.objects) == result.enabled
        return result.enabled

    assert not is_on(off)
    assert is_on(unset) is default


def test_states_that_cannot_be_switched_off():
    sections = ("driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "gfd", "migManager")
    off = {section: {"enabled": False} for section in sections}
    results = rendering.states(changes={**off, "cdi": {"nriPluginEnabled": True}})
    assert [each.state for each in results if each.enabled] == ["state-operator-metrics", "state-operator-validation"]


# --- RuntimeClasses (5.1) ---------------------------------------------------------------------------------------------

RUNTIME_CLASSES = [
    ({"enabled": True}, "nvidia", ["nvidia", "nvidia-cdi", "nvidia-legacy"]),
    ({"enabled": None}, "nvidia", ["nvidia", "nvidia-cdi", "nvidia-legacy"]),
    ({"enabled": False}, "nvidia", ["nvidia"]),
    ({"enabled": True, "nriPluginEnabled": True}, "nvidia", []),
    ({"enabled": True, "default": False}, None, ["nvidia", "nvidia-cdi", "nvidia-legacy"]),
    ({"enabled": True}, "gpu", ["gpu", "nvidia-cdi", "nvidia-legacy"]),
    ({"enabled": True}, "nvidia-cdi", ["nvidia-cdi", "nvidia-legacy"]),
]


@pytest.mark.parametrize("file", rendering.DEFAULTS.values())
@pytest.mark.parametrize(("cdi", "name", "expected"), RUNTIME_CLASSES)
def test_runtime_classes(file, cdi, name, expected):
    made = rendering.objects(file, {"cdi": cdi, "operator": {"runtimeClass": name}, "toolkit": {"enabled": False}})
    classes = {key[1]: each for key, each in made.items() if key[0] == "RuntimeClass"}
    assert list(classes) == expected
    for key, each in classes.items():
        assert each["apiVersion"] == "node.k8s.io/v1"
        assert each["handler"] == key
        assert each["metadata"]["labels"]["app.kubernetes.io/component"] == "gpu-operator"
        assert not {"scheduling", "overhead"} & set(each)


# --- Services, ServiceMonitors, PrometheusRules -----------------------------------------------------------------------

SCRAPE = {"prometheus.io/scrape": "true"}
SERVICES = [
    ("gpu-operator", "gpu-operator-metrics", 8080, SCRAPE, None),
    ("nvidia-dcgm", "dcgm", 5555, None, "Local"),
    ("nvidia-dcgm-exporter", "gpu-metrics", 9400, SCRAPE, "Cluster"),
    ("nvidia-node-status-exporter", "node-status", 8000, SCRAPE, None),
]


@pytest.mark.parametrize(("name", "port_name", "port", "annotations", "policy"), SERVICES)
def test_services(name, port_name, port, annotations, policy):
    service = rendering.objects(changes=ALL_ON)["Service", name]
    assert service["metadata"]["labels"]["app"] == name
    assert service["metadata"].get("annotations") == annotations
    spec = service["spec"]
    assert spec["selector"] == {"app": name}
    assert spec["ports"] == [{"name": port_name, "port": port, "targetPort": port, "protocol": "TCP"}]
    assert spec["type"] == "ClusterIP"
    assert spec.get("internalTrafficPolicy") == policy


def test_the_exporters_service_follows_the_policy():
    changes = {"dcgmExporter": {"service": {"type": "NodePort", "internalTrafficPolicy": "Local"}}}
    spec = rendering.objects(changes=changes)["Service", "nvidia-dcgm-exporter"]["spec"]
    assert (spec["type"], spec["internalTrafficPolicy"]) == ("NodePort", "Local")


MONITORS = [
    ("gpu-operator", "gpu-operator-metrics", "operator"),
    ("nvidia-dcgm-exporter", "gpu-metrics", "app"),
    ("nvidia-node-status-exporter", "node-status", "node-status"),
]


@pytest.mark.parametrize(("name", "port", "job"), MONITORS)
def test_service_monitors_exist_only_with_their_crd(name, port, job):
    without = rendering.objects(changes=ALL_ON)
    assert ("ServiceMonitor", name) not in without
    monitor = rendering.objects(changes=ALL_ON, service_monitor_crd=True)["ServiceMonitor", name]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    spec = monitor["spec"]
    assert spec["jobLabel"] == job
    assert spec["namespaceSelector"] == {"matchNames": ["gpu-operator"]}
    assert spec["selector"] == {"matchLabels": {"app": name}}
    (endpoint,) = spec["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port, "/metrics")


MONITOR_SETTINGS = {
    "enabled": True,
    "interval": "30s",
    "scrapeTimeout": "20s",
    "honorLabels": True,
    "additionalLabels": {"release": "prometheus"},
    "relabelings": [{"action": "replace", "sourceLabels": ["__meta_node"], "targetLabel": "node"}],
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpu-operator", {"operator": {"metrics": {"serviceMonitor": MONITOR_SETTINGS}}}),
        ("nvidia-dcgm-exporter", {"dcgmExporter": {"serviceMonitor": MONITOR_SETTINGS}}),
    ],
)
def test_service_monitor_edits_apply_to_the_first_endpoint(name, changes):
    monitor = rendering.objects(changes=changes, service_monitor_crd=True)["ServiceMonitor", name]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["interval"] == "30s"
    assert endpoint["scrapeTimeout"] == "20s"
    assert endpoint["honorLabels"] is True
    assert endpoint["relabelings"] == [{"action": "replace", "sourceLabels": ["__meta_node"], "targetLabel": "node"}]


def test_the_operators_service_monitor_cannot_be_switched_off():
    changes = {"operator": {"metrics": {"serviceMonitor": {"enabled": False}}}}
    assert ("ServiceMonitor", "gpu-operator") in rendering.objects(changes=changes, service_monitor_crd=True)


@pytest.mark.parametrize("monitor", [{"enabled": False}, {"enabled": None}])
def test_the_exporters_service_monitor_is_off_unless_switched_on(monitor):
    changes = {"dcgmExporter": {"serviceMonitor": monitor}}
    assert ("ServiceMonitor", "nvidia-dcgm-exporter") not in rendering.objects(
        changes=changes, service_monitor_crd=True
    )


@pytest.mark.parametrize(
    ("release", "crd", "enabled", "blocked"),
    [(V3, False, True, True), (V7, False, True, False), (V3, True, True, False), (V3, False, False, False)],
)
def test_only_26_3_waits_for_the_missing_service_monitor_crd(release, crd, enabled, blocked):
    changes = {"dcgmExporter": {"serviceMonitor": {"enabled": enabled}}}
    results = rendering.states(rendering.DEFAULTS[release], changes, service_monitor_crd=crd)
    (exporter,) = [each for each in results if each.state == "state-dcgm-exporter"]
    assert bool(exporter.not_ready) is blocked
    assert not blocked or "servicemonitors.monitoring.coreos.com" in exporter.not_ready
    assert not any(each.not_ready for each in results if each is not exporter)


# --- Rights (5.8) -----------------------------------------------------------------------------------------------------

SCC = "security.openshift.io/securitycontextconstraints named privileged: use"
NODES = "/nodes: get,list,watch"
RULES = {
    ("Role", "nvidia-driver"): [],
    ("ClusterRole", "nvidia-driver"): [
        "config.openshift.io/clusterversions: get,list",
        "/nodes: get,list,patch,update,watch",
        "/pods: get,list,watch",
        "/pods/eviction: create",
        "apps/daemonsets: get",
        (V7, "resource.k8s.io/resourceclaims: get,list"),
    ],
    ("Role", "nvidia-container-toolkit"): ["apps/daemonsets: list"],
    ("Role", "nvidia-operator-validator"): [
        "/pods: create,get,list,watch,update,patch,delete",
        "apps/daemonsets: get,list,watch",
    ],
    ("ClusterRole", "nvidia-operator-validator"): [
        NODES,
        "nvidia.com/clusterpolicies/finalizers: create,get,list,watch,update,patch,delete",
        "nvidia.com/nvidiadrivers/finalizers: create,get,list,watch,update,patch,delete",
    ],
    ("Role", "nvidia-device-plugin"): [],
    ("ClusterRole", "nvidia-device-plugin"): [NODES],
    ("Role", "nvidia-device-plugin-mps-control-daemon"): [],
    ("ClusterRole", "nvidia-device-plugin-mps-control-daemon"): [NODES],
    ("Role", "nvidia-dcgm"): [],
    ("Role", "nvidia-dcgm-exporter"): ["/configmaps: get,list", (V3, "/pods: get,list")],
    ("ClusterRole", "nvidia-dcgm-exporter-read-pods"): ["/pods: get,list,watch"],
    ("Role", "nvidia-gpu-feature-discovery"): [
        "nfd.k8s-sigs.io/nodefeatures: get,list,watch,create,update",
        "/pods: get",
    ],
    ("ClusterRole", "nvidia-gpu-feature-discovery"): [NODES],
    ("Role", "nvidia-mig-manager"): [
        "/pods: get,list,watch,delete",
        "/configmaps: create,get,list,update,patch",
    ],
    ("ClusterRole", "nvidia-mig-manager"): ["/nodes: get,list,watch,update,patch", (V7, "/pods: list")],
    ("Role", "nvidia-node-status-exporter"): ["/pods: get,list", "apps/daemonsets: get,list,watch"],
    ("ClusterRole", "nvidia-node-status-exporter"): [NODES],
}


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_rules(release):
    made = rendering.objects(rendering.DEFAULTS[release], ALL_ON)
    roles = {key: each for key, each in made.items() if key[0] in ("Role", "ClusterRole")}
    assert set(roles) == set(RULES)
    for key, rows in RULES.items():
        wanted = [row if isinstance(row, str) else row[1] for row in rows if isinstance(row, str) or row[0] is release]
        assert notation.rules(roles[key]) == sorted(wanted + ([SCC] if key[0] == "Role" else [])), key


def test_bindings_name_the_account_in_the_namespace():
    made = rendering.objects(changes=ALL_ON)
    for kind in ("Role", "ClusterRole"):
        for (found_kind, name), binding in made.items():
            if found_kind != f"{kind}Binding":
                continue
            assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
            account = name.removesuffix("-read-pods")
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "gpu-operator"}]
            assert ("ServiceAccount", account) in made
            assert (kind, name) in made


def test_only_the_exporters_rights_carry_a_label():
    for (kind, name), each in rendering.objects(changes=ALL_ON).items():
        if kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
            labels = {**each["metadata"]["labels"]}
            del labels["nvidia.com/gpu-operator.state"]
            exporter = name.startswith("nvidia-dcgm-exporter")
            assert labels == ({"app": "nvidia-dcgm-exporter"} if exporter else {}), (kind, name)


# --- ConfigMaps (9.10) ------------------------------------------------------------------------------------------------

CONFIG_MAPS = {
    "nvidia-container-toolkit-entrypoint": ({"app": "nvidia-container-toolkit-daemonset"}, "entrypoint.sh"),
    "nvidia-device-plugin-entrypoint": ({"app": "nvidia-device-plugin-daemonset"}, "entrypoint.sh"),
    "nvidia-mig-manager-entrypoint": ({"app": "nvidia-mig-manager"}, "entrypoint.sh"),
    "default-gpu-clients": ({}, "clients.yaml"),
    "default-mig-parted-config": ({}, "config.yaml"),
}


def test_config_maps():
    made = rendering.objects()
    for name, (labels, key) in CONFIG_MAPS.items():
        found = made["ConfigMap", name]
        assert list(found["data"]) == [key]
        assert {**found["metadata"]["labels"]} == {
            **labels,
            "nvidia.com/gpu-operator.state": found["metadata"]["labels"]["nvidia.com/gpu-operator.state"],
        }


def test_default_gpu_clients():
    text = rendering.objects()["ConfigMap", "default-gpu-clients"]["data"]["clients.yaml"]
    assert yaml.safe_load(text) == {
        "version": "v1",
        "systemd-services": [
            "nvsm.service",
            "nvsm-mqtt.service",
            "nvsm-core.service",
            "nvsm-api-gateway.service",
            "nvsm-notifier.service",
            "nv_peer_mem.service",
            "nvidia-dcgm.service",
            "dcgm.service",
            "dcgm-exporter.service",
        ],
    }


def test_custom_mig_config_maps_replace_the_defaults():
    changes = {"migManager": {"config": {"name": "my-layouts"}, "gpuClientsConfig": {"name": "my-clients"}}}
    made = rendering.objects(changes=changes)
    assert ("ConfigMap", "default-mig-parted-config") not in made
    assert ("ConfigMap", "default-gpu-clients") not in made
    daemon_set = made["DaemonSet", "nvidia-mig-manager"]
    volumes = notation.volumes(notation.pod(daemon_set))
    assert "gpu-clients=my-clients(0644)" in volumes
    assert "mig-parted-config=my-layouts(0644)" in volumes
    env = notation.env_dict(notation.container(daemon_set, "nvidia-mig-manager"))
    assert env["CONFIG_FILE"] == "/mig-parted-config/config.yaml"
    assert "DEFAULT_CONFIG_FILE" not in env


# --- OpenShift (4.1, 5.4) ---------------------------------------------------------------------------------------------

SCC_HOST = {
    "nvidia-driver": {"HostPID"},
    "nvidia-operator-validator": {"HostPID"},
    "nvidia-dcgm": {"HostNetwork", "HostPorts"},
    "nvidia-dcgm-exporter": {"HostPorts"},
    "nvidia-gpu-feature-discovery": {"HostPID"},
    "nvidia-mig-manager": {"HostIPC", "HostPID"},
    "nvidia-node-status-exporter": set(),
}


@pytest.fixture(scope="module")
def openshift():
    return rendering.objects(
        changes=ALL_ON, openshift=OpenShift(version="4.18"), runtime="crio", service_monitor_crd=True
    )


def test_openshift_security_context_constraints(openshift):
    found = {key[1]: each for key, each in openshift.items() if key[0] == "SecurityContextConstraints"}
    assert set(found) == set(SCC_HOST)
    for name, each in found.items():
        assert each["users"] == [f"system:serviceaccount:gpu-operator:{name}"]
        host = {access for access in ("HostIPC", "HostNetwork", "HostPID", "HostPorts") if each[f"allow{access}"]}
        assert host == SCC_HOST[name], name
        assert each["allowPrivilegedContainer"] and each["allowHostDirVolumePlugin"]
        assert "namespace" not in each["metadata"]


def test_without_openshift_there_are_no_openshift_objects():
    kinds = {kind for kind, _ in rendering.objects(changes=ALL_ON, service_monitor_crd=True)}
    assert not kinds & {"SecurityContextConstraints", "PrometheusRule"}
    assert ("Role", "prometheus-k8s") not in rendering.objects(changes=ALL_ON)


def test_openshift_monitoring_may_read_the_namespace(openshift):
    assert notation.rules(openshift["Role", "prometheus-k8s"]) == [
        "/endpoints: get,list,watch",
        "/pods: get,list,watch",
        "/services: get,list,watch",
    ]
    assert openshift["RoleBinding", "prometheus-k8s"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "openshift-monitoring"}
    ]


ALERTS = {
    "nvidia-gpu-operator-metrics": {
        "GPUOperatorReconciliationFailed": "1h",
        "GPUOperatorReconciliationFailedNfdLabelsMissing": "30m",
        "GPUOperatorOpenshiftDriverToolkitEnabledNfdTooOld": "30m",
        "GPUOperatorOpenshiftDriverToolkitEnabledImageStreamMissing": "30m",
        "GPUOperatorOpenshiftDriverToolkitEnabledImageStreamBroken": "30m",
        "GPUOperatorOpenshiftDriverToolkitEnabledImageTagsMissing": "30m",
        "GPUOperatorDriverAutoUpgradeFailures": "30m",
    },
    "nvidia-node-status-exporter-alerts": {
        "GPUOperatorNodeDeploymentFailed": "30m",
        "GPUOperatorNodeDeploymentDriverFailed": "30m",
        "GPUOperatorNodeDeploymentToolkitFailed": "30m",
        "GPUOperatorNodeDeploymentCudaFailed": "30m",
    },
}


@pytest.mark.parametrize("name", ALERTS)
def test_openshift_alerts(openshift, name):
    (group,) = openshift["PrometheusRule", name]["spec"]["groups"]
    assert {rule["alert"]: rule["for"] for rule in group["rules"]} == ALERTS[name]
    for rule in group["rules"]:
        assert rule["labels"] == {"severity": "warning"}
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert rule["expr"].startswith("gpu_operator_")


def test_openshift_records_the_consoles_series(openshift):
    (group,) = openshift["PrometheusRule", "nvidia-dcgm-exporter"]["spec"]["groups"]
    recorded = {rule["record"]: rule["expr"] for rule in group["rules"]}
    assert recorded["accelerator_gpu_utilization"] == "DCGM_FI_DEV_GPU_UTIL"
    assert len(recorded) == 7


def test_gfd_on_openshift_writes_files_not_node_features(openshift):
    container = notation.container(openshift["DaemonSet", "gpu-feature-discovery"], "gpu-feature-discovery")
    assert notation.env_dict(container)["USE_NODE_FEATURE_API"] == "false"
