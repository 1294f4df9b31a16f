"""The node programs by the names that they are called by: upstream's, so that one manifest serves either image.

A program is imported when it is run: a container pays for its own only.
"""

import importlib
from collections.abc import Mapping
from typing import Final

from .process import NodeProgram

PROGRAMS: Final[Mapping[str, str]] = {
    "nvidia-device-plugin": "plugin.main",
    "gpu-feature-discovery": "features.main",
    "config-manager": "configmanager.main",
    "mps-control-daemon": "mps.main",
    "node-features": "nodefeatures.main",
    "nvidia-toolkit": "toolkit.main",
    "nvidia-ctk": "ctk.main",
    "nvidia-mig-parted": "mig.parted",
    "nvidia-mig-manager": "mig.manager.main",
    "dcgm-exporter": "metrics.main",
    "nvidia-validator": "validate.main",
    "vectorAdd": "validate.cuda.main",
    "cuda-check": "validate.cuda.main",
    "driver-manager": "driver.main",
    "vfio-manage": "driver.vfiomanage",
    "groundplane-inspect": "inspect.main",
}
"""Name of a program, module below this package whose function ``run`` it is."""


def find(name: str) -> NodeProgram | None:
    """The program that a command names (by its last path component), or None."""
    module = PROGRAMS.get(name.rpartition("/")[2])
    if module is None:
        return None
    program: NodeProgram = importlib.import_module(f".{module}", __package__).run
    return program
