"""Node features: the minimal ones by default, node-feature-discovery itself when asked for, none when switched off."""

from typing import Any

import helm_python as helm
import pytest
import yaml
from chart import rendering

NAME = "gpu-operator-node-features"
MINIMAL = {
    (kind, NAME) for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DaemonSet")
}


def made(values: dict[str, Any] | None = None) -> set[tuple[str, str]]:
    """What is rendered besides what there always is."""
    off = {key for key, _ in rendering.objects({"nfd": {"enabled": False}}).items()}
    return {(kind, name) for kind, _, name in rendering.objects(values).keys() - off}


def minimal(values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = rendering.one("DaemonSet", values, NAME)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("values", [{}, {"nfd": {"implementation": "minimal"}}, {"nfd": {"implementation": None}}])
def test_the_minimal_features_are_the_default(values: dict[str, Any]) -> None:
    assert made(values) == MINIMAL


def test_nothing_provides_features_when_switched_off() -> None:
    assert not any(each["kind"] == "DaemonSet" for each in rendering.documents({"nfd": {"enabled": False}}))
    assert made({"nfd": {"enabled": False, "implementation": "upstream"}}) == set()


def test_the_program_may_label_nodes_as_node_features_say_and_nothing_else() -> None:
    assert rendering.one("ClusterRole", name=NAME)["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]},
        {
            "apiGroups": ["nfd.k8s-sigs.io"],
            "resources": ["nodefeatures"],
            "verbs": ["list", "watch", "create", "update", "delete"],
        },
    ]
    assert rendering.one("Role", name=NAME)["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    assert rendering.one("RoleBinding", name=NAME)["roleRef"]["name"] == NAME
    binding = rendering.one("ClusterRoleBinding", name=NAME)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": rendering.NAMESPACE}]
    assert binding["roleRef"]["name"] == NAME


def test_the_program_sees_its_node_and_changes_nothing_of_it() -> None:
    spec = minimal()
    (container,) = spec["containers"]
    (operator,) = rendering.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["node-features"]
    assert container["image"] == operator["image"]
    assert {
        each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]
    } == {
        "NODE_NAME": "spec.nodeName",
        "NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "PCI_CLASS_WHITELIST": "02,0200,0207,0300,0302",
        "PCI_LABEL_FIELDS": "vendor",
        "EXTRA_LABEL_NS": "nvidia.com",
    }
    assert spec["serviceAccountName"] == NAME
    security = container["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (
        True,
        True,
        False,
    )
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert all(each["readOnly"] for each in mounts.values())
    paths = {mounts[each["name"]]["mountPath"]: each["hostPath"]["path"] for each in spec["volumes"]}
    features = "/etc/kubernetes/node-feature-discovery/features.d"
    assert paths == {"/host-etc/os-release": "/etc/os-release", features: features}


def test_its_pods_go_where_the_workers_values_say() -> None:
    default = minimal()
    assert {each["key"] for each in default["tolerations"]} == {
        "node-role.kubernetes.io/control-plane",
        "nvidia.com/gpu",
    }
    assert default["priorityClassName"] == "system-node-critical"
    worker: dict[str, Any] = {
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"gpu": "yes"},
        "affinity": {"nodeAffinity": {}},
        "annotations": {"a": "b"},
        "resources": {"limits": {"memory": "1Gi"}},
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
    }
    values = {"node-feature-discovery": {"worker": worker, "priorityClassName": "high"}}
    spec = minimal(values)
    (container,) = spec["containers"]
    assert (spec["tolerations"], spec["nodeSelector"]) == ([{"operator": "Exists"}], {"gpu": "yes"})
    assert (spec["affinity"], spec["priorityClassName"]) == ({"nodeAffinity": {}}, "high")
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert (container["securityContext"]["runAsUser"], container["securityContext"]["runAsNonRoot"]) == (0, False)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    template = rendering.one("DaemonSet", values, NAME)["spec"]["template"]
    assert template["metadata"]["annotations"] == {"a": "b"}


# --- node-feature-discovery itself ------------------------------------------------------------------------------------

UPSTREAM: dict[str, Any] = {"nfd": {"implementation": "upstream"}}
PREFIX = "gpu-operator-node-feature-discovery"


def container(kind: str, part: str, **values: Any) -> dict[str, Any]:
    merged = rendering.merged(UPSTREAM, {"node-feature-discovery": values})
    (found,) = rendering.one(kind, merged, f"{PREFIX}-{part}")["spec"]["template"]["spec"]["containers"]
    whole: dict[str, Any] = found
    return whole


