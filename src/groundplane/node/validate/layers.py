"""The layers on top of the driver, and the kernel modules beside it (contracts/mig-exporter-validator.md 6.3)."""

from collections.abc import Mapping
from typing import Final

from ...api import names
from .context import Context
from .errors import NotReady
from .smi import TOOL
from .status import CC_MANAGER_CONTAINER

PROC_MODULES: Final = "/proc/modules"
MOFED_CONTAINER: Final = "/run/mellanox/drivers/.driver-ready"
MELLANOX: Final = names.NFD_PREFIX + "pci-15b3.present"
CC_CAPABLE: Final = "nvidia.com/cc.capable"
TRIES, TRY_S = 30, 5.0
"""How often, and after how many seconds, the node is asked for its resources."""


async def toolkit(context: Context) -> None:
    """The container runtime has given this container the driver."""
    missing = (
        "the container runtime has not brought the driver into this container; see the container toolkit's pod on this "
        "node, and whether the runtime class is the one it configured"
    )
    context.process.out(await context.smi.run((TOOL,), missing=missing))


def is_loaded(context: Context, module: str) -> bool:
    """Whether a kernel module is loaded. Raises :class:`~.errors.NotReady` where the list cannot be read."""
    try:
        lines = context.process.kernel.read_text(PROC_MODULES).splitlines()
    except OSError as error:
        raise NotReady(f"{PROC_MODULES} cannot be read: {error.strerror or error}", f"module {module}") from error
    return any(line.split(maxsplit=1)[:1] == [module] for line in lines)


async def require_module(context: Context, module: str) -> None:
    """A kernel module is loaded."""
    if not is_loaded(context, module):
        raise NotReady(
            f"kernel module {module} is not loaded", f"module {module}, which the driver's pod or the host loads"
        )


# --- MOFED, confidential computing ------------------------------------------------------------------------------------


async def needs_mofed(context: Context) -> bool:
    """Whether GPUDirect RDMA is wanted on this node and it has a network card for it."""
    if not context.settings.rdma:
        context.note("mofed", "GPU_DIRECT_RDMA_ENABLED is not true: the MOFED driver is not needed")
        return False
    if (await context.labels("the MOFED validation")).get(MELLANOX) != "true":
        context.note("mofed", f"The node has no Mellanox device (label {MELLANOX}): no MOFED driver is needed")
        return False
    return True


async def mofed(context: Context) -> None:
    """The MOFED driver is loaded: the host's, or that of its container."""
    if context.settings.host_mofed:
        await require_module(context, "mlx5_core")
    elif not context.process.path(MOFED_CONTAINER).exists():
        raise NotReady(
            f"{MOFED_CONTAINER} is not there",
            "the MOFED driver's pod on this node (with a driver on the host, set USE_HOST_MOFED=true)",
        )


async def cc_manager(context: Context) -> None:
    """The confidential computing manager is ready, where the node can do that."""
    if (await context.labels("the CC manager validation")).get(CC_CAPABLE) != "true":
        context.note("cc", f"The node is not capable of confidential computing (label {CC_CAPABLE})")
        return
    path = f"{names.VALIDATIONS_DIR}/{CC_MANAGER_CONTAINER}"
    if not context.process.path(path).exists():
        raise NotReady(f"{path} is not there", "the CC manager's pod on this node, which writes it")


# --- the device plugin ------------------------------------------------------------------------------------------------

_SUFFIXES: Final[Mapping[str, int]] = {
    **{suffix: 1000**power for power, suffix in enumerate(("", "k", "M", "G"))},
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi"), start=1)},
}


def count(quantity: str) -> int:
    """A Kubernetes quantity of devices, such as ``8`` or ``1k``; 0 for what is no whole number of them."""
    digits = quantity.rstrip("kKMGi")
    factor = _SUFFIXES.get(quantity[len(digits) :])
    return int(digits) * factor if digits.isascii() and digits.isdigit() and factor is not None else 0


def gpu_resources(quantities: Mapping[str, str] | None) -> dict[str, int]:
    """The GPU resources with at least one device: those of MIG profiles first, each by name."""
    found = {}
    for prefix in (names.MIG_RESOURCE_PREFIX, names.GPU_RESOURCE):
        for name in sorted(quantities or {}):
            if name.startswith(prefix) and count((quantities or {})[name]) >= 1:
                found[name] = count((quantities or {})[name])
    return found


def listed(quantities: Mapping[str, str] | None) -> str:
    """Resources and how many, for a person."""
    return ", ".join(f"{name}={value}" for name, value in sorted((quantities or {}).items())) or "none"


async def plugin(context: Context) -> None:
    """The node offers GPUs, within some tries."""
    for attempt in range(1, TRIES + 1):
        node = await context.node("the device plugin validation")
        if found := gpu_resources(node.status.capacity):
            context.process.log.info(f"The node offers {', '.join(f'{name}={value}' for name, value in found.items())}")
            return
        context.note("plugin", f"The node offers no GPU yet; its resources: {listed(node.status.capacity)}")
        if attempt < TRIES:
            await context.process.sleep(TRY_S)
    raise NotReady(
        f"node {context.settings.node} offers neither {names.GPU_RESOURCE} nor {names.MIG_RESOURCE_PREFIX}*, after "
        f"{TRIES} looks; its resources: {listed(node.status.capacity)}",
        "GPUs offered by the device plugin; see its pod on this node",
    )
