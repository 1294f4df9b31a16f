"""The boundary of a rollback and what it needs: contracts/admin-workflow.md 10; CRDs of an upgrade: 9.2."""

from typing import Any

import pytest

from groundplane.admin import matrix, rollback
from groundplane.admin.disruption import Effect, Estimate, Holder, Pool
from groundplane.admin.hops import Catalogue, Version
from groundplane.admin.rollback import Line, Reverts, Revision, Rollback, Snapshot

V26_3_2, V26_3, V26_7 = Version(26, 3, 2), Version(26, 3, 3), Version(26, 7, 0)
CATALOGUE = Catalogue.of(matrix.shipped())

POOL = Pool("d", "d", ("a", "b"), Effect.RELOAD, (), "driver:595", "driver:580")
KEPT = Pool("d", "d", ("c",), Effect.NONE, (), "driver:580", "driver:580")
ESTIMATE = Estimate(
    (Holder("t/train", "a", "Job train", True, False, ("no budget",)), Holder("t/web", "a", "", False, False, ())),
    ("b",),
)


def line(layer: str, running: Version = V26_7, wanted: Version = V26_3, **known: Any) -> Line:
    found = rollback.boundary(Rollback(running, wanted, Snapshot(**known)))
    (only,) = [each for each in found if layer in each.layer]
    return only


def test_10_the_table_has_every_layer_and_says_which_helm_brings_back() -> None:
    assert [(row.layer.partition(",")[0].partition(":")[0], row.reverts.value) for row in rollback.TABLE] == [
        ("operator Deployment", "yes"),
        ("ClusterPolicy and default NVIDIADriver", "yes"),
        ("operand DaemonSets other than the driver", "indirectly"),
        ("driver pods", "partly"),
        ("loaded kernel modules", "no"),
        ("CRDs", "no"),
        ("custom resources of new kinds", "no"),
        ("host files", "partly"),
        ("RuntimeClass nvidia", "indirectly"),
        ("node labels", "no"),
        ("MIG geometry", "no"),
        ("kernel", "no"),
        ("container runtime", "no"),
        ("firmware", "no"),
        ("evicted workloads", "no"),
        ("Helm hooks and their jobs", "no"),
    ]
    assert all(row.helm and row.tool for row in rollback.TABLE)
    assert {row.reverts for row in rollback.TABLE} == set(Reverts)


