"""The file of layouts, and its copy in the cluster (contracts/mig-exporter-validator.md 2).

A file that was given is used as it is. Else layouts are made once, at the start, from what the node's GPUs offer; a
ConfigMap shows them to people, and nothing depends on it.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ....api import names
from ....cluster import kinds
from ....cluster.errors import ClusterError
from ...process import Process
from .. import generate
from ..errors import MigError
from ..generate import GENERATED, NoProfiles
from .settings import Settings

if TYPE_CHECKING:
    from ....cluster.client import Client

KEY: Final = "config.yaml"
COMPONENT: Final = "nvidia-mig-manager"
NODE_NAME_LABEL: Final = "nvidia.com/node-name"


async def prepare(process: Process, client: "Client", settings: Settings) -> str:
    """The file of layouts to use, made if none was given.

    Raises :class:`~..errors.MigError` and DeviceError if there can be none, or it cannot be written.
    """
    if settings.config_file:
        return settings.config_file
    try:
        text = await asyncio.to_thread(_made, process, settings)
    except NoProfiles as error:
        fallback = settings.default_config_file
        if not fallback or not process.path(fallback).is_file():
            raise MigError(f"{error}; there is no fallback ({fallback or 'DEFAULT_CONFIG_FILE is not set'})") from error
        process.log.warning(f"{error}; using {fallback}")
        return fallback
    try:
        generate.write(process.path(GENERATED), text)
    except OSError as error:
        raise MigError(f"{GENERATED} cannot be written, and is as it was: {error.strerror or error}") from error
    process.log.info(f"layouts of this node's GPUs are in {GENERATED}")
    await _show(process, client, settings, text)
    return GENERATED


def _made(process: Process, settings: Settings) -> str:
    with process.devices(settings.roots.driver or "/") as source:
        return generate.text(generate.discover(source.mig()))


async def _show(process: Process, client: "Client", settings: Settings, text: str) -> None:
    """Write the ConfigMap; without it, people have to look at the file."""
    name = f"{settings.node_name}-mig-config"
    try:
        if not settings.pod_name or not settings.pod_namespace:
            raise MigError("POD_NAME and POD_NAMESPACE must say which pod this is")
        pod = await client.get(kinds.POD, settings.pod_name, settings.pod_namespace)
        await client.apply(kinds.CONFIG_MAP, _config_map(settings, name, pod, text), field_manager=COMPONENT)
    except (MigError, ClusterError) as error:
        process.log.warning(f"ConfigMap {name} of this node's layouts is not written: {error}")


def _config_map(settings: Settings, name: str, pod: dict[str, Any], text: str) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": settings.pod_name, "uid": pod["metadata"]["uid"]}
    return {
        "metadata": {
            "name": name,
            "namespace": settings.pod_namespace,
            "labels": {names.COMPONENT_LABEL: COMPONENT, NODE_NAME_LABEL: settings.node_name},
            "ownerReferences": [owner],
        },
        "data": {KEY: text},
    }
