"""Archives: what is written is read back equal; hostile and foreign files give what could be read, and no crash."""

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.admin import sources
from groundplane.diagnose import archive, collect, doctor, safetar
from groundplane.diagnose.archive import Captured
from groundplane.diagnose.evidence import Command, KernelLog, Log, NodeFacts
from groundplane.diagnose.survey import Survey


def node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
    }


def pod(name: str, on: str) -> dict[str, Any]:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "gpu-operator", "labels": {"app": "nvidia-driver-daemonset"}},
        "spec": {"nodeName": on, "containers": [{"name": "nvidia-driver-ctr", "image": "driver"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "nvidia-driver-ctr", "ready": False, "restartCount": 3, "state": waiting, "image": "driver"}
            ],
        },
    }


def captured() -> archive.Captured:
    survey = Survey.of([node("a"), node("b"), pod("d-a", "a")], version="v1.34.1", at=1.7e9, read=["events"])
    log = Log(text="Could not resolve Linux kernel version\n", pod="d-a", container="nvidia-driver-ctr", node="a")
    return archive.Captured(
        survey=survey,
        logs=(log, Log(text="lone \ud800", pod="x/../y", previous=True)),
        kernel=(KernelLog(text="NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", node="b"),),
        facts=(NodeFacts(name="a", facts={"secure_boot": True}, commands={"lsmod": Command("nvidia", 0)}),),
        missing=("logs of x were not read",),
    )


def packed(files: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files:
            info = tarfile.TarInfo(f"must-gather/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("shape", ["tar", "folder"])
def test_what_is_written_is_read_back_equal_and_judged_equal(tmp_path: Path, shape: str) -> None:
    one, path = captured(), tmp_path / "it"
    if shape == "tar":
        path.write_bytes(packed(list(archive.entries(one))))
    else:
        for name, data in archive.entries(one):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    assert archive.load(path) == one
    live, offline = one.evidence(), archive.open(path)
    assert offline == live
    assert doctor.report(doctor.diagnose(offline), offline) == doctor.report(doctor.diagnose(live), live)
    assert sources.survey_of(path) == one.survey


def test_lost_files_and_damaged_lines_are_told_not_taken_for_empty(tmp_path: Path) -> None:
    files = dict(archive.entries(captured()))
    files["objects/nodes.0000.jsonl"] = files["objects/nodes.0000.jsonl"][:-9]
    del files["objects/pods.0000.jsonl"], files[next(name for name in files if name.startswith("logs/00000"))]
    (tmp_path / "it.tgz").write_bytes(packed(list(files.items())))
    found = archive.load(tmp_path / "it.tgz")
    assert len(found.survey.of_kind("nodes")) == 1 and not found.survey.knows("pods")
    assert {"nodes", "pods"} <= set(found.survey.unread)
    assert any("damaged" in each for each in found.missing) and any("1 logs" in each for each in found.missing)


def test_names_of_nvidias_must_gather_are_known(tmp_path: Path) -> None:
    (tmp_path / "gpu_operand_pod_nvidia-driver-x.previous.log").write_text("it failed\n")
    (tmp_path / "cluster_policy.yaml").write_text(
        "apiVersion: v1\nkind: List\nitems:\n"
        "- apiVersion: nvidia.com/v1\n  kind: ClusterPolicy\n  metadata: {name: p}\n"
    )
    (tmp_path / "gpu_operand_ds.yaml").write_text("apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: [")
    bug = tmp_path / "nvidia-bug-report_n1.log.gz"
    bug.write_bytes(gzip.compress(b"[ 12.3] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"))
    found = archive.load(tmp_path)
    assert [each["metadata"]["name"] for each in found.survey.of_kind("clusterpolicies")] == ["p"]
    assert [(each.pod, each.previous) for each in found.logs] == [("nvidia-driver-x", True)]
    assert any("gpu_operand_ds.yaml" in each for each in found.missing)
    assert "it was not captured" in found.survey.unread["nodes"]
    assert [(each.node, "fallen off" in each.text) for each in found.kernel] == [("n1", True)]
    causes = doctor.diagnose(found.evidence()).causes
    assert any("n1" in (*cause.finding.nodes, cause.finding.node) for cause in causes)


def hostile() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (
            *(
                ("link", tarfile.SYMTYPE),
                ("hard", tarfile.LNKTYPE),
                ("dev", tarfile.CHRTYPE),
                ("fifo", tarfile.FIFOTYPE),
            ),
            *(("/abs.yaml", tarfile.REGTYPE), ("a/../../up.yaml", tarfile.REGTYPE)),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        text = b"apiVersion: v1\nkind: Node\nmetadata: {name: a}\n"
        info = tarfile.TarInfo("ok.yaml")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return out.getvalue()


def test_links_devices_and_names_that_climb_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "it.tar").write_bytes(hostile())
    found = archive.load(tmp_path / "it.tar")
    assert len(found.survey.of_kind("nodes")) == 1 and len(found.missing) == 6
    assert [each.name for each in tmp_path.iterdir()] == ["it.tar"]


def test_links_and_pipes_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out.yaml").symlink_to("/etc/hostname")
    with pytest.raises(archive.ArchiveError, match="was not read"):
        archive.load(tmp_path)


def test_bombs_end_at_the_limits(tmp_path: Path) -> None:
    limits = safetar.Limits(members=5, member_bytes=1 << 10, total_bytes=1 << 20)
    bomb = tmp_path / "bomb.log.gz"
    bomb.write_bytes(gzip.compress(bytes(8 << 20)))
    (found,) = safetar.members(bomb, limits)
    assert len(found.data) <= 1 << 10 and "more than may be read" in found.trouble
    many = tmp_path / "many.tgz"
    many.write_bytes(packed([(f"{number}.log", b"x") for number in range(9)]))
    *_, last = safetar.members(many, limits)
    assert "more than 5 files" in last.trouble
    laughs = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    (tmp_path / "laughs.yaml").write_text(laughs)
    with pytest.raises(archive.ArchiveError):
        archive.load(tmp_path / "laughs.yaml")


def test_an_empty_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(archive.ArchiveError, match="holds nothing"):
        archive.load(tmp_path)


WHOLE = packed(list(archive.entries(captured())))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_damage_crashes(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from((WHOLE, gzip.decompress(WHOLE), hostile()))))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "it.tgz")
        path.write_bytes(raw)
        try:
            archive.open(path)
        except archive.ArchiveError as error:
            assert "it.tgz" in str(error)
        assert [each.name for each in Path(folder).iterdir()] == ["it.tgz"]


