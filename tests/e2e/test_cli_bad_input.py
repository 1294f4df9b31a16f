"""Bad files and flags given to the commands: one line that says what and where, exit status 1 or 2, no traceback."""

from pathlib import Path

import click.testing
import pytest
from attack_harness import DATA

from groundplane.cli.main import main

HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: a}\n"
BOMB = "".join(f"b{n}: &a{n} [*a{n - 1},*a{n - 1},*a{n - 1}]\n" for n in range(1, 40))
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "malformed": ("a: [1,\n b: }", ("neither YAML nor JSON", "line 2")),
    "text": ("just text", ("expected a mapping", "str")),
    "list": ("[1, 2]", ("expected a mapping", "list")),
    "empty": ("", ("found 0", "nothing")),
    "other kind": ("apiVersion: v1\nkind: Pod\n", ("expected one ClusterPolicy", "Pod")),
    "twice": (f"{HEAD}---\n{HEAD}", ("found 2",)),
    "other version": (HEAD.replace("/v1", "/v9"), ("apiVersion", "nvidia.com/v9")),
    "nameless": (HEAD.replace("{name: a}", "{}"), ("metadata.name",)),
    "wrong type": (HEAD + "spec: {driver: {enabled: 'yes'}}", ("spec.driver.enabled",)),
    "spec a list": (HEAD + "spec: []", ("spec", "list")),
    "repeated key": (HEAD + "spec:\n  driver: {}\n  driver: {}\n", ("'driver' is given twice", "line 6")),
    "number as key": (HEAD + "spec: {1: 2}", ("spec.1", "quotes")),
    "alias bomb": (HEAD + 'a: &a0 ["lol"]\n' + BOMB, ("aliases stand for more than",)),
    "alias in itself": (HEAD + "spec: &s\n  driver: *s\n", ("alias stands inside",)),
    "deep nesting": (HEAD + "spec: " + "[" * 5000 + "]" * 5000, ("nesting",)),
    "python tag": ("kind: !!python/object/apply:os.system ['x']\n", ("constructor",)),
}
FLAGS: list[tuple[list[str], tuple[str, ...]]] = [
    (["lab", "up", "--port", "99999"], ("--port", "65535")),
    (["lab", "up", "--name", "../../evil"], ("--name", "../../evil")),
    (["lab", "up", "--nodes", "0"], ("expected 1 or more",)),
    (["lab", "up", "--nodes", "/nonexistent"], ("/nonexistent", "cannot be read")),
    (["lab", "up", "--nodes", str(DATA / "26.7.0-default.yaml")], ("unknown field", "node file")),
    (["lab", "up", "--speed", "0"], ("--speed",)),
    (["lab", "down"], ("no lab named 'default'",)),
    (["lab", "status"], ("no lab named 'default'",)),
    (["plan", "--kubeconfig", "/nonexistent"], ("/nonexistent", "cannot be read")),
    (["render", "-f", str(DATA / "26.7.0-default.yaml"), "--release", "1.2"], ("--release", "26.7.0")),
    (["render", "-f", str(DATA / "26.7.0-default.yaml"), "--os", "ubuntu"], ("ID:VERSION_ID",)),
]


def refused(argv: list[str], parts: tuple[str, ...]) -> None:
    result = click.testing.CliRunner().invoke(main, argv)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (1, 2)
    assert all(part in result.output for part in parts), result.output


@pytest.mark.parametrize(("text", "parts"), FILES.values(), ids=FILES.keys())
def test_bad_policy_files(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    refused(["render", "-f", str(path)], parts)


@pytest.mark.parametrize(("argv", "parts"), FLAGS, ids=[" ".join(argv[:4])[-30:] for argv, _ in FLAGS])
def test_bad_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], parts: tuple[str, ...]) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))
    refused(argv, parts)


def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )
    refused(["plan", "--kubeconfig", str(config), "--context", "other"], ("no context is named 'other'",))
