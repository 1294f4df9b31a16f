"""The default installation on a real node, used: GPUs for pods, edits, crashes, mistakes, upgrade, and its removal.

The tests of this module share one installation and run in their order; each leaves the stack ready.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from real import stage as stages
from real.stage import Stage

from groundplane.api import names
from groundplane.node.validate.cuda.simulated import RECOVERED
from testing.gpucluster import OPERATOR_IMAGE

pytestmark = pytest.mark.real

NODE = stages.FRESH
PLUGIN = "nvidia-device-plugin-daemonset"
WORKLOADS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def stack(stage: Stage) -> Iterator[Stage]:
    """The chart's defaults, installed and ready."""
    stage.use(NODE)
    stage.audited_before = stage.audited()  # an operator that is being uninstalled loses its rights before its life
    stage.cluster.install(stages.values("default"))
    stage.until("every layer is validated", lambda: stage.ready(NODE))
    yield stage
    stage.cluster.uninstall()


def edit(stack: Stage, **spec: Any) -> None:
    stack.patch(stages.POLICY, {"spec": spec})


def plugin_environment(stack: Stage) -> dict[str, str]:
    (container,) = stack.get(f"{stages.DAEMON_SETS}/{PLUGIN}")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def put(stack: Stage, value: str) -> None:
    """Edit the policy so that the device plugin's environment changes, and wait until the DaemonSet has it."""
    edit(stack, devicePlugin={"env": [{"name": "TEST_VALUE", "value": value}]})
    stack.until("the edit reaches the DaemonSet", lambda: plugin_environment(stack).get("TEST_VALUE") == value)


def test_all_pods_run_and_gpus_are_on_offer(stack: Stage) -> None:
    node = stack.get(f"/api/v1/nodes/{NODE}")
    assert node["status"]["allocatable"][names.GPU_RESOURCE] == "4"
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in stack.pods()}
    assert set(phases.values()) <= {"Running", "Succeeded"}, phases
    apps = {pod["metadata"]["labels"].get("app") for pod in stack.pods()}
    assert apps >= {
        "nvidia-driver-daemonset",
        "nvidia-container-toolkit-daemonset",
        PLUGIN,
        "gpu-feature-discovery",
        "nvidia-dcgm-exporter",
        "nvidia-operator-validator",
    }
    assert stack.conditions()["Ready"]["status"] == "True"


