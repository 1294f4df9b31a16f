"""NVIDIADriver: its CRD against facts written down by hand, and what an upgrade policy means.

Sources: contracts/control-plane.md 2, contracts/driver-lifecycle.md 1.1.
"""

import re
from typing import Any

import msgspec
import pytest
from api.crd_notation import (
    COMPONENT,
    CONDITION,
    DAEMONSETS,
    DRAIN,
    ENV,
    LABELS,
    MANAGER,
    MODULES,
    NAMED,
    OFF,
    PARALLEL,
    POD_DELETION,
    PROBE,
    RDMA,
    RESOURCES,
    STRINGS,
    UNAVAILABLE,
    WAIT,
    Table,
    flatten,
    notation,
)
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import clusterpolicy as cp
from groundplane.api import codec, crd, nvidiadriver, schema
from groundplane.api.release import Release

REQUIREMENTS: Table = {
    "": "array @x-kubernetes-list-type",
    "[]": {
        "": "object !key,operator",
        "key": "string",
        "operator": "string",
        "values": {"": "array @x-kubernetes-list-type", "[]": "string"},
    },
}
TERM: Table = {"": "object @x-kubernetes-map-type", "matchExpressions": REQUIREMENTS, "matchFields": REQUIREMENTS}
AFFINITY: Table = {
    "": "object",
    "preferredDuringSchedulingIgnoredDuringExecution": {
        "": "array @x-kubernetes-list-type",
        "[]": {"": "object !preference,weight", "preference": TERM, "weight": "integer/int32"},
    },
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "": "object !nodeSelectorTerms @x-kubernetes-map-type",
        "nodeSelectorTerms": {"": "array @x-kubernetes-list-type", "[]": TERM},
    },
}
POLICY: Table = {
    "": "object",
    "autoUpgrade": "boolean =true",
    "maxParallelUpgrades": PARALLEL,
    "maxUnavailable": UNAVAILABLE,
    "podDeletion": POD_DELETION,
    "waitForCompletion": WAIT,
    "drain": DRAIN,
}
COMMON: Table = {
    "driverType": 'string {gpu,vgpu,vgpu-host-manager} ="gpu" @x-kubernetes-validations',
    "usePrecompiled": "boolean @x-kubernetes-validations",
    "kernelModuleType": MODULES,
    "useOpenKernelModules": "boolean",
    "image": 'string ="nvcr.io/nvidia/driver"',
    **dict.fromkeys(("repository", "version", "imagePullPolicy", "priorityClassName", "secretEnv"), "string"),
    **dict.fromkeys(("imagePullSecrets", "args"), STRINGS),
    **dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), PROBE),
    **dict.fromkeys(("repoConfig", "certConfig", "kernelModuleConfig", "virtualTopologyConfig"), NAMED),
    **dict.fromkeys(("labels", "annotations", "nodeSelector"), LABELS),
    **dict.fromkeys(("gds", "gdrcopy"), COMPONENT),
    "manager": MANAGER,
    "rdma": RDMA,
    "env": ENV,
    "resources": RESOURCES,
    "licensingConfig": {"": "object", "secretName": "string", "name": "string", "nlsEnabled": "boolean"},
    "nodeAffinity": AFFINITY,
    "tolerations": DAEMONSETS["tolerations"],
    "podSecurityContext": DAEMONSETS["podSecurityContext"],
    "hostNetwork": "boolean",
}
SPEC: dict[Release, Table] = {
    Release.V26_3: {"": "object !driverType,image", **COMMON},
    Release.V26_7: {
        "": "object !default,driverType,image @x-kubernetes-validations",
        **COMMON,
        "default": OFF,
        "upgradePolicy": POLICY,
    },
}
STATUS: Table = {
    "": "object !state",
    "state": "string {ignored,ready,notReady,disabled}",
    "namespace": "string",
    "conditions": {"": "array", "[]": CONDITION},
}
RELEASES = (Release.V26_3, Release.V26_7)


