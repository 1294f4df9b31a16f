"""Simplification and order of specs (contracts/toolkit-cdi.md 3.6)."""

import msgspec
from hypothesis import given, settings
from node.cdi.cdispecs import SPECS

from groundplane.node.cdi.model import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec
from groundplane.node.cdi.simplify import ALL, deduplicate, merge, simplify, with_all


def _spec(*devices: Device, common: ContainerEdits | None = None) -> Spec:
    return Spec(kind="nvidia.com/gpu", devices=devices, container_edits=common or ContainerEdits())


def _nodes(*paths: str) -> ContainerEdits:
    return ContainerEdits(device_nodes=tuple(map(DeviceNode, paths)))


@settings(max_examples=50)
@given(spec=SPECS)
def test_simplifying_twice_is_simplifying_once(spec: Spec) -> None:
    once = simplify(spec)
    assert simplify(once) == once


@settings(max_examples=50)
@given(spec=SPECS)
def test_a_container_gets_the_same_as_before(spec: Spec) -> None:
    simple = simplify(spec)
    before = {device.name: device for device in spec.devices}
    assert [each.name for each in simple.devices] == sorted(each.name for each in spec.devices)
    for device in simple.devices:
        was = merge((spec.container_edits, before[device.name].container_edits))
        now = merge((simple.container_edits, device.container_edits))
        for field in ("env", "device_nodes", "hooks", "mounts", "additional_gids", "net_devices"):
            assert set(getattr(now, field)) == set(getattr(was, field)), field
        assert now.intel_rdt == was.intel_rdt


@settings(max_examples=50)
@given(spec=SPECS)
def test_no_device_is_left_without_edits(spec: Spec) -> None:
    for device in simplify(spec).devices:
        (was,) = (each for each in spec.devices if each.name == device.name)
        assert bool(device.container_edits) == bool(was.container_edits)


@settings(max_examples=50)
@given(spec=SPECS)
def test_env_and_hooks_keep_their_order(spec: Spec) -> None:
    simple = simplify(spec)
    assert simple.container_edits.env == tuple(dict.fromkeys(spec.container_edits.env))
    assert simple.container_edits.hooks == tuple(dict.fromkeys(spec.container_edits.hooks))


@settings(max_examples=50)
@given(spec=SPECS)
def test_the_device_all_has_what_each_device_has(spec: Spec) -> None:
    simple = simplify(spec)
    merged = with_all(simple)
    if any(each.name == ALL for each in spec.devices):
        assert merged is simple
        return
    (made,) = (each for each in merged.devices if each.name == ALL)
    everything = merge((merged.container_edits, made.container_edits))
    for device in simple.devices:
        for field in ("env", "device_nodes", "hooks", "mounts"):
            assert set(getattr(device.container_edits, field)) <= set(getattr(everything, field))


def test_the_first_of_equal_entities_is_kept_and_groups_are_sorted() -> None:
    hook = Hook("createContainer", "/h", ("h",))
    edits = ContainerEdits(
        env=("B=1", "A=1", "B=1", "B=2"),
        hooks=(hook, hook),
        mounts=(Mount("/a", "/a"), Mount("/a", "/a"), Mount("/a", "/b")),
        additional_gids=(44, 5, 44),
    )
    assert deduplicate(edits) == ContainerEdits(
        env=("B=1", "A=1", "B=2"),
        hooks=(hook,),
        mounts=(Mount("/a", "/a"), Mount("/a", "/b")),
        additional_gids=(5, 44),
    )


def test_what_all_devices_get_is_left_out_of_a_device_unless_nothing_would_be_left() -> None:
    common = _nodes("/dev/nvidiactl", "/dev/nvidia-uvm")
    spec = simplify(
        _spec(
            Device("0", _nodes("/dev/nvidiactl", "/dev/nvidia0")),
            Device("1", _nodes("/dev/nvidiactl")),
            common=common,
        )
    )
    assert [each.container_edits for each in spec.devices] == [_nodes("/dev/nvidia0"), _nodes("/dev/nvidiactl")]


def test_entities_that_differ_in_anything_are_different() -> None:
    node = DeviceNode("/dev/nvidia0")
    other = msgspec.structs.replace(node, permissions="rwm")
    device = Device("0", ContainerEdits(device_nodes=(node,)))
    spec = simplify(_spec(device, common=ContainerEdits(device_nodes=(other,))))
    assert spec.devices[0].container_edits.device_nodes == (node,)


def test_nodes_and_mounts_are_sorted_by_depth_and_path() -> None:
    edits = simplify(
        _spec(
            common=ContainerEdits(
                device_nodes=tuple(map(DeviceNode, ("/dev/dri/card0", "/dev/nvidia10", "/dev/nvidia1", "/a"))),
                mounts=tuple(Mount("/h", each) for each in ("/usr/lib/z", "/usr/lib/a", "/z", "/usr/b/c/d")),
            )
        )
    ).container_edits
    assert [each.path for each in edits.device_nodes] == ["/a", "/dev/nvidia1", "/dev/nvidia10", "/dev/dri/card0"]
    assert [each.container_path for each in edits.mounts] == ["/z", "/usr/lib/a", "/usr/lib/z", "/usr/b/c/d"]


def test_devices_are_sorted_as_plain_texts() -> None:
    names = ("2", "GPU-1", "10", "0", "1")
    spec = with_all(simplify(_spec(*(Device(name, _nodes(f"/dev/{name}")) for name in names))))
    assert [each.name for each in spec.devices] == ["0", "1", "10", "2", "GPU-1", "all"]


def test_without_devices_there_is_no_device_all() -> None:
    assert with_all(_spec()).devices == ()
