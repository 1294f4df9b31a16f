"""The race's figures as tables for a person, or as one JSON document."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bench import table

from . import audit
from .verdicts import Entry, Turns, Verdict


class Results(msgspec.Struct, kw_only=True):
    """One run of the harness. ``peer_note`` says why there is no peer, if there is none."""

    machine: str
    turns: list[Turns]
    entries: list[Entry]
    verdicts: list[Verdict]
    quiet_s: float
    limit_mib: int
    peer_note: str = ""


def document(results: Results) -> dict[str, Any]:
    """The JSON document; requests are lists of verb, resource and number."""
    return {
        "machine": results.machine,
        "quietSeconds": results.quiet_s,
        "memoryLimitMiB": results.limit_mib,
        "peer": results.peer_note or "given",
        "labelling": [{**_plain(turns), "ratios": turns.ratios} for turns in results.turns],
        "runs": [_run(entry) for entry in results.entries],
        "verdicts": [_plain(verdict) for verdict in results.verdicts],
    }


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def _run(entry: Entry) -> dict[str, Any]:
    run = {name: getattr(entry.run, name) for name in entry.run.__struct_fields__}
    run["labelling"] = _plain(entry.run.labelling)
    for phase in ("cold", "quiet"):
        run[phase] = [[verb, resource, number] for (verb, resource), number in sorted(run[phase].items())]
    return {"program": entry.program, "policy": entry.policy, "nodes": entry.nodes, **run}


def show(results: Results) -> None:
    """Print the tables."""
    _show_labelling(results)
    _show_runs(results)
    for entry in results.entries:
        for phase, requests in (("until ready", entry.run.cold), ("in the quiet time", entry.run.quiet)):
            rows = [[verb, resource, number] for (verb, resource), number in sorted(requests.items())]
            title = f"{entry.program}, {entry.policy}, {entry.nodes} nodes: requests {phase}"
            table.show(title, ["verb", "resource", "requests"], rows)
    rows = [[verdict.answer, verdict.wanted, verdict.found] for verdict in results.verdicts]
    table.show("must reach", ["", "line", "found"], rows)


def _show_labelling(results: Results) -> None:
    columns = ["nodes", "bare s", "ours s", "ratio", "bare s, from first request", "ours", "ours: first patch s"]
    columns += ["bare CPU s", "ours CPU s", "server CPU s, bare", "ours"]
    rows = [
        [
            *(turns.nodes, bare.labelled_s, ours.labelled_s, ours.labelled_s / bare.labelled_s),
            *(bare.asking_s, ours.asking_s, ours.first_patch_s),
            *(bare.cpu_s, ours.cpu_s, bare.server_cpu_s, ours.server_cpu_s),
        ]
        for turns in results.turns
        for bare, ours in zip(turns.bare, turns.ours, strict=True)
    ]
    note = "the bare client has 16 patches in flight; seconds from the program's start to the last label; in turns"
    table.show(f"label all nodes on a real kube-apiserver ({results.machine})", columns, rows, note)


def _show_runs(results: Results) -> None:
    bare = {turns.nodes: turns.bare_s for turns in results.turns}
    columns = ["policy", "nodes", "program", "labelled s", "x bare", "ready s", "peak MiB", "CPU s", "server CPU s"]
    columns += ["requests cold", "writes cold", f"in {results.quiet_s:g} quiet s", "but watches, lease"]
    columns += ["join ms", "writes a join"]
    rows = [_row(entry, bare.get(entry.nodes)) for entry in results.entries]
    note = f"groundplane runs under a memory limit of {results.limit_mib} MiB" if results.limit_mib else ""
    peer = f"; NVIDIA's operator: {results.peer_note}" if results.peer_note else ""
    table.show("the whole way, each program on a control plane of its own", columns, rows, note + peer)
    _show_ratios(results.entries)


def _row(entry: Entry, bare_s: float | None) -> list[object]:
    run = entry.run
    labelled = run.labelling.labelled_s
    return [
        *(entry.policy, entry.nodes, entry.program, labelled, labelled / bare_s if bare_s else None, run.ready_s),
        *(run.peak_mib, run.cpu_s, run.labelling.server_cpu_s, run.cold.total(), audit.writes(run.cold)),
        *(run.quiet.total(), audit.beyond_quiet(run.quiet).total(), run.join_s * 1000, run.join_writes),
    ]


def _show_ratios(entries: Sequence[Entry]) -> None:
    """The peer's figures as multiples of ours."""
    found = {(each.policy, each.nodes, each.program): each.run for each in entries}
    rows = []
    for (policy, nodes, program), peer in found.items():
        ours = found.get((policy, nodes, "groundplane"))
        if program == "groundplane" or ours is None:
            continue
        pairs = [
            (peer.labelling.labelled_s, ours.labelling.labelled_s),
            (peer.ready_s, ours.ready_s),
            (peer.peak_mib, ours.peak_mib),
            (peer.cpu_s, ours.cpu_s),
            (peer.cold.total(), ours.cold.total()),
            (peer.join_s, ours.join_s),
        ]
        rows.append([policy, nodes, *(theirs / mine for theirs, mine in pairs)])
    if rows:
        columns = ["policy", "nodes", "labelled", "ready", "peak memory", "CPU", "requests cold", "join"]
        table.show("NVIDIA's operator as a multiple of groundplane", columns, rows)
