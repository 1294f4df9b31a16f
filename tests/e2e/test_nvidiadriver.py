"""Drivers by NVIDIADriver under the operator, on the lab's nodes, which run the shipped driver manager.

contracts/control-plane.md 2, contracts/driver-lifecycle.md 3.9; the sections are named at the tests.
"""

from typing import Any

from groundplane.api import names
from groundplane.lab.cluster import OPERATOR_NAMESPACE as NS
from groundplane.lab.cluster import Lab, data
from groundplane.lab.nodes import GpuSpec, NodeSpec

PATIENCE_S = 90.0
POOL = "example.com/pool"
Document = dict[str, Any]


def lab_of(nodes: int) -> Lab:
    return Lab([NodeSpec(f"gpu-{number}", (GpuSpec("A30"),)) for number in range(nodes)], rbac=True)


def policy(by_crd: bool = True) -> Document:
    document: Document = data("guide-baseline.yaml")
    document["spec"]["driver"]["useNvidiaDriverCRD"] = by_crd
    return document


def driver(name: str, version: str = "580.126.20", **spec: Any) -> Document:
    image = {"repository": "nvcr.io/nvidia", "image": "driver", "version": version}
    manager = {"repository": "nvcr.io/nvidia/cloud-native", "image": "k8s-driver-manager", "version": "v0.12.0"}
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "NVIDIADriver",
        "metadata": {"name": name},
        "spec": {**image, "manager": manager, **spec},
    }


def of_kind(lab: Lab, kind: str, group_version: str) -> Any:
    return lab.api.of_kind(kind, group_version)


def state(lab: Lab, name: str) -> tuple[str, str, str]:
    """State, and the reason and message of the condition that holds."""
    found = lab.api.find(of_kind(lab, "NVIDIADriver", "nvidia.com/v1alpha1"), name) or {}
    status = found.get("status", {})
    (held,) = [each for each in status.get("conditions", []) if each["status"] == "True"] or [{}]
    return status.get("state", ""), held.get("reason", ""), held.get("message", "")


def owners(lab: Lab) -> dict[str, str | None]:
    nodes = lab.api.list(of_kind(lab, "Node", "v1"))["items"]
    return {each["metadata"]["name"]: each["metadata"]["labels"].get(names.DRIVER_OWNER) for each in nodes}


def driver_pods(lab: Lab) -> list[Document]:
    pods = lab.api.list(of_kind(lab, "Pod", "v1"), ns=NS)["items"]
    of_drivers = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)
    return [each for each in pods if of_drivers in each["metadata"].get("labels", {}).items()]


def images(lab: Lab) -> dict[str, str]:
    """The driver image by node, of pods whose every container is ready."""
    return {
        each["spec"]["nodeName"]: each["spec"]["containers"][0]["image"]
        for each in driver_pods(lab)
        if all(status["ready"] for status in each.get("status", {}).get("containerStatuses", [{"ready": False}]))
    }


def probe_owners(lab: Lab) -> list[str]:
    found = lab.api.find(of_kind(lab, "ConfigMap", "v1"), "nvidia-driver-startup-probe", NS) or {"metadata": {}}
    return [each["name"] for each in found["metadata"].get("ownerReferences", [])]


def image(version: str) -> str:
    return f"nvcr.io/nvidia/driver:{version}-ubuntu24.04"


async def wait(lab: Lab, what: str, done: Any) -> None:
    await lab.wait_until(done, timeout_s=PATIENCE_S, what=what)


