"""What can be reached from a node (A8, A33): registries by the manifest of an image, repositories by their address.

Nothing is downloaded and no credentials are used: a registry that asks for some is reachable. The clock's difference
is that of the servers' answers.
"""

import asyncio
import datetime
import re
import socket
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ...cluster.http import aiohttp
from ..process import Process
from .view import View

TIMEOUT_S: Final = 15.0
MANIFESTS: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
DEFAULT_REGISTRY: Final = "docker.io"
_HOSTS: Final = {DEFAULT_REGISTRY: "registry-1.docker.io"}
"""The host of a registry where it is not the registry's name."""
_CA_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')


class Reference(msgspec.Struct, frozen=True):
    """An image's reference: registry, repository, tag or digest."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Read a reference as container runtimes do."""
        name, at_sign, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        if not slash or ("." not in first and ":" not in first and first != "localhost"):
            first, rest = DEFAULT_REGISTRY, name
        repository, colon, tag = rest.rpartition(":")
        if not colon or "/" in tag:
            repository, tag = rest, "latest"
        if first == DEFAULT_REGISTRY and "/" not in repository:
            repository = f"library/{repository}"
        return cls(first, repository, digest if at_sign else tag)

    @property
    def url(self) -> str:
        """The address of its manifest."""
        scheme = "http" if self.registry.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
        return f"{scheme}://{_HOSTS.get(self.registry, self.registry)}/v2/{self.repository}/manifests/{self.tag}"


class Tried(msgspec.Struct, omit_defaults=True):
    """What came of one try; ``problem`` is empty where it was reached."""

    problem: str = ""
    status: int = 0
    digest: str = ""
    addresses: list[str] = []
    proxy: bool = False


async def look(process: Process, view: View, urls: Sequence[str], images: Sequence[str]) -> None:
    """Try all at once; the facts are ``reach`` (by address), ``pull`` (by image) and ``clock_skew_s``."""
    if not urls and not images:
        return
    reacher = _Reacher(process, view)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        tries = [reacher.url(session, each) for each in urls] + [reacher.image(session, each) for each in images]
        found = [msgspec.to_builtins(each) for each in await asyncio.gather(*tries)]
    if urls:
        view.tell("reach", dict(zip(map(_without_credentials, urls), found, strict=False)))
    if images:
        view.tell("pull", dict(zip(images, found[len(urls) :], strict=True)))
    if reacher.skews:
        nearest: float = min(reacher.skews, key=_distance)
        view.tell("clock_skew_s", round(nearest, 1))


