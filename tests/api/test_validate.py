"""Checks of a policy: each rule with what breaks it, what does not, and what the reader is told."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import codec, durations
from groundplane.api.release import Release
from groundplane.api.validate import Problem, problems

POLICIES = sorted((Path(__file__).parents[1] / "data/clusterpolicy").glob("*.yaml"))


def check(spec: dict[str, Any], release: Release = Release.V26_7) -> list[Problem]:
    return problems(codec.load_cluster_policy({"spec": spec}).policy.spec, release)


def nested(path: str, value: Any) -> Any:
    """``{"a": {"b": value}}`` for ``a.b``."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize("release", list(Release))
@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_policies_of_the_chart_have_no_problem(path: Path, release: Release) -> None:
    document = yaml.safe_load(path.read_text())
    assert problems(codec.load_cluster_policy(document).policy.spec, release) == []


def test_empty_policy_has_no_problem() -> None:
    assert check({}) == []


SINGLE = [
    ("mig.strategy", "double", "one of none, single, mixed"),
    ("migManager.config.default", "all-balanced", 'one of all-disabled, ""'),
    ("driver.kernelModuleType", "Open", "one of auto, open, proprietary"),
    ("driver.startupProbe.periodSeconds", 0, "at least 1"),
    ("driver.upgradePolicy.maxParallelUpgrades", -1, "at least 0"),
    ("dcgm.hostPort", 2**31, "fits in 32 bits"),
    ("driver.image", "", "an image name"),
    ("driver.image", "///", "an image name"),
    ("dcgmExporter.serviceMonitor.interval", "15", "a duration such as 15s"),
    ("dcgmExporter.serviceMonitor.interval", "15s\n", "a duration such as 15s"),
    ("daemonsets.updateStrategy", "Recreate", "one of RollingUpdate, OnDelete"),
    ("ccManager.defaultMode", "auto", "one of on, off, devtools"),
    ("sandboxWorkloads.defaultWorkload", "vm", "one of container, vm-passthrough, vm-vgpu"),
    ("toolkit.resources.limits.memory", "1GB", "an amount such as"),
    ("toolkit.resources.requests.cpu", "1.2.3", "an amount such as"),
    ("toolkit.resources.requests.cpu", "half", "an amount such as"),
]


@pytest.mark.parametrize(("path", "value", "expected"), SINGLE)
def test_single_values(path: str, value: Any, expected: str) -> None:
    (problem,) = check(nested(path, value))
    assert problem.fields == (f"spec.{path}",)
    assert problem.message.startswith(f"spec.{path}: expected ")
    assert expected in problem.message
    assert problem.state is None


def test_single_values_in_lists() -> None:
    relabelings = [{"action": "keep"}, {"action": "rename", "modulus": -1}]
    found = check(nested("dcgmExporter.serviceMonitor.relabelings", relabelings))
    place = "spec.dcgmExporter.serviceMonitor.relabelings[1]"
    assert [problem.fields for problem in found] == [(f"{place}.action",), (f"{place}.modulus",)]


@pytest.mark.parametrize("value", ["IfNotPresent", "sometimes", ""])
def test_any_pull_policy_is_taken(value: str) -> None:
    assert check(nested("driver.imagePullPolicy", value)) == []


# --- Contradictions ---------------------------------------------------------------------------------------------------

