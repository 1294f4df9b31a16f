"""The driver's modules: which kind is installed, with which parameters, loading them and unloading them.

Pure functions decide (kind, parameters), the others act on the host. Source: contracts/driver-lifecycle.md 6.3, 6.4,
6.5 and 5.5.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ...api import names
from ..host import Gpu, HostError, SimulatedHost
from ..programs import ContainerContext
from .image import DriverImage

FIRMWARE_PATH: Final = "/sys/module/firmware_class/parameters/path"
FIRMWARE: Final = f"{names.DRIVER_ROOT}/lib/firmware"
PARAMETERS: Final = "/drivers"
MODPROBE: Final = "/etc/modprobe.d"
CONFIGURABLE: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-peermem")
ALWAYS: Final = "NVreg_CoherentGPUMemoryMode=driver"
"""Put before what is configured for `nvidia`, in images that build."""
NO_FIRMWARE: Final = "NVreg_EnableGpuFirmware=0"

KINDS: Final = ("auto", "open", "proprietary")
RECOMMENDS_FROM: Final = 560
"""The branch whose installer recommends a kind; before, the command does not exist."""
OPEN_FROM: Final = (7, 5)
"""Compute capability of Turing, the oldest that open modules drive."""
OPEN_ONLY_FROM: Final = (10, 0)
"""Compute capability of Blackwell, which proprietary modules do not drive."""

BEFORE: Final = ("i2c_core", "ipmi_msghandler", "ipmi_devintf")
LOADED: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset")
PEERMEM: Final = "nvidia-peermem"
CLIENTS: Final = ("gdrdrv", "nvidia_fs")
"""Modules of other containers that use the driver's; they have to go before it and are put back after."""
DEPENDANTS: Final = ("nvidia_modeset", "nvidia_uvm", "nvidia_peermem")
IN_USE: Final = "Could not unload NVIDIA driver kernel modules, driver is in use"
MELLANOX: Final = "0x15b3"
NOUVEAU: Final = "nouveau"
"""The kernel's own driver; a GPU that it has is not NVIDIA's to take."""


class KindError(ValueError):
    """KERNEL_MODULE_TYPE has a value that it may not have."""


class Build(msgspec.Struct, frozen=True):
    """The modules as installed: of which version, which kind, signed by whom, with parameters by module."""

    version: str
    open: bool
    signer: str
    parameters: Mapping[str, Sequence[str]]

    def options(self, module: str) -> dict[str, str]:
        """The parameters of a module; a later one of the same name counts."""
        pairs = (text.partition("=") for text in self.parameters.get(module, ()))
        return {name: value for name, _, value in pairs}


# --- kind -------------------------------------------------------------------------------------------------------------
def kind_is_open(setting: str, branch: int, recommended: str | None) -> bool:
    """Whether open modules are installed (6.4); `recommended` is what the installer says, None if it fails.

    Raises :class:`KindError`.
    """
    if setting not in KINDS:
        raise KindError(f"invalid value for the KERNEL_MODULE_TYPE variable: {setting}")
    if setting != "auto":
        return setting == "open"
    return recommended == "open" if recommended is not None else branch >= RECOMMENDS_FROM


def recommended(image: DriverImage, host: SimulatedHost) -> str | None:
    """What the installer recommends for the host's GPUs: open modules if they drive all of them."""
    if image.branch < RECOMMENDS_FROM or not host.gpus:
        return None
    return "open" if all(gpu.model.compute >= OPEN_FROM for gpu in host.gpus) else "proprietary"


def drives(host: SimulatedHost, is_open: bool) -> bool:
    """Whether modules of a kind find at least one GPU that they can drive."""
    fits = (gpu.model.compute >= OPEN_FROM if is_open else gpu.model.compute < OPEN_ONLY_FROM for gpu in host.gpus)
    return any(fits)


def unfit(gpu: Gpu, is_open: bool) -> tuple[str, str]:
    """What the driver says in the kernel's log of a GPU that its kind of modules does not drive."""
    why = (
        "is not supported by open nvidia.ko because it does not include the required GPU System Processor (GSP)."
        if is_open
        else "requires use of the NVIDIA open kernel modules."
    )
    first = f"NVRM: The NVIDIA GPU {gpu.pci_address} (PCI ID: 10de:{gpu.model.pci_id.lower()})"
    return first, f"NVRM: installed in this system {why}"


# --- parameters -------------------------------------------------------------------------------------------------------
def words(text: str) -> list[str]:
    """The parameters in a file: some on each line, the last line with or without its end (6.5)."""
    return [word for line in text.splitlines() for word in line.split()]


