"""Renders NVIDIADrivers for tests: a plain one, with changes, on plain nodes."""

from operands import rendering

from groundplane.api import codec
from groundplane.api.release import Release
from groundplane.operands import nvidiadriver
from groundplane.operands.facts import ClusterFacts

UID = "bfac7359-6033-45ce-88d6-53db0078526e"
NFD = "feature.node.kubernetes.io/"
OS_ID = NFD + "system-os_release.ID"
OS_VERSION = NFD + "system-os_release.VERSION_ID"
OS_MAJOR = NFD + "system-os_release.VERSION_ID.major"
OSTREE = NFD + "system-os_release.OSTREE_VERSION"
KERNEL = NFD + "kernel-version.full"
PRESENT = "nvidia.com/gpu.present"
OWNER = "nvidia.com/gpu-operator.driver.owner"
DEPLOY = "nvidia.com/gpu.deploy.driver"
SPEC = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.126.20"}
MANAGER = "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.12.0"


def driver(spec=None, name="a", uid=UID, **metadata):
    document = {"metadata": {"name": name, "uid": uid, **metadata}, "spec": rendering.merged(SPEC, spec or {})}
    return codec.load_nvidia_driver(document).driver


def node(os="ubuntu:24.04", kernel="6.8.0-60-generic", owner="a", ostree="", **labels):
    os_id, _, version = os.partition(":")
    known = {
        OS_ID: os_id,
        OS_VERSION: version,
        OS_MAJOR: version.partition(".")[0],
        KERNEL: kernel,
        OSTREE: ostree,
        PRESENT: "true",
        OWNER: owner,
        DEPLOY: "true",
    }
    return {key: value for key, value in {**known, **labels}.items() if value}


def facts(release=Release.V26_7, **more):
    defaults = {
        "namespace": "gpu-operator",
        "release": release,
        "default_images": {"DRIVER_MANAGER_IMAGE": MANAGER, "DRIVER_IMAGE": "never", "GDS_IMAGE": "never"},
    }
    return ClusterFacts(**{**defaults, **more})


def render(spec=None, nodes=None, release=Release.V26_7, given=None, live=(), host_root="/", **more):
    """What a driver with changes comes to on ``nodes`` (labels by name), by default one Ubuntu node."""
    nodes = {"gpu-1": node()} if nodes is None else nodes
    return nvidiadriver.render(given or driver(spec), nodes, facts(release, **more), live=live, host_root=host_root)


def daemon_set(*args, **kwargs):
    """The one DaemonSet that a driver comes to."""
    (found,) = render(*args, **kwargs).daemon_sets
    return found
