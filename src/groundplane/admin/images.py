"""Every image and package that a release needs on a cluster: what an air-gapped site has to mirror (A34, A92).

Where images come from is NVIDIA's charts' (sections of the values; contracts/control-plane.md 6.1), versions are the
support matrix's, and what a cluster's own values say wins over both. Driver images differ by operating system, and
precompiled ones by kernel. Whether a registry has an image is not asked here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ..operands.images import DIGEST, joined, with_os
from . import trees
from .lookups import Target, precompiled_tag
from .trees import Tree
from .versions import os_parts


class Section(NamedTuple):
    """An image of the chart: the section of its values, where it comes from, and its version's name in the matrix.

    ``on``: whether it is used unless a value says otherwise; ``switch``: that value, if it is not the section's own.
    """

    name: str
    repository: str
    image: str
    component: str
    on: bool = True
    switch: str = ""

    @property
    def enabled(self) -> str:
        """The value that switches it on and off."""
        return self.switch or f"{self.name}.enabled"


_NGC: Final = "nvcr.io/nvidia"
_CLOUD: Final = "nvcr.io/nvidia/cloud-native"
_K8S: Final = "nvcr.io/nvidia/k8s"
SECTIONS: Final = (
    Section("operator", _NGC, "gpu-operator", "validator"),
    Section("validator", _NGC, "gpu-operator", "validator"),
    Section("driver.manager", _CLOUD, "k8s-driver-manager", "driver_manager", switch="driver.enabled"),
    Section("toolkit", _K8S, "container-toolkit", "container_toolkit"),
    Section("devicePlugin", _NGC, "k8s-device-plugin", "device_plugin"),
    Section("gfd", _NGC, "k8s-device-plugin", "gpu_feature_discovery"),
    Section("dcgmExporter", _K8S, "dcgm-exporter", "dcgm_exporter"),
    Section("dcgm", _CLOUD, "dcgm", "dcgm", on=False),
    Section("migManager", _CLOUD, "k8s-mig-manager", "mig_manager"),
    Section("nodeStatusExporter", _NGC, "gpu-operator", "validator", on=False),
    Section("gds", _CLOUD, "nvidia-fs", "gds_driver", on=False),
    Section("gdrcopy", _CLOUD, "gdrdrv", "gdrcopy", on=False),
    Section("vfioManager", _CLOUD, "k8s-driver-manager", "driver_manager", False, "sandboxWorkloads.enabled"),
    Section("sandboxDevicePlugin", _NGC, "kubevirt-gpu-device-plugin", "kubevirt_device_plugin", False,
            "sandboxWorkloads.enabled"),
    Section("vgpuDeviceManager", _CLOUD, "vgpu-device-manager", "vgpu_device_manager", False,
            "sandboxWorkloads.enabled"),
    Section("ccManager", _CLOUD, "k8s-cc-manager", "cc_manager", False, "sandboxWorkloads.enabled"),
)  # fmt: skip
"""The images of one tag each; drivers and node feature discovery are apart."""
PER_SYSTEM: Final = ("gds", "gdrcopy")
"""Images with a tag for every operating system, like the driver's."""
OLD_VALIDATOR: Final = "gpu-operator-validator"
NFD: Final = ("registry.k8s.io/nfd", "node-feature-discovery", "node_feature_discovery")


class System(NamedTuple):
    """An operating system (the matrix's key) and a kernel that nodes run, with the number of nodes."""

    key: str
    kernel: str
    nodes: int = 1


class Image(msgspec.Struct, frozen=True, order=True):
    """An image, what it is for, and for which system if not for all."""

    component: str
    reference: str
    system: str = ""


class Needed(NamedTuple):
    """What has to be in reach."""

    images: tuple[Image, ...]
    packages: tuple[str, ...]
    """Of the nodes' package repositories, where a driver is built on the node."""

    @property
    def registries(self) -> tuple[str, ...]:
        """Hosts that images come from."""
        return tuple(sorted({each.reference.partition("/")[0] for each in self.images}))


