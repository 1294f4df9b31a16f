"""A small cluster as documents, for tests of baselines and drift: two GPU nodes, a release, a policy, pods, figures."""

import base64
import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

import yaml

from groundplane.admin import baseline
from groundplane.admin.baseline import Baseline, CudaTest, Looked
from groundplane.admin.nodehealth import Gpu
from groundplane.diagnose.survey import Survey

SPEC: dict[str, Any] = {
    "driver": {"enabled": True, "version": "580.95.05"},
    "toolkit": {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
}
PLANTED = ("planted-token-1", "planted-password-2", "planted-user-3", "planted-env-4")
VALUES: dict[str, Any] = {
    "driver": {"version": "580.95.05", "env": [{"name": "NGC_API_KEY", "value": PLANTED[0]}]},
    "proxy": {"password": PLANTED[1], "url": f"http://me:{PLANTED[2]}@proxy:3128"},
}


def secret(release: dict[str, Any]) -> dict[str, Any]:
    """A release as Helm stores it."""
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode(), mtime=0))).decode()
    name = f"sh.helm.release.v1.gpu-operator.v{release['version']}"
    metadata = {"name": name, "namespace": "gpu-operator"}
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1"}
    return {**kind, "metadata": metadata, "data": {"release": packed}}


class World:
    """The documents, to be changed before :meth:`baseline` reads them."""

    def __init__(self) -> None:
        self.release: dict[str, Any] = {
            "name": "gpu-operator",
            "namespace": "gpu-operator",
            "version": 1,
            "info": {"status": "deployed"},
            "chart": {"metadata": {"name": "gpu-operator", "version": "v26.3.3"}, "values": {"cdi": {"enabled": True}}},
            "config": copy.deepcopy(VALUES),
        }
        self.chart_spec: dict[str, Any] = copy.deepcopy(SPEC)
        self.spec: dict[str, Any] = {**copy.deepcopy(SPEC), "daemonsets": {"updateStrategy": "RollingUpdate"}}
        self.schema: dict[str, Any] = {"openAPIV3Schema": {"type": "object"}}
        self.nodes = {name: self._node(name) for name in ("gpu-1", "gpu-2")}
        self.pods = [
            self._pod("nvidia-device-plugin-daemonset", name, number) for number, name in enumerate(self.nodes)
        ]
        self.gpus = {
            name: [Gpu(uuid=f"GPU-{name}-{n}", pci=f"0000:0{n}:00.0", vbios="96.00") for n in range(2)]
            for name in self.nodes
        }
        self.health: dict[str, dict[str, dict[str, float]]] = {
            name: {gpu.uuid: {"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 0.0, "DCGM_FI_DEV_XID_ERRORS": 0.0} for gpu in gpus}
            for name, gpus in self.gpus.items()
        }
        self.hosts: dict[str, dict[str, Any]] | None = None
        self.cuda: dict[str, CudaTest] = {}
        self.unread: dict[str, str] = {}
        self.at = 1_790_000_000.0
        self.uid = "3f0c3b7e-1111-2222-3333-444455556666"

    def _node(self, name: str) -> dict[str, Any]:
        labels = {
            "kubernetes.io/hostname": name,
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-H100",
            "nvidia.com/gfd.timestamp": "1790000000",
            "nvidia.com/cuda.driver-version.full": "580.95.05",
            "nvidia.com/mig.config": "all-disabled",
        }
        info = {
            "osImage": "Ubuntu 22.04.5 LTS",
            "kernelVersion": "5.15.0-122-generic",
            "containerRuntimeVersion": "containerd://1.7.24",
            "kubeletVersion": "v1.34.2",
            "architecture": "amd64",
        }
        amounts = {"cpu": "64", "nvidia.com/gpu": "2"}
        status = {"nodeInfo": info, "capacity": amounts, "allocatable": dict(amounts)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": status,
        }

    def _pod(self, app: str, node: str, number: int) -> dict[str, Any]:
        image = "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{app}-{number}xyz", "namespace": "gpu-operator", "labels": {"app": app}},
            "spec": {"nodeName": node, "containers": [{"name": "nvidia-device-plugin", "image": image}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "nvidia-device-plugin", "imageID": f"nvcr.io/x@sha256:{'a' * 64}"}],
            },
        }

    def documents(self) -> list[dict[str, Any]]:
        """The cluster's objects."""
        policy: dict[str, Any] = {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "cluster-policy"},
        }
        manifest = "---\n" + yaml.safe_dump({**policy, "spec": self.chart_spec})
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "clusterpolicies.nvidia.com"},
            "spec": {"group": "nvidia.com", "versions": [{"name": "v1", "served": True, "schema": self.schema}]},
            "status": {"storedVersions": ["v1"]},
        }
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": self.uid}}
        return copy.deepcopy(
            [
                {**policy, "spec": self.spec, "status": {"state": "ready"}},
                crd,
                namespace,
                secret({**self.release, "manifest": manifest}),
                *self.nodes.values(),
                *self.pods,
            ]
        )

    def baseline(self, change: Callable[["World"], object] = lambda _world: None) -> Baseline:
        """The baseline of the cluster, after a change that is made to this world."""
        change(self)
        read = [each for each in baseline.PLURALS if each not in self.unread]
        survey = Survey.of(self.documents(), version="v1.34.2", at=self.at, read=read, unread=self.unread)
        looked = Looked(
            gpus=self.gpus,
            health=self.health,
            hosts=self.hosts or {},
            cuda=self.cuda,
            left_out={} if self.hosts is not None else {"hosts": "the nodes themselves were not looked at"},
        )
        return baseline.of_survey(survey, looked, matrix="2026-11-01")
