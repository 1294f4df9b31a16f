"""The GPUs of this machine, asked of the driver's library through NVIDIA's binding (nvidia-ml-py).

What each answer means (what ends an inventory, what is left out) follows contracts/device-plugin-gfd.md 2, 4.2 and 5.
The library is looked for in the driver root first. The binding opens it by SONAME, so the file that was found is loaded
beforehand; and it keeps what it has loaded for ever, so that is taken back when nobody uses the library: a driver that
comes later, or another one, is then found on the next try.

Nothing but :func:`find_library` is needed on a simulated machine; the binding is imported when it is first used.
"""

import asyncio
import contextlib
import ctypes
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..hostroot import HostPathError, HostRoot
from . import models, nvmlerrors, placements, profiles
from .model import Fabric, Gpu, Inventory, MigDevice, Placed, Profile
from .source import DeviceError, Event, EventKind, Level, NotSupported, Pair

if TYPE_CHECKING:
    from .mig import MigControl
    from .nvmltelemetry import NvmlTelemetry

SONAME: Final = "libnvidia-ml.so.1"
LIBRARY_FOLDERS: Final = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
)
"""Where a driver root has the library, in the order of contracts/device-plugin-gfd.md 2.2."""

WAIT_MS: Final = 5000
"""How long one wait for an event takes at most (contracts/device-plugin-gfd.md 5)."""
AFTER_FAILURE_S: Final = 1.0
"""Seconds between a failed wait and the next, as a wait that fails does so at once."""
_VERSION_MISMATCH: Final = 25
_EMPTY: Final = frozenset({nvmlerrors.NOT_FOUND, nvmlerrors.INVALID_ARGUMENT})
"""What the library answers for a MIG slot with nothing in it (2.6)."""
_NOT_KNOWN: Final = frozenset({nvmlerrors.NOT_SUPPORTED})
"""What the library answers where there is no such thing: no device nodes under WSL, no PCI bus on a Tegra."""
_ADDRESS_TRANSLATION: Final = 2
"""The addressing mode of a GPU that uses the CPU's page tables (ATS)."""
_SKIPPED: Final = frozenset({nvmlerrors.NOT_SUPPORTED, nvmlerrors.INVALID_ARGUMENT})
"""What the library answers for a profile or an NVLink that the GPU has not got."""


def find_library(path: Callable[[str], Path], driver_root: str, also: Sequence[str] = ()) -> Path | None:
    """The library in a driver root, and else in other folders; None leaves it to the loader.

    ``path`` maps a path of the container. A driver root of ``/`` or none is the loader's affair.
    """
    places: list[tuple[Callable[[str], Path], str]] = []
    if driver_root not in ("", "/"):
        root = HostRoot(path(driver_root))  # links in it are meant as the driver's own system has them
        places = [(root.path, folder) for folder in LIBRARY_FOLDERS]
    places += [(path, folder) for folder in also]
    for real, folder in places:
        with contextlib.suppress(HostPathError):  # links that lead round in a circle lead to no file
            if (file := real(f"{folder}/{SONAME}")).is_file():
                return file
    return None


# --- the library in this process --------------------------------------------------------------------------------------


def binding() -> Any:
    """NVIDIA's binding."""
    import pynvml  # type: ignore[import-untyped]

    return pynvml


def ask(doing: str, function: str, *args: Any) -> Any:
    """Call a function of the binding; its errors become :class:`DeviceError` that say what was being done."""
    library = binding()
    try:
        return getattr(library, function)(*args)
    except library.NVMLError as error:
        raise nvmlerrors.error(error.value, doing) from error


def unless(codes: Collection[int], doing: str, function: str, *args: Any) -> Any | None:
    """As :func:`ask`, with None for some errors."""
    try:
        return ask(doing, function, *args)
    except DeviceError as error:
        if error.code not in codes:
            raise
        return None


