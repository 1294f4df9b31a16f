"""From a :class:`~groundplane.cluster.config.Config` to what a request carries: Authorization header and TLS context.

Credentials may change while we run (a rotated service account token, an exec plugin's short-lived ones): every request
asks :meth:`Authenticator.current`, which is cheap while nothing changed, and after a 401 the client calls
:meth:`Authenticator.invalidate` once. Sending requests is left to ``client``.
"""

import asyncio
import base64
import datetime
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from .config import Config, ExecPlugin
from .errors import ConfigError

TOKEN_CHECK_S = 10.0
"""How often a token file is looked at. The kubelet replaces a token when 80 % of its life (an hour) is over."""
EXEC_TIMEOUT_S = 60.0
EXPIRY_MARGIN_S = 10.0
"""A plugin's credential counts as expired this long before it is."""


class Credentials(msgspec.Struct, frozen=True):
    """The Authorization header's value, if any, and the TLS context, None for plain HTTP."""

    authorization: str | None
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"Credentials(authorization={'set' if self.authorization else 'none'}, tls={self.tls is not None})"


class Authenticator(Protocol):
    """Where a client's credentials come from."""

    async def current(self) -> Credentials:
        """The credentials for the next request. Raises :class:`ConfigError`."""

    def invalidate(self) -> bool:
        """The server said 401: forget what is cached. True if asking again may give something else."""


def authenticator(config: Config, *, clock: Callable[[], float] = time.monotonic) -> Authenticator:
    """The authenticator that ``config`` asks for: a token, a token file, an exec plugin, certificates, or nothing."""
    if config.exec is not None:
        return ExecAuth(config, config.exec)
    tls = tls_context(config)
    if config.token is not None:
        return StaticAuth(Credentials(f"Bearer {config.token}", tls))
    if config.token_file is not None:
        return TokenFileAuth(config.token_file, tls, clock)
    if config.username is not None:
        pair = f"{config.username}:{config.password or ''}".encode()
        return StaticAuth(Credentials(f"Basic {base64.b64encode(pair).decode()}", tls))
    return StaticAuth(Credentials(None, tls))


class StaticAuth:
    """Credentials that never change."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def current(self) -> Credentials:
        """Always the same."""
        return self._credentials

    def invalidate(self) -> bool:
        """Nothing else to offer."""
        return False


class TokenFileAuth:
    """A token in a file that somebody (the kubelet) replaces from time to time."""

    def __init__(self, path: Path, tls: ssl.SSLContext | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._tls = tls
        self._clock = clock
        self._checked_at = float("-inf")
        self._credentials: Credentials | None = None

    async def current(self) -> Credentials:
        """The file's token, read again at most every :data:`TOKEN_CHECK_S` seconds."""
        now = self._clock()
        if self._credentials is None or now - self._checked_at >= TOKEN_CHECK_S:
            self._checked_at = now
            self._credentials = Credentials(f"Bearer {self._read()}", self._tls)
        return self._credentials

    def invalidate(self) -> bool:
        """Read the file at the next request; worth another try only if it says something else by now."""
        before, self._credentials = self._credentials, None
        try:
            return before is None or before.authorization != f"Bearer {self._read()}"
        except ConfigError:
            return False

    def _read(self) -> str:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path}: the API token cannot be read: {error}") from error
        if not token:
            raise ConfigError(f"{self._path}: the API token file is empty")
        return token


