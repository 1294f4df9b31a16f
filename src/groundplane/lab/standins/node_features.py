"""Stand-in for node feature discovery (nfd-worker and master): replaced by groundplane's node/features (minimal NFD).

Runs beside the kubelet (on a real node in a pod, as `node-features`) and labels the node with its PCI vendors, kernel
and operating system
(contracts/device-plugin-gfd.md 9), with the operator chart's settings: class whitelist 02, 03 and the field vendor.
"""

import re
from collections.abc import Iterator, Mapping

from ...api import names
from .. import resources
from ..clock import LabClock
from ..host import SimulatedHost
from ..programs import ApiClient, ContainerContext

INTERVAL_S = 60.0
LEAST_REAL_S = 5.0
LOCAL_INTERVAL_S = 10.0
MANAGER = "nfd-master"
OWNED = "nfd.node.kubernetes.io/feature-labels"
LOCAL = "/etc/kubernetes/node-feature-discovery/features.d"
"""Where other programs of the node, such as gpu-feature-discovery, leave files of labels, `key=value` a line."""

_CLASSES = ("02", "03")


def labels(host: SimulatedHost) -> dict[str, str]:
    """The labels of a node, by its host's files."""
    return dict(_labels(host))


def _labels(host: SimulatedHost) -> Iterator[tuple[str, str]]:
    for device in host.pci_devices():
        if device["class"].removeprefix("0x").startswith(_CLASSES):
            yield f"{names.NFD_PREFIX}pci-{device['vendor'].removeprefix('0x')}.present", "true"
    kernel = re.sub(r"[^-A-Za-z0-9_.]", "_", host.kernel).strip("-_.")
    yield names.KERNEL_VERSION, kernel
    for key, number in zip(("major", "minor", "revision"), re.findall(r"[0-9]+", kernel)[:3], strict=False):
        yield f"{names.NFD_PREFIX}kernel-version.{key}", number
    release = _os_release(host.root.read_text("/etc/os-release"))
    for key in ("ID", "VERSION_ID", "OSTREE_VERSION"):
        if key in release:
            yield f"{names.NFD_PREFIX}system-os_release.{key}", release[key]
    for key, number in zip(("major", "minor"), release.get("VERSION_ID", "").split("."), strict=False):
        if number.isdecimal():
            yield f"{names.NFD_PREFIX}system-os_release.VERSION_ID.{key}", number


def _os_release(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value.strip("\"'") for key, _, value in pairs}


async def run(api: ApiClient, host: SimulatedHost, clock: LabClock) -> None:
    """Keep the node's feature labels as they should be, for ever."""
    while True:
        publish(api, host)
        await clock.sleep(max(INTERVAL_S, LEAST_REAL_S * clock.speed))


async def program(ctx: ContainerContext) -> int:
    """`node-features`: the same in a container, with the labels that other programs of the node have found."""
    while True:
        publish(ctx.api, ctx.host, local_labels(ctx))
        if await ctx.stopped(LOCAL_INTERVAL_S):
            return 0


def local_labels(ctx: ContainerContext) -> dict[str, str]:
    """The labels in the files of `LOCAL`."""
    folder = ctx.path(LOCAL)
    files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".")) if folder.is_dir() else []
    lines = [line for file in files for line in file.read_text().splitlines()]
    return {key: value for key, found, value in (line.partition("=") for line in lines) if found}


def publish(api: ApiClient, host: SimulatedHost, more: Mapping[str, str] | None = None) -> None:
    """Write the labels that differ, and remove own ones that are no longer true."""
    node = api.find(resources.NODES, host.spec.name)
    if node is None:
        return
    present = node["metadata"].get("labels") or {}
    owned = (node["metadata"].get("annotations") or {}).get(OWNED, "")
    wanted = labels(host) | dict(more or {})
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if present.get(key) != value}
    stale = (key if "/" in key else names.NFD_PREFIX + key for key in owned.split(",") if key)
    changes |= {key: None for key in stale if key not in wanted and key in present}
    record = ",".join(sorted(key.removeprefix(names.NFD_PREFIX) for key in wanted))
    if changes or record != owned:
        body = {"metadata": {"labels": changes, "annotations": {OWNED: record}}}
        api.patch(resources.NODES, host.spec.name, body, type="merge", manager=MANAGER)
