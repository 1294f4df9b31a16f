"""Whatever happens, and in whatever order, the informer ends with what the server has and tells a consistent story."""

import asyncio
from typing import Any

from cluster.fake_api import Call, FakeApi, event, refuse, reset, serving, status_body
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.cluster import kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.informer import Change, Informer
from groundplane.cluster.views import NodeView

NODES = "/api/v1/nodes"
NAMES = list("abcde")
GUARD_S = 20.0


class Story:
    """Rebuilds the collection from the changes alone, and checks each against what came before."""

    def __init__(self) -> None:
        self.objects: dict[str, NodeView] = {}
        self.problems: list[AssertionError] = []
        self.wake = asyncio.Event()

    def __call__(self, change: Change[NodeView]) -> None:
        try:
            self.take(change)
        except AssertionError as error:  # the informer would only log it
            self.problems.append(error)
        self.wake.set()

    def take(self, change: Change[NodeView]) -> None:
        name = change.object.name
        known = self.objects.get(name)
        if change.type == "added":
            assert (known, change.old) == (None, None)
        else:
            assert known is not None
            assert change.type == "deleted" or change.old is known
        if change.new is None:
            del self.objects[name]
        else:
            assert known is None or known.metadata.uid == change.new.metadata.uid
            self.objects[name] = change.new


async def nap(_: float) -> None:
    await asyncio.sleep(0)


def is_list(call: Call) -> bool:
    return not call.watching


def is_watch(call: Call) -> bool:
    return call.watching


def step(api: FakeApi, action: str, name: str) -> None:
    present = name in api.objects.get(NODES, {})
    match action:
        case "put":
            api.put(NODES, name, metadata={"labels": {"nvidia.com/version": str(api.version)}})
        case "remove" if present:
            api.remove(NODES, name)
        case "recreate" if present:
            api.remove(NODES, name)
            api.put(NODES, name)
        case "drop":
            api.tell_watches(None)
        case "half line":
            api.tell_watches(b'{"type":"MODIFIED","object":{"metadata":{"na')
            api.tell_watches(None)
        case "bookmark":
            for watch in api.watches:
                if watch.position == len(api.history):
                    watch.orders.append(event("BOOKMARK", {"metadata": {"resourceVersion": str(api.version)}}))
                    watch.wake.set()
        case "compact":
            api.compact()
            api.tell_watches(None)
        case "missed removal" if present:
            api.remove(NODES, name)
            api.compact()
            api.tell_watches(None)
        case "error event":
            api.tell_watches(event("ERROR", status_body(410, "Expired", "too old")))
        case "list fails":
            api.order(reset(b'{"items":['), when=is_list)
        case "list is expensive":
            api.order(refuse(429, "TooManyRequests", retry_after="1"), when=is_list)
        case "continue expires":
            api.order(refuse(410, "Expired"), when=lambda c: "continue" in c.query)
        case "watch fails":
            api.order(refuse(500, "InternalError"), when=is_watch)


ACTIONS = [
    "put",
    "put",
    "remove",
    "recreate",
    "drop",
    "half line",
    "bookmark",
    "compact",
    "missed removal",
    "error event",
    "list fails",
    "list is expensive",
    "continue expires",
    "watch fails",
]
TURNS = (0, 1, 3, 10, 40, SETTLE := 1000)
"""How many turns of the event loop follow a step; the last stands for as many as it takes to catch up."""
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES), st.sampled_from(TURNS)), max_size=40)


async def catch_up(api: FakeApi, informer: Informer[NodeView], turns: int = SETTLE) -> None:
    """Let the informer see what there is: it watches, and nothing is on its way."""
    for _ in range(turns):
        if (
            turns == SETTLE
            and held(informer) == stored(api)
            and any(w.position == len(api.history) for w in api.watches)
        ):
            return
        await asyncio.sleep(0)


def held(informer: Informer[NodeView]) -> dict[str, str]:
    return {name: view.metadata.resourceVersion for name, view in informer.items()}


def stored(api: FakeApi) -> dict[str, str]:
    return {name: obj["metadata"]["resourceVersion"] for name, obj in api.objects[NODES].items()}


async def play(steps: list[tuple[str, str, int]]) -> None:
    async with serving(FakeApi()) as api:
        for name in NAMES[:3]:
            api.put(NODES, name)
        async with Client(Config(server=api.url), sleep=nap, rand=lambda: 0.0) as client:
            informer: Informer[NodeView] = Informer(client, kinds.NODE, NodeView, page=2, sleep=nap, rand=lambda: 0.0)
            story = Story()
            informer.subscribe(story)
            errors: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
            task = asyncio.create_task(informer.run())
            await catch_up(api, informer)
            for action, name, turns in steps:
                step(api, action, name)
                await catch_up(api, informer, turns)
            api.put(NODES, "sentinel")
            async with asyncio.timeout(GUARD_S):
                while "sentinel" not in story.objects:
                    story.wake.clear()
                    await story.wake.wait()
                await informer.wait_synced()
            task.cancel()
            await asyncio.wait({task})
        assert held(informer) == stored(api)
        assert dict(informer.items()) == story.objects
        assert (errors, story.problems) == ([], [])


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_the_copy_ends_equal_to_the_collection(steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(play(steps))
