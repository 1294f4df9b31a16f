"""NVIDIADriver and GPUCluster as the chart renders them, and what the operator makes of the default driver."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml
from chart import rendering

from groundplane.api import codec, names, nvidiadriver, validate_driver
from groundplane.api.release import Release
from groundplane.operands import driver as driver_state
from groundplane.operands.facts import ClusterFacts, GpuNode
from groundplane.operands.nvidiadriver import render as render_driver

Render = Callable[[dict[str, Any]], dict[str, Any]]

BY_CRD: dict[str, Any] = {"driver": {"nvidiaDriverCRD": {"enabled": True}}}
DRA: dict[str, Any] = {"gpuCluster": {"deployCR": True}, "clusterPolicy": {"deployCR": False}}


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart without its look at the cluster: rendering in tests knows none, and it would refuse a GPUCluster."""
    folder = tmp_path_factory.mktemp("chart") / "gpu-operator"
    shutil.copytree(rendering.CHART, folder)
    (folder / "templates" / "validate.yaml").unlink()
    return folder


@pytest.fixture
def spec(unchecked: Path) -> Render:
    def of(values: dict[str, Any]) -> dict[str, Any]:
        """The spec of the one object of version v1alpha1."""
        with helm.Chart.load(unchecked) as chart:
            rendered = chart.render(values, name=rendering.RELEASE, namespace=rendering.NAMESPACE)
        documents = [
            document
            for path, text in rendered.items()
            if path.endswith(("nvidiadriver.yaml", "gpucluster.yaml"))
            for document in yaml.safe_load_all(text)
            if document
        ]
        (found,) = documents
        assert found["apiVersion"] == "nvidia.com/v1alpha1"
        whole: dict[str, Any] = found["spec"]
        return whole

    return of


def driver(**values: Any) -> dict[str, Any]:
    return rendering.merged(BY_CRD, {"driver": values})


def release(values: dict[str, Any], chosen: str) -> dict[str, Any]:
    return rendering.merged(values, {"operator": {"release": chosen}})


def test_the_default_driver_is_the_sections(spec: Render) -> None:
    found = spec(BY_CRD)
    assert found == {
        "default": True,
        "driverType": "gpu",
        "image": "driver",
        "imagePullPolicy": "IfNotPresent",
        "kernelModuleType": "auto",
        "manager": {
            "image": "k8s-driver-manager",
            "imagePullPolicy": "IfNotPresent",
            "repository": "nvcr.io/nvidia/cloud-native",
            "version": "v0.12.0",
        },
        "priorityClassName": "system-node-critical",
        "rdma": {"enabled": False, "useHostMofed": False},
        "repository": "nvcr.io/nvidia",
        "startupProbe": {"failureThreshold": 120, "initialDelaySeconds": 60, "periodSeconds": 10, "timeoutSeconds": 60},
        "tolerations": [{"effect": "NoSchedule", "key": "nvidia.com/gpu", "operator": "Exists"}],
        "upgradePolicy": rendering.one("ClusterPolicy")["spec"]["driver"]["upgradePolicy"],
        "usePrecompiled": False,
        "version": "595.91.07",
    }


def test_the_older_release_knows_neither_default_nor_upgrade_policy(spec: Render) -> None:
    assert spec(BY_CRD).keys() - spec(release(BY_CRD, "26.3.3")).keys() == {"default", "upgradePolicy"}


@pytest.mark.parametrize("chosen", rendering.RELEASES)
def test_a_node_selector_is_honoured(spec: Render, chosen: str) -> None:
    found = spec(release(driver(nvidiaDriverCRD={"nodeSelector": {"pool": "a"}}), chosen))
    assert found["nodeSelector"] == {"pool": "a"}
    assert found.get("default", False) is False, "the fallback may not have a selector"


LICENSING = [
    ({"secretName": "s", "nlsEnabled": False}, {"secretName": "s", "nlsEnabled": False}),
    ({"configMapName": "c"}, {"name": "c", "nlsEnabled": True}),
    ({"configMapName": "c", "secretName": "s"}, {"secretName": "s", "nlsEnabled": True}),
    ({"secretName": "s", "nlsEnabled": None}, {"secretName": "s", "nlsEnabled": True}),
]


