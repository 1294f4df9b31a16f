"""Node pools, names, and DaemonSets that may go: contracts/control-plane.md 2.4."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operands.nvidiadrivers import (
    DEPLOY,
    KERNEL,
    OS_ID,
    OS_MAJOR,
    OS_VERSION,
    OSTREE,
    OWNER,
    PRESENT,
    UID,
    daemon_set,
    driver,
    facts,
    node,
    render,
)

from groundplane.api.release import Release
from groundplane.operands import driver_owners, nvidiadriver, nvidiadriver_pools
from groundplane.operands.driver_cleanup import Fate
from groundplane.operands.errors import RenderError
from groundplane.operands.facts import OpenShift

RELEASES = (Release.V26_3, Release.V26_7)
SHIFT = OpenShift(version="4.18", driver_toolkit={"1": "image"})
PRECOMPILED = {"usePrecompiled": True}


def found(nodes, spec=None, release=Release.V26_7, **more):
    return nvidiadriver_pools.pools(driver(spec), nodes, facts(release, **more))


def told(pools):
    """Pools as rows: title, what is asked of the system, nodes."""
    asked = (OS_ID, OS_VERSION, OS_MAJOR, KERNEL, OSTREE)
    return [
        (each.title, [each.node_selector[key] for key in asked if key in each.node_selector], " ".join(each.nodes))
        for each in pools.pools
    ]


# --- Pools ------------------------------------------------------------------------------------------------------------
UBUNTU = {"n1": node("ubuntu:24.04"), "n2": node("ubuntu:22.04"), "n3": node("ubuntu:24.04", kernel="6.8.0-61-generic")}
RHEL = {"n1": node("rhel:9.4"), "n2": node("rhel:9.5"), "n3": node("rhel:10.1")}
KERNELS = {
    "n1": node("rhel:9.4", kernel="5.14.0-427.37.1.el9_4.x86_64"),
    "n2": node("rhel:9.4", kernel="5.14.0-427.37.1.el9_4.aarch64"),
    "n3": node("rhel:9.4", kernel="5.14.0-427.37.1.el9_4.aarch64_64k"),
}
SHORT = "rhel9-5.14.0-427.37.1.el9.4"
FULL = "rhel9.4-5.14.0-427.37.1.el9.4"


def kernel_rows(title, version):
    return [(title, ["rhel", version, KERNELS[name][KERNEL]], name) for name in ("n2", "n3", "n1")]


BOTH_UBUNTUS = [("ubuntu22.04", ["ubuntu", "22.04"], "n2"), ("ubuntu24.04", ["ubuntu", "24.04"], "n1 n3")]
TABLE = [
    (Release.V26_7, None, UBUNTU, BOTH_UBUNTUS),
    (Release.V26_3, None, UBUNTU, BOTH_UBUNTUS),
    (Release.V26_7, None, RHEL, [("rhel10", ["rhel", "10"], "n3"), ("rhel9", ["rhel", "9"], "n1 n2")]),
    (
        Release.V26_3,
        None,
        RHEL,
        [("rhel10", ["rhel", "10.1"], "n3"), ("rhel9.4", ["rhel", "9.4"], "n1"), ("rhel9.5", ["rhel", "9.5"], "n2")],
    ),
    (Release.V26_7, None, {"n": node("ol:9.4")}, [("ol9", ["ol", "9"], "n")]),
    (Release.V26_3, None, {"n": node("ol:9.4")}, [("ol9.4", ["ol", "9.4"], "n")]),
    (Release.V26_3, None, {"n": node("rocky:9.4")}, [("rocky9", ["rocky", "9.4"], "n")]),
    (Release.V26_7, None, {"n": node("rocky:9")}, [("rocky9", ["rocky", "9"], "n")]),
    # NVIDIA's 26.3.3 serves one of these two only: they share a name.
    (Release.V26_3, None, {"a": node("rocky:9.4"), "b": node("rocky:9.5")}, [("rocky9", ["rocky", "9"], "a b")]),
    (Release.V26_7, PRECOMPILED, KERNELS, kernel_rows(SHORT, "9")),
    (Release.V26_3, PRECOMPILED, KERNELS, kernel_rows(FULL, "9.4")),
    (
        Release.V26_7,
        PRECOMPILED,
        UBUNTU,
        [
            ("ubuntu22.04-6.8.0-60-generic", ["ubuntu", "22.04", "6.8.0-60-generic"], "n2"),
            ("ubuntu24.04-6.8.0-60-generic", ["ubuntu", "24.04", "6.8.0-60-generic"], "n1"),
            ("ubuntu24.04-6.8.0-61-generic", ["ubuntu", "24.04", "6.8.0-61-generic"], "n3"),
        ],
    ),
    (Release.V26_7, None, {}, []),
]


@pytest.mark.parametrize(("release", "spec", "nodes", "rows"), TABLE)
def test_2_4_pools(release, spec, nodes, rows):
    pools = found(nodes, spec, release)
    assert told(pools) == rows
    assert pools.skipped == {}


def test_2_4_pools_of_openshift():
    nodes = {
        "a": node("rhcos:4.18", ostree="1"),
        "b": node("rhcos:4.18", ostree="2"),
        "c": node("rhcos:4.18", ostree="1"),
    }
    for shift in (SHIFT, OpenShift(version="4.18")):
        rows = [("1", ["rhcos", "4.18", "1"], "a c"), ("2", ["rhcos", "4.18", "2"], "b")]
        assert told(found(nodes, openshift=shift)) == rows
    precompiled = found(nodes, PRECOMPILED, openshift=SHIFT)
    assert [each.title for each in precompiled.pools] == ["rhcos4.18-6.8.0-60-generic"]


CONSIDERED = [
    (Release.V26_7, {}, node(), True),
    (Release.V26_7, {}, node(owner="b"), False),
    (Release.V26_7, {}, node(owner=""), False),
    (Release.V26_3, {}, node(owner=""), True),
    (Release.V26_7, {}, node(**{PRESENT: "false"}), False),
    (Release.V26_7, {"pool": "x"}, node(), False),
    (Release.V26_7, {"pool": "x"}, node(pool="x"), True),
    (Release.V26_7, {PRESENT: "false"}, node(**{PRESENT: "false"}), False),
    (Release.V26_7, {OWNER: "b"}, node(owner="b"), False),
]


@pytest.mark.parametrize(("release", "selector", "labels", "counts"), CONSIDERED)
def test_2_4_nodes_considered(release, selector, labels, counts):
    assert bool(found({"n": labels}, {"nodeSelector": selector}, release).pools) is counts


SKIPPED = [
    ({}, {}, OS_ID),
    ({}, {}, OS_VERSION),
    (PRECOMPILED, {}, KERNEL),
    ({}, {"openshift": SHIFT}, OSTREE),
]


@pytest.mark.parametrize(("spec", "more", "key"), SKIPPED)
def test_2_4_a_node_that_is_not_described_is_skipped_with_a_word(spec, more, key):
    whole = node("rhcos:4.18", ostree="1")
    pools = found({"bare": {**whole, key: ""}, "whole": whole}, spec, **more)
    assert [each.nodes for each in pools.pools] == [("whole",)]
    assert list(pools.skipped) == ["bare"]
    assert key in pools.skipped["bare"]


def test_2_4_a_node_without_the_major_version_is_skipped_where_it_is_asked():
    pools = found({"bare": {**node("rhel:9.4"), OS_MAJOR: ""}, "whole": node("rhel:9.5")})
    assert told(pools) == [("rhel9", ["rhel", "9"], "whole")]
    assert OS_MAJOR in pools.skipped["bare"]
    assert found({"bare": {**node("rhel:9.4"), OS_MAJOR: ""}}).pools == []
    assert found({"bare": {**node("ubuntu:24.04"), OS_MAJOR: ""}}).skipped == {}


# --- Names ------------------------------------------------------------------------------------------------------------


def test_2_4_the_name_of_the_contract():
    assert (
        nvidiadriver_pools.daemon_set_name(driver(uid=UID), "ubuntu20.04") == "nvidia-gpu-driver-ubuntu20.04-67cc6dbb79"
    )


def test_2_4_the_hash_is_of_uid_and_kernel_or_rhcos():
    hashes = {nvidiadriver_pools.short_hash(text) for text in (UID, f"{UID}-6.8.0-60-generic", f"{UID}-418.94.1")}
    assert len(hashes) == 3
    (made,) = render(PRECOMPILED).daemon_sets
    expected = nvidiadriver_pools.short_hash(f"{UID}-6.8.0-60-generic")
    assert made["metadata"]["name"] == f"nvidia-gpu-driver-ubuntu24.04-{expected}"


def test_2_4_a_long_name_loses_its_middle():
    spec = {"driverType": "vgpu-host-manager"}
    name = nvidiadriver_pools.daemon_set_name(driver(spec), "opensuse-tumbleweed20260101")
    assert len(name) == 63
    assert name == "nvidia-vgpu-host-manager-driver-opensuse-tumbleweed2-67cc6dbb79"[: 63 - 11] + "-67cc6dbb79"
    dotted = nvidiadriver_pools.daemon_set_name(driver(spec), "opensuse-tumbleweed.6.1")
    assert ".-" not in dotted


def test_names_are_valid_where_a_tag_is_not():
    assert nvidiadriver_pools.daemon_set_name(driver(), "sles15-SP5").startswith("nvidia-gpu-driver-sles15-sp5-")
    assert nvidiadriver_pools.account_name(driver(), "sles15-SP5") == "nvidia-gpu-driver-a-sles15-sp5"


def test_2_4_the_other_name_is_cut_at_253():
    long = driver(name="a" * 253)
    assert nvidiadriver_pools.account_name(long, "ubuntu24.04") == "nvidia-gpu-driver-" + "a" * 235
    dotted = driver(name="a" * 234 + ".b")
    assert nvidiadriver_pools.account_name(dotted, "u") == "nvidia-gpu-driver-" + "a" * 234


def test_pools_that_would_share_a_daemon_set_are_refused():
    spec = {"driverType": "vgpu-host-manager"}
    nodes = {"a": node("opensuse-tumbleweed-long:1"), "b": node("opensuse-tumbleweed-long:2")}
    with pytest.raises(RenderError, match="would share the DaemonSet"):
        found(nodes, spec)


VALID_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
SYSTEMS = st.sampled_from(["ubuntu:24.04", "ubuntu:22.04", "rhel:9.4", "rhel:9.5", "rocky:9.4", "sles:15-SP5", "x:"])
KERNEL_NAMES = st.sampled_from(["6.8.0-60-generic", "5.14.0-427.el9_4.x86_64", "5.14.0-427.el9_4.aarch64", ""])


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(SYSTEMS, KERNEL_NAMES), max_size=6),
    st.sampled_from([None, PRECOMPILED]),
    st.sampled_from(RELEASES),
    st.sampled_from(["gpu", "vgpu", "vgpu-host-manager"]),
)
def test_every_node_is_in_one_pool_or_skipped_and_each_daemon_set_fits_its_nodes_alone(drawn, spec, release, kind):
    nodes = {name: node(*given) for name, given in drawn.items()}
    made = render({**(spec or {}), "driverType": kind}, nodes, release)
    served = [name for pool in made.pools for name in pool.nodes]
    assert sorted([*served, *made.skipped]) == sorted(nodes)
    names = [each["metadata"]["name"] for each in made.daemon_sets]
    assert len(set(names)) == len(made.pools)
    for name in names:
        assert len(name) <= 63
        assert VALID_NAME.fullmatch(name)
    for pool in made.pools:
        assert VALID_NAME.fullmatch(pool.account)
        fitting = {name for name, labels in nodes.items() if driver_owners.fits(pool.node_selector, labels)}
        assert fitting == set(pool.nodes)
    again = render({**(spec or {}), "driverType": kind}, dict(reversed(nodes.items())), release)
    assert again.objects == made.objects, "the order of listing shows"


# --- DaemonSets that may go -------------------------------------------------------------------------------------------


def live(made, desired=1, wrong=0, observed=1, generation=1):
    status = {"desiredNumberScheduled": desired, "numberMisscheduled": wrong, "observedGeneration": observed}
    return {**made, "metadata": {**made["metadata"], "generation": generation}, "status": status}


OPTED_OUT = {"gpu-1": node(**{DEPLOY: "false"})}
FATES = [
    # wanted, desired, misscheduled, observed generation, nodes, what becomes of it
    (True, 1, 0, 1, {"gpu-1": node()}, Fate.KEEP),
    (True, 0, 0, 1, {"gpu-1": node()}, Fate.KEEP),  # a taint that it does not bear (issue 1368)
    (True, 0, 0, 1, OPTED_OUT, Fate.DELETE),
    (True, 0, 1, 1, OPTED_OUT, Fate.KEEP),
    (True, 1, 0, 1, OPTED_OUT, Fate.KEEP),
    (True, 0, 0, 0, OPTED_OUT, Fate.KEEP),  # its controller has not looked yet
    (False, 1, 0, 1, {"gpu-1": node()}, Fate.DELETE),
    (False, 0, 0, 1, {}, Fate.DELETE),
]


@pytest.mark.parametrize(("wanted", "desired", "wrong", "observed", "nodes", "fate"), FATES)
def test_2_4_stale_daemon_sets(wanted, desired, wrong, observed, nodes, fate):
    made = daemon_set()
    there = live(made, desired, wrong, observed)
    assert nvidiadriver.fate(there, [made] if wanted else [], nodes) is fate


def test_what_would_be_deleted_at_once_is_not_to_be_created():
    assert nvidiadriver.placeable(daemon_set(), {"gpu-1": node()})
    (made,) = render(nodes=OPTED_OUT).daemon_sets
    assert not nvidiadriver.placeable(made, OPTED_OUT)
