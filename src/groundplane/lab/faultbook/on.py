"""On which machines faults can be: kinds of nodes, each with how a person calls it."""

from typing import Final

from ..host import SimulatedHost
from .model import Kind


def _gpus(host: SimulatedHost) -> bool:
    return bool(host.gpus)


def _container(host: SimulatedHost) -> bool:
    return bool(host.gpus) and not host.spec.host_driver


def _own(host: SimulatedHost) -> bool:
    return bool(host.gpus) and bool(host.spec.host_driver)


def _red_hat(host: SimulatedHost) -> bool:
    return _container(host) and host.spec.os.id in ("rhel", "rhcos")


def _other(host: SimulatedHost) -> bool:
    return _container(host) and not _red_hat(host)


def _containerd(host: SimulatedHost) -> bool:
    return bool(host.gpus) and host.spec.runtime.name == "containerd"


def _mig(host: SimulatedHost) -> bool:
    return bool(host.gpus) and all(gpu.model.mig for gpu in host.gpus)


def _mig_container(host: SimulatedHost) -> bool:
    return _container(host) and _mig(host) and len(host.gpus) > 1


def _old(host: SimulatedHost) -> bool:
    return _container(host) and any(gpu.model.compute < (7, 5) for gpu in host.gpus)


ANY: Final = Kind("nodes with GPUs", _gpus)
CONTAINER: Final = Kind("GPU nodes whose driver comes in a container", _container)
OWN: Final = Kind("GPU nodes with a driver of their own", _own)
RED_HAT: Final = Kind("GPU nodes of Red Hat's whose driver comes in a container", _red_hat)
OTHER: Final = Kind("GPU nodes of other distributions than Red Hat's whose driver comes in a container", _other)
CONTAINERD: Final = Kind("GPU nodes with containerd", _containerd)
MIG_NODE: Final = Kind("nodes whose GPUs can be divided", _mig)
MIG_CONTAINER: Final = Kind(
    "nodes with several GPUs that can be divided, whose driver comes in a container", _mig_container
)
OLD: Final = Kind("nodes with a GPU older than Turing whose driver comes in a container", _old)
