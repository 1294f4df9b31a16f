"""Options of the exporter (contracts/mig-exporter-validator.md 4), and what they come to.

Every option of NVIDIA's exporter is known. What needs a DCGM host engine, of which groundplane has none, is refused or
warned of here, so that nobody believes it to be at work.
"""

import importlib.resources
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ...api.release import Release
from .. import options
from ..kubeletapi import POD_RESOURCES_SOCKET
from ..options import BOOL, DURATION, INT, STRING, STRINGS, Command, Duration, Option, OptionError, Values
from ..process import Process

FOLDER: Final = "/etc/dcgm-exporter"
SHIPPED: Final = ("default-counters.csv", "dcp-metrics-included.csv")
"""Counters files that come with the exporter; one in :data:`FOLDER` goes before."""
NO_CONFIG_MAP: Final = "none"
UID, DEVICE_NAME = "uid", "device-name"


def files() -> dict[str, str]:
    """The counters files that an image of the exporter has, path to content."""
    return {f"{FOLDER}/{name}": shipped(name) for name in SHIPPED}


def shipped(name: str) -> str:
    """The content of a file of :data:`SHIPPED`."""
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")


def _option(name: str, env: str, type_: options.Type, default: Any, about: str, *flags: str) -> Option:
    return Option(name=name, type=type_, default=default, flags=(name, *flags), env=(env,), help=about)


_E: Final = "DCGM_EXPORTER_"

