"""``groundplane install`` and ``uninstall`` as commands against a lab: by Helm in the command's own process."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from groundplane.cluster import errors, kinds
from groundplane.lab import nodes
from groundplane.lab.cluster import Lab

CHART = str(Path(__file__).parents[2] / "deploy" / "chart")


async def run(home: Path, *argv: str) -> tuple[int, str, str]:
    """A command of a person with an own home; exit code, output, errors."""
    env = {**os.environ, "GROUNDPLANE_HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "groundplane.cli.main", *argv, env=env, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode(), err.decode()


async def test_a_cluster_gets_the_operator_and_loses_it_again(tmp_path: Path) -> None:
    chart = ("--chart", CHART, "--timeout", "120")
    async with Lab(hollow=1, hollow_gpus=8) as lab:
        lab.kubeconfig(tmp_path / "kubeconfig")
        code, out, _ = await run(tmp_path, "install", *chart, "--dry-run", "-o", "json")
        assert code in (0, 4), out
        assert "+ Deployment gpu-operator/gpu-operator" in json.loads(out)["changes"]
        code, _, err = await run(tmp_path, "install", *chart, "--yes", "--set", "cdi.nriPluginEnabled=true",
                                 "--set", "cdi.enabled=false")  # fmt: skip
        assert code == 1
        assert "cdi.nriPluginEnabled needs CDI" in err
        _, out, err = await run(tmp_path, "install", *chart, "--yes")
        assert "[5/5] Verify" in err, (out, err)
        assert "PASS    L9 A65" in out
        assert "PASS    L9 A62" in out
        code, _, err = await run(tmp_path, "install", *chart, "--yes", "--set", "mig.strategy=mixed")
        assert (code, "nothing was changed" in err) == (3, True)
        code, out, _ = await run(tmp_path, "uninstall", "--yes", "--node-labels")
        assert code == 0
        assert "stays: the definitions (--crds)" in out
        async with lab.client() as client:
            assert (await client.list(kinds.CLUSTER_POLICY)).items == []
            names = [each["metadata"]["name"] for each in (await client.list(kinds.DEPLOYMENT, "gpu-operator")).items]
        assert names == []


async def test_a_killed_installation_goes_on(tmp_path: Path) -> None:
    async with Lab(operator=False) as lab:  # no node: Helm waits for the operator's pod until it is killed
        lab.kubeconfig(tmp_path / "kubeconfig")
        env = {**os.environ, "GROUNDPLANE_HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "groundplane.cli.main", "install", "--chart", CHART, "--yes", "--force",
            "--timeout", "120", env=env, stdout=-3, stderr=-3,
        )  # fmt: skip
        secrets = lab.api.resource("secrets")
        await lab.wait_until(
            lambda: any("helm" in each["metadata"]["name"] for each in lab.api.list(secrets)["items"]),
            timeout_s=60,
            what="Helm to have begun",
        )
        process.kill()
        await process.wait()
        _, out, err = await run(tmp_path, "install", "--chart", CHART, "--yes", "--force", "--timeout", "3")
        assert "is pending-install" not in err
        assert "done before" in err
        assert "not ready in time" in err
        assert "interrupted" in out or "[3/5] Install" in err


async def test_a_node_that_cannot_pull_is_told_and_handed_to_the_doctor(tmp_path: Path) -> None:
    broken = (
        "--set",
        "toolkit.repository=registry.lab/none",
        "--set",
        "toolkit.image=nothing",
        "--set",
        "toolkit.version=1",
    )
    async with Lab(nodes.generate(1), operator=False) as lab:
        lab.kubeconfig(tmp_path / "kubeconfig")
        code, out, err = await run(tmp_path, "install", "--chart", CHART, "--yes", "--timeout", "20", *broken,
                                   "-o", "json")  # fmt: skip
        assert code == 1, (out, err)
        assert "gpu-1: L4 waits for nvidia-container-toolkit-daemonset" in err
        assert "run the same command to go on" in err
        assert "ImagePullBackOff" in err.partition("[4/5]")[2] or "ErrImagePull" in err
        assert "L4" in err.rpartition("waits for")[2], "the doctor's word comes last"


async def test_an_uninstallation_that_was_killed_goes_on(tmp_path: Path) -> None:
    async with Lab(hollow=1, hollow_gpus=8) as lab, lab.client() as client:
        lab.kubeconfig(tmp_path / "kubeconfig")
        code, out, err = await run(tmp_path, "install", "--chart", CHART, "--timeout", "120", "--yes")
        assert "[5/5] Verify" in err, (out, err)
        held = "clusterpolicies.nvidia.com"
        await client.patch(kinds.CRD, held, {"metadata": {"finalizers": ["example.com/held"]}})
        asked = ("uninstall", "--yes", "--crds", "--namespace-too", "--node-labels")
        env = {**os.environ, "GROUNDPLANE_HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "groundplane.cli.main", *asked, env=env, stdout=-3, stderr=-3
        )
        async with asyncio.timeout(60):
            while not [each for each in (tmp_path / "uninstall").glob("*.json") if b'"helm"' in each.read_bytes()]:
                await asyncio.sleep(0.05)
        process.kill()
        await process.wait()
        await client.patch(kinds.CRD, held, {"metadata": {"finalizers": None}})
        code, _, err = await run(tmp_path, "uninstall", "--yes")
        assert (code, "another run that was interrupted" in err) == (1, True), err
        code, out, err = await run(tmp_path, *asked)
        assert code == 0, err
        assert "(done)" in out
        assert not list((tmp_path / "uninstall").glob("*.json"))
        for kind, name in ((kinds.CRD, held), (kinds.NAMESPACE, "gpu-operator")):
            with pytest.raises(errors.NotFound):
                await client.get(kind, name)


@pytest.mark.parametrize("form", ["helm", "argocd", "flux", "terraform"])
async def test_what_is_printed_for_others(tmp_path: Path, form: str) -> None:
    code, out, err = await run(
        tmp_path, "install", "--version", "v26.3.3", "--print", form, "--set", "driver.enabled=false"
    )
    assert code == 0, err
    assert "v26.3.3" in out
    if form in ("argocd", "flux"):
        assert all(each["apiVersion"] for each in yaml.safe_load_all(out))


async def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    code, _, err = await run(tmp_path, "install")
    assert (code, "--version" in err) == (2, True)
    code, _, err = await run(tmp_path, "install", "--chart", CHART, "--kubeconfig", "/nowhere")
    assert (code, "/nowhere" in err) == (1, True)