SMILES = "\N{GRINNING FACE}" * 900


def whole_capture() -> Captured:
    """All logs of two pods, one of which is not well; more of each than a doctor reads."""

    def pod(name: str, ready: bool) -> dict[str, Any]:
        state = {"running": {}} if ready else {"waiting": {"reason": "CrashLoopBackOff"}}
        status = {"name": "c", "ready": ready, "restartCount": 0 if ready else 3, "state": state}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "gpu-operator", "labels": {"app": "nvidia-driver-daemonset"}},
            "spec": {"nodeName": name, "containers": [{"name": "c"}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [{**status, "lastState": {"terminated": {"exitCode": 1}}}],
            },
        }

    long = "\n".join(f"{SMILES} {number}" for number in range(1500))
    after = "\n".join("x" * 80 for _ in range(150))
    cause = f"{long}\nCould not resolve Linux kernel version\n{after}"
    survey = Survey(namespace="gpu-operator", objects={"pods": (pod("sick", False), pod("well", True))})
    logs = [
        Log(text=text, pod=name, container="c", namespace="gpu-operator", node=name, previous=previous)
        for name, text in (("sick", cause), ("well", cause))
        for previous in (False, True)
    ]
    return Captured(survey=survey, logs=tuple(logs), whole=True)


def test_of_an_archive_of_all_logs_those_that_tell_are_kept_and_give_the_same(tmp_path: Path) -> None:
    captured = whole_capture()
    folder = tmp_path / "it"
    for name, content in archive.entries(captured):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    lean, full = archive.open(folder), archive.load(folder).evidence()
    assert lean == full == captured.evidence()
    assert [(log.pod, log.previous) for log in lean.logs] == [("sick", False), ("sick", True)]
    assert all(len(log.text.split("\n")) <= collect.LOG_LINES for log in lean.logs)
    assert [cause.finding.id for cause in doctor.diagnose(lean).causes] == ["S10"]
    named = archive.open(folder, ("gpu-operator", "well"))
    assert {log.pod for log in named.logs} == {"sick", "well"}
