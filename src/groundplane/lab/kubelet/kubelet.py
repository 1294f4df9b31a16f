"""The kubelet of one simulated node: registers it, runs its pods, serves logs and commands.

It follows the API's pods that are bound to its node and keeps one worker for each. Containers live in the node's
container runtime, so that stopping `run` and calling it again is a kubelet restart: running containers go on, device
allocations are read from the checkpoint.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ...node.hostroot import HostRoot
from .. import programs, resources
from ..api import Api
from ..clock import LabClock
from ..driver import image as driver_image
from ..host import SimulatedHost
from ..nodes import NodeSpec
from ..programs import CommandNotFoundError, Image, ProgramRegistry, Stdin, image_missing
from ..status import StatusError, bad_request, not_found
from . import features
from .devices import DeviceManager
from .events import EventSink
from .node import NodeAgent, node_ip
from .nri import NriRuntime
from .pod import PodWorker
from .podresources import PodResources
from .runtime import ContainerRuntime, Process
from .runtimesocket import RuntimeSocket

Document = Mapping[str, Any]
NO_SUCH_COMMAND = 127


class Kubelet:
    """A kubelet and the machine it runs on, whose files lie below `workdir/<node name>`.

    The container runtime and what it listens on go on while the kubelet does not run; `power_off` ends them.
    """

    def __init__(self, api: Api, spec: NodeSpec, clock: LabClock, programs: ProgramRegistry, workdir: Path) -> None:
        self.api = api
        self.spec = spec
        self.name = spec.name
        self.clock = clock
        self.programs = programs
        folder = workdir / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        self.host = SimulatedHost(HostRoot(folder, durable=False), spec)
        self.runtime = ContainerRuntime(clock)
        self.events = EventSink(api, clock, spec.name)
        self.agent = NodeAgent(api, clock, self.host)
        self.devices = DeviceManager(self.host, clock, self._devices_changed)
        self._pod_resources = PodResources(self.host, self.devices, lambda: [w.pod for w in self._workers.values()])
        self._runtime_socket = RuntimeSocket(self.host)
        self.nri = NriRuntime(self.host)
        self._workers: dict[str, PodWorker] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._addresses = 1
        self._running = False
        self._fatal: asyncio.Future[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the kubelet until cancelled. Containers go on; `power_off` ends them too."""
        if self._running:
            raise RuntimeError(f"the kubelet of {self.name} is already running; cancel its task before another run")
        self._running = True
        self._fatal = asyncio.get_running_loop().create_future()
        release: Callable[[], None] | None = None
        try:
            await self.devices.start()
            await self._pod_resources.start()
            await self._runtime_socket.start()
            await self.nri.start()
            self.agent.register(self.devices.capacity())
            self.events.node(self.name, "Starting", "Starting kubelet.")
            if self.spec.nfd and self.api.url:
                self.background(features.keep(self.api, self.host, self.clock, self.programs))
            release = self.api.on_change(resources.PODS, self._pod_changed)
            self._adopt()
            self.background(self.agent.heartbeat(self.devices.capacity))
            await self._fatal
        finally:
            if release is not None:
                release()
            await self._stop()

    async def _stop(self) -> None:
        tasks = [worker.task for worker in self._workers.values() if worker.task] + list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()
        await self._pod_resources.stop()
        await self.devices.stop()
        self._running = False

    def _adopt(self) -> None:
        """Take up the pods that are bound to this node, and drop containers of pods that are gone."""
        mine = self.api.list(resources.PODS, fields=f"spec.nodeName={self.name}")["items"]
        uids = {pod["metadata"]["uid"] for pod in mine}
        for uid in self.runtime.pods() - uids:
            self.runtime.forget(uid)
        self.devices.keep_only(uids)
        for pod in mine:
            self._take(pod)

    async def power_off(self) -> None:
        """End all containers at once, as when the machine loses power. The kubelet must not be running."""
        if self._running:
            raise RuntimeError(f"the kubelet of {self.name} is running; cancel its task first")
        await self.runtime.power_off()
        await self.nri.stop()
        await self._runtime_socket.stop()

    async def reboot(self) -> None:
        """Power off and boot again: no modules, no device nodes, an empty /run. The kubelet must not be running."""
        await self.power_off()
        self.host.boot()

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the pods; an error in it ends the kubelet."""
        task = asyncio.create_task(work, name=f"kubelet/{self.name}")
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._fatal and not self._fatal.done():
            self._fatal.set_exception(error)

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _pod_changed(self, kind: str, new: Document, _old: Document | None) -> None:
        if (new.get("spec") or {}).get("nodeName") != self.name:
            return
        uid = new["metadata"]["uid"]
        worker = self._workers.get(uid)
        if kind == "DELETED":
            if worker is not None:
                worker.gone.set()
                worker.wake()
        elif worker is None:
            self._take(new)
        else:
            worker.update(new)

    def _take(self, pod: Document) -> None:
        worker = PodWorker(self, pod)
        self._workers[worker.uid] = worker
        worker.task = asyncio.create_task(worker.run(), name=f"pod:{pod['metadata']['name']}")
        worker.task.add_done_callback(lambda task: self._worker_ended(worker, task))

    def _worker_ended(self, worker: PodWorker, task: asyncio.Task[None]) -> None:
        if self._workers.get(worker.uid) is worker:
            del self._workers[worker.uid]
        if not task.cancelled() and (error := task.exception()) is not None and self._fatal and not self._fatal.done():
            self._fatal.set_exception(error)

    def _devices_changed(self) -> None:
        if self._running:
            self.agent.update(self.devices.capacity())

    def node_document(self) -> Document:
        """The Node object, or an empty one."""
        return self.api.find(resources.NODES, self.name) or {"metadata": {"name": self.name}}

    def next_pod_ip(self) -> str:
        """An address for a pod's sandbox."""
        self._addresses += 1
        third = node_ip(self.name).rsplit(".", 1)[1]
        return f"10.244.{third}.{self._addresses % 254 + 1}"

    def rootfs(self, folder: str) -> HostRoot:
        """A container's own file system."""
        return HostRoot(self.host.root.mkdir(folder))

    def image(self, reference: str) -> Image | None:
        """An image that this node can pull, or None."""
        if programs.repository_of(reference).endswith("/driver") and not driver_image.published(reference):
            return None
        return None if image_missing(reference, self.spec.missing_images) else self.programs.image(reference)

    # --- access for people --------------------------------------------------------------------------------------------

    def process(self, ns: str, pod: str, container: str = "", *, previous: bool = False) -> Process:
        """A container's run. StatusError 404 or 400 with the API server's words if there is none."""
        worker = self._worker(ns, pod)
        known = [state.name for state in (*worker.mains, *worker.inits)]
        name = container or _default_container(worker.pod)
        if name not in known:
            raise bad_request(f"container {name} is not valid for pod {pod}; it has {', '.join(known)}")
        found = self.runtime.previous(worker.uid, name) if previous else self.runtime.last(worker.uid, name)
        if found is None:
            if previous:
                raise bad_request(f'previous terminated container "{name}" in pod "{pod}" not found')
            raise bad_request(f'container "{name}" in pod "{pod}" is waiting to start: {self._why(worker, name)}')
        return found

    def has_pod(self, ns: str, pod: str) -> bool:
        """Whether this node has that pod."""
        found = (worker.pod["metadata"] for worker in self._workers.values())
        return any((meta["namespace"], meta["name"]) == (ns, pod) for meta in found)

    def _worker(self, ns: str, pod: str) -> PodWorker:
        for worker in self._workers.values():
            meta = worker.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (ns, pod):
                return worker
        raise not_found("pods", "", pod)

    @staticmethod
    def _why(worker: PodWorker, name: str) -> str:
        entries = [*worker.status.get("containerStatuses", ()), *worker.status.get("initContainerStatuses", ())]
        for entry in entries:
            if entry["name"] == name:
                return str(entry["state"].get("waiting", {}).get("reason", "ContainerCreating"))
        return "ContainerCreating"

    async def logs(
        self,
        ns: str,
        pod: str,
        container: str = "",
        *,
        follow: bool = False,
        tail_lines: int | None = None,
        since: datetime | None = None,
        previous: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """A container's log, line by line. StatusError if there is no such pod or container."""
        log = self.process(ns, pod, container, previous=previous).log
        async for line in log.read(follow=follow, tail_lines=tail_lines, since=since):
            stamp = line.at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() if timestamps else b""
            yield stamp + line.text

    async def exec(
        self,
        ns: str,
        pod: str,
        container: str,
        argv: list[str],
        stdin: AsyncIterator[bytes] | None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
    ) -> int:
        """Run a command in a container; its exit code, 127 with the runtime's message if there is no such command."""
        process = self.process(ns, pod, container)
        if not process.running:
            raise bad_request(f"cannot exec into a container in a completed pod; {process.name} has ended")
        try:
            return await self.runtime.execute(process, tuple(argv), out=stdout, err=stderr, stdin=Stdin(source=stdin))
        except CommandNotFoundError as error:
            stderr(
                f"OCI runtime exec failed: exec failed: unable to start container process: {error}: unknown\n".encode()
            )
            return NO_SUCH_COMMAND

    async def http_get(self, ns: str, pod: str, port: int, path: str) -> tuple[int, str]:
        """Ask a port of a pod, as through port-forward; StatusError if nothing listens there."""
        worker = self._worker(ns, pod)
        for state in (*worker.mains, *worker.inits):
            process = self.runtime.last(worker.uid, state.name)
            handler = process.container.ports.get(port) if process and process.running else None
            if handler is not None:
                try:
                    response = await handler(path)
                except OSError as error:
                    raise StatusError(502, "BadGateway", f"port {port} of pod {ns}/{pod}: {error}") from error
                return response.status, response.body
        raise StatusError(503, "ServiceUnavailable", f"nothing listens on port {port} of pod {ns}/{pod}")


def _default_container(pod: Document) -> str:
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get("kubectl.kubernetes.io/default-container") or pod["spec"]["containers"][0]["name"])
