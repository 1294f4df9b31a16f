"""What can go wrong with a driver container on a simulated host, by name: how it is brought about, and undone.

A fault is a state of the host, of what it reaches, or of the pod's settings that a person could meet; the driver
container finds it there. Each has the fragment of the log by which it is known (contracts/driver-lifecycle.md 6.11).
Faults of GPUs are `node/devices/simulated.Machine`'s, faults of the API server `faults.py`'s.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
import yaml

from ..api import names
from . import driverfiles
from .driver import daemons, lock
from .driver.fabric import PREREQUISITES
from .driver.packages import DISTRIBUTION, FILE, Repository
from .driver.sidecars import MOFED_READY
from .host import CORE_MODULES, SimulatedHost
from .kernelmodules import ENROLLED, SECURE_BOOT

Change = Callable[[SimulatedHost], None]

DRIVER, PROBE, PEERMEM_PROBE = "nvidia-driver", "startup-probe", "probe_nvidia_peermem"
MANAGER: Final = "k8s-driver-manager"
"""Whose log tells."""

HOST_VERSION: Final = "550.54.15"
OTHER_LIBRARY: Final = "1.0"
_ENTITLEMENT: Final = "/etc/pki/entitlement/1234.pem"
_CARD: Final = "/sys/bus/pci/devices/0000:ff:00.0"
_SWITCH_CARD: Final = "/sys/class/infiniband/mlx5_0/device/vpd"
_HOST_CLIENT: Final = "Xorg"


class Fault(NamedTuple):
    """`shows` is the fragment of the log of `program`, `means` what it says and what to do.

    `env` are settings of the driver's container that are wrong; the cure is to take them away.
    """

    program: str
    shows: str
    means: str
    inject: Change
    cure: Change
    env: Mapping[str, str] = {}


# --- repositories -----------------------------------------------------------------------------------------------------
def set_repository(host: SimulatedHost, repository: Repository, name: str = DISTRIBUTION) -> None:
    """Say what a package repository has, and whether the node reaches it."""
    known = yaml.safe_load(host.root.read_text(FILE)) if host.root.exists(FILE) else {}
    entries = {**known.get("repositories", {}), name: msgspec.to_builtins(repository)}
    host.root.write_atomic(FILE, yaml.safe_dump({"repositories": entries}))


def _repository(**values: object) -> Change:
    def change(host: SimulatedHost) -> None:
        set_repository(host, msgspec.structs.replace(Repository(), **values))

    return change


def _unreadable_kernel(host: SimulatedHost) -> None:
    set_repository(host, Repository(unreadable_kernels=(host.kernel,)))


def _all_packages(host: SimulatedHost) -> None:
    host.root.remove(FILE)


def _no_entitlement(host: SimulatedHost) -> None:
    host.root.remove(_ENTITLEMENT.rpartition("/")[0])
    set_repository(host, Repository(entitlement=True))


def _entitle(host: SimulatedHost) -> None:
    host.root.write_atomic(_ENTITLEMENT, "simulated\n")


def _foreign_kernel(host: SimulatedHost) -> None:
    host.root.write_atomic("/proc/sys/kernel/osrelease", "6.8.0-custom\n")


def _own_kernel(host: SimulatedHost) -> None:
    host.root.write_atomic("/proc/sys/kernel/osrelease", host.spec.kernel + "\n")


# --- the machine ------------------------------------------------------------------------------------------------------
def set_secure_boot(host: SimulatedHost, on: bool) -> None:
    """Switch secure boot in the firmware."""
    if on:
        host.root.write_atomic(SECURE_BOOT, b"\x06\0\0\0\x01")
    else:
        host.root.remove(SECURE_BOOT)


def enroll(host: SimulatedHost, signer: str) -> None:
    """Have the machine trust a signer's modules."""
    known = host.root.read_text(ENROLLED) if host.root.exists(ENROLLED) else ""
    host.root.write_atomic(ENROLLED, f"{known}{signer}\n")


def _module_used(host: SimulatedHost) -> None:
    """A process of the host's that opened a GPU, with the kernel's counts of it."""
    if not host.loaded("nvidia"):
        host.load_module("nvidia", version=HOST_VERSION)
    daemons.spawn(host, _HOST_CLIENT)
    host.kernel_modules.hold("nvidia")


def _module_free(host: SimulatedHost) -> None:
    for pid in daemons.running(host, _HOST_CLIENT):
        daemons.kill(host, pid)
        host.kernel_modules.release("nvidia")


def _stale_instance(host: SimulatedHost) -> None:
    """A driver process that nobody knows of any more still has the lock."""
    file = host.root.path(names.DRIVER_PID_FILE)
    if not file.exists():
        host.root.write_atomic(names.DRIVER_PID_FILE, "")
    pid = daemons.spawn(host, "nvidia-driver")
    file.write_text(f"{pid}\n")
    host.root.write_atomic(lock.LOCKS, lock.row(pid, file.stat().st_ino) + "\n")


