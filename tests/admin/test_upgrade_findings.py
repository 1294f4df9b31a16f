"""The parts of an upgrade's plan as findings: contracts/admin-workflow.md 1 and 9.2."""

from typing import Any

import pytest

from groundplane.admin import matrix, rollback, upgrade_findings, values
from groundplane.admin.disruption import Effect, Estimate, Holder, Pool
from groundplane.admin.hops import Catalogue, Version, interleave
from groundplane.admin.rollback import Revision
from groundplane.admin.value_changes import Level
from groundplane.admin.values import Notice, Review
from groundplane.diagnose import findings
from groundplane.diagnose.findings import Finding, Outcome, Severity

CATALOGUE = Catalogue.of(matrix.shipped())


def hops(source: str, target: str, cluster: tuple[int, int]) -> list[Finding]:
    path = CATALOGUE.path(Version.parse(source), Version.parse(target))
    return list(upgrade_findings.of_path(path, interleave(CATALOGUE, path, cluster), CATALOGUE))


def outcomes(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.id, each.outcome.value) for each in found]


def test_a85_a_hop_passes_and_the_target_has_a_life() -> None:
    found = hops("26.3.3", "26.7.0", (1, 34))
    assert outcomes(found) == [("A85", "pass"), ("A86", "pass"), ("A86", "pass")]
    assert [each.title for each in found] == [
        "step 1 of 1: upgrade the operator v26.3.3 -> v26.7.0 on Kubernetes 1.34 (both fit 1.33-1.36)",
        "the source v26.3.3 is deprecated",
        "the target v26.7.0 is supported",
    ]


@pytest.mark.parametrize(
    ("source", "target", "cluster", "expected", "can"),
    [
        ("26.3.3", "26.7.0", (1, 32), ["warn", "pass"], True),
        ("24.9.2", "25.3.4", (1, 33), ["warn"], True),
        ("24.9.2", "25.3.4", (1, 36), ["fail"], False),
        ("26.3.3", "26.3.3", (1, 34), ["pass"], True),
        ("26.7.0", "26.3.3", (1, 34), ["pass", "warn"], True),
    ],
)
def test_a85_what_stands_in_the_way(source: str, target: str, cluster: Any, expected: list[str], can: bool) -> None:
    found = hops(source, target, cluster)
    assert [each.outcome.value for each in found if each.id == "A85"] == expected
    assert upgrade_findings.go(found) is can


def test_a86_an_old_target_is_warned_of() -> None:
    assert outcomes(hops("24.9.2", "25.3.4", (1, 30)))[-1] == ("A86", "warn")


@pytest.mark.parametrize(
    ("notice", "outcome", "severity"),
    [
        (Notice("refused", Level.BREAKS, "cdi", "needs CDI", "set it"), Outcome.FAIL, Severity.CRITICAL),
        (Notice("change", Level.BREAKS, "driver.version", "580 -> 595"), Outcome.WARN, Severity.CRITICAL),
        (Notice("change", Level.BREAKS, "driver.version", "x", certain=False), Outcome.UNKNOWN, Severity.CRITICAL),
        (Notice("pin", Level.WARN, "dcgm.version", "older"), Outcome.WARN, Severity.WARNING),
        (Notice("drop", Level.INFO, "cdi.enabled", "the same"), Outcome.PASS, Severity.INFO),
    ],
)
def test_a95_values(notice: Notice, outcome: Outcome, severity: Severity) -> None:
    (found,) = upgrade_findings.of_values(Review({}, (notice,), ()))
    assert (found.id, found.outcome, found.severity) == ("A95", outcome, severity)
    assert found.title == f"{notice.path}: {notice.text}"
    assert found.fix == ((notice.fix,) if notice.fix else ())


def test_a95_refused_values_are_a_no_go() -> None:
    releases = values.Releases(Version(26, 3, 3), Version(26, 7, 0))
    chart = {"cdi": {"enabled": True, "nriPluginEnabled": False}, "toolkit": {"enabled": True}}
    asked = {"cdi": {"nriPluginEnabled": True}, "toolkit": {"enabled": False}}
    assert not upgrade_findings.go(upgrade_findings.of_values(values.review(asked, chart, chart, releases)))


def test_a99_drivers_by_pool() -> None:
    pools = [
        Pool("d", "d", ("b", "a"), Effect.RELOAD, ("image",), "driver:580", "driver:595"),
        Pool("d", "d", ("c",), Effect.RESTART, (), "driver:595", "driver:595"),
    ]
    first, second = upgrade_findings.of_pools(pools)
    assert (first.outcome, first.nodes, second.outcome) == (Outcome.WARN, ("a", "b"), Outcome.PASS)
    assert [each.excerpt for each in first.evidence] == ["driver:580 -> driver:595", "image"]


def test_a90_workloads_by_node() -> None:
    holders = (
        Holder("t/job", "a", "Job job", True, False, ()),
        Holder("t/bare", "b", "", True, True, ("it has no controller",)),
    )
    found = list(upgrade_findings.of_workloads(Estimate(holders, ("c", "d"))))
    assert [(each.outcome.value, each.nodes) for each in found] == [
        ("warn", ("a",)),
        ("fail", ("b",)),
        ("pass", ("c", "d")),
    ]
    assert found[1].evidence[0].excerpt == (
        "bare: nothing makes it anew; has an emptyDir, which is lost; it has no controller"
    )
    assert findings.exit_code(found) == findings.ExitCode.FAIL
    (stopped,) = upgrade_findings.of_workloads(Estimate((), ()), "1 of 4 nodes are cordoned")
    assert (stopped.outcome, stopped.title) == (Outcome.FAIL, "1 of 4 nodes are cordoned")


def test_a91_preconditions_of_the_way_back() -> None:
    history = [Revision(1, "v26.3.3", "superseded")]
    open_ = rollback.preconditions(Version(26, 3, 3), history, None, {"n": "no headers"}, (1, 34), CATALOGUE)
    found = list(upgrade_findings.of_preconditions(open_))
    assert outcomes(found) == [("A91", "pass"), ("A91", "unknown"), ("A91", "fail"), ("A91", "pass")]
    assert found[2].evidence[0].excerpt == "n: no headers"
