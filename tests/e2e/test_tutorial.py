"""The commands of the tutorial and of the guides run as they stand, and print what these documents show."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from e2e.lab_home import LabHome

pytestmark = pytest.mark.kubectl

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 240.0
"""Real seconds after which a document counts as hanging."""
LABS = ("default", "broken", "bare")


class Step(NamedTuple):
    """A block of commands and the lines that the document shows below it; `fails` when its last command must."""

    commands: str
    shown: list[str]
    fails: bool


def steps(document: str) -> list[Step]:
    """The blocks marked `sh run` or `sh run fails`, each with the `text` block that follows."""
    found: list[Step] = []
    for block in BLOCK.finditer(document):
        kind, text = block["kind"], block["text"]
        if kind in ("sh run", "sh run fails"):
            found.append(Step(text, [], kind.endswith("fails")))
        elif kind == "text":
            found[-1].shown.extend(text.splitlines())
        else:
            assert kind in ("sh", "yaml"), f"a block of an unknown kind: {kind!r}"
    return found


def script(found: list[Step]) -> str:
    """One bash script; each step's output stands between two marks."""
    parts = ["exec 2>&1"]
    for number, step in enumerate(found):
        before, after = ("set +e", "test $? -ne 0 || exit 99") if step.fails else ("set -e", "")
        parts += [f"echo '=== step {number}'", before, step.commands, after]
    return "\n".join(parts) + "\necho '=== end'\n"


def missing(shown: list[str], printed: str) -> list[str]:
    """The shown lines that were not printed in that order; blanks count as one, `…` stands for anything."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    patterns = [re.escape(" ".join(line.split())).replace("…", ".*") for line in shown]
    return [pattern for pattern in patterns if not any(re.fullmatch(pattern, line) for line in lines)]


def run_script(home: LabHome, text: str) -> tuple[int, str]:
    """Run a bash script; its exit status and what it printed. One that hangs is ended with all it started."""
    output = home.folder / "tutorial.out"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            ["bash", "-c", text], stdout=stream, env=home.environment, cwd=home.folder, start_new_session=True
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code, output.read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[LabHome]:
    home = LabHome(tmp_path)
    shutil.copytree(ROOT / "tests/data/clusterpolicy", tmp_path / "tests/data/clusterpolicy")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    try:
        yield home
    finally:
        for name in LABS:
            home.close(name)


@pytest.mark.parametrize(
    ("document", "least"),
    [("tutorial.md", 13), ("lab-tour.md", 20), ("mig.md", 6), ("metrics.md", 4), ("driver-upgrades.md", 8)],
)
def test_a_documents_commands_do_what_it_says(home: LabHome, document: str, least: int) -> None:
    found = steps((ROOT / "docs" / document).read_text(encoding="utf-8"))
    assert len(found) >= least
    code, printed = run_script(home, script(found))
    outputs = re.split(r"^=== (?:step \d+|end)$\n?", printed, flags=re.MULTILINE)[1:]
    assert code == 0, f"step {len(outputs) - 1} ended with {code}:\n{outputs[-1]}"
    for step, printed in zip(found, outputs, strict=False):
        assert missing(step.shown, printed) == [], f"{step.commands}\nprinted:\n{printed}"


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/lab.md",
        "docs/tutorial.md",
        "docs/lab-tour.md",
        "docs/mig.md",
        "docs/metrics.md",
        "docs/driver-upgrades.md",
    ],
)
def test_links_lead_somewhere(document: str) -> None:
    """Files that these documents point to exist."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / document).parent / target).exists(), f"{document} points to {target}"
