"""The driver on OpenShift: driver toolkit, proxy, trusted authorities (contracts/control-plane.md 5.4)."""

import pytest
from operands import notation, rendering

from groundplane.operands.facts import OpenShift, Proxies

BASE = "nvidia-driver-daemonset"
CTR, TOOLKIT = "nvidia-driver-ctr", "openshift-driver-toolkit-ctr"
OLD, NEW = "416.94.202410020522-0", "417.94.202501140000-0"
SHARED = "shared-nvidia-driver-toolkit:/mnt/shared-nvidia-driver-toolkit"


def node(name, ostree, os_version="4.16"):
    return rendering.node(name, "5.14.0-427.el9_4.x86_64", "rhcos", os_version, ostree=ostree)


NODES = (node("a", OLD), node("b", NEW, "4.17"), node("c", NEW, "4.17"))
FULL = {OLD: "quay.io/dtk@sha256:1", NEW: "quay.io/dtk@sha256:2"}


def daemon_sets(changes=None, images=FULL, base=BASE, **more):
    defaults = {"runtime": "crio", "nodes": NODES, "openshift": OpenShift(version="4.17", driver_toolkit=images)}
    found = rendering.objects("26.7.0-default", changes, **{**defaults, **more})
    return {name: each for (kind, name), each in found.items() if kind == "DaemonSet" and name.startswith(base)}


def test_one_daemon_set_for_each_rhcos():
    found = daemon_sets()
    assert sorted(found) == [f"{BASE}-{OLD}", f"{BASE}-{NEW}"]
    for rhcos, version in ((OLD, "4.16"), (NEW, "4.17")):
        each = found[f"{BASE}-{rhcos}"]
        name = each["metadata"]["name"]
        assert each["spec"]["selector"] == {"matchLabels": {"app": name}}
        for metadata in (each["metadata"], each["spec"]["template"]["metadata"]):
            assert metadata["labels"]["app"] == name
            assert metadata["labels"]["openshift.driver-toolkit"] == "true"
            assert metadata["labels"]["openshift.driver-toolkit.rhcos"] == rhcos
            assert metadata["labels"]["nvidia.com/precompiled"] == "false"
            assert "openshift.driver-toolkit.rhcos-image-missing" not in metadata["labels"]
        assert notation.pod(each)["nodeSelector"] == {
            "nvidia.com/gpu.deploy.driver": "true",
            "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION": rhcos,
        }
        assert each["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert notation.container(each, CTR)["image"].endswith(f"-rhcos{version}")


def test_containers_hand_the_build_over():
    changes = {"driver": {"args": ["mine"]}, "gds": {"enabled": True}, "gdrcopy": {"enabled": True}}
    found = daemon_sets(changes)[f"{BASE}-{OLD}"]
    pod = notation.pod(found)
    assert [each["name"] for each in pod["containers"]] == [CTR, "nvidia-fs-ctr", "nvidia-gdrcopy-ctr", TOOLKIT]
    verbs = ("nv-ctr-run-with-dtk", "nv-fs-ctr-run-with-dtk", "gdrcopy-ctr-run-with-dtk")
    for each, verb in zip(pod["containers"], verbs, strict=False):
        assert (each["command"], each["args"]) == (["ocp_dtk_entrypoint"], [verb])
        assert notation.mounts(each)[-1] == SHARED
    toolkit = notation.container(found, TOOLKIT)
    assert toolkit["image"] == FULL[OLD]
    *env, digest = notation.env(toolkit)
    assert env == [f"RHCOS_VERSION={OLD}", "NVIDIA_VISIBLE_DEVICES=void", "GDS_ENABLED=true", "GDRCOPY_ENABLED=true"]
    assert digest == notation.env(notation.container(found, "k8s-driver-manager"))[-1]
    assert toolkit["command"] == ["bash", "-xc"]
    assert "/mnt/shared-nvidia-driver-toolkit/dir_prepared" in toolkit["args"][0]
    assert toolkit["args"][0].endswith("exec /mnt/shared-nvidia-driver-toolkit/ocp_dtk_entrypoint dtk-build-driver")
    assert notation.mounts(toolkit) == [
        SHARED,
        "var-log:/var/log",
        "mlnx-ofed-usr-src:/run/mellanox/drivers/usr/src:H",
        "host-os-release:/host-etc/os-release:ro",
    ]
    assert notation.security(toolkit) == "privileged S0"
    assert notation.volumes(pod)[-1] == "shared-nvidia-driver-toolkit=empty"


def test_toolkit_without_extras_builds_the_driver_alone():
    toolkit = notation.container(daemon_sets()[f"{BASE}-{NEW}"], TOOLKIT)
    assert notation.env(toolkit)[:-1] == [f"RHCOS_VERSION={NEW}", "NVIDIA_VISIBLE_DEVICES=void"]


def test_resources_reach_the_toolkit():
    resources = {"limits": {"memory": "8Gi"}}
    found = daemon_sets({"driver": {"resources": resources}})[f"{BASE}-{OLD}"]
    assert notation.container(found, TOOLKIT)["resources"] == resources


def test_rhcos_without_an_image_falls_back_to_the_driver_image():
    found = daemon_sets({"gds": {"enabled": True}}, images={NEW: "quay.io/dtk@sha256:2"})
    fallback, good = found[f"{BASE}-{OLD}"], found[f"{BASE}-{NEW}"]
    label = "openshift.driver-toolkit.rhcos-image-missing"
    assert fallback["metadata"]["labels"][label] == fallback["spec"]["template"]["metadata"]["labels"][label] == "true"
    assert label not in good["metadata"]["labels"]
    assert notation.container(fallback, TOOLKIT)["image"] == notation.container(fallback, CTR)["image"]
    flags = ["RHCOS_IMAGE_MISSING=true", f"RHCOS_VERSION={OLD}"]
    assert notation.env(notation.container(fallback, CTR))[-3:-1] == flags
    assert notation.env(notation.container(fallback, "nvidia-fs-ctr")) == flags
    assert notation.env(notation.container(fallback, TOOLKIT))[-2] == "RHCOS_IMAGE_MISSING=true"
    assert not [row for row in notation.env(notation.container(good, CTR)) if row.startswith("RHCOS")]


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"operator": {"use_ocp_driver_toolkit": False}}, {}),
        ({}, {"images": None}),
        ({}, {"nodes": (node("a", ""),)}),
        ({}, {"openshift": None}),
    ],
)
def test_without_the_driver_toolkit_there_is_one_daemon_set(changes, more):
    (found,) = daemon_sets(changes, **more).values()
    assert found["metadata"]["name"] == BASE
    assert [each["name"] for each in notation.pod(found)["containers"]] == [CTR]
    assert notation.container(found, CTR)["command"] == ["nvidia-driver"]


