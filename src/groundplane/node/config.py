"""The configuration that device plugin, GPU feature discovery and MPS daemon share: options and the file, version v1.

``load_plugin``, ``load_gfd`` and ``load_mps`` read command line, environment and file into frozen structs
(contracts/device-plugin-gfd.md 1). They are cheap and are called at every start cycle, since the file may have changed.
Whatever is wrong is an :class:`~.options.OptionError`, which ends a program with exit code 1. The options are tables in
``configtables``, the file's sections about sharing are ``sharing``'s, and what a configuration means for the machine's
GPUs is left to ``resources``.
"""

import enum
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..api.release import Release
from . import configtables, options
from .cdi.options import Libraries
from .options import Command, Duration, OptionError, Values, kind_of, member
from .process import Process
from .sharing import Resources, SectionError, Sharing, parse_resources, parse_sharing

VERSION: Final = "v1"


class MigStrategy(enum.StrEnum):
    """What MIG devices are advertised as (contracts/device-plugin-gfd.md 2.1)."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class ListStrategy(enum.StrEnum):
    """How a container is told its devices (contracts/device-plugin-gfd.md 4.4)."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"

    @property
    def cdi(self) -> bool:
        """Whether devices are told by their CDI names."""
        return self in (ListStrategy.CDI_ANNOTATIONS, ListStrategy.CDI_CRI)


class IdStrategy(enum.StrEnum):
    """What a container's devices are called."""

    UUID = "uuid"
    INDEX = "index"


class AllocationPolicy(enum.StrEnum):
    """Which replicas of shared devices come first (contracts/device-plugin-gfd.md 4.2)."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"


# --- what the programs get --------------------------------------------------------------------------------------------


class _Loaded(msgspec.Struct, frozen=True, kw_only=True):
    release: Release
    values: Values
    sharing: Sharing
    warnings: tuple[str, ...]
    """What a person should be told once a start: settings that are not honoured."""

    def effective(self, resources: Resources) -> str:
        """The configuration in force as indented JSON, for the log (contracts/device-plugin-gfd.md 1)."""
        document: dict[str, Any] = {"version": VERSION, "flags": dict.fromkeys(_ALWAYS_PRINTED)}
        for option in self.values.options:
            value = self.values[option.name]
            if option.key and (value or not option.key.startswith("imex.")):
                _put(document, option.key, option.type.show(value))
        if "plugin" in document["flags"]:  # of which GPU feature discovery has one option, and shows them all
            unset = dict.fromkeys(configtables.plugin_keys(self.release))
            document["flags"]["plugin"] = {**unset, **document["flags"]["plugin"]}
        document["flags"] = {key: document["flags"][key] for key in _FLAGS_IN_ORDER if key in document["flags"]}
        document["resources"] = resources.document()
        document["sharing"] = self.sharing.document()
        document["imex"] = document.pop("imex", {})
        return json.dumps(document, indent=2, ensure_ascii=False)


_ALWAYS_PRINTED: Final = (
    "migStrategy",
    "failOnInitError",
    "gdrcopyEnabled",
    "gdsEnabled",
    "mofedEnabled",
    "useNodeFeatureAPI",
    "deviceDiscoveryStrategy",
)
_FLAGS_IN_ORDER: Final = (
    *("migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot"),
    *("gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI", "deviceDiscoveryStrategy"),
    *("plugin", "gfd"),
)


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    *folders, key = path.split(".")
    for folder in folders:
        document = document.setdefault(folder, {})
    document[key] = value


class PluginConfig(_Loaded, frozen=True, kw_only=True):
    """The device plugin's configuration. Roots are paths on the host, but ``container_driver_root``."""

    mig_strategy: MigStrategy
    fail_on_init_error: bool
    mps_root: str
    driver_root: str
    dev_root: str
    gdrcopy: bool
    gds: bool
    mofed: bool
    discovery: str
    pass_device_specs: bool
    device_list_strategies: tuple[ListStrategy, ...]
    device_id_strategy: IdStrategy
    cdi_annotation_prefix: str
    cdi_hook_path: str
    container_driver_root: str
    allocation_policy: AllocationPolicy
    imex_channels: tuple[int, ...]
    imex_required: bool
    kubelet_socket: str
    cdi_feature_flags: tuple[str, ...]
    cdi_disable_hooks: tuple[str, ...]
    cdi_libraries: Libraries

    @property
    def cdi(self) -> bool:
        """Whether any device list strategy uses CDI."""
        return any(each.cdi for each in self.device_list_strategies)

    @property
    def only_cdi(self) -> bool:
        """Whether every device list strategy uses CDI."""
        return all(each.cdi for each in self.device_list_strategies)


class GfdConfig(_Loaded, frozen=True, kw_only=True):
    """GPU feature discovery's configuration. ``mig_strategy`` is any text: it is checked when GPUs are labelled."""

    mig_strategy: str
    fail_on_init_error: bool
    oneshot: bool
    no_timestamp: bool
    sleep_interval: Duration
    output_file: str
    machine_type_file: str
    use_node_feature_api: bool
    discovery: str
    container_driver_root: str
    kubeconfig: str
    kube_api_qps: float
    kube_api_burst: int
    namespace: str
    node_name: str
    pod_name: str


class MpsConfig(_Loaded, frozen=True, kw_only=True):
    """The MPS daemon's configuration. ``word`` is the subcommand, empty for the daemon itself."""

    mig_strategy: MigStrategy
    word: str


