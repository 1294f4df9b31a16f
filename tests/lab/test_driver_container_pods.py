"""The driver's pod under a kubelet: a fault shows in its log and its cure lets it come up; pods with GPUs hold the
modules (contracts/driver-lifecycle.md 6.3, 6.9, 6.11)."""

from typing import Any

from lab.kubelet_bench import Bench, bench
from lab.test_standins_chain import GPU_LABELS, H100, NS, all_ready, install, pods_of, rendered

from groundplane.api import names
from groundplane.lab import driverfaults, resources
from groundplane.lab.status import StatusError

DRIVER, CONTAINER = "nvidia-driver-daemonset", "nvidia-driver-ctr"
ONLY_DRIVER = {names.GPU_PRESENT: "true", names.DEPLOY_DRIVER: "true"}
SLEEPER = {
    "name": "main",
    "image": "nvcr.io/nvidia/cuda:13.0",
    "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 86400 & wait $!; done"],
    "resources": {"limits": {names.GPU_RESOURCE: "1"}},
}


def log(b: Bench, pod: dict[str, Any]) -> str:
    try:
        return b.log(pod["metadata"]["name"], CONTAINER, ns=NS)
    except StatusError:  # it has not started yet
        return ""


def said(b: Bench, text: str) -> bool:
    return any(text in log(b, pod) for pod in pods_of(b, DRIVER))


def label(b: Bench) -> str:
    meta = b.kubelets["n1"].node_document().get("metadata", {})
    return str(meta.get("labels", {}).get(names.DEPLOY_DRIVER, ""))


async def test_a_fault_shows_in_the_pods_log_and_its_cure_lets_it_come_up() -> None:
    fault = driverfaults.FAULTS["no-kernel-headers"]
    async with bench(speed=600, served=True) as b:
        kubelet = b.node(gpus=H100, labels=ONLY_DRIVER)
        fault.inject(kubelet.host)
        install(b, rendered("default"))
        await b.until(lambda: said(b, fault.shows), "the fault's text")
        assert not all_ready(b, DRIVER) and not kubelet.host.loaded("nvidia")
        fault.cure(kubelet.host)
        await b.until(lambda: all_ready(b, DRIVER), "the driver")
        ready = kubelet.host.root.read_text(f"{names.VALIDATIONS_DIR}/.driver-ctr-ready")
        assert ready.startswith("GDRCOPY_ENABLED: false\n")


async def test_a_pod_with_a_gpu_keeps_the_driver_loaded() -> None:
    async with bench(speed=600, served=True) as b:
        kubelet = b.node(gpus=H100, labels=GPU_LABELS)
        install(b, rendered("default"))
        await b.until(lambda: all_ready(b, "nvidia-operator-validator"), "a validated node")
        uses = kubelet.host.kernel_modules.uses("nvidia_uvm")
        b.pod("worker", SLEEPER)
        await b.until(lambda: b.status("worker").get("phase") == "Running", "a pod with a GPU")
        await b.until(lambda: kubelet.host.kernel_modules.uses("nvidia_uvm") > uses, "its count")
        (driver,) = pods_of(b, DRIVER)
        b.api.delete(resources.PODS, driver["metadata"]["name"], NS)
        gone = driver["metadata"]["uid"]
        await b.until(lambda: gone not in [pod["metadata"]["uid"] for pod in pods_of(b, DRIVER)], "the driver's end")
        assert kubelet.host.loaded("nvidia") and b.status("worker").get("phase") == "Running"


async def test_from_a_driver_of_the_host_to_a_managed_one() -> None:
    """Section 7: detected, kept off by the label, never overwritten; managed once the host's is removed."""
    fault = driverfaults.FAULTS["host-driver"]
    async with bench(speed=600, served=True) as b:
        kubelet = b.node(gpus=H100, labels=ONLY_DRIVER)
        fault.inject(kubelet.host)
        install(b, rendered("default"))
        await b.until(lambda: label(b) == "pre-installed" and not pods_of(b, DRIVER), "no driver pod")
        assert kubelet.host.driver_version == driverfaults.HOST_VERSION and kubelet.host.has_host_driver()
        fault.cure(kubelet.host)
        managed = {"metadata": {"labels": {names.DEPLOY_DRIVER: "true"}}}
        b.api.patch(resources.NODES, "n1", managed, type="merge")
        await b.until(lambda: all_ready(b, DRIVER), "the managed driver")
        assert kubelet.host.driver_version != driverfaults.HOST_VERSION
