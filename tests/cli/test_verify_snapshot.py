"""``groundplane verify --snapshot``: a file, a folder, an archive and standard input say the same."""

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from groundplane.cli.main import main

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-a", "labels": {"feature.node.kubernetes.io/pci-10de.present": "true"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}, "capacity": {"nvidia.com/gpu": "8"}},
}
POLICY = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy"},
    "spec": {},
    "status": {"state": "notReady"},
}


def verify(*argv: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["verify", "-o", "json", *argv], input=stdin)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, tuple[str, str | None]]:
    """By what it is: the path to give, and what comes in by standard input."""
    stream = yaml.safe_dump_all([NODE, POLICY])
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(yaml.safe_dump(NODE))
    (folder / "policy.json").write_text(json.dumps(POLICY))
    (tmp_path / "all.yaml").write_text(stream)
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(folder, "gathered")
    paths = {"file": "all.yaml", "folder": "folder", "archive": "all.tar.gz"}
    return {name: (str(tmp_path / path), None) for name, path in paths.items()} | {"stdin": ("-", stream)}


def test_every_source_says_the_same(sources: dict[str, tuple[str, str | None]]) -> None:
    said = {}
    for name, (path, stdin) in sources.items():
        result = verify("--snapshot", path, stdin=stdin)
        assert result.exit_code == 3, (name, result.output)
        said[name] = json.loads(result.output)
    assert said["file"]["cluster"]["gpuNodes"] == 1
    outcomes = {
        name: sorted((each["id"], each["outcome"]) for each in document["findings"]) for name, document in said.items()
    }
    assert outcomes["file"] == outcomes["folder"] == outcomes["archive"] == outcomes["stdin"]
    assert ("A65", "fail") in outcomes["file"]


def test_sources_together_are_one_cluster(tmp_path: Path) -> None:
    for name, document in (("a.json", NODE), ("b.json", POLICY)):
        (tmp_path / name).write_text(json.dumps(document))
    result = verify("--snapshot", str(tmp_path / "a.json"), "--snapshot", str(tmp_path / "b.json"))
    document = json.loads(result.output)
    assert document["cluster"]["nodes"] == 1
    assert "A65" in {each["id"] for each in document["findings"] if each["outcome"] == "fail"}


def test_what_is_no_snapshot_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("empty", "nowhere"):
        result = verify("--snapshot", str(tmp_path / path))
        assert (result.exit_code, "--snapshot" in result.output) == (2, True), result.output
