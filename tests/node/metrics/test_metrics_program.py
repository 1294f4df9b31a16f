"""The exporter as a program over HTTP (contracts/mig-exporter-validator.md 4, 5; 9 #7 to #14)."""

import asyncio
import base64
import contextlib
import gzip
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, Signals
from typing import Any

import aiohttp
import grpc
import pytest
from node.fakeprocess import until
from node.metrics.exporterworld import COLLECTORS, World, of, pod, samples

from groundplane.api.release import Release
from groundplane.cluster.errors import ConfigError
from groundplane.node.devices.simtelemetry import ProcessEntry
from groundplane.node.devices.simulated import GpuEntry, Mig, TelemetryEntry
from groundplane.node.kubeletapi.stubs import podresources_pb2 as wire
from groundplane.node.metrics import listen, main, pods, sampler, scrape, server, webconfig

Make = Callable[..., World]
TEMP = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature (in C).\n"
POWER = "DCGM_FI_DEV_POWER_USAGE, gauge, Power (in W).\n"


# --- 4: pages ---------------------------------------------------------------------------------------------------------


async def test_4_pages(world: Make) -> None:
    here = world(["H100"])
    await here.start()
    page = await here.get("/")
    assert (page.status, page.content_type) == (200, "text/html")
    health = await here.get("/health")
    assert (health.status, await health.text(), health.headers["X-Registry-Available"]) == (200, "OK", "true")
    metrics = await here.get("/metrics")
    assert metrics.headers["Content-Type"] == "text/plain; charset=utf-8"
    missing = await here.get("/other")
    assert missing.status == 404
    assert {each.headers["X-Content-Type-Options"] for each in (page, health, metrics, missing)} == {"nosniff"}
    assert (await here.get("/debug/state")).status == 404
    assert await here.end() == 0


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGQUIT])
async def test_4_signals_end_it_cleanly(world: Make, number: Signals) -> None:
    here = world(["H100"])
    await here.start()
    assert await here.end(number) == 0
    with pytest.raises(aiohttp.ClientError):
        await here.get()


async def test_5_3_the_whole_text(world: Make) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ("1g.10gb",))), GpuEntry("T4", telemetry=TelemetryEntry(load=50))])
    here.prepare(release=Release.V26_3)
    csv = f"{POWER}{TEMP}DCGM_FI_DRIVER_VERSION, label, v\nDCGM_FI_DEV_SERIAL, label, s\nDCGM_FI_DEV_GPU_UTIL, gauge, u"
    await here.start(counters=csv)
    one, two = here.machine.read().inventory.gpus
    mig = (
        f'gpu="0",UUID="{one.uuid}",pci_bus_id="00000000:10:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",'
        f'GPU_I_PROFILE="1g.10gb",GPU_I_ID="{one.mig_devices[0].gi}",Hostname="n1",'
        'DCGM_FI_DEV_SERIAL="1652300000000",DCGM_FI_DRIVER_VERSION="580.95.05"'
    )
    gpu = (
        f'gpu="1",UUID="{two.uuid}",pci_bus_id="00000000:18:00.0",device="nvidia1",modelName="Tesla T4",Hostname="n1",'
        'DCGM_FI_DEV_SERIAL="1652300000001",DCGM_FI_DRIVER_VERSION="580.95.05"'
    )
    assert await here.scrape() == (
        "# HELP DCGM_FI_DEV_GPU_TEMP Temperature (in C).\n"
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        f"DCGM_FI_DEV_GPU_TEMP{{{mig}}} 32\n"
        f"DCGM_FI_DEV_GPU_TEMP{{{gpu}}} 55\n"
        "# HELP DCGM_FI_DEV_POWER_USAGE Power (in W).\n"
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{mig}}} 70.000000\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{gpu}}} 40.000000\n"
        "# HELP DCGM_FI_DEV_GPU_UTIL u\n"
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
        f"DCGM_FI_DEV_GPU_UTIL{{{gpu}}} 50\n"
    )


async def test_5_2_the_shipped_set_is_used_where_no_file_is(world: Make) -> None:
    here = world([GpuEntry("H100", telemetry=TelemetryEntry(load=30))])
    await here.start("--no-hostname", "--replace-blanks-in-model-name")
    found = samples(await here.scrape())
    assert len({name for name, _, _ in found}) == 25
    assert {labels["modelName"] for _, labels, _ in found} == {"NVIDIA-H100-80GB-HBM3"}
    assert not any("hostname" in labels for _, labels, _ in found)


MEMORY = "".join(f"DCGM_FI_DEV_FB_{name}, gauge, x\n" for name in ("TOTAL", "FREE", "USED", "RESERVED"))


async def test_5_7_memory_adds_up_on_gpus_and_instances(world: Make) -> None:
    here = world(
        [
            GpuEntry("A100", telemetry=TelemetryEntry(load=40)),
            GpuEntry("A100", mig=Mig(True, ("3g.40gb",)), telemetry=TelemetryEntry(load=70)),
        ]
    )
    await here.start(counters=MEMORY)
    body = await here.scrape()
    for index in "01":
        value = {
            name: of(body, f"DCGM_FI_DEV_FB_{name}", gpu=index)[0][2] for name in ("TOTAL", "FREE", "USED", "RESERVED")
        }
        assert value["FREE"] + value["USED"] + value["RESERVED"] == value["TOTAL"]
        assert value["USED"] > 0


