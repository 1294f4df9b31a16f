"""What the policy changes in every pod: 1.1, 4.1 (labels), 4.3 and 4.4 (host paths) of contracts/control-plane.md."""

import pytest
from msgspec import structs
from operands import notation, rendering

from groundplane.api.release import Release
from groundplane.operands import stack

# DaemonSets whose main container is its section's: section, main container, init containers that it owns.
SECTIONS = {
    "nvidia-container-toolkit-daemonset": ("toolkit", "nvidia-container-toolkit-ctr"),
    "nvidia-operator-validator": ("validator", "nvidia-operator-validator"),
    "nvidia-device-plugin-daemonset": ("devicePlugin", "nvidia-device-plugin"),
    "nvidia-dcgm": ("dcgm", "nvidia-dcgm-ctr"),
    "nvidia-dcgm-exporter": ("dcgmExporter", "nvidia-dcgm-exporter"),
    "gpu-feature-discovery": ("gfd", "gpu-feature-discovery"),
    "nvidia-mig-manager": ("migManager", "nvidia-mig-manager"),
    "nvidia-node-status-exporter": ("nodeStatusExporter", "nvidia-node-status-exporter"),
}
PULL_POLICIES = [("Always", "Always"), ("Never", "Never"), ("", "IfNotPresent"), ("odd", "IfNotPresent")]
MPS = "nvidia-device-plugin-mps-control-daemon"
ON = {"enabled": True}
EVERY = {"dcgm": ON, "nodeStatusExporter": ON}
RESOURCES = {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}}


def render(name, changes, file="26.7.0-default", **more):
    return rendering.daemon_set(name, file, rendering.merged(EVERY, changes), **more)


def all_daemon_sets(changes, **more):
    made = rendering.objects(changes=rendering.merged(EVERY, changes), **more)
    return {name: each for (kind, name), each in made.items() if kind == "DaemonSet"}


@pytest.mark.parametrize(("name", "section", "main"), [(name, *each) for name, each in SECTIONS.items()])
class TestSections:
    """1.1: the fields that every operand section has."""

    def test_user_env_is_set_in_place_or_appended(self, name, section, main):
        def main_env(changes):
            return notation.env(notation.container(render(name, changes), main))

        before = main_env({})
        user = [{"name": "NODE_NAME", "value": "mine"}, {"name": "EXTRA", "value": "1"}, {"name": "EMPTY"}]
        after = main_env({section: {"env": user}})
        literal = [row.partition("=")[0].partition("<-")[0] for row in before]
        assert "NODE_NAME=mine" in after
        if "NODE_NAME" in literal:
            assert after.index("NODE_NAME=mine") == literal.index("NODE_NAME")
        assert "EXTRA=1" in after and "EMPTY=" in after
        assert {*before} - {*after} <= {"NODE_NAME<-spec.nodeName"}

    def test_args_replace_the_main_containers(self, name, section, main):
        rendered = render(name, {section: {"args": ["--a", "--b"]}})
        assert notation.container(rendered, main)["args"] == ["--a", "--b"]

    def test_pull_policy(self, name, section, main):
        for given, expected in (
            ("Always", "Always"),
            ("Never", "Never"),
            ("", "IfNotPresent"),
            ("odd", "IfNotPresent"),
        ):
            rendered = render(name, {section: {"imagePullPolicy": given}})
            assert notation.container(rendered, main)["imagePullPolicy"] == expected

    def test_pull_secrets_are_merged_in_order(self, name, section, main):
        secrets = {"imagePullSecrets": ["a", "b", "a"]}
        changes = rendering.merged({"validator": {"imagePullSecrets": ["b", "v"]}}, {section: secrets})
        found = [each["name"] for each in notation.pod(render(name, changes))["imagePullSecrets"]]
        assert found == (
            ["a", "b"] if name in ("nvidia-operator-validator", "nvidia-node-status-exporter") else ["a", "b", "v"]
        )

    def test_resources_go_to_every_main_container(self, name, section, main):
        changes = {section: {"resources": RESOURCES}, "devicePlugin": {"config": {"name": "plugin-config"}}}
        if section == "devicePlugin":
            changes["devicePlugin"]["resources"] = RESOURCES
        pod = notation.pod(render(name, changes))
        assert [each["resources"] for each in pod["containers"]] == [RESOURCES] * len(pod["containers"])

    def test_host_network(self, name, section, main):
        pod = notation.pod(render(name, {section: {"hostNetwork": True}}))
        assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        pod = notation.pod(render(name, {section: {"hostNetwork": False}}))
        assert "hostNetwork" not in pod and "dnsPolicy" not in pod


