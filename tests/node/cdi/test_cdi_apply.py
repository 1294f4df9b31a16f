"""CDI edits applied to OCI configurations, in the runtimes' order (contracts/toolkit-cdi.md 1.6)."""

import copy
import os
import stat
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.cdi.cdispecs import EDITS

from groundplane.node.cdi import apply
from groundplane.node.cdi.apply import ApplyError
from groundplane.node.cdi.model import (
    HOOK_NAMES,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)
from groundplane.node.cdi.registry import Registry

KINDS = {"b": stat.S_IFBLK, "c": stat.S_IFCHR, "p": stat.S_IFIFO, "-": stat.S_IFREG}
HOST = {
    "/dev/c": ("c", 195, 7, 0o660),
    "/dev/b": ("b", 8, 1, 0o640),
    "/dev/p": ("p", 0, 0, 0o600),
    "/f": ("-", 0, 0, 0o644),
}


def lstat(path: str) -> SimpleNamespace:
    """What the host of these tests has."""
    if path not in HOST:
        raise FileNotFoundError(2, "No such file or directory", path)
    kind, major, minor, mode = HOST[path]
    return SimpleNamespace(st_mode=KINDS[kind] | mode, st_rdev=os.makedev(major, minor))


def applied(oci: dict[str, Any] | None = None, **edits: Any) -> dict[str, Any]:
    return apply.apply(ContainerEdits(**edits), oci or {}, lstat=lstat)


def test_nothing_to_do_changes_nothing() -> None:
    oci = {"process": {"env": ["A=B"]}, "mounts": [{"destination": "/a/b"}, {"destination": "/a"}]}
    assert applied(oci) == oci


@pytest.mark.parametrize(
    ("before", "env", "after"),
    [
        (None, ("A=1",), ["A=1"]),
        (["A=1", "B=2"], ("A=3",), ["A=3", "B=2"]),
        (["A=1"], ("B=2", "C=3"), ["A=1", "B=2", "C=3"]),
        (["A=1", "A=2"], ("A=3",), ["A=1", "A=3"]),
        (["A"], ("A=3",), ["A=3"]),
        ([], ("A=1", "A=2=3"), ["A=2=3"]),
        (["AB=1"], ("A=2",), ["AB=1", "A=2"]),
    ],
)
def test_env(before: list[str] | None, env: tuple[str, ...], after: list[str]) -> None:
    oci: dict[str, Any] = {} if before is None else {"process": {"env": before}}
    assert applied(oci, env=env)["process"]["env"] == after


NODES: list[tuple[DeviceNode, dict[str, Any]]] = [
    (DeviceNode("/dev/c"), {"type": "c", "major": 195, "minor": 7, "fileMode": 0o660}),
    (DeviceNode("/dev/b"), {"type": "b", "major": 8, "minor": 1, "fileMode": 0o640}),
    (DeviceNode("/dev/p"), {"type": "p", "major": 0, "minor": 0, "fileMode": 0o600}),
    (DeviceNode("/x", host_path="/dev/c"), {"type": "c", "major": 195, "minor": 7, "fileMode": 0o660}),
    (DeviceNode("/dev/c", type="c"), {"type": "c", "major": 195, "minor": 7, "fileMode": 0o660}),
    (DeviceNode("/dev/c", major=9), {"type": "c", "major": 9, "minor": 0, "fileMode": 0o660}),
    (DeviceNode("/dev/c", minor=9), {"type": "c", "major": 195, "minor": 7, "fileMode": 0o660}),
    (DeviceNode("/dev/c", file_mode=0), {"type": "c", "major": 195, "minor": 7, "fileMode": 0}),
    (DeviceNode("/dev/c", type="b", major=1), {"type": "b", "major": 1, "minor": 0, "fileMode": 0o660}),
    (DeviceNode("/dev/c", type="u", major=1), {"type": "u", "major": 1, "minor": 0, "fileMode": 0o660}),
    (DeviceNode("/gone", type="c", major=1), {"type": "c", "major": 1, "minor": 0}),
    (DeviceNode("/gone", type="p"), {"type": "p", "major": 0, "minor": 0}),
    (DeviceNode("/f", type="c", major=1, minor=3), {"type": "c", "major": 1, "minor": 3}),
    (
        DeviceNode("/dev/c", uid=0, gid=44),
        {"type": "c", "major": 195, "minor": 7, "fileMode": 0o660, "uid": 0, "gid": 44},
    ),
]


