"""Changing MIG on this machine's GPUs through the driver's library (contracts/mig-exporter-validator.md 1.7, 7).

A profile's number asks the library for it, and the id in its answer is what all else goes by. NVML cannot reset a GPU;
the driver's ``nvidia-smi`` does, while this process has the library closed.
"""

import ctypes
from collections.abc import Callable, Collection
from typing import Any, Final

from . import nvml, nvmlerrors, profiles
from .mig import ComputeInstance, ComputeProfile, GpuInstance, InstanceProfile, MigGpu, Modes, NvidiaSmi, Placement
from .models import Engines
from .nvml import ask, unless
from .source import DeviceError, NotSupported

_NOT_OFFERED: Final = frozenset({nvmlerrors.NOT_SUPPORTED, nvmlerrors.INVALID_ARGUMENT, nvmlerrors.FUNCTION_NOT_FOUND})
"""What the library answers for a profile that is not there; it tells nothing else by it."""
_SHARED_ENGINES: Final = 0
_IN_USE_WORDS: Final = ("in use", "being used")
MOST: Final = 64
"""More instances or placements of a profile than any GPU has. The library's own maximum is wrong for an A30 (1.6)."""


class NvmlMig:
    """Changes MIG of the GPUs of an open source, as a :class:`~.mig.MigControl`."""

    def __init__(self, source: nvml.NvmlSource) -> None:
        self._source = source

    def gpus(self) -> tuple[MigGpu, ...]:
        """All GPUs by index."""
        self._source.check_open("counting the GPUs")
        return tuple(_gpu(index) for index in range(ask("counting the GPUs", "nvmlDeviceGetCount")))

    def modes(self, gpu: str) -> Modes | None:
        """The GPU's MIG mode."""
        try:
            current, pending = self._ask(gpu, "nvmlDeviceGetMigMode")
        except NotSupported:
            return None
        return Modes(bool(current), bool(pending))

    def profiles(self, gpu: str) -> tuple[InstanceProfile, ...]:
        """The kinds of GPU instances."""
        handle = self._handle(gpu)
        doing = f"GPU {gpu}"
        memory = nvml.memory_of(doing, handle)
        offered = nvml.offered_profiles(doing, handle) if memory else {}
        return tuple(_instance_profile(doing, handle, number, info, memory) for number, info in offered.items())

    def instances(self, gpu: str) -> tuple[GpuInstance, ...]:
        """The GPU instances by id."""
        modes = self.modes(gpu)
        if modes is None or not modes.current:
            return ()
        handle = self._handle(gpu)
        doing = f"GPU {gpu}"
        found = [
            _instance(doing, each)
            for info in nvml.offered_profiles(doing, handle).values()
            for each in _listed(doing, "nvmlDeviceGetGpuInstances", _INSTANCE, handle, info.id)
        ]
        return tuple(sorted(found, key=lambda instance: instance.id))

    def compute_profiles(self, gpu: str, gi: int) -> tuple[ComputeProfile, ...]:
        """The kinds of compute instances of a GPU instance."""
        return tuple(_compute_profiles(f"GPU {gpu}, GPU instance {gi}", self._instance(gpu, gi)))

    def coupled(self, gpu: str) -> frozenset[str]:
        """The GPUs that NVLinks connect with one."""
        ends = {each.uuid: {each.bus_id, *nvml.linked(each.uuid, self._handle(each.uuid))} for each in self.gpus()}
        found = {gpu}
        while more := {other for one in found for other, there in ends.items() if ends[one] & there} - found:
            found |= more
        return frozenset(found)

    def set_mode(self, gpu: str, enabled: bool) -> DeviceError | None:
        """Ask for a MIG mode."""
        doing = f"{'enabling' if enabled else 'disabling'} MIG of GPU {gpu}"
        status = ask(doing, "nvmlDeviceSetMigMode", self._handle(gpu), int(enabled))
        return nvmlerrors.error(status, doing) if status else None

    async def reset(self, gpus: Collection[str], nvidia_smi: NvidiaSmi) -> None:
        """Reset GPUs by one `nvidia-smi -r`."""
        bus_ids = sorted(each.bus_id for each in self.gpus() if each.uuid in gpus)
        self._source.close()
        try:
            done = await nvidia_smi(("-r", "-i", ",".join(bus_ids)))
        except OSError as error:
            raise DeviceError(f"resetting GPUs {', '.join(bus_ids)}: nvidia-smi cannot be run: {error}") from error
        finally:
            self._source.open()
        if done.code:
            words = " ".join((done.out + done.err).split())
            busy = any(each in words.lower() for each in _IN_USE_WORDS)
            doing = f"resetting GPUs {', '.join(bus_ids)} with nvidia-smi -r, which ended with {done.code}"
            raise nvmlerrors.error(nvmlerrors.IN_USE if busy else nvmlerrors.UNKNOWN, doing, words)

    def create_gpu_instance(self, gpu: str, profile_id: int, placement: Placement) -> int:
        """Make a GPU instance at a place."""
        doing = f"GPU {gpu}: making a GPU instance of profile {profile_id} at {placement.start}:{placement.size}"
        place = nvml.binding().c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        made = ask(
            doing, "nvmlDeviceCreateGpuInstanceWithPlacement", self._handle(gpu), profile_id, ctypes.byref(place)
        )
        return int(ask(doing, "nvmlGpuInstanceGetInfo", made).id)

    def destroy_gpu_instance(self, gpu: str, gi: int) -> None:
        """End a GPU instance."""
        ask(f"GPU {gpu}: destroying GPU instance {gi}", "nvmlGpuInstanceDestroy", self._instance(gpu, gi))

    def create_compute_instance(self, gpu: str, gi: int, profile_id: int) -> int:
        """Make a compute instance where the driver chooses."""
        doing = f"GPU {gpu}: making a compute instance of profile {profile_id} in GPU instance {gi}"
        made = ask(doing, "nvmlGpuInstanceCreateComputeInstance", self._instance(gpu, gi), profile_id)
        return int(ask(doing, "nvmlComputeInstanceGetInfo", made).id)

    def destroy_compute_instance(self, gpu: str, gi: int, ci: int) -> None:
        """End a compute instance."""
        doing = f"GPU {gpu}: destroying compute instance {ci} of GPU instance {gi}"
        compute = ask(doing, "nvmlGpuInstanceGetComputeInstanceById", self._instance(gpu, gi), ci)
        ask(doing, "nvmlComputeInstanceDestroy", compute)

    def _handle(self, gpu: str) -> Any:
        self._source.check_open(f"GPU {gpu}")
        return nvml.by_uuid(gpu)

    def _ask(self, gpu: str, function: str) -> Any:
        return ask(f"GPU {gpu}", function, self._handle(gpu))

    def _instance(self, gpu: str, gi: int) -> Any:
        return ask(f"GPU {gpu}: GPU instance {gi}", "nvmlDeviceGetGpuInstanceById", self._handle(gpu), gi)


