"""Rolling out a DaemonSet's new template: OnDelete, RollingUpdate with its limits, surge, history and going back."""

from __future__ import annotations

from typing import Any

import pytest
from contract import ctrl_daemons as daemons
from contract.ctrl_plane import Plane


def running(plane: Plane, *shorts: str, strategy: Any = None, **more: Any) -> None:
    """A DaemonSet whose pods are ready on these nodes."""
    for short in shorts:
        plane.node(short)
    daemons.make(plane, strategy=strategy, **more)
    daemons.pods(plane, *shorts)
    daemons.run_all(plane)
    total = len(shorts)
    daemons.says(plane, total, total, total, total, total, 0, 0)


def a_second_later(plane: Plane) -> None:
    """The status counts the oldest pod of a node, in whole seconds: let new pods be younger than those that run."""
    youngest = max(pod["metadata"]["creationTimestamp"] for pod in plane.owned(daemons.LABELS))
    plane.until(lambda: plane.now() > youngest, "a second to pass")


def test_on_delete_waits_for_the_pods_deletion(plane: Plane) -> None:
    running(plane, "a", "b", strategy=daemons.ON_DELETE)
    (first,) = daemons.revisions(plane)
    changed = daemons.set_image(plane, "x:2")
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["annotations"]["deprecated.daemonset.template.generation"] == "2"
    daemons.says(plane, 2, 2, 2, 0, 2, 0, 0)
    assert [each["revision"] for each in daemons.revisions(plane)] == [1, 2]
    old = daemons.pods(plane, "a", "b")
    digests = {pod["metadata"]["labels"][daemons.HASH] for pod in old.values()}
    assert digests == {first["metadata"]["labels"][daemons.HASH]}
    assert {pod["metadata"]["labels"][daemons.GENERATION] for pod in old.values()} == {"1"}
    plane.remove("pods", old["a"]["metadata"]["name"])
    plane.ends(old["a"]["metadata"]["name"])
    new = daemons.pods(plane, "a", "b")
    assert daemons.images(plane) == {"a": "x:2", "b": "x:1"}
    second = daemons.revisions(plane)[-1]
    assert new["a"]["metadata"]["labels"][daemons.HASH] == second["metadata"]["labels"][daemons.HASH]
    assert new["a"]["metadata"]["labels"][daemons.GENERATION] == "2"
    plane.runs(new["a"]["metadata"]["name"])
    daemons.says(plane, 2, 2, 2, 1, 2, 0, 0)


def test_on_delete_becomes_rolling(plane: Plane) -> None:
    running(plane, "a", strategy=daemons.ON_DELETE)
    daemons.set_image(plane, "x:2")
    daemons.says(plane, 1, 1, 1, 0, 1, 0, 0)
    plane.change("daemonsets", "d", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}})
    plane.until(lambda: daemons.going(plane) == ["a"], "the old pod to be deleted")


def test_one_after_the_other(plane: Plane) -> None:
    """The default: one pod at a time, the next when the new one is ready."""
    shorts = ("a", "b", "c")
    running(plane, *shorts)
    daemons.set_image(plane, "x:2")
    for done in range(1, 4):
        plane.until(lambda: len(daemons.going(plane)) == 1, "one pod to be deleted")
        daemons.finish(plane)
        new = daemons.pods(plane, *shorts)
        assert sorted(daemons.images(plane).values()) == ["x:1"] * (3 - done) + ["x:2"] * done
        daemons.says(plane, 3, 3, 2, done, 2, 1, 0)
        assert daemons.going(plane) == []
        for pod in new.values():
            if daemons.image(pod) == "x:2":
                plane.runs(pod["metadata"]["name"])
    daemons.says(plane, 3, 3, 3, 3, 3, 0, 0)


@pytest.mark.parametrize(
    ("nodes", "limit", "at_once"),
    [(3, 2, 2), (4, "50%", 2), (3, "34%", 2), (3, "10%", 1), (2, "100%", 2), (2, 10, 2)],
    ids=["2", "50%-of-4", "34%-of-3", "10%-of-3", "100%", "more-than-all"],
)
def test_limit_of_unavailable(plane: Plane, nodes: int, limit: Any, at_once: int) -> None:
    running(plane, *"abcd"[:nodes], strategy=daemons.rolling(maxUnavailable=limit))
    daemons.set_image(plane, "x:2")
    plane.until(lambda: len(daemons.going(plane)) == at_once, f"{at_once} pods to be deleted")
    daemons.says(plane, nodes, nodes, nodes, 0, nodes, 0, 0)
    assert len(daemons.going(plane)) == at_once


def test_a_broken_template_stops_after_the_first(plane: Plane) -> None:
    running(plane, "a", "b", "c")
    daemons.set_image(plane, "broken")
    plane.until(lambda: len(daemons.going(plane)) == 1, "one pod to be deleted")
    daemons.finish(plane)
    daemons.pods(plane, "a", "b", "c")
    daemons.says(plane, 3, 3, 2, 1, 2, 1, 0)
    daemons.set_image(plane, "x:3")
    plane.until(lambda: len(daemons.going(plane)) == 1, "the broken pod to be deleted")
    (pod,) = [pod for pod in plane.list("pods", daemons.LABELS) if pod["metadata"].get("deletionTimestamp")]
    assert daemons.image(pod) == "broken"
    daemons.finish(plane)
    daemons.pods(plane, "a", "b", "c")
    assert sorted(daemons.images(plane).values()) == ["x:1", "x:1", "x:3"]


