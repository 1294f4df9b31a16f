"""Real kubectl against a lab that the shipped command started: what a person does with a cluster, word for word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e.lab_home import LabHome, alive, until

import groundplane.lab

pytestmark = pytest.mark.kubectl

DATA = Path(groundplane.lab.__file__).parent / "data"
POLICY = (DATA / "guide-baseline.yaml").read_text()
OPERATOR = ("-n", "gpu-operator")
CUDA_IMAGE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"

CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}, labels: {{app: {name}}}}}
data: {data}
"""
AGENT = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      containers:
      - {{name: main, image: 'busybox:1.36', command: [sleep, infinity], env: [{{name: LEVEL, value: low}}]}}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHome]:
    """A lab of the demo's four nodes, brought to ready by the guide's policy."""
    home = LabHome(tmp_path_factory.mktemp("home"))
    try:
        home.ok("groundplane", "lab", "up", "--nodes", str(DATA / "demo-nodes.yaml"))
        home.kubectl("apply", "-f", str(DATA / "guide-baseline.yaml"))
        home.kubectl("wait", "clusterpolicy/cluster-policy", "--for=jsonpath={.status.state}=ready", "--timeout=50s")
        yield home
    finally:
        home.close()


def driver_pod(lab: LabHome) -> str:
    names = lab.kubectl(*OPERATOR, "get", "pods", "-l", "app=nvidia-driver-daemonset", "-o", "name").split()
    assert len(names) == 2, "one node has its driver on the host"
    return names[0]