def _gpu(index: int) -> MigGpu:
    doing = f"GPU {index}"
    handle = ask(doing, "nvmlDeviceGetHandleByIndex", index)
    pci = unless({nvmlerrors.NOT_SUPPORTED}, doing, "nvmlDeviceGetPciInfo", handle)
    return MigGpu(
        index=index,
        uuid=ask(doing, "nvmlDeviceGetUUID", handle),
        bus_id="" if pci is None else nvml.text_of(pci.busId).upper(),
        name=ask(doing, "nvmlDeviceGetName", handle),
        memory_bytes=nvml.memory_of(doing, handle),
        pci_id=0 if pci is None else pci.pciDeviceId,
        subsystem_id=0 if pci is None else pci.pciSubSystemId,
    )


def _instance_profile(doing: str, gpu: Any, number: int, info: Any, memory: int) -> InstanceProfile:
    return InstanceProfile(
        number=number,
        id=info.id,
        profile=nvml.full_profile(doing, number, info, memory),
        most=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        engines=Engines(info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount),
        placements=tuple(_placements(doing, gpu, info.id)),
    )


def _placements(doing: str, gpu: Any, profile_id: int) -> list[Placement]:
    found = (nvml.binding().c_nvmlGpuInstancePlacement_t * MOST)()
    count = ctypes.c_uint(MOST)
    asked = unless(
        _NOT_OFFERED, doing, "nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, found, ctypes.byref(count)
    )
    return [] if asked is None else [Placement(each.start, each.size) for each in found[: count.value]]


def _instance(doing: str, instance: Any) -> GpuInstance:
    info = ask(doing, "nvmlGpuInstanceGetInfo", instance)
    at = f"{doing}, GPU instance {info.id}"
    compute = [
        ComputeInstance(found.id, found.profileId)
        for profile in _compute_profiles(at, instance)
        for found in (
            ask(at, "nvmlComputeInstanceGetInfo", each)
            for each in _listed(at, "nvmlGpuInstanceGetComputeInstances", _COMPUTE, instance, profile.id)
        )
    ]
    return GpuInstance(
        info.id, info.profileId, Placement(info.placement.start, info.placement.size), tuple(sorted(compute))
    )


def _compute_profiles(doing: str, instance: Any) -> list[ComputeProfile]:
    answers = (
        (
            number,
            unless(
                _NOT_OFFERED,
                doing,
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                instance,
                number,
                _SHARED_ENGINES,
                1,
            ),
        )
        for number in profiles.COMPUTE_INSTANCES
    )
    return [
        ComputeProfile(number, info.id, info.sliceCount, info.instanceCount)
        for number, info in answers
        if info is not None
    ]


def _INSTANCE() -> Any:  # noqa: N802 - the binding's type, imported when it is first used
    return nvml.binding().c_nvmlGpuInstance_t


def _COMPUTE() -> Any:  # noqa: N802
    return nvml.binding().c_nvmlComputeInstance_t


def _listed(doing: str, function: str, kind: Callable[[], Any], *arguments: Any) -> list[Any]:
    """Handles of the instances of a profile; none where the library has no such profile after all."""
    found = (kind() * MOST)()
    count = ctypes.c_uint(MOST)
    asked = unless(_NOT_OFFERED, doing, function, *arguments, found, ctypes.byref(count))
    return [] if asked is None else list(found[: count.value])
