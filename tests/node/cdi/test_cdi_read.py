"""Reading CDI spec files: what is taken, what is refused, and what the error says (contracts/toolkit-cdi.md 1)."""

import json
from typing import Any

import pytest

from groundplane.node.cdi import model, read
from groundplane.node.cdi.model import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

MINIMAL = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: 0
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
"""


def text(edits: str, version: str = "1.1.0", more: str = "") -> bytes:
    return f"{{cdiVersion: {version}, kind: a/b, devices: [{{name: d, containerEdits: {edits}}}]{more}}}".encode()


def edits_of(data: bytes) -> ContainerEdits:
    return read.decode(data, "x").devices[0].container_edits


def test_1_1_yaml() -> None:
    assert read.decode(MINIMAL.encode(), "x") == Spec(
        cdi_version="0.5.0",
        kind="nvidia.com/gpu",
        devices=(Device("0", ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0"),))),),
    )


def test_1_1_json_indented_with_tabs() -> None:
    document = {"cdiVersion": "0.3.0", "kind": "a/b", "devices": [{"name": "d", "containerEdits": {"env": ["A=B"]}}]}
    assert edits_of(json.dumps(document, indent="\t").encode()) == ContainerEdits(env=("A=B",))


EVERY_FIELD = [
    ("env: [A=B]", ContainerEdits(env=("A=B",))),
    (
        "deviceNodes: [{path: /p, hostPath: /h, type: c, major: 195, minor: 3, fileMode: 438, permissions: rw, uid: 1, "
        "gid: 0}]",
        ContainerEdits(device_nodes=(DeviceNode("/p", "/h", "c", 195, 3, 0o666, "rw", 1, 0),)),
    ),
    ("netDevices: [{hostInterfaceName: eth0, name: net0}]", ContainerEdits(net_devices=(NetDevice("eth0", "net0"),))),
    (
        "hooks: [{hookName: poststop, path: /h, args: [h, 1], env: [A=], timeout: 5}]",
        ContainerEdits(hooks=(Hook("poststop", "/h", ("h", "1"), ("A=",), 5),)),
    ),
    (
        "mounts: [{hostPath: /h, containerPath: /c, options: [ro], type: bind}]",
        ContainerEdits(mounts=(Mount("/h", "/c", ("ro",), "bind"),)),
    ),
    (
        "intelRdt: {closID: c, l3CacheSchema: l, memBwSchema: m, schemata: [s], enableMonitoring: true}",
        ContainerEdits(intel_rdt=IntelRdt("c", "l", "m", ("s",), True)),
    ),
    ("intelRdt: {}", ContainerEdits(intel_rdt=IntelRdt())),
    ("additionalGids: [0, 44]", ContainerEdits(additional_gids=(0, 44))),
]


@pytest.mark.parametrize(("written", "edits"), EVERY_FIELD)
def test_1_1_fields(written: str, edits: ContainerEdits) -> None:
    assert edits_of(text(f"{{{written}}}")) == edits
    common = read.decode(text("{env: [A=B]}", more=f", containerEdits: {{{written}}}"), "x").container_edits
    assert common == edits


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("0666", 438), ("0o666", 438), ("438", 438), ("0x1b6", 438), ("0X1B6", 438), ("0b110110110", 438)),
        *(("4_3_8", 438), ("438.0", 438), ("4.38e2", 438), ("+438", 438), ("08", 8), ("~", None)),
    ],
)
def test_1_1_numbers(word: str, meant: int | None) -> None:
    assert edits_of(text(f"{{deviceNodes: [{{path: /p, fileMode: {word}}}]}}")).device_nodes[0].file_mode == meant


@pytest.mark.parametrize("word", ["0:1", "1e3", "yes", "0666", "1_0", "2020-01-01"])
def test_plain_words_are_texts_where_texts_are_expected(word: str) -> None:
    assert edits_of(text(f"{{hooks: [{{hookName: poststop, path: /h, args: [{word}]}}]}}")).hooks[0].args == (word,)


def test_what_is_null_is_not_given() -> None:
    data = text("{env: [A=B], mounts: null, intelRdt: ~, hooks: }", more=", annotations: null, containerEdits: ")
    assert read.decode(data, "x").edits
    assert edits_of(data) == ContainerEdits(env=("A=B",))


def test_what_is_null_in_a_list_of_words_is_not_there() -> None:
    assert edits_of(text("{env: [~, A=B, null], additionalGids: [null, 5]}")) == ContainerEdits(
        env=("A=B",), additional_gids=(5,)
    )


def test_anchors_and_merges() -> None:
    data = (
        MINIMAL
        + "- name: '1'\n  containerEdits: &a {env: [A=B]}\n- {name: '2', containerEdits: {<<: *a, mounts: []}}\n"
    )
    assert read.decode(data.encode(), "x").devices[2].container_edits == ContainerEdits(env=("A=B",))


def test_only_the_first_document_counts() -> None:
    assert read.decode(b"---\n" + MINIMAL.encode() + b"---\nfoo: bar\n", "x").kind == "nvidia.com/gpu"


REFUSED = [
    (b"", "there is no CDI spec in it"),
    (b"---\n# nothing\n", "there is no CDI spec in it"),
    (b"{}", "version '' is none of"),
    (b"{cdiVersion: 0.3.0}", "vendor '' must be letters"),
    (b"[]", "line 1: the document: expected a mapping, found a list"),
    (b"{a: [}", "neither YAML nor JSON"),
    (b"\xff\xfe\xff", "neither YAML nor JSON"),
    (b"a: \x00", "neither YAML nor JSON"),
    (b"[" * 100_000, "neither YAML nor JSON"),
    (b"- " * 100_000, "x.yaml: "),
    (MINIMAL.encode() + b"  foo: 1\n", "line 8: devices[0].foo: unknown field; known are name, containerEdits"),
    (text("{Env: [A=B]}"), "devices[0].containerEdits.Env: unknown field; known are env, deviceNodes"),
    (text("{additionalGIDs: [1]}"), "additionalGIDs: unknown field"),
    (text("{intelRdt: {enableCMT: true}}"), "devices[0].containerEdits.intelRdt.enableCMT: unknown field"),
    (text("{env: [A=B], env: [A=C]}"), "the key 'env' is there twice"),
    (text("{env: A=B}"), "devices[0].containerEdits.env: expected a list, found 'A=B'"),
    (text("{env: [[A=B]]}"), "devices[0].containerEdits.env[0]: expected a text, found a list"),
    (text("{env: [{A: B}]}"), "env[0]: expected a text, found a mapping"),
    (text("{mounts: [null]}"), "mounts[0]: expected a mapping, found nothing"),
    (text("{? [a] : b}"), "a key must be a word"),
    (text("{deviceNodes: [{path: /p, major: '195'}]}"), "major: expected a whole number, found '195'"),
    (text("{deviceNodes: [{path: /p, major: 1.5}]}"), "major: expected a whole number, found '1.5'"),
    (text("{deviceNodes: [{path: /p, major: .inf}]}"), "major: expected a whole number, found '.inf'"),
    (text("{deviceNodes: [{path: /p, major: 1e400}]}"), "major: expected a whole number, found '1e400'"),
    (text("{deviceNodes: [{path: /p, major: !!int x}]}"), "major: expected a whole number, found 'x'"),
    (text("{deviceNodes: [{path: /p, major: yes}]}"), "major: expected a whole number, found 'yes'"),
    (text("{deviceNodes: [{path: /p, uid: -1}]}"), "device node /p: uid -1 must be from 0 to 4294967295"),
    (text("{deviceNodes: [{path: /p, major: 9223372036854775808}]}"), "major 9223372036854775808 must be from"),
    (text("{additionalGids: [4294967296]}"), "additional group 4294967296 must be from 0"),
    (text("{intelRdt: {enableMonitoring: 1}}"), "enableMonitoring: expected true or false, found '1'"),
    (text("{intelRdt: {closID: a/b}}"), "closID 'a/b' must be a file name, or /"),
    (text("{}"), "device d: empty device edits"),
    (b"{cdiVersion: 0.3.0, kind: a/b}", "there are no devices"),
    (b"{cdiVersion: 0.3.0, kind: a/b, devices: [{name: d}]}", "device d: empty device edits"),
    (text("{mounts: [{hostPath: /a}]}"), "mount '/a' at '': both paths are needed"),
    (text("{deviceNodes: [{hostPath: /a}]}"), "a device node needs a path"),
    (text("{env: [A=B]}", "''"), "version '' is none of"),
    (text("{env: [A=B]}", "0.9.0"), "version '0.9.0' is none of"),
    (text("{env: [A=B]}", "2.0.0"), "version '2.0.0' is none of"),
    (text("{env: [A=B]}", "0.1.0"), "cdiVersion must be at least 0.3.0"),
    (text("{env: [A=B]}", "v0.2.0"), "cdiVersion must be at least 0.3.0"),
    (text("{env: [A=B]}", "vv1.0.0"), "version 'v1.0.0' is none of"),
    (text("{additionalGids: [1]}", "0.6.0"), "version 0.6.0 is too old for it: cdiVersion must be at least 0.7.0"),
    (text("{env: [A=B]}", "0.3.0", ", annotations: {a: b}"), "cdiVersion must be at least 0.6.0"),
    (text("{env: [A=B]}", more=", annotations: {'a b': b}"), "annotation 'a b' must be a name"),
    (text("{env: [A=B]}", more=", annotations: [a]"), "annotations: expected a mapping, found a list"),
    (MINIMAL.encode() + MINIMAL.encode().partition(b"devices:\n")[2], "device 0 is there twice"),
]


@pytest.mark.parametrize(("data", "expected"), REFUSED, ids=[f"{number}" for number in range(len(REFUSED))])
def test_1_1_to_1_4_refused(data: bytes, expected: str) -> None:
    with pytest.raises(model.SpecError) as caught:
        read.decode(data, "/etc/cdi/x.yaml")
    assert expected in str(caught.value)
    assert str(caught.value).startswith("/etc/cdi/x.yaml: ")


@pytest.mark.parametrize("version", model.VERSIONS)
@pytest.mark.parametrize("prefix", ["", "v"])
def test_1_1_versions(version: str, prefix: str) -> None:
    assert read.decode(text("{env: [A=B]}", prefix + version), "x").cdi_version == version


LIMIT = model.MAX_ANNOTATIONS
ANNOTATIONS: list[tuple[dict[str, Any], str]] = [
    ({"a": "x" * (LIMIT - 1)}, ""),
    ({"a": "x" * LIMIT}, f"annotations have {LIMIT + 1} bytes; at most {LIMIT} are taken"),
    ({"a": "é" * (LIMIT // 2)}, f"annotations have {LIMIT + 1} bytes"),
    ({"gpu.nvidia.com/coherent": "true"}, ""),
    ({"GPU.nvidia.com/Coherent_1.x": "true"}, ""),
    ({"x" * 63: ""}, ""),
    ({"x" * 64: ""}, "must be a name of at most 63"),
    ({"": ""}, "annotation '' must be a name"),
    ({"-a": ""}, "annotation '-a'"),
    ({"a_": ""}, "annotation 'a_'"),
    ({"/a": ""}, "annotation '/a'"),
    ({"a/": ""}, "annotation 'a/'"),
    ({"a/b/c": ""}, "annotation 'a/b/c'"),
    ({"a_b/c": ""}, "annotation 'a_b/c'"),
    ({"a..b/c": ""}, "annotation 'a..b/c'"),
    ({f"{'a' * 253}/c": ""}, ""),
    ({f"{'a' * 254}/c": ""}, "after a DNS name"),
]


@pytest.mark.parametrize(
    ("annotations", "expected"), ANNOTATIONS, ids=[str(number) for number in range(len(ANNOTATIONS))]
)
@pytest.mark.parametrize("of_device", [False, True])
def test_1_4_annotations(annotations: dict[str, str], expected: str, of_device: bool) -> None:
    edits = ContainerEdits(env=("A=B",))
    device = Device("d", edits, annotations if of_device else {})
    spec = Spec(kind="a/b", devices=(device,), annotations={} if of_device else annotations)
    if not expected:
        model.check(spec)
        return
    with pytest.raises(model.SpecError) as caught:
        model.check(spec)
    assert expected in str(caught.value)
    assert ("device d: annotation" in str(caught.value)) == of_device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia.com/gpu=all", ("nvidia.com", "gpu", "all")),
        ("x/y=z", ("x", "y", "z")),
        ("a/b=0:1", ("a", "b", "0:1")),
        ("k8s.device-plugin.nvidia.com/gpu=GPU-5a", ("k8s.device-plugin.nvidia.com", "gpu", "GPU-5a")),
        ("/a/b=c", "unqualified CDI device '/a/b=c': expected VENDOR/CLASS=DEVICE"),
        ("", "unqualified"),
        ("all", "unqualified"),
        ("a/b", "unqualified"),
        ("a=b", "unqualified"),
        ("a/b=", "unqualified"),
        ("a/=c", "unqualified"),
        ("a=b/c", "unqualified"),
        ("a/b=c=d", "device name 'c=d'"),
        ("a/b/c=d", "class 'b/c'"),
        ("1a/b=c", "vendor '1a'"),
        ("a/b-=c", "class 'b-'"),
        ("ä/b=c", "vendor 'ä'"),
        ("a/b=c/d", "device name 'c/d'"),
        ("a/b= c", "device name ' c'"),
        ("a/b=c\n", "device name"),
    ],
)
def test_1_3_qualified_names(name: str, expected: tuple[str, str, str] | str) -> None:
    assert model.is_qualified(name) == isinstance(expected, tuple)
    if isinstance(expected, tuple):
        assert model.parse_qualified(name) == expected
        assert model.qualified("/".join(expected[:2]), expected[2]) == name
        return
    with pytest.raises(model.SpecError) as caught:
        model.parse_qualified(name)
    assert expected in str(caught.value)
