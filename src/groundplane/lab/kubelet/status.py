"""A pod's status, computed from what is known of its containers: a pure function.

Phase, conditions and container states follow the kubelet: a pod is Pending while init containers are not done or a
container has never started, Running when all have started, Succeeded or Failed when all have ended for good.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..amounts import exact as amount
from ..clock import rfc3339
from .runtime import Process

Document = dict[str, Any]
LOG_TAIL_BYTES = 2048


class Waiting(NamedTuple):
    """Why a container does not run now."""

    reason: str
    message: str = ""

    def document(self) -> Document:
        """The state as the API has it."""
        return {"reason": self.reason, **({"message": self.message} if self.message else {})}


class ContainerFacts(NamedTuple):
    """What the kubelet knows of one container. `done` means it has ended and will not be started again."""

    spec: Mapping[str, Any]
    process: Process | None
    previous: Process | None
    waiting: Waiting | None
    ready: bool
    started: bool
    done: bool

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that keeps running."""
        return self.spec.get("restartPolicy") == "Always"


def container_status(facts: ContainerFacts) -> Document:
    """One entry of `containerStatuses` or `initContainerStatuses`."""
    process = facts.process
    document: Document = {
        "name": facts.spec["name"],
        "image": facts.spec["image"],
        "imageID": "",
        "ready": facts.ready,
        "started": facts.started,
        "restartCount": process.attempt if process else 0,
        "state": {},
        "lastState": {},
    }
    if process is None:
        document["state"] = {"waiting": (facts.waiting or Waiting("ContainerCreating")).document()}
        return document
    document["imageID"] = f"{process.image}@sha256:lab"
    document["containerID"] = f"containerd://{process.id}"
    last = facts.previous
    if process.running:
        document["state"] = {"running": {"startedAt": rfc3339(process.started_at)}}
    elif facts.waiting is not None:
        document["state"] = {"waiting": facts.waiting.document()}
        last = process
    else:
        document["state"] = terminated(process)
    if last is not None:
        document["lastState"] = terminated(last)
    return document


def terminated(process: Process) -> Document:
    """The state of a container that has ended."""
    document: Document = {
        "exitCode": process.exit_code,
        "reason": process.reason,
        "startedAt": rfc3339(process.started_at),
        "finishedAt": rfc3339(process.finished_at or process.started_at),
        "containerID": f"containerd://{process.id}",
    }
    if process.message:
        document["message"] = process.message
    return {"terminated": document}


def phase(inits: Sequence[ContainerFacts], mains: Sequence[ContainerFacts]) -> str:
    """The pod's phase."""
    if any(fact.done and not fact.sidecar and _failed(fact) for fact in inits):
        return "Failed"
    if not all(_init_passed(fact) for fact in inits):
        return "Pending"
    if mains and all(fact.done for fact in mains):
        return "Failed" if any(_failed(fact) for fact in mains) else "Succeeded"
    return "Pending" if any(fact.process is None for fact in mains) else "Running"


def _failed(fact: ContainerFacts) -> bool:
    return fact.process is not None and fact.process.exit_code != 0


def _init_passed(fact: ContainerFacts) -> bool:
    return fact.started if fact.sidecar else fact.done and not _failed(fact)


def conditions(
    inits: Sequence[ContainerFacts], mains: Sequence[ContainerFacts], pod_phase: str, *, sandbox: bool
) -> list[tuple[str, bool, str, str]]:
    """Type, truth, reason and message of each condition the kubelet sets."""
    incomplete = [fact.spec["name"] for fact in inits if not _init_passed(fact)]
    unready = [fact.spec["name"] for fact in (*[f for f in inits if f.sidecar], *mains) if not fact.ready]
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(pod_phase)
    not_ready = "" if not unready else f"containers with unready status: [{' '.join(unready)}]"
    reason = ended or "ContainersNotReady"
    result = [
        ("PodReadyToStartContainers", sandbox and not ended, "", ""),
        (
            "Initialized",
            not incomplete,
            ended or "ContainersNotInitialized" if incomplete or ended else "",
            f"containers with incomplete status: [{' '.join(incomplete)}]" if incomplete else "",
        ),
    ]
    ready = not unready and not ended
    judgement = (ready, "" if ready else reason, "" if ready or ended else not_ready)
    return [*result, ("Ready", *judgement), ("ContainersReady", *judgement), ("PodScheduled", True, "", "")]


def merge_conditions(
    old: Sequence[Mapping[str, Any]], new: Sequence[tuple[str, bool, str, str]], now: str
) -> list[Document]:
    """The new conditions, with the time of the last change kept where nothing changed; foreign ones stay."""
    before = {condition["type"]: condition for condition in old}
    merged: list[Document] = []
    for kind, truth, reason, message in new:
        state = "True" if truth else "False"
        known = before.pop(kind, {})
        since = known.get("lastTransitionTime", now) if known.get("status") == state else now
        entry: Document = {"type": kind, "status": state, "lastProbeTime": None, "lastTransitionTime": since}
        entry |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
        merged.append(entry)
    return merged + [dict(condition) for condition in before.values()]


def qos_class(spec: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, by the containers' requests and limits of cpu and memory."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    sets = [(c.get("resources") or {}) for c in containers]
    pairs = [(s.get("requests") or {}, s.get("limits") or {}) for s in sets]
    kinds = ("cpu", "memory")
    if not any(kind in part for pair in pairs for part in pair for kind in kinds):
        return "BestEffort"
    guaranteed = all(
        kind in limits and amount(str(requests.get(kind, limits[kind]))) == amount(str(limits[kind]))
        for requests, limits in pairs
        for kind in kinds
    )
    return "Guaranteed" if guaranteed else "Burstable"


class PodFacts(NamedTuple):
    """What the kubelet knows of a pod besides its containers."""

    spec: Mapping[str, Any]
    old_status: Mapping[str, Any]
    host_ip: str
    pod_ip: str
    started_at: datetime
    sandbox: bool
    now: str


def pod_status(pod: PodFacts, inits: Sequence[ContainerFacts], mains: Sequence[ContainerFacts]) -> Document:
    """The whole status of a pod that was admitted."""
    pod_phase = phase(inits, mains)
    status: Document = {
        "phase": pod_phase,
        "conditions": merge_conditions(
            pod.old_status.get("conditions") or (),
            conditions(inits, mains, pod_phase, sandbox=pod.sandbox),
            pod.now,
        ),
        "hostIP": pod.host_ip,
        "hostIPs": [{"ip": pod.host_ip}],
        "startTime": rfc3339(pod.started_at),
        "qosClass": qos_class(pod.spec),
        "containerStatuses": [container_status(fact) for fact in mains],
    }
    if pod.pod_ip:
        status |= {"podIP": pod.pod_ip, "podIPs": [{"ip": pod.pod_ip}]}
    if inits:
        status["initContainerStatuses"] = [container_status(fact) for fact in inits]
    return status


def rejected_status(old: Mapping[str, Any], reason: str, message: str, now: str) -> Document:
    """The status of a pod that the kubelet refused to run."""
    kept = {key: old[key] for key in ("conditions", "qosClass") if key in old}
    return {**kept, "phase": "Failed", "reason": reason, "message": message, "startTime": now}
