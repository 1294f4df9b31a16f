"""The ClusterPolicy definition: accepted by the API server, and all policies that NVIDIA's chart renders fit it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.engines import CRDS, Api, Cleanup, Cluster, Engine, eventually

from groundplane.api import crd

POLICIES = sorted((Path(__file__).parent.parent / "data" / "clusterpolicy").glob("*.yaml"))
PATH = "/apis/nvidia.com/v1/clusterpolicies"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def definition(engine: Engine) -> Iterator[Document]:
    """The definition as it is stored; the lab brings it along, on Kubernetes it is created and goes again."""
    made = crd.cluster_policy_crd()
    cleanup = Cleanup(engine.admin)
    path = f"{CRDS}/{made['metadata']['name']}"
    if engine.admin.get(path).status == 404:
        Cluster(engine.admin, cleanup).define(made)
    yield engine.admin.get(path).ok()
    cleanup.run()
    if not engine.is_lab:
        eventually(lambda: engine.admin.get(path).status == 404, what="the definition to be gone")


@pytest.fixture
def policies(definition: Document, api: Api, cleanup: Cleanup) -> Api:
    cleanup.add(f"{PATH}/cluster-policy")
    return api


def policy(file: Path) -> Document:
    document: Document = yaml.safe_load(file.read_text())
    return {**document, "metadata": {"name": "cluster-policy"}}


MINIMAL: Document = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy"},
    "spec": {
        key: {}
        for key in (
            "daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd", "nodeStatusExporter", "operator",
            "toolkit",
        )
    },
}  # fmt: skip


def test_definition_is_accepted_as_it_is(definition: Document) -> None:
    """Nothing of our definition is changed or dropped by the API server."""
    made = crd.cluster_policy_crd()
    assert definition["spec"] == {**made["spec"], "conversion": {"strategy": "None"}}
    conditions = {item["type"]: item["status"] for item in definition["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.stem)
def test_policy_fits_strictly(policies: Api, file: Path) -> None:
    """No field of a policy that NVIDIA's chart renders is unknown, and every value stays as it was written."""
    sent = policy(file)
    made = policies.create(PATH, sent, fieldValidation="Strict").ok()
    assert missing(sent["spec"], made["spec"]) == []
    assert made["metadata"]["generation"] == 1
    assert "status" not in made


def missing(sent: Any, kept: Any, path: str = "spec") -> list[str]:
    """The paths of values that were sent and are not there; nulls and what defaults add do not count."""
    if isinstance(sent, dict):
        found = [
            missing(value, (kept or {}).get(key), f"{path}.{key}") for key, value in sent.items() if value is not None
        ]
        return [text for texts in found for text in texts]
    return [] if sent == kept else [f"{path}: {sent!r} became {kept!r}"]


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.stem)
def test_policy_can_be_applied(policies: Api, file: Path) -> None:
    made = policies.apply(f"{PATH}/cluster-policy", policy(file), "helm").ok()
    again = policies.apply(f"{PATH}/cluster-policy", policy(file), "helm").ok()
    assert again == made


def test_minimal_policy_gets_its_defaults(policies: Api) -> None:
    spec = policies.create(PATH, MINIMAL).ok()["spec"]
    assert spec["daemonsets"]["updateStrategy"] == "RollingUpdate"
    assert spec["toolkit"]["installDir"] == "/usr/local/nvidia"
    assert spec["driver"]["kernelModuleType"] == "auto"
    assert spec["operator"]["runtimeClass"] == "nvidia"


INVALID: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "enum": (("daemonsets", "updateStrategy"), "Sometimes", "FieldValueNotSupported"),
    "boolean": (("driver", "enabled"), "true", "FieldValueTypeInvalid"),
    "pattern": (("driver", "image"), "___", "FieldValueInvalid"),
    "minimum": (("driver", "startupProbe"), {"timeoutSeconds": 0}, "FieldValueInvalid"),
    "list": (("toolkit", "env"), {"name": "A"}, "FieldValueTypeInvalid"),
    "item": (("toolkit", "env"), [{"value": "A"}], "FieldValueRequired"),
    "mig strategy": (("mig",), {"strategy": "double"}, "FieldValueNotSupported"),
    "object": (("driver",), "on", "FieldValueTypeInvalid"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_policy_is_refused_with_its_place(policies: Api, case: str) -> None:
    path, value, reason = INVALID[case]
    spec: Document = {key: dict(section) for key, section in MINIMAL["spec"].items()}
    place = spec
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    answer = policies.create(PATH, {**MINIMAL, "spec": spec})
    answer.fails(422, "Invalid", 'ClusterPolicy.nvidia.com "cluster-policy" is invalid: ')
    fields = [field for field, found in answer.causes() if found == reason]
    assert any(field.startswith("spec." + ".".join(path)) for field in fields), answer.causes()


def test_missing_section(policies: Api) -> None:
    spec = {key: value for key, value in MINIMAL["spec"].items() if key != "dcgm"}
    answer = policies.create(PATH, {**MINIMAL, "spec": spec})
    answer.fails(422, "Invalid", "spec.dcgm: Required value")


def test_status_needs_a_state(policies: Api) -> None:
    policies.create(PATH, MINIMAL).ok()
    status = f"{PATH}/cluster-policy/status"
    answer = policies.patch(status, {"status": {"namespace": "x"}})
    answer.fails(422, "Invalid", "status.state: Required value")
    assert policies.patch(status, {"status": {"state": "ready", "namespace": "x"}}).ok()["status"]["state"] == "ready"
    policies.patch(status, {"status": {"state": "perfect"}}).fails(422, "Invalid", "Unsupported value")


def test_columns(policies: Api) -> None:
    policies.create(PATH, MINIMAL).ok()
    policies.patch(f"{PATH}/cluster-policy/status", {"status": {"state": "ready"}}).ok()
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    body = policies.request("GET", f"{PATH}/cluster-policy", headers={"Accept": accept}).ok()
    assert [column["name"] for column in body["columnDefinitions"]] == ["Name", "Status", "Age"]
    assert body["rows"][0]["cells"][:2] == ["cluster-policy", "ready"]