def _without_credentials(url: str) -> str:
    """An address as it may be told."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def _distance(skew: float) -> float:
    return abs(skew)


class _Reacher:
    def __init__(self, process: Process, view: View) -> None:
        self._process = process
        self._proxies = _proxies(process.env)
        self._tls = ssl.create_default_context()
        for path in _CA_FILES:
            if authorities := view.text(path, limit=8 << 20):
                try:
                    self._tls.load_verify_locations(cadata=authorities)
                except (ssl.SSLError, ValueError) as error:
                    view.lacks(path, f"its authorities cannot be used: {error}")
        self.skews: list[float] = []

    async def url(self, session: aiohttp.ClientSession, url: str) -> Tried:
        """Whether an address answers at all; any answer will do."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            return Tried(problem="no address of http or https")
        tried, _ = await self._ask(session, url, {})
        if tried.status >= 500:
            tried.problem = f"the server answers {tried.status}"
        return tried

    async def image(self, session: aiohttp.ClientSession, image: str) -> Tried:
        """Whether a registry has an image's manifest."""
        url = Reference.parse(image).url
        tried, headers = await self._ask(session, url, {"Accept": MANIFESTS})
        challenge = headers.get("www-authenticate", "")
        if tried.status == 401 and challenge.lower().startswith("bearer "):
            token = await self._token(session, dict(_CHALLENGE.findall(challenge)))
            if token:
                again = {"Accept": MANIFESTS, "Authorization": f"Bearer {token}"}
                tried, headers = await self._ask(session, url, again)
        if not tried.problem:
            tried.problem = _VERDICTS.get(tried.status, "" if tried.status < 400 else f"it answers {tried.status}")
        tried.digest = headers.get("docker-content-digest", "")
        return tried

    async def _token(self, session: aiohttp.ClientSession, challenge: Mapping[str, str]) -> str:
        """A token for anybody, as registries give them for public images; empty if this one does not."""
        realm = challenge.get("realm", "")
        if urlsplit(realm).scheme not in ("http", "https"):
            return ""
        params = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        try:
            async with session.get(realm, params=params, ssl=self._tls, proxy=self._proxy(realm)) as response:
                answer: Any = msgspec.json.decode(await response.content.read(1 << 16))
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, ValueError):
            return ""
        given = answer if isinstance(answer, dict) else {}
        return str(given.get("token") or given.get("access_token") or "")

    async def _ask(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
    ) -> tuple[Tried, dict[str, str]]:
        tried = Tried(proxy=self._proxy(url) is not None)
        if not tried.proxy:
            problem = await self._resolve(urlsplit(url).hostname or "", tried)
            if problem:
                return Tried(problem=problem), {}
        try:
            async with session.head(
                url, headers=headers, ssl=self._tls, proxy=self._proxy(url), allow_redirects=not headers
            ) as response:
                tried.status = response.status
                if response.status == 407:
                    tried.problem = _PROXY_ASKS
                self._compare(response.headers.get("Date", ""))
                return tried, {name.lower(): value for name, value in response.headers.items()}
        except TimeoutError:
            tried.problem = f"no answer within {TIMEOUT_S:g} s: a firewall, or no route"
        except aiohttp.ClientHttpProxyError as error:
            tried.problem = _PROXY_ASKS if error.status == 407 else f"the proxy answers {error.status}"
        except aiohttp.ClientConnectorCertificateError as error:
            tried.problem = f"its certificate is not trusted: {error.certificate_error}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            tried.problem = str(error) or type(error).__name__
        return tried, {}

    async def _resolve(self, host: str, tried: Tried) -> str:
        try:
            found = await asyncio.wait_for(
                asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM), TIMEOUT_S
            )
        except TimeoutError:
            return f"the name {host} is not resolved within {TIMEOUT_S:g} s"
        except OSError as error:
            return f"the name {host} cannot be resolved: {error.strerror or error}"
        tried.addresses = list(dict.fromkeys(str(each[4][0]) for each in found))[:4]
        return ""

    def _proxy(self, url: str) -> str | None:
        parts = urlsplit(url)
        if urllib.request.proxy_bypass_environment(parts.hostname or "", self._proxies):  # type: ignore[attr-defined]
            return None
        return self._proxies.get(parts.scheme)

    def _compare(self, date: str) -> None:
        try:
            theirs = parsedate_to_datetime(date)
        except ValueError:
            return
        if theirs.tzinfo is None:
            theirs = theirs.replace(tzinfo=datetime.UTC)
        self.skews.append((self._process.now() - theirs).total_seconds())


_VERDICTS: Final = {
    401: "it asks for credentials: the registry is reached, a pull secret is needed",
    403: "it refuses: a pull secret, or a licence, is needed",
    404: "the registry has no such image or tag",
    429: "too many requests from here: log in with a pull secret, or mirror the image",
}


_PROXY_ASKS: Final = "the proxy asks for credentials: give them in the proxy's address on the node"


def _proxies(env: Mapping[str, str]) -> dict[str, str]:
    """Proxies by scheme, and the exceptions under ``no``, of the environment's variables."""
    found = {}
    for name in ("http", "https", "no"):
        value = env.get(f"{name}_proxy") or env.get(f"{name.upper()}_PROXY")
        if value:
            found[name] = value
    return found
