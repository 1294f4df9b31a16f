"""What a pass writes and deletes, from documents alone; and what the store of owned objects knows between writes."""

from collections.abc import Iterable
from typing import Any

import pytest

from groundplane.api import names
from groundplane.api.clusterpolicy import ClusterPolicySpec, DriverSpec
from groundplane.api.release import Release
from groundplane.cluster import apply, kinds
from groundplane.cluster.apply import Key
from groundplane.cluster.informer import Change
from groundplane.operands.errors import RenderError
from groundplane.operands.facts import ClusterFacts, GpuNode, Owner
from groundplane.operands.stack import Rendered
from groundplane.operator import decide
from groundplane.operator.decide import Context
from groundplane.operator.owned import ECHO_S, OwnedObjects

Object = dict[str, Any]


def obj(kind: str, name: str, state: str = "s", **rest: Any) -> Object:
    versions = {"DaemonSet": "apps/v1", "ServiceMonitor": "monitoring.coreos.com/v1"}
    labels = {names.STATE_LABEL: state} if state else {}
    meta = {"name": name, "namespace": "gpu", "labels": {**labels, **rest.pop("labels", {})}, **rest.pop("meta", {})}
    return {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": meta, **rest}


class Listed:
    def __init__(self, objects: Iterable[Object]) -> None:
        self.objects = {each["metadata"]["name"]: each for each in objects}

    def get(self, name: str, namespace: str = "") -> Object | None:
        return self.objects.get(name)

    def values(self) -> Iterable[Object]:
        return self.objects.values()


def store(*live: Object) -> OwnedObjects:
    made = OwnedObjects()
    for kind in (kinds.DAEMON_SET, kinds.CONFIG_MAP, kinds.SERVICE_ACCOUNT):
        made.sources[kind] = Listed(each for each in live if kinds.of(each) is kind)
    return made


def about(have: OwnedObjects, *, gpu: bool = True, **more: Any) -> Context:
    return Context(store=have, served=have.sources.__contains__, owner_uid="owner", gpu_nodes=gpu, **more)


def one(rendered: Rendered, have: OwnedObjects, **more: Any) -> decide.Step:
    return decide.steps([rendered], about(have, **more))[0]


def on(*objects: Object, state: str = "s", not_ready: str = "") -> Rendered:
    return Rendered(state, enabled=True, objects=list(objects), not_ready=not_ready)


def stored(each: Object, **meta: Any) -> Object:
    stamped = apply.stamp(each)
    return {**stamped, "metadata": {**stamped["metadata"], "resourceVersion": "1", "uid": "u", **meta}}


def names_of(deletions: list[decide.Deletion]) -> list[str]:
    return [deletion.obj["metadata"]["name"] for deletion in deletions]


def test_what_is_missing_is_new_and_what_is_right_is_left() -> None:
    wanted = obj("ConfigMap", "a", data={"k": "v"})
    step = one(on(wanted), store())
    assert [(write.new, write.drift) for write in step.writes] == [(True, ())]
    assert one(on(wanted), store(stored(wanted))).writes == []


def test_drift_and_a_new_wish_are_written() -> None:
    wanted, other = obj("ConfigMap", "a", data={"k": "v"}), obj("ConfigMap", "a", data={"k": "x"})
    drifted = {**stored(wanted), "data": {"k": "x"}}
    assert one(on(wanted), store(drifted)).writes[0].drift
    assert len(one(on(wanted), store(stored(other))).writes) == 1


def test_what_is_not_wanted_goes() -> None:
    step = one(on(obj("ConfigMap", "a")), store(obj("ConfigMap", "b"), obj("ConfigMap", "c", state="")))
    assert names_of(step.deletions) == ["b"]


def test_a_disabled_state_loses_everything_but_what_is_going_already() -> None:
    live = store(obj("ConfigMap", "a"), obj("DaemonSet", "d", meta={"deletionTimestamp": "now"}))
    step = one(Rendered("s", enabled=False), live)
    assert names_of(step.deletions) == ["a"] and not step.enabled


def test_objects_of_a_state_that_no_longer_exists_go_last() -> None:
    found = decide.steps([on(obj("ConfigMap", "a"))], about(store(obj("ConfigMap", "old", state="retired"))))
    assert [step.state for step in found] == ["s", "retired"]
    assert names_of(found[1].deletions) == ["old"]


@pytest.mark.parametrize("refused", [True, False])
def test_an_error_stops_the_pass_and_deletes_nothing(refused: bool) -> None:
    broken = Rendered("bad", enabled=True, error=None if refused else RenderError("bad", "broken"))
    live = store(obj("ConfigMap", "x", state="bad"), obj("ConfigMap", "y", state="retired"))
    found = decide.steps(
        [on(obj("ConfigMap", "a")), broken, on(obj("ConfigMap", "b"), state="later")],
        about(live),
        {"bad": "broken"} if refused else {},
    )
    assert [(step.state, step.error) for step in found] == [("s", ""), ("bad", "broken")]
    assert found[1].deletions == []


def test_a_refusal_of_a_disabled_state_does_not_matter() -> None:
    found = decide.steps([Rendered("s", enabled=False)], about(store()), {"s": "broken"})
    assert found[0].error == ""


def test_without_gpu_nodes_daemon_sets_are_neither_made_nor_unmade() -> None:
    step = one(on(obj("DaemonSet", "a"), obj("ConfigMap", "c")), store(obj("DaemonSet", "old")), gpu=False)
    assert [write.obj["kind"] for write in step.writes] == ["ConfigMap"]
    assert step.deletions == [] and step.daemon_sets == []


def test_what_cannot_be_judged_yet_is_waited_for() -> None:
    going = obj("ConfigMap", "a", meta={"deletionTimestamp": "now"})
    assert "being deleted" in one(on(obj("ConfigMap", "a")), store(going)).waiting[0]
    assert "not installed" in one(on(obj("ServiceMonitor", "a")), store()).waiting[0]
    assert one(on(not_ready="because"), store()).waiting == ["because"]


def test_service_accounts_are_left_alone_unless_the_policy_owns_them() -> None:
    wanted = obj("ServiceAccount", "sa")
    assert len(one(on(wanted), store()).writes) == 1
    assert one(on(wanted), store(obj("ServiceAccount", "sa", state="", secrets=["x"]))).writes == []
    assert one(on(wanted), store(obj("ServiceAccount", "sa"))).writes == []
    adopted = obj("ServiceAccount", "sa", state="", meta={"ownerReferences": [{"uid": "owner"}]})
    assert len(one(on(wanted), store(adopted)).writes) == 1


DRIVER = "state-driver"


def ds(name: str, *, precompiled: str = "", desired: int = 1, wrong: int = 0, **meta: Any) -> Object:
    status = {"observedGeneration": 1, "desiredNumberScheduled": desired, "numberMisscheduled": wrong}
    state = meta.pop("state", DRIVER)
    labels = {names.PRECOMPILED: precompiled} if precompiled else {}
    spec = {"template": {"spec": {}}}
    return obj("DaemonSet", name, state, labels=labels, spec=spec, status=status, meta={"generation": 1, **meta})


@pytest.mark.parametrize(
    ("live", "deleted", "waits"),
    [
        (ds("p-old", precompiled="true"), [], False),
        (ds("p-old", precompiled="true", desired=0), ["p-old"], False),
        (ds("p-old", precompiled="true", desired=0, wrong=1), [], False),
        (ds("p-old", precompiled="true", desired=0, generation=2), [], False),
        (ds("plain", precompiled="false"), ["plain"], True),
        (ds("plain", precompiled="false", deletionTimestamp="now"), [], True),
    ],
)
def test_stale_drivers(live: Object, deleted: list[str], waits: bool) -> None:
    wanted = ds("p-new", precompiled="true")
    step = one(on(wanted, state=DRIVER), store(live))
    assert names_of(step.deletions) == deleted
    assert bool(step.writes) is not waits
    assert bool(step.waiting) is waits
    assert all(deletion.propagation == "Foreground" for deletion in step.deletions) is (waits or not deleted)


def test_stale_daemon_sets_of_other_states_just_go() -> None:
    assert names_of(one(on(), store(ds("x", state="s"))).deletions) == ["x"]


@pytest.mark.parametrize(("release", "propagation"), [(Release.V26_3, "Background"), (Release.V26_7, "Orphan")])
def test_drivers_handed_over_leave_only_as_daemon_sets(release: Release, propagation: str) -> None:
    spec = ClusterPolicySpec(driver=DriverSpec(useNvidiaDriverCRD=True))
    facts = ClusterFacts(namespace="gpu", release=release, nodes=(GpuNode(),), owner=Owner(name="p", uid="owner"))
    have = store(ds("d"), obj("ServiceAccount", "nvidia-driver", DRIVER))
    context = decide.context(spec, facts, have, have.sources.__contains__)
    step = decide.steps([Rendered(DRIVER, enabled=False)], context)[0]
    assert [(d.obj["metadata"]["name"], d.propagation) for d in step.deletions] == [("d", propagation)]


@pytest.mark.parametrize("by_crd", [True, False])
def test_objects_of_an_nvidiadriver_are_left_to_it(by_crd: bool) -> None:
    owner = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "name": "a", "uid": "a", "controller": True}
    other = {"apiVersion": "example.com/v1", "kind": "NVIDIADriver", "name": "a", "uid": "b"}
    have = store(
        ds("nvidia-gpu-driver-ubuntu24.04-x", ownerReferences=[owner]),
        ds("nvidia-driver-daemonset", ownerReferences=[other]),
        obj("ConfigMap", "nvidia-driver-startup-probe", DRIVER, meta={"ownerReferences": [owner]}),
    )
    disabled = decide.steps([Rendered(DRIVER, enabled=False)], about(have, drivers_by_crd=by_crd))[0]
    assert names_of(disabled.deletions) == ["nvidia-driver-daemonset"]
    assert names_of(one(on(state=DRIVER), have).deletions) == []


