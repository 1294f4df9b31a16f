"""Stand-in for nvidia-smi: replaced by nothing, it belongs to the driver; prints what scripts and people ask it for."""

from ...node.devices.models import cuda_version
from ..programs import ContainerContext

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


async def run(ctx: ContainerContext) -> int:
    """`nvidia-smi`, `-L`, `--version`, `--query-gpu=FIELDS --format=csv[,noheader]`."""
    version = ctx.host.driver_version
    if version is None:
        ctx.log(NO_DRIVER)
        return 9
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


async def on_host(ctx: ContainerContext) -> int:
    """The host's own nvidia-smi, which works only with the host's own libraries."""
    version = ctx.host.driver_version
    if version is not None and version not in ctx.host.host_libraries():
        ctx.log("Failed to initialize NVML: Driver/library version mismatch")
        return 18
    return await run(ctx)
