"""Trying faults on a lab: nodes for them, all broken at once or one after the other, and whether the doctor finds each.

The doctor is the shipped one, live and on an archive of the same moment. Used by the tests, by the demo, and by the
bench of the doctor's accuracy, which prints what was mistaken for what.
"""

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from ...admin import gather, gather_pack, nodelook
from ...api import names
from ...cluster import kinds
from ...cluster.client import Client
from ...diagnose import archive, collect, doctor
from ...diagnose.engine import Verdict
from ...diagnose.evidence import Evidence
from ...diagnose.findings import Layer
from ..cluster import OPERATOR_NAMESPACE, Lab, data
from ..nodes import GpuSpec, NodeSpec, OsSpec
from . import table
from .model import Fault, Where
from .table import FAULTS

SPEED: Final = 240.0
"""Cluster seconds in a real one: probes that are due in cluster time must not outrun a busy machine."""
AGAIN_S: Final = 0.3
"""Real seconds between two examinations."""
PATIENCE_S: Final = 240.0
ARCHIVES: Final = 12

_PLAIN: Final = {"gpus": (GpuSpec("A100", 2),)}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    table.ANY.says: _PLAIN,
    table.CONTAINER.says: _PLAIN,
    table.OTHER.says: _PLAIN,
    table.CONTAINERD.says: _PLAIN,
    table.MIG_NODE.says: _PLAIN,
    table.MIG_CONTAINER.says: _PLAIN,
    table.OWN.says: {**_PLAIN, "host_driver": "595.91.07"},
    table.RED_HAT.says: {**_PLAIN, "os": OsSpec("rhel", "9.6"), "kernel": "5.14.0-570.12.1.el9_6.x86_64"},
    table.OLD.says: {"gpus": (GpuSpec("V100"),)},
}
"""What a node is made of on which a fault of a kind can be."""
HEALTHY: Final[Sequence[NodeSpec]] = (
    NodeSpec("driver-container", gpus=(GpuSpec("H100", 8),)),
    NodeSpec("driver-of-its-own", gpus=(GpuSpec("L40S", 2),), host_driver="595.91.07"),
    NodeSpec("red-hat", **KINDS[table.RED_HAT.says]),
    NodeSpec("divided", gpus=(GpuSpec("A100", 1, mig_devices=("1g.10gb",) * 7),)),
    NodeSpec("arm", gpus=(GpuSpec("GH200", 1),), arch="arm64"),
    NodeSpec("old", gpus=(GpuSpec("V100", 1),)),
    NodeSpec("no-gpu"),
)
"""A node of every kind that one cluster can have: its runtime is the same everywhere."""


class Result(msgspec.Struct, frozen=True):
    """What the doctor said of a fault: the causes on its node, the first on top."""

    fault: str
    node: str
    layer: Layer
    causes: tuple[str, ...]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
    archived: bool = False
    """Whether what was gathered gave the same verdict when it was read back from its archive, and that was right."""
    cured: bool = False
    """Whether nothing was told any more of its node after the fault had been cleared."""

    @property
    def _fault(self) -> Fault:
        return FAULTS[self.fault]

    @property
    def layer_right(self) -> bool:
        """Whether what is on top is in the fault's layer."""
        return self._fault.note or self.layers[:1] == (self.layer,)

    @property
    def cause_right(self) -> bool:
        """Whether what is on top is the fault's cause."""
        if self._fault.note:
            return bool(set(self._fault.causes) & set(self.notes))
        return bool(self.causes) and self.causes[0] in self._fault.causes

    @property
    def false_alarms(self) -> int:
        """Causes that are told though there is but one, or none."""
        return max(0, len(self.causes) - (0 if self._fault.note else 1))

    @property
    def right(self) -> bool:
        """Whether it was found, and nothing else."""
        return self.layer_right and self.cause_right and not self.false_alarms

    @property
    def sound(self) -> bool:
        """Whether it was found, live and in an archive, and was gone when it was cleared."""
        return self.right and self.archived and self.cured


def node_for(fault: Fault, name: str) -> NodeSpec:
    """A node on which a fault can be."""
    return NodeSpec(name, **KINDS[fault.on.says])


async def examined(client: Client) -> Evidence:
    """What ``groundplane doctor`` sees of a lab's cluster. Raises ``ClusterError`` where it cannot be read."""
    return await collect.examine(client, namespace=OPERATOR_NAMESPACE, look=_looker(client))