def test_the_operator_runs_as_the_chart_says(stack: Stage) -> None:
    (pod,) = stack.pods("gpu-operator")
    (container,) = pod["spec"]["containers"]
    context = {**pod["spec"].get("securityContext", {}), **container.get("securityContext", {})}
    assert context["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def gpu_pod(stack: Stage, name: str, count: int, *command: str) -> str:
    """Make a pod that asks for GPUs, and return its path."""
    image = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
    container: dict[str, Any] = {"name": "cuda", "image": image, "imagePullPolicy": "Never"}
    container["resources"] = {"limits": {names.GPU_RESOURCE: str(count)}}
    if command:
        container["command"] = list(command)
    pod = {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    status, answer = stack.cluster.request("POST", WORKLOADS, pod)
    assert status == 201, answer
    return f"{WORKLOADS}/{name}"


def gone(stack: Stage, path: str) -> None:
    stack.cluster.request("DELETE", path + "?gracePeriodSeconds=0")
    stack.until(f"{path} is gone", lambda: stack.cluster.request("GET", path)[0] == 404)


def test_the_features_of_node_and_gpus_are_labels(stack: Stage) -> None:
    labels = stack.until(
        "the labels of the GPUs", lambda: names.GPU_PRODUCT in (found := stack.node_labels(NODE)) and found
    )
    assert labels[names.GPU_PRODUCT] == "NVIDIA-H100-80GB-HBM3"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.memory"]) == ("4", "81559")
    assert labels[names.NFD_PREFIX + "pci-10de.present"] == "true"
    features = stack.items(f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{stages.NAMESPACE}/nodefeatures")
    found = {each["metadata"]["name"]: each for each in features}
    ours = found[f"nvidia-features-for-{NODE}"]
    assert ours["spec"]["labels"][names.GPU_PRODUCT] == labels[names.GPU_PRODUCT]
    assert {each["kind"] for each in ours["metadata"]["ownerReferences"]} == {"DaemonSet", "Pod"}
    assert found[NODE]["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"] == NODE


def test_a_pod_that_asks_for_gpus_gets_them(stack: Stage) -> None:
    path = gpu_pod(stack, "vector-add", 2)
    ended = ("Succeeded", "Failed")
    stack.until("the pod ends", lambda: stack.get(path)["status"]["phase"] in ended)
    log = stack.kubectl("logs", "vector-add")
    assert stack.get(path)["status"]["phase"] == "Succeeded", log
    assert log.count("50000 sums are right") == 2, log
    assert "Test PASSED" in log, log
    gone(stack, path)


def test_the_container_has_the_devices_that_the_books_say(stack: Stage) -> None:
    """CDI put the nodes of just the granted GPUs into the container; the pod-resources API says which they are."""
    path = gpu_pod(stack, "holder", 2, "sleep", "3600")
    stack.until("the pod runs", lambda: stack.get(path)["status"]["phase"] == "Running")
    held = stack.pod_resources(NODE)["holder"][names.GPU_RESOURCE]
    gpus = {card.gpu.uuid: card.gpu.device_node for card in stack.machine(NODE).read().cards.values()}
    assert len(set(held)) == 2 and set(held) <= gpus.keys()
    inside = stack.kubectl("exec", "holder", "--", "ls", "/dev").split()
    assert {f"/dev/{name}" for name in inside if name[6:].isdecimal() and name.startswith("nvidia")} == {
        gpus[uuid] for uuid in held
    }
    assert {"nvidiactl", "nvidia-uvm"} <= set(inside)
    environment = stack.kubectl("exec", "holder", "--", "env").splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment, "no runtime adds devices a second time"
    assert "libcuda.so.1" in stack.kubectl("exec", "holder", "--", "ls", "/usr/lib64", "/usr/lib/x86_64-linux-gnu")
    gone(stack, path)


def test_a_sick_gpu_leaves_the_offer_and_a_new_plugin_asks_again(stack: Stage) -> None:
    stack.machine(NODE).xid(0, 79)
    stack.until("one GPU less", lambda: stack.offered(NODE) == {names.GPU_RESOURCE: 3})
    assert stack.offered(NODE, "capacity") == {names.GPU_RESOURCE: 4}
    stack.machine(NODE).xid(0, RECOVERED)  # it has been reset
    (pod,) = stack.pods(PLUGIN)
    gone(stack, f"{stages.PODS}/{pod['metadata']['name']}")
    stack.until("all GPUs again", lambda: stack.offered(NODE) == {names.GPU_RESOURCE: 4})
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


SHARED = """
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


def test_shared_gpus_are_offered_so_many_times(stack: Stage) -> None:
    """A named configuration, the sidecar that chooses it by the node's label, recovery as the policy asks for it."""
    config = {"metadata": {"name": "plugin-configs"}, "data": {"shared": SHARED, "whole": "version: v1\n"}}
    status, answer = stack.cluster.request("POST", f"/api/v1/namespaces/{stages.NAMESPACE}/configmaps", config)
    assert status == 201, answer
    recovering = [{"name": "DP_HEALTH_RECOVERY_PERIOD", "value": "10s"}]
    edit(stack, devicePlugin={"config": {"name": "plugin-configs", "default": "shared"}, "env": recovering})
    stack.until("four times as many", lambda: stack.offered(NODE) == {names.GPU_RESOURCE: 16})
    stack.until("labels say so", lambda: stack.node_labels(NODE).get("nvidia.com/gpu.replicas") == "4")
    assert stack.node_labels(NODE)[names.GPU_PRODUCT] == "NVIDIA-H100-80GB-HBM3-SHARED"
    stack.machine(NODE).xid(1, 79)
    stack.until("all replicas of one GPU less", lambda: stack.offered(NODE) == {names.GPU_RESOURCE: 12})
    stack.machine(NODE).xid(1, RECOVERED)
    stack.until("it has recovered", lambda: stack.offered(NODE) == {names.GPU_RESOURCE: 16})
    label = {"metadata": {"labels": {names.DEVICE_PLUGIN_CONFIG: "whole"}}}
    stack.patch(f"/api/v1/nodes/{NODE}", label)
    stack.until("whole GPUs by the node's label", lambda: stack.offered(NODE) == {names.GPU_RESOURCE: 4})
    label = {"metadata": {"labels": {names.DEVICE_PLUGIN_CONFIG: None}}}
    stack.patch(f"/api/v1/nodes/{NODE}", label)
    edit(stack, devicePlugin={"config": None, "env": None})

    def alone() -> bool:
        pods = stack.pods(PLUGIN)
        return len(pods) == 1 and len(pods[0]["spec"]["containers"]) == 1

    stack.until("the plugin runs without its sidecar", alone)
    stack.until("whole GPUs", lambda: stack.offered(NODE).get(names.GPU_RESOURCE) == 4)
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


def test_groundplanes_own_image_takes_the_place_of_nvidias(stack: Stage) -> None:
    fields = ("repository", "image", "version")
    before = {name: stack.get(stages.POLICY)["spec"]["devicePlugin"][name] for name in fields}
    repository, _, version = OPERATOR_IMAGE.rpartition(":")
    host, _, image = repository.partition("/")

    def runs(image: str) -> bool:
        pods = stack.pods(PLUGIN)
        return len(pods) == 1 and image in pods[0]["spec"]["containers"][0]["image"]

    edit(stack, devicePlugin={"repository": host, "image": f"{image}-node", "version": version})
    stack.until("the plugin's pod is of that image", lambda: runs(f"{image}-node"))
    stack.until("the stack is ready again", lambda: stack.ready(NODE))
    edit(stack, devicePlugin=before)
    stack.until("the plugin's pod is of the former image", lambda: runs(before["image"]))
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


def test_an_edited_policy_rolls_through_to_the_pods(stack: Stage) -> None:
    (before,) = stack.pods(PLUGIN)
    put(stack, "one")

    def replaced() -> bool:
        pods = stack.pods(PLUGIN)
        return len(pods) == 1 and pods[0]["metadata"]["uid"] != before["metadata"]["uid"]

    stack.until("the pod is replaced", replaced)
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


def test_a_component_that_is_switched_off_goes_and_comes_back(stack: Stage) -> None:
    name = "nvidia-dcgm-exporter"
    edit(stack, dcgmExporter={"enabled": False})
    stack.until("the DaemonSet is gone", lambda: name not in stack.daemon_sets())
    stack.until("its pods are gone", lambda: not stack.pods(name))
    stack.until("the rest is ready", lambda: stack.ready(NODE))
    edit(stack, dcgmExporter={"enabled": True})
    stack.until("it is back and ready", lambda: name in stack.daemon_sets() and stack.ready(NODE))


def kill_operator(stack: Stage) -> None:
    (pod,) = stack.pods("gpu-operator")
    node = stack.cluster.cluster.nodes[pod["spec"]["nodeName"]]
    node.run(["pkill", "-KILL", "-f", "[g]pu-operator --"])


def kill_server(name: str) -> Callable[[Stage], None]:
    return lambda stack: stack.restart_server(name)


def kill_service(name: str) -> Callable[[Stage], None]:
    return lambda stack: stack.cluster.cluster.nodes[NODE].kill(name)


@pytest.mark.parametrize(
    ("victim", "kill"),
    [
        ("operator", kill_operator),
        ("kube-apiserver", kill_server("kube-apiserver")),
        ("etcd", kill_server("etcd")),
        ("kube-controller-manager", kill_server("kube-controller-manager")),
        ("containerd", kill_service("containerd")),
        ("kubelet", kill_service("kubelet")),
    ],
)
def test_it_recovers_when_something_is_killed(stack: Stage, victim: str, kill: Callable[[Stage], None]) -> None:
    kill(stack)
    stack.cluster.cluster.control_plane.processes["kube-apiserver"].wait_ready()
    put(stack, f"after {victim}")
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


def test_nothing_was_forbidden(stack: Stage) -> None:
    assert stack.forbidden(stack.audited_before) == []


def test_an_image_that_cannot_be_pulled_is_named(stack: Stage) -> None:
    before = {name: stack.get(stages.POLICY)["spec"]["dcgmExporter"][name] for name in ("repository", "version")}
    edit(stack, dcgmExporter={"repository": "127.0.0.1:1/nowhere", "version": "not-there"})
    image = "127.0.0.1:1/nowhere/dcgm-exporter:not-there"
    stack.until("a condition names the image", lambda: image in stack.message())
    stack.until("an event names the image", lambda: any(image in text for text in events(stack)))
    edit(stack, dcgmExporter=before)
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


def events(stack: Stage) -> list[str]:
    """Messages of the events about the policy."""
    query = "fieldSelector=involvedObject.kind%3DClusterPolicy"
    return [each["message"] for each in stack.items(f"/api/v1/events?{query}")]


def test_a_node_without_a_pod_network_is_named(stack: Stage) -> None:
    node = stack.cluster.cluster.nodes[stages.OWN_DRIVER]
    network = "/etc/cni/net.d/10-groundplane.conflist"
    with moved(node, network):
        stack.until("the node is not ready", lambda: not stack.cluster.cluster.ready(node.name))
        stack.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {names.DEPLOY_OPERANDS: None}}})
        stack.until("a condition names the node", lambda: node.name in stack.message())
        stack.until("an event names the node", lambda: any(node.name in text for text in events(stack)))
        stack.use(NODE)
    stack.until("the node is ready again", lambda: stack.cluster.cluster.ready(node.name))
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