COMMAND: Final = Command(
    name="dcgm-exporter",
    about="Figures of the GPUs in Prometheus' text format.",
    options=(
        _option("collectors", f"{_E}COLLECTORS", STRING, f"{FOLDER}/{SHIPPED[0]}", "file of the wanted series", "f"),
        _option("address", f"{_E}LISTEN", STRING, ":9400", "where to serve, [host]:port", "a"),
        _option("collect-interval", f"{_E}INTERVAL", INT, 30000, "milliseconds between two samples", "c"),
        _option("kubernetes", f"{_E}KUBERNETES", BOOL, False, "say which pod uses a device", "k"),
        _option(
            "kubernetes-gpu-id-type", f"{_E}KUBERNETES_GPU_ID_TYPE", STRING, UID, f"{UID} or {DEVICE_NAME}: device ids"
        ),
        _option("kubernetes-enable-pod-labels", f"{_E}KUBERNETES_ENABLE_POD_LABELS", BOOL, False, "add pods' labels"),
        _option("kubernetes-enable-pod-uid", f"{_E}KUBERNETES_ENABLE_POD_UID", BOOL, False, "add pods' uids"),
        _option(
            "kubernetes-pod-label-allowlist-regex",
            f"{_E}KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
            STRINGS,
            (),
            "pod labels to add, by regular expressions of their keys; all unless given",
        ),
        _option(
            "pod-resources-kubelet-socket",
            "DCGM_POD_RESOURCES_KUBELET_SOCKET",
            STRING,
            POD_RESOURCES_SOCKET,
            "the kubelet's pod-resources socket",
        ),
        _option("nvidia-resource-names", "NVIDIA_RESOURCE_NAMES", STRINGS, (), "further resources that are GPUs"),
        _option("kubernetes-virtual-gpus", "KUBERNETES_VIRTUAL_GPUS", BOOL, False, "a row for each pod that shares"),
        _option("kubernetes-enable-dra", "KUBERNETES_ENABLE_DRA", BOOL, False, "say which claim a device serves"),
        _option("use-old-namespace", f"{_E}USE_OLD_NAMESPACE", BOOL, False, "label names of version 1", "o"),
        _option(
            "configmap-data",
            f"{_E}CONFIGMAP_DATA",
            STRING,
            NO_CONFIG_MAP,
            "namespace:name of a counters ConfigMap",
            "m",
        ),
        _option(
            "remote-hostengine-info",
            "DCGM_REMOTE_HOSTENGINE_INFO",
            STRING,
            "localhost:5555",
            "DCGM host engine; only its name is used, figures are those of this machine's driver",
            "r",
        ),
        _option("devices", f"{_E}DEVICES_STR", STRING, "f", "f, or g or i with numbers: g:0,2-4", "d"),
        _option(
            "switch-devices", f"{_E}OTHER_DEVICES_STR", STRING, "f", "NVSwitches; there are no figures of them", "s"
        ),
        _option("cpu-devices", f"{_E}CPU_DEVICES_STR", STRING, "f", "CPUs; there are no figures of them", "p"),
        _option("no-hostname", f"{_E}NO_HOSTNAME", BOOL, False, "leave the label of the host out", "n"),
        _option(
            "hostname-label",
            f"{_E}HOSTNAME_LABEL",
            STRING,
            "",
            "name of the label of the host; by release unless given",
        ),
        _option(
            "replace-blanks-in-model-name",
            f"{_E}REPLACE_BLANKS_IN_MODEL_NAME",
            BOOL,
            False,
            "a dash for blanks in model names",
            "rbmn",
        ),
        _option("xid-count-window-size", f"{_E}XID_COUNT_WINDOW_SIZE", INT, 300000, "milliseconds", "x"),
        _option("clock-events-count-window-size", f"{_E}CLOCK_EVENTS_COUNT_WINDOW_SIZE", INT, 300000, "milliseconds"),
        _option("hpc-job-mapping-dir", "DCGM_HPC_JOB_MAPPING_DIR", STRING, "", "folder of files that name GPUs' jobs"),
        _option("web-config-file", f"{_E}WEB_CONFIG_FILE", STRING, "", "TLS and basic authentication"),
        _option(
            "web-systemd-socket", f"{_E}SYSTEMD_SOCKET", BOOL, False, "refused: sockets are not taken from systemd"
        ),
        _option("debug", f"{_E}DEBUG", BOOL, False, "log more"),
        _option("log-format", f"{_E}LOG_FORMAT", STRING, "text", "text or json"),
        _option("enable-dcgm-log", f"{_E}ENABLE_DCGM_LOG", BOOL, False, "no effect: there is no DCGM"),
        _option("dcgm-log-level", f"{_E}DCGM_LOG_LEVEL", STRING, "NONE", "no effect: there is no DCGM"),
        _option("fake-gpus", f"{_E}USE_FAKE_GPUS", BOOL, False, "refused: see GROUNDPLANE_SIMULATION"),
        _option(
            "disable-startup-validate", "DISABLE_STARTUP_VALIDATE", BOOL, False, "serve though there is no driver yet"
        ),
        _option("dump-enabled", f"{_E}DUMP_ENABLED", BOOL, False, "write what was sampled to files"),
        _option("dump-directory", f"{_E}DUMP_DIRECTORY", STRING, "/tmp/dcgm-exporter-debug", "folder of these files"),
        _option("dump-retention", f"{_E}DUMP_RETENTION", INT, 24, "hours they are kept; 0 keeps them"),
        _option("dump-compression", f"{_E}DUMP_COMPRESSION", BOOL, True, "compress them"),
        _option(
            "enable-gpu-bind-unbind-watch", f"{_E}ENABLE_GPU_BIND_UNBIND_WATCH", BOOL, False, "look for GPUs more often"
        ),
        _option(
            "gpu-bind-unbind-poll-interval",
            f"{_E}GPU_BIND_UNBIND_POLL_INTERVAL",
            DURATION,
            Duration.parse("1s"),
            "time between two looks",
        ),
        _option("enable-pprof", f"{_E}ENABLE_PPROF", BOOL, False, "serve what the program is doing below /debug"),
        Option(
            name="kubeconfig",
            flags=("kubeconfig",),
            env=("KUBECONFIG",),
            help="how to reach the API server; as the pod's account unless given",
        ),
    ),
)


