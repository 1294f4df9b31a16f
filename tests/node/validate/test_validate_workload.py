"""Workload pods: contracts/mig-exporter-validator.md 6.5, and 6.3's components cuda and plugin."""

from collections.abc import Mapping
from typing import Any

import pytest
from node.fakeprocess import until
from node.validate.validator_world import NAMESPACE, NODE, OWNER, TOLERATIONS, World

from groundplane.lab import resources
from groundplane.lab.faults import Rule
from groundplane.node.validate import workload
from groundplane.node.validate.settings import Settings, WorkloadSettings

CUDA, PLUGIN = "nvidia-cuda-validator", "nvidia-device-plugin-validator"
POD = WorkloadSettings("image:1", "Always", ("a", "b"), "nvidia")
SETTINGS = Settings(component="cuda", node=NODE, namespace=NAMESPACE, pod=POD)


def document(kind: workload.Kind, resource: str = "", settings: Settings = SETTINGS) -> dict[str, Any]:
    return workload.document(kind, settings, workload.Owner([OWNER], TOLERATIONS), resource)


# --- the pod ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "app"), [(workload.CUDA, CUDA), (workload.PLUGIN, PLUGIN)])
def test_6_5_both_pods(kind: workload.Kind, app: str) -> None:
    pod = document(kind, "nvidia.com/gpu")
    assert pod["metadata"]["generateName"] == f"{app}-"
    assert pod["metadata"]["labels"] == {"app": app}
    assert pod["metadata"]["namespace"] == NAMESPACE
    assert pod["metadata"]["ownerReferences"] == [OWNER]
    spec = pod["spec"]
    assert spec["restartPolicy"] == "OnFailure"
    assert spec["serviceAccountName"] == "nvidia-operator-validator"
    assert spec["nodeName"] == NODE
    assert spec["tolerations"] == TOLERATIONS
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    (check,), (main,) = spec["initContainers"], spec["containers"]
    for container in (check, main):
        assert (container["image"], container["imagePullPolicy"]) == ("image:1", "Always")
    assert (check["command"], check["args"]) == (["sh", "-c"], ["vectorAdd"])
    assert main["name"] == app
    assert main["args"][0].startswith("echo ")
    assert main["securityContext"]["readOnlyRootFilesystem"] is True


