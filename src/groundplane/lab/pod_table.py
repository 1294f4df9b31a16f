"""The columns of pods: what `kubectl get pods` says of their state."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from .objects import Document
from .table_cells import age, path, since


def _statuses(pod: Document, key: str) -> list[Document]:
    found: list[Document] = path(pod, "status", key, default=[])
    return found


def ready(pod: Document, now: datetime) -> str:
    """Return ready containers of all, sidecars included."""
    sidecars = {
        c["name"] for c in path(pod, "spec", "initContainers", default=[]) if c.get("restartPolicy") == "Always"
    }
    states = [s for s in _statuses(pod, "initContainerStatuses") if s["name"] in sidecars]
    states += _statuses(pod, "containerStatuses")
    total = len(sidecars) + len(pod["spec"]["containers"])
    return f"{sum(bool(state.get('ready')) for state in states)}/{total}"


def state(pod: Document, now: datetime) -> str:
    """Return the pod's state in a word: its phase, or what its containers are waiting for or ended with."""
    reason = path(pod, "status", "reason") or path(pod, "status", "phase", default="Unknown")
    for condition in path(pod, "status", "conditions", default=[]):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    first = _initializing(pod)
    if first is not None:
        reason = first
    elif not _unfinished(pod):
        reason = _main(pod, str(reason))
    if pod["metadata"].get("deletionTimestamp") and path(pod, "status", "phase") not in ("Succeeded", "Failed"):
        return "Unknown" if path(pod, "status", "reason") == "NodeLost" else "Terminating"
    return str(reason)


def _unfinished(pod: Document) -> bool:
    return _initializing(pod) is not None


def _initializing(pod: Document) -> str | None:
    """Return `Init:...` while init containers are not done."""
    specs = {c["name"]: c for c in path(pod, "spec", "initContainers", default=[])}
    for index, status in enumerate(_statuses(pod, "initContainerStatuses")):
        held = status.get("state") or {}
        ended, waiting = held.get("terminated"), held.get("waiting")
        sidecar = specs.get(status["name"], {}).get("restartPolicy") == "Always"
        if (ended is not None and ended.get("exitCode") == 0) or (sidecar and status.get("started")):
            continue
        if ended is not None:
            return "Init:" + (ended.get("reason") or _exit(ended))
        if waiting is not None and waiting.get("reason") not in (None, "PodInitializing"):
            return "Init:" + str(waiting["reason"])
        return f"Init:{index}/{len(specs)}"
    return None


def _exit(ended: Document) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _main(pod: Document, reason: str) -> str:
    running = False
    for status in reversed(_statuses(pod, "containerStatuses")):
        held = status.get("state") or {}
        waiting, ended = held.get("waiting"), held.get("terminated")
        if waiting is not None and waiting.get("reason"):
            reason = waiting["reason"]
        elif ended is not None:
            reason = ended.get("reason") or _exit(ended)
        elif held.get("running") is not None and status.get("ready"):
            running = True
    if reason == "Completed" and running:
        conditions = path(pod, "status", "conditions", default=[])
        is_ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        return "Running" if is_ready else "NotReady"
    return reason


def restarts(pod: Document, now: datetime) -> str:
    """Return the number of restarts, and how long ago the last was."""
    key = "initContainerStatuses" if _unfinished(pod) else "containerStatuses"
    states = _statuses(pod, key)
    count = sum(item.get("restartCount", 0) for item in states)
    ends = [path(item, "lastState", "terminated", "finishedAt") for item in states]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({since(last, now)} ago)" if count and last else str(count)


def _ip(pod: Document, now: datetime) -> str:
    return str(path(pod, "status", "podIP", default="<none>"))


def _node(pod: Document, now: datetime) -> str:
    return str(path(pod, "spec", "nodeName", default="<none>"))


def _nominated(pod: Document, now: datetime) -> str:
    return str(path(pod, "status", "nominatedNodeName", default="<none>"))


def _gates(pod: Document, now: datetime) -> str:
    gates = [item["conditionType"] for item in path(pod, "spec", "readinessGates", default=[])]
    if not gates:
        return "<none>"
    true = {item["type"] for item in path(pod, "status", "conditions", default=[]) if item["status"] == "True"}
    return f"{sum(gate in true for gate in gates)}/{len(gates)}"


COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("Ready", ready), ("Status", state), ("Restarts", restarts), ("Age", age), ("IP", _ip, "string", 1),
    ("Node", _node, "string", 1), ("Nominated Node", _nominated, "string", 1), ("Readiness Gates", _gates, "string", 1),
)  # fmt: skip
