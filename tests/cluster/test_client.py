"""One request: paths, bodies, typed errors, and which failures are tried again."""

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from cluster import fake_api
from cluster.conftest import Sleeps
from cluster.fake_api import Call, FakeApi, event, refuse, reply, reset, stream

from groundplane import __version__
from groundplane.cluster import errors, kinds
from groundplane.cluster.client import Client, PatchType, Retry
from groundplane.cluster.config import Config
from groundplane.cluster.views import MetaView, NodeView

NODES = "/api/v1/nodes"
METADATA = ("PartialObjectMetadata", "PartialObjectMetadataList")
MAPS = "/api/v1/namespaces/ns/configmaps"


async def test_get_decodes_into_the_view_and_identifies_itself(api: FakeApi, client: Client) -> None:
    api.put(NODES, "a", status={"nodeInfo": {"containerRuntimeVersion": "containerd://2"}})
    node = await client.get(kinds.NODE, "a", view=NodeView)
    assert (node.name, node.container_runtime) == ("a", "containerd://2")
    headers = api.calls[0].headers
    assert headers["Authorization"] == "Bearer secret"
    assert headers["User-Agent"] == f"groundplane/{__version__}"
    assert "Accept-Encoding" not in headers


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("Thu, 01 Jan 2032 00:00:00 GMT", 1_956_528_000.0),
        ("Sat, 01 Jan 2022 00:00:00 GMT", 1_640_995_200.0),
        ("yesterday", None),
    ],
    ids=["ahead", "behind", "none"],
)
async def test_the_present_is_the_servers(api: FakeApi, client: Client, date: str, expected: float | None) -> None:
    assert abs(client.now() - time.time()) < 5
    api.order(reply(200, {"gitVersion": "v1.36.0"}, {"Date": date}))
    await client.raw("GET", "/version")
    assert abs(client.now() - (time.time() if expected is None else expected)) < 60
    await client.raw("GET", NODES)
    assert client.now() == pytest.approx(time.time(), abs=60), "the last answer counts"


async def test_a_view_of_metadata_only_has_the_server_leave_out_the_rest(api: FakeApi, client: Client) -> None:
    api.put(NODES, "a")
    await client.get(kinds.NODE, "a", view=MetaView)
    await client.patch(kinds.NODE, "a", {"metadata": {"labels": {"x": "y"}}}, view=MetaView)
    version = (await client.page(kinds.NODE, view=MetaView)).resource_version
    api.put(NODES, "b")
    async for _ in client.watch(kinds.NODE, resource_version=version, view=MetaView):
        break
    await client.get(kinds.NODE, "a", view=NodeView)
    one, many = (f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json" for kind in METADATA)
    assert [call.headers["Accept"] for call in api.calls] == [one, one, many, one, "application/json"]


async def test_listing_reads_all_pages_and_names_the_kind_of_every_item(api: FakeApi, client: Client) -> None:
    for name in "abcde":
        api.put(NODES, name)
    listing = await client.list(kinds.NODE, page=2, labels="x=y,z", fields="metadata.name!=q")
    assert [o["metadata"]["name"] for o in listing.items] == list("abcde")
    assert {(o["apiVersion"], o["kind"]) for o in listing.items} == {("v1", "Node")}
    assert listing.resource_version == str(api.version)
    assert len(api.calls) == 3
    assert {c.query["limit"] for c in api.calls} == {"2"}
    assert {c.query["labelSelector"] for c in api.calls} == {"x=y,z"}
    assert {c.query["fieldSelector"] for c in api.calls} == {"metadata.name!=q"}


async def test_listing_starts_over_in_one_answer_when_a_continue_token_expires(api: FakeApi, client: Client) -> None:
    for name in "abcde":
        api.put(NODES, name)
    api.order(refuse(410, "Expired"), when=lambda c: "continue" in c.query)
    listing = await client.list(kinds.NODE, page=2, view=NodeView)
    assert [n.name for n in listing.items] == list("abcde")
    assert "limit" not in api.calls[-1].query


async def test_an_empty_listing_may_have_null_items(api: FakeApi, client: Client) -> None:
    api.order(reply(200, {"metadata": {"resourceVersion": "7"}, "items": None}))
    assert (await client.list(kinds.POD, "ns")).items == []
    assert api.calls[0].path == "/api/v1/namespaces/ns/pods"


async def test_create_replace_delete_send_what_they_should(api: FakeApi, client: Client) -> None:
    made = await client.create(kinds.CONFIG_MAP, {"metadata": {"name": "m"}, "data": {"a": "1"}}, "ns")
    assert made["metadata"]["namespace"] == "ns"
    made["data"] = {"a": "2"}
    changed = await client.replace(kinds.CONFIG_MAP, made)
    assert changed["data"] == {"a": "2"}
    with pytest.raises(errors.Conflict):
        await client.replace(kinds.CONFIG_MAP, made)
    await client.delete(
        kinds.CONFIG_MAP, "m", "ns", propagation="Foreground", uid=made["metadata"]["uid"], grace_period_s=0
    )
    assert api.calls[-1].json == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": made["metadata"]["uid"]},
    }
    assert api.objects[MAPS] == {}
    assert client.requests == {
        ("create", "configmaps", 201): 1,
        ("update", "configmaps", 200): 1,
        ("update", "configmaps", 409): 1,
        ("delete", "configmaps", 200): 1,
    }


