"""Stand-in for nothing: what several stand-ins share (the driver's files and CDI specs); goes with the last of them."""

import json
from collections.abc import Iterable
from typing import Any

from ...api import names
from .. import resources
from ..host import CONTROL_DEVICES, HOST_DRIVER_FILES, Gpu
from ..programs import ContainerContext

DRIVER_FILES = ("/usr/bin/nvidia-smi", "/usr/lib64/libnvidia-ml.so.1", "/usr/lib64/libcuda.so.1")
UNLOAD_ORDER = ("nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "nvidia_vgpu_vfio", "gdrdrv", "nvidia")
MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
LOAD_ORDER = ("nvidia", "nvidia_uvm", "nvidia_modeset")


def sees_driver(ctx: ContainerContext, root: str = "/driver-root") -> bool:
    """Whether the process can load the driver's libraries: injected, or below the mounted driver root."""
    if not ctx.host.loaded("nvidia"):
        return False
    if ctx.container.driver_injected or ctx.host.has_host_driver():
        return True
    return any(ctx.exists(root + path) for path in DRIVER_FILES[1:])


def driver_mounts(ctx: ContainerContext) -> list[tuple[str, str]]:
    """The driver's files that this process sees, as (path on the host, path in a container).

    Where the driver's root is comes from the driver's validation (contracts/mig-exporter-validator.md 6.2).
    """
    host = ctx.env.get("NVIDIA_DRIVER_ROOT", names.DRIVER_ROOT).rstrip("/")
    here = ctx.env.get("DRIVER_ROOT_CTR_PATH", "/driver-root").rstrip("/")
    files = dict.fromkeys((*DRIVER_FILES, *HOST_DRIVER_FILES))
    return [(host + path, path) for path in files if ctx.exists(here + path)]


def cdi_spec(kind: str, devices: Iterable[tuple[str, Iterable[Gpu]]], mounts: Iterable[tuple[str, str]]) -> str:
    """A CDI specification (JSON) whose devices each stand for some GPUs and all bring the mounts."""
    document: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [_device(gpu.device_node) for gpu in gpus]}}
            for name, gpus in devices
        ],
        "containerEdits": {
            "deviceNodes": [_device(f"/dev/{name}") for name in CONTROL_DEVICES],
            "mounts": [{"hostPath": host, "containerPath": path, "options": MOUNT_OPTIONS} for host, path in mounts],
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _device(path: str) -> dict[str, Any]:
    """A device node that is the null device under another name, so that a real runtime can make it without a GPU."""
    return {"path": path, "type": "c", "major": 1, "minor": 3}


def unload_modules(ctx: ContainerContext) -> None:
    """Unload the driver's modules in their order; HostError if one is in use."""
    for module in UNLOAD_ORDER:
        ctx.host.unload_module(module)
    ctx.host.remove_device_nodes()


def node_labels(ctx: ContainerContext) -> dict[str, str]:
    """The labels of the process' node."""
    labels: dict[str, str] = ctx.api.get(resources.NODES, ctx.node_name)["metadata"].get("labels") or {}
    return labels


def set_node_labels(ctx: ContainerContext, changes: dict[str, str | None], manager: str) -> None:
    """Set (or, with None, remove) labels of the process' node in one patch."""
    body = {"metadata": {"labels": changes}}
    ctx.api.patch(resources.NODES, ctx.node_name, body, type="merge", manager=manager)
