"""What checks say: one shape for every statement about a cluster, its order, its exit code and its text.

The doctor, preflight, verify, drift and the upgrade planner all speak in :class:`Finding`, so that text, JSON and
exit codes agree (contracts/admin-workflow.md 1). This module looks at nothing and decides nothing about clusters;
checks make findings, commands print what :func:`text` and :func:`report` give them.
"""

import enum
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

import msgspec
from msgspec.structs import force_setattr, replace

from .redact import redacted


class Layer(enum.StrEnum):
    """The layer of the stack a finding is about, lowest first (contracts/admin-workflow.md 11)."""

    HARDWARE = "L0"
    KERNEL = "L1"
    DRIVER = "L2"
    FABRIC = "L3"
    RUNTIME = "L4"
    DEVICE_PLUGIN = "L5"
    LABELS = "L6"
    WORKLOAD = "L7"
    TELEMETRY = "L8"
    OPERATOR = "L9"

    @property
    def words(self) -> str:
        """The layer's name for people, such as ``device plugin``."""
        return self.name.lower().replace("_", " ")


class Outcome(enum.StrEnum):
    """How a check ended, best first."""

    PASS = "pass"
    SKIP = "skip"
    """Does not apply here."""
    UNKNOWN = "unknown"
    """Could not look (no permission, no exec, node unreachable); never shown as a pass, counts as a warning."""
    WARN = "warn"
    FAIL = "fail"


class Severity(enum.StrEnum):
    """What a failure costs; members are ordered by :attr:`rank`, not as strings."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    FATAL = "fatal"
    """Only a repair of hardware or a reboot of the node helps."""

    @property
    def rank(self) -> int:
        """0 for ``info`` up to 3 for ``fatal``."""
        return _SEVERITY_RANK[self]


_SEVERITY_RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}


class Action(enum.StrEnum):
    """What a finding suggests to do, for programs that act on findings."""

    NONE = "none"
    RESTART_POD = "restart_pod"
    CHANGE_CONFIG = "change_config"
    DRAIN_AND_REBOOT = "drain_and_reboot"
    RESET_GPU = "reset_gpu"
    HARDWARE_INSPECTION = "hardware_inspection"
    CHECK_WORKLOAD = "check_workload"
    UPGRADE_COMPONENT = "upgrade_component"
    CONTACT_SUPPORT = "contact_support"


class ExitCode(enum.IntEnum):
    """The exit codes of every command that reports findings."""

    OK = 0
    TOOL_ERROR = 1
    USAGE = 2
    FAIL = 3
    WARN = 4


_SEVERITY: Final = {
    Outcome.PASS: Severity.INFO,
    Outcome.SKIP: Severity.INFO,
    Outcome.UNKNOWN: Severity.WARNING,
    Outcome.WARN: Severity.WARNING,
    Outcome.FAIL: Severity.CRITICAL,
}
"""Severity of a finding that names none."""


# --- Terminals -------------------------------------------------------------------------------------------------------


def printable(line: str) -> str:
    """A line as a terminal may have it: nothing in it moves the cursor, changes colours, or turns the text around.

    Names, excerpts and files are others' words; all that is printed for people goes through here.
    """
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() or each == "\t" else _instead(each) for each in line)


def _instead(char: str) -> str:
    return " " if unicodedata.category(char) == "Zs" else "\N{REPLACEMENT CHARACTER}"


# --- Findings --------------------------------------------------------------------------------------------------------


class Evidence(msgspec.Struct, frozen=True, order=True):
    """What was seen and where; the excerpt is redacted when the evidence is made, so that nobody can forget it."""

    source: str
    """Where it was read: ``node/gpu-1 status.nodeInfo.osImage``, a log, a file, or a row of the support matrix."""
    excerpt: str

    def __post_init__(self) -> None:
        force_setattr(self, "excerpt", redacted(self.excerpt))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One statement about a cluster or about some of its nodes.

    Neither :attr:`title`, :attr:`cause` nor :attr:`fix` should name the node: findings of several nodes that say the
    same become one (:func:`grouped`).
    """

    id: str
    """Number of the check (A1..A112), of the signature (S01..), or a name of our own."""
    layer: Layer
    outcome: Outcome
    title: str
    node: str = ""
    """The one node this is about; empty when it is about the cluster or about several nodes."""
    nodes: tuple[str, ...] = ()
    """All nodes this is about, in order; filled from :attr:`node`."""
    severity: Severity | None = None
    """Never None in a finding that is made: the outcome's usual one where none is given."""
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    confirm: str = ""
    """A command that shows the same to a person."""
    fix: tuple[str, ...] = ()
    """What to do, in this order."""
    action: Action = Action.NONE
    docs: str = ""

    def __post_init__(self) -> None:
        if self.severity is None:
            force_setattr(self, "severity", _SEVERITY[self.outcome])
        if self.node and not self.nodes:
            force_setattr(self, "nodes", (self.node,))

    @property
    def key(self) -> tuple[str, str, str]:
        """What findings are ordered by: layer, node, id; numbers in names count as numbers (``gpu-2``, ``gpu-10``)."""
        return (self.layer.value, natural(self.nodes[0] if self.nodes else ""), natural(self.id))

    def about(self, nodes: Iterable[str], evidence: Iterable[Evidence]) -> Self:
        """This finding, said of these nodes on this evidence."""
        names = tuple(sorted(set(nodes), key=natural))
        one = names[0] if len(names) == 1 else ""
        return replace(self, node=one, nodes=names, evidence=tuple(dict.fromkeys(evidence)))


