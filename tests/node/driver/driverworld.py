"""A cluster with one node, its kernel, its operands and its workloads, and the driver manager on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.fakeprocess import FakeProcess

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.lab import access, http, resources
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults
from groundplane.node.driver import labels, main
from groundplane.node.mounts import points
from groundplane.node.process import Completed, Listed
from groundplane.operands import rbac

USER, ME, NAMESPACE, JOBS = "driver-manager", "gpu-node-1", "gpu-operator", "jobs"
PID, STATE, ROOT, MOUNTINFO = (
    names.DRIVER_PID_FILE,
    names.DRIVER_STATE_FILE,
    names.DRIVER_ROOT,
    "/proc/self/mountinfo",
)
ENV = {
    "NODE_NAME": ME,
    "OPERATOR_NAMESPACE": NAMESPACE,
    "ENABLE_GPU_POD_EVICTION": "true",
    "ENABLE_AUTO_DRAIN": "false",
    "DRAIN_USE_FORCE": "false",
    "DRAIN_POD_SELECTOR_LABEL": "",
    "DRAIN_TIMEOUT_SECONDS": "0s",
    "DRAIN_DELETE_EMPTYDIR_DATA": "false",
    "DRIVER_CONFIG_DIGEST": "new",
}
"""As the operator's driver DaemonSet has it."""
DRIVER = ("nvidia", "nvidia_uvm", "nvidia_modeset")
OPERANDS = {
    names.DEPLOY_OPERATOR_VALIDATOR: "nvidia-operator-validator",
    names.DEPLOY_TOOLKIT: "nvidia-container-toolkit-daemonset",
    names.DEPLOY_DEVICE_PLUGIN: "nvidia-device-plugin-daemonset",
    names.DEPLOY_GFD: "gpu-feature-discovery",
    names.DEPLOY_DCGM_EXPORTER: "nvidia-dcgm-exporter",
    names.DEPLOY_DCGM: "nvidia-dcgm",
    names.DEPLOY_MIG_MANAGER: "nvidia-mig-manager",
}
ON = dict.fromkeys((*OPERANDS, names.DEPLOY_DRIVER, names.DEPLOY_NODE_STATUS_EXPORTER), "true")
MOUNTS = f"""\
600 500 0:50 / / rw - overlay overlay rw
601 600 0:51 / /run/nvidia rw shared:1 - tmpfs tmpfs rw
602 601 0:52 / {ROOT} rw shared:2 - overlay overlay rw
603 602 0:53 / {ROOT}/proc rw - proc proc rw
604 602 0:54 / {ROOT}/dev rw - tmpfs tmpfs rw
605 604 0:55 / {ROOT}/dev/with\\040space rw - tmpfs tmpfs rw
606 601 0:56 / {ROOT}-other rw - tmpfs tmpfs rw
"""


class Killed(BaseException):
    """The program is no more."""


class Gate:
    """Counts what a program does to the world; from the chosen act on it is no more."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.acts: list[str] = []

    def pass_through(self, act: str) -> None:
        if self.at is not None and len(self.acts) >= self.at:
            raise Killed
        self.acts.append(act)


class GatedClient:
    """A client whose writes pass a gate, and let the cluster's controllers do their work."""

    def __init__(self, client: Client, world: "World") -> None:
        self._client, self._world = client, world

    async def __aenter__(self) -> "GatedClient":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in ("patch", "create"):
            return found

        async def call(kind: Any, *args: Any, **more: Any) -> Any:
            self._world.gate.pass_through(_told(name, args, more))
            answer = await found(kind, *args, **more)
            self._world.tick()  # at once: nothing here depends on how fast this machine is
            return answer

        return call


def _told(verb: str, args: tuple[Any, ...], more: Mapping[str, Any]) -> str:
    if verb == "create":
        return f"evict {more['name']}"
    body = args[1]
    if "spec" in body:
        return "cordon" if body["spec"]["unschedulable"] else "uncordon"
    found = body["metadata"]["labels"]
    if set(found) <= {names.DEPLOY_DRA_DRIVER, names.DEPLOY_DRIVER}:
        return "label " + ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in found.items())
    return "pause" if any(labels.PAUSED in value for value in found.values()) else "restore"


class DriverProcess(FakeProcess):
    """The manager's process: whoever waits lets the cluster's controllers do their work."""

    world: "World"

    async def sleep(self, seconds: float) -> None:
        self.world.slept.append(seconds)
        self.world.tick()
        await super().sleep(seconds)

    def path(self, path: str) -> Path:
        if path in (PID, STATE):
            self.world.gate.pass_through(f"file {path.rpartition('.')[2]}")
        return super().path(path)


