"""A cluster judged through an archive: gathered, redacted, written, read back, diagnosed; and live beside it."""

import tempfile
from pathlib import Path
from typing import Any

from groundplane.admin import gather, gather_pack, nodelook
from groundplane.cluster.client import Client
from groundplane.diagnose import archive, collect, doctor
from groundplane.diagnose.collect import Look
from groundplane.diagnose.engine import Verdict
from groundplane.diagnose.evidence import Evidence


def looker(client: Client, namespace: str = "gpu-operator") -> Look:
    """Looks at nodes from inside, as the commands do."""

    async def look(nodes: Any) -> nodelook.NodeLook:
        return await nodelook.look(client, nodes, namespace=namespace, timeout_s=15.0)

    return look


async def pack(client: Client, path: Path, *, namespace: str = "gpu-operator", look: Look | None = None) -> None:
    """Write an archive of a cluster, as must-gather does."""
    found = await gather.gather(client, namespace=namespace, look=look)
    redactor = gather_pack.redactor_of(found.captured.survey, pseudonyms=False)
    plain = gather_pack.redacted(found, redactor)
    gather_pack.write(path, gather_pack.files(plain, redactor), plain.gathered.captured.survey.at)


async def offline(client: Client, *, namespace: str = "gpu-operator", look: Look | None = None) -> Verdict:
    """The verdict on an archive of a cluster."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "it.tar.gz")
        await pack(client, path, namespace=namespace, look=look)
        return doctor.diagnose(archive.open(path))


async def live(client: Client, *, namespace: str = "gpu-operator", look: Look | None = None) -> Verdict:
    """The verdict on the cluster itself."""
    evidence: Evidence = await collect.examine(client, namespace=namespace, look=look)
    return doctor.diagnose(evidence)


def causes(verdict: Verdict) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """What a verdict says, to be compared: number, layer, words and nodes of every cause, in its order."""
    told = (each.finding for each in verdict.causes)
    return [(each.id, str(each.layer), each.title, tuple(sorted({*each.nodes, each.node} - {""}))) for each in told]


def findings(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Every finding that is no pass, to be compared: number, outcome, title."""
    return [(each.id, str(each.outcome), each.title) for each in verdict.findings if each.outcome not in ("pass",)]