async def test_a_row_that_is_blank_everywhere_has_no_head(world: Make) -> None:
    here = world([GpuEntry("H100", telemetry=TelemetryEntry(absent={"gpuTempC": "ERROR_NOT_SUPPORTED"}))])
    await here.start(counters=TEMP + POWER)
    body = await here.scrape()
    assert "GPU_TEMP" not in body
    assert of(body, "DCGM_FI_DEV_POWER_USAGE")


@pytest.mark.parametrize(
    ("devices", "rows"),
    [
        ("f", [("0", "1"), ("0", "11"), ("1", "")]),
        ("g", [("0", ""), ("1", "")]),
        ("g:1", [("1", "")]),
        ("i", [("0", "1"), ("0", "11")]),
        ("i:1", [("0", "11")]),
    ],
)
async def test_4_devices(world: Make, devices: str, rows: list[tuple[str, str]]) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ("3g.40gb", "1g.10gb"))), "A100"])
    await here.start("-d", devices, counters=TEMP)
    found = of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP")
    assert [(labels["gpu"], labels.get("GPU_I_ID", "")) for _, labels, _ in found] == rows


async def test_4_devices_that_are_not_there(world: Make) -> None:
    here = world(["H100"])
    process = here.prepare("-d", "g:0,3")
    assert await main.run(process) == 1
    assert "--devices names what is not there: GPU 3; this machine has 1 GPUs" in process.stderr


# --- what keeps it from beginning -------------------------------------------------------------------------------------


async def test_a_driver_that_is_not_there_ends_it_unless_it_is_to_wait(world: Make) -> None:
    here = world(["H100"])
    here.loaded = False
    process = here.prepare()
    assert await main.run(process) == 1
    assert "ERROR_DRIVER_NOT_LOADED" in process.stderr
    here.prepare("--disable-startup-validate")
    await here.start(counters=TEMP)
    assert await here.scrape() == ""
    here.loaded = True
    await here.scraped(lambda body: of(body, "DCGM_FI_DEV_GPU_TEMP"), "figures of the driver that came")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("-f", "/none.csv"), "the counters file /none.csv cannot be read"),
        (("--web-config-file", "/none.yaml"), "the web config file /none.yaml cannot be read"),
        (("--fake-gpus",), "GROUNDPLANE_SIMULATION"),
    ],
)
async def test_what_is_wrong_at_the_start_ends_it(world: Make, flags: tuple[str, ...], text: str) -> None:
    process = world(["H100"]).prepare(*flags)
    assert await main.run(process) == 1
    assert text in process.stderr


async def test_bad_rows_of_the_counters_file(world: Make) -> None:
    process = world(["H100"]).prepare()
    process.write(COLLECTORS, f"{TEMP}NO_SUCH, gauge, x\nDCGM_FI_DEV_POWER_USAGE, speed, x")
    assert await main.run(process) == 1
    assert f"{COLLECTORS}, line 2: 'NO_SUCH'" in process.stderr
    assert f"{COLLECTORS}, line 3: DCGM_FI_DEV_POWER_USAGE: 'speed' is no type" in process.stderr


async def test_a_port_that_is_taken(world: Make) -> None:
    first = world(["H100"])
    await first.start()
    process = world(["H100"]).prepare("-a", first.url.removeprefix("http://"))
    assert await main.run(process) == 1
    assert "cannot serve at 127.0.0.1" in process.stderr


# --- sampling ---------------------------------------------------------------------------------------------------------


async def test_values_follow_the_gpu(world: Make) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    here.machine.set_telemetry(0, values={"gpuTempC": 91})
    await here.scraped(lambda body: of(body, "DCGM_FI_DEV_GPU_TEMP")[0][2] == 91, "the new temperature")


async def test_9_13_mig_on_without_instances_and_another_layout(world: Make) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ()))])
    await here.start()
    assert "GPU_I_ID" not in await here.scrape()
    here.machine.set_mig(0, True, ["1g.10gb", "3g.40gb"])
    body = await here.scraped(lambda body: "GPU_I_ID" in body, "rows of instances")
    found = of(body, "DCGM_FI_DEV_FB_FREE")
    assert sorted(labels["GPU_I_PROFILE"] for _, labels, _ in found) == ["1g.10gb", "3g.40gb"]
    here.machine.set_mig(0, False)
    await here.scraped(lambda body: "GPU_I_ID" not in body, "the whole GPU")