def test_node_without_rhcos_has_no_pool_of_its_own():
    assert sorted(daemon_sets(nodes=(*NODES, node("d", "")))) == [f"{BASE}-{OLD}", f"{BASE}-{NEW}"]


def test_precompiled_beats_the_driver_toolkit():
    changes = {"driver": {"usePrecompiled": True}}
    nodes = (node("a", OLD),)
    (found,) = daemon_sets(changes, nodes=nodes).values()
    assert found["metadata"]["name"] == f"{BASE}-5.14.0-427.el9.4-rhcos4.16"
    assert [each["name"] for each in notation.pod(found)["containers"]] == [CTR]
    assert "OPENSHIFT_VERSION" not in notation.env_dict(notation.container(found, CTR))


def test_one_rhcos_on_two_systems_is_an_error():
    nodes = (node("a", OLD), node("b", OLD, "4.17"))
    error = rendering.error({}, nodes=nodes, runtime="crio", openshift=OpenShift(version="4.17", driver_toolkit=FULL))
    assert f"RHCOS {OLD}" in error.message
    assert "rhcos4.16 on node a; rhcos4.17 on node b" in error.message


# --- Proxy ------------------------------------------------------------------------------------------------------------
PROXIES = Proxies(http="http://p:1", https="http://p:2", no_proxy=".svc")
PROXY_ROWS = [
    "HTTPS_PROXY=http://p:2",
    "https_proxy=http://p:2",
    "HTTP_PROXY=http://p:1",
    "http_proxy=http://p:1",
    "NO_PROXY=.svc",
    "no_proxy=.svc",
]


def test_proxy():
    found = daemon_sets(proxies=PROXIES)[f"{BASE}-{NEW}"]
    driver = notation.container(found, CTR)
    assert notation.env(driver)[3:-1] == ["OPENSHIFT_VERSION=4.17", *PROXY_ROWS]
    assert not any("PROXY" in row for row in notation.env(notation.container(found, TOOLKIT)))
    assert not [row for row in notation.volumes(notation.pod(found)) if "trusted-ca" in row]


def test_proxy_of_precompiled_drivers():
    (found,) = daemon_sets({"driver": {"usePrecompiled": True}}, nodes=NODES[:1], proxies=PROXIES).values()
    assert notation.env(notation.container(found, CTR))[3:-1] == PROXY_ROWS


