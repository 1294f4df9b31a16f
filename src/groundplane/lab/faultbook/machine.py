"""Faults at the machine itself: its bus, kernel, driver, services, runtime and files."""

from collections.abc import Callable
from typing import Final

from ...api import names
from ...node.devices.kernelmessages import PATH as KERNEL_LOG
from .. import driverfaults, driverfiles, pulls
from ..driver import modules
from ..driver.packages import Repository
from ..host import DEVICE_LINKS, GPU_MAJOR, K3S_FILE, SimulatedHost
from ..shell.hostcommands import OFF_PATH, STATES, UNITS
from .model import Act, Where

Change = Callable[[SimulatedHost], None]

FABRIC_MANAGER: Final = "nvidia-fabricmanager"
PCI: Final = "/sys/bus/pci/devices"
RUNTIME_FILE: Final = "/etc/containerd/config.toml"
KEPT: Final = "/var/lib/groundplane/kept"
"""Where what was at a place before a fault is kept, as a backup."""


def at(change: Change) -> Act:
    """A change of the machine alone: what runs there meets it at once."""

    async def act(where: Where) -> None:
        change(where.host)

    return act


# --- GPUs -------------------------------------------------------------------------------------------------------------
def xid(number: int) -> Change:
    """The driver reports an error of the first GPU."""

    def change(host: SimulatedHost) -> None:
        host.machine.xid(0, number)

    return change


def recovered(host: SimulatedHost) -> None:
    """The machine was rebooted: its GPUs are well, and the kernel's log begins anew."""
    host.machine.restore(0)
    host.machine.xid(0, 154)
    host.root.write_atomic(KERNEL_LOG, "")
    host.say(f"Linux version {host.kernel} (simulated) (groundplane)", level=5)


def lost(host: SimulatedHost) -> None:
    """The first GPU falls off the bus."""
    host.machine.lose(0)


def defect(what: str) -> Change:
    """Something is wrong with the first board though it answers."""

    def change(host: SimulatedHost) -> None:
        host.machine.set_defect(0, what)

    return change


def fabric(state: str | None) -> Change:
    """How far the GPUs have joined the NVLink fabric."""

    def change(host: SimulatedHost) -> None:
        for gpu in host.gpus:
            host.machine.set_fabric(gpu.uuid, state)

    return change


def fabric_manager(state: str) -> Change:
    """How the service that sets the fabric up stands, and with it the fabric."""

    def change(host: SimulatedHost) -> None:
        host.root.write_atomic(f"{UNITS}/{FABRIC_MANAGER}.service", "[Service]\nType=simple\n")
        host.root.write_atomic(f"{STATES}/{FABRIC_MANAGER}", state + "\n")
        fabric("completed" if state == "active" else "inProgress")(host)

    return change


def no_fabric(host: SimulatedHost) -> None:
    """The machine as it was made: of its fabric nothing is said."""
    host.root.remove(f"{UNITS}/{FABRIC_MANAGER}.service")
    host.root.remove(f"{STATES}/{FABRIC_MANAGER}")
    fabric(None)(host)


def off_the_machine(host: SimulatedHost) -> None:
    """No GPU is passed to the machine: its bus has none."""
    for gpu in host.gpus:
        host.machine.remove(gpu.uuid)
        host.root.remove(f"{PCI}/{gpu.pci_address}")


def on_the_machine(host: SimulatedHost) -> None:
    """All GPUs are passed to the machine."""
    for gpu in host.gpus:
        host.machine.restore(gpu.uuid)
        host.write_pci(gpu)


# --- kernel -----------------------------------------------------------------------------------------------------------
def nouveau(host: SimulatedHost) -> None:
    """The kernel's own driver is loaded, and takes the GPUs as soon as nobody else has them."""
    host.load_module(modules.NOUVEAU)
    host.kernel_modules.hold(modules.NOUVEAU)  # the console
    host.say(*(f"nouveau {gpu.pci_address}: NVIDIA GH100 (simulated)" for gpu in host.gpus))


def no_nouveau(host: SimulatedHost) -> None:
    """The machine booted without it."""
    host.kernel_modules.release(modules.NOUVEAU)
    host.unload_module(modules.NOUVEAU)
    recovered(host)


def own_kernel(host: SimulatedHost) -> None:
    """A kernel that is none of the distribution's was booted."""
    driverfaults.FAULTS["rhel-kernel-name"].inject(host)
    driverfaults.set_repository(host, Repository(kernels=(host.spec.kernel,)))


def distributions_kernel(host: SimulatedHost) -> None:
    """The distribution's kernel was booted again."""
    driverfaults.FAULTS["rhel-kernel-name"].cure(host)
    driverfaults.FAULTS["no-kernel-headers"].cure(host)


def slow(host: SimulatedHost) -> None:
    """What a build needs comes slower than the startup probe allows."""
    driverfaults.set_repository(host, Repository(seconds=86400.0))


