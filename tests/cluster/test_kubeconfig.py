"""Kubeconfig files and the in-cluster service account."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.cluster.config import Config, ExecPlugin
from groundplane.cluster.errors import ConfigError


def kubeconfig(path: Path, cluster: Any = None, user: Any = None, **context: Any) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ctx",
        "contexts": [{"name": "ctx", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_every_field(tmp_path: Path) -> None:
    path = kubeconfig(
        tmp_path / "config",
        cluster={
            "certificate-authority-data": b64("CA"),
            "insecure-skip-tls-verify": True,
            "tls-server-name": "kube",
            "proxy-url": "http://proxy:1",
        },
        user={
            "token": "t",
            "tokenFile": "token",
            "client-certificate": "pki/tls.crt",
            "client-key-data": b64("KEY"),
            "username": "me",
            "password": "pw",
            "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./bin/login", "args": ["x"]},
        },
        namespace="gpu-operator",
    )
    assert Config.from_kubeconfig(path) == Config(
        server="https://api:6443",
        namespace="gpu-operator",
        context="ctx",
        token="t",
        token_file=tmp_path / "token",
        username="me",
        password="pw",
        ca_data=b"CA",
        client_cert_file=tmp_path / "pki/tls.crt",
        client_key_data=b"KEY",
        insecure=True,
        tls_server_name="kube",
        proxy_url="http://proxy:1",
        exec=ExecPlugin(command=str(tmp_path / "bin/login"), args=["x"]),
    )


def test_repr_tells_no_secret(tmp_path: Path) -> None:
    config = Config.from_kubeconfig(kubeconfig(tmp_path / "c", user={"token": "s3cret", "password": "s3cret"}))
    assert "s3cret" not in f"{config!r} {config}"


def test_files_of_the_environment_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (tmp_path / "sub").mkdir()
    kubeconfig(one, cluster={"server": "https://one"})
    document = {
        "current-context": "other",
        "contexts": [{"name": "other", "context": {"cluster": "c", "user": "v"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://two"}}],
        "users": [{"name": "v", "user": {"tokenFile": "tok"}}],
    }
    two = tmp_path / "sub" / "two"
    two.write_text(yaml.safe_dump(document))
    environ = {"KUBECONFIG": f"{one}:{tmp_path / 'missing'}:{two}"}
    assert Config.from_kubeconfig(environ=environ).context == "ctx"
    other = Config.from_kubeconfig(context="other", environ=environ)
    assert (other.server, other.token_file) == ("https://one", tmp_path / "sub" / "tok")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not YAML"),
        ("clusters: 5", r"not a kubeconfig: Expected `array \| null`, got `int` - at `\$.clusters`"),
        ("", "no current-context"),
        ("current-context: nope", "no context is named 'nope'; there is: none"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}", "no cluster is named 'b'"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: b}}], clusters: [{name: b, cluster: {}}]}",
            "cluster 'b' has no server",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: b, user: z}}], "
            "clusters: [{name: b, cluster: {server: x}}], users: [{name: y}]}",
            "no user is named 'z'; there is: y",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_kubeconfig(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"certificate-authority-data": "%"}, {}, "certificate-authority-data is not base64"),
        ({}, {"auth-provider": {"name": "gcp"}}, "uses auth-provider, which Kubernetes removed; use exec"),
    ],
)
def test_unusable_fields(tmp_path: Path, cluster: Any, user: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_kubeconfig(kubeconfig(tmp_path / "c", cluster, user))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: cannot be read"):
        Config.from_kubeconfig(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no kubeconfig: none of"):
        Config.from_kubeconfig(environ={"HOME": str(tmp_path)})


def service_account(tmp_path: Path) -> Path:
    for name, text in (("token", "t\n"), ("ca.crt", "CA"), ("namespace", "gpu-operator\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("host", "url"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")])
def test_in_cluster(tmp_path: Path, host: str, url: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    config = Config.in_cluster(environ=environ, directory=service_account(tmp_path))
    assert (config.server, config.namespace) == (url, "gpu-operator")
    assert (config.token_file, config.ca_file) == (tmp_path / "token", tmp_path / "ca.crt")


def test_detect_prefers_what_was_named(tmp_path: Path) -> None:
    named = kubeconfig(tmp_path / "named", cluster={"server": "https://named"})
    listed = kubeconfig(tmp_path / "listed", cluster={"server": "https://listed"})
    (tmp_path / ".kube").mkdir()
    home = kubeconfig(tmp_path / ".kube" / "config", cluster={"server": "https://home"})
    (tmp_path / "sa").mkdir()
    directory = service_account(tmp_path / "sa")
    pod = {"KUBERNETES_SERVICE_HOST": "1.2.3.4", "HOME": str(tmp_path)}
    everything = {**pod, "KUBECONFIG": str(listed)}
    assert Config.detect(named, environ=everything, directory=directory).server == "https://named"
    assert Config.detect(environ=everything, directory=directory).server == "https://listed"
    assert Config.detect(environ=pod, directory=directory).server == "https://home"
    home.unlink()
    assert Config.detect(environ=pod, directory=directory).server == "https://1.2.3.4:443"
    with pytest.raises(ConfigError, match=r"no API server known.*KUBERNETES_SERVICE_HOST is unset"):
        Config.detect(environ={"HOME": str(tmp_path)}, directory=directory)
