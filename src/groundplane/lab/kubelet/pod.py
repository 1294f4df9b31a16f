"""One pod on one node: from admission over volumes, init containers and restarts to its end.

A worker is level-triggered: `sync` looks at the pod, at what the container runtime has, and does what is missing. It is
called after every change and when a back-off ends, and a new worker for the same pod (after a kubelet restart) goes on
where the old one was.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...cluster.config import Config
from .. import nodeprograms, pulls, resources
from ..clock import parse_rfc3339, rfc3339
from ..host import HostError
from ..programs import CommandNotFoundError, Container, Mount, default_argv
from ..status import StatusError
from . import environment, injection, probes, status, volumes
from .logs import ContainerLog
from .node import node_ip
from .runtime import Process, SandboxError
from .status import ContainerFacts, Waiting

if TYPE_CHECKING:
    from .kubelet import Kubelet

Document = Mapping[str, Any]

CRASH_BACKOFF_S = (10.0, 300.0)
IMAGE_BACKOFF_S = (10.0, 300.0)
MOUNT_BACKOFF_S = (2.0, 122.0)
RETRY_S = 10.0
"""Cluster seconds until a sandbox or a container with a wrong configuration is tried again."""
BACKOFF_RESET_S = 600.0


class WaitError(Exception):
    """A container cannot be started now: the waiting reason and message, and the event."""

    def __init__(self, reason: str, message: str, event: str = "Failed") -> None:
        super().__init__(message)
        self.waiting = Waiting(reason, message)
        self.event = event


class Backoff:
    """Delays that double; all in cluster seconds."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self.delay = 0.0
        self._since = 0.0

    def next(self, now: float) -> float:
        """How long to wait after an event at `now`: nothing the first time, then `first`, doubling up to `most`."""
        quiet = now - self._since > BACKOFF_RESET_S
        wait = 0.0 if quiet or not self._since else self.delay
        self.delay = self._first if quiet or not self.delay else min(self.delay * 2, self._most)
        self._since = now or 1e-9
        return wait


class ContainerState:
    """What the worker remembers of one container between two looks."""

    def __init__(self, spec: Document) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.sidecar = spec.get("restartPolicy") == "Always"
        self.waiting: Waiting | None = None
        self.retry_at = 0.0
        self.crash = Backoff(*CRASH_BACKOFF_S)
        self.image = Backoff(*IMAGE_BACKOFF_S)
        self.pull_failed = False
        self.judged: str = ""
        """Id of the process whose end has been dealt with."""
        self.done = False
        self.started = False
        self.ready = False
        self.probed: str = ""
        self.tasks: list[asyncio.Task[None]] = []

    def stop_probes(self) -> None:
        """Stop probing."""
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()
        self.probed = ""
        self.ready = self.started = False


