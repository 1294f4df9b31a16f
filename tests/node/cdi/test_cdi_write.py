"""Writing CDI spec files: names, formats, permissions, and what stays when something fails (toolkit-cdi.md 1.4)."""

import errno
import json
import os
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import hostroot
from groundplane.node.cdi import model, read, write
from groundplane.node.cdi.model import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from groundplane.node.cdi.write import Format

SPEC = Spec(kind="nvidia.com/gpu", devices=(Device("0", ContainerEdits(env=("A=B",))),))


@pytest.fixture
def process(tmp_path: Path) -> FakeProcess:
    return FakeProcess(tmp_path)


@pytest.mark.parametrize(
    ("transient_id", "form", "expected"),
    [
        ("", Format.YAML, "nvidia.com-gpu.yaml"),
        ("", Format.JSON, "nvidia.com-gpu.json"),
        ("c1", Format.YAML, "nvidia.com-gpu_c1.yaml"),
        ("a/b/c", Format.JSON, "nvidia.com-gpu_a_b_c.json"),
    ],
)
def test_names(transient_id: str, form: Format, expected: str) -> None:
    assert write.file_name("nvidia.com/gpu", transient_id, format=form) == expected


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("", None, "nvidia.com-gpu.yaml"),
        ("", Format.JSON, "nvidia.com-gpu.json"),
        ("x.json", None, "x.json"),
        ("x.yaml", Format.JSON, "x.yaml"),
        ("x", None, "x.yaml"),
        ("x.yml", None, "x.yml.yaml"),
        ("x", Format.JSON, "x.json"),
        ("x.d", Format.JSON, "x.d.json"),
    ],
)
def test_the_name_tells_the_format(process: FakeProcess, name: str, form: Format | None, expected: str) -> None:
    target = write.write(SPEC, process.path, name=name, format=form)
    assert target == f"/var/run/cdi/{expected}"
    content = process.path(target).read_bytes()
    assert content.startswith(b"{" if expected.endswith(".json") else b"---\n")
    assert read.decode(content, target).devices == SPEC.devices


def test_readable_by_all_whatever_the_umask(process: FakeProcess) -> None:
    before = os.umask(0o077)
    try:
        target = write.write(SPEC, process.path, "/run/new/cdi/")
    finally:
        os.umask(before)
    real = process.path(target)
    assert target == "/run/new/cdi/nvidia.com-gpu.yaml"
    assert real.stat().st_mode & 0o777 == 0o644
    assert [folder.stat().st_mode & 0o777 for folder in (real.parent, real.parent.parent)] == [0o755, 0o755]
    real.chmod(0o600)
    write.write(SPEC, process.path, "/run/new/cdi")
    assert real.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("form", Format)
def test_the_same_content_writes_nothing(process: FakeProcess, form: Format) -> None:
    real = process.path(write.write(SPEC, process.path, format=form))
    os.utime(real, ns=(1, 1))
    before = real.stat()
    folder = real.parent.stat()
    write.write(SPEC, process.path, format=form)
    after = real.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert real.parent.stat().st_mtime_ns == folder.st_mtime_ns
    other = Spec(kind=SPEC.kind, devices=(*SPEC.devices, Device("1", ContainerEdits(env=("A=B",)))))
    write.write(other, process.path, format=form)
    assert real.stat().st_ino != before.st_ino
    assert [entry.name for entry in real.parent.iterdir()] == [real.name]


