"""A cluster with one node, its GPUs, its host's services, and the MIG manager on it."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import Any

import msgspec
from node.fakeprocess import FakeProcess, until
from node.mig.migworld import Killed, Node

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.cluster.client import Client, Retry
from groundplane.cluster.config import Config
from groundplane.lab import access, http, resources
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults
from groundplane.node.mig.manager import main, operands, services
from groundplane.node.process import Completed
from groundplane.operands import rbac

USER = "mig-manager"
ME, NAMESPACE, POD = "gpu-node-1", "gpu-operator", "nvidia-mig-manager-x"
CLIENTS = "version: v1\nsystemd-services: [nvsm.service, dcgm.service, gone.service, off.service]\n"
LAYOUTS = """
version: v1
mig-configs:
  all-disabled:
  - {devices: all, mig-enabled: false}
  small:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 4}}
  large:
  - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}
  too-much:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 9}}
  h100-only:
  - {device-filter: "0x233010DE", devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
  third-only:
  - {devices: [2], mig-enabled: true, mig-devices: {1g.10gb: 4}}
  first-only:
  - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 4}}
"""
ENV = {
    "NODE_NAME": ME,
    "POD_NAME": POD,
    "POD_NAMESPACE": NAMESPACE,
    "DEFAULT_GPU_CLIENTS_NAMESPACE": NAMESPACE,
    "CONFIG_FILE": "/mig-parted-config/config.yaml",
    "GPU_CLIENTS_FILE": "/gpu-clients/clients.yaml",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
}
PAUSABLE = operands.ALWAYS
APPS = {
    names.DEPLOY_DEVICE_PLUGIN: operands.APPS[0],
    names.DEPLOY_GFD: operands.APPS[1],
    names.DEPLOY_DCGM_EXPORTER: operands.APPS[2],
    names.DEPLOY_DCGM: operands.APPS[3],
}
ON = dict.fromkeys(PAUSABLE, "true")


class Unit(msgspec.Struct):
    """A service of the host."""

    active: str = "active"
    load: str = "loaded"
    enabled: str = "enabled"
    kind: str = "simple"


class Gate:
    """Counts what a program does to the world; from the chosen act on it is no more."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.acts = 0

    def pass_through(self) -> None:
        if self.at is not None and self.acts >= self.at:
            raise Killed
        self.acts += 1


class GatedClient:
    """A client whose writes pass a gate."""

    def __init__(self, client: Client, gate: Gate) -> None:
        self._client = client
        self._gate = gate

    async def __aenter__(self) -> "GatedClient":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in ("patch", "apply", "delete", "get"):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            self._gate.pass_through()
            return await found(*args, **more)

        return call


class GatedSource:
    """GPUs whose changes pass a gate."""

    def __init__(self, source: Any, gate: Gate) -> None:
        self._source = source
        self._gate = gate

    def __enter__(self) -> "GatedSource":
        self._source.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._source.__exit__(*args)

    def __getattr__(self, name: str) -> Any:
        if name != "mig":
            return getattr(self._source, name)
        control, gate = self._source.mig(), self._gate

        class Control:
            def __getattr__(self, name: str) -> Any:
                found = getattr(control, name)
                if not name.startswith(("set_", "create_", "destroy_", "reset")):
                    return found

                def call(*args: Any) -> Any:
                    gate.pass_through()
                    return found(*args)

                return call

        return Control


