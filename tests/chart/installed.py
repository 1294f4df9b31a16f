"""A control plane with the chart on it: Helm, the part of a node that hooks need, and the operator as its account.

No kubelet runs. `Hooks` does what one would do for the hooks' pods: it runs their command, as their account, and says
how that ended; and it confirms that pods are gone. `Operator` runs the operator with the arguments of the chart's
Deployment, with the token of the chart's ServiceAccount.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import helm_python as helm
import yaml
from chart import rendering

from groundplane.api import names
from testing.realcluster.controlplane import ControlPlane

Document = dict[str, Any]

PATIENCE_S = 300.0
ACCOUNT = f"system:serviceaccount:{rendering.NAMESPACE}:gpu-operator"
POLICY_PATH = "/apis/nvidia.com/v1/clusterpolicies"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NODE_LABELS = {
    names.PCI_GPU_LABELS[0]: "true",
    names.KERNEL_VERSION: "6.8.0-60-generic",
    names.OS_RELEASE_ID: "ubuntu",
    names.OS_RELEASE_VERSION_ID: "24.04",
}


def until(what: str, done: Callable[[], Any]) -> Any:
    """Wait for something; what it returned. Fails with ``what`` after a time that only a fault needs."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := done()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.1)
    return found


class Cluster:
    """A control plane seen by its administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    @property
    def helm(self) -> helm.Config:
        """Helm, as a new process would be: one that stays remembers which kinds there are."""
        return helm.Config(kubeconfig_path=self.plane.kubeconfig(), namespace=rendering.NAMESPACE)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One request that has to succeed; the decoded answer."""
        status, answer = self._answer(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def find(self, path: str) -> Document | None:
        """An object or a collection, None if it is not there."""
        status, answer = self._answer("GET", path)
        assert status in (200, 404), (path, status, answer)
        return answer if status == 200 else None

    def _answer(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """An answer; a server that makes a new kind ready (429) is asked again, a slow one if it only reads."""

        def ready() -> tuple[int, Any] | None:
            try:
                found = self.plane.request(method, path, body)
            except OSError:
                if method != "GET":
                    raise
                return None
            return None if found[0] == 429 else found

        answer: tuple[int, Any] = until(f"an answer to {method} {path}", ready)
        return answer

    def items(self, path: str) -> list[Document]:
        found: list[Document] = self.request("GET", path)["items"]
        return found

    def uninstall(self) -> None:
        """Remove the release if it is there."""
        if any(each["name"] == rendering.RELEASE for each in self.helm.list(all_states=True)):
            self.helm.uninstall(rendering.RELEASE, timeout=int(PATIENCE_S))

    def install(self, values: Document | None = None) -> Document:
        """Install the chart.

        Helm waits until a definition is established, but not until the server's discovery tells its kind, which follows
        a moment later; it then says that there is no such kind, and a second try succeeds.
        """

        def tried() -> Document | None:
            try:
                found: Document = self.helm.install(
                    rendering.CHART,
                    rendering.RELEASE,
                    values or {},
                    namespace=rendering.NAMESPACE,
                    create_namespace=True,
                )
            except helm.HelmReleaseError as error:
                if "ensure CRDs are installed first" not in str(error):
                    raise
                return None
            return found

        installed: Document = until("Helm to see the kinds that it has defined", tried)
        return installed

    def upgrade(self, values: Document | None = None) -> Document:
        found: Document = self.helm.upgrade(
            rendering.CHART, rendering.RELEASE, values or {}, namespace=rendering.NAMESPACE, timeout=int(PATIENCE_S)
        )
        return found

    def add_nodes(self, *node_names: str) -> None:
        for name in node_names:
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": NODE_LABELS}}
            self.request("POST", "/api/v1/nodes", body)

    def policy(self) -> Document:
        found: Document = self.request("GET", f"{POLICY_PATH}/cluster-policy")
        return found

    def token(self, account: str, namespace: str = rendering.NAMESPACE) -> str:
        """A token of a service account, as its pod would get."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        found: str = self.request("POST", path, body)["status"]["token"]
        return found

    def kubeconfig(self, account: str, folder: Path) -> Path:
        """A kubeconfig that is this account."""
        document = yaml.safe_load(self.plane.kubeconfig().read_text())
        document["users"][0]["user"] = {"token": self.token(account)}
        path = folder / f"{account}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        return path

    def forbidden(self, user: str) -> list[str]:
        """What the API server has refused to a user so far."""
        found = []
        for line in self.plane.audit_log.read_text().splitlines():
            seen = json.loads(line)
            if seen["user"]["username"] == user and seen.get("responseStatus", {}).get("code") == 403:
                found.append(f"{seen['verb']} {seen['requestURI']}")
        return found

    def everything(self) -> set[tuple[str, str, str]]:
        """Every object but events: resource, namespace, name."""
        found: set[tuple[str, str, str]] = set()
        for group, resources in self._resources():
            for resource in resources:
                for item in self.items(f"{group}/{resource}"):
                    meta = item["metadata"]
                    found.add((resource, meta.get("namespace", ""), meta["name"]))
        return found

    def _resources(self) -> Iterator[tuple[str, list[str]]]:
        """Paths of all API groups, each with the plurals of what can be listed there."""
        groups = [each["preferredVersion"]["groupVersion"] for each in self.request("GET", "/apis")["groups"]]
        for path in ("/api/v1", *(f"/apis/{group}" for group in groups)):
            listed = [each["name"] for each in self.request("GET", path)["resources"] if "list" in each["verbs"]]
            yield path, [name for name in listed if name not in ("events", "componentstatuses")]


class Hooks:
    """Does for pods what a kubelet would, as far as hooks and deletions need it. A context manager."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.ran: list[tuple[str, int, str]] = []
        """Job, exit status and output of every command that was run."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.1):
                for pod in self.cluster.items("/api/v1/pods"):
                    self._look_after(pod)
        except BaseException as error:  # noqa: BLE001  (told by __exit__)
            self._error = error

    def _look_after(self, pod: Document) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if meta.get("deletionTimestamp"):
            if pod["spec"].get("nodeName"):
                with contextlib.suppress(OSError):  # the next round tries again
                    self.cluster.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
            return
        job = meta.get("labels", {}).get("batch.kubernetes.io/job-name")
        if job is None or pod.get("status", {}).get("phase") != "Pending":
            return
        status = self._run(job, pod["spec"])
        until("the pod's end to be noted", lambda: self._end(path, "Failed" if status else "Succeeded"))

    def _run(self, job: str, spec: Document) -> int:
        (container,) = spec["containers"]
        program, arguments = container["command"][0], container["args"]
        config = self.cluster.kubeconfig(spec["serviceAccountName"], self.folder)
        done = subprocess.run(
            [sys.executable, "-m", "groundplane.cli.main", program, *arguments, "--kubeconfig", str(config)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        self.ran.append((job, done.returncode, done.stdout))
        return done.returncode

    def _end(self, path: str, phase: str) -> bool:
        """Set a pod's phase; whether that has worked, or there is nothing to set any more."""
        live = self.cluster.find(path)
        if live is None:
            return True
        live["status"]["phase"] = phase
        try:
            return self.cluster.plane.request("PUT", f"{path}/status", live)[0] < 300
        except OSError:
            return False


class Operator:
    """The operator of an installed release, in a process of its own. A context manager."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.log = folder / "operator.log"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        path = f"/apis/apps/v1/namespaces/{rendering.NAMESPACE}/deployments/gpu-operator"
        pod = self.cluster.request("GET", path)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        given = {each["name"]: each.get("value", rendering.NAMESPACE) for each in container["env"]}
        env = {
            **os.environ,
            **given,
            "KUBECONFIG": str(self.cluster.kubeconfig(pod["serviceAccountName"], self._folder)),
        }
        here = ["--metrics-bind-address=0", "--health-probe-bind-address=0"]
        here.append("--leader-lease-renew-deadline=120s")  # nobody starts it again when a busy machine keeps it waiting
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "groundplane.cli.main", "operator", *container["args"], *here],
                env=env, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait()

    def has_judged(self) -> Document:
        """Wait until the operator has judged the policy as it is now; the policy's conditions by type."""
        seen: Document = {}

        def told() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()
            policy = self.cluster.policy()
            seen.update({each["type"]: each for each in policy.get("status", {}).get("conditions", [])})
            generation = policy["metadata"]["generation"]
            return bool(seen) and all(each.get("observedGeneration") == generation for each in seen.values())

        try:
            until("the operator to judge the policy", told)
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}\n{self.log.read_text()[-5000:]}") from None
        return seen
