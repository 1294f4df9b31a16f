"""Which labels are accepted, and what several requests ask for together (contracts/device-plugin-gfd.md 9)."""

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from groundplane.node.nodefeatures import labels, requests
from groundplane.node.nodefeatures.requests import Request

PREFIX = "feature.node.kubernetes.io/"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("nvidia.com/gpu.count", "8", ""),
        ("nvidia.com/gpu.product", "", ""),
        ("nvidia.com/gpu.product", "NVIDIA-H200", ""),
        ("nvidia.com/x", "a" * 63, ""),
        ("nvidia.com/x", "a" * 64, "not a label's value"),
        ("nvidia.com/x", "a-", "not a label's value"),
        ("nvidia.com/x", "-a", "not a label's value"),
        ("nvidia.com/x", "a b", "not a label's value"),
        ("nvidia.com/x", "NVIDIA TITAN X (Pascal)", "not a label's value"),
        ("nvidia.com/x", "a\n", "not a label's value"),
        ("nvidia.com/x", "é", "not a label's value"),
        ("nvidia.com/" + "a" * 63, "1", ""),
        ("nvidia.com/" + "a" * 64, "1", "not a label's name"),
        ("nvidia.com/", "1", "not a label's name"),
        ("nvidia.com/.a", "1", "not a label's name"),
        ("nvidia.com/a/b", "1", "not a label's name"),
        ("/a", "1", "not a DNS subdomain"),
        ("Nvidia.com/a", "1", "not a DNS subdomain"),
        ("a..b/a", "1", "not a DNS subdomain"),
        ("-a/a", "1", "not a DNS subdomain"),
        ("a" * 253 + "/a", "1", ""),
        ("a" * 254 + "/a", "1", "not a DNS subdomain"),
        ("kubernetes.io/hostname", "x", "belongs to Kubernetes"),
        ("node.kubernetes.io/x", "x", "belongs to Kubernetes"),
        ("node-role.kubernetes.io/master", "", "belongs to Kubernetes"),
        ("xfeature.node.kubernetes.io/x", "1", "belongs to Kubernetes"),
        ("feature.node.kubernetes.io/x", "1", ""),
        ("my.feature.node.kubernetes.io/x", "1", ""),
        ("profile.node.kubernetes.io/x", "1", ""),
        ("a.profile.node.kubernetes.io/x", "1", ""),
        ("notkubernetes.io/x", "1", ""),
        ("extra.kubernetes.io/x", "1", ""),
        ("sub.extra.kubernetes.io/x", "1", "belongs to Kubernetes"),
    ],
)
def test_section_9_label_validity_and_namespaces(key: str, value: str, why: str) -> None:
    said = labels.refusal(key, value, ["extra.kubernetes.io"])
    assert why in said
    assert bool(why) == bool(said)


ALPHANUMERIC = "[A-Za-z0-9]"


@given(st.text(st.sampled_from("aZ0-_./ é\n"), max_size=70) | st.text())
@example("a" * 63)
def test_section_9_a_value_is_valid_exactly_as_kubernetes_says(value: str) -> None:
    inner = all(re.match(r"[-A-Za-z0-9_.]\Z", char) for char in value)
    ends = bool(value) and all(re.match(ALPHANUMERIC, char) for char in (value[0], value[-1]))
    assert (labels.refusal("a/b", value) == "") == (value == "" or (len(value) <= 63 and inner and ends))


def test_section_9_each_bad_label_is_dropped_alone() -> None:
    accepted = labels.accept({"good": "1", "nvidia.com/bad": "a b", "kubernetes.io/worse": "1", "also-good": ""}, {})
    assert accepted.labels == {f"{PREFIX}good": "1", f"{PREFIX}also-good": ""}
    assert [each.key for each in accepted.refused] == ["nvidia.com/bad", "kubernetes.io/worse"]
    assert str(accepted.refused[0]).startswith("label nvidia.com/bad=a b is left out: 'a b' is not a label's value")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ("@kernel.version.full", "6.8"),
        ("@local.feature.nvidia.com/a.b", "dotted"),
        ("@kernel.version.none", None),
        ("@kernel.config.full", None),
        ("@kernel.version", None),
        ("@", None),
    ],
)
def test_section_9_dynamic_values(value: str, expected: str | None) -> None:
    attributes = {"kernel.version": {"full": "6.8"}, "local.feature": {"nvidia.com/a.b": "dotted"}}
    accepted = labels.accept({"a/x": value, "a/y": "1"}, attributes)
    assert accepted.labels == ({"a/y": "1"} if expected is None else {"a/x": expected, "a/y": "1"})


def test_section_9_a_dynamic_value_is_judged_as_any_other() -> None:
    accepted = labels.accept({"a/x": "@k.v.f"}, {"k.v": {"f": "not valid"}})
    assert accepted.labels == {}
    assert accepted.refused[0].why.startswith("'not valid' is not a label's value")


def request(namespace: str, name: str, **found: str) -> Request:
    return Request(namespace, name, requests.qualified(found), {"s.t": dict(found)})


ALL = [
    request("nfd", "a", x="nfd/a", first="1"),
    request("nfd", "b", x="nfd/b", y="nfd/b"),
    request("apps", "a", y="apps/a", z="apps/a"),
    request("zoo", "a", z="zoo/a"),
    request("apps", "c", last="1"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(ALL))))[::7])
def test_section_9_own_namespace_first_then_by_name_whatever_the_order_of_arrival(order: tuple[int, ...]) -> None:
    together = requests.merged([ALL[index] for index in order], "nfd")
    plain = {"x": "nfd/b", "first": "1", "y": "apps/a", "z": "zoo/a", "last": "1"}
    assert together.labels == requests.qualified(plain)
    assert together.attributes == {"s.t": plain}


def test_section_9_a_key_with_and_without_the_default_namespace_is_one_label() -> None:
    ours, theirs = request("nfd", "a", **{f"{PREFIX}x": "1"}), request("apps", "b", x="2")
    assert requests.merged([theirs, ours], "nfd").labels == {f"{PREFIX}x": "2"}


@pytest.mark.parametrize(
    "spec", [None, {}, {"labels": None, "features": None}, {"features": {"attributes": {"a.b": None}}}]
)
def test_an_object_may_be_nearly_empty(spec: dict[str, object] | None) -> None:
    read = requests.of({"metadata": {"name": "n", "namespace": "s"}, "spec": spec})
    assert (read.namespace, read.name, dict(read.labels)) == ("s", "n", {})
