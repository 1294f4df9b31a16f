"""The kubelet's two gRPC interfaces: the device plugin API (v1beta1) and the pod-resources API (v1).

Our own .proto files hold the wire facts; `stubs/` is generated from them by `generate.py`. This package leaves what to
say over the sockets to the device plugin, the exporter and the lab's kubelet.
"""

from typing import Final

API_VERSION: Final = "v1beta1"
"""The device plugin API version a plugin must name when it registers."""

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

DEVICE_PLUGIN_DIR: Final = "/var/lib/kubelet/device-plugins"
"""The folder of the plugins' sockets; the same wherever the kubelet's root is (contracts/device-plugin-gfd.md 3)."""

KUBELET_SOCKET: Final = DEVICE_PLUGIN_DIR + "/kubelet.sock"
CHECKPOINT: Final = DEVICE_PLUGIN_DIR + "/kubelet_internal_checkpoint"
POD_RESOURCES_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
