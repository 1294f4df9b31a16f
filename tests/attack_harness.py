"""A lab and an operator under attack: what the tests of bad input share.

The API server, controllers and nodes are the lab's, the operator is the shipped one and talks to it over HTTP, on the
lab's fast clock. Everything is judged by what a person could see: conditions, events, labels, objects, and the API
server's log of requests.
"""

import asyncio
import contextlib
import copy
import os
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import yaml

from groundplane.api import names
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.lab import http, resources
from groundplane.lab.cluster import Lab
from groundplane.lab.faults import Request, Rule
from groundplane.lab.kubelet import hollow
from groundplane.lab.resources import Resource
from groundplane.operator.process import Operator
from groundplane.operator.settings import Settings

Document = dict[str, Any]
NS = "gpu-operator"
AGENT = "attacked-operator"
POLICY = "cluster-policy"
DATA = Path(__file__).parent / "data" / "clusterpolicy"
PATIENCE_S = float(os.environ.get("ATTACK_PATIENCE_S", "20"))
"""How long a condition that only a broken operator misses is waited for, in real seconds."""
SPEED = 120.0


def policy_document(name: str = "26.7.0-default") -> Document:
    document: Document = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    return document


class Every(Rule, kw_only=True):
    """A rule for each ``nth`` request it is about, ``times`` of them."""

    nth: int
    seen: int = 0

    def matches(self, request: Request) -> bool:
        if not super().matches(request):
            return False
        self.seen += 1
        return self.seen % self.nth == 0


class Trap(Rule, kw_only=True):
    """A rule that fails nothing: it does something at the worst moment, once."""

    then: Callable[[], None]

    def matches(self, request: Request) -> bool:
        if super().matches(request):
            self.times = 0
            self.then()
        return False


