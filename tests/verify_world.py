"""A cluster with NVIDIA's operator installed, as documents: what verify and the CUDA test are shown offline."""

import base64
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import yaml

from groundplane.admin.expected import expected
from groundplane.api import crd, names
from groundplane.api.release import Release
from groundplane.diagnose.survey import Survey
from groundplane.lab.kubelet import hollow

POLICIES = Path(__file__).parent / "data" / "clusterpolicy"
NAMESPACE = "gpu-operator"
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
STAMP = 1767225600 + 3600
GFD = {
    names.GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.machine": "DGX",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mps.capable": "false",
    "nvidia.com/gfd.timestamp": str(STAMP),
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "0",
    "nvidia.com/cuda.runtime-version.full": "13.0",
}


class World:
    """The documents; tests break one thing and look at the survey."""

    def __init__(self, policy: str = "26.7.0-default", nodes: int = 2) -> None:
        self.release = Release.parse(policy.partition("-")[0])
        self.policy = next(iter(yaml.safe_load_all((POLICIES / f"{policy}.yaml").read_text())))
        self.policy["metadata"] |= {"generation": 2, "uid": "policy-uid", "creationTimestamp": THEN}
        ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "observedGeneration": 2}
        self.policy["status"] = {"state": "ready", "conditions": [ready, {"type": "Error", "status": "False"}]}
        self.nodes = [hollow.node(f"gpu-{number}", THEN, 8) for number in range(1, nodes + 1)]
        tag = str(self.policy["spec"]["driver"].get("version") or "580.95.05")
        self.driver = tag if tag.count(".") == 2 else "580.95.05"
        parts = dict(zip(("major", "minor", "revision"), self.driver.split("."), strict=True))
        version = {f"{names.CUDA_DRIVER_VERSION}.{part}": value for part, value in parts.items()}
        for node in self.nodes:
            node["metadata"]["labels"] |= GFD | version | {f"{names.CUDA_DRIVER_VERSION}.full": self.driver}
        self._label()
        wanted = expected(Survey.of(copy.deepcopy([self.policy, *self.nodes])), self.release)
        assert not wanted.problems
        self.daemon_sets = {each.name: self._daemon_set(each, wanted) for each in wanted.operands}
        self.pods = [
            self._pod(self.daemon_sets[place.operand], node)
            for node, places in wanted.places.items()
            for place in places
            if place.expected
        ]
        self.revisions = [
            {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": f"{name}-new",
                    "namespace": NAMESPACE,
                    "ownerReferences": [{"uid": f"uid-{name}"}],
                },
                "revision": 2,
            }
            for name in self.daemon_sets
        ]
        self.definitions = crd.definitions()
        self.events: list[dict[str, Any]] = []
        self.helm: dict[str, Any] | None = {
            "name": "gpu-operator",
            "namespace": NAMESPACE,
            "version": 1,
            "info": {"status": "deployed", "last_deployed": THEN},
            "chart": {"metadata": {"name": "gpu-operator", "version": f"v{self.release.value}"}, "values": {}},
            "config": {},
        }
        self.operator = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "gpu-operator", "namespace": NAMESPACE, "labels": {"app": "gpu-operator"}},
            "spec": {
                "replicas": 1,
                "template": {"spec": {"containers": [{"image": f"nvcr.io/nvidia/gpu-operator:v{self.release.value}"}]}},
            },
            "status": {"availableReplicas": 1},
        }
        self.unread: dict[str, str] = {}

    def _label(self) -> None:
        """As the operator labels nodes."""
        wanted = expected(Survey.of(copy.deepcopy([self.policy, *self.nodes])), self.release)
        for node in self.nodes:
            node["metadata"]["labels"] = dict(wanted.nodes[node["metadata"]["name"]]["metadata"]["labels"])

    def _daemon_set(self, operand: Any, wanted: Any) -> dict[str, Any]:
        count = sum(operand.name in wanted.wanted(node) for node in wanted.nodes)
        on_delete = operand.driver
        fields = ("desiredNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
        return {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {
                "name": operand.name,
                "namespace": NAMESPACE,
                "uid": f"uid-{operand.name}",
                "generation": 1,
                "ownerReferences": [{"kind": "ClusterPolicy", "name": "cluster-policy", "uid": "policy-uid"}],
            },
            "spec": {
                "template": copy.deepcopy(dict(operand.template)),
                "updateStrategy": {"type": "OnDelete" if on_delete else "RollingUpdate"},
            },
            "status": {"observedGeneration": 1, **dict.fromkeys(fields, count)},
        }

    def _pod(self, daemon_set: dict[str, Any], node: str) -> dict[str, Any]:
        name = daemon_set["metadata"]["name"]
        template = copy.deepcopy(daemon_set["spec"]["template"])
        labels = {**template["metadata"]["labels"], "controller-revision-hash": "new"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{node}",
                "namespace": NAMESPACE,
                "labels": labels,
                "ownerReferences": [{"kind": "DaemonSet", "name": name, "uid": f"uid-{name}"}],
            },
            "spec": {**template["spec"], "nodeName": node},
        }
        pod["status"] = hollow.running(pod, NOW)
        return pod

    def pod(self, name: str, node: str = "gpu-1") -> dict[str, Any]:
        """A pod by its DaemonSet and node."""
        return next(pod for pod in self.pods if pod["metadata"]["name"] == f"{name}-{node}")

    def labels(self, node: int = 0) -> dict[str, str]:
        """A node's labels."""
        found: dict[str, str] = self.nodes[node]["metadata"]["labels"]
        return found

    def documents(self) -> list[dict[str, Any]]:
        """Everything, as kubectl prints it."""
        secrets = [_secret(self.helm)] if self.helm is not None else []
        empty = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}]
        things = [self.policy, *self.nodes, *self.daemon_sets.values(), *self.pods, *self.revisions, *secrets, *empty]
        things += [*self.definitions, *self.events] + ([self.operator] if self.operator else [])
        return copy.deepcopy(things)

    def survey(self) -> Survey:
        """What a reader sees of it."""
        read = ("events", "nvidiadrivers", "deployments", "secrets", "clusterpolicies", "pods")
        seen = [plural for plural in read if plural not in self.unread]
        return Survey.of(self.documents(), version="v1.34.2", unread=self.unread, read=seen)


def _secret(release: dict[str, Any]) -> dict[str, Any]:
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": "sh.helm.release.v1.gpu-operator.v1", "namespace": NAMESPACE},
        "data": {"release": packed},
    }
