"""Which device belongs to which extended resource, and under which ids it is handed out.

Pure but for two kinds of small files of the kernel: from the machine's GPUs, the MIG strategy and what is shared to the
offers that the device plugin serves and the MPS daemon runs daemons for (contracts/device-plugin-gfd.md 1.4, 1.5, 2).
Finding GPUs is left to ``devices``, serving them to the programs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ..api import names
from .config import MigStrategy
from .devices.model import Gpu, Inventory, MigDevice, Placed, Profile
from .hostroot import HostRoot
from .sharing import Pattern, Resources, Sharing, SharingStrategy

REPLICA: Final = "::"
"""Between a device's id and the number of its replica."""
MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
_CAPABILITY: Final = "/dev/nvidia-caps/nvidia-cap{}"
_MIB: Final = 1 << 20


class ResourceError(RuntimeError):
    """What the machine has cannot be offered as configured; a program ends with exit code 1, whatever its options."""


class PhysicalDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole GPU or a MIG device, that may be handed out several times.

    ``index`` is its number (``0``, or ``0:1`` for a MIG device), ``paths`` are its device nodes, ``numa`` its memory
    node if it is near one. ``gpu`` is its GPU, None where it stands for all of a machine's; ``mig`` the MIG device, if
    it is one.
    """

    id: str
    index: str
    paths: tuple[str, ...] = ()
    numa: int | None = None
    gpu: Gpu | None = None
    mig: MigDevice | None = None

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG device."""
        return self.mig is not None

    @property
    def gpu_uuid(self) -> str:
        """The UUID of its GPU; empty where it has none."""
        return self.gpu.uuid if self.gpu is not None else ""

    @property
    def placed(self) -> Placed | None:
        """Where a MIG device is; None for others."""
        return Placed(self.gpu_uuid, self.mig.gi, self.mig.ci) if self.mig is not None else None

    @property
    def memory_bytes(self) -> int:
        """Its memory; 0 where that is not known."""
        if self.mig is not None:
            return self.mig.memory_mib * _MIB
        return self.gpu.memory_bytes if self.gpu is not None else 0

    @property
    def compute(self) -> tuple[int, int] | None:
        """The CUDA compute capability of its GPU."""
        return self.gpu.compute if self.gpu is not None else None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A resource as it is advertised, and its devices.

    ``resource`` is the advertised name and ``base`` the one before renaming. Each device is offered ``replicas`` times:
    1 where it is not shared, and ``strategy`` is NONE then.
    """

    resource: str
    base: str
    devices: tuple[PhysicalDevice, ...]
    replicas: int = 1
    strategy: SharingStrategy = SharingStrategy.NONE
    fail_requests_greater_than_one: bool = False

    @property
    def shared(self) -> bool:
        """Whether a device is handed out several times."""
        return self.replicas > 1

    def ids(self) -> list[str]:
        """The ids handed out: each device's own, or ``<id>::0`` and so on for each replica (4.1)."""
        if not self.shared:
            return [device.id for device in self.devices]
        return [f"{device.id}{REPLICA}{number}" for device in self.devices for number in range(self.replicas)]


WSL_DEVICE: Final = PhysicalDevice(id="all", index="all", paths=("/dev/dxg",))
"""All GPUs under Windows' subsystem for Linux, which are not told apart (2.7)."""
TEGRA_DEVICE: Final = PhysicalDevice(id="tegra", index="0")
"""A Tegra's GPU (2.8)."""


def physical_id(device_id: str) -> str:
    """The id of the device behind a replica's, or the id itself."""
    return device_id.partition(REPLICA)[0]


# --- which resources there are (1.4) ----------------------------------------------------------------------------------


def mig_resource(profile: Profile) -> str:
    """The resource of a MIG profile under strategy ``mixed``."""
    return names.MIG_RESOURCE_PREFIX + profile.in_resource


def patterns(strategy: MigStrategy, inventory: Inventory) -> Resources:
    """The resources that a machine's devices are divided into. Those of a configuration are not honoured."""
    gpus = (Pattern("*", names.GPU_RESOURCE),)
    if strategy is MigStrategy.SINGLE:
        return Resources(gpus, gpus)
    if strategy is MigStrategy.MIXED:
        return Resources(gpus, tuple(Pattern(str(each), mig_resource(each)) for each in _full_profiles(inventory)))
    return Resources(gpus)


def _full_profiles(inventory: Inventory) -> list[Profile]:
    """In the order in which the GPUs offer them, which is that of NVML's numbers."""
    offered = [profile for gpu in inventory.gpus for profile in gpu.profiles]
    there = [device.profile for gpu in inventory.gpus for device in gpu.mig_devices]
    return [profile for profile in dict.fromkeys(offered + there) if profile.full]


def offer(base: str, devices: Iterable[PhysicalDevice], sharing: Sharing) -> Offer:
    """Devices of one resource, shared as configured."""
    entry = sharing.of(base)
    if entry is None:
        return Offer(resource=base, base=base, devices=tuple(devices))
    return Offer(
        resource=entry.advertised,
        base=base,
        devices=tuple(devices),
        replicas=entry.replicas,
        strategy=sharing.strategy,
        fail_requests_greater_than_one=sharing.fail_requests_greater_than_one,
    )


def offers(
    inventory: Inventory,
    strategy: MigStrategy,
    sharing: Sharing,
    kernel: HostRoot,
    warn: Callable[[str], None],
) -> tuple[Offer, ...]:
    """All that a machine offers, in the order of its GPUs; ``warn`` is told what a person should look at.

    Raises :class:`ResourceError`.
    """
    wanted = patterns(strategy, inventory)
    found: dict[str, list[PhysicalDevice]] = {}
    for device in _devices(inventory, strategy, kernel, warn):
        found.setdefault(_resource(device, wanted), []).append(device)
    return tuple(offer(base, devices, sharing) for base, devices in found.items())


