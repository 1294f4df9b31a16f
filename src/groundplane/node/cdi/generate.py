"""CDI specs of this machine: which devices there are, and what a container with one of them gets.

contracts/toolkit-cdi.md 3. The rooms beside this one know how files (:mod:`.drivers`, :mod:`.libraries`), nodes
(:mod:`.nodes`) and hooks (:mod:`.hooks`) are found and written; here is what each mode is made of. Nothing is opened,
written or waited for: whoever asks has opened the source of GPUs where the mode needs it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ...api.release import Release
from .. import platforms
from ..devices.model import Gpu, Inventory
from ..devices.source import DeviceError, Source
from ..process import Process
from . import drivers, libraries, modes, nodes, selection, tegra, wsl
from .drivers import Driver, DriverFiles
from .hooks import Hooks
from .libraries import Placing
from .model import ContainerEdits, Device, Hook, Spec, SpecError, check
from .nodes import Nodes
from .options import HOOK_PATH, RUNTIME_KIND, GenerateError, Libraries, Mode, Strategy, Wanted
from .roots import Roots, simulated
from .selection import ALL, NONE, Selected
from .simplify import merge, simplify, with_all

LIBCUDA_FOLDER: Final = "NVIDIA_CTK_LIBCUDA_DIR={}"
NO_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES=void"
"""In every spec: keeps an NVIDIA runtime from adding devices a second time."""
EMPTY_DEVICE: Final = "NVCT_EMPTY_DEVICE="
"""The only edit of device ``none``."""
_TEGRA_ID: Final = "0"
NO_IPC: Final = "disable-ipc-discoverer"
COHERENT: Final = "gpu.nvidia.com/coherent"
"""Annotation of GPUs, with feature :data:`COHERENT_ANNOTATIONS`: whether GPU and CPU share their address space."""
COHERENT_ANNOTATIONS: Final = "enable-coherent-annotations"
FEATURES: Final = frozenset(
    {
        *(libraries.EXPLICIT, "disable-nvsandboxutils", COHERENT_ANNOTATIONS, "disable-multiple-csv-devices"),
        *(nodes.NO_GROUPS, NO_IPC, libraries.NO_GRAPHICS),
    }
)
"""Features that may be asked for. ``disable-nvsandboxutils`` and ``disable-multiple-csv-devices`` change nothing: that
library is never used, and in mode csv there is one device."""


class Generation:
    """One run: what is wanted, of which machine, and who finds its parts."""

    def __init__(self, process: Process, source: Source, wanted: Wanted) -> None:
        self.process = process
        self.log = process.log
        self.release: Release = process.release
        self.source = source
        self.wanted = wanted
        self.files = DriverFiles(process, wanted)
        self.nodes = Nodes(process, wanted)
        self.hooks = Hooks(wanted, process.release)
        self.placing = Placing(self.files, wanted.roots)

    @functools.cached_property
    def inventory(self) -> Inventory:
        """The machine's GPUs, asked for once. Raises DeviceError."""
        return self.source.inventory()

    @property
    def hookless(self) -> bool:
        """Whether the spec must do without hooks."""
        return self.wanted.libraries is Libraries.HOOKLESS


class Content(msgspec.Struct, frozen=True):
    """What a mode finds: devices, and what each container gets."""

    devices: tuple[Device, ...]
    common: ContainerEdits = ContainerEdits()


def generate(process: Process, source: Source, wanted: Wanted) -> Spec:
    """A machine's spec. Raises :class:`GenerateError`, which says what is missing where."""
    return generate_all(process, source, wanted)[""]


def generate_all(process: Process, source: Source, wanted: Wanted) -> dict[str, Spec]:
    """A machine's spec under an empty text, and with feature :data:`COHERENT_ANNOTATIONS` also those of its coherent
    and its other GPUs, under what is added to the class and to a file's name (3.9).

    Raises :class:`GenerateError`.
    """
    if wanted.mode is Mode.AUTO:
        wanted = msgspec.structs.replace(wanted, mode=resolve(process, source, wanted.roots))
    if NONE in wanted.device_ids:
        wanted = msgspec.structs.replace(wanted, all_device=False)
    content = _content(process, source, wanted)
    kind = wanted.kind or modes.KINDS[wanted.mode]
    made = {"": _spec(kind, content.devices, content.common, wanted)}
    for infix, value in ((".coherent", "true"), (".noncoherent", "false")):
        some = tuple(
            msgspec.structs.replace(each, annotations={})
            for each in content.devices
            if each.annotations.get(COHERENT) == value
        )
        if some:
            made[infix] = _spec(kind + infix, some, content.common, wanted)
    return made