class Selection(NamedTuple):
    """Which entities have rows. ``kind``: ``f`` (instances where there are some, else the GPU), ``g`` GPUs, ``i`` GPU
    instances; ``numbers``: which of them, None for all."""

    kind: str
    numbers: tuple[int, ...] | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the exporter is asked to do. Times in seconds."""

    collectors: str
    host: str | None
    port: int
    interval_s: float
    kubernetes: bool
    gpu_id_type: str
    pod_labels: bool
    pod_uid: bool
    label_allowlist: tuple[re.Pattern[str], ...]
    pod_resources_socket: str
    resource_names: frozenset[str]
    virtual_gpus: bool
    dra: bool
    old_namespace: bool
    config_map: tuple[str, str] | None
    selection: Selection
    hostname: str
    hostname_label: str
    dashes_in_model: bool
    xid_window_ms: int
    clock_window_ms: int
    job_mapping_dir: str
    web_config_file: str
    debug: bool
    json_log: bool
    validate: bool
    dump_dir: str
    dump_retention_h: int
    dump_compressed: bool
    bind_poll_s: float | None
    pprof: bool
    node_name: str
    kubeconfig: str
    warnings: tuple[str, ...] = ()


def load(process: Process) -> Settings:
    """Read the options. Raises :class:`~..options.Leave`."""
    values = options.read(COMMAND, process)
    _refuse(values)
    host, port = _address(values)
    warnings = list(_warnings(values))
    node_name = process.env.get("NODE_NAME", "")
    poll: Duration = values["gpu-bind-unbind-poll-interval"]
    return Settings(
        collectors=values["collectors"],
        host=host,
        port=port,
        interval_s=_at_least(values, "collect-interval", 1) / 1000,
        kubernetes=values["kubernetes"],
        gpu_id_type=_one_of(values, "kubernetes-gpu-id-type", (UID, DEVICE_NAME)),
        pod_labels=values["kubernetes-enable-pod-labels"],
        pod_uid=values["kubernetes-enable-pod-uid"],
        label_allowlist=tuple(_patterns(values["kubernetes-pod-label-allowlist-regex"], warnings)),
        pod_resources_socket=values["pod-resources-kubelet-socket"],
        resource_names=frozenset(values["nvidia-resource-names"]),
        virtual_gpus=values["kubernetes-virtual-gpus"],
        dra=values["kubernetes-enable-dra"],
        old_namespace=values["use-old-namespace"],
        config_map=_config_map(values),
        selection=_selection(values, "devices"),
        hostname="" if values["no-hostname"] else _hostname(values, process, node_name),
        hostname_label=_label(values) or ("Hostname" if process.release is Release.V26_3 else "hostname"),
        dashes_in_model=values["replace-blanks-in-model-name"],
        xid_window_ms=_at_least(values, "xid-count-window-size", 1),
        clock_window_ms=_at_least(values, "clock-events-count-window-size", 1),
        job_mapping_dir=values["hpc-job-mapping-dir"],
        web_config_file=values["web-config-file"],
        debug=values["debug"],
        json_log=_one_of(values, "log-format", ("text", "json")) == "json",
        validate=not values["disable-startup-validate"],
        dump_dir=values["dump-directory"] if values["dump-enabled"] else "",
        dump_retention_h=_at_least(values, "dump-retention", 0),
        dump_compressed=values["dump-compression"],
        bind_poll_s=max(poll.seconds, 0.1) if values["enable-gpu-bind-unbind-watch"] else None,
        pprof=values["enable-pprof"],
        node_name=node_name,
        kubeconfig=values["kubeconfig"],
        warnings=tuple(warnings),
    )


def _refuse(values: Values) -> None:
    """Raise for what is asked for and cannot be. OptionError."""
    if values["fake-gpus"]:
        raise values.mistake(
            "fake-gpus", "fake GPUs are DCGM's; simulate a machine with GROUNDPLANE_SIMULATION instead"
        )
    if values["web-systemd-socket"]:
        raise values.mistake("web-systemd-socket", "sockets are not taken from systemd; name an address to serve at")
    for name, what in (("switch-devices", "NVSwitches"), ("cpu-devices", "CPUs")):
        if _selection(values, name).numbers is not None:
            raise values.mistake(name, f"there are no figures of {what} without DCGM, so none can be named")
    levels = ("NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "VERB")
    _one_of(values, "dcgm-log-level", levels)


def _warnings(values: Values) -> Iterator[str]:
    if _remote(values):
        yield (
            f"the DCGM host engine at {values['remote-hostengine-info']} is not asked: all figures come from this "
            "machine's driver"
        )
    if values["enable-dcgm-log"]:
        yield "--enable-dcgm-log has no effect: there is no DCGM, and so no log of it"
    if not values["kubernetes"]:
        for name in (
            *("kubernetes-enable-pod-labels", "kubernetes-enable-pod-uid", "kubernetes-virtual-gpus"),
            "kubernetes-enable-dra",
        ):
            if values[name]:
                yield f"--{name} has no effect without --kubernetes"


def _remote(values: Values) -> bool:
    return values.sources["remote-hostengine-info"] != options.DEFAULT


def _hostname(values: Values, process: Process, node_name: str) -> str:
    """The value of the host's label (4)."""
    if _remote(values) and not values["kubernetes"]:
        address = str(values["remote-hostengine-info"])
        bracketed = re.match(r"\[([^\]]*)\]", address)
        return bracketed[1] if bracketed else address.rpartition(":")[0] or address
    if node_name:
        return node_name
    try:
        return process.kernel.read_text("/proc/sys/kernel/hostname").strip()
    except OSError:
        return process.env.get("HOSTNAME", "")


