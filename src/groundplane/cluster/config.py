"""Where the API server is and what we show it: kubeconfig files and the in-cluster service account.

Reads what kubectl reads (several files in ``KUBECONFIG``, paths beside their file, embedded data, exec plugins) and
ends in one :class:`Config`. Turning that into headers and TLS is left to ``auth``. No secret appears in a ``repr``.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import ConfigError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class EnvVar(msgspec.Struct, frozen=True):
    """One environment variable of an exec plugin."""

    name: str
    value: str = ""


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that prints an ExecCredential (client.authentication.k8s.io)."""

    command: str
    apiVersion: str = "client.authentication.k8s.io/v1"
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    installHint: str = ""
    interactiveMode: str = "IfAvailable"
    provideClusterInfo: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One API server and one identity.

    ``*_data`` are PEM bytes, ``*_file`` paths that are read when connecting; data wins over files. ``token_file`` is
    read again when it changes. ``namespace`` is the one to use where none is named.
    """

    server: str
    namespace: str = "default"
    context: str = ""
    token: str | None = None
    token_file: Path | None = None
    username: str | None = None
    password: str | None = None
    ca_data: bytes | None = None
    ca_file: Path | None = None
    client_cert_data: bytes | None = None
    client_cert_file: Path | None = None
    client_key_data: bytes | None = None
    client_key_file: Path | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    exec: ExecPlugin | None = None

    def __repr__(self) -> str:
        return f"Config(server={self.server!r}, context={self.context!r}, namespace={self.namespace!r})"

    @classmethod
    def from_kubeconfig(
        cls, path: Path | str | None = None, context: str | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> "Config":
        """The identity of ``context`` (default: the file's current-context).

        Without ``path``, the files of ``KUBECONFIG`` are merged as kubectl does it (the first to name something wins),
        else ``~/.kube/config`` is read. Raises :class:`ConfigError`.
        """
        paths = [Path(path).expanduser()] if path is not None else _default_paths(environ)
        present = paths if path is not None else [p for p in paths if p.exists()]
        if not present:
            raise ConfigError(f"no kubeconfig: none of {', '.join(map(str, paths))} exists; set KUBECONFIG")
        return _select([(p, _read(p)) for p in present], context)

    @classmethod
    def in_cluster(cls, *, environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT_DIR) -> "Config":
        """The service account of the pod we run in. Raises :class:`ConfigError` outside of one."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError("not in a cluster: KUBERNETES_SERVICE_HOST is unset")
        token = directory / "token"
        if not token.exists():
            raise ConfigError(f"not in a cluster: {token} is missing; is automountServiceAccountToken off?")
        namespace = directory / "namespace"
        return cls(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=_text(namespace).strip() if namespace.exists() else "default",
            context="in-cluster",
            token_file=token,
            ca_file=directory / "ca.crt",
        )

    @classmethod
    def detect(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        directory: Path = SERVICE_ACCOUNT_DIR,
    ) -> "Config":
        """The kubeconfig that was named, else ``KUBECONFIG``, else ``~/.kube/config``, else the pod's service account.

        Raises :class:`ConfigError` that says what was looked for.
        """
        if kubeconfig is not None or context is not None or environ.get("KUBECONFIG"):
            return cls.from_kubeconfig(kubeconfig, context, environ=environ)
        if any(p.exists() for p in _default_paths(environ)):
            return cls.from_kubeconfig(environ=environ)
        try:
            return cls.in_cluster(environ=environ, directory=directory)
        except ConfigError as error:
            looked = ", ".join(map(str, _default_paths(environ)))
            raise ConfigError(f"no API server known: --kubeconfig and KUBECONFIG unset, no {looked}, {error}") from None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(msgspec.Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecPlugin | None = None
    auth_provider: Any = None


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _File(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def _default_paths(environ: Mapping[str, str]) -> list[Path]:
    listed = [Path(p) for p in environ.get("KUBECONFIG", "").split(os.pathsep) if p]
    if listed:
        return listed
    home = environ.get("HOME")
    return [(Path(home) if home else Path.home()) / ".kube" / "config"]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _read(path: Path) -> _File:
    import yaml  # in a cluster there is no such file

    text = _text(path)
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    try:
        return msgspec.convert({} if document is None else document, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not a kubeconfig: {error}") from error


def _select(files: list[tuple[Path, _File]], wanted: str | None) -> Config:
    context_name = wanted or next((f.current_context for _, f in files if f.current_context), "")
    where = ", ".join(str(p) for p, _ in files)
    if not context_name:
        raise ConfigError(f"{where}: no current-context; choose one with --context or `kubectl config use-context`")
    _, context = _find(files, [f.contexts for _, f in files], "context", context_name)
    cluster_path, cluster = _find(files, [f.clusters for _, f in files], "cluster", context.context.cluster)
    if context.context.user:
        user_path, named_user = _find(files, [f.users for _, f in files], "user", context.context.user)
        user = named_user.user
    else:
        user_path, user = cluster_path, _User()
    return _config(context.name, context.context, cluster_path, cluster.cluster, user_path, user)


def _find(
    files: list[tuple[Path, _File]], lists: list[list[_Named] | None], what: str, name: str
) -> tuple[Path, _Named]:
    known: list[str] = []
    for (path, _), entries in zip(files, lists, strict=True):
        for entry in entries or ():
            if entry.name == name:
                return path, entry
            known.append(entry.name)
    where = ", ".join(str(p) for p, _ in files)
    raise ConfigError(f"{where}: no {what} is named {name!r}; there is: {', '.join(known) or 'none'}")


def _config(
    name: str, context: _Context, cluster_path: Path, cluster: _Cluster, user_path: Path, user: _User
) -> Config:
    if not cluster.server:
        raise ConfigError(f"{cluster_path}: cluster {context.cluster!r} has no server")
    if user.auth_provider is not None:
        raise ConfigError(f"{user_path}: user {context.user!r} uses auth-provider, which Kubernetes removed; use exec")
    return Config(
        server=cluster.server.rstrip("/"),
        namespace=context.namespace or "default",
        context=name,
        token=user.token or None,
        token_file=_beside(user_path, user.token_file),
        username=user.username or None,
        password=user.password or None,
        ca_data=_decoded(cluster_path, "certificate-authority-data", cluster.certificate_authority_data),
        ca_file=_beside(cluster_path, cluster.certificate_authority),
        client_cert_data=_decoded(user_path, "client-certificate-data", user.client_certificate_data),
        client_cert_file=_beside(user_path, user.client_certificate),
        client_key_data=_decoded(user_path, "client-key-data", user.client_key_data),
        client_key_file=_beside(user_path, user.client_key),
        insecure=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name or None,
        proxy_url=cluster.proxy_url or None,
        exec=_located(user_path, user.exec),
    )


def _beside(path: Path, name: str) -> Path | None:
    """A path in a kubeconfig is relative to that file."""
    return path.parent / Path(name).expanduser() if name else None


def _located(path: Path, plugin: ExecPlugin | None) -> ExecPlugin | None:
    """A command with a slash is relative to the file too, one without is looked up in PATH."""
    if plugin is None or os.sep not in plugin.command:
        return plugin
    return msgspec.structs.replace(plugin, command=str(path.parent / plugin.command))


def _decoded(path: Path, field: str, text: str) -> bytes | None:
    if not text:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{path}: {field} is not base64: {error}") from error
