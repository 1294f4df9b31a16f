"""Which NVIDIADriver owns a node: contracts/control-plane.md 2.3, as tables and as properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import codec
from groundplane.api.release import Release
from groundplane.operands import driver_owners

OWNER = "nvidia.com/gpu-operator.driver.owner"
GPU = {"nvidia.com/gpu.present": "true"}


def driver(name, selector=None, default=None, deleting=False):
    stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    spec = {"nodeSelector": selector, "default": default}
    return codec.load_nvidia_driver({"metadata": {"name": name, **stamp}, "spec": spec}).driver


def gpu(**labels):
    return {**GPU, **labels}


A, B = driver("a", {"pool": "a"}), driver("b", {"pool": "b"})
ALSO_A = driver("c", {"pool": "a"})
REST = driver("rest", default=True)
OTHER_REST = driver("another", default=True)
PLAIN = driver("default")  # only named so

OWNED = [
    # drivers, labels of a node, its owner in 26.7
    ([A, B], gpu(pool="a"), "a"),
    ([A, B], gpu(pool="b"), "b"),
    ([A, B], gpu(pool="c"), None),
    ([A, B], gpu(), None),
    ([A, REST], gpu(pool="a"), "a"),
    ([A, REST], gpu(pool="c"), "rest"),
    ([REST], gpu(), "rest"),
    ([PLAIN], gpu(), "default"),
    ([driver("default", {"pool": "x"})], gpu(), None),
    ([driver("any", {})], gpu(), "any"),
    ([driver("two", {"pool": "a", "zone": "z"})], gpu(pool="a"), None),
    ([driver("two", {"pool": "a", "zone": "z"})], gpu(pool="a", zone="z"), "two"),
    ([A, driver("c", {"pool": "a"}, deleting=True)], gpu(pool="a"), "a"),
    ([driver("a", {"pool": "a"}, deleting=True), REST], gpu(pool="a"), "rest"),
    ([driver("rest", default=True, deleting=True), OTHER_REST], gpu(), "another"),
    ([driver("rest", default=True, deleting=True)], gpu(), None),
    ([A, REST], {"pool": "a"}, None),
    ([A, REST], {"nvidia.com/gpu.present": "false", "pool": "a"}, None),
    ([driver("off", default=False)], gpu(), "off"),
    ([], gpu(), None),
]


@pytest.mark.parametrize(("drivers", "labels", "owner"), OWNED)
def test_2_3_owner_of_a_node(drivers, labels, owner):
    found = driver_owners.assign(drivers, {"n": labels}, Release.V26_7)
    assert found.conflict is None
    assert found.owners == ({} if owner is None else {"n": owner})
    assert found.changes == ({} if owner is None else {"n": owner})
    assert found.nodes_of(owner or "a") == ([] if owner is None else ["n"])


CHANGES = [
    ([A], gpu(pool="a", **{OWNER: "a"}), {}),
    ([A], gpu(pool="a", **{OWNER: "b"}), {"n": "a"}),
    ([A], gpu(pool="b", **{OWNER: "a"}), {"n": None}),
    ([A], gpu(pool="b"), {}),
    ([A, REST], gpu(pool="b", **{OWNER: "a"}), {"n": "rest"}),
    ([], gpu(**{OWNER: "gone"}), {"n": None}),
    ([A], {"pool": "a", OWNER: "a"}, {}),  # no GPU node (any more): not looked at
]


@pytest.mark.parametrize(("drivers", "labels", "changes"), CHANGES)
def test_2_3_only_labels_that_differ_are_written(drivers, labels, changes):
    assert driver_owners.assign(drivers, {"n": labels}, Release.V26_7).changes == changes
    assert driver_owners.assign(drivers, {"n": labels}, Release.V26_3).changes == {}


CONFLICTS = [
    ([A, ALSO_A], "ConflictingNodeSelector", ("a", "c"), "several NVIDIADrivers select node n1: [a c]; "),
    ([A, ALSO_A, REST], "ConflictingNodeSelector", ("a", "c"), "select node n1: [a c]"),
    ([ALSO_A, PLAIN, A], "ConflictingNodeSelector", ("a", "c", "default"), "select node n1: [a c default]"),
    ([REST, OTHER_REST], "ReconcileFailed", ("another", "rest"), "the default: [another rest]; "),
    ([REST, OTHER_REST, A, ALSO_A], "ReconcileFailed", ("another", "rest"), "[another rest]"),
    (
        [A, driver("d", {"pool": "x"}, default=True)],
        "ConflictingNodeSelector",
        ("d",),
        "NVIDIADriver d: spec.default is true and spec.nodeSelector is set",
    ),
    ([driver("o", {OWNER: "o"})], "ConflictingNodeSelector", ("o",), f"spec.nodeSelector uses {OWNER}"),
]
NODES = {"n1": gpu(pool="a", **{OWNER: "z"}), "n0": gpu(pool="b", **{OWNER: "z"}), "cpu": {"pool": "a"}}


@pytest.mark.parametrize(("drivers", "reason", "named", "text"), CONFLICTS)
def test_2_3_a_conflict_changes_nothing(drivers, reason, named, text):
    found = driver_owners.assign(drivers, NODES, Release.V26_7)
    assert (found.owners, found.changes) == ({}, {})
    assert (found.conflict.reason, found.conflict.drivers) == (reason, named)
    assert text in found.conflict.message


@pytest.mark.parametrize(
    ("there", "labels", "goes"),
    [
        ([], gpu(**{OWNER: "a"}), True),
        ([], gpu(**{OWNER: ""}), True),
        ([], gpu(), False),
        (["a"], gpu(**{OWNER: "a"}), False),
        (["a"], gpu(**{OWNER: "b"}), True),
        ([], {OWNER: "a"}, False),
    ],
)
def test_2_3_while_no_node_is_given_to_a_driver_only_labels_of_drivers_that_are_there_stay(there, labels, goes):
    assert driver_owners.abandoned(there, {"n": labels}) == ({"n": None} if goes else {})


def test_2_3_an_overlap_on_a_node_without_gpus_is_none():
    nodes = {"cpu": {"pool": "a"}, "gpu": gpu(pool="b")}
    found = driver_owners.assign([A, ALSO_A, B], nodes, Release.V26_7)
    assert (found.conflict, found.owners) == (None, {"gpu": "b"})


def test_2_3_the_older_release_knows_no_default():
    found = driver_owners.assign([A, REST], {"n": gpu(pool="b")}, Release.V26_3)
    assert found.owners == {"n": "rest"}, "a driver without a selector is for every GPU node"
    found = driver_owners.assign([A, REST], {"n": gpu(pool="a")}, Release.V26_3)
    assert found.conflict.drivers == ("a", "rest")
    assert found.conflict.reason == "ConflictingNodeSelector"
    assert driver_owners.assign([driver("o", {OWNER: "o"})], {"n": gpu()}, Release.V26_3).conflict is None


# --- Properties -------------------------------------------------------------------------------------------------------
VALUES = st.sampled_from(["a", "b"])
SELECTORS = st.none() | st.dictionaries(st.sampled_from(["pool", "zone"]), VALUES, max_size=2)
LABELS = st.fixed_dictionaries(
    {},
    optional={"pool": VALUES, "zone": VALUES, "nvidia.com/gpu.present": st.sampled_from(["true", "false"]),
              OWNER: st.sampled_from(["d0", "d1", "gone"])},
)  # fmt: skip
WORLD = st.tuples(
    st.lists(st.tuples(SELECTORS, st.none() | st.booleans(), st.booleans()), max_size=4),
    st.dictionaries(st.sampled_from([f"n{i}" for i in range(5)]), LABELS, max_size=5),
)


def world(drawn):
    drivers, nodes = drawn
    return [driver(f"d{i}", *given) for i, given in enumerate(drivers)], nodes


def applied(nodes, changes):
    after = {node: dict(labels) for node, labels in nodes.items()}
    for node, owner in changes.items():
        after[node].pop(OWNER, None)
        if owner is not None:
            after[node][OWNER] = owner
    return after


@given(WORLD, st.sampled_from([Release.V26_3, Release.V26_7]))
def test_what_holds_for_every_cluster(drawn, release):
    drivers, nodes = world(drawn)
    found = driver_owners.assign(drivers, nodes, release)
    by_name = {each.name: each for each in drivers}
    assert driver_owners.assign(list(reversed(drivers)), nodes, release) == found, "the order of listing shows"
    assert not (found.conflict and (found.owners or found.changes)), "a conflict changes nothing"
    assert set(found.owners) | set(found.changes) <= set(driver_owners.gpu_nodes(nodes))
    for node, owner in found.owners.items():
        claims = [
            each.name
            for each in drivers
            if not each.deleting
            and (release is Release.V26_3 or not each.spec.default)
            and driver_owners.fits(driver_owners.selector(each), nodes[node])
        ]
        assert not by_name[owner].deleting
        assert claims == [owner] or (not claims and by_name[owner].spec.default)
    if found.conflict is None:
        after = applied(nodes, found.changes)
        again = driver_owners.assign(drivers, after, release)
        assert (again.owners, again.changes) == (found.owners, {}), "a second pass has nothing to do"
    if release is Release.V26_7 and found.conflict is None:
        gpus = driver_owners.gpu_nodes(applied(nodes, found.changes))
        assert {node: labels[OWNER] for node, labels in gpus.items() if OWNER in labels} == found.owners
