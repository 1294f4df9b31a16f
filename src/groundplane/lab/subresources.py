"""Subresources: status and finalize, scale, eviction, binding, tokens, and the review kinds that are answered,
not stored.
"""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from . import access, objects, resources, selectors, status
from .objects import Document
from .resources import Resource
from .status import Cause

if TYPE_CHECKING:
    from .api import Api, Options

SCALE_VERSION = "autoscaling/v1"
_BUDGETS = resources.POD_DISRUPTION_BUDGETS
_TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_BUDGET_TEXT = "Cannot evict pod as it would violate the pod's disruption budget."


def confine(res: Resource, before: Document, document: Document, subresource: str) -> Document:
    """Return the update with everything put back that this endpoint does not change."""
    if subresource == "status":
        result = {**before, "metadata": before["metadata"] if res.custom else document["metadata"]}
        result["metadata"] = {k: v for k, v in result["metadata"].items() if k != "managedFields"}
        if res.stored_as is None and "status" in document:
            result["status"] = document["status"]
        elif "status" not in document:
            result.pop("status", None)
        return result
    if subresource == "finalize":
        meta = {k: v for k, v in before["metadata"].items() if k != "managedFields"}
        return {**before, "metadata": meta, "spec": document.get("spec", {})}
    if "status" not in res.subresources:
        return document
    result = {key: value for key, value in document.items() if key != "status"}
    if res is resources.NAMESPACES and "spec" in before:
        result["spec"] = before["spec"]
    if "status" in before:
        result["status"] = before["status"]
    return result


# --- scale -----------------------------------------------------------------------------------------------------


