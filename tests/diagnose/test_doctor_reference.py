"""The doctor's pages are what it knows now, and their examples do what they say."""

from pathlib import Path
from typing import Any

import pytest

from groundplane.diagnose import doctor, evidence, reference, signatures
from groundplane.diagnose.findings import Action, Layer, Severity

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", list(reference.PAGES))
def test_the_page_is_current(name: str) -> None:
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == reference.PAGES[name](), "run: python -m groundplane.diagnose.reference docs"


def test_every_signature_is_named() -> None:
    written = (DOCS / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")
    assert all(f"### {each.id}: " in written for each in signatures.builtin())


def blocks(name: str) -> list[str]:
    """The YAML examples of a page."""
    parts = (DOCS / "reference" / name).read_text(encoding="utf-8").split("```yaml\n")[1:]
    return [part.partition("```")[0] for part in parts]


def told(document: str, known: list[Any] | None = None) -> list[tuple[str, tuple[str, ...]]]:
    verdict = doctor.diagnose(evidence.loads(document), known)
    return [(cause.finding.id, cause.finding.nodes) for cause in verdict.causes]


def test_the_example_of_a_document_is_diagnosed() -> None:
    (document,) = blocks("evidence.md")
    assert told(document) == [("S10", ("gpu-1",))]


def test_the_example_of_a_sites_signature_is_found_in_its_evidence() -> None:
    signature, shows, alike = blocks("signatures.md")
    known = signatures.loads(signature)
    assert told(shows, known) == [(known[0].id, ("gpu-7",))]
    assert told(alike, known) == []


def test_every_field_of_a_signature_is_explained() -> None:
    text = (DOCS / "reference" / "signatures.md").read_text(encoding="utf-8")
    parts = (signatures.Signature, signatures.Clause, signatures.Test)
    for part in parts:
        for name in part.__struct_encode_fields__:
            assert f"`{name}`" in text, f"{part.__name__}.{name}"
    for value in (*Action, *Severity, *Layer):
        assert f"`{value.value}`" in text, value
