"""What the end-to-end tests on real nodes share: the nodes, waiting for what shall come, and looking at what is there.

The nodes: `gpu-a` has GPUs and nothing installed, `gpu-b` has GPUs, a driver and the NVIDIA runtime on the host. A test
uses one of them; the other is kept out by NVIDIA's own switch, a label.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import yaml
from podresources import by_pod

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import nodes, onnode
from groundplane.lab.onnode import host as onnode_host
from groundplane.node import kubeletapi
from groundplane.node.devices.simulated import Machine
from groundplane.node.kubeletapi.stubs import podresources_pb2 as wire
from groundplane.node.kubeletapi.stubs import podresources_pb2_grpc as rpc
from groundplane.node.ownprocess import DEVICES
from testing.gpucluster import NAMESPACE, GpuCluster, chart_policy

PATIENCE_S = 300.0
"""How long a test waits for what needs seconds on a free machine, and a minute of the kubelet's own delays."""

VALUES = Path(__file__).parents[1] / "data" / "values"
RELEASE = Release.V26_7
FRESH, OWN_DRIVER = "gpu-a", "gpu-b"
NODES = f"""
- name: {FRESH}
  gpus: [{{model: H100-SXM5-80GB, count: 4}}]
  kernel: 6.8.0-60-generic
  os: {{id: ubuntu, versionId: "24.04"}}
- name: {OWN_DRIVER}
  gpus: [{{model: L40S, count: 2}}]
  kernel: 6.8.0-60-generic
  os: {{id: ubuntu, versionId: "24.04"}}
  hostDriver: 580.126.20
"""
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PROBED = ("readinessProbe", "startupProbe")
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
POLICY = f"{POLICIES}/cluster-policy"
DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
OPERATOR_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpu-operator"

Document = dict[str, Any]


def specs() -> list[nodes.NodeSpec]:
    """The nodes."""
    return nodes.parse({"nodes": yaml.safe_load(NODES)}, "the stage's nodes")


def values(variant: str, **more: Any) -> Document:
    """The values of a variant, for the release that the tests use."""
    found = yaml.safe_load((VALUES / f"{variant}.yaml").read_text()) or {}
    return {**found, **more, "operator": {"release": RELEASE.value, **more.get("operator", {})}}


def variants() -> list[str]:
    """The names of all variants."""
    return sorted(path.stem for path in VALUES.glob("*.yaml"))


def policies() -> Iterator[tuple[Release, Mapping[str, Any]]]:
    """Every policy that is used, for its images."""
    for variant in variants():
        yield RELEASE, chart_policy(RELEASE, values(variant))


def hasten_probes(cluster: GpuCluster) -> None:
    """Let the kubelets ask at once, and often, whether an operand's container is ready: they would wait 45 s, or 60 s.

    What an operand's probes are is the business of other tests; here only the API server changes them, in pods.
    """
    mutations = [
        {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {
                "expression": "Object{spec: Object.spec{containers: "
                f"object.spec.containers.filter(c, has(c.{probe})).map(c, Object.spec.containers{{name: c.name, "
                f"{probe}: Object.spec.containers.{probe}{{initialDelaySeconds: 1, periodSeconds: 2}}}})}}}}"
            },
        }
        for probe in PROBED
    ]
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [pods], "namespaceSelector": here},
        "mutations": mutations,
    }
    meta = {"name": "probes-begin-at-once"}
    for kind, spec in (("policies", policy), ("policybindings", {"policyName": meta["name"]})):
        status, answer = cluster.request(
            "POST", f"{ADMISSION}/mutatingadmission{kind}", {"metadata": meta, "spec": spec}
        )
        assert status == 201, answer


