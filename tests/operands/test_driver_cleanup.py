"""When a driver DaemonSet may go: contracts/control-plane.md 4.6, and section 8 (issues 715 and 1368)."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operands import rendering

from groundplane.operands import driver, driver_cleanup, vgpu_manager
from groundplane.operands.driver_cleanup import Fate
from groundplane.operands.facts import OpenShift

BASE = "nvidia-driver-daemonset"
PRECOMPILED = {"driver": {"usePrecompiled": True}}
KERNEL, LEFT = "6.8.0-60-generic", "5.15.0-1"
OPENSHIFT = OpenShift(version="4.17", driver_toolkit={"r0": "dtk", "r1": "dtk"})
DTK = {"openshift": OPENSHIFT, "runtime": "crio"}
VGPU = {"sandboxWorkloads": {"enabled": True}, "vgpuManager": {"repository": "r", "image": "v", "version": "1"}}


def rhcos(version):
    return rendering.node(f"node-{version}", os_id="rhcos", os_version="4.17", ostree=version)


def rendered(changes=None, module=driver, **facts):
    """The DaemonSets that a policy wants on a cluster."""
    objects = module.render(rendering.spec(changes=changes), rendering.facts(**facts))
    return [each for each in objects if each["kind"] == "DaemonSet"]


def live(document, *, desired=0, misscheduled=0, generation=1, observed=1):
    """A DaemonSet as it would be in the cluster."""
    document = deepcopy(document)
    document["metadata"]["generation"] = generation
    document["status"] = {
        "observedGeneration": observed,
        "desiredNumberScheduled": desired,
        "numberMisscheduled": misscheduled,
    }
    return document


def precompiled(*kernels, system=("ubuntu", "24.04")):
    return rendered(PRECOMPILED, nodes=tuple(rendering.node(kernel, kernel, *system) for kernel in kernels))


IDLE, BUSY, MISPLACED = {"desired": 0}, {"desired": 2}, {"misscheduled": 1}
UNSEEN = {"generation": 2}


@pytest.mark.parametrize("status", [IDLE, BUSY, MISPLACED, UNSEEN])
def test_a_wanted_one_stays(status):
    for wanted in (precompiled(KERNEL, LEFT), rendered(), rendered(nodes=(rhcos("r1"),), **DTK)):
        assert [driver_cleanup.fate(live(each, **status), wanted) for each in wanted] == [Fate.KEEP] * len(wanted)


@pytest.mark.parametrize(
    ("status", "fate"), [(IDLE, Fate.DELETE), (BUSY, Fate.KEEP), (MISPLACED, Fate.KEEP), (UNSEEN, Fate.KEEP)]
)
def test_one_whose_kernel_or_rhcos_left_goes_when_idle(status, fate):
    (left,) = precompiled(LEFT)
    assert driver_cleanup.fate(live(left, **status), precompiled(KERNEL)) is fate
    (left,) = rendered(nodes=(rhcos("r0"),), **DTK)
    assert driver_cleanup.fate(live(left, **status), rendered(nodes=(rhcos("r1"),), **DTK)) is fate


def test_one_without_a_status_is_not_idle():
    (left,) = precompiled(LEFT)
    left["metadata"]["generation"] = 1
    assert driver_cleanup.fate(left, precompiled(KERNEL)) is Fate.KEEP


@pytest.mark.parametrize("status", [IDLE, BUSY])
def test_nothing_is_decided_while_nothing_is_wanted(status):
    for each in (*precompiled(KERNEL), *rendered()):
        assert driver_cleanup.fate(live(each, **status), []) is Fate.KEEP


@pytest.mark.parametrize("status", [IDLE, BUSY])
def test_predecessor_of_another_system_makes_room(status):
    (old,) = precompiled(KERNEL, system=("ubuntu", "22.04"))
    assert driver_cleanup.fate(live(old, **status), precompiled(KERNEL)) is Fate.DELETE_FIRST


ORDINARY, PER_KERNEL = rendered(), precompiled(KERNEL)
PER_RHCOS = rendered(nodes=(rhcos("r1"),), **DTK)
OFF = rendered({"operator": {"use_ocp_driver_toolkit": False}}, nodes=(rhcos("r1"),), **DTK)


@pytest.mark.parametrize("status", [IDLE, BUSY])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ORDINARY, PER_KERNEL),
        (PER_KERNEL, ORDINARY),
        (ORDINARY, PER_RHCOS),
        (PER_RHCOS, OFF),
        (PER_RHCOS, PER_KERNEL),
        (PER_KERNEL, PER_RHCOS),
    ],
)
def test_another_kind_goes_first(before, after, status):
    assert [driver_cleanup.fate(live(each, **status), after) for each in before] == [Fate.DELETE_FIRST] * len(before)


def test_one_of_an_older_operator_without_our_labels_is_ordinary():
    old = live({"metadata": {"name": f"{BASE}-mine"}, "spec": {"template": {"spec": {}}}}, desired=1)
    assert driver_cleanup.fate(old, ORDINARY) is Fate.KEEP
    assert driver_cleanup.fate(old, PER_KERNEL) is Fate.DELETE_FIRST


def test_vgpu_manager():
    plain = rendered(VGPU, vgpu_manager)
    old, new = (rendered(VGPU, vgpu_manager, nodes=(rhcos(version),), **DTK) for version in ("r0", "r1"))
    assert driver_cleanup.fate(live(plain[0]), new) is Fate.DELETE_FIRST
    assert driver_cleanup.fate(live(old[0]), new) is Fate.DELETE
    assert driver_cleanup.fate(live(new[0]), new) is Fate.KEEP


# --- Properties -------------------------------------------------------------------------------------------------------
KERNELS = [f"6.8.0-{number}-generic" for number in range(5)]
BY_KERNEL = {kernel: precompiled(kernel)[0] for kernel in KERNELS}
statuses = st.fixed_dictionaries({"desired": st.integers(0, 2), "misscheduled": st.integers(0, 1)})


@given(running=st.sets(st.sampled_from(KERNELS), min_size=1), there=st.dictionaries(st.sampled_from(KERNELS), statuses))
def test_a_driver_that_is_wanted_or_in_use_never_goes(running, there):
    wanted = [BY_KERNEL[kernel] for kernel in running]
    for kernel, status in there.items():
        fate = driver_cleanup.fate(live(BY_KERNEL[kernel], **status), wanted)
        gone = kernel not in running and not any(status.values())
        assert fate is (Fate.DELETE if gone else Fate.KEEP)


@given(passes=st.lists(st.sets(st.sampled_from(KERNELS), min_size=1), min_size=1, max_size=5))
def test_no_daemon_set_is_deleted_and_created_again_while_its_kernel_runs(passes):
    """However the fleet's kernels change, with every DaemonSet idle: issue 715."""
    there: set[str] = set()
    for running in passes:
        wanted = [BY_KERNEL[kernel] for kernel in running]
        for _ in range(2):
            gone = {kernel for kernel in there if driver_cleanup.fate(live(BY_KERNEL[kernel]), wanted) is not Fate.KEEP}
            assert not gone & running
            there = (there - gone) | running
        assert there == running
