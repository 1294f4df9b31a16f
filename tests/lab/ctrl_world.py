"""A small cluster for tests of controllers and scheduler: the real Api, controllers and scheduler, a tiny kubelet."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self

from groundplane.lab import resources
from groundplane.lab.api import Api
from groundplane.lab.clock import LabClock
from groundplane.lab.controllers import Controllers
from groundplane.lab.scheduler import Scheduler
from groundplane.lab.status import StatusError

Doc = dict[str, Any]
PATIENCE_S = 20.0


class Kubelet:
    """Brings bound pods to `behaviour(pod)` ("Running", "Failed", "Succeeded" or "" for nothing), and ends them."""

    def __init__(self, api: Api, clock: LabClock) -> None:
        self.api, self.clock = api, clock
        self.behaviour: Callable[[Doc], str] = lambda pod: "Running"
        self.ends = True
        self._dirty: dict[tuple[str, str], None] = {}
        self._wake = asyncio.Event()
        self._address = 0
        api.on_change(resources.PODS, self._changed)

    def _changed(self, kind: str, new: Doc, old: Doc | None) -> None:
        if kind != "DELETED" and new["spec"].get("nodeName"):
            self._dirty[new["metadata"]["namespace"], new["metadata"]["name"]] = None
            self._wake.set()

    @property
    def idle(self) -> bool:
        return not self._dirty

    def look_again(self) -> None:
        for pod in self.api.list(resources.PODS)["items"]:
            self._changed("MODIFIED", pod, None)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                key = next(iter(self._dirty))
                del self._dirty[key]
                with contextlib.suppress(StatusError):
                    self._serve(*key)
                await asyncio.sleep(0)

    def _serve(self, namespace: str, name: str) -> None:
        pod = self.api.get(resources.PODS, name, namespace)
        if pod["metadata"].get("deletionTimestamp"):
            if self.ends:
                self.api.delete(resources.PODS, name, namespace, grace_period_s=0)
            return
        phase = self.behaviour(pod)
        status = pod.get("status") or {}
        if not phase or status.get("phase") in (phase, "Failed", "Succeeded"):
            return
        ready = "True" if phase == "Running" else "False"
        now = self.clock.timestamp()
        conditions = [each for each in status.get("conditions") or () if each["type"] != "Ready"]
        conditions.append({"type": "Ready", "status": ready, "lastTransitionTime": now})
        self._address += 1
        address = f"10.0.{self._address // 250}.{self._address % 250 + 1}"
        status = {**status, "phase": phase, "conditions": conditions, "podIP": address, "podIPs": [{"ip": address}]}
        self.api.update(resources.PODS, {**pod, "status": status}, subresource="status")


class World:
    """Everything running; `settle` waits until nobody has work at hand, `until` for something timers bring about."""

    def __init__(self, *, speed: float = 1000.0) -> None:
        self.clock = LabClock(speed)
        self.api = Api(self.clock, seed=1)
        self.controllers = Controllers(self.api, self.clock, root_ca="CA")
        self.scheduler = Scheduler(self.api, self.clock)
        self.kubelet = Kubelet(self.api, self.clock)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for each in (self.controllers, self.scheduler, self.kubelet):
            self._tasks.append(asyncio.create_task(each.run()))
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def idle(self) -> bool:
        return self.controllers.idle and self.scheduler.idle and self.kubelet.idle

    async def settle(self) -> None:
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.idle else 0

    async def until(self, holds: Callable[[], Any], what: str = "") -> None:
        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.002)

        try:
            await asyncio.wait_for(wait(), PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"did not come about: {what or holds}") from None
        await self.settle()

    # --- making -------------------------------------------------------------------------------------------------------

    def create(self, resource: resources.Resource, name: str, namespace: str | None = "default", **body: Any) -> Doc:
        metadata = {"name": name, **body.pop("metadata", {})}
        return self.api.create(resource, {"metadata": metadata, **body}, namespace if resource.namespaced else None)

    def node(self, name: str, labels: Doc | None = None, *, taints: Any = (), gpus: int = 0, pods: int = 110) -> Doc:
        labels = {"kubernetes.io/hostname": name, **(labels or {})}
        self.create(resources.NODES, name, metadata={"labels": labels}, spec={"taints": list(taints)} if taints else {})
        amounts = {"cpu": "8", "memory": "32Gi", "pods": str(pods), **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        return self.node_status(name, allocatable=amounts, capacity=amounts)

    def node_status(self, name: str, *, ready: str = "True", **fields: Any) -> Doc:
        node = self.api.get(resources.NODES, name)
        conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": self.clock.timestamp()}]
        status = {**(node.get("status") or {}), "conditions": conditions, **fields}
        return self.api.update(resources.NODES, {**node, "status": status}, subresource="status")

    def daemon_set(self, name: str = "ds", *, strategy: Doc | None = None, **spec: Any) -> Doc:
        body: Doc = {"selector": {"matchLabels": {"app": name}}, "template": template(name, **spec)}
        if strategy:
            body["updateStrategy"] = strategy
        return self.create(resources.DAEMON_SETS, name, spec=body)

    def patch(self, resource: resources.Resource, name: str, body: Doc, namespace: str | None = "default") -> Doc:
        return self.api.patch(resource, name, body, ns=namespace if resource.namespaced else None, type="merge")

    # --- looking ------------------------------------------------------------------------------------------------------

    def get(self, resource: resources.Resource, name: str, namespace: str | None = "default") -> Doc:
        return self.api.get(resource, name, namespace if resource.namespaced else None)

    def find(self, resource: resources.Resource, name: str, namespace: str | None = "default") -> Doc | None:
        return self.api.find(resource, name, namespace if resource.namespaced else None)

    def listed(self, resource: resources.Resource, namespace: str | None = None, **selectors: Any) -> list[Doc]:
        found: list[Doc] = self.api.list(resource, namespace, **selectors)["items"]
        return found

    def pods(self, labels: str | None = None) -> list[Doc]:
        return self.listed(resources.PODS, "default", labels=labels)

    def events(self, reason: str) -> list[Doc]:
        return [each for each in self.listed(resources.EVENTS) if each["reason"] == reason]


def template(app: str, *, image: str = "img:1", requests: Doc | None = None, **spec: Any) -> Doc:
    container: Doc = {"name": "main", "image": image}
    if requests:
        container["resources"] = {"requests": requests, "limits": requests}
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


def nodes_of(pods: list[Doc]) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "") for pod in pods)
