"""A pod's own pages through the API server, `pods/NAME[:PORT]/proxy/PATH`: its answer, and what is refused."""

from collections.abc import AsyncIterator

import pytest

from groundplane.cluster import client as cluster_client
from groundplane.cluster import errors
from groundplane.cluster.config import Config
from groundplane.lab import resources
from groundplane.lab.cluster import Lab
from groundplane.lab.nodes import NodeSpec
from groundplane.lab.programs import ContainerContext, Response

PATIENCE_S = 60.0
PODS = "/api/v1/namespaces/default/pods"


async def pages(ctx: ContainerContext) -> int:
    """Answer with what was asked for; `/missing` is not there."""

    async def asked(path: str) -> Response:
        return Response(404 if path == "/missing" else 200, f"asked for {path}\n")

    async def other(_path: str) -> Response:
        return Response(200, "the other port\n")

    ctx.serve(8080, asked)
    ctx.serve(9090, other)
    await ctx.stopped()
    return 0


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with Lab([NodeSpec("n1")], operator=False) as made:
        made.programs.add_image("pages", ("pages",), {"pages": pages})
        container = {"name": "main", "image": "pages", "ports": [{"containerPort": 8080}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "site", "namespace": "default"}}
        await made.apply([{**pod, "spec": {"containers": [container]}}])

        def running() -> bool:
            return bool(made.api.get(resources.PODS, "site", "default").get("status", {}).get("phase") == "Running")

        await made.wait_until(running, timeout_s=PATIENCE_S, what="the pod to run")
        yield made


@pytest.fixture
async def client(lab: Lab) -> AsyncIterator[cluster_client.Client]:
    async with lab.client() as made:
        yield made


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("site:8080/proxy/metrics", "asked for /metrics\n"),
        ("site/proxy/a/b/", "asked for /a/b/\n"),
        ("http:site:8080/proxy/", "asked for /\n"),
        ("site:8080/proxy", "asked for /\n"),
        ("site:8080/proxy/find?name=x", "asked for /find?name=x\n"),
        ("site:9090/proxy/", "the other port\n"),
    ],
)
async def test_the_pod_answers(client: cluster_client.Client, path: str, text: str) -> None:
    assert (await client.raw("GET", f"{PODS}/{path}")).decode() == text


@pytest.mark.parametrize(
    ("path", "code", "told"),
    [
        ("site:8080/proxy/missing", 404, "asked for /missing"),
        ("site:web/proxy/", 400, "has no port number"),
        ("nobody:8080/proxy/", 404, 'pods "nobody" not found'),
        ("site/pages/", 404, "could not find the requested resource"),
        ("site/log/more", 404, "could not find the requested resource"),
    ],
)
async def test_what_is_not_there_is_told(client: cluster_client.Client, path: str, code: int, told: str) -> None:
    with pytest.raises(errors.ApiError, match=told) as caught:
        await client.raw("GET", f"{PODS}/{path}")
    assert caught.value.code == code


async def test_a_port_on_which_nothing_listens_is_unavailable(lab: Lab) -> None:
    once = cluster_client.Retry(attempts=1)
    async with cluster_client.Client(Config(server=lab.url), retry=once) as client:
        with pytest.raises(errors.ApiError, match="nothing listens on port 81") as caught:
            await client.raw("GET", f"{PODS}/site:81/proxy/")
    assert caught.value.code == 503


async def test_only_reading_is_offered(client: cluster_client.Client) -> None:
    with pytest.raises(errors.ApiError) as caught:
        await client.raw("PUT", f"{PODS}/site:8080/proxy/", body=b"{}")
    assert caught.value.code == 405
