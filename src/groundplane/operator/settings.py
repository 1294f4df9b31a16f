"""The operator's settings: command line flags and environment (contracts/control-plane.md 5.7).

:func:`parse` reads both and refuses what cannot work with a sentence that says what to set. Flags may be written with
one dash or two, as Go programs accept them, so that a Deployment made for NVIDIA's image works unchanged.
"""

import argparse
import os
import re
import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import field

from ..api.release import Release

IMAGE_VARIABLES: Final = (
    "CUDA_BASE_IMAGE",
    "DRIVER_IMAGE",
    "DRIVER_MANAGER_IMAGE",
    "CONTAINER_TOOLKIT_IMAGE",
    "DEVICE_PLUGIN_IMAGE",
    "DCGM_IMAGE",
    "DCGM_EXPORTER_IMAGE",
    "GFD_IMAGE",
    "VALIDATOR_IMAGE",
    "MIG_MANAGER_IMAGE",
    "GDS_IMAGE",
    "GDRCOPY_IMAGE",
    "VFIO_MANAGER_IMAGE",
    "SANDBOX_DEVICE_PLUGIN_IMAGE",
    "KATA_SANDBOX_DEVICE_PLUGIN_IMAGE",
    "VGPU_MANAGER_IMAGE",
    "VGPU_DEVICE_MANAGER_IMAGE",
    "CC_MANAGER_IMAGE",
    "KATA_MANAGER_IMAGE",
)
"""Environment variables that name an operand's image when the policy does not (1.2)."""

LEVELS: Final = {"debug": 10, "info": 20, "error": 40, "panic": 50}
TIME_ENCODINGS: Final = ("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano")
NODE_WRITES_IN_FLIGHT: Final = 32
RENEW_DEADLINE_S: Final = 10.0
RENEW_DEADLINE_MIN_S: Final = 2.5
DIAGNOSIS_INTERVAL_S: Final = 60.0
DIAGNOSIS_INTERVAL_MIN_S: Final = 10.0
LEASE_MARGIN_S: Final = 5.0
"""The lease lives this much longer than its holder tries to renew it."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


class SettingsError(Exception):
    """A flag or variable cannot be used; the message says which and what to set."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How one operator process runs. Addresses are ``host:port``; an empty one serves nothing; port 0 picks one."""

    namespace: str
    release: Release = Release.DEFAULT
    metrics_address: str = ":8080"
    health_address: str = ":8081"
    leader_elect: bool = False
    leader_elect_namespace: str = ""
    renew_deadline_s: float = RENEW_DEADLINE_S
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4()}")
    default_images: Mapping[str, str] = field(default_factory=dict)
    node_writes_in_flight: int = NODE_WRITES_IN_FLIGHT
    diagnosis: bool = False
    """Whether the doctor's verdict on nodes is exported: metrics and Events."""
    diagnosis_interval_s: float = DIAGNOSIS_INTERVAL_S
    kubeconfig: str | None = None
    log_level: int = LEVELS["info"]
    log_devel: bool = False
    log_time: str = "epoch"

    @property
    def lease_namespace(self) -> str:
        """Where the leader lease lives."""
        return self.leader_elect_namespace or self.namespace

    @property
    def lease_duration_s(self) -> float:
        """How long a lease holds without renewal, in seconds."""
        return self.renew_deadline_s + LEASE_MARGIN_S


