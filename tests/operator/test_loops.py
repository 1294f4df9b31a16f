"""The operator's loops end to end, over HTTP: what ends up in the cluster, and how many requests that took."""

import asyncio
from typing import Any

import aiohttp
import pytest
from operator_harness import GPU_LABELS, NS, Cluster, policy_document

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.operands import stack
from groundplane.operator import observe

MERGE = ("PATCH", "nodes")


def patches(cluster: Cluster) -> list[str]:
    return [name for method, plural, name in cluster.api.writes if (method, plural) == MERGE]


async def test_a_cluster_comes_up(cluster: Cluster) -> None:
    cluster.nodes(3)
    cluster.node("cpu", gpu=False)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert cluster.labels("gpu-000")[names.GPU_PRESENT] == "true"
    assert cluster.labels("cpu") == {}
    assert cluster.condition("Ready")["reason"] == "Reconciled"
    assert ("daemonsets", "nvidia-driver-daemonset") in cluster.ours()
    assert ("runtimeclasses", "nvidia") in cluster.ours()


async def test_fifty_cold_nodes_are_fifty_patches(cluster: Cluster) -> None:
    cluster.nodes(50)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert sorted(patches(cluster)) == [f"gpu-{number:03d}" for number in range(50)]


async def test_a_second_start_writes_nothing(cluster: Cluster) -> None:
    cluster.nodes(5)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    await cluster.stop()
    cluster.api.forget_writes()
    cluster.start()
    await cluster.until(lambda: cluster.api.requests["watch", "nodes"])
    await cluster.quiet()
    assert cluster.api.writes == []


async def test_a_quiet_cluster_costs_only_watches_and_the_lease(cluster: Cluster) -> None:
    cluster.nodes(3)
    cluster.policy()
    cluster.start(leader_elect=True, renew_deadline_s=500.0)
    await cluster.until(lambda: cluster.status().get("state") == "ready")
    await asyncio.sleep(0.3)
    cluster.api.forget_writes()
    await asyncio.sleep(1.2)  # a minute of the operator's clock
    other = {key for key in cluster.api.requests if key[0] != "watch" and key[1] != "leases"}
    assert other == set()
    assert cluster.api.requests["put", "leases"] > 5


# --- nodes ------------------------------------------------------------------------------------------------------------


async def test_a_joining_node_costs_one_write(cluster: Cluster) -> None:
    cluster.nodes(20)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.api.forget_writes()
    cluster.node("gpu-010a")
    await cluster.until(lambda: names.GPU_PRESENT in cluster.labels("gpu-010a"))
    await cluster.quiet()
    assert cluster.api.writes == [("PATCH", "nodes", "gpu-010a")]


async def test_an_opt_out_survives_a_blink_of_nfd(cluster: Cluster) -> None:
    cluster.node("a", labels={names.DEPLOY_DCGM: "false"})
    cluster.policy()
    cluster.start()
    await cluster.ready()
    pci = names.PCI_GPU_LABELS[0]
    cluster.api.edit("nodes", "a", lambda obj: obj["metadata"]["labels"].pop(pci))
    await cluster.until(lambda: cluster.labels("a")[names.GPU_PRESENT] == "false")
    assert names.DEPLOY_DRIVER not in cluster.labels("a")
    cluster.api.edit("nodes", "a", lambda obj: obj["metadata"]["labels"].update(GPU_LABELS))
    await cluster.until(lambda: cluster.labels("a").get(names.DEPLOY_DRIVER) == "true")
    assert cluster.labels("a")[names.DEPLOY_DCGM] == "false"