async def test_9_7_9_8_instances_repeat_their_gpus_power_and_have_no_utilisation(world: Make) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ("1g.10gb", "1g.10gb")), telemetry=TelemetryEntry(load=20))])
    await here.start()
    body = await here.scrape()
    assert [value for _, _, value in of(body, "DCGM_FI_DEV_POWER_USAGE")] == [196.0, 196.0]
    assert of(body, "DCGM_FI_DEV_GPU_UTIL") == []
    assert len(of(body, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")) == 2


async def test_9_14_profiling_fields_that_are_missing_are_told_once_with_a_reason(world: Make) -> None:
    here = world(["A100"])
    await here.start(counters=f"{TEMP}DCGM_FI_PROF_SM_ACTIVE, gauge, x\nDCGM_FI_PROF_DRAM_ACTIVE, gauge, x")
    for _ in range(3):
        assert "PROF" not in await here.scrape()
        await asyncio.sleep(0.06)
    told = [line for line in here.process.stderr.splitlines() if "DCGM_FI_PROF_SM_ACTIVE" in line]
    assert len(told) == 1
    assert "ERROR_NOT_SUPPORTED" in told[0] and "Hopper" in told[0] and "SYS_ADMIN" in told[0]


async def test_a_gpu_is_lost_while_it_is_scraped_and_comes_back(world: Make) -> None:
    here = world(["H100"] * 3)
    await here.start(counters=f"{TEMP}DCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_EXP_GPU_HEALTH_STATUS, gauge, x")
    await here.told("listening to the driver's Xid errors of 3 GPUs")
    here.machine.lose(1)
    body = await here.scraped(
        lambda body: len(of(body, "DCGM_FI_DEV_GPU_TEMP")) == 2 and of(body, "DCGM_FI_DEV_XID_ERRORS", err_code="79"),
        "the loss",
    )
    assert [labels["gpu"] for _, labels, _ in of(body, "DCGM_FI_DEV_GPU_TEMP")] == ["0", "2"]
    (xid,) = of(body, "DCGM_FI_DEV_XID_ERRORS", gpu="1")
    assert (xid[2], xid[1]["err_msg"]) == (79, "GPU has fallen off the bus")
    (health,) = of(body, "DCGM_EXP_GPU_HEALTH_STATUS", gpu="1", health_watch="DRIVER")
    assert (health[2], health[1]["health_error_code"]) == (20, "DCGM_FR_FALLEN_OFF_BUS")
    await here.told("ERROR_GPU_IS_LOST; it needs a reset")
    here.machine.restore(1)
    await here.scraped(lambda body: len(of(body, "DCGM_FI_DEV_GPU_TEMP")) == 3, "its return")


async def test_it_begins_with_a_lost_gpu(world: Make) -> None:
    here = world(["H100"] * 2)
    here.machine.lose(0, xid=None)
    await here.start(counters=TEMP)
    assert [labels["gpu"] for _, labels, _ in of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP")] == ["1"]
    await here.told("GPU 0: ERROR_GPU_IS_LOST")


async def test_a_driver_that_fails_is_looked_for_again(world: Make) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    here.machine.fail_library("ERROR_UNKNOWN")
    await here.told("the driver cannot be asked which GPUs there are: ")
    here.machine.set_telemetry(0, values={"gpuTempC": 77})
    here.machine.fail_library(None)
    await here.scraped(lambda body: of(body, "DCGM_FI_DEV_GPU_TEMP")[0][2] == 77, "the driver's return")
    await here.told("over: the driver cannot be asked")


async def test_a_scrape_never_waits_for_a_gpu_and_stale_values_are_dropped(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_SLACK_S", 0.3)
    monkeypatch.setattr(sampler, "CLOSING_S", 0.05)
    here = world(["H100"] * 2)
    await here.start(counters=TEMP)
    here.machine.set_telemetry(0, delay_s=300.0)  # longer than anybody waits here
    await here.told("has not answered")
    here.machine.set_telemetry(1, values={"gpuTempC": 88})

    def shown(body: str) -> list[tuple[str, float]]:
        return [(labels["gpu"], value) for _, labels, value in of(body, "DCGM_FI_DEV_GPU_TEMP")]

    await here.scraped(lambda body: shown(body) == [("1", 88)], "stale values to go and those of the other GPU to come")
    assert await here.end() == 0
    assert "the driver has not answered all questions" in here.process.stderr


async def test_gpus_that_are_bound_to_the_driver_later_show_at_once(world: Make) -> None:
    here = world(["H100", GpuEntry("H100", present=False)])
    here.prepare(
        "--collect-interval", "600000", "--enable-gpu-bind-unbind-watch", "--gpu-bind-unbind-poll-interval", "100ms"
    )
    await here.start(counters=TEMP)
    assert len(of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP")) == 1
    here.machine.restore(1)
    await here.scraped(lambda body: len(of(body, "DCGM_FI_DEV_GPU_TEMP")) == 2, "the second GPU")


# --- 5.4, 9 #9 and #10: errors ----------------------------------------------------------------------------------------

DERIVED = (
    "DCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_EXP_XID_ERRORS_COUNT, counter, x\nDCGM_EXP_CLOCK_EVENTS_COUNT, counter, x\n"
    "DCGM_EXP_P2P_STATUS, counter, x\nGROUNDPLANE_XID_LAST_TIMESTAMP_SECONDS, gauge, x\n"
)


async def test_5_4_derived_series(world: Make) -> None:
    here = world(["H100", GpuEntry("L4", telemetry=TelemetryEntry(values={"eventReasons": 0x24}))])
    await here.start("-x", "60000", counters=DERIVED)
    body = await here.scraped(lambda body: of(body, "DCGM_EXP_P2P_STATUS"), "P2P")
    assert [value for _, _, value in of(body, "DCGM_FI_DEV_XID_ERRORS", err_code="0")] == [0, 0]
    (none, *_) = of(body, "DCGM_EXP_XID_ERRORS_COUNT", gpu="0")
    assert (none[2], none[1]["window_size_in_ms"], "xid" in none[1]) == (0, "60000", False)
    reasons = {labels["clock_event"] for _, labels, _ in of(body, "DCGM_EXP_CLOCK_EVENTS_COUNT", gpu="1")}
    assert reasons == {"power_cap", "sw_thermal"}
    peers = of(body, "DCGM_EXP_P2P_STATUS")
    assert [(labels["gpu"], labels["peer_gpu"], labels["link_status"], value) for _, labels, value in peers] == [
        ("0", "1", "NotSupported", 5),
        ("1", "0", "NotSupported", 5),
    ]
    assert of(body, "GROUNDPLANE_XID_LAST_TIMESTAMP_SECONDS") == []
    await here.told("listening to the driver's Xid errors of 2 GPUs")
    for number in (31, 13, 31):
        here.machine.xid(0, number)
    body = await here.scraped(lambda body: len(of(body, "DCGM_EXP_XID_ERRORS_COUNT", gpu="0")) == 2, "the errors")
    counts = {labels["xid"]: value for _, labels, value in of(body, "DCGM_EXP_XID_ERRORS_COUNT", gpu="0")}
    assert counts == {"13": 1, "31": 2}
    (last,) = of(body, "DCGM_FI_DEV_XID_ERRORS", gpu="0")
    assert (last[2], last[1]["err_code"]) == (31, "31")
    assert of(body, "GROUNDPLANE_XID_LAST_TIMESTAMP_SECONDS", gpu="0")[0][2] > 1e9


async def test_5_4_clock_events_without_any(world: Make) -> None:
    here = world([GpuEntry("H100", telemetry=TelemetryEntry(load=50))])
    await here.start(counters="DCGM_EXP_CLOCK_EVENTS_COUNT, counter, x\n")
    ((_, labels, value),) = of(await here.scrape(), "DCGM_EXP_CLOCK_EVENTS_COUNT")
    assert (value, "clock_event" in labels, labels["window_size_in_ms"]) == (0, False, "300000")


async def test_9_10_errors_that_only_the_kernels_log_tells(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "KERNEL_LOG_S", 0.02)
    here = world(["H100", "H100"])
    file = here.prepare().write("/dev/kmsg", "NVRM: Xid (PCI:0000:10:00): 13, old\n")
    await here.start(counters=DERIVED)
    await here.told("reading Xid errors in the kernel's log")
    with file.open("a") as log:
        log.write("6,1,1,-;NVRM: Xid (PCI:0000:18:00): 119, pid=1, Timeout\n")
    body = await here.scraped(lambda body: of(body, "DCGM_EXP_XID_ERRORS_COUNT", xid="119"), "the error")
    assert of(body, "DCGM_EXP_XID_ERRORS_COUNT", xid="119")[0][1]["gpu"] == "1"
    assert of(body, "DCGM_FI_DEV_XID_ERRORS", gpu="0")[0][2] == 0


# --- 5.5: pods --------------------------------------------------------------------------------------------------------


async def test_5_5_pods_of_gpus_and_instances(world: Make) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ("1g.10gb", "3g.40gb"))), "H100", "H100"])
    here.prepare("-k", "--nvidia-resource-names", "nvidia.com/gpu.shared")
    await here.kubelet.start()
    one, two, three = here.machine.read().inventory.gpus
    here.kubelet.pods = [
        pod("mig", one.mig_devices[0].uuid, resource="nvidia.com/mig-3g.40gb"),
        pod("slice", f"{one.mig_devices[1].uuid}::1", resource="nvidia.com/mig-1g.10gb"),
        pod("whole", two.uuid),
        pod("shared", f"{three.uuid}::0", resource="nvidia.com/gpu.shared"),
        pod("none"),
    ]
    await here.start(counters=TEMP)
    found = of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP")
    assert [(labels["gpu"], labels.get("GPU_I_ID"), labels["pod"]) for _, labels, _ in found] == [
        ("0", str(one.mig_devices[0].gi), "mig"),
        ("0", str(one.mig_devices[1].gi), "slice"),
        ("1", None, "whole"),
        ("2", None, "shared"),
    ]
    assert all((labels["namespace"], labels["container"]) == ("team", "main") for _, labels, _ in found)
    here.kubelet.pods = []
    assert not any("pod" in labels for _, labels, _ in of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP"))


async def test_5_5_a_kubelet_that_is_not_there_or_fails_costs_labels_only(world: Make) -> None:
    here = world(["H100"])
    here.prepare("-k")
    await here.start(counters=TEMP)
    (gpu,) = here.machine.read().inventory.gpus
    assert "pod=" not in await here.scrape()
    await here.told("there is no socket /var/lib/kubelet/pod-resources/kubelet.sock")
    here.kubelet.pods = [pod("a", gpu.uuid)]
    await here.kubelet.start()
    await here.scraped(lambda body: 'pod="a"' in body, "the pod")
    here.kubelet.fails = grpc.StatusCode.UNAVAILABLE
    assert "pod=" not in await here.scrape()
    await here.told("does not list pods")
    here.kubelet.fails = None
    await here.kubelet.stop()
    await here.kubelet.start()
    await here.scraped(lambda body: 'pod="a"' in body, "the pod after the kubelet's restart")
    await here.told("the kubelet lists pods again")


async def test_5_5_a_kubelet_that_hangs_costs_labels_only(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "PATIENCE_S", 0.1)
    here = world(["H100"])
    here.prepare("-k")
    await here.kubelet.start()
    (gpu,) = here.machine.read().inventory.gpus
    here.kubelet.pods = [pod("a", gpu.uuid)]
    here.kubelet.answers.clear()
    await here.start(counters=TEMP)
    bodies = await asyncio.gather(*(here.scrape() for _ in range(5)))
    assert all(of(body, "DCGM_FI_DEV_GPU_TEMP") and "pod=" not in body for body in bodies)
    assert here.kubelet.asked == 1, "scrapes at one time share a question"
    here.kubelet.answers.set()
    await here.scraped(lambda body: 'pod="a"' in body, "the pod")
    here.kubelet.answers.clear()
    await here.scrape()
    assert await here.end() == 0


async def test_5_5_without_kubernetes_nobody_is_asked(world: Make) -> None:
    here = world(["H100"])
    here.prepare()
    await here.kubelet.start()
    await here.start(counters=TEMP)
    await here.scrape()
    assert here.kubelet.asked == 0


async def with_lab(objects: list[tuple[str, dict[str, Any]]]) -> Any:
    """A lab's API server with some objects, and how to make a client of it."""
    from groundplane.cluster.client import Client
    from groundplane.cluster.config import Config
    from groundplane.lab import api, http

    made = api.Api()
    for resource, item in objects:
        made.create(made.resource(resource), item)
    served = await http.serve(made)
    return made, served, lambda: Client(Config(server=served.url))


def pod_object(name: str, labels: dict[str, str], node: str = "n1") -> tuple[str, dict[str, Any]]:
    return "pods", {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
    }


NAMESPACE = ("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})


async def test_5_5_labels_and_uids_of_pods(world: Make) -> None:
    api, served, client = await with_lab([NAMESPACE, pod_object("a", {"app.kubernetes.io/name": "x", "gpu": "no"})])
    uid = api.find(api.resource("pods"), "a", "team")["metadata"]["uid"]
    here = world(["H100"])
    here.prepare(
        *("-k", "--kubernetes-enable-pod-labels", "--kubernetes-enable-pod-uid"),
        make_client=client,
    )
    await here.kubelet.start()
    (gpu,) = here.machine.read().inventory.gpus
    here.kubelet.pods = [pod("a", gpu.uuid)]
    await here.start(counters=TEMP)
    body = await here.scraped(lambda body: "pod_uid" in body, "the uid")
    ((_, labels, _),) = of(body, "DCGM_FI_DEV_GPU_TEMP")
    assert (labels["pod_uid"], labels["app_kubernetes_io_name"], labels["gpu"]) == (uid, "x", "0")
    assert await here.end() == 0
    await served.close()


async def test_5_5_virtual_gpus_with_each_pods_part(world: Make) -> None:
    api, served, client = await with_lab([NAMESPACE, *(pod_object(name, {}) for name in ("a", "b"))])
    uid = api.find(api.resource("pods"), "a", "team")["metadata"]["uid"]
    entry = TelemetryEntry(load=60, processes=(ProcessEntry(71, 2048, 55), ProcessEntry(72, 100, 5)))
    here = world([GpuEntry("H100", telemetry=entry), "H100"])
    process = here.prepare("-k", "--kubernetes-virtual-gpus", make_client=client)
    process.write_kernel(
        "/proc/71/cgroup", f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-1.scope\n"
    )
    process.write_kernel("/proc/72/cgroup", "0::/system.slice/other.service\n")
    await here.kubelet.start()
    gpu, idle = here.machine.read().inventory.gpus
    here.kubelet.pods = [pod("a", f"{gpu.uuid}::0"), pod("b", f"{gpu.uuid}::1")]
    await here.start(counters=f"{TEMP}{MEMORY}DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    body = await here.scraped(lambda body: "pod_uid" in body, "the pods' parts")
    temperatures = of(body, "DCGM_FI_DEV_GPU_TEMP", gpu="0")
    assert [(labels["pod"], labels["vgpu"]) for _, labels, _ in temperatures] == [("a", "0"), ("b", "1")]
    assert "pod" not in of(body, "DCGM_FI_DEV_GPU_TEMP", gpu="1")[0][1]
    used = [(labels.get("pod"), value) for _, labels, value in of(body, "DCGM_FI_DEV_FB_USED", gpu="0")]
    assert used == [(None, 2148), ("a", 2048), ("b", 0)]
    util = [(labels.get("pod"), value) for _, labels, value in of(body, "DCGM_FI_DEV_GPU_UTIL", gpu="0")]
    assert util == [(None, 60), ("a", 55), ("b", 0)]
    assert [labels.get("pod") for _, labels, _ in of(body, "DCGM_FI_DEV_GPU_UTIL", UUID=idle.uuid)] == [None]
    assert await here.end() == 0
    await served.close()


async def test_5_5_without_the_api_server_rows_still_name_pods(world: Make) -> None:
    def no_client() -> Any:
        raise ConfigError("there is no service account")

    here = world(["H100"])
    here.prepare("-k", "--kubernetes-enable-pod-labels", make_client=no_client)
    await here.kubelet.start()
    (gpu,) = here.machine.read().inventory.gpus
    here.kubelet.pods = [pod("a", gpu.uuid)]
    await here.start(counters=TEMP)
    assert 'pod="a"' in await here.scrape()
    await here.told("the API server cannot be asked: there is no service account")


async def test_5_6_jobs(world: Make) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ("3g.40gb",))), "H100"])
    process = here.prepare("--hpc-job-mapping-dir", "/jobs")
    await here.start(counters=TEMP)
    assert "hpc_job" not in await here.scrape()
    await here.told("/jobs cannot be read")
    gi = here.machine.read().inventory.gpus[0].mig_devices[0].gi
    process.write("/jobs/0", "not-for-instances\n")
    process.write(f"/jobs/0.{gi}", "slurm-1\n")
    process.write("/jobs/1", "slurm-2\nslurm-3\n")
    found = of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP")
    assert [(labels["gpu"], labels["hpc_job"]) for _, labels, _ in found] == [
        ("0", "slurm-1"),
        ("1", "slurm-2"),
        ("1", "slurm-3"),
    ]