class _Library:
    """The driver's library as loaded in this process: by its first user, and until its last one leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._preloaded: ctypes.CDLL | None = None

    def acquire(self, find: Callable[[], Path | None]) -> None:
        """Load and initialise, or join those who have; as good as not called if it raises :class:`DeviceError`."""
        with self._lock:
            if not self._users:
                self._load(find())
            try:
                ask("initialising NVML", "nvmlInit")
            except DeviceError:
                if not self._users:
                    self._unload()
                raise
            self._users += 1

    def join(self) -> None:
        """One user more of a library that is loaded; UNINITIALIZED if it is not."""
        with self._lock:
            if not self._users:
                raise nvmlerrors.error(nvmlerrors.UNINITIALIZED, "using NVML")
            ask("initialising NVML", "nvmlInit")
            self._users += 1

    def release(self) -> None:
        """One user less."""
        with self._lock:
            self._users -= 1
            with contextlib.suppress(DeviceError):  # what does not shut down is let go all the same
                ask("shutting NVML down", "nvmlShutdown")
            if not self._users:
                self._unload()

    def _load(self, file: Path | None) -> None:
        if file is None:
            return
        try:
            self._preloaded = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise nvmlerrors.error(nvmlerrors.LIBRARY_NOT_FOUND, f"loading {file}", str(error)) from error

    def _unload(self) -> None:
        """Make the binding forget the library, and the loader too as far as nobody else holds it."""
        nvidia = binding()
        loaded, nvidia.nvmlLib = nvidia.nvmlLib, None
        nvidia._nvmlGetFunctionPointer_cache.clear()
        preloaded, self._preloaded = self._preloaded, None
        for library in (loaded, preloaded):
            if library is not None:
                _close(library)


def _close(library: ctypes.CDLL) -> None:
    import _ctypes

    _ctypes.dlclose(library._handle)


_library = _Library()


def _loader_finds() -> bool:
    """Whether the loader finds the library. It is loaded for the question, not initialised."""
    try:
        library = ctypes.CDLL(SONAME, mode=os.RTLD_LAZY)
    except OSError:
        return False
    _close(library)
    return True


# --- the source -------------------------------------------------------------------------------------------------------


class NvmlSource:
    """The GPUs of this machine, as a :class:`~.source.Source`.

    ``find`` says where the library is, as :func:`find_library` does; None leaves it to the loader. While the library is
    loaded in this process, further sources use the same.
    """

    def __init__(self, find: Callable[[], Path | None] = lambda: None) -> None:
        self._find = find
        self._opened = False

    def open(self) -> None:
        """Load and initialise the library."""
        if not self._opened:
            _library.acquire(self._find)
            self._opened = True

    def close(self) -> None:
        """Give the library back."""
        if self._opened:
            self._opened = False
            _library.release()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def has_library(self) -> bool:
        """Whether the library is found."""
        return self._find() is not None or _loader_finds()

    def inventory(self) -> Inventory:
        """All GPUs."""
        self.check_open("counting the GPUs")
        driver = ask("asking for the driver's version", "nvmlSystemGetDriverVersion")
        cuda = ask("asking for the CUDA version", "nvmlSystemGetCudaDriverVersion")
        count = ask("counting the GPUs", "nvmlDeviceGetCount")
        found = [read_gpu(index) for index in range(count)]
        return Inventory(driver, cuda, tuple(gpu for gpu in found if gpu is not None))

    def topology(self, uuids: Collection[str]) -> dict[frozenset[str], Pair]:
        """How each two of the GPUs are connected (4.2)."""
        self.check_open("asking for the topology")
        handles = {each: by_uuid(each) for each in uuids}
        addresses = {each: _bus_id(f"GPU {each}", handle) for each, handle in handles.items()}
        links = {each: linked(f"GPU {each}", handle) for each, handle in handles.items()}
        return {
            frozenset((one, other)): Pair(
                _level(one, other, handles),
                links[one].count(addresses[other]),
            )
            for one, other in combinations(handles, 2)
        }

    def placement(self, mig_uuid: str) -> Placed:
        """Where a MIG device is; a name that the driver does not know may be a legacy one (5)."""
        doing = f"MIG device {mig_uuid}"
        self.check_open(doing)
        try:
            handle = ask(doing, "nvmlDeviceGetHandleByUUID", mig_uuid)
            parent = ask(doing, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            return Placed(
                ask(doing, "nvmlDeviceGetUUID", parent),
                ask(doing, "nvmlDeviceGetGpuInstanceId", handle),
                ask(doing, "nvmlDeviceGetComputeInstanceId", handle),
            )
        except DeviceError as error:
            return placements.legacy(mig_uuid, error)

    def check(self, uuid: str) -> None:
        """Whether a GPU answers."""
        self.check_open("looking for a GPU")
        _bus_id(f"GPU {uuid}", by_uuid(uuid))

    def watch(self, uuids: Collection[str], kinds: EventKind) -> "NvmlWatch":
        """Watch GPUs for events. Make it on a running loop."""
        self.check_open("watching GPUs")
        return NvmlWatch(uuids, kinds)

    def telemetry(self) -> "NvmlTelemetry":
        """Who reads the figures of the GPUs."""
        from .nvmltelemetry import NvmlTelemetry

        self.check_open("reading figures")
        return NvmlTelemetry(self.check_open)

    def mig(self) -> "MigControl":
        """Changes MIG of these GPUs."""
        from .nvmlmig import NvmlMig

        return NvmlMig(self)

    def check_open(self, doing: str) -> None:
        """Raise UNINITIALIZED if the source is closed; `doing` says what it is needed for."""
        if not self._opened:
            raise nvmlerrors.error(nvmlerrors.UNINITIALIZED, doing)


def by_uuid(identity: str) -> Any:
    """The handle of a GPU or MIG device."""
    return ask(f"GPU {identity}", "nvmlDeviceGetHandleByUUID", identity)


def _bus_id(doing: str, handle: Any) -> str:
    """The GPU's address on its PCI bus, empty where there is no bus, as on a Tegra."""
    info = unless(_NOT_KNOWN, doing, "nvmlDeviceGetPciInfo", handle)
    return "" if info is None else text_of(info.busId).upper()


