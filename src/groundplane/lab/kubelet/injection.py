"""GPUs in containers: what the container runtime adds to a container on its start.

Three ways lead to a GPU: CDI devices named by the device plugin's answer, CDI devices named by a pod annotation that
the toolkit's NRI plugin reads, and the NVIDIA runtime (a handler) with `NVIDIA_VISIBLE_DEVICES`. All end in CDI devices
that must be in a spec file of the host (contracts/toolkit-cdi.md 1, 6, 7).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..host import Gpu, SimulatedHost

MANAGEMENT_KIND = "management.nvidia.com/gpu"
NRI_PREFIX = "nvidia.cdi.k8s.io/container."
CDI_PREFIX = "cdi.k8s.io/"
NOTHING = ("", "void", "none")


class InjectionError(RuntimeError):
    """The runtime cannot make the container (waits with CreateContainerError); the text is the runtime's."""


class Injection(NamedTuple):
    """What was added. `driver` says whether libraries and tools of the driver are in the container."""

    gpus: tuple[Gpu, ...] = ()
    driver: bool = False


def inject(
    host: SimulatedHost,
    *,
    pod: Mapping[str, Any],
    container: str,
    handler: str,
    env: Mapping[str, str],
    allocated: Iterable[str],
) -> Injection:
    """Resolve all CDI devices of a container. InjectionError naming those that no spec file has."""
    wanted = dict.fromkeys(allocated)
    annotation = (pod["metadata"].get("annotations") or {}).get(NRI_PREFIX + container, "")
    if host.nri_plugins:
        wanted |= dict.fromkeys(name for name in annotation.split(",") if name)
    if not wanted and _is_nvidia(host.runtime_handlers.get(handler, "")) and host.loaded("nvidia"):
        wanted |= dict.fromkeys(_visible(env.get("NVIDIA_VISIBLE_DEVICES", "")))
    if not wanted:
        return Injection()
    offered = host.cdi_devices()
    missing = [name for name in wanted if name not in offered]
    if missing:
        raise InjectionError(
            "failed to generate container spec: CDI device injection failed: unresolvable CDI devices "
            + ", ".join(missing)
        )
    nodes = {path for name in wanted for path in _device_nodes(offered[name])}
    return Injection(tuple(gpu for gpu in host.gpus if gpu.device_node in nodes), driver=True)


def _is_nvidia(binary: str) -> bool:
    """Whether a handler's binary is NVIDIA's runtime, whatever the handler is called."""
    return binary.rpartition("/")[2].startswith("nvidia-container-runtime")


def _visible(value: str) -> list[str]:
    if value in NOTHING:
        return []
    return [name if "=" in name else f"{MANAGEMENT_KIND}={name}" for name in value.split(",")]


def _device_nodes(device: Mapping[str, Any]) -> list[str]:
    return [node["path"] for node in device.get("containerEdits", {}).get("deviceNodes", [])]
