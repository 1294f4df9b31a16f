"""A machine with a driver and GPUs, for generators of CDI specs: files of a real driver, simulated GPUs and nodes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node.cdi import generate
from groundplane.node.cdi.model import Spec
from groundplane.node.cdi.options import Mode, Wanted
from groundplane.node.cdi.roots import Roots
from groundplane.node.devices.model import Gpu, Inventory, MigDevice, Profile
from groundplane.node.devices.source import LibraryNotFound
from testing import driverroots
from testing.driverroots import Kind

VERSION = "580.95.05"
CONTROL = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")


class FakeSource:
    """A source that is open, and answers with one inventory; without one, the library is not found."""

    def __init__(self, inventory: Inventory | None) -> None:
        self.inventory_ = inventory
        self.opened = 0

    def open(self) -> None:
        self.opened += 1
        self.inventory()

    def close(self) -> None:
        self.opened = 0

    def has_library(self) -> bool:
        return self.inventory_ is not None

    def inventory(self) -> Inventory:
        if self.inventory_ is None:
            raise LibraryNotFound("libnvidia-ml.so.1 is not found")
        return self.inventory_


def gpu(index: int, **more: Any) -> Gpu:
    """A GPU whose minor number is not its index, so that neither is taken for the other."""
    given = {
        "index": index,
        "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
        "minor": index + 1,
        "name": "NVIDIA H100 80GB HBM3",
        "bus_id": f"00000000:{index + 10:02X}:00.0",
        "memory_bytes": 80 << 30,
        "compute": (9, 0),
    }
    return Gpu(**{**given, **more})


def mig(slot: int, gi: int, ci: int = 0, profile: Profile | None = None) -> MigDevice:
    """A MIG device."""
    return MigDevice(
        slot=slot,
        uuid=f"MIG-0000000{slot}-0000-0000-0000-00000000000{gi}",
        gi=gi,
        ci=ci,
        profile=profile or Profile(1, 1, 10),
        memory_mib=9728,
        multiprocessors=16,
        gi_slices=1,
        ci_slices=1,
    )


class World:
    """A machine. Its driver is below `driver_root`, which is what the host has at `host_root`."""

    def __init__(
        self,
        folder: Path,
        gpus: Sequence[Gpu] = (),
        *,
        version: str = VERSION,
        kind: Kind = Kind.UBUNTU,
        driver: bool = True,
        driver_root: str = "",
        release: Release = Release.DEFAULT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.process = FakeProcess(folder, ("nvidia-ctk",), env or {}, release=release)
        self.version = version
        self.source = FakeSource(Inventory(version, 13000, tuple(gpus)) if gpus else None)
        self.process.source = self.source
        self.driver_root = driver_root
        if driver:
            driverroots.make(self.real(""), version, kind)
        self.process.write_kernel("/proc/sys/kernel/osrelease", "6.8.0-test\n")
        self.nodes(*CONTROL, *(f"nvidia{each.minor}" for each in gpus))

    def real(self, path: str) -> Path:
        """The real place of a path below the driver root."""
        made = self.process.root.base / f"{self.driver_root}{path}".lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.mkdir(exist_ok=True) if not path else None
        return made

    def nodes(self, *names: str) -> None:
        """Nodes in `/dev`, as ordinary files."""
        for name in names:
            self.process.write(f"{self.driver_root}/dev/{name}", "")

    def capabilities(self, *lines: str) -> None:
        """The driver's list of MIG capabilities, with a node for each."""
        self.process.write_kernel("/proc/driver/nvidia-caps/mig-minors", "".join(f"{line}\n" for line in lines))
        self.nodes(*(f"nvidia-caps/nvidia-cap{line.split()[1]}" for line in lines))

    def drm(self, gpu: Gpu, number: int) -> None:
        """Nodes for graphics of a GPU, and the links to them."""
        card, render = f"card{number}", f"renderD{number + 128}"
        for name in (card, render):
            self.process.write_kernel(f"{gpu.sysfs}/drm/{name}/dev", "")
            self.nodes(f"dri/{name}")
        bus = gpu.sysfs.rpartition("/")[2]
        folder = self.real("/dev/dri/by-path/x").parent
        (folder / f"pci-{bus}-card").symlink_to(f"../{card}")
        (folder / f"pci-{bus}-render").symlink_to(f"../{render}")

    def wanted(self, mode: Mode = Mode.NVML, *, host_root: str | None = None, **more: Any) -> Wanted:
        """What is asked for, with nodes simulated unless said otherwise."""
        roots = Roots.of(self.driver_root or "/", host_driver=host_root)
        return Wanted(**{"mode": mode, "roots": roots, "null_devices": True, **more})

    def generate(self, mode: Mode = Mode.NVML, **more: Any) -> Spec:
        """The machine's spec."""
        return generate.generate(self.process, self.source, self.wanted(mode, **more))


def mounts(spec: Spec) -> dict[str, str]:
    """The host's paths of what all containers get, by the containers'."""
    return {each.container_path: each.host_path for each in spec.container_edits.mounts}


def hook_args(spec: Spec) -> list[tuple[str, ...]]:
    """The arguments of the hooks of all containers, without the program's name."""
    return [each.args[1:] for each in spec.container_edits.hooks]


def links(spec: Spec) -> set[str]:
    """The links that hooks of all containers make."""
    return {arg for args in hook_args(spec) if args[0] == "create-symlinks" for arg in args[1:] if "::" in arg}


def named(spec: Spec) -> list[str]:
    """Names of the devices."""
    return [each.name for each in spec.devices]


def node_paths(spec: Spec, name: str) -> list[str]:
    """Paths of a device's nodes."""
    (device,) = (each for each in spec.devices if each.name == name)
    return [each.path for each in device.container_edits.device_nodes]


def shown(lines: Iterable[str]) -> str:
    """Lines of text."""
    return "".join(f"{line}\n" for line in lines)
