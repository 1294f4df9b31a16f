"""The options of the programs that share a configuration file: device plugin, GPU feature discovery, MPS daemon.

Tables alone; ``options`` reads them, ``config`` makes typed configurations of what was read.
"""

from typing import Final

from ..api.release import Release
from . import options
from .cdi.options import LIBRARIES_ENV, Libraries
from .options import Command, Duration, Option

DEFAULT_KUBELET_SOCKET: Final = "/var/lib/kubelet/device-plugins/kubelet.sock"

_CONTAINER_DRIVER_ROOT: Final = Option(
    name="container_driver_root",
    key="flags.plugin.containerDriverRoot",
    flags=("driver-root-ctr-path", "container-driver-root"),
    env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    default="/driver-root",
    help="where the driver's root is mounted in this container",
)

PLUGIN: Final = Command(
    name="nvidia-device-plugin",
    about="Advertise the machine's GPUs to the kubelet and hand them out.",
    options=(
        Option(
            name="mig_strategy",
            key="flags.migStrategy",
            flags=("mig-strategy",),
            env=("MIG_STRATEGY",),
            default="none",
            help="what MIG devices are advertised as: none, single or mixed",
        ),
        Option(
            name="fail_on_init_error",
            type=options.BOOL,
            key="flags.failOnInitError",
            flags=("fail-on-init-error",),
            env=("FAIL_ON_INIT_ERROR",),
            default=True,
            help="end if the driver cannot be reached, rather than wait for ever",
        ),
        Option(
            name="mps_root",
            key="flags.mpsRoot",
            flags=("mps-root",),
            env=("MPS_ROOT",),
            help="folder of the MPS daemons' pipes and logs on the host",
        ),
        Option(
            name="driver_root",
            key="flags.nvidiaDriverRoot",
            flags=("driver-root", "nvidia-driver-root"),
            env=("NVIDIA_DRIVER_ROOT",),
            default="/",
            help="root of the driver's files on the host",
        ),
        Option(
            name="dev_root",
            key="flags.nvidiaDevRoot",
            flags=("dev-root", "nvidia-dev-root"),
            env=("NVIDIA_DEV_ROOT",),
            help="root of the device nodes on the host; the driver root if not set",
        ),
        Option(
            name="gdrcopy",
            type=options.BOOL,
            key="flags.gdrcopyEnabled",
            flags=("gdrcopy-enabled",),
            env=("GDRCOPY_ENABLED",),
            default=False,
            help="containers with a GPU get GDRCopy's device",
        ),
        Option(
            name="gds",
            type=options.BOOL,
            key="flags.gdsEnabled",
            flags=("gds-enabled",),
            env=("GDS_ENABLED",),
            default=False,
            help="containers with a GPU get GPUDirect Storage's devices",
        ),
        Option(
            name="mofed",
            type=options.BOOL,
            key="flags.mofedEnabled",
            flags=("mofed-enabled",),
            env=("MOFED_ENABLED",),
            default=False,
            help="containers with a GPU get the network driver's devices",
        ),
        Option(
            name="discovery",
            key="flags.deviceDiscoveryStrategy",
            flags=("device-discovery-strategy",),
            env=("DEVICE_DISCOVERY_STRATEGY",),
            default="auto",
            help="how GPUs are found: auto, nvml or tegra",
        ),
        Option(
            name="pass_device_specs",
            type=options.BOOL,
            key="flags.plugin.passDeviceSpecs",
            flags=("pass-device-specs",),
            env=("PASS_DEVICE_SPECS",),
            default=False,
            help="list the device nodes in answers to the kubelet, too",
        ),
        Option(
            name="device_list_strategies",
            type=options.WORDS,
            key="flags.plugin.deviceListStrategy",
            flags=("device-list-strategy",),
            env=("DEVICE_LIST_STRATEGY",),
            default=("envvar",),
            help="how containers are told their devices: envvar, volume-mounts, cdi-annotations, cdi-cri",
        ),
        Option(
            name="device_id_strategy",
            key="flags.plugin.deviceIDStrategy",
            flags=("device-id-strategy",),
            env=("DEVICE_ID_STRATEGY",),
            default="uuid",
            help="what devices are called: uuid or index",
        ),
        Option(
            name="cdi_annotation_prefix",
            key="flags.plugin.cdiAnnotationPrefix",
            flags=("cdi-annotation-prefix",),
            env=("CDI_ANNOTATION_PREFIX",),
            default="cdi.k8s.io/",
            help="what the keys of CDI annotations start with",
        ),
        Option(
            name="cdi_hook_path",
            key="flags.plugin.nvidiaCTKPath",
            flags=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
            env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
            default="/usr/bin/nvidia-ctk",
            help="the program that CDI hooks run, on the host",
        ),
        _CONTAINER_DRIVER_ROOT,
        Option(
            name="allocation_policy",
            key="flags.plugin.sharedDevicesAllocationPolicy",
            flags=("shared-devices-allocation-policy",),
            env=("SHARED_DEVICES_ALLOCATION_POLICY",),
            default="distributed",
            since=Release.V26_7,
            help="which replicas of shared devices are handed out first: distributed or packed",
        ),
        Option(
            name="imex_channels",
            type=options.INTS,
            key="imex.channelIDs",
            flags=("imex-channel-ids",),
            env=("IMEX_CHANNEL_IDS",),
            default=(),
            help="IMEX channels of each container with a GPU: none, or 0",
        ),
        Option(
            name="imex_required",
            type=options.BOOL,
            key="imex.required",
            flags=("imex-required",),
            env=("IMEX_REQUIRED",),
            default=False,
            help="end if an IMEX channel does not exist",
        ),
        Option(
            name="kubelet_socket",
            flags=("kubelet-socket",),
            env=("KUBELET_SOCKET",),
            default=DEFAULT_KUBELET_SOCKET,
            help="the kubelet's socket for registering; empty: do not register",
        ),
        Option(name="config_file", flags=("config-file",), env=("CONFIG_FILE",), help="the configuration file"),
        Option(
            name="cdi_feature_flags",
            type=options.STRINGS,
            flags=("cdi-feature-flags",),
            env=("CDI_FEATURE_FLAGS",),
            default=(),
            help="features of CDI generation to enable",
        ),
        Option(
            name="cdi_disable_hooks",
            type=options.STRINGS,
            flags=("cdi-disable-hooks",),
            env=("CDI_DISABLE_HOOKS",),
            default=(),
            since=Release.V26_7,
            help="CDI hooks to leave out, or all",
        ),
        Option(
            name="cdi_libraries",
            flags=("cdi-libraries",),
            env=(LIBRARIES_ENV,),
            default=Libraries.HOOKLESS.value,
            help="how the driver's libraries get into containers: hookless, or by hooks on the host: hooks",
        ),
    ),
)
"""contracts/device-plugin-gfd.md 1.2."""


