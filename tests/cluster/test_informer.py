"""A live copy of a collection, through everything that happens between us and the API server."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from cluster.conftest import Sleeps
from cluster.fake_api import Answer, Call, FakeApi, event, refuse, reset, status_body, stream

from groundplane.cluster import errors, kinds, views
from groundplane.cluster.client import Client
from groundplane.cluster.informer import Change, Informer, key_of
from groundplane.cluster.views import MetaView, NodeView

NODES = "/api/v1/nodes"
GUARD_S = 20.0


class Log:
    """A subscriber that can be waited for."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.full: list[Change[Any]] = []
        self._wake = asyncio.Event()

    def __call__(self, change: Change[Any]) -> None:
        self.full.append(change)
        self.changes.append((change.type, key_of(change.object)))
        self._wake.set()

    async def until(self, *wanted: tuple[str, str]) -> None:
        async with asyncio.timeout(GUARD_S):
            while not set(wanted) <= set(self.changes):
                self._wake.clear()
                await self._wake.wait()


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def running(informer: Informer[Any]) -> AsyncIterator[Log]:
    log = Log()
    informer.subscribe(log)
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(GUARD_S):
            await informer.wait_synced()
        yield log
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


def make(client: Client, sleeps: Sleeps, **more: Any) -> Informer[NodeView]:
    return Informer(client, kinds.NODE, NodeView, page=2, sleep=sleeps, rand=lambda: 0.5, **more)


def is_watch(call: Call) -> bool:
    return call.watching


def is_list(call: Call) -> bool:
    return call.method == "GET" and not call.watching