class Stage:
    """The cluster as a person at the keyboard sees it."""

    def __init__(self, cluster: GpuCluster) -> None:
        self.cluster = cluster
        self.audited_before = 0
        """Lines of the audit log that were there before an installation that several tests share."""
        self._starting: list[range] = []

    # --- asking and waiting -------------------------------------------------------------------------------------------

    def get(self, path: str) -> Document:
        """An object or list that must be there."""
        status, answer = self.cluster.request("GET", path)
        assert status == 200, f"GET {path}: {status} {answer}"
        return dict(answer)

    def items(self, path: str) -> list[Document]:
        """The items of a list; none if the API server does not know the kind."""
        status, answer = self.cluster.request("GET", path)
        return list(answer["items"]) if status == 200 else []

    def patch(self, path: str, body: Mapping[str, Any]) -> Document:
        """A merge patch that must succeed."""
        status, answer = self.cluster.request("PATCH", path, body)
        assert status == 200, f"PATCH {path}: {status} {answer}"
        return dict(answer)

    def page(self, pod: str, port: int, path: str) -> tuple[int, Any]:
        """A page of a pod of the namespace, through the API server: its status and text. 503 if the pod has none."""
        return self.cluster.request("GET", f"{PODS}/{pod}:{port}/proxy{path}")

    def until(self, what: str, check: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
        """Wait until `check` is true and return it; a connection that is refused meanwhile counts as not yet."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if found := check():
                    return found
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"not in {timeout_s:g} s: {what}\n{self.report()}")
            time.sleep(0.3)

    def report(self) -> str:
        """What a person would look at next."""
        lines = [self.kubectl("get", "pods,ds,nodes", "-A", "-o", "wide")]
        try:
            lines.append(json.dumps(self.get(POLICY).get("status"), indent=1))
        except (AssertionError, OSError) as error:
            lines.append(str(error))
        lines.append(self.kubectl("get", "events", "-A", "--field-selector", "type!=Normal")[-6000:])
        lines.append(self.kubectl("logs", "-n", NAMESPACE, "deploy/gpu-operator", "--tail=30"))
        return "\n".join(lines)

    def kubectl(self, *arguments: str) -> str:
        """The real kubectl; its output and errors."""
        program = Path(sys.executable).parent / "kubectl"
        command = [str(program), "--kubeconfig", str(self.cluster.kubeconfig), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    # --- the stack ----------------------------------------------------------------------------------------------------

    def use(self, node: str) -> None:
        """Let operands run on this node only."""
        for name in (FRESH, OWN_DRIVER):
            label = {names.DEPLOY_OPERANDS: None if name == node else "false"}
            self.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": label}})

    def conditions(self) -> dict[str, Document]:
        """The policy's conditions by type."""
        return {each["type"]: each for each in self.get(POLICY).get("status", {}).get("conditions", [])}

    def state(self) -> str:
        """The policy's state."""
        return str(self.get(POLICY).get("status", {}).get("state", ""))

    def message(self) -> str:
        """What the policy's conditions say."""
        return "\n".join(each["message"] for each in self.conditions().values())

    def ready(self, node: str) -> bool:
        """Whether the policy is ready and GPUs of this node are on offer, which it only is after the operands came."""
        offered = self.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(names.GPU_RESOURCE, "0")
        return self.state() == "ready" and offered != "0"

    def pods(self, app: str = "") -> list[Document]:
        """Pods of the namespace, or of one operand, that are not on their way out."""
        query = f"?labelSelector=app%3D{app}" if app else ""
        return [each for each in self.items(PODS + query) if "deletionTimestamp" not in each["metadata"]]

    def daemon_sets(self) -> dict[str, Document]:
        """The DaemonSets of the namespace by name."""
        return {each["metadata"]["name"]: each for each in self.items(DAEMON_SETS)}

    def restart_server(self, name: str) -> None:
        """Kill a server of the control plane and start it again; back when the API server is ready.

        An API server that has not read its roles yet refuses everybody everything. What the audit log says between the
        start and /readyz is therefore no word on the rights that somebody has.
        """
        before = self.audited()
        processes = self.cluster.cluster.control_plane.processes
        processes[name].kill()
        processes[name].start()
        processes["kube-apiserver"].wait_ready()
        if name == "kube-apiserver":
            self._starting.append(range(before, self.audited()))

    def forbidden(self, since: int = 0) -> list[str]:
        """Requests that a ready API server refused the operator or an operand, from this line of the audit log on."""
        return [
            f"{event['user']['username']} {event['verb']} {event['requestURI']}: {event['responseStatus']['message']}"
            for number, event in enumerate(map(json.loads, self._audit()[since:]), since)
            if not any(number in lines for lines in self._starting)
            and event["user"].get("username", "").startswith(f"system:serviceaccount:{NAMESPACE}:")
            and event.get("responseStatus", {}).get("code") == 403
        ]

    def audited(self) -> int:
        """How many lines the audit log has."""
        return len(self._audit())

    def _audit(self) -> list[str]:
        """The lines of the audit log; the last may be half written yet."""
        text = self.cluster.cluster.control_plane.audit_log.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def inventory(self) -> set[str]:
        """Everything in the cluster that an installation could leave: kind and name of all objects it might make."""
        kinds = (
            "customresourcedefinitions,clusterroles,clusterrolebindings,runtimeclasses,namespaces,priorityclasses,"
            "validatingwebhookconfigurations,mutatingwebhookconfigurations"
        )
        inside = (
            "deployments,daemonsets,replicasets,jobs,pods,services,configmaps,secrets,serviceaccounts,roles,"
            "rolebindings,leases"
        )
        listed = self.kubectl("get", kinds, "-o", "name") + self.kubectl("get", inside, "-A", "-o", "name")
        return {line for line in listed.splitlines() if line}

    def inside(self, node: str, path: str) -> Path:
        """A file of a node, as this process reaches it."""
        return Path(f"/proc/{self.cluster.cluster.nodes[node].pid}/root{path}")

    def machine(self, node: str) -> Machine:
        """The hand on a node's simulated GPUs."""
        return Machine(self.inside(node, f"{onnode.FOLDER}/{onnode_host.MACHINE}{DEVICES}"))

    def offered(self, node: str, key: str = "allocatable") -> dict[str, int]:
        """NVIDIA's resources of a node."""
        listed = self.get(f"/api/v1/nodes/{node}")["status"][key]
        return {name: int(value) for name, value in listed.items() if name.startswith("nvidia.com/")}

    def pod_resources(self, node: str) -> dict[str, dict[str, list[str]]]:
        """The devices of each pod by resource, as the kubelet's pod-resources API tells them."""
        socket = self.inside(node, kubeletapi.POD_RESOURCES_SOCKET)
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            answer = rpc.PodResourcesListerStub(channel).List(wire.ListPodResourcesRequest(), timeout=20)
        return by_pod(answer)

    def node_labels(self, node: str) -> dict[str, str]:
        """A node's labels."""
        return dict(self.get(f"/api/v1/nodes/{node}")["metadata"]["labels"])
