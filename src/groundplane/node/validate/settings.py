"""Options of `nvidia-validator` (contracts/mig-exporter-validator.md 6.1), read and checked before anything is done."""

from collections.abc import Mapping
from typing import Final

import msgspec

from ...api import names
from ...api.release import Release
from ..options import BOOL, INT, Command, Option, Values, read
from ..process import Process

METRICS: Final = "metrics"
COMPONENTS: Final = (
    *("driver", "toolkit", "cuda", "plugin", "mofed", METRICS, "vfio-pci", "vgpu-manager", "vgpu-devices"),
    *("cc-manager", "nvidia-fs", "gdrcopy", "nvidia-peermem"),
)
CONTAINER, VM_PASSTHROUGH, VM_VGPU = "container", "vm-passthrough", "vm-vgpu"
WORKLOADS: Final = (CONTAINER, VM_PASSTHROUGH, VM_VGPU)
"""Values of a node's workload configuration."""

REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "node": ("plugin", METRICS, "vfio-pci", "vgpu-manager", "vgpu-devices"),
    "namespace": ("plugin", "cuda"),
}
"""Options that must have a value, and for which components."""
_MOST_PORT: Final = 65535
_ABOUT: Final = {"node": "the node's name", "namespace": "the operator's namespace"}

COMMAND: Final = Command(
    name="nvidia-validator",
    about="Proves that a component of the GPU stack works on this node, and says so by a status file.",
    options=(
        Option(
            name="component",
            flags=("component", "c"),
            env=("COMPONENT",),
            help=f"what is validated; required: one of {', '.join(COMPONENTS)}",
        ),
        Option(name="node", flags=("node-name", "n"), env=("NODE_NAME",), help="the node's name"),
        Option(
            name="namespace",
            flags=("namespace", "ns"),
            env=("OPERATOR_NAMESPACE",),
            help="the namespace of the operator's objects",
        ),
        Option(
            name="wait",
            type=BOOL,
            default=False,
            flags=("with-wait", "w"),
            env=("WITH_WAIT",),
            help="wait until the component is valid",
        ),
        Option(
            name="workload",
            type=BOOL,
            default=True,
            flags=("with-workload", "l"),
            env=("WITH_WORKLOAD",),
            help="prove it by a pod that uses a GPU",
        ),
        Option(
            name="cleanup",
            type=BOOL,
            default=False,
            flags=("cleanup-all", "r"),
            env=("CLEANUP_ALL",),
            help="empty the folder of status files first",
        ),
        Option(
            name="folder",
            default=names.VALIDATIONS_DIR,
            flags=("output-dir", "o"),
            env=("OUTPUT_DIR",),
            help="the folder of status files",
        ),
        Option(
            name="interval",
            type=INT,
            default=5,
            flags=("sleep-interval-seconds", "s"),
            env=("SLEEP_INTERVAL_SECONDS",),
            help="seconds between two looks",
        ),
        Option(
            name="mig_strategy",
            default="single",
            flags=("mig-strategy", "m"),
            env=("MIG_STRATEGY",),
            help="MIG strategy; taken, without an effect: MIG resources come first whenever the node offers some",
        ),
        Option(
            name="port",
            type=INT,
            default=0,
            flags=("metrics-port", "p"),
            env=("METRICS_PORT",),
            help=f"port of the metrics; required for {METRICS}",
        ),
        Option(
            name="default_workload",
            flags=("default-gpu-workload-config", "g"),
            env=("DEFAULT_GPU_WORKLOAD_CONFIG",),
            help=f"workload configuration of nodes that have none: one of {', '.join(WORKLOADS)}",
        ),
        Option(
            name="no_links",
            type=BOOL,
            default=False,
            flags=("disable-dev-char-symlink-creation",),
            env=("DISABLE_DEV_CHAR_SYMLINK_CREATION",),
            help="make no links in /dev/char",
        ),
        Option(name="host_root", default="/", flags=("host-root",), env=("HOST_ROOT",), help="the host's root"),
        Option(
            name="driver_dir",
            default=names.DRIVER_ROOT,
            flags=("driver-install-dir",),
            env=("DRIVER_INSTALL_DIR",),
            help="where the driver container's installation is on the host",
        ),
        Option(
            name="driver_dir_here",
            default=names.DRIVER_ROOT,
            flags=("driver-install-dir-ctr-path",),
            env=("DRIVER_INSTALL_DIR_CTR_PATH",),
            help="where that is in this container",
        ),
        Option(
            name="skip_gpu_init",
            type=BOOL,
            default=False,
            flags=("driver-validation-skip-gpu-init",),
            env=("DRIVER_VALIDATION_SKIP_GPU_INIT",),
            help="ask nvidia-smi for its version only, as where GPUs are handed to virtual machines",
            since=Release.V26_7,
        ),
        Option(
            name="kubeconfig",
            flags=("kubeconfig",),
            env=("KUBECONFIG",),
            help="taken, without an effect: the pod's service account is used",
        ),
    ),
)


