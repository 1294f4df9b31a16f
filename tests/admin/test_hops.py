"""contracts/admin-workflow.md 9.1 (hops, Kubernetes during them) and 4 (lifecycle, per-patch maximum)."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin import matrix
from groundplane.admin.hops import (
    Catalogue,
    Version,
    VersionError,
    common,
    compare,
    component_numbers,
    interleave,
)
from groundplane.admin.versions import Minor, Minors, minor, minor_text

MATRIX = matrix.shipped()
CATALOGUE = Catalogue.of(MATRIX)
RELEASES = list(MATRIX.releases)


def path(source: str, target: str, system: str | None = None) -> Any:
    return CATALOGUE.path(Version.parse(source), Version.parse(target), system)


@pytest.mark.parametrize("text", ["26.3.3", "v26.3.3", " v26.3.3 "])
def test_a_version_is_read_with_and_without_v_and_written_with_it(text: str) -> None:
    version = Version.parse(text)
    assert (str(version), version.number, version.family) == ("v26.3.3", "26.3.3", "26.3")


@pytest.mark.parametrize("text", ["", "26.3", "v26", "latest", "26.3.3-rc.1", "vv26.3.3"])
def test_what_is_no_version_is_told(text: str) -> None:
    with pytest.raises(VersionError, match=r"write it like v26\.3\.3"):
        Version.parse(text)


@pytest.mark.parametrize(
    ("source", "target", "kubernetes"),
    [
        ("24.9.2", "25.3.4", "1.29-1.31"),
        ("25.3.4", "25.10.1", "1.30-1.33"),
        ("25.10.1", "26.3.3", "1.32-1.35"),
        ("26.3.3", "26.7.0", "1.33-1.36"),
        ("25.10.0", "26.3.3", "1.32-1.34"),
        ("26.3.1", "26.7.0", "1.33-1.35"),
        ("26.3.0", "26.3.3", "1.32-1.35"),
    ],
)
def test_9_1_one_hop_and_its_kubernetes(source: str, target: str, kubernetes: str) -> None:
    found = path(source, target)
    assert found.action == "upgrade"
    assert [str(hop.kubernetes) for hop in found.hops] == [kubernetes]


def test_9_1_the_row_of_ubuntu_24_04_reaches_down_to_1_32() -> None:
    assert str(path("26.3.3", "26.7.0", "ubuntu24.04").hops[0].kubernetes) == "1.32-1.36"
    assert str(path("26.3.3", "26.7.0", "rhcos").hops[0].kubernetes) == "1.33-1.36"


@pytest.mark.parametrize(
    ("source", "target", "hops"),
    [
        (
            "24.9.0",
            "26.7.0",
            ["v24.9.0 -> v25.3.4", "v25.3.4 -> v25.10.1", "v25.10.1 -> v26.3.3", "v26.3.3 -> v26.7.0"],
        ),
        ("25.10.0", "26.7.0", ["v25.10.0 -> v26.3.3", "v26.3.3 -> v26.7.0"]),
        ("25.10.0", "26.3.1", ["v25.10.0 -> v26.3.1"]),
        ("26.3.0", "26.3.2", ["v26.3.0 -> v26.3.2"]),
    ],
)
def test_9_1_a_chain_ends_each_hop_on_the_newest_patch(source: str, target: str, hops: list[str]) -> None:
    assert [str(hop) for hop in path(source, target).hops] == hops


def test_9_1_older_is_a_rollback_and_the_same_is_nothing_to_do() -> None:
    assert path("26.7.0", "26.3.3").action == "rollback"
    assert "going from v26.7.0 back to v26.3.3 is a rollback" in path("26.7.0", "26.3.3").notes[0]
    assert path("26.3.3", "26.3.2").action == "rollback"
    assert path("26.3.3", "v26.3.3") == ("none", Version(26, 3, 3), Version(26, 3, 3), (), ())


def test_9_1_going_back_is_called_so() -> None:
    (step,) = interleave(CATALOGUE, path("26.7.0", "26.3.3"), (1, 34))
    assert str(step) == "roll back the operator v26.7.0 -> v26.3.3 on Kubernetes 1.34 (both fit 1.33-1.36)"


def test_a_release_the_matrix_does_not_list_is_noted_and_a_family_it_does_not_know_refused() -> None:
    assert "v26.3.4 is not listed in the support matrix of 2026-08-21" in path("26.3.3", "26.3.4").notes[0]
    with pytest.raises(VersionError, match=r"does not know family 24\.6, only 24\.9, 25\.3"):
        path("24.6.2", "24.9.0")


@pytest.mark.parametrize(
    ("version", "word"),
    [("26.7.0", "supported"), ("26.3.0", "deprecated"), ("25.10.1", "end of support"), ("24.9.0", "end of support")],
)
def test_4_lifecycle_by_the_table_and_else_by_the_place_of_the_family(version: str, word: str) -> None:
    assert CATALOGUE.lifecycle(Version.parse(version)) == word
    assert Catalogue.of(msgspec.structs.replace(MATRIX, lifecycle={})).lifecycle(Version.parse(version)) == word


def minor_of(text: str) -> Minor:
    found = minor(text)
    assert found is not None
    return found


def steps(source: str, target: str, cluster: str) -> list[tuple[str, str]]:
    found = interleave(CATALOGUE, path(source, target), minor_of(cluster))
    return [(step.kind, str(step.hop) if step.hop else step.text) for step in found]


def test_9_1_a_chain_is_interleaved_with_upgrades_of_the_cluster() -> None:
    stays = "(operator stays at {})"
    assert steps("24.9.2", "26.7.0", "1.28") == [
        ("kubernetes", "upgrade Kubernetes 1.28 -> 1.29 " + stays.format("v24.9.2")),
        ("operator", "v24.9.2 -> v25.3.4"),
        ("kubernetes", "upgrade Kubernetes 1.29 -> 1.30 " + stays.format("v25.3.4")),
        ("operator", "v25.3.4 -> v25.10.1"),
        ("kubernetes", "upgrade Kubernetes 1.30 -> 1.31 " + stays.format("v25.10.1")),
        ("kubernetes", "upgrade Kubernetes 1.31 -> 1.32 " + stays.format("v25.10.1")),
        ("operator", "v25.10.1 -> v26.3.3"),
        ("kubernetes", "upgrade Kubernetes 1.32 -> 1.33 " + stays.format("v26.3.3")),
        ("operator", "v26.3.3 -> v26.7.0"),
    ]


def test_9_1_a_cluster_newer_than_the_source_goes_on_and_one_newer_than_the_target_cannot() -> None:
    assert steps("24.9.2", "25.3.4", "1.33") == [("outside", "v24.9.2 -> v25.3.4")]
    assert steps("24.9.2", "26.7.0", "1.36") == [("blocked", "v24.9.2 -> v25.3.4")]
    (blocked,) = interleave(CATALOGUE, path("24.9.2", "25.3.4"), (1, 34))
    assert "validated with Kubernetes 1.29-1.33, the cluster has 1.34, and a cluster cannot go back" in blocked.text


@given(st.sampled_from(RELEASES), st.sampled_from(RELEASES))
def test_hops_join_and_each_is_allowed_by_itself(source: str, target: str) -> None:
    found = path(source, target)
    if found.action != "upgrade":
        assert Version.parse(target) <= Version.parse(source)
        return
    order = list(MATRIX.family_order)
    assert (found.hops[0].source, found.hops[-1].target) == (Version.parse(source), Version.parse(target))
    assert all(one.target == two.source for one, two in itertools.pairwise(found.hops))
    for hop in found.hops:
        assert hop.source < hop.target
        assert order.index(hop.target.family) - order.index(hop.source.family) in (0, 1)
        assert path(str(hop.source), str(hop.target)).hops == (hop,)


@given(st.sampled_from(RELEASES), st.sampled_from(RELEASES), st.integers(24, 36))
def test_each_step_finds_the_cluster_where_the_last_left_it(source: str, target: str, number: int) -> None:
    cluster = (1, number)
    found = path(source, target)
    for step in interleave(CATALOGUE, found, cluster):
        if step.kind == "kubernetes":
            after = (1, cluster[1] + 1)
            assert f"{minor_text(cluster)} -> {minor_text(after)}" in step.text
            cluster = after
        elif step.kind == "operator":
            assert step.hop is not None
            assert step.hop.kubernetes is not None
            assert cluster in step.hop.kubernetes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4.5.2-1-ubuntu22.04", (4, 5, 2, 1)),
        ("v0.19.3", (0, 19, 3)),
        ("4.5.3-4.8.2-distroless", (4, 5, 3, 4, 8, 2)),
        ("580", (580,)),
        ("sha256:" + "0" * 64, None),
        ("latest", None),
        ("550abc", None),
    ],
)
def test_numbers_of_a_component_leave_out_what_its_image_is_built_on(text: str, expected: Any) -> None:
    assert component_numbers(text) == expected


@pytest.mark.parametrize(
    ("version", "other", "expected"),
    [
        ("580.126.20", "595.91.07", -1),
        ("580", "580.126.20", 0),
        ("v0.20.0-ubi9", "v0.20", 0),
        ("v1.20.0", "v1.19.1", 1),
        ("4.5.2-1-ubuntu22.04", "4.6.0-1-ubuntu24.04", -1),
        ("latest", "v1", None),
    ],
)
def test_components_are_compared_by_number(version: str, other: str, expected: int | None) -> None:
    assert compare(version, other) == expected


def test_ranges_meet_or_do_not() -> None:
    assert common(Minors.parse("1.24-1.31"), Minors.parse("1.32-1.36")) is None
    assert common(Minors.parse("1.24-1.31"), Minors.parse("1.29-1.33")) == Minors.parse("1.29-1.31")