class PodWorker:
    """Runs one pod. `pod` is always the latest document; `wake()` makes it look again."""

    def __init__(self, kubelet: "Kubelet", pod: Document) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.inits = [ContainerState(spec) for spec in pod["spec"].get("initContainers") or ()]
        self.mains = [ContainerState(spec) for spec in pod["spec"]["containers"]]
        self.gone = asyncio.Event()
        self.status: dict[str, Any] = dict(pod.get("status") or {})
        self._wake = asyncio.Event()
        self._admitted = False
        self._mounting = Backoff(*MOUNT_BACKOFF_S)
        self._volumes: volumes.PodVolumes | None = None
        self._ip = str(self.status.get("podIP") or "")
        started = self.status.get("startTime")
        self._started_at = kubelet.clock.now() if not started else parse_rfc3339(started)
        self.task: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look again soon."""
        self._wake.set()

    def update(self, pod: Document) -> None:
        """The pod's document has changed."""
        self.pod = pod
        self.wake()

    async def run(self) -> None:
        """Work until the pod is gone."""
        self.kubelet.runtime.listen(self.uid, self.wake)
        try:
            while not self.gone.is_set():
                self._wake.clear()
                if self.pod["metadata"].get("deletionTimestamp"):
                    await self._terminate()
                    return
                delay = await self._sync()
                await self._pause(delay)
        finally:
            for state in (*self.inits, *self.mains):
                state.stop_probes()
        self._clean_up()

    async def _pause(self, delay: float | None) -> None:
        if delay is None:
            await self._wake.wait()
            return
        try:
            async with self.kubelet.clock.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _sync(self) -> float | None:
        """Do what is missing now; the cluster seconds after which to look again, None for not before a change."""
        if self.pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self.kubelet.devices.release(self.uid)  # what has ended holds no device, though it is still listed
            return None
        if not self._admitted:
            try:
                await self.kubelet.devices.admit(self.pod)
            except RuntimeError as error:
                self._reject("UnexpectedAdmissionError", str(error))
                return None
            self._admitted = True
        try:
            self._prepare()
        except (volumes.MountError, SandboxError) as error:
            reason = "FailedMount" if isinstance(error, volumes.MountError) else "FailedCreatePodSandBox"
            text = (
                str(error)
                if reason == "FailedMount"
                else f"Failed to create pod sandbox: rpc error: code = Unknown desc = {error}"
            )
            self._event(reason, text, warning=True)
            self.publish()
            if reason == "FailedMount":
                self._mounting.next(self.kubelet.clock.monotonic())
                return self._mounting.delay
            return RETRY_S
        delay = await self._containers()
        self.publish()
        return delay

    def _reject(self, reason: str, message: str) -> None:
        self._event(reason, message, warning=True)
        text = f"Pod was rejected: {message}"
        self._write(status.rejected_status(self.status, reason, text, self.kubelet.clock.timestamp()))

    def _prepare(self) -> None:
        """Volumes, then the sandbox."""
        if self._volumes is None:
            known = {**self.status, "hostIP": node_ip(self.kubelet.name), "podIP": self._ip}
            made = volumes.PodVolumes(self.kubelet.host, self.pod, known, self.kubelet.node_document(), self._lookup)
            made.set_up()
            self._volumes = made
        runtime = self.kubelet.runtime
        if not runtime.sandbox(self.uid):
            runtime.create_sandbox(self.uid, self._handler(), self.kubelet.host.runtime_handlers)
            host_network = self.pod["spec"].get("hostNetwork")
            self._ip = node_ip(self.kubelet.name) if host_network else self._ip or self.kubelet.next_pod_ip()

    def _handler(self) -> str:
        name = self.pod["spec"].get("runtimeClassName")
        if not name:
            return ""
        found = self.kubelet.api.find(resources.RUNTIME_CLASSES, name)
        if found is None:
            raise SandboxError(f'RuntimeClass.node.k8s.io "{name}" not found')
        return str(found["handler"])

    def _lookup(self, kind: str, name: str) -> Document | None:
        kinds = {"ConfigMap": resources.CONFIG_MAPS, "Secret": resources.SECRETS}
        return self.kubelet.api.find(kinds[kind], name, self.pod["metadata"]["namespace"])

    def _event(self, reason: str, message: str, *, warning: bool = False, container: str = "") -> None:
        self.kubelet.events.pod(self.pod, reason, message, warning=warning, container=container)

    # --- containers ---------------------------------------------------------------------------------------------------

    async def _containers(self) -> float | None:
        """Start what has to run; the shortest time until another try."""
        delays: list[float] = []
        for state in self.inits:
            delays += await self._drive(state, init=True)
            if not self._passed(state):
                if state.done and not state.sidecar:
                    for later in self.mains:
                        later.waiting = Waiting("PodInitializing")
                return min(delays, default=None)
        for state in self.mains:
            delays += await self._drive(state, init=False)
        if self.mains and all(state.done for state in self.mains):
            sidecars = [state for state in reversed(self.inits) if state.sidecar]
            for state in sidecars:
                await self._stop(state, self._grace())
        return min(delays, default=None)

    def _passed(self, state: ContainerState) -> bool:
        process = self._process(state)
        if state.sidecar:
            return state.started
        return state.done and process is not None and process.exit_code == 0

    def _process(self, state: ContainerState) -> Process | None:
        return self.kubelet.runtime.last(self.uid, state.name)

    async def _drive(self, state: ContainerState, *, init: bool) -> list[float]:
        """Bring one container to where it should be; delays until the next try."""
        process = self._process(state)
        now = self.kubelet.clock.monotonic()
        sandbox = self.kubelet.runtime.sandbox(self.uid)
        if process is not None and process.running:
            state.waiting, state.done = None, False
            self._probe(state, process)
            return []
        if process is not None and process.id != state.judged:
            self._ended(state, process, now, init=init, stale=process.sandbox != sandbox)
        if state.done:
            return []
        if now < state.retry_at:
            return [state.retry_at - now]
        try:
            asked = await self.kubelet.nri.devices(self.pod, state.name)
            self._start(state, process, asked)
        except WaitError as error:
            self._held(state, error, now)
            return [max(0.0, state.retry_at - now)]
        state.waiting = None
        started = self._process(state)
        if started is not None and started.running:
            await self._post_start(state, started)
            self._probe(state, started)
        return [] if started is not None and started.running else [0.0]

    def _ended(self, state: ContainerState, process: Process, now: float, *, init: bool, stale: bool) -> None:
        """Decide what follows a container's end: nothing more, or a start after a back-off."""
        state.judged = process.id
        state.stop_probes()
        policy = self.pod["spec"].get("restartPolicy", "Always")
        failed = process.exit_code != 0
        if init and not state.sidecar:
            again = failed and policy != "Never"
        else:
            again = policy == "Always" or (failed and policy == "OnFailure")
        if state.sidecar or (stale and (init or again)):
            again = True
        state.done = not again
        if not again:
            state.waiting = None
            return
        wait = 0.0 if stale else state.crash.next(now)
        state.retry_at = now + wait
        if wait:
            name, meta = state.name, self.pod["metadata"]
            pod = f"{meta['name']}_{meta['namespace']}({self.uid})"
            text = f"back-off {wait:g}s restarting failed container={name} pod={pod}"
            state.waiting = Waiting("CrashLoopBackOff", text)
            self._event(
                "BackOff", f"Back-off restarting failed container {name} in pod {pod}", warning=True, container=name
            )

    def _held(self, state: ContainerState, error: WaitError, now: float) -> None:
        """Remember why a container could not be started and when to try again."""
        waiting = error.waiting
        wait = RETRY_S
        if waiting.reason == "ErrImagePull":
            state.image.next(now)
            wait = state.image.delay
            if state.pull_failed:
                image = state.spec["image"]
                self._event("BackOff", f'Back-off pulling image "{image}"', container=state.name)
                waiting = Waiting(
                    "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {waiting.message}'
                )
            state.pull_failed = True
        state.waiting = waiting
        state.retry_at = now + wait
        told = f"Error: {error.waiting.message}"
        if error.waiting.reason == "ErrImagePull":
            told = f'Failed to pull image "{state.spec["image"]}": {error.waiting.message}'
        self._event(error.event, told, warning=True, container=state.name)

    def _start(self, state: ContainerState, last: Process | None, nri_devices: tuple[str, ...]) -> None:
        """Start a container, with devices that NRI plugins gave it. WaitError if it cannot be made now."""
        spec, runtime = state.spec, self.kubelet.runtime
        image = self._pull(spec)
        container = self._container(spec, image, nri_devices)
        argv = default_argv(image, spec, container.env)
        attempt = last.attempt + 1 if last is not None else 0
        process = Process(
            state.name,
            attempt,
            runtime.sandbox(self.uid),
            container,
            argv,
            spec["image"],
            ContainerLog(self.kubelet.clock),
            self.kubelet.clock.now(),
        )
        self._event("Created", f"Created container: {state.name}", container=state.name)
        try:
            program = self.kubelet.programs.find(container, argv)
        except CommandNotFoundError as error:
            text = (
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
                f"failed: unable to start container process: error during container init: {error}: unknown"
            )
            runtime.record_failed_start(self.uid, process, text)
            self._event("Failed", f"Error: {text}", warning=True, container=state.name)
            return
        runtime.start(self.uid, process, program)
        self._event("Started", f"Started container {state.name}", container=state.name)

    def _pull(self, spec: Document) -> Any:
        """The container's image, pulled if the policy wants it. WaitError if there is none."""
        reference = spec["image"]
        policy = spec.get("imagePullPolicy") or "IfNotPresent"
        refused = pulls.refusal(self.kubelet.host, reference)
        if refused:
            self.kubelet.runtime.images.discard(reference)
        image = None if refused else self.kubelet.image(reference)
        present = reference in self.kubelet.runtime.images
        if policy == "Never" or (policy == "IfNotPresent" and present and image is not None):
            if image is None or not present:
                text = f'Container image "{reference}" is not present with pull policy of Never'
                raise WaitError("ErrImageNeverPull", text, "ErrImageNeverPull")
            text = f'Container image "{reference}" already present on machine'
            self._event("Pulled", text, container=spec["name"])
            return image
        self._event("Pulling", f'Pulling image "{reference}"', container=spec["name"])
        if image is None:
            cause = f'failed to resolve reference "{reference}": {reference}: not found'
            raise WaitError("ErrImagePull", refused or f'failed to pull and unpack image "{reference}": {cause}')
        self.kubelet.runtime.images.add(reference)
        self._event("Pulled", f'Successfully pulled image "{reference}"', container=spec["name"])
        return image

    def _container(self, spec: Document, image: Any, nri_devices: tuple[str, ...]) -> Container:
        """The container as the runtime makes it. WaitError if its configuration or its devices are not there."""
        assert self._volumes is not None
        host = self.kubelet.host
        known = {**self.status, "hostIP": node_ip(self.kubelet.name), "podIP": self._ip}
        granted = self.kubelet.devices.granted(self.uid, spec["name"])
        try:
            env = environment.environment(self.pod, spec, known, self.kubelet.node_document(), self._lookup)
            mounts = (*self._kernel_mounts(spec), *self._volumes.mounts(spec, env))
        except (environment.ConfigError, volumes.SubPathError) as error:
            raise WaitError("CreateContainerConfigError", str(error)) from error
        env = {**image.env, **env}
        for grant in granted:
            env |= grant.envs
            mounts += tuple(Mount(at, host.root, source, read_only) for at, source, read_only in grant.mounts)
        named = [name for grant in granted for name in (*grant.cdi_devices, *_annotated(grant.annotations))]
        named += nri_devices
        handler = self._handler()
        try:
            added = injection.inject(host, handler=handler, env=env, named=named)
        except (injection.InjectionError, HostError) as error:
            raise WaitError("CreateContainerError", str(error)) from error
        env |= added.env
        mounts += tuple(Mount(at, host.root, source, read_only) for at, source, read_only in added.mounts)
        rootfs = self.kubelet.rootfs(f"/var/lib/containerd/rootfs/{self.uid}/{spec['name']}")
        for path, content in image.files.items():
            rootfs.write_atomic(path, content, mode=0o755)
        return Container(
            host=host,
            clock=self.kubelet.clock,
            registry=self.kubelet.programs,
            pod={**self.pod, "status": known},
            spec=spec,
            image=image,
            rootfs=rootfs,
            mounts=mounts,
            gpus=added.gpus,
            driver_injected=added.driver,
            handler=handler,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **self._service_env(), **env},
            peers=self._peers,
            identity=self._identity,
            device_rules=host.rules_dropped,
        )

    def _peers(self) -> Iterator[Container]:
        """The containers whose processes this pod's see: the pod's or all of the node, where it asks for that."""
        spec, runtime = self.pod["spec"], self.kubelet.runtime
        if spec.get("hostPID"):
            yield from runtime.running()
        elif spec.get("shareProcessNamespace"):
            yield from runtime.running(self.uid)

    def _identity(self) -> Config:
        """How the pod's service account reaches the API server."""
        account, namespace = self.pod["spec"].get("serviceAccountName", "default"), self.pod["metadata"]["namespace"]
        return nodeprograms.identity(self.kubelet.api, account, namespace)

    def _kernel_mounts(self, spec: Document) -> Iterator[Mount]:
        """What every container sees of the kernel; a privileged one also sees all devices."""
        root = self.kubelet.host.root
        yield Mount("/proc", root, "/proc", read_only=True)
        yield Mount("/sys", root, "/sys", read_only=True)
        if (spec.get("securityContext") or {}).get("privileged"):
            yield Mount("/dev", root, "/dev")

    def _service_env(self) -> dict[str, str]:
        meta = self.pod["metadata"]
        return {
            "HOSTNAME": self.pod["spec"].get("hostname") or meta["name"],
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }

    async def _post_start(self, state: ContainerState, process: Process) -> None:
        hook = (state.spec.get("lifecycle") or {}).get("postStart")
        if hook and not await self._hook(hook, process):
            self._event("FailedPostStartHook", "PostStartHook failed", warning=True, container=state.name)
            await self.kubelet.runtime.stop(process, self._grace())

    async def _hook(self, hook: Document, process: Process) -> bool:
        if "sleep" in hook:
            await self.kubelet.clock.sleep(hook["sleep"]["seconds"])
            return True
        good, _ = await probes.once({**hook, "timeoutSeconds": 3600}, process, self.kubelet.runtime, self.kubelet.clock)
        return good

    # --- probes -------------------------------------------------------------------------------------------------------

    def _probe(self, state: ContainerState, process: Process) -> None:
        """Start the probes of a container that has just started or was found running."""
        if state.probed == process.id:
            return
        state.stop_probes()
        state.probed = process.id
        if "startupProbe" in state.spec:
            self._watch(state, process, "startup", self._after_startup)
        else:
            self._after_startup(state, process)

    def _after_startup(self, state: ContainerState, process: Process) -> None:
        state.started = True
        state.ready = "readinessProbe" not in state.spec
        if "readinessProbe" in state.spec:
            self._watch(state, process, "readiness", None)
        if "livenessProbe" in state.spec:
            self._watch(state, process, "liveness", None)
        self.wake()

    def _watch(self, state: ContainerState, process: Process, kind: str, then: Any) -> None:
        def report(good: bool, message: str) -> None:
            if state.probed != process.id:
                return
            if not good:
                text = f"{kind.capitalize()} probe failed: {message}"
                self._event("Unhealthy", text, warning=True, container=state.name)
            if kind == "readiness":
                state.ready = good
                self.wake()
            elif not good:
                text = f"Container {state.name} failed {kind} probe, will be restarted"
                self._event("Killing", text, container=state.name)
                self.kubelet.background(self._stop(state, self._grace()))
            elif then is not None:
                task.cancel()
                state.tasks.remove(task)
                then(state, process)

        work = probes.watch(state.spec[f"{kind}Probe"], process, self.kubelet.runtime, self.kubelet.clock, report)
        task = asyncio.create_task(work, name=f"probe:{kind}:{state.name}")
        state.tasks.append(task)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _grace(self) -> float:
        meta, spec = self.pod["metadata"], self.pod["spec"]
        given = meta.get("deletionGracePeriodSeconds")
        return float(spec.get("terminationGracePeriodSeconds", 30) if given is None else given)

    async def _stop(self, state: ContainerState, grace_s: float) -> None:
        """preStop, then SIGTERM, then SIGKILL, all within the grace period."""
        process = self._process(state)
        if process is None or not process.running:
            return
        begin = self.kubelet.clock.monotonic()
        hook = (state.spec.get("lifecycle") or {}).get("preStop")
        if hook and grace_s > 0:
            try:
                async with self.kubelet.clock.timeout(grace_s + self.kubelet.clock.speed):
                    if not await self._hook(hook, process):
                        self._event("FailedPreStopHook", "PreStopHook failed", warning=True, container=state.name)
            except TimeoutError:
                self._event("FailedPreStopHook", "PreStopHook did not end in time", warning=True, container=state.name)
        left = max(grace_s - (self.kubelet.clock.monotonic() - begin), min(grace_s, 2.0))
        await self.kubelet.runtime.stop(process, left, self.gone)

    async def _terminate(self) -> None:
        """End a pod that was deleted, then confirm it to the API server."""
        for state in (*self.inits, *self.mains):
            for task in state.tasks:
                task.cancel()
        grace = self._grace()
        running = [state for state in self.mains + self.inits if (p := self._process(state)) and p.running]
        for state in running:
            self._event("Killing", f"Stopping container {state.name}", container=state.name)
        passing = [state for state in running if not state.sidecar]
        await asyncio.gather(*(self._stop(state, grace) for state in passing))
        for state in reversed([state for state in running if state.sidecar]):
            await self._stop(state, grace)
        for state in (*self.inits, *self.mains):
            state.ready, state.waiting = False, None
            state.done = self._process(state) is not None
        if not self.gone.is_set():
            if self._admitted:
                self.publish()
            self._confirm()
        self._clean_up()

    def _confirm(self) -> None:
        meta = self.pod["metadata"]
        try:
            self.kubelet.api.delete(
                resources.PODS, meta["name"], meta["namespace"], preconditions={"uid": self.uid}, grace_period_s=0
            )
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    def _clean_up(self) -> None:
        """Give back everything the pod had on the node."""
        self.kubelet.runtime.forget(self.uid)
        self.kubelet.devices.release(self.uid)
        self.kubelet.host.root.remove(volumes.pod_folder(self.uid))
        self.kubelet.host.root.remove(f"/var/lib/containerd/rootfs/{self.uid}")

    # --- status -------------------------------------------------------------------------------------------------------

    def _facts(self, state: ContainerState, *, held: bool) -> ContainerFacts:
        runtime = self.kubelet.runtime
        process = self._process(state)
        waiting = state.waiting or (Waiting("PodInitializing") if held else None)
        if process is not None and not process.running and not state.done and waiting is None:
            waiting = Waiting("ContainerCreating")
        done_init = state.done and process is not None and process.exit_code == 0 and state.spec in self._init_specs
        return ContainerFacts(
            spec=state.spec,
            process=process,
            previous=runtime.previous(self.uid, state.name),
            waiting=waiting,
            ready=state.ready or (done_init and not state.sidecar),
            started=state.started,
            done=state.done,
        )

    @property
    def _init_specs(self) -> list[Document]:
        return [state.spec for state in self.inits]

    def publish(self) -> None:
        """Write the pod's status if it has changed."""
        initialising = not all(self._passed(state) for state in self.inits)
        sandbox = bool(self.kubelet.runtime.sandbox(self.uid))
        inits = [self._facts(state, held=sandbox and initialising) for state in self.inits]
        mains = [self._facts(state, held=initialising) for state in self.mains]
        facts = status.PodFacts(
            spec=self.pod["spec"],
            old_status=self.status,
            host_ip=node_ip(self.kubelet.name),
            pod_ip=self._ip,
            started_at=self._started_at,
            sandbox=sandbox,
            now=rfc3339(self.kubelet.clock.now()),
        )
        self._write(status.pod_status(facts, inits, mains))

    def _write(self, document: dict[str, Any]) -> None:
        if document == self.status:
            return
        meta = self.pod["metadata"]
        current = self.kubelet.api.find(resources.PODS, meta["name"], meta["namespace"])
        if current is None or current["metadata"]["uid"] != self.uid:
            return  # the pod is gone: its deletion is on its way to us
        body = {**current, "status": document}
        self.pod = self.kubelet.api.update(
            resources.PODS, body, ns=meta["namespace"], subresource="status", manager="kubelet"
        )
        self.status = document


def _annotated(annotations: Mapping[str, str]) -> list[str]:
    return [
        name
        for key, value in annotations.items()
        if key.startswith(injection.CDI_PREFIX)
        for name in value.split(",")
        if name
    ]
