"""What a node reaches, against servers of this machine: registries that give tokens or refuse, slow ones, proxies."""

import asyncio
import datetime
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from node.fakeprocess import FakeProcess

from groundplane.node.hostroot import HostRoot
from groundplane.node.inspect import reach
from groundplane.node.inspect.view import View

DIGEST = "sha256:" + "a" * 64
SECRET = "hunter2-very-secret"
Facts = dict[str, Any]


@asynccontextmanager
async def serving(handler: Any, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a port of its own."""
    runner = web.ServerRunner(web.Server(handler), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        server: Any = site._server
        yield server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


async def tried(
    folder: Path, urls: Sequence[str] = (), images: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Facts:
    view = View(HostRoot(folder), HostRoot(folder))
    await reach.look(FakeProcess(folder, env=env), view, urls, images)
    return view.facts | {"missing": view.missing}


async def registry(request: web.BaseRequest) -> web.StreamResponse:
    """A registry that gives anybody a token, for the public image only."""
    if request.path == "/token":
        assert request.query["service"] == "registry.example"
        return web.json_response({"token": "of-anybody"} if "public" in request.query["scope"] else {})
    assert request.method == "HEAD", "nothing is downloaded"
    if request.headers.get("Authorization") == "Bearer of-anybody":
        found = request.path.endswith("/manifests/1.0")
        return web.Response(status=200 if found else 404, headers={"Docker-Content-Digest": DIGEST} if found else {})
    scope = f"repository:{request.path.removeprefix('/v2/').partition('/')[0]}:pull"
    asked = f'Bearer realm="http://{request.host}/token",service="registry.example",scope="{scope}"'
    return web.Response(status=401, headers={"WWW-Authenticate": asked})


async def test_a_registry_with_tokens(tmp_path: Path) -> None:
    async with serving(registry) as port:
        host = f"127.0.0.1:{port}"
        public, gone, closed = f"{host}/public:1.0", f"{host}/public:9.9", f"{host}/private:1.0"
        found = (await tried(tmp_path, images=[public, gone, closed]))["pull"]
    assert found[public] == {"status": 200, "digest": DIGEST, "addresses": ["127.0.0.1"]}
    assert found[gone]["status"] == 404 and "no such image or tag" in found[gone]["problem"]
    assert found[closed]["status"] == 401 and "a pull secret is needed" in found[closed]["problem"]


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (200, ""),
        (401, "it asks for credentials"),
        (403, "a pull secret, or a licence"),
        (404, "no such image or tag"),
        (429, "too many requests"),
        (500, "it answers 500"),
        (503, "it answers 503"),
    ],
)
async def test_what_a_registry_answers(tmp_path: Path, status: int, problem: str) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, headers={"WWW-Authenticate": "Basic realm=x"} if status == 401 else {})

    async with serving(handler) as port:
        image = f"127.0.0.1:{port}/some/image@{DIGEST}"
        found = (await tried(tmp_path, images=[image]))["pull"][image]
    assert found["status"] == status
    assert problem in found.get("problem", "") and bool(problem) == bool(found.get("problem"))


@pytest.mark.parametrize("answer", [b"", b"no json", b'["a list"]', b'{"token": 7}'])
async def test_a_token_that_is_none(tmp_path: Path, answer: bytes) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/token":
            return web.Response(body=answer)
        asked = f'Bearer realm="http://{request.host}/token"'
        return web.Response(status=401, headers={"WWW-Authenticate": asked})

    async with serving(handler) as port:
        image = f"127.0.0.1:{port}/image:1"
        found = (await tried(tmp_path, images=[image]))["pull"][image]
    assert "it asks for credentials" in found["problem"]


async def test_addresses_any_answer_will_do(tmp_path: Path) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/moved":
            return web.Response(status=302, headers={"Location": "/there"})
        return web.Response(status={"/closed": 403, "/gone": 404, "/broken": 502}.get(request.path, 200))

    async with serving(handler) as port:
        base = f"http://127.0.0.1:{port}"
        urls = [f"{base}/{path}" for path in ("moved", "closed", "gone", "broken")]
        found = (await tried(tmp_path, [*urls, "ftp://mirror", "mirror.example"]))["reach"]
    assert [found[url].get("problem", "") for url in urls] == ["", "", "", "the server answers 502"]
    assert found["ftp://mirror"]["problem"] == found["mirror.example"]["problem"] == "no address of http or https"


async def test_a_server_that_does_not_answer_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "TIMEOUT_S", 0.2)

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with serving(handler) as port:
        url = f"http://127.0.0.1:{port}/"
        found = (await tried(tmp_path, [url]))["reach"][url]
    assert found["problem"] == "no answer within 0.2 s: a firewall, or no route" and "status" not in found


async def test_nobody_listens_and_a_name_that_is_none(tmp_path: Path) -> None:
    async with serving(registry) as port:
        pass
    closed, nameless = f"http://127.0.0.1:{port}/", "https://registry.invalid/"
    found = (await tried(tmp_path, [closed, nameless]))["reach"]
    assert "Connect call failed" in found[closed]["problem"]
    assert found[nameless]["problem"].startswith("the name registry.invalid cannot be resolved")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of an authority that nobody knows, for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", "-keyout", key, "-out", made, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return key, made


async def test_an_authority_counts_if_the_node_trusts_it(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    key, made = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made, key)
    bundle = tmp_path / "etc/ssl/certs/ca-certificates.crt"
    async with serving(registry, tls) as port:
        url = f"https://localhost:{port}/"
        refused = await tried(tmp_path, [url])
        bundle.parent.mkdir(parents=True)
        bundle.write_bytes(made.read_bytes())
        trusted = await tried(tmp_path, [url])
        bundle.write_text("no certificates at all")
        spoilt = await tried(tmp_path, [url])
    assert "its certificate is not trusted" in refused["reach"][url]["problem"]
    assert trusted["reach"][url]["status"] == 401 and "problem" not in trusted["reach"][url]
    assert "cannot be used" in spoilt["missing"]["/etc/ssl/certs/ca-certificates.crt"]


async def test_the_clock_is_compared_with_the_nearest_server(tmp_path: Path) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        ahead = datetime.timedelta(minutes=10 if request.path == "/near" else 60)
        date = (datetime.datetime.now(datetime.UTC) + ahead).strftime("%a, %d %b %Y %H:%M:%S GMT")
        return web.Response(headers={"Date": "yesterday" if request.path == "/odd" else date})

    async with serving(handler) as port:
        found = await tried(tmp_path, [f"http://127.0.0.1:{port}/{path}" for path in ("near", "far", "odd")])
    assert -605 < found["clock_skew_s"] < -540


async def test_proxies_of_the_environment_and_what_goes_round_them(tmp_path: Path) -> None:
    asked: list[str] = []

    async def proxy(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(str(request.url))
        return web.Response(status={"closed": 407, "broken": 502}.get(str(request.url.host).partition(".")[0], 200))

    async with serving(proxy) as port, serving(registry) as direct:
        address = f"http://me:{SECRET}@127.0.0.1:{port}"
        env = {"HTTP_PROXY": address, "https_proxy": address, "no_proxy": "127.0.0.1"}
        through, around = "http://mirror.invalid/a", f"http://127.0.0.1:{direct}/"
        refused = ["http://closed.invalid/", "https://closed.invalid/"]
        found = (await tried(tmp_path, [through, around, *refused, "https://broken.invalid"], env=env))["reach"]
    assert found[through] == {"status": 200, "proxy": True}
    assert found[around]["status"] == 401 and "proxy" not in found[around]
    assert ["the proxy asks for credentials" in found[url]["problem"] for url in refused] == [True, True]
    assert found["https://broken.invalid"]["problem"] == "the proxy answers 502"
    assert SECRET not in str(found) and len(asked) == 4


async def test_credentials_of_an_address_are_not_told(tmp_path: Path) -> None:
    async with serving(registry) as port:
        found = await tried(tmp_path, [f"http://me:{SECRET}@127.0.0.1:{port}/"])
    assert SECRET not in str(found) and len(found["reach"]) == 1


async def test_nothing_is_tried_where_nothing_was_asked(tmp_path: Path) -> None:
    assert await tried(tmp_path) == {"missing": {}}
