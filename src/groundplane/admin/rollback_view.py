"""A rollback's plan for readers: lines, plain values, a page, and the documented plan by layers (A105).

What comes from objects was redacted by ``rollback_content``; values of Helm's releases are not shown at all.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..diagnose import findings as shape
from ..diagnose import html
from ..diagnose.redact import redacted
from . import upgrade_view
from .upgrade_checks import some

if TYPE_CHECKING:
    from .disruption import Pool
    from .rollback import Line
    from .rollbacks import RollbackPlan


def about(made: "RollbackPlan", server: str = "") -> dict[str, Any]:
    """The plan as plain values, without findings and secrets."""
    running, wanted = made.way.running, made.way.wanted
    return {
        "release": {"name": running.where, "maker": running.maker},
        "server": server,
        "running": {"revision": running.revision, "chart": running.chart_version, "like": str(made.source)},
        "target": {"revision": wanted.revision, "chart": wanted.chart_version, "like": str(made.target)},
        "history": [
            {"revision": each.revision, "status": each.status, "chart": each.chart_version, "updated": each.updated}
            for each in made.way.history
        ],
        "go": made.go,
        "changes": [
            {**each._asdict(), "edited": list(each.edited), "paths": list(each.paths)} for each in made.changes
        ],
        "drivers": [upgrade_view.pool_line(each) for each in made.pools],
        "disruption": upgrade_view.disruption(made.estimate),
        "definitions": {name: list(value) for name, value in made.crds._asdict().items()},
        "images": [each.reference for each in made.needed.images],
        "packages": list(made.needed.packages),
        "preconditions": [each._asdict() for each in made.preconditions.checks],
        "boundary": [upgrade_view.boundary_line(each) for each in made.boundary],
    }


# --- Lines ------------------------------------------------------------------------------------------------------------

_WORDS: Final = {True: "met", False: "NOT MET", None: "not known"}


def text(made: "RollbackPlan", *, images: bool = False, everything: bool = False) -> Iterator[str]:
    """The plan for people: the difference first, then what comes back and what does not."""
    running, wanted = made.way.running, made.way.wanted
    yield (
        f"Roll {running.where} back from revision {running.revision} ({running.chart_version}, {made.source}) to "
        f"revision {wanted.revision} ({wanted.chart_version}, {made.target})"
    )
    yield ""
    yield "What changes in ClusterPolicy and NVIDIADrivers (- now, + after; secrets are hidden)"
    for change in made.changes:
        yield from (f"  LOST: {change.where}: {path} was edited past Helm" for path in change.edited)
        yield from upgrade_view.cut(change.diff.splitlines() or [f"{change.where}: nothing"], everything)
    yield ""
    yield "Drivers"
    yield from (f"  {line}" for line in _drivers(made.pools))
    yield f"  {made.estimate}"
    for holder in made.estimate.holders if everything else made.estimate.holders[:20]:
        owner = holder.controller or "bare: nothing makes it anew"
        yield f"  {holder.node}: {holder.pod} ({owner}){''.join(f'; {each}' for each in holder.blockers)}"
    if images:
        yield ""
        yield "Images and packages of the older release"
        yield from (f"  {each.reference}" for each in made.needed.images)
        yield from (f"  package {each}" for each in made.needed.packages)
    yield ""
    yield "What it needs"
    for check in made.preconditions.checks:
        yield f"  {_WORDS[check.met]:<9} {check.name}: {check.text}"
    yield ""
    yield from upgrade_view.boundary_text(made.boundary, "What comes back, and what does not")
    yield ""
    yield from shape.text(made.findings, all_evidence=everything)
    yield ""
    yield "GO" if made.go else "NO GO: something fails above"


def _drivers(pools: "Sequence[Pool]") -> Iterator[str]:
    for pool in pools:
        change = pool.before if pool.before == pool.after else f"{pool.before or 'none'} -> {pool.after or 'none'}"
        yield f"{pool.effect!s:<8} {some(pool.nodes)}: {change}"


# --- Page -------------------------------------------------------------------------------------------------------------


def page(made: "RollbackPlan", server: str) -> str:
    """The plan as one self-contained page."""
    sections = (
        *(html.Section(title=f"Difference of {each.where}", text=each.diff or "none") for each in made.changes),
        *upgrade_view.disruption_sections(made.pools, made.estimate),
        html.Section(
            title="What it needs",
            head=("", "Condition", "Found"),
            rows=tuple((_WORDS[each.met], each.name, each.text) for each in made.preconditions.checks),
        ),
        html.Section(
            title="What comes back, and what does not",
            head=("Layer", "By Helm", "What Helm does", "To do", "On this cluster"),
            rows=tuple(
                (each.layer, each.reverts.value, each.helm, each.tool, "; ".join(_found(each)))
                for each in made.boundary
            ),
        ),
        html.Section(
            title="Images of the older release",
            head=("For", "Image"),
            rows=tuple((each.component, each.reference) for each in made.needed.images),
            folded=True,
        ),
    )
    facts = {
        "Release": made.way.running.where,
        "From": f"revision {made.way.running.revision}, {made.source}",
        "To": f"revision {made.way.wanted.revision}, {made.target}",
        "Verdict": "go" if made.go else "no go",
        "Cluster": server,
    }
    return html.page("Rollback plan", facts=facts, findings=made.findings, sections=sections)


def _found(line: "Line") -> tuple[str, ...]:
    return ("not looked at",) if line.found is None else line.found or ("-",)


# --- The documented plan ----------------------------------------------------------------------------------------------


class Chapter(NamedTuple):
    """A layer at which a rollback is planned: its rows of the boundary, by how their names begin, and its commands."""

    title: str
    rows: tuple[str, ...]
    commands: tuple[str, ...]


CHAPTERS: Final = (
    Chapter(
        "Chart",
        ("operator Deployment", "ClusterPolicy", "operand", "CRDs", "custom resources", "Helm hooks"),
        (
            "helm history {release} --namespace {namespace}",
            "groundplane rollback run {revision} --namespace {namespace} --name {release}",
            "helm rollback {release} {revision} --namespace {namespace} --wait --timeout 30m  # the same by hand",
            "groundplane verify --namespace {namespace}",
        ),
    ),
    Chapter(
        "Driver",
        ("driver pods", "loaded kernel modules", "MIG geometry", "node labels", "evicted"),
        (
            "groundplane driver plan --namespace {namespace}",
            "kubectl get nodes -L nvidia.com/gpu-driver-upgrade-state",
            "kubectl uncordon NODE  # where a cordon is left",
        ),
    ),
    Chapter(
        "Kernel",
        ("kernel, initramfs",),
        ("kubectl get nodes -o wide", "# drain the node, boot the kernel that the old driver needs, uncordon it"),
    ),
    Chapter(
        "Runtime",
        ("host files", "RuntimeClass", "container runtime"),
        ("kubectl get runtimeclass nvidia", "groundplane preflight --exec --namespace {namespace}"),
    ),
    Chapter(
        "Node image",
        ("firmware",),
        (
            "# replace nodes by ones of the older image, one pool at a time; the image owns kernel, packages and keys",
            "groundplane drift BASELINE --namespace {namespace}",
        ),
    ),
)
"""A105, from the top of the stack to its bottom."""


def documented(made: "RollbackPlan", when: str) -> str:
    """The plan by layers as Markdown, for those who approve it and those who follow it at night."""
    return redacted("\n".join(_documented(made, when)) + "\n")


def _documented(made: "RollbackPlan", when: str) -> Iterator[str]:
    running, wanted = made.way.running, made.way.wanted
    words = {"release": running.name, "namespace": running.namespace, "revision": wanted.revision}
    yield f"# Rollback of {running.where}: {made.source} to {made.target}"
    yield ""
    yield (
        f"From revision {running.revision} ({running.chart_version}) to revision {wanted.revision} "
        f"({wanted.chart_version}). Planned {when}. Verdict: {'go' if made.go else 'NO GO'}."
    )
    yield ""
    yield "## Before it is begun"
    yield ""
    for check in made.preconditions.checks:
        box = "x" if check.met else " "
        yield f"- [{box}] {check.name}: {check.text}{f' ({check.fix})' if check.fix else ''}"
    yield f"- [ ] Work that stops: {made.estimate}"
    yield from (f"  - {each.node}: {each.pod} ({each.controller or 'bare'})" for each in made.estimate.holders)
    for number, chapter in enumerate(CHAPTERS, 1):
        yield ""
        yield f"## {number}. {chapter.title}"
        yield ""
        for line in _rows(made, chapter):
            yield f"- **{line.layer}**. By Helm: {line.reverts.value}; {line.helm}. To do: {line.tool}."
            yield from (f"  - [ ] {each}" for each in _found(line) if each != "-")
        if chapter.title == "Driver":
            yield from (f"- {each}" for each in _drivers(made.pools))
        yield ""
        yield "```sh"
        yield from (each.format(**words) for each in chapter.commands)
        yield "```"


def _rows(made: "RollbackPlan", chapter: Chapter) -> Iterator["Line"]:
    return (each for each in made.boundary if each.layer.startswith(chapter.rows))
