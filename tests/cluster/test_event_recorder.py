"""Events that a person reads in ``kubectl describe``."""

import datetime
import logging
from typing import Any

import pytest
from cluster.fake_api import FakeApi, refuse
from cluster.fake_time import FakeTime

from groundplane.cluster import events, kinds
from groundplane.cluster.client import Client
from groundplane.cluster.events import EventRecorder, Reference

START = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
DEFAULT, NS = "/api/v1/namespaces/default/events", "/api/v1/namespaces/ns/events"
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "resourceVersion": "5"}}
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "ns"}}


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def recorder(client: Client, time: FakeTime) -> EventRecorder:
    now = lambda: START + datetime.timedelta(seconds=time.now)  # noqa: E731
    return EventRecorder(client, "nvidia-gpu-operator", "ns", instance="pod-1", now=now, clock=time)


def stored(api: FakeApi, path: str) -> list[dict[str, Any]]:
    return list(api.objects.get(path, {}).values())


async def test_the_event_of_a_node(api: FakeApi, recorder: EventRecorder) -> None:
    async with recorder:
        recorder.event(NODE, "Warning", "DriverFailed", "no driver")
    (found,) = stored(api, DEFAULT)
    meta = found.pop("metadata")
    assert meta["name"].startswith("n.")
    assert meta["namespace"] == "default"
    assert found == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "n",
            "namespace": "",
            "uid": "u",
            "resourceVersion": "5",
        },
        "type": "Warning",
        "reason": "DriverFailed",
        "message": "no driver",
        "source": {"component": "nvidia-gpu-operator", "host": "pod-1"},
        "firstTimestamp": "2026-01-01T12:00:00Z",
        "lastTimestamp": "2026-01-01T12:00:00Z",
        "count": 1,
        "reportingComponent": "nvidia-gpu-operator",
        "reportingInstance": "pod-1",
    }


@pytest.mark.parametrize(
    ("about", "path"),
    [
        (DAEMON_SET, NS),
        (Reference("apps/v1", "DaemonSet", "d"), NS),
        (Reference("v1", "Pod", "p", namespace="other"), "/api/v1/namespaces/other/events"),
        (Reference("nvidia.com/v1", "ClusterPolicy", "p"), DEFAULT),
        (Reference("example.com/v1", "Unknown", "p"), DEFAULT),
    ],
)
async def test_events_lie_beside_their_object(api: FakeApi, recorder: EventRecorder, about: Any, path: str) -> None:
    async with recorder:
        recorder.event(about, "Normal", "R", "m")
    assert len(stored(api, path)) == 1


async def test_the_same_event_again_is_counted(api: FakeApi, recorder: EventRecorder, time: FakeTime) -> None:
    async with recorder:
        for second in (0, 30, 60):
            time.now = second
            recorder.event(NODE, "Normal", "R", "m")
        recorder.event(NODE, "Normal", "R", "another")
        recorder.event(NODE, "Warning", "R", "m")
    found = stored(api, DEFAULT)
    assert [(e["type"], e["message"], e["count"]) for e in found] == [
        ("Normal", "m", 3),
        ("Normal", "another", 1),
        ("Warning", "m", 1),
    ]
    assert (found[0]["firstTimestamp"], found[0]["lastTimestamp"]) == ("2026-01-01T12:00:00Z", "2026-01-01T12:01:00Z")


async def test_an_expired_event_is_made_anew(api: FakeApi, recorder: EventRecorder) -> None:
    async with recorder:
        recorder.event(NODE, "Normal", "R", "m")
        await recorder._queue.join()
        api.remove(DEFAULT, stored(api, DEFAULT)[0]["metadata"]["name"])
        recorder.event(NODE, "Normal", "R", "m")
    assert [e["count"] for e in stored(api, DEFAULT)] == [1]


async def test_an_object_may_not_flood(api: FakeApi, recorder: EventRecorder, time: FakeTime) -> None:
    async with recorder:
        for number in range(events.BURST + 5):
            recorder.event(NODE, "Normal", "R", f"m{number}")
        recorder.event(DAEMON_SET, "Normal", "R", "m")
        await recorder._queue.join()
        assert (len(stored(api, DEFAULT)), len(stored(api, NS)), recorder.dropped) == (events.BURST, 1, 5)
        time.now += events.REFILL_S
        recorder.event(NODE, "Normal", "R", "late")
        recorder.event(NODE, "Normal", "R", "too many")
    assert (len(stored(api, DEFAULT)), recorder.dropped) == (events.BURST + 1, 6)


async def test_nothing_ever_reaches_the_caller(
    api: FakeApi, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    api.order(refuse(403, "Forbidden"), reply_nonsense)
    async with recorder:
        recorder.event(NODE, "Normal", "R", "refused")
        recorder.event(NODE, "Normal", "R", "nonsense")
        recorder.event({"kind": "Broken"}, "Normal", "R", "no metadata")
        recorder.event({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "../x"}}, "Normal", "R", "m")
        recorder.event(NODE, "Normal", "R", "good")
    assert recorder.dropped >= 3
    assert [e["message"] for e in stored(api, DEFAULT)] == ["good"]
    assert "403 Forbidden" in caplog.text


async def reply_nonsense(call: Any) -> Any:
    from cluster.fake_api import reply

    return await reply(200, "nonsense")(call)


async def test_a_full_queue_drops_and_its_last_places_are_for_warnings(
    recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    places = events.QUEUE_MAX - events.WARNINGS_ONLY
    for number in range(places + 3):
        recorder.event(NODE, "Normal", "R", f"m{number}")
    assert recorder.dropped == 3
    for number in range(events.WARNINGS_ONLY + 2):
        recorder.event(NODE, "Warning", "R", f"w{number}")
    assert recorder.dropped == 5
    assert caplog.text.count("dropped") == 1, "one line until it is half empty again"


async def test_long_messages_are_cut_to_what_the_server_takes(api: FakeApi, recorder: EventRecorder) -> None:
    async with recorder:
        recorder.event(NODE, "Normal", "R", "ä" * 2000)
    (found,) = stored(api, DEFAULT)
    assert len(found["message"].encode()) <= events.MESSAGE_MAX
    assert found["message"].endswith("ä...")


def test_references() -> None:
    assert Reference.of(NODE) == Reference("v1", "Node", "n", "", "u", "5")
    assert kinds.of({"apiVersion": "v1", "kind": "Event"}) == kinds.EVENT


async def test_the_event_of_an_earlier_process_is_counted_on(api: FakeApi, client: Client, time: FakeTime) -> None:
    async with EventRecorder(client, "c", "ns", instance="old", clock=time) as old:
        for about in (NODE, DAEMON_SET):
            old.event(about, "Warning", "Failing", "no driver")
    for path in (DEFAULT, NS):
        (found,) = stored(api, path)
        async with EventRecorder(client, "c", "ns", instance="new", clock=time) as new:
            new.adopt(found)
            new.event(NODE if path == DEFAULT else DAEMON_SET, "Warning", "Failing", "no driver")
        assert [each["count"] for each in stored(api, path)] == [2]
    async with EventRecorder(client, "c", "ns", instance="new", clock=time) as new:
        new.adopt(stored(api, DEFAULT)[0])
        new.event(NODE, "Warning", "Failing", "something else")
    assert [each["count"] for each in stored(api, DEFAULT)] == [2, 1]