PAIRS = {"a": ("x", "y"), "b": ("x", "x")}
NODES = (
    {
        "metadata": {
            "name": "a",
            "labels": {
                "nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade",
                "nvidia.com/gpu.deploy.dcgm": "true",
                "nvidia.com/gpu-driver-upgrade-state": "upgrade-failed",
            },
        },
        "spec": {"unschedulable": True},
    },
    {"metadata": {"name": "b", "labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}},
    {"metadata": {"name": "c"}},
)


@pytest.mark.parametrize(
    ("layer", "known", "found"),
    [
        ("ClusterPolicy", {"edited": ("spec.driver.version",)}, ("lost: spec.driver.version",)),
        ("driver pods", {"pools": (POOL, KEPT)}, ("a, b: driver:595 -> driver:580",)),
        ("driver pods", {"pools": (KEPT,), "estimate": ESTIMATE}, ()),
        ("driver pods", {"pools": (POOL,), "estimate": ESTIMATE}, ("a, b: driver:595 -> driver:580", str(ESTIMATE))),
        ("kernel modules", {"estimate": ESTIMATE}, ("a: t/train (no budget)",)),
        ("kernel modules", {"estimate": Estimate((), ("a",))}, ()),
        (
            "custom resources",
            {
                "custom": {
                    "GPUCluster": ("gpu-cluster",),
                    "ComputeDomain": ("z", "y"),
                    "ClusterPolicy": ("cluster-policy",),
                }
            },
            ("delete ComputeDomain y first", "delete ComputeDomain z first", "delete GPUCluster gpu-cluster first"),
        ),
        ("host files", {"host_files": {"b": ("/var/run/cdi/nvidia.yaml",), "a": ()}}, ("b: /var/run/cdi/nvidia.yaml",)),
        (
            "RuntimeClass",
            {"runtime_class": True, "nri": True},
            ("RuntimeClass nvidia is there, and with NRI none is made",),
        ),
        ("RuntimeClass", {"runtime_class": False, "nri": False}, ("RuntimeClass nvidia is not there",)),
        ("RuntimeClass", {"runtime_class": False, "nri": True}, ()),
        ("RuntimeClass", {"runtime_class": True, "nri": False}, ()),
        ("RuntimeClass", {"runtime_class": True}, None),
        (
            "node labels",
            {"nodes": NODES},
            (
                "a: cordoned",
                "a: nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade",
                "a: nvidia.com/gpu-driver-upgrade-state=upgrade-failed",
            ),
        ),
        ("MIG geometry", {"mig": PAIRS}, ("a: x -> y",)),
        ("kernel, initramfs", {"kernels": PAIRS}, ("a: x -> y",)),
        ("container runtime", {"runtimes": PAIRS}, ("a: x -> y",)),
        ("firmware", {"firmware": {"b": ("x", "x")}}, ()),
        ("evicted workloads", {"evicted": ("t/train",)}, ("t/train",)),
        ("Helm hooks", {}, ()),
    ],
)
def test_10_a_layer_filled_in_for_a_cluster(layer: str, known: dict[str, Any], found: Any) -> None:
    filled = line(layer, **known)
    assert filled.found == found
    assert filled.done is (found == ())


def test_10_crds_stay_newer_and_stored_objects_may_be_rejected() -> None:
    kept = (
        "clusterpolicies.nvidia.com keeps the schema of v26.7.0",
        "nvidiadrivers.nvidia.com keeps the schema of v26.7.0",
        "gpuclusters.nvidia.com keeps the schema of v26.7.0",
    )
    assert line("CRDs").found == kept
    assert line("CRDs", rejected=("NVIDIADriver a",)).found == (
        *kept,
        "NVIDIADriver a is not valid for v26.3.3: change it first",
    )
    assert line("CRDs", definitions=frozenset({"clusterpolicies.nvidia.com", "others.example.com"})).found == kept[:1]
    assert line("CRDs", definitions=frozenset(), rejected=()).found == ()
    assert line("CRDs", V26_3, V26_3_2).found is None
    assert line("CRDs", V26_3, V26_3_2, rejected=()).found == ()


def test_10_kinds_that_the_old_release_has_too_stay() -> None:
    assert line("custom resources", V26_3, V26_3_2, custom={"GPUCluster": ("x",)}).found == ()
    assert line("custom resources").found is None


def test_what_nobody_has_looked_at_is_never_in_order() -> None:
    unknown = [each.layer for each in rollback.boundary(Rollback(V26_3, V26_3_2, Snapshot())) if each.found is None]
    finders = [row.layer for row in rollback.TABLE if row.find is not None]
    assert unknown == [layer for layer in finders if "new kinds" not in layer]


def test_9_2_crds_of_an_upgrade() -> None:
    changes = rollback.crd_changes(V26_3, V26_7)
    assert changes.changed == ("clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com")
    assert changes.added == ("gpuclusters.nvidia.com",)
    assert changes.by_hand == ("computedomains.resource.nvidia.com",)
    assert rollback.crd_changes(V26_3_2, V26_3) == ((), (), ())


HISTORY = [
    Revision(1, "v26.3.3", "superseded"),
    Revision(2, "26.3.3", "superseded"),
    Revision(3, "v26.3.3", "failed"),
    Revision(4, "v26.7.0", "deployed"),
]


def preconditions(**other: Any) -> rollback.Preconditions:
    given: dict[str, Any] = {
        "history": HISTORY,
        "images": {"driver:580": True},
        "drivers": {"a": ""},
        "cluster": (1, 34),
        "catalogue": CATALOGUE,
    }
    return rollback.preconditions(V26_3, **{**given, **other})


def test_10_all_four_preconditions_met() -> None:
    found = preconditions()
    assert found.met
    assert found.revision == HISTORY[1]
    assert [each.met for each in found.checks] == [True] * 4
    assert found.checks[0].text == "revision 2 is v26.3.3"


@pytest.mark.parametrize(
    ("place", "other", "met", "text"),
    [
        (0, {"history": HISTORY[2:]}, False, "none of the 2 revisions in helm history is a complete v26.3.3"),
        (0, {"history": [HISTORY[3]] * 10}, False, "Helm keeps 10 unless told otherwise"),
        (1, {"images": None}, None, "not looked at"),
        (1, {"images": {"a": True, "b": False, "c": None}}, False, "b: cannot be pulled"),
        (1, {"images": {"a": True, "c": None}}, None, "not known of c"),
        (2, {"drivers": {"n": "no headers for 6.14"}}, False, "n: no headers for 6.14"),
        (2, {"drivers": {"n": None}}, None, "not known of n"),
        (3, {"cluster": None}, None, "not known"),
        (3, {"cluster": (1, 37)}, False, "v26.3.3 was validated with Kubernetes 1.32-1.36, the cluster has 1.37"),
    ],
)
def test_10_a_precondition_not_met_or_not_known(place: int, other: dict[str, Any], met: Any, text: str) -> None:
    found = preconditions(**other)
    assert not found.met
    assert [each.met for each in found.checks] == [met if at == place else True for at in range(4)]
    assert text in found.checks[place].text
    assert bool(found.checks[place].fix) is (met is False)


def test_10_no_driver_of_the_operator_needs_none_to_be_built() -> None:
    assert preconditions(drivers={}).met