def _content(process: Process, source: Source, wanted: Wanted) -> Content:
    run = Generation(process, source, wanted)
    try:
        return _CONTENT[wanted.mode](run)
    except DeviceError as error:
        raise GenerateError(f"mode {wanted.mode.value}: the GPUs cannot be read: {error}") from error
    finally:
        run.files.tell_missing()


def _spec(kind: str, devices: tuple[Device, ...], common: ContainerEdits, wanted: Wanted) -> Spec:
    common = msgspec.structs.replace(common, env=(*common.env, NO_DEVICES))
    plain = tuple(msgspec.structs.replace(each, annotations={}) if _is_split(each) else each for each in devices)
    spec = simplify(Spec(kind=kind, devices=plain, container_edits=common))
    if wanted.all_device:
        spec = with_all(spec)
    try:
        check(spec)
    except SpecError as error:
        raise GenerateError(f"{error}{_hint(wanted, spec)}") from error
    return spec


def _is_split(device: Device) -> bool:
    """Whether a device's annotation has done its duty: it decides which further spec the device is in."""
    return COHERENT in device.annotations


def _hint(wanted: Wanted, spec: Spec) -> str:
    """What to do about a spec that is wrong."""
    place = wanted.roots.dev or "/"
    if wanted.mode in modes.GATED:
        return f": no device node {', '.join(modes.GATED[wanted.mode].nodes)} below {place}; is the driver loaded?"
    if wanted.mode is Mode.NVML and not spec.devices:
        return (
            " (empty device edits): this machine has no GPU that is a device as a whole, and no MIG device; a GPU in "
            "MIG mode is none: make MIG devices, or turn MIG mode off"
        )
    return f"; are the device nodes below {place}?" if any(not each.container_edits for each in spec.devices) else ""


def resolve(process: Process, source: Source, roots: Roots) -> Mode:
    """The mode that fits the machine (3.1)."""
    if platforms.is_wsl(process, (roots.driver,)):
        return Mode.WSL
    has_library = source.has_library()
    if platforms.is_tegra(process) and (not has_library or _only_tegra(source)):
        return Mode.CSV
    if not has_library:
        process.log.warning("this machine's kind is not known: it has no NVML library, nor the files of a Tegra or WSL")
    return Mode.NVML


def _only_tegra(source: Source) -> bool:
    try:
        inventory = source.inventory()
    except DeviceError:
        return False
    return bool(inventory.gpus) and all(
        any(part in gpu.name for part in platforms.TEGRA_NAMES) for gpu in inventory.gpus
    )


# --- what modes are made of -------------------------------------------------------------------------------------------


def _nvml(run: Generation) -> Content:
    if NONE in run.wanted.device_ids:
        devices: tuple[Device, ...] = (Device(NONE, ContainerEdits(env=(EMPTY_DEVICE,))),)
    else:
        selected = selection.select(run.inventory, run.wanted.device_ids)
        devices = tuple(device for each in selected for device in _gpu_devices(run, each))
    return Content(devices, _nvml_common(run))


def _nvml_common(run: Generation) -> ContainerEdits:
    """What every container with a GPU gets (3.4), its hooks in their order (3.5)."""
    control = run.nodes.edits(nodes.CONTROL)
    driver = run.files.driver(run.inventory.driver_version, run.release)
    return merge(
        (
            control,
            ContainerEdits() if libraries.NO_GRAPHICS in run.wanted.features else _graphics(run, driver),
            _driver(run, driver),
            ContainerEdits(
                hooks=(*run.hooks.disable_device_node_modification(), *run.hooks.update_application_profile())
            ),
        )
    )