async def test_create_without_a_namespace_is_refused_before_it_is_sent(api: FakeApi, client: Client) -> None:
    with pytest.raises(ValueError, match=r"ConfigMap lives in a namespace"):
        await client.create(kinds.CONFIG_MAP, {"metadata": {"name": "m"}})
    assert api.calls == []


async def test_an_eviction_goes_to_the_pods_subresource(api: FakeApi, client: Client) -> None:
    api.order(reply(201, {}))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "ns"}}
    await client.create(kinds.POD, eviction, name="p", subresource="eviction")
    assert api.calls[0].path == "/api/v1/namespaces/ns/pods/p/eviction"
    assert client.requests == {("create", "pods/eviction", 201): 1}


@pytest.mark.parametrize("patch_type", list(PatchType), ids=lambda t: t.name)
async def test_patches_name_their_content_type(api: FakeApi, client: Client, patch_type: PatchType) -> None:
    api.put(NODES, "a")
    await client.patch(
        kinds.NODE, "a", {"metadata": {"labels": {"x": "y"}}}, type=patch_type, field_manager="me", dry_run=True
    )
    call = api.calls[0]
    assert call.headers["Content-Type"] == patch_type.value
    assert (call.query["fieldManager"], call.query["dryRun"]) == ("me", "All")
    assert call.query.get("force") == ("false" if patch_type is PatchType.APPLY else None)


async def test_apply_creates_or_changes_by_force_and_fills_in_the_type(api: FakeApi, client: Client) -> None:
    await client.apply(kinds.CONFIG_MAP, {"metadata": {"name": "m", "namespace": "ns"}, "data": {}}, field_manager="me")
    call = api.calls[0]
    assert (call.method, call.path, call.query) == ("PATCH", f"{MAPS}/m", {"fieldManager": "me", "force": "true"})
    assert call.json["kind"] == "ConfigMap"
    assert client.requests == {("apply", "configmaps", 200): 1}


async def test_raw_gives_the_bytes(api: FakeApi, client: Client) -> None:
    api.order(reply(200, "ok"))
    assert await client.raw("GET", "/readyz", params={"verbose": "1", "not": None}) == b"ok"
    assert api.calls[0].query == {"verbose": "1"}


# --- errors ------------------------------------------------------------------------------------------------------

