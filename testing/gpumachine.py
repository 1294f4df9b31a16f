"""A machine with simulated GPUs and a driver, as folders: for programs that run on a real node but have no GPU.

The machine's `/sys`, `/proc` and device nodes lie in a folder that `GROUNDPLANE_SIMULATION` names to node programs; the
driver's files are those of `driverroots`, of which the libraries that programs are linked with can be loaded.
"""

from pathlib import Path

from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.devices.simulated import GpuEntry, Machine, describe
from groundplane.node.hostroot import HostRoot
from groundplane.node.ownprocess import DEVICES, SIMULATION_ENV

from . import driverroots, gpuimages

CONTROL_NODES = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
MODEL = "H100-SXM5-80GB"
DRIVER_VERSION = "580.95.05"


def simulate(folder: Path, gpus: int) -> Machine:
    """Make the machine; its driver is loaded."""
    root = HostRoot(folder)
    devices = root.path(DEVICES)
    devices.parent.mkdir(parents=True)
    machine = Machine.create(devices, describe("node", [GpuEntry(MODEL)] * gpus, DRIVER_VERSION))
    root.write_atomic("/sys/module/nvidia/refcnt", "1\n")
    root.write_atomic("/proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n")
    root.write_atomic("/proc/modules", "nvidia 9990144 1 - Live 0x0000000000000000\n")
    for name in (*CONTROL_NODES, *(f"nvidia{gpu.minor}" for gpu in machine.read().inventory.gpus)):
        root.write_atomic(f"/dev/{name}", "")
    return machine


def environment(folder: str) -> dict[str, str]:
    """What tells node programs of the machine in a folder, a path as they see it."""
    return {SIMULATION_ENV: folder, NULL_DEVICES: "true"}


def install_driver(root: Path, kind: driverroots.Kind = driverroots.Kind.CONTAINER) -> None:
    """Put the driver's files below a folder."""
    driverroots.make(root, DRIVER_VERSION, kind)
    for soname, plain in gpuimages.LIBRARIES.items():
        (found,) = (path for path in root.rglob(f"{plain}.{DRIVER_VERSION}") if not path.is_symlink())
        found.unlink()
        gpuimages.driver_library(found, soname)