def _gpu_devices(run: Generation, selected: Selected) -> Iterator[Device]:
    """A GPU's or MIG device's entries, one for each of its names."""
    gpu, mig = selected
    paths = run.nodes.gpu(gpu) if mig is None else run.nodes.mig(gpu, mig)
    edits = run.nodes.edits(paths)
    injected = [node.path for node in edits.device_nodes]
    hooks: tuple[Hook, ...] = ()
    if mig is None or nodes.does_graphics(mig):
        hooks += run.hooks.create_symlinks(run.nodes.by_path(gpu, injected))
    if mig is None:
        hooks += run.hooks.chmod(nodes.nested(injected))
    annotations = _annotations(run, gpu) if mig is None else {}
    for name in selection.names(selected, run.wanted.strategies):
        yield Device(name, msgspec.structs.replace(edits, hooks=hooks), annotations)


def _annotations(run: Generation, gpu: Gpu) -> dict[str, str]:
    if COHERENT_ANNOTATIONS not in run.wanted.features:
        return {}
    return {COHERENT: "true" if gpu.coherent else "false"}


def _management(run: Generation) -> Content:
    paths = [
        path
        for path in run.nodes.matching(modes.MANAGEMENT_NODES)
        if not path.rpartition("/")[2].startswith(modes.NO_MANAGEMENT_NODES)
    ]
    if not paths:
        raise GenerateError(f"no NVIDIA device nodes found below {run.nodes.place}; is the driver loaded?")
    edits = msgspec.structs.replace(run.nodes.edits(paths), hooks=run.hooks.chmod(nodes.nested(paths)))
    driver = run.files.driver(_told_version(run), run.release)
    return Content((Device(ALL, edits),), _driver(run, driver))


def _told_version(run: Generation) -> str:
    """The driver's version as its library says; empty where that cannot be asked, as before the driver is ready."""
    try:
        return run.inventory.driver_version
    except DeviceError as error:
        run.log.info(f"the driver's version is told from its files, since its library does not say: {error}")
        return ""


def _driver(run: Generation, driver: Driver) -> ContainerEdits:
    """A driver's files that are there in management containers, too (rows marked M in 3.4)."""
    found = libraries.of_driver(run.files, driver, run.wanted.features, run.release)
    others = [
        *(run.placing.mount(path, options=libraries.IPC_OPTIONS) for path in _ipc(run)),
        *map(run.placing.mount, run.files.firmware(driver.version)),
        *map(run.placing.mount, run.files.binaries(drivers.BINARIES)),
    ]
    if run.hookless:
        folders, mounts = run.placing.folders(), tuple(run.placing.by_names(found, driver.version))
    else:
        folders, mounts = driver.folders, tuple(map(run.placing.mount, found))
    return ContainerEdits(
        env=(LIBCUDA_FOLDER.format(":".join(folders[:1] if run.release is Release.V26_3 else folders)),),
        mounts=(*mounts, *others),
        hooks=(
            *run.hooks.create_symlinks(run.placing.links(found)),
            *run.hooks.enable_cuda_compat(f"--host-driver-version={driver.version}"),
            *run.hooks.update_ldcache(libraries.folders_of(found)),
        ),
    )


def _ipc(run: Generation) -> Iterable[str]:
    return () if NO_IPC in run.wanted.features else run.files.ipc()


def _graphics(run: Generation, driver: Driver) -> ContainerEdits:
    """Libraries, modules of X, programs and configuration files for graphics."""
    found = libraries.of_graphics(run.files, driver)
    modules = list(run.files.xorg(driver))
    own = [path for path in found if f"/{drivers.ALLOCATOR}." not in path]
    configs = drivers.CONFIGS if run.release is Release.V26_3 else (*drivers.CONFIGS, drivers.OPENCL)
    if run.hookless:
        mounts = [*run.placing.by_names(own, driver.version), *run.placing.modules(modules)]
    else:
        mounts = [*map(run.placing.mount, own), *map(run.placing.mount, modules)]
    return ContainerEdits(
        mounts=(
            *mounts,
            *map(run.placing.mount, run.files.binaries(drivers.GRAPHICS_BINARIES)),
            *map(run.placing.mount, run.files.configs(configs)),
            *(run.placing.mount(path, f"{drivers.VULKAN_FOLDER}/{name}") for path, name in run.files.vulkan()),
        ),
        hooks=run.hooks.create_symlinks(run.placing.graphics_links((*found, *modules), driver.version)),
    )


