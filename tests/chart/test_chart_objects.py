"""Everything else that the chart renders: the operator, its hooks, ConfigMaps, rules, and what every object carries."""

from typing import Any

import helm_python as helm
import pytest
import yaml
from chart import rendering
from click.testing import CliRunner

from deploy.chart import generate
from groundplane import __version__
from groundplane.api import node_features
from groundplane.cli import main as cli
from groundplane.operator import settings

EVERYTHING: dict[str, Any] = {
    "platform": {"openshift": True},
    "nfd": {"nodefeaturerules": True, "implementation": "minimal"},
    "operator": {"cleanupCRD": True, "imagePullSecrets": ["pull"], "labels": {"team": "gpu"}},
    "devicePlugin": {"config": {"create": True, "name": "plugin", "data": {"any": "version: v1"}}},
    "migManager": {"config": {"create": True, "name": "mig", "data": {"config.yaml": "version: v1"}}},
    "dcgmExporter": {
        "config": {"create": True, "name": "metrics", "data": "# none\nDCGM_FI_DEV_SM_CLOCK, gauge, MHz\n"}
    },
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map", "namespace": "{{ .Release.Namespace }}"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-text\n  namespace: x\n",
    ],
}
CLUSTER_WIDE = {"ClusterPolicy", "ClusterRole", "ClusterRoleBinding", "NodeFeatureRule", "SecurityContextConstraints",
                "NVIDIADriver", "GPUCluster"}  # fmt: skip


# --- the chart -------------------------------------------------------------------------------------------------------


def test_lint_finds_nothing() -> None:
    report = helm.lint(rendering.CHART, strict=True, with_subcharts=True)
    assert report["total_charts_linted"] >= 1
    assert [each for each in report["messages"] if "icon is recommended" not in each["error"]] == []


@pytest.mark.parametrize("release", rendering.RELEASES)
@pytest.mark.parametrize("variant", rendering.VARIANTS)
def test_lint_finds_nothing_with_the_values_of_a_variant(variant: str, release: str) -> None:
    report = helm.lint(rendering.CHART, rendering.values(variant, release), namespace=rendering.NAMESPACE)
    assert report["errors"] == []


def test_chart_and_image_are_this_version() -> None:
    chart = rendering.chart().metadata
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_generated_files_are_current() -> None:
    assert generate.outdated() == [], "run: python -m deploy.chart.generate"


def crds() -> list[dict[str, Any]]:
    return [yaml.safe_load(each["data"]) for each in rendering.chart().crds]


def test_the_definitions_are_those_of_the_command() -> None:
    printed = CliRunner().invoke(cli.main, ["crds"])
    shipped = {each["metadata"]["name"]: each for each in crds()}
    features = {each["metadata"]["name"] for each in node_features.definitions()}
    documents = list(yaml.safe_load_all(printed.output))
    assert documents == [each for name, each in shipped.items() if name not in features]
    assert all(each["metadata"]["annotations"]["groundplane.dev/schema-digest"] for each in documents)
    assert [each for name, each in shipped.items() if name in features] == sorted(
        node_features.definitions(), key=lambda each: each["metadata"]["name"]
    )


def test_a_packaged_chart_holds_no_tools(tmp_path: Any) -> None:
    archive = helm.package(rendering.CHART, destination=tmp_path)
    with helm.Chart.load(archive) as packed:
        assert [each["name"] for each in packed.files if each["name"].endswith(".py")] == []
        assert packed.crds


# --- every object ----------------------------------------------------------------------------------------------------


UPSTREAM = rendering.merged(EVERYTHING, {"nfd": {"implementation": "upstream"}})


@pytest.mark.parametrize("values", [{}, EVERYTHING, UPSTREAM], ids=["default", "everything", "upstream"])
def test_every_object_is_whole_and_says_where_it_belongs(values: dict[str, Any]) -> None:
    for (kind, namespace, name), document in rendering.objects(values, namespace="gpus").items():
        if name in ("map", "gpu-operator-text"):
            continue
        assert document["apiVersion"]
        assert bool(namespace) == (kind not in CLUSTER_WIDE), (kind, name)
        assert namespace in ("", "gpus") or (kind.startswith("Role") and namespace in ("default", "openshift"))
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == f"gpu-operator-{__version__}"
        assert labels.get("team") == ("gpu" if values else None)