def test_mps_follows_the_device_plugin_section():
    section = {"imagePullPolicy": "Always", "imagePullSecrets": ["a"], "resources": RESOURCES, "hostNetwork": True}
    pod = notation.pod(render(MPS, {"devicePlugin": section}))
    assert pod["hostNetwork"] and pod["imagePullSecrets"] == [{"name": "a"}]
    (main,) = pod["containers"]
    assert (main["imagePullPolicy"], main["resources"]) == ("Always", RESOURCES)


@pytest.mark.parametrize(("release", "limited"), [(Release.V26_3, False), (Release.V26_7, True)])
def test_resources_of_init_containers_only_since_26_7(release, limited):
    changes = {
        "validator": {"resources": RESOURCES},
        "devicePlugin": {"resources": RESOURCES, "config": {"name": "plugin-config"}},
    }
    for name in ("nvidia-operator-validator", MPS, "nvidia-device-plugin-daemonset"):
        for each in notation.pod(render(name, changes, rendering.DEFAULTS[release]))["initContainers"]:
            assert each.get("resources") == (RESOURCES if limited else None), (name, each["name"])


def test_malformed_resources_are_an_error_of_the_state():
    error = rendering.error({"toolkit": {"resources": {"limits": {"cpu": 1}, "claims": [{"request": "x"}]}}})
    assert error.state == "state-container-toolkit"
    assert "resources" in str(error)


# --- 4.1: labels and annotations of daemonsets ------------------------------------------------------------------------


def test_user_labels_reach_pods_but_for_selector_keys():
    labels = {"team": "gpu", "app": "mine", "app.kubernetes.io/part-of": "mine", "name": "mine"}
    for name, each in all_daemon_sets({"daemonsets": {"labels": labels}}).items():
        template = each["spec"]["template"]["metadata"]["labels"]
        assert template["team"] == "gpu"
        assert template["app"] == name
        assert template.get("app.kubernetes.io/part-of") != "mine"
        assert each["metadata"]["labels"]["team"] == "gpu"
        assert template.items() >= each["spec"]["selector"]["matchLabels"].items()


def test_user_annotations_reach_objects_and_pods():
    for each in all_daemon_sets({"daemonsets": {"annotations": {"team/contact": "gpu"}}}).values():
        assert each["metadata"]["annotations"]["team/contact"] == "gpu"
        assert each["spec"]["template"]["metadata"]["annotations"]["team/contact"] == "gpu"


def test_labels_stay_off_other_objects():
    for (kind, name), each in rendering.objects(changes={"daemonsets": {"labels": {"team": "gpu"}}}).items():
        assert ("team" in each["metadata"]["labels"]) is (kind == "DaemonSet"), (kind, name)


# --- 4.3: common pod properties ---------------------------------------------------------------------------------------


def test_tolerations_replace_the_built_in_one():
    given = [{"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoExecute", "tolerationSeconds": 5}]
    for each in all_daemon_sets({"daemonsets": {"tolerations": given}}).values():
        assert notation.pod(each)["tolerations"] == given
    for each in all_daemon_sets({"daemonsets": {"tolerations": []}}).values():
        (built_in,) = notation.pod(each)["tolerations"]
        assert built_in["key"] == "nvidia.com/gpu"


def test_priority_class_and_pod_security_context():
    context = {"fsGroup": 7, "seccompProfile": {"type": "RuntimeDefault"}}
    changes = {"daemonsets": {"priorityClassName": "mine", "podSecurityContext": context}}
    for each in all_daemon_sets(changes).values():
        assert notation.pod(each)["priorityClassName"] == "mine"
        assert notation.pod(each)["securityContext"] == context
    for each in all_daemon_sets({"daemonsets": {"priorityClassName": ""}}).values():
        assert notation.pod(each)["priorityClassName"] == "system-node-critical"


@pytest.mark.parametrize(
    ("field", "value"),
    [("podSecurityContext", {"fsGroup": "seven"}), ("tolerations", [{"tolerationSeconds": "soon"}])],
)
def test_malformed_fragments_name_their_field(field, value):
    """Loading a document refuses these already; a policy that is built in code gets here."""
    spec = rendering.spec()
    spec = structs.replace(spec, daemonsets=structs.replace(spec.daemonsets, **{field: value}))
    error = stack.render(spec, rendering.facts())[-1].error
    assert f"spec.daemonsets.{field}" in error.message


def rolling(limit=None):
    return {"type": "RollingUpdate", **({} if limit is None else {"rollingUpdate": {"maxUnavailable": limit}})}


UPDATES = [
    ({"updateStrategy": "OnDelete", "rollingUpdate": {"maxUnavailable": "1"}}, {"type": "OnDelete"}),
    ({"updateStrategy": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "3"}}, rolling(3)),
    ({"updateStrategy": "odd", "rollingUpdate": {"maxUnavailable": "20%"}}, rolling("20%")),
    ({"updateStrategy": "RollingUpdate", "rollingUpdate": None}, rolling()),
    ({"updateStrategy": None, "rollingUpdate": {"maxUnavailable": ""}}, rolling()),
]