def _read(document: Document, path: str) -> Any:
    value: Any = document
    for key in path.lstrip(".").split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def scale_of(api: Api, res: Resource, document: Document) -> Document:
    """Return the Scale of an object."""
    if res.scale is None:
        raise status.no_such_path()
    spec_path, status_path, selector_path = res.scale
    meta = document["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    state: Document = {"replicas": _read(document, status_path) or 0}
    selector = _read(document, selector_path) if res.custom and selector_path else _selector_text(document)
    if selector:
        state["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": SCALE_VERSION,
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if (replicas := _read(document, spec_path)) else {},
        "status": state,
    }


def _selector_text(document: Document) -> str:
    labels = ((document.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def update_scale(api: Api, res: Resource, before: Document, sent: Document, options: Options) -> Document:
    """Change the replicas of an object through its Scale."""
    if res.scale is None:
        raise status.no_such_path()
    replicas = (sent.get("spec") or {}).get("replicas", 0)
    name, space = before["metadata"]["name"], before["metadata"].get("namespace")
    if not isinstance(replicas, int) or replicas < 0:
        cause = objects.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise status.invalid("Scale", "autoscaling", name, [cause])
    objects.check_preconditions(res, name, before, sent.get("metadata") or {})
    body: Any = replicas
    for key in reversed(res.scale[0].lstrip(".").split(".")):
        body = {key: body}
    return scale_of(api, res, api.patch(res, name, body, ns=space, type="merge", options=options))


# --- pods ------------------------------------------------------------------------------------------------------


def bind(api: Api, name: str, ns: str, node: str) -> Document:
    """Set a pod's node, once."""
    old = api.stored(resources.PODS, name, ns)
    spec = old.document["spec"]
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise status.conflict("pods/binding", "", name, why)
    if old.document["metadata"].get("deletionTimestamp"):
        raise status.conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    now = objects.timestamp(api.clock.now())
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    state = {key: value for key, value in old.document.get("status", {}).items() if key != "nominatedNodeName"}
    conditions = [item for item in state.get("conditions") or [] if item["type"] != "PodScheduled"]
    revision = api.store.next_revision()
    document = {
        **old.document,
        "metadata": {**old.document["metadata"], "resourceVersion": str(revision)},
        "spec": {**spec, "nodeName": node},
        "status": {**state, "conditions": [*conditions, scheduled]},
    }
    return api.store.put(resources.PODS.storage, old.key, document, revision).document


def check_budgets(api: Api, pod: Document, *, dry_run: bool) -> None:
    """Take one disruption from the pod's budget; raises the 429 when there is none left."""
    state = pod.get("status", {})
    if state.get("phase") in ("Succeeded", "Failed", "Pending") or pod["metadata"].get("deletionTimestamp"):
        return
    meta = pod["metadata"]
    found = [item.document for item in api.select(_BUDGETS, meta["namespace"]) if _covers(item.document, meta)]
    if len(found) > 1:
        raise status.StatusError(500, "", _TWO_BUDGETS)
    if not found or _spares(found[0], pod):
        return
    budget = found[0]
    left = budget.get("status", {})
    name = budget["metadata"]["name"]
    if left.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        cause = Cause("DisruptionBudget", f"The disruption budget {name} is still being processed by the server.")
        raise status.too_many_requests(_BUDGET_TEXT, retry_after_s=10, causes=[cause])
    if left.get("disruptionsAllowed", 0) <= 0:
        healthy, wanted = left.get("currentHealthy", 0), left.get("desiredHealthy", 0)
        text = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
        raise status.too_many_requests(_BUDGET_TEXT, causes=[Cause("DisruptionBudget", text)])
    if dry_run:
        return
    now = objects.timestamp(api.clock.now())
    disrupted = {**(left.get("disruptedPods") or {}), meta["name"]: now}
    change = {"status": {"disruptionsAllowed": left["disruptionsAllowed"] - 1, "disruptedPods": disrupted}}
    api.patch(
        _BUDGETS, name, change, ns=meta["namespace"], type="merge", subresource="status", manager="kube-apiserver"
    )


def _spares(budget: Document, pod: Document) -> bool:
    """Whether a pod that is not ready may go without counting: always, or while enough others are healthy."""
    conditions = pod.get("status", {}).get("conditions") or []
    if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    healthy, wanted = (budget.get("status", {}).get(name, 0) for name in ("currentHealthy", "desiredHealthy"))
    return bool(healthy >= wanted > 0)


def note_eviction(api: Api, pod: Document) -> None:
    """Say in a pod's status that it goes because it was evicted."""
    meta, state = pod["metadata"], pod.get("status", {})
    said = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": objects.timestamp(api.clock.now()),
    }
    others = [each for each in state.get("conditions") or [] if each["type"] != said["type"]]
    document = {**pod, "status": {**state, "conditions": [*others, said]}}
    api.update(resources.PODS, document, ns=meta["namespace"], subresource="status", manager="kube-apiserver")


def _covers(budget: Document, meta: Document) -> bool:
    selector = selectors.from_object(budget["spec"].get("selector"))
    return selector is not None and selector.matches(meta.get("labels"))


# --- tokens and reviews -----------------------------------------------------------------------------------------

TOKEN_PREFIX = "lab."


def token(api: Api, name: str, ns: str, request: Document) -> Document:
    """Answer a TokenRequest for a service account. The token names its account and expiry; it is not signed."""
    account = api.get(resources.SERVICE_ACCOUNTS, name, ns)
    spec = dict(request.get("spec") or {})
    seconds = spec.setdefault("expirationSeconds", 3600)
    if seconds < 600:
        cause = objects.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        raise status.invalid("TokenRequest", "authentication.k8s.io", "", [cause])
    spec.setdefault("audiences", ["https://kubernetes.default.svc.cluster.local"])
    expires = objects.timestamp(api.clock.now() + timedelta(seconds=seconds))
    content = {"sub": f"system:serviceaccount:{ns}:{name}", "uid": account["metadata"]["uid"], "exp": expires}
    text = TOKEN_PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": ns, "creationTimestamp": objects.timestamp(api.clock.now())},
        "spec": spec,
        "status": {"token": text, "expirationTimestamp": expires},
    }


def review(api: Api, res: Resource, sent: Document, options: Options) -> Document:
    """Answer a review; nothing is stored."""
    document = {**sent, "kind": res.kind, "apiVersion": res.api_version}
    document.setdefault("metadata", {})
    document["status"] = access.review(api, res, sent, options.user)
    return document