def parse(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Settings:
    """Settings from a command line (without the program's name) and an environment.

    Raises :class:`SettingsError` for a missing ``OPERATOR_NAMESPACE`` or an unknown release, and :class:`SystemExit`
    as argparse does for a malformed flag.
    """
    env = os.environ if env is None else env
    flags = _parser().parse_args([_two_dashes(word) for word in argv])
    namespace = env.get("OPERATOR_NAMESPACE", "")
    if not namespace:
        raise SettingsError(
            "OPERATOR_NAMESPACE is not set: set it to the namespace the operator runs in "
            "(in a pod: an env entry with valueFrom.fieldRef.fieldPath metadata.namespace)"
        )
    renew = flags.leader_lease_renew_deadline or RENEW_DEADLINE_S
    if renew < RENEW_DEADLINE_MIN_S:
        raise SettingsError(
            f"--leader-lease-renew-deadline is {renew:g}s: the lease is renewed every 2 s, so allow at least "
            f"{RENEW_DEADLINE_MIN_S:g}s"
        )
    interval = flags.diagnosis_interval or DIAGNOSIS_INTERVAL_S
    if interval < DIAGNOSIS_INTERVAL_MIN_S:
        raise SettingsError(
            f"--diagnosis-interval is {interval:g}s: between two looks lie at least {DIAGNOSIS_INTERVAL_MIN_S:g}s, "
            "so set that or more"
        )
    return Settings(
        namespace=namespace,
        release=_release(flags.release or env.get("GROUNDPLANE_RELEASE", "")),
        metrics_address=_address(flags.metrics_bind_address),
        health_address=_address(flags.health_probe_bind_address),
        leader_elect=flags.leader_elect,
        leader_elect_namespace=flags.leader_elect_namespace,
        renew_deadline_s=renew,
        default_images={name: env[name] for name in IMAGE_VARIABLES if env.get(name)},
        node_writes_in_flight=flags.node_writes_in_flight,
        diagnosis=flags.diagnosis,
        diagnosis_interval_s=interval,
        kubeconfig=flags.kubeconfig,
        log_level=flags.zap_log_level
        if flags.zap_log_level is not None
        else LEVELS["debug" if flags.zap_devel else "info"],
        log_devel=flags.zap_devel,
        log_time=flags.zap_time_encoding or ("iso8601" if flags.zap_devel else "epoch"),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-operator",
        description="Brings up the GPU stack that a ClusterPolicy describes, and keeps it right.",
        epilog="OPERATOR_NAMESPACE must be set in the environment.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--metrics-bind-address", default=":8080", metavar="ADDRESS", help='where /metrics listens; "0" for nowhere')
    add("--health-probe-bind-address", default=":8081", metavar="ADDRESS", help="where /healthz and /readyz listen")
    add("--leader-elect", type=_bool, nargs="?", const=True, default=False, help="work only while holding the lease")
    add("--leader-elect-namespace", default="", metavar="NAME", help="where the lease lives [the operator's namespace]")
    add("--leader-lease-renew-deadline", type=_seconds, default=0.0, metavar="DURATION", help="such as 10s")
    add("--release", default="", help="behave like this GPU Operator release [GROUNDPLANE_RELEASE, else 26.7.0]")
    add(
        "--node-writes-in-flight",
        type=_positive,
        default=NODE_WRITES_IN_FLIGHT,
        metavar="N",
        help="node patches at once",
    )
    add("--diagnosis", type=_bool, nargs="?", const=True, default=False, help="tell the failing layer of sick nodes")
    add("--diagnosis-interval", type=_seconds, default=0.0, metavar="DURATION", help="between two looks [1m]")
    add("--kubeconfig", default=None, metavar="FILE", help="how to reach the cluster [KUBECONFIG, else in-cluster]")
    add("--zap-devel", type=_bool, nargs="?", const=True, default=False, help="logs for a person instead of JSON")
    add("--zap-log-level", type=_level, default=None, metavar="LEVEL", help="debug, info, error, panic or a verbosity")
    add("--zap-time-encoding", choices=TIME_ENCODINGS, default=None, help="how log times are written")
    return parser


def _two_dashes(word: str) -> str:
    """Go's flag package takes ``-flag`` and ``--flag`` alike."""
    return f"-{word}" if re.match(r"-[a-z]{2}", word) else word


def _bool(text: str) -> bool:
    known = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    """A Go duration such as ``1m30s`` in seconds."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        if text == "0":
            return 0.0
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 10s or 1m30s")
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


def _level(text: str) -> int:
    """A zap level: its name, or a verbosity above 0, which means debug."""
    if text.lower() in LEVELS:
        return LEVELS[text.lower()]
    if text.isdecimal() and int(text) > 0:
        return LEVELS["debug"]
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(LEVELS)} and no number above 0")


def _address(text: str) -> str:
    """controller-runtime's way to switch a server off is the address ``0``."""
    return "" if text == "0" else text


def _release(text: str) -> Release:
    if not text:
        return Release.DEFAULT
    try:
        return Release.parse(text)
    except ValueError as error:
        raise SettingsError(f"--release / GROUNDPLANE_RELEASE: {error}") from error


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` in parts; an empty host listens on every interface. Raises :class:`SettingsError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{address!r} is not an address such as :8080 or 127.0.0.1:8080")
    return host.strip("[]") or "0.0.0.0", int(port)