@pytest.mark.parametrize(("settings", "expected"), UPDATES)
def test_update_strategy(settings, expected):
    for name, each in all_daemon_sets({"daemonsets": settings}).items():
        driver = name.startswith("nvidia-driver-daemonset")
        assert each["spec"]["updateStrategy"] == ({"type": "OnDelete"} if driver else expected), name


@pytest.mark.parametrize("limit", ["many", "-1", "1.5", "5 %", "99999999999999999999"])
def test_a_limit_that_is_no_number_is_an_error(limit):
    error = rendering.error({"daemonsets": {"rollingUpdate": {"maxUnavailable": limit}}})
    assert "spec.daemonsets.rollingUpdate.maxUnavailable" in error.message
    assert repr(limit) in error.message


WITH_CLASS = {
    "nvidia-device-plugin-daemonset",
    "nvidia-device-plugin-mps-control-daemon",
    "nvidia-dcgm",
    "nvidia-dcgm-exporter",
    "gpu-feature-discovery",
    "nvidia-mig-manager",
    "nvidia-operator-validator",
}


@pytest.mark.parametrize(
    ("changes", "runtime", "name"),
    [
        ({}, "containerd", "nvidia"),
        ({"operator": {"runtimeClass": None}}, "docker", "nvidia"),
        ({"operator": {"runtimeClass": "gpu"}}, "containerd", "gpu"),
        ({"cdi": {"enabled": False}}, "containerd", "nvidia"),
        ({}, "crio", "nvidia"),
        ({"cdi": {"enabled": False}}, "crio", None),
        ({"cdi": {"nriPluginEnabled": True}}, "containerd", None),
    ],
)
def test_runtime_class_name(changes, runtime, name):
    for ds_name, each in all_daemon_sets(changes, runtime=runtime).items():
        assert notation.pod(each).get("runtimeClassName") == (name if ds_name in WITH_CLASS else None), ds_name


def test_nri_annotation_of_dcgm():
    each = render("nvidia-dcgm", {"cdi": {"nriPluginEnabled": True}})
    annotations = each["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"nvidia.cdi.k8s.io/container.nvidia-dcgm-ctr": "management.nvidia.com/gpu=all"}


# --- 4.4: host paths --------------------------------------------------------------------------------------------------


def test_root_fs():
    changes = {"hostPaths": {"rootFS": "/mnt/root/"}}
    for name, each in all_daemon_sets(changes).items():
        pod = notation.pod(each)
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        has_root = "host-root" in paths
        assert paths.get("host-root", "/mnt/root/") == "/mnt/root/"
        assert paths.get("host-dev-char", "/mnt/root/dev/char") == "/mnt/root/dev/char"
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            assert notation.env_dict(container).get("HOST_ROOT") == ("/mnt/root/" if has_root else None), name


@pytest.mark.parametrize("root", ["/", "", None])
def test_the_usual_root_changes_nothing(root):
    assert all_daemon_sets({"hostPaths": {"rootFS": root}}) == all_daemon_sets({})


def test_driver_install_dir():
    path = "/opt/nvidia/driver"
    validated = {"nvidia-container-toolkit-daemonset", "nvidia-operator-validator"}
    for name, each in all_daemon_sets({"hostPaths": {"driverInstallDir": path}}).items():
        rows = notation.volumes(notation.pod(each))
        assert not [row for row in rows if row.startswith("driver-install-dir=/run/nvidia/driver")]
        for container in notation.pod(each).get("initContainers", []):
            env = notation.env_dict(container)
            if container["name"] == "driver-validation":
                assert name in validated
                assert env["DRIVER_INSTALL_DIR"] == env["DRIVER_INSTALL_DIR_CTR_PATH"] == path
                assert f"driver-install-dir:{path}:H" in notation.mounts(container)
            else:
                assert "DRIVER_INSTALL_DIR" not in env


@pytest.mark.parametrize(
    ("release", "root", "expected"),
    [
        (Release.V26_7, "/data/kubelet", "/data/kubelet/pod-resources"),
        (Release.V26_7, "/data/kubelet/", "/data/kubelet/pod-resources"),
        (Release.V26_7, None, "/var/lib/kubelet/pod-resources"),
        (Release.V26_3, "/data/kubelet", "/var/lib/kubelet/pod-resources"),
    ],
)
def test_kubelet_root_moves_pod_resources_since_26_7(release, root, expected):
    rendered = render("nvidia-dcgm-exporter", {"hostPaths": {"kubeletRootDir": root}}, rendering.DEFAULTS[release])
    assert f"pod-gpu-resources={expected}(-)" in notation.volumes(notation.pod(rendered))
    container = notation.container(rendered, "nvidia-dcgm-exporter")
    assert "pod-gpu-resources:/var/lib/kubelet/pod-resources:ro" in notation.mounts(container)
