"""Jobs: how many pods, when they are over, and end to end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.ctrl_world import World, template

from groundplane.lab import resources as res
from groundplane.lab.controllers import job, objects


@pytest.mark.parametrize(
    ("spec", "succeeded", "running", "wanted"),
    [
        ({"completions": 1}, 0, 0, 1),
        ({"completions": 5, "parallelism": 2}, 0, 0, 2),
        ({"completions": 5, "parallelism": 2}, 4, 1, 1),
        ({"completions": 5, "parallelism": 2}, 5, 0, 0),
        ({"parallelism": 3}, 0, 0, 3),
        ({"parallelism": 3}, 1, 2, 2),
        ({"parallelism": 0, "completions": 2}, 0, 0, 0),
    ],
)
def test_pods_wanted(spec: Any, succeeded: int, running: int, wanted: int) -> None:
    assert job.pods_wanted(spec, succeeded, running) == wanted


@pytest.mark.parametrize(
    ("spec", "numbers", "reason"),
    [
        ({"completions": 1}, (0, 0, 1, 5.0), None),
        ({"completions": 1}, (1, 0, 0, 5.0), "CompletionsReached"),
        ({"completions": 1}, (0, 6, 0, 5.0), None),
        ({"completions": 1}, (0, 7, 0, 5.0), "BackoffLimitExceeded"),
        ({"completions": 1, "backoffLimit": 0}, (0, 1, 0, 5.0), "BackoffLimitExceeded"),
        ({"completions": 1, "activeDeadlineSeconds": 5}, (0, 0, 1, 5.0), "DeadlineExceeded"),
        ({"parallelism": 2}, (1, 0, 1, 5.0), None),
        ({"parallelism": 2}, (1, 0, 0, 5.0), "CompletionsReached"),
    ],
)
def test_verdict(spec: Any, numbers: tuple[int, int, int, float], reason: str | None) -> None:
    found = job.verdict(spec, *numbers)
    assert (found.reason if found else None) == reason


@given(st.sets(st.integers(0, 40)))
def test_indexes_round_trip(indexes: set[int]) -> None:
    assert job.parse_indexes(job.format_indexes(list(indexes))) == sorted(indexes)


def test_indexes_are_written_as_runs() -> None:
    assert job.format_indexes([5, 0, 2, 3, 4, 7]) == "0,2-5,7"


def make(world: World, **spec: Any) -> None:
    world.create(res.JOBS, "j", spec={"template": template("j", restartPolicy="Never"), **spec})


def status(world: World) -> Any:
    return world.get(res.JOBS, "j").get("status") or {}


def over(world: World) -> str:
    for kind in ("Complete", "Failed"):
        found = objects.condition(world.get(res.JOBS, "j"), kind)
        if found is not None and found["status"] == "True":
            return f"{kind}/{found['reason']}"
    return ""


async def test_runs_to_completion() -> None:
    async with World() as world:
        world.node("n1")
        world.kubelet.behaviour = lambda pod: "Succeeded"
        make(world, completions=5, parallelism=2)
        await world.settle()
        assert over(world) == "Complete/CompletionsReached"
        assert status(world)["succeeded"] == 5
        assert status(world)["completionTime"]
        assert "active" not in status(world)
        assert len(world.pods()) == 5
        assert not any(job.FINALIZER in pod["metadata"].get("finalizers", ()) for pod in world.pods())
        assert world.events("Completed")


async def test_running_pods_are_tracked_and_counted() -> None:
    async with World() as world:
        world.node("n1")
        make(world, completions=3, parallelism=2)
        await world.settle()
        assert (status(world)["active"], status(world)["ready"]) == (2, 2)
        assert all(job.FINALIZER in pod["metadata"]["finalizers"] for pod in world.pods())


async def test_too_many_failures_end_it() -> None:
    async with World() as world:
        world.node("n1")
        world.kubelet.behaviour = lambda pod: "Failed"
        make(world, backoffLimit=1)
        await world.until(lambda: over(world) == "Failed/BackoffLimitExceeded")
        assert status(world)["failed"] == 2
        assert world.events("BackoffLimitExceeded")


async def test_deleted_pod_counts_as_failed_and_is_replaced() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        world.api.delete(res.PODS, world.pods()[0]["metadata"]["name"], "default")
        await world.until(lambda: status(world).get("failed") == 1 and status(world).get("active") == 1)
        assert len(world.pods()) == 1


async def test_deadline_ends_it() -> None:
    async with World() as world:
        world.node("n1")
        make(world, activeDeadlineSeconds=30)
        await world.until(lambda: over(world) == "Failed/DeadlineExceeded")
        assert world.pods() == []


async def test_suspended_job_starts_when_resumed() -> None:
    async with World() as world:
        world.node("n1")
        make(world, suspend=True)
        await world.settle()
        assert world.pods() == []
        assert "startTime" not in status(world)
        world.patch(res.JOBS, "j", {"spec": {"suspend": False}})
        await world.settle()
        assert len(world.pods()) == 1
        world.patch(res.JOBS, "j", {"spec": {"suspend": True}})
        await world.settle()
        assert world.pods() == []
        assert "failed" not in status(world)


async def test_finished_job_goes_when_its_time_is_over() -> None:
    async with World() as world:
        world.node("n1")
        world.kubelet.behaviour = lambda pod: "Succeeded"
        make(world, ttlSecondsAfterFinished=20)
        await world.until(lambda: world.find(res.JOBS, "j") is None)
        assert world.pods() == []


async def test_indexed_job_runs_every_index_once() -> None:
    async with World() as world:
        world.node("n1")
        world.kubelet.behaviour = lambda pod: "Succeeded"
        make(world, completions=3, parallelism=3, completionMode="Indexed")
        await world.settle()
        assert status(world)["completedIndexes"] == "0-2"
        assert sorted(pod["metadata"]["annotations"][job.INDEX] for pod in world.pods()) == ["0", "1", "2"]
        env = world.pods()[0]["spec"]["containers"][0]["env"]
        assert [each["name"] for each in env] == [job.INDEX_ENV]


async def test_orphaned_job_leaves_pods_without_finalizers() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        world.api.delete(res.JOBS, "j", "default", propagation="Orphan")
        await world.settle()
        (pod,) = world.pods()
        assert job.FINALIZER not in pod["metadata"].get("finalizers", ())
        assert "ownerReferences" not in pod["metadata"]


async def test_deleted_job_takes_its_pods_along() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        world.api.delete(res.JOBS, "j", "default", propagation="Background")
        await world.settle()
        assert world.pods() == []
