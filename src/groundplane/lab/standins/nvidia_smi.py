"""Stand-in for nvidia-smi: replaced by nothing, it belongs to the driver; prints what scripts and people ask it for."""

from collections.abc import Mapping, Sequence

from ...node.devices.models import cuda_version
from ...node.devices.simfile import Card, FabricEntry
from ..host import Gpu
from ..programs import ContainerContext

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


DEFECTS = {
    "power": (8, "Unable to use {gpu}: Insufficient External Power. Attach the power cables of the board"),
    "interrupts": (10, "Unable to use {gpu}: Interrupt Request Issue. The interrupts of the GPU do not arrive"),
    "inforom": (14, "WARNING: infoROM is corrupted at gpu {gpu}"),
}
"""How the tool ends, and what it says, where something is wrong with a board that answers."""


async def run(ctx: ContainerContext) -> int:
    """`nvidia-smi`, `-q`, `-L`, `--version`, `--query-gpu=FIELDS --format=csv[,noheader]`.

    It ends with the status of what is wrong with a GPU, if something is.
    """
    code = _print(ctx)
    if code == 0:
        cards = ctx.host.machine.read().cards
        for gpu in ctx.devices or ctx.host.gpus:
            if gpu.uuid in cards and (found := DEFECTS.get(cards[gpu.uuid].entry.defect)) is not None:
                code = found[0]
                ctx.log(found[1].format(gpu=gpu.pci_address.upper()))
    return code


def _print(ctx: ContainerContext) -> int:
    version = ctx.host.driver_version
    if version is None:
        ctx.log(NO_DRIVER)
        return 9
    if ctx.container.cut_off:
        ctx.log("Failed to initialize NVML: Unknown Error")
        return 255
    gpus = ctx.devices or ctx.host.gpus
    cards = ctx.host.machine.read().cards
    gone = [gpu for gpu in gpus if gpu.uuid in cards and cards[gpu.uuid].entry.lost]
    if gone:
        which = f"GPU{gone[0].index}: {gone[0].pci_address.upper()}"
        ctx.log(f"Unable to determine the device handle for {which}: GPU is lost. Reboot the system to recover it")
        return 15
    if not gpus:
        ctx.log("No devices were found")
        return 6
    query = next((word.partition("=")[2] for word in ctx.argv if word.startswith("--query-gpu=")), "")
    if query:
        names = [name.strip() for name in query.split(",")]
        if not any("noheader" in word for word in ctx.argv):
            ctx.log(", ".join(names))
        for gpu in gpus:
            fields = {
                "index": str(gpu.index),
                "uuid": gpu.uuid,
                "name": gpu.model.product,
                "driver_version": version,
                "pci.bus_id": gpu.pci_address.upper(),
                "memory.total": f"{gpu.model.memory_mib} MiB",
            }
            unknown = [name for name in names if name not in fields]
            if unknown:
                ctx.log(f'Field "{unknown[0]}" is not a valid field to query.')
                return 2
            ctx.log(", ".join(fields[name] for name in names))
    elif "-q" in ctx.argv:
        _query(ctx, gpus, cards, version)
    elif "-L" in ctx.argv:
        for gpu in gpus:
            ctx.log(f"GPU {gpu.index}: {gpu.model.product} (UUID: {gpu.uuid})")
    elif "--version" in ctx.argv:
        ctx.log(f"NVIDIA-SMI version  : {version}\nDRIVER version      : {version}")
    else:
        cuda = cuda_version(version)
        ctx.log(f"NVIDIA-SMI {version}   Driver Version: {version}   CUDA Version: {cuda}   (simulated)")
        for gpu in gpus:
            ctx.log(f"  {gpu.index}  {gpu.model.product}  {gpu.pci_address}  0MiB / {gpu.model.memory_mib}MiB")
    return 0


def _query(ctx: ContainerContext, gpus: Sequence[Gpu], cards: Mapping[str, Card], version: str) -> None:
    """What `-q` tells of each GPU, as far as people and programs ask the lab's for it."""
    ctx.log(f"Driver Version                            : {version}")
    ctx.log(f"CUDA Version                              : {cuda_version(version)}")
    ctx.log(f"\nAttached GPUs                             : {len(gpus)}")
    for gpu in gpus:
        fabric = cards[gpu.uuid].entry.fabric if gpu.uuid in cards else None
        state = {"completed": "Completed", "inProgress": "In Progress", "notStarted": "Not Started"}
        ctx.log(f"GPU {gpu.pci_address.upper()}\n    Product Name                          : {gpu.model.product}")
        ctx.log(f"    GPU UUID                              : {gpu.uuid}\n    Fabric")
        ctx.log(f"        State                             : {state[fabric.state] if fabric else 'N/A'}")
        ctx.log(f"        Status                            : {_status(fabric)}")


def _status(fabric: FabricEntry | None) -> str:
    if fabric is None or fabric.state != "completed":
        return "N/A"
    return "Success" if fabric.status == "SUCCESS" else fabric.status


async def on_host(ctx: ContainerContext) -> int:
    """The host's own nvidia-smi, which works only with the host's own libraries."""
    version = ctx.host.driver_version
    if not ctx.host.host_libraries():
        ctx.log(
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that it is installed"
        )
        return 12
    if version is not None and version not in ctx.host.host_libraries():
        ctx.log("Failed to initialize NVML: Driver/library version mismatch")
        return 18
    return await run(ctx)
