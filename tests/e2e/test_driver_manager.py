"""The shipped driver manager under the operator, on a node of the lab: contracts/driver-lifecycle.md 5 and 9.

Automatic upgrades are off here, so that a driver pod which is deleted by hand comes back with the new template, and its
driver manager has to see to the node by itself. With upgrades on, the node is the operator's: tests of upgrades.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from groundplane.api import names
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE as NS
from groundplane.lab.cluster import Lab, data
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.node.driver import labels

PATIENCE_S = 90.0
NODE, OLD, NEW = "gpu-1", "580.126.20", "580.95.05"
DRIVER, MANAGER = "nvidia-driver-daemonset", "k8s-driver-manager"


class Stack:
    """A lab with one GPU node that has the whole stack, and a job that holds a GPU."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.host = lab._pool[NODE].host

    async def until(self, what: str, done: Any) -> None:
        await self.lab.wait_until(done, timeout_s=PATIENCE_S, what=what)

    def pods(self, begin: str, namespace: str = NS) -> list[dict[str, Any]]:
        found = self.lab.api.list(resources.PODS, namespace)["items"]
        return [pod for pod in found if pod["metadata"]["name"].startswith(begin)]

    def running(self, begin: str, namespace: str = NS) -> bool:
        found = self.pods(begin, namespace)
        return bool(found) and all(
            pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            for pod in found
        )

    def edit(self, **driver: Any) -> None:
        policies = self.lab.api.resource("clusterpolicies", group=names.GROUP)
        self.lab.api.patch(policies, "cluster-policy", {"spec": {"driver": driver}}, type="merge")

    @property
    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.api.get(resources.NODES, NODE)
        return found

    async def replace_driver_pod(self) -> None:
        """Delete the driver pod, as a person would, and wait for the stack to stand again."""
        (old,) = self.pods(DRIVER)
        self.lab.api.delete(resources.PODS, old["metadata"]["name"], NS)

        def again() -> bool:
            found = [pod["metadata"]["name"] for pod in self.pods(DRIVER)]
            return old["metadata"]["name"] not in found and self.running(DRIVER) and self.validated()

        await self.until("the driver and the validator to be back", again)

    def validated(self) -> bool:
        ready = self.host.root.exists(f"{names.VALIDATIONS_DIR}/driver-ready")
        return ready and self.running("nvidia-operator-validator")

    def log(self) -> str:
        (pod,) = self.pods(DRIVER)
        return self.lab._pool[NODE].process(NS, pod["metadata"]["name"], MANAGER).log.text

    def healthy(self) -> None:
        found = self.node
        assert not found["spec"].get("unschedulable")
        assert names.DRIVER_MANAGER_CORDONED not in found["metadata"].get("annotations", {})
        assert not [value for value in found["metadata"]["labels"].values() if labels.PAUSED in value]


@contextlib.asynccontextmanager
async def stack() -> AsyncIterator[Stack]:
    policy = data("guide-baseline.yaml")
    upgrades = {"upgradePolicy": {"autoUpgrade": False}}
    policy["spec"]["driver"] = {**policy["spec"].get("driver", {}), "version": OLD, **upgrades}
    container = {"name": "main", "image": "cuda", "command": ["sleep", "infinity"]}
    container["resources"] = {"limits": {names.GPU_RESOURCE: "1"}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"metadata": {"name": "train"}, "spec": {"template": template}}
    async with Lab([NodeSpec(NODE, gpus=(GpuSpec("A100", 2),))], rbac=True) as lab:
        made = Stack(lab)
        await lab.apply([policy])
        await made.until("the stack to stand", made.validated)
        lab.api.create(resources.JOBS, job, "default")
        await made.until("the job to run", lambda: made.running("train", "default"))
        yield made


async def test_another_driver_evicts_who_holds_a_gpu_and_leaves_the_node_as_it_was() -> None:
    async with stack() as made:
        (before,) = made.pods("train", "default")
        made.edit(version=NEW)
        await made.until(
            "the new template", lambda: NEW in str(made.lab.api.get(resources.DAEMON_SETS, DRIVER, NS)["spec"])
        )
        await made.replace_driver_pod()
        assert made.host.driver_version == NEW
        assert "evicting pods that hold GPUs: default/train-" in made.log()
        assert "removed the NVIDIA driver" in made.log()
        names_now = [pod["metadata"]["name"] for pod in made.pods("train", "default")]
        assert before["metadata"]["name"] not in names_now
        await made.until("the job to run again", lambda: made.running("train", "default"))
        made.healthy()


async def test_an_equal_driver_stays_and_nobody_is_evicted() -> None:
    async with stack() as made:
        (before,) = made.pods("train", "default")
        await made.replace_driver_pod()
        assert made.host.driver_version == OLD
        (after,) = made.pods("train", "default")
        assert after["metadata"]["uid"] == before["metadata"]["uid"] and made.running("train", "default")
        made.healthy()