def _end_instance(host: SimulatedHost) -> None:
    for pid in daemons.running(host, "nvidia-driver"):
        daemons.kill(host, pid)
    host.root.remove(lock.LOCKS)


def _stuck(daemon: daemons.Daemon) -> Change:
    def change(host: SimulatedHost) -> None:
        for pid in daemons.running(host, daemon.comm):
            daemons.set_state(host, pid, daemons.STUCK)

    return change


def _awake(daemon: daemons.Daemon) -> Change:
    def change(host: SimulatedHost) -> None:
        for pid in daemons.running(host, daemon.comm):
            daemons.set_state(host, pid, daemons.RUNS)

    return change


def mellanox(host: SimulatedHost) -> None:
    """Put a network card on the bus that GPUDirect RDMA works with."""
    for name, value in (("vendor", "0x15b3"), ("device", "0x101d"), ("class", "0x020700")):
        host.root.write_atomic(f"{_CARD}/{name}", value + "\n")


def no_mellanox(host: SimulatedHost) -> None:
    """Take the card and its driver away."""
    host.root.remove(_CARD)
    host.root.remove(MOFED_READY)
    for module in ("nvidia_peermem", *reversed(PREREQUISITES)):
        host.unload_module(module)


def _peermem_missing(host: SimulatedHost) -> None:
    mellanox(host)
    network_driver(host)
    host.unload_module("nvidia_peermem")


def network_driver(host: SimulatedHost) -> None:
    """Install the card's driver."""
    for module in PREREQUISITES:
        host.load_module(module)
    host.root.write_atomic(MOFED_READY, "")


def _peermem_loaded(host: SimulatedHost) -> None:
    host.load_module("nvidia_peermem")


def _nvlink5(host: SimulatedHost) -> None:
    mellanox(host)
    host.root.write_atomic(_SWITCH_CARD, "simulated SW_MNG\n")
    for module in PREREQUISITES:
        host.unload_module(module)


# --- the driver that is there -----------------------------------------------------------------------------------------
def install_host_driver(host: SimulatedHost, version: str = HOST_VERSION) -> None:
    """Install a driver on the host itself and load it, as an administrator does."""
    driverfiles.write(host.root, version, driverfiles.HOST_LIBRARIES)
    for module in CORE_MODULES:
        host.load_module(module, version=version)
    host.create_device_nodes()


def remove_host_driver(host: SimulatedHost) -> None:
    """Unload and remove a driver of the host itself. HostError if it is in use."""
    for module in reversed(CORE_MODULES):
        host.unload_module(module)
    host.remove_device_nodes()
    driverfiles.remove(host.root, driverfiles.HOST_LIBRARIES)


def break_host_driver(host: SimulatedHost) -> None:
    """Leave the host's driver half updated: its libraries are of another version than the module.

    Its persistence daemon still has the GPUs open.
    """
    for version in host.host_libraries():
        base = f"{driverfiles.HOST_LIBRARIES}/libnvidia-ml.so"
        host.root.path(f"{base}.{version}").rename(host.root.path(f"{base}.{OTHER_LIBRARY}"))
        host.root.symlink(f"{base}.1", f"libnvidia-ml.so.{OTHER_LIBRARY}")
    _module_used(host)


def _forget_module(host: SimulatedHost) -> None:
    """The module goes while the container is still starting."""
    for module in reversed(host.modules()):
        if module.startswith("nvidia"):
            host.unload_module(module)


def _lose_gpu(host: SimulatedHost) -> None:
    host.machine.lose(0)


def _restore_gpu(host: SimulatedHost) -> None:
    host.machine.restore(0)


def _daemons_not_ready(host: SimulatedHost) -> None:
    host.root.write_atomic(f"{names.VALIDATIONS_DIR}/.driver-daemons-status", "NotReady\n")


def _daemons_ready(host: SimulatedHost) -> None:
    host.root.write_atomic(f"{names.VALIDATIONS_DIR}/.driver-daemons-status", "Ready\n")


def _nothing(host: SimulatedHost) -> None:
    """Settings are the pod's."""


def _secure_boot(host: SimulatedHost) -> None:
    set_secure_boot(host, True)


def _no_secure_boot(host: SimulatedHost) -> None:
    set_secure_boot(host, False)


def _load_again(host: SimulatedHost) -> None:
    for module in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
        host.load_module(module, version="580.126.20")


_STUCK: Final = {
    "stuck-persistence-daemon": daemons.PERSISTENCE,
    "stuck-grid-daemon": daemons.GRID,
    "stuck-topology-daemon": daemons.TOPOLOGY,
    "stuck-fabric-manager": daemons.FABRIC,
    "stuck-subnet-manager": daemons.SUBNET,
}

