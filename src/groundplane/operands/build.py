"""The parts that all operand modules share, so that each of them is a list of facts.

Environment variables, mounts and host volumes are written in the notation of
contracts/control-plane.md section 9, so that a module can be compared with it line by line::

    NODE_NAME<-spec.nodeName          an environment variable from a field of the pod
    COMPONENT=driver                  a literal one
    host-root:/host:ro:H              a mount; ro, propagation B(idirectional) or H(ostToContainer)
    script:/bin/run.sh:ro sub=run.sh  a mount of one file of a volume
    run-nvidia=/run/nvidia(DC)        a host volume; D(irectory), DC DirectoryOrCreate, F(ile), - untyped

:func:`daemon_set` is the frame of 4.3, :func:`finish` turns any object into the plain document that is
applied. Objects are lightkube models until then. Nothing here knows a particular operand.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from lightkube.models.apps_v1 import DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet
from lightkube.models.core_v1 import (
    Affinity,
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    ContainerPort,
    EmptyDirVolumeSource,
    EnvVar,
    EnvVarSource,
    HostPathVolumeSource,
    KeyToPath,
    Lifecycle,
    LocalObjectReference,
    ObjectFieldSelector,
    PodSecurityContext,
    PodSpec,
    PodTemplateSpec,
    Probe,
    ResourceRequirements,
    SecurityContext,
    SELinuxOptions,
    Service,
    ServicePort,
    ServiceSpec,
    Toleration,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta, OwnerReference

from ..api import clusterpolicy as cp
from ..api import names
from ..api.release import Release
from . import images, scripts
from .errors import problem
from .facts import ClusterFacts

Manifest = dict[str, Any]
"""A finished Kubernetes object: plain, without nulls, ready to be applied."""


class Model(Protocol):
    """A lightkube model of a whole object."""

    metadata: ObjectMeta | None

    def to_dict(self) -> Manifest:
        """The object as a plain document, unset fields left out."""


# --- Reading a policy -------------------------------------------------------------------------------------------------
def on(value: bool | None, default: bool = False) -> bool:
    """A switch of the policy; ``default`` is what an unset one means (contract 1.2, "code enabled when nil")."""
    return default if value is None else value


def cdi_on(spec: cp.ClusterPolicySpec) -> bool:
    """CDI is on unless switched off (since 25.10; contract 5.1)."""
    return on(spec.cdi.enabled, True)


def nri_on(spec: cp.ClusterPolicySpec) -> bool:
    """The toolkit's NRI plugin injects devices, so no RuntimeClass is needed."""
    return on(spec.cdi.nriPluginEnabled)


def runtime_class(spec: cp.ClusterPolicySpec) -> str:
    """Name of the RuntimeClass, and of the containerd handler, of GPU pods."""
    return spec.operator.runtimeClass or "nvidia"


def install_dir(spec: cp.ClusterPolicySpec) -> str:
    """Where the toolkit is installed, on the host and in its container alike."""
    return spec.toolkit.installDir or names.TOOLKIT_INSTALL_DIR


def cdi_hook(spec: cp.ClusterPolicySpec) -> str:
    """Host path of the CDI hook that the toolkit installs."""
    return f"{install_dir(spec)}/toolkit/nvidia-cdi-hook"


def kubelet_root(spec: cp.ClusterPolicySpec) -> str:
    """The kubelet's state folder on the host."""
    return (spec.hostPaths.kubeletRootDir or names.KUBELET_ROOT).rstrip("/")


T = TypeVar("T")


def typed(model: type[T], value: Any, where: str) -> T:
    """A pass-through fragment of the policy as a model; RenderError naming ``where`` when it does not fit."""
    try:
        return msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        raise problem(f"{where}: {error}") from error


# --- Environment ------------------------------------------------------------------------------------------------------
def env(*rows: str) -> list[EnvVar]:
    """A container's environment from rows ``NAME=value`` and ``NAME<-fieldPath``, in order."""
    return [_env_row(row) for row in rows]


_ENV_ROW: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(=|<-)(.*)", re.DOTALL)


