"""GPUs in containers: what the container runtime adds to a container on its start.

Three ways lead to a GPU: CDI devices named by the device plugin's answer, CDI devices that an NRI plugin names, and
NVIDIA's runtime (a handler) with `NVIDIA_VISIBLE_DEVICES`. All end in CDI devices that must be in a spec file of the
host (contracts/toolkit-cdi.md 1, 6, 7). Hooks are not run: nothing in the lab reads a loader's cache.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...node.cdi import apply
from ...node.cdi.model import ContainerEdits
from ...node.cdi.registry import DIRS, Registry
from ..host import Gpu, SimulatedHost
from . import shim

CDI_PREFIX = "cdi.k8s.io/"


class InjectionError(RuntimeError):
    """The runtime cannot make the container (waits with CreateContainerError); the text is the runtime's."""


class Injection(NamedTuple):
    """What was added. `driver` says whether the driver's libraries are in the container.

    `mounts` are (path in the container, path on the host, read-only), device nodes among them.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: bool = False
    env: Mapping[str, str] = {}
    mounts: tuple[tuple[str, str, bool], ...] = ()


def inject(host: SimulatedHost, *, handler: str, env: Mapping[str, str], named: Iterable[str]) -> Injection:
    """Resolve all CDI devices of a container, those that are named and those that NVIDIA's runtime finds.

    InjectionError naming those that no spec file has; HostError.
    """
    edits = _edits(host, tuple(dict.fromkeys(named)), DIRS)
    binary = host.runtime_handlers.get(handler, "")
    if not edits and shim.is_shim(binary):
        edits = _edits(host, *shim.request(host, binary, env))
    nodes = {node.path: node.host_path or node.path for node in edits.device_nodes}
    files = ((mount.container_path, mount.host_path, "ro" in mount.options) for mount in edits.mounts)
    return Injection(
        gpus=tuple(gpu for gpu in host.gpus if gpu.device_node in nodes),
        driver=any("/libcuda.so" in mount.container_path for mount in edits.mounts),
        env=dict(variable.split("=", 1) for variable in edits.env),
        mounts=(*files, *((path, source, False) for path, source in nodes.items())),
    )


def _edits(host: SimulatedHost, names: tuple[str, ...], folders: tuple[str, ...]) -> ContainerEdits:
    if not names:
        return ContainerEdits()
    try:
        return apply.edits(Registry.load(host.root.path, folders), names)
    except apply.UnresolvableError as error:
        raise InjectionError(f"failed to generate container spec: CDI device injection failed: {error}") from error