def text_of(value: bytes | str) -> str:
    """A text as the binding gives it, which is bytes in its structures."""
    return value.decode() if isinstance(value, bytes) else value


def read_gpu(index: int) -> Gpu | None:
    """The GPU at an index; None for one that only drives a display (2.3)."""
    doing = f"GPU {index}"
    handle = ask(doing, "nvmlDeviceGetHandleByIndex", index)
    name = ask(doing, "nvmlDeviceGetName", handle)
    if name in models.DISPLAY_ONLY:
        return None
    memory = memory_of(doing, handle)
    mig = _mig_mode(doing, handle)
    offered = {} if mig is None else offered_profiles(doing, handle)
    major, minor = ask(doing, "nvmlDeviceGetCudaComputeCapability", handle)
    return Gpu(
        index=index,
        uuid=ask(doing, "nvmlDeviceGetUUID", handle),
        minor=unless(_NOT_KNOWN, doing, "nvmlDeviceGetMinorNumber", handle),
        name=name,
        bus_id=_bus_id(doing, handle),
        memory_bytes=memory,
        compute=(major, minor),
        mig=mig,
        mig_devices=tuple(_mig_devices(doing, handle, memory, offered)) if mig else (),
        profiles=tuple(full_profile(doing, number, info, memory) for number, info in offered.items() if memory),
        fabric=_fabric(doing, handle),
        coherent=_coherent(doing, handle),
    )


def _coherent(doing: str, handle: Any) -> bool:
    """Whether GPU and CPU share their address space; not, as far as the driver does not tell."""
    try:
        return bool(ask(doing, "nvmlDeviceGetAddressingMode", handle) == _ADDRESS_TRANSLATION)
    except DeviceError:
        return False


def memory_of(doing: str, handle: Any) -> int:
    """Bytes in all; 0 if that cannot be asked for, as where GPU and CPU share their memory (2.10)."""
    try:
        return int(ask(doing, "nvmlDeviceGetMemoryInfo", handle).total)
    except DeviceError:
        return 0


def _mig_mode(doing: str, handle: Any) -> bool | None:
    try:
        current, _pending = ask(doing, "nvmlDeviceGetMigMode", handle)
    except NotSupported:
        return None
    return bool(current)


def offered_profiles(doing: str, handle: Any) -> dict[int, Any]:
    """What the library says of each GPU instance profile that the GPU offers, by the profile's number."""
    answers = (
        (number, unless(_SKIPPED, doing, "nvmlDeviceGetGpuInstanceProfileInfo", handle, number, 1))
        for number in profiles.GPU_INSTANCES
    )
    return {number: info for number, info in answers if info is not None}


def full_profile(doing: str, number: int, info: Any, memory: int) -> Profile:
    """The name of a GPU instance profile, by what the library says of its number and the GPU's memory in bytes."""
    return _named(doing, profiles.full, number, info.memorySizeMB * profiles.MIB, memory)