def test_what_is_there_by_default() -> None:
    found = {key for key, document in rendering.objects().items() if not hook(document)}
    ns = rendering.NAMESPACE
    assert {key for key in found if "node-features" not in key[2]} == {
        ("ServiceAccount", ns, "gpu-operator"),
        ("ClusterRole", "", "gpu-operator"),
        ("ClusterRoleBinding", "", "gpu-operator"),
        ("Role", ns, "gpu-operator"),
        ("RoleBinding", ns, "gpu-operator"),
        ("Role", "default", "gpu-operator-events"),
        ("RoleBinding", "default", "gpu-operator-events"),
        ("Deployment", ns, "gpu-operator"),
        ("ClusterPolicy", "", "cluster-policy"),
    }


def test_extra_objects_are_templates() -> None:
    found = rendering.objects(EVERYTHING)
    assert ("ConfigMap", rendering.NAMESPACE, "map") in found
    assert ("ConfigMap", "x", "gpu-operator-text") in found


def test_config_maps_hold_their_data() -> None:
    found = rendering.objects(EVERYTHING)
    data = {
        name: document["data"]
        for (kind, _, name), document in found.items()
        if kind == "ConfigMap" and "data" in document
    }
    assert data == {
        "plugin": {"any": "version: v1"},
        "mig": {"config.yaml": "version: v1"},
        "metrics": {"dcgm-metrics.csv": EVERYTHING["dcgmExporter"]["config"]["data"]},
    }
    spec = rendering.one("ClusterPolicy", EVERYTHING)["spec"]
    assert spec["devicePlugin"]["config"] == {"name": "plugin", "default": ""}
    assert spec["migManager"]["config"] == {"name": "mig", "default": "all-disabled"}
    assert spec["dcgmExporter"]["config"] == {"name": "metrics"}


def test_the_rule_labels_nodes_by_their_modules() -> None:
    rules = rendering.one("NodeFeatureRule", EVERYTHING)["spec"]["rules"]
    made = {
        (label, module)
        for rule in rules
        for label in rule["labels"]
        for module, wanted in rule["matchFeatures"][0]["matchExpressions"].items()
        if wanted == {"op": "Exists"}
    }
    assert made == {
        ("nvidia.com/gdrcopy.capable", "gdrdrv"),
        ("nvidia.com/gds.capable", "nvidia_fs"),
        ("nvidia.com/peermem.capable", "nvidia_peermem"),
    }
    assert {rule["matchFeatures"][0]["feature"] for rule in rules} == {"kernel.loadedmodule"}


