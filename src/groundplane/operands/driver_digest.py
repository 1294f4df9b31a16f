"""``DRIVER_CONFIG_DIGEST``: one number that changes when, and only when, a driver must be installed anew.

The driver manager and the driver container compare it with the number that the last installation left on
the node; if they are equal, loaded modules are kept and no pod is evicted. So it covers what reaches the
installation (images, commands, literal environment, secrets by name, files and volumes, kernel) and nothing else:
labels, tolerations, priority, resources, probes, host network and the order of variables, mounts and volumes leave
it alone. The order of arguments counts, as programs read them in order. Source: contracts/driver-lifecycle.md 4
and contracts/control-plane.md 4.4.
"""

from typing import Any, Final

import msgspec
from lightkube.models.core_v1 import Container, PodSpec

VARIABLE: Final = "DRIVER_CONFIG_DIGEST"

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


def fnv1a(data: bytes) -> int:
    """The 32-bit FNV-1a hash of ``data``."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def digest(pod: PodSpec, kernel: str = "") -> str:
    """The digest of a driver pod as a decimal number; ``kernel`` is the one its modules were built for."""
    content = {
        "containers": {each.name: _container(each) for each in (*(pod.initContainers or ()), *pod.containers)},
        "kernel": kernel,
        "volumes": {volume.name: volume.to_dict() for volume in pod.volumes or ()},
    }
    return str(fnv1a(msgspec.json.encode(_without_empty(content), order="deterministic")))


def _container(container: Container) -> dict[str, Any]:
    """What of a container an installation depends on."""
    return {
        "image": container.image,
        "command": container.command,
        "args": container.args,
        "env": {variable.name: variable.value for variable in container.env or () if variable.name != VARIABLE},
        "secrets": sorted(source.secretRef.name or "" for source in container.envFrom or () if source.secretRef),
        "mounts": {mount.mountPath: mount.to_dict() for mount in container.volumeMounts or ()},
    }


def _without_empty(value: Any) -> Any:
    """``value`` without unset and empty entries, so that a new field that nobody uses changes nothing."""
    if isinstance(value, dict):
        kept = {key: _without_empty(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, "", [], {})}
    return value
