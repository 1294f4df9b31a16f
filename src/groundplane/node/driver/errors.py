"""What keeps the driver manager from going on."""

from typing import Final

from ...cluster.errors import ClusterError
from ...cluster.eviction import EvictionError
from ..modules import ModuleError
from ..mounts import MountError
from ..vfio import VfioError


class DriverError(Exception):
    """The node cannot be cleared; the text says what is in the way and what to do."""


EXPECTED: Final = (DriverError, ClusterError, EvictionError, ModuleError, MountError, VfioError, OSError)
"""What may go wrong in the world; anything else is a mistake of the program."""