def _env_row(row: str) -> EnvVar:
    match = _ENV_ROW.fullmatch(row)
    if match is None:
        raise ValueError(f"not an environment row (NAME=value or NAME<-fieldPath): {row!r}")
    name, kind, rest = match.groups()
    if kind == "=":
        return EnvVar(name=name, value=rest)
    return EnvVar(name=name, valueFrom=EnvVarSource(fieldRef=ObjectFieldSelector(fieldPath=rest)))


def set_env(variables: list[EnvVar], name: str, value: str) -> None:
    """Overwrite ``name`` where it stands, or append it (contract 1.1)."""
    _put_env(variables, EnvVar(name=name, value=value))


def _put_env(variables: list[EnvVar], wanted: EnvVar) -> None:
    for index, variable in enumerate(variables):
        if variable.name == wanted.name:
            variables[index] = wanted
            return
    variables.append(wanted)


def set_all(variables: list[EnvVar], *rows: str) -> None:
    """:func:`set_env` for rows ``NAME=value``."""
    for row in rows:
        name, _, value = row.partition("=")
        set_env(variables, name, value)


class UserEnvVar(EnvVar):
    """A variable that the policy's author wrote; :func:`rewrite_host_paths`, which comes later, leaves it alone."""


def user_env(variables: list[EnvVar], user: Iterable[cp.EnvVar] | None) -> None:
    """Lay the policy's variables over ``variables``."""
    for variable in user or ():
        _put_env(variables, UserEnvVar(name=variable.name, value=variable.value or ""))


def hook_env(variables: list[EnvVar], spec: cp.ClusterPolicySpec) -> None:
    """Say where the toolkit installs the CDI hook; nothing when the toolkit is off (contract 4.4)."""
    if on(spec.toolkit.enabled, True):
        set_env(variables, "NVIDIA_CDI_HOOK_PATH", cdi_hook(spec))


def get_env(variables: Iterable[EnvVar], name: str) -> str:
    """The literal value of ``name``, empty when unset or not literal."""
    return next((variable.value or "" for variable in variables if variable.name == name), "")


# --- Mounts and volumes -----------------------------------------------------------------------------------------------
_PROPAGATION: Final = {"B": "Bidirectional", "H": "HostToContainer"}
_MOUNT_ROW: Final = re.compile(r"([a-z0-9.-]+):([^:\s]+)(:ro)?(?::([BH]))?(?: sub=(\S+))?")

HOST_PATH_TYPES: Final[Mapping[str, str | None]] = {
    "-": None,
    "D": "Directory",
    "DC": "DirectoryOrCreate",
    "F": "File",
    "FC": "FileOrCreate",
    "C": "CharDevice",
}
_VOLUME_ROW: Final = re.compile(r"([a-z0-9.-]+)=([^()]+)\(([A-Z]+|-)\)")


def mounts(*rows: str) -> list[VolumeMount]:
    """A container's mounts from rows ``volume:path[:ro][:B|H][ sub=subPath]``, in order."""
    return [_mount_row(row) for row in rows]


def _mount_row(row: str) -> VolumeMount:
    match = _MOUNT_ROW.fullmatch(row)
    if match is None:
        raise ValueError(f"not a mount row (volume:path[:ro][:B|H][ sub=subPath]): {row!r}")
    name, path, read_only, propagation, sub_path = match.groups()
    return VolumeMount(
        name=name,
        mountPath=path,
        readOnly=True if read_only else None,
        mountPropagation=_PROPAGATION[propagation] if propagation else None,
        subPath=sub_path,
    )


def host_volumes(*rows: str) -> list[Volume]:
    """Host volumes from rows ``name=path(type)``, in order."""
    return [_volume_row(row) for row in rows]


def _volume_row(row: str) -> Volume:
    match = _VOLUME_ROW.fullmatch(row)
    if match is None or match[3] not in HOST_PATH_TYPES:
        raise ValueError(f"not a host volume row (name=path(type)): {row!r}")
    return host_volume(match[1], match[2], HOST_PATH_TYPES[match[3]])