class _ExecStatus(msgspec.Struct):
    token: str | None = None
    clientCertificateData: str | None = None
    clientKeyData: str | None = None
    expirationTimestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct):
    apiVersion: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class ExecAuth:
    """Credentials printed by a program (``kubectl``'s exec plugins, e.g. ``aws eks get-token``).

    ``now`` gives the wall-clock time; expiry is compared with it.
    """

    def __init__(
        self,
        config: Config,
        plugin: ExecPlugin,
        *,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._config = config
        self._plugin = plugin
        self._environ = environ
        self._now = now
        self._lock = asyncio.Lock()
        self._credentials: Credentials | None = None
        self._expires: datetime.datetime | None = None

    async def current(self) -> Credentials:
        """What the plugin printed last, asked again when it expires. Only one plugin runs at a time."""
        async with self._lock:
            if self._credentials is None or self._expired():
                self._credentials, self._expires = await self._ask()
            return self._credentials

    def invalidate(self) -> bool:
        """Run the plugin again at the next request."""
        self._credentials = None
        return True

    def _expired(self) -> bool:
        return self._expires is not None and (self._expires - self._now()).total_seconds() <= EXPIRY_MARGIN_S

    async def _ask(self) -> tuple[Credentials, datetime.datetime | None]:
        status = self._parse(await self._run())
        certificate = (status.clientCertificateData or "").encode() or None
        key = (status.clientKeyData or "").encode() or None
        config = self._config
        if certificate and key:
            config = msgspec.structs.replace(config, client_cert_data=certificate, client_key_data=key)
        tls = tls_context(config)
        return Credentials(f"Bearer {status.token}" if status.token else None, tls), status.expirationTimestamp

    async def _run(self) -> bytes:
        plugin = self._plugin
        if plugin.interactiveMode == "Always":
            raise ConfigError(
                f"exec plugin {plugin.command!r} wants a terminal (interactiveMode: Always), we have none"
            )
        env = {**self._environ, **{e.name: e.value for e in plugin.env or ()}, "KUBERNETES_EXEC_INFO": self._info()}
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *(plugin.args or ()),
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f" {plugin.installHint.strip()}" if plugin.installHint else ""
            raise ConfigError(f"exec plugin {plugin.command!r} cannot be started: {error}.{hint}") from error
        try:
            out, err = await asyncio.wait_for(process.communicate(), EXEC_TIMEOUT_S)
        except TimeoutError:
            raise ConfigError(f"exec plugin {plugin.command!r} gave no answer in {EXEC_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            text = err.decode("utf-8", "replace").strip()[-500:]
            raise ConfigError(f"exec plugin {plugin.command!r} failed with exit code {process.returncode}: {text}")
        return out

    def _info(self) -> str:
        """The ExecCredential that tells the plugin who asks."""
        config = self._config
        spec: dict[str, object] = {"interactive": False}
        if self._plugin.provideClusterInfo:
            ca = config.ca_data or (_bytes(config.ca_file) if config.ca_file else None)
            cluster: dict[str, object] = {"server": config.server, "insecure-skip-tls-verify": config.insecure}
            if config.tls_server_name:
                cluster["tls-server-name"] = config.tls_server_name
            if ca:
                cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
            spec["cluster"] = cluster
        info = {"apiVersion": self._plugin.apiVersion, "kind": "ExecCredential", "spec": spec}
        return msgspec.json.encode(info).decode()

    def _parse(self, out: bytes) -> _ExecStatus:
        command = self._plugin.command
        try:
            credential = msgspec.json.decode(out, type=_ExecCredential)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"exec plugin {command!r} printed no ExecCredential: {error}") from error
        if credential.apiVersion != self._plugin.apiVersion:
            raise ConfigError(
                f"exec plugin {command!r} printed apiVersion {credential.apiVersion!r}, "
                f"the kubeconfig wants {self._plugin.apiVersion!r}"
            )
        status = credential.status
        if status is None or not (status.token or (status.clientCertificateData and status.clientKeyData)):
            raise ConfigError(f"exec plugin {command!r} printed neither a token nor a client certificate with its key")
        return status


def tls_context(config: Config) -> ssl.SSLContext | None:
    """The TLS context for ``config``; None for an ``http:`` server. Raises :class:`ConfigError` on unusable PEM."""
    if not config.server.lower().startswith("https:"):
        return None
    context = ssl.create_default_context() if config.ca_data is None and config.ca_file is None else _with_ca(config)
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_client_certificate(context, config)
    return context


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the cluster's CA cannot be read: {error}") from error


def _with_ca(config: Config) -> ssl.SSLContext:
    """Trust the cluster's CA and no other."""
    try:
        if config.ca_data is not None:
            return ssl.create_default_context(cadata=config.ca_data.decode("ascii"))
        return ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ValueError) as error:
        where = "certificate-authority-data" if config.ca_data is not None else str(config.ca_file)
        raise ConfigError(f"{where}: the cluster's CA cannot be used: {error}") from error


def _load_client_certificate(context: ssl.SSLContext, config: Config) -> None:
    if config.client_cert_data is None and config.client_cert_file is None:
        return
    folder = Path(tempfile.mkdtemp(prefix="groundplane-"))
    try:
        certificate = _as_file(folder / "tls.crt", config.client_cert_data, config.client_cert_file)
        key = _as_file(folder / "tls.key", config.client_key_data, config.client_key_file)
        context.load_cert_chain(certificate or "", key)
    except (OSError, ValueError) as error:
        where = "client-certificate-data" if config.client_cert_data is not None else str(config.client_cert_file)
        raise ConfigError(f"{where}: the client certificate or its key cannot be used: {error}") from error
    finally:
        shutil.rmtree(folder)


def _as_file(path: Path, data: bytes | None, file: Path | None) -> Path | None:
    """Python's ssl reads certificates from files only: data is written to one of ours for a moment, mode 0600."""
    if data is None:
        return file
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path
