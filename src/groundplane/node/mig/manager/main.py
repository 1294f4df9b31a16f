"""`nvidia-mig-manager`: the program. It prepares the layouts, then follows its node's label until it is ended."""

from typing import TYPE_CHECKING

from ....api import names
from ... import nodelabel, options
from ...devices.source import DeviceError
from ...process import Process, asked_to_end, wait_any
from ..errors import MigError
from . import layouts, settings
from .settings import Settings

if TYPE_CHECKING:
    from ....cluster.client import Client


async def run(process: Process) -> int:
    """`nvidia-mig-manager`."""
    from ....cluster.errors import ClusterError

    try:
        wanted = settings.load(process)
        async with process.client(wanted.kubeconfig) as client:
            await wait_any(asked_to_end(process), _serve(process, client, wanted))
        return 0
    except options.Leave as leave:
        return leave.tell(process)
    except (MigError, DeviceError, ClusterError, OSError) as error:
        process.log.error(str(error))
        return 1


async def _serve(process: Process, client: "Client", wanted: Settings) -> None:
    from .cluster import Cluster
    from .gpus import Gpus
    from .host import Host
    from .loop import Loop
    from .run import Parts
    from .services import Services
    from .undo import Undo

    cluster, host = Cluster(process, client, wanted), Host(process, wanted.host_root)
    services = Services(host)
    undo = Undo(cluster, services, process.log)
    try:
        file = await layouts.prepare(process, client, wanted)
    except Exception:
        await undo.leftovers()  # nothing waits for a program that cannot start
        raise
    gpus = Gpus(process, wanted.roots.driver or "/", file)
    loop = Loop(Parts(process, wanted, cluster, host, services, gpus, undo))
    label = nodelabel.follow(process, client, wanted.node_name, names.MIG_CONFIG, loop.see)
    await wait_any(label, loop.serve())
