"""Pages of findings: everything said, everything escaped, bounded; in a real browser, no wider than a phone."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.diagnose import html
from groundplane.diagnose.findings import Action, Evidence, Finding, Layer, Outcome, Severity

CHROMIUM = shutil.which("chromium")
HOSTILE = "<script>alert(1)</script>\"'&\u202enode"


def _finding(number: str = "A27", outcome: Outcome = Outcome.FAIL, **more: object) -> Finding:
    return Finding(id=number, layer=more.pop("layer", Layer.KERNEL), outcome=outcome, title="Secure Boot is on", **more)  # type: ignore[arg-type]


class _Reader(HTMLParser):
    """What a page is made of: its text, its elements, and the attributes that could load or run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.loads += [(name, value) for name, value in attrs if name in ("src", "href", "srcset") or name[:2] == "on"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(self.words)


def test_a_page_says_what_was_found_where_how_to_confirm_it_and_what_to_do() -> None:
    finding = _finding(
        severity=Severity.FATAL,
        node="gpu-7",
        evidence=(Evidence("node/gpu-7 efivars", "SecureBoot: 1"),),
        cause="modules are not signed",
        confirm="mokutil --sb-state",
        fix=("use a signed image", "or switch it off"),
        action=Action.DRAIN_AND_REBOOT,
    )
    passed = _finding("A2", Outcome.PASS, layer=Layer.OPERATOR)
    table = html.Section(title="Inventory", head=("node", "kernel"), rows=(("gpu-7", "5.15.0-1"),))
    said = _Reader(html.page("Preflight", facts={"cluster": "prod"}, findings=[passed, finding], sections=[table])).said
    wanted = [
        "Preflight",
        "prod",
        "1 failure on 1 node",
        "L1",
        "A27",
        "gpu-7",
        "SecureBoot: 1",
        "modules are not signed",
    ]
    wanted += ["mokutil --sb-state", "use a signed image", "or switch it off", "drain and reboot", "fatal", "Inventory"]
    for words in (*wanted, "5.15.0-1", "1 passed"):
        assert words in said


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], "Nothing was checked."),
        ([Outcome.PASS, Outcome.SKIP], "Everything that was checked is in order."),
        ([Outcome.UNKNOWN], "1 unknown"),
        ([Outcome.FAIL, Outcome.WARN, Outcome.PASS], "1 failure, 1 warning"),
    ],
)
def test_the_verdict_never_takes_what_is_unknown_for_good(outcomes: list[Outcome], verdict: str) -> None:
    findings = [_finding(f"A{number}", outcome) for number, outcome in enumerate(outcomes)]
    assert f">{verdict}</p>" in html.page("x", facts={}, findings=findings)


