"""The ClusterPolicy that the chart renders is the one NVIDIA's chart renders for the same values."""

from typing import Any

import pytest
from chart import rendering

from groundplane.api import codec, crd, schema

OPERATOR_IMAGE_TAG = "main-latest"
NVIDIA_CHART = "gpu-operator-v1.0.0-devel"


def expected(variant: str, release: str) -> dict[str, Any]:
    """The recorded policy. It was rendered from the repository, whose chart has no release's version of its own."""
    policy: dict[str, Any] = rendering.load(rendering.DATA / "clusterpolicy" / f"{release}-{variant}.yaml")
    assert policy["spec"]["validator"]["version"] == OPERATOR_IMAGE_TAG
    assert policy["metadata"]["labels"]["helm.sh/chart"] == NVIDIA_CHART
    own = rendering.load(rendering.CHART / "Chart.yaml")
    chart = f"{own['name']}-{own['version']}"
    policy["metadata"]["labels"] |= {"helm.sh/chart": chart, "app.kubernetes.io/version": own["appVersion"]}
    policy["spec"]["daemonsets"]["labels"]["helm.sh/chart"] = chart
    for section in ("validator", "nodeStatusExporter"):
        policy["spec"][section]["version"] = f"v{release}"
    return policy


@pytest.mark.parametrize("release", rendering.RELEASES)
@pytest.mark.parametrize("variant", rendering.VARIANTS)
def test_the_policy_equals_the_recorded_one(variant: str, release: str) -> None:
    assert rendering.one("ClusterPolicy", rendering.values(variant, release)) == expected(variant, release)


def test_every_recorded_policy_has_values() -> None:
    recorded = {path.stem for path in (rendering.DATA / "clusterpolicy").glob("*.yaml")}
    assert recorded == {f"{release}-{variant}" for release in rendering.RELEASES for variant in rendering.VARIANTS}


@pytest.mark.parametrize("release", rendering.RELEASES)
@pytest.mark.parametrize("variant", rendering.VARIANTS)
def test_the_policy_is_accepted_and_wholly_understood(variant: str, release: str) -> None:
    policy = rendering.one("ClusterPolicy", rendering.values(variant, release))
    assert list(schema.mismatches(policy, crd.cluster_policy_schema())) == []
    assert list(schema.unknown(policy, crd.cluster_policy_schema())) == []
    codec.load_cluster_policy(policy)
