"""`driver-manager`: the program. It clears its node once and ends; the kubelet starts it again if it could not."""

from typing import TYPE_CHECKING

from .. import options
from ..process import Process, unless_signalled
from . import settings

if TYPE_CHECKING:
    from .settings import Settings


async def run(process: Process) -> int:
    """`driver-manager uninstall_driver` and `driver-manager preflight_check`."""
    from .errors import EXPECTED

    try:
        wanted = settings.load(process)
        if wanted.word == settings.PREFLIGHT:
            process.log.info("preflight check: nothing to check")
            return 0
        return await _uninstall(process, wanted)
    except options.Leave as leave:
        return leave.tell(process)
    except EXPECTED as error:
        process.log.error(str(error))
        return 1


async def _uninstall(process: Process, wanted: "Settings") -> int:
    from .cluster import Cluster
    from .host import Host
    from .uninstall import Parts, uninstall

    async with process.client(wanted.kubeconfig) as client:
        parts = Parts(process, wanted, Cluster(process, client, wanted), Host(process))
        number = await unless_signalled(process, uninstall(parts))
    if number is None:
        return 0
    process.log.info(f"received {number.name}: ended before the node was cleared")
    return 1
