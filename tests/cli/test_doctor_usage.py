"""``groundplane doctor`` without a cluster: what is given wrongly is named, what is given rightly is judged."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.cli import doctor


def run(*argv: str, given: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(doctor.command, argv, input=given)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--from", "/nowhere/x"), "/nowhere/x cannot be read: No such file"),
        (("--from", "-", "--evidence", "-"), "give one of --from (or --archive) and --evidence"),
        (("--from", "-", "--node", "a"), "go with a live cluster"),
        (("--watch", "-o", "json"), "--watch prints text only"),
        (("--pod", "a/b/c", "--from", "-"), "--pod takes NAMESPACE/NAME"),
        (("--evidence", "-"), "has no field nonsense"),
    ],
)
def test_wrong_use_is_named(argv: tuple[str, ...], told: str) -> None:
    code, text = run(*argv, given="nonsense: 1\n")
    assert code == 2 and told in " ".join(text.split())


@pytest.mark.parametrize("option", ["--from", "--archive"])
def test_pasted_text_is_judged(option: str) -> None:
    code, text = run(option, "-", given="Could not resolve Linux kernel version\n")
    assert code == 3 and "[S10]" in text


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    code, text = run("--from", str(tmp_path))
    assert code == 2 and "holds nothing that is known" in " ".join(text.split())
