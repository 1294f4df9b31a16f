"""CDI documents: fields, versions, names and rules (contracts/toolkit-cdi.md 1.1 to 1.4)."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from groundplane.node.cdi import model, write
from groundplane.node.cdi.model import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

NODE = ContainerEdits(device_nodes=(DeviceNode("/dev/x"),))


def spec(edits: ContainerEdits = NODE, *, name: str = "GPU-1", kind: str = "example.com/gpu", **more: Any) -> Spec:
    return Spec(kind=kind, devices=(Device(name, edits),), **more)


@pytest.mark.parametrize(
    ("document", "version"),
    [
        (spec(), "0.3.0"),
        (spec(ContainerEdits(mounts=(Mount("/a", "/a"),))), "0.3.0"),
        (spec(ContainerEdits(mounts=(Mount("/a", "/a", type="bind"),))), "0.4.0"),
        (spec(ContainerEdits(device_nodes=(DeviceNode("/dev/x", host_path="/root/dev/x"),))), "0.5.0"),
        (spec(name="0"), "0.5.0"),
        (spec(name="0:1"), "0.5.0"),
        (spec(annotations={"a": "b"}), "0.6.0"),
        (Spec(kind="a.b/c", devices=(Device("d", NODE, {"a": "b"}),)), "0.6.0"),
        (spec(kind="example.com/gpu.coherent"), "0.6.0"),
        (spec(kind="k8s.device-plugin.nvidia.com/gpu"), "0.3.0"),
        (spec(ContainerEdits(additional_gids=(44,))), "0.7.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(clos_id="x"))), "0.7.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(schemata=("x",)))), "1.1.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))), "1.1.0"),
        (spec(ContainerEdits(net_devices=(NetDevice("eth0", "net0"),))), "1.1.0"),
        (spec(container_edits=ContainerEdits(additional_gids=(44,))), "0.7.0"),
        (spec(ContainerEdits(additional_gids=(44,), mounts=(Mount("/a", "/a", type="bind"),))), "0.7.0"),
    ],
)
def test_1_2_minimum_version(document: Spec, version: str) -> None:
    assert json.loads(model.encode(document))["cdiVersion"] == version


def test_1_1_names_of_fields() -> None:
    node = DeviceNode("/dev/x", "/h/dev/x", "c", 195, 0, 0o666, "rwm", 0, 44)
    hook = Hook("createContainer", "/bin/hook", ("hook", "a"), ("A=B",), 5)
    rdt = IntelRdt("id", "l3", "mb", ("s",), True)
    edits = ContainerEdits(
        env=("A=B",),
        device_nodes=(node,),
        net_devices=(NetDevice("eth0", "net0"),),
        hooks=(hook,),
        mounts=(Mount("/h", "/c", ("ro",), "bind"),),
        intel_rdt=rdt,
        additional_gids=(44,),
    )
    document = Spec(kind="a.b/c", annotations={"k": "v"}, devices=(Device("d", edits, {"k": "v"}),))
    written = {
        "env": ["A=B"],
        "deviceNodes": [
            {
                "path": "/dev/x",
                "hostPath": "/h/dev/x",
                "type": "c",
                "major": 195,
                "fileMode": 438,
                "permissions": "rwm",
                "uid": 0,
                "gid": 44,
            }
        ],
        "netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/bin/hook",
                "args": ["hook", "a"],
                "env": ["A=B"],
                "timeout": 5,
            }
        ],
        "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro"], "type": "bind"}],
        "intelRdt": {
            "closID": "id",
            "l3CacheSchema": "l3",
            "memBwSchema": "mb",
            "schemata": ["s"],
            "enableMonitoring": True,
        },
        "additionalGids": [44],
    }
    assert json.loads(model.encode(document)) == {
        "cdiVersion": "1.1.0",
        "kind": "a.b/c",
        "annotations": {"k": "v"},
        "devices": [{"name": "d", "containerEdits": written, "annotations": {"k": "v"}}],
    }
    assert msgspec.json.decode(model.encode(document), type=Spec).devices == document.devices


BAD = [
    (spec(kind="1a/gpu"), "vendor '1a'"),
    (spec(kind="a-/gpu"), "vendor 'a-'"),
    (spec(kind="a"), "class ''"),
    (spec(kind="a/g pu"), "class 'g pu'"),
    (Spec(kind="a/b", devices=()), "there are no devices"),
    (Spec(kind="a/b", devices=(Device("d", NODE), Device("d", NODE))), "device d is there twice"),
    (spec(name="a/b"), "device name 'a/b'"),
    (spec(name=":a"), "device name ':a'"),
    (spec(ContainerEdits()), "device GPU-1: empty device edits"),
    (spec(cdi_version="0.2.0"), "version '0.2.0'"),
    (spec(ContainerEdits(env=("=x",))), "variable '=x'"),
    (spec(ContainerEdits(env=("x",))), "variable 'x'"),
    (spec(ContainerEdits(device_nodes=(DeviceNode(""),))), "needs a path"),
    (spec(ContainerEdits(device_nodes=(DeviceNode("/d", type="z"),))), "type 'z'"),
    (spec(ContainerEdits(device_nodes=(DeviceNode("/d", permissions="rx"),))), "permissions 'rx'"),
    (spec(ContainerEdits(mounts=(Mount("", "/a"),))), "both paths"),
    (spec(ContainerEdits(hooks=(Hook("later", "/h"),))), "'later' is none of"),
    (spec(ContainerEdits(hooks=(Hook("poststop", "h"),))), "must be absolute"),
    (spec(ContainerEdits(hooks=(Hook("poststop", "/h", timeout=0),))), "timeout 0"),
    (spec(ContainerEdits(hooks=(Hook("poststop", "/h", env=("x",)),))), "variable 'x'"),
    (spec(ContainerEdits(net_devices=(NetDevice("a", "x"), NetDevice("a", "y")))), "host interface name"),
    (spec(ContainerEdits(net_devices=(NetDevice("a", ""),))), "each interface name"),
    (spec(container_edits=ContainerEdits(env=("x",))), "all devices: variable 'x'"),
]


@pytest.mark.parametrize(("document", "text"), BAD, ids=[text for _, text in BAD])
def test_1_1_and_1_3_rules(document: Spec, text: str) -> None:
    with pytest.raises(model.SpecError) as caught:
        model.encode(document)
    assert text in str(caught.value)
    assert str(caught.value).startswith(f"CDI spec {document.kind}: ")


@pytest.mark.parametrize(
    "kind", ["x/y", "a_b.c-d/e_f.g-h", "k8s.device-plugin.nvidia.com/imex-channel", f"{'a' * 300}/{'b' * 100}"]
)
@pytest.mark.parametrize("name", ["0", "0:1", "GPU-5a", "all", "a_b.c:d-e"])
def test_1_3_names_that_are_good(kind: str, name: str) -> None:
    model.check(spec(kind=kind, name=name))


def test_1_4_a_spec_is_replaced_in_one_step_and_readable_by_all(tmp_path: Path) -> None:
    def path(name: str) -> Path:
        return tmp_path / name.lstrip("/")

    name = write.write(spec(kind="a.b/gpu"), path)
    assert name == "/var/run/cdi/a.b-gpu.yaml"
    real = path(name)
    assert real.stat().st_mode & 0o777 == 0o644
    before = real.read_bytes()
    with pytest.raises(model.SpecError):
        write.write(Spec(kind="a.b/gpu", devices=()), path)
    assert real.read_bytes() == before
    assert [entry.name for entry in real.parent.iterdir()] == ["a.b-gpu.yaml"]
    write.remove("a.b/gpu", path)
    write.remove("a.b/gpu", path)
    assert not real.exists()