def load_plugin(process: Process) -> PluginConfig:
    """Read the device plugin's configuration, with every check of 1.3 that needs no device.

    Raises :class:`~.options.Leave`. A check that needs to know of the driver's library is :func:`check_library`.
    """
    values, sharing, warnings = _load(configtables.PLUGIN, process)
    found = dict(values.found)
    found.setdefault("allocation_policy", AllocationPolicy.DISTRIBUTED.value)
    found.setdefault("cdi_disable_hooks", ())
    found["dev_root"] = found["dev_root"] or found["driver_root"]
    found["device_list_strategies"] = _list_strategies(values)
    for name, kind, text in _ENUMS:
        found[name] = _enum(values, name, kind, text, found[name])
    _enum(values, "discovery", PluginDiscovery, "invalid device discovery strategy: {}", found["discovery"])
    del found["config_file"]
    shown = Values(values.options, {**values.found, "dev_root": found["dev_root"]}, values.sources)
    config = PluginConfig(release=process.release, values=shown, sharing=sharing, warnings=warnings, **found)
    check_mps(config)
    check_imex(values)
    return config


def load_gfd(process: Process) -> GfdConfig:
    """Read GPU feature discovery's configuration. Raises :class:`~.options.Leave`."""
    values, sharing, warnings = _load(configtables.GFD, process)
    found = {name: value for name, value in values.found.items() if name != "config_file"}
    return GfdConfig(release=process.release, values=values, sharing=sharing, warnings=warnings, **found)


def load_mps(process: Process) -> MpsConfig:
    """Read the MPS daemon's configuration. Raises :class:`~.options.Leave`."""
    values, sharing, warnings = _load(configtables.MPS, process)
    name, kind, text = _ENUMS[0]
    strategy = _enum(values, name, kind, text, values[name])
    return MpsConfig(
        release=process.release,
        values=values,
        sharing=sharing,
        warnings=warnings,
        mig_strategy=strategy,
        word=values.word,
    )


def _load(command: Command, process: Process) -> tuple[Values, Sharing, tuple[str, ...]]:
    values = options.read(command, process)
    path = values["config_file"]
    if not path or values.word:  # a subcommand needs no configuration
        return values, Sharing(), ()
    where = f"config file {path}"
    document = read_file(process, path)
    values = values.over(document, where)
    warnings: list[str] = []
    try:
        if parse_resources(member(document, "resources")):
            warnings.append("customizing the 'resources' section is not supported; the defaults are used instead")
        sharing = parse_sharing(member(document, "sharing"), process.release, warnings)
    except SectionError as error:
        raise OptionError(f"{where}: {error}") from None
    return values, sharing, tuple(warnings)


def read_file(process: Process, path: str) -> Mapping[str, Any]:
    """A configuration file's document, of a known version. Raises :class:`~.options.OptionError`."""
    from ..api import goyaml

    try:
        text = process.path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"config file {path} cannot be read: {reason}") from None
    try:
        document = goyaml.loads(text)
    except goyaml.DocumentError as error:
        raise OptionError(f"config file {path} is neither YAML nor JSON: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise OptionError(f"config file {path}: expected a mapping, found {kind_of(document)}")
    version = member(document, "version")
    if version not in (None, "", VERSION):
        raise OptionError(f"unknown version: {version} (config file {path}; the only known one is {VERSION})")
    for section in ("flags", "resources", "sharing", "imex", "flags.plugin", "flags.gfd"):
        found = options.at(document, section)
        if found is not None and not isinstance(found, dict):
            raise OptionError(f"config file {path}: {section}: expected a mapping, found {kind_of(found)}")
    return document


# --- checks (1.3) -----------------------------------------------------------------------------------------------------


class PluginDiscovery(enum.StrEnum):
    """How the device plugin finds GPUs."""

    AUTO = "auto"
    NVML = "nvml"
    TEGRA = "tegra"


_ENUMS: Final[tuple[tuple[str, type[enum.StrEnum], str], ...]] = (
    ("mig_strategy", MigStrategy, "unknown MIG strategy: {}"),
    ("device_id_strategy", IdStrategy, "invalid device ID strategy: {}"),
    ("allocation_policy", AllocationPolicy, "invalid shared devices allocation policy: {}"),
    ("cdi_libraries", Libraries, "invalid way for libraries into containers: {}"),
)


def _enum(values: Values, name: str, kind: type[enum.StrEnum], text: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        expected = ", ".join(kind)
        raise values.mistake(name, f"{text.format(value)} (expected one of {expected})") from None


def _list_strategies(values: Values) -> tuple[ListStrategy, ...]:
    name, text = "device_list_strategies", "invalid strategy: {}"
    return tuple(_enum(values, name, ListStrategy, text, each) for each in values[name])


def check_library(config: PluginConfig, *, has_library: bool) -> None:
    """CDI needs the driver's library under the container driver root (1.3.2). Raises :class:`~.options.OptionError`."""
    if config.cdi and not has_library:
        named = ", ".join(each for each in config.device_list_strategies if each.cdi)
        raise OptionError(
            f"device list strategy {named} needs NVML: no libnvidia-ml.so.1 below {config.container_driver_root} "
            "nor where the loader looks; is the driver installed, and its root mounted there?"
        )


def check_mps(config: PluginConfig) -> None:
    """MPS needs its root, and shares no MIG devices (1.3.4). Raises :class:`~.options.OptionError`."""
    if not config.sharing.mps:
        return
    if config.mig_strategy is MigStrategy.MIXED:
        raise OptionError("using --mig-strategy=mixed is not supported with MPS")
    if not config.mps_root:
        raise OptionError("using MPS requires --mps-root to be specified")


def check_imex(values: Values) -> None:
    """At most channel 0 can be asked for (1.3.5). Raises :class:`~.options.OptionError`."""
    channels = values["imex_channels"]
    if channels not in ((), (0,)):
        raise values.mistake("imex_channels", f"invalid IMEX channel IDs {list(channels)}: expected [] or [0]")
