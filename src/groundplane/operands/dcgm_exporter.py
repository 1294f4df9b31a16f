"""State ``state-dcgm-exporter``: metrics of every GPU, tied to the pod that uses it.

Source: contracts/control-plane.md 1.4, 4.1, 4.3, 4.4, 5.5 and 9.8.
"""

from typing import Final

import msgspec
from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import ContainerPort, EnvVar, HTTPGetAction, Probe, ServicePort, Volume

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec, DcgmExporterSpec
from ..api.release import Release
from . import build, dcgm, images, monitoring, rbac
from .facts import ClusterFacts

STATE: Final = "state-dcgm-exporter"
NAME: Final = "nvidia-dcgm-exporter"
PORT: Final = 9400

ENV: Final = (
    "DCGM_EXPORTER_LISTEN=:9400",
    "DCGM_EXPORTER_KUBERNETES=true",
    "DCGM_EXPORTER_COLLECTORS=/etc/dcgm-exporter/dcp-metrics-included.csv",
    "NODE_NAME<-spec.nodeName",
)
HOST_ENGINE: Final = "DCGM_REMOTE_HOSTENGINE_INFO"
POD_LABELS: Final = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"
POD_UID: Final = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"
VIRTUAL_GPUS: Final = "KUBERNETES_VIRTUAL_GPUS"
POD_LABEL_ALLOWLIST: Final = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
CONFIG_MAP_DATA: Final = "DCGM_EXPORTER_CONFIGMAP_DATA"
METRICS_KEY: Final = "dcgm-metrics.csv"
METRICS_FILE: Final = f"/etc/dcgm-exporter/{METRICS_KEY}"
JOB_MAPPING: Final = "/var/lib/dcgm-exporter/job-mapping"

RECORDINGS: Final = {
    "accelerator_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "accelerator_memory_used_bytes": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "accelerator_memory_total_bytes": "DCGM_FI_DEV_FB_TOTAL",
    "accelerator_power_usage_watts": "DCGM_FI_DEV_POWER_USAGE",
    "accelerator_temperature_celsius": "DCGM_FI_DEV_GPU_TEMP",
    "accelerator_sm_clock_hertz": "DCGM_FI_DEV_SM_CLOCK",
    "accelerator_memory_clock_hertz": "DCGM_FI_DEV_MEM_CLOCK",
}
"""Series that OpenShift's console reads, by the exporter's metric that each is recorded from."""


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless switched off."""
    return build.on(spec.dcgmExporter.enabled, True)


def not_ready(spec: ClusterPolicySpec, facts: ClusterFacts) -> str:
    """Why the state cannot become ready, or empty: 26.3.3 insists on the ServiceMonitor's CRD (5.5)."""
    wanted = build.on(spec.dcgmExporter.serviceMonitor.enabled)
    if wanted and not facts.service_monitor_crd and facts.release is Release.V26_3:
        return (
            "spec.dcgmExporter.serviceMonitor is enabled, but the CRD servicemonitors.monitoring.coreos.com does not "
            "exist; install the Prometheus operator or disable it"
        )
    return ""


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, Service, ServiceMonitor and DaemonSet, and on OpenShift the console's series."""
    section = spec.dcgmExporter
    made = rbac.objects(NAME, facts, cluster=reads_pod_metadata(section))
    made.append(
        build.service(
            NAME,
            ServicePort(name="gpu-metrics", port=PORT, targetPort=PORT, protocol="TCP"),
            kind=section.service.type,
            traffic_policy=section.service.internalTrafficPolicy,
        )
    )
    if build.on(section.serviceMonitor.enabled) and facts.service_monitor_crd:
        made.append(
            monitoring.service_monitor(
                NAME,
                port="gpu-metrics",
                job_label="app",
                namespace=facts.namespace,
                settings=section.serviceMonitor,
            )
        )
    made.append(_daemon_set(spec, facts))
    if facts.openshift:
        made.append(_recordings())
    return [build.finish(each, STATE, facts) for each in made]


def _recordings() -> build.Manifest:
    rules = [{"record": name, "expr": source, "labels": {"vendor": "nvidia"}} for name, source in RECORDINGS.items()]
    group = {"name": "dcgm.accelerator.metrics", "interval": "30s", "rules": rules}
    return monitoring.prometheus_rule(NAME, NAME, [group])


def _user_value(section: DcgmExporterSpec, name: str) -> str:
    """What the user's variables say last of ``name``."""
    return next((each.value or "" for each in reversed(section.env or []) if each.name == name), "")


