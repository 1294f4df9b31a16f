"""Options of nvidia-mig-manager (contracts/mig-exporter-validator.md 3.1)."""

from typing import Final

import msgspec

from ...cdi.options import LIBRARIES_ENV, Libraries
from ...cdi.roots import Roots
from ...options import BOOL, STRING, Command, Option, OptionError, read
from ...process import Process


def _option(name: str, flags: str, env: str, about: str, default: object = "") -> Option:
    return Option(
        name=name,
        type=BOOL if isinstance(default, bool) else STRING,
        flags=tuple(flags.split()),
        env=tuple(env.split()),
        default=default,
        help=about,
    )


COMMAND: Final = Command(
    name="nvidia-mig-manager",
    about="Partition this node's GPUs as its label nvidia.com/mig.config asks.",
    options=(
        _option("kubeconfig", "kubeconfig", "KUBECONFIG", "how to reach the API server; empty: as a pod"),
        _option("node_name", "node-name n", "NODE_NAME", "the node's name; required"),
        _option("config_file", "config-file f", "CONFIG_FILE", "file of layouts; empty: made from the node's GPUs"),
        _option(
            *("script", "reconfigure-script s", "RECONFIGURE_SCRIPT"),
            "accepted for older manifests; there is no script, and it is never run",
            "/usr/bin/reconfigure-mig.sh",
        ),
        _option("host_root", "host-root-mount m", "HOST_ROOT_MOUNT", "where the host's root is mounted", "/host"),
        _option(
            *("host_nvidia_dir", "host-nvidia-dir i", "HOST_NVIDIA_DIR"),
            "accepted for older manifests; nothing is copied to the host",
            "/usr/local/nvidia",
        ),
        _option(
            *("state_file", "host-mig-manager-state-file o", "HOST_MIG_MANAGER_STATE_FILE"),
            "file of the host's own MIG service that is kept in step, if it is there",
            "/etc/systemd/system/nvidia-mig-manager.service.d/override.conf",
        ),
        _option(
            *("kubelet_service", "host-kubelet-systemd-service k", "HOST_KUBELET_SYSTEMD_SERVICE"),
            "the kubelet's service, which is stopped too where MIG mode is to change",
            "kubelet.service",
        ),
        _option("clients_file", "gpu-clients-file g", "GPU_CLIENTS_FILE", "file of the host's services that use GPUs"),
        _option("with_reboot", "with-reboot r", "WITH_REBOOT", "reboot the node if MIG mode needs it", False),
        _option(
            *("with_services", "with-shutdown-host-gpu-clients d", "WITH_SHUTDOWN_HOST_GPU_CLIENTS"),
            "stop the host's services that use GPUs while MIG is changed",
            False,
        ),
        _option(
            *("namespace", "default-gpu-clients-namespace p", "DEFAULT_GPU_CLIENTS_NAMESPACE"),
            "namespace of the operands",
            "default",
        ),
        _option(
            *("driver_root", "nvidia-driver-root driver-root t", "NVIDIA_DRIVER_ROOT DRIVER_ROOT"),
            "the driver's root on the host",
            "/run/nvidia/driver",
        ),
        _option(
            *("driver_root_ctr_path", "driver-root-ctr-path a", "DRIVER_ROOT_CTR_PATH"),
            "where the driver's root is in this container",
            "/run/nvidia/driver",
        ),
        _option("dev_root", "dev-root b", "NVIDIA_DEV_ROOT", "root of the device nodes on the host; the driver's root"),
        _option(
            *("dev_root_ctr_path", "dev-root-ctr-path j", "DEV_ROOT_CTR_PATH"),
            "where the root of the device nodes is in this container; the driver's root",
        ),
        _option("cdi", "cdi-enabled", "CDI_ENABLED", "write the CDI spec of management containers anew", False),
        _option(
            *("hook_path", "nvidia-cdi-hook-path", "NVIDIA_CDI_HOOK_PATH"),
            "the hook program that the CDI spec names, on the host",
            "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
        ),
        _option(
            *("libraries", "libraries", LIBRARIES_ENV),
            "how the driver's libraries get into management containers: hookless or hooks",
            Libraries.HOOKLESS.value,
        ),
    ),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the manager is asked to do. Paths are its container's, but for ``state_file``, which is the host's."""

    kubeconfig: str
    node_name: str
    config_file: str
    default_config_file: str
    host_root: str
    state_file: str
    kubelet_service: str
    clients_file: str
    with_reboot: bool
    with_services: bool
    namespace: str
    roots: Roots
    cdi: bool
    hook_path: str
    libraries: Libraries
    pod_name: str = ""
    pod_namespace: str = ""

    @property
    def one_root(self) -> bool:
        """Whether driver and device nodes are below the same root of the host."""
        return self.roots.host_driver == self.roots.host_dev


def load(process: Process) -> Settings:
    """Read the options. Raises :class:`~...options.Leave`."""
    values = read(COMMAND, process)
    if not values["node_name"]:
        raise OptionError("--node-name ($NODE_NAME) must not be empty: it has no default")
    if not values["namespace"]:
        raise values.mistake("namespace", "the namespace of the operands must not be empty")
    if values["libraries"] not in tuple(Libraries):
        raise values.mistake("libraries", f"invalid value {values['libraries']!r}; expected {', '.join(Libraries)}")
    taken = {name for name in Settings.__struct_fields__ if name in values.found} - {"libraries"}
    return Settings(
        **{name: values[name] for name in taken},
        roots=Roots.of(
            values["driver_root_ctr_path"],
            values["dev_root_ctr_path"],
            host_driver=values["driver_root"],
            host_dev=values["dev_root"] or None,
        ),
        libraries=Libraries(values["libraries"]),
        default_config_file=process.env.get("DEFAULT_CONFIG_FILE", ""),
        pod_name=process.env.get("POD_NAME", ""),
        pod_namespace=process.env.get("POD_NAMESPACE", ""),
    )
