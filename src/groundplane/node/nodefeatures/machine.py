"""What the machine is: PCI devices, kernel, operating system, processor; read, and put into labels.

Source: contracts/device-plugin-gfd.md 9. Features are named as NFD names them (``kernel.version``, ``pci.device``),
labels too. Reading never fails as a whole: what cannot be read is not there, which is said.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ...api import names
from ..hostroot import HostRoot

Attributes = Mapping[str, str]

PCI_FIELDS: Final = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
"""What identifies a PCI device, in the order in which it stands in a label."""
_PCI_OPTIONAL: Final = ("sriov_totalvfs",)
PCI_DEVICES: Final = "/sys/bus/pci/devices"
OS_RELEASE: Final = ("/host-etc/os-release", "/host-usr/lib/os-release")
"""The host's file as a container has it: `/etc/os-release`, which may be a link to the other."""
KERNEL_RELEASE: Final = "/proc/sys/kernel/osrelease"
CPU_INFO: Final = "/proc/cpuinfo"
_FIRST_CPU: Final = 1 << 14
"""Characters of that file that hold the first of maybe hundreds of processors."""

_OS_KEYS: Final = ("ID", "VERSION_ID", "VERSION_ID.major", "VERSION_ID.minor", "OSTREE_VERSION")
"""Of `os-release` these become labels. OSTREE_VERSION is OpenShift's; the operator asks for it."""
_KERNEL_KEYS: Final = ("full", "major", "minor", "revision")
_CPU_KEYS: Final = ("vendor_id", "family", "id")

_X86_VENDORS: Final = {
    "GenuineIntel": "Intel",
    "AuthenticAMD": "AMD",
    "HygonGenuine": "Hygon",
    "CentaurHauls": "VIA",
}
_ARM_IMPLEMENTERS: Final = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x4E: "NVIDIA",
    0x50: "AMCC",
    0x51: "Qualcomm",
    0x56: "Marvell",
    0x61: "Apple",
    0x69: "Intel",
    0xC0: "Ampere",
}
_UNKNOWN_VENDOR: Final = "VendorUnknown"


class PciSettings(msgspec.Struct, frozen=True):
    """Which PCI devices become labels, by the beginnings of their classes, and what of them stands in the label."""

    classes: tuple[str, ...] = ("02", "0200", "0207", "0300", "0302")
    fields: tuple[str, ...] = ("vendor",)


