"""What rendering must know of the cluster besides the policy, as plain frozen data.

The operator observes a cluster and fills these in (operator/observe.py); ``groundplane render`` fills
them from a node file. Rendering itself never asks anyone: whatever it needs to know is a field here,
and :func:`references` says which ConfigMaps and Secrets must be looked up before it can start.
"""

from collections.abc import Mapping

import msgspec
from msgspec import field

from ..api.clusterpolicy import ClusterPolicySpec
from ..api.release import Release


class GpuNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with ``nvidia.com/gpu.present=true``, as node feature discovery describes it.

    An empty string means that the label is missing. ``ostree`` is set on RHCOS only.
    """

    name: str = ""
    kernel: str = ""
    os_id: str = ""
    os_version: str = ""
    ostree: str = ""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The ClusterPolicy that owns every object rendered from it."""

    name: str
    uid: str
    api_version: str = "nvidia.com/v1"
    kind: str = "ClusterPolicy"


class Proxies(msgspec.Struct, frozen=True, kw_only=True):
    """OpenShift's cluster-wide proxy (contracts/control-plane.md 5.4); empty strings are unset."""

    http: str = ""
    https: str = ""
    no_proxy: str = ""
    trusted_ca: str = ""


class OpenShift(msgspec.Struct, frozen=True, kw_only=True):
    """What only an OpenShift cluster has.

    ``version`` is major.minor. ``driver_toolkit`` maps each RHCOS version (tag of the imagestream
    ``openshift/driver-toolkit``) to its image; ``None`` means that the imagestream does not exist.
    """

    version: str
    driver_toolkit: Mapping[str, str] | None = None


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as far as rendering depends on it.

    ``config_maps`` and ``secrets`` map each name of :func:`references` to the object's keys, sorted,
    or to ``None`` when the object does not exist in ``namespace``. ``default_images`` holds the image
    variables of the operator's environment (contracts/control-plane.md 1.2).
    """

    namespace: str
    release: Release = Release.DEFAULT
    runtime: str = "containerd"
    nodes: tuple[GpuNode, ...] = ()
    service_monitor_crd: bool = False
    default_images: Mapping[str, str] = field(default_factory=dict)
    config_maps: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    openshift: OpenShift | None = None
    proxies: Proxies | None = None
    owner: Owner | None = None


class References(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the objects, all in the operator's namespace, whose keys rendering needs."""

    config_maps: frozenset[str]
    secrets: frozenset[str]


def references(spec: ClusterPolicySpec) -> References:
    """The ConfigMaps and Secrets that ``spec`` names and whose keys shape the rendered objects."""
    driver = spec.driver
    config_maps = (
        driver.repoConfig.configMapName,
        driver.certConfig.name,
        driver.kernelModuleConfig.name,
        driver.virtualTopology.config,
        driver.licensingConfig.configMapName,
        spec.vgpuManager.kernelModuleConfig.name,
    )
    secrets = (driver.secretEnv, driver.licensingConfig.secretName)
    return References(
        config_maps=frozenset(name for name in config_maps if name),
        secrets=frozenset(name for name in secrets if name),
    )