def _resource(device: PhysicalDevice, wanted: Resources) -> str:
    if device.mig is not None:
        what, text, choices = "MIG profile", str(device.mig.profile), wanted.mig
    else:
        what, text, choices = "GPU", device.gpu.name if device.gpu else device.id, wanted.gpus
    for pattern in choices:
        if pattern.fits(text):
            return pattern.name
    raise ResourceError(
        f"{what} {text} (device {device.index}) does not match any resource: "
        f"the patterns are {', '.join(each.pattern for each in choices) or 'none'}"
    )


# --- MIG strategies (2.1) ---------------------------------------------------------------------------------------------


def _devices(
    inventory: Inventory, strategy: MigStrategy, kernel: HostRoot, warn: Callable[[str], None]
) -> Iterator[PhysicalDevice]:
    divided = [] if strategy is MigStrategy.NONE else [gpu for gpu in inventory.gpus if gpu.mig_enabled]
    if strategy is MigStrategy.SINGLE:
        _check_single(inventory, divided)
    minors = read_mig_minors(kernel) if any(gpu.mig_devices for gpu in divided) else {}
    for gpu in inventory.gpus:
        if strategy is MigStrategy.NONE or not gpu.mig_enabled:
            yield whole(gpu, kernel)
            continue
        if not gpu.mig_devices:
            warn(f"device {gpu.index} has MIG enabled but no MIG devices: it is not offered")
        for mig in gpu.mig_devices:
            yield part(gpu, mig, kernel, minors)


def _check_single(inventory: Inventory, divided: list[Gpu]) -> None:
    """Strategy ``single`` needs all GPUs alike."""
    if not divided:
        return
    for gpu in divided:
        if not gpu.mig_devices:
            raise ResourceError(
                f"invalid MIG configuration: device {gpu.index} has no MIG devices configured (MIG strategy single)"
            )
    if len(divided) != len(inventory.gpus):
        others = ", ".join(str(gpu.index) for gpu in inventory.gpus if not gpu.mig_enabled)
        raise ResourceError(
            "invalid MIG configuration: all devices on the node must have the same MIG setting under MIG strategy "
            f"single, but it is not enabled on device {others}"
        )
    kinds = {_kind(mig): str(mig.profile) for gpu in divided for mig in gpu.mig_devices}
    if len(kinds) > 1:
        raise ResourceError(
            "invalid MIG configuration: more than one MIG device type present on node "
            f"(MIG strategy single): {', '.join(sorted(kinds.values()))}"
        )


_SINGULAR: Final = frozenset({"slot", "uuid", "gi", "ci"})


def _kind(mig: MigDevice) -> tuple[Any, ...]:
    """All attributes of a MIG device that it may share with others."""
    return tuple(getattr(mig, field) for field in mig.__struct_fields__ if field not in _SINGULAR)


def whole(gpu: Gpu, kernel: HostRoot) -> PhysicalDevice:
    """A GPU as one device (2.4). Raises :class:`ResourceError` if its device node is not known."""
    return PhysicalDevice(id=gpu.uuid, index=str(gpu.index), paths=(_node(gpu),), numa=numa_node(gpu, kernel), gpu=gpu)


def _node(gpu: Gpu) -> str:
    if gpu.minor is None:
        raise ResourceError(f"device {gpu.index}: the driver knows no minor number of it, which names its device node")
    return gpu.device_node


def part(gpu: Gpu, mig: MigDevice, kernel: HostRoot, minors: Mapping[str, int]) -> PhysicalDevice:
    """A MIG device (2.5). Raises :class:`ResourceError` if the kernel grants no access to it."""
    instance = f"gpu{gpu.minor}/gi{mig.gi}"
    paths = [_node(gpu)]
    for capability in (f"{instance}/access", f"{instance}/ci{mig.ci}/access"):
        if capability not in minors:
            raise ResourceError(f"MIG device {mig.uuid}: capability {capability} is missing in {MIG_MINORS}")
        paths.append(_CAPABILITY.format(minors[capability]))
    return PhysicalDevice(
        id=mig.uuid,
        index=f"{gpu.index}:{mig.slot}",
        paths=tuple(paths),
        numa=numa_node(gpu, kernel),
        gpu=gpu,
        mig=mig,
    )


# --- files of the kernel ----------------------------------------------------------------------------------------------

_MINOR: Final = re.compile(r"(config|monitor|gpu[0-9]+/gi[0-9]+(?:/ci[0-9]+)?/access)\s+([0-9]+)", re.ASCII)


def mig_minors(text: str) -> dict[str, int]:
    """Minor numbers of the device nodes that grant access to MIG instances, by the name of the capability.

    Names are as the driver writes them, such as ``gpu0/gi1/ci0/access``; lines that cannot be read are skipped (2.5).
    """
    lines = (_MINOR.fullmatch(line.strip()) for line in text.splitlines())
    return {line[1]: int(line[2]) for line in lines if line is not None}


def read_mig_minors(kernel: HostRoot) -> dict[str, int]:
    """What the driver says of :func:`mig_minors`; nothing if it does not. Raises :class:`ResourceError`."""
    try:
        return mig_minors(kernel.read_text(MIG_MINORS))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ResourceError(f"{MIG_MINORS} cannot be read: {error}") from error


def numa_node(gpu: Gpu, kernel: HostRoot) -> int | None:
    """The memory node that a GPU is near; None if there is none or it cannot be told (2.9)."""
    try:
        node = int(kernel.read_text(f"{gpu.sysfs}/numa_node"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