def reads_pod_metadata(section: DcgmExporterSpec) -> bool:
    """Whether metrics carry pod labels or UIDs, by the policy's fields or by the user's variables.

    Virtual GPUs are told apart by the UIDs of the pods that share one.
    """
    switches = (build.on(section.enablePodLabels), build.on(section.enablePodUID))
    return any(switches) or any(
        _user_value(section, name).lower() == "true" for name in (POD_LABELS, POD_UID, VIRTUAL_GPUS)
    )


def needs_api_access(section: DcgmExporterSpec) -> bool:
    """Whether the exporter talks to the API server, and so needs its account's token."""
    return reads_pod_metadata(section) or _user_value(section, CONFIG_MAP_DATA) not in ("", "none")


class _Mapping(msgspec.Struct, frozen=True):
    """The folder in which a batch system says which job uses which GPU; empty when it is not used."""

    directory: str

    def mounts(self) -> tuple[str, ...]:
        return (f"hpc-job-mapping:{self.directory}:ro",) if self.directory else ()

    def volumes(self) -> list[Volume]:
        return [build.host_volume("hpc-job-mapping", self.directory, "DirectoryOrCreate")] if self.directory else []


def _job_mapping(section: DcgmExporterSpec) -> _Mapping:
    mapping = section.hpcJobMapping
    return _Mapping((mapping.directory or JOB_MAPPING) if build.on(mapping.enabled) else "")


def environment(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[EnvVar]:
    """The exporter's variables; the user's come last and win."""
    section = spec.dcgmExporter
    variables = build.env(*ENV)
    if dcgm.enabled(spec, facts):
        build.set_env(variables, HOST_ENGINE, f"{dcgm.NAME}:{dcgm.PORT}")
    if mapping := _job_mapping(section).directory:
        build.set_env(variables, "DCGM_HPC_JOB_MAPPING_DIR", mapping)
    if build.on(section.enablePodLabels):
        build.set_env(variables, POD_LABELS, "true")
    if build.on(section.enablePodUID):
        build.set_env(variables, POD_UID, "true")
    if section.podLabelAllowlistRegex:
        build.set_env(variables, POD_LABEL_ALLOWLIST, ",".join(section.podLabelAllowlistRegex))
    if section.config.name:
        build.set_env(variables, "DCGM_EXPORTER_COLLECTORS", METRICS_FILE)
    build.user_env(variables, section.env)
    return variables


def _volumes(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[Volume]:
    section = spec.dcgmExporter
    root = names.KUBELET_ROOT if facts.release is Release.V26_3 else build.kubelet_root(spec)
    volumes = [
        build.host_volume("pod-gpu-resources", f"{root}/pod-resources"),
        build.host_volume("run-nvidia", "/run/nvidia"),
        *_job_mapping(section).volumes(),
    ]
    if section.config.name:
        volumes.append(build.config_volume("metrics-config", section.config.name, items={METRICS_KEY: METRICS_KEY}))
    return volumes


def _probe(period_s: int) -> Probe:
    return Probe(
        httpGet=HTTPGetAction(path="/health", port=PORT),
        initialDelaySeconds=45,
        periodSeconds=period_s,
        timeoutSeconds=1,
        failureThreshold=3,
    )


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.dcgmExporter
    variables = environment(spec, facts)
    mounts = [
        "pod-gpu-resources:/var/lib/kubelet/pod-resources:ro",
        *_job_mapping(section).mounts(),
        *((f"metrics-config:{METRICS_FILE}:ro sub={METRICS_KEY}",) if section.config.name else ()),
    ]
    main = build.container(
        NAME,
        images.resolve(section, "spec.dcgmExporter", "DCGM_EXPORTER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        args=section.args or (),
        env=variables,
        mounts=build.mounts(*mounts),
        ports=[ContainerPort(name="metrics", containerPort=PORT)],
        liveness=_probe(5),
        readiness=_probe(10),
    )
    # A host engine on the node itself is reached through the host's loopback, wherever the setting came from.
    engine_on_host = not dcgm.enabled(spec, facts) and build.get_env(variables, HOST_ENGINE).startswith("localhost")
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        annotations={names.OPENSHIFT_SCC: NAME},
        template_annotations={**(section.annotations or {}), **build.nri_annotation(spec, NAME)},
        node_selector={names.DEPLOY_DCGM_EXPORTER: "true"},
        init=[build.toolkit_wait(spec, facts, "run-nvidia:/run/nvidia:H")],
        containers=[main],
        volumes=_volumes(spec, facts),
        pull_secrets=build.secrets_of(section, spec.validator),
        resources=section.resources,
        host_pid=build.on(section.hostPID),
        host_network=build.on(section.hostNetwork) or engine_on_host,
        runtime_class_name=build.gpu_runtime_class(spec, facts),
        automount_token=needs_api_access(section),
    )
