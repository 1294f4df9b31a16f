"""Preflight from the API: each check on a cluster where it holds and on one where it does not."""

from typing import Any

import pytest
from preflight_world import (
    DRIVER_POD,
    TOOLKIT_POD,
    V100,
    answers,
    driver,
    inquire,
    node,
    pod,
    policy,
)

from groundplane.admin.checks import CHECKS, Access
from groundplane.admin.inquiry import Inquiry
from groundplane.admin.lookups import Target
from groundplane.admin.matrix import shipped
from groundplane.admin.preflight import preflight, run
from groundplane.admin.preflight_driver import driver_model
from groundplane.admin.preflight_platform import inventory
from groundplane.admin.preflight_runtime import REGENERATED_BY
from groundplane.admin.snapshot import NodeFacts, PodFacts, Settings, Snapshot
from groundplane.api import names
from groundplane.diagnose.findings import ExitCode, Outcome, exit_code, worst


def test_healthy_cluster_has_no_failure() -> None:
    found = preflight(inquire(pods=[DRIVER_POD, TOOLKIT_POD]))
    assert not [finding for finding in found if finding.outcome in (Outcome.FAIL, Outcome.WARN)]
    assert exit_code(found) is ExitCode.WARN  # what only a node knows is unknown
    assert {finding.id for finding in found} == {f"A{number}" for number in range(1, 51)}


def test_what_needs_a_node_says_so() -> None:
    (finding,) = answers("A27", inquire())
    assert (finding.outcome, finding.node) == (Outcome.UNKNOWN, "gpu-1")
    assert finding.cause == "nobody looked on the node: give --node-pods (or --exec), or run preflight --on-node there"


def test_archives_answer_like_the_api() -> None:
    inquiry = inquire()
    archive = run(CHECKS["A2"], inquiry, frozenset({Access.ARCHIVE}))
    assert archive == run(CHECKS["A2"], inquiry)
    assert run(CHECKS["A2"], inquiry, frozenset())[0].outcome is Outcome.UNKNOWN


def test_nodes_that_say_the_same_are_one_finding() -> None:
    found = preflight(inquire(nodes=[node(f"gpu-{n}") for n in range(20)]))
    systems = [finding for finding in found if finding.id == "A3"]
    assert [len(finding.nodes) for finding in systems] == [20]


def test_the_driver_to_pin_for_old_gpus_is_named() -> None:
    failed = [each for each in answers("A42", inquire(nodes=[node(labels=V100)])) if each.outcome is Outcome.FAIL]
    assert [each.fix for each in failed] == [("pin driver.version=580.173.02 for these nodes",)]


def nvidia_driver(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


OLD_POOL = node("gpu-2", labels=V100 | {"pool": "old"})


@pytest.mark.parametrize(
    ("drivers", "outcomes"),
    [
        (
            [nvidia_driver("old", version="580.173.02", nodeSelector={"pool": "old"})],
            {"gpu-1": "warn", "gpu-2": "pass"},
        ),
        (
            [
                nvidia_driver("all", default=True),
                nvidia_driver("old", version="580.173.02", nodeSelector={"pool": "old"}),
            ],
            {"gpu-1": "pass", "gpu-2": "pass"},
        ),
        ([nvidia_driver("all", version="595.91.07")], {"gpu-1": "pass", "gpu-2": "fail"}),
        ([], {"gpu-1": "warn", "gpu-2": "warn"}),
    ],
)
def test_drivers_of_pools_are_judged_by_pool(drivers: list[dict[str, Any]], outcomes: dict[str, str]) -> None:
    inquiry = inquire(nodes=[node(), OLD_POOL], policies=driver(useNvidiaDriverCRD=True), drivers=drivers)
    found = answers("A42", inquiry)
    worst_of = {name: worst(each for each in found if each.node == name).value for name in outcomes}
    assert worst_of == outcomes


def test_default_drivers_are_not_known_before_26_7() -> None:
    drivers = [nvidia_driver("all", default=True), nvidia_driver("old", nodeSelector={"pool": "old"})]
    cluster = {"nodes": [OLD_POOL], "policies": driver(useNvidiaDriverCRD=True), "drivers": drivers}
    for release, source in (("26.3.3", "NVIDIADriver/all"), ("26.7.0", "NVIDIADriver/old")):
        inquiry = inquire(release, **cluster)
        chosen = inquiry.driver_of(inquiry.snapshot.nodes[0])
        assert chosen is not None
        assert chosen.source == source


def test_each_drivers_version_is_judged() -> None:
    drivers = [nvidia_driver("a", version="580"), nvidia_driver("b", version="580", usePrecompiled=True)]
    found = answers("A41", inquire(policies=driver(useNvidiaDriverCRD=True), drivers=drivers))
    assert [(each.evidence[0].source, each.outcome) for each in found] == [
        ("NVIDIADriver/a", Outcome.FAIL),
        ("NVIDIADriver/b", Outcome.PASS),
    ]


def test_drivers_that_cannot_be_read_are_unknown() -> None:
    inquiry = inquire(policies=driver(useNvidiaDriverCRD=True), unread=["nvidiadrivers"])
    assert answers("A42", inquiry)[0].outcome is Outcome.UNKNOWN
    assert answers("A42", inquire(unread=["nvidiadrivers"]))[0].outcome is Outcome.PASS


def test_faults_of_a_pinned_driver_are_told() -> None:
    found = answers("A41", inquire("25.3.1", policies=driver(version="570.148.08")))
    assert [each.outcome for each in found] == [Outcome.PASS, Outcome.PASS, Outcome.WARN]
    assert "GPU pods stay Pending" in found[2].title


def test_findings_name_the_row_and_the_date_of_the_matrix() -> None:
    (finding,) = answers("A3", inquire())
    assert [(item.source, item.excerpt) for item in finding.evidence] == [
        ("node/gpu-1 status.nodeInfo.osImage", "Ubuntu 24.04.3 LTS"),
        ("support matrix 2026-08-21", "platforms.26.7.os.ubuntu24.04"),
    ]


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (Settings(), "operator-managed driver"),
        (Settings(precompiled=True, driver_version="580"), "precompiled driver"),
        (Settings(driver_resources=True), "NVIDIADriver objects"),
        (Settings(driver=False), "preinstalled driver"),
        (Settings(driver=False, toolkit=False), "preinstalled driver and toolkit"),
    ],
)
def test_driver_models(settings: Settings, model: str) -> None:
    assert driver_model(settings)[0] == model


