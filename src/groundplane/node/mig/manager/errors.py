"""What keeps a run from its end, and in which step it happened."""

import contextlib
from collections.abc import Iterator

from ....cluster.errors import ClusterError
from ...cdi.model import SpecError
from ...cdi.options import GenerateError
from ...controlnodes import NodeError
from ...devices.source import DeviceError
from ..errors import MigError, NotApplied


class ManagerError(Exception):
    """Something around the GPUs cannot be done: a service, a pod, a command. The text says what to do."""


class StepError(Exception):
    """A step of a run has failed; the text begins with the step."""


EXPECTED = (MigError, DeviceError, ClusterError, ManagerError, GenerateError, SpecError, NodeError, OSError)
"""What a step may fail with; anything else is a mistake of the program, and ends the run all the same."""


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Name the step in what goes wrong in it. Raises :class:`StepError`."""
    try:
        yield
    except EXPECTED as error:
        raise StepError(f"{name}: {told(error)}") from error


def told(error: BaseException) -> str:
    """An error for a person, with what differs where the GPUs are not as wanted."""
    if isinstance(error, NotApplied):
        return f"{error} ({'; '.join(error.differences)})"
    return str(error)
