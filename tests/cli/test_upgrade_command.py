"""``groundplane upgrade`` as a command: on a lab whose operator runs in pods, killed at several steps; offline."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.admin import helm, upgrade_render, upgrade_run, upgrades
from groundplane.admin import matrix as matrices
from groundplane.admin.hops import Version
from groundplane.cluster import kinds
from groundplane.diagnose import survey
from groundplane.lab import nodes
from groundplane.lab.cluster import Lab

CHART = str(Path(__file__).parents[2] / "deploy" / "chart")
NAME = ("gpu-operator", "gpu-operator")
SECRET = "hunter2-secret"
BEFORE = {"operator": {"release": "26.3.3"}, "driver": {"env": [{"name": "PROXY_TOKEN", "value": SECRET}]}}
RUN = ("upgrade", "run", "--to", "v26.7.0", "--chart", CHART, "--yes", "--force", "--canary-label", "canary=yes",
       "--no-cuda-test", "--timeout", "120", "--driver-timeout", "120")  # fmt: skip


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "GROUNDPLANE_HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")}


async def run(home: Path, *argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "groundplane.cli.main", *argv, env=environment(home), stdin=-1, stdout=-1, stderr=-1
    )
    out, err = await process.communicate(stdin)
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode(), err.decode()


async def killed_at(home: Path, line: str, *argv: str) -> str:
    """Run a command, and kill it as soon as it tells of a step; what it had told."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "groundplane.cli.main", *argv, env=environment(home), stdout=-3, stderr=-1
    )
    assert process.stderr is not None
    told = ""
    async with asyncio.timeout(120):
        while line not in told:
            got = await process.stderr.readline()
            assert got, told
            told += got.decode()
    process.kill()
    await process.wait()
    return told


async def test_a_cluster_is_upgraded_though_the_run_is_killed_at_every_turn(tmp_path: Path) -> None:
    async with Lab(nodes.generate(2), operator=False) as lab:
        maker = helm.choose(str(lab.kubeconfig(tmp_path / "kubeconfig")))
        await maker.install(helm.chart_of(CHART), *NAME, BEFORE, timeout_s=60)
        await lab.wait_ready(timeout_s=90)
        async with lab.client() as client:
            first, other = [each["metadata"]["name"] for each in (await client.list(kinds.NODE)).items]
            await client.patch(kinds.NODE, first, {"metadata": {"labels": {"canary": "yes"}}})
            code, out, err = await run(tmp_path, *RUN, "--dry-run")
            assert code == 0, err
            assert f"label nvidia.com/gpu-driver-upgrade.skip=true of {other}" in out and SECRET not in out + err
            for step in (
                "] Keep values",
                "] Hold the drivers",
                "] Upgrade the chart",
                "] Watch and test",
                "] Let 1 nodes",
            ):
                await killed_at(tmp_path, step, *RUN)
            code, _, err = await run(tmp_path, *RUN, "--keep", "driver.version")
            assert code == 1 and "was interrupted: finish it with the same arguments" in err
            code, out, err = await run(tmp_path, *RUN, "-o", "json")
            assert "Keep values, custom resources, history, nodes and a baseline: done before" in err
            assert SECRET not in out + err
            document = json.loads(out)
            assert (code, document["source"], document["target"]) in (
                (0, "v26.3.3", "v26.7.0"),
                (4, "v26.3.3", "v26.7.0"),
            )
            assert {each["id"] for each in document["findings"]} >= {"A62", "A67", "A80", "A97", "A101"}
            drivers = {
                each["spec"]["nodeName"]: each["spec"]["containers"][0]["image"]
                for each in (await client.list(kinds.POD, "gpu-operator", labels="app=nvidia-driver-daemonset")).items
            }
            assert set(drivers) == {first, other} and all(":595.91.07-" in image for image in drivers.values())
            held = (await client.list(kinds.NODE, labels="nvidia.com/gpu-driver-upgrade.skip")).items
            assert held == []
        kept = Path(document["kept"])
        assert yaml.safe_load((kept / "values.yaml").read_text()) == BEFORE
        assert not (kept.parent / "run.json").exists() and not (kept.parent / "journal.json").exists()
        code, _, err = await run(tmp_path, *RUN)
        assert (code, "is v26.7.0 already: nothing to do" in err) == (1, True)


