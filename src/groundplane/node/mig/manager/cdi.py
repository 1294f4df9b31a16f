"""The CDI spec of management containers, anew after MIG was changed (contracts/mig-exporter-validator.md 3.5, step 12).

The driver's nvidia-smi makes the nodes of MIG instances; then the spec names those that there are. On a simulated
machine, whose nvidia-smi makes none, they are made here.
"""

import contextlib
from typing import Final

from ....api import names
from ...cdi import generate, write
from ...cdi.drivers import LIBRARY_FOLDERS, DriverFiles
from ...cdi.options import Mode, Wanted
from ...cdi.roots import simulated
from ...controlnodes import create_control_nodes, make_stand_in
from ...devices.model import Inventory
from ...process import Process
from ...resources import ResourceError, part, read_mig_minors
from .errors import ManagerError
from .host import command
from .settings import Settings

_SMI: Final = "nvidia-smi"
_LIBRARY: Final = "libnvidia-ml.so.1"
_PROGRAM_FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")


async def refresh(process: Process, settings: Settings) -> str:
    """Make the nodes that are missing, and write the spec; its path.

    Raises ManagerError, NodeError, GenerateError, SpecError and OSError; an earlier spec is as it was then.
    """
    wanted = Wanted(
        mode=Mode.MANAGEMENT,
        roots=settings.roots,
        libraries=settings.libraries,
        hook_path=settings.hook_path,
        null_devices=simulated(process),
    )
    if not simulated(process):
        await _make_instance_nodes(process, settings, wanted)
    create_control_nodes(process, settings.roots.dev or "/")
    with process.devices(settings.roots.driver or "/") as source:
        if simulated(process):
            _make_instance_stand_ins(process, settings.roots.dev, source.inventory())
        return write.write(generate.generate(process, source, wanted), process.path)


async def _make_instance_nodes(process: Process, settings: Settings, wanted: Wanted) -> None:
    """Run nvidia-smi once, where its nodes will be: below the driver's root, or with its library below the host's."""
    if settings.one_root:
        await command(process, settings.roots.driver, (_SMI,))
        return
    files = DriverFiles(process, wanted)
    program, library = files.first(_PROGRAM_FOLDERS, _SMI), files.first(LIBRARY_FOLDERS, _LIBRARY)
    if not program or not library:
        missing = _LIBRARY if program else _SMI
        raise ManagerError(f"{missing} is not below the driver root {files.place} (normally {names.DRIVER_ROOT})")
    root = settings.roots.host_driver
    env = {"LD_PRELOAD": f"{root}{library[0]}"}
    await command(process, settings.host_root, (f"{root}{program[0]}",), env)


def _make_instance_stand_ins(process: Process, dev_root: str, inventory: Inventory) -> None:
    """Make the files that stand for the nodes of MIG devices; none where the machine shows no capabilities."""
    divided = [(gpu, device) for gpu in inventory.gpus for device in gpu.mig_devices]
    try:
        minors = read_mig_minors(process.kernel) if divided else {}
        nodes = [path for gpu, device in divided for path in part(gpu, device, process.kernel, minors).paths]
    except ResourceError as error:
        process.log.warning(str(error))
        return
    for node in dict.fromkeys(nodes):
        path = process.path(f"{dev_root}{node}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            make_stand_in(path, 0, 0)