CDI_NRI = ("spec.cdi.enabled", "spec.cdi.nriPluginEnabled")
NRI_TOOLKIT = ("spec.cdi.nriPluginEnabled", "spec.toolkit.enabled")
GDS = ("spec.gds.enabled", "spec.driver.usePrecompiled")
GDRCOPY = ("spec.gdrcopy.enabled", "spec.driver.usePrecompiled")
ON, OFF = {"enabled": True}, {"enabled": False}


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        ({"cdi": {**OFF, "nriPluginEnabled": True}}, [CDI_NRI]),
        ({"cdi": {**ON, "nriPluginEnabled": True}}, []),
        ({"cdi": {"nriPluginEnabled": True}}, []),
        ({"cdi": OFF}, []),
        ({"cdi": {"nriPluginEnabled": True}, "toolkit": OFF}, [NRI_TOOLKIT]),
        ({"cdi": {**OFF, "nriPluginEnabled": True}, "toolkit": OFF}, [CDI_NRI, NRI_TOOLKIT]),
        ({"cdi": {"nriPluginEnabled": False}, "toolkit": OFF}, []),
        ({"driver": {"usePrecompiled": True}, "gds": ON}, [GDS]),
        ({"driver": {"usePrecompiled": True}, "gdrcopy": ON}, [GDRCOPY]),
        ({"driver": {"usePrecompiled": True}, "gds": ON, "gdrcopy": ON}, [GDS, GDRCOPY]),
        ({"driver": {"usePrecompiled": True}, "gds": OFF, "gdrcopy": {}}, []),
        ({"driver": {"usePrecompiled": True, **OFF}, "gds": ON}, []),
        ({"driver": {"usePrecompiled": True, "useNvidiaDriverCRD": True}, "gds": ON}, []),
        ({"driver": {"usePrecompiled": False}, "gds": ON, "gdrcopy": ON}, []),
    ],
)
def test_contradictions(spec: dict[str, Any], broken: list[tuple[str, ...]]) -> None:
    found = check(spec)
    assert [problem.fields for problem in found] == broken
    for problem in found:
        assert all(field in problem.message for field in problem.fields)
        assert ": set " in problem.message
        assert problem.state == ("state-driver" if "spec.driver.usePrecompiled" in problem.fields else None)


def test_nri_without_toolkit_is_a_rule_of_26_7() -> None:
    spec = {"cdi": {"nriPluginEnabled": True}, "toolkit": OFF}
    assert check(spec, Release.V26_3) == []
    assert check(spec, Release.V26_7) != []


# --- Scrape times -----------------------------------------------------------------------------------------------------

MONITORS = ("operator.metrics.serviceMonitor", "dcgmExporter.serviceMonitor")


@pytest.mark.parametrize("monitor", MONITORS)
def test_scrape_timeout_exceeds_interval(monitor: str) -> None:
    (problem,) = check(nested(monitor, {"interval": "15s", "scrapeTimeout": "1m"}))
    assert problem.fields == (f"spec.{monitor}.scrapeTimeout", f"spec.{monitor}.interval")
    assert "the timeout 1m exceeds the interval 15s" in problem.message


@pytest.mark.parametrize(
    "value",
    [
        {"interval": "15s", "scrapeTimeout": "15s"},
        {"interval": "1m", "scrapeTimeout": "60s"},
        {"scrapeTimeout": "1h"},
        {"interval": "1s"},
        {"interval": "", "scrapeTimeout": "1m"},
    ],
)
def test_scrape_times_that_go_together(value: dict[str, str]) -> None:
    assert check(nested(MONITORS[1], value)) == []


def test_a_malformed_duration_is_told_once() -> None:
    (problem,) = check(nested(MONITORS[1], {"interval": "1s1m", "scrapeTimeout": "10s"}))
    assert problem.fields == ("spec.dcgmExporter.serviceMonitor.interval",)


TIMES = st.tuples(st.integers(0, 500), st.sampled_from(["h", "m", "s", "ms"])).map(lambda pair: f"{pair[0]}{pair[1]}")


@given(interval=TIMES, timeout=TIMES)
def test_scrape_times_compare_by_length(interval: str, timeout: str) -> None:
    found = check(nested(MONITORS[0], {"interval": interval, "scrapeTimeout": timeout}))
    assert bool(found) == (durations.parse(timeout) > durations.parse(interval))


# --- maxUnavailable ---------------------------------------------------------------------------------------------------

ROLLING, UPGRADE = "daemonsets.rollingUpdate.maxUnavailable", "driver.upgradePolicy.maxUnavailable"


@pytest.mark.parametrize(
    ("path", "value", "good"),
    [
        *((ROLLING, text, True) for text in ("1", "10", "1%", "100%", "")),
        *((ROLLING, text, False) for text in ("0", "0%", "101%", "-1", "1.5", "50 %", "many", "%", "5%\n", "٣")),
        *((UPGRADE, value, True) for value in (0, 1, "1", "25%", "150%", "0%")),
        *((UPGRADE, value, False) for value in (-1, "-1%", "half", "%")),
    ],
)
def test_max_unavailable(path: str, value: Any, good: bool) -> None:
    found = check(nested(path, value))
    assert [problem.fields for problem in found] == ([] if good else [(f"spec.{path}",)])
    assert all("expected a whole number or a percentage" in problem.message for problem in found)


