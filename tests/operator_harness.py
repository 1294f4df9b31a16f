"""A cluster for the operator's loops: the fake API server, some nodes, a real policy, and an operator over HTTP."""

import asyncio
import contextlib
import copy
import datetime
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml
from operator_fake_api import FakeApi, Object

from groundplane.api import names
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.operator.process import Operator
from groundplane.operator.settings import Settings

NS = "gpu-operator"
DATA = Path(__file__).parent / "data" / "clusterpolicy"
SPEED = 50.0
GPU_LABELS = {
    names.PCI_GPU_LABELS[0]: "true",
    names.KERNEL_VERSION: "6.8.0-60-generic",
    names.OS_RELEASE_ID: "ubuntu",
    names.OS_RELEASE_VERSION_ID: "24.04",
}


def policy_document(name: str = "26.7.0-default") -> Object:
    document: Object = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    return document


class FastClock:
    """A clock that runs faster than real time."""

    def __init__(self, speed: float = SPEED) -> None:
        self.speed = speed

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)

    def monotonic(self) -> float:
        return time.monotonic() * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)


class Cluster:
    """A fake cluster and the operators that run on it."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.operator: Operator | None = None
        self.settings: dict[str, Any] = {}
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- what is in it ------------------------------------------------------------------------------------------------

    def node(self, name: str, *, gpu: bool = True, labels: dict[str, str] | None = None, **meta: Any) -> None:
        have = {**(GPU_LABELS if gpu else {}), **(labels or {})}
        self.api.add(
            "nodes",
            name,
            metadata={"labels": have, **meta},
            status={"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4"}},
        )

    def nodes(self, count: int) -> None:
        for number in range(count):
            self.node(f"gpu-{number:03d}")

    def policy(self, name: str = "cluster-policy", *, document: Object | None = None, **meta: Any) -> None:
        spec = (document or policy_document())["spec"]
        self.api.add("clusterpolicies", name, metadata=meta, spec=spec)

    def openshift(self) -> None:
        """Make it an OpenShift cluster with a driver toolkit for RHCOS 418."""
        for crd in (
            "clusterversions.config.openshift.io",
            "securitycontextconstraints.security.openshift.io",
            "prometheusrules.monitoring.coreos.com",
            "servicemonitors.monitoring.coreos.com",
        ):
            self.api.add("customresourcedefinitions", crd)
        history = [{"state": "Partial", "version": "4.19.0"}, {"state": "Completed", "version": "4.18.3"}]
        self.api.add("clusterversions", "version", status={"history": history})
        self.api.add("proxies", "cluster", spec={"trustedCA": {"name": ""}}, status={"httpsProxy": "http://proxy:1"})
        tags = [{"name": "418", "from": {"name": "toolkit:418"}}, {"name": "latest", "from": {"name": "toolkit:x"}}]
        self.api.add("imagestreams", "driver-toolkit", "openshift", spec={"tags": tags})

    def edit_spec(self, change: Callable[[Object], None], name: str = "cluster-policy") -> None:
        self.api.edit("clusterpolicies", name, lambda obj: change(obj["spec"]))

    def labels(self, node: str) -> dict[str, str]:
        found = self.api.get("nodes", node)
        assert found is not None
        return dict(found["metadata"].get("labels") or {})

    def status(self, name: str = "cluster-policy") -> Object:
        found = self.api.get("clusterpolicies", name)
        return (found or {}).get("status") or {}

    def condition(self, kind: str = "Error", name: str = "cluster-policy") -> Object:
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == kind), {})

    def ours(self) -> dict[tuple[str, str], Object]:
        """Everything the operator made, by resource and name."""
        return {
            (key[0], key[2]): obj
            for key, obj in self.api.objects.items()
            if names.STATE_LABEL in (obj["metadata"].get("labels") or {})
        }

    def snapshot(self) -> dict[Any, Any]:
        """What must be equal after any way to the same end: objects without versions and times."""
        found = {key: _essence(obj) for key, obj in self.ours().items()}
        for name, node in self.api.all("nodes").items():
            found["node", name] = (node["metadata"].get("labels"), node["metadata"].get("annotations") or {})
        return found

    # --- the operator -------------------------------------------------------------------------------------------------

    def start(self, **settings: Any) -> None:
        assert self._task is None, "an operator is running"
        self._stop = asyncio.Event()
        chosen = {"namespace": NS, "metrics_address": "", "health_address": "", **self.settings, **settings}
        self._task = asyncio.create_task(self._run(Settings(**chosen)))

    async def _run(self, settings: Settings) -> None:
        clock = FastClock()
        retry = Retry(attempts=3, first_s=0.1, max_s=0.5)
        config = Config(server=self.api.url)
        async with Client(config, max_in_flight=64, retry=retry, sleep=clock.sleep) as client:
            self.operator = Operator(settings, client, clock=clock)
            await self.operator.run(self._stop)

    async def stop(self) -> None:
        """As SIGTERM does."""
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    async def kill(self) -> None:
        """As SIGKILL does, as far as a task can."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, what: Callable[[], Any], why: str = "") -> None:
        """Wait until ``what()`` is true; fail after a time that only a broken operator needs."""
        for _ in range(2000):
            if what():
                return
            if self._task is not None and self._task.done():
                self._task.result()
            await asyncio.sleep(0.005)
        raise AssertionError(why or f"never came true; status is {self.status()}")

    async def ready(self) -> None:
        await self.until(lambda: self.status().get("state") == "ready")
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until no request was made for a while."""
        before = -1
        while before != (before := sum(self.api.requests.values())):
            await asyncio.sleep(0.06)


def _essence(obj: Object) -> Object:
    kept = copy.deepcopy({key: value for key, value in obj.items() if key != "status"})
    for field in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
        kept["metadata"].pop(field, None)
    return kept


@contextlib.asynccontextmanager
async def cluster_of() -> AsyncIterator[Cluster]:
    """A cluster without nodes and policies, its operator ended at the end."""
    api = FakeApi()
    api.add("namespaces", NS)
    async with api.serve():
        made = Cluster(api)
        try:
            yield made
        finally:
            await made.kill()