def _gated(run: Generation) -> Content:
    """The one device of a gated mode (3.8); it has no edits where there is no node."""
    gated = modes.GATED[run.wanted.mode]
    edits = run.nodes.edits(run.nodes.matching(gated.nodes))
    if not edits:
        return Content((Device(ALL, edits),))
    paths = [
        *(path for each in gated.folders for path in run.files.find(("/",), each, folder=True)),
        *(path for each in gated.files for path in run.files.find(("/",), each)),
    ]
    return Content((Device(ALL, msgspec.structs.replace(edits, mounts=tuple(map(run.placing.mount, paths)))),))


def _imex(run: Generation) -> Content:
    """A device for each IMEX channel (3.8)."""
    channels = [number for each in run.wanted.device_ids for number in _channels(run, each)]
    return Content(tuple(Device(str(each), _channel(run, each)) for each in dict.fromkeys(channels)))


def _channels(run: Generation, text: str) -> Iterator[int]:
    if text == ALL:
        paths = run.nodes.matching((modes.IMEX_NODE.format("*"),))
        names = (path.rpartition("channel")[2] for path in paths)
        yield from sorted(int(name) for name in names if name.isascii() and name.isdigit())
        return
    number = text.removeprefix("channel")
    if not (number.isascii() and number.isdigit()):
        raise GenerateError(f"invalid channel ID {text}: it must be all, a number, or channel and a number")
    if int(number) > modes.MAX_IMEX_CHANNEL and run.release is not Release.V26_3:
        raise GenerateError(f"invalid channel ID {text}: must be in the range [0, {modes.MAX_IMEX_CHANNEL}]")
    yield int(number)


def _channel(run: Generation, number: int) -> ContainerEdits:
    path = modes.IMEX_NODE.format(number)
    if run.release is not Release.V26_3 and not run.nodes.is_node(path):
        raise GenerateError(f"IMEX channel {number} not found at {run.wanted.roots.dev}{path}")
    return ContainerEdits(device_nodes=(run.nodes.node(path),))


def _wsl(run: Generation) -> Content:
    """The one device of all GPUs that Windows lends (3.8)."""
    common = wsl.common(run.files, run.placing, run.hooks, run.release, hookless=run.hookless)
    return Content((Device(ALL, run.nodes.edits((wsl.NODE,))),), common)


def _csv(run: Generation) -> Content:
    """The one device of a Tegra (3.8)."""
    for each in run.wanted.device_ids:
        if each not in (ALL, _TEGRA_ID):
            raise GenerateError(f"unsupported device id: {each}; mode csv knows {ALL} and {_TEGRA_ID}")
    listed = tegra.entries(run.process, run.wanted)
    edits = tegra.device(run.nodes, listed)
    compat = tegra.compat(run.source, run.wanted)
    common = tegra.common(run.files, run.placing, run.hooks, listed, compat, hookless=run.hookless)
    return Content(tuple(Device(name, edits) for name in _tegra_names(run.wanted.strategies)), common)


def _tegra_names(strategies: Iterable[Strategy]) -> list[str]:
    """The device's names; a Tegra's GPU need not have a UUID, so that there is none of that strategy."""
    found = {Strategy.INDEX: _TEGRA_ID, Strategy.TYPE_INDEX: f"gpu{_TEGRA_ID}"}
    return list(dict.fromkeys(found.get(each, _TEGRA_ID) for each in strategies))


_CONTENT: Final[Mapping[Mode, Callable[[Generation], Content]]] = {
    Mode.NVML: _nvml,
    Mode.MANAGEMENT: _management,
    Mode.WSL: _wsl,
    Mode.CSV: _csv,
    Mode.IMEX: _imex,
    **dict.fromkeys(modes.GATED, _gated),
}


# --- for the host's runtime shim --------------------------------------------------------------------------------------

