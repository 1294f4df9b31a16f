"""An upgrade's plan for readers: lines, a document, a page. Values go through redaction before they are shown."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from ..diagnose import findings as shape
from ..diagnose import html
from ..diagnose.redact import Redactor
from . import rollback
from .upgrade_checks import some

if TYPE_CHECKING:
    from .disruption import Estimate, Pool
    from .upgrades import UpgradePlan

SHOWN = 40
"""Lines of a part in text; the document has all."""
FOUND = 10
"""Lines of a layer of a rollback's boundary in text."""


def values_file(made: "UpgradePlan") -> str:
    """The merged values as a file: what differs from the target's defaults. Holds secrets if the release's do."""
    head = (
        f"# Values of {made.revision.where} for {made.wanted.target}, merged of those for {made.source}.\n"
        "# What the chart has anyway is left out.\n"
    )
    body = str(yaml.safe_dump(dict(made.values), sort_keys=True, allow_unicode=True, width=120)) if made.values else ""
    return head + (body or "{}\n")


def shown_values(made: "UpgradePlan") -> dict[str, Any]:
    """The merged values without secrets."""
    clean: dict[str, Any] = Redactor().document(dict(made.values))
    return clean


def about(made: "UpgradePlan", server: str = "") -> dict[str, Any]:
    """The plan as plain values, without findings; without secrets."""
    return {
        "release": {
            "name": made.revision.where,
            "revision": made.revision.revision,
            "chart": f"{made.revision.chart} {made.revision.chart_version}",
            "maker": made.revision.maker,
        },
        "server": server,
        "source": str(made.source),
        "target": str(made.wanted.target),
        "go": made.go,
        "steps": [{"kind": each.kind, "text": each.text} for each in made.steps],
        "components": [{"name": name, "before": one, "after": other} for name, one, other in made.components],
        "values": shown_values(made),
        "differences": [
            {"path": each.path, "state": each.state}
            for each in made.review.differences
        ],
        "drivers": [pool_line(each) for each in made.pools],
        "disruption": disruption(made.estimate),
        "definitions": {name: list(value) for name, value in made.crds._asdict().items()},
        "images": [each.reference for each in made.needed.images],
        "packages": list(made.needed.packages),
        "rollback": [boundary_line(each) for each in made.boundary],
        "matrix": {"dataAsOf": str(made.wanted.matrix.data_as_of)},
    }  # fmt: skip


def pool_line(pool: "Pool") -> dict[str, Any]:
    """A pool of nodes and what becomes of its driver, as plain values."""
    return {
        "nodes": list(pool.nodes),
        "effect": str(pool.effect),
        "before": pool.before,
        "after": pool.after,
        "why": list(pool.why),
    }


def disruption(estimate: "Estimate") -> dict[str, Any]:
    """Whose work stops, as plain values."""
    return {
        "summary": str(estimate),
        "nodes": list(estimate.nodes),
        "idle": list(estimate.idle),
        "pods": [
            {**each._asdict(), "blockers": list(each.blockers), "bare": each.bare} for each in estimate.holders
        ],
    }  # fmt: skip


def boundary_line(line: rollback.Line) -> dict[str, Any]:
    """A layer of the rollback's boundary as plain values; ``found`` null: nobody has looked."""
    return {
        "layer": line.layer,
        "reverts": line.reverts.value,
        "helm": line.helm,
        "tool": line.tool,
        "found": None if line.found is None else list(line.found),
    }


# --- Lines --------------------------------------------------------------------------------------------------------