def test_6_5_the_cuda_pod() -> None:
    pod = document(workload.CUDA)
    (check,) = pod["spec"]["initContainers"]
    assert check["name"] == "cuda-validation"
    assert check["securityContext"] == {"privileged": True}
    assert check["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert "resources" not in check
    expected = {"nvidia.cdi.k8s.io/container.cuda-validation": "management.nvidia.com/gpu=all"}
    assert pod["metadata"]["annotations"] == expected


def test_6_5_the_plugin_pod() -> None:
    pod = document(workload.PLUGIN, "nvidia.com/mig-1g.10gb")
    (check,) = pod["spec"]["initContainers"]
    assert check["name"] == "plugin-validation"
    assert check["securityContext"] == {"allowPrivilegeEscalation": False}
    one = {"nvidia.com/mig-1g.10gb": "1"}
    assert check["resources"] == {"requests": one, "limits": one}
    assert "env" not in check
    assert "annotations" not in pod["metadata"]


def test_6_5_without_options() -> None:
    settings = Settings(component="cuda", node=NODE, namespace=NAMESPACE, pod=WorkloadSettings("image:1"))
    spec = document(workload.CUDA, settings=settings)["spec"]
    assert not {"runtimeClassName", "imagePullSecrets"} & spec.keys()
    assert "imagePullPolicy" not in spec["initContainers"][0]


# --- running it -------------------------------------------------------------------------------------------------------


async def test_6_5_cuda(world: World) -> None:
    world.validator()
    world.api.create(resources.RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    world.start_kubelet()
    assert await world.run("cuda", VALIDATOR_RUNTIME_CLASS="nvidia") == 0
    assert world.status("cuda-ready") == ""
    (pod,) = world.pods()
    assert pod["metadata"]["name"].startswith(f"{CUDA}-")
    assert pod["metadata"]["ownerReferences"][0]["name"] == OWNER["name"]
    assert pod["spec"]["tolerations"][0] == TOLERATIONS[0]
    assert pod["status"]["phase"] == "Succeeded", "completed pods stay"


@pytest.mark.parametrize("component", ["cuda", "plugin"])
async def test_6_5_without_a_workload(world: World, component: str) -> None:
    world.resources({"nvidia.com/gpu": "1"})
    assert await world.run(component, WITH_WORKLOAD="false", VALIDATOR_IMAGE="-") == 0
    assert world.status(f"{component}-ready") == ""
    assert world.pods() == []


CHOICES = [
    ({"nvidia.com/gpu": "8"}, "nvidia.com/gpu"),
    ({"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7"}, "nvidia.com/mig-1g.10gb"),
    ({"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}, "nvidia.com/gpu"),
    ({"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}, "nvidia.com/gpu.shared"),
    ({"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "7"}, "nvidia.com/mig-1g.10gb"),
]


@pytest.mark.parametrize("strategy", ["single", "mixed", ""])
@pytest.mark.parametrize(("allocatable", "resource"), CHOICES)
async def test_6_5_choice_of_the_resource(
    world: World, allocatable: Mapping[str, str], resource: str, strategy: str
) -> None:
    world.validator()
    world.resources({"nvidia.com/gpu": "8"}, allocatable)
    world.start_kubelet()
    assert await world.run("plugin", MIG_STRATEGY=strategy) == 0
    (pod,) = world.pods()
    assert pod["spec"]["initContainers"][0]["resources"]["limits"] == {resource: "1"}


async def test_6_5_nothing_allocatable(world: World) -> None:
    world.validator()
    world.resources({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0", "cpu": "4"})
    assert await world.run("plugin") == 1
    text = "node n1 has no allocatable GPU, after 30 looks; its resources: cpu=4, nvidia.com/gpu=0; awaited: a GPU that"
    assert text in world.process.stderr
    assert world.pods() == []


async def test_6_5_what_is_allocatable_after_mig_was_changed_is_waited_for(world: World) -> None:
    """The kubelet takes some seconds to offer slices, and meanwhile still counts what there was."""
    world.validator()
    world.resources({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0"})
    world.start_kubelet()
    world.start("plugin")
    await world.logged("No GPU is allocatable yet; resources: nvidia.com/gpu=0")
    world.resources({"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "56"}, {"nvidia.com/mig-1g.10gb": "56"})
    assert await world.ended() == 0
    (pod,) = world.pods()
    assert pod["spec"]["initContainers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}


async def test_6_5_the_validators_daemon_set_must_exist(world: World) -> None:
    assert await world.run("cuda") == 1
    assert "reading DaemonSet gpu-operator/nvidia-operator-validator, whose owner" in world.process.stderr
    assert world.pods() == []
    assert world.status("cuda-ready") is None


def _old(world: World, app: str, node: str, number: int) -> str:
    pod = {
        "metadata": {"name": f"{app}-old{number}", "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    }
    world.api.create(resources.PODS, pod, NAMESPACE)
    return str(pod["metadata"]["name"])


async def test_6_5_all_older_pods_of_the_node_are_deleted_at_once(world: World) -> None:
    world.validator()
    world.api.create(resources.NODES, {"metadata": {"name": "n2"}})
    for number in range(3):
        _old(world, CUDA, NODE, number)
    kept = {_old(world, CUDA, "n2", 4), _old(world, PLUGIN, NODE, 5)}
    world.start_kubelet()
    assert await world.run("cuda") == 0
    left = {pod["metadata"]["name"] for pod in world.pods()}
    assert left > kept
    (made,) = left - kept
    assert "old" not in made
    assert world.faults.count("delete", user_agent="groundplane") == 3


async def test_6_5_a_pod_that_somebody_else_deletes_meanwhile(world: World) -> None:
    world.validator()
    _old(world, CUDA, NODE, 1)
    world.faults.add(Rule(verb="delete", resource="pods", answer=404))
    world.start_kubelet()
    assert await world.run("cuda") == 0


async def test_6_5_any_other_phase_is_waited_for_and_told_of(world: World) -> None:
    world.validator()
    world.start("cuda")
    (pod,) = await until(world.pods, "the pod")
    name = pod["metadata"]["name"]
    pulling = {
        "name": "cuda-validation",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}},
    }
    world.pod_status(name, phase="Pending", initContainerStatuses=[pulling])
    await world.logged(
        f"Pod {NAMESPACE}/{name} is Pending; container cuda-validation waits (ImagePullBackOff): no such tag"
    )
    world.pod_status(name, phase="Failed", reason="UnexpectedAdmissionError", message="no GPU left")
    await world.logged("is Failed; UnexpectedAdmissionError; no GPU left")
    assert world.running is not None
    assert not world.running.done()
    world.pod_status(name, phase="Succeeded")
    assert await world.ended() == 0


async def test_6_5_time_is_up(world: World) -> None:
    """And the last words of the check, which its container's state has, are in the log."""
    world.validator()
    world.process.pace = 3000.0
    world.start("cuda", WITH_WAIT="true")
    (pod,) = await until(world.pods, "the pod")
    said = "cuInit: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)"
    failed = {"terminated": {"exitCode": 3, "reason": "Error", "message": f"{said}\n"}}
    state = {"name": "cuda-validation", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": failed}
    world.pod_status(pod["metadata"]["name"], phase="Pending", initContainerStatuses=[state])
    began = world.process.monotonic()
    assert await world.ended() == 1
    assert world.process.monotonic() - began >= 200
    assert "has not succeeded within 300 s: it is Pending; container cuda-validation ended with code 3: " + said in (
        world.process.stderr
    )
    assert world.status("cuda-ready") is None
    looks = world.faults.count("get", user_agent="groundplane")
    assert looks <= 60 + len(workload.PAUSES_S) + 1


async def test_6_5_a_pod_that_is_gone_is_a_failure(world: World) -> None:
    world.validator()
    world.start("cuda")
    (pod,) = await until(world.pods, "the pod")
    world.api.delete(resources.PODS, pod["metadata"]["name"], NAMESPACE, grace_period_s=0)
    assert await world.ended() == 1
    assert "not found" in world.process.stderr


@pytest.mark.parametrize("verb", ["list", "create"])
async def test_6_5_the_api_server_refuses(world: World, verb: str) -> None:
    world.validator()
    world.faults.add(Rule(verb=verb, resource="pods", answer=403))
    assert await world.run("cuda") == 1
    assert "Error: cuda validation: " in world.process.stderr
    assert "awaited: an answer of the API server" in world.process.stderr


@pytest.mark.parametrize("missing", ["NODE_NAME", "VALIDATOR_IMAGE"])
async def test_6_5_what_a_workload_pod_needs(world: World, missing: str) -> None:
    world.validator()
    assert await world.run("cuda", **{missing: "-"}) == 1
    assert f"{missing} must be given for a workload pod; or set WITH_WORKLOAD=false" in world.process.stderr
