"""What is wrong with an NVIDIADriver by itself: contracts/control-plane.md 2 and 2.2."""

from typing import Any

import pytest

from groundplane.api import codec
from groundplane.api.release import Release
from groundplane.api.validate import Problem
from groundplane.api.validate_driver import problems

GDS = {"enabled": True, "version": "2.29.4"}


def found(spec: dict[str, Any], release: Release = Release.V26_7) -> list[Problem]:
    return problems(codec.load_nvidia_driver({"spec": spec}).driver.spec, release)


FINE: list[dict[str, Any]] = [
    {},
    {"usePrecompiled": True},
    {"usePrecompiled": True, "gds": {"enabled": False}, "gdrcopy": {}},
    {"usePrecompiled": False, "gdrcopy": {"enabled": True}},
    {"gds": {**GDS, "enabled": False}},
    {"gds": GDS, "kernelModuleType": "open"},
    {"gds": {"enabled": True, "version": "2.17.4"}},
    {"gds": {"enabled": True, "version": "v2.16"}},
    {"gds": {"enabled": True, "version": "2.17.5-rc.1"}},
    {"gds": {"enabled": True, "version": "latest"}},
    {"gds": {"enabled": True}},
    {"upgradePolicy": {"maxUnavailable": "0%"}},
    {"tolerations": [{"operator": "Exists"}]},
]


@pytest.mark.parametrize("spec", FINE, ids=str)
@pytest.mark.parametrize("release", [Release.V26_3, Release.V26_7])
def test_nothing_is_wrong(spec: dict[str, Any], release: Release) -> None:
    assert found(spec, release) == []


WRONG: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"usePrecompiled": True, "gds": {"enabled": True}}, ("spec.gds.enabled", "spec.usePrecompiled"), "GPUDirect"),
    (
        {"usePrecompiled": True, "gdrcopy": {"enabled": True}},
        ("spec.gdrcopy.enabled", "spec.usePrecompiled"),
        "GDRCopy",
    ),
    *(
        ({"gds": {"enabled": True, "version": version}, **kind}, ("spec.gds.version", "spec.kernelModuleType"), "open")
        for version in ("2.17.5", "v2.17.5", "2.18", "v3", "2.17.6-rc1", "2.17.5+build", "sha256:12", "sha256-odd")
        for kind in ({}, {"kernelModuleType": "auto"}, {"kernelModuleType": "proprietary"})
    ),
    ({"driverType": "cpu"}, ("spec.driverType",), "expected one of gpu, vgpu, vgpu-host-manager"),
    (
        {"upgradePolicy": {"maxUnavailable": "a few"}},
        ("spec.upgradePolicy.maxUnavailable",),
        "a percentage such as 25%",
    ),
    ({"upgradePolicy": {"maxParallelUpgrades": -1}}, ("spec.upgradePolicy.maxParallelUpgrades",), "at least 0"),
    ({"tolerations": [{"key": "a", "operator": "Is"}]}, ("spec.tolerations[0].operator",), "expected one of"),
    ({"startupProbe": {"periodSeconds": 0}}, ("spec.startupProbe.periodSeconds",), "at least 1"),
    (
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        ("spec.resources.requests.cpu", "spec.resources.limits.cpu"),
        "exceeds the limit",
    ),
]


@pytest.mark.parametrize(("spec", "fields", "text"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_told_with_fields_and_remedy(spec: dict[str, Any], fields: tuple[str, ...], text: str) -> None:
    (problem,) = found(spec)
    assert problem.fields == fields
    assert text in problem.message
    assert all(field in problem.message for field in fields)


def test_2_2_the_advice_is_a_field_that_counts() -> None:
    """NVIDIA's text advises a field that is ignored."""
    (problem,) = found({"gds": GDS})
    assert "kernelModuleType: open" in problem.message
    assert "useOpenKernelModules" not in problem.message


def test_an_upgrade_policy_counts_only_where_it_is_known() -> None:
    assert found({"upgradePolicy": {"maxUnavailable": "a few"}}, Release.V26_3) == []
