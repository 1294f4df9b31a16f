"""What can go wrong in a lab, by name: brought about as in reality, on running nodes, and undone.

A fault changes the simulated machine, the cluster's objects or a registry's answers; operator, node programs and the
doctor meet it by the ways by which they would meet the real one. ``lower.py`` and ``upper.py`` list them by
layer (``entries.py`` has what many of them share), ``on.py`` tells on which nodes they can be, ``machine.py`` and
``objects.py`` are what they do; ``table.py`` is all of them. Faults of the API server are `lab/faults.py`'s.
"""

from .model import Fault as Fault
from .model import UnknownFaultError as UnknownFaultError
from .model import Where as Where
from .model import by_name, check
from .table import FAULTS as FAULTS


def fault(name: str) -> Fault:
    """A fault by its name. Raises :class:`UnknownFaultError`."""
    return by_name(FAULTS, name)


async def apply(name: str, where: Where) -> Fault:
    """Bring a fault about. Raises :class:`UnknownFaultError`."""
    found = fault(name)
    check(name, found, where.host)
    await found.apply(where)
    return found


async def clear(name: str, where: Where) -> Fault:
    """Undo a fault. Raises :class:`UnknownFaultError`."""
    found = fault(name)
    await found.clear(where)
    return found