# --- driver -----------------------------------------------------------------------------------------------------------
def unload(host: SimulatedHost) -> None:
    """The modules of the host's driver are not loaded, as after a boot into a kernel for which there are none."""
    for module in (*modules.DEPENDANTS, "nvidia"):
        while host.kernel_modules.uses(module):
            host.kernel_modules.release(module)
        host.unload_module(module)
    host.remove_device_nodes()


def load(host: SimulatedHost) -> None:
    """The host's driver is loaded again."""
    for module in ("nvidia", *modules.DEPENDANTS[:2]):
        host.load_module(module, version=host.spec.host_driver or "")
    host.create_device_nodes()


def no_libraries(host: SimulatedHost) -> None:
    """The driver's libraries were removed from the host, its tool stays."""
    for path in host.root.glob(f"{driverfiles.HOST_LIBRARIES}/libnvidia-ml.so*"):
        host.root.remove(path)


def other_libraries(host: SimulatedHost) -> None:
    """A package brought the driver's libraries in another version than the module that is loaded."""
    driverfiles.remove(host.root, driverfiles.HOST_LIBRARIES)
    driverfiles.write(host.root, driverfaults.HOST_VERSION, driverfiles.HOST_LIBRARIES)


def host_files(host: SimulatedHost) -> None:
    """The host's driver is installed as it was."""
    driverfiles.remove(host.root, driverfiles.HOST_LIBRARIES)
    driverfiles.write(host.root, host.spec.host_driver or "", driverfiles.HOST_LIBRARIES)


def install_driver(host: SimulatedHost) -> None:
    """An administrator installs the driver of the version that is loaded on the host itself."""
    driverfiles.write(host.root, host.driver_version or driverfaults.HOST_VERSION, driverfiles.HOST_LIBRARIES)


def remove_driver(host: SimulatedHost) -> None:
    """The host's driver is removed; what is loaded stays until the operator's driver replaces it."""
    driverfiles.remove(host.root, driverfiles.HOST_LIBRARIES)
    host.root.remove(names.DRIVER_STATE_FILE)


def network_card(host: SimulatedHost) -> None:
    """A network card that can write into GPUs' memory is on the bus."""
    driverfaults.mellanox(host)


def no_network_card(host: SimulatedHost) -> None:
    """The card, and what its driver loaded, are gone."""
    driverfaults.no_mellanox(host)


def network_driver(host: SimulatedHost) -> None:
    """The card's driver is installed."""
    driverfaults.network_driver(host)


def no_peermem(host: SimulatedHost) -> None:
    """The GPU driver's module that opens its memory to the network is unloaded, and its file removed."""
    host.unload_module("nvidia_peermem")
    host.root.remove(names.DRIVER_ROOT + modules.file(host.kernel, modules.PEERMEM))


# --- runtime ----------------------------------------------------------------------------------------------------------
def replace(path: str, text: str | None) -> Change:
    """A file has another text, or is removed; what was there is kept."""

    def change(host: SimulatedHost) -> None:
        if host.root.exists(path):
            host.root.write_atomic(KEPT + path, host.root.read_text(path))
        if text is None:
            host.root.remove(path)
        else:
            host.root.write_atomic(path, text)

    return change


def put_back(path: str) -> Change:
    """A file is as it was kept."""

    def change(host: SimulatedHost) -> None:
        if host.root.exists(KEPT + path):
            host.root.write_atomic(path, host.root.read_text(KEPT + path))
            host.root.remove(KEPT + path)

    return change


def off_path(command: str | None) -> Change:
    """A command of the machine is in no folder of the PATH, or all are."""

    def change(host: SimulatedHost) -> None:
        if command is None:
            host.root.remove(OFF_PATH)
        else:
            host.root.write_atomic(OFF_PATH, command + "\n")

    return change


def drop_rules(host: SimulatedHost) -> None:
    """Nobody made the GPUs' links in /dev/char, and systemd was asked to read its units again."""
    for path in host.root.glob(f"{DEVICE_LINKS}/{GPU_MAJOR}:*"):
        host.root.remove(path)
    host.reload_units()


def links(host: SimulatedHost) -> None:
    """The GPUs' links in /dev/char are there."""
    host.create_device_nodes()


def k3s(host: SimulatedHost) -> None:
    """The node is one of K3s, whose containerd has its configuration elsewhere; the usual one is there too."""
    host.root.write_atomic(
        K3S_FILE, 'version = 3\n\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]\n'
    )
    host.restart_runtime()


def no_k3s(host: SimulatedHost) -> None:
    """The node is one with a containerd of its own again."""
    host.root.remove(K3S_FILE)
    host.restart_runtime()


def image(pattern: str, answer: str | None) -> Change:
    """How registries answer the node for images."""

    def change(host: SimulatedHost) -> None:
        pulls.answer(host, pattern, answer)

    return change