# --- the policy, where it is more than the recorded ones -------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "path", "expected"),
    [
        ({"devicePlugin": {"mps": {"root": "/mps"}}}, "devicePlugin.mps", {"root": "/mps"}),
        ({"toolkit": {"args": ["-v"]}}, "toolkit.args", ["-v"]),
        ({"daemonsets": {"podSecurityContext": {"runAsUser": 0}}}, "daemonsets.podSecurityContext", {"runAsUser": 0}),
        ({"daemonsets": {"rollingUpdate": {"maxUnavailable": 2}}}, "daemonsets.rollingUpdate.maxUnavailable", "2"),
        ({"driver": {"upgradePolicy": {"maxUnavailable": "3"}}}, "driver.upgradePolicy.maxUnavailable", 3),
        ({"driver": {"upgradePolicy": {"maxParallelUpgrades": 0}}}, "driver.upgradePolicy.maxParallelUpgrades", 0),
        ({"driver": {"licensingConfig": {"nlsEnabled": False}}}, "driver.licensingConfig.nlsEnabled", False),
        (
            {"operator": {"metrics": {"serviceMonitor": {"enabled": True}}}},
            "operator.metrics.serviceMonitor.enabled",
            True,
        ),
        (
            {"validator": {"cuda": {"env": [{"name": "A", "value": "1"}]}}},
            "validator.cuda.env",
            [{"name": "A", "value": "1"}],
        ),
        ({"cdi": {"enabled": False, "nriPluginEnabled": False}}, "cdi", {"enabled": False}),
        (
            {"dcgmExporter": {"serviceMonitor": {"relabelings": [{"source_labels": ["a"], "target_label": "b"}]}}},
            "dcgmExporter.serviceMonitor.relabelings",
            [{"sourceLabels": ["a"], "targetLabel": "b"}],
        ),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_value_reaches_the_policy(values: dict[str, Any], path: str, expected: object) -> None:
    found: Any = rendering.one("ClusterPolicy", values)["spec"]
    for key in path.split("."):
        found = found[key]
    assert found == expected


def test_a_parallelism_that_is_unset_is_not_unlimited() -> None:
    policy = rendering.one("ClusterPolicy", {"driver": {"upgradePolicy": {"maxParallelUpgrades": None}}})
    assert "maxParallelUpgrades" not in policy["spec"]["driver"]["upgradePolicy"]


def test_labels_of_operands_add_to_the_charts() -> None:
    labels = rendering.one("ClusterPolicy", {"daemonsets": {"labels": {"team": "gpu"}}})["spec"]["daemonsets"]["labels"]
    assert labels.keys() == {"helm.sh/chart", "app.kubernetes.io/managed-by", "team"}


def test_drivers_by_their_own_objects_leave_the_policys_section_empty_in_the_newer_release() -> None:
    values = {"driver": {"nvidiaDriverCRD": {"enabled": True, "deployDefaultCR": False}}}
    newer = rendering.one("ClusterPolicy", values)["spec"]["driver"]
    older = rendering.one("ClusterPolicy", rendering.merged(values, {"operator": {"release": "26.3"}}))["spec"][
        "driver"
    ]
    assert newer.keys() == {"enabled", "useNvidiaDriverCRD", "upgradePolicy"}
    assert older.keys() > newer.keys() | {"version", "manager"}
    assert older["useNvidiaDriverCRD"] is newer["useNvidiaDriverCRD"] is True


# --- the operator ----------------------------------------------------------------------------------------------------


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = rendering.one("Deployment", values)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("release", rendering.RELEASES)
@pytest.mark.parametrize(
    "logging", [{}, {"develMode": True}, {"level": 5, "timeEncoding": "rfc3339"}, {"level": "", "timeEncoding": ""}]
)
def test_the_operator_understands_its_command_line(logging: dict[str, Any], release: str) -> None:
    (container,) = pod({"operator": {"logging": logging, "release": release}})["containers"]
    assert container["command"] == ["gpu-operator"]
    env = {each["name"]: each.get("value", "from a field") for each in container["env"]}
    parsed = settings.parse(container["args"], env)
    assert parsed.leader_elect
    assert str(parsed.release) == release
    assert parsed.log_devel is bool(logging.get("develMode"))
    manager = {"26.3.3": "v0.11.0", "26.7.0": "v0.12.0"}[release]
    assert dict(parsed.default_images) == {
        "DRIVER_MANAGER_IMAGE": f"nvcr.io/nvidia/cloud-native/k8s-driver-manager:{manager}",
        "VALIDATOR_IMAGE": f"nvcr.io/nvidia/gpu-operator:v{release}",
    }


def test_the_operator_is_the_pod_that_the_contract_describes() -> None:
    deployment = rendering.one("Deployment")
    assert deployment["spec"]["replicas"] == 1
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["labels"]["nvidia.com/gpu-driver-upgrade-drain.skip"] == "true"
    assert template["metadata"]["annotations"] == {"openshift.io/scc": "restricted-readonly"}
    spec = pod()
    (container,) = spec["containers"]
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["tolerations"][0]["key"] == "node-role.kubernetes.io/control-plane"
    assert spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert container["resources"] == {
        "limits": {"cpu": "500m", "memory": "350Mi"},
        "requests": {"cpu": "200m", "memory": "100Mi"},
    }
    probes = [
        (probe["initialDelaySeconds"], probe["periodSeconds"], probe["httpGet"]["path"])
        for probe in (container["livenessProbe"], container["readinessProbe"])
    ]
    assert probes == [(15, 20, "/healthz"), (5, 10, "/readyz")]


def test_the_operator_runs_with_nothing_it_does_not_need() -> None:
    spec = pod()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "runAsUser" not in pod({"platform": {"openshift": True}})["securityContext"]


def test_what_the_values_say_of_the_operator_reaches_its_pod() -> None:
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
    spec = pod(
        {"operator": {"env": env, "imagePullSecrets": ["a"], "nodeSelector": {"x": "y"}, "labels": {"app": "no"}}}
    )
    assert env[0] in spec["containers"][0]["env"]
    assert spec["imagePullSecrets"] == [{"name": "a"}]
    assert spec["nodeSelector"]["x"] == "y"


# --- hooks -----------------------------------------------------------------------------------------------------------


def hook(document: dict[str, Any]) -> str:
    found: str = document["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    return found


@pytest.mark.parametrize(
    ("moment", "does", "verb", "verbs"),
    [
        ("pre-upgrade", "upgrade", "apply", {"create", "get", "update", "patch"}),
        ("pre-delete", "cleanup", "delete", {"get", "delete"}),
    ],
)
def test_a_hook_manages_the_definitions_with_rights_for_just_that(
    moment: str, does: str, verb: str, verbs: set[str]
) -> None:
    found = {key: each for key, each in rendering.objects(EVERYTHING).items() if hook(each) == moment}
    name, ns = f"gpu-operator-{does}-crd", rendering.NAMESPACE
    weights = {key: each["metadata"]["annotations"]["helm.sh/hook-weight"] for key, each in found.items()}
    assert weights == {
        ("ServiceAccount", ns, f"{name}-hook-sa"): "0",
        ("ClusterRole", "", f"{name}-hook-role"): "0",
        ("ClusterRoleBinding", "", f"{name}-hook-binding"): "0",
        ("Job", ns, name): "1",
    }
    assert {each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for each in found.values()} == {
        "hook-succeeded,before-hook-creation"
    }
    spec = found["Job", ns, name]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (container["command"], container["args"]) == (["manage-crds"], [verb, "--nfd"])
    assert container["image"] == pod(EVERYTHING)["containers"][0]["image"]
    assert spec["serviceAccountName"] == f"{name}-hook-sa"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["tolerations"] == pod()["tolerations"]
    rules = found["ClusterRole", "", f"{name}-hook-role"]["rules"]
    assert {each for rule in rules for each in rule["verbs"]} == verbs
    names = {each["metadata"]["name"] for each in crds()}
    assert all(set(rule["resourceNames"]) == names for rule in rules if rule["verbs"] != ["create"])


def test_the_hooks_leave_the_definitions_of_anothers_node_features_alone() -> None:
    found = rendering.objects({"nfd": {"enabled": False}, "operator": {"cleanupCRD": True}})
    for does in ("upgrade", "cleanup"):
        name = f"gpu-operator-{does}-crd"
        (container,) = found["Job", rendering.NAMESPACE, name]["spec"]["template"]["spec"]["containers"]
        assert len(container["args"]) == 1
        rules = found["ClusterRole", "", f"{name}-hook-role"]["rules"]
        ours = {"clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com"}
        assert {each for rule in rules for each in rule.get("resourceNames", ())} == ours


def test_hooks_are_there_when_asked_for() -> None:
    default = {hook(each) for each in rendering.documents()} - {""}
    assert default == {"pre-upgrade"}
    assert not any(hook(each) for each in rendering.documents({"operator": {"upgradeCRD": False}}))


def test_the_policy_is_left_to_the_hook_that_deletes_its_definition() -> None:
    kept = rendering.one("ClusterPolicy", {"operator": {"cleanupCRD": True}})["metadata"]
    assert kept["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in rendering.one("ClusterPolicy")["metadata"]


# --- notes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "words", "missing"),
    [
        ({}, ["26.7.0", "localhost/groundplane", "No registry serves this name"], ["was not used"]),
        ({"repository": "r.example"}, ["r.example/groundplane"], ["No registry", "was not used"]),
        ({"repository": "nvcr.io/nvidia"}, ["was not used"], []),
        ({"cleanupCRD": True}, ["deletes the custom resource definitions too"], []),
    ],
)
def test_the_notes_say_what_runs_and_what_stays(operator: dict[str, Any], words: list[str], missing: list[str]) -> None:
    (notes,) = [
        content for path, content in rendering.text({"operator": operator}).items() if path.endswith("NOTES.txt")
    ]
    assert all(word in notes for word in words)
    assert not any(word in notes for word in missing)
