"""Everything the operator applies, for each policy of `tests/data/clusterpolicy`: accepted, defaulted, left alone.

What the API server makes of an object (defaults, managed fields) must be the same in the lab as on Kubernetes, field by
field: the operator decides on it whether there is anything to write.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from contract.engines import Api, Cleanup, Cluster, Engine
from operands import rendering

from groundplane.cluster import drift, kinds

Document = dict[str, Any]
MANAGER = "gpu-operator"
SERVERS = ("uid", "resourceVersion", "creationTimestamp")
"""Metadata that differs between any two servers."""


def rendered(policy: str, namespace: str) -> list[Document]:
    """The objects of a policy, in the order in which they are applied.

    Without their owner, which is not there and would have them collected, and without ServiceMonitors, whose definition
    is the cluster's.
    """
    found = []
    for document in rendering.objects(policy, namespace=namespace).values():
        if document["kind"] != kinds.SERVICE_MONITOR.kind:
            wanted = copy.deepcopy(document)
            wanted["metadata"].pop("ownerReferences", None)
            found.append(wanted)
    return found


def path(document: Document) -> str:
    meta = document["metadata"]
    return kinds.of(document).path(meta.get("namespace"), meta["name"])


def apply_all(api: Api, cleanup: Cleanup, wanted: list[Document]) -> list[Document]:
    found = []
    for document in wanted:
        if "namespace" not in document["metadata"]:
            cleanup.add(path(document))
        found.append(api.apply(path(document), document, MANAGER, fieldValidation="Strict", force=True).ok())
    return found


def plain(document: Document, namespace: str) -> Document:
    """An object as any server would hold it."""
    meta = {key: value for key, value in document["metadata"].items() if key not in SERVERS}
    meta["managedFields"] = [{**entry, "time": ""} for entry in meta["managedFields"]]
    spec = {key: value for key, value in (document.get("spec") or {}).items() if key not in ("clusterIP", "clusterIPs")}
    same = {**document, "metadata": meta, **({"spec": spec} if "spec" in document else {})}
    result: Document = json.loads(json.dumps(same).replace(namespace, "here"))
    return result


@pytest.mark.parametrize("policy", rendering.FILES)
def test_operands_are_accepted_and_not_drifting(api: Api, cleanup: Cleanup, namespace: str, policy: str) -> None:
    """Nothing is refused, a second apply writes nothing, and the operator sees no drift in what was made of it."""
    wanted = rendered(policy, namespace)
    live = apply_all(api, cleanup, wanted)
    assert [drift.drift(want, found) for want, found in zip(wanted, live, strict=True)] == [[]] * len(wanted)
    again = apply_all(api, cleanup, wanted)
    versions = [(item["kind"], item["metadata"]["resourceVersion"]) for item in again if item["kind"] != "DaemonSet"]
    assert versions == [
        (item["kind"], item["metadata"]["resourceVersion"]) for item in live if item["kind"] != "DaemonSet"
    ]
    assert [item["metadata"].get("generation") for item in again] == [
        item["metadata"].get("generation") for item in live
    ]


@pytest.mark.real
@pytest.mark.parametrize("policy", rendering.FILES)
def test_operands_are_the_same_on_both(lab: Engine, kubernetes: Engine, policy: str) -> None:
    """The whole objects, with defaults and managed fields, agree between the lab and Kubernetes."""
    results = []
    for engine in (lab, kubernetes):
        cleanup = Cleanup(engine.admin)
        namespace = Cluster(engine.admin, cleanup).namespace()
        found = apply_all(engine.admin, cleanup, rendered(policy, namespace))
        results.append({(item["kind"], item["metadata"]["name"]): plain(item, namespace) for item in found})
        cleanup.run()
    mine, theirs = results
    assert mine.keys() == theirs.keys()
    for key, document in theirs.items():
        assert differences(mine[key], document) == [], key


def differences(mine: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two documents differ, as paths with both values."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        found = [differences(mine.get(key), theirs.get(key), f"{path}.{key}") for key in sorted(mine.keys() | theirs)]
        return [text for texts in found for text in texts]
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        parts = enumerate(zip(mine, theirs, strict=True))
        return [text for index, (left, right) in parts for text in differences(left, right, f"{path}[{index}]")]
    return [] if mine == theirs else [f"{path}: lab {mine!r}, Kubernetes {theirs!r}"]