def version(release: Release) -> dict[str, Any]:
    (found,) = crd.nvidia_driver_crd(release)["spec"]["versions"]
    return dict(found)


def openapi(release: Release) -> dict[str, Any]:
    return dict(version(release)["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("release", RELEASES)
def test_2_every_property_is_as_written_down(release: Release) -> None:
    whole = {"": "object", "apiVersion": "string", "kind": "string", "metadata": "object"}
    expected = flatten({**whole, "spec": SPEC[release], "status": STATUS})
    assert {path: notation(node) for path, node in schema.walk(openapi(release))} == expected


@pytest.mark.parametrize("release", RELEASES)
def test_2_frame(release: Release) -> None:
    document = crd.nvidia_driver_crd(release)
    assert document["metadata"]["name"] == "nvidiadrivers.nvidia.com"
    spec = document["spec"]
    assert (spec["group"], spec["scope"]) == ("nvidia.com", "Cluster")
    assert spec["names"] == {
        "kind": "NVIDIADriver",
        "listKind": "NVIDIADriverList",
        "plural": "nvidiadrivers",
        "singular": "nvidiadriver",
        "shortNames": ["nvd", "nvdriver", "nvdrivers"],
    }
    served = version(release)
    assert (served["name"], served["served"], served["storage"]) == ("v1alpha1", True, True)
    assert served["subresources"] == {"status": {}}
    columns = [(each["name"], each["type"], each["jsonPath"]) for each in served["additionalPrinterColumns"]]
    default = [("Default", "boolean", ".spec.default")] if release is Release.V26_7 else []
    status, age = ("Status", "string", ".status.state"), ("Age", "string", ".metadata.creationTimestamp")
    assert columns == [status, *default, age]


def test_2_what_may_not_change_and_what_excludes_another() -> None:
    spec = openapi(Release.V26_7)["properties"]["spec"]
    for name in ("driverType", "usePrecompiled"):
        (rule,) = spec["properties"][name]["x-kubernetes-validations"]
        assert rule["rule"] == "self == oldSelf"
        assert name in rule["message"]
    (rule,) = spec["x-kubernetes-validations"]
    assert "nodeSelector" in rule["message"]
    assert "x-kubernetes-validations" not in openapi(Release.V26_3)["properties"]["spec"]


@pytest.mark.parametrize("release", RELEASES)
def test_schema_is_structural(release: Release) -> None:
    for path, node in schema.walk(openapi(release)):
        assert "type" in node or node.get("x-kubernetes-int-or-string") is True, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path
        if "default" in node:
            assert not list(schema.mismatches(node["default"], node, path)), path
        re.compile(node.get("pattern", ""))


def test_each_call_gives_a_document_of_its_own() -> None:
    before = crd.nvidia_driver_crd()
    made = crd.nvidia_driver_crd()["spec"]["versions"][0]
    made["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"].clear()
    made["additionalPrinterColumns"][0]["name"] = "other"
    assert crd.nvidia_driver_crd() == before


# --- Documents --------------------------------------------------------------------------------------------------------


def test_unknown_fields_are_kept_and_listed_and_guessed() -> None:
    loaded = codec.load_nvidia_driver(
        {
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "NVIDIADriver",
            "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"repositry": "r", "repoConfig": {"configMapName": "c"}, "version": None},
        }
    )
    assert loaded.unknown == ["spec.repositry", "spec.repoConfig.configMapName"]
    assert codec.suggest("spec.repositry", codec.NVIDIA_DRIVER) == "spec.repository"
    assert loaded.document["spec"]["repositry"] == "r"
    assert (loaded.driver.name, loaded.driver.spec.version) == ("a", None)


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({"kind": "ClusterPolicy"}, "kind", "expected NVIDIADriver"),
        ({"apiVersion": "nvidia.com/v1"}, "apiVersion", "expected nvidia.com/v1alpha1"),
        ({"spec": {"version": 580}}, "spec.version", "put the value in quotes"),
        ({"spec": {"env": [{"value": "x"}]}}, "spec.env[0].name", "must be set"),
        ({"spec": {"nodeSelector": {"a": True}}}, "spec.nodeSelector.a", "expected a string"),
    ],
)
def test_a_document_that_is_none_says_where(document: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(codec.PolicyError, match=re.escape(words)) as caught:
        codec.load_nvidia_driver(document)
    assert caught.value.path == path


def test_something_else_is_told() -> None:
    with pytest.raises(codec.PolicyError, match="expected an NVIDIADriver, found a list"):
        codec.load_nvidia_driver([])  # type: ignore[arg-type]


def test_a_driver_on_its_way_out_is_seen() -> None:
    def driver(**metadata: str) -> nvidiadriver.NVIDIADriver:
        return codec.load_nvidia_driver({"metadata": {"name": "a", **metadata}}).driver

    assert not driver().deleting
    assert driver(deletionTimestamp="2026-01-01T00:00:00Z").deleting


# --- The upgrade policy: contracts/driver-lifecycle.md 1.1 ------------------------------------------------------------

FULL = {
    "autoUpgrade": True,
    "maxParallelUpgrades": 1,
    "maxUnavailable": "25%",
    "podDeletion": {"force": False, "timeoutSeconds": 300, "deleteEmptyDir": False},
    "waitForCompletion": {"podSelector": "", "timeoutSeconds": 0},
    "drain": {"enable": False, "force": False, "podSelector": "", "timeoutSeconds": 300, "deleteEmptyDir": False},
}
GIVEN: list[tuple[dict[str, Any] | None, dict[str, Any]]] = [
    (None, {}),
    ({}, {"autoUpgrade": False, "maxParallelUpgrades": 0}),
    ({"autoUpgrade": True}, {"maxParallelUpgrades": 0}),
    ({"autoUpgrade": True, "maxParallelUpgrades": 4}, {"maxParallelUpgrades": 4}),
    ({"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": 2}, {"maxUnavailable": 2}),
    ({"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": 0}, {"maxUnavailable": 0}),
    (
        {"autoUpgrade": True, "maxParallelUpgrades": 1, "podDeletion": {"force": True}},
        {"podDeletion": {"force": True, "timeoutSeconds": 0, "deleteEmptyDir": False}},
    ),
    (
        {"autoUpgrade": True, "maxParallelUpgrades": 1, "drain": {"enable": True, "timeoutSeconds": 5}},
        {"drain": {**FULL["drain"], "enable": True, "timeoutSeconds": 5}},  # type: ignore[dict-item]
    ),
    (
        {"autoUpgrade": True, "maxParallelUpgrades": 1, "waitForCompletion": {"podSelector": "a=b"}},
        {"waitForCompletion": {"podSelector": "a=b", "timeoutSeconds": 0}},
    ),
]


def in_force(policy: dict[str, Any] | None) -> dict[str, Any]:
    driver = codec.load_nvidia_driver({"spec": {"upgradePolicy": policy}}).driver
    return {
        name: msgspec.to_builtins(value) if isinstance(value, cp.Spec) else value
        for name, value in msgspec.structs.asdict(nvidiadriver.upgrade_policy(driver.spec)).items()
    }


@pytest.mark.parametrize(("policy", "differs"), GIVEN)
def test_1_1_upgrade_policy(policy: dict[str, Any] | None, differs: dict[str, Any]) -> None:
    found = in_force(policy)
    assert found == {**FULL, **differs}


@given(st.sampled_from(RELEASES), st.text(max_size=20))
def test_the_digest_tells_the_releases_apart(release: Release, words: str) -> None:
    other = openapi(release)
    before = crd.schema_digest(other)
    other["description"] = words
    assert crd.schema_digest(other) == before
    assert before != crd.schema_digest(openapi(next(each for each in RELEASES if each is not release)))
