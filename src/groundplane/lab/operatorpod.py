"""The operator and its chart's hooks in the lab's containers: the shipped code, with the chart's arguments, environment
and service account, over HTTP. Probes are answered on the ports that the arguments name.
"""

import msgspec

from ..cluster import kinds
from ..cluster.client import Client
from ..cluster.errors import ClusterError, ConfigError
from ..operator import manage_crds, process, settings
from .amounts import exact
from .programs import ContainerContext, Response

USER_AGENT = "gpu-operator"


def _client(ctx: ContainerContext, user_agent: str) -> Client:
    identity = ctx.container.identity
    if identity is None:
        raise ConfigError("not in a cluster: this container has no API server to speak to")
    return Client(identity(), user_agent=user_agent)


async def _answers(_path: str) -> Response:
    return Response(200, "ok\n")


FOOTPRINT_MIB, NODE_KIB = 80, 64
"""Memory that the operator needs: by itself, and for each node."""


def _need(ctx: ContainerContext, nodes: int) -> None:
    """Raises MemoryError, as the kernel kills what goes over its limit."""
    limit = ((ctx.container.spec.get("resources") or {}).get("limits") or {}).get("memory")
    needs = (FOOTPRINT_MIB << 20) + nodes * (NODE_KIB << 10)
    if limit is not None and exact(limit) < needs:
        raise MemoryError(f"{needs} bytes are needed, the limit is {limit}")


async def operator(ctx: ContainerContext) -> int:
    """``gpu-operator``, until it is asked to end."""
    try:
        chosen = settings.parse(ctx.argv[1:], env=ctx.env)
    except settings.SettingsError as error:
        ctx.error(f"gpu-operator: {error}")
        return 1
    for address in filter(None, (chosen.metrics_address, chosen.health_address)):
        ctx.serve(settings.split_address(address)[1], _answers)
    here = msgspec.structs.replace(chosen, metrics_address="127.0.0.1:0", health_address="127.0.0.1:0")
    try:
        async with _client(ctx, USER_AGENT) as client:
            _need(ctx, len((await client.list(kinds.NODE)).items))
            await process.run(here, client, stop=ctx.stopping)
    except (ClusterError, OSError) as error:
        ctx.error(f"stopped: {error}")
        return 1
    return 0


async def definitions(ctx: ContainerContext) -> int:
    """``manage-crds apply|delete [--nfd]``."""
    action = {"apply": manage_crds.apply, "delete": manage_crds.delete}.get(ctx.argv[1] if len(ctx.argv) > 1 else "")
    if action is None:
        ctx.error("manage-crds: apply or delete")
        return 2
    shipped = manage_crds.shipped(features="--nfd" in ctx.argv)
    try:
        async with _client(ctx, "manage-crds") as client:
            await action(client, shipped, tell=ctx.log)
    except (manage_crds.DefinitionsError, ClusterError, OSError) as error:
        ctx.error(f"manage-crds: {error}")
        return 1
    return 0