def one_shot(name: str, image: str, **container: object) -> str:
    """A pod document that runs once."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": image} | container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


# --- the commands around the lab --------------------------------------------------------------------------------------


def test_up_status_down_each_say_what_is_so(tmp_path: Path) -> None:
    home = LabHome(tmp_path)
    try:
        assert "no lab named 'default' is running" in home.run("groundplane", "lab", "status").err
        said = home.ok("groundplane", "lab", "up", "--nodes", "1", "--no-operator")
        assert f"export KUBECONFIG={home.environment['KUBECONFIG']}" in said
        pid = json.loads(home.state.read_text())["pid"]
        assert "already runs" in home.run("groundplane", "lab", "up").err
        status = home.ok("groundplane", "lab", "status")
        assert "gpu-1" in status
        assert "no ClusterPolicy" in status
        home.kubectl("wait", "node/gpu-1", "--for=condition=Ready", "--timeout=20s")
        assert home.ok("groundplane", "lab", "down") == "lab 'default' is down\n"
        until(lambda: not alive(pid), "the lab's process to be gone")
        assert not home.state.exists()
        assert home.run("groundplane", "lab", "down").code != 0
    finally:
        home.close()


def test_status_shows_every_layer_of_every_node(lab: LabHome) -> None:
    status = lab.ok("groundplane", "lab", "status")
    rows = {line.split()[0]: line.split() for line in status.splitlines() if line.startswith(("gpu-", "cpu-"))}
    assert rows["gpu-a"][1:] == ["healthy"] * 7 + ["8", "NVIDIA-H100-80GB-HBM3"]
    assert rows["gpu-c"][1:] == ["healthy"] * 7 + ["4", "NVIDIA-L40S"]
    assert rows["cpu-a"][1:] == ["-"] * 9
    assert "ClusterPolicy cluster-policy: ready" in status


# --- reading ----------------------------------------------------------------------------------------------------------


def test_get_in_every_form(lab: LabHome) -> None:
    nodes = [line.split() for line in lab.kubectl("get", "nodes").splitlines()]
    assert nodes[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert [row[0] for row in nodes[1:]] == ["cpu-a", "gpu-a", "gpu-b", "gpu-c"]
    wide = lab.kubectl("get", "nodes", "-o", "wide")
    assert "6.8.0-60-generic" in wide
    assert "containerd://2.1.4" in wide
    document = yaml.safe_load(lab.kubectl("get", "node", "gpu-a", "-o", "yaml"))
    assert document["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    offered = lab.kubectl(
        "get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name}={.status.allocatable.nvidia\\.com/gpu} {end}"
    )
    assert offered.split() == ["cpu-a=", "gpu-a=8", "gpu-b=8", "gpu-c=4"]
    assert lab.kubectl("get", "nodes", "-l", "nvidia.com/gpu.product=NVIDIA-L40S", "-o", "name") == "node/gpu-c\n"
    fields = "spec.nodeName=gpu-a,status.phase=Running"
    columns = "custom-columns=NODE:.spec.nodeName,PHASE:.status.phase"
    pods = lab.kubectl("get", "pods", "-A", "--field-selector", fields, "--no-headers", "-o", columns)
    assert {tuple(line.split()) for line in pods.splitlines()} == {("gpu-a", "Running")}
    assert lab.kubectl("get", "clusterpolicy", "--no-headers").split()[:2] == ["cluster-policy", "ready"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["node", "gpu-a"], ["gpu.product=NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu:     8", "Non-terminated Pods"]),
        ([*OPERATOR, "ds", "nvidia-driver-daemonset"], ["Desired Number of Nodes Scheduled: 2", "nvidia-driver-ctr"]),
        ([*OPERATOR, "pods", "-l", "app=nvidia-driver-daemonset"], ["k8s-driver-manager", "Controlled By:"]),
        (["clusterpolicy", "cluster-policy"], ["Kernel Module Type:", "State:", "All resources have been reconciled"]),
    ],
)  # fmt: skip
def test_describe(lab: LabHome, arguments: list[str], texts: list[str]) -> None:
    said = lab.kubectl("describe", *arguments)
    for text in texts:
        assert text in said


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("pods.spec.containers.resources", "Compute Resources"),
        ("clusterpolicy.spec.driver", "usePrecompiled"),
        ("clusterpolicy.spec.mig.strategy", "ENUM:\n    none\n    single\n    mixed"),
    ],
)
def test_explain(lab: LabHome, field: str, text: str) -> None:
    assert text in lab.kubectl("explain", field)


def test_questions_about_the_cluster(lab: LabHome) -> None:
    assert "clusterpolicies" in lab.kubectl("api-resources", "--api-group=nvidia.com")
    assert "nvidia.com/v1" in lab.kubectl("api-versions").split()
    assert "Server Version: v1." in lab.kubectl("version")
    assert "is running at" in lab.kubectl("cluster-info")
    assert lab.kubectl("auth", "can-i", "create", "clusterpolicies.nvidia.com") == "yes\n"


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [[], ["--server-side"]], ids=["client", "server"])
def test_apply_again_and_changed(lab: LabHome, how: list[str]) -> None:
    name = "applied" + "".join(how)
    first, changed = CONFIG.format(name=name, data="{a: '1', b: '2'}"), CONFIG.format(name=name, data="{a: '9'}")
    apply = ["apply", *how, "-f", "-"]
    lab.kubectl(*apply, stdin=first)
    before = lab.kubectl("get", "cm", name, "-o", "jsonpath={.metadata.resourceVersion}")
    lab.kubectl(*apply, stdin=first)
    assert lab.kubectl("get", "cm", name, "-o", "jsonpath={.metadata.resourceVersion}") == before
    lab.kubectl(*apply, stdin=changed)
    assert json.loads(lab.kubectl("get", "cm", name, "-o", "jsonpath={.data}")) == {"a": "9"}
    lab.kubectl("delete", "cm", name)


def test_server_side_apply_names_the_other_manager(lab: LabHome) -> None:
    apply = ["apply", "--server-side", "-f", "-"]
    lab.kubectl(*apply, "--field-manager=one", stdin=CONFIG.format(name="contested", data="{a: '1'}"))
    other = CONFIG.format(name="contested", data="{a: '2'}")
    said = lab.refused(*apply, "--field-manager=two", stdin=other)
    assert 'conflict with "one": .data.a' in said
    lab.kubectl(*apply, "--field-manager=two", "--force-conflicts", stdin=other)
    lab.kubectl("delete", "cm", "contested")


def test_patch_edit_label_annotate(lab: LabHome) -> None:
    lab.kubectl("apply", "-f", "-", stdin=AGENT.format(name="edited"))
    strategic = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "busybox:1.37"}]}}}}
    lab.kubectl("patch", "ds", "edited", "-p", json.dumps(strategic))
    lab.kubectl("patch", "ds", "edited", "--type=merge", "-p", '{"spec":{"minReadySeconds":1}}')
    operations = [
        {"op": "test", "path": "/spec/minReadySeconds", "value": 1},
        {"op": "remove", "path": "/spec/minReadySeconds"},
    ]
    lab.kubectl("patch", "ds", "edited", "--type=json", "-p", json.dumps(operations))
    lab.kubectl("edit", "ds", "edited", KUBE_EDITOR="sed -i 's/value: low/value: high/'")
    lab.kubectl("label", "ds", "edited", "tier=one")
    lab.kubectl("annotate", "ds", "edited", "note=kept")
    live = json.loads(lab.kubectl("get", "ds", "edited", "-o", "json"))
    container = live["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["env"]) == ("busybox:1.37", [{"name": "LEVEL", "value": "high"}])
    assert not live["spec"].get("minReadySeconds")
    assert (live["metadata"]["labels"]["tier"], live["metadata"]["annotations"]["note"]) == ("one", "kept")
    assert "already has a value (one), and --overwrite is false" in lab.refused("label", "ds", "edited", "tier=two")
    lab.kubectl("label", "ds", "edited", "tier-")
    assert "tier" not in lab.kubectl("get", "ds", "edited", "--show-labels")
    lab.kubectl("delete", "ds", "edited")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("strategy: single", "strategy: both", 'spec.mig.strategy: Unsupported value: "both"'),
        ("usePrecompiled: false", "usePrecompiled: maybe", "spec.driver.usePrecompiled in body must be of type"),
        ("usePrecompiled: false", "usePrecompild: false", 'error: unknown field "spec.driver.usePrecompild"'),
    ],
    ids=["enum", "type", "unknown"],
)  # fmt: skip
def test_a_wrong_policy_is_refused_by_its_field(lab: LabHome, old: str, new: str, text: str) -> None:
    assert text in lab.refused("apply", "-f", "-", stdin=POLICY.replace(old, new))
    assert lab.kubectl("get", "clusterpolicy", "cluster-policy", "-o", "jsonpath={.spec.mig.strategy}") == "single"


def test_unknown_fields_warn_when_asked_to(lab: LabHome) -> None:
    wrong = POLICY.replace("usePrecompiled: false", "usePrecompild: false")
    arguments = ("kubectl", "apply", "--validate=warn", "--dry-run=server", "-f", "-")
    result = lab.run(*arguments, stdin=wrong)
    assert result.code == 0
    assert 'Warning: unknown field "spec.driver.usePrecompild"' in result.err


def test_a_component_goes_and_comes_by_patch(lab: LabHome) -> None:
    for enabled, condition in ((False, "delete"), (True, "create")):
        patch = json.dumps({"spec": {"dcgmExporter": {"enabled": enabled}}})
        lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", "-p", patch)
        lab.kubectl(*OPERATOR, "wait", "ds/nvidia-dcgm-exporter", f"--for={condition}", "--timeout=20s")
    lab.kubectl(*OPERATOR, "rollout", "status", "ds/nvidia-dcgm-exporter", "--timeout=30s")
    lab.kubectl("wait", "clusterpolicy/cluster-policy", "--for=condition=Ready", "--timeout=30s")


# --- pods -------------------------------------------------------------------------------------------------------------


def test_logs(lab: LabHome) -> None:
    pod = driver_pod(lab)
    assert "Done, now waiting for signal" in lab.kubectl(*OPERATOR, "logs", pod)
    assert lab.kubectl(*OPERATOR, "logs", pod, "--tail=2").count("\n") == 2
    assert lab.kubectl(*OPERATOR, "logs", pod, "-c", "k8s-driver-manager")
    assert "container nope is not valid" in lab.refused(*OPERATOR, "logs", pod, "-c", "nope")
    slow = {"command": ["sh", "-c", "echo one; sleep 30; echo two"]}
    lab.kubectl("apply", "-f", "-", stdin=one_shot("slow", "busybox:1.36", **slow))
    lab.kubectl("wait", "pod/slow", "--for=jsonpath={.status.containerStatuses[0].started}=true", "--timeout=20s")
    assert lab.kubectl("logs", "-f", "slow") == "one\ntwo\n"
    lab.kubectl("delete", "pod", "slow")


def test_logs_of_a_container_that_crashed(lab: LabHome) -> None:
    crash = json.loads(one_shot("crash", "busybox:1.36", command=["sh", "-c", "echo started; exit 3"]))
    crash["spec"]["restartPolicy"] = "Always"
    lab.kubectl("apply", "-f", "-", stdin=json.dumps(crash))
    last = "{.status.containerStatuses[0].lastState.terminated.exitCode}"
    lab.kubectl("wait", "pod/crash", f"--for=jsonpath={last}=3", "--timeout=20s")
    assert lab.kubectl("logs", "crash", "--previous") == "started\n"
    until(lambda: "CrashLoopBackOff" in lab.kubectl("get", "pod", "crash"), "the back-off to show")
    assert "Back-off restarting failed container" in lab.kubectl("describe", "pod", "crash")
    lab.kubectl("delete", "pod", "crash")


def test_exec(lab: LabHome) -> None:
    pod = driver_pod(lab)
    run = [*OPERATOR, "exec", pod]
    listed = lab.kubectl(*run, "--", "nvidia-smi", "-L")
    assert listed.count("NVIDIA H100 80GB HBM3 (UUID: GPU-") == 8
    result = lab.run("kubectl", *run, "--", "sh", "-c", "echo oops >&2; exit 7")
    assert (result.code, result.out) == (7, "")
    assert "oops" in result.err
    assert "command terminated with exit code 7" in result.err
    assert lab.kubectl(*OPERATOR, "exec", "-i", pod, "--", "cat", stdin="one\ntwo\n") == "one\ntwo\n"
    assert lab.run("kubectl", *run, "--", "no-such-program").code == 127


def test_a_pod_with_a_gpu_passes_the_cuda_check(lab: LabHome) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    container = {"name": "cuda", "image": CUDA_IMAGE} | limits
    overrides = json.dumps({"spec": {"containers": [container]}})
    lab.kubectl("run", "cuda", "--restart=Never", f"--image={CUDA_IMAGE}", f"--overrides={overrides}")
    lab.kubectl("wait", "pod/cuda", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert "Test PASSED" in lab.kubectl("logs", "cuda")
    lab.kubectl("delete", "pod", "cuda")
    assert "not found" in lab.refused("get", "pod", "cuda")
    bare = json.loads(one_shot("cuda-bare", CUDA_IMAGE))
    bare["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    lab.kubectl("apply", "-f", "-", stdin=json.dumps(bare))
    lab.kubectl("wait", "pod/cuda-bare", "--for=jsonpath={.status.phase}=Failed", "--timeout=20s")
    assert "this container was given no GPU" in lab.kubectl("logs", "cuda-bare")
    lab.kubectl("delete", "pod", "cuda-bare")


def test_run_hands_on_what_a_pod_prints_and_its_exit_code(lab: LabHome) -> None:
    run = ("kubectl", "run", "once", "--rm", "-i", "--quiet", "--restart=Never", "--image=busybox:1.36")
    result = lab.run(*run, "--", "sh", "-c", "echo one; sleep 30; exit 4")
    assert (result.code, result.out) == (4, "one\n")
    assert "terminated (Error)" in result.err
    assert "not found" in lab.refused("get", "pod", "once")


def test_attach_follows_a_running_program(lab: LabHome) -> None:
    program = {"command": ["sh", "-c", "while true; do echo tick; sleep 10; done"]}
    lab.kubectl("apply", "-f", "-", stdin=one_shot("ticking", "busybox:1.36", **program))
    lab.kubectl("wait", "pod/ticking", "--for=condition=Ready", "--timeout=20s")
    lines = lab.lines_until(lambda seen: len(seen) == 3, lambda: None, "attach", "ticking", "--quiet")
    assert lines == ["tick\n"] * 3
    lab.kubectl("delete", "pod", "ticking", "--now")


def test_a_pod_that_asks_for_too_many_gpus_waits(lab: LabHome) -> None:
    pod = one_shot("greedy", CUDA_IMAGE, resources={"limits": {"nvidia.com/gpu": "9"}})
    lab.kubectl("apply", "-f", "-", stdin=pod)
    lab.kubectl("wait", "pod/greedy", "--for=condition=PodScheduled=False", "--timeout=20s")
    assert "Insufficient nvidia.com/gpu" in lab.kubectl("describe", "pod", "greedy")
    lab.kubectl("delete", "pod", "greedy")
    assert "not found" in lab.refused("logs", "greedy")


# --- workloads --------------------------------------------------------------------------------------------------------


def test_watch_prints_what_happens(lab: LabHome) -> None:
    lab.kubectl("create", "configmap", "watched", "--from-literal=a=1")
    patch = '{"data":{"b":"2"}}'
    lines = lab.lines_until(
        lambda seen: len(seen) == 2,
        lambda: lab.kubectl("patch", "cm", "watched", "-p", patch) and None,
        *("get", "cm", "watched", "-w", "--no-headers"),
    )
    assert [line.split()[:2] for line in lines] == [["watched", "1"], ["watched", "2"]]
    lab.kubectl("delete", "cm", "watched")


def test_deployment_from_creation_to_deletion(lab: LabHome) -> None:
    status = ("rollout", "status", "deployment/site", "--timeout=30s")
    lab.kubectl("create", "deployment", "site", "--image=nginx:1.29", "--replicas=2")
    assert "successfully rolled out" in lab.kubectl(*status)
    lab.kubectl("scale", "deployment", "site", "--replicas=3")
    lab.kubectl(*status)
    before = lab.kubectl("get", "pods", "-l", "app=site", "-o", "name").split()
    assert len(before) == 3
    lab.kubectl("rollout", "restart", "deployment/site")
    lab.kubectl(*status)
    assert "2" in lab.kubectl("rollout", "history", "deployment/site")
    lab.kubectl("set", "image", "deployment/site", "nginx=nginx:1.30")
    lab.kubectl(*status)
    lab.kubectl("rollout", "undo", "deployment/site")
    lab.kubectl(*status)
    image = "jsonpath={.spec.template.spec.containers[0].image}"
    assert lab.kubectl("get", "deployment", "site", "-o", image) == "nginx:1.29"
    lab.kubectl("delete", "deployment", "site", "--cascade=foreground")
    assert lab.kubectl("get", "pods,rs", "-l", "app=site", "-o", "name") == ""


def test_delete_can_leave_the_dependents(lab: LabHome) -> None:
    lab.kubectl("create", "deployment", "orphaning", "--image=nginx:1.29")
    lab.kubectl("rollout", "status", "deployment/orphaning", "--timeout=30s")
    lab.kubectl("delete", "deployment", "orphaning", "--cascade=orphan")
    [replica_set] = lab.kubectl("get", "rs", "-l", "app=orphaning", "-o", "name").split()
    owners = lab.kubectl("get", replica_set, "-o", "jsonpath={.metadata.ownerReferences}")
    assert owners == ""
    [pod] = lab.kubectl("get", "pods", "-l", "app=orphaning", "-o", "name").split()
    lab.kubectl("delete", replica_set)
    lab.kubectl("wait", pod, "--for=delete", "--timeout=20s")


def test_daemon_set_rolls_out_and_restarts(lab: LabHome) -> None:
    lab.kubectl("apply", "-f", "-", stdin=AGENT.format(name="agent"))
    status = ("rollout", "status", "ds/agent", "--timeout=30s")
    assert "successfully rolled out" in lab.kubectl(*status)
    pods = ("get", "pods", "-l", "app=agent", "-o", "name")
    before = set(lab.kubectl(*pods).split())
    assert len(before) == 4
    lab.kubectl("rollout", "restart", "ds/agent")
    lab.kubectl(*status)
    after = set(lab.kubectl(*pods).split())
    assert len(after) == 4
    assert not before & after
    lab.kubectl("delete", "ds", "agent")


def test_drain_keeps_the_disruption_budget(lab: LabHome) -> None:
    lab.kubectl("create", "deployment", "kept", "--image=nginx:1.29", "--replicas=2")
    lab.kubectl("rollout", "status", "deployment/kept", "--timeout=30s")
    lab.kubectl("create", "pdb", "kept", "--selector=app=kept", "--min-available=2")
    lab.kubectl("wait", "pdb/kept", "--for=jsonpath={.status.currentHealthy}=2", "--timeout=20s")
    where = ("get", "pods", "-l", "app=kept", "-o", "jsonpath={.items[*].spec.nodeName}")
    node = lab.kubectl(*where).split()[0]
    drain = ("drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data")
    try:
        lab.kubectl("cordon", node)
        assert "SchedulingDisabled" in lab.kubectl("get", "node", node)
        said = lab.refused(*drain, "--pod-selector=app=kept", "--timeout=1s")
        assert "Cannot evict pod as it would violate the pod's disruption budget" in said
        lab.kubectl("patch", "pdb", "kept", "-p", '{"spec":{"minAvailable":1}}')
        assert "drained" in lab.kubectl(*drain, "--pod-selector=app=kept", "--timeout=30s")
        lab.kubectl("rollout", "status", "deployment/kept", "--timeout=30s")
        assert node not in lab.kubectl(*where).split()
    finally:
        lab.kubectl("uncordon", node)
    assert "SchedulingDisabled" not in lab.kubectl("get", "node", node)
    lab.kubectl("delete", "deployment/kept", "pdb/kept")


def test_a_namespace_goes_with_all_that_is_in_it(lab: LabHome) -> None:
    lab.kubectl("create", "namespace", "team")
    lab.kubectl("create", "deployment", "app", "-n", "team", "--image=nginx:1.29")
    lab.kubectl("rollout", "status", "deployment/app", "-n", "team", "--timeout=30s")
    lab.kubectl("delete", "namespace", "team", "--timeout=30s")
    assert "not found" in lab.refused("get", "namespace", "team")
    assert lab.kubectl("get", "pods", "-n", "team", "-o", "name") == ""
