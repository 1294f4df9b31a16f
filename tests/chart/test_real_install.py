"""The administrator's commands on a real control plane: preflight, install, verify, baseline, drift, upgrade, rollback,
uninstall.

Commands are processes of a person with an own home. The operator is the chart's, as its account; nodes look as if their
pods ran.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from chart import installed, rendering
from conftest import unavailable

from groundplane.cluster import errors, kinds
from groundplane.cluster.client import Client, PatchType
from groundplane.cluster.config import Config
from testing.hollownodes import HollowNodes
from testing.realcluster import build
from testing.realcluster.controlplane import ControlPlane

pytestmark = pytest.mark.real

NODES = ("gpu-a", "gpu-b")
DISCOVERED = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gfd.timestamp": "4000000000",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.machine": "a-machine",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/cuda.driver-version.major": "580",
    "nvidia.com/cuda.driver-version.minor": "126",
    "nvidia.com/cuda.driver-version.revision": "20",
    "nvidia.com/cuda.driver-version.full": "580.126.20",
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "0",
    "nvidia.com/cuda.runtime-version.full": "13.0",
}
"""What GPU feature discovery would find."""
CHART = ("--chart", str(rendering.CHART), "--set", "operator.release=26.3.3")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def outcomes(self, number: str) -> set[str]:
        """The outcomes of one check."""
        return {each["outcome"] for each in self.document["findings"] if each["id"] == number}


class Person:
    """One who types commands against a cluster."""

    def __init__(self, home: Path, kubeconfig: Path) -> None:
        self._env = {**os.environ, "GROUNDPLANE_HOME": str(home), "KUBECONFIG": str(kubeconfig)}

    async def runs(self, *argv: str) -> Ended:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "groundplane.cli.main", *argv, env=self._env, stdout=-1, stderr=-1
        )
        out, err = (each.decode() for each in await process.communicate())
        assert "Traceback" not in err, err
        assert process.returncode is not None
        return Ended(process.returncode, out, err)


@pytest.fixture(scope="module")
def cluster() -> Iterator[installed.Cluster]:
    """A control plane of its own: what the chart installs is cluster-wide."""
    try:
        build.ensure(build.CONTROL_PLANE)
    except build.UnavailableError as error:
        unavailable(str(error))
    with ControlPlane() as plane:
        yield installed.Cluster(plane)


@pytest.fixture
async def admin(cluster: installed.Cluster) -> AsyncIterator[Client]:
    """The administrator's client, with nodes whose pods run."""
    async with (
        Client(Config.detect(cluster.plane.kubeconfig())) as client,
        HollowNodes(client, NODES, gpus=8, labels=DISCOVERED) as nodes,
    ):
        yield client
        nodes.check()


def _operator_is_there(cluster: installed.Cluster) -> bool:
    found = cluster.find(f"/apis/apps/v1/namespaces/{rendering.NAMESPACE}/deployments/gpu-operator")
    account = cluster.find(f"/api/v1/namespaces/{rendering.NAMESPACE}/serviceaccounts/gpu-operator")
    return found is not None and account is not None


async def test_from_preflight_to_uninstall(cluster: installed.Cluster, admin: Client, tmp_path: Path) -> None:
    person = Person(tmp_path / "home", cluster.plane.kubeconfig())
    before = await person.runs("preflight", "-o", "json")
    assert before.code in (0, 4), before

    installing = asyncio.create_task(person.runs("install", *CHART, "--yes", "--timeout", "120", "-o", "json"))
    await asyncio.to_thread(installed.until, "the operator's Deployment", lambda: _operator_is_there(cluster))
    operator = installed.Operator(cluster, tmp_path)
    await asyncio.to_thread(operator.__enter__)
    try:
        _is_installed(await installing)
        verified = await person.runs("verify", "--release", "v26.3.3", "--metrics", "-1", "-o", "json")
        assert verified.code in (0, 4), verified
        found = {number: verified.outcomes(number) for number in ("A62", "A65", "A67", "A70")}
        assert found == {number: {"pass"} for number in found}, verified.out
        await _drifts(person, admin, tmp_path / "baseline")
        again = await person.runs("install", *CHART, "--yes", "--timeout", "120")
        assert again.code in (0, 4) and "[5/5] Verify" in again.err, again
    finally:
        await asyncio.to_thread(operator.__exit__, None, None, None)
    await _is_uninstalled(person, admin, cluster)


