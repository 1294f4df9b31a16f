"""The CRD against facts written down by hand: every property path with its type, allowed values and default."""

import copy
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
    IMAGE,
    LABELS,
    MANAGER,
    MODULES,
    MONITOR,
    NAMED,
    OFF,
    PARALLEL,
    POD_DELETION,
    PROBE,
    RDMA,
    STANDARD,
    STRINGS,
    UNAVAILABLE,
    WAIT,
    Table,
    flatten,
    notation,
)

from groundplane.api import clusterpolicy, crd, meanings, names, nvidiadriver, schema

DRIVER: Table = {
    **STANDARD,
    "useNvidiaDriverCRD": "boolean",
    "usePrecompiled": "boolean",
    "useOpenKernelModules": "boolean",
    "kernelModuleType": MODULES,
    **dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), PROBE),
    "rdma": RDMA,
    "manager": MANAGER,
    "repoConfig": {"": "object", "configMapName": "string"},
    "certConfig": NAMED,
    "kernelModuleConfig": NAMED,
    "virtualTopology": {"": "object", "config": "string"},
    "licensingConfig": {"": "object", "configMapName": "string", "secretName": "string", "nlsEnabled": "boolean"},
    "secretEnv": "string",
    "upgradePolicy": {
        "": "object",
        "autoUpgrade": OFF,
        "maxParallelUpgrades": PARALLEL,
        "maxUnavailable": UNAVAILABLE,
        "podDeletion": POD_DELETION,
        "waitForCompletion": WAIT,
        "drain": DRAIN,
    },
}
CHECK: Table = {"": "object", "env": ENV}
VALIDATOR: Table = {
    **{key: value for key, value in STANDARD.items() if key != "enabled"},
    **dict.fromkeys(("plugin", "cuda", "driver", "toolkit", "vfioPCI", "vgpuManager", "vgpuDevices"), CHECK),
}
KATA: Table = {
    "": "object",
    "artifactsDir": 'string ="/opt/nvidia-gpu-operator/artifacts/runtimeclasses"',
    "runtimeClasses": {
        "": "array",
        "[]": {
            "": "object !artifacts,name",
            "name": "string",
            "nodeSelector": LABELS,
            "artifacts": {"": "object !url", "url": "string", "pullSecret": "string"},
        },
    },
}
REQUIRED = "daemonsets,dcgm,dcgmExporter,devicePlugin,driver,gfd,nodeStatusExporter,operator,toolkit"
SPEC: Table = {
    "": f"object !{REQUIRED}",
    "operator": {
        "": "object",
        "runtimeClass": 'string ="nvidia"',
        "defaultRuntime": "string",
        "labels": LABELS,
        "annotations": LABELS,
        "use_ocp_driver_toolkit": "boolean",
        "initContainer": IMAGE,
        "metrics": {"": "object", "serviceMonitor": MONITOR},
    },
    "daemonsets": DAEMONSETS,
    "driver": DRIVER,
    "toolkit": {**STANDARD, "installDir": 'string ="/usr/local/nvidia"'},
    "devicePlugin": {
        **STANDARD,
        "config": {**NAMED, "default": "string"},
        "mps": {"": "object", "root": 'string ="/run/nvidia/mps"'},
    },
    "dcgm": {**STANDARD, "hostPort": "integer/int32"},
    "dcgmExporter": {
        **STANDARD,
        "annotations": LABELS,
        "config": NAMED,
        "service": {"": "object", "type": "string", "internalTrafficPolicy": "string"},
        "serviceMonitor": MONITOR,
        "hpcJobMapping": {"": "object", "enabled": "boolean", "directory": "string"},
        **dict.fromkeys(("hostPID", "enablePodLabels", "enablePodUID"), "boolean"),
        "podLabelAllowlistRegex": STRINGS,
    },
    "gfd": STANDARD,
    "nodeStatusExporter": STANDARD,
    "mig": {"": "object", "strategy": "string {none,single,mixed}"},
    "migManager": {
        **STANDARD,
        "config": {**NAMED, "default": 'string {all-disabled,} ="all-disabled"'},
        "gpuClientsConfig": NAMED,
    },
    "validator": VALIDATOR,
    "gds": COMPONENT,
    "gdrcopy": COMPONENT,
    "sandboxWorkloads": {
        "": "object",
        "enabled": "boolean",
        "defaultWorkload": 'string {container,vm-passthrough,vm-vgpu} ="container"',
        "mode": 'string {kubevirt,kata} ="kubevirt"',
    },
    "vfioManager": {**STANDARD, "driverManager": MANAGER},
    "sandboxDevicePlugin": STANDARD,
    "kataSandboxDevicePlugin": STANDARD,
    "vgpuManager": {**STANDARD, "driverManager": MANAGER, "kernelModuleConfig": NAMED},
    "vgpuDeviceManager": {**STANDARD, "config": {**NAMED, "default": 'string ="default"'}},
    "ccManager": {**STANDARD, "defaultMode": "string {on,off,devtools}"},
    "kataManager": {**STANDARD, "config": KATA},
    "cdi": {"": "object", "enabled": "boolean =true", "default": OFF, "nriPluginEnabled": OFF},
    "psa": {"": "object", "enabled": "boolean"},
    "psp": {"": "object", "enabled": "boolean"},
    "hostPaths": {
        "": "object",
        "rootFS": "string",
        "driverInstallDir": "string",
        "kubeletRootDir": 'string ="/var/lib/kubelet"',
    },
}
FACTS: Table = {
    "": "object",
    "apiVersion": "string",
    "kind": "string",
    "metadata": "object",
    "spec": SPEC,
    "status": {
        "": "object !state",
        "state": "string {ignored,ready,notReady}",
        "namespace": "string",
        "conditions": {"": "array", "[]": CONDITION},
    },
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return crd.cluster_policy_crd()


@pytest.fixture(scope="module")
def openapi(document: dict[str, Any]) -> dict[str, Any]:
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_every_property_is_as_written_down(openapi: dict[str, Any]) -> None:
    found = {path: notation(node) for path, node in schema.walk(openapi)}
    assert found == flatten(FACTS)


def test_number_of_schema_nodes(openapi: dict[str, Any]) -> None:
    assert len(list(schema.walk(openapi))) == 643


def test_lengths_of_condition_fields(openapi: dict[str, Any]) -> None:
    fields = openapi["properties"]["status"]["properties"]["conditions"]["items"]["properties"]
    assert fields["type"]["maxLength"] == 316
    assert (fields["reason"]["minLength"], fields["reason"]["maxLength"]) == (1, 1024)
    assert fields["message"]["maxLength"] == 32768


def test_frame(document: dict[str, Any]) -> None:
    assert document["apiVersion"] == "apiextensions.k8s.io/v1"
    assert document["metadata"]["name"] == "clusterpolicies.nvidia.com"
    spec = document["spec"]
    assert spec["group"] == "nvidia.com"
    assert spec["scope"] == "Cluster"
    assert spec["names"] == {
        "kind": "ClusterPolicy",
        "listKind": "ClusterPolicyList",
        "plural": "clusterpolicies",
        "singular": "clusterpolicy",
    }
    (version,) = spec["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1", True, True)
    assert version["subresources"] == {"status": {}}
    assert [(column["name"], column["type"], column["jsonPath"]) for column in version["additionalPrinterColumns"]] == [
        ("Status", "string", ".status.state"),
        ("Age", "string", ".metadata.creationTimestamp"),
    ]


def test_schema_is_structural(openapi: dict[str, Any]) -> None:
    for path, node in schema.walk(openapi):
        assert "type" in node or node.get("x-kubernetes-int-or-string") is True, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path
        if "default" in node:
            assert not list(schema.mismatches(node["default"], node, path)), path
        re.compile(node.get("pattern", ""))


def test_each_call_gives_a_document_of_its_own(document: dict[str, Any]) -> None:
    crd.cluster_policy_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clear()
    assert crd.cluster_policy_crd() == document


def test_digest_follows_meaning_not_wording(document: dict[str, Any], openapi: dict[str, Any]) -> None:
    digest = document["metadata"]["annotations"][names.CRD_SCHEMA_DIGEST]
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert crd.schema_digest(openapi) == digest
    other = copy.deepcopy(openapi)
    other["properties"]["spec"]["properties"]["driver"]["description"] = "other words"
    assert crd.schema_digest(other) == digest
    other["properties"]["spec"]["properties"]["driver"]["properties"]["kernelModuleType"]["default"] = "open"
    assert crd.schema_digest(other) != digest


def test_a_property_called_description_counts_for_the_digest() -> None:
    plain = {"type": "object", "properties": {}}
    assert crd.schema_digest({"type": "object", "properties": {"description": {"type": "string"}}}) != (
        crd.schema_digest(plain)
    )


def structs() -> list[type[msgspec.Struct]]:
    both = {**vars(clusterpolicy), **vars(nvidiadriver)}
    found = [value for value in both.values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, clusterpolicy.Spec) and value is not clusterpolicy.Metadata]


def test_every_field_has_a_meaning_and_every_meaning_a_field() -> None:
    fields = {(struct.__name__, info.name) for struct in structs() for info in msgspec.structs.fields(struct)}
    missing = [
        (struct.__name__, info.name)
        for struct in structs()
        for info in msgspec.structs.fields(struct)
        if meanings.of(struct, info.name) is None
    ]
    assert missing == []
    assert [key for key in meanings.defined() if key not in fields] == []