@pytest.mark.parametrize(("given_node", "expected"), NODES)
def test_device_nodes(given_node: DeviceNode, expected: dict[str, Any]) -> None:
    (device,) = applied(device_nodes=(given_node,))["linux"]["devices"]
    assert device == {"path": given_node.path, **expected}


@pytest.mark.parametrize(
    ("given_node", "text"),
    [
        (DeviceNode("/gone"), 'failed to stat CDI host device "/gone": No such file or directory'),
        (DeviceNode("/x", "/gone", type="c"), 'failed to stat CDI host device "/gone": No such file or directory'),
        (DeviceNode("/gone", major=1), 'failed to stat CDI host device "/gone": No such file or directory'),
        (DeviceNode("/f"), 'failed to stat CDI host device "/f": not a device node'),
        (DeviceNode("/dev/c", type="b"), 'CDI device ("/dev/c", "/dev/c"), host type mismatch (b, c)'),
        (DeviceNode("/x", "/dev/b", type="u"), 'CDI device ("/x", "/dev/b"), host type mismatch (u, b)'),
    ],
)
def test_device_nodes_that_cannot_be(given_node: DeviceNode, text: str) -> None:
    oci: dict[str, Any] = {"process": {}}
    with pytest.raises(ApplyError) as caught:
        applied(oci, env=("A=B",), device_nodes=(given_node,))
    assert str(caught.value) == text
    assert oci == {"process": {}}


def test_a_link_is_no_node() -> None:
    with pytest.raises(ApplyError, match="not a device node"):
        apply.apply(ContainerEdits(device_nodes=(DeviceNode("/proc/self/exe"),)), {})


def test_the_hosts_nodes_are_looked_up_if_nothing_else_is_said() -> None:
    config = apply.apply(ContainerEdits(device_nodes=(DeviceNode("/dev/null"),)), {})
    assert [(each["major"], each["minor"]) for each in config["linux"]["devices"]] == [(1, 3)]


def test_a_node_replaces_the_one_at_its_path() -> None:
    oci = {"linux": {"devices": [{"path": "/dev/c", "type": "b"}, {"path": "/dev/x"}]}}
    assert [each["path"] for each in applied(oci, device_nodes=(DeviceNode("/dev/c"),))["linux"]["devices"]] == [
        "/dev/x",
        "/dev/c",
    ]


def test_where_a_path_is_there_twice_the_second_is_replaced_in_its_place() -> None:
    oci = {"linux": {"devices": [{"path": "/dev/c"}, {"path": "/x"}, {"path": "/dev/c"}, {"path": "/y"}]}}
    devices = applied(oci, device_nodes=(DeviceNode("/dev/c"),))["linux"]["devices"]
    assert [(each["path"], "type" in each) for each in devices] == [("/x", False), ("/dev/c", True), ("/y", False)]


@pytest.mark.parametrize(
    ("given_node", "rule"),
    [
        (DeviceNode("/dev/c"), {"type": "c", "major": 195, "minor": 7, "access": "rwm"}),
        (DeviceNode("/dev/b", permissions="r"), {"type": "b", "major": 8, "minor": 1, "access": "r"}),
        (DeviceNode("/dev/c", permissions="none"), {"type": "c", "major": 195, "minor": 7}),
        (DeviceNode("/dev/p"), None),
        (DeviceNode("/gone", type="u", major=1), None),
    ],
)
def test_control_group_rules(given_node: DeviceNode, rule: dict[str, Any] | None) -> None:
    before = {"allow": False, "access": "rwm"}
    oci = {"linux": {"resources": {"devices": [before]}}}
    rules = applied(oci, device_nodes=(given_node,))["linux"]["resources"]["devices"]
    assert rules == [before] + ([{"allow": True, **rule}] if rule else [])