def test_unready_pods_are_replaced_beyond_the_limit(plane: Plane) -> None:
    for short in ("a", "b", "c"):
        plane.node(short)
    daemons.make(plane)
    pods = daemons.pods(plane, "a", "b", "c")
    plane.runs(pods["a"]["metadata"]["name"])
    daemons.says(plane, 3, 3, 1, 3, 1, 2, 0)
    daemons.set_image(plane, "x:2")
    plane.until(lambda: daemons.going(plane) == ["b", "c"], "the pods that are not ready to be deleted")


def test_min_ready_seconds_hold_the_next_back(plane: Plane) -> None:
    running(plane, "a", "b", minReadySeconds=2)
    daemons.set_image(plane, "x:2")
    with plane.kubelet():
        plane.until(lambda: set(daemons.images(plane).values()) == {"x:2"}, "both to be replaced")
        daemons.says(plane, 2, 2, 2, 2, 2, 0, 0)


def test_surge_starts_the_new_before_the_old_goes(plane: Plane) -> None:
    running(plane, "a", "b", strategy=daemons.rolling(maxSurge=1, maxUnavailable=0))
    a_second_later(plane)
    daemons.set_image(plane, "x:2")
    plane.until(lambda: len([pod for pod in plane.owned(daemons.LABELS) if pod["spec"].get("nodeName")]) == 3)
    assert daemons.going(plane) == []
    daemons.says(plane, 2, 2, 2, 0, 2, 0, 0)
    (new,) = [pod for pod in plane.owned(daemons.LABELS) if daemons.image(pod) == "x:2"]
    there = new["spec"]["nodeName"].removeprefix(f"{plane.space}-")
    plane.runs(new["metadata"]["name"])
    plane.until(lambda: daemons.going(plane) == [there], "the old pod of that node to be deleted")
    with plane.kubelet():
        plane.until(lambda: [daemons.image(pod) for pod in plane.owned(daemons.LABELS)] == ["x:2"] * 2, "the end")
        daemons.says(plane, 2, 2, 2, 2, 2, 0, 0)


def test_surge_that_never_gets_ready_leaves_the_old_running(plane: Plane) -> None:
    running(plane, "a", "b", strategy=daemons.rolling(maxSurge="50%", maxUnavailable=0))
    a_second_later(plane)
    daemons.set_image(plane, "broken")
    plane.until(lambda: len(plane.owned(daemons.LABELS)) == 3, "the new pod")
    daemons.says(plane, 2, 2, 2, 0, 2, 0, 0)
    assert daemons.going(plane) == []
    daemons.set_image(plane, "x:1")
    plane.until(lambda: len(plane.owned(daemons.LABELS)) == 2, "the new pod to go")
    plane.until(lambda: {daemons.image(pod) for pod in plane.owned(daemons.LABELS)} == {"x:1"}, "the old to stay")


def test_going_back_reuses_the_revision(plane: Plane) -> None:
    running(plane, "a", strategy=daemons.ON_DELETE)
    (first,) = daemons.revisions(plane)
    daemons.set_image(plane, "x:2")
    daemons.says(plane, 1, 1, 1, 0, 1, 0, 0)
    changed = daemons.set_image(plane, "x:1")
    assert changed["metadata"]["annotations"]["deprecated.daemonset.template.generation"] == "3"
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)
    history = daemons.revisions(plane)
    assert [each["revision"] for each in history] == [2, 3]
    assert history[-1]["metadata"]["name"] == first["metadata"]["name"]
    assert history[-1]["metadata"]["uid"] == first["metadata"]["uid"]


def test_history_is_limited(plane: Plane) -> None:
    running(plane, "a", strategy=daemons.ON_DELETE, revisionHistoryLimit=1)
    for number in range(2, 6):
        daemons.set_image(plane, f"x:{number}")
        daemons.says(plane, 1, 1, 1, 0, 1, 0, 0)

    def look() -> bool:
        kept = [each["revision"] for each in daemons.revisions(plane)]
        assert kept == [1, 5], kept
        return True

    plane.until(look, "the pods' revision, which counts, and the newest, which does not")


def test_history_of_none(plane: Plane) -> None:
    running(plane, "a", strategy=daemons.ON_DELETE, revisionHistoryLimit=0)
    for number in range(2, 4):
        daemons.set_image(plane, f"x:{number}")
        daemons.says(plane, 1, 1, 1, 0, 1, 0, 0)
    plane.until(lambda: [each["revision"] for each in daemons.revisions(plane)] == [1, 3], "the pods' and the newest")


def test_other_changes_are_no_roll_out(plane: Plane) -> None:
    running(plane, "a")
    plane.change("daemonsets", "d", {"metadata": {"annotations": {"note": "x"}}, "spec": {"minReadySeconds": 1}})
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)
    assert [each["revision"] for each in daemons.revisions(plane)] == [1]
    found = plane.read("daemonsets", "d")
    assert found["metadata"]["annotations"]["deprecated.daemonset.template.generation"] == "1"
    assert daemons.going(plane) == []


def test_the_same_template_again_is_no_change(plane: Plane) -> None:
    running(plane, "a")
    found = plane.read("daemonsets", "d")
    again = plane.api.update(plane.path("daemonsets", "d"), {**found, "status": {}}).ok()
    assert again["metadata"]["generation"] == 1
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