@pytest.mark.parametrize("values", [UPSTREAM, {"nfd": {"nodefeaturerules": True}}])
def test_upstream_is_master_worker_and_collector(values: dict[str, Any]) -> None:
    found = made(values) - {("NodeFeatureRule", "nvidia-kernel-modules")}
    assert not found & MINIMAL
    assert {each for each in found if each[0] in ("Deployment", "DaemonSet", "ConfigMap", "ServiceAccount")} == {
        ("ServiceAccount", "node-feature-discovery"),
        ("ServiceAccount", f"{PREFIX}-prune"),
        ("ConfigMap", f"{PREFIX}-master-conf"),
        ("ConfigMap", f"{PREFIX}-worker-conf"),
        ("Deployment", f"{PREFIX}-master"),
        ("Deployment", f"{PREFIX}-gc"),
        ("DaemonSet", f"{PREFIX}-worker"),
    }


def test_upstream_finds_what_nvidias_chart_configures() -> None:
    values = rendering.objects(UPSTREAM)
    worker = values["ConfigMap", rendering.NAMESPACE, f"{PREFIX}-worker-conf"]["data"]["nfd-worker.conf"]
    master = values["ConfigMap", rendering.NAMESPACE, f"{PREFIX}-master-conf"]["data"]["nfd-master.conf"]
    pci = yaml.safe_load(worker)["sources"]["pci"]
    assert pci == {"deviceClassWhitelist": ["02", "0200", "0207", "0300", "0302"], "deviceLabelFields": ["vendor"]}
    assert yaml.safe_load(master) == {"extraLabelNs": ["nvidia.com"]}


def test_upstream_is_told_what_the_values_say() -> None:
    assert container("Deployment", "master")["args"] == ["-port=8080"]
    told = container(
        "Deployment",
        "master",
        featureGates={"NodeFeatureGroupAPI": True},
        master={"replicaCount": 2, "instance": "x", "resyncPeriod": "2h", "extraArgs": ["-v=3"], "enableTaints": True},
    )["args"]
    assert told == [
        *("-instance=x", "-enable-leader-election", "-enable-taints", "-resync-period=2h"),
        *("-feature-gates=NodeFeatureGroupAPI=true", "-port=8080", "-v=3"),
    ]
    assert container("DaemonSet", "worker", worker={"ownerRefs": []})["args"] == ["-port=8080"]
    assert container("Deployment", "gc", gc={"interval": "2h"})["args"] == ["-gc-interval=2h"]
    image = {"repository": "registry.example/nfd", "tag": "v1", "pullPolicy": "Never"}
    worker = container("DaemonSet", "worker", image=image)
    assert (worker["image"], worker["imagePullPolicy"]) == ("registry.example/nfd:v1", "Never")


def test_the_worker_sees_its_node_read_only() -> None:
    worker = container("DaemonSet", "worker", worker={"mountUsrSrc": True})
    assert all(each["readOnly"] for each in worker["volumeMounts"])
    paths = {each["mountPath"] for each in worker["volumeMounts"]}
    features = "/etc/kubernetes/node-feature-discovery/features.d"
    assert paths > {"/host-sys", "/host-etc/os-release", "/host-boot", "/host-usr/src", features}
    assert worker["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("part", ["master", "worker", "gc"])
def test_a_part_can_be_switched_off(part: str) -> None:
    switch = {part: {"enable": False}}
    found = made(rendering.merged(UPSTREAM, {"node-feature-discovery": switch}))
    assert not any(name.endswith(f"-{part}") for kind, name in found if kind in ("Deployment", "DaemonSet"))


def test_every_account_that_is_bound_or_used_is_there() -> None:
    found = rendering.objects(UPSTREAM)
    accounts = {name for kind, _, name in found if kind == "ServiceAccount"}
    for (kind, _, name), document in found.items():
        if name.startswith(PREFIX) and kind.endswith("Binding"):
            assert {each["name"] for each in document["subjects"]} <= accounts
        if name.startswith(PREFIX) and kind in ("Deployment", "DaemonSet", "Job"):
            assert document["spec"]["template"]["spec"]["serviceAccountName"] in accounts


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"topologyUpdater": {"enable": True}}, "topologyUpdater.enable"),
        ({"prometheus": {"enable": True}}, "prometheus.enable"),
        ({"worker": {"networkPolicy": {"enabled": True}}}, "worker.networkPolicy.enabled"),
        ({"fullnameOverride": "nfd"}, "fullnameOverride"),
    ],
)
def test_what_it_does_not_install_is_told(values: dict[str, Any], word: str) -> None:
    asked = rendering.merged(UPSTREAM, {"node-feature-discovery": values})
    with pytest.raises(helm.HelmError, match=rf"does not do {word}: .*nfd.enabled to false"):
        rendering.documents(asked)
    rendering.documents({"node-feature-discovery": values})


def test_after_removal_a_job_takes_the_labels_away() -> None:
    job = rendering.one("Job", UPSTREAM, f"{PREFIX}-prune")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-delete"
    (program,) = job["spec"]["template"]["spec"]["containers"]
    assert (program["command"], program["args"]) == (["nfd-master"], ["-prune"])
    without = rendering.merged(UPSTREAM, {"node-feature-discovery": {"postDeleteCleanup": False}})
    assert ("Job", f"{PREFIX}-prune") not in made(without)
