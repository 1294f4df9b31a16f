"""The driver's daemons on their start: persistence, vGPU licence and topology, and what NVSwitches need.

Source: contracts/driver-lifecycle.md 6.3 (end) and 6.7.
"""

from collections.abc import Mapping
from typing import Final

from ...api import names
from ..host import SimulatedHost
from ..programs import ContainerContext
from . import daemons
from .packages import RefusedError

POLL_S: Final = 10.0
STATUS: Final = names.VALIDATIONS_DIR + "/.driver-daemons-status"
NVSWITCHES: Final = "/proc/driver/nvidia-nvswitch/devices"
CONFIG: Final = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
DEFAULT_CONFIG: Final = "LOG_LEVEL=4\nFABRIC_MODE=0\nDAEMONIZE=1\n"
"""What an image brings."""
VARIABLE: Final = "NVFM_CONFIG_"
PREREQUISITES: Final = ("mlx5_core", "ib_umad")
FABRIC_MODES: Final = ("0", "1", "2")
_GRID_CONFIG, _TOKENS = "/drivers/gridd.conf", "/drivers/ClientConfigToken"
_TOPOLOGY_CONFIG: Final = "/etc/nvidia/nvidia-topologyd.conf"


def nvlink5(host: SimulatedHost) -> bool:
    """Whether the host's NVSwitches are managed through its network cards (NVLink 5 and later)."""
    found = host.root.glob("/sys/class/infiniband/*/device/vpd")
    return any("SW_MNG" in host.root.read_text(path) for path in found)


def nvswitch(host: SimulatedHost) -> bool:
    """Whether the host has NVSwitches that its own driver manages."""
    return bool(host.root.glob(f"{NVSWITCHES}/*"))


def configured(text: str, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """The fabric manager's configuration with `NVFM_CONFIG_FIELD` in place; and warnings.

    A field's line is replaced, or appended where there is none.
    """
    lines, warnings = text.splitlines(), []
    for name, value in sorted(env.items()):
        if not name.startswith(VARIABLE):
            continue
        field = name.removeprefix(VARIABLE)
        if not field:
            warnings.append(f"WARNING: {name} names no field of the configuration; it is ignored")
            continue
        wanted = f"{field}={value}"
        at = [number for number, line in enumerate(lines) if line.startswith(f"{field}=")]
        lines = [wanted if number in at else line for number, line in enumerate(lines)] + ([] if at else [wanted])
    return "".join(line + "\n" for line in lines), warnings


async def start(ctx: ContainerContext) -> None:
    """Start all daemons that this node needs, then say that they are. RefusedError."""
    ctx.log("Starting NVIDIA persistence daemon...")
    daemons.start(ctx, daemons.PERSISTENCE)
    if ctx.env.get("DRIVER_TYPE") == "vgpu":
        _vgpu(ctx)
    if nvlink5(ctx.host):
        await _prerequisites(ctx)
        _fabric(ctx)
        daemons.start(ctx, daemons.SUBNET)
        if ctx.env.get(f"{VARIABLE}FABRIC_MODE") == "1":
            ctx.log("Resetting the GPUs, whose fabric partitions are of before")
    elif nvswitch(ctx.host):
        _fabric(ctx)
    ctx.write(STATUS, "Ready\n")


def _vgpu(ctx: ContainerContext) -> None:
    wanted = {"/etc/nvidia/gridd.conf": _GRID_CONFIG}
    if ctx.env.get("VGPU_LICENSE_SERVER_TYPE") == "NLS":
        tokens = ctx.container.names_in(_TOKENS) if ctx.path(_TOKENS).is_dir() else ["client_configuration_token.tok"]
        wanted |= {f"/etc/nvidia/ClientConfigToken/{name}": f"{_TOKENS}/{name}" for name in tokens}
    for target, source in wanted.items():
        if not ctx.path(source).is_file():
            raise RefusedError(f"{source} is missing; a vGPU driver needs the policy's driver.licensingConfig")
        ctx.log(f"Copying {source.rpartition('/')[2]}...")
        ctx.write(target, ctx.path(source).read_text())
    daemons.start(ctx, daemons.GRID)
    if ctx.exists(_TOPOLOGY_CONFIG):
        daemons.start(ctx, daemons.TOPOLOGY)


async def _prerequisites(ctx: ContainerContext) -> None:
    ctx.log("Detected NVLink5+ system")
    while not all(ctx.host.loaded(module) for module in PREREQUISITES):
        ctx.log("waiting for the mlx5_core and ib_umad kernel modules to be loaded")
        await ctx.clock.sleep(POLL_S)


def _fabric(ctx: ContainerContext) -> None:
    """Configure and start the fabric manager. RefusedError if it does not come up."""
    ctx.log("Starting NVIDIA fabric manager daemon...")
    file = ctx.path(CONFIG)
    text = file.read_text() if file.is_file() else ""
    changed, warnings = configured(text, ctx.env)
    if not file.is_file() and changed:
        warnings.append(f"WARNING: {CONFIG} not found; the fabric manager cannot be configured")
    elif changed != text:
        ctx.write(CONFIG, changed)
    for warning in warnings:
        ctx.log(warning)
    mode = next((line.partition("=")[2] for line in changed.splitlines() if line.startswith("FABRIC_MODE=")), "0")
    if mode not in FABRIC_MODES:
        raise RefusedError(f"the fabric manager did not start: FABRIC_MODE={mode} is none of {', '.join(FABRIC_MODES)}")
    daemons.start(ctx, daemons.FABRIC)