@pytest.mark.parametrize(
    ("user", "given_node", "expected"),
    [
        ({"uid": 1000, "gid": 100}, DeviceNode("/dev/c"), (1000, 100)),
        ({"uid": 0, "gid": 0}, DeviceNode("/dev/c"), (None, None)),
        ({"uid": 1000}, DeviceNode("/dev/c"), (1000, None)),
        ({"uid": 1000, "gid": 100}, DeviceNode("/dev/c", uid=0, gid=0), (0, 0)),
        ({"uid": 1000, "gid": 100}, DeviceNode("/dev/c", gid=5), (1000, 5)),
    ],
)
def test_owners(user: dict[str, int], given_node: DeviceNode, expected: tuple[int | None, int | None]) -> None:
    (device,) = applied({"process": {"user": user}}, device_nodes=(given_node,))["linux"]["devices"]
    assert (device.get("uid"), device.get("gid")) == expected


def test_mounts_are_replaced_and_then_sorted_by_depth() -> None:
    oci = {
        "mounts": [{"destination": each, "source": "old"} for each in ("/a/b/c", "/proc", "/a/b", "/", "/a//x", "/sys")]
    }
    config = applied(oci, mounts=(Mount("/h", "/proc"), Mount("/h", "/a"), Mount("/h", "/a/b/", ("ro",), "bind")))
    assert [each["destination"] for each in config["mounts"]] == [
        *("/", "/sys", "/proc", "/a"),
        *("/a/b", "/a//x", "/a/b/"),
        "/a/b/c",
    ]
    assert config["mounts"][2] == {"destination": "/proc", "source": "/h"}
    assert config["mounts"][6] == {"destination": "/a/b/", "type": "bind", "source": "/h", "options": ["ro"]}


def test_without_a_mount_nothing_is_sorted() -> None:
    oci = {"mounts": [{"destination": "/a/b"}, {"destination": "/a"}]}
    assert applied(oci, env=("A=B",))["mounts"] == oci["mounts"]


@pytest.mark.parametrize(
    ("mount", "added"),
    [
        (Mount("/h", "/c"), []),
        (Mount("/h", "/c", ("ro",)), []),
        (Mount("/h", "/c", type="bind"), ["idmap"]),
        (Mount("/h", "/c", ("bind",)), ["idmap"]),
        (Mount("/h", "/c", ("rbind",)), ["ridmap"]),
        (Mount("/h", "/c", ("rbind",), "bind"), ["ridmap"]),
        (Mount("/h", "/c", ("rbind", "bind")), ["idmap"]),
        (Mount("/h", "/c", ("rbind", "idmap")), []),
        (Mount("/h", "/c", ("ridmap",), "bind"), []),
    ],
)
def test_bind_mounts_are_mapped_in_a_user_namespace(mount: Mount, added: list[str]) -> None:
    for namespace, wanted in (("user", added), ("pid", [])):
        config = applied({"linux": {"namespaces": [{"type": namespace}]}}, mounts=(mount,))
        assert config["mounts"][0].get("options", []) == [*mount.options, *wanted]


def test_hooks_are_added_under_their_names() -> None:
    hooks = tuple(Hook(name, f"/{name}", ("h", "a"), ("A=B",), 5) for name in sorted(HOOK_NAMES))
    config = applied({"hooks": {"prestart": [{"path": "/before"}]}}, hooks=(*hooks, Hook("poststop", "/last")))
    assert set(config["hooks"]) == HOOK_NAMES
    full = {"args": ["h", "a"], "env": ["A=B"], "timeout": 5}
    assert config["hooks"]["prestart"] == [{"path": "/before"}, {"path": "/prestart", **full}]
    assert config["hooks"]["poststop"] == [{"path": "/poststop", **full}, {"path": "/last"}]


def test_net_devices() -> None:
    oci = {"linux": {"netDevices": {"eth0": {"name": "a"}, "eth1": {"name": "b"}}}}
    config = applied(oci, net_devices=(NetDevice("eth0", "c"), NetDevice("eth2", "d")))
    assert config["linux"]["netDevices"] == {"eth0": {"name": "c"}, "eth1": {"name": "b"}, "eth2": {"name": "d"}}


