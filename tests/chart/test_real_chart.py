"""The chart on a real control plane: installed, changed, rolled back, removed; the operator in its own rights."""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
from chart import installed, rendering
from conftest import unavailable
from operands import rendering as stacks

from groundplane.api import crd, names
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.operator import manage_crds
from testing.realcluster import build
from testing.realcluster.controlplane import ControlPlane

pytestmark = pytest.mark.real

NO_HOOK = {"operator": {"upgradeCRD": False}}
CRD = f"{installed.CRD_PATH}/clusterpolicies.nvidia.com"
DRIVER_CRD = f"{installed.CRD_PATH}/nvidiadrivers.nvidia.com"


@pytest.fixture(scope="module")
def cluster() -> Iterator[installed.Cluster]:
    """A control plane of its own: what the chart installs is cluster-wide."""
    try:
        build.ensure(build.CONTROL_PLANE)
    except build.UnavailableError as error:
        unavailable(str(error))
    with ControlPlane(audit=True) as plane:
        yield installed.Cluster(plane)


@pytest.fixture
def hooks(cluster: installed.Cluster, tmp_path: Path) -> Iterator[installed.Hooks]:
    with installed.Hooks(cluster, tmp_path) as running:
        yield running


@pytest.fixture
def clean(cluster: installed.Cluster) -> Iterator[None]:
    """No release and no definition, before the test and after it."""
    _remove(cluster)
    yield
    _remove(cluster)


def _remove(cluster: installed.Cluster) -> None:
    cluster.uninstall()
    for definition in (CRD, DRIVER_CRD):
        cluster.plane.request("DELETE", definition)
    installed.until("the definitions to be gone", lambda: not (cluster.find(CRD) or cluster.find(DRIVER_CRD)))


def with_defaults(cluster: installed.Cluster, policy: dict[str, Any]) -> dict[str, Any]:
    """A policy as the API server would store it."""
    asked = copy.deepcopy(policy)
    asked["metadata"] = {"name": "compared"}
    stored: dict[str, Any] = cluster.request("POST", f"{installed.POLICY_PATH}?dryRun=All", asked)
    return stored


FEATURES = ("nodefeaturegroups", "nodefeaturerules", "nodefeatures")


# --- upgrade, rollback, removal ---------------------------------------------------------------------------------------


def make_old(cluster: installed.Cluster) -> None:
    """The definition as an earlier chart left it: with a field that is gone since, and without a newer one."""
    old = cluster.request("GET", CRD)
    spec = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["gone"] = {"type": "string"}
    del spec["properties"]["cdi"]
    old["metadata"]["annotations"] = {names.CRD_SCHEMA_DIGEST: "old"}
    cluster.request("PUT", CRD, old)
    installed.until("the old definition to be in force", lambda: "cdi" not in stored_again(cluster)["spec"])


def stored_again(cluster: installed.Cluster) -> dict[str, Any]:
    """The policy after a write of itself, by which fields that the definition does not know are dropped."""
    policy: dict[str, Any] = cluster.request("PUT", f"{installed.POLICY_PATH}/cluster-policy", cluster.policy())
    return policy


