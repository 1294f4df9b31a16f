"""GPUs, MIG devices and facts for the tests of GPU feature discovery."""

from collections.abc import Sequence
from typing import Any

from groundplane.node.devices.model import Gpu, Inventory, MigDevice, Profile
from groundplane.node.devices.models import MODELS
from groundplane.node.features.labels import Facts, Labels, labels
from groundplane.node.sharing import Shared, Sharing, SharingStrategy

GPU = "nvidia.com/gpu"


def gpu(index: int = 0, model: str = "A100-SXM4-40GB", *profiles: Profile, **more: Any) -> Gpu:
    """A GPU of a model; profiles enable MIG and are its MIG devices."""
    known = MODELS[model]
    values: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "minor": index,
        "name": known.product,
        "bus_id": f"00000000:{0x10 + index:02X}:00.0",
        "memory_bytes": known.memory_mib << 20,
        "compute": known.compute,
        "mig": bool(profiles) if known.mig else None,
        "mig_devices": tuple(mig(slot, profile) for slot, profile in enumerate(profiles)),
    }
    return Gpu(**{**values, **more})


def mig(slot: int, profile: Profile, **more: Any) -> MigDevice:
    """A MIG device."""
    values = {
        "slot": slot,
        "uuid": f"MIG-{slot}",
        "gi": slot,
        "ci": 0,
        "profile": profile,
        "memory_mib": profile.gb * 1000,
        "multiprocessors": 14 * profile.c,
        "gi_slices": profile.g,
        "ci_slices": profile.c,
    }
    return MigDevice(**{**values, **more})


def inventory(*gpus: Gpu, driver: str = "580.95.05", cuda: int = 13000) -> Inventory:
    return Inventory(driver, cuda, gpus)


def facts(gpus: Sequence[Gpu] = (), **more: Any) -> Facts:
    """Facts of a machine whose GPUs are compute cards."""
    return Facts(**{"pci_classes": tuple("0x030200" for _ in gpus), **more})


def labelled(*gpus: Gpu, **more: Any) -> Labels:
    """Labels of some GPUs."""
    return labels(inventory(*gpus), facts(gpus, **more))


def time_sliced(replicas: int, *resources: str, renamed: bool = False) -> Sharing:
    return shared("time-slicing", replicas, *resources, renamed=renamed)


def shared(strategy: str, replicas: int, *resources: str, renamed: bool = False) -> Sharing:
    """Resources (nvidia.com/gpu unless others are named) with so many replicas each."""
    entries = tuple(Shared(name, f"{name}.shared" if renamed else name, replicas) for name in resources or (GPU,))
    return Sharing(SharingStrategy(strategy), renamed, False, entries)


def of(found: Labels, stem: str = GPU) -> dict[str, str]:
    """The labels of one stem, without it."""
    return {key.removeprefix(f"{stem}."): value for key, value in found.items() if key.startswith(f"{stem}.")}
