"""Every signature: evidence of it, evidence that only looks alike, and several at once (admin-workflow.md 11, 12)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from groundplane.api.xids import XIDS
from groundplane.diagnose import engine, evidence, signatures
from groundplane.diagnose.findings import Layer, Severity
from groundplane.diagnose.match import match, scopes
from groundplane.diagnose.signatures import SignatureError, Token, builtin, loads, with_files

FOLDER = Path(__file__).parent / "signatures"
TABLES: dict[str, Mapping[str, Any]] = {
    name: case
    for file in ("low.yaml", "high.yaml", "public.yaml")
    for name, case in yaml.safe_load((FOLDER / file).read_text(encoding="utf-8")).items()
}
MIXED: list[dict[str, Any]] = yaml.safe_load((FOLDER / "mixed.yaml").read_text(encoding="utf-8"))
BY_ID = {signature.id: signature for signature in builtin()}


def matches(signature: str, document: Any) -> bool:
    shares = scopes(evidence.load(document))
    return any(match(BY_ID[signature], scope) is not None for scope in shares.values())


def test_section_12_is_whole() -> None:
    assert {f"S{number:02d}" for number in range(1, 59)} <= BY_ID.keys()
    assert {each for each in BY_ID if not each.startswith("XID-")} == TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_evidence_of_it_matches(name: str) -> None:
    assert matches(name, TABLES[name]["shows"])


@pytest.mark.parametrize("name", TABLES)
def test_what_only_looks_alike_does_not(name: str) -> None:
    assert not matches(name, TABLES[name]["alike"])


@pytest.mark.parametrize("name", TABLES)
def test_evidence_of_one_signature_is_judged(name: str) -> None:
    verdict = engine.judge(evidence.load(TABLES[name]["shows"]), builtin())
    told = [cause.finding.id for cause in verdict.causes]
    told += [each.id for cause in verdict.causes for each in cause.consequences]
    assert name in told + [note.id for note in verdict.notes]


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case["name"])
def test_the_lowest_wins(case: dict[str, Any]) -> None:
    verdict = engine.judge(evidence.load(case["evidence"]), builtin())
    told = [
        {"cause": [cause.finding.id, *cause.finding.nodes], "then": [each.id for each in cause.consequences]}
        for cause in verdict.causes
    ]
    assert [each["cause"] for each in told] == [each["cause"] for each in case["causes"]]
    assert [sorted(each["then"]) for each in told] == [sorted(each["then"]) for each in case["causes"]]


@pytest.mark.parametrize("code", XIDS)
def test_every_xid_has_one_signature(code: int) -> None:
    document = {"kmsg": f"[ 12.5] NVRM: Xid (PCI:0000:17:00): {code}, pid=1234, name=python"}
    found = [name for name in BY_ID if matches(name, document)]
    assert len(found) == 1


def test_our_files_are_sound() -> None:
    ours = [each for file in signatures.FILES for each in loads(signatures.shipped(file), file)]
    assert len({each.id for each in builtin()}) == len(builtin()) == len(ours) + len(signatures.xid_families())


def test_every_signature_is_whole() -> None:
    for signature in builtin():
        assert signature.cause and signature.confirm and signature.fix and signature.source
        assert not signature.title.endswith(".")
        assert set(signature.explains) <= BY_ID.keys()


@pytest.mark.parametrize(
    ("pattern", "needs"),
    [("abc", "abc"), (r"a\.b\/c", "a.b/c"), ("abc|d", ""), ("ab(?:cd|e)fgh", "fgh"), ("abc?d", "ab"), ("x+yz", "yz"),
     (r"a[b-d]{2}efg\b", "efg"), (r"\bab\d", "ab"), ("a.{0,12}bcd", "bcd"), ("(?:ab)+cde", "cde")],
)  # fmt: skip
def test_what_a_pattern_needs(pattern: str, needs: str) -> None:
    assert signatures.required(pattern) == needs


def test_the_reference_names_the_facts_that_are_asked_for() -> None:
    clauses = list(signatures.walk(clause for each in builtin() for clause in (*each.when, *each.unless)))
    of_nodes = {signatures.way(test.at)[0] for clause in clauses for test in clause.node or ()}
    of_nodes |= {signatures.way(at)[0] for clause in clauses for test in clause.node or () if (at := test.differs_at)}
    of_nodes |= {signatures.way(at)[0] for clause in clauses for test in clause.node or () if (at := test.below_at)}
    of_cluster = {signatures.way(test.at)[0] for clause in clauses for test in clause.ctx or ()}
    assert of_nodes - {"commands"} <= evidence.NODE_FACTS.keys()
    assert of_cluster | {"gpu_nodes", "missing"} == evidence.CONTEXT_FACTS.keys()


GOOD = """
- id: SITE1
  layer: L7
  title: the site's scratch disk is full
  when: [{text: '/No space left .* /Scratch/'}]
  cause: c
  confirm: df
  fix: [clean up]
  severity: warning
  source: runbook
"""


def test_a_site_adds_its_own(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(GOOD)
    found = with_files([file])
    assert found[-1].id == "SITE1" and len(found) == len(builtin()) + 1
    verdict = engine.judge(evidence.loads("logs: 'no  SPACE left on device: /home'"), found)
    assert verdict.causes == () and verdict.unknown
    verdict = engine.judge(evidence.loads("logs: 'no  SPACE left on /scratch'"), found)
    assert verdict.causes[0].finding.id == "SITE1" and verdict.causes[0].finding.severity is Severity.WARNING


def test_a_site_replaces_ours(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(GOOD.replace("SITE1", "S10"))
    found = [each for each in with_files([file]) if each.id == "S10"]
    assert [each.layer for each in found] == [Layer.WORKLOAD]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("layer: L7", "layer: L77"), "L77"),
        (("severity: warning", "severity: bad"), "bad"),
        (("  fix: [clean up]\n", ""), "fix"),
        (("fix:", "fixx:"), "fixx"),
        (("'/No space left .* /Scratch/'", "'/(/'"), "no regular expression"),
        (("'/No space left .* /Scratch/'", "' '"), "empty"),
        (("{text: '/No space left .* /Scratch/'}", ""), "must have a clause"),
        (("{text: '/No space left .* /Scratch/'}", "{anywhere: true}"), "must have one of"),
        (("{text: '/No space left .* /Scratch/'}", "{text: a, object: Pod}"), "must have one of"),
        (("{text: '/No space left .* /Scratch/'}", "{object: Pod, where: [{at: a}]}"), "asks for nothing"),
        (("{text: '/No space left .* /Scratch/'}", "{object: Pod, in: [log]}"), "go with text"),
        (("- id", "id"), "YAML"),
    ],
)
def test_a_wrong_file_says_where(change: tuple[str, str], says: str) -> None:
    with pytest.raises(SignatureError, match=r"^site\.yaml") as error:
        loads(GOOD.replace(*change), "site.yaml")
    assert says in str(error.value)


def test_ids_are_there_once() -> None:
    with pytest.raises(SignatureError, match="SITE1 is there twice"):
        loads(GOOD + GOOD)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match=r"none\.yaml cannot be read"):
        with_files([tmp_path / "none.yaml"])


def test_tokens_fold_case_and_space() -> None:
    assert Token.of("  A\n b ").written == "a b"
    assert Token.of(r"/A\S+[A-Z]/").pattern is not None and Token.of(r"/A\S+Z/").pattern.search("a--z")  # type: ignore[union-attr]


def test_signatures_are_plain_data() -> None:
    assert all(msgspec.json.encode(signature) for signature in builtin())
