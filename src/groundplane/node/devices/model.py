"""What is known of a machine's GPUs at one moment: plain, immutable data, in NVML's terms and units.

A source (``source.py``) reads it; everything else computes from it.
"""

from typing import Final

import msgspec

NO_INSTANCE: Final = 0xFFFFFFFF
"""NVML's GPU or compute instance id of an event that concerns a whole GPU."""


class Profile(msgspec.Struct, frozen=True, order=True):
    """A MIG profile: compute slices, GPU slices, memory in GB as named (GiB, rounded), attributes such as ``+me``."""

    c: int
    g: int
    gb: int
    suffix: str = ""

    @property
    def full(self) -> bool:
        """Whether the compute instance fills its GPU instance."""
        return self.c == self.g

    def __str__(self) -> str:
        head = "" if self.full else f"{self.c}c."
        return f"{head}{self.g}g.{self.gb}gb{self.suffix}"

    @property
    def in_resource(self) -> str:
        """The profile as resource names and label values have it (``+`` is no character of theirs)."""
        return str(self).replace("+", ".")


class Placed(msgspec.Struct, frozen=True):
    """Where a MIG device is: its GPU, GPU instance id and compute instance id."""

    gpu_uuid: str
    gi: int
    ci: int


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device: a compute instance in a GPU instance. ``slot`` is its number among its GPU's MIG devices."""

    slot: int
    uuid: str
    gi: int
    ci: int
    profile: Profile
    memory_mib: int
    multiprocessors: int
    gi_slices: int
    ci_slices: int
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class Fabric(msgspec.Struct, frozen=True):
    """A GPU's membership in an NVLink fabric. ``cluster_uuid`` is lower case with dashes, all zeros if in none."""

    cluster_uuid: str
    clique: int
    completed: bool
    succeeded: bool


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. ``bus_id`` is NVML's, with a domain of eight digits; ``memory_bytes`` is 0 where it cannot be asked for.

    Under WSL and on a Tegra the driver may know no minor number, and no bus: ``minor`` is None, ``bus_id`` empty.
    ``mig`` is None where the GPU knows no MIG. ``profiles`` are the full (C = G) MIG profiles that it offers.
    ``coherent``: it shares its address space with the CPU (address translation services).
    """

    index: int
    uuid: str
    minor: int | None
    name: str
    bus_id: str
    memory_bytes: int
    compute: tuple[int, int]
    mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    profiles: tuple[Profile, ...] = ()
    fabric: Fabric | None = None
    coherent: bool = False

    @property
    def mig_enabled(self) -> bool:
        """Whether MIG mode is on."""
        return self.mig is True

    @property
    def device_node(self) -> str:
        """The GPU's character device: by minor number, which need not be the index."""
        return f"/dev/nvidia{self.minor}"

    @property
    def sysfs(self) -> str:
        """The GPU's folder in sysfs: lower case, the domain of four digits where the first four are zeros."""
        bus = self.bus_id.lower()
        if bus.startswith("0000") and len(bus.partition(":")[0]) == 8:
            bus = bus[4:]
        return f"/sys/bus/pci/devices/{bus}"


class Inventory(msgspec.Struct, frozen=True):
    """All GPUs in the order of their indices, display-only ones left out (contracts/device-plugin-gfd.md 2.3).

    ``cuda_version`` is the CUDA driver version as one number: 13010 is 13.1.
    """

    driver_version: str
    cuda_version: int
    gpus: tuple[Gpu, ...] = ()