async def test_links_that_lead_round_in_a_circle_end_nothing(world: Make) -> None:
    here = world(["H100"])
    process = here.prepare(
        *("--hpc-job-mapping-dir", "/loop", "--dump-enabled", "--dump-directory", "/loop/dumps"),
        *("--collect-interval", "50", "-k", "--pod-resources-kubelet-socket", "/loop/kubelet.sock"),
    )
    process.root.path("/loop", follow=False).symlink_to("loop")
    await here.start(counters=TEMP)
    assert "DCGM_FI_DEV_GPU_TEMP" in await here.scrape()
    await here.told("folder of job files /loop cannot be read: host path '/loop': more than 40 symbolic links")
    await here.told("cannot be written to /loop/dumps: host path")


async def test_4_a_counters_file_that_is_a_link_to_itself(world: Make) -> None:
    process = world(["H100"]).prepare("-f", "/loop")
    process.root.path("/loop", follow=False).symlink_to("loop")
    assert await main.run(process) == 1
    assert "the counters file /loop cannot be read: host path '/loop': more than 40 symbolic links" in process.stderr


# --- reloading --------------------------------------------------------------------------------------------------------


async def test_4_the_counters_file_changes_under_scrapes(world: Make) -> None:
    here = world(["H100"] * 2)
    await here.start(counters=TEMP)
    seen: list[str] = []

    async def scrape_on() -> None:
        while True:
            seen.append(await here.scrape())

    scraping = asyncio.create_task(scrape_on())
    here.process.write(COLLECTORS, POWER)
    await here.scraped(lambda body: "POWER" in body and "TEMP" not in body, "the new series")
    scraping.cancel()
    await asyncio.gather(scraping, return_exceptions=True)
    assert len(seen) > 1
    assert all(len(samples(body)) == 2 for body in seen), "a scrape during the reload was not whole"