class Hanging:
    """A Helm whose hook cannot pull: it waits for ever."""

    name = "a stand-in"
    ended = False

    async def upgrade(self, *_chart: Any, **_how: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_plans_live_and_offline_say_the_same_and_a_hook_that_cannot_pull_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))
    async with Lab(hollow=3, hollow_gpus=8) as lab, lab.client() as client:
        maker = helm.choose(str(lab.kubeconfig(tmp_path / "kubeconfig")))
        await maker.install(helm.chart_of(CHART), *NAME, BEFORE, timeout_s=60)
        await lab.wait_ready(timeout_s=60)
        # Live, with every form
        page, values = tmp_path / "plan.html", tmp_path / "values.yaml"
        ask = ("upgrade", "plan", "--to", "26.7.0")
        code, out, err = await run(
            tmp_path, *ask, "--chart", CHART, "-o", "json", "--html", str(page), "--write-values", str(values)
        )
        live = json.loads(out)
        assert code == 3, err  # the lab's Kubernetes is newer than any release was validated with
        assert (live["source"], live["target"], live["go"]) == ("v26.3.3", "v26.7.0", False)
        assert [each["effect"] for each in live["drivers"]] == ["reload"]
        assert SECRET not in out + err + page.read_text() and "<script" not in page.read_text()
        assert yaml.safe_load(values.read_text()) == {**BEFORE, "operator": {"release": "26.7.0"}}
        assert values.stat().st_mode & 0o777 == 0o600
        # Offline, of what kubectl would print
        seen = await survey.live(client, upgrades.KINDS)
        snapshot = tmp_path / "snapshot.json"
        snapshot.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(_documents(seen))}))
        code, out, err = await run(tmp_path, *ask, "--snapshot", str(snapshot), "-o", "json")
        offline = json.loads(out)
        assert code in (3, 4), err
        for part in ("source", "target", "values", "disruption", "rollback", "components", "definitions"):
            assert offline[part] == live[part], part
        # A hook's image that cannot be pulled
        asked = upgrades.Wanted(Version(26, 7, 0), matrices.shipped(), chart=helm.chart_of(CHART))
        limits = upgrade_run.Limits(cuda=False, metrics=False)
        chosen = upgrade_run.of_plan(upgrades.plan(asked, seen), seen, "asked", limits)
        hanging = Hanging()
        work = upgrade_run.Work(client, hanging, chosen, upgrade_run.begin(chosen, seen.server), limits, print)  # type: ignore[arg-type]
        job = await client.create(kinds.JOB, _job(), "gpu-operator")
        await client.create(kinds.POD, _hook_pod(job["metadata"]["uid"]), "gpu-operator")
        await client.apply(kinds.POD, _hook_status(), field_manager="t", subresource="status")
        monkeypatch.setattr(upgrade_run, "POLL_S", 0.05)
        with pytest.raises(upgrade_run.RunError, match=r"cannot pull r/gpu-operator:1 .*--no-hooks"):
            async with asyncio.timeout(60):
                await work.helm()
        assert hanging.ended


def _documents(seen: survey.Survey) -> Any:
    by_plural = {read.kind.plural: read.kind for read in survey.KINDS.values()}
    for plural, objects in seen.objects.items():
        kind = by_plural[plural]
        yield from ({"apiVersion": kind.api_version, "kind": kind.kind, **each} for each in objects)


_HEAD: Any = {"namespace": "gpu-operator"}


def _job() -> Any:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "r/gpu-operator:1"}]}}
    metadata = {**_HEAD, "name": "upgrade-crd", "annotations": {"helm.sh/hook": "pre-upgrade"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": pod}}


def _hook_pod(job: str) -> Any:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "upgrade-crd", "uid": job}
    metadata = {**_HEAD, "name": "upgrade-crd-x", "ownerReferences": [owner]}
    spec = {"schedulerName": "none", "containers": [{"name": "c", "image": "r/gpu-operator:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _hook_status() -> Any:
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    container = {"name": "c", "image": "r/gpu-operator:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": waiting}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**_HEAD, "name": "upgrade-crd-x"}, "status": status}


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("plan",), 2, "--to"),
        (("plan", "--to", "soon"), 2, "write it like v26.3.3"),
        (("plan", "--to", "v26.7.0", "--canary-label", "a b"), 2, "KEY=VALUE"),
        (("plan", "--to", "v26.7.0", "--values", "/nowhere"), 2, "/nowhere"),
        (("plan", "--to", "v26.7.0", "--snapshot", "/nowhere"), 1, "/nowhere"),
        (("plan", "--to", "v26.7.0", "--snapshot", "-", "--node-pods"), 2, "asks no cluster"),
        (("plan", "--to", "v26.7.0", "--kubeconfig", "/nowhere"), 1, "/nowhere"),
        (("run", "--to", "v26.7.0", "--kubeconfig", "/nowhere"), 1, "/nowhere"),
        (("plan", "--to", "v26.7.0", "--snapshot", "-"), 1, "no object of a cluster"),
    ],
)
async def test_what_cannot_be_is_told(tmp_path: Path, argv: tuple[str, ...], code: int, said: str) -> None:
    got, _, err = await run(tmp_path, "upgrade", *argv, stdin=b"kind: Fridge\n")
    assert (got, said in err) == (code, True), err


def test_documents_of_a_manifest_that_is_none() -> None:
    assert upgrade_render.documents("a: [") == []
