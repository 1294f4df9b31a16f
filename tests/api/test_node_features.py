"""The definitions of node-feature-discovery: names, and that objects as its programs write them pass."""

from typing import Any

import pytest

from groundplane.api import node_features, schema

DEFINITIONS = {each["spec"]["names"]["kind"]: each for each in node_features.definitions()}

OBJECTS: list[dict[str, Any]] = [
    {
        "kind": "NodeFeature",
        "spec": {
            "features": {
                "flags": {"kernel.loadedmodule": {"elements": {"nvidia": {}}}},
                "attributes": {"kernel.version": {"elements": {"full": "6.8.0-60-generic", "major": "6"}}},
                "instances": {"pci.device": {"elements": [{"attributes": {"vendor": "10de", "class": "0302"}}]}},
            },
            "labels": {"nvidia.com/gpu.count": "8"},
        },
    },
    {
        "kind": "NodeFeatureRule",
        "spec": {
            "rules": [
                {
                    "name": "kernel-module-gdrdrv",
                    "labels": {"nvidia.com/gdrcopy.capable": "true"},
                    "matchFeatures": [
                        {"feature": "kernel.loadedmodule", "matchExpressions": {"gdrdrv": {"op": "Exists"}}}
                    ],
                }
            ]
        },
    },
    {
        "kind": "NodeFeatureGroup",
        "spec": {"featureGroupRules": [{"name": "gpu", "matchAny": [{"matchFeatures": [{"feature": "pci.device"}]}]}]},
        "status": {"nodes": [{"name": "gpu-1"}]},
    },
]


def structure(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = DEFINITIONS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("document", OBJECTS, ids=[each["kind"] for each in OBJECTS])
def test_what_its_programs_write_passes(document: dict[str, Any]) -> None:
    assert list(schema.mismatches(document, structure(document["kind"]))) == []
    assert list(schema.unknown(document, structure(document["kind"]))) == []


def test_an_unknown_comparison_is_refused() -> None:
    rule = {"name": "x", "matchFeatures": [{"feature": "a.b", "matchExpressions": {"c": {"op": "Is"}}}]}
    (wrong,) = schema.mismatches({"spec": {"rules": [rule]}}, structure("NodeFeatureRule"))
    assert wrong.path == "spec.rules[0].matchFeatures[0].matchExpressions.c.op"
    assert wrong.rule == "enum"


def test_names_and_scopes() -> None:
    assert {each["metadata"]["name"]: each["spec"]["scope"] for each in DEFINITIONS.values()} == {
        "nodefeatures.nfd.k8s-sigs.io": "Namespaced",
        "nodefeaturegroups.nfd.k8s-sigs.io": "Namespaced",
        "nodefeaturerules.nfd.k8s-sigs.io": "Cluster",
    }


def test_documents_are_fresh() -> None:
    node_features.definitions()[0]["spec"]["versions"].clear()
    assert node_features.definitions()[0]["spec"]["versions"]
