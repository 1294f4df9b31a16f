"""Every label, annotation, resource and path string, once.

Names are NVIDIA's (contracts/control-plane.md); a string that two programs share is never spelled
out anywhere else.
"""

from typing import Final

GROUP: Final = "nvidia.com"
DOMAIN: Final = "nvidia.com"

# --- Node labels written by node feature discovery and read by the operator -----------------------------------------
NFD_PREFIX: Final = "feature.node.kubernetes.io/"
NFD_NODE_NAME: Final = "nfd.node.kubernetes.io/node-name"
"""Label of a NodeFeature object: the node whose features it has."""
NFD_WORKER_VERSION: Final = "nfd.node.kubernetes.io/worker.version"
"""Annotation of a worker's NodeFeature object; of the node itself with node feature discovery before 0.14."""
NFD_MASTER_VERSION: Final = "nfd.node.kubernetes.io/master.version"
NFD_FEATURE_LABELS: Final = "nfd.node.kubernetes.io/feature-labels"
"""Annotation of a node: the labels that node feature discovery put on it. An instance's has ``<instance>.`` before."""
NODE_FEATURES_RECORD: Final = "groundplane.dev/node-features"
"""Annotation of a node: digest of :data:`NFD_FEATURE_LABELS` as groundplane wrote it; another's record differs."""
PCI_GPU_LABELS: Final = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
KERNEL_VERSION: Final = "feature.node.kubernetes.io/kernel-version.full"
OS_RELEASE_ID: Final = "feature.node.kubernetes.io/system-os_release.ID"
OS_RELEASE_VERSION_ID: Final = "feature.node.kubernetes.io/system-os_release.VERSION_ID"
OS_RELEASE_VERSION_MAJOR: Final = "feature.node.kubernetes.io/system-os_release.VERSION_ID.major"
OSTREE_VERSION: Final = "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION"

# --- Node labels of the operator and its operands -------------------------------------------------------------------
GPU_PRESENT: Final = "nvidia.com/gpu.present"
WORKLOAD_CONFIG: Final = "nvidia.com/gpu.workload.config"
DEPLOY_PREFIX: Final = "nvidia.com/gpu.deploy."
DEPLOY_OPERANDS: Final = DEPLOY_PREFIX + "operands"
DEPLOY_DRIVER: Final = DEPLOY_PREFIX + "driver"
DEPLOY_TOOLKIT: Final = DEPLOY_PREFIX + "container-toolkit"
DEPLOY_DEVICE_PLUGIN: Final = DEPLOY_PREFIX + "device-plugin"
DEPLOY_GFD: Final = DEPLOY_PREFIX + "gpu-feature-discovery"
DEPLOY_DCGM: Final = DEPLOY_PREFIX + "dcgm"
DEPLOY_DCGM_EXPORTER: Final = DEPLOY_PREFIX + "dcgm-exporter"
DEPLOY_NODE_STATUS_EXPORTER: Final = DEPLOY_PREFIX + "node-status-exporter"
DEPLOY_OPERATOR_VALIDATOR: Final = DEPLOY_PREFIX + "operator-validator"
DEPLOY_MIG_MANAGER: Final = DEPLOY_PREFIX + "mig-manager"
DEPLOY_CLIENT: Final = DEPLOY_PREFIX + "client"
DEPLOY_NVSM: Final = DEPLOY_PREFIX + "nvsm"
DEPLOY_SANDBOX_DEVICE_PLUGIN: Final = DEPLOY_PREFIX + "sandbox-device-plugin"
DEPLOY_KATA_SANDBOX_DEVICE_PLUGIN: Final = DEPLOY_PREFIX + "kata-sandbox-device-plugin"
DEPLOY_SANDBOX_VALIDATOR: Final = DEPLOY_PREFIX + "sandbox-validator"
DEPLOY_VFIO_MANAGER: Final = DEPLOY_PREFIX + "vfio-manager"
DEPLOY_KATA_MANAGER: Final = DEPLOY_PREFIX + "kata-manager"
DEPLOY_CC_MANAGER: Final = DEPLOY_PREFIX + "cc-manager"
DEPLOY_VGPU_MANAGER: Final = DEPLOY_PREFIX + "vgpu-manager"
DEPLOY_VGPU_DEVICE_MANAGER: Final = DEPLOY_PREFIX + "vgpu-device-manager"
MIG_CAPABLE: Final = "nvidia.com/mig.capable"
MIG_CONFIG: Final = "nvidia.com/mig.config"
MIG_CONFIG_STATE: Final = "nvidia.com/mig.config.state"
MPS_CAPABLE: Final = "nvidia.com/mps.capable"
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
GPU_MACHINE: Final = "nvidia.com/gpu.machine"
GPU_MODE: Final = "nvidia.com/gpu.mode"
GPU_CLIQUE: Final = "nvidia.com/gpu.clique"
GFD_TIMESTAMP: Final = "nvidia.com/gfd.timestamp"
CUDA_DRIVER_VERSION: Final = "nvidia.com/cuda.driver-version"
"""Stem of four labels: ``.major``, ``.minor``, ``.revision``, ``.full``. The other ``CUDA_`` names are stems too."""
CUDA_DRIVER: Final = "nvidia.com/cuda.driver"
CUDA_RUNTIME_VERSION: Final = "nvidia.com/cuda.runtime-version"
CUDA_RUNTIME: Final = "nvidia.com/cuda.runtime"
MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
VGPU_PRESENT: Final = "nvidia.com/vgpu.present"
VGPU_HOST_DRIVER_VERSION: Final = "nvidia.com/vgpu.host-driver-version"
VGPU_HOST_DRIVER_BRANCH: Final = "nvidia.com/vgpu.host-driver-branch"
DEVICE_PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
DRIVER_OWNER: Final = "nvidia.com/gpu-operator.driver.owner"