class Attack:
    """The lab, and the operator that is attacked in it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.api = lab.api
        self.operator: Operator | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None

    @property
    def policies(self) -> Resource:
        """ClusterPolicies, as the CRD defines them now."""
        return self.api.resource("clusterpolicies", group=names.GROUP)

    # --- what is in the cluster ---------------------------------------------------------------------------------------

    def node(self, name: str, *, gpu: bool = True, labels: dict[str, str] | None = None, **meta: Any) -> None:
        """Create a Node that no kubelet serves."""
        made = hollow.node(name, self.lab.clock.timestamp())
        made["metadata"]["labels"] = {**(made["metadata"]["labels"] if gpu else {}), **(labels or {})}
        made["metadata"]["labels"].pop("kubernetes.io/hostname", None)
        made["metadata"] |= meta
        self.api.create(resources.NODES, made)

    def policy(self, document: Document | None = None, name: str = POLICY, **sections: Document) -> None:
        """Create a ClusterPolicy: NVIDIA's default one with the fields of ``sections`` changed, or left out (None)."""
        made = copy.deepcopy(document or policy_document())
        made["metadata"]["name"] = name
        for section, values in sections.items():
            merged = {**made["spec"].get(section, {}), **values}
            made["spec"][section] = {key: value for key, value in merged.items() if value is not None}
        self.api.create(self.policies, made)

    def edit(self, change: Callable[[Document], object], name: str = POLICY) -> None:
        """Edit a ClusterPolicy's spec as a person does."""
        self.change(self.policies, name, lambda obj: change(obj["spec"]))

    def change(self, res: Resource, name: str, change: Callable[[Document], object], ns: str | None = None) -> None:
        """Edit any object."""
        obj = copy.deepcopy(self.api.get(res, name, ns))
        change(obj)
        self.api.update(res, obj, ns=ns)

    def found(self, res: Resource, name: str, ns: str | None = NS) -> Document | None:
        found: Document | None = self.api.find(res, name, ns if res.namespaced else None)
        return found

    def labels(self, node: str) -> dict[str, str]:
        return dict((self.found(resources.NODES, node) or {})["metadata"].get("labels") or {})

    def labelled(self, *nodes: str) -> bool:
        return all(self.labels(node).get(names.GPU_PRESENT) == "true" for node in nodes)

    def status(self, name: str = POLICY) -> Document:
        return (self.found(self.policies, name) or {}).get("status") or {}

    def condition(self, kind: str = "Error", name: str = POLICY) -> Document:
        return next((c for c in self.status(name).get("conditions") or () if c["type"] == kind), {})

    @property
    def message(self) -> str:
        """The message of the condition ``Error``, empty when it is not true."""
        condition = self.condition()
        return str(condition["message"]) if condition.get("status") == "True" else ""

    def events(self, reason: str) -> list[Document]:
        """Events of the operator with a reason."""
        found = self.api.list(resources.EVENTS)["items"]
        return [event for event in found if event["reason"] == reason and "gpu-operator" in str(event["source"])]

    def daemon_sets(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.api.list(resources.DAEMON_SETS, NS)["items"]}

    # --- the operator -------------------------------------------------------------------------------------------------

    def start(self, *, token: str | None = None, request_timeout_s: float = 30.0, **settings: Any) -> None:
        assert self._task is None, "an operator is running"
        self._stop = asyncio.Event()
        chosen = {"namespace": NS, "metrics_address": "", "health_address": "", "release": self.lab.release, **settings}
        self._task = asyncio.create_task(self._run(Settings(**chosen), token, request_timeout_s))

    async def _run(self, settings: Settings, token: str | None, timeout_s: float) -> None:
        clock = self.lab.clock
        config = Config(server=self.lab.url, token=token)
        retry = Retry(attempts=3, first_s=0.2, max_s=1.0)
        options: dict[str, Any] = {"max_in_flight": 64, "retry": retry, "sleep": clock.sleep}
        async with Client(config, user_agent=AGENT, request_timeout_s=timeout_s, **options) as client:
            self._client = client
            self.operator = Operator(settings, client, clock=clock)
            await self.operator.run(self._stop)

    async def stop(self) -> None:
        """As SIGTERM does."""
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    async def kill(self) -> None:
        """As SIGKILL does, as far as a task can: no last words over the connections."""
        if self._task is not None:
            task, self._task = self._task, None
            if self._client is not None:
                await self._client.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def check(self) -> None:
        """Raise what ended the operator or a part of the lab."""
        self.lab.check()
        if self._task is not None and self._task.done():
            self._task.result()
            raise AssertionError("the operator ended by itself")

    async def outcome(self) -> BaseException | None:
        """Wait until the operator has ended by itself; what it raised."""
        assert self._task is not None
        task, self._task = self._task, None
        async with asyncio.timeout(PATIENCE_S):
            return (await asyncio.gather(task, return_exceptions=True))[0]

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """The API server is gone meanwhile, and comes back at the same address."""
        lab = self.lab
        assert lab._server is not None
        port = int(lab.url.rpartition(":")[2])
        await lab._server.close()
        try:
            yield
        finally:
            lab._server = await http.serve(lab.api, port=port, clock=lab.clock, nodes=lab._pool, faults=lab.faults)

    # --- requests -----------------------------------------------------------------------------------------------------

    def fault(self, verb: str, resource: str, answer: int | str, **rest: Any) -> Rule:
        """Make requests of the operator fail, all of them unless ``times`` says how many."""
        return self.lab.faults.add(Rule(verb, resource, answer=answer, user_agent=AGENT, **{"times": None, **rest}))

    def trap(self, verb: str, resource: str, name: str, then: Callable[[], None]) -> None:
        """Have ``then`` called when the first such request of the operator has arrived and is not yet carried out."""
        self.lab.faults.add(Trap(verb, resource, name, user_agent=AGENT, then=then))

    def forget(self) -> None:
        self.lab.faults.requests.clear()

    def requests(self) -> list[Request]:
        """The operator's requests but watches, the lease and events."""
        return [
            item
            for item in self.lab.faults.requests
            if AGENT in item.user_agent and item.verb != "watch" and item.resource not in ("leases", "events")
        ]

    def writes(self, resource: str = "*") -> list[tuple[str, str, str]]:
        return [
            (item.verb, item.resource, item.name)
            for item in self.requests()
            if item.verb not in ("get", "list") and resource in ("*", item.resource)
        ]

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def until(self, what: Callable[[], Any], why: str = "") -> None:
        """Wait until ``what()`` is true."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not what():
                    self.check()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{why or 'never came true'}; status is {self.status()}") from None

    async def failed(self, *parts: str) -> None:
        """Wait for a condition and an event that say what is wrong."""
        await self.until(lambda: self.message and all(part in self.message for part in parts), f"no word of {parts}")
        assert self.condition()["reason"] == "ReconcileFailed"
        assert self.condition("Ready")["status"] == "False"
        assert self.status()["state"] == "notReady"
        await self.until(
            lambda: any(
                event["type"] == "Warning" and all(part in event["message"] for part in parts)
                for event in self.events("ReconcileFailed")
            ),
            f"no event about {parts}",
        )

    async def ready(self, name: str = POLICY) -> None:
        await self.until(lambda: self.status(name).get("state") == "ready")
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until the operator made no request for nine seconds of its clock, and has none to make."""
        before = -1
        while before != (before := len(self.requests())) or (self.operator is not None and not self.operator.idle):
            await self.lab.clock.sleep(9.0)
            self.check()

    async def pace(self, cluster_seconds: float = 30.0) -> list[Request]:
        """The operator's requests in so many seconds of its clock."""
        self.forget()
        await self.lab.clock.sleep(cluster_seconds)
        self.check()
        return self.requests()

    async def paced(self, resources: Collection[str], cluster_seconds: float = 30.0) -> list[Request]:
        """The same once only these resources are asked for; a busy machine may take a while to get there."""
        for _ in range(20):
            found = await self.pace(cluster_seconds)
            if {item.resource for item in found} <= set(resources):
                return found
        raise AssertionError(f"other resources than {sorted(resources)} are asked for all the time: {found}")


@contextlib.asynccontextmanager
async def attack(nodes: int = 3, **options: Any) -> AsyncIterator[Attack]:
    """A lab with so many GPU nodes whose pods run at once, ``hollow-00000`` and on; the operator is not started."""
    async with Lab(hollow=nodes, operator=False, **{"speed": SPEED, **options}) as lab:
        attacked = Attack(lab)
        await attacked.until(lambda: len(lab.api.list(resources.NODES)["items"]) == nodes)
        try:
            yield attacked
        finally:
            await attacked.kill()


def hollow_names(count: int) -> list[str]:
    return [f"hollow-{number:05d}" for number in range(count)]


def owner_of(uid: str) -> list[Document]:
    """ownerReferences of an object that another controller made."""
    return [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "controller": True}]
