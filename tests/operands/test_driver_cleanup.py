"""When a driver DaemonSet may go: contracts/control-plane.md 4.6, and section 8 (issues 715 and 1368)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operands import rendering

from groundplane.operands import driver_cleanup
from groundplane.operands.driver_cleanup import Cleanup
from groundplane.operands.errors import RenderError
from groundplane.operands.facts import OpenShift

BASE = "nvidia-driver-daemonset"
VGPU_BASE = "nvidia-vgpu-manager-daemonset"
PRECOMPILED = {"driver": {"usePrecompiled": True}}
KERNEL = "6.8.0-60-generic"
NAME = f"{BASE}-{KERNEL}-ubuntu24.04"
OPENSHIFT = OpenShift(version="4.17", driver_toolkit={"r1": "dtk"})
RHCOS = (rendering.node("a", os_id="rhcos", os_version="4.17", ostree="r1"),)


def live(name, *, desired=0, misscheduled=0, kernel="", labels=None, observed=1):
    selector = {"nvidia.com/gpu.deploy.driver": "true"}
    if kernel:
        selector["feature.node.kubernetes.io/kernel-version.full"] = kernel
    return {
        "metadata": {"name": name, "generation": 1, "labels": labels or {}},
        "spec": {"template": {"spec": {"nodeSelector": selector}}},
        "status": {
            "observedGeneration": observed,
            "desiredNumberScheduled": desired,
            "numberMisscheduled": misscheduled,
        },
    }


def precompiled(kernel=KERNEL, name=None, **more):
    name = name or f"{BASE}-{kernel}-ubuntu24.04"
    return live(name, kernel=kernel, labels={"nvidia.com/precompiled": "true"}, **more)


def ordinary(**more):
    return live(BASE, labels={"nvidia.com/precompiled": "false"}, **more)


def toolkit(rhcos, base=BASE, **more):
    labels = {"openshift.driver-toolkit": "true", "nvidia.com/precompiled": "false"}
    return live(f"{base}-{rhcos}", labels=labels, **more)


def decide(daemon_sets, changes=None, pods=(), state="state-driver", **facts):
    return driver_cleanup.cleanup(state, daemon_sets, pods, rendering.spec(changes=changes), rendering.facts(**facts))


# --- Leftovers of the wanted kind -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("daemon_set", "delete"),
    [
        (precompiled(), ()),
        (precompiled(desired=2), ()),
        (precompiled(misscheduled=1), ()),
        (precompiled("5.15.0-1"), (f"{BASE}-5.15.0-1-ubuntu24.04",)),
        (precompiled("5.15.0-1", desired=1), ()),
        (precompiled("5.15.0-1", misscheduled=1), ()),
        (precompiled("5.15.0-1", observed=0), ()),
    ],
)
def test_precompiled_leftovers(daemon_set, delete):
    assert decide([daemon_set], PRECOMPILED) == Cleanup(delete)


def test_successor_on_another_system_replaces():
    old = precompiled(name=f"{BASE}-{KERNEL}-ubuntu22.04", desired=3)
    assert decide([old, precompiled()], PRECOMPILED) == Cleanup((f"{BASE}-{KERNEL}-ubuntu22.04",))


def test_driver_toolkit_leftovers():
    found = [toolkit("r0"), toolkit("r1"), toolkit("r2", desired=1)]
    assert decide(found, nodes=RHCOS, openshift=OPENSHIFT) == Cleanup((f"{BASE}-r0",))


def test_ordinary_daemon_set_stays():
    assert decide([ordinary()]) == Cleanup()


def test_nothing_is_touched_without_gpu_nodes():
    found = [precompiled(), precompiled("5.15.0-1"), ordinary()]
    for changes in (PRECOMPILED, {}):
        assert decide(found, changes, nodes=()) == Cleanup()


def test_nothing_is_decided_while_labels_are_unclear():
    with pytest.raises(RenderError, match="gpu-9"):
        decide([precompiled("5.15.0-1")], PRECOMPILED, nodes=(rendering.node("gpu-9", kernel=""),))


def test_daemon_set_without_a_status():
    fresh = {
        "metadata": {"name": f"{BASE}-x", "generation": 1},
        "spec": {"template": {"spec": {}}},
    }
    assert decide([fresh]) == Cleanup()


@pytest.mark.parametrize("name", ["nvidia-driver-daemonsets", "nvidia-gpu-driver-ubuntu24.04-67cc6dbb79", "other"])
def test_daemon_sets_of_others_are_ignored(name):
    assert decide([live(name, labels={"nvidia.com/precompiled": "true"})]) == Cleanup()
    assert not driver_cleanup.belongs("state-driver", name)


def test_belongs():
    assert driver_cleanup.belongs("state-driver", BASE)
    assert driver_cleanup.belongs("state-driver", NAME)
    assert driver_cleanup.belongs("state-vgpu-manager", f"{VGPU_BASE}-r1")
    assert not driver_cleanup.belongs("state-vgpu-manager", BASE)


# --- Switching the kind -----------------------------------------------------------------------------------------------
SWITCHES = [
    ([ordinary(desired=3)], PRECOMPILED, {}, (BASE,)),
    ([precompiled(desired=3), precompiled("5.15.0-1")], {}, {}, (f"{BASE}-5.15.0-1-ubuntu24.04", NAME)),
    ([ordinary(desired=1)], {}, {"nodes": RHCOS, "openshift": OPENSHIFT}, (BASE,)),
    ([toolkit("r1", desired=1)], PRECOMPILED, {"nodes": RHCOS, "openshift": OPENSHIFT}, (f"{BASE}-r1",)),
    (
        [toolkit("r1", desired=1)],
        {"operator": {"use_ocp_driver_toolkit": False}},
        {"nodes": RHCOS, "openshift": OPENSHIFT},
        (f"{BASE}-r1",),
    ),
]


@pytest.mark.parametrize(("found", "changes", "facts", "delete"), SWITCHES)
def test_another_kind_goes_first(found, changes, facts, delete):
    plan = decide(found, changes, **facts)
    assert plan.delete == delete
    assert all(name in plan.hold for name in delete)


def test_held_back_until_the_last_pod_is_gone():
    leaving = {"app": BASE, "nvidia.com/precompiled": "false"}
    other = {"app": "nvidia-device-plugin-daemonset"}
    plan = decide([], PRECOMPILED, pods=[leaving, leaving, other])
    assert plan == Cleanup(hold="the precompiled driver waits until 2 pods of another kind of driver are gone")
    ours = {"app": BASE, "nvidia.com/precompiled": "true"}
    assert decide([precompiled(desired=1)], PRECOMPILED, pods=[ours, other]) == Cleanup()


def test_leftovers_wait_while_another_kind_is_leaving():
    plan = decide([ordinary(), precompiled("5.15.0-1")], PRECOMPILED)
    assert plan.delete == (BASE,)


def test_vgpu_manager():
    changes = {"sandboxWorkloads": {"enabled": True}, "vgpuManager": {"enabled": True}, **PRECOMPILED}
    facts = {"nodes": RHCOS, "openshift": OPENSHIFT, "state": "state-vgpu-manager"}
    found = [toolkit("r0", VGPU_BASE), toolkit("r1", VGPU_BASE), toolkit("r0")]
    assert decide(found, changes, **facts) == Cleanup((f"{VGPU_BASE}-r0",))
    assert decide([live(VGPU_BASE, desired=1)], changes, **facts).delete == (VGPU_BASE,)
    pods = [{"app": VGPU_BASE}]
    assert decide([], changes, pods, **facts).hold
    assert not decide([], changes, [{"app": f"{VGPU_BASE}-r1", "openshift.driver-toolkit": "true"}], **facts).hold


# --- Properties -------------------------------------------------------------------------------------------------------
kernels = st.sampled_from([f"6.8.0-{number}-generic" for number in range(5)])
statuses = st.fixed_dictionaries({"desired": st.integers(0, 2), "misscheduled": st.integers(0, 1)})


@given(
    running=st.sets(kernels, min_size=1),
    there=st.dictionaries(kernels, statuses),
    plain=st.none() | statuses,
    wanted_precompiled=st.booleans(),
)
def test_a_driver_that_is_wanted_or_in_use_never_goes(running, there, plain, wanted_precompiled):
    nodes = tuple(rendering.node(kernel, kernel) for kernel in sorted(running))
    found = [precompiled(kernel, **status) for kernel, status in there.items()]
    found += [ordinary(**plain)] if plain is not None else []
    plan = decide(found, PRECOMPILED if wanted_precompiled else {}, nodes=nodes)
    other = {each["metadata"]["name"] for each in found if ("6.8" in each["metadata"]["name"]) != wanted_precompiled}
    if other:
        assert set(plan.delete) == other
        assert plan.hold
        return
    assert plan.hold == ""
    gone = {f"{BASE}-{k}-ubuntu24.04" for k, s in there.items() if k not in running and not any(s.values())}
    assert set(plan.delete) == gone


@given(running=st.sets(kernels, min_size=1), there=st.sets(kernels))
def test_it_comes_to_rest(running, there):
    """Deleting and applying what is said ends: no DaemonSet is deleted and created again (issue 715)."""
    nodes = tuple(rendering.node(kernel, kernel) for kernel in sorted(running))
    names = set(there)
    for _ in range(3):
        plan = decide([precompiled(kernel) for kernel in sorted(names)], PRECOMPILED, nodes=nodes)
        names -= {kernel for kernel in names if f"{BASE}-{kernel}-ubuntu24.04" in plan.delete}
        names |= running
    assert names == running
    assert decide([precompiled(kernel) for kernel in names], PRECOMPILED, nodes=nodes) == Cleanup()