# --- Node annotations -----------------------------------------------------------------------------------------------
DRIVER_UPGRADE_ENABLED: Final = "nvidia.com/gpu-driver-upgrade-enabled"
MIG_CONFIG_FAILURE: Final = "groundplane.dev/mig.config.failure"
"""Why the node's MIG layout could not be had, and what to do; there as long as :data:`MIG_CONFIG_STATE` is failed."""
MIG_CONFIG_REBOOTED: Final = "groundplane.dev/mig.config.rebooted-for"
"""The MIG layout for which the node was rebooted; it is not rebooted for it again until the label is set anew."""

# --- Labels and annotations on objects ------------------------------------------------------------------------------
STATE_LABEL: Final = "nvidia.com/gpu-operator.state"
"""Names the operand state that owns an object. NVIDIA's operator writes it on NVIDIADriver objects only."""
LAST_APPLIED_HASH: Final = "nvidia.com/last-applied-hash"
OPENSHIFT_SCC: Final = "openshift.io/scc"
PRECOMPILED: Final = "nvidia.com/precompiled"
CRD_SCHEMA_DIGEST: Final = "groundplane.dev/schema-digest"
"""On a CustomResourceDefinition: digest of its schema; an operator can tell that the CRD is another release's."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
DRIVER_COMPONENT: Final = "nvidia-driver"
"""Value of :data:`COMPONENT_LABEL` on driver pods, by which they keep off each other's nodes."""
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
NRI_CDI_ANNOTATION: Final = "nvidia.cdi.k8s.io"
"""On a pod: CDI devices that the toolkit's NRI plugin gives its containers; with ``/container.NAME``, one of them."""
MANAGEMENT_CDI_KIND: Final = "management.nvidia.com/gpu"
"""The CDI kind whose one device, ``all``, is every GPU of a node, for the containers that manage them."""

# --- Resources and process names ------------------------------------------------------------------------------------
GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
"""A MIG profile's resource, its ``+`` written as ``.``: ``nvidia.com/mig-1g.10gb.me``."""
FIELD_MANAGER: Final = "groundplane-operator"
LEASE_NAME: Final = "53822513.nvidia.com"

# --- Paths on a GPU node --------------------------------------------------------------------------------------------
VALIDATIONS_DIR: Final = "/run/nvidia/validations"
DRIVER_ROOT: Final = "/run/nvidia/driver"
TOOLKIT_INSTALL_DIR: Final = "/usr/local/nvidia"
KUBELET_ROOT: Final = "/var/lib/kubelet"
FEATURES_DIR: Final = "/etc/kubernetes/node-feature-discovery/features.d"
"""Files of labels that node feature discovery reads."""
