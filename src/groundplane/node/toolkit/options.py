"""The toolkit's options, and what follows from them: settings that are whole and consistent, or an error.

Flags, variables and defaults are those of contracts/toolkit-cdi.md 4.3. What is done with them, ``main`` and the rooms
beside it decide.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...api import names
from ...api.release import Release
from ..cdi import model
from ..cdi.options import LIBRARIES_ENV, Libraries
from ..cdi.roots import Roots, simulated
from ..options import BOOL, DEFAULT, DURATION, INT, STRINGS, WORDS, Command, Duration, Option, Values, read
from ..process import Process
from .restart import Mode, Restart
from .settings import HOST_PROGRAM, Handler, RuntimeSettings

PID_FILE_NAME: Final = "toolkit.pid"
FOLDER: Final = "toolkit"
"""The folder below the install directory that is the toolkit's."""
STATE: Final = "toolkit-state"
"""The folder there for what is remembered of a runtime's configuration as it was."""
CONTROL: Final = "control"
NO_NODES: Final = frozenset({"", "none"})
MAX_NRI_INDEX: Final = 99
PACKAGE_TYPES: Final = ("deb", "rpm", "auto", "")
CRIO_CONFIG_MODES: Final = ("config", "hook")
_FEATURE: Final = re.compile(r"[A-Za-z0-9_-]+")


def _option(name: str, *flags: str, env: str = "", **more: Any) -> Option:
    return Option(name=name, flags=flags, env=tuple(env.split()), **more)