SHIM_MODES: Final = (Mode.GDS, Mode.MOFED, Mode.GDRCOPY, Mode.NVSWITCH, Mode.IMEX)
_CUDA: Final = 1000
_BRANDS: Final = (
    *(("GeForce RTX", "GeForceRTX"), ("GeForce", "GeForce"), ("TITAN RTX", "TitanRTX"), ("TITAN", "Titan")),
    *(("Quadro RTX", "QuadroRTX"), ("Quadro", "Quadro"), ("Tesla", "Tesla"), ("GRID", "GRID"), ("NVS", "NVS")),
    *(("RTX", "NvidiaRTX"), ("", "Nvidia")),
)
"""A GPU's brand, as images ask for it, by a part of its name; the first that is there counts."""


def specs_for_shim(
    process: Process,
    source: Source,
    roots: Roots,
    *,
    libraries: Libraries = Libraries.HOOKLESS,
    hook_path: str = HOOK_PATH,
    ldconfig_path: str = "",
    disabled_hooks: Iterable[str] = (),
    enabled_hooks: Iterable[str] = (),
    features: Iterable[str] = (),
) -> tuple[Spec, ...]:
    """The specs that the host's runtime shim reads for requests by environment variables, as it cannot make any itself.

    Of kind :data:`RUNTIME_KIND`, with GPUs and MIG devices by index and by UUID, ``all`` if there are any, and ``none``
    for the driver's files alone; of the gated modes' and IMEX channels' kinds where there are nodes.
    Raises :class:`GenerateError` if the first cannot be made.
    """
    wanted = Wanted(
        mode=resolve(process, source, roots),
        roots=roots,
        kind=RUNTIME_KIND,
        strategies=(Strategy.INDEX, Strategy.UUID),
        libraries=libraries,
        hook_path=hook_path,
        ldconfig_path=ldconfig_path,
        disabled_hooks=frozenset(disabled_hooks),
        enabled_hooks=frozenset(enabled_hooks),
        features=frozenset(features),
        null_devices=simulated(process),
    )
    return (_for_runtime(process, source, wanted), *_for_modes(process, source, wanted))


def _for_runtime(process: Process, source: Source, wanted: Wanted) -> Spec:
    """The GPUs' spec, with device ``none``."""
    content = _content(process, source, wanted)
    common = msgspec.structs.replace(content.common, env=(*content.common.env, NO_DEVICES))
    devices = with_all(simplify(Spec(kind=wanted.kind, devices=content.devices, container_edits=common))).devices
    none = Device(NONE, ContainerEdits(env=(EMPTY_DEVICE,)))
    return _spec(wanted.kind, (*devices, none), content.common, msgspec.structs.replace(wanted, all_device=False))


def _for_modes(process: Process, source: Source, wanted: Wanted) -> Iterator[Spec]:
    for mode in SHIM_MODES:
        its = msgspec.structs.replace(wanted, mode=mode, kind="")
        content = _content(process, source, its)
        if content.devices and all(device.container_edits for device in content.devices):
            yield _spec(modes.KINDS[mode], content.devices, content.common, its)


def properties(source: Source) -> dict[str, Any]:
    """What requirements of images are held against (contracts/toolkit-cdi.md 6.4): the driver's and CUDA's version,
    and of each GPU its UUID, compute capability and brand. ``aliases`` are the ids of MIG devices that cannot be names
    in a spec, ``MIG-GPU-<uuid>/<gi>/<ci>``, with the names that they have there. Raises DeviceError."""
    inventory = source.inventory()
    version = inventory.cuda_version
    return {
        "driver": inventory.driver_version,
        "cuda": f"{version // _CUDA}.{version % _CUDA // 10}",
        "gpus": [
            {"uuid": gpu.uuid, "arch": "{}.{}".format(*gpu.compute), "brand": brand(gpu.name)} for gpu in inventory.gpus
        ],
        "aliases": {f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}": mig.uuid for gpu in inventory.gpus for mig in gpu.mig_devices},
    }


def brand(name: str) -> str:
    """A GPU's brand, from its name."""
    return next(each for part, each in _BRANDS if part.lower() in name.lower())
