"""A small API server for the operator's tests: real HTTP, documents in memory, faults on demand, every request counted.

It knows no kinds and validates nothing (the lab's API server does); it has what the operator's loops need: lists with
selectors, watches, merge and apply patches, preconditions, and a DaemonSet controller that is told what to say.
"""

import asyncio
import contextlib
import copy
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

Object = dict[str, Any]
Fault = Callable[[str, str, str], "int | str | None"]
"""(verb, plural, name) -> HTTP status to answer, "reset" to drop the connection, or None."""

RESOURCES = {
    "nodes": ("v1", "Node"),
    "namespaces": ("v1", "Namespace"),
    "pods": ("v1", "Pod"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "services": ("v1", "Service"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "events": ("v1", "Event"),
    "daemonsets": ("apps/v1", "DaemonSet"),
    "controllerrevisions": ("apps/v1", "ControllerRevision"),
    "roles": ("rbac.authorization.k8s.io/v1", "Role"),
    "rolebindings": ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    "clusterroles": ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    "clusterrolebindings": ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    "runtimeclasses": ("node.k8s.io/v1", "RuntimeClass"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "customresourcedefinitions": ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    "clusterpolicies": ("nvidia.com/v1", "ClusterPolicy"),
    "gpuclusters": ("nvidia.com/v1alpha1", "GPUCluster"),
    "servicemonitors": ("monitoring.coreos.com/v1", "ServiceMonitor"),
    "prometheusrules": ("monitoring.coreos.com/v1", "PrometheusRule"),
    "securitycontextconstraints": ("security.openshift.io/v1", "SecurityContextConstraints"),
    "clusterversions": ("config.openshift.io/v1", "ClusterVersion"),
    "proxies": ("config.openshift.io/v1", "Proxy"),
    "imagestreams": ("image.openshift.io/v1", "ImageStream"),
}


class FakeApi:
    """The server. ``auto`` makes the DaemonSet controller report every DaemonSet as rolled out on all GPU nodes."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.writes: list[tuple[str, str, str]] = []
        self.bodies: list[Any] = []
        self.fault: Fault = lambda _verb, _plural, _name: None
        self.auto = True
        self.forbidden: dict[tuple[str, str], str] = {}
        """(verb, plural) -> the words in which it is refused."""
        self.delay_s = 0.0
        self.url = ""
        self._version = itertools.count(100)
        self._watches: dict[asyncio.Queue[bytes | None], tuple[str, str, Callable[[Object], bool]]] = {}

    # --- for tests ----------------------------------------------------------------------------------------------------

    def add(self, plural: str, name: str, namespace: str = "", **rest: Any) -> Object:
        """Put an object into the store."""
        meta = {"name": name, **({"namespace": namespace} if namespace else {}), **rest.pop("metadata", {})}
        return self.store(plural, {"metadata": meta, **copy.deepcopy(rest)})

    def get(self, plural: str, name: str, namespace: str = "") -> Object | None:
        return self.objects.get((plural, namespace, name))

    def all(self, plural: str) -> dict[str, Object]:
        """Every object of a resource, by name."""
        return {key[2]: obj for key, obj in self.objects.items() if key[0] == plural}

    def edit(self, plural: str, name: str, change: Callable[[Object], None], namespace: str = "") -> None:
        """Change an object as another client would."""
        obj = copy.deepcopy(self.objects[plural, namespace, name])
        change(obj)
        self.store(plural, obj)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object, and with it what it owns."""
        obj = self.objects.pop((plural, namespace, name), None)
        if obj is None:
            return
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(next(self._version))
        self._tell("DELETED", plural, obj)
        for key, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or []
            if owners and all(owner["uid"] == obj["metadata"]["uid"] for owner in owners):
                self.remove(key[0], key[2], key[1])

    def forbid(self, verb: str, plural: str, words: str) -> None:
        """Refuse a kind of request, as RBAC does."""
        self.forbidden[verb, plural] = words

    def drop_watches(self) -> None:
        """End every watch, as a restarted server does."""
        for queue in self._watches:
            queue.put_nowait(None)

    def forget_writes(self) -> None:
        self.requests.clear()
        self.writes.clear()

    # --- the store ----------------------------------------------------------------------------------------------------

    def store(self, plural: str, obj: Object) -> Object:
        meta = obj["metadata"]
        key = (plural, meta.get("namespace", ""), meta["name"])
        old = self.objects.get(key)
        version = str(next(self._version))
        meta["resourceVersion"] = version
        meta["uid"] = old["metadata"]["uid"] if old else meta.get("uid", f"uid-{version}")
        meta["creationTimestamp"] = (
            old["metadata"]["creationTimestamp"] if old else meta.get("creationTimestamp", "2026-01-01T00:00:00Z")
        )
        generation = old["metadata"].get("generation", 1) if old else 0
        changed = old is None or {k: v for k, v in old.items() if k not in ("metadata", "status")} != {
            k: v for k, v in obj.items() if k not in ("metadata", "status")
        }
        meta["generation"] = generation + bool(changed)
        obj["apiVersion"], obj["kind"] = RESOURCES[plural]
        self.objects[key] = obj
        self._tell("MODIFIED" if old else "ADDED", plural, obj)
        if plural == "daemonsets" and self.auto:
            self._roll_out(obj)
        return obj

    def _roll_out(self, obj: Object) -> None:
        """Report the DaemonSet as rolled out, with a revision and a pod a node where its strategy is OnDelete."""
        meta = obj["metadata"]
        if (obj.get("status") or {}).get("observedGeneration") == meta["generation"] or "deletionTimestamp" in meta:
            return
        selector = obj["spec"]["template"]["spec"].get("nodeSelector", {})
        nodes = [
            node
            for node in self.all("nodes").values()
            if selector.items() <= (node["metadata"].get("labels") or {}).items()
        ]
        count, revision = len(nodes), str(meta["generation"])
        owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"]}]
        self.add(
            "controllerrevisions",
            f"{meta['name']}-r{revision}",
            meta["namespace"],
            metadata={"ownerReferences": owner},
            revision=int(revision),
        )
        for node in nodes if obj["spec"].get("updateStrategy", {}).get("type") == "OnDelete" else []:
            labels = {**obj["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": f"r{revision}"}
            self.add(
                "pods",
                f"{meta['name']}-{node['metadata']['name']}",
                meta["namespace"],
                metadata={"labels": labels, "ownerReferences": owner},
                status={"phase": "Running", "containerStatuses": [{"ready": True}]},
            )
        new = copy.deepcopy(obj)
        new["status"] = {
            "observedGeneration": meta["generation"],
            "desiredNumberScheduled": count,
            "updatedNumberScheduled": count,
            "numberAvailable": count,
        }
        self.store("daemonsets", new)

    def _tell(self, event: str, plural: str, obj: Object) -> None:
        line = json.dumps({"type": event, "object": obj}).encode() + b"\n"
        for queue, (of, namespace, matches) in self._watches.items():
            if of == plural and namespace in ("", obj["metadata"].get("namespace", "")) and matches(obj):
                queue.put_nowait(line)

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator["FakeApi"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.drop_watches()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name = parts[0], parts[1] if len(parts) > 1 else ""
        sub = parts[2] if len(parts) > 2 else ""
        watching = request.query.get("watch") == "true"
        verb = "watch" if watching else request.method.lower()
        self.requests[verb, plural] += 1
        if self.delay_s and not watching:
            await asyncio.sleep(self.delay_s)
        fault = self.fault(verb, plural, name)
        if fault == "reset" and request.transport is not None:
            request.transport.close()
            return web.Response()
        if isinstance(fault, int):
            return _status(fault, "told to fail")
        if (verb, plural) in self.forbidden:
            return _status(403, self.forbidden[verb, plural])
        if request.method == "GET":
            return await (self._watch if watching else self._read)(request, plural, namespace, name)
        return self._write(request.method, plural, namespace, name, sub, await request.read(), request)

    async def _read(self, request: web.Request, plural: str, namespace: str, name: str) -> web.StreamResponse:
        if name:
            found = self.get(plural, name, namespace)
            return web.json_response(found) if found else _status(404, f"{plural} {name} not found")
        matches = _selects(request)
        items = [
            obj
            for (of, space, _), obj in self.objects.items()
            if of == plural and namespace in ("", space) and matches(obj)
        ]
        return web.json_response({"metadata": {"resourceVersion": str(next(self._version))}, "items": items})

    async def _watch(self, request: web.Request, plural: str, namespace: str, _name: str) -> web.StreamResponse:
        response = web.StreamResponse()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        matches, since = _selects(request), int(request.query["resourceVersion"])
        for (of, space, _), obj in self.objects.items():
            newer = int(obj["metadata"]["resourceVersion"]) > since
            if newer and of == plural and namespace in ("", space) and matches(obj):
                queue.put_nowait(json.dumps({"type": "MODIFIED", "object": obj}).encode() + b"\n")
        self._watches[queue] = (plural, namespace, matches)
        try:
            await response.prepare(request)
            while (line := await queue.get()) is not None:
                await response.write(line)
        except ConnectionError:
            return response
        finally:
            self._watches.pop(queue, None)
        return response

    def _write(
        self, method: str, plural: str, namespace: str, name: str, sub: str, body: bytes, request: web.Request
    ) -> web.Response:
        sent = json.loads(body) if body else {}
        name = name or sent["metadata"]["name"]
        live = self.get(plural, name, namespace)
        self.writes.append((method, plural, name))
        self.bodies.append(sent)
        applying = request.content_type == "application/apply-patch+yaml"
        if method == "POST" and live:
            return _status(409, f"{plural} {name} exists", "AlreadyExists")
        if method != "POST" and not live and not applying:
            return _status(404, f"{plural} {name} not found")
        wanted = (sent.get("metadata") or {}).get("resourceVersion") if method != "DELETE" else None
        if wanted and live and wanted != live["metadata"]["resourceVersion"]:
            return _status(409, f"{plural} {name} has changed")
        if method == "DELETE":
            return self._delete(plural, name, namespace, sent, live or {})
        if method == "PATCH" and not applying:
            sent = _merge(live, sent if sub != "status" else {"status": sent.get("status")})
        elif live:
            sent = _applied(live, sent)
        if namespace:
            sent["metadata"]["namespace"] = namespace
        return web.json_response(self.store(plural, copy.deepcopy(sent)))

    def _delete(self, plural: str, name: str, namespace: str, options: Object, live: Object) -> web.Response:
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != live["metadata"]["uid"]:
            return _status(409, "another uid")
        if options.get("propagationPolicy") == "Foreground":
            self.edit(
                plural, name, lambda obj: obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"), namespace
            )
        else:
            self.remove(plural, name, namespace)
        return web.json_response({"kind": "Status", "status": "Success"})


def _selects(request: web.Request) -> Callable[[Object], bool]:
    labels = [part.partition("=") for part in request.query.get("labelSelector", "").split(",") if part]
    fields = request.query.get("fieldSelector", "")
    name = fields.removeprefix("metadata.name=") if fields.startswith("metadata.name=") else ""
    stopped = fields.startswith("status.phase!=Running")

    def matches(obj: Object) -> bool:
        have = obj["metadata"].get("labels") or {}
        chosen = all(have.get(key) == value if equals else key in have for key, equals, value in labels)
        if stopped and obj.get("status", {}).get("phase") == "Running":
            return False
        return chosen and name in ("", obj["metadata"]["name"])

    return matches


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    base = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = _merge(base.get(key), value)
    return base


def _applied(live: Object, sent: Object) -> Object:
    """Apply by a manager that owns everything but what the server and others added to metadata, and status."""
    meta = {**live["metadata"], **sent["metadata"]}
    for field in ("labels", "annotations"):
        meta[field] = {**(live["metadata"].get(field) or {}), **(sent["metadata"].get(field) or {})}
    return {**sent, "metadata": meta, **({"status": live["status"]} if "status" in live else {})}


def _status(code: int, message: str, reason: str | None = None) -> web.Response:
    reasons = {404: "NotFound", 409: "Conflict", 422: "Invalid", 429: "TooManyRequests", 403: "Forbidden"}
    body = {"kind": "Status", "code": code, "message": message, "reason": reason or reasons.get(code, "InternalError")}
    return web.json_response(body, status=code)
