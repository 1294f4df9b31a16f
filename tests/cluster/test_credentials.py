"""Credentials that change while we run, and TLS."""

import datetime
import json
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import Sleeps
from cluster.fake_api import FakeApi, serving

from groundplane.cluster import auth, errors, kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config, EnvVar, ExecPlugin

DATA = Path(__file__).parent / "data"
NODES = "/api/v1/nodes"
V1 = "client.authentication.k8s.io/v1"


async def test_a_rotated_token_is_picked_up_after_401_and_by_time(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "token"
    path.write_text("one\n")
    source = auth.TokenFileAuth(path, None, lambda: now)
    assert (await source.current()).authorization == "Bearer one"
    path.write_text("two")
    assert (await source.current()).authorization == "Bearer one"
    now = auth.TOKEN_CHECK_S
    assert (await source.current()).authorization == "Bearer two"
    assert not source.invalidate()
    path.write_text("three")
    assert source.invalidate()
    assert (await source.current()).authorization == "Bearer three"


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read"), (" \n", "is empty")])
async def test_an_unusable_token_file(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    source = auth.TokenFileAuth(path, None)
    with pytest.raises(errors.ConfigError, match=message):
        await source.current()


async def test_a_request_with_an_old_token_is_sent_again_with_the_new_one(api: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    api.put(NODES, "a")
    api.token = "old"
    async with Client(Config(server=api.url, token_file=path)) as client:
        await client.get(kinds.NODE, "a")
        path.write_text("new")
        api.token = "new"
        await client.get(kinds.NODE, "a")
        assert client.requests == {("get", "nodes", 200): 2, ("get", "nodes", 401): 1}
        api.token = "other"
        with pytest.raises(errors.Unauthorized):
            await client.get(kinds.NODE, "a")


def plugin(tmp_path: Path, script: str, **more: Any) -> ExecPlugin:
    path = tmp_path / "login"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return ExecPlugin(command=str(path), **more)


def credential(**status: Any) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


async def test_a_plugin_is_asked_once_per_life_of_its_credential(tmp_path: Path) -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    script = f"""echo run >> {tmp_path}/runs
printf '%s' '{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"'$PREFIX-$1'",
"expirationTimestamp":"2026-01-01T00:10:00Z"}}}}'
printf '%s' "$KUBERNETES_EXEC_INFO" > {tmp_path}/info"""
    ca = DATA / "ca.crt"
    config = Config(server="https://api", ca_file=ca)
    spec = plugin(tmp_path, script, args=["arg"], env=[EnvVar("PREFIX", "env")], provideClusterInfo=True)
    source = auth.ExecAuth(config, spec, now=lambda: now)
    first = await source.current()
    assert first.authorization == "Bearer env-arg"
    assert first.tls is not None
    assert await source.current() is first
    info = json.loads((tmp_path / "info").read_text())
    assert info["spec"]["cluster"]["server"] == "https://api"
    assert info["spec"]["cluster"]["certificate-authority-data"]
    now += datetime.timedelta(minutes=9, seconds=50)
    assert await source.current() is not first
    assert source.invalidate()
    await source.current()
    assert (tmp_path / "runs").read_text().count("run") == 3


@pytest.mark.parametrize(
    ("script", "more", "message"),
    [
        ("echo broken >&2; exit 3", {}, "failed with exit code 3: broken"),
        ("echo hello", {}, "printed no ExecCredential"),
        ("echo '{}'", {}, "printed apiVersion ''"),
        (f"echo '{credential()}'", {}, "neither a token nor a client certificate"),
        ("", {"interactiveMode": "Always"}, "wants a terminal"),
    ],
)
async def test_plugins_that_fail_say_how(tmp_path: Path, script: str, more: Any, message: str) -> None:
    source = auth.ExecAuth(Config(server="http://api"), plugin(tmp_path, script, **more))
    with pytest.raises(errors.ConfigError, match=message):
        await source.current()


async def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    spec = ExecPlugin(command=str(tmp_path / "nope"), installHint="Install it with: apt")
    with pytest.raises(errors.ConfigError, match=r"cannot be started.*Install it with: apt"):
        await auth.ExecAuth(Config(server="http://api"), spec).current()


async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "EXEC_TIMEOUT_S", 0.05)
    source = auth.ExecAuth(Config(server="http://api"), plugin(tmp_path, "exec sleep 60"))
    with pytest.raises(errors.ConfigError, match="gave no answer"):
        await source.current()


async def test_a_plugins_token_reaches_the_server(api: FakeApi, tmp_path: Path) -> None:
    api.put(NODES, "a")
    api.token = "from-plugin"
    config = Config(server=api.url, exec=plugin(tmp_path, f"echo '{credential(token='from-plugin')}'"))
    async with Client(config) as client:
        await client.get(kinds.NODE, "a")


async def test_basic_authentication() -> None:
    source = auth.authenticator(Config(server="http://api", username="me", password="pw"))
    assert (await source.current()).authorization == "Basic bWU6cHc="
    assert not source.invalidate()


# --- TLS -------------------------------------------------------------------------------------------------------------


def server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=DATA / "ca.crt")
    context.load_cert_chain(DATA / "server.crt", DATA / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def get_over_tls(sleeps: Sleeps, **more: Any) -> str:
    async with serving(FakeApi(), server_tls()) as api:
        api.put(NODES, "a")
        if "server_name" in more:
            more["tls_server_name"] = more.pop("server_name")
        async with Client(Config(server=api.url, **more), sleep=sleeps) as client:
            return str((await client.get(kinds.NODE, "a"))["metadata"]["name"])


CERT = {"client_cert_file": DATA / "client.crt", "client_key_file": DATA / "client.key"}
CERT_DATA = {
    "client_cert_data": (DATA / "client.crt").read_bytes(),
    "client_key_data": (DATA / "client.key").read_bytes(),
}
CA = {"ca_file": DATA / "ca.crt"}


@pytest.mark.parametrize(
    "more",
    [
        {**CA, **CERT},
        {"ca_data": (DATA / "ca.crt").read_bytes(), **CERT_DATA},
        {"insecure": True, **CERT},
        {**CA, **CERT, "server_name": "kubernetes.test"},
    ],
)
async def test_tls_that_holds(sleeps: Sleeps, more: Any) -> None:
    assert await get_over_tls(sleeps, **more) == "a"


@pytest.mark.parametrize("more", [CERT, CA, {**CA, **CERT, "server_name": "other.test"}])
async def test_tls_that_does_not(sleeps: Sleeps, more: Any) -> None:
    with pytest.raises(errors.ConnectionLost):
        await get_over_tls(sleeps, **more)


async def test_a_plugins_client_certificate(sleeps: Sleeps, tmp_path: Path) -> None:
    printed = credential(
        clientCertificateData=(DATA / "client.crt").read_text(), clientKeyData=(DATA / "client.key").read_text()
    )
    (tmp_path / "credential").write_text(printed)
    assert await get_over_tls(sleeps, **CA, exec=plugin(tmp_path, f"cat {tmp_path}/credential")) == "a"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ca_data": b"no PEM"}, "certificate-authority-data: the cluster's CA cannot be used"),
        ({"ca_file": Path("/nowhere")}, "/nowhere: the cluster's CA cannot be used"),
        ({"client_cert_data": b"no PEM"}, "client-certificate-data: the client certificate or its key"),
        ({"client_cert_file": Path("/nowhere")}, "/nowhere: the client certificate or its key"),
    ],
)
def test_unusable_pem(more: Any, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        auth.tls_context(Config(server="https://api", **more))