OPTIONS: Final = (
    _option(
        *("no_daemon", "no-daemon", "n"),
        env="NO_DAEMON",
        type=BOOL,
        default=False,
        help="end once the runtime is configured, and never take its configuration back",
    ),
    _option(
        *("no_runtime_config", "no-runtime-config"),
        env="NO_RUNTIME_CONFIG",
        type=BOOL,
        default=False,
        help="leave the container runtime's configuration alone",
    ),
    _option(
        *("nri", "enable-nri-plugin", "p"),
        env="ENABLE_NRI_PLUGIN",
        type=BOOL,
        default=False,
        help="serve the container runtime as an NRI plugin instead of configuring it; ignored with --no-daemon",
    ),
    _option(
        *("nri_index", "nri-plugin-index"),
        env="NRI_PLUGIN_INDEX",
        type=INT,
        default=10,
        help="the plugin's place among NRI plugins, 0 to 99",
    ),
    _option(
        *("nri_socket", "nri-socket"),
        env="NRI_SOCKET",
        default="/var/run/nri/nri.sock",
        help="the runtime's NRI socket",
    ),
    _option(*("nri_namespace", "nri-namespace"), env="NRI_NAMESPACE", help="the toolkit's own namespace"),
    _option(
        *("nri_management_namespaces", "nri-management-cdi-device-namespaces"),
        env="NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES",
        type=STRINGS,
        default=(),
        since=Release.V26_7,
        help="further namespaces whose pods may have management devices",
    ),
    _option(
        *("runtime", "runtime", "r"),
        env="RUNTIME",
        default="docker",
        help="the container runtime: containerd, crio or docker",
    ),
    _option(
        *("install_dir", "toolkit-install-dir", "root"),
        env="TOOLKIT_INSTALL_DIR ROOT",
        default=names.TOOLKIT_INSTALL_DIR,
        help="where the host's programs go (its folder toolkit), the same path here and on the host",
    ),
    _option(
        *("source_root", "toolkit-source-root"),
        env="TOOLKIT_SOURCE_ROOT",
        default=HOST_PROGRAM.rpartition("/")[0],
        help="the folder of this image that holds the host's program",
    ),
    _option(
        *("package_type", "toolkit-package-type"),
        env="TOOLKIT_PACKAGE_TYPE",
        default="auto",
        help="deb, rpm or auto; the host's program is the same for all",
    ),
    _option(
        *("pid_file", "pid-file"),
        env="TOOLKIT_PID_FILE PID_FILE",
        default="/run/nvidia/toolkit/toolkit.pid",
        help="locked while the toolkit runs, so that there is one only",
    ),
    _option(*("debug", "debug"), env="TOOLKIT_DEBUG", type=BOOL, default=False, help="log what is done in detail"),
    _option(
        *("config", "config"),
        env="RUNTIME_CONFIG CONTAINERD_CONFIG DOCKER_CONFIG",
        help="the runtime's configuration file; by default its usual one",
    ),
    _option(
        *("drop_in", "drop-in-config"),
        env="RUNTIME_DROP_IN_CONFIG",
        help="the file for what the toolkit adds to it; by default the runtime's usual one, empty: none",
    ),
    _option(
        *("drop_in_host_path", "drop-in-config-host-path"),
        env="RUNTIME_DROP_IN_CONFIG_HOST_PATH",
        help="that file's path on the host",
    ),
    _option(
        *("executable", "executable-path"),
        env="RUNTIME_EXECUTABLE_PATH",
        help="the runtime's program on the host, for its effective configuration",
    ),
    _option(
        *("socket", "socket"),
        env="RUNTIME_SOCKET CONTAINERD_SOCKET DOCKER_SOCKET",
        help="the runtime's socket; by default its usual one",
    ),
    _option(
        *("restart_mode", "restart-mode"),
        env="RUNTIME_RESTART_MODE",
        help="how the runtime is restarted: signal, systemd or none; by default as is usual for it",
    ),
    _option(
        *("enable_cdi_in_runtime", "enable-cdi-in-runtime"),
        env="RUNTIME_ENABLE_CDI",
        type=BOOL,
        default=False,
        help="enable CDI in the runtime; by default as --cdi-enabled says",
    ),
    _option(*("host_root", "host-root"), env="HOST_ROOT_MOUNT", default="/host", help="where the host's root is"),
    _option(
        *("runtime_name", "runtime-name", "nvidia-runtime-name", "runtime-class"),
        env="NVIDIA_RUNTIME_NAME CONTAINERD_RUNTIME_CLASS DOCKER_RUNTIME_NAME",
        default="nvidia",
        help="the name of the runtime's handler",
    ),
    _option(
        *("set_as_default", "set-as-default"),
        env="NVIDIA_RUNTIME_SET_AS_DEFAULT CONTAINERD_SET_AS_DEFAULT DOCKER_SET_AS_DEFAULT",
        type=BOOL,
        default=True,
        help="make that handler the default",
    ),
    _option(
        *("sources", "config-source", "config-sources"),
        env="RUNTIME_CONFIG_SOURCES RUNTIME_CONFIG_SOURCE",
        type=STRINGS,
        default=("command", "file"),
        help="where the runtime's configuration is read, in order: command, file or file=PATH",
    ),
    _option(
        *("legacy_config", "use-legacy-config"),
        env="CONTAINERD_USE_LEGACY_CONFIG",
        type=BOOL,
        default=False,
        help="write containerd's configuration for releases before 1.3",
    ),
    _option(
        *("runtime_type", "runtime-type"),
        env="CONTAINERD_RUNTIME_TYPE",
        default="io.containerd.runc.v2",
        help="containerd's type of handlers that inherit none",
    ),
    _option(
        *("override", "runtime-config-override"),
        env="RUNTIME_CONFIG_OVERRIDE CONTAINERD_RUNTIME_CONFIG_OVERRIDE",
        default="{}",
        help="more settings of the handlers, a JSON object",
    ),
    _option(
        *("hooks_dir", "hooks-dir"),
        env="CRIO_HOOKS_DIR",
        default="/usr/share/containers/oci/hooks.d",
        help="CRI-O's folder of hooks",
    ),
    _option(
        *("hook_filename", "hook-filename"),
        env="CRIO_HOOK_FILENAME",
        default="oci-nvidia-hook.json",
        help="the hook's file there",
    ),
    _option(
        *("config_mode", "config-mode"),
        env="CRIO_CONFIG_MODE",
        default="config",
        help="how CRI-O is told: config, or hook (deprecated)",
    ),
    _option(
        *("driver_root", "driver-root", "nvidia-driver-root"),
        env="NVIDIA_DRIVER_ROOT DRIVER_ROOT",
        default=names.DRIVER_ROOT,
        help="the driver's root on the host",
    ),
    _option(
        *("driver_root_here", "driver-root-ctr-path"),
        env="DRIVER_ROOT_CTR_PATH",
        default=names.DRIVER_ROOT,
        help="the driver's root in this container",
    ),
    _option(
        *("dev_root", "dev-root"),
        env="NVIDIA_DEV_ROOT DEV_ROOT",
        help="the folder of /dev on the host; by default the driver's root",
    ),
    _option(
        *("dev_root_here", "dev-root-ctr-path"),
        env="DEV_ROOT_CTR_PATH",
        help="the folder of /dev in this container; by default the driver's root",
    ),
    _option(
        *("shim_debug", "nvidia-container-runtime.debug", "nvidia-container-runtime-debug"),
        env="NVIDIA_CONTAINER_RUNTIME_DEBUG",
        help="the log file of nvidia-container-runtime",
    ),
    _option(
        *("shim_log_level", "nvidia-container-runtime.log-level", "nvidia-container-runtime-debug-log-level"),
        env="NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL",
        help="its log level",
    ),
    _option(
        *("shim_mode", "nvidia-container-runtime.mode", "nvidia-container-runtime-mode"),
        env="NVIDIA_CONTAINER_RUNTIME_MODE",
        help="its mode",
    ),
    _option(
        *("shim_runtimes", "nvidia-container-runtime.runtimes"),
        env="NVIDIA_CONTAINER_RUNTIME_RUNTIMES",
        type=STRINGS,
        default=(),
        help="the low-level runtimes that it may use; by default those of the runtime's configuration",
    ),
    _option(
        *("default_kind", "nvidia-container-runtime.modes.cdi.default-kind"),
        env="NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND",
        help="the CDI kind of devices that are asked for without one",
    ),
    _option(
        "annotation_prefixes",
        "nvidia-container-runtime.modes.cdi.annotation-prefixes",
        "nvidia-container-runtime-modes.cdi.annotation-prefixes",
        env="NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",
        type=STRINGS,
        default=(),
        help="prefixes of annotations that ask for CDI devices",
    ),
    _option(
        *("skip_mode_detection", "nvidia-container-runtime-hook.skip-mode-detection"),
        env="NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION",
        type=BOOL,
        default=True,
        help="let nvidia-container-runtime-hook not ask whether it is to work",
    ),
    _option(
        *("cli_debug", "nvidia-container-cli.debug", "nvidia-container-cli-debug"),
        env="NVIDIA_CONTAINER_CLI_DEBUG",
        help="the log file of nvidia-container-cli",
    ),
    _option(
        *("accept_env", "accept-nvidia-visible-devices-envvar-when-unprivileged"),
        env="ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED",
        type=BOOL,
        default=True,
        help="let unprivileged containers ask for GPUs by NVIDIA_VISIBLE_DEVICES",
    ),
    _option(
        *("accept_mounts", "accept-nvidia-visible-devices-as-volume-mounts"),
        env="ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS",
        type=BOOL,
        default=False,
        help="let containers ask for GPUs by mounts",
    ),
    _option(
        *("cdi", "cdi-enabled", "enable-cdi"),
        env="CDI_ENABLED ENABLE_CDI",
        type=BOOL,
        default=False,
        help="write a CDI specification for management containers",
    ),
    _option(
        *("cdi_output_dir", "cdi-output-dir"),
        env="CDI_OUTPUT_DIR",
        default="/var/run/cdi",
        help="the folder for it; empty: none is written",
    ),
    _option(
        *("cdi_kind", "cdi-kind"), env="CDI_KIND", default=names.MANAGEMENT_CDI_KIND, help="its kind: VENDOR/CLASS"
    ),
    _option(
        *("create_device_nodes", "create-device-nodes"),
        env="CREATE_DEVICE_NODES",
        type=WORDS,
        default=(CONTROL,),
        help="device nodes to make where CDI is enabled: control, or none",
    ),
    _option(
        *("features", "opt-in-features"),
        env="NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES",
        type=STRINGS,
        default=(),
        help="features of config.toml to switch on",
    ),
    _option(
        *("libraries", "libraries"),
        env=LIBRARIES_ENV,
        default=Libraries.HOOKLESS.value,
        help="how the driver's libraries get into containers: hookless or hooks",
    ),
    _option(
        *("refresh", "refresh-interval"),
        env="CDI_REFRESH_INTERVAL",
        type=DURATION,
        default=Duration(30 * 10**9),
        help="how often a specification that could not be written is tried again while the toolkit waits, and the "
        "longest time until a change of the GPUs is seen; 0 or infinite: specifications are written once",
    ),
)
COMMAND: Final = Command(
    name="nvidia-toolkit",
    about="Install NVIDIA's programs for containers on this host, and make its container runtime use them.",
    options=OPTIONS,
)
OVERRIDES: Final = ("shim_debug", "shim_log_level", "shim_mode", "default_kind", "annotation_prefixes", "cli_debug")
"""Options that replace a value of config.toml, named as their first flag is, if they are set and no empty text."""