def test_whether_it_was_another(process: FakeProcess) -> None:
    assert [write.replace("/x/f", content, process.path) for content in (b"a", b"a", b"b")] == [True, False, True]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "mount its file system writable"),
        (errno.EACCES, "let this program write there"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_failure_leaves_the_old_file_whole(
    process: FakeProcess, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    real = process.path(write.write(SPEC, process.path))
    before = real.read_bytes()

    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(hostroot.os, "fsync", fail)
    other = Spec(kind=SPEC.kind, devices=(Device("1", ContainerEdits(env=("A=B",))),))
    with pytest.raises(OSError, match=remedy) as caught:
        write.write(other, process.path)
    assert caught.value.errno == number
    assert "/var/run/cdi/nvidia.com-gpu.yaml" in str(caught.value)
    assert "any earlier one is unchanged" in str(caught.value)
    assert real.read_bytes() == before
    assert [entry.name for entry in real.parent.iterdir()] == [real.name]


def test_a_file_where_the_folder_must_be(process: FakeProcess) -> None:
    process.write("/var/run/cdi", "")
    with pytest.raises(OSError, match="remove the file that is where a folder must be"):
        write.write(SPEC, process.path)


def test_a_folder_where_the_file_must_be(process: FakeProcess) -> None:
    process.root.mkdir("/var/run/cdi/nvidia.com-gpu.yaml")
    with pytest.raises(OSError, match="remove the folder of that name"):
        write.write(SPEC, process.path)


def test_a_wrong_spec_leaves_the_old_file_whole(process: FakeProcess) -> None:
    real = process.path(write.write(SPEC, process.path))
    before = real.read_bytes()
    with pytest.raises(model.SpecError, match="empty device edits"):
        write.write(Spec(kind=SPEC.kind, devices=(Device("0", ContainerEdits()),)), process.path)
    assert real.read_bytes() == before


def test_removal(process: FakeProcess) -> None:
    for form in Format:
        real = process.path(write.write(SPEC, process.path, format=form))
        write.remove(SPEC.kind, process.path, format=form)
        write.remove(SPEC.kind, process.path, format=form)
        assert not real.exists()


EVERYTHING = ContainerEdits(
    env=("A=B",),
    device_nodes=(DeviceNode("/p", "/h", "c", 195, 3, 0o666, "rwm", 0, 44),),
    net_devices=(NetDevice("eth0", "net0"),),
    hooks=(Hook("createContainer", "/h", ("h", "0:1"), ("A=B",), 5),),
    mounts=(Mount("/h", "/c", ("ro", "bind"), "bind"),),
    intel_rdt=IntelRdt("id", "l3", "mb", ("s",), True),
    additional_gids=(44,),
)
WRITTEN = """\
---
cdiVersion: 1.1.0
kind: a.b/gpu
annotations:
  k: v
devices:
- name: 0:1
  annotations:
    k: 'null'
  containerEdits:
    env:
    - A=B
    deviceNodes:
    - path: /p
      hostPath: /h
      type: c
      major: 195
      minor: 3
      fileMode: 438
      permissions: rwm
      uid: 0
      gid: 44
    netDevices:
    - hostInterfaceName: eth0
      name: net0
    hooks:
    - hookName: createContainer
      path: /h
      args:
      - h
      - 0:1
      env:
      - A=B
      timeout: 5
    mounts:
    - hostPath: /h
      containerPath: /c
      options:
      - ro
      - bind
      type: bind
    intelRdt:
      closID: id
      l3CacheSchema: l3
      memBwSchema: mb
      schemata:
      - s
      enableMonitoring: true
    additionalGids:
    - 44
containerEdits:
  env:
  - C=D
"""


def test_1_1_yaml_has_the_order_of_the_tables_and_decimal_numbers() -> None:
    spec = Spec(
        kind="a.b/gpu",
        annotations={"k": "v"},
        devices=(Device("0:1", EVERYTHING, {"k": "null"}),),
        container_edits=ContainerEdits(env=("C=D",)),
    )
    assert write.encode(spec, Format.YAML).decode() == WRITTEN
    written = json.loads(write.encode(spec, Format.JSON))
    assert list(written) == ["cdiVersion", "kind", "annotations", "devices", "containerEdits"]
    assert list(written["devices"][0]) == ["name", "annotations", "containerEdits"]


def test_long_texts_stay_on_their_line() -> None:
    spec = Spec(kind="a/b", devices=(Device("d", ContainerEdits(env=(f"A={'x y ' * 500}z",))),))
    assert len(write.encode(spec, Format.YAML).splitlines()) == 8


@pytest.mark.parametrize("form", Format)
def test_characters_that_yaml_forbids_are_escaped(form: Format) -> None:
    env = ("A=\x00\x7f\x85\u2028\ufeff\uffff\U0001f600é",)
    spec = Spec(kind="a/b", devices=(Device("d", ContainerEdits(env=env)),))
    assert read.decode(write.encode(spec, form), "x").devices[0].container_edits.env == env
