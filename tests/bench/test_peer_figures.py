"""The pure parts of the race: what is counted from the audit log, what the nodes look like, what is judged and how."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.peer import __main__ as peer
from bench.peer import audit, daemonsets, programs, report, stage, verdicts
from bench.peer.race import Labelling, Whole
from bench.peer.verdicts import Entry, Turns
from groundplane.cluster.views import NodeView
from groundplane.operator import labels

ME, OTHER = "system:serviceaccount:gpu-operator:groundplane", "admin"


def line(
    number: int,
    verb: str,
    resource: str,
    *,
    user: str = ME,
    name: str = "",
    sub: str = "",
    stage: str = "ResponseComplete",
) -> bytes:
    event: dict[str, Any] = {
        "kind": "Event",
        "auditID": f"id-{number}",
        "stage": stage,
        "verb": verb,
        "requestURI": f"/{resource}?limit=1",
        "user": {"username": user},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{number:02d}.000000Z",
    }
    if not resource.startswith("api"):
        event["objectRef"] = {"resource": resource, "subresource": sub, "name": name}
    return json.dumps(event).encode()


LINES = [
    line(1, "get", "apis"),
    line(2, "list", "nodes"),
    line(3, "watch", "nodes", stage="ResponseStarted"),
    line(4, "patch", "nodes", name="a"),
    line(5, "patch", "nodes", name="a", sub="status"),
    line(6, "update", "leases", name="lease"),
    line(7, "patch", "nodes", user=OTHER, name="b"),
    line(3, "watch", "nodes", stage="ResponseComplete"),
    line(8, "delete", "configmaps", name=ME),
]


def test_a_request_counts_once_for_its_user() -> None:
    found = audit.events(LINES, ME)
    counted = audit.count(found)
    assert counted == {
        ("get", "/apis"): 1,
        ("list", "nodes"): 1,
        ("watch", "nodes"): 1,
        ("patch", "nodes"): 1,
        ("patch", "nodes/status"): 1,
        ("update", "leases"): 1,
        ("delete", "configmaps"): 1,
    }
    assert audit.writes(counted) == 4
    assert audit.node_writes(found) == {"a": 2}
    assert audit.count(audit.events(LINES, OTHER)) == {("patch", "nodes"): 1}


def test_quiet_is_watches_and_the_lease() -> None:
    counted = audit.count(audit.events(LINES[2:6], ME))
    assert audit.beyond_quiet(counted) == {("patch", "nodes"): 1, ("patch", "nodes/status"): 1}


def test_the_first_request_of_a_kind() -> None:
    found = audit.events(LINES, ME)
    first, patch = audit.first(found), audit.first(found, "patch", "nodes")
    assert first and patch and (patch - first).total_seconds() == 3
    assert audit.first(found, "create") is None


def test_a_log_is_read_as_it_grows_and_a_watch_that_ends_later_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"\n".join(LINES[:3]) + b"\n" + LINES[3][:40])
    log = audit.Log(path, ME)
    assert [event.auditID for event in log.new()] == ["id-1", "id-2", "id-3"]
    with path.open("ab") as file:
        file.write(LINES[3][40:] + b"\n" + b"\n".join(LINES[4:]) + b"\n")
    assert [event.auditID for event in log.new()] == ["id-4", "id-5", "id-6", "id-8"]
    assert log.new() == []


# --- nodes and DaemonSets ---------------------------------------------------------------------------------------------


def test_a_node_is_as_large_as_a_real_one_and_is_taken_for_a_gpu_node() -> None:
    document = stage.node("a")
    assert len(document["metadata"]["labels"]) >= 50
    assert len(document["status"]["images"]) == 20
    assert document["metadata"]["annotations"] and document["status"]["conditions"] and document["status"]["capacity"]
    view = msgspec.convert(document, NodeView)
    assert labels.is_gpu_node(view.labels)
    assert labels.node_changes(view, labels.LabelPolicy()) is not None


@pytest.mark.parametrize("name", ["26.3.3-host-driver", "26.3.3-default"])
def test_the_policies_are_there(name: str) -> None:
    assert stage.policy(name)["spec"]["driver"]["enabled"] is (name == "26.3.3-default")


def daemon_set(**selector: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"nodeSelector": selector}}
    return {
        "metadata": {"name": "ds", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template},
    }


def test_a_daemon_set_is_said_to_run_on_every_node_it_selects() -> None:
    nodes = {"a": {"x": "true", "y": "1"}, "b": {"x": "false"}, "c": {"x": "true"}}
    document = daemon_set(x="true")
    assert daemonsets.matching(document, nodes) == ["a", "c"]
    assert daemonsets.matching(daemon_set(), nodes) == ["a", "b", "c"]
    status = daemonsets.status(document, 2)
    assert status["observedGeneration"] == 3 and status["desiredNumberScheduled"] == status["numberAvailable"] == 2
    assert "numberUnavailable" not in status


def test_the_pods_of_a_daemon_set_carry_the_hash_of_its_revision() -> None:
    document = daemon_set(x="true")
    revision, pod = daemonsets.revision(document), daemonsets.pod(document, "a")
    assert revision["metadata"]["name"] == f"ds-{pod['metadata']['labels'][daemonsets.REVISION_HASH]}"
    assert pod["metadata"]["ownerReferences"] == revision["metadata"]["ownerReferences"] == [daemonsets.owner(document)]
    assert pod["spec"]["nodeName"] == "a"
    assert daemonsets.revision_hash(daemon_set(x="false")) != daemonsets.revision_hash(document)


# --- programs ---------------------------------------------------------------------------------------------------------


def test_there_is_no_peer_unless_the_environment_names_one() -> None:
    assert programs.peer({}) is None


def test_a_peer_that_cannot_be_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(programs.Unusable, match="GROUNDPLANE_PEER_OPERATOR is '/no/such/file'"):
        programs.peer({programs.OPERATOR_VARIABLE: "/no/such/file"})
    with pytest.raises(programs.Unusable, match=r"GROUNDPLANE_PEER_ASSETS.*manifests/ is not there"):
        programs.peer({programs.OPERATOR_VARIABLE: "/bin/sh", programs.ASSETS_VARIABLE: str(tmp_path)})


def test_a_peer_is_run_with_its_assets_where_it_looks_for_them(tmp_path: Path) -> None:
    for folder in ("manifests", "crds"):
        (tmp_path / folder).mkdir()
    found = programs.peer({programs.OPERATOR_VARIABLE: "/bin/sh", programs.ASSETS_VARIABLE: str(tmp_path)})
    assert found is not None and found.argv[:2] == ("unshare", "--mount")
    assert str(tmp_path) in found.argv and os.path.realpath("/bin/sh") in found.argv
    assert found.user == "system:serviceaccount:gpu-operator:nvidia" and found.crds == tmp_path / "crds"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "100,x"], "is not a list of whole numbers"),
        (["--nodes", "0"], "is not a list of whole numbers"),
        (["--policies", "26.3.3-default,nonsense"], "no policy nonsense; there are 26.3.3-default"),
    ],
)
def test_flags_that_cannot_be_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peer.main(arguments)
    assert said in capsys.readouterr().err


def test_a_peer_that_cannot_be_run_ends_the_race_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(programs.OPERATOR_VARIABLE, "/no/such/file")
    assert peer.main(["--nodes", "20"]) == 2
    assert "/no/such/file" in capsys.readouterr().err


# --- verdicts ---------------------------------------------------------------------------------------------------------


def labelling(seconds: float) -> Labelling:
    return Labelling(first_request_s=0.3, first_patch_s=0.4, labelled_s=seconds, cpu_s=1.0, server_cpu_s=4.0)


def entry(nodes: int, *, program: str = "groundplane", peak: float = 50.0, **changes: Any) -> Entry:
    run = Whole(
        labelling=labelling(2.0),
        ready_s=3.0,
        cold=audit.Requests({("patch", "nodes"): nodes}),
        quiet=audit.Requests({("update", "leases"): 30, ("watch", "nodes"): 1}),
        joins_s=[0.02, 0.03, 0.5],
        join_writes=1,
        peak_mib=peak,
        cpu_s=2.0,
    )
    return Entry(program=program, policy="p", nodes=nodes, run=msgspec.structs.replace(run, **changes))


def turns(nodes: int, *pairs: tuple[float, float]) -> Turns:
    return Turns(nodes=nodes, bare=[labelling(bare) for bare, _ in pairs], ours=[labelling(own) for _, own in pairs])


def answers(found: list[verdicts.Verdict]) -> list[str]:
    return [verdict.answer for verdict in found]


def test_everything_is_met() -> None:
    found = verdicts.judge([turns(1000, (2.0, 2.3)), turns(5000, (10.0, 11.0))], [entry(1000), entry(5000)], 350)
    assert answers(found) == ["met"] * 7


def test_nothing_is_claimed_of_what_was_not_measured() -> None:
    assert answers(verdicts.judge([], [], 350)) == ["not measured"] * 7
    found = verdicts.judge([turns(100, (1.0, 9.0))], [entry(100)], 350)
    assert answers(found) == [*["not measured"] * 4, "met", *["not measured"] * 2]
    assert answers(verdicts.judge([], [entry(5000)], 0))[-1] == "not measured", "without a limit nothing can be killed"


@pytest.mark.parametrize(
    ("place", "bad"),
    [
        (2, entry(1000, peak=90.1)),
        (3, entry(5000, peak=200.1)),
        (4, entry(1000, quiet=audit.Requests({("patch", "nodes"): 1}))),
        (4, entry(1000, quiet=audit.Requests({("list", "pods"): 1}))),
        (5, entry(5000, joins_s=[0.2, 0.3, 0.02])),
        (5, entry(5000, join_writes=2)),
    ],
)
def test_one_bad_run_is_not_met(place: int, bad: Entry) -> None:
    found = answers(verdicts.judge([], [entry(1000), entry(5000), bad], 350))
    assert [number for number, answer in enumerate(found) if answer == "NOT MET"] == [place]


def test_the_ratio_is_the_middle_of_the_pairs() -> None:
    measured = turns(1000, (1.0, 1.1), (1.0, 3.0), (2.0, 2.0))
    assert measured.ratio == 1.1
    assert answers(verdicts.judge([measured], [], 350))[0] == "met"
    assert answers(verdicts.judge([turns(1000, (1.0, 1.1), (1.0, 1.3), (1.0, 1.3))], [], 350))[0] == "NOT MET"


def test_the_peer_is_not_judged() -> None:
    bad = entry(5000, program="nvidia", peak=900.0, quiet=audit.Requests({("patch", "nodes"): 9}), join_writes=0)
    assert answers(verdicts.judge([], [entry(5000), bad], 350))[3:] == ["met"] * 4


# --- report -----------------------------------------------------------------------------------------------------------


def results() -> report.Results:
    entries = [entry(1000), entry(1000, program="nvidia", ready_s=9.0)]
    measured = [turns(1000, (2.0, 2.3))]
    judged = verdicts.judge(measured, entries, 350)
    return report.Results(
        machine="m", turns=measured, entries=entries, verdicts=judged, quiet_s=60.0, limit_mib=350, peer_note=""
    )


def test_the_document_holds_all_figures_and_is_json() -> None:
    document = json.loads(msgspec.json.encode(report.document(results())))
    assert document["labelling"][0]["ratios"] == [1.15]
    ours, theirs = document["runs"]
    assert (ours["program"], theirs["program"], theirs["ready_s"]) == ("groundplane", "nvidia", 9.0)
    assert ours["cold"] == [["patch", "nodes", 1000]] and ours["labelling"]["labelled_s"] == 2.0
    assert [verdict["answer"] for verdict in document["verdicts"]].count("met") == 3


def test_the_tables_say_how_the_peer_compares(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(results())
    printed = capsys.readouterr().out
    row = next(row for row in printed.split("as a multiple of groundplane")[1].splitlines() if "1000" in row)
    assert row.split() == ["p", "1000", "1", "3", "1", "1", "1", "1"]
    assert "labels on 1,000 nodes" in printed and "1.15 x (median of 1.15)" in printed
