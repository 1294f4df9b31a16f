"""Workload pods: that a pod on this node can use a GPU is proven by one that does.

contracts/mig-exporter-validator.md 6.5. :func:`document` makes the pod; :func:`run` takes away those of earlier
validations, creates it and waits until it has succeeded. It stays, for a person to look at, until the next validation
or until the validator's owner is deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...api import names
from . import layers
from .context import Context
from .errors import NotReady, ValidationError
from .settings import Settings

OWNER: Final = "nvidia-operator-validator"
"""The DaemonSet whose tolerations and owner the pods have, and the service account that they run as."""
WAIT_S: Final = 300.0
"""How long a pod may take (60 looks, 5 s apart)."""
PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
LAST_PAUSE_S: Final = 5.0
"""Seconds between the first looks, and between all others: on a healthy node the pod is done within one or two."""
MANAGEMENT_DEVICES: Final = f"{names.MANAGEMENT_CDI_KIND}=all"
_SUCCEEDED: Final = "Succeeded"


class Kind(msgspec.Struct, frozen=True):
    """One of the two workload pods: its ``app``, the container that checks, and whether that is given one GPU."""

    app: str
    check: str
    allocates: bool
    done: str


CUDA: Final = Kind("nvidia-cuda-validator", "cuda-validation", False, "CUDA works on this node")
PLUGIN: Final = Kind("nvidia-device-plugin-validator", "plugin-validation", True, "a pod was given a GPU and used it")


# --- the pod ----------------------------------------------------------------------------------------------------------


class Owner(msgspec.Struct, frozen=True):
    """What the pod takes over from the validator's DaemonSet."""

    references: Sequence[Mapping[str, Any]] = ()
    tolerations: Sequence[Mapping[str, Any]] = ()


def document(kind: Kind, settings: Settings, owner: Owner, resource: str = "") -> dict[str, Any]:
    """The pod; ``resource`` is what it is given one of, if its kind is given any."""
    metadata: dict[str, Any] = {
        "generateName": f"{kind.app}-",
        "namespace": settings.namespace,
        "labels": {"app": kind.app},
        "ownerReferences": list(owner.references),
    }
    if not kind.allocates:
        metadata["annotations"] = {f"{names.NRI_CDI_ANNOTATION}/container.{kind.check}": MANAGEMENT_DEVICES}
    spec: dict[str, Any] = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": OWNER,
        "nodeName": settings.node,
        "tolerations": list(owner.tolerations),
        "initContainers": [_check(kind, settings, resource)],
        "containers": [
            _container(
                kind.app,
                settings,
                f"echo {kind.done}",
                securityContext={"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
            )
        ],
    }
    if settings.pod.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pod.pull_secrets]
    if settings.pod.runtime_class:
        spec["runtimeClassName"] = settings.pod.runtime_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _check(kind: Kind, settings: Settings, resource: str) -> dict[str, Any]:
    """The container that adds vectors; what it prints last stands in its state if it fails."""
    last_words = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    if kind.allocates:
        amounts = {resource: "1"}
        return _container(
            kind.check,
            settings,
            "vectorAdd",
            securityContext={"allowPrivilegeEscalation": False},
            resources={"requests": amounts, "limits": amounts},
            **last_words,
        )
    return _container(
        kind.check,
        settings,
        "vectorAdd",
        env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        securityContext={"privileged": True},
        **last_words,
    )


def _container(name: str, settings: Settings, script: str, **more: Any) -> dict[str, Any]:
    pull = {"imagePullPolicy": settings.pod.pull_policy} if settings.pod.pull_policy else {}
    return {"name": name, "image": settings.pod.image, **pull, "command": ["sh", "-c"], "args": [script], **more}


# --- running it -------------------------------------------------------------------------------------------------------


class _Terminated(msgspec.Struct):
    exitCode: int = 0
    reason: str = ""
    message: str = ""


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    name: str
    state: _State = msgspec.field(default_factory=_State)
    lastState: _State = msgspec.field(default_factory=_State)