class World:
    """What a test sees and does."""

    def __init__(self, folder: Path, *gpus: Any, release: Release = Release.DEFAULT) -> None:
        self.folder = folder
        self.node = Node(folder, gpus)
        self.node.source.close()
        self.api, self.faults = Api(seed=1, rbac=True), Faults()
        self.release = release
        self.api.create(resources.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        self.grant()
        self.url = ""
        self.gate = Gate()
        self.pace = 2000.0
        """Seconds of the program's a real second; few where it waits for what the test does."""
        self.units = {
            "nvsm.service": Unit(),
            "dcgm.service": Unit("failed"),
            "gone.service": Unit("inactive", "not-found", ""),
            "off.service": Unit("inactive", enabled="disabled"),
            "kubelet.service": Unit(),
        }
        self.done: list[str] = []
        """What was done to the host, and the labels that were written, in order."""
        self.failing: set[str] = set()
        """Commands of the host that fail."""
        self.on_command: Callable[[str], None] = lambda _: None
        self.process = self.new()
        self.running: asyncio.Task[int] | None = None
        self.process.write(ENV["CONFIG_FILE"], LAYOUTS)
        self.process.write(ENV["GPU_CLIENTS_FILE"], CLIENTS)
        self.process.root.mkdir("/host")
        self.api.create(resources.NODES, {"metadata": {"name": ME, "labels": dict(ON)}})

    def grant(self) -> None:
        """Give the manager the rights that the operator gives it, and no more."""
        account = rbac.ACCOUNTS["nvidia-mig-manager"]
        group = "rbac.authorization.k8s.io"
        subjects = [{"apiGroup": group, "kind": "User", "name": USER}]
        meta = {"metadata": {"name": USER}}
        for rules, kind, role, binding, namespace in (
            (account.role, "Role", resources.ROLES, resources.ROLE_BINDINGS, NAMESPACE),
            (account.cluster, "ClusterRole", resources.CLUSTER_ROLES, resources.CLUSTER_ROLE_BINDINGS, None),
        ):
            given = [rule.policy().to_dict() for rule in rules if rule.only in (None, self.release)]
            reference = {"apiGroup": group, "kind": kind, "name": USER}
            self.api.create(role, {**meta, "rules": given}, namespace)
            self.api.create(binding, {**meta, "roleRef": reference, "subjects": subjects}, namespace)

    def new(self, **env: str) -> FakeProcess:
        process = FakeProcess(
            self.folder,
            ("nvidia-mig-manager",),
            {**ENV, **env},
            source=GatedSource(self.node.source, self.gate),
            make_client=self.make_client,
            release=self.release,
            pace=self.pace,
        )
        process.commands["chroot"] = self.host
        return process

    async def serve(self) -> http.Server:
        """Start the API server."""
        user = access.User(USER, ("system:authenticated",))
        server = await http.serve(self.api, faults=self.faults, tokens={USER: user})
        self.url = server.url
        return server

    def make_client(self) -> Any:
        retry = Retry(attempts=2, first_s=0.01, max_s=0.01)
        return GatedClient(Client(Config(server=self.url, token=USER), user_agent="mig", retry=retry), self.gate)

    # --- the host -----------------------------------------------------------------------------------------------------

    def host(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        self.gate.pass_through()
        assert tuple(argv[:2]) == ("chroot", "/host")
        assert env["SYSTEMD_IGNORE_CHROOT"] == "1"
        words = list(argv[2:])
        command = " ".join(words)
        self.on_command(command)
        if command in self.failing:
            return Completed(1, "", f"{command} is told to fail")
        if words[:2] == ["systemctl", "show"]:
            unit = self.units.get(words[-1], Unit("inactive", "not-found", ""))
            said = {
                "LoadState": unit.load,
                "ActiveState": unit.active,
                "UnitFileState": unit.enabled,
                "Type": unit.kind,
            }
            return Completed(0, "".join(f"{key}={value}\n" for key, value in said.items()), "")
        self.done.append(command)
        if words[0] == "systemctl" and words[-2:-1] in (["stop"], ["start"]):
            self.units[words[-1]].active = "inactive" if words[-2] == "stop" else "active"
        return Completed(0, "", "")

    def record(self) -> list[str]:
        file = self.folder / "root/host" / services.RECORD.lstrip("/")
        return file.read_text().split() if file.exists() else []

    # --- the cluster --------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(resources.NODES, ME)["metadata"]
        return found

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.metadata.get("labels") or {}
        return found

    @property
    def state(self) -> str:
        return self.labels.get(names.MIG_CONFIG_STATE, "")

    @property
    def failure(self) -> str:
        found: str = (self.metadata.get("annotations") or {}).get(names.MIG_CONFIG_FAILURE, "")
        return found

    def deploy(self) -> dict[str, str]:
        return {key: value for key, value in self.labels.items() if key.startswith(names.DEPLOY_PREFIX)}

    def change(self, **meta: Any) -> None:
        self.api.patch(resources.NODES, ME, {"metadata": meta}, type="merge")

    def ask(self, value: str | None) -> None:
        self.change(labels={names.MIG_CONFIG: value})

    def pod(self, name: str, app: str = "", *, namespace: str = NAMESPACE, node: str = ME, **spec: Any) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
        meta = {"name": name, "labels": {"app": app} if app else {}, "ownerReferences": [owner]}
        body = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], **spec}
        self.api.create(resources.PODS, {"metadata": meta, "spec": body}, namespace)

    def pods(self, namespace: str = NAMESPACE) -> set[str]:
        """Pods that nobody has asked to go."""
        found = self.api.list(resources.PODS, namespace)["items"]
        return {pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def end(self, name: str, namespace: str = NAMESPACE) -> None:
        """Let a pod be gone."""
        if self.api.find(resources.PODS, name, namespace) is not None:
            self.api.delete(resources.PODS, name, namespace, grace_period_s=0)

    # --- the program --------------------------------------------------------------------------------------------------

    def start(self, **env: str) -> None:
        self.process = self.new(**env)
        self.running = asyncio.create_task(main.run(self.process))

    async def stop(self) -> int:
        assert self.running is not None
        self.process.send(SIGTERM)
        return await asyncio.wait_for(self.running, 20)

    async def comes_to(self, state: str) -> None:
        def reached() -> bool:
            if self.running is not None and self.running.done():
                raise AssertionError(f"it has ended: {self.running.result()}\n{self.process.stderr}")
            return self.state == state

        try:
            await until(reached, f"state {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.process.stderr}") from None

    async def logs(self, text: str) -> None:
        await until(lambda: text in self.process.stderr, text)

    async def kill(self) -> None:
        """End the program as SIGKILL does: nothing more is done."""
        self.gate.at = 0
        if self.running is not None:
            self.running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Killed):
                await self.running
        self.revive()

    def revive(self) -> None:
        """What is started from now on may act."""
        self.gate = Gate()

    def configs(self) -> list[dict[str, int]]:
        with self.node.source:
            return self.node.configs()

    def edit_gpu(self, **change: Any) -> None:
        """Change the first GPU's entry in the machine's file."""

        def how(machine: Any) -> Any:
            first, *rest = machine.description.gpus
            return msgspec.structs.replace(machine.description, gpus=(msgspec.structs.replace(first, **change), *rest))

        self.node.machine.change(how)
