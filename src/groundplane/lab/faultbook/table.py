"""The faults, by the name that a person types: from the bus up, each with what the doctor has to find."""

from collections.abc import Mapping
from typing import Final

from .lower import LOWER
from .model import Fault
from .on import ANY as ANY
from .on import CONTAINER as CONTAINER
from .on import CONTAINERD as CONTAINERD
from .on import MIG_CONTAINER as MIG_CONTAINER
from .on import MIG_NODE as MIG_NODE
from .on import OLD as OLD
from .on import OTHER as OTHER
from .on import OWN as OWN
from .on import RED_HAT as RED_HAT
from .upper import UPPER

FAULTS: Final[Mapping[str, Fault]] = {**LOWER, **UPPER}
"""Faults by name."""
