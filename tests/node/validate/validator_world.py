"""A node and its cluster, for tests of the validator: files, commands, an API server with access control, a kubelet."""

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.fakeprocess import FakeProcess, until

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.lab import access, http, resources
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults
from groundplane.node.process import Completed
from groundplane.node.validate import driver, main

NODE, NAMESPACE, VALIDATOR = "n1", "gpu-operator", "nvidia-operator-validator"
READ = ["get", "list", "watch"]
CLUSTER_RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": READ}]
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", *READ, "update", "patch", "delete"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": READ},
]
"""What the validator's service account may do."""
OWNER = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "name": "cluster-policy",
    "uid": "0f4d",
    "controller": True,
    "blockOwnerDeletion": True,
}
TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
PACE = 400.0
"""Seconds of the program a real second."""
DRIVER_DIR = names.DRIVER_ROOT
PROC_DEVICES = "Character devices:\n195 nvidia\n235 nvidia-caps\n505 nvidia-uvm\n"
SMI = "nvidia-smi"


class World:
    """A cluster with one node, and the program on it."""

    def __init__(self, folder: Path, release: Release = Release.DEFAULT) -> None:
        self.api, self.faults = Api(seed=1, rbac=True), Faults()
        self.process = FakeProcess(folder, ["nvidia-validator"], release=release, pace=PACE)
        self.process.make_client = self.make_client
        self.url = ""
        self.running: asyncio.Task[int] | None = None
        self.server: Any = None
        self.kubelet: asyncio.Task[None] | None = None
        self.smi_code = 0
        self.smi_env: list[Mapping[str, str]] = []
        self.process.commands = {SMI: self._smi, "chroot": self._chroot}
        self.process.root.mkdir("/run/nvidia")
        self.process.root.mkdir(driver.DEV_CHAR)
        self.api.create(resources.NODES, {"metadata": {"name": NODE}})
        self.api.create(resources.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        self.api.create(resources.SERVICE_ACCOUNTS, {"metadata": {"name": VALIDATOR}}, NAMESPACE)
        self._grant()

    def _grant(self) -> None:
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "validator"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "name": "validator"}
        role = {"metadata": {"name": "validator"}}
        self.api.create(resources.CLUSTER_ROLES, {**role, "rules": CLUSTER_RULES})
        self.api.create(
            resources.CLUSTER_ROLE_BINDINGS,
            {**role, "roleRef": {**reference, "kind": "ClusterRole"}, "subjects": [user]},
        )
        self.api.create(resources.ROLES, {**role, "rules": RULES}, NAMESPACE)
        self.api.create(
            resources.ROLE_BINDINGS, {**role, "roleRef": {**reference, "kind": "Role"}, "subjects": [user]}, NAMESPACE
        )

    def make_client(self) -> Client:
        return Client(Config(server=self.url, token="validator"))

    async def __aenter__(self) -> "World":
        user = access.User("validator", ("system:authenticated",))
        self.server = await http.serve(self.api, faults=self.faults, tokens={"validator": user})
        self.url = self.server.url
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self.running, self.kubelet):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.server.close()

    # --- the machine --------------------------------------------------------------------------------------------------

    def _smi(self, _argv: Sequence[str], env: Mapping[str, str], _stdin: str) -> Completed:
        self.smi_env.append(env)
        if self.smi_code:
            return Completed(self.smi_code, "NVIDIA-SMI has failed\n", "")
        return Completed(0, "NVIDIA-SMI 580.126.20\n", "")

    def _chroot(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        if argv[2].endswith(SMI):
            return self._smi(argv[2:], env, stdin)
        return Completed(0, "", "")

    def host_tool(self, path: str = "/usr/bin/nvidia-smi", text: str = "#!", mode: int = 0o755) -> None:
        """Put the driver's tool on the host."""
        self.process.write(driver.HOST + path, text).chmod(mode)

    def container_driver(self, *, dev: bool = False, folder: str = "/usr/lib/x86_64-linux-gnu") -> None:
        """Put a driver into the driver root."""
        self.process.write(f"{DRIVER_DIR}{folder}/libnvidia-ml.so.1", "elf")
        self.process.write(f"{DRIVER_DIR}/usr/bin/{SMI}", "elf")
        if dev:
            self.process.root.mkdir(f"{DRIVER_DIR}/dev")

    def devices(self, *, loaded: bool = True) -> None:
        """Let the machine have a GPU whose module is loaded."""
        self.pci("0000:19:00.0")
        self.process.root.mkdir("/host/dev")
        self.process.write_kernel("/proc/devices", PROC_DEVICES)
        if loaded:
            self.process.write_kernel(driver.MODULE, "1\n")

    def pci(
        self, address: str, *, kind: str = "0x030200", vendor: str = "0x10de", bound: str = "", **more: str
    ) -> None:
        """Put a device on the PCI bus, maybe bound to a driver, with further files of its folder."""
        folder = f"/sys/bus/pci/devices/{address}"
        for name, value in {"vendor": vendor, "class": kind, **more}.items():
            self.process.write_kernel(f"{folder}/{name}", f"{value}\n")
        if bound:
            self.process.kernel.symlink(f"{folder}/driver", f"/sys/bus/pci/drivers/{bound}")

    def modules(self, *names: str) -> None:
        """Let kernel modules be loaded."""
        self.process.write_kernel("/proc/modules", "".join(f"{name} 16384 0 - Live 0x0\n" for name in names))

    def driver_container(self, flags: str = "", *, owner: Mapping[str, Any] | None = OWNER, ready: bool = True) -> None:
        """Let the operator run a driver container."""
        self.daemon_set("nvidia-driver-daemonset", owner, {names.COMPONENT_LABEL: names.DRIVER_COMPONENT})
        if ready:
            self.process.write(f"{names.VALIDATIONS_DIR}/.driver-ctr-ready", flags)

    # --- the cluster --------------------------------------------------------------------------------------------------

    def daemon_set(
        self, name: str, owner: Mapping[str, Any] | None, labels: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        selector = {"app": name}
        pod = {"containers": [{"name": "c", "image": "i"}], "tolerations": TOLERATIONS}
        document = {
            "metadata": {"name": name, "labels": dict(labels or {}), "ownerReferences": [dict(owner)] if owner else []},
            "spec": {
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": selector}, "spec": pod},
            },
        }
        return self.api.create(resources.DAEMON_SETS, document, NAMESPACE)

    def validator(self) -> None:
        """Let the validator's DaemonSet exist."""
        self.daemon_set(VALIDATOR, OWNER)

    def label(self, **labels: str | None) -> None:
        """Label the node; dots and slashes are given by a mapping: `label(**{...})`."""
        self.api.patch(resources.NODES, NODE, {"metadata": {"labels": labels}}, type="merge", manager="test")

    def resources(self, capacity: Mapping[str, str], allocatable: Mapping[str, str] | None = None) -> None:
        """Let the node have resources; as many are allocatable unless it is said."""
        status = {"capacity": dict(capacity), "allocatable": dict(capacity if allocatable is None else allocatable)}
        self.api.patch(resources.NODES, NODE, {"status": status}, type="merge", subresource="status", manager="kubelet")

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.list(resources.PODS, NAMESPACE)["items"]
        return found

    def pod_status(self, name: str, **status: Any) -> None:
        body = {"status": status}
        self.api.patch(resources.PODS, name, body, ns=NAMESPACE, type="merge", subresource="status", manager="kubelet")

    def start_kubelet(self, phase: str = "Succeeded") -> None:
        """Let pods reach a phase as soon as they are there."""

        async def work() -> None:
            while True:
                for pod in self.pods():
                    if (pod.get("status") or {}).get("phase") != phase:
                        self.pod_status(pod["metadata"]["name"], phase=phase)
                await asyncio.sleep(0.005)

        self.kubelet = asyncio.create_task(work())

    # --- the program --------------------------------------------------------------------------------------------------

    def start(self, component: str, **env: str) -> None:
        defaults = {
            "COMPONENT": component,
            "NODE_NAME": NODE,
            "OPERATOR_NAMESPACE": NAMESPACE,
            "VALIDATOR_IMAGE": "v:1",
        }
        self.process.env = {key: value for key, value in {**defaults, **env}.items() if value != "-"}
        self.running = asyncio.create_task(main.run(self.process))

    async def run(self, component: str, **env: str) -> int:
        """Run the program to its end; its exit code. A variable that is "-" is not set."""
        self.start(component, **env)
        assert self.running is not None
        return await asyncio.wait_for(self.running, 30)

    async def ended(self) -> int:
        assert self.running is not None
        return await asyncio.wait_for(self.running, 30)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.running is not None
        self.process.send(number)
        return await asyncio.wait_for(self.running, 30)

    def status(self, name: str) -> str | None:
        """A status file's content, or None."""
        path = self.process.path(f"{names.VALIDATIONS_DIR}/{name}")
        return path.read_text() if path.exists() else None

    def files(self) -> set[str]:
        """All status files."""
        folder = self.process.path(names.VALIDATIONS_DIR)
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    async def logged(self, text: str) -> None:
        await until(lambda: text in self.process.stderr, f"{text!r} in the log")
