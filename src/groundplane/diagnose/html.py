"""A report as one page: findings and tables as HTML that a browser shows anywhere, years later, without a network.

For people who are sent a file: on a phone, in a dark room, on paper. The page loads nothing and runs nothing (its own
Content-Security-Policy forbids both), everything in it is escaped, and its size is bounded however large the cluster
is: what does not fit is counted and left to ``-o json``. Which findings there are is decided elsewhere.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from .findings import Action, Evidence, Finding, Layer, Outcome, counts, grouped, natural, worst
from .redact import redacted

FINDINGS_SHOWN: Final = 60
"""Findings of one layer and one outcome that are shown."""
NODES_SHOWN: Final = 8
"""Nodes of a finding that are named at once; the others are folded."""
NODES_FOLDED: Final = 400
EVIDENCE_SHOWN: Final = 4
"""Pieces of evidence that are shown at once; the others are folded."""
EVIDENCE_FOLDED: Final = 16
EXCERPT: Final = 4000
"""Characters of one piece of evidence."""
ROWS_SHOWN: Final = 40
"""Rows of a table that are shown at once; the others are folded."""
ROWS_FOLDED: Final = 1000
TEXT: Final = 200_000
"""Characters of a section's text."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page beside the findings: a table, a text as it is (a diff, a plan), or both."""

    title: str
    note: str = ""
    """A sentence before the table."""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    text: str = ""
    """Shown line by line in a fixed-width font; lines of a unified diff are coloured."""
    folded: bool = False
    """Closed at first; open on paper."""


_WORDS: Final = {
    Outcome.FAIL: ("failure", "failures"),
    Outcome.WARN: ("warning", "warnings"),
    Outcome.UNKNOWN: ("unknown", "unknown"),
    Outcome.SKIP: ("skipped", "skipped"),
    Outcome.PASS: ("passed", "passed"),
}
_BAD: Final = (Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN)
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, those that turn the direction of text, and halves of pairs: shown by their number instead."""


def page(title: str, *, facts: Mapping[str, str], findings: Iterable[Finding], sections: Sequence[Section] = ()) -> str:
    """The whole page.

    Args:
        title: what it is a report of, such as ``Drift of cluster prod``.
        facts: what was looked at, with what, and when; shown at the top in this order.
        findings: in any order; they are grouped and ordered here.
        sections: tables and texts, shown after the findings in this order.
    """
    rows = grouped(findings)
    body = "".join((*_head(title, facts, rows), *_findings(rows), *_nodes(rows), *map(_section, sections)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>{body}</main>"
        "<footer>Written by groundplane. Secrets were taken out. The same report in full: <code>-o json</code>."
        "</footer></body></html>\n"
    )


def write(path: Path, text: str) -> None:
    """Write a page to a file, whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _text(value: object) -> str:
    return html.escape(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value)))


def _safe(value: object) -> str:
    """Text that came from the cluster, with what looks like a secret taken out."""
    return _text(redacted(str(value)))


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


# --- The top ---------------------------------------------------------------------------------------------------------