async def test_4_hangup_reads_anew_and_what_is_wrong_leaves_all_as_it_was(world: Make) -> None:
    here = world(["H100"])
    here.prepare()
    here.process.pace = 50
    await here.start(counters=TEMP)
    here.process.write(COLLECTORS, "NO_SUCH, gauge, x\n")
    await here.told("line 1: 'NO_SUCH'")
    await here.told("what was in use stays in use")
    assert of(await here.scrape(), "DCGM_FI_DEV_GPU_TEMP")
    here.process.write(COLLECTORS, POWER)
    here.process.send(SIGHUP)
    await here.scraped(lambda body: "POWER" in body, "the corrected file")
    assert await here.end() == 0


async def test_4_health_during_a_reload(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    going = asyncio.Event()
    read = main.Exporter._read_counters

    async def slowly(self: main.Exporter) -> Any:
        await going.wait()
        return await read(self)

    monkeypatch.setattr(main.Exporter, "_read_counters", slowly)
    here.process.send(SIGHUP)
    await here.told("SIGHUP: reading files anew")
    health = await here.get("/health")
    while "X-Reload-In-Progress" not in health.headers:
        health = await here.get("/health")
    assert (health.status, await health.text()) == (200, "OK - reload in progress")
    assert (health.headers["X-Registry-Available"], health.headers["X-Reload-In-Progress"]) == ("false", "true")
    assert (await here.get("/metrics")).status == 200
    going.set()
    await here.told("files were read anew: 1 series")
    assert (await here.get("/health")).headers["X-Registry-Available"] == "true"


async def test_4_a_signal_ends_a_reload(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    monkeypatch.setattr(main.Exporter, "_read_counters", lambda self: asyncio.Event().wait())
    here.process.send(SIGHUP)
    await here.told("SIGHUP: reading files anew")
    assert await here.end() == 0


async def test_4_reloads_are_two_seconds_apart(world: Make) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    for _ in range(3):
        here.process.send(SIGHUP)
    await here.told("files were read anew")
    await asyncio.sleep(0.3)
    assert here.process.stderr.count("files were read anew") == 1
    assert await here.end() == 0


async def test_4_counters_of_a_config_map(world: Make) -> None:
    data = {
        "metadata": {"name": "c", "namespace": "team"},
        "data": {"metrics": POWER},
        "apiVersion": "v1",
        "kind": "ConfigMap",
    }
    _, served, client = await with_lab([NAMESPACE, ("configmaps", data)])
    here = world(["H100"])
    here.prepare("-m", "team:c", make_client=client)
    await here.start(counters=TEMP)
    assert {name for name, _, _ in samples(await here.scrape())} == {"DCGM_FI_DEV_POWER_USAGE"}
    other = world(["H100"])
    other.prepare("-m", "team:none", make_client=client)
    await other.start(counters=TEMP)
    assert {name for name, _, _ in samples(await other.scrape())} == {"DCGM_FI_DEV_GPU_TEMP"}
    await other.told("ConfigMap team/none cannot be read")
    await served.close()


# --- TLS, passwords, debugging ----------------------------------------------------------------------------------------

HASH = "$2b$04$abcdefghijklmnopqrstuuN/rOGb3k1lHL/OTPkHThAb4XhWIlYIS"
needs_bcrypt = pytest.mark.skipif(webconfig.bcrypt("", HASH) is None, reason="this system's libcrypt knows no bcrypt")


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@needs_bcrypt
def test_4_bcrypt() -> None:
    known = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
    assert webconfig.bcrypt("U*U", known) == known
    assert webconfig.bcrypt("U*", known) != known
    assert webconfig.bcrypt("x", "$2b$broken") is None


@needs_bcrypt
async def test_4_basic_authentication(world: Make) -> None:
    here = world(["H100"])
    hashed = webconfig.bcrypt("secret", HASH)
    here.prepare("--web-config-file", "/web.yaml").write("/web.yaml", f"basic_auth_users: {{prometheus: '{hashed}'}}\n")
    await here.start(counters=TEMP)
    refused = await here.get()
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Basic")
    for user, password in (("prometheus", "wrong"), ("other", "secret"), ("prometheus", "")):
        assert (await here.get(headers=basic(user, password))).status == 401
    assert (await here.get(headers={"Authorization": "Basic !!"})).status == 401
    for _ in range(2):
        assert (await here.get(headers=basic("prometheus", "secret"))).status == 200
    here.process.write("/web.yaml", "basic_auth_users: {}\nhttp_server_config: {headers: {X-Frame-Options: deny}}\n")
    while (answer := await here.get()).status != 200:
        await asyncio.sleep(0.02)
    assert answer.headers["X-Frame-Options"] == "deny"


async def test_4_tls(world: Make) -> None:
    key, certificate = _certificate(world(["H100"]).folder)
    here = world(["H100"])
    process = here.prepare("--web-config-file", "/etc/web/web.yaml")
    process.write("/etc/web/tls.key", key)
    process.write("/etc/web/tls.crt", certificate)
    process.write("/etc/web/web.yaml", "tls_server_config: {cert_file: /etc/web/tls.crt, key_file: tls.key}\n")
    await here.start(counters=TEMP)
    here.url = here.url.replace("http:", "https:")
    assert (await here.get(ssl=_trusting(certificate))).status == 200
    key, other = _certificate(here.folder)
    process.write("/etc/web/tls.key", key)
    process.write("/etc/web/tls.crt", other)
    deadline = asyncio.get_running_loop().time() + 20
    while True:  # the new certificate is shown to new connections
        async with aiohttp.ClientSession() as session:
            with contextlib.suppress(aiohttp.ClientSSLError):
                async with session.get(here.url + "/health", ssl=_trusting(other)) as answer:
                    assert answer.status == 200
                    return
        assert asyncio.get_running_loop().time() < deadline, here.process.stderr
        await asyncio.sleep(0.05)


def _trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False
    return context


def _certificate(folder: Path) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl, with which a certificate is made")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", str(folder / "key"), "-out", str(folder / "crt")],
        check=True,
        capture_output=True,
    )
    return (folder / "key").read_text(), (folder / "crt").read_text()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("tls_server_config: {cert_file: a}", "missing required field `key_file`"),
        ("tls_server_config: {cert_file: a, key_file: b}", "certificates cannot be used"),
        ("other: 1", "unknown field `other`"),
        ("[", "is no YAML"),
        ("basic_auth_users: {a: secret}", "basic_auth_users, a: expected a bcrypt hash"),
        ("basic_auth_users: {a: $2b$x}", "basic_auth_users"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}", "nobody verifies"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "belong together"),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}",
            "nobody could connect",
        ),
        ("basic_auth_users: {a: 2026-99-99}", "expected a bcrypt hash"),
        (f"basic_auth_users: {'[' * 900}{']' * 900}", "Expected `object.*`, got `array`|nested too deeply"),
        (f"basic_auth_users: {'[' * 9000}{']' * 9000}", "nest"),
        ("http_server_config: {headers: {a b: c}}", "'a b': 'c' can be no header"),
        (r'http_server_config: {headers: {a: "b\r\nSet-Cookie: c"}}', "can be no header"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
async def test_4_web_configs_that_cannot_be_used(world: Make, content: str, problem: str) -> None:
    process = world(["H100"]).prepare("--web-config-file", "/web.yaml")
    process.write("/web.yaml", content)
    assert await main.run(process) == 1
    assert re.search(problem, process.stderr)


async def test_4_a_web_config_of_empty_parts_changes_nothing(world: Make) -> None:
    here = world(["H100"])
    process = here.prepare("--web-config-file", "/web.yaml")
    process.write("/web.yaml", "tls_server_config:\nhttp_server_config:\nbasic_auth_users:\n")
    await here.start(counters=TEMP)
    assert "DCGM_FI_DEV_GPU_TEMP" in await here.scrape()


async def test_4_nobody_is_asked_for_the_password_of_a_key(world: Make, tmp_path: Path) -> None:
    _certificate(tmp_path)
    command = f"openssl ec -in {tmp_path / 'key'} -aes256 -passout pass:abc -out {tmp_path / 'locked'}"
    subprocess.run(command.split(), check=True, capture_output=True)
    process = world(["H100"]).prepare("--web-config-file", "/web/config.yaml")
    process.write("/web/config.yaml", "tls_server_config: {cert_file: crt, key_file: key}")
    process.write("/web/crt", (tmp_path / "crt").read_text())
    process.write("/web/key", (tmp_path / "locked").read_text())
    async with asyncio.timeout(20):
        assert await main.run(process) == 1
    assert "certificates cannot be used: the key key is encrypted; there is nobody to ask" in process.stderr


async def test_4_debugging(world: Make) -> None:
    here = world(["T4"])
    process = here.prepare("--enable-pprof", "--dump-enabled", "--dump-directory", "/dump", "--log-format", "json")
    await here.start(counters=TEMP)
    state = json.loads(await (await here.get("/debug/state")).text())
    assert (state["series"], state["gpus"][0]["index"]) == (["DCGM_FI_DEV_GPU_TEMP"], 0)
    assert "task" in await (await here.get("/debug/stacks")).text()
    folder = process.path("/dump")
    file = await until(lambda: next(folder.glob("metrics-*.json.gz"), None) if folder.is_dir() else None, "a dump")
    assert json.loads(gzip.decompress(file.read_bytes()))["driverVersion"] == "580.95.05"
    assert {json.loads(line)["level"] for line in process.stderr.splitlines()} <= {"INFO", "WARN", "ERROR"}


async def test_4_a_connection_that_asks_nothing_is_cut(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LIMIT_S", 0.2)
    here = world(["H100"])
    await here.start(counters=TEMP)
    port = int(here.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    await here.scrape()
    await asyncio.sleep(0.3)
    assert (await here.get()).status == 200


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"])
async def test_what_is_no_request_is_refused_and_leaves_no_traceback(
    world: Make, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(here.url.rpartition(":")[2]))
    writer.write(sent)
    assert b" 400 Bad Request" in await asyncio.wait_for(reader.readline(), 20)
    writer.close()
    assert (await here.get()).status == 200
    assert [record for record in caplog.records if record.exc_info] == []


async def test_4_debug_tells_of_scrapes(world: Make) -> None:
    here = world(["H100"])
    await here.start("--debug", counters=TEMP)
    await here.scrape()
    await here.told("scrape: ")


async def test_4_a_scrape_that_cannot_be_put_together_is_an_error_of_that_scrape(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(["H100"])
    await here.start(counters=TEMP)
    monkeypatch.setattr(scrape.Scrapes, "_jobs", lambda *_: {}["missing"])
    answer = await here.get()
    assert (answer.status, await answer.text()) == (500, "the figures cannot be put together: KeyError: 'missing'\n")
    monkeypatch.undo()
    assert (await here.get()).status == 200


def slice_object(name: str, *devices: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "resourceslices", {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def attributes(**values: str) -> dict[str, Any]:
    return {name: {"string": value} for name, value in values.items()}


async def test_5_5_claims_by_resource_slices(world: Make) -> None:
    here = world([GpuEntry("H100", mig=Mig(True, ("1g.10gb",))), "H100"])
    one, two = here.machine.read().inventory.gpus
    mig = one.mig_devices[0]
    devices = (
        {"name": "gpu-1", "attributes": attributes(type="gpu", uuid=two.uuid)},
        {
            "name": "gpu-0-mig-7",
            "attributes": attributes(type="mig", uuid=mig.uuid, parentUUID=one.uuid, profile="1g.10gb"),
        },
        {"name": "other", "attributes": attributes(type="vfio")},
    )
    _, served, client = await with_lab([slice_object("n1-gpus", *devices)])
    here.prepare("-k", "--kubernetes-enable-dra", make_client=client)
    await here.kubelet.start()

    def claim(device: str) -> Any:
        resource = wire.ClaimResource(driver_name="gpu.nvidia.com", pool_name="n1", device_name=device)
        return wire.DynamicResource(claim_name="c", claim_namespace="team", claim_resources=[resource])

    here.kubelet.pods = [
        pod("a", claims=[claim("gpu-1")]),
        pod("b", claims=[claim("gpu-1")]),
        pod("m", claims=[claim("gpu-0-mig-7")]),
    ]
    await here.start(counters=TEMP)
    body = await here.scraped(lambda body: "dra_claim_name" in body, "the claims")
    found = of(body, "DCGM_FI_DEV_GPU_TEMP")
    assert [(labels["gpu"], labels["pod"], labels.get("dra_mig_profile")) for _, labels, _ in found] == [
        ("0", "m", "1g.10gb"),
        ("1", "a", None),
        ("1", "b", None),
    ]
    assert await here.end() == 0
    await served.close()