def host_volume(name: str, path: str, kind: str | None = None) -> Volume:
    """A host volume; ``kind`` is Kubernetes' hostPath type, None for no check."""
    return Volume(name=name, hostPath=HostPathVolumeSource(path=path, type=kind))


def config_volume(
    name: str, config_map: str = "", *, mode: int | None = None, items: Mapping[str, str] | None = None
) -> Volume:
    """A volume of a ConfigMap (named as the volume by default); ``items`` maps keys to file names."""
    return Volume(
        name=name,
        configMap=ConfigMapVolumeSource(
            name=config_map or name,
            defaultMode=mode,
            items=[KeyToPath(key=key, path=path) for key, path in items.items()] if items else None,
        ),
    )


def empty_volume(name: str) -> Volume:
    """A scratch volume that lives as long as the pod."""
    return Volume(name=name, emptyDir=EmptyDirVolumeSource())


# --- Containers -------------------------------------------------------------------------------------------------------
def privileged(flags: str = "") -> SecurityContext:
    """A privileged security context; flags as the contract writes them: ``U0`` run as root, ``S0`` SELinux level."""
    known = set(flags.split())
    if unknown := known - {"U0", "S0"}:
        raise ValueError(f"unknown security flags: {sorted(unknown)}")
    return SecurityContext(
        privileged=True,
        runAsUser=0 if "U0" in known else None,
        seLinuxOptions=SELinuxOptions(level="s0") if "S0" in known else None,
    )


def container(
    name: str,
    image: str,
    *,
    pull: str | None,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Sequence[EnvVar] = (),
    mounts: Sequence[VolumeMount] = (),
    ports: Sequence[ContainerPort] = (),
    security: SecurityContext | str | None = "",
    liveness: Probe | None = None,
    readiness: Probe | None = None,
    startup: Probe | None = None,
    lifecycle: Lifecycle | None = None,
    resources: cp.JSON | None = None,
) -> Container:
    """A container; ``pull`` is the policy's imagePullPolicy.

    ``security`` is a context, the flags of a privileged one, or None for no context at all.
    """
    return Container(
        name=name,
        image=image,
        imagePullPolicy=images.pull_policy(pull),
        command=list(command) or None,
        args=list(args) or None,
        env=list(env) or None,
        volumeMounts=list(mounts) or None,
        ports=list(ports) or None,
        securityContext=privileged(security) if isinstance(security, str) else security,
        livenessProbe=liveness,
        readinessProbe=readiness,
        startupProbe=startup,
        lifecycle=lifecycle,
        resources=requirements(resources),
    )


def requirements(resources: cp.JSON | None, where: str = "resources") -> ResourceRequirements | None:
    """Pod resources of a section; None when it sets none."""
    return typed(ResourceRequirements, resources, where) if resources else None


def timed(probe: Probe, override: cp.ContainerProbe | None) -> Probe:
    """``probe`` with the timing of the policy; zero or unset keeps its own (contract 1.3)."""
    if override is None:
        return probe
    given = {key: value for key, value in msgspec.structs.asdict(override).items() if value}
    return msgspec.structs.replace(probe, **given)