def test_additional_groups_once_and_without_zero() -> None:
    config = applied({"process": {"user": {"additionalGids": [5]}}}, additional_gids=(0, 44, 5, 44))
    assert config["process"]["user"]["additionalGids"] == [5, 44]
    assert applied(additional_gids=(0,)) == {}


def registry(*specs: Spec) -> Registry:
    return Registry.of(specs)


def test_intel_rdt_last_one_wins() -> None:
    first, last = IntelRdt("a", schemata=("x",)), IntelRdt("b", "l", "m", ("s",), True)
    devices = (
        Device("0", ContainerEdits(intel_rdt=first)),
        Device("1", ContainerEdits(intel_rdt=last)),
        Device("2", ContainerEdits(env=("A=B",))),
    )
    names = [f"a/b={number}" for number in range(3)]
    config = apply.inject(registry(Spec(kind="a/b", devices=devices)), names, {"linux": {"intelRdt": {"closID": "z"}}})
    assert config["linux"]["intelRdt"] == {
        "closID": "b",
        "l3CacheSchema": "l",
        "memBwSchema": "m",
        "schemata": ["s"],
        "enableMonitoring": True,
    }


def mark(text: str) -> ContainerEdits:
    return ContainerEdits(hooks=(Hook("poststop", f"/{text}"),))


def test_order_of_edits() -> None:
    specs = [
        Spec(kind=kind, container_edits=mark(kind), devices=tuple(Device(name, mark(kind + name)) for name in "01"))
        for kind in ("a/b", "x/y")
    ]
    config = apply.inject(registry(*specs), ["x/y=1", "a/b=0", "x/y=0"], {})
    assert [hook["path"] for hook in config["hooks"]["poststop"]] == ["/x/y", "/x/y1", "/a/b", "/a/b0", "/x/y0"]


def test_unresolvable_devices_are_all_named_and_nothing_is_applied() -> None:
    found = registry(Spec(kind="a/b", devices=(Device("0", mark("x")),)))
    oci: dict[str, Any] = {}
    with pytest.raises(apply.UnresolvableError) as caught:
        apply.inject(found, ["a/b=1", "a/b=0", "nvidia.com/gpu=all"], oci)
    assert str(caught.value) == "unresolvable CDI devices a/b=1, nvidia.com/gpu=all"
    assert caught.value.names == ("a/b=1", "nvidia.com/gpu=all")
    assert oci == {}


def test_no_devices_no_change() -> None:
    assert apply.inject(registry(), [], {"ociVersion": "1.2.0"}) == {"ociVersion": "1.2.0"}


COMPLETE = EDITS.map(
    lambda edits: msgspec.structs.replace(
        edits,
        device_nodes=tuple(
            msgspec.structs.replace(each, type="c", major=each.major or 1) for each in edits.device_nodes
        ),
    )
)


@given(edits=COMPLETE, uid=st.integers(0, 2))
def test_applying_again_changes_only_what_is_a_list_of_actions(edits: ContainerEdits, uid: int) -> None:
    """Hooks and control group rules are added each time, as runtimes do; all else is the same."""
    oci = {"process": {"user": {"uid": uid}}, "mounts": [{"destination": "/a/b"}]}
    before = copy.deepcopy(oci)
    once = apply.apply(edits, oci, lstat=lstat)
    assert oci == before
    twice = apply.apply(edits, once, lstat=lstat)
    for name, hooks in once.get("hooks", {}).items():
        assert twice["hooks"][name] == hooks * 2
    rules = once.get("linux", {}).get("resources", {}).get("devices", [])
    assert twice.get("linux", {}).get("resources", {}).get("devices", []) == rules * 2

    def rest(config: dict[str, Any]) -> dict[str, Any]:
        left = copy.deepcopy(config)
        left.pop("hooks", None)
        left.get("linux", {}).pop("resources", None)
        left.get("mounts", []).sort(key=lambda mount: mount["destination"])
        left.get("linux", {}).get("devices", []).sort(key=lambda device: device["path"])
        return left

    assert rest(twice) == rest(once)
