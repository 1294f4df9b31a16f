"""``groundplane doctor`` without a cluster: what is given wrongly is named, what is given rightly is judged."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.cli import doctor
from groundplane.diagnose import texts


def run(*argv: str, given: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(doctor.command, argv, input=given)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--from", "/nowhere/x"), "/nowhere/x cannot be read: No such file"),
        (("--from", "-", "--evidence", "-"), "give one of --from (or --archive) and --evidence"),
        (("--from", "-", "--node", "a"), "go with a live cluster"),
        (("--from", "-", "--node-pods"), "--node-pods looks at a live cluster once"),
        (("--node-image", "x"), "are for --node-pods"),
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


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_of_a_long_text_the_end_is_read_and_that_is_told(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "LARGEST", 1 << 20)
    text = f"{'a line ' * 100}\n" * (5 << 10) + "Could not resolve Linux kernel version\n"
    path = tmp_path / "log"
    path.write_text(text)
    code, told = run("--from", "-", given=text) if way == "stdin" else run("--from", str(path))
    assert code == 3 and "[S10]" in told and "only the last 1 MiB" in " ".join(told.split())


POD = (
    '{"kind":"Pod","apiVersion":"v1","metadata":{"name":"nvidia-driver-daemonset-%d","namespace":"gpu-operator",'
    '"labels":{"app":"nvidia-driver-daemonset"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running",'
    '"containerStatuses":[{"name":"nvidia-driver-ctr","ready":false,"restartCount":4,"state":{"waiting":'
    '{"reason":"CrashLoopBackOff","message":"Could not resolve Linux kernel version"}}}]}}'
)


@pytest.mark.parametrize("form", ["one line of JSON", "long YAML", "too much YAML", "binary", "UTF-16", "NUL", "half"])
def test_texts_of_every_form_are_judged(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_YAML_MOST", 10_000)
    monkeypatch.setattr(texts, "_YAML_ALL", 20_000)
    line = "Could not resolve Linux kernel version\n"
    long = "apiVersion: v1\nkind: List\nitems:\n" + "- kind: Other\n" * 3000
    given = {
        "one line of JSON": f'{{"kind":"List","items":[{",".join(POD % each for each in range(200))}]}}',
        "long YAML": "kind: List\napiVersion: v1\nitems:\n" + "".join(f"- {POD % n}\n" for n in range(30)),
        "too much YAML": long + f"- {POD % 1}\n",
        "binary": bytes(range(256)) * 20_000 + line.encode(),
        "UTF-16": line.encode("utf-16"),
        "NUL": bytes(1 << 20) + line.encode(),
        "half": "apiVersion: v1\nkind: Pod\nmetadata: {name: a\n  x: [\n" + line,
    }[form]
    path = tmp_path / "it"
    path.write_bytes(given.encode() if isinstance(given, str) else given)
    code, told = run("--from", str(path))
    assert code == 3 and "[S10]" in told, told
    assert [each.name for each in tmp_path.iterdir()] == ["it"]