def validator_image(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> str:
    """The image of the validator and of every ``*-validation`` init container."""
    return images.resolve(spec.validator, "spec.validator", "VALIDATOR_IMAGE", facts.default_images)


def validation(
    spec: cp.ClusterPolicySpec,
    facts: ClusterFacts,
    name: str,
    *,
    script: str = "nvidia-validator",
    env: Sequence[EnvVar] = (),
    component: cp.ComponentEnv | None = None,
    mounts: Sequence[VolumeMount],
    security: str = "U0",
) -> Container:
    """A ``*-validation`` init container: the validator's image running ``sh -c <script>`` as root.

    ``component`` is the policy's section of environment variables for this check.
    """
    variables = list(env)
    user_env(variables, component.env if component else None)
    return container(
        name,
        validator_image(spec, facts),
        pull=spec.validator.imagePullPolicy,
        command=("sh", "-c"),
        args=(script,),
        env=variables,
        mounts=mounts,
        security=security,
        resources=init_resources(facts, spec.validator.resources),
    )


def init_resources(facts: ClusterFacts, resources: cp.JSON | None) -> cp.JSON | None:
    """A section's resources as they apply to init containers: only since 26.7 (contract 1.1)."""
    return None if facts.release is Release.V26_3 else resources


def wait_for(path: str, *, what: str) -> str:
    """A shell loop that ends when ``path`` is a file; it looks every five seconds, and gives up when asked to stop.

    A shell that is a container's first process ignores SIGTERM unless it traps it.
    """
    return f"{scripts.STOP_WHEN_ASKED}; until [ -f {path} ]; do echo 'waiting for {what}'; sleep 5; done"


def toolkit_wait(spec: cp.ClusterPolicySpec, facts: ClusterFacts, mount: str) -> Container:
    """The init container that holds a pod back until the toolkit was validated on its node (contract 9.1)."""
    return validation(
        spec,
        facts,
        "toolkit-validation",
        script=wait_for(f"{names.VALIDATIONS_DIR}/toolkit-ready", what="the container toolkit"),
        component=spec.validator.toolkit,
        mounts=mounts(mount),
    )


# --- The DaemonSet frame (contract 4.3) -------------------------------------------------------------------------------
GPU_TOLERATION: Final = {"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
PRIORITY_CLASS: Final = "system-node-critical"
NRI_ANNOTATION: Final = f"{names.NRI_CDI_ANNOTATION}/container."
NRI_ALL_GPUS: Final = f"{names.MANAGEMENT_CDI_KIND}=all"
DRIVER_DAEMON_SET: Final = "nvidia-driver-daemonset"


def daemon_set(
    spec: cp.ClusterPolicySpec,
    *,
    name: str,
    account: str,
    node_selector: Mapping[str, str],
    containers: Sequence[Container],
    volumes: Sequence[Volume] = (),
    init: Sequence[Container] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    template_annotations: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    pull_secrets: Iterable[str] = (),
    resources: cp.JSON | None = None,
    host_pid: bool = False,
    host_ipc: bool = False,
    host_network: bool = False,
    runtime_class_name: str | None = None,
    affinity: Affinity | None = None,
    grace_period_s: int | None = None,
    automount_token: bool | None = None,
    share_processes: bool = False,
    on_delete: bool = False,
) -> DaemonSet:
    """A DaemonSet with what every operand's pod has: labels, tolerations, priority, update strategy, host paths.

    ``labels`` are added to ``app: <name>`` on object and template; ``selector`` is ``app`` alone unless
    given and must be part of them. ``resources`` go to every main container. ``pull_secrets`` are
    de-duplicated in order.
    """
    own_labels = {"app": name, **(labels or {})}
    chosen = dict(selector) if selector is not None else {"app": name}
    shared = spec.daemonsets
    for each in containers:
        each.resources = requirements(resources) or each.resources
    pod = PodSpec(
        containers=list(containers),
        initContainers=list(init) or None,
        volumes=list(volumes) or None,
        nodeSelector=dict(node_selector),
        serviceAccountName=account,
        priorityClassName=shared.priorityClassName or PRIORITY_CLASS,
        tolerations=tolerations(spec),
        securityContext=_pod_security(spec),
        imagePullSecrets=pull_secret_refs(pull_secrets),
        hostPID=host_pid or None,
        hostIPC=host_ipc or None,
        hostNetwork=host_network or None,
        dnsPolicy="ClusterFirstWithHostNet" if host_network else None,
        runtimeClassName=runtime_class_name,
        affinity=affinity,
        terminationGracePeriodSeconds=grace_period_s,
        automountServiceAccountToken=automount_token,
        shareProcessNamespace=share_processes or None,
    )
    rewrite_host_paths(pod, spec.hostPaths)
    user_labels = _template_labels(shared.labels or {}, own_labels, chosen)
    user_annotations = shared.annotations or {}
    return DaemonSet(
        metadata=ObjectMeta(
            name=name,
            labels={**own_labels, **(shared.labels or {})},
            annotations={**(annotations or {}), **user_annotations} or None,
        ),
        spec=DaemonSetSpec(
            selector=LabelSelector(matchLabels=chosen),
            template=PodTemplateSpec(
                metadata=ObjectMeta(
                    labels={**own_labels, **user_labels},
                    annotations={**(template_annotations or {}), **user_annotations} or None,
                ),
                spec=pod,
            ),
            updateStrategy=_update_strategy(spec, on_delete=on_delete or name.startswith(DRIVER_DAEMON_SET)),
        ),
    )


def _template_labels(given: Mapping[str, str], own: Mapping[str, str], selector: Mapping[str, str]) -> dict[str, str]:
    """The policy's labels as far as pods may carry them (contract 4.1).

    Kept out are selector keys, and whatever would move a pod in or out of the driver pods' anti-affinity: that a node
    runs one driver pod rests on ``app.kubernetes.io/component``, which no other pod may share and no driver pod lose.
    """
    protected = {"app", names.PART_OF_LABEL, *selector}
    if names.COMPONENT_LABEL in own or given.get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT:
        protected.add(names.COMPONENT_LABEL)
    return {key: value for key, value in given.items() if key not in protected}


def tolerations(spec: cp.ClusterPolicySpec) -> list[Toleration]:
    """The policy's tolerations, or the one for ``nvidia.com/gpu`` when it has none (contract 4.3)."""
    given = spec.daemonsets.tolerations or [GPU_TOLERATION]
    return [typed(Toleration, each, f"spec.daemonsets.tolerations[{index}]") for index, each in enumerate(given)]


def _pod_security(spec: cp.ClusterPolicySpec) -> PodSecurityContext | None:
    given = spec.daemonsets.podSecurityContext
    return typed(PodSecurityContext, given, "spec.daemonsets.podSecurityContext") if given else None


def pull_secret_refs(secrets: Iterable[str]) -> list[LocalObjectReference] | None:
    """References to image pull secrets, each once, in order; None when there are none."""
    return [LocalObjectReference(name=name) for name in dict.fromkeys(secrets)] or None


def secrets_of(*sections: cp.ImageSpec) -> list[str]:
    """The pull secrets of several sections, in order, each once."""
    return list(dict.fromkeys(name for section in sections for name in section.imagePullSecrets or ()))


def _update_strategy(spec: cp.ClusterPolicySpec, *, on_delete: bool) -> DaemonSetUpdateStrategy:
    shared = spec.daemonsets
    if on_delete or shared.updateStrategy == "OnDelete":
        return DaemonSetUpdateStrategy(type="OnDelete")
    limit = shared.rollingUpdate.maxUnavailable
    if not limit:
        return DaemonSetUpdateStrategy(type="RollingUpdate")
    return DaemonSetUpdateStrategy(
        type="RollingUpdate", rollingUpdate=RollingUpdateDaemonSet(maxUnavailable=_int_or_percent(limit))
    )


def _int_or_percent(limit: str) -> int | str:
    if re.fullmatch(r"[0-9]+%", limit):
        return limit
    if re.fullmatch(r"[0-9]{1,9}", limit):
        return int(limit)
    raise problem(
        f"spec.daemonsets.rollingUpdate.maxUnavailable: expected a number such as '1' or a percentage such as '10%', "
        f"found {limit!r}"
    )


def rewrite_host_paths(pod: PodSpec, paths: cp.HostPaths) -> None:
    """Follow ``hostPaths.rootFS`` and ``hostPaths.driverInstallDir`` in a pod (contract 4.4).

    Variables that say so go before the user's and yield to them, so that these may refer to them.
    """
    by_name = {volume.name: volume.hostPath for volume in pod.volumes or () if volume.hostPath}
    init = pod.initContainers or []
    root = paths.rootFS or "/"
    if root != "/":
        if dev_char := by_name.get("host-dev-char"):
            dev_char.path = f"{root.rstrip('/')}/dev/char"
        if host_root := by_name.get("host-root"):
            host_root.path = root
            for each in (*init, *pod.containers):
                _set_container_env(each, HOST_ROOT=root)
    driver = paths.driverInstallDir or names.DRIVER_ROOT
    if driver != names.DRIVER_ROOT and (volume := by_name.get("driver-install-dir")):
        volume.path = driver
        for each in init:
            if each.name == "driver-validation":
                _set_container_env(each, DRIVER_INSTALL_DIR=driver, DRIVER_INSTALL_DIR_CTR_PATH=driver)
                for mount in each.volumeMounts or ():
                    if mount.name == "driver-install-dir":
                        mount.mountPath = driver


def _set_container_env(target: Container, **values: str) -> None:
    variables = list(target.env or ())
    own = [variable for variable in variables if not isinstance(variable, UserEnvVar)]
    users = {variable.name for variable in variables} - {variable.name for variable in own}
    for name, value in values.items():
        if name in users:
            continue
        if any(variable.name == name for variable in own):
            set_env(variables, name, value)
        else:
            first = next((i for i, each in enumerate(variables) if isinstance(each, UserEnvVar)), len(variables))
            variables.insert(first, EnvVar(name=name, value=value))
    target.env = variables


def gpu_runtime_class(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> str | None:
    """``runtimeClassName`` of pods that use a GPU; None where devices come another way (contract 4.3)."""
    if nri_on(spec) or (facts.runtime == "crio" and not cdi_on(spec)):
        return None
    return runtime_class(spec)


def nri_annotation(spec: cp.ClusterPolicySpec, container_name: str) -> dict[str, str]:
    """The template annotation by which the NRI plugin gives one container all GPUs; empty without NRI."""
    return {NRI_ANNOTATION + container_name: NRI_ALL_GPUS} if nri_on(spec) else {}


# --- Other objects ----------------------------------------------------------------------------------------------------
def config_map(name: str, data: Mapping[str, str], labels: Mapping[str, str] | None = None) -> ConfigMap:
    """A ConfigMap in the operator's namespace."""
    return ConfigMap(metadata=ObjectMeta(name=name, labels=dict(labels) if labels else None), data=dict(data))


def service(
    name: str,
    port: ServicePort,
    *,
    scrape: bool = True,
    selector: Mapping[str, str] | None = None,
    kind: str | None = None,
    traffic_policy: str | None = None,
) -> Service:
    """A Service ``name`` with the label and, unless told otherwise, the selector ``app: <name>`` (contract 9.10)."""
    return Service(
        metadata=ObjectMeta(
            name=name,
            labels={"app": name},
            annotations={"prometheus.io/scrape": "true"} if scrape else None,
        ),
        spec=ServiceSpec(
            selector=dict(selector or {"app": name}),
            ports=[port],
            type=kind or "ClusterIP",
            internalTrafficPolicy=traffic_policy,
        ),
    )


# --- Finishing --------------------------------------------------------------------------------------------------------
CLUSTER_SCOPED: Final = frozenset({"ClusterRole", "ClusterRoleBinding", "RuntimeClass", "SecurityContextConstraints"})


def finish(obj: Model | Manifest, state: str, facts: ClusterFacts) -> Manifest:
    """The plain document that is applied: namespaced, owned by the policy, labelled with its state, no nulls."""
    document = without_nulls(obj if isinstance(obj, dict) else obj.to_dict())
    metadata = document.setdefault("metadata", {})
    if document["kind"] not in CLUSTER_SCOPED:
        metadata["namespace"] = facts.namespace
    metadata["labels"] = {**metadata.get("labels", {}), names.STATE_LABEL: state}
    if owner := facts.owner:
        metadata["ownerReferences"] = [
            OwnerReference(
                apiVersion=owner.api_version,
                kind=owner.kind,
                name=owner.name,
                uid=owner.uid,
                controller=True,
                blockOwnerDeletion=True,
            ).to_dict()
        ]
    identity = {key: document.pop(key) for key in ("apiVersion", "kind", "metadata")}
    return {**identity, **document}


def without_nulls(value: Any) -> Any:
    """A copy of ``value`` without the mapping entries that are None."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value
