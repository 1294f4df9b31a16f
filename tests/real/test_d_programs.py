"""MIG, metrics, validation and the CUDA check on a real node: a node's administrator and a monitor at work.

contracts/mig-exporter-validator.md 3, 5 and 6. The tests of this module share one installation and run in their order:
the driver is held back at first, the GPUs are used whole, then in MIG slices, then whole again. The node's GPUs can do
MIG; strategy `mixed` gives each profile a resource of its own.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from real import stage as stages
from real.stage import Document, Stage

from groundplane.api import names
from groundplane.node.devices.simtelemetry import ProcessEntry
from groundplane.node.validate.cuda.simulated import RECOVERED

pytestmark = pytest.mark.real

NODE, GPUS = stages.FRESH, 4
LAYOUT, SLICE, SLICES = "all-1g.10gb", f"{names.MIG_RESOURCE_PREFIX}1g.10gb", 28
WHOLE = [None] * GPUS
VALIDATIONS = names.VALIDATIONS_DIR
DRIVER_READY = f"{VALIDATIONS}/.driver-ctr-ready"
LAYERS = ("driver", "toolkit", "cuda", "plugin")
VALIDATOR, EXPORTER, PLUGIN = "nvidia-operator-validator", "nvidia-dcgm-exporter", "nvidia-device-plugin-daemonset"
STATUS_EXPORTER, MIG_MANAGER = "nvidia-node-status-exporter", "nvidia-mig-manager"
WORKLOADS = ("nvidia-cuda-validator", "nvidia-device-plugin-validator")
PAUSABLE = (names.DEPLOY_DEVICE_PLUGIN, names.DEPLOY_GFD, names.DEPLOY_DCGM_EXPORTER)
LABELLED = (names.MIG_CONFIG, names.MIG_CONFIG_STATE, names.DEPLOY_DRIVER)
EXPORTER_PORT, STATUS_PORT = 9400, 8000
VALUES = {
    "dcgmExporter": {"env": [{"name": "DCGM_EXPORTER_INTERVAL", "value": "1000"}]},
    "validator": {"plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "true"}]}},
    "nodeStatusExporter": {"enabled": True},
}


@pytest.fixture(scope="module")
def stack(stage: Stage) -> Iterator[Stage]:
    """The chart, installed while the node's label keeps the driver away."""
    stage.until("an earlier installation's pods are gone", lambda: not stage.items(stages.PODS))
    stage.use(NODE)
    for path in stage.inside(NODE, VALIDATIONS).glob("*"):  # of an installation that was taken away as a whole
        path.unlink()
    label(stage, names.DEPLOY_DRIVER, "false")
    stage.audited_before = stage.audited()
    stage.cluster.install(stages.values("mig-mixed", **VALUES))
    yield stage
    stage.cluster.uninstall()
    stage.until("the pods are gone", lambda: not stage.items(stages.PODS))
    for key in LABELLED:
        label(stage, key, None)


# --- looking and doing ------------------------------------------------------------------------------------------------


def label(stage: Stage, key: str, value: str | None) -> None:
    stage.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {key: value}}})


