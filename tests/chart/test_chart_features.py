"""Node features: the minimal ones by default, node-feature-discovery itself when asked for, nothing when switched off."""

from typing import Any

import pytest
from chart import rendering

NAME = "gpu-operator-node-features"
MINIMAL = {("ServiceAccount", NAME), ("ClusterRole", NAME), ("ClusterRoleBinding", NAME), ("DaemonSet", NAME)}


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


def test_the_program_may_read_and_label_nodes_and_nothing_else() -> None:
    assert rendering.one("ClusterRole", name=NAME)["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]
    binding = rendering.one("ClusterRoleBinding", name=NAME)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": rendering.NAMESPACE}]
    assert binding["roleRef"]["name"] == NAME


def test_the_program_sees_its_node_and_changes_nothing_of_it() -> None:
    spec = minimal()
    (container,) = spec["containers"]
    (operator,) = rendering.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["node-features"]
    assert container["image"] == operator["image"]
    assert container["env"] == [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
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