def _looker(client: Client) -> collect.Look:
    async def look(nodes: Sequence[str]) -> nodelook.NodeLook:
        return await nodelook.look(client, nodes, namespace=OPERATOR_NAMESPACE)

    return look


class Trial:
    """A lab with the GPU stack on it, and the doctor."""

    def __init__(self, lab: Lab, client: Client) -> None:
        self.lab = lab
        self.client = client

    def where(self, node: str) -> Where:
        """A node of the lab."""
        return Where(self.client, node, self.lab.host(node))

    def place(self, fault: str) -> str:
        """The first node on which a fault can be."""
        return next(name for name in self.lab.gpu_nodes() if FAULTS[fault].on.fits(self.lab.host(name)))

    async def apply(self, placed: Mapping[str, str]) -> None:
        """Bring faults about, by node."""
        for node, fault in placed.items():
            await FAULTS[fault].apply(self.where(node))

    async def clear(self, placed: Mapping[str, str]) -> None:
        """Undo them."""
        for node, fault in placed.items():
            await FAULTS[fault].clear(self.where(node))

    async def live(self) -> Verdict:
        """What the doctor says of the cluster."""
        return doctor.diagnose(await examined(self.client))

    async def offline(self) -> tuple[Verdict, Verdict]:
        """What it says of what was gathered, and of the archive of that, read back."""
        gathered = await gather.gather(self.client, namespace=OPERATOR_NAMESPACE, look=_looker(self.client))
        redactor = gather_pack.redactor_of(gathered.captured.survey, pseudonyms=False)
        whole = gather_pack.redacted(gathered, redactor).gathered.captured
        read = archive.open_stream("archive.tar", packed(archive.entries(whole)))
        return doctor.diagnose(gathered.captured.evidence()), doctor.diagnose(read)

    async def healthy(self, patience_s: float = PATIENCE_S) -> Verdict:
        """The first verdict without a finding, in a cluster that has settled; the last one if there is none in time."""
        end = time.monotonic() + patience_s
        while True:
            verdict = await self.live()
            if (verdict.healthy and await self._settled()) or time.monotonic() > end:
                return verdict
            await asyncio.sleep(AGAIN_S)

    async def _settled(self) -> bool:
        """Whether the operator has done what the policy says, no driver is being upgraded, and no DaemonSet rolls."""
        policies = (await self.client.list(kinds.CLUSTER_POLICY)).items
        sets = (await self.client.list(kinds.DAEMON_SET, OPERATOR_NAMESPACE)).items
        nodes = (await self.client.list(kinds.NODE)).items
        return all(map(_done, policies)) and all(map(_rolled, sets)) and all(map(_at_rest, nodes))

    async def found(self, placed: Mapping[str, str], patience_s: float = PATIENCE_S) -> list[Result]:
        """What the doctor says of faults as soon as it is right; what it said last if it is not in time."""
        end = time.monotonic() + patience_s
        while True:
            results = judged(await self.live(), placed)
            if all(each.right for each in results) or time.monotonic() > end:
                return results
            await asyncio.sleep(AGAIN_S)

    async def listed(self, placed: Mapping[str, str], patience_s: float = PATIENCE_S) -> Verdict:
        """The first verdict in which faults are consequences of what is lower on their nodes; the last one if none."""
        end = time.monotonic() + patience_s
        while True:
            verdict = await self.live()
            known = (set(FAULTS[name].causes) & set(consequences(verdict, node)) for node, name in placed.items())
            if all(known) or time.monotonic() > end:
                return verdict
            await asyncio.sleep(AGAIN_S)

    async def whole(self, placed: Mapping[str, str], patience_s: float = PATIENCE_S) -> list[Result]:
        """Bring faults about, ask the doctor live and of an archive, clear them, and see whether all is well again."""
        await self.apply(placed)
        try:
            found = await self.found(placed, patience_s)
            archived = await self._archived(placed)
        finally:
            await self.clear(placed)
        left = _told(await self.healthy(patience_s))
        return [
            msgspec.structs.replace(each, archived=each.fault in archived, cured=not left & {each.node, ""})
            for each in found
        ]

    async def _archived(self, placed: Mapping[str, str]) -> set[str]:
        """The faults that an archive shows as the cluster did.

        Read a few times: what crashes and starts again may be gathered at an odd moment.
        """
        same: set[str] = set()
        for _ in range(ARCHIVES):
            gathered, read = await self.offline()
            if told(read) != told(gathered):
                return set()
            same |= {each.fault for each in judged(read, placed) if each.right}
            if same == set(placed.values()):
                break
            await asyncio.sleep(AGAIN_S)
        return same


