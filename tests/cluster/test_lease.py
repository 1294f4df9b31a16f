"""One leader among several processes, by their own clocks."""

import asyncio
import contextlib
import copy
import datetime
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from cluster.fake_api import FakeApi
from cluster.fake_time import FakeTime

from groundplane.cluster import errors
from groundplane.cluster.client import Client
from groundplane.cluster.lease import LeaderLease, LeaseLost

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Leases:
    """The one Lease, with optimistic locking; ``broken`` makes every request fail, ``hanging`` makes it wait."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.writes = 0
        self.reads = 0
        self.broken: errors.ClusterError | None = None
        self.hanging = False

    async def _gate(self) -> None:
        await asyncio.sleep(0)
        if self.hanging:
            await asyncio.Event().wait()
        if self.broken:
            raise self.broken

    async def get(self, kind: object, name: str, namespace: str) -> dict[str, Any]:
        await self._gate()
        self.reads += 1
        if self.lease is None:
            raise errors.NotFound(404, "NotFound", "no lease")
        return copy.deepcopy(self.lease)

    async def create(self, kind: object, obj: dict[str, Any]) -> dict[str, Any]:
        await self._gate()
        if self.lease is not None:
            raise errors.AlreadyExists(409, "AlreadyExists", "there")
        return self._store(obj)

    async def replace(self, kind: object, obj: dict[str, Any]) -> dict[str, Any]:
        await self._gate()
        if self.lease is None:
            raise errors.NotFound(404, "NotFound", "no lease")
        if obj["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise errors.Conflict(409, "Conflict", "changed")
        return self._store(obj)

    def _store(self, obj: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.writes += 1
        self.lease = copy.deepcopy(obj)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    def write(self, **spec: Any) -> None:
        """Somebody else writes."""
        old = self.lease or {"metadata": {"name": "lease", "namespace": "ns"}, "spec": {}}
        self._store({**old, "spec": {**old["spec"], **spec}})

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return cast(dict[str, Any], self.lease["spec"])


class Process:
    """A candidate whose work is to wait, or to end when told."""

    def __init__(self, leases: Leases, time: FakeTime, identity: str) -> None:
        self.lease = LeaderLease(
            cast(Client, leases),
            "lease",
            "ns",
            identity,
            clock=time,
            sleep=time.sleep,
            now=lambda: START + datetime.timedelta(seconds=time.now),
            rand=lambda: 0.0,
        )
        self.time = time
        self.events: list[tuple[str, float]] = []
        self.finish = asyncio.Event()
        self.cleanup_s = 0.0
        self.task: asyncio.Task[None] | None = None

    async def work(self) -> None:
        self.events.append(("start", self.time.now))
        try:
            await self.finish.wait()
        finally:
            if self.cleanup_s:
                await self.time.sleep(self.cleanup_s)
            self.events.append(("stop", self.time.now))

    def start(self) -> "Process":
        self.task = asyncio.create_task(self.lease.run(self.work))
        return self

    async def end(self) -> BaseException | None:
        assert self.task is not None
        async with asyncio.timeout(10):
            await asyncio.wait({self.task})
        return None if self.task.cancelled() else self.task.exception()


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def leases() -> Leases:
    return Leases()


@contextlib.asynccontextmanager
async def candidates(leases: Leases, time: FakeTime, *names: str) -> AsyncIterator[list[Process]]:
    processes = [Process(leases, time, name).start() for name in names]
    try:
        yield processes
    finally:
        for process in processes:
            assert process.task is not None
            process.task.cancel()
        await time.advance(1)
        for process in processes:
            await process.end()


async def test_the_first_one_leads_and_renews_with_one_request(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(0)
        assert one.events == [("start", 0)]
        assert one.lease.leading
        assert leases.spec == {
            "holderIdentity": "one",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }
        await time.advance(60)
        assert (leases.writes, leases.reads) == (31, 1)
        assert leases.spec["renewTime"] == "2026-01-01T00:01:00.000000Z"
        assert leases.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"


async def test_only_one_leads_and_the_next_takes_over_on_release(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one", "two") as (one, two):
        await time.advance(30)
        assert (one.lease.leading, two.lease.leading) == (True, False)
        assert two.lease.holder == "one"
        one.finish.set()
        await time.advance(0)
        assert await one.end() is None
        assert leases.spec["holderIdentity"] == ""
        await time.advance(2.5)
        assert two.lease.leading
        assert (leases.spec["holderIdentity"], leases.spec["leaseTransitions"]) == ("two", 1)


async def test_a_silent_holders_lease_is_taken_after_its_duration_by_our_clock(leases: Leases, time: FakeTime) -> None:
    leases.write(holderIdentity="dead", leaseDurationSeconds=40, renewTime="1999-01-01T00:00:00.000000Z")
    async with candidates(leases, time, "one") as (one,):
        await time.advance(20)
        leases.write(renewTime="1999-01-01T00:00:01.000000Z")
        await time.advance(38)
        assert one.events == []
        await time.advance(6)
        assert one.lease.leading
        assert 60 <= one.events[0][1] <= 64


async def test_our_own_old_lease_is_ours_at_once(leases: Leases, time: FakeTime) -> None:
    leases.write(holderIdentity="one", leaseDurationSeconds=15, acquireTime="then", leaseTransitions=7)
    async with candidates(leases, time, "one") as (one,):
        await time.advance(0)
        assert one.lease.leading
        assert (leases.spec["acquireTime"], leases.spec["leaseTransitions"]) == ("then", 7)


async def test_a_leader_that_cannot_renew_gives_up_before_others_may_take_over(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(5)
        leases.broken = errors.ConnectionLost("no route")
        await time.advance(20)
        error = await one.end()
        assert isinstance(error, LeaseLost)
        assert "could not be renewed for 10 s" in str(error)
        assert one.events[-1][0] == "stop"
        assert 10 <= one.events[-1][1] - 4 < 15
        assert not one.lease.leading


async def test_requests_that_hang_count_as_failed(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(4.5)
        leases.hanging = True
        await time.advance(10)
        assert one.events[-1] == ("stop", pytest.approx(14))
        await time.advance(10)  # giving the lease back hangs too, but not for ever
        assert isinstance(await one.end(), LeaseLost)


async def test_a_short_outage_is_survived(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(4.5)
        leases.broken = errors.ServerError(500, "InternalError", "etcd")
        await time.advance(7)
        leases.broken = None
        await time.advance(60)
        assert one.lease.leading
        assert one.events == [("start", 0)]


async def test_a_stolen_lease_is_noticed_at_the_next_renewal(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(5)
        leases.write(holderIdentity="thief")
        await time.advance(1.5)
        assert one.events[-1] == ("stop", 6)
        error = await one.end()
        assert "was taken by 'thief'" in str(error)
        assert leases.spec["holderIdentity"] == "thief"


async def test_an_edit_by_somebody_else_is_no_loss(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(5)
        leases.write(note="hello")
        await time.advance(30)
        assert one.lease.leading
        assert leases.spec["note"] == "hello"


async def test_a_deleted_lease_is_made_again(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one") as (one,):
        await time.advance(5)
        leases.lease = None
        await time.advance(5)
        assert one.lease.leading
        assert leases.spec["holderIdentity"] == "one"


async def test_a_graceful_stop_holds_the_lease_until_the_work_has_ended(leases: Leases, time: FakeTime) -> None:
    async with candidates(leases, time, "one", "two") as (one, two):
        await time.advance(5)
        one.cleanup_s = 20
        assert one.task is not None
        one.task.cancel()
        await time.advance(19)
        assert leases.spec["holderIdentity"] == "one"
        assert two.events == []
        await time.advance(5)
        assert one.task.cancelled()
        assert two.lease.leading
        assert two.events[0][1] >= one.events[-1][1]


async def test_what_the_work_raises_comes_out_and_the_lease_is_free(leases: Leases, time: FakeTime) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    process = Process(leases, time, "one")
    with pytest.raises(ZeroDivisionError):
        await process.lease.run(broken)
    assert leases.spec["holderIdentity"] == ""


async def test_work_that_ends_quietly_on_cancellation_does_not_hide_a_loss(leases: Leases, time: FakeTime) -> None:
    async def polite() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    process = Process(leases, time, "one")
    task = asyncio.create_task(process.lease.run(polite))
    await time.advance(1)
    leases.write(holderIdentity="thief")
    await time.advance(2)
    with pytest.raises(LeaseLost):
        await task


async def test_cancelled_while_waiting_leaves_the_lease_alone(leases: Leases, time: FakeTime) -> None:
    leases.write(holderIdentity="other", leaseDurationSeconds=15)
    async with candidates(leases, time, "one") as (one,):
        await time.advance(3)
        assert one.task is not None
        one.task.cancel()
        await time.advance(1)
        assert one.task.cancelled()
    assert (leases.writes, one.events) == (1, [])


def test_times_must_fit(leases: Leases) -> None:
    with pytest.raises(ValueError, match="duration > renew deadline"):
        LeaderLease(cast(Client, leases), "l", "ns", "me", duration_s=10, renew_deadline_s=10)


async def test_against_a_server(api: FakeApi, client: Client) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"

    async def lead() -> None:
        assert api.objects[path]["lease"]["spec"]["holderIdentity"] == "me"

    await LeaderLease(client, "lease", "ns", "me").run(lead)
    assert api.objects[path]["lease"]["spec"]["holderIdentity"] == ""
