"""Values that cannot work together are refused before anything is installed, with what to set."""

from typing import Any

import helm_python as helm
import pytest
from chart import rendering


def together(*pairs: tuple[str, object]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for path, value in pairs:
        whole = rendering.merged(whole, rendering.tree(path, value))
    return whole


NRI = ("cdi.nriPluginEnabled", True)
OLD = ("operator.release", "26.3.3")
GPU_CLUSTER = (("gpuCluster.deployCR", True), ("clusterPolicy.deployCR", False))

REFUSED = [
    ([NRI, ("cdi.enabled", False)], ["cdi.nriPluginEnabled", "cdi.enabled to true"]),
    ([NRI, ("cdi.enabled", False), OLD], ["cdi.nriPluginEnabled", "cdi.enabled to true"]),
    ([NRI, ("toolkit.enabled", False)], ["cdi.nriPluginEnabled", "toolkit.enabled to true"]),
    ([("devicePlugin.config.create", True), ("devicePlugin.config.name", "a")], ["devicePlugin.config.data is empty"]),
    (
        [("devicePlugin.config.create", True), ("devicePlugin.config.data", {"a": "b"})],
        ["devicePlugin.config.name is empty"],
    ),
    ([("migManager.config.create", True), ("migManager.config.data", {"a": "b"})], ["migManager.config.name is empty"]),
    ([("dcgmExporter.config.create", True), ("dcgmExporter.config.data", "a")], ["dcgmExporter.config.name is empty"]),
    ([("gpuCluster.deployCR", True)], ["clusterPolicy.deployCR and gpuCluster.deployCR exclude each other"]),
    ([*GPU_CLUSTER], ["gpuCluster.deployCR", "driver.nvidiaDriverCRD.enabled to true"]),
    ([*GPU_CLUSTER, ("driver.enabled", False)], ["gpuCluster.deployCR", "Dynamic Resource Allocation", "DeviceClass"]),
    ([("nfd.enabled", False), ("nfd.implementation", "upstream"), ("operator.release", "1")], ["operator.release"]),
]


@pytest.mark.parametrize(("pairs", "words"), REFUSED, ids=[words[0] for _, words in REFUSED])
def test_contradictions_are_refused_with_a_remedy(pairs: list[tuple[str, object]], words: list[str]) -> None:
    with pytest.raises(helm.HelmError) as refused:
        rendering.documents(together(*pairs))
    for word in words:
        assert word in str(refused.value)


ACCEPTED = [
    [NRI],
    [NRI, ("toolkit.enabled", False), OLD],
    [("cdi.enabled", False)],
    [("migManager.config.create", True), ("migManager.config.name", "a")],
    [("driver.nvidiaDriverCRD.enabled", True)],
    [("driver.nvidiaDriverCRD.enabled", True), ("driver.nvidiaDriverCRD.deployDefaultCR", False)],
    [("driver.nvidiaDriverCRD.enabled", True), ("driver.enabled", False)],
]


@pytest.mark.parametrize("pairs", ACCEPTED, ids=str)
def test_what_works_is_not_refused(pairs: list[tuple[str, object]]) -> None:
    assert rendering.one("ClusterPolicy", together(*pairs))