class World:
    """What a test sees and does."""

    def __init__(self, folder: Path, release: Release = Release.DEFAULT) -> None:
        self.folder, self.release = folder, release
        self.api, self.faults = Api(seed=1, rbac=True), Faults()
        self.url = ""
        self.gate = Gate()
        self.slept: list[float] = []
        self.pace = 500.0
        """Seconds of the program's a real second."""
        self.stuck: set[str] = set()
        """Pods that do not go, though they are asked to."""
        self.uses: dict[str, int] = {}
        """How often modules are used, besides by each other."""
        self.host_driver = ""
        self.listed: list[Listed] = []
        self.tell: Callable[[str], None] = lambda _: None
        """Is told each command of the host before it is done."""
        for space in (NAMESPACE, JOBS):
            self.api.create(resources.NAMESPACES, {"metadata": {"name": space}})
        self._grant()
        self.api.create(resources.NODES, {"metadata": {"name": ME, "labels": dict(ON)}})
        for key, app in OPERANDS.items():
            self.pod(app, app, nodeSelector={key: "true"})
        self.process = self.new()
        self.process.write_kernel("/proc/modules", "")
        self.process.write(MOUNTINFO, MOUNTS)
        self.process.root.mkdir(ROOT)

    def _grant(self) -> None:
        """The rights that the operator gives the manager, and no more."""
        given = [
            rule.policy().to_dict()
            for rule in rbac.ACCOUNTS["nvidia-driver"].cluster
            if rule.only in (None, self.release)
        ]
        meta, group = {"metadata": {"name": USER}}, "rbac.authorization.k8s.io"
        self.api.create(resources.CLUSTER_ROLES, {**meta, "rules": given})
        reference = {"apiGroup": group, "kind": "ClusterRole", "name": USER}
        subjects = [{"apiGroup": group, "kind": "User", "name": USER}]
        self.api.create(resources.CLUSTER_ROLE_BINDINGS, {**meta, "roleRef": reference, "subjects": subjects})

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["World"]:
        """The API server is there, and controllers do their work."""
        user = access.User(USER, ("system:authenticated",))
        server = await http.serve(self.api, faults=self.faults, tokens={USER: user})
        self.url = server.url
        working = asyncio.create_task(self._work())
        try:
            yield self
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await server.close()

    async def _work(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(0.002)

    def tick(self) -> None:
        """What DaemonSet controller and kubelet do: operands go when their label is no more, and pods end."""
        found = self.labels
        for pod in self.api.list(resources.PODS)["items"]:
            meta, selector = pod["metadata"], pod["spec"].get("nodeSelector") or {}
            if meta["name"] in self.stuck:
                continue
            away = any(found.get(key) != value for key, value in selector.items())
            if away or "deletionTimestamp" in meta:
                self.api.delete(resources.PODS, meta["name"], meta["namespace"], grace_period_s=0)

    # --- the machine --------------------------------------------------------------------------------------------------

    def new(self, word: str = "uninstall_driver", **env: str) -> DriverProcess:
        given = {key: value for key, value in {**ENV, **env}.items() if value != "unset"}
        process = DriverProcess(
            self.folder,
            ("driver-manager", word),
            given,
            make_client=self._client,
            release=self.release,
            pace=self.pace,
        )
        process.world = self
        process.listed = self.listed
        process.commands |= {"chroot": self._chroot, "rmmod": self._rmmod, "umount": self._umount}
        return process

    def _client(self) -> Any:
        retry = Retry(attempts=1)
        return GatedClient(Client(Config(server=self.url, token=USER), retry=retry), self)

    def load(self, *modules: str, digest: str | None = None) -> None:
        """Load modules, and with a digest let the driver's container have done it."""
        rows = self.process.kernel.read_text("/proc/modules")
        for module in modules:
            self.process.write_kernel(f"/sys/module/{module}/refcnt", "0\n")
            rows += f"{module} 16384 {self._used(module)} {module}_user, Live 0x0\n"
        self.process.write_kernel("/proc/modules", rows)
        if digest is not None:
            self.process.root.write_atomic(STATE, f"{digest}\n")
            self.process.root.write_atomic(PID, "1\n")

    def loaded(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.process.kernel.glob("/sys/module/*")}

    def _used(self, module: str) -> int:
        others = self.loaded() - {"nvidia"} if module == "nvidia" else set()
        return self.uses.get(module, 0) + sum(1 for other in others if other.startswith("nvidia"))

    def _rmmod(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        self._does(" ".join(argv))
        module = argv[1]
        if self._used(module):
            return Completed(1, "", f"rmmod: ERROR: Module {module} is in use\n")
        kernel = self.process.kernel
        kernel.remove(f"/sys/module/{module}")
        rows = [row for row in kernel.read_text("/proc/modules").splitlines() if row.split()[0] != module]
        kernel.write_atomic("/proc/modules", "".join(f"{row}\n" for row in rows))
        return Completed(0, "", "")

    def _umount(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        assert tuple(argv[:2]) == ("umount", "-l")
        self._does(" ".join(argv))
        lines = self.process.root.read_text(MOUNTINFO).splitlines()
        if argv[2] in self.stuck:
            return Completed(32, "", f"umount: {argv[2]}: target is busy.")
        kept = [line for line in lines if list(points(line, argv[2])) == []]
        self.process.write(MOUNTINFO, "".join(f"{line}\n" for line in kept))
        return Completed(0, "", "")

    def _chroot(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        assert tuple(argv) == ("chroot", "/host", "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if not self.host_driver:
            return Completed(127, "", "chroot: failed to run command 'nvidia-smi': No such file or directory")
        return Completed(0, f"{self.host_driver}\n{self.host_driver}\n", "")

    def _does(self, act: str) -> None:
        self.gate.pass_through(act)
        self.tell(act)

    def file(self, path: str) -> str | None:
        real = self.process.root.path(path)
        return real.read_text() if real.exists() else None

    def mounted(self) -> list[str]:
        return list(points(self.process.root.read_text(MOUNTINFO), ROOT))

    # --- the cluster --------------------------------------------------------------------------------------------------

    @property
    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(resources.NODES, ME)
        return found

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"].get("labels") or {}
        return found

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"].get("annotations") or {}
        return found

    @property
    def cordoned(self) -> bool:
        return bool(self.node.get("spec", {}).get("unschedulable"))

    def change(self, *, cordon: bool | None = None, **meta: Any) -> None:
        spec = {} if cordon is None else {"spec": {"unschedulable": cordon or None}}
        self.api.patch(resources.NODES, ME, {"metadata": meta, **spec}, type="merge")

    def policy(self, value: str | None = "true") -> None:
        self.change(annotations={names.DRIVER_UPGRADE_ENABLED: value})

    def pod(
        self, name: str, app: str = "", *, namespace: str = NAMESPACE, owner: str = "DaemonSet", **spec: Any
    ) -> None:
        owners = (
            [{"apiVersion": "apps/v1", "kind": owner, "name": "d", "uid": "u", "controller": True}] if owner else []
        )
        phase = spec.pop("phase", "Running")
        meta = {"name": name, "labels": {"app": app} if app else {}, "ownerReferences": owners}
        body = {"nodeName": ME, "containers": [{"name": "c", "image": "i"}], **spec}
        made = self.api.create(resources.PODS, {"metadata": meta, "spec": body}, namespace)
        self.api.update(resources.PODS, {**made, "status": {"phase": phase}}, ns=namespace, subresource="status")

    def job(self, name: str, *, owner: str = "Job", resource: str = "nvidia.com/gpu", **spec: Any) -> None:
        """A pod that uses a GPU, or with another resource, does not."""
        limits = {"limits": {resource: "1"}, "requests": {resource: "1"}}
        containers = [{"name": "c", "image": "i", "resources": limits}]
        self.pod(name, namespace=JOBS, owner=owner, containers=containers, **spec)

    def claim(self, name: str, driver: str | None = "gpu.nvidia.com", *, admin: bool = False) -> dict[str, Any]:
        """A ResourceClaim that was given a device; what a pod's spec says of it."""
        request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        made = self.api.create(resources.RESOURCE_CLAIMS, body, JOBS)
        if driver:
            device = {
                "request": "r",
                "driver": driver,
                "pool": ME,
                "device": "gpu-0",
                **({"adminAccess": True} if admin else {}),
            }
            state = {"allocation": {"devices": {"results": [device]}}}
            self.api.update(resources.RESOURCE_CLAIMS, {**made, "status": state}, ns=JOBS, subresource="status")
        return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}

    def pods(self, namespace: str = JOBS) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.api.list(resources.PODS, namespace)["items"]}

    def writes(self) -> list[str]:
        """What was done to the node's object and to pods, in order."""
        return [
            act
            for act in self.gate.acts
            if act.split()[0] in ("pause", "restore", "label", "cordon", "uncordon", "evict")
        ]

    # --- the program --------------------------------------------------------------------------------------------------

    async def run(self, word: str = "uninstall_driver", **env: str) -> int:
        """Run the manager to its end; its exit code, -1 if it was killed."""
        self.process = self.new(word, **env)
        try:
            async with asyncio.timeout(30):
                return await main.run(self.process)
        except Killed:
            return -1

    @property
    def log(self) -> str:
        return self.process.stderr
