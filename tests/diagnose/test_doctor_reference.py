"""The troubleshooting page is what the signatures say now, and names each of them."""

from pathlib import Path

from groundplane.diagnose import reference, signatures

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "troubleshoot.md"


def test_the_page_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == reference.page(), "run: python -m groundplane.diagnose.reference > docs/how-to/troubleshoot.md"
    assert all(f"### {each.id}: " in written for each in signatures.builtin())