def _done(policy: Mapping[str, Any]) -> bool:
    status = policy.get("status") or {}
    seen = [each.get("observedGeneration") for each in status.get("conditions") or () if each["type"] == "Ready"]
    return status.get("state") == "ready" and seen == [policy["metadata"]["generation"]]


def _at_rest(node: Mapping[str, Any]) -> bool:
    state = (node["metadata"].get("labels") or {}).get(names.UPGRADE_STATE, "")
    return state in ("", "upgrade-done") and not node["spec"].get("unschedulable")


def _rolled(daemon_set: Mapping[str, Any]) -> bool:
    """Whether its pods are of its template and ready; driver pods are replaced when somebody deletes them."""
    status, spec = daemon_set.get("status") or {}, daemon_set["spec"]
    wanted = status.get("desiredNumberScheduled", 0)
    waits = (spec.get("updateStrategy") or {}).get("type") == "OnDelete"
    new = waits or status.get("updatedNumberScheduled", 0) >= wanted
    seen = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
    return bool(seen and new and status.get("numberReady", 0) >= wanted)


def consequences(verdict: Verdict, node: str) -> list[str]:
    """What is listed as following from a node's cause."""
    return [each.id for cause in verdict.causes for each in cause.consequences if node in each.nodes]


def told(verdict: Verdict) -> list[tuple[str, tuple[str, ...]]]:
    """A verdict's causes in order, with their nodes."""
    return [(cause.finding.id, cause.finding.nodes) for cause in verdict.causes]


def _told(verdict: Verdict) -> set[str]:
    """The nodes of which something is told; empty for what is of none."""
    found = [*(cause.finding for cause in verdict.causes), *verdict.unmatched, *verdict.unknown]
    return {node for each in found for node in each.nodes or ("",)}


def packed(entries: Iterable[tuple[str, bytes]]) -> io.BytesIO:
    """Files as a tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(f"must-gather/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


def judged(verdict: Verdict, placed: Mapping[str, str]) -> list[Result]:
    """A verdict as it concerns each fault: what it says of the fault's node, and what of no node."""
    everything = [cause.finding for cause in verdict.causes]
    results = []
    for node, name in placed.items():
        alone = FAULTS[name].cluster or len(placed) == 1  # then nothing else may be told, of whatever node
        told = [each for each in everything if alone or node in each.nodes or not each.nodes]
        notes = tuple(each.id for each in verdict.notes if node in each.nodes)
        results.append(
            Result(
                name,
                node,
                FAULTS[name].layer,
                tuple(each.id for each in told),
                tuple(each.layer for each in told),
                notes,
            )
        )
    return results


@asynccontextmanager
async def trial(nodes: Sequence[NodeSpec], *, speed: float = SPEED, healthy: bool = True) -> AsyncIterator[Trial]:
    """A lab with these nodes and the stack of the users' guide; healthy, unless that is not waited for."""
    async with Lab(nodes, speed=speed) as lab, lab.client(user_agent="groundplane-trial") as client:
        await lab.apply([data("guide-baseline.yaml")])
        tried = Trial(lab, client)
        if healthy:
            await lab.wait_ready(timeout_s=PATIENCE_S)
            await tried.healthy()
        yield tried


COMMON: Final[Sequence[NodeSpec]] = (
    NodeSpec("plain", gpus=(GpuSpec("A100", 2),)),
    NodeSpec("old", gpus=(GpuSpec("V100"),)),
)
"""A lab for faults that are tried one after the other."""


def rounds(names: Iterable[str], size: int = 12) -> list[dict[str, str]]:
    """Faults of nodes as rounds that are tried at once, each on a node of its own."""
    many = [name for name in names if not single(name)]
    return [
        {f"n{number:02d}": name for number, name in enumerate(many[start : start + size])}
        for start in range(0, len(many), size)
    ]


def alone(names: Iterable[str], size: int = 10) -> list[list[str]]:
    """Faults that are tried one after the other, each on :data:`COMMON`, as groups of about one duration."""
    found = [name for name in names if single(name)]
    return [found[start : start + size] for start in range(0, len(found), size)]


def single(name: str) -> bool:
    """Whether a fault is tried alone: one of the whole cluster, or of a pod that the scheduler cannot place."""
    fault = FAULTS[name]
    return fault.cluster or fault.layer is Layer.WORKLOAD