def parameters(ctx: ContainerContext, image: DriverImage) -> dict[str, list[str]]:
    """The parameters of each module, in order, from the files of the policy's ConfigMap."""
    found: dict[str, list[str]] = {"nvidia": [] if image.kernel else [ALWAYS]}
    for module in CONFIGURABLE:
        file = ctx.path(f"{PARAMETERS}/{module}.conf")
        if file.is_file() and (given := words(file.read_text())):
            ctx.log(f"Module parameters provided for {module}: {' '.join(given)}")
            found[module] = [*found.get(module, ()), *given]
    return {module: given for module, given in found.items() if given}


def modprobe_files(found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The files for modprobe, path to text."""
    return {f"{MODPROBE}/{module}.conf": f"options {module} {' '.join(given)}\n" for module, given in found.items()}


def file(kernel: str, module: str) -> str:
    """Where a module for a kernel lies below the driver root; the file names its signer."""
    return f"/lib/modules/{kernel}/video/{module}.ko"


# --- loading ----------------------------------------------------------------------------------------------------------
def load(ctx: ContainerContext, build: Build, *, rdma: bool) -> None:
    """Load the driver. HostError, with modprobe's text, if the kernel refuses."""
    host = ctx.host
    _firmware(ctx, build)
    ctx.log("Loading ipmi and i2c_core kernel modules...")
    for module in BEFORE:
        host.load_module(module)
    ctx.log("Loading NVIDIA driver kernel modules...")
    if host.loaded(NOUVEAU):
        host.say(*(f"NVRM: GPU {gpu.pci_address} is already bound to nouveau." for gpu in host.gpus), level=3)
        raise HostError("modprobe: ERROR: could not insert 'nvidia': No such device")
    if not drives(host, build.open):
        kind = "open" if build.open else "proprietary"
        host.say(*(line for gpu in host.gpus for line in unfit(gpu, build.open)), level=3)
        raise HostError(
            f"modprobe: ERROR: could not insert 'nvidia': No such device ({kind} modules do not drive these GPUs)"
        )
    wanted = (*LOADED, PEERMEM) if rdma and mellanox(host) else LOADED
    for module in wanted:
        ctx.log(f"+ modprobe {module}")
        insert(host, build, module)
    host.create_device_nodes()


def insert(host: SimulatedHost, build: Build, module: str) -> None:
    """`modprobe`. HostError."""
    host.load_module(
        module.replace("-", "_"),
        version=build.version,
        signer=build.signer,
        open=build.open,
        parameters=build.options(module),
    )


def _firmware(ctx: ContainerContext, build: Build) -> None:
    """Tell the kernel where the GPUs' firmware lies, unless it knows of a place already or needs none."""
    if NO_FIRMWARE in build.parameters.get("nvidia", ()):
        return
    ctx.log(f"Configuring the following firmware search path in '{FIRMWARE_PATH}': {FIRMWARE}")
    root = ctx.host.root
    if root.exists(FIRMWARE_PATH) and root.read_text(FIRMWARE_PATH).strip():
        ctx.log(f"WARNING: {FIRMWARE_PATH} has a search path already, which is kept")
        return
    root.write_atomic(FIRMWARE_PATH, FIRMWARE)


def mellanox(host: SimulatedHost) -> bool:
    """Whether the host has a network card of Mellanox."""
    return any(device["vendor"] == MELLANOX for device in host.pci_devices())


def in_use(host: SimulatedHost) -> bool:
    """Whether something uses the driver besides its own modules and those of the containers beside it (6.3)."""
    kernel = host.kernel_modules
    if any(kernel.uses(module) for module in (*DEPENDANTS, *CLIENTS)):
        return True
    loaded = [module for module in (*DEPENDANTS, *CLIENTS) if kernel.loaded(module)]
    return kernel.uses("nvidia") > len(loaded)


def unload(ctx: ContainerContext) -> bool:
    """Unload the driver; False, with the reason and the modules in the log, if it is in use."""
    host = ctx.host
    ctx.log("Unloading NVIDIA driver kernel modules...")
    if in_use(host):
        rows = host.root.read_text("/proc/modules").splitlines()
        ctx.log("\n".join(row for row in rows if "nvidia" in row))
        ctx.error(IN_USE)
        return False
    for module in (*CLIENTS, *DEPENDANTS, "nvidia"):
        host.unload_module(module)
    host.remove_device_nodes()
    return True