def _named(doing: str, name: Callable[..., Profile], *numbers: int) -> Profile:
    try:
        return name(*numbers)
    except profiles.ProfileError as error:
        raise DeviceError(f"{doing}: a MIG profile has no name: {error}") from error


def _mig_devices(doing: str, gpu: Any, memory: int, offered: Mapping[int, Any]) -> Iterator[MigDevice]:
    """The MIG devices of a GPU; slots may be empty (2.6)."""
    for slot in range(ask(doing, "nvmlDeviceGetMaxMigDeviceCount", gpu)):
        at = f"{doing}, MIG slot {slot}"
        handle = mig_device(at, gpu, slot)
        if handle is None:
            continue
        gi = ask(at, "nvmlDeviceGetGpuInstanceId", handle)
        ci = ask(at, "nvmlDeviceGetComputeInstanceId", handle)
        attributes = ask(at, "nvmlDeviceGetAttributes", handle)
        yield MigDevice(
            slot=slot,
            uuid=ask(at, "nvmlDeviceGetUUID", handle),
            gi=gi,
            ci=ci,
            profile=_profile(at, gpu, gi, ci, memory, offered),
            memory_mib=attributes.memorySizeMB,
            multiprocessors=attributes.multiprocessorCount,
            gi_slices=attributes.gpuInstanceSliceCount,
            ci_slices=attributes.computeInstanceSliceCount,
            copy_engines=attributes.sharedCopyEngineCount,
            decoders=attributes.sharedDecoderCount,
            encoders=attributes.sharedEncoderCount,
            jpeg_engines=attributes.sharedJpegCount,
            ofa_engines=attributes.sharedOfaCount,
        )


def mig_device(doing: str, gpu: Any, slot: int) -> Any | None:
    """The MIG device in a slot of a GPU; None if the slot is empty (2.6)."""
    return unless(_EMPTY, doing, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot)