async def test_lists_in_pages_then_follows(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    for name in "abc":
        api.put(NODES, name)
    informer = make(client, sleeps, labels="x=y", fields="f=g")
    assert not informer.synced
    async with running(informer) as log:
        assert informer.synced
        assert log.changes == [("added", n) for n in "abc"]
        api.put(NODES, "b", metadata={"labels": {"nvidia.com/x": "1"}})
        api.put(NODES, "d")
        api.remove(NODES, "a")
        await log.until(("deleted", "a"))
        assert log.changes[3:] == [("modified", "b"), ("added", "d"), ("deleted", "a")]
        change = log.full[3]
        assert change.old is not None
        assert change.new is not None
        assert (change.old.labels, change.new.labels) == ({}, {"nvidia.com/x": "1"})
        assert log.full[5].new is None
        assert sorted(k for k, _ in informer.items()) == ["b", "c", "d"]
        assert (len(informer), informer.get("a")) == (3, None)
        assert {n.name for n in informer.values()} == {"b", "c", "d"}
    watch = api.calls[-1]
    assert watch.query["timeoutSeconds"] == "450"
    assert all((c.query["labelSelector"], c.query["fieldSelector"]) == ("x=y", "f=g") for c in api.calls)
    assert api.count() == {"GET": 2, "WATCH": 1}
    assert sleeps == []


async def test_namespaced_plain_objects(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    path = "/api/v1/namespaces/ns/configmaps"
    api.put(path, "m", data={"a": "b"})
    informer = Informer(client, kinds.CONFIG_MAP, dict, namespace="ns", sleep=sleeps)
    async with running(informer) as log:
        found = informer.get("m", "ns")
        assert found is not None
        assert found["kind"] == "ConfigMap"
        api.put(path, "n")
        await log.until(("added", "ns/n"))
        assert set(dict(informer.items())) == {"ns/m", "ns/n"}


async def test_a_late_subscriber_is_told_what_is_there_and_may_leave(
    api: FakeApi, client: Client, sleeps: Sleeps
) -> None:
    api.put(NODES, "a")
    informer = make(client, sleeps)
    async with running(informer) as log:
        late = Log()
        leave = informer.subscribe(late)
        assert late.changes == [("added", "a")]
        leave()
        api.put(NODES, "b")
        await log.until(("added", "b"))
        assert late.changes == [("added", "a")]


async def test_a_handler_that_raises_is_logged_and_harms_nobody(
    api: FakeApi, client: Client, sleeps: Sleeps, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(change: Change[NodeView]) -> None:
        raise ZeroDivisionError("handler")

    informer = make(client, sleeps)
    informer.subscribe(bad)
    async with running(informer) as log:
        api.put(NODES, "a")
        api.put(NODES, "b")
        await log.until(("added", "b"))
    failures = [r for r in caplog.records if r.exc_info and r.exc_info[0] is ZeroDivisionError]
    assert len(failures) == 2


async def test_a_dropped_watch_resumes_where_it_was(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    informer = make(client, sleeps)
    async with running(informer) as log:
        api.put(NODES, "a")
        await log.until(("added", "a"))
        seen = api.version
        api.tell_watches(None)
        await eventually(lambda: api.count()["WATCH"] == 2)
        api.put(NODES, "b")
        await log.until(("added", "b"))
        assert log.changes == [("added", "a"), ("added", "b")]
    assert [c.query["resourceVersion"] for c in api.calls if c.watching] == ["100", str(seen)]
    assert informer.relists == 1


async def test_a_bookmark_moves_the_point_of_resumption(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    informer = make(client, sleeps)
    async with running(informer):
        await eventually(lambda: api.watches)
        api.tell_watches(event("BOOKMARK", {"metadata": {"resourceVersion": "500"}}))
        api.tell_watches(b'{"type":"ADDED","object":{"metada')
        api.tell_watches(None)
        await eventually(lambda: api.count()["WATCH"] == 2)
    assert api.calls[-1].query["resourceVersion"] == "500"
    assert len(informer) == 0


GONE: dict[str, Answer] = {
    "HTTP": refuse(410, "Expired"),
    "event": stream(event("ERROR", status_body(410, "Expired", "too old"))),
}


@pytest.mark.parametrize("how", GONE)
async def test_gone_means_listing_again_and_reporting_what_was_missed(
    api: FakeApi, client: Client, sleeps: Sleeps, how: str
) -> None:
    for name in "abcd":
        api.put(NODES, name)
    informer = make(client, sleeps)
    async with running(informer) as log:
        await eventually(lambda: api.watches)
        api.order(GONE[how], when=is_watch)
        api.tell_watches(None)
        await eventually(lambda: not api.watches)
        old = informer.get("b")
        api.remove(NODES, "b")
        api.put(NODES, "c", metadata={"labels": {"nvidia.com/x": "1"}})
        api.remove(NODES, "d")
        api.put(NODES, "d")
        api.put(NODES, "e")
        await log.until(("deleted", "b"), ("added", "e"))
        assert log.changes[4:] == [
            ("modified", "c"),
            ("deleted", "d"),
            ("added", "d"),
            ("added", "e"),
            ("deleted", "b"),
        ]
        assert log.full[-1].old is old
        await eventually(lambda: api.watches)
    assert informer.relists == 2
    assert sleeps == pytest.approx([0.3])  # the dropped connection costs nothing, a refusal right after it does


async def test_a_continue_token_that_expires(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    for name in "abcde":
        api.put(NODES, name)
    api.order(refuse(410, "Expired"), when=lambda c: "continue" in c.query)
    informer = make(client, sleeps)
    async with running(informer) as log:
        assert log.changes == [("added", n) for n in "abcde"]
    assert informer.relists == 1


async def test_a_server_that_always_says_gone_is_not_hammered(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.order(*[refuse(410, "Expired")] * 5, when=is_watch)
    async with running(make(client, sleeps)):
        await eventually(lambda: api.watches)
    assert sleeps == pytest.approx([0.3, 0.6, 1.2, 2.4])


async def test_watches_that_end_at_once_are_not_a_hot_loop(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.order(*[stream()] * 4, when=is_watch)
    async with running(make(client, sleeps)):
        await eventually(lambda: api.watches)
    assert sleeps == pytest.approx([0.3, 0.6, 1.2])


async def test_a_busy_server_is_given_the_time_it_asks_for(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.order(refuse(429, "TooManyRequests", retry_after="7"), when=is_watch)
    api.order(*[refuse(500, "InternalError")] * 2, when=is_list)
    informer = make(client, sleeps)
    async with running(informer):
        await eventually(lambda: api.watches)
    assert sleeps == [0.2, 0.4, 7.0]


async def test_an_unreachable_server_delays_but_never_ends_it(
    api: FakeApi, client: Client, sleeps: Sleeps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    api.put(NODES, "a")
    api.order(*[reset()] * 17, when=is_list)
    informer = make(client, sleeps)
    async with running(informer) as log:
        await log.until(("added", "a"))
        assert informer.last_error is None
    assert [r for r in caplog.records if "no answer from" in r.getMessage()]


async def test_a_kind_that_is_not_served_is_waited_for(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.order(*[refuse(404, "NotFound", "the server could not find the requested resource")] * 3, when=is_list)
    path = "/apis/monitoring.coreos.com/v1/servicemonitors"
    informer = Informer(client, kinds.SERVICE_MONITOR, MetaView, sleep=sleeps, rand=lambda: 0.0)
    task = asyncio.create_task(informer.run())
    await eventually(lambda: isinstance(informer.last_error, errors.NotFound))
    assert not informer.synced
    await eventually(lambda: informer.synced)
    assert api.calls[-1].path == path
    task.cancel()
    await asyncio.wait({task})
    assert sleeps == [0.2, 0.4, 0.8]


async def test_an_unchanged_relist_says_nothing(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.put(NODES, "a")
    informer = make(client, sleeps)
    async with running(informer) as log:
        await eventually(lambda: api.watches)
        api.put(NODES, "a", spec={"unschedulable": True})
        await log.until(("modified", "a"))
        api.compact()
        api.tell_watches(event("ERROR", status_body(410, "Expired", "too old")))
        await eventually(lambda: informer.relists == 2 and api.watches)
        assert log.changes == [("added", "a"), ("modified", "a")]


async def test_an_object_that_does_not_fit_the_view_does_not_end_it(
    api: FakeApi, client: Client, sleeps: Sleeps
) -> None:
    informer = make(client, sleeps)
    async with running(informer) as log:
        await eventually(lambda: api.watches)
        api.tell_watches(json.dumps({"type": "ADDED", "object": {"metadata": {"name": 7}}}).encode() + b"\n")
        await eventually(lambda: api.count()["WATCH"] == 2)
        api.put(NODES, "a")
        await log.until(("added", "a"))
    assert len(sleeps) == 1


async def test_a_refresh_lists_again_and_tells_every_object(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    for name in "ab":
        api.put(NODES, name)
    informer = make(client, sleeps)
    async with running(informer) as log:
        assert not informer.refreshing
        informer.refresh()
        assert informer.refreshing
        await log.until(("modified", "a"), ("modified", "b"))
        await eventually(lambda: not informer.refreshing)
        assert informer.relists == 2
        api.put(NODES, "c")
        await log.until(("added", "c"))
        assert informer.relists == 2


async def test_a_key_that_nodes_are_selected_by_is_kept_after_a_refresh(
    api: FakeApi, client: Client, sleeps: Sleeps
) -> None:
    key = "example.com/only-this-test-selects-by-it"
    api.put(NODES, "a", metadata={"labels": {key: "yes", "example.com/other": "no"}})
    informer = make(client, sleeps)
    async with running(informer) as log:
        seen = informer.get("a")
        assert seen is not None
        assert seen.labels == {}
        assert views.keep([key])
        assert not views.keep([key])
        informer.refresh()
        await log.until(("modified", "a"))
        seen = informer.get("a")
        assert seen is not None
        assert seen.labels == {key: "yes"}