class WorkloadSettings(msgspec.Struct, frozen=True):
    """How the pods that prove a component are to run."""

    image: str = ""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The program's settings; paths are the container's, but for ``host_root`` and ``driver_dir``, the host's."""

    component: str
    node: str = ""
    namespace: str = ""
    with_wait: bool = False
    with_workload: bool = True
    cleanup_all: bool = False
    folder: str = names.VALIDATIONS_DIR
    interval_s: float = 5
    port: int = 0
    default_workload: str = VM_PASSTHROUGH
    links: bool = True
    host_root: str = "/"
    driver_dir: str = names.DRIVER_ROOT
    driver_dir_here: str = names.DRIVER_ROOT
    skip_gpu_init: bool = False
    rdma: bool = False
    host_mofed: bool = False
    pod: WorkloadSettings = WorkloadSettings()


def load(process: Process) -> Settings:
    """The settings. Raises :class:`~groundplane.node.options.Leave`."""
    values = read(COMMAND, process)
    _check(values)
    env = process.env
    default = values["default_workload"]
    if default and default not in WORKLOADS:
        process.log.warning(
            f"{default!r} is no workload configuration ({', '.join(WORKLOADS)}); using {VM_PASSTHROUGH}"
        )
    return Settings(
        component=values["component"],
        node=values["node"],
        namespace=values["namespace"],
        with_wait=values["wait"],
        with_workload=values["workload"],
        cleanup_all=values["cleanup"],
        folder=values["folder"].rstrip("/") or "/",
        interval_s=values["interval"],
        port=values["port"],
        default_workload=default if default in WORKLOADS else VM_PASSTHROUGH,
        links=not values["no_links"],
        host_root=values["host_root"],
        driver_dir=values["driver_dir"],
        driver_dir_here=values["driver_dir_here"].rstrip("/"),
        skip_gpu_init="skip_gpu_init" in values.found and values["skip_gpu_init"],
        rdma=env.get("GPU_DIRECT_RDMA_ENABLED") == "true",
        host_mofed=env.get("USE_HOST_MOFED") == "true",
        pod=WorkloadSettings(
            image=env.get("VALIDATOR_IMAGE", ""),
            pull_policy=env.get("VALIDATOR_IMAGE_PULL_POLICY", ""),
            pull_secrets=tuple(
                filter(None, (s.strip() for s in env.get("VALIDATOR_IMAGE_PULL_SECRETS", "").split(",")))
            ),
            runtime_class=env.get("VALIDATOR_RUNTIME_CLASS", ""),
        ),
    )


def _check(values: Values) -> None:
    component = values["component"]
    if component not in COMPONENTS:
        found = f"invalid component {component!r}" if component else "no component is given"
        raise values.mistake("component", f"{found}; expected one of {', '.join(COMPONENTS)}")
    for name, components in REQUIRED.items():
        if component in components and not values[name]:
            raise values.mistake(name, f"{_ABOUT[name]} must be given for component {component}")
    if not values["folder"].startswith("/"):
        raise values.mistake("folder", f"the folder of status files {values['folder']!r} is no absolute path")
    if values["interval"] < 1:
        raise values.mistake("interval", f"the sleep interval is {values['interval']}; expected 1 or more seconds")
    least = 1 if component == METRICS else 0
    if not least <= values["port"] <= _MOST_PORT:
        raise values.mistake("port", f"the metrics port is {values['port']}; expected {least} to {_MOST_PORT}")