class Keeper:
    """Keeps the operator that the Deployment asks for: another one when its template changes, as a Deployment does."""

    def __init__(self, cluster: installed.Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._running: installed.Operator | None = None
        self._template: Any = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._end()

    async def _keep(self) -> None:
        path = f"/apis/apps/v1/namespaces/{rendering.NAMESPACE}/deployments/gpu-operator"
        while True:
            found = await asyncio.to_thread(self._cluster.find, path)
            template = found and found["spec"]["template"]["spec"]
            if template != self._template and await asyncio.to_thread(_operator_is_there, self._cluster):
                await self._end()
                running = installed.Operator(self._cluster, self._folder)
                await asyncio.to_thread(running.__enter__)
                self._running, self._template = running, template
            await asyncio.sleep(0.3)

    async def _end(self) -> None:
        if self._running is not None:
            await asyncio.to_thread(self._running.__exit__, None, None, None)
            self._running = None


NO_HOOK = ("--set", "operator.upgradeCRD=false")
"""No kubelet runs hooks here: the definitions are brought up to date by the upgrade itself."""
FORCED = ("--force", "--yes", "--no-cuda-test", "--no-metrics", "--timeout", "240", "-o", "json")
"""This Kubernetes is newer than the releases were validated with, and no program runs on these nodes."""


async def test_from_one_release_to_the_next_and_back(cluster: installed.Cluster, admin: Client, tmp_path: Path) -> None:
    person = Person(tmp_path / "home", cluster.plane.kubeconfig())
    async with Keeper(cluster, tmp_path):
        done = await person.runs("install", *CHART, *NO_HOOK, "--yes", "--timeout", "120", "-o", "json")
        assert done.code in (0, 4), done.out
        target = ("--to", "v26.7.0", "--chart", str(rendering.CHART))
        planned = await person.runs("upgrade", "plan", *target, "-o", "json")
        assert planned.code == 3 and planned.outcomes("A85") == {"fail"}, planned
        upgraded = await person.runs("upgrade", "run", *target, *FORCED)
        assert upgraded.out, upgraded.err
        told = {number: upgraded.outcomes(number) for number in ("A62", "A97", "A101")}
        assert told == {number: {"pass"} for number in told}, upgraded
        assert cluster.policy()["spec"]["driver"]["version"] == "595.91.07"
        verified = await person.runs("verify", "--release", "v26.7.0", "--metrics", "-1", "-o", "json")
        assert verified.outcomes("A62") == verified.outcomes("A67") == {"pass"}, verified.out
        back = await person.runs("rollback", "run", *FORCED)
        assert back.outcomes("A62") == {"pass"}, back
        assert cluster.policy()["spec"]["driver"]["version"] == "580.126.20"
        boundary = [each for each in back.document["findings"] if each["id"] == "A104"]
        assert len(boundary) > 10
        (definitions,) = (each for each in boundary if each["title"].startswith("CRDs: "))
        assert definitions["outcome"] == "warn", definitions
    await _is_uninstalled(person, admin, cluster)


def _is_installed(done: Ended) -> None:
    assert done.code in (0, 4), done
    document = done.document
    assert document["kind"] == "Installation"
    assert document["release"] == {
        "name": "gpu-operator/gpu-operator",
        "revision": 1,
        "status": "deployed",
        "chart": "0.1.0",
    }
    assert [each["id"] for each in document["plan"]["steps"]][-2:] == ["layers", "verify"]
    assert "+ Deployment gpu-operator/gpu-operator" in document["changes"]
    assert document["preflight"]["summary"]["fail"] == 0
    assert done.outcomes("A61") == {"pass"}


async def _drifts(person: Person, admin: Client, baseline: Path) -> None:
    """An edit by hand is drift; without one there is none."""
    saved = await person.runs("baseline", "save", str(baseline), "--no-metrics", "--no-exec")
    assert "1 releases: gpu-operator/gpu-operator 0.1.0" in saved.out, saved
    as_it_was = await person.runs("drift", str(baseline), "--no-metrics", "--no-exec", "-o", "json")
    assert as_it_was.document["summary"]["fail"] == 0
    assert as_it_was.document["summary"]["warn"] == 0, as_it_was.out
    edit = {"spec": {"mig": {"strategy": "mixed"}}}
    await admin.patch(kinds.CLUSTER_POLICY, "cluster-policy", edit, type=PatchType.MERGE)
    changed = await person.runs("drift", str(baseline), "--no-metrics", "--no-exec", "-o", "json")
    told = [each for each in changed.document["findings"] if "mig.strategy" in json.dumps(each)]
    assert told and changed.document["summary"]["warn"] > 0, changed.out


async def _is_uninstalled(person: Person, admin: Client, cluster: installed.Cluster) -> None:
    gone = await person.runs("uninstall", "--yes", "--crds", "--node-labels", "--namespace-too")
    assert gone.code == 0, gone
    assert "is uninstalled" in gone.err
    with pytest.raises(errors.NotFound):
        await admin.list(kinds.CLUSTER_POLICY)
    place = f"/api/v1/namespaces/{rendering.NAMESPACE}"
    await asyncio.to_thread(installed.until, "the namespace to be gone", lambda: cluster.find(place) is None)
    left = [each["metadata"].get("labels") or {} for each in (await admin.list(kinds.NODE)).items]
    assert not [label for labels in left for label in labels if label.startswith("nvidia.com/")]
