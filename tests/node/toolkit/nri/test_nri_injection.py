"""Which CDI devices a container gets: contracts/toolkit-cdi.md 7.3, and that no annotation can do harm."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api.release import Release
from groundplane.node.cdi import model
from groundplane.node.toolkit.nri import injection

OWN, OTHER, GRANTED = "gpu-operator", "default", "kube-system"
ALL = "management.nvidia.com/gpu=all"
ORDINARY = "nvidia.com/gpu=0"
DOMAIN = "nvidia.cdi.k8s.io"


def decide(
    annotations: Mapping[str, str],
    *,
    namespace: str = OWN,
    container: str = "ctr",
    release: Release = Release.V26_7,
    granted: tuple[str, ...] = (),
) -> injection.Injection:
    rule = injection.Rule(release=release, namespace=OWN, management_namespaces=granted)
    asked = injection.Asked(namespace=namespace, pod="pod", container=container, annotations=annotations)
    return injection.decide(rule, asked)


# --- the annotation that holds (7.3, "first hit wins") ----------------------------------------------------------------

THREE = {f"{DOMAIN}/container.ctr": "a.b/c=own", f"{DOMAIN}/pod": "a.b/c=pod", DOMAIN: "a.b/c=domain"}


@pytest.mark.parametrize(
    ("annotations", "container", "expected"),
    [
        ({}, "ctr", ()),
        ({"nvidia.cdi.k8s.io/container": "a.b/c=1", "cdi.k8s.io/x": "a.b/c=1"}, "ctr", ()),
        (THREE, "ctr", ("a.b/c=own",)),
        (THREE, "sidecar", ("a.b/c=pod",)),
        ({DOMAIN: "a.b/c=domain"}, "ctr", ("a.b/c=domain",)),
        ({DOMAIN: "a.b/c=domain", f"{DOMAIN}/pod": "a.b/c=pod"}, "ctr", ("a.b/c=pod",)),
        ({f"{DOMAIN}/container.ctr": "", f"{DOMAIN}/pod": "a.b/c=pod"}, "ctr", ()),
        ({f"{DOMAIN}/container.CTR": "a.b/c=1"}, "ctr", ()),
    ],
)
@pytest.mark.parametrize("release", [Release.V26_3, Release.V26_7])
def test_7_3_the_nearest_annotation_holds_alone(
    annotations: dict[str, str], container: str, expected: tuple[str, ...], release: Release
) -> None:
    decided = decide(annotations, container=container, release=release)
    assert decided == injection.Injection(expected)


# --- namespaces (7.3, "Namespace rule") -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "namespace", "granted", "value", "expected"),
    [
        (Release.V26_3, OWN, (), ORDINARY, (ORDINARY,)),
        (Release.V26_3, OWN, (), ALL, (ALL,)),
        (Release.V26_3, OTHER, (), ORDINARY, ()),
        (Release.V26_3, OTHER, (), ALL, ()),
        (Release.V26_3, GRANTED, (GRANTED,), ALL, ()),
        (Release.V26_7, OWN, (), ORDINARY, (ORDINARY,)),
        (Release.V26_7, OWN, (), ALL, (ALL,)),
        (Release.V26_7, OTHER, (), ORDINARY, (ORDINARY,)),
        (Release.V26_7, OTHER, (), ALL, ()),
        (Release.V26_7, OTHER, (GRANTED,), ALL, ()),
        (Release.V26_7, GRANTED, (GRANTED,), ALL, (ALL,)),
        (Release.V26_7, OWN, (GRANTED,), ALL, (ALL,)),
        (Release.V26_7, OTHER, (), f"{ORDINARY},{ALL}", ()),
        (Release.V26_7, OWN, (), f"{ORDINARY},{ALL}", (ORDINARY, ALL)),
        (Release.V26_7, OTHER, (), "management.nvidia.com/gpu=0", ()),
        (Release.V26_7, OTHER, (), "my.management.nvidia.com/gpu=0", ()),
        (Release.V26_7, OTHER, (), "management.nvidia.com/nic=0", ("management.nvidia.com/nic=0",)),
    ],
)
def test_7_3_namespaces(
    release: Release, namespace: str, granted: tuple[str, ...], value: str, expected: tuple[str, ...]
) -> None:
    decided = decide({f"{DOMAIN}/pod": value}, namespace=namespace, granted=granted, release=release)
    assert decided.devices == expected
    assert len(decided.warnings) == (0 if expected else 1), "who is refused can find out why"


def test_a_refusal_says_who_what_and_what_to_change() -> None:
    (text,) = decide({DOMAIN: ALL}, namespace=OTHER, granted=(GRANTED,)).warnings
    for part in ("default/pod", "ctr", DOMAIN, ALL, OWN, GRANTED, "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES"):
        assert part in text


def test_a_refused_annotation_does_not_give_way_to_one_further_away() -> None:
    decided = decide({f"{DOMAIN}/container.ctr": ALL, f"{DOMAIN}/pod": ORDINARY}, namespace=OTHER)
    assert decided.devices == ()


# --- values (7.3, BETTER) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "devices", "malformed"),
    [
        (ALL, (ALL,), []),
        ("a.b/c=0,a.b/c=1", ("a.b/c=0", "a.b/c=1"), []),
        (" a.b/c=0 ,\ta.b/c=1\n", ("a.b/c=0", "a.b/c=1"), []),
        (",a.b/c=0,, ,", ("a.b/c=0",), []),
        ("", (), []),
        (" , ", (), []),
        ("x/y=z", ("x/y=z",), []),
        ("a.b/c=0,a.b/c=0, a.b/c=0", ("a.b/c=0",), []),
        ("b.b/c=1,a.b/c=0", ("b.b/c=1", "a.b/c=0"), []),
        ("nonsense,a.b/c=0", ("a.b/c=0",), ["'nonsense'"]),
        ("a.b/c=0,a.b/c", ("a.b/c=0",), ["'a.b/c'"]),
        ("/a/b=c,a.b/=0,=0,a.b/c=,1/c=0,a.b/c=-", (), ["'/a/b=c'", "'a.b/=0'", "'=0'", "'a.b/c='", "'1/c=0'"]),
        ("a.b/c=0;a.b/c=1", (), ["'a.b/c=0;a.b/c=1'"]),
    ],
)
def test_7_3_values(value: str, devices: tuple[str, ...], malformed: list[str]) -> None:
    decided = decide({DOMAIN: value})
    assert decided.devices == devices
    assert len(decided.warnings) == bool(malformed)
    for text in malformed:
        assert text in decided.warnings[0]


def test_what_is_told_of_a_huge_annotation_is_short() -> None:
    huge = ",".join(f"no{index}" for index in range(40_000))
    (text,) = decide({DOMAIN: huge}).warnings
    assert "'no4' and 39995 more" in text
    assert "no5" not in text
    (text,) = decide({DOMAIN: "x" * 200_000}).warnings
    assert len(text) < 500
    (text,) = decide({DOMAIN: ALL + "x" * 200_000}, namespace=OTHER).warnings
    assert len(text) < 700


# --- whatever is asked ------------------------------------------------------------------------------------------------

texts = st.text(max_size=30)
keys = st.one_of(texts, st.sampled_from([*THREE]))
items = st.one_of(texts, st.sampled_from([ALL, ORDINARY, " a.b/c=1 ", "", "x/y=z"]))
values = st.one_of(texts, st.lists(items, max_size=6).map(",".join))


@given(
    annotations=st.dictionaries(keys, values, max_size=5),
    namespace=st.one_of(texts, st.sampled_from([OWN, OTHER, GRANTED])),
    container=st.one_of(texts, st.just("ctr")),
    release=st.sampled_from([Release.V26_3, Release.V26_7]),
)
def test_whatever_is_asked_devices_are_qualified_and_allowed(**asked: Any) -> None:
    decided = decide(granted=(GRANTED,), **asked)
    for device in decided.devices:
        model.parse_qualified(device)
    assert len(set(decided.devices)) == len(decided.devices)
    if ALL in decided.devices:
        assert asked["namespace"] in (OWN, GRANTED)
    if asked["release"] is Release.V26_3 and asked["namespace"] != OWN:
        assert not decided.devices
    if not any(key.startswith(DOMAIN) for key in asked["annotations"]):
        assert decided == injection.NOTHING
