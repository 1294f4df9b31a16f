"""Surveys: what the API showed, what it does not serve, and what it would not show."""

from collections.abc import AsyncIterator

import pytest

from groundplane.cluster import errors
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.diagnose import survey
from groundplane.lab import access, http, resources
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults, Rule

TOKENS = {"admin": access.ADMIN, "nobody": access.account_user("default", "nobody")}


class World:
    """An API server that checks rights, and clients of it."""

    def __init__(self) -> None:
        self.api, self.faults = Api(seed=1, rbac=True), Faults()
        self.url = ""

    def client(self, token: str = "admin") -> Client:
        return Client(Config(server=self.url, token=token), retry=Retry(attempts=1, first_s=0.01, max_s=0.01))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    server = await http.serve(world.api, faults=world.faults, tokens=TOKENS)
    world.url = server.url
    for name in ("b", "a"):
        world.api.create(resources.NODES, {"metadata": {"name": name}, "status": {"images": [{"names": ["x"]}]}})
    yield world
    await server.close()


async def test_objects_come_in_order_and_without_what_nobody_reads(world: World) -> None:
    heard: list[tuple[str, int]] = []
    async with world.client() as client:
        found = await survey.live(client, ["nodes", "pods"], tell=lambda *what: heard.append(what))
        listed = sum(count for (verb, *_), count in client.requests.items() if verb == "list")
    assert [node["metadata"]["name"] for node in found.of_kind("nodes")] == ["a", "b"]
    assert all("images" not in node["status"] for node in found.of_kind("nodes"))
    assert found.of_kind("pods") == () and found.knows("pods")
    assert sorted(heard) == [("nodes", 2), ("pods", 0)]
    assert found.version and found.server == world.url and found.at > 0
    assert listed == 2


async def test_a_kind_that_is_not_served_is_absent_which_is_a_fact(world: World) -> None:
    async with world.client() as client:
        found = await survey.live(client, ["clusterpolicies"])
    assert found.absent == {"clusterpolicies"} and found.knows("clusterpolicies") and not found.unread


async def test_what_may_not_be_read_names_the_permission_that_lacks(world: World) -> None:
    async with world.client("nobody") as client:
        found = await survey.live(client, ["nodes", "daemonsets"])
    assert not found.knows("nodes") and not found.knows("daemonsets")
    assert "list nodes" in found.unread["nodes"] and "system:serviceaccount:default:nobody" in found.unread["nodes"]
    assert 'list daemonsets in API group "apps" in namespace "gpu-operator"' in found.unread["daemonsets"]


async def test_a_kind_whose_listing_fails_is_unread_and_the_rest_is_there(world: World) -> None:
    world.faults.add(Rule("list", "pods", answer=500, times=None))
    async with world.client() as client:
        found = await survey.live(client, ["nodes", "pods"])
    assert found.knows("nodes") and found.unread.keys() == {"pods"}
    assert "pods could not be read" in found.unread["pods"] and "500" in found.unread["pods"]


async def test_credentials_that_nobody_knows_are_an_error(world: World) -> None:
    async with world.client("expired") as client:
        with pytest.raises(errors.Unauthorized):
            await survey.live(client, ["nodes"])


async def test_no_server_is_an_error() -> None:
    client = Client(Config(server="http://127.0.0.1:9"), retry=Retry(attempts=1, first_s=0.01, max_s=0.01))
    async with client:
        with pytest.raises(errors.ConnectionLost):
            await survey.live(client, ["nodes"])


async def test_many_pages_are_one_listing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "PAGE", 1)
    async with world.client() as client:
        found = await survey.live(client, ["nodes"])
    assert len(found.of_kind("nodes")) == 2


def test_documents_of_files_are_taken_apart_and_what_is_in_none_was_not_captured() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "managedFields": [1]},
        "spec": {"nodeName": "a", "dnsPolicy": "x"},
    }
    found = survey.Survey.of(
        [
            {"kind": "PodList", "apiVersion": "v1", "items": [pod]},
            {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"}},
        ],
        read=["jobs"],
    )
    (read,) = found.of_kind("pods")
    assert read["kind"] == "Pod" and read["spec"] == {"nodeName": "a"} and "managedFields" not in read["metadata"]
    assert found.knows("jobs") and found.unread["clusterpolicies"] == "it was not captured"
    assert [each["metadata"]["name"] for each in found.pods_by_node["a"]] == ["p"]
