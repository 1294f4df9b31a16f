"""What OpenShift adds to the facts (contracts/control-plane.md 5.4): its version, proxy and driver-toolkit images.

Pure views and functions; on any other cluster the objects are simply not there. Watching them is ``caches.py``'s.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import field

from ..api.clusterpolicy import ClusterPolicySpec
from ..cluster.views import Meta
from ..operands.facts import OpenShift, Proxies
from .fleet import Summary
from .metrics import Metrics

NAMESPACE: Final = "openshift"
IMAGE_STREAM: Final = "driver-toolkit"
CLUSTER_VERSION: Final = "version"
PROXY: Final = "cluster"
MONITORED_NAMESPACE: Final = "nvidia-gpu-operator"
"""Where NVIDIA's operator lives on OpenShift; namespace labels are set only there."""

TOOLKIT_ENABLED: Final = 1
TOOLKIT_NOT_REQUESTED: Final = 0
TOOLKIT_IMPOSSIBLE: Final = -1


class History(msgspec.Struct, frozen=True):
    """One update in a ClusterVersion's history; the newest comes first."""

    state: str = ""
    version: str = ""


class ClusterVersionStatus(msgspec.Struct, frozen=True):
    """``status`` of a ClusterVersion."""

    history: tuple[History, ...] = ()


class ClusterVersionView(msgspec.Struct, frozen=True):
    """The ClusterVersion."""

    metadata: Meta = Meta()
    status: ClusterVersionStatus = ClusterVersionStatus()


class TrustedCA(msgspec.Struct, frozen=True):
    """A reference to the proxy's CA bundle."""

    name: str = ""


class ProxySpec(msgspec.Struct, frozen=True):
    """``spec`` of the cluster-wide Proxy."""

    trustedCA: TrustedCA = TrustedCA()


class ProxyStatus(msgspec.Struct, frozen=True):
    """``status`` of the cluster-wide Proxy: what is in force."""

    httpProxy: str = ""
    httpsProxy: str = ""
    noProxy: str = ""


class ProxyView(msgspec.Struct, frozen=True):
    """The cluster-wide Proxy."""

    metadata: Meta = Meta()
    spec: ProxySpec = ProxySpec()
    status: ProxyStatus = ProxyStatus()


class TagFrom(msgspec.Struct, frozen=True):
    """The image that a tag stands for."""

    name: str = ""


class Tag(msgspec.Struct, frozen=True):
    """A tag of an imagestream."""

    name: str = ""
    from_: TagFrom | None = field(default=None, name="from")


class ImageStreamSpec(msgspec.Struct, frozen=True):
    """``spec`` of an imagestream."""

    tags: tuple[Tag, ...] = ()


class ImageStreamView(msgspec.Struct, frozen=True):
    """An imagestream."""

    metadata: Meta = Meta()
    spec: ImageStreamSpec = ImageStreamSpec()


def version_of(view: ClusterVersionView) -> str:
    """``major.minor`` of the last completed update, empty while the first one runs."""
    done = next((entry.version for entry in view.status.history if entry.state == "Completed"), "")
    return ".".join(done.split(".")[:2])


def toolkit_images(stream: ImageStreamView | None) -> Mapping[str, str] | None:
    """RHCOS version -> image of the driver toolkit, ``None`` without the imagestream."""
    if stream is None:
        return None
    return {tag.name: tag.from_.name for tag in stream.spec.tags if tag.name not in ("", "latest") and tag.from_}


def facts(version: ClusterVersionView | None, stream: ImageStreamView | None) -> OpenShift | None:
    """OpenShift's facts, ``None`` on another cluster."""
    if version is None:
        return None
    return OpenShift(version=version_of(version), driver_toolkit=toolkit_images(stream))


def proxies(view: ProxyView | None) -> Proxies | None:
    """The proxy in force, ``None`` without one."""
    if view is None:
        return None
    found = Proxies(
        http=view.status.httpProxy,
        https=view.status.httpsProxy,
        no_proxy=view.status.noProxy,
        trusted_ca=view.spec.trustedCA.name,
    )
    return found if found != Proxies() else None


def report(
    metrics: Metrics, spec: ClusterPolicySpec, found: OpenShift | None, stream: ImageStreamView | None, fleet: Summary
) -> None:
    """Set the driver-toolkit gauges (5.6)."""
    requested = found is not None and spec.operator.use_ocp_driver_toolkit is not False
    requested = requested and not spec.driver.usePrecompiled
    in_use = {node.ostree for node in fleet.nodes if node.ostree}
    tags = found.driver_toolkit if found else None
    possible = tags is not None and bool(in_use)
    enabled = TOOLKIT_ENABLED if possible else TOOLKIT_IMPOSSIBLE
    broken = stream is not None and any(not tag.name for tag in stream.spec.tags)
    metrics.set("openshift_driver_toolkit_enabled", enabled if requested else TOOLKIT_NOT_REQUESTED)
    metrics.set("openshift_driver_toolkit_imagestream_missing", requested and tags is None)
    metrics.set("openshift_driver_toolkit_nfd_too_old", requested and bool(fleet.nodes) and not in_use)
    metrics.set(
        "openshift_driver_toolkit_rhcos_tags_missing", requested and possible and bool(in_use - set(tags or ()))
    )
    metrics.set("openshift_driver_toolkit_imagestream_broken", requested and broken)
