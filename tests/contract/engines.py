"""Two API servers behind one raw HTTP client: the lab's and a real kube-apiserver.

A contract case is a function that sends requests and states what Kubernetes answers. It is written once and runs on
each engine; nothing here interprets answers, so that what a case asserts is what travelled over the wire.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import yaml

from groundplane.lab import cluster as lab_cluster

NAMES = ("lab", "kubernetes")
DEADLINE_S = 60.0
"""How long `eventually` and a watch wait for what must come; far beyond what any case takes."""
_POLL_S = 0.02

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

Document = dict[str, Any]
T = TypeVar("T")
Params = Mapping[str, str | int | bool]


class Answer(msgspec.Struct):
    """What came back: the status code, the decoded body (text when it is not JSON) and the headers, lower-cased."""

    status: int
    body: Any
    headers: dict[str, str]

    def ok(self) -> Document:
        """Return the body of a success; fails the test otherwise."""
        assert 200 <= self.status < 300, f"{self.status}: {self.message}"
        assert isinstance(self.body, dict), self.body
        return self.body

    def fails(self, code: int, reason: str, *parts: str) -> Document:
        """Return the Status of a failure with this code and reason, whose message holds all `parts`."""
        assert self.status == code, f"expected {code} {reason}, got {self.status}: {self.message}"
        assert isinstance(self.body, dict), self.body
        assert self.body["kind"] == "Status"
        assert self.body["apiVersion"] == "v1"
        assert self.body["status"] == "Failure"
        assert self.body["code"] == code
        assert self.body.get("reason", "") == reason, self.body
        for part in parts:
            assert part in self.body["message"], self.message
        return self.body

    def causes(self) -> list[tuple[str, str]]:
        """Return (field, reason) of each of the Status' causes, sorted."""
        found = (self.body.get("details") or {}).get("causes") or []
        return sorted((cause.get("field", ""), cause.get("reason", "")) for cause in found)

    @property
    def message(self) -> str:
        """The Status' message, else the whole body."""
        return str(self.body.get("message", self.body)) if isinstance(self.body, dict) else str(self.body)

    @property
    def warnings(self) -> list[str]:
        """The texts of the Warning headers."""
        return [part.split('"')[1] for part in self.headers.get("warning", "").split("\n") if '"' in part]