@pytest.mark.parametrize(("values", "expected"), LICENSING)
def test_licensing_is_as_it_was_set(spec: Render, values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert spec(driver(licensingConfig=values))["licensingConfig"] == expected


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({"repoConfig": {"configMapName": "r"}}, "repoConfig", {"name": "r"}),
        ({"certConfig": {"name": "c"}}, "certConfig", {"name": "c"}),
        ({"virtualTopology": {"config": "t"}}, "virtualTopologyConfig", {"name": "t"}),
        ({"kernelModuleConfig": {"name": "k"}}, "kernelModuleConfig", {"name": "k"}),
        ({"nvidiaDriverCRD": {"driverType": "vgpu"}}, "driverType", "vgpu"),
        ({"secretEnv": "e"}, "secretEnv", "e"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_references_have_the_names_of_the_kind(
    spec: Render, values: dict[str, Any], field: str, expected: object
) -> None:
    assert spec(driver(**values))[field] == expected


def test_an_unset_parallelism_is_not_unlimited(spec: Render) -> None:
    assert "maxParallelUpgrades" not in spec(driver(upgradePolicy={"maxParallelUpgrades": None}))["upgradePolicy"]


def test_gds_and_gdrcopy_come_when_switched_on(spec: Render) -> None:
    assert not {"gds", "gdrcopy"} & spec(BY_CRD).keys()
    found = spec(rendering.merged(BY_CRD, {"gds": {"enabled": True}, "gdrcopy": {"enabled": True}}))
    assert (found["gds"]["version"], found["gdrcopy"]["version"]) == ("2.29.4", "v2.6")


def test_a_gpu_cluster_has_the_dra_driver_and_the_exporters_of_the_policy(spec: Render) -> None:
    values = rendering.merged(DRA, {"draDriver": {"featureGates": {"MPSSupport": True}}, "driver": {"enabled": False}})
    found = spec(values)
    policy = rendering.one("ClusterPolicy")["spec"]
    assert found["draDriver"] == {
        "repository": "nvcr.io/nvidia",
        "image": "dra-driver-nvidia-gpu",
        "version": "v0.5.0",
        "imagePullPolicy": "IfNotPresent",
        "featureGates": {"MPSSupport": True},
        "computeDomains": {"enabled": True},
    }
    assert (found["dcgm"], found["dcgmExporter"]) == (policy["dcgm"], policy["dcgmExporter"])
    assert found["hostPaths"] == {"driverInstallDir": "/run/nvidia/driver"}
    assert found["daemonsets"]["priorityClassName"] == "system-node-critical"


def test_compute_domains_can_be_switched_off(spec: Render) -> None:
    values = rendering.merged(DRA, {"draDriver": {"computeDomains": {"enabled": False}}})
    assert spec(values)["draDriver"]["computeDomains"] == {"enabled": False}


# --- What the operator makes of the default driver --------------------------------------------------------------------


def asked(spec: Render, chosen: str, **values: Any) -> nvidiadriver.NVIDIADriver:
    """The default driver as the operator reads it."""
    document = {"metadata": {"name": "default", "uid": "1"}, "spec": spec(release(driver(**values), chosen))}
    loaded = codec.load_nvidia_driver(document)
    assert loaded.unknown == []
    return loaded.driver


def node_labels(**more: str) -> dict[str, str]:
    return {
        names.GPU_PRESENT: "true",
        names.DRIVER_OWNER: "default",
        names.DEPLOY_DRIVER: "true",
        names.OS_RELEASE_ID: "ubuntu",
        names.OS_RELEASE_VERSION_ID: "24.04",
        names.KERNEL_VERSION: "6.8.0-60-generic",
        **more,
    }


@pytest.mark.parametrize("chosen", rendering.RELEASES)
def test_the_default_driver_is_the_one_that_the_policy_would_have(spec: Render, chosen: str) -> None:
    """Images, commands, environment, mounts and volumes; only that no GPU is injected is said here by a variable."""
    wanted = asked(spec, chosen)
    facts = ClusterFacts(
        namespace="gpu-operator",
        release=Release.parse(chosen),
        nodes=(GpuNode(name="n", kernel="6.8.0-60-generic", os_id="ubuntu", os_version="24.04"),),
    )
    assert validate_driver.problems(wanted.spec, facts.release) == []
    (ours,) = render_driver(wanted, {"n": node_labels()}, facts).daemon_sets
    policy = codec.load_cluster_policy(rendering.one("ClusterPolicy", release({}, chosen))).policy
    (theirs,) = [each for each in driver_state.render(policy.spec, facts) if each["kind"] == "DaemonSet"]
    pods = [each["spec"]["template"]["spec"] for each in (ours, theirs)]
    assert pods[0]["volumes"] == pods[1]["volumes"]
    assert [comparable(each) for each in containers(pods[0])] == [comparable(each) for each in containers(pods[1])]
    for key in ("tolerations", "priorityClassName", "hostPID"):
        assert pods[0][key] == pods[1][key]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["initContainers"], *pod["containers"]]


def comparable(container: dict[str, Any]) -> dict[str, Any]:
    """A container without its digest, and without the variable that keeps GPUs out of it."""
    without = ("DRIVER_CONFIG_DIGEST", "NVIDIA_VISIBLE_DEVICES")
    return {**container, "env": [each for each in container["env"] if each["name"] not in without]}
