"""Hostile archives within bounded memory and without harm: every one is an answer or an error that says what it is."""

import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.diagnose import archive, doctor, safetar, texts

GOOD = b"apiVersion: v1\nkind: Node\nmetadata: {name: a}\n"


def tar(*files: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return out.getvalue()


def sparse() -> bytes:
    info = tarfile.TarInfo("huge.log")
    info.size = 1 << 40
    return gzip.compress(info.tobuf() + b"x" * 4096)


def deep(opening: bytes) -> bytes:
    return opening * 100_000


RULE = b"_" * 30 + b"\n"
BILLION = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (after, after, b",".join([b"*%c" % before] * 10))
    for before, after in zip(b"abcdefgh", b"bcdefghi", strict=True)
)
INNER = gzip.compress(gzip.compress(bytes(64 << 20)))
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nested gzip": lambda: tar(("x.log.gz", INNER), ("ok.yaml", GOOD)),
    "claims a terabyte": sparse,
    "a line of 40 MB": lambda: tar(("ok.yaml", GOOD), ("x.log", b"a" * (40 << 20))),
    "no text": lambda: tar(("ok.yaml", GOOD), ("x.log", bytes(range(256)) * 4000)),
    "UTF-16": lambda: tar(("ok.yaml", GOOD), ("x.log", "NVRM: Xid\n".encode("utf-16") * 1000)),
    "half YAML": lambda: tar(("ok.yaml", GOOD), ("half.yaml", GOOD + b"---\nkind: [\n")),
    "aliases": lambda: tar(("ok.yaml", GOOD), ("bomb.yaml", BILLION)),
    "deep JSON": lambda: tar(("ok.yaml", GOOD), ("x.json", deep(b"["))),
    "deep YAML": lambda: tar(("ok.yaml", GOOD), ("x.yaml", deep(b"["))),
    "deep objects": lambda: tar(
        ("survey.json", b'{"format":"groundplane-must-gather/1"}'), ("objects/pods.0.jsonl", deep(b'{"a":'))
    ),
    "other types": lambda: tar(("ok.yaml", b"kind: Pod\nmetadata: 3\n---\nkind: 7\nmetadata: {name: [1]}\n" + GOOD)),
    "another tool's": lambda: tar(("bundle/analysis.json", b'[{"name":"x","isPass":true}]'), ("bundle/a.txt", b"hi\n")),
}
_JUDGE = (
    "import resource,sys;from pathlib import Path\n"
    "from groundplane.diagnose import archive,doctor\n"
    "try:\n doctor.diagnose(archive.open(Path(sys.argv[1])))\n"
    "except archive.ArchiveError as error:\n print(error)\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024)\n"
)


@pytest.mark.parametrize("kind", HOSTILE)
def test_it_is_judged_or_refused_within_bounded_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    path.write_bytes(HOSTILE[kind]())
    done = subprocess.run([sys.executable, "-c", _JUDGE, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) < 700
    assert [each.name for each in tmp_path.iterdir()] == ["it.tgz"]


def test_cut_anywhere_it_gives_what_came_before(tmp_path: Path) -> None:
    body = b"".join(b"apiVersion: v1\nkind: Node\nmetadata: {name: n%d}\n---\n" % number for number in range(40))
    whole = gzip.decompress(tar(("a.yaml", body), ("b.yaml", GOOD), ("c.log", b"a line\n" * 400)))
    path = tmp_path / "it.tar"
    nodes = []
    for end in range(97 * 6, len(whole), 97):
        path.write_bytes(whole[:end])
        try:
            found = archive.load(path)
        except archive.ArchiveError as error:
            assert "it.tar" in str(error)
            continue
        nodes.append(len(found.survey.of_kind("nodes")))
        assert nodes[-1] == 41 or found.missing
    assert nodes[-1] == 41 and 40 in nodes


def test_a_folder_of_what_cannot_be_read_tells_so_and_reads_the_rest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "out.yaml").symlink_to("/etc/passwd")
    (tmp_path / "ok.yaml").write_bytes(GOOD)
    os.truncate(tmp_path / "ok.yaml", len(GOOD))
    with (tmp_path / "sparse.log").open("wb") as file:
        file.truncate(8 << 30)
    found = archive.load(tmp_path, safetar.Limits(member_bytes=1 << 20))
    assert len(found.survey.of_kind("nodes")) == 1
    assert any("pipe.log" in each for each in found.missing) and any("out.yaml" in each for each in found.missing)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(("x.yaml", "x.json", "x.log", "nvidia-bug-report_n.log", "gpu_operand_pod_a.log", "a.descr")),
    data=st.one_of(
        st.binary(max_size=400),
        st.lists(
            st.sampled_from(
                (
                    b"Name:  a\n",
                    b"---\n",
                    b"kind: Pod\n",
                    b"metadata:\n",
                    b"  name: a\n",
                    RULE,
                    b"[ 1.0] NVRM: Xid (PCI:0: 79\n",
                    b"status: [\n",
                    b"{",
                    b"\xff\xfe",
                    b"\x00",
                )
            ),
            max_size=12,
        ).map(b"".join),
    ),
)
def test_no_text_crashes_the_readers(name: str, data: bytes) -> None:
    try:
        evidence = archive.load_stream("it.tgz", io.BytesIO(tar((name, data)))).evidence()
    except archive.ArchiveError:
        evidence = texts.read(texts.decoded(data))
    doctor.diagnose(evidence)