def test_a_daemonset_that_is_not_rolled_may_name_zero() -> None:
    assert check({"daemonsets": {"updateStrategy": "OnDelete", "rollingUpdate": {"maxUnavailable": "0"}}}) == []


@given(number=st.integers(0, 10_000), percent=st.booleans())
def test_numbers_and_percentages(number: int, percent: bool) -> None:
    text = f"{number}{'%' if percent else ''}"
    assert bool(check(nested(ROLLING, text))) == (number < 1 or (percent and number > 100))
    assert check(nested(UPGRADE, text)) == []


# --- Tolerations and resources ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toleration", "faults"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, []),
        ({"operator": "Exists"}, []),
        ({"key": "a", "value": "b"}, []),
        ({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}, []),
        ({"key": "a", "operator": "exists"}, ["operator"]),
        ({"key": "a", "effect": "NoSchedul"}, ["effect"]),
        ({"key": "a", "operator": "Exists", "value": "b"}, ["value"]),
        ({"value": "b"}, ["key"]),
        ({}, ["key"]),
        ({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}, ["tolerationSeconds"]),
        (
            {"operator": "In", "effect": "Never", "tolerationSeconds": 5},
            ["operator", "effect", "key", "tolerationSeconds"],
        ),
    ],
)
def test_tolerations(toleration: dict[str, Any], faults: list[str]) -> None:
    found = check({"daemonsets": {"tolerations": [{"operator": "Exists"}, toleration]}})
    assert [problem.fields for problem in found] == [(f"spec.daemonsets.tolerations[1].{name}",) for name in faults]
    assert all(problem.message.startswith(f"{problem.fields[0]}: ") for problem in found)


@pytest.mark.parametrize(
    ("request_", "limit", "exceeds"),
    [
        ("500m", "1", False),
        ("1500m", 1, True),
        ("1Gi", "1G", True),
        ("1Gi", "1024Mi", False),
        ("1e3", "1k", False),
        ("1E", "1E3", True),
        ("1", "1000m", False),
        ("0.5", ".25", True),
    ],
)
def test_requests_and_limits(request_: Any, limit: Any, exceeds: bool) -> None:
    found = check({"gfd": {"resources": {"requests": {"cpu": request_}, "limits": {"cpu": limit}}}})
    fields = ("spec.gfd.resources.requests.cpu", "spec.gfd.resources.limits.cpu")
    assert [problem.fields for problem in found] == ([fields] if exceeds else [])


def test_limits_of_another_resource_do_not_matter() -> None:
    assert check({"gfd": {"resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1"}}}}) == []


def test_negative_amounts() -> None:
    (problem,) = check({"validator": {"resources": {"limits": {"cpu": "-1"}}}})
    assert problem.fields == ("spec.validator.resources.limits.cpu",)
    assert "cannot be negative" in problem.message


SCALE = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60, "E": 10**18}
AMOUNTS = st.tuples(st.integers(0, 5000), st.sampled_from([*SCALE, *BINARY]))


@given(request_=AMOUNTS, limit=AMOUNTS)
def test_amounts_compare_by_size(request_: tuple[int, str], limit: tuple[int, str]) -> None:
    sizes = {**SCALE, **BINARY}
    exact = [number * Decimal(sizes[suffix]) for number, suffix in (request_, limit)]
    resources = {"requests": {"x": "{}{}".format(*request_)}, "limits": {"x": "{}{}".format(*limit)}}
    assert bool(check({"dcgm": {"resources": resources}})) == (exact[0] > exact[1])


def test_all_problems_are_told_at_once() -> None:
    spec = {
        "mig": {"strategy": "x"},
        "cdi": {"enabled": False, "nriPluginEnabled": True},
        "daemonsets": {"tolerations": [{}], "rollingUpdate": {"maxUnavailable": "x"}},
    }
    assert len(check(spec)) == 4