@functools.lru_cache(maxsize=1 << 14)
def natural(name: str) -> str:
    """A sort key under which numbers within names are ordered by value."""
    return re.sub(r"\d+", lambda digits: f"{len(digits[0].lstrip('0')):03d}{digits[0].lstrip('0')}", name)


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in order, those that say the same of several nodes made one (contracts/admin-workflow.md 11).

    The same means: id, layer, outcome, severity, title, cause, action and fixes. Evidence is kept of all, once each;
    the command to confirm is the first node's.
    """
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_same(finding), []).append(finding)
    return ordered(_as_one(group) for group in groups.values())


def _same(finding: Finding) -> tuple[Any, ...]:
    """What findings have in common that become one."""
    said = (finding.id, finding.layer, finding.outcome, finding.severity, finding.title, finding.cause, finding.fix)
    return (bool(finding.nodes), *said, finding.action)


def _as_one(group: list[Finding]) -> Finding:
    """Findings that say the same; their evidence and their command to confirm are in the findings' order."""
    first, *others = ordered(group)
    if not others:
        return first.about(first.nodes, first.evidence)
    return first.about(
        (node for finding in (first, *others) for node in finding.nodes),
        (item for finding in (first, *others) for item in finding.evidence),
    )


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in their stable order: layer, node, id; then worst first, then by all that they say."""
    return sorted(findings, key=lambda finding: (finding.key, *_rest(finding)))


_OUTCOME_RANK: Final = {outcome: rank for rank, outcome in enumerate(Outcome)}


def _rest(finding: Finding) -> tuple[Any, ...]:
    said = (finding.title, finding.cause, finding.nodes, finding.fix, finding.evidence, finding.confirm, finding.docs)
    return (-_OUTCOME_RANK[finding.outcome], -(finding.severity or Severity.INFO).rank, *said, finding.action)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """The exit code these findings ask for: 3 with a failure, 4 with a warning or an unknown, else 0."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.FAIL in outcomes:
        return ExitCode.FAIL
    if outcomes & {Outcome.WARN, Outcome.UNKNOWN}:
        return ExitCode.WARN
    return ExitCode.OK


def worst(findings: Iterable[Finding]) -> Outcome:
    """The worst outcome, in the order of :class:`Outcome`; ``pass`` when there is no finding."""
    return max((finding.outcome for finding in findings), key=_OUTCOME_RANK.__getitem__, default=Outcome.PASS)


# --- Rendering -------------------------------------------------------------------------------------------------------


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings ended how, every outcome named, worst first."""
    found = Counter(finding.outcome for finding in findings)
    return {outcome.value: found[outcome] for outcome in reversed(Outcome)}


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The full set as plain values for JSON and YAML: counts, exit code, and findings in their stable order."""
    rows = grouped(findings)
    return {
        "summary": counts(rows),
        "exitCode": int(exit_code(rows)),
        "findings": [_builtins(finding) for finding in rows],
    }


def _builtins(finding: Finding) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(finding))  # lists, not tuples
    fields = ("id", "layer", "node", "nodes", "outcome", "severity", "title", "evidence", "cause", "confirm", "fix")
    return {name: row[name] for name in (*fields, "action", "docs")}


NODES_SHOWN: Final = 5
EVIDENCE_SHOWN: Final = 3


def text(findings: Iterable[Finding], *, all_evidence: bool = False) -> list[str]:
    """The findings for people, as plain lines without colour; passes and skips take one line, the rest a paragraph.

    Args:
        findings: in any order; they are grouped and ordered here.
        all_evidence: show every piece of evidence and every node, not the first few.
    """
    rows = grouped(findings)
    lines = [line for finding in rows for line in _paragraph(finding, all_evidence)]
    totals = ", ".join(f"{number} {outcome}" for outcome, number in counts(rows).items() if number)
    return [*map(printable, lines), totals or "nothing was checked"]


def _paragraph(finding: Finding, everything: bool) -> list[str]:
    where = f"  [{some(finding.nodes, NODES_SHOWN, everything)}]" if finding.nodes else ""
    head = f"{finding.outcome.upper():<8}{finding.layer} {finding.id:<5} {finding.title}{where}"
    if finding.outcome in (Outcome.PASS, Outcome.SKIP):
        return [head]
    rows: list[tuple[str, str]] = [("severity", str(finding.severity))]
    rows += [("cause", finding.cause)] if finding.cause else []
    rows += _evidence(finding.evidence, everything)
    rows += [("confirm", finding.confirm)] if finding.confirm else []
    rows += [("fix", step if len(finding.fix) == 1 else f"{n}. {step}") for n, step in enumerate(finding.fix, start=1)]
    rows += [("action", finding.action.replace("_", " "))] if finding.action is not Action.NONE else []
    rows += [("docs", finding.docs)] if finding.docs else []
    return [head, *_columns(rows)]


def _evidence(evidence: Sequence[Evidence], everything: bool) -> list[tuple[str, str]]:
    shown = evidence if everything else evidence[:EVIDENCE_SHOWN]
    rows = [("evidence", f"{item.source}: {item.excerpt}") for item in shown]
    left = len(evidence) - len(shown)
    return [*rows, ("evidence", f"and {left} more")] if left else rows


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    before = ""
    for label, value in rows:
        first, *rest = value.splitlines() or [""]
        lines.append(f"        {'' if label == before else label:<9} {first}".rstrip())
        lines.extend(f"        {'':<9} {line}".rstrip() for line in rest)
        before = label
    return lines


def some(names: Sequence[str], limit: int = NODES_SHOWN, everything: bool = False) -> str:
    """Names, the first few and how many more there are; all with ``everything``."""
    shown = names if everything else names[:limit]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