def needed(target: Target, values: Tree, systems: Iterable[System]) -> Needed:
    """The images and packages of a release under some values (of a chart, or a ClusterPolicy's spec)."""
    found = list(dict.fromkeys(systems))
    made = {image.reference: image for image in _all(target, values, found)}
    return Needed(tuple(made.values()), tuple(sorted(set(_packages(values, found)))))


def _all(target: Target, values: Tree, systems: list[System]) -> Iterator[Image]:
    if trees.get(values, "nfd.enabled", True) is not False:
        repository, image, component = NFD
        section = trees.get(values, "node-feature-discovery.image", {}) or {}
        yield Image("node feature discovery", _reference(section, repository, image, _version(target, component)))
    for section in SECTIONS:
        if section.name in PER_SYSTEM and _on(values, section):
            yield from _per_system(target, values, section, systems)
        elif section.name in ("operator", "validator") or _on(values, section):
            yield Image(section.name, _of(target, values, section))
    if trees.get(values, "driver.enabled", True) is not False:
        yield from _drivers(target, values, systems)


def _on(values: Tree, section: Section) -> bool:
    said = trees.get(values, section.enabled)
    return section.on if said is None else bool(said)


def _of(target: Target, values: Tree, section: Section) -> str:
    repository, image = section.repository, section.image
    old = target.row is not None and target.row.validator_image == OLD_VALIDATOR
    if old and section.name in ("validator", "nodeStatusExporter"):
        repository, image = _CLOUD, OLD_VALIDATOR
    version = f"v{target.version}" if section.component == "validator" else _version(target, section.component)
    return _reference(trees.get(values, section.name) or {}, repository, image, version)


def _version(target: Target, component: str) -> str:
    return target.row.components.get(component, "") if target.row is not None else ""


def _reference(section: Any, repository: str, image: str, version: str) -> str:
    """An image under what a section of values says; a version that nobody knows is said to be so."""
    said: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    image, version = str(said.get("image") or image), str(said.get("version") or said.get("tag") or version)
    name = image.rpartition("/")[2]
    if ":" in name or "@" in name:
        return image
    return joined(str(said.get("repository") or repository).rstrip("/"), image, version or "<version>")


def _per_system(target: Target, values: Tree, section: Section, systems: list[System]) -> Iterator[Image]:
    base = _of(target, values, section)
    for key in dict.fromkeys(system.key for system in systems):
        yield Image(section.name, with_os(base, target.image_os_tag(key)) if key else base, key)


def _drivers(target: Target, values: Tree, systems: list[System]) -> Iterator[Image]:
    driver = trees.get(values, "driver") or {}
    default = target.row.driver.default if target.row is not None else ""
    version = str(driver.get("version") or default)
    for system in systems:
        if not system.key:
            continue
        if driver.get("usePrecompiled"):
            tag = precompiled_tag(version, system.kernel, system.key)
        else:
            tag = version if version.startswith(DIGEST) else f"{version}-{target.image_os_tag(system.key)}"
        said = {**driver, "version": tag}
        yield Image("driver", _reference(said, _NGC, "driver", tag), system.key)


_DEBIAN: Final = ("ubuntu", "debian")
_RPM: Final = ("rhel", "rocky", "almalinux", "ol", "centos", "amzn", "sles")


def _packages(values: Tree, systems: Iterable[System]) -> Iterator[str]:
    """What the conventional driver image installs from the nodes' repositories to build its modules."""
    driver = trees.get(values, "driver") or {}
    if driver.get("enabled") is False or driver.get("usePrecompiled"):
        return
    for system in systems:
        os_id, _ = os_parts(system.key)
        if os_id in _DEBIAN:
            yield f"linux-headers-{system.kernel}"
        elif os_id in _RPM:
            yield from (f"{name}-{system.kernel}" for name in ("kernel-devel", "kernel-headers"))
