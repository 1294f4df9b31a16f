"""One program's run: cold, ready, quiet, and single nodes that join. What it did is seen from outside only."""

import asyncio
import contextlib
import datetime
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import ClassVar

import msgspec

from bench import process
from groundplane.api import names
from groundplane.cluster import kinds
from groundplane.cluster.client import Client
from groundplane.cluster.views import Meta
from testing.realcluster.process import with_parent

from . import audit, limits, stage
from .daemonsets import DaemonSets
from .programs import NAMESPACE, Program

LABELLED = names.DEPLOY_OPERATOR_VALIDATOR
"""A node that carries this label has been labelled: each program writes all labels of a node at once."""
LABELLED_S = 900.0
READY_S = 900.0
SETTLE_S = 10.0
"""Between ready and the quiet time: leases, events and the watches' echoes."""
JOINS = 11
JOIN_S = 60.0
BETWEEN_JOINS_S = 0.5
POLL_S = 0.005
READY_POLL_S = 0.1


class Failed(Exception):  # noqa: N818
    """The race cannot go on: a program has ended, or does not get there."""


class Labelling(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the program's start: to its first request, to its first write of a node, to the last node's labels.

    CPU seconds until then, of the program and of the API server with etcd.
    """

    first_request_s: float | None
    first_patch_s: float | None
    labelled_s: float
    cpu_s: float
    server_cpu_s: float

    @property
    def asking_s(self) -> float:
        """From the first request to the last label."""
        return self.labelled_s - (self.first_request_s or 0.0)


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. ``cold`` are requests until ``SETTLE_S`` after ready, ``quiet`` those of the quiet time after it."""

    labelling: Labelling
    ready_s: float
    cold: audit.Requests
    quiet: audit.Requests
    joins_s: list[float]
    join_writes: int
    peak_mib: float
    cpu_s: float

    @property
    def join_s(self) -> float:
        """The middle of the joins."""
        return statistics.median(self.joins_s)


class LabelledView(msgspec.Struct, frozen=True):
    """A node, asked for without spec and status: the server leaves them out."""

    metadata_only: ClassVar[bool] = True
    metadata: Meta = Meta()


class Nodes:
    """Which nodes are labelled, since when, and with what: by a watch that hears of no other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.labels: dict[str, dict[str, str]] = {}
        self.since: dict[str, float] = {}
        self.changed: Callable[[], None] = lambda: None

    async def run(self, version: str) -> None:
        """Watch from a version of the nodes on, until cancelled."""
        while True:
            events = self._client.watch(kinds.NODE, resource_version=version, labels=LABELLED, view=LabelledView)
            async with contextlib.aclosing(events):
                async for event in events:
                    version = event.resource_version or version
                    if event.object is not None:
                        self._heard(event.object)

    def _heard(self, node: LabelledView) -> None:
        name = node.metadata.name
        self.since.setdefault(name, time.monotonic())
        self.labels[name] = node.metadata.labels
        self.changed()


async def until(done: Callable[[], bool], check: Callable[[], None], limit_s: float, what: str) -> None:
    """Wait until ``done``; ``check`` raises when that cannot be any more. Raises :class:`Failed` when it is late."""
    deadline = time.monotonic() + limit_s
    while not done():
        check()
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {limit_s:g} s")
        await asyncio.sleep(POLL_S)


class Run:
    """One program on its stage. Use :func:`running`."""

    def __init__(
        self,
        at: stage.Stage,
        seen: Nodes,
        daemon_sets: DaemonSets,
        child: process.Child,
        began: float,
        tasks: Sequence[asyncio.Task[None]],
    ) -> None:
        self._at = at
        self._seen = seen
        self._daemon_sets = daemon_sets
        self._child = child
        self._tasks = tasks
        self._began = began
        self._began_wall = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=time.monotonic() - began)
        self._server_cpu_s = self._servers_cpu()
        self._log = audit.Log(at.control_plane.audit_log, at.program.user)

    def _check(self) -> None:
        """Raise :class:`Failed` if the program has ended, or what a part of the harness has failed with."""
        try:
            self._child.check()
        except RuntimeError as error:
            raise Failed(str(error)) from error
        for task in self._tasks:
            if task.done():
                task.result()

    def _servers_cpu(self) -> float:
        return sum(map(process.cpu_of, self._at.servers))

    async def label(self, nodes: int) -> tuple[Labelling, list[audit.Event]]:
        """Until ``nodes`` nodes are labelled; also the program's requests until then."""
        await until(lambda: len(self._seen.since) >= nodes, self._check, LABELLED_S, f"{nodes} nodes labelled")
        cpu_s, server_cpu_s = self._child.cpu_s(), self._servers_cpu() - self._server_cpu_s
        found = self._log.new()
        return Labelling(
            first_request_s=self._since_start(audit.first(found)),
            first_patch_s=self._since_start(
                audit.first(found, "patch", "nodes") or audit.first(found, "update", "nodes")
            ),
            labelled_s=max(self._seen.since.values()) - self._began,
            cpu_s=cpu_s,
            server_cpu_s=server_cpu_s,
        ), found

    def _since_start(self, moment: datetime.datetime | None) -> float | None:
        return (moment - self._began_wall).total_seconds() if moment else None

    async def whole(self, nodes: int, quiet_s: float) -> Whole:
        """All phases."""
        labelling, first = await self.label(nodes)
        self._daemon_sets.begin()
        await self._ready()
        ready_s = time.monotonic() - self._began
        await asyncio.sleep(SETTLE_S)
        cold = audit.count([*first, *self._log.new()])
        await asyncio.sleep(quiet_s)
        quiet = audit.count(self._log.new())
        joins = [await self._join(f"late-{number:03d}") for number in range(JOINS)]
        await asyncio.sleep(1.0)
        writes = audit.node_writes(self._log.new())
        self._check()
        return Whole(
            labelling=labelling,
            ready_s=ready_s,
            cold=cold,
            quiet=quiet,
            joins_s=joins,
            join_writes=max(writes[f"late-{number:03d}"] for number in range(JOINS)),
            peak_mib=self._child.memory_mib("VmHWM"),
            cpu_s=self._child.cpu_s(),
        )

    async def _ready(self) -> None:
        """Until the policy says that it is ready."""
        deadline = time.monotonic() + READY_S
        while True:
            self._check()
            found = (await self._at.client.list(kinds.CLUSTER_POLICY)).items
            states = [policy.get("status") or {} for policy in found]
            if found and all(state.get("state") == "ready" for state in states):
                return
            if time.monotonic() > deadline:
                raise Failed(f"the policy is not ready after {READY_S:g} s: {states}")
            await asyncio.sleep(READY_POLL_S)

    async def _join(self, name: str) -> float:
        """Seconds from asking for a node's creation until its labels are seen."""
        began = time.monotonic()
        await self._at.create_nodes([name])
        await until(lambda: name in self._seen.since, self._check, JOIN_S, f"{name} labelled")
        await asyncio.sleep(BETWEEN_JOINS_S)
        return self._seen.since[name] - began


@contextlib.asynccontextmanager
async def running(program: Program, nodes: int, policy: str, limit_mib: int) -> AsyncIterator[Run]:
    """A program that has just been started on a fresh stage; it is ended with the context."""
    async with stage.ready(program, nodes, stage.policy(policy)) as at:
        seen = Nodes(at.client)
        daemon_sets = DaemonSets(at.client, NAMESPACE, seen.labels)
        seen.changed = daemon_sets.nodes_changed
        version = (await at.client.page(kinds.NODE, limit=1, view=LabelledView)).resource_version
        tasks = [asyncio.create_task(seen.run(version)), asyncio.create_task(daemon_sets.run())]
        environment = {**program.environment, "KUBECONFIG": str(at.kubeconfig)}
        with limits.command(program.argv, limit_mib if program.limited else 0) as argv:
            began = time.monotonic()
            child = process.Child(with_parent(argv), environment)
            try:
                yield Run(at, seen, daemon_sets, child, began, tasks)
            finally:
                await child.stop()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


async def label(program: Program, nodes: int, policy: str, limit_mib: int) -> Labelling:
    """Have a program label all nodes of a fresh control plane."""
    async with running(program, nodes, policy, limit_mib) as run:
        return (await run.label(nodes))[0]


async def whole(program: Program, nodes: int, policy: str, limit_mib: int, quiet_s: float) -> Whole:
    """A whole run on a fresh control plane."""
    async with running(program, nodes, policy, limit_mib) as run:
        return await run.whole(nodes, quiet_s)
