"""What the operator's benchmark runs against: an API server alone, or the whole lab with hollow nodes.

An API server alone (no controllers, no kubelets) is what NVIDIA's operator was measured against, and what a bare client
can be compared on: nothing else takes the server's time. Both count the patches of every node as they are committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml

from groundplane.api import crd, names
from groundplane.lab import api as lab_api
from groundplane.lab import cluster, faults, http, resources
from groundplane.lab.kubelet import hollow

POLL_S = 0.01
Requests = Counter[tuple[str, str]]
"""How many requests, by (verb, resource) as the API server's log has them."""


class Nodes:
    """The nodes of an API server, watched at commit: which are labelled, when, and how often each was written."""

    def __init__(self, api: lab_api.Api) -> None:
        self.labelled: dict[str, float] = {}
        self.writes: Counter[str] = Counter()
        api.on_change(resources.NODES, self._changed)

    def _changed(self, _type: str, new: dict[str, Any], old: dict[str, Any] | None) -> None:
        name, labels = new["metadata"]["name"], new["metadata"].get("labels") or {}
        if old is not None and (old["metadata"].get("labels") or {}) != labels:
            self.writes[name] += 1
        if name not in self.labelled and labels.get(names.DEPLOY_DEVICE_PLUGIN):
            self.labelled[name] = time.monotonic()


def count(log: faults.Faults, user_agent: str) -> Requests:
    """The requests of one client so far."""
    return Counter((seen.verb, seen.resource) for seen in log.requests if seen.user_agent.startswith(user_agent))


async def until(done: Callable[[], bool], check: Callable[[], None], limit_s: float, what: str) -> None:
    """Wait until ``done``; ``check`` raises when that can no longer happen."""
    deadline = time.monotonic() + limit_s
    while not done():
        check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {limit_s:g} s")
        await asyncio.sleep(POLL_S)


class ApiServer:
    """An API server with hollow nodes on which nothing runs."""

    def __init__(self, nodes: int, policy: dict[str, Any] | None) -> None:
        self.api = lab_api.Api()
        self.faults = faults.Faults()
        self.url = ""
        self.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, crd.cluster_policy_crd())
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cluster.OPERATOR_NAMESPACE}}
        self.api.create(resources.NAMESPACES, namespace)
        now = "2026-01-01T00:00:00Z"
        for number in range(nodes):
            self.api.create(resources.NODES, hollow.node(f"hollow-{number:05d}", now), manager="kubelet")
        self.nodes = Nodes(self.api)
        if policy is not None:
            self.api.create(self.api.resource("clusterpolicies", group=names.GROUP), policy)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the context lasts."""
        server = await http.serve(self.api, faults=self.faults)
        self.url = server.url
        try:
            yield
        finally:
            await server.close()


def kubeconfig(url: str, path: Path) -> Path:
    """Write a kubeconfig for an API server without authentication."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "lab", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }
    path.write_text(yaml.safe_dump(document))
    return path