class Machine(msgspec.Struct, frozen=True):
    """What was read. Sets that could not be read are empty; ``problems`` says why."""

    kernel: Attributes = {}
    os: Attributes = {}
    cpu: Attributes = {}
    pci: tuple[Attributes, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def attributes(self) -> dict[str, Attributes]:
        """The sets of named values, by NFD's names of them."""
        sets = {"kernel.version": self.kernel, "system.osrelease": self.os, "cpu.model": self.cpu}
        return {name: values for name, values in sets.items() if values}


def read(kernel: HostRoot, os_release_files: Sequence[Path], pci: PciSettings) -> Machine:
    """Read the machine's ``/proc`` and ``/sys`` below ``kernel``, and the first of some files that is there.

    Of PCI devices only those are read that become labels.
    """
    problems: list[str] = []
    release = _text(kernel.path(KERNEL_RELEASE), problems)
    cpus = _text(kernel.path(CPU_INFO), problems, _FIRST_CPU)
    os_file = next((file for file in os_release_files if file.is_file()), None)
    if os_file is None:
        problems.append(f"the host's os-release is in none of {', '.join(map(str, os_release_files))}: mount it there")
    return Machine(
        kernel=kernel_version(release),
        os=os_release(_text(os_file, problems)) if os_file is not None else {},
        cpu=cpu_model(cpus),
        pci=tuple(pci_devices(kernel, pci.classes)),
        problems=tuple(problems),
    )


def labels(machine: Machine, pci: PciSettings) -> dict[str, str]:
    """The labels of a machine."""
    return {
        **_group("kernel-version", machine.kernel, _KERNEL_KEYS),
        **_group("system-os_release", machine.os, _OS_KEYS),
        **_group("cpu-model", machine.cpu, _CPU_KEYS),
        **dict(_pci_labels(machine.pci, pci)),
    }


def _group(stem: str, found: Attributes, keys: Iterable[str]) -> dict[str, str]:
    return {f"{names.NFD_PREFIX}{stem}.{key}": found[key] for key in keys if key in found}


def _pci_labels(devices: Iterable[Attributes], settings: PciSettings) -> Iterator[tuple[str, str]]:
    fields = [field for field in PCI_FIELDS if field in settings.fields]
    for device in devices:
        if device["class"].startswith(settings.classes) and all(field in device for field in fields):
            stem = f"{names.NFD_PREFIX}pci-{'_'.join(device[field] for field in fields)}"
            yield f"{stem}.present", "true"
            if "sriov_totalvfs" in device:
                yield f"{stem}.sriov.capable", "true"


# --- texts to attributes ----------------------------------------------------------------------------------------------


def kernel_version(release: str) -> dict[str, str]:
    """A kernel's release, made a label's value, and the numbers that it begins with."""
    full = re.sub(r"[^-A-Za-z0-9_.]", "_", release.strip()).strip("-_.")
    if not full:
        return {}
    numbers = re.match(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", full)
    parts = dict(zip(_KERNEL_KEYS[1:], numbers.groups(), strict=True)) if numbers else {}
    return {"full": full, **{key: number for key, number in parts.items() if number is not None}}


def os_release(text: str) -> dict[str, str]:
    """The entries of an `os-release` file without quotes, and the numbers of its VERSION_ID, where they are numbers."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    found = {key.strip(): value.strip().strip("\"'") for key, equals, value in pairs if equals}
    major, _, rest = found.get("VERSION_ID", "").partition(".")
    if _is_number(major):
        found["VERSION_ID.major"] = major
        minor = rest.partition(".")[0]
        if _is_number(minor):
            found["VERSION_ID.minor"] = minor
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def cpu_model(cpuinfo: str) -> dict[str, str]:
    """Vendor, family and model of the first processor in `/proc/cpuinfo`; of ARM's the vendor."""
    first: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            first.setdefault(key.strip(), value.strip())
    if "vendor_id" in first:
        found = {"vendor_id": _X86_VENDORS.get(first["vendor_id"], _UNKNOWN_VENDOR)}
        for name, key in (("family", "cpu family"), ("id", "model")):
            if _is_number(first.get(key, "")):
                found[name] = first[key]
        return found
    implementer = first.get("CPU implementer", "")
    if re.fullmatch(r"0x[0-9A-Fa-f]+", implementer):
        return {"vendor_id": _ARM_IMPLEMENTERS.get(int(implementer, 16), _UNKNOWN_VENDOR)}
    return {}


# --- reading ----------------------------------------------------------------------------------------------------------


def pci_devices(kernel: HostRoot, classes: tuple[str, ...] = ("",)) -> Iterator[Attributes]:
    """The PCI devices whose class begins in one of some ways, by address.

    Their attributes are hexadecimal numbers without ``0x``, the class its first four digits. A machine may have
    hundreds of devices, of which few matter: of the others only the class is read.
    """
    folder = kernel.path(PCI_DEVICES)
    for address in sorted(os.listdir(folder)) if folder.is_dir() else []:  # noqa: PTH208 - names are all we need
        device = f"{folder}/{address}"  # sysfs has a relative link here, which stays in the root
        found = _attribute(device, "class")[:4]
        if not found or not found.startswith(classes):
            continue
        others = {name: _attribute(device, name) for name in (*PCI_FIELDS[1:], *_PCI_OPTIONAL)}
        yield {"class": found, **{name: value for name, value in others.items() if value}}


def _attribute(device: str, name: str) -> str:
    """Empty if there is no such attribute, or the device has just been taken away."""
    try:
        with open(f"{device}/{name}", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - a thousand times
            return file.read().strip().removeprefix("0x")
    except OSError:
        return ""


def _text(file: Path, problems: list[str], limit: int = -1) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(limit)
    except OSError as error:
        problems.append(f"{file}: {error.strerror or error}")
        return ""