class _PodStatus(msgspec.Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""
    initContainerStatuses: list[_ContainerStatus] | None = None
    containerStatuses: list[_ContainerStatus] | None = None


class _PodMeta(msgspec.Struct):
    name: str = ""


class _Pod(msgspec.Struct):
    metadata: _PodMeta = msgspec.field(default_factory=_PodMeta)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _OwnerMeta(msgspec.Struct):
    ownerReferences: list[dict[str, Any]] | None = None


class _TemplateSpec(msgspec.Struct):
    tolerations: list[dict[str, Any]] | None = None


class _Template(msgspec.Struct):
    spec: _TemplateSpec = msgspec.field(default_factory=_TemplateSpec)


class _DaemonSetSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class _DaemonSet(msgspec.Struct):
    metadata: _OwnerMeta = msgspec.field(default_factory=_OwnerMeta)
    spec: _DaemonSetSpec = msgspec.field(default_factory=_DaemonSetSpec)


async def run(context: Context, kind: Kind) -> None:
    """Run the pod on this node, until it has succeeded. Raises :class:`~.errors.ValidationError`."""
    settings = context.settings
    if not settings.node or not settings.pod.image:
        name = "VALIDATOR_IMAGE" if settings.node else "NODE_NAME"
        raise ValidationError(f"{name} must be given for a workload pod; or set WITH_WORKLOAD=false to do without one")
    owner = await _owner(context)
    resource = await _resource(context) if kind.allocates else ""
    await _clear(context, kind)
    async with context.api(f"creating a pod {kind.app}") as client:
        from ...cluster import kinds

        created = await client.create(kinds.POD, document(kind, settings, owner, resource))
    name = str(created["metadata"]["name"])
    given = f", given one {resource}" if resource else ""
    context.process.log.info(f"Created pod {settings.namespace}/{name} on node {settings.node}{given}")
    await _wait(context, kind, name)


async def _owner(context: Context) -> Owner:
    from ...cluster import kinds

    namespace = context.settings.namespace
    async with context.api(f"reading DaemonSet {namespace}/{OWNER}, whose owner the workload pod has") as client:
        found = await client.get(kinds.DAEMON_SET, OWNER, namespace, view=_DaemonSet)
    return Owner(found.metadata.ownerReferences or (), found.spec.template.spec.tolerations or ())


async def _resource(context: Context) -> str:
    """The resource that the pod is given one of: of a MIG profile, if the node has any.

    After MIG was changed the kubelet still counts what there was, and takes some seconds to offer what there is now.
    """
    process = context.process
    for attempt in range(1, layers.TRIES + 1):
        node = await context.node("the workload pod")
        if found := layers.gpu_resources(node.status.allocatable):
            return next(iter(found))
        context.note("allocatable", f"No GPU is allocatable yet; resources: {layers.listed(node.status.allocatable)}")
        if attempt < layers.TRIES:
            await process.sleep(layers.TRY_S)
    raise NotReady(
        f"node {context.settings.node} has no allocatable GPU, after {layers.TRIES} looks; its resources: "
        f"{layers.listed(node.status.allocatable)}",
        "a GPU that the device plugin offers as healthy; see its pod on this node",
    )


async def _clear(context: Context, kind: Kind) -> None:
    """Delete the pods of earlier validations on this node, every one."""
    from ...cluster import errors, kinds

    settings = context.settings
    label, field = f"app={kind.app}", f"spec.nodeName={settings.node}"
    async with context.api(f"deleting earlier pods {kind.app}") as client:
        for pod in (await client.list(kinds.POD, settings.namespace, labels=label, fields=field, view=_Pod)).items:
            try:
                await client.delete(kinds.POD, pod.metadata.name, settings.namespace, grace_period_s=0)
            except errors.NotFound:
                continue
            context.process.log.info(f"Deleted pod {settings.namespace}/{pod.metadata.name} of an earlier validation")


async def _wait(context: Context, kind: Kind, name: str) -> None:
    from ...cluster import kinds

    process, namespace = context.process, context.settings.namespace
    pauses, deadline = _pauses(), process.monotonic() + WAIT_S
    while True:
        async with context.api(f"looking for pod {namespace}/{name}") as client:
            pod = await client.get(kinds.POD, name, namespace, view=_Pod)
        if pod.status.phase == _SUCCEEDED:
            process.log.info(f"Pod {namespace}/{name} has succeeded: {kind.done}")
            return
        context.note("pod", f"Pod {namespace}/{name} is {told(pod.status)}")
        pause = next(pauses)
        if process.monotonic() + pause > deadline:
            raise NotReady(
                f"pod {namespace}/{name} has not succeeded within {WAIT_S:g} s: it is {told(pod.status)}",
                f"its success; read the log of its container {kind.check}",
            )
        await process.sleep(pause)


def _pauses() -> Iterator[float]:
    yield from PAUSES_S
    while True:
        yield LAST_PAUSE_S


def told(status: _PodStatus) -> str:
    """How a pod is: its phase, and of each container that waits or has failed, why."""
    parts = [status.phase or "not started", *filter(None, (status.reason, status.message))]
    for each in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ())):
        waiting = each.state.waiting
        failed = next((s for s in (each.state.terminated, each.lastState.terminated) if s and s.exitCode), None)
        if failed is not None:
            parts.append(
                f"container {each.name} ended with code {failed.exitCode}: {failed.message.strip() or failed.reason}"
            )
        elif waiting is not None and waiting.reason not in ("", "PodInitializing"):
            parts.append(f"container {each.name} waits ({waiting.reason}): {waiting.message.strip()}".rstrip(": "))
    return "; ".join(parts)