class Api:
    """A caller of one engine: a bearer token and the requests it makes. One connection a thread is kept open."""

    def __init__(self, url: str, token: str | None, ca_file: Path | None = None) -> None:
        self.url = url
        self.token = token
        self._ca_file = ca_file
        self._address = urlsplit(url)
        self._local = threading.local()

    def with_token(self, token: str | None) -> Api:
        """Return another caller of the same engine; None is nobody."""
        return Api(self.url, token, self._ca_file)

    def connect(self, timeout_s: float = DEADLINE_S) -> http.client.HTTPConnection:
        """Open a connection of one's own."""
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=str(self._ca_file))
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Params | None = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request. A body that is not text or bytes is sent as JSON."""
        sent = _encoded(body)
        wanted = self._headers(headers, content_type if sent is not None else None)
        target = _target(path, params)
        for attempt in (1, 2):
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self.connect()
            try:
                connection.request(method, target, body=sent, headers=wanted)
                response = connection.getresponse()
                return _answer(response, response.read())
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                connection.close()
                self._local.connection = None
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _headers(self, more: Mapping[str, str] | None, content_type: str | None) -> dict[str, str]:
        headers = {"Accept": JSON, "User-Agent": "contract/1"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return {**headers, **(more or {})}

    def get(self, path: str, **params: str | int | bool) -> Answer:
        """GET with query parameters."""
        return self.request("GET", path, params=params)

    def create(self, path: str, body: Any, **params: str | int | bool) -> Answer:
        """POST."""
        return self.request("POST", path, body, params=params)

    def update(self, path: str, body: Any, **params: str | int | bool) -> Answer:
        """PUT."""
        return self.request("PUT", path, body, params=params)

    def delete(self, path: str, body: Any = None, **params: str | int | bool) -> Answer:
        """DELETE."""
        return self.request("DELETE", path, body, params=params)

    def patch(self, path: str, body: Any, kind: str = MERGE_PATCH, **params: str | int | bool) -> Answer:
        """PATCH of the given media type."""
        return self.request("PATCH", path, body, params=params, content_type=kind)

    def apply(self, path: str, body: Document, manager: str = "contract", **params: str | int | bool) -> Answer:
        """Server-side apply."""
        return self.request("PATCH", path, body, params={"fieldManager": manager, **params}, content_type=APPLY_PATCH)

    def watch(self, path: str, *, accept: str = JSON, **params: str | int | bool) -> Watch:
        """Open a watch; use it as a context manager."""
        return Watch(self, path, params, accept)


class Watch:
    """A running watch: events are read one by one."""

    def __init__(self, api: Api, path: str, params: Params, accept: str) -> None:
        self._connection = api.connect()
        headers = api._headers({"Accept": accept}, None)
        self._connection.request("GET", _target(path, {"watch": 1, **params}), headers=headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.seen: list[tuple[str, Document]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def next(self) -> tuple[str, Document] | None:
        """Return the next (type, object), or None when the server ended the watch. Fails after `DEADLINE_S`."""
        line = self._response.readline()
        if not line.strip():
            return None
        event = json.loads(line)
        self.seen.append((event["type"], event["object"]))
        return self.seen[-1]

    def take(self, count: int) -> list[tuple[str, Document]]:
        """Return the next events; fails when the watch ends before."""
        found = []
        for _ in range(count):
            event = self.next()
            assert event is not None, f"the watch ended after {self.seen}"
            found.append(event)
        return found

    def until(self, done: Callable[[str, Document], bool]) -> tuple[str, Document]:
        """Read until an event fulfils `done` and return that one."""
        while True:
            event = self.take(1)[0]
            if done(*event):
                return event

    def rest(self) -> list[tuple[str, Document]]:
        """Read until the server ends the watch."""
        found = []
        while (event := self.next()) is not None:
            found.append(event)
        return found

    def answer(self) -> Answer:
        """Return the answer of a watch that was refused."""
        return _answer(self._response, self._response.read())


def _encoded(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _target(path: str, params: Params | None) -> str:
    def text(value: str | int | bool) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    if not params:
        return path
    return f"{path}?{urlencode({key: text(value) for key, value in params.items()}, quote_via=quote)}"


def _answer(response: http.client.HTTPResponse, raw: bytes) -> Answer:
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        key = name.lower()
        headers[key] = f"{headers[key]}\n{value}" if key in headers else value
    kind = headers.get("content-type", "").partition(";")[0]
    body: Any = json.loads(raw) if kind.endswith("json") and raw else raw.decode(errors="replace")
    return Answer(response.status, body, headers)


def eventually(look: Callable[[], T], *, what: str = "", timeout_s: float = DEADLINE_S) -> T:
    """Call `look` until it returns something true and raises no AssertionError; return that."""
    ends = time.monotonic() + timeout_s
    while True:
        failure: AssertionError | None = None
        found: T | None = None
        try:
            found = look()
        except AssertionError as error:
            failure = error
        if found:
            return found
        if time.monotonic() > ends:
            raise AssertionError(
                f"waited {timeout_s:g} s in vain for {what or look}: {failure or found!r}"
            ) from failure
        time.sleep(_POLL_S)


def unique(prefix: str) -> str:
    """Return a name nobody else has, for objects that are not namespaced."""
    return f"{prefix}-{secrets.token_hex(4)}"


class Engine(msgspec.Struct, frozen=True):
    """A running API server. `admin` may do everything; `lab` is set on the lab alone."""

    name: str
    admin: Api
    lab: lab_cluster.Lab | None = None

    @property
    def is_lab(self) -> bool:
        """Whether this is the lab; for cases that need another way to bring about the same situation, never for
        another outcome."""
        return self.lab is not None


class LabThread:
    """A lab without nodes and operator, access control on, in an event loop of a thread of its own.

    Cluster time is real time, so that what waits (leases, grace periods, back-offs) waits as long as on Kubernetes.
    """

    def __init__(self, *, speed: float = 1.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab", daemon=True)
        self.lab = lab_cluster.Lab(operator=False, rbac=True, speed=speed)

    def __enter__(self) -> Engine:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.lab.__aenter__(), self._loop).result(DEADLINE_S)
        return Engine("lab", Api(self.lab.url, lab_cluster.ADMIN_TOKEN), self.lab)

    def __exit__(self, *_: object) -> None:
        self.lab.check_tasks()
        asyncio.run_coroutine_threadsafe(self.lab.close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


ATTACH = "GROUNDPLANE_CONTRACT_KUBECONFIG"
"""Environment variable: a kubeconfig (server, certificate-authority, token) of a control plane that already runs, used
instead of starting one. For working on a case; everything a case leaves behind is named `contract-...`."""


def attached() -> Engine | None:
    """Return the control plane that `ATTACH` names, if it is set."""
    path = os.environ.get(ATTACH)
    if not path:
        return None
    config = yaml.safe_load(Path(path).read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return Engine("kubernetes", Api(cluster["server"], user["token"], Path(cluster["certificate-authority"])))


def started(control_plane: Any) -> Engine:
    """Return the engine of a `testing.realcluster` control plane."""
    return Engine("kubernetes", Api(control_plane.url, control_plane.token("admin"), Path(control_plane.ca_file)))


class Cleanup:
    """Removes what a case made outside its namespace, last made first."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._paths: list[str] = []

    def add(self, path: str) -> str:
        """Note an object's path for deletion, and return it."""
        self._paths.append(path)
        return path

    def run(self) -> None:
        """Delete everything; what is gone already is fine."""
        for path in reversed(self._paths):
            answer = self._api.delete(path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
            assert answer.status in (200, 202, 404), f"{path}: {answer.status} {answer.message}"


class Cluster:
    """What cases need of an engine beyond requests: names of their own, definitions, callers with few rights."""

    def __init__(self, api: Api, cleanup: Cleanup) -> None:
        self.api = api
        self.cleanup = cleanup

    def namespace(self) -> str:
        """Create a namespace with its default service account; it is deleted after the case."""
        name = unique("contract")
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}}).ok()
        self.cleanup.add(f"/api/v1/namespaces/{name}")
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually(lambda: self.api.get(account).status == 200, what=f"the default service account of {name}")
        return name

    def define(self, definition: Document) -> str:
        """Create a CRD, wait until all its versions are served, and return its name."""
        name = definition["metadata"]["name"]
        self.api.create(CRDS, definition).ok()
        self.cleanup.add(f"{CRDS}/{name}")
        eventually(lambda: self._serves(name), what=f"{name} to be served")
        return str(name)

    def _serves(self, name: str) -> bool:
        found = self.api.get(f"{CRDS}/{name}").ok()
        conditions = {item["type"]: item["status"] for item in found.get("status", {}).get("conditions") or []}
        if conditions.get("Established") != "True":
            return False
        group, plural = found["spec"]["group"], found["spec"]["names"]["plural"]
        served = [item["name"] for item in found["spec"]["versions"] if item["served"]]
        return all(self.api.get(f"/apis/{group}/{version}/{plural}", limit=1).status == 200 for version in served)

    def account(self, namespace: str, name: str = "tester") -> tuple[str, Api]:
        """Create a service account; return its user name and the API as that user sees it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.api.create(path, {"metadata": {"name": name}}).ok()
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200},
        }
        token = self.api.create(f"{path}/{name}/token", request).ok()["status"]["token"]
        return f"system:serviceaccount:{namespace}:{name}", self.api.with_token(token)

    def grant(self, namespace: str, user: str, rules: list[Document], name: str = "granted") -> None:
        """Let a service account's user do something in a namespace, and wait until that has taken effect."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self.api.create(f"{rbac}/roles", {"metadata": {"name": name}, "rules": rules}).ok()
        space, account = user.split(":")[2:]
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "namespace": space, "name": account}],
        }
        self.api.create(f"{rbac}/rolebindings", binding).ok()
        rule = rules[-1]
        asked = {
            "namespace": namespace, "verb": rule["verbs"][0], "group": rule["apiGroups"][0],
            "resource": rule["resources"][0].partition("/")[0], "subresource": rule["resources"][0].partition("/")[2],
            "name": (rule.get("resourceNames") or [""])[0],
        }  # fmt: skip
        eventually(lambda: self.may(user, asked), what=f"{user} to be allowed {asked}")

    def may(self, user: str, attributes: Document) -> bool:
        """Whether a user may do something, as a SubjectAccessReview says."""
        groups = ["system:authenticated", "system:serviceaccounts"]
        spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
        return bool(self.api.create(REVIEWS, {"spec": spec}).ok()["status"]["allowed"])


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