@contextlib.contextmanager
def moved(node: Any, path: str) -> Iterator[None]:
    node.run(["mv", path, path + ".aside"])
    try:
        yield
    finally:
        node.run(["mv", path + ".aside", path])


def test_a_missing_permission_is_named_and_its_return_is_noticed(stack: Stage) -> None:
    role = stack.get(stages.OPERATOR_ROLE)
    reduced = [rule for rule in role["rules"] if "runtimeclasses" not in rule.get("resources", ())]
    assert len(reduced) < len(role["rules"])
    stack.patch(stages.OPERATOR_ROLE, {"rules": reduced})
    kill_operator(stack)
    stack.until("a condition names what is missing", lambda: "runtimeclasses" in stack.message())
    stack.until("an event names what is missing", lambda: any("runtimeclasses" in text for text in events(stack)))
    stack.patch(stages.OPERATOR_ROLE, {"rules": role["rules"]})
    stack.until("the stack is ready again", lambda: stack.ready(NODE))


def test_helm_upgrade_and_rollback(stack: Stage) -> None:
    values = stages.values("mig-mixed")
    stack.cluster.upgrade(values)
    assert stack.get(stages.POLICY)["spec"]["mig"]["strategy"] == "mixed"
    stack.until("the plugin follows", lambda: plugin_environment(stack).get("MIG_STRATEGY") == "mixed")
    stack.until("the stack is ready again", lambda: stack.ready(NODE))
    stack.cluster.rollback()
    stack.until("the plugin follows back", lambda: plugin_environment(stack).get("MIG_STRATEGY") == "single")
    stack.until("the stack is ready again", lambda: stack.ready(NODE))
