"""The stage: a fresh control plane with nodes, the policy's CRDs, a namespace and the program's rights."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from groundplane.api import crd
from groundplane.cluster import kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.errors import NotFound
from groundplane.cluster.kinds import Kind
from groundplane.lab.kubelet import hollow
from testing.realcluster.controlplane import ControlPlane

from .programs import NAMESPACE, Program

POLICIES = Path(__file__).resolve().parents[2] / "tests" / "data" / "clusterpolicy"
IN_FLIGHT = 32
NOW = "2026-01-01T00:00:00Z"
SERVED_S = 30.0
SETTLE_S = 2.0
"""After the nodes are made, before a program starts: the API server's caches and etcd come to rest."""

Document = dict[str, Any]


def node(name: str) -> Document:
    """A node with an NVIDIA GPU as its kubelet and node feature discovery show it: about 50 labels, 20 images."""
    return hollow.node(name, NOW)


def node_name(number: int) -> str:
    """The name of one of the nodes that are there from the start."""
    return f"gpu-{number:05d}"


def policy(name: str) -> Document:
    """A ClusterPolicy of ``tests/data/clusterpolicy``, by the file's name without its ending."""
    document: Document = yaml.safe_load((POLICIES / f"{name}.yaml").read_text())
    return document


def rights(program: Program) -> Document:
    """Every right, for the program's user: what is measured is not its RBAC."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"bench-{program.name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": program.user}],
    }


def crds(program: Program) -> Iterator[Document]:
    """The CRDs that the program brings: ours, or those of the peer's folder."""
    if program.crds is None:
        yield crd.cluster_policy_crd()
        return
    for path in sorted(program.crds.glob("*.yaml")):
        yield from filter(None, yaml.safe_load_all(path.read_text()))


class Stage(msgspec.Struct):
    """A control plane that is ready for a program."""

    control_plane: ControlPlane
    client: Client
    program: Program

    @property
    def kubeconfig(self) -> Path:
        """For the program under test."""
        return self.control_plane.kubeconfig(self.program.user)

    @property
    def servers(self) -> list[int]:
        """Process ids of the API server and etcd."""
        return [process.pid for process in self.control_plane.processes.values()]

    async def create_nodes(self, names: list[str]) -> None:
        """Create nodes, many at a time."""
        waiting = list(reversed(names))

        async def worker() -> None:
            while waiting:
                await self.client.create(kinds.NODE, node(waiting.pop()))

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


@contextlib.asynccontextmanager
async def ready(program: Program, nodes: int, document: Mapping[str, Any] | None) -> AsyncIterator[Stage]:
    """A stage with ``nodes`` nodes and a policy (``None`` for none); it ends with the context."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
    with ControlPlane(controllers=False, scheduler=False, audit=True, users={program.user: groups}) as control_plane:
        config = Config.from_kubeconfig(control_plane.kubeconfig())
        async with Client(config, user_agent="bench-peer", max_in_flight=IN_FLIGHT) as client:
            stage = Stage(control_plane, client, program)
            await client.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
            await client.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "default"}}, NAMESPACE)
            await client.create(kinds.CLUSTER_ROLE_BINDING, rights(program))
            for each in crds(program):
                await client.create(kinds.CRD, each)
                await _served(client, each)
            await stage.create_nodes([node_name(number) for number in range(nodes)])
            if document is not None:
                await client.create(kinds.CLUSTER_POLICY, document)
            await asyncio.sleep(SETTLE_S)
            yield stage


async def _served(client: Client, document: Document) -> None:
    """Wait until the API server serves a CRD's kind: it does so a moment after it has accepted the CRD."""
    spec = document["spec"]
    kind = Kind(spec["group"], spec["versions"][0]["name"], spec["names"]["kind"], spec["names"]["plural"], False)
    async with asyncio.timeout(SERVED_S):
        while True:
            try:
                await client.page(kind, limit=1)
            except NotFound:
                await asyncio.sleep(0.05)
            else:
                return
