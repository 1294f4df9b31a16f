"""How MIG profiles are named: from NVML's profile numbers and memory sizes, and as a person writes them.

Pure. Which profiles a GPU offers is ``models`` (simulated) or the driver (``nvml``); what is made of a name, such as a
resource, is the programs' part.
"""

import re
from typing import Final, NamedTuple

from .model import Profile

MIB: Final = 1 << 20
GIB: Final = 1 << 30


class GpuInstanceKind(NamedTuple):
    """What the number of a GPU instance profile stands for: GPU slices and attributes."""

    slices: int
    suffix: str = ""


GPU_INSTANCES: Final[dict[int, GpuInstanceKind]] = {
    0: GpuInstanceKind(1),
    1: GpuInstanceKind(2),
    2: GpuInstanceKind(3),
    3: GpuInstanceKind(4),
    4: GpuInstanceKind(7),
    5: GpuInstanceKind(8),
    6: GpuInstanceKind(6),
    7: GpuInstanceKind(1, "+me"),
    8: GpuInstanceKind(2, "+me"),
    9: GpuInstanceKind(1),
    10: GpuInstanceKind(1, "+gfx"),
    11: GpuInstanceKind(2, "+gfx"),
    12: GpuInstanceKind(4, "+gfx"),
    13: GpuInstanceKind(1, "-me"),
    14: GpuInstanceKind(2, "-me"),
    15: GpuInstanceKind(1, "+me.all"),
    16: GpuInstanceKind(2, "+me.all"),
    17: GpuInstanceKind(3, "+gfx"),
}
"""GPU instance profiles by NVML's number (contracts/device-plugin-gfd.md 2.11, mig-exporter-validator.md 1.7)."""

COMPUTE_INSTANCES: Final[dict[int, int]] = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1, 8: 7}
"""Compute slices by NVML's number of a compute instance profile (contracts/mig-exporter-validator.md 1.7)."""


class ProfileError(ValueError):
    """A text is no MIG profile, or a profile number has no name; the message says what is expected."""


def memory_gb(instance_bytes: int, gpu_bytes: int) -> int:
    """The gigabytes in a profile's name: the instance's eighths of the GPU, of its GiB rounded up.

    Halves are rounded away from zero, so that 180 GiB in eighths are 22.5 and thus 23
    (contracts/mig-exporter-validator.md 1.6).
    """
    if instance_bytes < 0 or gpu_bytes <= 0:
        raise ProfileError(f"memory of {instance_bytes} of {gpu_bytes} bytes; expected 0 or more of more than 0")
    eighths = _ceil(8 * instance_bytes, gpu_bytes)
    return (eighths * _ceil(gpu_bytes, GIB) + 4) // 8


def name(gpu_instance: int, compute_instance: int, instance_bytes: int, gpu_bytes: int) -> Profile:
    """The profile of an instance, by NVML's two profile numbers and the memory of GPU instance and GPU.

    Raises :class:`ProfileError` for a number without a name.
    """
    if compute_instance not in COMPUTE_INSTANCES:
        raise ProfileError(f"compute instance profile {compute_instance} is not known; known are 0 to 8")
    return _named(gpu_instance, COMPUTE_INSTANCES[compute_instance], instance_bytes, gpu_bytes)


def full(gpu_instance: int, instance_bytes: int, gpu_bytes: int) -> Profile:
    """The profile of a GPU instance that one compute instance fills. Raises :class:`ProfileError`."""
    return _named(gpu_instance, 0, instance_bytes, gpu_bytes)


def _named(gpu_instance: int, compute_slices: int, instance_bytes: int, gpu_bytes: int) -> Profile:
    if gpu_instance not in GPU_INSTANCES:
        raise ProfileError(f"GPU instance profile {gpu_instance} is not known; known are 0 to {max(GPU_INSTANCES)}")
    kind = GPU_INSTANCES[gpu_instance]
    return Profile(compute_slices or kind.slices, kind.slices, memory_gb(instance_bytes, gpu_bytes), kind.suffix)


_TEXT = re.compile(r"(?:([0-9]+)c\.)?([0-9]+)g\.([0-9]+)gb(?:([+-])(.*))?", re.ASCII | re.DOTALL)
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9]*(\.+[A-Za-z0-9]+)*", re.ASCII)
_FORM = "expected [<C>c.]<G>g.<GB>gb[+attribute,...|-attribute,...], such as 1g.10gb, 1c.3g.40gb or 1g.24gb+me.all"


def parse(text: str) -> Profile:
    """Read a profile as a person writes it (contracts/mig-exporter-validator.md 1.5); attributes come out sorted.

    Any well-formed profile is accepted, whether a GPU has it or not. Raises :class:`ProfileError`.
    """
    found = _TEXT.fullmatch(text)
    if not found:
        raise ProfileError(f"{text!r} is no MIG profile; {_FORM}")
    compute, gpu, memory, sign, attributes = found.groups()
    suffix = sign + ",".join(_attributes(text, attributes)) if sign else ""
    return Profile(int(compute or gpu), int(gpu), int(memory), suffix)


def _attributes(text: str, attributes: str) -> list[str]:
    found = sorted(attributes.split(","))
    for attribute in found:
        if not _ATTRIBUTE.fullmatch(attribute):
            raise ProfileError(f"{text!r} is no MIG profile: attribute {attribute!r} is malformed; {_FORM}")
    if len(set(found)) < len(found):
        raise ProfileError(f"{text!r} is no MIG profile: an attribute is repeated; {_FORM}")
    return found


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
