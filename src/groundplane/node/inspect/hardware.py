"""The PCI devices of a node, the kernel's modules and the driver (A1, A12, A20, A21): what sysfs and procfs show."""

import os
import re
from collections.abc import Iterator
from typing import Any, Final

from .. import vfio
from ..hostroot import HostRoot
from .view import View

MODULES: Final = "/proc/modules"
DRIVER_VERSION: Final = "/proc/driver/nvidia/version"
MODULE_VERSION: Final = "/sys/module/nvidia/version"
DRIVER_ROOT: Final = "/run/nvidia/driver"
"""Where the driver's container shows its root on the node."""
LIBRARY_FOLDERS: Final = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
)
TOOLS: Final = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/opt/bin/nvidia-smi", "/bin/nvidia-smi")
_LIBRARY: Final = re.compile(r"/libnvidia-ml\.so\.(\d+\.[\d.]+)$")
_VERSION: Final = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
CLASSES: Final = {"0x0300": "gpus", "0x0302": "gpus", "0x0680": "nvswitches"}
_OURS: Final = re.compile(r"nvidia\w*|nouveau|gdrdrv")
_HOLDERS: Final = 64
"""Processes with open devices that are listed."""


def look(view: View) -> None:
    """All facts of this module."""
    _pci(view)
    _modules(view)
    _driver(view)
    _holders(view)


def _pci(view: View) -> None:
    try:
        addresses = sorted(entry.name for entry in view.kernel.path(vfio.DEVICES).iterdir())
    except OSError as error:
        view.lacks("pci", f"{vfio.DEVICES}: {error.strerror or error}")
        return
    ids: list[str] = []
    found: dict[str, list[dict[str, Any]]] = {"gpus": [], "nvswitches": []}
    for address in addresses:
        folder = f"{vfio.DEVICES}/{address}"
        vendor, device = (_hex(view, f"{folder}/{name}") for name in ("vendor", "device"))
        if not vendor:
            continue
        ids.append(f"{vendor}:{device}")
        kind = CLASSES.get((view.of_kernel(f"{folder}/class") or "")[:6].lower())
        if kind and vendor == vfio.VENDOR.removeprefix("0x"):
            found[kind].append(_device(view, address, device))
    view.tell("pci", ids)
    view.facts.update(found)


def _hex(view: View, path: str) -> str:
    return (view.of_kernel(path) or "").lower().removeprefix("0x")


def _device(view: View, address: str, device: str) -> dict[str, Any]:
    folder = f"{vfio.DEVICES}/{address}"
    values = {
        "address": address,
        "device": device,
        "class": (view.of_kernel(f"{folder}/class") or "").removeprefix("0x")[:4],
        "driver": vfio.driver_of(view.kernel, address),
        "virtual_function": os.path.lexists(view.kernel.path(folder) / "physfn") or None,
        "link_width": view.of_kernel(f"{folder}/current_link_width"),
        "link_width_max": view.of_kernel(f"{folder}/max_link_width"),
        "link_speed": view.of_kernel(f"{folder}/current_link_speed"),
        "enabled": view.of_kernel(f"{folder}/enable"),
    }
    return {name: value for name, value in values.items() if value not in (None, "")}


def _modules(view: View) -> None:
    listed = view.of_kernel(MODULES)
    if listed is None:
        view.lacks("modules", f"{MODULES} is not there")
        return
    view.facts.update(of_modules(listed))


def of_modules(listed: str) -> dict[str, Any]:
    """Facts of what ``/proc/modules`` lists."""
    rows = [words for line in listed.splitlines() if len(words := line.split()) >= 3]
    uses = {words[0]: int(words[2]) for words in rows if _OURS.fullmatch(words[0]) and words[2].isdecimal()}
    names = [words[0] for words in rows]
    return {"modules": names, "module_uses": uses, "nouveau": "nouveau" in names}


def of_driver(text: str) -> dict[str, Any]:
    """Facts of what ``/proc/driver/nvidia/version`` says."""
    matched = _VERSION.search(f"{text.splitlines()[0]} ") if text.strip() else None
    if matched is None:
        return {}
    return {
        "driver_version": matched.group(1),
        "module_type": "open" if "Open Kernel Module" in text else "proprietary",
    }


def _driver(view: View) -> None:
    view.facts.update(of_driver(view.of_kernel(DRIVER_VERSION) or ""))
    view.tell("driver_version", view.of_kernel(MODULE_VERSION) or None)
    if view.host is None:
        view.lacks("library_version", "the node's root is not mounted in this container")
        return
    of_host, of_container = (_libraries(view, root) for root in ("", DRIVER_ROOT))
    view.tell("host_library_version", of_host)
    view.tell("container_library_version", of_container)
    view.tell("library_version", of_container or of_host)
    view.tell("host_tool", next(_tools(view), ""))


def _libraries(view: View, root: str) -> str | None:
    """The version of the driver's libraries below a root of the node; the highest, where there are some."""
    found = [
        match.group(1)
        for folder in LIBRARY_FOLDERS
        for path in view.glob(f"{root}{folder}/libnvidia-ml.so.*")
        if (match := _LIBRARY.search(path))
    ]
    return max(found, key=lambda text: [int(part) for part in text.split(".") if part], default=None)


def _tools(view: View) -> Iterator[str]:
    """The host's own nvidia-smi; an empty file is what a container runtime has left of a mount."""
    for path in TOOLS:
        if view.host is None or not view.exists(path):
            continue
        try:
            if view.host.path(path).stat().st_size:
                yield path
        except OSError as error:
            view.lacks(path, error.strerror or str(error))


def _holders(view: View) -> None:
    """Processes that have devices of the driver open: they keep its modules loaded."""
    found, refused = [], 0
    for folder in view.kernel.glob("/proc/[0-9]*"):
        opened = _open_devices(view.kernel, folder)
        if opened is None:
            refused += 1
        elif opened:
            command = (view.of_kernel(f"{folder}/comm") or "?")[:80]
            found.append(f"{folder.rpartition('/')[2]} ({command}): {', '.join(sorted(opened)[:8])}")
    if refused:
        view.lacks("device_holders", f"open files of {refused} processes may not be read")
    view.tell("device_holders", found[:_HOLDERS])


def _open_devices(kernel: HostRoot, folder: str) -> set[str] | None:
    """The driver's devices that a process has open; None if that may not be looked at."""
    found = set()
    try:
        for entry in (kernel.path(folder) / "fd").iterdir():
            try:
                target = str(entry.readlink())
            except FileNotFoundError:
                continue
            if target.startswith("/dev/nvidia"):
                found.add(target)
    except PermissionError:
        return None
    except OSError:  # the process is gone, or has no such folder
        return set()
    return found
