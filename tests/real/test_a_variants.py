"""`helm install` of every variant on real nodes: the policy is the recorded one, and its operands' pods are started."""

from typing import Any

import pytest
from chart.test_chart_policy import expected
from real import stage as stages
from real.stage import Stage

from groundplane.api import names

pytestmark = pytest.mark.real

TO_THE_END = ("host-driver", "host-driver-and-toolkit", "nri")
"""Variants that are followed until all is validated. The default is in test_b_stack, the one with MIG in
test_d_programs; the others are followed until every pod that can run does."""


def node_of(variant: str) -> str:
    return stages.OWN_DRIVER if variant.startswith("host-driver") else stages.FRESH


def defaulted(stage: Stage, policy: dict[str, Any]) -> dict[str, Any]:
    """What the API server makes of a policy."""
    asked = {**policy, "metadata": {**policy["metadata"], "name": "compared"}}
    status, stored = stage.cluster.request("POST", f"{stages.POLICIES}?dryRun=All", asked)
    assert status == 201, stored
    return dict(stored["spec"])


def started(pod: dict[str, Any]) -> bool:
    """Whether the kubelet has taken the pod up: it runs, or says what it waits for."""
    status = pod.get("status", {})
    return "startTime" in status and bool(pod["spec"].get("nodeName"))


def expected_pods(stage: Stage, node: str) -> set[str]:
    """DaemonSets that this node's labels ask for."""
    labels = stage.node_labels(node)
    return {
        name
        for name, each in stage.daemon_sets().items()
        if (each["spec"]["template"]["spec"].get("nodeSelector") or {}).items() <= labels.items()
    }


def owners(pods: list[dict[str, Any]]) -> set[str]:
    return {owner["name"] for pod in pods for owner in pod["metadata"].get("ownerReferences", ())}


@pytest.mark.parametrize("variant", stages.variants())
def test_helm_install(stage: Stage, variant: str) -> None:
    node = node_of(variant)
    stage.use(node)
    before = stage.inventory()
    audited = stage.audited()
    stage.cluster.install(stages.values(variant))
    try:
        assert stage.get(stages.POLICY)["spec"] == defaulted(stage, expected(variant, stages.RELEASE.value))
        stage.until(
            "the operator has labelled the node", lambda: stage.node_labels(node).get(names.GPU_PRESENT) == "true"
        )
        stage.until(
            "every operand for this node has a pod that the kubelet has taken up",
            lambda: (
                len(wanted := expected_pods(stage, node)) > 4
                and wanted <= owners([pod for pod in stage.pods() if started(pod)])
            ),
        )
        if variant in TO_THE_END:
            stage.until("every layer is validated", lambda: stage.ready(node))
        assert stage.forbidden(audited) == []
    finally:
        stage.cluster.uninstall()
        stage.until("the pods are gone", lambda: not stage.items(stages.PODS))
    left = {each for each in stage.inventory() - before if "customresourcedefinition" not in each}
    assert left <= LEFT, "uninstalling leaves nothing but what is listed"


LEFT = {
    "namespace/gpu-operator",  # Helm made it and never deletes namespaces
    "serviceaccount/default",  # belongs to the namespace
    "configmap/kube-root-ca.crt",  # belongs to the namespace
    "lease.coordination.k8s.io/53822513.nvidia.com",  # the operator's; a new one takes it over
}