async def test_2_each_node_gets_the_driver_that_selects_it() -> None:
    async with lab_of(2) as lab:
        await lab.apply([policy(), driver("rest", default=True)])
        await wait(lab, "the default driver", lambda: state(lab, "rest")[0] == "ready" and len(images(lab)) == 2)
        assert owners(lab) == {"gpu-0": "rest", "gpu-1": "rest"}
        assert set(images(lab).values()) == {image("580.126.20")}
        await lab.wait_ready(timeout_s=PATIENCE_S)

        lab.api.patch(of_kind(lab, "Node", "v1"), "gpu-1", {"metadata": {"labels": {POOL: "b"}}}, type="merge")
        await lab.apply([driver("b", "595.91.07", nodeSelector={POOL: "b"})])
        both = {"gpu-0": image("580.126.20"), "gpu-1": image("595.91.07")}
        await wait(lab, "a driver each", lambda: images(lab) == both and state(lab, "b")[0] == "ready")
        assert owners(lab) == {"gpu-0": "rest", "gpu-1": "b"}
        assert probe_owners(lab) == ["b", "rest"]

        lab.api.delete(of_kind(lab, "NVIDIADriver", "nvidia.com/v1alpha1"), "b")
        await wait(lab, "the default to take over", lambda: set(images(lab).items()) == {
            ("gpu-0", image("580.126.20")), ("gpu-1", image("580.126.20"))
        })  # fmt: skip
        assert owners(lab) == {"gpu-0": "rest", "gpu-1": "rest"}
        await wait(lab, "the probe to be the rest's", lambda: probe_owners(lab) == ["rest"])


async def test_2_3_a_conflict_holds_all_up_until_it_is_solved() -> None:
    async with lab_of(1) as lab:
        await wait(lab, "the node", lambda: owners(lab) == {"gpu-0": None})
        lab.api.patch(of_kind(lab, "Node", "v1"), "gpu-0", {"metadata": {"labels": {POOL: "a"}}}, type="merge")
        await lab.apply([policy(), driver("a", nodeSelector={POOL: "a"}), driver("b", nodeSelector={POOL: "a"})])
        for name in ("a", "b"):
            await wait(lab, f"{name} to be told", lambda name=name: state(lab, name)[1] == "ConflictingNodeSelector")
            assert "select node gpu-0: [a b]" in state(lab, name)[2]
        assert owners(lab) == {"gpu-0": None}
        assert driver_pods(lab) == []

        drivers = of_kind(lab, "NVIDIADriver", "nvidia.com/v1alpha1")
        lab.api.patch(drivers, "b", {"spec": {"nodeSelector": {POOL: "b"}}}, type="merge")
        await wait(lab, "the other to be ready", lambda: state(lab, "a")[0] == "ready" and len(images(lab)) == 1)
        await wait(lab, "the one without nodes", lambda: state(lab, "b")[0] == "ready")
        assert owners(lab) == {"gpu-0": "a"}


async def test_2_5_drivers_are_handed_over_node_by_node() -> None:
    async with lab_of(2) as lab:
        await lab.apply([policy(by_crd=False), driver("all", "580.126.20", default=True)])
        await wait(lab, "the policy's driver", lambda: len(images(lab)) == 2)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        await wait(lab, "the driver to be off", lambda: state(lab, "all")[0] == "disabled")
        assert "useNvidiaDriverCRD" in state(lab, "all")[2]
        assert owners(lab) == {"gpu-0": None, "gpu-1": None}
        before = images(lab)
        assert set(before.values()) == {image("595.91.07")}
        fewest = 2

        def taken_over() -> bool:
            nonlocal fewest
            found = images(lab)
            fewest = min(fewest, len(found))
            return set(found.values()) == {image("580.126.20")} and len(found) == 2

        policies = of_kind(lab, "ClusterPolicy", "nvidia.com/v1")
        lab.api.patch(policies, "cluster-policy", {"spec": {"driver": {"useNvidiaDriverCRD": True}}}, type="merge")
        await wait(lab, "both nodes to have the new driver", taken_over)
        assert fewest >= 1, "both drivers were down at once"
        await wait(lab, "the driver to be ready", lambda: state(lab, "all")[0] == "ready")
        await lab.wait_ready(timeout_s=PATIENCE_S)
        kinds = {each["metadata"]["ownerReferences"][0]["name"] for each in driver_pods(lab)}
        assert all(name.startswith("nvidia-gpu-driver-ubuntu24.04-") for name in kinds)
