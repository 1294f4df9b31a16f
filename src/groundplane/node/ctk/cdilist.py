"""`nvidia-ctk cdi list`: the CDI devices that this machine's spec files offer (contracts/toolkit-cdi.md 3.9)."""

from collections.abc import Sequence
from typing import Final

from .. import options
from ..cdi.registry import DIRS, Registry
from ..process import Process

COMMAND: Final = options.Command(
    name="nvidia-ctk cdi list",
    about="List the CDI devices that this machine's specifications offer.",
    options=(
        options.Option(
            name="spec_dirs",
            type=options.STRINGS,
            default=DIRS,
            flags=("spec-dir",),
            env=("NVIDIA_CTK_CDI_SPEC_DIRS",),
            help="a folder with CDI specifications; give it again for more, the last has the highest priority",
        ),
    ),
)


async def list_devices(process: Process, arguments: Sequence[str]) -> int:
    """Print the qualified names that can be resolved, in order, and warn of files that are wrong; always 0."""
    try:
        values = options.read(COMMAND, process, arguments)
    except options.Leave as leave:
        return leave.tell(process)
    registry = Registry.load(process.path, values["spec_dirs"] or DIRS)
    for text in registry.warnings():
        process.log.warning(text)
    process.out("".join(f"{name}\n" for name in registry.devices))
    return 0
