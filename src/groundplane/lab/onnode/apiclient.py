"""A small synchronous client of a real API server, with the methods the stand-ins use on the lab's.

It speaks for the pod's service account. A request is one connection: the stand-ins make few. Whatever the operator and
node programs need of a client is in `cluster`; this one exists because the stand-ins' own interface is synchronous.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ...cluster.config import Config
from ..resources import Resource
from ..status import StatusError

TIMEOUT_S = 30.0
_PATCHES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class Client:
    """One API server and one identity. Every method raises StatusError when it is refused, 503 if nobody answers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._url = urlsplit(config.server)
        self._tls = ssl.create_default_context(cafile=config.ca_file) if self._url.scheme == "https" else None

    def get(self, res: Resource, name: str, ns: str | None = None) -> dict[str, Any]:
        """Return an object."""
        return self._request("GET", _path(res, ns, name))

    def find(self, res: Resource, name: str, ns: str | None = None) -> dict[str, Any] | None:
        """Return an object, or None."""
        try:
            return self.get(res, name, ns)
        except StatusError as error:
            if error.code == 404:
                return None
            raise

    def list(
        self, res: Resource, ns: str | None = None, *, labels: str | None = None, fields: str | None = None
    ) -> dict[str, Any]:
        """Return a List object."""
        return self._request("GET", _path(res, ns), {"labelSelector": labels, "fieldSelector": fields})

    def create(
        self, res: Resource, obj: Mapping[str, Any], ns: str | None = None, *, manager: str = ""
    ) -> dict[str, Any]:
        """Create an object and return it as stored."""
        return self._request("POST", _path(res, ns), {"fieldManager": manager}, obj)

    def patch(
        self, res: Resource, name: str, body: Any, *, ns: str | None = None, type: str, manager: str | None = None
    ) -> dict[str, Any]:
        """Patch an object (`type` is json, merge or strategic) and return it as stored."""
        return self._request("PATCH", _path(res, ns, name), {"fieldManager": manager}, body, _PATCHES[type])

    def delete(
        self, res: Resource, name: str, ns: str | None = None, *, grace_period_s: int | None = None
    ) -> dict[str, Any]:
        """Delete an object; returns its last or present state."""
        grace = None if grace_period_s is None else str(grace_period_s)
        return self._request("DELETE", _path(res, ns, name), {"gracePeriodSeconds": grace})

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        given = {key: value for key, value in (query or {}).items() if value}
        target = f"{self._url.path.rstrip('/')}{path}" + (f"?{urlencode(given)}" if given else "")
        headers = {"Accept": "application/json", "Content-Type": content_type, **self._authorization()}
        connection = self._connection()
        try:
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise StatusError(503, "ServiceUnavailable", f"{self._config.server} does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise _refusal(answer.status, data)
        found: dict[str, Any] = json.loads(data)
        return found

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._tls)

    def _authorization(self) -> dict[str, str]:
        config = self._config  # the file is read each time: the kubelet renews the token in it
        token = config.token_file.read_text().strip() if config.token_file else config.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def _path(res: Resource, ns: str | None, name: str = "") -> str:
    parts = ["apis", res.group, res.version] if res.group else ["api", res.version]
    if res.namespaced and ns:
        parts += ["namespaces", ns]
    parts += [res.plural, *([name] if name else [])]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _refusal(code: int, data: bytes) -> StatusError:
    try:
        document = json.loads(data)
    except ValueError:
        return StatusError(code, "", data.decode(errors="replace")[:500])
    return StatusError(code, document.get("reason", ""), document.get("message", ""), document.get("details"))
