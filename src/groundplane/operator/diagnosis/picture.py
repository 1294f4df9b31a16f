"""What of the doctor's verdict the operator tells: of each sick node the lowest failing layer and its cause.

Pure: evidence in, plain values out, small enough to keep. Judging runs in a thread of its own, so everything that is
needed for it is imported here, when the first verdict is asked for.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ...diagnose import doctor
from ...diagnose.engine import WAITING, Verdict
from ...diagnose.evidence import Evidence
from ...diagnose.findings import Finding, Layer, Outcome
from ...diagnose.layers import LayerState, State


class Ill(msgspec.Struct, frozen=True):
    """What fails on a node, or in the cluster: the cause with what to do about it."""

    layer: str
    """``L0`` to ``L9``."""
    cause: str
    """Id of the finding: a signature's, ``unmatched`` or ``waiting``."""
    severity: str
    title: str
    fix: str = ""
    confirm: str = ""
    layers: tuple[tuple[str, bool], ...] = ()
    """Layers of which something is known, and whether they fail."""

    @property
    def what(self) -> str:
        """Layer, cause and title: by this, two causes are the same. It has no ``; `` in it."""
        return f"{self.layer} {self.cause}: {self.title}".replace("; ", ", ")

    @property
    def remedy(self) -> str:
        """What to do and how to see it, as the end of a sentence; empty if nothing is known."""
        parts = [("fix", self.fix), ("confirm", self.confirm)]
        return "".join(f"; {label}: {text}" for label, text in parts if text)


class Picture(msgspec.Struct, frozen=True):
    """What one look at the cluster has shown."""

    nodes: Mapping[str, Ill] = {}
    """Sick nodes."""
    waiting: Mapping[str, Ill] = {}
    """Nodes on which something is not ready though nothing is known to fail; not among the sick ones."""
    cluster: tuple[Ill, ...] = ()
    """What fails and is no node's."""


def judged(evidence: Evidence) -> Picture:
    """The doctor's verdict on the evidence, as far as it is told."""
    verdict = doctor.diagnose(evidence)
    standing = doctor.standing(verdict, evidence)
    nodes: dict[str, Ill] = {}
    waiting: dict[str, Ill] = {}
    for node, finding in _lowest(verdict).items():
        ill = _ill(finding, standing.get(node, ()))
        (waiting if finding.id == WAITING else nodes)[node] = ill
    cluster = tuple(_ill(each) for each in _failures(verdict) if not each.nodes and each.id != WAITING)
    return Picture(nodes, waiting, cluster)


def _failures(verdict: Verdict) -> Iterator[Finding]:
    """What is to be told, in the order in which it is told of a node: the lowest cause, a symptom last."""
    rows = [(each.finding, each.symptom) for each in verdict.causes]
    rows += [(each, False) for each in verdict.unmatched]
    order = tuple(Layer)
    rows.sort(key=lambda row: (row[0].id == WAITING, order.index(row[0].layer), row[1]))
    yield from (finding for finding, _ in rows if finding.outcome in (Outcome.FAIL, Outcome.WARN))


def _lowest(verdict: Verdict) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for finding in _failures(verdict):
        for node in finding.nodes:
            found.setdefault(node, finding)
    return found


def _ill(finding: Finding, states: tuple[LayerState, ...] = ()) -> Ill:
    known = {each.layer.value: False for each in states if each.state is State.HEALTHY} | {finding.layer.value: True}
    return Ill(
        layer=finding.layer.value,
        cause=finding.id,
        severity=str(finding.severity),
        title=finding.title,
        fix=finding.fix[0] if finding.fix else "",
        confirm=finding.confirm,
        layers=tuple(sorted(known.items())),
    )
