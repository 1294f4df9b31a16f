"""DaemonSets of a contract case: making one, and waiting for what it says of itself."""

from __future__ import annotations

from typing import Any

from contract.ctrl_plane import Document, Plane, counts

NAME = "d"
LABELS = f"app={NAME}"
HASH = "controller-revision-hash"
GENERATION = "pod-template-generation"
STATUS = (
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
    "numberMisscheduled",
)


def make(plane: Plane, *, image: str = "x:1", strategy: Document | None = None, **more: Any) -> Document:
    """A DaemonSet on the case's nodes; `more` are fields of its spec, or of the pod's with the prefix `pod_`."""
    pod = {key.removeprefix("pod_"): more.pop(key) for key in list(more) if key.startswith("pod_")}
    template = plane.template(NAME, **pod)
    template["spec"]["containers"][0]["image"] = image
    spec: Document = {"selector": {"matchLabels": {"app": NAME}}, "template": template, **more}
    if strategy is not None:
        spec["updateStrategy"] = strategy
    return plane.make("daemonsets", NAME, spec=spec)


def rolling(**limits: Any) -> Document:
    """The update strategy RollingUpdate."""
    return {"type": "RollingUpdate", "rollingUpdate": limits}


ON_DELETE: Document = {"type": "OnDelete"}


def says(plane: Plane, *wanted: int) -> None:
    """Wait until the status, in the order of `STATUS`, holds these numbers for the present generation."""

    def look() -> bool:
        found = plane.read("daemonsets", NAME)
        seen = counts(found, *STATUS)
        assert seen == wanted, f"{seen} is not {wanted}"
        return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])

    plane.until(look, "the DaemonSet's status")


def pods(plane: Plane, *shorts: str) -> dict[str, Document]:
    """Wait until exactly these nodes have a pod that is not going; the pods by node."""

    def look() -> bool:
        found = plane.by_node(LABELS)
        assert sorted(found) == sorted(shorts), f"pods on {sorted(found)}, not on {sorted(shorts)}"
        assert len(plane.owned(LABELS)) == len(shorts)
        return True

    plane.until(look, "daemon pods")
    return plane.by_node(LABELS)


def run_all(plane: Plane) -> None:
    """Mark every bound pod that is not going as running and ready."""
    for pod in plane.by_node(LABELS).values():
        plane.runs(pod["metadata"]["name"])


def set_image(plane: Plane, image: str) -> Document:
    """Change the template."""
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]
    return plane.api.patch(plane.path("daemonsets", NAME), change, "application/json-patch+json").ok()


def image(pod: Document) -> str:
    """The image a pod runs."""
    return str(pod["spec"]["containers"][0]["image"])


def images(plane: Plane) -> dict[str, str]:
    """The images that run, by node."""
    return {short: image(pod) for short, pod in plane.by_node(LABELS).items()}


def revisions(plane: Plane) -> list[Document]:
    """The DaemonSet's history, oldest number first."""
    return sorted(plane.list("controllerrevisions", LABELS), key=lambda revision: int(revision["revision"]))


def going(plane: Plane) -> list[str]:
    """The short names of the nodes whose daemon pods are being deleted."""
    return sorted(
        pod["spec"]["nodeName"].removeprefix(f"{plane.space}-")
        for pod in plane.list("pods", LABELS)
        if pod["metadata"].get("deletionTimestamp")
    )


def finish(plane: Plane) -> None:
    """Finish the deletion of every daemon pod that is going."""
    for pod in plane.list("pods", LABELS):
        if pod["metadata"].get("deletionTimestamp"):
            plane.ends(pod["metadata"]["name"])
