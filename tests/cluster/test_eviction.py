"""Eviction and drain: which pods may go (contracts/driver-lifecycle.md 3.11), and how they are made to go."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.cluster import errors, eviction
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.cluster.eviction import EvictionError, Pod, Rules, choose
from groundplane.lab import http, resources
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults, Rule

NODE = "gpu-node-1"


def owner(kind: str, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": True, **more}


def document(
    name: str = "p", *, owners: list[dict[str, Any]] | None = None, phase: str = "Running", **more: Any
) -> Any:
    spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}], **more.pop("spec", {})}
    meta = {"name": name, "namespace": "jobs", "ownerReferences": owners or [], **more}
    ready = [{"type": "Ready", "status": "True"}] if phase == "Running" else []
    return {"metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": ready}}


def pod(*args: Any, **more: Any) -> Pod:
    return msgspec.convert(document(*args, **more), Pod)


EMPTY_DIR = {"volumes": [{"name": "v", "emptyDir": {}}]}
MIRROR = {"annotations": {"kubernetes.io/config.mirror": "x"}}
NO_LIMITS = Rules(force=True, delete_empty_dir=True)
JOB = [owner("Job")]

RULES = [
    # pod, rules: deletable, ignored or refused
    (pod(owners=JOB), Rules(), "deletable"),
    (pod(), Rules(), "refused"),
    (pod(), Rules(force=True), "deletable"),
    (pod(owners=[owner("Job", controller=False)]), Rules(), "refused"),
    (pod(phase="Succeeded"), Rules(), "deletable"),
    (pod(phase="Failed"), Rules(), "deletable"),
    (pod(owners=JOB, spec=EMPTY_DIR), Rules(), "refused"),
    (pod(owners=JOB, spec=EMPTY_DIR), Rules(force=True), "refused"),
    (pod(owners=JOB, spec=EMPTY_DIR), Rules(delete_empty_dir=True), "deletable"),
    (pod(spec=EMPTY_DIR), Rules(delete_empty_dir=True), "refused"),
    (pod(spec=EMPTY_DIR), NO_LIMITS, "deletable"),
    (pod(phase="Succeeded", spec=EMPTY_DIR), Rules(), "deletable"),
    (pod(owners=[owner("DaemonSet")]), NO_LIMITS, "ignored"),
    (pod(owners=[owner("DaemonSet")], phase="Succeeded"), Rules(), "deletable"),
    (pod(owners=[owner("DaemonSet", "gone")]), Rules(), "refused"),
    (pod(owners=[owner("DaemonSet", "gone")]), Rules(force=True), "deletable"),
    (pod(**MIRROR), NO_LIMITS, "ignored"),
    (pod(owners=[owner("Node")], **MIRROR), NO_LIMITS, "ignored"),
    (pod(phase="Succeeded", **MIRROR), NO_LIMITS, "ignored"),
]
"""What `kubectl drain` says of pods: 3.11, Eviction semantics."""


@pytest.mark.parametrize(("found", "rules", "said"), RULES)
def test_3_11_which_pods_may_go(found: Pod, rules: Rules, said: str) -> None:
    choice = choose([found], rules, gone={("jobs", "gone")})
    assert [name for name in choice._fields if getattr(choice, name)] == [said]
    assert all(kept.pod is found and kept.reason for kept in choice.kept)
    assert bool(choice.kept) == (said != "deletable")


pods = st.builds(
    pod,
    owners=st.lists(st.builds(owner, st.sampled_from(["Job", "DaemonSet", "Node"])), max_size=1),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
    spec=st.sampled_from([{}, EMPTY_DIR]),
    annotations=st.sampled_from([{}, MIRROR["annotations"]]),
)


@given(st.lists(pods), st.booleans(), st.booleans())
def test_more_leave_lets_more_go_and_none_is_lost(found: list[Pod], force: bool, empty: bool) -> None:
    strict, given_rules, all_rules = (choose(found, r) for r in (Rules(), Rules(force, empty), NO_LIMITS))
    for choice in (strict, given_rules, all_rules):
        assert len(choice.deletable) + len(choice.kept) == len(found)
    assert all_rules.refused == ()
    assert strict.ignored == given_rules.ignored == all_rules.ignored
    assert len(strict.deletable) <= len(given_rules.deletable) <= len(all_rules.deletable)


# --- the API server ---------------------------------------------------------------------------------------------------


class World:
    """A lab's API server with one node, and a client of it."""

    def __init__(self) -> None:
        self.api, self.faults = Api(seed=1), Faults()
        self.told: list[str] = []
        self.slept: list[float] = []
        self.client: Any = None
        self.api.create(resources.NAMESPACES, {"metadata": {"name": "jobs"}})
        self.api.create(resources.NODES, {"metadata": {"name": NODE}})

    def add(self, name: str, **more: Any) -> Pod:
        body = document(name, **more)
        state = body.pop("status")
        made = self.api.create(resources.PODS, body, body["metadata"]["namespace"])
        body = {**made, "status": state}
        return msgspec.convert(self.api.update(resources.PODS, body, ns="jobs", subresource="status"), Pod)

    def budget(self, allowed: int) -> None:
        spec = {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1}
        if self.api.find(resources.POD_DISRUPTION_BUDGETS, "b", "jobs") is None:
            self.api.create(resources.POD_DISRUPTION_BUDGETS, {"metadata": {"name": "b"}, "spec": spec}, "jobs")
        state = {
            "status": {
                "disruptionsAllowed": allowed,
                "observedGeneration": 1,
                "currentHealthy": 1,
                "desiredHealthy": 1,
                "expectedPods": 1,
            }
        }
        self.api.patch(resources.POD_DISRUPTION_BUDGETS, "b", state, ns="jobs", type="merge", subresource="status")

    def leaving(self) -> set[str]:
        found = self.api.list(resources.PODS)["items"]
        return {each["metadata"]["name"] for each in found if "deletionTimestamp" in each["metadata"]}

    def here(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.api.list(resources.PODS)["items"]}

    def end(self, *names: str) -> None:
        for name in names:
            self.api.delete(resources.PODS, name, "jobs", grace_period_s=0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(seconds / 1000)

    async def evict(self, *found: Pod, timeout_s: float = 0.0) -> None:
        await eviction.evict(self.client, NODE, found, timeout_s=timeout_s, sleep=self.sleep, tell=self.told.append)

    async def until(self, done: Any) -> None:
        async with asyncio.timeout(20):
            while not done():
                await asyncio.sleep(0.005)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    server = await http.serve(world.api, faults=world.faults)
    retry = Retry(attempts=2, first_s=0.01, max_s=0.01)
    async with Client(Config(server=server.url), retry=retry) as world.client:
        yield world
    await server.close()


async def test_evicts_all_and_waits_until_they_are_gone(world: World) -> None:
    one, two, other = world.add("one"), world.add("two"), world.add("other")
    task = asyncio.ensure_future(world.evict(one, two))
    await world.until(lambda: world.leaving() == {"one", "two"})
    world.end("one")
    await asyncio.sleep(0.05)
    assert not task.done()
    world.end("two")
    await task
    assert world.here() == {other.metadata.name}
    assert not world.slept  # nothing is polled
    listed = sum(count for (verb, *_), count in world.client.requests.items() if verb in ("list", "watch"))
    assert listed <= 2


async def test_nothing_to_evict_asks_for_nothing(world: World) -> None:
    await world.evict()
    assert not world.client.requests


async def test_a_pod_made_anew_under_its_name_is_let_alone(world: World) -> None:
    old = world.add("one")
    world.end("one")
    new = world.add("one")
    assert old.metadata.uid != new.metadata.uid
    await world.evict(old)
    assert world.here() == {"one"} and not world.leaving()


async def test_a_budget_is_asked_again_every_5_s_and_told_once(world: World) -> None:
    held = world.add("one", labels={"app": "a"})
    world.budget(0)
    task = asyncio.ensure_future(world.evict(held))
    await world.until(lambda: len(world.slept) > 2)
    assert set(world.slept) == {eviction.AGAIN_S} and not world.leaving()
    world.budget(1)
    await world.until(lambda: world.leaving() == {"one"})
    world.end("one")
    await task
    (told,) = world.told
    assert "jobs/one" in told and "disruption budget" in told


async def test_time_over_names_each_pod_and_what_keeps_it(world: World) -> None:
    held, slow = world.add("held", labels={"app": "a"}), world.add("slow")
    world.budget(0)
    with pytest.raises(EvictionError) as caught:
        await world.evict(held, slow, timeout_s=120.0)
    text = str(caught.value)
    assert text.startswith(f"timed out after 120 s; still on node {NODE}: ")
    assert "jobs/held" in text and "disruption budget" in text and "jobs/slow (evicted, but not gone yet)" in text
    assert 120.0 in world.slept


async def test_two_budgets_are_an_error_at_once(world: World) -> None:
    held = world.add("one", labels={"app": "a"})
    world.faults.add(Rule("create", "pods", subresource="eviction", times=None))
    with pytest.raises(errors.ServerError):
        await world.evict(held)


@pytest.mark.parametrize("code", [404, 409])
async def test_what_is_said_of_a_budget_is_not_taken_for_the_pods_end(world: World, code: int) -> None:
    """A budget that goes or changes while the server counts with it answers like a pod that is gone."""
    one = world.add("one")
    world.faults.add(Rule("create", "pods", subresource="eviction", answer=code, times=1))
    task = asyncio.ensure_future(world.evict(one))
    await world.until(lambda: world.leaving() == {"one"})
    assert not task.done()
    world.end("one")
    await task


@pytest.mark.parametrize("code", [429, 503])
async def test_a_busy_server_is_asked_again(world: World, code: int) -> None:
    one = world.add("one")
    world.faults.add(Rule("create", "pods", subresource="eviction", answer=code, times=3))
    task = asyncio.ensure_future(world.evict(one))
    await world.until(lambda: world.leaving() == {"one"})
    world.end("one")
    await task


async def test_drain_touches_nothing_if_a_pod_may_not_go(world: World) -> None:
    world.add("job", owners=[owner("Job")])
    world.add("bare")
    with pytest.raises(EvictionError, match=r"node gpu-node-1 cannot be drained: jobs/bare \(it has no controller"):
        await eviction.drain(world.client, NODE, Rules(), sleep=world.sleep)
    assert not world.leaving()


async def test_drain_leaves_daemon_sets_alone_and_heeds_its_selector(world: World) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    world.api.create(resources.DAEMON_SETS, {"metadata": {"name": "d"}, "spec": spec}, "jobs")
    world.add("daemon", owners=[owner("DaemonSet", "d")])
    world.add("orphan", owners=[owner("DaemonSet", "gone")], phase="Running")
    world.add("job", owners=[owner("Job")])
    world.add("skipped", labels={"skip": "true"})
    rules = Rules(force=True)
    task = asyncio.ensure_future(eviction.drain(world.client, NODE, rules, labels="skip!=true", sleep=world.sleep))
    await world.until(lambda: world.leaving() == {"orphan", "job"})
    world.end("orphan", "job")
    await task
    with pytest.raises(EvictionError, match="skipped"):
        await eviction.drain(world.client, NODE, Rules(), sleep=world.sleep)


async def test_cordon_and_uncordon(world: World) -> None:
    await eviction.cordon(world.client, NODE)
    assert world.api.get(resources.NODES, NODE)["spec"]["unschedulable"] is True
    await eviction.cordon(world.client, NODE, on=False)
    assert "unschedulable" not in world.api.get(resources.NODES, NODE)["spec"]