class RuntimeDefaults(msgspec.Struct, frozen=True):
    """Where a container runtime usually keeps its settings, and how it is restarted (4.3)."""

    config: str
    drop_in: str
    socket: str
    restart: Mode


RUNTIMES: Final[Mapping[str, RuntimeDefaults]] = {
    "containerd": RuntimeDefaults(
        config="/etc/containerd/config.toml",
        drop_in="/etc/containerd/conf.d/99-nvidia.toml",
        socket="/run/containerd/containerd.sock",
        restart=Mode.SIGNAL,
    ),
    "crio": RuntimeDefaults(
        config="/etc/crio/crio.conf",
        drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
        socket="/var/run/crio/crio.sock",
        restart=Mode.SYSTEMD,
    ),
    "docker": RuntimeDefaults(
        config="/etc/docker/daemon.json", drop_in="", socket="/var/run/docker.sock", restart=Mode.SIGNAL
    ),
}


class NriSettings(msgspec.Struct, frozen=True):
    """How the NRI plugin is registered, and whose pods may have management devices."""

    socket: str
    index: int
    namespace: str
    management_namespaces: tuple[str, ...]


class CdiSettings(msgspec.Struct, frozen=True):
    """The management specification: its kind, and the folder that it is written to."""

    kind: str
    folder: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the toolkit is to do. ``runtime`` is None where the container runtime is to be left alone.

    ``overrides`` are values of config.toml by their path; ``refresh_s`` is None where nothing is to be refreshed.
    ``remarks`` are for the log.
    """

    install_dir: str
    program: str
    pid_file: str
    no_daemon: bool
    debug: bool
    nri: NriSettings | None
    runtime: RuntimeSettings | None
    restart: Restart
    low_level: tuple[str, ...]
    roots: Roots
    host_root: str
    overrides: Mapping[tuple[str, ...], Any]
    accept_env: bool
    accept_mounts: bool
    skip_mode_detection: bool
    features: tuple[str, ...]
    cdi: CdiSettings | None
    control_nodes: bool
    libraries: Libraries
    null_devices: bool
    refresh_s: float | None
    remarks: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The toolkit's own folder, here and on the host."""
        return f"{self.install_dir}/{FOLDER}"