def plugin_keys(release: Release) -> tuple[str, ...]:
    """The keys of the section ``flags.plugin`` that a release knows, in their order."""
    keys = (option.key for option in PLUGIN.known(release) if option.key.startswith("flags.plugin."))
    return tuple(key.rpartition(".")[2] for key in keys)


GFD: Final = Command(
    name="gpu-feature-discovery",
    about="Label the node with what its GPUs are.",
    options=(
        Option(
            name="mig_strategy",
            key="flags.migStrategy",
            flags=("mig-strategy",),
            env=("GFD_MIG_STRATEGY", "MIG_STRATEGY"),
            default="none",
            help="how MIG devices are labelled: none, single or mixed",
        ),
        Option(
            name="fail_on_init_error",
            type=options.BOOL,
            key="flags.failOnInitError",
            flags=("fail-on-init-error",),
            env=("GFD_FAIL_ON_INIT_ERROR", "FAIL_ON_INIT_ERROR"),
            default=True,
            help="end if the driver cannot be reached, rather than label as without GPUs",
        ),
        Option(
            name="oneshot",
            type=options.BOOL,
            key="flags.gfd.oneshot",
            flags=("oneshot",),
            env=("GFD_ONESHOT",),
            default=False,
            help="label once and end",
        ),
        Option(
            name="no_timestamp",
            type=options.BOOL,
            key="flags.gfd.noTimestamp",
            flags=("no-timestamp",),
            env=("GFD_NO_TIMESTAMP",),
            default=False,
            help="leave out the label with the time",
        ),
        Option(
            name="sleep_interval",
            type=options.DURATION,
            key="flags.gfd.sleepInterval",
            flags=("sleep-interval",),
            env=("GFD_SLEEP_INTERVAL",),
            default=Duration(60 * 10**9),
            help="time from one labelling to the next; infinite: label once and wait",
        ),
        Option(
            name="output_file",
            key="flags.gfd.outputFile",
            flags=("output-file", "output", "o"),
            env=("GFD_OUTPUT_FILE",),
            default="/etc/kubernetes/node-feature-discovery/features.d/gfd",
            help="file to write labels to; empty: standard output",
        ),
        Option(
            name="machine_type_file",
            key="flags.gfd.machineTypeFile",
            flags=("machine-type-file",),
            env=("GFD_MACHINE_TYPE_FILE",),
            default="/sys/class/dmi/id/product_name",
            help="file that holds the machine's type",
        ),
        Option(
            name="use_node_feature_api",
            type=options.BOOL,
            key="flags.useNodeFeatureAPI",
            flags=("use-node-feature-api",),
            env=("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"),
            default=True,
            help="write a NodeFeature object rather than a file",
        ),
        Option(
            name="discovery",
            key="flags.deviceDiscoveryStrategy",
            flags=("device-discovery-strategy",),
            env=("DEVICE_DISCOVERY_STRATEGY",),
            default="auto",
            help="how GPUs are found: auto, nvml, tegra or vfio",
        ),
        _CONTAINER_DRIVER_ROOT,
        Option(
            name="config_file",
            flags=("config-file",),
            env=("GFD_CONFIG_FILE", "CONFIG_FILE"),
            help="the configuration file",
        ),
        Option(
            name="kubeconfig",
            flags=("kubeconfig",),
            env=("KUBECONFIG",),
            help="how to reach the API server; empty: as a pod of the cluster",
        ),
        Option(
            name="kube_api_qps",
            type=options.NUMBER,
            flags=("kube-api-qps",),
            env=("KUBE_API_QPS",),
            default=5.0,
            help="requests a second to the API server",
        ),
        Option(
            name="kube_api_burst",
            type=options.INT,
            flags=("kube-api-burst",),
            env=("KUBE_API_BURST",),
            default=10,
            help="requests to the API server at once",
        ),
        Option(
            name="namespace",
            flags=("namespace",),
            env=("NAMESPACE",),
            help="namespace of the NodeFeature object",
        ),
        Option(name="node_name", flags=("node-name",), env=("NODE_NAME",), help="the node's name"),
        Option(name="pod_name", flags=("pod-name",), env=("POD_NAME",), help="this pod's name"),
    ),
)
"""contracts/device-plugin-gfd.md 1.6."""

MPS: Final = Command(
    name="mps-control-daemon",
    about="Run the MPS control daemons of shared GPUs.",
    words={"mount-shm": "mount the shared memory of MPS clients and end"},
    options=(
        Option(name="config_file", flags=("config-file",), env=("CONFIG_FILE",), help="the configuration file"),
        Option(
            name="mig_strategy",
            key="flags.migStrategy",
            flags=("mig-strategy",),
            env=("MIG_STRATEGY",),
            default="none",
            help="what MIG devices are advertised as: none, single or mixed",
        ),
    ),
)
"""contracts/device-plugin-gfd.md 6."""
