# ruff: noqa: E501
from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from groundplane.lab import access, http, resources
from groundplane.lab.api import Api
from groundplane.lab.clock import LabClock
from groundplane.lab.faults import Faults, Rule

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class World:
    def __init__(self, api: Api, faults: Faults, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.faults = faults
        self.session = session

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        data = json.dumps(body) if body is not None else None
        sent = {"Content-Type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
        async with self.session.request(method, path, data=data, headers=sent) as response:
            text = await response.text()
            return response.status, json.loads(text) if text[:1] in "{[" else text, response.headers

    def make(self, name: str, **meta: Any) -> dict[str, Any]:
        return self.api.create(resources.CONFIG_MAPS, {"metadata": {"name": name, **meta}}, "default")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    api, faults = Api(seed=5), Faults()
    tokens = {"secret": access.User("ann", ("system:authenticated",))}
    server = await http.serve(api, faults=faults, tokens=tokens, bookmark_every_s=0.05)
    async with aiohttp.ClientSession(server.url) as session:
        yield World(api, faults, session)
    await server.close()


async def lines(response: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    return [json.loads(await response.content.readline()) for _ in range(count)]


async def test_answers_tell_the_clusters_time() -> None:
    api = Api(clock=LabClock(start=datetime(2031, 5, 1, 12, 0, tzinfo=UTC), real=lambda: 0.0))
    server = await http.serve(api)
    async with aiohttp.ClientSession(server.url) as session, session.get("/version") as response:
        assert response.headers["Date"] == "Thu, 01 May 2031 12:00:00 GMT"
    await server.close()


async def test_create_get_update_delete(world: World) -> None:
    code, made, _ = await world.call("POST", CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    assert (code, made["kind"], made["data"]) == (201, "ConfigMap", {"a": "1"})
    code, held, _ = await world.call("PUT", f"{CONFIG_MAPS}/c", {**made, "data": {"a": "2"}})
    assert (code, held["data"]) == (200, {"a": "2"})
    code, status, _ = await world.call("PUT", f"{CONFIG_MAPS}/c", made)
    assert (code, status["reason"], status["details"]["name"]) == (409, "Conflict", "c")
    code, status, _ = await world.call("DELETE", f"{CONFIG_MAPS}/c")
    assert (code, status["status"], status["details"]["uid"]) == (200, "Success", made["metadata"]["uid"])
    code, status, _ = await world.call("GET", f"{CONFIG_MAPS}/c")
    assert (code, status["message"]) == (404, 'configmaps "c" not found')


async def test_lists_hold_items_without_kind(world: World) -> None:
    for name in "abc":
        world.make(name)
    _, page, _ = await world.call("GET", f"{CONFIG_MAPS}?limit=2")
    assert (page["kind"], [item["metadata"]["name"] for item in page["items"]]) == ("ConfigMapList", ["a", "b"])
    assert "kind" not in page["items"][0]
    _, rest, _ = await world.call("GET", f"{CONFIG_MAPS}?limit=2&continue={page['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]
    world.make("d")
    world.api.compact()
    code, status, _ = await world.call("GET", f"{CONFIG_MAPS}?limit=2&continue={page['metadata']['continue']}")
    assert (code, status["reason"]) == (410, "Expired")


async def test_unknown_and_duplicate_fields(world: World) -> None:
    body = {"metadata": {"name": "c"}, "dta": {}}
    code, _, headers = await world.call("POST", CONFIG_MAPS, body)
    assert (code, headers["Warning"]) == (201, '299 - "unknown field \\"dta\\""')
    code, status, _ = await world.call("POST", f"{CONFIG_MAPS}?fieldValidation=Strict", body)
    assert code == 400
    assert 'strict decoding error: unknown field "dta"' in status["message"]
    text = '{"metadata": {"name": "d"}, "data": {"a": "1", "a": "2"}}'
    address = f"{CONFIG_MAPS}?fieldValidation=Strict"
    async with world.session.post(address, data=text, headers={"Content-Type": "application/json"}) as response:
        assert 'duplicate field "data.a"' in (await response.json())["message"]


async def test_watch_list_ends_with_its_bookmark_and_goes_on(world: World) -> None:
    world.make("a")
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with world.session.get(f"{CONFIG_MAPS}?{query}") as response:
        first, end = await lines(response, 2)
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
        assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert end["object"]["metadata"]["resourceVersion"] == str(world.api.store.revision)
        world.make("b")
        seen = []
        while "ADDED" not in [event["type"] for event in seen]:
            seen += await lines(response, 1)
        assert seen[-1]["object"]["metadata"]["name"] == "b"
    code, status, _ = await world.call("GET", f"{CONFIG_MAPS}?watch=1&sendInitialEvents=true")
    assert code == 422
    assert "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan" in status["message"]


async def test_watch_from_a_compacted_revision_reports_gone_in_the_stream(world: World) -> None:
    start = world.make("a")["metadata"]["resourceVersion"]
    world.make("b")
    world.api.compact()
    async with world.session.get(f"{CONFIG_MAPS}?watch=1&resourceVersion={start}") as response:
        (event,) = await lines(response, 1)
        assert (response.status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)


async def test_tables_and_metadata_only(world: World) -> None:
    world.make("a", labels={"x": "y"})
    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    _, answer, _ = await world.call("GET", CONFIG_MAPS, Accept=table)
    assert [column["name"] for column in answer["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert answer["rows"][0]["cells"][:2] == ["a", 0]
    metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    _, answer, _ = await world.call("GET", CONFIG_MAPS, Accept=metadata)
    assert answer["kind"] == "PartialObjectMetadataList"
    assert set(answer["items"][0]) == {"kind", "apiVersion", "metadata"}
    code, _, _ = await world.call("GET", CONFIG_MAPS, Accept="text/html")
    assert code == 406


@pytest.mark.parametrize(
    ("method", "path", "code", "text"),
    [
        ("GET", "/api/v1/nothing", 404, "could not find the requested resource"),
        ("GET", "/apis/apps/v2/daemonsets", 404, "could not find the requested resource"),
        ("GET", f"{CONFIG_MAPS}?resourceVersion=x", 400, "invalid syntax"),
        ("GET", f"{CONFIG_MAPS}?labelSelector=a%3D%3D%3Db", 400, "unable to parse requirement"),
        ("GET", f"{CONFIG_MAPS}?fieldSelector=data.x%3D1", 400, '"data.x" is not a known field selector'),
        ("POST", f"{CONFIG_MAPS}?dryRun=Some", 422, "dryRun: Unsupported value"),
        ("PUT", CONFIG_MAPS, 405, "does not allow this method"),
        ("DELETE", "/api/v1/configmaps", 404, "could not find"),
    ],
)
async def test_requests_that_make_no_sense(world: World, method: str, path: str, code: int, text: str) -> None:
    found, status, _ = await world.call(method, path, {} if method != "GET" else None)
    assert (found, text in status["message"]) == (code, True), status


@pytest.mark.parametrize(("answer", "reason"), [(429, "TooManyRequests"), (500, "InternalError"), (409, "Conflict")])
async def test_faults_answer_as_often_as_asked(world: World, answer: int, reason: str) -> None:
    world.faults.add(Rule("create", "configmaps", times=1, answer=answer, retry_after=7))
    code, status, headers = await world.call("POST", CONFIG_MAPS, {"metadata": {"name": "c"}})
    assert (code, status["reason"], headers["Retry-After"]) == (answer, reason, "7")
    assert (await world.call("POST", CONFIG_MAPS, {"metadata": {"name": "c"}}))[0] == 201
    assert world.faults.count("create", "configmaps") == 2
    assert [request.code for request in world.faults.requests] == [answer, 201]


@pytest.mark.parametrize(("answer", "stored"), [("reset", False), ("lost", True)])
async def test_broken_connections(world: World, answer: str, stored: bool) -> None:
    world.faults.add(Rule("create", "configmaps", answer=answer))
    with pytest.raises(aiohttp.ClientError):
        await world.call("POST", CONFIG_MAPS, {"metadata": {"name": "c"}})
    assert (world.api.find(resources.CONFIG_MAPS, "c", "default") is not None) is stored


async def test_open_watches_can_be_dropped(world: World) -> None:
    world.make("a")
    with pytest.raises(aiohttp.ClientError):
        async with world.session.get(f"{CONFIG_MAPS}?watch=1") as response:
            await lines(response, 1)
            assert world.faults.drop_watches("configmaps") == 1
            await response.content.readline()


async def test_tokens_and_rbac(world: World) -> None:
    assert (await world.call("GET", CONFIG_MAPS, Authorization="Bearer wrong"))[0] == 401
    world.api.rbac = True
    code, status, _ = await world.call("GET", CONFIG_MAPS, Authorization="Bearer secret")
    assert code == 403
    text = 'configmaps is forbidden: User "ann" cannot list resource "configmaps" in API group "" in the namespace "default"'
    assert status["message"] == text
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    world.api.create(resources.ROLES, {"metadata": {"name": "r"}, "rules": rules}, "default")
    reference = {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    world.api.create(
        resources.ROLE_BINDINGS, {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [subject]}, "default"
    )
    assert (await world.call("GET", CONFIG_MAPS, Authorization="Bearer secret"))[0] == 200
    assert (await world.call("GET", CONFIG_MAPS))[0] == 403


async def test_discovery_in_both_forms(world: World) -> None:
    _, old, _ = await world.call("GET", "/apis/apps/v1")
    assert {"daemonsets", "daemonsets/status", "deployments/scale"} <= {item["name"] for item in old["resources"]}
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    _, new, headers = await world.call("GET", "/apis", Accept=accept)
    assert "as=APIGroupDiscoveryList" in headers["Content-Type"]
    assert "apps" in [item["metadata"]["name"] for item in new["items"]]


async def test_every_openapi_document_is_whole(world: World) -> None:
    _, index, _ = await world.call("GET", "/openapi/v3")
    for entry in index["paths"].values():
        code, document, _ = await world.call("GET", entry["serverRelativeURL"])
        assert code == 200
        schemas = document["components"]["schemas"]
        wanted = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
        assert wanted <= set(schemas)
        assert all(schemas.values())
