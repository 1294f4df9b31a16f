"""The operator's rights: all that it uses, all that it hands on to operands, and nothing else."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from chart import rendering
from operands import rendering as stacks

from deploy.chart import generate
from groundplane.lab.cluster import data
from groundplane.operands import rbac
from groundplane.operands.facts import OpenShift

Right = tuple[str, str, str, str]
"""API group, resource, name of the object (empty: any), verb."""


def rights(rules: Iterable[dict[str, Any]]) -> Iterator[Right]:
    """Rules taken apart, as the API server does it to see whether one covers another."""
    for rule in rules:
        names = rule.get("resourceNames") or [""]
        yield from itertools.product(rule["apiGroups"], rule["resources"], names, rule["verbs"])


def covered(wanted: Iterable[Right], held: Iterable[Right]) -> list[Right]:
    """What of ``wanted`` is not held."""
    have = set(held)
    return [right for right in wanted if right not in have and (*right[:2], "", right[3]) not in have]


def held(document: dict[str, Any]) -> set[Right]:
    return set(rights(document["rules"]))


def operators(values: dict[str, Any] | None = None) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The operator's own roles, those of hooks and of other programs left out."""
    return {
        key: document
        for key, document in rendering.objects(values).items()
        if key[0] in ("Role", "ClusterRole") and key[2].startswith("gpu-operator") and not hooked(document)
        if key[2] in ("gpu-operator", "gpu-operator-events")
    }


def hooked(document: dict[str, Any]) -> bool:
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


EVERYTHING: dict[str, Any] = {
    "sandboxWorkloads": {"enabled": True},
    "driver": {"rdma": {"enabled": True}},
    "dcgm": {"enabled": True},
    "dcgmExporter": {"enablePodLabels": True, "enablePodUID": True},
    "nodeStatusExporter": {"enabled": True},
    "gds": {"enabled": True},
    "gdrcopy": {"enabled": True},
    "vgpuManager": {"enabled": True, "repository": "registry.example", "version": "1"},
    "kataManager": {"enabled": True, "repository": "registry.example", "image": "kata-manager", "version": "1"},
}


@pytest.mark.parametrize("openshift", [False, True], ids=["plain", "openshift"])
@pytest.mark.parametrize("mode", ["kubevirt", "kata"])
@pytest.mark.parametrize("release", rendering.RELEASES)
def test_the_operator_holds_what_it_hands_on(release: str, mode: str, openshift: bool) -> None:
    changes = rendering.merged(EVERYTHING, {"sandboxWorkloads": {"mode": mode}})
    facts = {"openshift": OpenShift(version="4.18")} if openshift else {}
    created = [
        document
        for (kind, _), document in stacks.objects(f"{release}-default", changes, **facts).items()
        if kind in ("Role", "ClusterRole")
    ]
    assert len(created) > 20
    own = operators({"platform": {"openshift": openshift}})
    everywhere = held(own["ClusterRole", "", "gpu-operator"])
    here = everywhere | held(own["Role", rendering.NAMESPACE, "gpu-operator"])
    for document in created:
        missing = covered(rights(document["rules"]), everywhere if document["kind"] == "ClusterRole" else here)
        assert missing == [], f"{document['kind']} {document['metadata']['name']}"


def test_every_account_of_the_table_was_seen() -> None:
    """The policies above leave out no account, so that none escapes the comparison."""
    seen = set()
    for release, mode in itertools.product(rendering.RELEASES, ["kubevirt", "kata"]):
        changes = rendering.merged(EVERYTHING, {"sandboxWorkloads": {"mode": mode}})
        seen |= {name for kind, name in stacks.objects(f"{release}-default", changes) if kind == "Role"}
    assert seen >= set(rbac.ACCOUNTS)


def test_the_operator_holds_what_it_uses_in_the_lab_and_nothing_that_no_one_needs() -> None:
    own = operators()
    places = {("ClusterRole", ""): "cluster", ("Role", rendering.NAMESPACE): "namespace", ("Role", "default"): "events"}
    needed = generate.rights()
    used = {
        (each["kind"], each["metadata"].get("namespace", "")): each["rules"]
        for each in data("operator-rbac.yaml")
        if "rules" in each
    }
    assert {(kind, namespace) for kind, namespace, _ in own} == places.keys() == used.keys()
    for (kind, namespace, _), document in own.items():
        uses = set(rights(used[kind, namespace]))
        grants = set(rights(needed[places[kind, namespace]]["grants"]))
        assert held(document) == uses | grants


def test_no_right_is_a_wildcard_and_none_lets_the_operator_raise_its_own() -> None:
    for document in operators({"platform": {"openshift": True}}).values():
        for group, resource, _, verb in held(document):
            assert "*" not in (group, resource, verb)
            assert verb not in ("escalate", "bind", "impersonate")


def test_rights_on_namespaces_are_for_the_releases_own() -> None:
    rules = rendering.objects(namespace="gpus")["ClusterRole", "", "gpu-operator"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "namespaces" in rule["resources"]] == [["gpus"]]


def test_on_openshift_the_operator_reads_the_driver_toolkits_images() -> None:
    found = operators({"platform": {"openshift": True}})["Role", "openshift", "gpu-operator"]
    assert held(found) == {("image.openshift.io", "imagestreams", "driver-toolkit", verb) for verb in ("list", "watch")}


def test_every_role_is_bound_to_the_operator() -> None:
    found = rendering.objects({"platform": {"openshift": True}})
    for kind, namespace, name in operators({"platform": {"openshift": True}}):
        binding = found[f"{kind}Binding", namespace, name]
        assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "gpu-operator", "namespace": rendering.NAMESPACE}
        ]
