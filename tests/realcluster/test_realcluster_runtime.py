"""containerd without a kubelet: its requests, and a container that it starts."""

import pytest
from conftest import unavailable

from testing import gpuimages
from testing.realcluster import build, runtime
from testing.realcluster.runtime import Runtime


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        ({}, b""),
        ({1: "id"}, b"\x0a\x02id"),
        ({2: 300}, b"\x10\xac\x02"),
        ({3: ["a", "b"]}, b"\x1a\x01a\x1a\x01b"),
        ({17: [{1: "gpu"}]}, b"\x8a\x01\x05\x0a\x03gpu"),
        ({1: {}, 15: {2: 0}}, b"\x0a\x00\x7a\x02\x10\x00"),
    ],
)
def test_messages(message: runtime.Message, encoded: bytes) -> None:
    assert runtime.encode(message) == encoded


@pytest.mark.real
def test_a_container_with_a_cdi_device() -> None:
    spec = (
        b'{"cdiVersion": "0.5.0", "kind": "runtime.test/thing", "devices": [{"name": "0", "containerEdits": '
        b'{"deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/null"}]}}]}'
    )
    flavour = gpuimages.FLAVOURS[0]
    try:
        with Runtime() as containerd:
            containerd.write({f"{runtime.CDI_FOLDER}/thing.json": spec})
            containerd.load_image(gpuimages.write((flavour,), containerd.workdir / "image.tar"))
            started = containerd.create_and_start(
                flavour.reference, [gpuimages.IDLE, "stay"], devices=["runtime.test/thing=0"]
            )
            listed = containerd.run(["ctr", "-n", "k8s.io", "tasks", "list"]).decode().splitlines()
            (task,) = (line.split() for line in listed if line.startswith(started))
            assert task[2] == "RUNNING"
            assert containerd.run(["stat", "-c", "%t:%T", f"/proc/{task[1]}/root/dev/thing"]) == b"1:3\n"
            containerd.remove(started)
            assert started not in containerd.run(["ctr", "-n", "k8s.io", "tasks", "list"]).decode()
    except build.UnavailableError as error:
        unavailable(str(error))
