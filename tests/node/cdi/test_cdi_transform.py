"""Paths of specs moved below another root (contracts/toolkit-cdi.md 3.7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.cdi import transform
from groundplane.node.cdi.model import HOOK_NAMES, ContainerEdits, Device, DeviceNode, Hook, Mount, Spec

PARTS = st.lists(st.sampled_from(["usr", "lib", "drv", "drv-old", "a b"]), min_size=1, max_size=3)
PATHS = PARTS.map(lambda parts: "/" + "/".join(parts))


def _spec(**edits: object) -> Spec:
    block = ContainerEdits(**edits)  # type: ignore[arg-type]
    return Spec(kind="nvidia.com/gpu", devices=(Device("all", block),), container_edits=block)


@pytest.mark.parametrize(
    ("path", "from_", "to", "expected"),
    [
        ("/run/drv/usr/lib/x", "/run/drv", "/", "/usr/lib/x"),
        ("/run/drv/usr/lib/x", "/run/drv/", "/host", "/host/usr/lib/x"),
        ("/run/drv", "/run/drv", "/host", "/host"),
        ("/run/drv-old/x", "/run/drv", "/host", "/run/drv-old/x"),
        ("/run/drv2", "/run/drv", "/host", "/run/drv2"),
        ("/usr/lib/x", "/", "/run/drv", "/run/drv/usr/lib/x"),
        ("/usr/lib/x", "", "/run/drv", "/run/drv/usr/lib/x"),
        ("/elsewhere", "/run/drv", "/host", "/elsewhere"),
        ("relative", "/", "/host", "relative"),
        ("--link", "/", "/host", "--link"),
    ],
)
def test_whole_components_are_compared(path: str, from_: str, to: str, expected: str) -> None:
    assert transform.moved(path, from_, to) == expected


@given(path=PATHS, from_=PATHS, to=PATHS)
def test_a_move_is_undone_by_its_inverse(path: str, from_: str, to: str) -> None:
    below = f"{from_}{path}"
    there = transform.moved(below, from_, to)
    assert there == f"{to}{path}"
    assert transform.moved(there, to, from_) == below


@given(path=PATHS, from_=PATHS, to=PATHS)
def test_what_is_not_below_the_root_stays(path: str, from_: str, to: str) -> None:
    below = path == from_ or path.startswith(f"{from_}/")
    assert below or transform.moved(path, from_, to) == path


def test_the_same_root_changes_nothing() -> None:
    spec = _spec(device_nodes=(DeviceNode("/dev/nvidia0"),))
    assert transform.root(spec, "/run/drv", "/run/drv") is spec


def test_the_hosts_paths_move_and_the_containers_stay() -> None:
    spec = _spec(
        device_nodes=(DeviceNode("/dev/nvidia0", "/drv/dev/nvidia0"), DeviceNode("/drv/dev/x")),
        mounts=(Mount("/drv/usr/bin/nvidia-smi", "/drv/usr/bin/nvidia-smi", ("ro",)),),
    )
    moved = transform.root(spec, "/drv", "/host")
    for edits in (moved.container_edits, moved.devices[0].container_edits):
        assert edits.device_nodes == (
            DeviceNode("/dev/nvidia0", "/host/dev/nvidia0"),
            DeviceNode("/drv/dev/x", "/host/dev/x"),
        )
        assert edits.mounts == (Mount("/host/usr/bin/nvidia-smi", "/drv/usr/bin/nvidia-smi", ("ro",)),)


def test_a_hosts_path_is_written_even_if_it_ends_equal_to_the_containers() -> None:
    moved = transform.root(_spec(device_nodes=(DeviceNode("/dev/nvidia0", "/drv/dev/nvidia0"),)), "/drv", "/")
    assert moved.container_edits.device_nodes == (DeviceNode("/dev/nvidia0", "/dev/nvidia0"),)


_ARGS = ("h", "create-symlinks", "--link", "/drv/a::/drv/b", "/drv/c", "../x::/drv/y")
_MOVED = ("h", "create-symlinks", "--link", "/n/a::/n/b", "/n/c", "../x::/n/y")


@pytest.mark.parametrize("name", sorted(HOOK_NAMES))
def test_which_paths_of_hooks_move_relative_to_the_host(name: str) -> None:
    (hook,) = transform.root(_spec(hooks=(Hook(name, "/drv/h", _ARGS),)), "/drv", "/n").container_edits.hooks
    assert hook.path == ("/drv/h" if name == "startContainer" else "/n/h")
    assert hook.args == (_ARGS if name in ("createContainer", "startContainer") else _MOVED)


@pytest.mark.parametrize("name", sorted(HOOK_NAMES))
def test_which_paths_of_hooks_move_relative_to_the_container(name: str) -> None:
    spec = _spec(hooks=(Hook(name, "/drv/h", _ARGS),))
    (hook,) = transform.root(spec, "/drv", "/n", "container").container_edits.hooks
    assert hook.path == ("/n/h" if name == "startContainer" else "/drv/h")
    assert hook.args == (_MOVED if name in ("createContainer", "startContainer") else _ARGS)


def test_the_containers_paths_move_and_the_hosts_stay() -> None:
    spec = _spec(
        device_nodes=(DeviceNode("/dev/nvidia0"), DeviceNode("/dev/nvidia1", "/drv/dev/nvidia1"), DeviceNode("/x")),
        mounts=(Mount("/dev/a", "/dev/a"),),
    )
    edits = transform.root(spec, "/dev", "/n", "container").container_edits
    assert edits.device_nodes == (
        DeviceNode("/n/nvidia0", "/dev/nvidia0"),
        DeviceNode("/n/nvidia1", "/drv/dev/nvidia1"),
        DeviceNode("/x"),
    )
    assert edits.mounts == (Mount("/dev/a", "/n/a"),)


def test_it_is_relative_to_the_host_or_the_container() -> None:
    with pytest.raises(ValueError, match="must be one of host, container"):
        transform.root(_spec(), "/a", "/b", "image")
