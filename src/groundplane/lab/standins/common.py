"""Stand-in for nothing: what several stand-ins share of the driver and of labels; goes with the last of them."""

from .. import driverfiles, resources
from ..programs import ContainerContext

DRIVER_LIBRARIES = tuple(
    driverfiles.library(name, driverfiles.CONTAINER_LIBRARIES) for name in ("libnvidia-ml.so", "libcuda.so")
)
"""Below the root of a driver's container."""
UNLOAD_ORDER = ("nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "nvidia_vgpu_vfio", "gdrdrv", "nvidia")
LOAD_ORDER = ("nvidia", "nvidia_uvm", "nvidia_modeset")


def sees_driver(ctx: ContainerContext, root: str = "/driver-root") -> bool:
    """Whether the process can load the driver's libraries: injected, or below the mounted driver root."""
    if not ctx.host.loaded("nvidia"):
        return False
    if ctx.container.driver_injected or ctx.host.has_host_driver():
        return True
    return any(ctx.exists(root + path) for path in DRIVER_LIBRARIES)


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