@pytest.mark.usefixtures("clean")
def test_an_upgrade_brings_the_definition_up_to_date_and_a_rollback_the_policy_back(
    cluster: installed.Cluster, hooks: installed.Hooks
) -> None:
    cluster.install({"mig": {"strategy": "mixed"}})
    make_old(cluster)
    cluster.upgrade({"mig": {"strategy": "none"}})
    (ran,) = hooks.ran
    assert ran[:2] == ("gpu-operator-upgrade-crd", 0), ran
    told = dict(line.split(": ") for line in ran[2].splitlines())
    assert told.pop("clusterpolicies.nvidia.com") == "updated"
    assert told.pop("nvidiadrivers.nvidia.com") == "unchanged"
    assert told.keys() == {f"{plural}.nfd.k8s-sigs.io" for plural in FEATURES}
    definition = cluster.find(CRD)
    assert definition is not None
    wanted = crd.cluster_policy_crd()
    assert definition["metadata"]["annotations"] == wanted["metadata"]["annotations"]
    entries = definition["metadata"]["managedFields"]
    assert {each["manager"] for each in entries if "f:spec" in each["fieldsV1"]} == {"helm"}
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema == wanted["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert cluster.policy()["spec"]["mig"] == {"strategy": "none"}
    assert cluster.policy()["spec"]["cdi"]["enabled"] is True
    hooked = [path for path in hook_paths("upgrade") if cluster.find(path)]
    assert hooked == []
    cluster.helm.rollback(rendering.RELEASE, version=1)
    assert cluster.policy()["spec"]["mig"] == {"strategy": "mixed"}
    assert [each["status"] for each in cluster.helm.history(rendering.RELEASE)][-1] == "deployed"


def definitions(cluster: installed.Cluster) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.items(installed.CRD_PATH)]


def hook_paths(does: str) -> list[str]:
    name, ns = f"gpu-operator-{does}-crd", rendering.NAMESPACE
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    return [
        f"/api/v1/namespaces/{ns}/serviceaccounts/{name}-hook-sa",
        f"{rbac}/clusterroles/{name}-hook-role",
        f"{rbac}/clusterrolebindings/{name}-hook-binding",
        f"/apis/batch/v1/namespaces/{ns}/jobs/{name}",
    ]


@pytest.mark.usefixtures("clean")
def test_removal_can_take_the_definitions_too(cluster: installed.Cluster, hooks: installed.Hooks) -> None:
    cluster.install({"operator": {"cleanupCRD": True}})
    cluster.uninstall()
    ((job, status, told),) = hooks.ran
    assert (job, status) == ("gpu-operator-cleanup-crd", 0), told
    for kind in ("clusterpolicies", "nvidiadrivers"):
        assert f"{kind}.nvidia.com: deleted\n" in told
    assert not any("nvidia" in each or "nfd" in each for each in definitions(cluster))
    assert [path for path in hook_paths("cleanup") if cluster.find(path)] == []


@pytest.mark.usefixtures("clean")
def test_values_that_are_refused_install_nothing(cluster: installed.Cluster) -> None:
    before = cluster.everything()
    contradiction = {"cdi": {"enabled": False, "nriPluginEnabled": True}}
    for values, word in (({"driver": {"enabeld": True}}, "enabeld"), (contradiction, "cdi.enabled to true")):
        with pytest.raises(helm.HelmError, match=word):
            cluster.install(values)
    left = {(resource, name) for resource, _, name in cluster.everything() - before}
    assert not [each for each in left if each[0] in ("deployments", "clusterpolicies", "clusterroles")], left


async def test_names_that_another_definition_holds_are_told(cluster: installed.Cluster) -> None:
    names_ = {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    spec = {"group": "example.com", "names": names_, "scope": "Namespaced", "versions": [version]}
    first = {**head, "metadata": {"name": "widgets.example.com"}, "spec": spec}
    rival_names = names_ | {"plural": "gadgets", "singular": "gadget"}
    rival = {**head, "metadata": {"name": "gadgets.example.com"}, "spec": spec | {"names": rival_names}}
    async with Client(Config.detect(kubeconfig=str(cluster.plane.kubeconfig()))) as client:
        told: list[str] = []
        await manage_crds.apply(client, [first], tell=told.append)
        await manage_crds.apply(client, [first], tell=told.append)
        assert told == ["widgets.example.com: created", "widgets.example.com: unchanged"]
        with pytest.raises(
            manage_crds.DefinitionsError, match=r"gadgets.example.com: its names are not accepted.*Widget"
        ):
            await manage_crds.apply(client, [rival])
        await manage_crds.delete(client, [first, rival])
    assert cluster.find(f"{installed.CRD_PATH}/widgets.example.com") is None


# --- every recorded policy, with the operator; last, as the release stays for the rest of the module ----------------


@pytest.fixture(scope="module", params=rendering.RELEASES)
def release(
    request: pytest.FixtureRequest, cluster: installed.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, installed.Operator]]:
    """The chart installed for a release, its operator running; afterwards removed, and what stays is as listed."""
    chosen: str = request.param
    folder = tmp_path_factory.mktemp(f"chart-{chosen}")
    before = cluster.everything()
    cluster.install(rendering.merged(rendering.values("default", chosen), NO_HOOK))
    cluster.add_nodes("gpu-1", "gpu-2")
    with installed.Hooks(cluster, folder):
        with installed.Operator(cluster, folder) as operator:
            yield chosen, operator
        cluster.uninstall()
        for node in ("gpu-1", "gpu-2"):
            cluster.request("DELETE", f"/api/v1/nodes/{node}")
        with contextlib.suppress(AssertionError):  # told below, with what is left
            installed.until("all but what is listed to be gone", lambda: {*_left(cluster, before)} <= STAYS)
    assert {*_left(cluster, before)} == STAYS - {(resource, name) for resource, _, name in before}