ERRORS: list[tuple[int, str, type[errors.ApiError]]] = [
    (401, "Unauthorized", errors.Unauthorized),
    (403, "Forbidden", errors.Forbidden),
    (404, "NotFound", errors.NotFound),
    (409, "AlreadyExists", errors.AlreadyExists),
    (409, "Conflict", errors.Conflict),
    (410, "Expired", errors.Gone),
    (410, "Gone", errors.Gone),
    (422, "Invalid", errors.Invalid),
    (400, "BadRequest", errors.ApiError),
]


@pytest.mark.parametrize(("code", "reason", "kind"), ERRORS)
async def test_refusals_are_typed_and_never_repeated(
    api: FakeApi, client: Client, sleeps: Sleeps, code: int, reason: str, kind: type[errors.ApiError]
) -> None:
    details = {"name": "a", "causes": [{"field": "spec.x", "message": "bad"}]}
    api.order(refuse(code, reason, "because", details=details))
    with pytest.raises(kind) as caught:
        await client.get(kinds.NODE, "a")
    assert type(caught.value) is kind
    assert caught.value.causes == [("spec.x", "bad")]
    assert str(caught.value) == f"get nodes/a: because ({code} {reason})"
    assert len(api.calls) == 1
    assert sleeps == []


async def test_an_answer_of_a_proxy_is_quoted(api: FakeApi, client: Client) -> None:
    api.order(reply(403, "<html>\n  Denied by policy</html>"))
    with pytest.raises(errors.Forbidden, match=r"HTTP 403, not from a Kubernetes API server: '<html> Denied by policy"):
        await client.get(kinds.NODE, "a")


async def test_an_unreadable_answer_says_where(api: FakeApi, client: Client) -> None:
    api.order(reply(200, {"metadata": {"name": 5}}))
    with pytest.raises(errors.Unreadable, match=r"get nodes/a: .*\$\.metadata\.name"):
        await client.get(kinds.NODE, "a", view=MetaView)


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await Client(Config(server="http://127.0.0.1:1")).get(kinds.NODE, "a")


async def test_a_client_that_was_closed_has_lost_its_connection(client: Client) -> None:
    await client.close()
    with pytest.raises(errors.ConnectionLost, match="has been closed"):
        await client.get(kinds.NODE, "a")


# --- retries -----------------------------------------------------------------------------------------------------


async def _get(client: Client) -> Any:
    return await client.get(kinds.NODE, "a")


async def _apply(client: Client) -> Any:
    return await client.apply(kinds.NODE, {"metadata": {"name": "a"}}, field_manager="me")


async def _merge(client: Client) -> Any:
    return await client.patch(kinds.NODE, "a", {"metadata": {"labels": {"x": "y"}}})


async def _guarded_merge(client: Client) -> Any:
    return await client.patch(kinds.NODE, "a", {"metadata": {"resourceVersion": "1"}})


async def _json_patch(client: Client) -> Any:
    return await client.patch(kinds.NODE, "a", [{"op": "add", "path": "/spec/taints/-"}], type=PatchType.JSON)


async def _create(client: Client) -> Any:
    return await client.create(kinds.NODE, {"metadata": {"name": "b"}})


async def _delete(client: Client) -> Any:
    return await client.delete(kinds.NODE, "a")