FAULTS: Final[Mapping[str, Fault]] = {
    "no-kernel-headers": Fault(
        DRIVER,
        "Could not resolve Linux kernel version",
        "no repository has the running kernel's headers: configure one (repoConfig), boot another kernel, or use "
        "precompiled drivers",
        _repository(kernels=()),
        _all_packages,
    ),
    "repositories-unreachable": Fault(
        DRIVER,
        "Failed to update package cache",
        "the package repositories cannot be reached: set a proxy, or configure a mirror (repoConfig)",
        _repository(reachable=False),
        _all_packages,
    ),
    "kernel-image-unreadable": Fault(
        DRIVER,
        "Could not locate Linux kernel version string",
        "no version can be read from the kernel's image: boot a kernel of the distribution",
        _unreadable_kernel,
        _all_packages,
    ),
    "rhel-repositories-unreachable": Fault(
        DRIVER,
        "failed to reach RHEL package repositories",
        "the package repositories cannot be reached: set a proxy, or configure a mirror (repoConfig)",
        _repository(reachable=False),
        _all_packages,
    ),
    "rhel-metadata": Fault(
        DRIVER,
        "failed to update the dnf metadata cache",
        "the repositories' index cannot be read: look at the mirror and at the release that is asked for",
        _repository(metadata=False),
        _all_packages,
    ),
    "rhel-entitlement": Fault(
        DRIVER,
        "RHEL entitlement may be improperly deployed",
        "the node has no Red Hat entitlement: deploy one, or use the driver toolkit",
        _no_entitlement,
        _entitle,
    ),
    "rhel-kernel-name": Fault(
        DRIVER,
        "Unable to resolve RHEL version from kernel version",
        "the kernel is none of Red Hat's: boot one that is",
        _foreign_kernel,
        _own_kernel,
    ),
    "host-driver": Fault(
        MANAGER,
        "driver is pre-installed on host",
        "the host has a driver of its own: the pod goes by itself. To have the operator's, remove the host's, then set "
        "the node's label nvidia.com/gpu.deploy.driver to true",
        install_host_driver,
        remove_host_driver,
    ),
    "driver-in-use": Fault(
        DRIVER,
        "Could not unload NVIDIA driver kernel modules, driver is in use",
        "a process still has a GPU open: end it (pods by draining, services of the host by hand)",
        _module_used,
        _module_free,
    ),
    "stale-instance": Fault(
        DRIVER,
        "An instance of the NVIDIA driver is already running, aborting",
        "another driver pod, or what was left of one, works on the node: remove it",
        _stale_instance,
        _end_instance,
    ),
    "nvlink5-prerequisites": Fault(
        DRIVER,
        "waiting for the mlx5_core and ib_umad kernel modules to be loaded",
        "the network's driver is missing, without which NVLink 5 is not managed: install it",
        _nvlink5,
        network_driver,
    ),
    **{
        name: Fault(
            DRIVER,
            f"Could not stop {daemon.title}",
            "a daemon of the driver hangs in the kernel: look at the kernel's log; a reboot ends it",
            _stuck(daemon),
            _awake(daemon),
        )
        for name, daemon in _STUCK.items()
    },
    "kernel-module-type": Fault(
        DRIVER,
        "invalid value for the KERNEL_MODULE_TYPE variable",
        "the setting is none of auto, open and proprietary",
        _nothing,
        _nothing,
        {"KERNEL_MODULE_TYPE": "closed"},
    ),
    "secure-boot": Fault(
        DRIVER,
        "Key was rejected by service",
        "the machine boots what is signed only: use precompiled drivers that the distribution signed, or enroll a key",
        _secure_boot,
        _no_secure_boot,
    ),
    "peermem-missing": Fault(
        PEERMEM_PROBE,
        "nvidia-peermem module is not loaded",
        "the network's driver is there and the module for it is not: restart the driver's pod",
        _peermem_missing,
        _peermem_loaded,
    ),
    "module-not-loaded": Fault(
        PROBE,
        "NVIDIA kernel module not loaded",
        "the driver is still being installed, or its installation failed: see the container's log",
        _forget_module,
        _load_again,
    ),
    "daemons-not-ready": Fault(
        PROBE,
        "NVIDIA driver daemons are not ready",
        "a daemon beside the modules has not come up: see the container's log",
        _daemons_not_ready,
        _daemons_ready,
    ),
    "gpu-lost": Fault(
        PROBE,
        "nvidia-smi failed",
        "a GPU does not answer: see the kernel's log for Xid errors; reset it or reboot",
        _lose_gpu,
        _restore_gpu,
    ),
}
"""Faults by the name that a person types."""


class UnknownFaultError(ValueError):
    """There is no such fault; the text says which there are."""


def fault(name: str) -> Fault:
    """A fault by name. Raises :class:`UnknownFaultError`."""
    if name not in FAULTS:
        raise UnknownFaultError(f"there is no fault {name!r}; there are {', '.join(sorted(FAULTS))}")
    return FAULTS[name]
