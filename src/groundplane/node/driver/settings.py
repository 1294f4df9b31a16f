"""The driver manager's options (contracts/driver-lifecycle.md 5.1)."""

from typing import Any, Final

import msgspec

from ...api import names
from ...cluster.eviction import Rules
from ..options import BOOL, DURATION, STRING, Command, Duration, Option, OptionError, read
from ..process import Process

UNINSTALL: Final = "uninstall_driver"
PREFLIGHT: Final = "preflight_check"


def _option(name: str, default: Any, about: str) -> Option:
    return Option(
        name=name,
        type=BOOL if isinstance(default, bool) else DURATION if isinstance(default, Duration) else STRING,
        flags=(name.replace("_", "-"),),
        env=(name.upper(),),
        default=default,
        help=about,
    )


COMMAND: Final = Command(
    name="driver-manager",
    about="Clear this node of what uses the NVIDIA driver, and of the driver, before its container starts.",
    options=(
        _option("node_name", "", "the node's name; required"),
        _option("drain_use_force", False, "also evict pods that nothing makes anew"),
        _option("drain_pod_selector_label", "", "label selector of the pods that draining the node evicts; empty: all"),
        _option(
            "drain_timeout_seconds",
            Duration(0),
            "how long evicting or draining may take, with its unit: 300s, 5m; 0: as long as it takes",
        ),
        _option("drain_delete_emptydir_data", False, "also evict pods with emptyDir volumes, whose content is lost"),
        _option("enable_auto_drain", True, "drain the node where evicting GPU pods is not enough"),
        _option("enable_gpu_pod_eviction", True, "evict pods that hold GPUs"),
        _option("operator_namespace", "gpu-operator", "namespace of the operands"),
        _option(
            "node_label_for_gpu_pod_eviction",
            "",
            "another node label by which pods that use GPUs are deployed, to pause",
        ),
        _option("gpu_direct_rdma_enabled", False, "wait for the drivers of Mellanox devices"),
        _option("use_host_mofed", False, "these drivers are installed on the host"),
        _option("kubeconfig", "", "how to reach the API server; empty: as a pod"),
        _option("force_reinstall", False, "unload the driver even if it is loaded as wanted"),
    ),
    words={
        UNINSTALL: "clear the node, so that a driver can be installed",
        PREFLIGHT: "check nothing, and succeed",
    },
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the manager is asked to do; ``digest`` is that of the driver's wanted configuration."""

    word: str
    node_name: str
    drain_use_force: bool
    drain_pod_selector_label: str
    drain_timeout_s: float
    drain_delete_emptydir_data: bool
    enable_auto_drain: bool
    enable_gpu_pod_eviction: bool
    operator_namespace: str
    node_label_for_gpu_pod_eviction: str
    gpu_direct_rdma_enabled: bool
    use_host_mofed: bool
    kubeconfig: str
    force_reinstall: bool
    digest: str

    @property
    def rules(self) -> Rules:
        """Which pods may be evicted."""
        return Rules(force=self.drain_use_force, delete_empty_dir=self.drain_delete_emptydir_data)


def load(process: Process) -> Settings:
    """Read the options. Raises :class:`~..options.Leave`."""
    values = read(COMMAND, process)
    if not values.word:
        raise OptionError(f"{COMMAND.name}: say what to do: {' or '.join(COMMAND.words)}")
    if not values["node_name"]:
        raise OptionError("--node-name ($NODE_NAME) must not be empty: it has no default")
    timeout_s = values["drain_timeout_seconds"].seconds
    if not 0.0 <= timeout_s < float("inf"):
        raise values.mistake("drain_timeout_seconds", "expected a time such as 300s or 5m, or 0 for no limit")
    taken = {name: values[name] for name in Settings.__struct_fields__ if name in values.found}
    return Settings(
        **taken,
        word=values.word,
        drain_timeout_s=timeout_s,
        digest=process.env.get(names.DRIVER_CONFIG_DIGEST, "").strip(),
    )