REPEATABLE = [_get, _apply, _merge]
ONCE = [_guarded_merge, _json_patch, _create, _delete]
FAULTS = {
    "reset": (reset, errors.ConnectionLost),
    "cut body": (lambda: reset(b'{"metadata"'), errors.ConnectionLost),
    "500": (lambda: refuse(500, "InternalError"), errors.ServerError),
    "503": (lambda: refuse(503, "ServiceUnavailable"), errors.ServerError),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("act", REPEATABLE)
async def test_what_does_no_harm_twice_is_repeated(
    api: FakeApi, client: Client, sleeps: Sleeps, act: Any, fault: str
) -> None:
    api.put(NODES, "a")
    make, _ = FAULTS[fault]
    api.order(make(), make())
    await act(client)
    assert len(api.calls) >= 3
    assert sleeps == [0.2, 0.4]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("act", ONCE)
async def test_what_might_do_harm_twice_is_raised(
    api: FakeApi, client: Client, sleeps: Sleeps, act: Any, fault: str
) -> None:
    api.put(NODES, "a")
    make, kind = FAULTS[fault]
    api.order(make())
    with pytest.raises(kind):
        await act(client)
    assert sleeps == []
    assert len(api.calls) == 1


@pytest.mark.parametrize("act", REPEATABLE + ONCE)
@pytest.mark.parametrize(
    "busy",
    [
        lambda: refuse(429, "TooManyRequests", retry_after="3"),
        lambda: refuse(503, "ServiceUnavailable", retry_after="3"),
        lambda: refuse(429, "TooManyRequests", details={"retryAfterSeconds": 3}),
    ],
)
async def test_a_busy_server_is_obeyed_by_every_verb(
    api: FakeApi, client: Client, sleeps: Sleeps, act: Any, busy: Any
) -> None:
    api.put(NODES, "a")
    api.order(busy())
    if act is _json_patch:
        api.order(reply(200, {}))
    if act is _guarded_merge:
        api.order(reply(200, {}))
    await act(client)
    assert sleeps == [3.0]


async def test_retry_after_is_bounded_and_tries_are_counted(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.order(*[refuse(429, "TooManyRequests", retry_after="3600")] * 5)
    with pytest.raises(errors.TooManyRequests) as caught:
        await _get(client)
    assert caught.value.retry_after_s == 3600
    assert sleeps == [30.0] * 4
    assert client.requests == {("get", "nodes", 429): 5}


async def test_an_eviction_held_back_by_a_budget_is_raised_at_once(api: FakeApi, client: Client) -> None:
    api.order(refuse(429, "TooManyRequests", details={"causes": [{"reason": "DisruptionBudget", "message": "x"}]}))
    with pytest.raises(errors.TooManyRequests) as caught:
        await client.create(kinds.POD, {"metadata": {"name": "p", "namespace": "ns"}}, name="p", subresource="eviction")
    assert caught.value.disruption_budget
    assert len(api.calls) == 1


async def test_a_refused_connection_is_tried_again_by_every_verb(sleeps: Sleeps) -> None:
    async with fake_api.serving(FakeApi()) as api:
        pass
    async with Client(Config(server=api.url), sleep=sleeps, rand=lambda: 0.0, retry=Retry(attempts=3)) as client:
        with pytest.raises(errors.ConnectionLost, match="no answer from http://127"):
            await _create(client)
    assert sleeps == [0.2, 0.4]
    assert client.requests == {("create", "nodes", 0): 3}


@pytest.mark.parametrize(
    ("attempt", "wish", "dice", "expected"),
    [
        (1, None, 0.0, 0.2),
        (2, None, 0.0, 0.4),
        (2, None, 0.5, 0.3),
        (60, None, 0.0, 5.0),
        (999_999, None, 0.0, 5.0),
        (1, 7.0, 0.0, 7.0),
        (1, 99.0, 0.0, 30.0),
        (6, 1.0, 0.0, 5.0),
    ],
)
def test_delays(attempt: int, wish: float | None, dice: float, expected: float) -> None:
    assert Retry().delay(attempt, wish, lambda: dice) == pytest.approx(expected)


async def test_no_more_than_max_in_flight(api: FakeApi) -> None:
    busy, peak = 0, 0

    async def slow(call: Call) -> Any:
        nonlocal busy, peak
        busy += 1
        peak = max(peak, busy)
        await asyncio.sleep(0.005)
        busy -= 1
        return await reply(200, {})(call)

    api.order(*[slow] * 12)
    async with Client(Config(server=api.url), max_in_flight=3) as client:
        await asyncio.gather(*(_get(client) for _ in range(12)))
    assert peak == 3


PROXY = {"https": "http://proxy:3128", "no": "10.0.0.1,.svc"}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://api.example.com", "http://proxy:3128"),
        ("http://api.example.com", None),
        ("https://10.0.0.1:6443", None),
        ("https://kubernetes.default.svc", None),
    ],
)
def test_the_environments_proxy(monkeypatch: pytest.MonkeyPatch, server: str, expected: str | None) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY["https"])
    monkeypatch.setenv("NO_PROXY", PROXY["no"])
    assert Client(Config(server=server))._proxy == expected
    assert Client(Config(server=server, proxy_url="http://mine:1"))._proxy == "http://mine:1"


