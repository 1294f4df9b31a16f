"""Stand-in for the validator's workload pods: replaced by groundplane's node/validate (CUDA check)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...api import names
from .. import resources
from ..amounts import exact as amount
from ..programs import ContainerContext
from ..status import StatusError

POLLS, POLL_S = 60, 5.0
OWNER = "nvidia-operator-validator"


class WorkloadError(RuntimeError):
    """The workload pod did not succeed; the text says why."""


class Kind(NamedTuple):
    """One of the two workload pods: its `app` and the name of its init container."""

    app: str
    container: str
    allocates: bool


CUDA = Kind("nvidia-cuda-validator", "cuda-validation", allocates=False)
PLUGIN = Kind("nvidia-device-plugin-validator", "plugin-validation", allocates=True)


def gpu_resources(quantities: Mapping[str, str]) -> dict[str, int]:
    """The GPU resources with at least one device, MIG first."""
    found = {}
    for prefix in ("nvidia.com/mig-", names.GPU_RESOURCE):
        for name, value in quantities.items():
            if name.startswith(prefix) and int(amount(value)) >= 1:
                found[name] = int(amount(value))
    return found


async def run(ctx: ContainerContext, kind: Kind) -> None:
    """Run the pod on this node and wait for its success. WorkloadError if it does not come."""
    namespace = ctx.env.get("OPERATOR_NAMESPACE", ctx.namespace)
    owner = ctx.api.find(resources.DAEMON_SETS, OWNER, namespace)
    if owner is None:
        raise WorkloadError(f"DaemonSet {namespace}/{OWNER} does not exist; the workload pod has the same owner as it")
    for pod in _pods(ctx, kind, namespace):
        _delete(ctx, pod["metadata"]["name"], namespace)
    created = ctx.api.create(resources.PODS, pod_document(ctx, kind, owner), namespace, manager="nvidia-validator")
    name = created["metadata"]["name"]
    for _ in range(POLLS):
        found = ctx.api.find(resources.PODS, name, namespace)
        if found is None:
            raise WorkloadError(f"pod {name} was deleted before it had succeeded")
        if (found.get("status") or {}).get("phase") == "Succeeded":
            return
        if await ctx.stopped(POLL_S):
            break
    raise WorkloadError(f"pod {name} did not succeed in {POLLS * POLL_S:g} s; read its log")


def _pods(ctx: ContainerContext, kind: Kind, namespace: str) -> list[dict[str, Any]]:
    fields = f"spec.nodeName={ctx.node_name}"
    items: list[dict[str, Any]] = ctx.api.list(resources.PODS, namespace, labels=f"app={kind.app}", fields=fields)[
        "items"
    ]
    return items


def _delete(ctx: ContainerContext, name: str, namespace: str) -> None:
    try:
        ctx.api.delete(resources.PODS, name, namespace, grace_period_s=0)
    except StatusError as error:
        if error.code != 404:
            raise


def pod_document(ctx: ContainerContext, kind: Kind, owner: Mapping[str, Any]) -> dict[str, Any]:
    """The workload pod (contracts/mig-exporter-validator.md 6.5); `owner` is the validator's DaemonSet."""
    image = ctx.env.get("VALIDATOR_IMAGE") or str(ctx.container.spec["image"])
    check: dict[str, Any] = {"name": kind.container, "image": image, "command": ["sh", "-c"], "args": ["vectorAdd"]}
    if kind.allocates:
        node = ctx.api.get(resources.NODES, ctx.node_name)
        offered = gpu_resources(node["status"].get("allocatable") or {})
        if not offered:
            raise WorkloadError(f"node {ctx.node_name} has no allocatable GPU")
        resource = next(iter(offered))
        check["resources"] = {"limits": {resource: "1"}, "requests": {resource: "1"}}
        check["securityContext"] = {"allowPrivilegeEscalation": False}
    else:
        check["securityContext"] = {"privileged": True}
        check["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    template = owner["spec"]["template"]["spec"]
    spec: dict[str, Any] = {
        "restartPolicy": "OnFailure",
        "nodeName": ctx.node_name,
        "serviceAccountName": OWNER,
        "tolerations": template.get("tolerations") or [],
        "initContainers": [check],
        "containers": [
            {
                "name": kind.app,
                "image": image,
                "command": ["sh", "-c"],
                "args": ["echo validation has passed"],
                "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
            }
        ],
    }
    if ctx.env.get("VALIDATOR_RUNTIME_CLASS"):
        spec["runtimeClassName"] = ctx.env["VALIDATOR_RUNTIME_CLASS"]
    metadata: dict[str, Any] = {
        "generateName": kind.app + "-",
        "labels": {"app": kind.app},
        "ownerReferences": owner["metadata"].get("ownerReferences") or [],
    }
    if not kind.allocates:
        key = f"{names.NRI_CDI_ANNOTATION}/container.{kind.container}"
        metadata["annotations"] = {key: f"{names.MANAGEMENT_CDI_KIND}=all"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
