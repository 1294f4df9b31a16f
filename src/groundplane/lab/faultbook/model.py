"""What a fault is, and where one is brought about."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from ...cluster.client import Client
from ...diagnose.findings import Layer
from ..host import SimulatedHost

OPERATOR_NAMESPACE: Final = "gpu-operator"


class Where(NamedTuple):
    """A node of a running lab, reached as a person reaches it: through the API, and at the machine itself."""

    client: Client
    node: str
    host: SimulatedHost
    namespace: str = OPERATOR_NAMESPACE


Act = Callable[[Where], Awaitable[None]]
Fits = Callable[[SimulatedHost], bool]


class Kind(NamedTuple):
    """On which nodes a fault can be brought about."""

    says: str
    fits: Fits


class Fault(NamedTuple):
    """Something that goes wrong as it does in reality.

    ``apply`` and ``clear`` are told where; of a fault of the whole cluster (``cluster``) any GPU node will do.
    ``causes`` are the ids of the signatures that name it, the first the best; ``layer`` is where it is.
    ``note`` says that it is a circumstance which the doctor tells without calling it a failure.
    """

    layer: Layer
    title: str
    causes: tuple[str, ...]
    apply: Act
    clear: Act
    on: Kind
    cluster: bool = False
    note: bool = False


class UnknownFaultError(ValueError):
    """There is no such fault, or it cannot be on that node; the text says what there is."""


def by_name(faults: Mapping[str, Fault], name: str) -> Fault:
    """A fault by its name. Raises :class:`UnknownFaultError`."""
    if name not in faults:
        raise UnknownFaultError(f"there is no fault {name!r}; there are {', '.join(sorted(faults))}")
    return faults[name]


def check(name: str, fault: Fault, host: SimulatedHost) -> None:
    """Whether a fault can be on a machine. Raises :class:`UnknownFaultError`."""
    if not fault.on.fits(host):
        raise UnknownFaultError(f"{name} can be on {fault.on.says} only; {host.spec.name} is none")
