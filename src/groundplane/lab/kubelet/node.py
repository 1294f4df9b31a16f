"""The Node object and its Lease: registration, what the node offers, and heartbeats.

Capacity of device plugin resources comes from the device manager. Labels of node feature discovery and GPU features are
other programs' work.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from .. import resources
from ..amounts import exact as amount
from ..api import Api
from ..clock import LabClock, rfc3339_micro
from ..host import K3S_FILE, SimulatedHost
from ..status import StatusError

KUBELET_VERSION = "v1.34.4"
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
HEARTBEAT_S = 10.0
LEAST_REAL_HEARTBEAT_S = 0.25
"""Heartbeats are never closer than this in real time, so that a fast clock does not flood the API."""

BASE_CAPACITY = {
    "cpu": "64",
    "memory": "1056489640Ki",
    "ephemeral-storage": "937380968Ki",
    "pods": "110",
    "hugepages-1Gi": "0",
    "hugepages-2Mi": "0",
}
RESERVED = {"cpu": "0", "memory": "100Mi", "ephemeral-storage": "0", "pods": "0"}
_READY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_OS_IMAGES = {
    "ubuntu": "Ubuntu {} LTS",
    "rhel": "Red Hat Enterprise Linux {}",
    "rhcos": "Red Hat Enterprise Linux CoreOS {}",
}


def node_ip(name: str) -> str:
    """A stable address for a node: 10.0.x.y by its name."""
    digest = hashlib.sha256(name.encode()).digest()
    return f"10.0.{digest[0]}.{digest[1] % 254 + 1}"


def node_labels(host: SimulatedHost) -> dict[str, str]:
    """The labels a kubelet gives its node, and those of the node file."""
    spec = host.spec
    return {
        "beta.kubernetes.io/arch": spec.arch,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": spec.arch,
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        **spec.labels,
    }


def node_status(
    host: SimulatedHost, devices: Mapping[str, tuple[int, int]], old: Mapping[str, Any], now: str
) -> dict[str, Any]:
    """The node's status; `devices` maps each plugin resource to capacity and allocatable."""
    capacity = {**BASE_CAPACITY, **host.spec.capacity}
    allocatable = {key: _less(value, RESERVED.get(key, "0")) for key, value in capacity.items()}
    for name, (total, free) in devices.items():
        capacity[name], allocatable[name] = str(total), str(free)
    before = {condition["type"]: condition for condition in old.get("conditions") or ()}
    conditions = []
    for kind, state, reason, message in _READY:
        known = before.get(kind, {})
        since = known.get("lastTransitionTime", now) if known.get("status") == state else now
        conditions.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }
        )
    return {
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": node_ip(host.spec.name)},
            {"type": "Hostname", "address": host.spec.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": _node_info(host),
        "images": [],
    }


def _node_info(host: SimulatedHost) -> dict[str, str]:
    spec = host.spec
    machine = host.root.read_text("/etc/machine-id").strip()
    return {
        "machineID": machine,
        "systemUUID": machine,
        "bootID": machine,
        "kernelVersion": host.kernel,
        "osImage": _OS_IMAGES.get(spec.os.id, spec.os.id + " {}").format(spec.os.version_id),
        "containerRuntimeVersion": f"{spec.runtime.name}://{spec.runtime.version}",
        "kubeletVersion": _kubelet_version(host),
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": spec.arch,
    }


def _kubelet_version(host: SimulatedHost) -> str:
    return f"{KUBELET_VERSION}+k3s1" if host.root.exists(K3S_FILE) else KUBELET_VERSION


def _less(total: str, reserved: str) -> str:
    if amount(reserved) == 0:
        return total
    suffix = "Ki" if total.endswith("Ki") else ""
    return f"{int((amount(total) - amount(reserved)) / amount('1' + suffix))}{suffix}"


class NodeAgent:
    """Keeps the Node object and the Lease of one node."""

    def __init__(self, api: Api, clock: LabClock, host: SimulatedHost) -> None:
        self._api = api
        self._clock = clock
        self._host = host
        self._name = host.spec.name
        self._written: Mapping[str, Any] | None = None
        self._period = max(HEARTBEAT_S, LEAST_REAL_HEARTBEAT_S * clock.speed)

    def register(self, devices: Mapping[str, tuple[int, int]]) -> None:
        """Create the Node, or take over the one that is there, then write status and lease."""
        if self._api.find(resources.NODES, self._name) is None:
            spec: dict[str, Any] = {}
            if self._host.spec.taints:
                spec["taints"] = [
                    {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}
                    for taint in self._host.spec.taints
                ]
            document = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": self._name,
                    "labels": node_labels(self._host),
                    "annotations": {
                        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                        **self._host.spec.annotations,
                    },
                },
                "spec": spec,
            }
            self._api.create(resources.NODES, document, manager="kubelet")
        self._written = None
        self.update(devices)
        self.beat()

    def update(self, devices: Mapping[str, tuple[int, int]]) -> None:
        """Write the status if the node offers something else than before."""
        node = self._api.find(resources.NODES, self._name)
        if node is None:
            return
        wanted = {
            "devices": {name: dict(zip(("total", "free"), pair, strict=True)) for name, pair in devices.items()},
            "kubelet": _kubelet_version(self._host),
        }
        if self._written == wanted:
            return
        status = node_status(self._host, devices, node.get("status") or {}, self._clock.timestamp())
        self._api.update(resources.NODES, {**node, "status": status}, subresource="status", manager="kubelet")
        self._written = wanted

    def beat(self) -> None:
        """Renew the lease; if the node was marked unreachable meanwhile, write the whole status again."""
        lease = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": max(LEASE_SECONDS, round(4 * self._period)),
            "renewTime": rfc3339_micro(self._clock.now()),
        }
        meta = {"name": self._name, "namespace": LEASE_NAMESPACE}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": lease}
        if self._api.find(resources.LEASES, self._name, LEASE_NAMESPACE) is None:
            self._api.create(resources.LEASES, body, LEASE_NAMESPACE, manager="kubelet")
        else:
            change = {"spec": lease}
            self._api.patch(resources.LEASES, self._name, change, ns=LEASE_NAMESPACE, type="merge", manager="kubelet")

    def healthy(self) -> bool:
        """Whether the Node object still says that this node is ready."""
        node = self._api.find(resources.NODES, self._name)
        if node is None:
            return True
        found = (node.get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found)

    async def heartbeat(self, devices: Any) -> None:
        """Renew the lease for ever; `devices()` gives the resources to write when the status has to be repaired."""
        while True:
            await self._clock.sleep(self._period)
            try:
                if self._api.find(resources.NODES, self._name) is None:
                    continue  # deleted on purpose; only a kubelet that starts registers a node
                self.beat()
                if not self.healthy():
                    self._written = None
                self.update(devices())
            except StatusError:
                await asyncio.sleep(0)  # the API refused this beat; the next one tries again