def load(process: Process) -> Settings:
    """Read the options. Raises :class:`~groundplane.node.options.Leave`."""
    values = read(COMMAND, process)
    if values["debug"]:
        for option in values.options:
            shown = option.type.show(values[option.name])
            process.log.info(f"--{option.flags[0]} is {shown!r}, from {values.sources[option.name]}")
    return _Reader(values).settings(process)


class _Reader:
    """Makes settings of values; remarks are gathered on the way."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._remarks: list[str] = []

    def settings(self, process: Process) -> Settings:
        values = self._values
        install_dir = self._install_dir()
        runtime = self._choice("runtime", tuple(RUNTIMES), 'invalid runtime "{}"; expected one of {}')
        nri = self._nri()
        cdi = self._cdi()
        restart = Restart(
            runtime=runtime,
            mode=self._restart_mode(runtime),
            socket=self._socket(runtime),
            host_root=values["host_root"],
        )
        configured = None if nri or values["no_runtime_config"] else self._runtime(runtime, install_dir, cdi)
        if configured is not None and runtime == "crio" and restart.mode is Mode.SIGNAL:
            raise values.mistake("restart_mode", "CRI-O cannot be restarted by a signal; use systemd or none")
        return Settings(
            install_dir=install_dir,
            program=f"{values['source_root'].rstrip('/')}/{HOST_PROGRAM.rpartition('/')[2]}",
            pid_file=self._pid_file(),
            no_daemon=values["no_daemon"],
            debug=values["debug"],
            nri=nri,
            runtime=configured,
            restart=restart,
            low_level=values["shim_runtimes"],
            roots=self._roots(),
            host_root=values["host_root"],
            overrides=self._overrides(),
            accept_env=values["accept_env"],
            accept_mounts=values["accept_mounts"],
            skip_mode_detection=values["skip_mode_detection"],
            features=self._features(),
            cdi=cdi,
            control_nodes=self._control_nodes(cdi),
            libraries=Libraries(
                self._choice("libraries", tuple(each.value for each in Libraries), 'invalid value "{}"; expected {}')
            ),
            null_devices=simulated(process),
            refresh_s=self._refresh(),
            remarks=tuple(self._remarks),
        )

    def _choice(self, name: str, allowed: tuple[str, ...], text: str) -> str:
        value: str = self._values[name]
        if value not in allowed:
            raise self._values.mistake(name, text.format(value, " | ".join(each or '""' for each in allowed)))
        return value

    def _install_dir(self) -> str:
        self._choice("package_type", PACKAGE_TYPES, 'invalid package type "{}"; expected one of {}')
        install_dir: str = self._values["install_dir"]
        if not install_dir:
            raise self._values.mistake("install_dir", "the install root must be specified")
        if not install_dir.startswith("/"):
            raise self._values.mistake("install_dir", f"the install root {install_dir} must be an absolute path")
        return install_dir.rstrip("/")

    def _pid_file(self) -> str:
        path: str = self._values["pid_file"]
        if path.rpartition("/")[2] != PID_FILE_NAME:
            raise self._values.mistake("pid_file", f"invalid toolkit.pid path {path}: the file must be {PID_FILE_NAME}")
        return path

    def _nri(self) -> NriSettings | None:
        values = self._values
        if not 0 <= values["nri_index"] <= MAX_NRI_INDEX:
            raise values.mistake("nri_index", f"nri-plugin-index must be in the range [0,{MAX_NRI_INDEX}]")
        if not values["nri"]:
            return None
        if values["no_daemon"]:
            self._remarks.append("the NRI plugin is not started, since the toolkit is to end at once (--no-daemon)")
            return None
        if not values["nri_namespace"]:
            raise values.mistake("nri_namespace", "the NRI namespace must be specified when the NRI plugin is enabled")
        management = values.found.get("nri_management_namespaces", ())  # unknown to 1.19
        return NriSettings(values["nri_socket"], values["nri_index"], values["nri_namespace"], management)

    def _cdi(self) -> CdiSettings | None:
        kind: str = self._values["cdi_kind"]
        try:
            model.check(model.Spec(kind=kind, devices=(_SOME_DEVICE,)))
        except model.SpecError as error:
            raise self._values.mistake("cdi_kind", f"invalid CDI kind: {error}") from None
        if not self._values["cdi"]:
            return None
        if not self._values["cdi_output_dir"]:
            self._remarks.append("no CDI specification is written, since no folder is given for it (--cdi-output-dir)")
            return None
        return CdiSettings(kind, self._values["cdi_output_dir"])

    def _control_nodes(self, cdi: CdiSettings | None) -> bool:
        for mode in self._values["create_device_nodes"]:
            if mode in NO_NODES:
                return False
            if mode != CONTROL:
                raise self._values.mistake("create_device_nodes", f'invalid --create-device-nodes value: "{mode}"')
        if cdi is None:
            self._remarks.append("no device nodes are made, since CDI is not enabled (--cdi-enabled)")
        return cdi is not None

    def _usual(self, name: str, usual: str) -> str:
        """An option's value, or what is usual for the runtime where it is not given or empty."""
        return self._values[name] or usual

    def _restart_mode(self, runtime: str) -> Mode:
        text = self._usual("restart_mode", RUNTIMES[runtime].restart.value)
        try:
            return Mode(text)
        except ValueError:
            allowed = ", ".join(each.value for each in Mode)
            raise self._values.mistake(
                "restart_mode", f'invalid restart mode specified: "{text}"; expected one of {allowed}'
            ) from None

    def _socket(self, runtime: str) -> str:
        return self._usual("socket", RUNTIMES[runtime].socket)

    def _runtime(self, runtime: str, install_dir: str, cdi: CdiSettings | None) -> RuntimeSettings:
        values = self._values
        name: str = values["runtime_name"]
        if not name:
            raise values.mistake("runtime_name", "the runtime's handler must have a name")
        folder = f"{install_dir}/{FOLDER}"
        return RuntimeSettings(
            runtime=runtime,
            config=self._usual("config", RUNTIMES[runtime].config),
            drop_in=self._drop_in(runtime),
            drop_in_host_path=values["drop_in_host_path"],
            executable=self._executable(runtime),
            sources=("file",) if runtime == "docker" else values["sources"],
            host_root=values["host_root"],
            handlers=handlers(name, folder),
            default=name if values["set_as_default"] else "",
            name=name,
            enable_cdi=self._cdi_in_runtime(cdi),
            annotation_prefixes=values["annotation_prefixes"],
            legacy_config=values["legacy_config"],
            runtime_type=values["runtime_type"],
            override=self._override(),
            config_mode=self._config_mode(runtime),
            hooks_dir=values["hooks_dir"],
            hook_filename=values["hook_filename"],
            hook_path=f"{folder}/nvidia-container-runtime-hook",
            state=f"{install_dir}/{STATE}/{runtime}.json",  # it outlives reboots, and the folder that is replaced
        )

    def _drop_in(self, runtime: str) -> str:
        drop_in: str = self._values["drop_in"]
        given = self._values.sources["drop_in"] != DEFAULT
        if runtime == "docker":
            if drop_in:
                self._remarks.append(f"Docker has no drop-in files: {drop_in} is ignored (--drop-in-config)")
            return ""
        return drop_in if given else RUNTIMES[runtime].drop_in

    def _executable(self, runtime: str) -> str:
        executable: str = self._values["executable"]
        if runtime == "docker" and executable:
            self._remarks.append(f"Docker's configuration is its file: {executable} is ignored (--executable-path)")
            return ""
        return executable

    def _cdi_in_runtime(self, cdi: CdiSettings | None) -> bool:
        if self._values.sources["enable_cdi_in_runtime"] == DEFAULT:
            return cdi is not None
        return bool(self._values["enable_cdi_in_runtime"])

    def _override(self) -> dict[str, Any]:
        text: str = self._values["override"]
        try:
            override = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise self._values.mistake("override", f"failed to read {text} as JSON: {error}") from None
        if not isinstance(override, dict):
            raise self._values.mistake("override", f"expected a JSON object, found {text}")
        try:
            json.dumps(override, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise self._values.mistake(
                "override", f"half of a character (a lone surrogate) in {text}: {error}"
            ) from None
        return override

    def _config_mode(self, runtime: str) -> str:
        if runtime != "crio":
            return "config"
        mode = self._choice("config_mode", CRIO_CONFIG_MODES, 'invalid cri-o config mode: "{}"; expected one of {}')
        if mode == "hook":
            self._remarks.append('the "hook" config for cri-o is deprecated (--config-mode)')
        return mode

    def _roots(self) -> Roots:
        values = self._values
        return Roots.of(
            values["driver_root_here"],
            values["dev_root_here"],
            host_driver=values["driver_root"],
            host_dev=values["dev_root"] or None,
        )

    def _overrides(self) -> dict[tuple[str, ...], Any]:
        values = self._values
        flags = {option.name: option.flags[0] for option in values.options}
        given = (name for name in OVERRIDES if values.sources[name] != DEFAULT and values[name] != "")
        return {tuple(flags[name].split(".")): values[name] for name in given}

    def _features(self) -> tuple[str, ...]:
        features: tuple[str, ...] = self._values["features"]
        for feature in features:
            if not _FEATURE.fullmatch(feature):
                raise self._values.mistake(
                    "features", f'invalid feature "{feature}": its name must be letters, digits, - and _'
                )
        return features

    def _refresh(self) -> float | None:
        interval: Duration = self._values["refresh"]
        if interval.ns is not None and interval.ns < 0:
            raise self._values.mistake("refresh", f"the interval {interval} is negative")
        return interval.seconds if interval.ns else None


_SOME_DEVICE: Final = model.Device("all", model.ContainerEdits(env=("A=b",)))


def handlers(name: str, folder: str) -> tuple[Handler, ...]:
    """The runtime's handlers and their programs in the toolkit's folder (contracts/toolkit-cdi.md 5.1)."""
    program = f"{folder}/nvidia-container-runtime"
    named = {"nvidia-cdi": f"{program}.cdi", "nvidia-legacy": f"{program}.legacy"}
    plain = "nvidia" if name in named else name
    return (Handler(plain, program), *(Handler(each, path) for each, path in named.items()))