def text(made: "UpgradePlan", *, images: bool = False, everything: bool = False) -> Iterator[str]:
    """The plan for people."""
    revision = made.revision
    yield f"Upgrade {revision.where} (revision {revision.revision}) from {made.source} to {made.wanted.target}"
    yield f"Support matrix of {made.wanted.matrix.data_as_of}"
    yield ""
    yield "Steps"
    yield from (f"  {number}. {step}" for number, step in enumerate(made.steps, 1))
    yield ""
    yield "Drivers"
    for pool in made.pools:
        change = pool.before if pool.before == pool.after else f"{pool.before or 'none'} -> {pool.after or 'none'}"
        yield f"  {pool.effect!s:<8} {some(pool.nodes)}: {change}"
    yield f"  {made.estimate}"
    yield ""
    yield "Components"
    yield from (f"  {name}: {before} -> {after}" for name, before, after in made.components)
    yield ""
    yield "Values for the target (secrets are hidden; --write-values writes them as they are)"
    yield from cut(_yaml(shown_values(made)), everything)
    if images:
        yield ""
        yield "Images and packages"
        yield from (f"  {each.reference}" for each in made.needed.images)
        yield from (f"  package {each}" for each in made.needed.packages)
    yield ""
    title = f"If it has to be taken back ({made.wanted.target} to {made.source})"
    yield from boundary_text(made.boundary, title, everything=everything)
    yield ""
    yield from shape.text(made.findings, all_evidence=everything)
    yield ""
    yield "GO" if made.go else "NO GO: something fails above"


def _yaml(document: Any) -> list[str]:
    return str(yaml.safe_dump(document, sort_keys=True, allow_unicode=True, width=110)).splitlines()


def cut(lines: Sequence[str], everything: bool) -> Iterator[str]:
    """Lines of a part, indented; no more than :data:`SHOWN` unless all are wanted."""
    shown = lines if everything else lines[:SHOWN]
    yield from (f"  {line}" for line in shown)
    if len(lines) > len(shown):
        yield f"  and {len(lines) - len(shown)} more lines (--all)"


def boundary_text(lines: Sequence[rollback.Line], title: str, *, everything: bool = False) -> Iterator[str]:
    """A rollback's boundary for people; of a layer :data:`FOUND` lines unless all are wanted."""
    yield title
    for line in lines:
        yield f"  {line.reverts.value:<10} {line.layer}: {line.helm}"
        if line.found != ():
            yield f"             {line.tool}{' (not looked at)' if line.found is None else ':'}"
        found = line.found or ()
        shown = found if everything else found[:FOUND]
        yield from (f"               {each}" for each in shown)
        if len(found) > len(shown):
            yield f"               and {len(found) - len(shown)} more (--all)"


# --- Page ---------------------------------------------------------------------------------------------------------


def disruption_sections(pools: "Sequence[Pool]", estimate: "Estimate") -> tuple[html.Section, ...]:
    """Which drivers are replaced, and which pods have to leave for it."""
    return (
        html.Section(
            title="Drivers",
            head=("Effect", "Nodes", "Before", "After"),
            rows=tuple((str(each.effect), ", ".join(each.nodes), each.before, each.after) for each in pools),
        ),
        html.Section(
            title="Pods that have to leave",
            note=str(estimate),
            head=("Pod", "Node", "Made anew by", "Blocked by"),
            rows=tuple(
                (each.pod, each.node, each.controller or "nothing", "; ".join(each.blockers) or "-")
                for each in estimate.holders
            ),
        ),
    )


def page(made: "UpgradePlan", server: str) -> str:
    """The plan as one self-contained page."""
    sections = (
        html.Section(title="Steps", head=("", "Step"), rows=tuple((each.kind, each.text) for each in made.steps)),
        *disruption_sections(made.pools, made.estimate),
        html.Section(title="Values for the target", text="\n".join(_yaml(shown_values(made)))),
        html.Section(title="Components", head=("Component", "Before", "After"), rows=made.components, folded=True),
        html.Section(
            title="Images and packages",
            head=("For", "Image or package"),
            rows=(
                *((each.component, each.reference) for each in made.needed.images),
                *(("package", each) for each in made.needed.packages),
            ),
            folded=True,
        ),
        html.Section(
            title="If it has to be taken back",
            head=("Layer", "By Helm", "What Helm does", "To do", "On this cluster"),
            rows=tuple(
                (
                    each.layer,
                    each.reverts.value,
                    each.helm,
                    each.tool,
                    "not looked at" if each.found is None else "; ".join(each.found) or "-",
                )
                for each in made.boundary
            ),
        ),
    )
    facts = {
        "Release": f"{made.revision.where}, revision {made.revision.revision}",
        "From": str(made.source),
        "To": str(made.wanted.target),
        "Verdict": "go" if made.go else "no go",
        "Cluster": server or "offline",
        "Support matrix": str(made.wanted.matrix.data_as_of),
    }
    return html.page("Upgrade plan", facts=facts, findings=made.findings, sections=sections)