# --- between a write and its echo -------------------------------------------------------------------------------------


def test_a_write_is_in_flight_until_its_echo() -> None:
    wanted = obj("DaemonSet", "a")
    have, key, new = store(), Key.of(wanted), apply.stamp(wanted)
    have.writing(new, 0.0)
    assert have.in_flight(key)
    step = one(on(wanted), have)
    assert step.writes == [] and "just been written" in step.waiting[0]
    have.heard(Change("added", None, {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": "1"}}))
    assert have.in_flight(key), "an older state is no echo"
    have.heard(Change("modified", None, {**new, "metadata": {**new["metadata"], "resourceVersion": "2"}}))
    assert not have.in_flight(key)


def test_a_repeated_wish_needs_a_newer_version_as_its_echo() -> None:
    live = stored(obj("ConfigMap", "a"))
    have = store(live)
    have.writing(live, 0.0)
    have.heard(Change("modified", live, live))
    assert have.in_flight(Key.of(live))
    have.heard(Change("deleted", live, None))
    assert not have.in_flight(Key.of(live))


def test_a_write_without_an_echo_is_not_waited_for_forever() -> None:
    wanted = apply.stamp(obj("ConfigMap", "a"))
    have = store()
    assert have.expire(0.0) is None
    have.writing(wanted, 0.0)
    assert have.expire(1.0) == ECHO_S - 1
    assert have.expire(ECHO_S) is None
    assert not have.in_flight(Key.of(wanted))
    have.writing(wanted, 0.0)
    have.not_written(Key.of(wanted))
    assert not have.in_flight(Key.of(wanted))


def test_a_deleted_object_counts_as_going_until_the_watch_says_more() -> None:
    live = stored(obj("ConfigMap", "a"))
    have, key = store(live), Key.of(live)
    have.removing(live)
    found = have.get(key)
    assert found is not None and found["metadata"]["deletionTimestamp"]
    assert one(Rendered("s", enabled=False), have).deletions == []
    have.heard(Change("modified", live, live))
    assert have.get(key) is live
    have.sources.pop(kinds.CONFIG_MAP)
    assert have.get(key) is None and have.of_kind(kinds.CONFIG_MAP) == []


def test_a_deletion_whose_echo_came_before_its_answer_is_not_waited_for() -> None:
    """The watch may be faster than the answer to the request; the object can then be made again at once."""
    live = stored(obj("ConfigMap", "a"))
    have, key = store(live), Key.of(live)
    have.removing(live)
    have.sources[kinds.CONFIG_MAP] = Listed([])
    have.heard(Change("deleted", live, None))
    assert have.get(key) is None
    (write,) = one(on(obj("ConfigMap", "a")), have).writes
    assert write.new


@pytest.mark.parametrize("now", [[], [obj("ConfigMap", "a", meta={"uid": "another"})]], ids=["gone", "replaced"])
def test_an_object_that_is_gone_or_replaced_already_is_not_waited_for(now: list[Object]) -> None:
    live = stored(obj("ConfigMap", "a"), uid="first")
    have = store(*now)
    have.removing(live)
    assert have.get(Key.of(live)) == (now[0] if now else None)


def test_a_deletion_that_failed_leaves_the_object_as_it_was() -> None:
    live = stored(obj("ConfigMap", "a"))
    have = store(live)
    have.removing(live)
    have.not_removed(Key.of(live))
    assert have.get(Key.of(live)) is live


# --- left by NVIDIA's operator ----------------------------------------------------------------------------------------

FORMER = {"managedFields": [{"manager": "gpu-operator", "operation": "Update", "fieldsV1": {"f:data": {}}}]}


def test_what_is_left_and_not_wanted_goes_last() -> None:
    left = obj("ConfigMap", "old", state="", meta=FORMER)
    found = decide.steps([on(obj("ConfigMap", "a"))], about(store(), leftovers=[left]))
    assert [step.state for step in found] == ["s", decide.LEFT_BY_NVIDIA]
    assert [deletion.obj["metadata"]["name"] for deletion in found[-1].deletions] == ["old"]
    assert not found[-1].enabled


def test_what_is_left_and_wanted_is_taken_over_by_the_write() -> None:
    left = obj("ConfigMap", "a", state="", meta=FORMER)
    found = decide.steps([on(obj("ConfigMap", "a"))], about(store(), leftovers=[left]))
    assert len(found) == 1
    write = found[0].writes[0]
    assert (write.new, write.former) == (True, left)


def test_an_adopted_object_is_written_until_nothing_of_it_is_nvidias() -> None:
    wanted = obj("ConfigMap", "a")
    live = apply.stamp(obj("ConfigMap", "a"))
    assert one(on(wanted), store(live)).writes == []
    former = {**live, "metadata": {**live["metadata"], **FORMER}}
    write = one(on(wanted), store(former)).writes[0]
    assert write.drift == ("metadata.managedFields",)
    assert write.former == former


def test_left_drivers_are_judged_as_drivers() -> None:
    """A driver DaemonSet that still serves nodes stays, as one of ours would."""
    left = obj("DaemonSet", "nvidia-driver-daemonset-6.8", state="", meta=FORMER, spec={"template": {"spec": {}}})
    found = decide.steps([on(state="state-driver")], about(store(), leftovers=[left]))
    assert [step.deletions for step in found] == [[]]
    found = decide.steps([Rendered("state-driver", enabled=False)], about(store(), leftovers=[left]))
    assert len(found[0].deletions) == 1


def test_kinds_that_cannot_be_read_are_left_alone() -> None:
    ours = obj("ConfigMap", "old")
    left = obj("ConfigMap", "left", state="", meta=FORMER)
    have = store(ours)
    context = about(have, leftovers=[left], unreadable=frozenset({kinds.CONFIG_MAP}))
    found = decide.steps([on(obj("ConfigMap", "a"))], context)
    assert len(found) == 1
    assert (found[0].writes, found[0].deletions) == ([], [])
    assert "cannot be read" in found[0].waiting[0]