def _profile(doing: str, gpu: Any, gi: int, ci: int, memory: int, offered: Mapping[int, Any]) -> Profile:
    """Name an instance: its profile ids are those within what the GPU answers for a number, never the numbers."""
    gpu_instance = ask(doing, "nvmlDeviceGetGpuInstanceById", gpu, gi)
    wanted = ask(doing, "nvmlGpuInstanceGetInfo", gpu_instance).profileId
    number = next((number for number, info in offered.items() if info.id == wanted), None)
    if number is None:
        raise DeviceError(f"{doing}: GPU instance profile {wanted} is none that the GPU offers")
    compute_instance = ask(doing, "nvmlGpuInstanceGetComputeInstanceById", gpu_instance, ci)
    wanted = ask(doing, "nvmlComputeInstanceGetInfo", compute_instance).profileId
    for compute in profiles.COMPUTE_INSTANCES:
        info = unless(_SKIPPED, doing, "nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu_instance, compute, 0, 1)
        if info is not None and info.id == wanted:
            return _named(doing, profiles.name, number, compute, offered[number].memorySizeMB * profiles.MIB, memory)
    raise DeviceError(f"{doing}: compute instance profile {wanted} is none that its GPU instance offers")


def _fabric(doing: str, handle: Any) -> Fabric | None:
    """The GPU's NVLink fabric; None where GPU or driver know none."""
    library = binding()
    for structure, function in (
        (library.c_nvmlGpuFabricInfo_v2_t, "nvmlDeviceGetGpuFabricInfoV"),
        (library.c_nvmlGpuFabricInfo_t, "nvmlDeviceGetGpuFabricInfo"),
    ):
        info = structure()
        try:
            ask(doing, function, handle, ctypes.byref(info))
        except DeviceError as error:
            if isinstance(error, NotSupported) or error.code == _VERSION_MISMATCH:
                continue
            raise
        if info.state == library.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return None
        return Fabric(
            str(uuid.UUID(bytes=bytes(info.clusterUuid))),
            info.cliqueId,
            info.state == library.NVML_GPU_FABRIC_STATE_COMPLETED,
            info.status == library.NVML_SUCCESS,
        )
    return None


def _level(one: str, other: str, handles: Mapping[str, Any]) -> Level:
    doing = f"GPUs {one} and {other}"
    level = ask(doing, "nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
    try:
        return Level(level)
    except ValueError as error:
        raise DeviceError(f"{doing}: their common ancestor is of an unknown kind, {level}") from error


def linked(doing: str, handle: Any) -> list[str]:
    """PCI addresses at the other ends of a GPU's active NVLinks; switches are among them."""
    found = []
    for link in range(binding().NVML_NVLINK_MAX_LINKS):
        if not unless(_SKIPPED, doing, "nvmlDeviceGetNvLinkState", handle, link):
            continue
        remote = unless(_SKIPPED, doing, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if remote is not None:
            found.append(text_of(remote.busId).upper())
    return found


# --- events -----------------------------------------------------------------------------------------------------------


class NvmlWatch:
    """Events of some GPUs, as a :class:`~.source.Watch`. A thread waits for them in the library.

    It holds the library until its last wait is over, which is at most :data:`WAIT_MS` after it was closed.
    """

    def __init__(self, uuids: Collection[str], kinds: EventKind) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Event | DeviceError] = deque()
        self._ready = asyncio.Event()
        self._ended = threading.Event()
        _library.join()
        try:
            self._set = ask("making an event set", "nvmlEventSetCreate")
        except DeviceError:
            _library.release()
            raise
        unsupported, failed, watched = set(), {}, 0
        for each in uuids:
            try:
                watched += _register(each, kinds, self._set)
            except NotSupported:
                unsupported.add(each)
            except DeviceError as error:
                failed[each] = error
        self.unsupported: frozenset[str] = frozenset(unsupported)
        self.failed: Mapping[str, DeviceError] = failed
        if watched:
            threading.Thread(target=self._wait, name="nvml-events", daemon=True).start()
        else:
            self._free()

    async def next(self) -> Event:
        """Wait for the next event."""
        while not self._pending:
            if self._ended.is_set():
                raise nvmlerrors.error(nvmlerrors.UNINITIALIZED, "waiting for events")
            self._ready.clear()
            await self._ready.wait()
        found = self._pending.popleft()
        if isinstance(found, DeviceError):
            raise found
        return found

    async def close(self) -> None:
        """End the watch; the waiting thread ends by itself."""
        self._ended.set()
        self._ready.set()

    def _wait(self) -> None:
        try:
            while not self._ended.is_set():
                found = _wait_once(self._set)
                if found is None:
                    continue
                self._loop.call_soon_threadsafe(self._put, found)
                if isinstance(found, DeviceError):
                    self._ended.wait(AFTER_FAILURE_S)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
        finally:
            self._free()

    def _put(self, found: Event | DeviceError) -> None:
        self._pending.append(found)
        self._ready.set()

    def _free(self) -> None:
        with contextlib.suppress(DeviceError):  # it goes with the library
            ask("freeing an event set", "nvmlEventSetFree", self._set)
        _library.release()


def _register(identity: str, kinds: EventKind, events: Any) -> int:
    """Register what a GPU supports of some kinds, and return how many GPUs that makes: 1.

    :class:`NotSupported` if it is too old, and :class:`DeviceError` for anything else (5).
    """
    doing = f"GPU {identity}"
    try:
        handle = by_uuid(identity)
        supported = ask(doing, "nvmlDeviceGetSupportedEventTypes", handle) & kinds
    except NotSupported as error:
        raise DeviceError(str(error), error.code) from error
    if not supported:
        raise nvmlerrors.error(nvmlerrors.NOT_SUPPORTED, doing, "it tells no such events")
    ask(doing, "nvmlDeviceRegisterEvents", handle, supported, events)
    return 1


def _wait_once(events: Any) -> Event | DeviceError | None:
    """Wait for an event once: None if none came, or only one of a kind that nobody asked for."""
    try:
        data = unless({nvmlerrors.TIMEOUT}, "waiting for events", "nvmlEventSetWait", events, WAIT_MS)
    except DeviceError as error:
        return error
    if data is None or data.eventType not in set(EventKind):
        return None
    kind = EventKind(data.eventType)
    return Event(
        kind,
        _uuid_of(data.device),
        data.eventData if kind is EventKind.XID else 0,
        data.gpuInstanceId,
        data.computeInstanceId,
    )


def _uuid_of(handle: Any) -> str:
    try:
        return str(ask("reading an event", "nvmlDeviceGetUUID", handle))
    except DeviceError:
        return ""  # the protocol's way to say that it cannot be told