def test_a_users_proxy_wins_and_unset_ones_are_left_out():
    changes = {"driver": {"env": [{"name": "HTTPS_PROXY", "value": "http://mine"}]}}
    found = daemon_sets(changes, proxies=Proxies(https="http://p:2"))[f"{BASE}-{NEW}"]
    rows = [row for row in notation.env(notation.container(found, CTR)) if "proxy" in row.lower()]
    assert rows == ["HTTPS_PROXY=http://mine", "https_proxy=http://p:2"]


def test_proxy_elsewhere_is_not_ours():
    found = rendering.daemon_set(BASE, proxies=Proxies(http="http://p:1", trusted_ca="ca"))
    assert found == rendering.daemon_set(BASE)


CA_DIR = "/etc/pki/ca-trust/extracted/pem"


@pytest.mark.parametrize(
    ("changes", "mount"),
    [
        ({}, f"gpu-operator-trusted-ca:{CA_DIR}:ro"),
        (
            {"driver": {"certConfig": {"name": "certs"}}},
            f"gpu-operator-trusted-ca:{CA_DIR}/tls-ca-bundle.pem:ro (sub=tls-ca-bundle.pem)",
        ),
    ],
)
def test_trusted_authorities(changes, mount):
    more = {
        "openshift": OpenShift(version="4.17", driver_toolkit=FULL),
        "nodes": NODES[:1],
        "proxies": Proxies(https="http://p", trusted_ca="user-ca-bundle"),
        "config_maps": {"certs": ("my.pem",)},
    }
    objects = rendering.objects("26.7.0-default", changes, **more)
    config_map = objects["ConfigMap", "gpu-operator-trusted-ca"]
    assert config_map["metadata"]["labels"]["config.openshift.io/inject-trusted-cabundle"] == "true"
    assert "data" not in config_map
    found = objects["DaemonSet", f"{BASE}-{OLD}"]
    assert mount in notation.mounts(notation.container(found, CTR))
    volume = "gpu-operator-trusted-ca=gpu-operator-trusted-ca ca-bundle.crt->tls-ca-bundle.pem"
    assert volume in notation.volumes(notation.pod(found))


def test_security_context_constraints():
    objects = rendering.objects(openshift=OpenShift(version="4.17"), nodes=NODES[:1])
    scc = objects["SecurityContextConstraints", "nvidia-driver"]
    assert scc["allowHostPID"] is True
    assert scc["users"] == ["system:serviceaccount:gpu-operator:nvidia-driver"]
    assert ("SecurityContextConstraints", "nvidia-driver") not in rendering.objects()


# --- vGPU manager -----------------------------------------------------------------------------------------------------
VGPU = {
    "sandboxWorkloads": {"enabled": True},
    "vgpuManager": {"enabled": True, "repository": "r", "image": "vgpu", "version": "570"},
}
VGPU_BASE = "nvidia-vgpu-manager-daemonset"


def test_vgpu_manager_with_the_driver_toolkit():
    found = daemon_sets(VGPU, images={OLD: FULL[OLD]}, base=VGPU_BASE)
    assert sorted(found) == [f"{VGPU_BASE}-{OLD}", f"{VGPU_BASE}-{NEW}"]
    good = found[f"{VGPU_BASE}-{OLD}"]
    assert good["spec"]["selector"] == {"matchLabels": {"app": f"{VGPU_BASE}-{OLD}"}}
    manager = notation.container(good, "nvidia-vgpu-manager-ctr")
    assert (manager["command"], manager["args"]) == (["ocp_dtk_entrypoint"], ["nv-ctr-run-with-dtk"])
    assert notation.env(manager) == ["OPENSHIFT_VERSION=4.17"]
    toolkit = notation.container(good, TOOLKIT)
    assert notation.env(toolkit) == [f"RHCOS_VERSION={OLD}", "NVIDIA_VISIBLE_DEVICES=void"]
    assert notation.mounts(toolkit) == [
        SHARED,
        "run-nvidia:/run/nvidia:B",
        "var-log:/var/log",
        "dev-log:/dev/log",
        "firmware-search-path:/sys/module/firmware_class/parameters/path",
        "nv-firmware:/lib/firmware",
    ]
    assert notation.volumes(notation.pod(good))[-1] == "shared-nvidia-driver-toolkit=empty"
    fallback = notation.container(found[f"{VGPU_BASE}-{NEW}"], "nvidia-vgpu-manager-ctr")
    assert notation.env(fallback)[1:] == ["RHCOS_IMAGE_MISSING=true", f"RHCOS_VERSION={NEW}"]


def test_vgpu_manager_uses_the_driver_toolkit_beside_a_precompiled_driver():
    changes = {**VGPU, "driver": {"usePrecompiled": True}}
    assert list(daemon_sets(changes, nodes=NODES[:1], base=VGPU_BASE)) == [f"{VGPU_BASE}-{OLD}"]
