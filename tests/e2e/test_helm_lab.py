"""The chart on a lab without an operator: its own Deployment, hook and node features run the shipped code."""

from pathlib import Path

import pytest

from groundplane.admin import helm
from groundplane.lab import nodes
from groundplane.lab.cluster import Lab

CHART = str(Path(__file__).parents[2] / "deploy" / "chart")
NAME = ("gpu-operator", "gpu-operator")


@pytest.fixture(autouse=True)
def _records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path / "records"))


async def test_the_chart_s_own_pods_bring_the_nodes_up(tmp_path: Path) -> None:
    async with Lab(nodes.generate(1), operator=False) as lab:
        maker = helm.choose(str(lab.kubeconfig(tmp_path / "kubeconfig")))
        chart = helm.chart_of(CHART)
        done = await maker.install(chart, *NAME, {}, timeout_s=60)
        assert done.status == "deployed"
        await lab.wait_ready(timeout_s=60)
        done = await maker.upgrade(chart, *NAME, {"mig": {"strategy": "mixed"}}, timeout_s=60)
        assert (done.revision, done.status) == (2, "deployed")
        await maker.rollback(*NAME, 1, timeout_s=60)
        await maker.uninstall(*NAME, timeout_s=60)
        with pytest.raises(helm.ReleaseMissing):
            await maker.rollback(*NAME, 1, timeout_s=10)
