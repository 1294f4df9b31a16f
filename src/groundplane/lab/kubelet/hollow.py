"""Thousands of nodes without programs: pods bound to them are marked as running at once.

For benches and scenarios at scale: nodes look as large as real ones (labels, images, conditions), pods get a minimal
honest status in batches, and deleted pods are confirmed. They may offer GPUs and boot another kernel. Nothing runs and
no hardware is simulated.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ...api import names
from .. import resources
from ..api import Api
from ..clock import LabClock
from ..status import StatusError
from .node import KUBELET_VERSION, node_ip
from .status import merge_conditions

Document = Mapping[str, Any]
BATCH = 200
"""Objects written before other tasks get a turn."""

REBOOT_S = 60.0
"""Cluster seconds that a reboot takes, unless told otherwise."""
GPU_PRODUCT = "NVIDIA-H100-80GB-HBM3"
_CPU_FLAGS = (
    *("ADX", "AESNI", "AMXBF16", "AMXINT8", "AMXTILE", "AVX", "AVX2", "AVX512BF16", "AVX512BITALG", "AVX512BW"),
    *("AVX512CD", "AVX512DQ", "AVX512F", "AVX512FP16", "AVX512IFMA", "AVX512VBMI", "AVX512VBMI2", "AVX512VL"),
    *("AVX512VNNI", "AVXVNNI", "CMPXCHG8", "ENQCMD", "FMA3", "GFNI", "HYPERVISOR", "MOVBE", "MOVDIR64B", "OSXSAVE"),
    *("SERIALIZE", "VAES"),
)
_LABELS: dict[str, str] = {
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "node.kubernetes.io/instance-type": "gpu.8xlarge",
    "topology.kubernetes.io/region": "lab-1",
    "feature.node.kubernetes.io/kernel-version.full": "6.8.0-60-generic",
    "feature.node.kubernetes.io/kernel-version.major": "6",
    "feature.node.kubernetes.io/kernel-version.minor": "8",
    "feature.node.kubernetes.io/kernel-version.revision": "0",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-15b3.present": "true",
    "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID.major": "24",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID.minor": "04",
    "feature.node.kubernetes.io/cpu-model.vendor_id": "Intel",
    "feature.node.kubernetes.io/cpu-model.family": "6",
    "feature.node.kubernetes.io/cpu-hardware_multithreading": "true",
    "feature.node.kubernetes.io/memory-numa": "true",
    **{f"feature.node.kubernetes.io/cpu-cpuid.{name}": "true" for name in _CPU_FLAGS},
}
_IMAGES = [
    {
        "names": [
            f"registry.lab/platform/component-{n:02d}@sha256:{n:064x}",
            f"registry.lab/platform/component-{n:02d}:1.{n}",
        ],
        "sizeBytes": 50_000_000 + n,
    }
    for n in range(20)
]
_RESOURCES = {"cpu": "128", "memory": "2113929216Ki", "ephemeral-storage": "937380968Ki", "pods": "250"}


def node(name: str, now: str, gpus: int = 0) -> dict[str, Any]:
    """A GPU node as large as a real one: about 50 labels and 20 images. It offers ``gpus`` GPUs, none if 0."""
    offered = {**_RESOURCES, names.GPU_RESOURCE: str(gpus)} if gpus else dict(_RESOURCES)
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "reason": reason,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, reason in (
            ("MemoryPressure", "KubeletHasSufficientMemory"),
            ("DiskPressure", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "KubeletHasSufficientPID"),
            ("Ready", "KubeletReady"),
        )
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**_LABELS, "kubernetes.io/hostname": name},
            "annotations": {
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                "node.alpha.kubernetes.io/ttl": "0",
                "nfd.node.kubernetes.io/feature-labels": ",".join(
                    sorted(k.split("/", 1)[1] for k in _LABELS if "feature" in k)
                ),
            },
        },
        "spec": {"podCIDR": "10.244.0.0/24", "providerID": f"lab://{name}"},
        "status": {
            "capacity": offered,
            "allocatable": dict(offered),
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": node_ip(name)}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": name,
                "systemUUID": name,
                "bootID": name,
                "kernelVersion": "6.8.0-60-generic",
                "osImage": "Ubuntu 24.04 LTS",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": _IMAGES,
        },
    }


def running(pod: Document, now: str) -> dict[str, Any]:
    """The status of a pod whose containers have just started and are ready, its init containers over."""
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    entry = {"ready": True, "started": True, "restartCount": 0, "imageID": ""}
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": merge_conditions((), [(kind, True, "", "") for kind in kinds], now),
        "startTime": now,
        "hostIP": node_ip(pod["spec"]["nodeName"]),
        "containerStatuses": [
            {**entry, "name": c["name"], "image": c["image"], "state": {"running": {"startedAt": now}}}
            for c in pod["spec"]["containers"]
        ],
    }
    inits = [c for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") != "Always"]
    if inits:
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
        done = {**entry, "started": False, "state": ended}
        status["initContainerStatuses"] = [{**done, "name": c["name"], "image": c["image"]} for c in inits]
    return status


class HollowKubelet:
    """Serves all of its nodes at once; each offers ``gpus`` GPUs."""

    def __init__(self, api: Api, nodes: Sequence[str], clock: LabClock, *, gpus: int = 0) -> None:
        self._api = api
        self._names = list(nodes)
        self._mine = set(nodes)
        self._clock = clock
        self._gpus = gpus
        self._down: set[str] = set()
        self._dirty: dict[tuple[str, str], None] = {}
        self._wake = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Whether no pod waits to be served."""
        return not self._dirty

    async def run(self) -> None:
        """Register the nodes and serve their pods until cancelled."""
        release = self._api.on_change(resources.PODS, self._changed)
        try:
            await self._register()
            for pod in self._api.list(resources.PODS)["items"]:
                self._changed("ADDED", pod, None)
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._drain()
        finally:
            release()

    def join(self, name: str, labels: Mapping[str, str | None] | None = None) -> None:
        """Add a node, with labels besides the usual ones; None leaves a usual one out. Fine if it is there already."""
        self._mine.add(name)
        if self._api.find(resources.NODES, name) is not None:
            return
        document = node(name, self._clock.timestamp(), self._gpus)
        wanted = {**document["metadata"]["labels"], **(labels or {})}
        document["metadata"]["labels"] = {key: value for key, value in wanted.items() if value is not None}
        self._api.create(resources.NODES, document, manager="kubelet")

    def leave(self, name: str) -> None:
        """Delete a node and serve its pods no more. Raises the API's error for a node that is not there."""
        self._mine.discard(name)
        self._api.delete(resources.NODES, name)

    async def reboot(self, name: str, *, kernel: str | None = None, takes_s: float = REBOOT_S) -> None:
        """Boot a node anew, into another kernel if one is given: it is not ready meanwhile, then its containers start
        again. ``takes_s`` are cluster seconds. Raises the API's error for a node that is not there."""
        self._report(name, ready=False)
        self._down.add(name)
        try:
            await self._clock.sleep(takes_s)
        finally:
            self._down.discard(name)
        if kernel is not None:
            labels = {names.KERNEL_VERSION: kernel}
            self._api.patch(resources.NODES, name, {"metadata": {"labels": labels}}, type="merge", manager="nfd")
        self._report(name, ready=True, kernel=kernel)
        for pod in self._api.list(resources.PODS, fields=f"spec.nodeName={name}")["items"]:
            self._restarted(pod)

    def _report(self, name: str, *, ready: bool, kernel: str | None = None) -> None:
        found = self._api.get(resources.NODES, name)
        status, now = found["status"], self._clock.timestamp()
        said = {"status": "True", "reason": "KubeletReady"} if ready else {"status": "False", "reason": "NodeNotReady"}
        conditions = [
            {**each, **said, "lastTransitionTime": now} if each["type"] == "Ready" else each
            for each in status["conditions"]
        ]
        info = {**status["nodeInfo"], **({"kernelVersion": kernel, "bootID": f"{name}-{now}"} if kernel else {})}
        body = {**found, "status": {**status, "conditions": conditions, "nodeInfo": info}}
        self._api.update(resources.NODES, body, subresource="status", manager="kubelet")

    def _restarted(self, pod: Document) -> None:
        meta, status = pod["metadata"], pod.get("status") or {}
        if meta.get("deletionTimestamp") or status.get("phase") != "Running":
            self._changed("MODIFIED", pod, None)  # what happened while the node was down
            return
        again = running(pod, self._clock.timestamp())
        for key in ("containerStatuses", "initContainerStatuses"):
            before = {each["name"]: each.get("restartCount", 0) for each in status.get(key) or ()}
            for each in again.get(key, ()):
                each["restartCount"] = before.get(each["name"], 0) + 1
        body = {**pod, "status": again}
        self._api.update(resources.PODS, body, ns=meta["namespace"], subresource="status", manager="kubelet")

    async def _register(self) -> None:
        for number, name in enumerate(self._names):
            self.join(name)
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)

    def _changed(self, kind: str, new: Document, _old: Document | None) -> None:
        on = (new.get("spec") or {}).get("nodeName")
        if kind == "DELETED" or on not in self._mine or on in self._down:
            return
        if not new["metadata"].get("deletionTimestamp") and (new.get("status") or {}).get("phase") == "Running":
            return
        self._dirty[new["metadata"]["namespace"], new["metadata"]["name"]] = None
        self._wake.set()

    async def _drain(self) -> None:
        done = 0
        while self._dirty:
            ns, name = next(iter(self._dirty))
            del self._dirty[ns, name]
            pod = self._api.find(resources.PODS, name, ns)
            if pod is not None:
                self._serve(pod, ns, name)
            done += 1
            if done % BATCH == 0:
                await asyncio.sleep(0)

    def _serve(self, pod: Document, ns: str, name: str) -> None:
        try:
            if pod["metadata"].get("deletionTimestamp"):
                uid = {"uid": pod["metadata"]["uid"]}
                self._api.delete(resources.PODS, name, ns, preconditions=uid, grace_period_s=0)
            elif (pod.get("status") or {}).get("phase") not in ("Running", "Succeeded", "Failed"):
                body = {**pod, "status": running(pod, self._clock.timestamp())}
                self._api.update(resources.PODS, body, ns=ns, subresource="status", manager="kubelet")
        except StatusError as error:
            if error.code not in (404, 409):
                raise
