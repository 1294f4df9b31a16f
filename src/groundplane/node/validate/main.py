"""The program `nvidia-validator`: validates the one component that it is asked for, or serves the node's metrics.

A signal ends it at any time, as a failure: the component's status file is not there then.
"""

from typing import Final

from ..options import Asked, Leave
from ..process import Process, unless_signalled
from . import components
from .context import Context
from .errors import ValidationError
from .settings import METRICS, Settings, load

_DONE, _FAILED = 0, 1
SMI_LIMIT_S: Final = 45.0
"""In the exporter, which looks at the driver every minute, a tool that has not ended by then has failed."""


async def run(process: Process) -> int:
    """Run the program; its exit code."""
    try:
        settings = load(process)
    except Asked as asked:
        return asked.tell(process)
    except Leave as leave:
        process.log.error(f"Error: {leave}")
        return _FAILED
    try:
        number = await unless_signalled(process, _run(process, settings))
    except ValidationError as error:
        process.log.error(f"Error: {error}")
        return _FAILED
    if number is not None:
        rest = "" if settings.component == METRICS else f": {settings.component} is not validated"
        process.log.error(f"Exiting due to signal {number.name}{rest}")
        return _FAILED
    return _DONE


async def _run(process: Process, settings: Settings) -> None:
    serving = settings.component == METRICS
    async with Context(process, settings, smi_limit_s=SMI_LIMIT_S if serving else None) as context:
        context.status.prepare(empty=settings.cleanup_all)
        if serving:
            from .exporter import Exporter

            await Exporter(context).run()
        else:
            await components.run(context, settings.component)
