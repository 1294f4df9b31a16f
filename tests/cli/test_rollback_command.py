"""``groundplane rollback`` as a command on a lab: planned, killed inside Helm, gone on with, and the boundary after."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from groundplane.admin import helm
from groundplane.api import names
from groundplane.cluster import kinds
from groundplane.lab import nodes, resources
from groundplane.lab.cluster import Lab

CHART = str(Path(__file__).parents[2] / "deploy" / "chart")
NAME = ("gpu-operator", "gpu-operator")
OLD, NEW = ({"operator": {"release": release}} for release in ("26.3.3", "26.7.0"))
SECRET = "hunter2-of-the-proxy"


async def start(home: Path, *argv: str) -> asyncio.subprocess.Process:
    """A command of a person with an own home."""
    env = {**os.environ, "GROUNDPLANE_HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "groundplane.cli.main", *argv, env=env, stdout=-1, stderr=-1
    )


async def run(home: Path, *argv: str) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    process = await start(home, *argv)
    out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode(), err.decode()


def driver_is_new(lab: Lab) -> bool:
    """Whether every driver has been replaced, and no node is in the midst of it."""
    pods = [pod for pod in lab.api.list(resources.PODS)["items"] if "driver-daemonset" in pod["metadata"]["name"]]
    states = {node["metadata"]["labels"].get(names.UPGRADE_STATE) for node in lab.api.list(resources.NODES)["items"]}
    return states == {"upgrade-done"} and all("595.91.07" in json.dumps(pod["spec"]) for pod in pods)


async def killed_in_helm(home: Path, lab: Lab) -> None:
    """Begin a rollback, and kill it while Helm is at work: its release is left pending."""
    process = await start(home, "rollback", "run", "--yes", "--no-cuda-test", "--no-metrics")
    async with lab.client() as client, asyncio.timeout(60):
        while "pending-rollback" not in [
            (each["metadata"].get("labels") or {}).get("status")
            for each in (await client.list(kinds.SECRET, NAME[0])).items
        ]:
            assert process.returncode is None, "it ended before it could be killed"
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    await process.communicate()


async def test_26_7_goes_back_to_26_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))
    async with Lab(nodes.generate(1), operator=False, kubernetes="v1.35.0") as lab:
        maker, chart = helm.choose(str(lab.kubeconfig(tmp_path / "kubeconfig"))), helm.chart_of(CHART)
        await maker.install(chart, *NAME, OLD, timeout_s=60)
        await lab.wait_ready(timeout_s=60)
        code, _, err = await run(tmp_path, "rollback", "plan")
        assert (code, "no complete revision before 1" in err) == (1, True)
        secret = {"driver": {"env": [{"name": "PROXY_PASSWORD", "value": SECRET}]}}
        await maker.upgrade(chart, *NAME, {**NEW, **secret}, timeout_s=60)
        await lab.wait_until(lambda: driver_is_new(lab), timeout_s=60, what="the new driver")
        await lab.wait_ready(timeout_s=60)

        code, out, _ = await run(tmp_path, "rollback", "plan", "--exec", "-a", "--write", str(tmp_path / "plan.md"),
                                 "--html", str(tmp_path / "plan.html"))  # fmt: skip
        assert code == 4, out
        assert out.index("version: 595.91.07") < out.index("What comes back")
        assert "met       Kubernetes is one" in out
        assert "GO" in out
        written = (tmp_path / "plan.md").read_text() + (tmp_path / "plan.html").read_text()
        chapters = ("## 1. Chart", "## 2. Driver", "## 3. Kernel", "## 4. Runtime", "## 5. Node image")
        assert [each for each in chapters if each not in written] == []
        code, told, _ = await run(tmp_path, "rollback", "run", "26.3.3", "--dry-run", "-o", "json")
        assert (code, json.loads(told)["target"]["like"]) == (0, "v26.3.3")
        assert SECRET not in out + written + told
        code, _, err = await run(tmp_path, "rollback", "plan", "9")
        assert (code, "it has 2 (0.1.0, deployed), 1 (0.1.0, superseded)" in err) == (1, True)
        code, _, err = await run(tmp_path, "rollback", "plan", "newest")
        assert (code, "no revision of helm history" in err) == (2, True)
        code, _, err = await run(tmp_path, "rollback", "plan", "--node-image", "x")
        assert (code, "--node-image and --pull-secret are for --node-pods" in err) == (2, True)

        await killed_in_helm(tmp_path, lab)
        code, out, err = await run(tmp_path, "rollback", "run", "--yes", "--no-cuda-test", "--no-metrics")
        assert code in (0, 4), (out, err)
        assert "was interrupted: it goes on" in err
        assert "is pending-rollback of a run that was interrupted: the rollback ends that" in err
        assert "Keep values, custom resources, history, nodes and a baseline: done before" in err
        assert "PASS    L2 A101  the driver is upgraded" in out
        assert "clusterpolicies.nvidia.com keeps the schema of v26.7.0" in out
        assert "node labels, taints, cordon: nothing is left" in out
        assert SECRET not in out + err
        assert not list(tmp_path.glob("upgrade/*/journal.json"))
