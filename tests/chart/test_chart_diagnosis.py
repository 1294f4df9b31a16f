"""``operator.diagnosis``: with it the flags and the rights it takes and no others, without it neither."""

from typing import Any

import pytest
from chart import rendering

from groundplane.lab.cluster import data
from groundplane.operator import settings

ON = {"operator": {"diagnosis": {"enabled": True}}}


def arguments(values: dict[str, Any]) -> list[str]:
    (container,) = rendering.one("Deployment", values)["spec"]["template"]["spec"]["containers"]
    return [str(each) for each in container["args"]]


def parsed(values: dict[str, Any]) -> settings.Settings:
    return settings.parse(arguments(values), {"OPERATOR_NAMESPACE": rendering.NAMESPACE})


def rules(values: dict[str, Any]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    found = rendering.objects(values)
    return {key: each["rules"] for key, each in found.items() if key[0] in ("Role", "ClusterRole")}


@pytest.mark.parametrize(
    ("diagnosis", "on", "every"),
    [
        ({}, False, 60.0),
        ({"enabled": False, "intervalSeconds": 30}, False, 60.0),
        ({"enabled": True}, True, 60.0),
        ({"enabled": True, "intervalSeconds": 300}, True, 300.0),
        ({"enabled": True, "intervalSeconds": None}, True, 60.0),
        (None, False, 60.0),
    ],
)
def test_the_flags_are_what_the_operator_reads(diagnosis: Any, on: bool, every: float) -> None:
    found = parsed({"operator": {"diagnosis": diagnosis}})
    assert (found.diagnosis, found.diagnosis_interval_s) == (on, every)


def test_rights_come_with_the_switch_and_no_others() -> None:
    off, on = rules({}), rules(ON)
    assert off.keys() == on.keys()
    more = {key: [rule for rule in on[key] if rule not in off[key]] for key in on}
    needed = {
        each["metadata"]["namespace"]: each["rules"] for each in data("operator-diagnosis-rbac.yaml") if "rules" in each
    }
    assert {key: found for key, found in more.items() if found} == {
        ("Role", rendering.NAMESPACE, "gpu-operator"): needed["gpu-operator"],
        ("Role", "default", "gpu-operator-events"): needed["default"],
    }
    assert not any("pods/log" in rule["resources"] for found in off.values() for rule in found)


@pytest.mark.parametrize("value", [9, 0, "60s", 10.5])
def test_an_interval_that_the_operator_would_refuse_is_refused(value: object) -> None:
    with pytest.raises(Exception, match=r"intervalSeconds"):
        rendering.documents({"operator": {"diagnosis": {"enabled": True, "intervalSeconds": value}}})