def _head(title: str, facts: Mapping[str, str], rows: Sequence[Finding]) -> Iterator[str]:
    yield f"<header><h1>{_text(title)}</h1><p class='verdict {_class(rows)}'>{_verdict(rows)}</p>"
    told = "".join(f"<div><dt>{_text(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in facts.items())
    yield f"<dl class='facts'>{told}</dl>" if told else ""
    number = counts(rows)
    tiles = "".join(
        f"<li class='{outcome}{' none' if not number[outcome] else ''}'><b>{number[outcome]:,}</b>"
        f"<span>{_WORDS[outcome][number[outcome] != 1]}</span></li>"
        for outcome in reversed(Outcome)
    )
    yield f"<ul class='tiles' aria-label='Summary'>{tiles}</ul>" if rows else ""
    yield from _stack(rows)
    yield "</header>"


def _class(rows: Sequence[Finding]) -> str:
    return str(worst(rows)) if rows else "skip"


def _verdict(rows: Sequence[Finding]) -> str:
    if not rows:
        return "Nothing was checked."
    number = Counter(row.outcome for row in rows)
    said = [_count(number[outcome], *_WORDS[outcome]) for outcome in _BAD if number[outcome]]
    if not said:
        return "Everything that was checked is in order."
    nodes = {node for row in rows if row.outcome in _BAD for node in row.nodes}
    return _text(", ".join(said) + (f" on {_count(len(nodes), 'node', 'nodes')}" if nodes else ""))


def _stack(rows: Sequence[Finding]) -> Iterator[str]:
    """The layers, lowest first, each with its worst outcome; a layer that has findings leads to them."""
    if not rows:
        return
    yield "<nav aria-label='Layers'><ol class='stack'>"
    for layer in Layer:
        own = [row for row in rows if row.layer is layer]
        inner = f"<b>{layer}</b> <span>{layer.words}</span><i>{worst(own) if own else 'not checked'}</i>"
        link = f"<a href='#{layer}'>{inner}</a>" if own else f"<span class='cell'>{inner}</span>"
        yield f"<li class='{_class(own) if own else 'absent'}'>{link}</li>"
    yield "</ol></nav>"


# --- Findings --------------------------------------------------------------------------------------------------------


def _findings(rows: Sequence[Finding]) -> Iterator[str]:
    if not rows:
        return
    yield "<h2>Findings</h2>"
    for layer in Layer:
        own = [row for row in rows if row.layer is layer]
        if not own:
            continue
        yield f"<section class='layer' id='{layer}'><h3><span class='id'>{layer}</span> {layer.words}</h3>"
        for outcome in _BAD:
            some = [row for row in own if row.outcome is outcome]
            yield from map(_finding, some[:FINDINGS_SHOWN])
            yield _more(len(some) - FINDINGS_SHOWN, f"findings that end in “{outcome}”")
        yield from _fine([row for row in own if row.outcome not in _BAD])
        yield "</section>"


def _finding(finding: Finding) -> str:
    parts = [
        f"<article class='{finding.outcome}'><h4>{_badge(finding.outcome)} <span>{_safe(finding.title)}</span></h4>"
        f"<p class='meta'><span class='id'>{_text(finding.id)}</span> {_text(finding.severity)}"
        + (f" · {_text(finding.action.replace('_', ' '))}" if finding.action is not Action.NONE else "")
        + f"{_about(finding.nodes)}</p>"
    ]
    parts += [_row("Cause", f"<p>{_safe(finding.cause)}</p>")] if finding.cause else []
    parts += [_row("Evidence", _evidence(finding.evidence))] if finding.evidence else []
    parts += [_row("Confirm", f"<pre>{_safe(finding.confirm)}</pre>")] if finding.confirm else []
    parts += [_row("Fix", _steps(finding.fix))] if finding.fix else []
    parts += [_row("Docs", f"<p>{_text(finding.docs)}</p>")] if finding.docs else []
    return f"{''.join(parts)}</article>"


def _badge(outcome: Outcome) -> str:
    return f"<span class='badge {outcome}'>{outcome}</span>"


def _row(label: str, inner: str) -> str:
    return f"<div class='row'><div class='label'>{label}</div><div>{inner}</div></div>"


def _about(nodes: Sequence[str]) -> str:
    if not nodes:
        return " · <span>the cluster</span>"
    named = " ".join(f"<code>{_text(node)}</code>" for node in nodes[:NODES_SHOWN])
    if len(nodes) <= NODES_SHOWN:
        return f" · {named}"
    folded = " ".join(f"<code>{_text(node)}</code>" for node in nodes[NODES_SHOWN:NODES_FOLDED])
    left = _more(len(nodes) - NODES_FOLDED, "nodes")
    return f" · {len(nodes):,} nodes: {named} {_fold(f'{len(nodes) - NODES_SHOWN:,} more nodes', folded + left)}"


def _evidence(evidence: Sequence[Evidence]) -> str:
    """What was seen, once each, under all the places where it was seen."""
    places: dict[str, list[str]] = {}
    for each in evidence:
        places.setdefault(each.excerpt, []).append(each.source)
    seen = list(places.items())
    shown = "".join(map(_seen, seen[:EVIDENCE_SHOWN]))
    if len(seen) <= EVIDENCE_SHOWN:
        return shown
    folded = "".join(map(_seen, seen[EVIDENCE_SHOWN:EVIDENCE_FOLDED]))
    left = _more(len(seen) - EVIDENCE_FOLDED, "pieces of evidence")
    return shown + _fold(f"{len(seen) - EVIDENCE_SHOWN:,} more", folded + left)


def _seen(item: tuple[str, list[str]]) -> str:
    excerpt, sources = item
    cut = excerpt if len(excerpt) <= EXCERPT else f"{excerpt[:EXCERPT]} …"
    cited = "".join(f"<cite>{_safe(source)}</cite>" for source in sources[:EVIDENCE_SHOWN])
    return f"<div class='seen'>{cited}{_more(len(sources) - EVIDENCE_SHOWN, 'places')}<pre>{_safe(cut)}</pre></div>"


def _steps(steps: Sequence[str]) -> str:
    if len(steps) == 1:
        return f"<p>{_safe(steps[0])}</p>"
    return f"<ol>{''.join(f'<li>{_safe(step)}</li>' for step in steps)}</ol>"


def _fine(rows: Sequence[Finding]) -> Iterator[str]:
    """Passes and skips: a line each, folded."""
    if not rows:
        return
    lines = "".join(
        f"<li>{_badge(row.outcome)} <span class='id'>{_text(row.id)}</span> {_safe(row.title)}"
        + (f" <small>{_count(len(row.nodes), 'node', 'nodes')}</small>" if row.nodes else "")
        + "</li>"
        for row in rows[: FINDINGS_SHOWN * 2]
    )
    number = Counter(row.outcome for row in rows)
    title = ", ".join(_count(number[each], *_WORDS[each]) for each in (Outcome.PASS, Outcome.SKIP) if number[each])
    yield _fold(title, f"<ul class='fine'>{lines}</ul>{_more(len(rows) - FINDINGS_SHOWN * 2, 'checks')}")


def _nodes(rows: Sequence[Finding]) -> Iterator[str]:
    """The nodes that something is wrong with, worst first: where to look, for whoever is sent to one node."""
    found: dict[str, list[Finding]] = {}
    for row in rows:
        if row.outcome in _BAD:
            for node in row.nodes:
                found.setdefault(node, []).append(row)
    if not found:
        return
    order = tuple(Outcome)

    def badness(item: tuple[str, list[Finding]]) -> tuple[int, int, str]:
        return -order.index(worst(item[1])), -len(item[1]), natural(item[0])

    table = tuple(
        (
            node,
            *(str(sum(row.outcome is outcome for row in own) or "") for outcome in _BAD),
            ", ".join(dict.fromkeys(f"{row.layer} {row.id}" for row in own[:12])) + (" …" if len(own) > 12 else ""),
        )
        for node, own in sorted(found.items(), key=badness)[: ROWS_FOLDED + 1]
    )
    head = ("node", *(_WORDS[outcome][1] for outcome in _BAD), "where")
    yield f"<h2>Nodes</h2>{_table(head, table, len(found))}"


# --- Sections --------------------------------------------------------------------------------------------------------


def _section(section: Section) -> str:
    inner = f"<p>{_safe(section.note)}</p>" if section.note else ""
    inner += _table(section.head, section.rows, len(section.rows)) if section.rows else ""
    inner += _lines(section.text) if section.text else ""
    inner = inner or "<p class='meta'>nothing</p>"
    if section.folded:
        return f"<section>{_fold(section.title, inner, heading=True)}</section>"
    return f"<section><h2>{_text(section.title)}</h2>{inner}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """A table, which on a phone becomes a list of rows, each cell under its column's name."""
    shown, folded = rows[:ROWS_SHOWN], rows[ROWS_SHOWN:ROWS_FOLDED]
    made = _rows(head, shown)
    if folded:
        left = _more(total - ROWS_FOLDED, "rows")
        made += _fold(f"{total - len(shown):,} more rows", _rows(head, folded) + left)
    return made


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = [*head, *("" for _ in range(max(map(len, rows), default=0) - len(head)))]
    top = "".join(f"<th scope='col'>{_text(name)}</th>" for name in names)
    body = "".join(
        "<tr>"
        + "".join(f"<td data-name='{_text(name)}'>{_safe(cell)}</td>" for name, cell in zip(names, row, strict=False))
        + "</tr>"
        for row in rows
    )
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _lines(text: str) -> str:
    shown = redacted(text[:TEXT])
    classes = {"+": "added", "-": "removed", "@": "place"}
    lines = "\n".join(
        f"<span class='{classes[line[0]]}'>{_text(line)}</span>" if line[:1] in classes else _text(line)
        for line in shown.splitlines()
    )
    return f"<pre class='text'>{lines}</pre>{_more(len(text) - TEXT, 'characters')}"


def _fold(title: str, inner: str, *, heading: bool = False) -> str:
    told = f"<h2>{_text(title)}</h2>" if heading else _text(title)
    return f"<details><summary>{told}</summary><div class='folded'>{inner}</div></details>"


def _more(left: int, what: str) -> str:
    return f"<p class='meta'>and {left:,} more {what}, which <code>-o json</code> has</p>" if left > 0 else ""


_STYLE: Final = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f24;--dim:#59636e;--line:#d9dee4;--code:#f0f2f5;
--fail:#b3261e;--warn:#8a5a00;--unknown:#6a3fb5;--skip:#59636e;--pass:#1a6e37;--failbg:#fdecea;--warnbg:#fff4dc;
--unknownbg:#f2ecfc;--skipbg:#eef0f3;--passbg:#e6f4ea}
@media (prefers-color-scheme:dark){:root{--bg:#0f1216;--card:#181c22;--ink:#e4e8ec;--dim:#98a2ad;--line:#2c333c;
--code:#11151a;--fail:#ff8a80;--warn:#f2b84b;--unknown:#c1a3f7;--skip:#98a2ad;--pass:#6fcf8e;--failbg:#3a1a1a;
--warnbg:#352a12;--unknownbg:#2a2140;--skipbg:#222831;--passbg:#14301f}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
overflow-wrap:anywhere}
main,footer{max-width:68rem;margin:0 auto;padding:0 1rem}
footer{color:var(--dim);font-size:.8rem;padding-block:2rem}
h1{font-size:1.6rem;line-height:1.25;margin:1.6rem 0 .4rem}
h2{font-size:1.2rem;margin:2.2rem 0 .7rem}
h3{font-size:1rem;margin:1.5rem 0 .6rem;text-transform:capitalize}
h4{font-size:1rem;line-height:1.4;margin:0;display:flex;gap:.6rem;align-items:baseline}
h4>span:last-child{min-width:0}
p{margin:.3rem 0}
ol,ul{margin:.2rem 0;padding-left:1.3rem}
a{color:inherit}
code,pre,cite,.id{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{white-space:pre-wrap;background:var(--code);border-radius:6px;padding:.5rem .7rem;margin:.2rem 0;
overflow-wrap:anywhere}
.verdict{font-size:1.05rem;font-weight:600;margin:0 0 1rem}
.verdict.fail{color:var(--fail)}.verdict.warn{color:var(--warn)}.verdict.unknown{color:var(--unknown)}
.verdict.pass{color:var(--pass)}.verdict.skip{color:var(--dim)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,14rem),1fr));gap:.6rem 1.5rem;
margin:0 0 1.2rem}
.facts div{min-width:0}
dt,.label{color:var(--dim);font-size:.8rem}
dd{margin:0}
.tiles{list-style:none;margin:0 0 1rem;padding:0;display:grid;gap:.5rem;
grid-template-columns:repeat(auto-fit,minmax(6rem,1fr))}
.tiles li{background:var(--card);border:1px solid var(--line);border-top:4px solid;border-radius:8px;
padding:.5rem .8rem}
.tiles b{display:block;font-size:1.6rem;line-height:1.2}
.tiles span{font-size:.8rem;color:var(--dim)}
.tiles .none b{color:var(--dim);font-weight:400}
.tiles .none{border-top-color:var(--line)}
.tiles .fail,.badge.fail{color:var(--fail)}.tiles .warn,.badge.warn{color:var(--warn)}
.tiles .unknown,.badge.unknown{color:var(--unknown)}.tiles .skip,.badge.skip{color:var(--skip)}
.tiles .pass,.badge.pass{color:var(--pass)}
.stack{list-style:none;margin:0;padding:0;display:grid;gap:.35rem;grid-template-columns:repeat(5,minmax(0,1fr))}
.stack a,.stack .cell{display:block;height:100%;padding:.35rem .6rem;border-radius:6px;
border-left:4px solid var(--line);
background:var(--card);text-decoration:none;font-size:.82rem}
.stack a:hover,.stack a:focus-visible{text-decoration:underline}
.stack i{display:block;font-style:normal;color:var(--dim)}
.stack .fail>*{border-color:var(--fail);background:var(--failbg)}.stack .fail i{color:var(--fail)}
.stack .warn>*{border-color:var(--warn);background:var(--warnbg)}.stack .warn i{color:var(--warn)}
.stack .unknown>*{border-color:var(--unknown);background:var(--unknownbg)}.stack .unknown i{color:var(--unknown)}
.stack .pass>*{border-color:var(--pass)}.stack .pass i{color:var(--pass)}
.stack .absent{opacity:.75}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid;border-radius:8px;padding:.8rem 1rem;
margin:.6rem 0}
article.fail{border-left-color:var(--fail)}article.warn{border-left-color:var(--warn)}
article.unknown{border-left-color:var(--unknown)}
.badge{flex:none;font:600 .72rem/1.5 system-ui,sans-serif;letter-spacing:.03em;text-transform:uppercase;
border-radius:4px;padding:.05rem .4rem}
.badge.fail{background:var(--failbg)}.badge.warn{background:var(--warnbg)}.badge.unknown{background:var(--unknownbg)}
.badge.skip{background:var(--skipbg)}.badge.pass{background:var(--passbg)}
.meta,small,cite{color:var(--dim);font-size:.86rem;font-style:normal}
.meta code{background:var(--code);border-radius:4px;padding:0 .25rem;color:var(--ink)}
.row{display:grid;grid-template-columns:5.5rem minmax(0,1fr);gap:.2rem .8rem;margin-top:.5rem}
.row .label{padding-top:.25rem}
.seen+.seen{margin-top:.4rem}cite{display:block}
details{margin:.5rem 0}
.meta details{display:block}
summary{cursor:pointer;color:var(--dim);font-size:.86rem;padding:.3rem 0}
summary h2{display:inline;color:var(--ink)}
.fine{list-style:none;padding:0}
.fine li{padding:.2rem 0;border-top:1px solid var(--line)}
table{width:100%;border-collapse:collapse;background:var(--card);border:1px solid var(--line);font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .6rem;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600;font-size:.8rem;overflow-wrap:normal}
td{white-space:pre-line}
.text .added{color:var(--pass)}.text .removed{color:var(--fail)}.text .place{color:var(--unknown)}
@media screen and (max-width:40rem){
.row{grid-template-columns:minmax(0,1fr)}
.tiles{grid-template-columns:repeat(5,minmax(0,1fr))}
.tiles{gap:.3rem}.tiles li{padding:.35rem .3rem}.tiles b{font-size:1.2rem}
.tiles span{font-size:.62rem;overflow-wrap:normal}
.stack{grid-template-columns:repeat(2,minmax(0,1fr))}
table,tbody,tr,td{display:block}thead{display:none}
tr{padding:.5rem .7rem;border-bottom:1px solid var(--line)}
td{border:0;padding:.1rem 0;display:grid;grid-template-columns:6.5rem minmax(0,1fr);gap:.5rem}
td:empty{display:none}
td::before{content:attr(data-name);color:var(--dim);font-size:.8rem}
}
@media print{
:root{color-scheme:light;--bg:#fff;--card:#fff;--ink:#000;--dim:#444;--line:#bbb;--code:#f4f4f4;--fail:#a01810;
--warn:#704800;--unknown:#55309a;--skip:#444;--pass:#125528;--failbg:#fff;--warnbg:#fff;--unknownbg:#fff;--skipbg:#fff;
--passbg:#fff}
@page{margin:15mm}
body{font-size:10pt}main,footer{max-width:none;padding:0}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.stack a{text-decoration:none}.badge{border:1px solid}
h2,h3,h4,summary,.meta{break-after:avoid}.row,tr,.tiles,.stack{break-inside:avoid}
thead{display:table-header-group}
details::details-content{content-visibility:visible;display:block;block-size:auto;height:auto}
summary{list-style:none}summary::-webkit-details-marker{display:none}
}
"""
