"""One driver DaemonSet for each kernel: contracts/control-plane.md 1.6, 2.4 (names), 4.6 and 9.11."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operands import notation, rendering

from groundplane.api.release import Release
from groundplane.operands import driver, driver_pools
from groundplane.operands.driver_pools import Kind
from groundplane.operands.errors import RenderError

FILE = "26.7.0-precompiled"
BASE = "nvidia-driver-daemonset"
KERNEL = "feature.node.kubernetes.io/kernel-version.full"


def daemon_sets(name=FILE, changes=None, **more):
    found = rendering.objects(name, changes, **more)
    return {name: each for (kind, name), each in found.items() if kind == "DaemonSet" and name.startswith(BASE)}


@pytest.mark.parametrize("file", ["26.3.3-precompiled", "26.7.0-precompiled"])
def test_difference_from_an_ordinary_daemon_set(file):
    name = f"{BASE}-6.8.0-60-generic-ubuntu24.04"
    (found,) = daemon_sets(file).values()
    ordinary = rendering.daemon_set(BASE, f"{rendering.release_of(file).value}-default")
    labels = {"app": BASE, "app.kubernetes.io/component": "nvidia-driver", "nvidia.com/precompiled": "true"}
    assert found["metadata"]["name"] == name
    for metadata in (found["metadata"], found["spec"]["template"]["metadata"]):
        assert {key: metadata["labels"][key] for key in labels} == labels
    assert found["spec"]["selector"] == ordinary["spec"]["selector"] == {"matchLabels": {"app": BASE}}
    pod, plain = notation.pod(found), notation.pod(ordinary)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.deploy.driver": "true", KERNEL: "6.8.0-60-generic"}
    assert pod["affinity"] == plain["affinity"]
    assert pod["volumes"] == plain["volumes"]
    ctr, plain_ctr = notation.container(found, "nvidia-driver-ctr"), notation.container(ordinary, "nvidia-driver-ctr")
    assert ctr["image"] == "nvcr.io/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04"
    for key in ("startupProbe", "volumeMounts", "lifecycle", "command", "args"):
        assert ctr[key] == plain_ctr[key]
    digests = [notation.env_dict(each)["DRIVER_CONFIG_DIGEST"] for each in (ctr, plain_ctr)]
    assert digests[0] != digests[1]


def test_each_kernel_gets_the_system_of_its_own_nodes():
    nodes = (
        rendering.node("a", "6.8.0-60-generic", "ubuntu", "24.04"),
        rendering.node("b", "5.15.0-142-generic", "ubuntu", "22.04"),
        rendering.node("c", "5.14.0-427.37.1.el9_4.x86_64", "rhel", "9.4"),
        rendering.node("d", "6.8.0-60-generic", "ubuntu", "24.04"),
    )
    images = {
        name: notation.container(each, "nvidia-driver-ctr")["image"] for name, each in daemon_sets(nodes=nodes).items()
    }
    assert images == {
        f"{BASE}-5.14.0-427.37.1.el9.4-rhel9.4": "nvcr.io/nvidia/driver:580-5.14.0-427.37.1.el9_4.x86_64-rhel9",
        f"{BASE}-5.15.0-142-generic-ubuntu22.04": "nvcr.io/nvidia/driver:580-5.15.0-142-generic-ubuntu22.04",
        f"{BASE}-6.8.0-60-generic-ubuntu24.04": "nvcr.io/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04",
    }


@pytest.mark.parametrize(
    ("section", "image"),
    [
        ({"repository": "r", "image": "d", "version": "580"}, "r/d:580-6.8.0-60-generic-ubuntu24.04"),
        ({"repository": None, "image": "r/d:580", "version": None}, "r/d:580-6.8.0-60-generic-ubuntu24.04"),
    ],
)
def test_image(section, image):
    (found,) = daemon_sets(changes={"driver": section}).values()
    assert notation.container(found, "nvidia-driver-ctr")["image"] == image


@pytest.mark.parametrize(
    "section",
    [
        {"repository": None, "image": None, "version": None},
        {"repository": None},
        {"version": "sha256:ab"},
    ],
)
def test_image_errors(section):
    error = rendering.error({"driver": section}, FILE, default_images={"DRIVER_IMAGE": "e/d:1"})
    assert (error.state, error.message.partition(":")[0]) == ("state-driver", "spec.driver")


def test_no_gpu_node_no_daemon_set():
    assert daemon_sets(nodes=()) == {}


def test_node_without_a_kernel_label():
    nodes = (rendering.node("ok"), rendering.node("bad-2", kernel=""), rendering.node("bad-1", kernel=""))
    error = rendering.error({}, FILE, nodes=nodes)
    assert error.state == "state-driver"
    assert "nodes bad-1, bad-2" in error.message
    assert KERNEL in error.message


def test_one_kernel_on_two_systems():
    nodes = (*(rendering.node(f"n{i}", os_version="22.04") for i in range(7)), rendering.node("m"))
    error = rendering.error({}, FILE, nodes=nodes)
    assert error.state == "state-driver"
    for text in (
        "kernel 6.8.0-60-generic",
        "ubuntu22.04 on nodes n0, n1, n2, n3, n4 and 2 more",
        "ubuntu24.04 on node m",
    ):
        assert text in error.message


def test_node_without_a_system_label_is_named():
    nodes = (rendering.node("ok"), rendering.node("zz", os_id=""))
    assert "zz" in rendering.error({}, FILE, nodes=nodes).message


def test_options_that_precompiled_drivers_do_not_take():
    changes = {
        "driver": {
            "repoConfig": {"configMapName": "repos"},
            "certConfig": {"name": "certs"},
            "secretEnv": "env",
        }
    }
    nodes = (rendering.node(os_id="rhel", os_version="9.4"),)
    with_options = daemon_sets(changes=changes, nodes=nodes)
    assert with_options == daemon_sets(nodes=nodes)
    (found,) = with_options.values()
    assert not [row for row in notation.volumes(notation.pod(found)) if "subscription" in row]


@pytest.mark.parametrize(("os_id", "there"), [("sles", True), ("sl-micro", True), ("ubuntu", False)])
def test_suse_drivers_see_the_hosts_modules(os_id, there):
    (found,) = daemon_sets(nodes=(rendering.node(os_id=os_id, os_version="15.5"),)).values()
    mounts = notation.mounts(notation.container(found, "nvidia-driver-ctr"))
    assert ("lib-modules:/run/host/lib/modules:ro" in mounts) == there
    assert ("lib-modules=/lib/modules(D)" in notation.volumes(notation.pod(found))) == there
    ordinary = rendering.daemon_set(BASE, nodes=(rendering.node(os_id=os_id, os_version="15.5"),))
    assert not [row for row in notation.volumes(notation.pod(ordinary)) if row.startswith("lib-modules")]


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("6.8.0-60-generic", "6.8.0-60-generic"),
        ("5.14.0-427.37.1.el9_4.aarch64_64k", "5.14.0-427.37.1.el9.4"),
        ("5.14.0-427.37.1.el9_4.x86_64", "5.14.0-427.37.1.el9.4"),
        ("4.18.0-305.EL8_4.x86_64_64k", "4.18.0-305.el8.4"),
        ("6.1.0_custom", "6.1.0.custom"),
    ],
)
def test_sanitised_kernel(kernel, name):
    assert driver_pools.sanitised(kernel) == name


def test_kernels_of_several_architectures_do_not_share_a_daemon_set():
    kernels = [f"5.14.0-427.el9_4.{arch}" for arch in ("aarch64", "aarch64_64k", "x86_64")]
    nodes = tuple(rendering.node(kernel, kernel, "rhel", "9.4") for kernel in kernels)
    found = daemon_sets(nodes=nodes)
    chosen = {name: notation.pod(each)["nodeSelector"][KERNEL] for name, each in found.items()}
    assert chosen == {
        f"{BASE}-5.14.0-427.el9.4-rhel9.4": kernels[2],
        f"{BASE}-5.14.0-427.el9.4-aarch64-rhel9.4": kernels[0],
        f"{BASE}-5.14.0-427.el9.4-aarch64-64k-rhel9.4": kernels[1],
    }


def test_kernels_that_differ_in_spelling_only():
    nodes = tuple(rendering.node(kernel, kernel) for kernel in ("6.1.0_a", "6.1.0.a"))
    assert sorted(daemon_sets(nodes=nodes)) == [f"{BASE}-6.1.0.a-6.1.0-a-ubuntu24.04", f"{BASE}-6.1.0.a-ubuntu24.04"]


SYSTEMS = (("ubuntu", "22.04"), ("ubuntu", "24.04"), ("rhel", "9.4"), ("sles", "15.5"))
kernels = st.text(string.ascii_lowercase + string.digits + "_.-", min_size=1, max_size=12).map(lambda text: f"6.{text}")
fleets = st.dictionaries(kernels, st.tuples(st.sampled_from(SYSTEMS), st.integers(1, 3)), max_size=6)


def nodes_of(fleet):
    return tuple(
        rendering.node(f"{kernel}-{number}", kernel, *system)
        for kernel, (system, count) in fleet.items()
        for number in range(count)
    )


@given(fleet=fleets, order=st.randoms(use_true_random=False), release=st.sampled_from(rendering.RELEASES))
def test_any_fleet_gets_one_pool_a_kernel(fleet, order, release):
    nodes = list(nodes_of(fleet))
    spec = rendering.spec(FILE)
    pools = driver.pools(spec, rendering.facts(release, nodes=tuple(nodes)))
    assert {pool.kernel: pool.os_id for pool in pools} == {kernel: system[0] for kernel, (system, _) in fleet.items()}
    assert len({pool.name for pool in pools}) == len(fleet)
    assert all(pool.kind is Kind.PRECOMPILED and pool.name.startswith(f"{BASE}-") for pool in pools)
    order.shuffle(nodes)
    assert driver.pools(spec, rendering.facts(release, nodes=tuple(nodes))) == pools


@given(fleet=fleets.filter(bool), data=st.data())
def test_a_node_in_the_way_is_always_named(fleet, data):
    kernel, (system, _) = data.draw(st.sampled_from(sorted(fleet.items())))
    other = data.draw(st.sampled_from([each for each in SYSTEMS if each != system]))
    odd = data.draw(st.sampled_from([rendering.node("odd", kernel, *other), rendering.node("odd", "", *system)]))
    with pytest.raises(RenderError, match="odd"):
        driver.pools(rendering.spec(FILE), rendering.facts(Release.V26_7, nodes=(*nodes_of(fleet), odd)))