# --- watches and logs --------------------------------------------------------------------------------------------


async def test_a_watch_gives_events_however_the_bytes_are_cut(api: FakeApi, client: Client) -> None:
    data = event("ADDED", {"metadata": {"name": "ä", "resourceVersion": "5"}}) + b"\n"
    data += event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "9"}, "spec": {}})
    api.order(stream(*(data[i : i + 3] for i in range(0, len(data), 3))))
    events = [
        (e.type, e.object and e.object.name, e.resource_version)
        async for e in client.watch(kinds.NODE, resource_version="4", timeout_s=77, labels="a", view=NodeView)
    ]
    assert events == [("ADDED", "ä", "5"), ("BOOKMARK", None, "9")]
    assert api.calls[0].query == {
        "watch": "true",
        "resourceVersion": "4",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "77",
        "labelSelector": "a",
    }


WATCH_ENDS: dict[str, tuple[fake_api.Answer, type[errors.ClusterError]]] = {
    "ERROR 410": (stream(event("ERROR", fake_api.status_body(410, "Expired", "too old"))), errors.Gone),
    "ERROR 500": (stream(event("ERROR", fake_api.status_body(500, "InternalError", "etcd"))), errors.ServerError),
    "ERROR odd": (stream(event("ERROR", {"code": "?"})), errors.ServerError),
    "HTTP 410": (refuse(410, "Expired"), errors.Gone),
    "HTTP 429": (refuse(429, "TooManyRequests", retry_after="2"), errors.TooManyRequests),
    "half a line": (stream(b'{"type":"ADDED","obj'), errors.ConnectionLost),
    "reset": (reset(), errors.ConnectionLost),
    "no JSON": (stream(b"<html>\n"), errors.Unreadable),
}


@pytest.mark.parametrize("end", WATCH_ENDS)
async def test_how_a_watch_can_end(api: FakeApi, client: Client, sleeps: Sleeps, end: str) -> None:
    answer, kind = WATCH_ENDS[end]
    api.order(answer)
    with pytest.raises(kind) as caught:
        async for _ in client.watch(kinds.NODE, resource_version="4"):
            pass
    assert type(caught.value) is kind
    assert len(api.calls) == 1
    assert sleeps == []


async def test_a_silent_watch_is_dropped(api: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groundplane.cluster.client.WATCH_GRACE_S", 0.05)
    api.order(stream(event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), end=False))
    seen = []
    with pytest.raises(errors.ConnectionLost):
        async for e in client.watch(kinds.NODE, resource_version="4", timeout_s=0):
            seen.append(e.resource_version)  # noqa: PERF401
    assert seen == ["9"]


async def test_logs_come_line_by_line(api: FakeApi, client: Client) -> None:
    api.order(stream(b"one\r\ntw", b"o\n\nno end"))
    lines = [line async for line in client.logs("p", "ns", container="c", previous=True, tail_lines=5)]
    assert lines == ["one", "two", "", "no end"]
    assert api.calls[0].query == {"container": "c", "previous": "true", "tailLines": "5"}
    assert api.calls[0].path == "/api/v1/namespaces/ns/pods/p/log"


async def test_views_may_be_any_struct(api: FakeApi, client: Client) -> None:
    class Odd(msgspec.Struct):
        data: dict[str, str]

    api.put(MAPS, "m", data={"a": "b"})
    assert (await client.get(kinds.CONFIG_MAP, "m", "ns", view=Odd)).data == {"a": "b"}
    assert json.loads(await client.raw("GET", f"{MAPS}/m"))["data"] == {"a": "b"}
