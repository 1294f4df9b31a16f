"""The lab put together: API server, controllers, scheduler, kubelets and the shipped operator in one process.

A :class:`Lab` owns every task it starts and a working folder that holds the simulated hosts' files. The operator runs
as it does in a cluster: its own process function, over HTTP, with nothing shared but the API.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from importlib import resources as package_files
from pathlib import Path
from typing import Any, Self

import msgspec
import yaml

from ..api import crd, names, node_features, release
from ..cluster import client as cluster_client
from ..cluster import config as cluster_config
from ..cluster import kinds
from ..operands import rbac as operand_rbac
from ..operator import process as operator_process
from . import access, discovery, http, programs, resources, scheduler
from . import api as lab_api
from . import clock as lab_clock
from . import faults as lab_faults
from .controllers import Controllers
from .host import SimulatedHost
from .kubelet import HollowKubelet, Kubelet, NodePool
from .nodes import NodeSpec

OPERATOR_NAMESPACE = "gpu-operator"
OPERATOR_USER_AGENT = "gpu-operator"
DEFAULT_SPEED = 60.0
"""Cluster seconds that pass in one real second, unless told otherwise."""


LEAN_FROM = 500
"""Hollow nodes from which the lab leaves out what nobody reads at that size: updated fields, Scheduled events."""

ADMIN_TOKEN = "lab-admin"
OPERATOR_TOKEN = "lab-operator"
"""Tokens of a lab with access control (``rbac=True``); it listens on the loopback address only."""

POLL_S = 0.02
"""Real seconds between two looks at a condition that is waited for."""


def data(name: str) -> Any:
    """Return a YAML document that ships with the lab."""
    text = package_files.files(__package__).joinpath("data", name).read_text(encoding="utf-8")
    return yaml.safe_load(text)


def _handed_on() -> list[dict[str, Any]]:
    """Roles for what the operator grants its operands: nobody may grant what he does not hold."""
    accounts = operand_rbac.ACCOUNTS.values()
    cluster = [rule.policy().to_dict() for account in accounts for rule in account.cluster]
    own = [rule.policy().to_dict() for account in accounts for rule in account.role]
    return [
        *_role_and_binding("ClusterRole", cluster, {}),
        *_role_and_binding("Role", [operand_rbac.USE_PRIVILEGED.to_dict(), *own], {"namespace": OPERATOR_NAMESPACE}),
    ]


def _role_and_binding(kind: str, rules: list[dict[str, Any]], place: dict[str, str]) -> list[dict[str, Any]]:
    group = access.RBAC
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": "gpu-operator-grants", **place}}
    subject = {"kind": "ServiceAccount", "name": "gpu-operator", "namespace": OPERATOR_NAMESPACE}
    reference = {"apiGroup": group, "kind": kind, "name": "gpu-operator-grants"}
    return [
        {**head, "kind": kind, "rules": rules},
        {**head, "kind": f"{kind}Binding", "roleRef": reference, "subjects": [subject]},
    ]


class LabError(RuntimeError):
    """The lab cannot do what was asked; the text says why and what to do."""


class Lab:
    """A running lab, as an async context manager.

    ``nodes`` are the simulated nodes on which programs really run; ``hollow`` adds that many nodes whose pods are only
    marked as running (for benches at scale; :attr:`hollow` adds and removes them later), ``hollow_gpus`` GPUs on each.
    ``speed`` is cluster seconds per real second. ``workdir`` keeps the hosts' files; without it a temporary folder is
    used and removed at the end.
    ``operator_options`` are settings of the operator that differ from the lab's; ``operator_on_cluster_time`` has its
    timers follow the lab's clock. With ``rbac`` every request is checked: :meth:`client` may do everything, the
    operator what ``data/operator-rbac.yaml`` grants (and ``operator-diagnosis-rbac.yaml`` if it diagnoses), and a
    caller without a token nothing. ``kubernetes`` is the version that the API server says it is (ValueError if it is
    none); it answers alike.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec] = (),
        *,
        speed: float = DEFAULT_SPEED,
        hollow: int = 0,
        hollow_gpus: int = 0,
        operator: bool = True,
        host: str = "127.0.0.1",
        port: int = 0,
        workdir: Path | None = None,
        operator_release: release.Release = release.DEFAULT,
        rbac: bool = False,
        operator_on_cluster_time: bool = False,
        operator_options: Mapping[str, Any] | None = None,
        kubernetes: str = "",
    ) -> None:
        self.clock = lab_clock.LabClock(speed)
        self._lean = hollow >= LEAN_FROM
        self.api = lab_api.Api(clock=self.clock, rbac=rbac, track_updates=not self._lean)
        if kubernetes:
            discovery.version(kubernetes)
            self.api.kubernetes = kubernetes
        self.faults = lab_faults.Faults()
        self.programs = programs.ProgramRegistry.standard()
        self.release = operator_release
        self._specs = list(nodes)
        self.hollow = HollowKubelet(
            self.api, [f"hollow-{number:05d}" for number in range(hollow)], self.clock, gpus=hollow_gpus
        )
        self.operator: operator_process.Operator | None = None
        self._operator_on_cluster_time = operator_on_cluster_time
        self._operator_options = dict(operator_options or {})
        self._operator_client: cluster_client.Client | None = None
        self._controllers: Controllers | None = None
        self._scheduler: scheduler.Scheduler | None = None
        self._with_operator = operator
        self._listen = (host, port)
        self._own_workdir = workdir is None
        self._workdir = workdir
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pool = NodePool()
        self._server: http.Server | None = None
        self._operator_stop: asyncio.Event | None = None
        self._operator_task: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything; the API answers when this returns."""
        if self._workdir is None:
            self._workdir = Path(tempfile.mkdtemp(prefix="gp-"))
        self._workdir.mkdir(parents=True, exist_ok=True)
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop everything and remove the working folder if it was ours."""
        await self.close()

    async def _start(self) -> None:
        host, port = self._listen
        self._server = await http.serve(
            self.api,
            host=host,
            port=port,
            clock=self.clock,
            nodes=self._pool,
            faults=self.faults,
            tokens={
                ADMIN_TOKEN: access.ADMIN,
                OPERATOR_TOKEN: access.account_user(OPERATOR_NAMESPACE, "gpu-operator"),
            },
        )
        self._controllers = Controllers(self.api, self.clock)
        self._spawn("controllers", self._controllers.run())
        self._scheduler = scheduler.Scheduler(self.api, self.clock, record_bindings=not self._lean)
        self._spawn("scheduler", self._scheduler.run())
        for definition in (*crd.definitions(), *node_features.definitions()):
            self.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, definition)
        self.api.create(
            resources.NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}},
        )
        if self.api.rbac:
            more = data("operator-diagnosis-rbac.yaml") if self._operator_options.get("diagnosis") else []
            self._grant([*data("operator-rbac.yaml"), *more, *_handed_on()])
        for spec in self._specs:
            self.add_node(spec)
        self._spawn("hollow", self.hollow.run())
        if self._with_operator:
            self.start_operator()

    def _grant(self, documents: Iterable[dict[str, Any]]) -> None:
        for document in documents:
            resource = self.api.of_kind(document["kind"], document["apiVersion"])
            self.api.create(resource, document, document["metadata"].get("namespace"))

    async def close(self) -> None:
        """Stop the operator, then the nodes, then the control plane. Safe to call twice."""
        await self.stop_operator()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for kubelet in self._pool:
            await kubelet.power_off()
        if self._server is not None:
            await self._server.close()
            self._server = None
        if self._own_workdir and self._workdir is not None:
            shutil.rmtree(self._workdir, ignore_errors=True)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.create_task(work, name=f"lab:{name}")

    def check(self) -> None:
        """Raise the error of a lab task that ended by itself, so that a broken lab is never taken for a quiet one."""
        self.check_tasks()
        if (error := self.operator_error) is not None:
            raise LabError(f"the operator failed: {error!r}") from error

    def check_tasks(self) -> None:
        """The same without the operator."""
        for name, task in self._tasks.items():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise LabError(f"the lab's {name} failed: {error!r}") from error

    @property
    def idle(self) -> bool:
        """Whether operator, controllers, scheduler and hollow nodes have nothing to do until something changes."""
        plane = self._controllers is not None and self._controllers.resting
        scheduled = self._scheduler is not None and self._scheduler.idle
        return plane and scheduled and self.hollow.idle and self.operator is not None and self.operator.idle

    # --- nodes --------------------------------------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> None:
        """Start a kubelet on a new simulated host; it registers its Node by itself."""
        assert self._workdir is not None
        if spec.name in self._pool:
            raise LabError(f"node {spec.name!r} is already part of the lab; remove it first")
        kubelet = Kubelet(self.api, spec, self.clock, self.programs, self._workdir)
        self._pool.add(spec.name, kubelet)
        self._spawn(f"kubelet/{spec.name}", kubelet.run())

    def gpu_nodes(self) -> dict[str, NodeSpec]:
        """Return the descriptions of the simulated nodes that have a GPU, by name, in order."""
        return {spec.name: spec for spec in sorted(self._pool.specs(), key=lambda spec: spec.name) if spec.gpus}

    def write_hollow_log(self, namespace: str, pod: str, text: str) -> None:
        """Give a pod of a hollow node a log."""
        self._pool.hollow_logs[namespace, pod] = text.encode()

    def host(self, name: str) -> SimulatedHost:
        """The host of a simulated node."""
        return self._kubelet(name).host

    def _kubelet(self, name: str) -> Kubelet:
        if name not in self._pool:
            raise LabError(f"node {name!r} is not part of the lab")
        return self._pool[name]

    async def reboot_node(self, name: str, *, kernel: str | None = None) -> None:
        """Boot a simulated node anew, into another kernel if one is given, which is installed first."""
        kubelet = self._kubelet(name)
        task = self._tasks.pop(f"kubelet/{name}")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if kernel is not None:
            kubelet.host.install_kernel(kernel)
        await kubelet.reboot()
        self._spawn(f"kubelet/{name}", kubelet.run())

    async def remove_node(self, name: str) -> None:
        """Stop a node's kubelet and delete its Node, as when a machine is taken out of the cluster."""
        task = self._tasks.pop(f"kubelet/{name}", None)
        if task is None:
            raise LabError(f"node {name!r} is not part of the lab")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._pool[name].power_off()
        self._pool.remove(name)
        self.api.delete(resources.NODES, name)

    # --- the operator -------------------------------------------------------------------------------------------------

    @property
    def operator_running(self) -> bool:
        """Whether the operator was started and has not ended."""
        return self._operator_task is not None and not self._operator_task.done()

    @property
    def operator_error(self) -> BaseException | None:
        """What ended the operator, if it has ended by itself."""
        task = self._operator_task
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    def start_operator(self) -> None:
        """Start the shipped operator against the lab's API, over HTTP."""
        if self.operator_running:
            raise LabError("the operator is already running")
        self._operator_stop = asyncio.Event()
        self._operator_task = asyncio.create_task(self._run_operator(self._operator_stop), name="lab:operator")

    async def _run_operator(self, stop: asyncio.Event) -> None:
        settings = operator_process.Settings(
            namespace=OPERATOR_NAMESPACE,
            release=self.release,
            metrics_address="127.0.0.1:0",
            health_address="127.0.0.1:0",
        )
        settings = msgspec.structs.replace(settings, **self._operator_options)
        on_cluster_time = self._operator_on_cluster_time
        sleep = self.clock.sleep if on_cluster_time else asyncio.sleep
        config = cluster_config.Config(server=self.url, token=OPERATOR_TOKEN if self.api.rbac else None)
        async with cluster_client.Client(config, user_agent=OPERATOR_USER_AGENT, sleep=sleep) as client:
            clock = self.clock if on_cluster_time else None
            self.operator = operator_process.Operator(settings, client, clock=clock)
            self._operator_client = client
            await self.operator.run(stop)

    async def stop_operator(self) -> None:
        """Stop the operator as SIGTERM does."""
        if self._operator_task is None or self._operator_stop is None:
            return
        self._operator_stop.set()
        await asyncio.gather(self._operator_task, return_exceptions=True)
        self._operator_task = None

    async def kill_operator(self) -> None:
        """Stop the operator as SIGKILL does: nothing is finished, the lease is not released."""
        if self._operator_task is None:
            return
        self._operator_task.cancel()
        if self._operator_client is not None:
            await self._operator_client.close()
        await asyncio.gather(self._operator_task, return_exceptions=True)
        self._operator_task = None

    # --- how to reach it ----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The API server's address."""
        if self._server is None:
            raise LabError("the lab is not running")
        return self._server.url

    def client(self, *, user_agent: str = "groundplane-lab") -> cluster_client.Client:
        """Return a client of the lab's API that may do everything."""
        token = ADMIN_TOKEN if self.api.rbac else None
        return cluster_client.Client(cluster_config.Config(server=self.url, token=token), user_agent=user_agent)

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for the lab and return its path."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": self.url}}],
            "users": [{"name": "lab-admin", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab-admin"}}],
            "current-context": "lab",
        }
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    # --- convenience for tests, demo and benches --------------------------------------------------------------------

    async def apply(self, documents: Iterable[dict[str, Any]]) -> None:
        """Server-side apply documents as the person ``lab``."""
        async with self.client() as client:
            for document in documents:
                await client.apply(kinds.of(document), document, field_manager="lab")

    async def wait_until(self, done: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Wait until a condition on the API's state holds.

        Raises :class:`LabError` naming ``what`` after ``timeout_s`` real seconds, or when a part of the lab has failed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    self.check()
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise LabError(f"waited {timeout_s:g} s in vain for {what}") from error

    def policy_state(self, name: str = "cluster-policy") -> str:
        """Return ``status.state`` of a ClusterPolicy, or the empty string."""
        resource = self.api.resource("clusterpolicies", group=names.GROUP)
        found = self.api.find(resource, name)
        return str((found or {}).get("status", {}).get("state", ""))

    async def wait_ready(self, name: str = "cluster-policy", *, timeout_s: float = 60.0) -> None:
        """Wait until a ClusterPolicy is ready."""
        await self.wait_until(
            lambda: self.policy_state(name) == "ready", timeout_s=timeout_s, what=f"ClusterPolicy {name} to be ready"
        )
