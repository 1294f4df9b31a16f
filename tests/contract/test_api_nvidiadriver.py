"""The NVIDIADriver definition: accepted by the API server, its defaults, and what may not be changed or combined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract.engines import CRDS, Api, Cleanup, Cluster, Engine, eventually

from groundplane.api import crd

PATH = "/apis/nvidia.com/v1alpha1/nvidiadrivers"
NAME = "contract-driver"
Document = dict[str, Any]
AFFINITY: Document = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
    }
}
WHOLE: Document = {
    "driverType": "vgpu",
    "usePrecompiled": False,
    "repository": "r",
    "image": "driver",
    "version": "1",
    "nodeSelector": {"pool": "a"},
    "nodeAffinity": AFFINITY,
    "tolerations": [{"operator": "Exists"}],
    "licensingConfig": {"secretName": "s", "nlsEnabled": False},
    "upgradePolicy": {"maxUnavailable": 2, "drain": {"enable": True}},
    "gds": {"enabled": True, "image": "nvidia-fs"},
    "manager": {"env": [{"name": "A", "value": "b"}]},
    "podSecurityContext": {"runAsUser": 0},
    "resources": {"limits": {"cpu": 1}},
}


@pytest.fixture(scope="module")
def definition(engine: Engine) -> Iterator[Document]:
    """The definition as it is stored; the lab brings it along, on Kubernetes it is created and goes again."""
    made = crd.nvidia_driver_crd()
    cleanup = Cleanup(engine.admin)
    path = f"{CRDS}/{made['metadata']['name']}"
    if engine.admin.get(path).status == 404:
        Cluster(engine.admin, cleanup).define(made)
    yield engine.admin.get(path).ok()
    cleanup.run()
    if not engine.is_lab:
        eventually(lambda: engine.admin.get(path).status == 404, what="the definition to be gone")


@pytest.fixture
def drivers(definition: Document, api: Api, cleanup: Cleanup) -> Api:
    cleanup.add(f"{PATH}/{NAME}")
    return api


def driver(**spec: Any) -> Document:
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": NAME}, "spec": spec}


def test_definition_is_accepted_as_it_is(definition: Document) -> None:
    """Nothing of our definition is changed or dropped by the API server, its rules included."""
    made = crd.nvidia_driver_crd()
    assert definition["spec"] == {**made["spec"], "conversion": {"strategy": "None"}}
    conditions = {item["type"]: item["status"] for item in definition["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_a_driver_gets_its_defaults(drivers: Api) -> None:
    made = drivers.create(PATH, driver()).ok()
    expected = {"driverType": "gpu", "default": False, "image": "nvcr.io/nvidia/driver", "kernelModuleType": "auto"}
    assert made["spec"] == expected


def test_an_empty_upgrade_policy_gets_its_defaults(drivers: Api) -> None:
    policy = drivers.create(PATH, driver(upgradePolicy={"drain": {}, "podDeletion": {}})).ok()["spec"]["upgradePolicy"]
    assert policy == {
        "autoUpgrade": True,
        "maxParallelUpgrades": 1,
        "maxUnavailable": "25%",
        "drain": {"enable": False, "force": False, "timeoutSeconds": 300, "deleteEmptyDir": False},
        "podDeletion": {"force": False, "timeoutSeconds": 300, "deleteEmptyDir": False},
    }


def test_every_field_fits_strictly(drivers: Api) -> None:
    made = drivers.create(PATH, driver(**WHOLE), fieldValidation="Strict").ok()["spec"]
    for key, value in WHOLE.items():
        if key != "upgradePolicy":
            assert made[key] == value
    assert made["upgradePolicy"]["maxUnavailable"] == 2


REFUSED: list[tuple[Document, str]] = [
    ({"driverType": "cpu"}, "spec.driverType: Unsupported value"),
    ({"kernelModuleType": "closed"}, "spec.kernelModuleType: Unsupported value"),
    ({"startupProbe": {"periodSeconds": 0}}, "spec.startupProbe.periodSeconds: Invalid value"),
    ({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}, "nodeSelectorTerms: Required value"),
    ({"default": True, "nodeSelector": {"a": "b"}}, "clear nodeSelector, or set default to false"),
]


@pytest.mark.parametrize(("spec", "text"), REFUSED)
def test_what_may_not_be_is_refused(drivers: Api, spec: Document, text: str) -> None:
    drivers.create(PATH, driver(**spec)).fails(422, "Invalid", text)


@pytest.mark.parametrize(
    "spec", [{"default": True}, {"default": True, "nodeSelector": {}}, {"nodeSelector": {"a": "b"}}]
)
def test_a_default_or_a_selector(drivers: Api, spec: Document) -> None:
    drivers.create(PATH, driver(**spec)).ok()


CHANGES: list[tuple[Document, Document, str]] = [
    ({}, {"driverType": "vgpu"}, "driverType cannot be changed"),
    ({"driverType": "vgpu"}, {"driverType": "gpu"}, "driverType cannot be changed"),
    ({"usePrecompiled": True}, {"usePrecompiled": False}, "usePrecompiled cannot be changed"),
    ({"default": True}, {"nodeSelector": {"a": "b"}}, "clear nodeSelector, or set default to false"),
    ({"nodeSelector": {"a": "b"}}, {"default": True}, "clear nodeSelector, or set default to false"),
    ({}, {"usePrecompiled": True}, ""),
    ({"usePrecompiled": True}, {"usePrecompiled": None}, ""),
    ({"usePrecompiled": True}, {"version": "2"}, ""),
    ({"default": True}, {"default": False, "nodeSelector": {"a": "b"}}, ""),
]


@pytest.mark.parametrize(("before", "change", "text"), CHANGES)
def test_what_may_not_change(drivers: Api, before: Document, change: Document, text: str) -> None:
    drivers.create(PATH, driver(**before)).ok()
    answer = drivers.patch(f"{PATH}/{NAME}", {"spec": change})
    if text:
        answer.fails(422, "Invalid", text)
    else:
        answer.ok()


def test_status_needs_a_state_of_its_own(drivers: Api) -> None:
    drivers.create(PATH, driver()).ok()
    status = f"{PATH}/{NAME}/status"
    drivers.patch(status, {"status": {"namespace": "x"}}).fails(422, "Invalid", "status.state: Required value")
    assert drivers.patch(status, {"status": {"state": "disabled"}}).ok()["status"] == {"state": "disabled"}
    drivers.patch(status, {"status": {"state": "perfect"}}).fails(422, "Invalid", "Unsupported value")


def test_columns(drivers: Api) -> None:
    drivers.create(PATH, driver(default=True)).ok()
    drivers.patch(f"{PATH}/{NAME}/status", {"status": {"state": "ready"}}).ok()
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    body = drivers.request("GET", f"{PATH}/{NAME}", headers={"Accept": accept}).ok()
    assert [column["name"] for column in body["columnDefinitions"]] == ["Name", "Status", "Default", "Age"]
    assert body["rows"][0]["cells"][:3] == [NAME, "ready", True]


def test_short_names(definition: Document, api: Api) -> None:
    listed = api.get("/apis/nvidia.com/v1alpha1").ok()["resources"]
    (found,) = [each for each in listed if each["name"] == "nvidiadrivers"]
    assert (found["shortNames"], found["namespaced"]) == (["nvd", "nvdriver", "nvdrivers"], False)