def _label(values: Values) -> str:
    label = str(values["hostname-label"])
    if label and not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label):
        raise values.mistake("hostname-label", f"{label!r} cannot be the name of a label")
    return label


def _address(values: Values) -> tuple[str | None, int]:
    address = str(values["address"])
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*)):([0-9]{1,9})", address)
    if not found or int(found[3]) > 65535:
        raise values.mistake("address", f"{address!r} is no address to serve at; expected [host]:port, such as :9400")
    return found[1] or found[2] or None, int(found[3])


def _at_least(values: Values, name: str, least: int) -> int:
    value = int(values[name])
    if value < least:
        raise values.mistake(name, f"{value} is too little; expected {least} or more")
    return value


def _one_of(values: Values, name: str, allowed: tuple[str, ...]) -> str:
    value = str(values[name])
    if value not in allowed:
        raise values.mistake(name, f"{value!r} is not possible; expected one of {', '.join(allowed)}")
    return value


def _config_map(values: Values) -> tuple[str, str] | None:
    text = str(values["configmap-data"])
    if text in ("", NO_CONFIG_MAP):
        return None
    namespace, colon, name = text.partition(":")
    if not (namespace and colon and name) or ":" in name:
        raise values.mistake("configmap-data", f"{text!r} names no ConfigMap; expected <namespace>:<name>")
    return namespace, name


def _patterns(texts: tuple[str, ...], warnings: list[str]) -> Iterator[re.Pattern[str]]:
    """The regular expressions that are some; if none is, all labels pass (5.5)."""
    for text in texts:
        try:
            yield re.compile(text)
        except re.error as error:
            warnings.append(f"{text!r} is no regular expression and allows no pod label: {error}")


def _selection(values: Values, name: str) -> Selection:
    try:
        return parse_selection(str(values[name]))
    except ValueError as error:
        raise values.mistake(name, str(error)) from None


def parse_selection(text: str) -> Selection:
    """Read ``f``, ``g``, ``i:0,2-4`` (4). ValueError."""
    kind, colon, numbers = text.partition(":")
    if kind not in ("f", "g", "i"):
        raise ValueError(f"{text!r} names no devices; expected f, or g or i, maybe with numbers, such as g:0,2-4")
    if not colon:
        return Selection(kind)
    if kind == "f":
        raise ValueError(f"{text!r}: f takes no numbers; use g for GPUs or i for GPU instances")
    found: set[int] = set()
    for part in numbers.split(","):
        span = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part.strip())
        if not span or int(span[2] or span[1]) < int(span[1]):
            raise ValueError(f"{text!r}: {part!r} is no number and no range of devices; expected such as g:0,2-4")
        found.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return Selection(kind, tuple(sorted(found)))


__all__ = ["COMMAND", "OptionError", "Selection", "Settings", "load", "parse_selection"]
