"""The labels of a node's GPUs: a pure function of the GPUs and of a few facts about the machine and its configuration.

Names, values and merge order are those of contracts/device-plugin-gfd.md 8 and 8.1. Finding the facts is left to
``discovery`` and ``machine``, making labels of them known to ``output``.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from ...api import names
from ...api.release import Release
from ..devices.model import Gpu, Inventory, MigDevice, Profile
from ..sharing import Sharing

Labels: TypeAlias = dict[str, str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

NONE: Final = "none"
SINGLE: Final = "single"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"
_MIB: Final = 1 << 20

FAMILIES: Final[Sequence[tuple[tuple[int, int], str]]] = (
    ((1, 0), "tesla"),
    ((2, 0), "fermi"),
    ((3, 0), "kepler"),
    ((5, 0), "maxwell"),
    ((6, 0), "pascal"),
    ((7, 0), "volta"),
    ((7, 5), "turing"),
    ((8, 0), "ampere"),
    ((8, 9), "ada-lovelace"),
    ((9, 0), "hopper"),
    ((10, 0), "blackwell"),
    ((12, 0), "blackwell"),
    ((13, 0), "rubin"),
)
"""Architectures by the first compute capability that is theirs, within one major number."""
NOT_IN_26_3: Final = frozenset({"rubin"})
MODES: Final[Mapping[str, str]] = {"0x030000": "graphics", "0x030200": "compute"}
"""Values of ``gpu.mode`` by PCI class."""
_NOT_IN_VALUES: Final = re.compile(r"[^A-Za-z0-9\-_. ]")


class LabelError(ValueError):
    """Labels cannot be computed: the driver says something unreadable, or the configuration contradicts the GPUs."""


class Vgpu(msgspec.Struct, frozen=True):
    """What PCI configuration space says of the hypervisor below: ``host`` is its driver's version and branch."""

    present: bool
    host: tuple[str, str] | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What labels depend on besides the GPUs.

    ``timestamp`` is in Unix seconds, None for no such label. ``pci_classes`` has each GPU's, such as ``0x030200``; None
    where it cannot be read. ``vgpu`` is None where configuration space cannot be read.
    """

    release: Release = Release.DEFAULT
    timestamp: int | None = None
    machine: str = UNKNOWN
    pci_classes: tuple[str | None, ...] = ()
    mig_strategy: str = NONE
    sharing: Sharing = Sharing()
    vgpu: Vgpu | None = None


class Resource(NamedTuple):
    """A resource of the node as labels: their stem, and how it is shared."""

    name: str
    replicas: int = 1
    strategy: str = NONE
    renamed: bool = False

    @classmethod
    def of(cls, name: str, sharing: Sharing) -> Self:
        """A resource by the name it has before it is renamed, shared as configured."""
        entry = sharing.of(name)
        if entry is None:
            return cls(name)
        return cls(name, entry.replicas, sharing.strategy.value, entry.advertised != entry.name)

    def labels(self, values: Mapping[str, object]) -> Labels:
        """Labels of the resource by their last parts."""
        return {f"{self.name}.{key}": str(value) for key, value in values.items()}

    def base(self, count: int, *product: str) -> dict[str, object]:
        """The values that labels of every resource begin with."""
        suffix = ["SHARED"] if self.replicas > 1 and not self.renamed else []
        return {
            "product": "-".join([*product, *suffix]),
            "count": count,
            "replicas": self.replicas,
            "sharing-strategy": self.strategy,
        }


def labels(inventory: Inventory, facts: Facts) -> Labels:
    """All labels of a node; later groups overwrite earlier ones (contracts/device-plugin-gfd.md 8).

    Raises :class:`LabelError`.
    """
    found: Labels = {}
    if facts.timestamp is not None:
        found[names.GFD_TIMESTAMP] = str(facts.timestamp)
    if inventory.gpus:
        ordered = msgspec.structs.replace(inventory, gpus=tuple(sorted(inventory.gpus, key=lambda gpu: gpu.index)))
        for group in _GROUPS:
            found |= group(ordered, facts)
    return found | _vgpu(facts.vgpu)


def remarks(inventory: Inventory, facts: Facts) -> list[str]:
    """What a person should know of the labels: sentences for warnings."""
    found = []
    models = sorted({gpu.name for gpu in inventory.gpus})
    if len(models) > 1:
        shown = _shown(inventory.gpus, facts)[0].name
        found.append(f"Multiple device types detected: {', '.join(models)}; the labels describe {shown}")
    if facts.mig_strategy == SINGLE and (reason := why_invalid(inventory.gpus)):
        found.append(f"Invalid configuration detected for mig-strategy=single: {reason}")
    return found


def sanitise(text: str) -> str:
    """A text as a label's value: characters that none may have are left out, blanks become dashes.

    The value may still be too long or end in a dash; node feature discovery then drops that one label.
    """
    return "-".join(_NOT_IN_VALUES.sub("", text).split())


def family(compute: tuple[int, int], release: Release = Release.DEFAULT) -> str:
    """The architecture by CUDA compute capability; ``undefined`` for one that the release does not know."""
    found = [name for first, name in FAMILIES if first[0] == compute[0] and first <= compute]
    if not found or (release is Release.V26_3 and found[-1] in NOT_IN_26_3):
        return "undefined"
    return found[-1]


def why_invalid(gpus: Sequence[Gpu]) -> str:
    """Why GPUs do not suit the MIG strategy ``single``; empty if they do (contracts/device-plugin-gfd.md 8.1)."""
    enabled = [gpu for gpu in gpus if gpu.mig_enabled]
    if not enabled:
        return ""
    if any(not gpu.mig_devices for gpu in enabled):
        return "at least one MIG device is enabled but empty"
    if len(enabled) < len(gpus):
        return "devices with MIG enabled and disable detected"
    if len({device.profile for gpu in enabled for device in gpu.mig_devices}) > 1:
        return "more than one MIG device type present on node"
    return ""


# --- the groups, in the order of their merge --------------------------------------------------------------------------


def _machine(_inventory: Inventory, facts: Facts) -> Labels:
    return {names.GPU_MACHINE: facts.machine}


def _versions(inventory: Inventory, _facts: Facts) -> Labels:
    full = inventory.driver_version
    parts = full.split(".")
    if len(parts) not in (2, 3):
        raise LabelError(
            f"error getting driver version: {full!r} is not of the form MAJOR.MINOR or MAJOR.MINOR.REVISION"
        )
    major, minor, revision = [*parts, ""][:3]
    cuda_major, cuda_minor = str(inventory.cuda_version // 1000), str(inventory.cuda_version % 1000 // 10)
    stems: tuple[tuple[str, Labels], ...] = (
        (names.CUDA_DRIVER_VERSION, {"major": major, "minor": minor, "revision": revision, "full": full}),
        (names.CUDA_DRIVER, {"major": major, "minor": minor, "rev": revision}),
        (names.CUDA_RUNTIME_VERSION, {"major": cuda_major, "minor": cuda_minor, "full": f"{cuda_major}.{cuda_minor}"}),
        (names.CUDA_RUNTIME, {"major": cuda_major, "minor": cuda_minor}),
    )
    return {f"{stem}.{key}": value for stem, values in stems for key, value in values.items()}


def _mig_capable(inventory: Inventory, _facts: Facts) -> Labels:
    return {names.MIG_CAPABLE: _truth(any(gpu.mig is not None for gpu in inventory.gpus))}


def _mps_capable(inventory: Inventory, facts: Facts) -> Labels:
    capable = facts.sharing.mps
    with_mig = [gpu.uuid for gpu in inventory.gpus if gpu.mig_enabled]
    if capable and with_mig:
        raise LabelError(
            f"sharing by MPS is configured, but MIG mode is enabled on {', '.join(with_mig)}: MPS needs whole GPUs; "
            "disable MIG, or share by timeSlicing"
        )
    return {names.MPS_CAPABLE: _truth(capable)}


def _resources(inventory: Inventory, facts: Facts) -> Labels:
    of_mig = _MIG_STRATEGIES.get(facts.mig_strategy)
    if of_mig is None:
        raise LabelError(f"unknown strategy: {facts.mig_strategy}")
    return _full_gpus(inventory.gpus, facts) | of_mig(inventory.gpus, facts)


def _mode(inventory: Inventory, facts: Facts) -> Labels:
    classes = set(facts.pci_classes) if len(facts.pci_classes) == len(inventory.gpus) else set()
    only = classes.pop() if len(classes) == 1 else None
    return {names.GPU_MODE: UNKNOWN if only is None else MODES.get(only, UNKNOWN)}


def _clique(inventory: Inventory, _facts: Facts) -> Labels:
    joined = [gpu.fabric for gpu in inventory.gpus if gpu.fabric and gpu.fabric.completed and gpu.fabric.succeeded]
    cliques = {(each.cluster_uuid.lower(), each.clique) for each in joined if each.cluster_uuid.strip("0-")}
    if len(cliques) != 1:
        return {}
    cluster, clique = cliques.pop()
    return {names.GPU_CLIQUE: f"{cluster}.{clique}"}


_GROUPS: Final[Sequence[Callable[[Inventory, Facts], Labels]]] = (
    _machine,
    _versions,
    _mig_capable,
    _mps_capable,
    _resources,
    _mode,
    _clique,
)


def _vgpu(vgpu: Vgpu | None) -> Labels:
    if vgpu is None:
        return {}
    found = {names.VGPU_PRESENT: _truth(vgpu.present)}
    if vgpu.host is not None:
        found[names.VGPU_HOST_DRIVER_VERSION], found[names.VGPU_HOST_DRIVER_BRANCH] = vgpu.host
    return found


# --- GPUs and MIG devices as resources --------------------------------------------------------------------------------


def _full_gpus(gpus: Sequence[Gpu], facts: Facts) -> Labels:
    """Labels of one model of GPUs. One that has MIG enabled throughout offers no full GPU: no replica of any."""
    alike = _shown(gpus, facts)
    full = [gpu for gpu in alike if not gpu.mig_enabled]
    gpu = (full or alike)[0]
    name = names.GPU_RESOURCE
    resource = Resource.of(name, facts.sharing) if full else Resource(name, replicas=0)
    values = resource.base(len(alike), sanitise(gpu.name))
    if memory_mib := gpu.memory_bytes // _MIB:
        values["memory"] = memory_mib
    major, minor = gpu.compute
    if major:
        values |= {"family": family(gpu.compute, facts.release), "compute.major": major, "compute.minor": minor}
    return resource.labels(values)


def _shown(gpus: Sequence[Gpu], facts: Facts) -> list[Gpu]:
    """The GPUs that ``nvidia.com/gpu.*`` describes: those of one model, however many there are.

    Models that offer full GPUs go first, then those with more GPUs, then names. Where the labels will say that MIG is
    set up wrongly, they are about the first GPU with MIG.
    """
    if facts.mig_strategy == SINGLE and why_invalid(gpus):
        blamed = _first_with_mig(gpus).name
        return [gpu for gpu in gpus if gpu.name == blamed]
    models = _grouped((gpu.name, gpu) for gpu in gpus)
    return min(models.values(), key=lambda alike: (all(gpu.mig_enabled for gpu in alike), -len(alike), alike[0].name))


def _first_with_mig(gpus: Iterable[Gpu]) -> Gpu:
    return min((gpu for gpu in gpus if gpu.mig_enabled), key=lambda gpu: gpu.index)


def _no_mig(_gpus: Sequence[Gpu], _facts: Facts) -> Labels:
    return {}


def _single_mig(gpus: Sequence[Gpu], facts: Facts) -> Labels:
    """MIG devices in place of GPUs; where these do not suit, labels that say so."""
    found = {names.MIG_STRATEGY: SINGLE}
    if not any(gpu.mig_enabled for gpu in gpus):
        return found
    if why_invalid(gpus):
        product = f"{sanitise(_first_with_mig(gpus).name)}-MIG-INVALID"
        values = {"product": product, "count": 0, "replicas": 0, "memory": 0, "sharing-strategy": ""}
        return found | Resource(names.GPU_RESOURCE).labels(values)
    alike = _shown(gpus, facts)
    return found | _mig_devices(
        names.GPU_RESOURCE, alike[0], [each for gpu in alike for each in gpu.mig_devices], facts
    )


def _mixed_mig(gpus: Sequence[Gpu], facts: Facts) -> Labels:
    """A set of labels for each profile. Where several models have devices of one, those of the model with most."""
    found = {names.MIG_STRATEGY: MIXED}
    for profile, pairs in sorted(_by_profile(gpus).items()):
        models = _grouped((gpu.name, (gpu, device)) for gpu, device in pairs)
        chosen = min(models.values(), key=lambda alike: (-len(alike), alike[0][0].name))
        resource = f"{names.MIG_RESOURCE_PREFIX}{profile.in_resource}"
        found |= _mig_devices(resource, chosen[0][0], [device for _gpu, device in chosen], facts)
    return found


_MIG_STRATEGIES: Final[Mapping[str, Callable[[Sequence[Gpu], Facts], Labels]]] = {
    NONE: _no_mig,
    SINGLE: _single_mig,
    MIXED: _mixed_mig,
}


def _by_profile(gpus: Iterable[Gpu]) -> dict[Profile, list[tuple[Gpu, MigDevice]]]:
    return _grouped((device.profile, (gpu, device)) for gpu in gpus for device in gpu.mig_devices)


def _mig_devices(name: str, parent: Gpu, devices: Sequence[MigDevice], facts: Facts) -> Labels:
    """Set R of contracts/device-plugin-gfd.md 8.1 on MIG devices of one type."""
    resource = Resource.of(name, facts.sharing)
    device = devices[0]
    return resource.labels(
        {
            **resource.base(len(devices), sanitise(parent.name), "MIG", device.profile.in_resource),
            "memory": device.memory_mib,
            "multiprocessors": device.multiprocessors,
            "slices.gi": device.gi_slices,
            "slices.ci": device.ci_slices,
            "engines.copy": device.copy_engines,
            "engines.decoder": device.decoders,
            "engines.encoder": device.encoders,
            "engines.jpeg": device.jpeg_engines,
            "engines.ofa": device.ofa_engines,
        }
    )


def _grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    found: dict[_Key, list[_Value]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def _truth(value: bool) -> str:
    return "true" if value else "false"
