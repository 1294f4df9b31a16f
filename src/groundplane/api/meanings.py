"""What every field of our kinds means, in a line: the text of ``kubectl explain`` and of the reference page.

The table is keyed by Struct and field; a Struct inherits the texts of its bases. Types, defaults and allowed values
are in ``clusterpolicy.py`` and are not repeated here.
"""

from typing import Final

_TABLE: Final[dict[str, dict[str, str]]] = {
    "ClusterPolicy": {
        "apiVersion": "Version of this representation: nvidia.com/v1.",
        "kind": "ClusterPolicy.",
        "metadata": "Standard object metadata. A ClusterPolicy is cluster-scoped.",
        "spec": "What the GPU stack of this cluster shall be.",
        "status": "What the operator last found. Written by the operator only.",
    },
    "EnvVar": {
        "name": "Name of the variable.",
        "value": "Its value; unset is the empty string.",
    },
    "ImageSpec": {
        "repository": "Registry and path that the image is in, such as nvcr.io/nvidia.",
        "image": "Image name. Alone, without repository and version, it is taken as a full image reference.",
        "version": "Tag, or a digest, which starts with sha256:.",
        "imagePullPolicy": "Always, Never or IfNotPresent; anything else counts as IfNotPresent.",
        "imagePullSecrets": "Names of Secrets in the operator's namespace that hold registry credentials.",
    },
    "Component": {
        "enabled": "Whether this component is deployed.",
        "args": "Arguments of the main container, in place of its own; an empty list changes nothing.",
        "env": "Environment variables to add to the main container; a name that is there already is overwritten.",
    },
    "Operand": {
        "resources": "CPU, memory and the like for every main container of the component.",
        "hostNetwork": "Run the component's pods in the node's network.",
    },
    "NamedConfig": {"name": "Name of a ConfigMap in the operator's namespace."},
    "Relabeling": {
        "action": "What the rule does with a series.",
        "modulus": "Divisor of the source values' hash; only for hashmod.",
        "regex": "Regular expression that the joined source values must match.",
        "replacement": "New value; may refer to groups of the regular expression.",
        "separator": "Text put between the source values.",
        "sourceLabels": "Labels whose values are joined and matched.",
        "targetLabel": "Label that receives the result.",
    },
    "ServiceMonitor": {
        "enabled": "Create a ServiceMonitor, so that the Prometheus operator scrapes this component.",
        "interval": "Time between scrapes, such as 15s.",
        "scrapeTimeout": "Time after which a scrape is given up; at most the interval.",
        "honorLabels": "Keep labels of the scraped series where they clash with the server's.",
        "additionalLabels": "Labels to add to the ServiceMonitor.",
        "relabelings": "Rules that rewrite the labels of a target before it is scraped.",
    },
    "OperatorMetrics": {"serviceMonitor": "How Prometheus scrapes the operator itself."},
    "OperatorSpec": {
        "runtimeClass": "Name of the RuntimeClass that GPU operands run with.",
        "defaultRuntime": "Deprecated and ignored: the container runtime is detected from the nodes.",
        "labels": "Labels for the operator.",
        "annotations": "Annotations for the operator.",
        "use_ocp_driver_toolkit": "On OpenShift, build the driver with the cluster's Driver Toolkit image.",
        "initContainer": "Deprecated: image of the init containers.",
        "metrics": "Metrics of the operator.",
    },
    "RollingUpdate": {
        "maxUnavailable": "How many pods may be down during an update: a number or a percentage, quoted."
    },
    "DaemonsetsSpec": {
        "labels": "Labels for the DaemonSets and their pods.",
        "annotations": "Annotations for the DaemonSets and their pods.",
        "tolerations": "Node taints that the pods bear.",
        "priorityClassName": "PriorityClass of the pods.",
        "podSecurityContext": "Security context of the pods.",
        "updateStrategy": "How DaemonSets other than the driver's replace their pods.",
        "rollingUpdate": "Settings for update strategy RollingUpdate.",
    },
    "ContainerProbe": {
        "initialDelaySeconds": "Seconds between the container's start and the first probe; 0 keeps the built-in value.",
        "timeoutSeconds": "Seconds after which a probe counts as failed.",
        "periodSeconds": "Seconds between probes.",
        "successThreshold": "Successes in a row that make a failed container healthy again.",
        "failureThreshold": "Failures in a row that make the container unhealthy.",
    },
    "Rdma": {
        "enabled": "Load nvidia-peermem, for GPUDirect RDMA.",
        "useHostMofed": "The node has MOFED installed already; only with enabled.",
    },
    "PodDeletion": {
        "force": "Also delete GPU pods that no controller would create again.",
        "timeoutSeconds": "Seconds to wait for the pods to end; 0 waits for ever.",
        "deleteEmptyDir": "Also delete pods that use emptyDir volumes, whose data is lost.",
    },
    "WaitForCompletion": {
        "podSelector": "Label selector of pods to wait for before a node is upgraded.",
        "timeoutSeconds": "Seconds to wait; 0 waits for ever.",
    },
    "Drain": {
        "enable": "Drain the node before its driver is replaced, if deleting GPU pods was not enough.",
        "force": "Also drain pods that no controller would create again.",
        "podSelector": "Label selector of the pods to drain; unset means all.",
        "timeoutSeconds": "Seconds until the drain is given up; 0 waits for ever.",
        "deleteEmptyDir": "Also drain pods that use emptyDir volumes, whose data is lost.",
    },
    "UpgradePolicy": {
        "autoUpgrade": "Upgrade drivers node by node when the policy changes.",
        "maxParallelUpgrades": "Nodes upgraded at the same time; 0 sets no limit.",
        "maxUnavailable": "Nodes that may be unavailable during the upgrade: a number or a percentage of the nodes.",
        "podDeletion": "How GPU pods are removed from a node before its upgrade.",
        "waitForCompletion": "Which jobs may finish before a node is upgraded.",
        "drain": "Whether and how a node is drained.",
    },
    "DriverManager": {"env": "Environment variables to add to the driver manager."},
    "RepoConfig": {"configMapName": "ConfigMap with package repository files for the driver container."},
    "VirtualTopology": {"config": "ConfigMap with the vGPU topology daemon's configuration."},
    "Licensing": {
        "configMapName": "Deprecated, use secretName: ConfigMap with the vGPU licence configuration.",
        "secretName": "Secret with the vGPU licence configuration; wins over configMapName.",
        "nlsEnabled": "Use the NVIDIA License System.",
    },
    "DriverSpec": {
        "useNvidiaDriverCRD": "Leave drivers to NVIDIADriver objects instead of this section.",
        "usePrecompiled": "Use driver images with modules built for the nodes' kernels.",
        "kernelModuleType": "Which kernel modules to load; auto picks by GPU and driver version.",
        "useOpenKernelModules": "Deprecated and ignored: use kernelModuleType open.",
        "startupProbe": "Timing of the driver container's startup probe.",
        "livenessProbe": "Timing of the driver container's liveness probe.",
        "readinessProbe": "Timing of the driver container's readiness probe.",
        "rdma": "GPUDirect RDMA.",
        "upgradePolicy": "How drivers are upgraded.",
        "manager": "The init container that clears a node before a driver is loaded.",
        "repoConfig": "Package repositories for building the driver.",
        "certConfig": "ConfigMap with TLS certificates for the package repositories.",
        "kernelModuleConfig": "ConfigMap with parameters of the kernel modules.",
        "virtualTopology": "vGPU topology daemon.",
        "licensingConfig": "vGPU licensing.",
        "secretEnv": "Secret in the operator's namespace whose keys become environment of the driver containers.",
    },
    "ToolkitSpec": {"installDir": "Directory on the node that the toolkit is installed in."},
    "PluginConfig": {"default": "Key of the ConfigMap used on nodes that name none themselves."},
    "Mps": {"root": "Directory on the node that holds MPS pipes and logs."},
    "DevicePluginSpec": {
        "config": "Configurations of the device plugin, such as time-slicing.",
        "mps": "Sharing GPUs through MPS.",
    },
    "DcgmSpec": {"hostPort": "Deprecated and ignored."},
    "ExporterService": {
        "type": "Type of the Service, such as ClusterIP.",
        "internalTrafficPolicy": "Cluster, or Local to reach only the exporter of one's own node.",
    },
    "HpcJobMapping": {
        "enabled": "Label GPU metrics with the job that a batch scheduler runs on the GPU.",
        "directory": "Directory on the node with the job mapping files.",
    },
    "DcgmExporterSpec": {
        "annotations": "Annotations for the exporter's DaemonSet and pods.",
        "config": "ConfigMap with the list of metrics to export.",
        "service": "The Service in front of the exporters.",
        "serviceMonitor": "How Prometheus scrapes the exporters.",
        "hostPID": "Run the exporter in the node's process namespace.",
        "hpcJobMapping": "Tying GPU metrics to batch jobs.",
        "enablePodLabels": "Add labels of the pod that uses a GPU to its metrics.",
        "enablePodUID": "Add the UID of the pod that uses a GPU to its metrics.",
        "podLabelAllowlistRegex": "Regular expressions of the pod labels to add; unset means all.",
    },
    "MigSpec": {"strategy": "How MIG devices are offered: none, single (as nvidia.com/gpu) or mixed (by profile)."},
    "MigManagerConfig": {"default": "MIG layout of nodes that name none themselves."},
    "MigManagerSpec": {
        "config": "ConfigMap with MIG layouts.",
        "gpuClientsConfig": "ConfigMap with the services on the node to stop while GPUs are reconfigured.",
    },
    "ComponentEnv": {"env": "Environment variables to add to this validation."},
    "ValidatorSpec": {
        "args": "Arguments of the main container, in place of its own; an empty list changes nothing.",
        "env": "Environment variables to add to the main container; a name that is there already is overwritten.",
        "resources": "CPU, memory and the like for the validator's containers.",
        "hostNetwork": "Run the validator's pods in the node's network.",
        "plugin": "Check that the device plugin offers GPUs.",
        "cuda": "Check that a CUDA program runs.",
        "driver": "Check of the driver.",
        "toolkit": "Check of the container toolkit.",
        "vfioPCI": "Check that GPUs are bound to vfio-pci.",
        "vgpuManager": "Check of the vGPU host driver.",
        "vgpuDevices": "Check that vGPU devices exist.",
    },
    "SandboxWorkloads": {
        "enabled": "Let nodes run GPU workloads in virtual machines.",
        "defaultWorkload": "Workload of nodes without the label nvidia.com/gpu.workload.config.",
        "mode": "Who runs the virtual machines.",
    },
    "VfioManagerSpec": {"driverManager": "The init container that clears a node before GPUs are bound to vfio-pci."},
    "VgpuManagerSpec": {
        "driverManager": "The init container that clears a node before the vGPU host driver is loaded.",
        "kernelModuleConfig": "ConfigMap with parameters of the kernel modules.",
    },
    "VgpuDevicesConfig": {"default": "vGPU layout of nodes that name none themselves."},
    "VgpuDeviceManagerSpec": {"config": "ConfigMap with vGPU layouts."},
    "CcManagerSpec": {"defaultMode": "Confidential-computing mode of nodes that name none themselves."},
    "KataArtifacts": {
        "url": "Image reference of the guest kernel and image.",
        "pullSecret": "Secret with credentials for that registry.",
    },
    "KataRuntimeClass": {
        "name": "Name of the RuntimeClass.",
        "artifacts": "Where the guest kernel and image come from.",
        "nodeSelector": "Labels of the nodes that the RuntimeClass is for.",
    },
    "KataConfig": {
        "artifactsDir": "Directory on the node for guest kernels and images.",
        "runtimeClasses": "RuntimeClasses to create for Kata containers.",
    },
    "KataManagerSpec": {"config": "Kata runtimes. Ignored since release 26.7."},
    "CdiSpec": {
        "enabled": "Give GPUs to containers through the Container Device Interface.",
        "default": "Deprecated and ignored.",
        "nriPluginEnabled": "Inject GPUs through the toolkit's NRI plugin; the runtime's configuration stays.",
    },
    "Switch": {"enabled": "Whether this is on."},
    "HostPaths": {
        "rootFS": "Root of the node's file system, as seen by the operands.",
        "driverInstallDir": "Directory on the node that the driver container's file system appears in.",
        "kubeletRootDir": "Root directory of the kubelet on the nodes.",
    },
    "ClusterPolicySpec": {
        "operator": "Settings of the operator itself.",
        "daemonsets": "What every operand DaemonSet shares.",
        "driver": "NVIDIA driver, in a container.",
        "toolkit": "NVIDIA Container Toolkit: lets the container runtime inject GPUs.",
        "devicePlugin": "NVIDIA device plugin: offers GPUs to the kubelet.",
        "dcgm": "DCGM host engine as a pod of its own.",
        "dcgmExporter": "DCGM exporter: GPU metrics for Prometheus.",
        "gfd": "GPU feature discovery: labels nodes with what their GPUs are.",
        "nodeStatusExporter": "Exporter of each node's validation state.",
        "mig": "Multi-Instance GPU: how it is offered.",
        "migManager": "MIG manager: splits GPUs as node labels ask.",
        "validator": "Validator: checks every layer on every node. It cannot be disabled.",
        "gds": "GPUDirect Storage: nvidia-fs beside the driver.",
        "gdrcopy": "GDRCopy: its driver beside the GPU driver.",
        "sandboxWorkloads": "GPU workloads in virtual machines.",
        "vfioManager": "VFIO manager: binds GPUs to vfio-pci for passthrough.",
        "sandboxDevicePlugin": "Device plugin for GPUs of KubeVirt virtual machines.",
        "kataSandboxDevicePlugin": "Device plugin for GPUs of Kata containers.",
        "vgpuManager": "vGPU manager: the host driver for virtual GPUs.",
        "vgpuDeviceManager": "vGPU device manager: creates virtual GPUs as node labels ask.",
        "ccManager": "Confidential-computing manager: sets the GPUs' mode.",
        "kataManager": "Kata manager. Deprecated; ignored since release 26.7.",
        "cdi": "Container Device Interface.",
        "psa": "Pod Security Admission: label the operator's namespace as privileged.",
        "psp": "Deprecated and ignored: use psa.",
        "hostPaths": "Where things are on the nodes.",
    },
    "Condition": {
        "type": "Ready or Error.",
        "status": "Whether the condition holds.",
        "reason": "The cause as one CamelCase word.",
        "message": "The cause for people.",
        "lastTransitionTime": "When status last changed.",
        "observedGeneration": "Generation of the policy that this condition is about.",
    },
    "ClusterPolicyStatus": {
        "state": "ready, notReady, or ignored: another ClusterPolicy is in force.",
        "namespace": "Namespace of the operator and its operands.",
        "conditions": "Ready and Error, each with its cause.",
    },
}


def of(struct: type, name: str) -> str | None:
    """The meaning of a field, looked up in the Struct and then in its bases; ``None`` if there is none."""
    for base in struct.__mro__:
        text = _TABLE.get(base.__name__, {}).get(name)
        if text is not None:
            return text
    return None


def defined() -> list[tuple[str, str]]:
    """All (Struct name, field name) pairs that have a text."""
    return [(struct, name) for struct, texts in _TABLE.items() for name in texts]