def test_what_comes_from_the_cluster_is_text_and_nothing_is_loaded_or_run() -> None:
    finding = _finding(
        node=HOSTILE,
        evidence=(Evidence(HOSTILE, "<img src=x onerror=alert(1)>"),),
        cause=HOSTILE,
        confirm=HOSTILE,
        fix=(HOSTILE,),
        docs=HOSTILE,
    )
    section = html.Section(title=HOSTILE, head=(HOSTILE,), rows=((HOSTILE,),), text=f"+{HOSTILE}", note=HOSTILE)
    page = html.page(HOSTILE, facts={HOSTILE: HOSTILE}, findings=[finding], sections=[section])
    reader = _Reader(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(reader.elements)
    assert {value for _, value in reader.loads} == {"#L1"}
    assert not re.search(r"url\(|@import|https?:", html._STYLE)
    assert "default-src 'none'" in page
    assert "\u202e" not in page
    assert "\\u202enode" in reader.said


@settings(max_examples=60)
@given(st.text(), st.text())
def test_any_text_makes_a_well_formed_page(one: str, other: str) -> None:
    finding = _finding(node=one, evidence=(Evidence(other, one),), fix=(other, one))
    section = html.Section(title=one, rows=((one, other),), text=other)
    page = html.page(one, facts={one: other}, findings=[finding], sections=[section])
    assert _Reader(page).open == []
    page.encode()


def test_secrets_do_not_get_onto_the_page() -> None:
    finding = _finding(cause="NGC_API_KEY=planted-1 was refused", evidence=(Evidence("env", "DB_PASSWORD=planted-2"),))
    text = "   - name: API_TOKEN\n     value: planted-3\n"
    section = html.Section(title="x", rows=(("password: planted-4",),), text=text)
    page = html.page("x", facts={"proxy": "http://me:planted-5@proxy:3128"}, findings=[finding], sections=[section])
    assert "planted" not in page


def test_a_page_of_5000_nodes_stays_small_and_counts_what_it_leaves_out() -> None:
    each = [
        _finding(node=f"node-{n}.example.com", evidence=(Evidence(f"node-{n}", f"{n} " + "y" * 200),), cause=f"{n}")
        for n in range(5000)
    ]
    rows = tuple((f"node-{n}", "Ubuntu", "x" * 40) for n in range(5000))
    page = html.page("x", facts={}, findings=each, sections=[html.Section(title="Nodes", rows=rows, text="z" * 10**6)])
    assert len(page) < 1_500_000
    assert "5,000 failures on 5,000 nodes" in page
    assert f"and {5000 - html.FINDINGS_SHOWN:,} more findings" in page
    assert f"and {5000 - html.ROWS_FOLDED:,} more rows" in page
    same = [_finding(node=f"node-{n}.example.com") for n in range(5000)]
    page = html.page("x", facts={}, findings=same)
    assert len(page) < 250_000
    assert f"and {5000 - html.NODES_FOLDED:,} more nodes" in page


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    html.write(tmp_path / "report.html", "<p>")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        html.write(tmp_path / "nowhere" / "report.html", "<p>")


# --- In a browser ----------------------------------------------------------------------------------------------------

browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")


def _chromium(tmp_path: Path, *arguments: str) -> str:
    assert CHROMIUM is not None
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    return subprocess.run(
        [CHROMIUM, *flags, *arguments], check=True, capture_output=True, text=True, timeout=120, cwd=tmp_path
    ).stdout


def _long() -> str:
    word = "x" * 300
    finding = _finding(node=word, evidence=(Evidence(word, word),), cause=word, confirm=word, fix=(word, word))
    section = html.Section(title=word, head=("node", word), rows=((word, word),) * 3, text=f"+{word}", note=word)
    return html.page(word, facts={word: word}, findings=[finding], sections=[section])


@browser
def test_a_phone_shows_it_without_scrolling_sideways(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(_long())
    script = "const d=frame.contentDocument.documentElement; document.title=[d.clientWidth,d.scrollWidth].join()"
    embedded = _long().replace("&", "&amp;").replace('"', "&quot;")
    (tmp_path / "frame.html").write_text(
        f'<iframe id="frame" style="border:0;width:360px;height:800px" srcdoc="{embedded}"></iframe>'
        f"<script>onload=()=>{{{script}}}</script>"
    )
    shown = _chromium(tmp_path, "--dump-dom", (tmp_path / "frame.html").as_uri())
    found = re.search(r"<title>(\d+),(\d+)</title>", shown)
    assert found is not None
    assert found[1] == "360" == found[2]


@browser
def test_paper_has_what_is_folded_on_the_screen(tmp_path: Path) -> None:
    def pages(rows: int) -> int:
        section = html.Section(title="Nodes", head=("node",), rows=(("gpu",),) * rows, folded=True)
        (tmp_path / "page.html").write_text(html.page("x", facts={}, findings=[], sections=[section]))
        target = tmp_path / "page.pdf"
        _chromium(tmp_path, f"--print-to-pdf={target}", (tmp_path / "page.html").as_uri())
        return len(re.findall(rb"/Type /Page\b(?!s)", target.read_bytes()))

    assert pages(5) == 1
    assert pages(300) > 5