def test_settings_that_cannot_be_read_are_not_taken_for_defaults() -> None:
    inquiry = inquire(unread=["clusterpolicies"])
    assert answers("A42", inquiry)[0].outcome is Outcome.UNKNOWN
    assert answers("A5", inquiry)[0].outcome is Outcome.PASS
    planned = Inquiry(target=inquiry.target, snapshot=inquiry.snapshot, planned=Settings())
    assert answers("A42", planned)[0].outcome is Outcome.PASS


def test_planned_values_count_before_the_cluster_policy() -> None:
    inquiry = Inquiry(
        target=Target.of(shipped(), "26.7.0"),
        snapshot=Snapshot.of(nodes=[node()], policies=driver(enabled=False)),
        planned=Settings.of({"driver": {"nvidiaDriverCRD": {"enabled": True}}}),
    )
    assert inquiry.settings.driver
    assert answers("A35", inquiry)[0].title == "driver model: NVIDIADriver objects"
    assert inquiry.settings_source == "planned values"


@pytest.mark.parametrize("name", sorted(REGENERATED_BY))
def test_services_that_write_the_runtime_configuration(name: str) -> None:
    versions = {"k3s": "v1.34.1+k3s1", "rke2": "v1.34.1+rke2r1", "k0s": "v1.34.1+k0s", "gke": "v1.34.1-gke.100"}
    labels = {"microk8s": {"microk8s.io/cluster": "true"}, "aks": {"kubernetes.azure.com/cluster": "c"}}
    there = node(labels=labels.get(name, {}), kubeletVersion=versions.get(name, "v1.34.1"))
    (finding,) = answers("A50", inquire(nodes=[there]))
    assert (finding.outcome, REGENERATED_BY[name] in finding.title) == (Outcome.WARN, True)


# --- The snapshot ----------------------------------------------------------------------------------------------------


def test_inventory() -> None:
    assert inventory(inquire().snapshot) == [
        ("gpu-1", "Ubuntu 24.04.3 LTS", "6.8.0-60-generic", "containerd://2.1.4", "amd64", "v1.34.2", "8",
         "nvidia.com/gpu=present:NoSchedule"),
    ]  # fmt: skip


def test_a_bare_node() -> None:
    bare = NodeFacts.of({"metadata": {"name": "n"}})
    assert (bare.has_gpu, bare.has_features, bare.ready, bare.distribution) == (False, False, False, "k8s")


def test_ended_pods_are_not_on_their_node() -> None:
    ended = pod("driver", labels={"app": "nvidia-driver-daemonset"}) | {"status": {"phase": "Succeeded"}}
    snapshot = Snapshot.of(nodes=[node()], pods=[ended])
    assert snapshot.pods_on(snapshot.nodes[0]) == ()


def test_pod_facts() -> None:
    facts = PodFacts.of(pod("w", namespace="ml", limit=2, devices="all"))
    assert (facts.where, facts.limits, facts.visible_devices) == ("ml/w", {"nvidia.com/gpu": "2"}, ())


def test_openshift_is_told_by_its_nodes() -> None:
    there = node(
        labels={"node.openshift.io/os_id": "rhel", names.OS_RELEASE_ID: "rhel", names.OS_RELEASE_VERSION_ID: "9.6"}
    )
    snapshot = Snapshot.of(nodes=[there])
    assert snapshot.openshift
    assert snapshot.os_key(snapshot.nodes[0]) == "rhcos"


def test_the_oldest_policy_counts() -> None:
    old = policy(driver={"enabled": False})
    old["metadata"] |= {"name": "z", "creationTimestamp": "2025-01-01T00:00:00Z"}
    new = policy()
    new["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
    settings = Snapshot.of(policies=[new, old]).settings
    assert settings is not None
    assert not settings.driver


def test_settings_of_chart_values() -> None:
    values = {
        "driver": {"enabled": True, "version": "580", "usePrecompiled": True, "kernelModuleType": "open"},
        "toolkit": {"env": [{"name": "CONTAINERD_CONFIG", "value": "/x"}]},
        "cdi": {"enabled": False, "nriPluginEnabled": None},
    }
    assert Settings.of(values) == Settings(
        driver_version="580",
        precompiled=True,
        module_type="open",
        toolkit_env={"CONTAINERD_CONFIG": "/x"},
        cdi=False,
        tree=values,
    )
    assert Settings.of({}) == Settings()