def ready_files(stack: Stage) -> list[str]:
    """The components that count as validated, in the order in which that was found."""
    found = stack.inside(NODE, VALIDATIONS).glob("[!.]*-ready")
    return [path.name.removesuffix("-ready") for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def only(stack: Stage, app: str) -> Document:
    """The one pod of an operand that is not on its way out; empty if there is none, or more."""
    pods = stack.pods(app)
    return pods[0] if len(pods) == 1 else {}


def checks(pod: Document) -> dict[str, str]:
    """Init containers and how they are: waiting, running, done or failed."""
    found = {}
    for each in pod.get("status", {}).get("initContainerStatuses", []):
        (state, more), *_ = each["state"].items()
        found[each["name"]] = state if state != "terminated" else "failed" if more["exitCode"] else "done"
    return found


def runs(pod: Document) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


def validated(stack: Stage) -> bool:
    """Whether the validator runs and every component counts as validated."""
    return runs(only(stack, VALIDATOR)) and set(ready_files(stack)) == set(LAYERS)


def offers(stack: Stage) -> dict[str, int]:
    """The GPU resources that the node offers some of; the kubelet goes on to name those that were there."""
    return {name: count for name, count in stack.offered(NODE).items() if count}


def kill(stack: Stage, program: str, variable: str = "") -> None:
    """SIGKILL to a program of the node's containers, the one that has a variable if one is given."""
    command = (
        f'for pid in $(pgrep -f "^[^ ]*python3 -I /usr/bin/{program}"); do '
        f'tr "\\0" "\\n" < /proc/$pid/environ | grep -qx "{variable or ".*"}" && kill -KILL $pid && echo $pid; done'
    )
    killed = stack.cluster.cluster.nodes[NODE].run(["sh", "-c", command], check=False).stdout.split()
    assert len(killed) == 1, f"{program} {variable}: killed {killed}"


def metrics(stack: Stage, app: str, port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """What an exporter's page says, as Prometheus reads it: series, their rows' sorted labels, values."""
    pod = only(stack, app)
    if not runs(pod):
        return {}
    status, text = stack.page(pod["metadata"]["name"], port, "/metrics")
    assert status in (200, 503), text
    if status == 503:  # it does not listen yet
        return {}
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def rows(stack: Stage, series: str, **wanted: str) -> dict[tuple[str, ...], float]:
    """The exporter's rows of a series that have some labels: GPU, GPU instance, pod, namespace and container."""
    shown = ("gpu", "GPU_I_ID", "pod", "namespace", "container")
    found = {}
    for labels, value in metrics(stack, EXPORTER, EXPORTER_PORT).get(series, {}).items():
        given = dict(labels)
        if wanted.items() <= given.items():
            found[tuple(given.get(name, "") for name in shown)] = value
    return found


def gauges(stack: Stage) -> dict[str, float]:
    """The node-status exporter's gauges of this node, without the parts that all names share."""
    (node,) = ((("node", NODE),),)
    return {
        name.removeprefix("gpu_operator_").removeprefix("node_"): found[node]
        for name, found in metrics(stack, STATUS_EXPORTER, STATUS_PORT).items()
        if name.startswith("gpu_operator_")
    }


@contextlib.contextmanager
def workload(stack: Stage, name: str, resource: str, *command: str) -> Iterator[str]:
    """A pod that is given one of a resource; its path. It is gone at the end."""
    image = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
    container: Document = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    container["resources"] = {"limits": {resource: "1"}}
    if command:
        container["command"] = list(command)
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    pods = "/api/v1/namespaces/default/pods"
    status, answer = stack.cluster.request("POST", pods, {"metadata": {"name": name}, "spec": spec})
    assert status == 201, answer
    try:
        yield f"{pods}/{name}"
    finally:
        stack.cluster.request("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")
        stack.until(f"{name} is gone", lambda: stack.cluster.request("GET", f"{pods}/{name}")[0] == 404)


def phase(stack: Stage, path: str) -> str:
    return str(stack.get(path)["status"]["phase"])


def state(stack: Stage) -> str:
    return stack.node_labels(NODE).get(names.MIG_CONFIG_STATE, "")


def failure(stack: Stage) -> str:
    """What the MIG manager says of the last run's failure."""
    return str(stack.get(f"/api/v1/nodes/{NODE}")["metadata"]["annotations"].get(names.MIG_CONFIG_FAILURE, ""))


def let_go(stack: Stage) -> bool:
    """Whether no operand is paused."""
    labels = stack.node_labels(NODE)
    return all(labels.get(key) == "true" for key in PAUSABLE)


def divided(stack: Stage) -> list[list[str] | None]:
    """The profiles of each GPU's MIG devices; None for a GPU that is whole, with MIG off."""
    gpus = stack.machine(NODE).read().inventory.gpus
    return [[str(device.profile) for device in gpu.mig_devices] if gpu.mig_enabled else None for gpu in gpus]


# --- without a driver -------------------------------------------------------------------------------------------------


def test_without_a_driver_nothing_opens(stack: Stage) -> None:
    """6.3, 6.6: the lowest layer's validation says what it waits for; what is above it has not begun."""
    toolkit = "nvidia-container-toolkit-daemonset"
    stack.until(
        "the toolkit waits for the driver", lambda: checks(only(stack, toolkit)) == {"driver-validation": "running"}
    )
    stack.until("the node's metrics are served", lambda: runs(only(stack, STATUS_EXPORTER)))
    pod = only(stack, toolkit)["metadata"]["name"]
    stack.until(
        "the validation says what it waits for",
        lambda: DRIVER_READY in stack.kubectl("logs", "-n", stages.NAMESPACE, pod, "-c", "driver-validation"),
    )
    assert not stack.pods("nvidia-driver-daemonset")
    waiting = {name for name, how in checks(only(stack, VALIDATOR)).items() if how == "waiting"}
    assert waiting == {f"{layer}-validation" for layer in LAYERS}
    assert not any(runs(only(stack, app)) for app in (toolkit, PLUGIN, EXPORTER, VALIDATOR))
    assert ready_files(stack) == []
    assert offers(stack) == {}
    found = stack.until("the gauges", lambda: gauges(stack))
    assert {name: found[f"{name}_ready"] for name in LAYERS} == dict.fromkeys(LAYERS, 0)
    assert (found["driver_validation"], found["nvidia_pci_devices_total"]) == (0, GPUS)


def test_the_layers_open_in_their_order(stack: Stage) -> None:
    """6.2, 6.5, 6.6: driver, toolkit, cuda, plugin; the workload pods have computed on the GPUs they were given."""
    label(stack, names.DEPLOY_DRIVER, None)
    stack.until("every layer is validated", lambda: validated(stack))
    statuses = {each["name"]: each["state"]["terminated"] for each in init_statuses(only(stack, VALIDATOR))}
    assert list(statuses) == [f"{layer}-validation" for layer in LAYERS]
    assert {each["exitCode"] for each in statuses.values()} == {0}
    times = [time for each in statuses.values() for time in (each["startedAt"], each["finishedAt"])]
    assert times == sorted(times)
    assert ready_files(stack) == list(LAYERS)
    written = stack.inside(NODE, f"{VALIDATIONS}/driver-ready").read_text().splitlines()
    assert written[:3] == [
        "IS_HOST_DRIVER=false",
        f"NVIDIA_DRIVER_ROOT={names.DRIVER_ROOT}",
        "DRIVER_ROOT_CTR_PATH=/driver-root",
    ]
    uuids = {card.gpu.uuid for card in stack.machine(NODE).read().cards.values()}
    for app, check, count in zip(WORKLOADS, ("cuda-validation", "plugin-validation"), (GPUS, 1), strict=True):
        pod = only(stack, app)
        assert pod["status"]["phase"] == "Succeeded"
        log = stack.kubectl("logs", "-n", stages.NAMESPACE, pod["metadata"]["name"], "-c", check)
        assert log.count("50000 sums are right") == count, log
        assert sum(uuid in log for uuid in uuids) == count, log
        assert "Test PASSED" in log


def init_statuses(pod: Document) -> list[Any]:
    return list(pod["status"]["initContainerStatuses"])


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_the_exporters_figures_are_the_gpus_and_name_who_uses_them(stack: Stage) -> None:
    """5.2, 5.5: also while the kubelet does not answer, and with a GPU that is lost."""
    machine = stack.machine(NODE)
    with workload(stack, "holder", names.GPU_RESOURCE, "sleep", "3600") as path:
        stack.until("the pod runs", lambda: phase(stack, path) == "Running")
        (held,) = stack.pod_resources(NODE)["holder"][names.GPU_RESOURCE]
        index = str(machine.read().cards[held].gpu.index)
        machine.set_telemetry(
            held, load=60, values={"gpuTempC": 71, "powerMw": 345500}, processes=(ProcessEntry(4711, 2048),)
        )
        used = (index, "", "holder", "default", "main")
        stack.until(
            "the row names the pod", lambda: rows(stack, "DCGM_FI_DEV_GPU_TEMP", gpu=index, UUID=held) == {used: 71}
        )
        assert rows(stack, "DCGM_FI_DEV_POWER_USAGE", gpu=index) == {used: 345.5}
        assert rows(stack, "DCGM_FI_DEV_FB_USED", gpu=index) == {used: 2048}
        assert rows(stack, "DCGM_FI_DEV_GPU_UTIL", gpu=index) == {used: 60}
        others = {row for row in rows(stack, "DCGM_FI_DEV_GPU_UTIL") if row != used}
        assert others == {(str(number), "", "", "", "") for number in range(GPUS) if str(number) != index}
        assert stack.page(only(stack, EXPORTER)["metadata"]["name"], EXPORTER_PORT, "/health") == (200, "OK")
        without_the_kubelet(stack, index, used)
    lost = next(number for number in range(GPUS) if str(number) != index)
    machine.lose(lost)
    stack.until("the lost GPU's rows go", lambda: not rows(stack, "DCGM_FI_DEV_GPU_TEMP", gpu=str(lost)))
    assert len(rows(stack, "DCGM_FI_DEV_GPU_TEMP")) == GPUS - 1
    stack.until("its Xid error is told", lambda: rows(stack, "DCGM_FI_DEV_XID_ERRORS", gpu=str(lost), err_code="79"))
    machine.restore(lost)
    machine.xid(lost, RECOVERED)  # it has been reset
    machine.set_telemetry(held, load=0, values={}, processes=())
    stack.until("its rows are back", lambda: len(rows(stack, "DCGM_FI_DEV_GPU_TEMP")) == GPUS)


def without_the_kubelet(stack: Stage, index: str, used: tuple[str, ...]) -> None:
    """The socket goes, and with it what rows say of pods; a new kubelet's socket brings that back."""
    socket = "/var/lib/kubelet/pod-resources/kubelet.sock"
    node = stack.cluster.cluster.nodes[NODE]
    node.run(["rm", socket])
    stack.until(
        "rows name no pod", lambda: rows(stack, "DCGM_FI_DEV_GPU_UTIL", gpu=index) == {(index, "", "", "", ""): 60}
    )
    node.kill("kubelet")
    stack.until("rows name the pod again", lambda: rows(stack, "DCGM_FI_DEV_GPU_UTIL", gpu=index) == {used: 60})


# --- MIG --------------------------------------------------------------------------------------------------------------


def test_an_unknown_layout_fails_and_touches_nothing(stack: Stage) -> None:
    """3.4: before anything is paused."""
    stack.until("the first layout is settled", lambda: state(stack) == "success")
    before = {app: only(stack, app)["metadata"]["uid"] for app in (PLUGIN, EXPORTER, VALIDATOR)}
    label(stack, names.MIG_CONFIG, "no-such-layout")
    stack.until("it has failed", lambda: state(stack) == "failed")
    assert "no-such-layout" in failure(stack)
    assert let_go(stack)
    assert {app: only(stack, app)["metadata"]["uid"] for app in before} == before
    assert divided(stack) == WHOLE


def test_a_gpu_in_use_keeps_its_layout(stack: Stage) -> None:
    """3.6: the run fails, the operands go on, and no GPU has instances; the mode of others, once changed, stays."""
    machine = stack.machine(NODE)
    with workload(stack, "busy", names.GPU_RESOURCE, "sleep", "3600") as path:
        stack.until("the pod runs", lambda: phase(stack, path) == "Running")
        (held,) = stack.pod_resources(NODE)["busy"][names.GPU_RESOURCE]
        machine.set_busy(held)
        try:
            label(stack, names.MIG_CONFIG, LAYOUT)
            stack.until("it has failed", lambda: state(stack) == "failed" and "IN_USE" in failure(stack))
            assert let_go(stack)
            assert phase(stack, path) == "Running"
            assert not any(divided(stack))
        finally:
            machine.set_busy(held, False)


def test_a_layout_by_label_though_the_manager_is_killed_meanwhile(stack: Stage) -> None:
    """3.3 to 3.6: what was paused goes on; the node offers slices; they compute, and have rows of their own."""
    label(stack, names.MIG_CONFIG, None)
    label(stack, names.MIG_CONFIG, LAYOUT)
    stack.until("the run has begun", lambda: state(stack) != "failed")
    kill(stack, MIG_MANAGER)
    stack.until("it has come to its end", lambda: state(stack) == "success")
    assert let_go(stack)
    assert failure(stack) == ""
    assert divided(stack) == [["1g.10gb"] * (SLICES // GPUS)] * GPUS
    stack.until("the node offers slices", lambda: offers(stack) == {SLICE: SLICES})
    layouts = stack.get(f"/api/v1/namespaces/{stages.NAMESPACE}/configmaps/{NODE}-mig-config")["data"]["config.yaml"]
    assert f"{LAYOUT}:" in layouts
    with workload(stack, "slice", SLICE) as path:
        stack.until("the pod ends", lambda: phase(stack, path) in ("Succeeded", "Failed"))
        log = stack.kubectl("logs", "slice")
        assert phase(stack, path) == "Succeeded", log
        assert "NVIDIA H100 80GB HBM3 MIG 1g.10gb (UUID: MIG-" in log
        assert log.count("50000 sums are right") == 1, log
    slices_have_rows(stack)


def slices_have_rows(stack: Stage) -> None:
    with workload(stack, "slice-holder", SLICE, "sleep", "3600") as path:
        stack.until("the pod runs", lambda: phase(stack, path) == "Running")
        (held,) = stack.pod_resources(NODE)["slice-holder"][SLICE]
        card, device = next(
            (card, device) for card, device in stack.machine(NODE).read().placed() if device.uuid == held
        )
        index, gi = str(card.gpu.index), str(device.gi)
        used = (index, gi, "slice-holder", "default", "main")
        stack.until(
            "the slice's row names the pod", lambda: used in rows(stack, "DCGM_FI_DEV_FB_FREE", GPU_I_PROFILE="1g.10gb")
        )
        found = rows(stack, "DCGM_FI_DEV_FB_FREE")
        assert len(found) == SLICES
        assert [row for row in found if row[2]] == [used]
        assert found[used] == device.memory_mib - device.memory_mib // 160


# --- a layer that goes, and comes back --------------------------------------------------------------------------------


def test_whole_gpus_again_as_soon_as_the_driver_is_there(stack: Stage) -> None:
    """6.2, 6.6: a driver that goes closes the layers above it, and its return opens them."""
    stack.until("the layers are validated on slices", lambda: validated(stack))
    before = {only(stack, app)["metadata"]["uid"] for app in WORKLOADS}
    ready = stack.inside(NODE, DRIVER_READY)
    content = ready.read_text()
    ready.unlink()
    label(stack, names.MIG_CONFIG, "all-disabled")
    stack.until("the GPUs are whole", lambda: state(stack) == "success" and divided(stack) == WHOLE)
    held_back = {"driver-validation": "running", **{f"{layer}-validation": "waiting" for layer in LAYERS[1:]}}
    stack.until("a new validator waits for the driver", lambda: checks(only(stack, VALIDATOR)) == held_back)
    assert ready_files(stack) == []
    waiting = {"toolkit-validation": "running"}
    for app in (PLUGIN, EXPORTER):
        stack.until(f"{app} waits for the toolkit", lambda app=app: checks(only(stack, app)) == waiting)
    kill(stack, "nvidia-validator", "COMPONENT=driver")
    stack.until(
        "the validation was started again", lambda: init_statuses(only(stack, VALIDATOR))[0]["restartCount"] == 1
    )
    stack.until("it waits for the driver", lambda: checks(only(stack, VALIDATOR)) == held_back)
    assert ready_files(stack) == []
    ready.write_text(content)
    stack.until("every layer is validated", lambda: validated(stack))
    assert ready_files(stack) == list(LAYERS)
    after = {app: only(stack, app) for app in WORKLOADS}
    assert {pod["status"]["phase"] for pod in after.values()} == {"Succeeded"}
    assert not {pod["metadata"]["uid"] for pod in after.values()} & before
    stack.until("the node offers whole GPUs", lambda: offers(stack) == {names.GPU_RESOURCE: GPUS})


def test_the_nodes_status_is_on_its_page(stack: Stage) -> None:
    """6.7."""
    pod = only(stack, STATUS_EXPORTER)["metadata"]["name"]
    stack.cluster.request("DELETE", f"{stages.PODS}/{pod}")  # the next one looks at everything at once
    wanted = {**{f"{layer}_ready": 1.0 for layer in LAYERS}, "driver_validation": 1.0, "nvidia_pci_devices_total": GPUS}

    def told() -> bool:
        devices = {"device_plugin_devices_total": sum(stack.offered(NODE, "capacity").values())}
        return (wanted | devices).items() <= gauges(stack).items()

    stack.until("the gauges say that all is well", told)
    found = gauges(stack)
    began = found["metrics_ready_ts_seconds"]
    assert found["driver_validation_last_success_ts_seconds"] >= began
    assert found["device_plugin_validation_last_success_ts_seconds"] >= began


def test_nothing_was_forbidden(stack: Stage) -> None:
    assert stack.forbidden(stack.audited_before) == []