async def test_a_label_taken_away_by_hand_comes_back(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.api.edit("nodes", "gpu-000", lambda obj: obj["metadata"]["labels"].pop(names.DEPLOY_DCGM))
    await cluster.until(lambda: cluster.labels("gpu-000").get(names.DEPLOY_DCGM) == "true")


async def test_a_node_without_labels_or_annotations_is_no_trouble(cluster: Cluster) -> None:
    cluster.api.add("nodes", "bare")
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert cluster.labels("bare") == {}


async def test_a_node_deleted_in_mid_patch_is_no_error(cluster: Cluster) -> None:
    cluster.nodes(4)
    cluster.policy()

    def vanish(verb: str, plural: str, name: str) -> None:
        if (verb, plural, name) == ("patch", "nodes", "gpu-002"):
            cluster.api.remove("nodes", "gpu-002")

    cluster.api.fault = vanish
    cluster.start()
    await cluster.ready()
    assert patches(cluster).count("gpu-002") == 1


async def test_a_change_between_look_and_write_is_respected(cluster: Cluster) -> None:
    """A person opts out while our patch is on its way: the patch is refused, and the opt-out stays."""
    cluster.node("a")
    cluster.policy()
    hits: list[str] = []

    def opt_out(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("patch", "nodes") and not hits:
            hits.append(name)
            cluster.api.edit("nodes", name, lambda obj: obj["metadata"]["labels"].update({names.DEPLOY_DCGM: "false"}))

    cluster.api.fault = opt_out
    cluster.start()
    await cluster.ready()
    assert cluster.labels("a")[names.DEPLOY_DCGM] == "false"
    assert cluster.labels("a")[names.DEPLOY_DRIVER] == "true"


@pytest.mark.parametrize("answer", [409, 429, 500, 503, "reset", 403])
async def test_one_node_in_trouble_does_not_hold_up_the_others(cluster: Cluster, answer: int | str) -> None:
    cluster.nodes(6)
    cluster.policy()
    failing = True
    cluster.api.fault = lambda verb, plural, name: (
        answer if failing and (verb, plural, name) == ("patch", "nodes", "gpu-000") else None
    )
    cluster.start()
    others = [f"gpu-{number:03d}" for number in range(1, 6)]
    await cluster.until(lambda: all(names.DEPLOY_DRIVER in cluster.labels(name) for name in others))
    failing = False
    await cluster.until(lambda: names.DEPLOY_DRIVER in cluster.labels("gpu-000"))
    await cluster.ready()


async def test_workload_configs(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.node("b", labels={names.WORKLOAD_CONFIG: "vm-passthrough"})
    cluster.node("c", labels={names.WORKLOAD_CONFIG: "nonsense"})
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert names.DEPLOY_VFIO_MANAGER not in cluster.labels("b")
    cluster.edit_spec(lambda spec: spec["sandboxWorkloads"].update(enabled=True, defaultWorkload="vm-vgpu"))
    await cluster.until(lambda: cluster.labels("b").get(names.DEPLOY_VFIO_MANAGER) == "true")
    await cluster.until(lambda: cluster.labels("a").get(names.DEPLOY_VGPU_MANAGER) == "true")
    await cluster.until(lambda: cluster.labels("c").get(names.DEPLOY_VGPU_MANAGER) == "true")
    assert names.DEPLOY_DRIVER not in cluster.labels("a")


# --- components -------------------------------------------------------------------------------------------------------

SWITCHES = {
    "driver": "nvidia-driver-daemonset",
    "toolkit": "nvidia-container-toolkit-daemonset",
    "devicePlugin": "nvidia-device-plugin-daemonset",
    "dcgm": "nvidia-dcgm",
    "dcgmExporter": "nvidia-dcgm-exporter",
    "gfd": "gpu-feature-discovery",
    "migManager": "nvidia-mig-manager",
    "nodeStatusExporter": "nvidia-node-status-exporter",
}


@pytest.mark.parametrize(("section", "daemon_set"), SWITCHES.items())
async def test_a_component_off_and_on_again(cluster: Cluster, section: str, daemon_set: str) -> None:
    cluster.nodes(2)
    document = policy_document()
    document["spec"][section]["enabled"] = True
    cluster.policy(document=document)
    cluster.start()
    await cluster.ready()
    before = cluster.snapshot()
    state = cluster.ours()["daemonsets", daemon_set]["metadata"]["labels"][names.STATE_LABEL]
    cluster.edit_spec(lambda spec: spec[section].update(enabled=False))
    await cluster.until(lambda: ("daemonsets", daemon_set) not in cluster.ours())
    await cluster.ready()
    left = [key for key, obj in cluster.ours().items() if obj["metadata"]["labels"][names.STATE_LABEL] == state]
    assert left == []
    cluster.edit_spec(lambda spec: spec[section].update(enabled=True))
    await cluster.until(lambda: ("daemonsets", daemon_set) in cluster.ours())
    await cluster.ready()
    assert cluster.snapshot() == before


async def test_the_upgrade_annotation_goes_with_the_driver(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()

    def mark() -> str | None:
        node = cluster.api.get("nodes", "gpu-000") or {}
        return (node["metadata"].get("annotations") or {}).get(names.DRIVER_UPGRADE_ENABLED)

    assert mark() == "true"
    cluster.edit_spec(lambda spec: spec["driver"].update(enabled=False))
    await cluster.until(lambda: mark() is None)
    assert cluster.labels("gpu-000")[names.DEPLOY_DRIVER] == "true"


async def test_an_object_edited_by_hand_is_put_right(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    before = cluster.snapshot()

    def break_it(obj: dict[str, Any]) -> None:
        obj["spec"]["template"]["spec"]["containers"][0]["image"] = "evil"

    cluster.api.edit("daemonsets", "nvidia-device-plugin-daemonset", break_it, NS)
    await cluster.until(lambda: cluster.snapshot() == before)
    cluster.api.remove("services", "gpu-operator", NS)
    await cluster.until(lambda: cluster.snapshot() == before)


async def test_a_service_account_that_exists_is_left_alone(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.api.add("serviceaccounts", "nvidia-dcgm-exporter", NS, secrets=[{"name": "mine"}])
    cluster.policy()
    cluster.start()
    await cluster.ready()
    found = cluster.api.get("serviceaccounts", "nvidia-dcgm-exporter", NS) or {}
    assert found["secrets"] == [{"name": "mine"}]
    assert "labels" not in found["metadata"]


async def test_renaming_the_runtime_class_deletes_the_old_one(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.edit_spec(lambda spec: spec["operator"].update(runtimeClass="gpu"))
    await cluster.until(lambda: cluster.api.get("runtimeclasses", "gpu"))
    await cluster.ready()
    assert cluster.api.get("runtimeclasses", "nvidia") is None


async def test_service_monitors_come_and_go_with_their_crd(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    crd = "servicemonitors.monitoring.coreos.com"
    cluster.api.add("customresourcedefinitions", crd)
    await cluster.until(lambda: ("servicemonitors", "gpu-operator") in cluster.ours())
    await cluster.ready()
    cluster.api.remove("customresourcedefinitions", crd)
    cluster.edit_spec(lambda spec: spec["gfd"].update(enabled=False))
    await cluster.until(lambda: ("daemonsets", "gpu-feature-discovery") not in cluster.ours())
    await cluster.ready()


async def test_what_a_person_must_change_is_in_the_condition(cluster: Cluster) -> None:
    """26.3.3 waits for the ServiceMonitor's CRD (5.5); nothing but the condition could tell why."""
    cluster.nodes(1)
    document = policy_document()
    document["spec"]["dcgmExporter"]["serviceMonitor"] = {"enabled": True}
    cluster.policy(document=document)
    cluster.start(release=Release.V26_3)
    crd = "servicemonitors.monitoring.coreos.com"
    await cluster.until(lambda: crd in cluster.condition().get("message", ""))
    message = cluster.condition()["message"]
    assert "state-dcgm-exporter: spec.dcgmExporter.serviceMonitor" in message
    cluster.api.add("customresourcedefinitions", crd)
    await cluster.ready()


async def test_psa_labels_the_namespace_once(cluster: Cluster) -> None:
    document = policy_document()
    document["spec"]["psa"] = {"enabled": True}
    cluster.policy(document=document)
    cluster.node("cpu", gpu=False, labels={names.KERNEL_VERSION: "6"})
    cluster.start()
    await cluster.ready()
    found = cluster.api.get("namespaces", NS) or {}
    assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert cluster.api.writes.count(("PATCH", "namespaces", NS)) == 1


# --- no GPUs ----------------------------------------------------------------------------------------------------------


async def test_without_gpus_there_are_no_daemon_sets(cluster: Cluster) -> None:
    cluster.node("cpu", gpu=False)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert cluster.condition("Ready")["reason"] == "NFDLabelsMissing"
    assert cluster.api.all("daemonsets") == {}
    assert ("runtimeclasses", "nvidia") in cluster.ours()
    cluster.api.edit("nodes", "cpu", lambda obj: obj["metadata"]["labels"].update({names.KERNEL_VERSION: "6"}))
    await cluster.until(lambda: cluster.condition("Ready")["reason"] == "NoGPUNodes")
    assert all(key in cluster.condition("Ready")["message"] for key in names.PCI_GPU_LABELS), "1469: what is looked for"
    cluster.node("gpu")
    await cluster.until(lambda: cluster.condition("Ready")["reason"] == "Reconciled")
    assert "nvidia-driver-daemonset" in cluster.api.all("daemonsets")
    cluster.api.remove("nodes", "gpu")
    await cluster.until(lambda: cluster.condition("Ready")["reason"] == "NoGPUNodes")
    assert "nvidia-driver-daemonset" in cluster.api.all("daemonsets")


# --- drivers ----------------------------------------------------------------------------------------------------------


async def test_precompiled_drivers_take_over_from_ordinary_ones_and_back(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()

    def edit(spec: dict[str, Any]) -> None:
        spec["driver"].update(usePrecompiled=True, version="580")

    def drivers() -> list[str]:
        return [name for name in cluster.api.all("daemonsets") if name.startswith("nvidia-driver-daemonset")]

    cluster.edit_spec(edit)
    ordinary = "nvidia-driver-daemonset"
    await cluster.until(lambda: "deletionTimestamp" in cluster.api.all("daemonsets")[ordinary]["metadata"])
    await cluster.until(lambda: cluster.status()["state"] == "notReady")
    await cluster.quiet()
    assert "[state-driver]" in cluster.condition()["message"]
    assert drivers() == [ordinary]
    cluster.api.remove("daemonsets", "nvidia-driver-daemonset", NS)
    await cluster.until(lambda: drivers() == ["nvidia-driver-daemonset-6.8.0-60-generic-ubuntu24.04"])
    await cluster.ready()


async def test_a_precompiled_driver_goes_when_its_kernel_has_left_and_no_pod_needs_it(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.node("b", labels={names.KERNEL_VERSION: "6.8.0-99-generic"})
    document = policy_document("26.7.0-precompiled")
    cluster.policy(document=document)
    cluster.start()
    await cluster.ready()
    old = "nvidia-driver-daemonset-6.8.0-99-generic-ubuntu24.04"
    assert old in cluster.api.all("daemonsets")
    cluster.api.edit("nodes", "b", lambda obj: obj["metadata"]["labels"].update(GPU_LABELS))
    await cluster.quiet()
    assert old in cluster.api.all("daemonsets"), "its pods are still wanted somewhere"
    cluster.api.edit("daemonsets", old, lambda obj: obj["status"].update(desiredNumberScheduled=0), NS)
    await cluster.until(lambda: old not in cluster.api.all("daemonsets"))


async def test_a_driver_upgrade_in_progress_is_not_ready(cluster: Cluster) -> None:
    cluster.nodes(2)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    pod = "nvidia-driver-daemonset-gpu-001"

    def age(obj: dict[str, Any]) -> None:
        obj["metadata"]["labels"]["controller-revision-hash"] = "r0"

    cluster.api.edit("pods", pod, age, NS)
    await cluster.until(lambda: cluster.status()["state"] == "notReady")
    assert cluster.condition()["message"] == (
        "states not ready: [state-driver]; state-driver: pod is outdated, upgrade pending"
    )
    cluster.api.edit("pods", pod, lambda obj: obj["metadata"]["labels"].update({"controller-revision-hash": "r1"}), NS)
    await cluster.ready()


async def test_drivers_are_handed_over_to_nvidiadriver(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.edit_spec(lambda spec: spec["driver"].update(useNvidiaDriverCRD=True))
    await cluster.until(lambda: "nvidia-driver-daemonset" not in cluster.api.all("daemonsets"))
    await cluster.ready()
    assert ("serviceaccounts", "nvidia-driver") in cluster.ours()
    assert any(isinstance(body, dict) and body.get("propagationPolicy") == "Orphan" for body in cluster.api.bodies)


# --- bad input --------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("wrong type", {"driver": {"enabled": "yes"}}, ("spec.driver.enabled",)),
    ("impossible enum", {"mig": {"strategy": "double"}}, ("mig.strategy",)),
    ("NRI without CDI", {"cdi": {"enabled": False, "nriPluginEnabled": True}}, ("cdi.enabled", "cdi.nriPluginEnabled")),
    (
        "missing image",
        {"toolkit": {"repository": None, "image": None, "version": None}},
        ("state-container-toolkit", "CONTAINER_TOOLKIT_IMAGE"),
    ),
    ("GDS with precompiled", {"driver": {"usePrecompiled": True}, "gds": {"enabled": True}}, ("state-driver",)),
    ("missing ConfigMap", {"driver": {"repoConfig": {"configMapName": "repos"}}}, ("state-driver", "repos")),
    ("missing Secret", {"driver": {"secretEnv": "hidden"}}, ("state-driver", "hidden")),
]


@pytest.mark.parametrize(("change", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
async def test_bad_input_is_a_condition_and_an_event(
    cluster: Cluster, change: dict[str, Any], said: tuple[str, ...]
) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    before = cluster.ours()

    def spoil(spec: dict[str, Any]) -> None:
        for section, values in change.items():
            spec[section] = {**spec.get(section, {}), **values}

    good = (cluster.api.get("clusterpolicies", "cluster-policy") or {})["spec"]
    cluster.edit_spec(spoil)
    await cluster.until(lambda: cluster.condition().get("reason") == "ReconcileFailed")
    assert all(part in cluster.condition()["message"] for part in said), cluster.condition()["message"]
    assert cluster.operator is not None
    figure = 0 if said[0].startswith("state-") else -1  # 5.6: not ready, or a policy that cannot be used
    assert cluster.operator.metrics.get("reconciliation_status") == figure
    assert before.keys() <= cluster.ours().keys(), "an error deletes nothing"
    await cluster.quiet()
    events = [event for event in cluster.api.all("events").values() if event["reason"] == "ReconcileFailed"]
    assert events and events[0]["type"] == "Warning"
    cluster.api.forget_writes()
    await asyncio.sleep(0.2)
    assert cluster.api.writes == [], "no hot loop"
    cluster.edit_spec(lambda spec: (spec.clear(), spec.update(good)))
    await cluster.ready()


async def test_a_referenced_config_map_is_noticed_when_it_appears(cluster: Cluster) -> None:
    cluster.nodes(1)
    document = policy_document()
    document["spec"]["driver"]["repoConfig"] = {"configMapName": "repos"}
    cluster.policy(document=document)
    cluster.start()
    await cluster.until(lambda: cluster.condition().get("reason") == "ReconcileFailed")
    cluster.api.add("configmaps", "repos", NS, data={"a.list": "deb http://example.com"})
    await cluster.ready()


async def test_an_unknown_field_is_told_but_does_not_stop_anything(cluster: Cluster) -> None:
    cluster.nodes(1)
    document = policy_document()
    document["spec"]["driver"]["repositry"] = "x"
    cluster.policy(document=document)
    cluster.start()
    await cluster.ready()
    assert "spec.driver.repositry" in cluster.condition("Ready")["message"]
    events = [event for event in cluster.api.all("events").values() if event["reason"] == "UnknownField"]
    assert len(events) == 1


async def test_a_gpu_cluster_besides_is_an_error(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.api.add("customresourcedefinitions", "gpuclusters.nvidia.com")
    cluster.api.add("gpuclusters", "other")
    cluster.start()
    await cluster.until(lambda: cluster.condition().get("reason") == "ReconcileFailed")
    assert "'other'" in cluster.condition()["message"]
    await cluster.quiet()
    assert cluster.ours() == {} and names.GPU_PRESENT not in cluster.labels("gpu-000")
    cluster.api.remove("gpuclusters", "other")
    await cluster.ready()
    assert names.GPU_PRESENT in cluster.labels("gpu-000")


async def test_without_a_policy_nothing_is_touched(cluster: Cluster) -> None:
    cluster.nodes(2)
    cluster.start()
    await cluster.until(lambda: cluster.api.requests["watch", "nodes"])
    await cluster.quiet()
    assert cluster.api.writes == []
    assert cluster.operator is not None and cluster.operator.metrics.get("reconciliation_status") == -1


# --- several policies -------------------------------------------------------------------------------------------------


async def test_the_second_policy_is_ignored_and_promoted(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy("newer", creationTimestamp="2026-02-01T00:00:00Z")
    cluster.policy("older", creationTimestamp="2026-01-01T00:00:00Z")
    cluster.start()
    await cluster.until(lambda: cluster.status("older").get("state") == "ready")
    await cluster.until(lambda: cluster.status("newer").get("state") == "ignored")
    uid = (cluster.api.get("clusterpolicies", "newer") or {})["metadata"]["uid"]
    cluster.api.remove("clusterpolicies", "older")
    await cluster.until(lambda: cluster.status("newer").get("state") == "ready")
    await cluster.quiet()
    assert cluster.ours()
    for obj in cluster.ours().values():
        assert [owner["uid"] for owner in obj["metadata"]["ownerReferences"]] == [uid]


async def test_deleting_the_policy_leaves_node_labels(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.api.remove("clusterpolicies", "cluster-policy")
    await cluster.quiet()
    assert cluster.ours() == {}
    assert cluster.labels("gpu-000")[names.DEPLOY_DRIVER] == "true"


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [409, 429, 500, 503, "reset"])
async def test_faults_of_the_api_server_are_outlived(cluster: Cluster, answer: int | str) -> None:
    cluster.nodes(3)
    cluster.policy()
    count = 0

    def every_third(verb: str, plural: str, name: str) -> int | str | None:
        nonlocal count
        count += 1
        return answer if count % 3 == 0 and count < 60 else None

    cluster.api.fault = every_third
    cluster.start()
    await cluster.until(lambda: cluster.status().get("state") == "ready")
    cluster.api.fault = lambda *_: None
    await cluster.ready()
    disturbed = cluster.snapshot()
    await cluster.stop()
    cluster.start()
    await cluster.ready()
    assert cluster.snapshot() == disturbed


async def test_an_object_that_is_refused_names_its_state(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    refuse = True
    cluster.api.fault = lambda verb, plural, name: (
        403 if refuse and verb == "patch" and name == "nvidia-device-plugin-daemonset" else None
    )
    cluster.start()
    await cluster.until(lambda: cluster.condition().get("reason") == "ReconcileFailed")
    assert cluster.condition()["message"].startswith("state-device-plugin: ")
    assert "nvidia-driver-daemonset" in cluster.api.all("daemonsets")
    assert "nvidia-dcgm-exporter" not in cluster.api.all("daemonsets"), "an error stops the pass"
    refuse = False
    await cluster.ready()


async def test_a_deletion_that_is_refused_names_its_state(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    refuse = True
    cluster.api.fault = lambda verb, _plural, _name: 403 if refuse and verb == "delete" else None
    cluster.edit_spec(lambda spec: spec["gfd"].update(enabled=False))
    await cluster.until(lambda: "gpu-feature-discovery: " in cluster.condition().get("message", ""))
    refuse = False
    await cluster.ready()
    assert ("daemonsets", "gpu-feature-discovery") not in cluster.ours()


async def test_dropped_watches_are_resumed(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.api.drop_watches()
    cluster.node("late")
    await cluster.until(lambda: cluster.labels("late").get(names.GPU_PRESENT) == "true")


@pytest.mark.parametrize("after", [0, 3, 10, 17, 25, 40, 55])
async def test_killed_anywhere_and_started_again(cluster: Cluster, after: int) -> None:
    cluster.nodes(4)
    cluster.policy()
    cluster.start()
    await cluster.until(lambda: len(cluster.api.writes) >= after)
    await cluster.kill()
    cluster.start()
    await cluster.ready()
    survived = cluster.snapshot()
    for name in list(cluster.api.all("nodes")):
        cluster.api.edit("nodes", name, lambda obj: obj["metadata"].update(labels=dict(GPU_LABELS), annotations={}))
    await cluster.until(lambda: cluster.snapshot() == survived, "the labels did not come back as they were")
    assert {key[1] for key in survived if key[0] == "node"} == set(cluster.api.all("nodes"))


# --- the process ------------------------------------------------------------------------------------------------------


async def test_a_stop_lets_writes_finish_and_releases_the_lease(cluster: Cluster) -> None:
    cluster.nodes(8)
    cluster.policy()
    cluster.api.delay_s = 0.02
    cluster.start(leader_elect=True, renew_deadline_s=500.0)
    await cluster.until(lambda: len(patches(cluster)) > 2)
    await cluster.stop()
    lease = cluster.api.get("leases", names.LEASE_NAME, NS) or {}
    assert lease["spec"]["holderIdentity"] == ""
    for name in set(patches(cluster)):
        assert cluster.labels(name)[names.GPU_PRESENT] == "true"


async def test_a_candidate_waits_for_the_lease_and_can_be_stopped(cluster: Cluster) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 10_000, "renewTime": "2026-01-01T00:00:00.000000Z"}
    cluster.api.add("leases", names.LEASE_NAME, NS, spec=spec)
    cluster.nodes(1)
    cluster.policy()
    cluster.start(leader_elect=True, renew_deadline_s=500.0)
    await cluster.until(lambda: cluster.api.requests["get", "leases"] > 1)
    assert cluster.api.writes == []
    await cluster.stop()


async def test_a_stop_during_the_first_listing(cluster: Cluster) -> None:
    cluster.api.fault = lambda verb, plural, _name: 500 if (verb, plural) == ("get", "nodes") else None
    cluster.start()
    await cluster.until(lambda: cluster.api.requests["get", "nodes"] > 1)
    await cluster.stop()


async def test_the_servers(cluster: Cluster) -> None:
    cluster.nodes(2)
    cluster.policy()
    cluster.start(metrics_address="127.0.0.1:0", health_address="127.0.0.1:0")
    await cluster.ready()
    operator = cluster.operator
    assert operator is not None

    async def get(port: int, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    assert await get(operator.health_port, "/healthz") == (200, "ok")
    assert await get(operator.health_port, "/readyz") == (200, "ok")
    code, text = await get(operator.metrics_port, "/metrics")
    assert code == 200
    assert "gpu_operator_gpu_nodes_total 2.0" in text
    assert "gpu_operator_reconciliation_status 1.0" in text
    assert "gpu_operator_driver_auto_upgrade_enabled 1.0" in text
    assert operator.metrics.get("reconciliation_last_success_ts_seconds") > 0


async def test_an_ignored_policy_moves_no_metrics(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy("a", creationTimestamp="2026-01-01T00:00:00Z")
    cluster.start()
    await cluster.until(lambda: cluster.status("a").get("state") == "ready")
    await cluster.quiet()
    assert cluster.operator is not None
    before = cluster.operator.metrics.get("reconciliation_total")
    cluster.policy("b", creationTimestamp="2026-02-01T00:00:00Z")
    await cluster.until(lambda: cluster.status("b").get("state") == "ignored")
    assert cluster.operator.metrics.get("reconciliation_total") == before


# --- OpenShift --------------------------------------------------------------------------------------------------------


async def test_openshift(cluster: Cluster) -> None:
    cluster.openshift()
    cluster.node("a", labels={names.OSTREE_VERSION: "418"})
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert ("daemonsets", "nvidia-driver-daemonset-418") in cluster.ours()
    assert ("securitycontextconstraints", "nvidia-driver") in cluster.ours()
    assert ("prometheusrules", "nvidia-gpu-operator-metrics") in cluster.ours()
    assert cluster.operator is not None
    assert cluster.operator.metrics.get("openshift_driver_toolkit_enabled") == 1
    cluster.api.remove("imagestreams", "driver-toolkit", "openshift")
    await cluster.until(lambda: cluster.operator.metrics.get("openshift_driver_toolkit_imagestream_missing") == 1)
    assert cluster.operator.metrics.get("openshift_driver_toolkit_enabled") == -1


# --- rare trouble -----------------------------------------------------------------------------------------------------


async def test_a_status_that_cannot_be_written_is_tried_again(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    refusals = iter([403, 409, 500, 500, 500, 403])
    cluster.api.fault = lambda verb, plural, _name: (
        next(refusals, None) if (verb, plural) == ("patch", "clusterpolicies") else None
    )
    cluster.start()
    await cluster.ready()
    assert next(refusals, None) is None


async def test_a_namespace_that_cannot_be_labelled_is_told(cluster: Cluster) -> None:
    document = policy_document()
    document["spec"]["psa"] = {"enabled": True}
    cluster.policy(document=document)
    cluster.nodes(1)
    refuse = True
    cluster.api.fault = lambda verb, plural, _name: (
        403 if refuse and (verb, plural) == ("patch", "namespaces") else None
    )
    cluster.start()
    await cluster.until(lambda: cluster.condition().get("reason") == "ReconcileFailed")
    assert "namespace gpu-operator" in cluster.condition()["message"]
    refuse = False
    await cluster.ready()


async def test_a_referenced_secret_that_cannot_be_read_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "LOOK_UP_S", 0.02)
    document = policy_document()
    document["spec"]["driver"]["secretEnv"] = "hidden"
    cluster.policy(document=document)
    cluster.nodes(1)
    cluster.api.add("secrets", "hidden", NS, data={"A": "Zg=="})
    refuse = True
    cluster.api.fault = lambda verb, plural, _name: 403 if refuse and (verb, plural) == ("get", "secrets") else None
    cluster.start()
    await cluster.until(lambda: "cannot read Secret hidden" in cluster.condition().get("message", ""))
    refuse = False
    await cluster.ready()
    cluster.edit_spec(lambda spec: spec["driver"].pop("secretEnv"))
    await cluster.ready()


async def test_an_unreadable_status_is_written_anew(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.api.edit("clusterpolicies", "cluster-policy", lambda obj: obj.update(status={"conditions": [1]}))
    cluster.start()
    await cluster.ready()
    assert cluster.condition("Ready")["reason"] == "Reconciled"


async def test_an_error_of_the_operator_itself_is_counted_and_does_not_end_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    cluster.nodes(1)
    cluster.policy()
    with monkeypatch.context() as patched:
        patched.setattr(stack, "render", broken)
        cluster.start()
        await cluster.until(lambda: cluster.operator and cluster.operator.metrics.get("reconciliation_status") == -2)
    await cluster.ready()
    assert any(event["reason"] == "OperatorError" for event in cluster.api.all("events").values())


async def test_a_policy_deleted_during_a_pass(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()

    def vanish(verb: str, plural: str, _name: str) -> None:
        if (verb, plural) == ("patch", "clusterpolicies"):
            cluster.api.remove("clusterpolicies", "cluster-policy")

    cluster.api.fault = vanish
    cluster.start()
    await cluster.until(lambda: cluster.api.requests["patch", "clusterpolicies"])
    await cluster.quiet()
    assert cluster.api.requests["patch", "clusterpolicies"] <= 3, "no hot loop"
    cluster.policy()
    cluster.api.fault = lambda *_: None
    await cluster.ready()


async def test_a_policy_under_deletion_is_left_alone(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy(deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.start()
    await cluster.until(lambda: names.GPU_PRESENT in cluster.labels("gpu-000"))
    await cluster.quiet()
    assert cluster.ours() == {}