def _left(cluster: installed.Cluster, before: set[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """What is there now and was not before: resource and name, without what every namespace gets sooner or later."""
    of_namespace = {("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")}
    for resource, _, name in cluster.everything() - before:
        if (resource, name) not in of_namespace:
            yield resource, name


STAYS = {
    ("namespaces", rendering.NAMESPACE),
    ("customresourcedefinitions", "clusterpolicies.nvidia.com"),
    ("customresourcedefinitions", "nvidiadrivers.nvidia.com"),
    ("apiservices", "v1.nvidia.com"),
    ("apiservices", "v1alpha1.nvidia.com"),
    *(("customresourcedefinitions", f"{plural}.nfd.k8s-sigs.io") for plural in FEATURES),
    ("apiservices", "v1alpha1.nfd.k8s-sigs.io"),
    ("leases", "53822513.nvidia.com"),
}
"""What stays after `helm uninstall`: the namespace, which Helm made on request; the definitions, since deleting them
would delete every policy (operator.cleanupCRD does), and the API server's own entries for their groups; the lease, by
which a new operator knows that the old one has gone."""


def operands(cluster: installed.Cluster) -> set[str]:
    """The DaemonSets that the operator has made: their nodes never run anything, so that is all there is of them."""
    path = f"/apis/apps/v1/namespaces/{rendering.NAMESPACE}/daemonsets"
    return {each["metadata"]["name"] for each in cluster.items(path)} - {"gpu-operator-node-features"}


@pytest.mark.parametrize("variant", rendering.VARIANTS)
def test_a_recorded_policy_is_installed_and_carried_out(
    cluster: installed.Cluster, release: tuple[str, installed.Operator], variant: str
) -> None:
    chosen, operator = release
    cluster.upgrade(rendering.merged(rendering.values(variant, chosen), NO_HOOK))
    recorded = rendering.load(rendering.DATA / "clusterpolicy" / f"{chosen}-{variant}.yaml")
    stored = with_defaults(cluster, recorded)
    live = cluster.policy()
    for section in ("validator", "nodeStatusExporter"):
        stored["spec"][section]["version"] = f"v{chosen}"
    stored["spec"]["daemonsets"]["labels"]["helm.sh/chart"] = live["spec"]["daemonsets"]["labels"]["helm.sh/chart"]
    assert live["spec"] == stored["spec"]
    wanted = {name for kind, name in stacks.objects(f"{chosen}-{variant}") if kind == "DaemonSet"}
    installed.until("the operands that the policy asks for", lambda: operands(cluster) == wanted)
    assert operator.has_judged()["Error"]["reason"] in ("Ready", "OperandNotReady")
    told = {each["reason"]: each["message"] for each in cluster.items("/api/v1/namespaces/default/events")}
    assert "ReconcileFailed" not in told, told["ReconcileFailed"]
    assert cluster.forbidden(installed.ACCOUNT) == []
    assert "Forbidden" not in operator.log.read_text()
