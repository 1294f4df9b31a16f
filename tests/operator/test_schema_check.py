"""A CRD that is older or newer than the operator, NVIDIA's, a broken one and none: what is said, and what it costs."""

import copy
from typing import Any

import aiohttp
import msgspec
import pytest
from operator_harness import Cluster, cluster_of

from groundplane.api import crd, names
from groundplane.api.release import Release
from groundplane.cluster import kinds
from groundplane.operator import schema_check
from groundplane.operator.schema_check import CrdView

Document = dict[str, Any]


def schema_of(document: Document) -> Document:
    found: Document = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def without(*paths: str) -> Document:
    """Our CRD as an older release would have had it."""
    document = crd.cluster_policy_crd()
    for path in paths:
        *parents, last = path.split(".")
        node = schema_of(document)
        for each in parents:
            node = node["properties"][each]
        del node["properties"][last]
    return document


def judged(document: Document) -> str | None:
    found = schema_check.judge(msgspec.convert(document, CrdView))
    return found.message if found else None


@pytest.mark.parametrize("release", [Release.V26_3, Release.V26_7])
def test_the_definition_of_nvidiadriver_must_be_the_releases(release: Release) -> None:
    older = msgspec.convert(crd.nvidia_driver_crd(Release.V26_3), CrdView)
    newer = msgspec.convert(crd.nvidia_driver_crd(Release.V26_7), CrdView)
    assert schema_check.judge(newer, kinds.NVIDIA_DRIVER, release) is None
    found = schema_check.judge(older, kinds.NVIDIA_DRIVER, release)
    if release is Release.V26_3:
        assert found is None
    else:
        assert found is not None
        assert "CustomResourceDefinition nvidiadrivers.nvidia.com (schema digest " in found.message
        assert "from every NVIDIADriver without a word: spec.default, spec.upgradePolicy. " in found.message


def test_our_own_definition_has_every_field_whoever_wrote_it() -> None:
    document = crd.cluster_policy_crd()
    assert judged(document) is None
    document["metadata"].pop("annotations")
    assert judged(document) is None, "NVIDIA's has no digest"


def test_a_newer_definition_is_as_good() -> None:
    document = crd.cluster_policy_crd()
    schema_of(document)["properties"]["spec"]["properties"]["quantum"] = {"type": "string"}
    assert judged(document) is None


def test_fields_that_would_be_dropped_are_named_without_those_below_them() -> None:
    message = judged(without("spec.operator.metrics", "spec.hostPaths.kubeletRootDir"))
    assert message is not None
    assert ": spec.hostPaths.kubeletRootDir, spec.operator.metrics. Whether" in message
    assert "kubectl apply --server-side" in message
    assert names.CRD_SCHEMA_DIGEST not in message
    assert "schema digest " in message


def test_many_fields_are_counted() -> None:
    document = crd.cluster_policy_crd()
    schema_of(document)["properties"]["spec"]["properties"] = {}
    message = judged(document)
    assert message is not None
    assert message.count(", spec.") == schema_check.FIELDS_MAX - 1
    assert " more. Whether" in message


def test_what_keeps_unknown_fields_drops_none() -> None:
    document = crd.cluster_policy_crd()
    schema_of(document)["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert judged(document) is None
    schema_of(document)["properties"]["spec"] = {"type": "object", "additionalProperties": {}}
    assert judged(document) is None
    document["spec"]["versions"][0]["name"] = "v2"
    assert judged(document) is None, "another version is not ours to judge"


def test_lists_and_maps_are_looked_into() -> None:
    known = {"properties": {"a": {"items": {"properties": {"b": {}, "c": {}}}}}}
    live = {"properties": {"a": {"items": {"properties": {"b": {}}}}}}
    assert list(schema_check.missing(known, live)) == ["a[].c"]
    known = {"properties": {"m": {"additionalProperties": {"properties": {"x": {}}}}}}
    assert list(schema_check.missing(known, {"properties": {"m": {"additionalProperties": {}}}})) == ["m{}.x"]


def install(cluster: Cluster, document: Document) -> None:
    cluster.api.add(
        "customresourcedefinitions", kinds.CLUSTER_POLICY.resource, metadata=copy.deepcopy(document["metadata"])
    )
    cluster.api.edit(
        "customresourcedefinitions", kinds.CLUSTER_POLICY.resource, lambda obj: obj.update(spec=document["spec"])
    )


async def test_an_old_definition_is_a_warning_and_no_obstacle(cluster: Cluster) -> None:
    install(cluster, without("spec.operator.metrics"))
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    condition = cluster.condition("SchemaOutdated")
    assert (condition["status"], condition["reason"]) == ("True", "FieldsMissing")
    assert "spec.operator.metrics" in condition["message"]
    assert cluster.condition("Ready")["status"] == "True"
    told = [each for each in cluster.api.all("events").values() if each["reason"] == "SchemaOutdated"]
    assert [each["type"] for each in told] == ["Warning"]
    cluster.api.forget_writes()
    cluster.edit_spec(lambda spec: spec["dcgm"].update(enabled=True))
    await cluster.until(lambda: ("daemonsets", "nvidia-dcgm") in cluster.ours())
    await cluster.ready()
    assert cluster.api.requests["get", "customresourcedefinitions"] == 0
    install(cluster, crd.cluster_policy_crd())
    await cluster.until(lambda: not cluster.condition("SchemaOutdated"))
    assert cluster.condition("Ready")["status"] == "True"


async def test_a_definition_that_cannot_be_read_now_is_read_later(cluster: Cluster) -> None:
    failing = True
    install(cluster, without("spec.operator.metrics"))
    lists = 0

    def fault(verb: str, plural: str, _name: str) -> int | None:
        nonlocal lists
        lists += (verb, plural) == ("get", "customresourcedefinitions")
        return 500 if failing and lists > 1 and plural == "customresourcedefinitions" and verb == "get" else None

    cluster.api.fault = fault
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert not cluster.condition("SchemaOutdated")
    failing = False
    cluster.edit_spec(lambda spec: spec["dcgm"].update(enabled=True))
    await cluster.until(lambda: cluster.condition("SchemaOutdated"))


async def test_without_a_definition_the_operator_says_what_to_do_and_waits() -> None:
    async with cluster_of() as cluster:
        missing = True
        cluster.api.fault = lambda _verb, plural, _name: 404 if missing and plural == "clusterpolicies" else None
        cluster.nodes(1)
        cluster.policy()
        cluster.start(health_address="127.0.0.1:0")
        await cluster.until(lambda: cluster.operator and cluster.operator.health_port)
        assert cluster.operator is not None
        url = f"http://127.0.0.1:{cluster.operator.health_port}/readyz"
        async with aiohttp.ClientSession() as session:
            for _ in range(200):
                async with session.get(url) as answer:
                    text, code = await answer.text(), answer.status
                if "its CRD is missing" in text:
                    break
        assert code == 503
        assert "groundplane crds | kubectl apply" in text
        missing = False
        await cluster.ready()
