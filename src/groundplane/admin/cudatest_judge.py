"""What a CUDA test's pod says: why it does not start, how it ended, and whether what it printed is right.

Pure: the pod, its events and its log go in, a finding comes out. Each is told in the layer that it is about
(contracts/admin-workflow.md 7): Pending is the scheduler's, a container that cannot start the runtime's, CUDA's errors
the driver's or the fabric's.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ..api import names
from ..diagnose.evidence import moment
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object
from ..operator import causes
from .cudatest_plan import NodeTest
from .verify_view import finding

TOKENS: Final = ("Test PASSED", "Done")
LOG_LINES: Final = 8
"""Lines of a log that are shown, its last ones."""
BUSY: Final = re.compile(r"Insufficient nvidia\.com/")


class Times(NamedTuple):
    """Seconds by the cluster's clock, a second exact: until scheduled, until started (pull included), until the end.

    ``pull`` is the kubelet's own figure where it pulled. None: not told.
    """

    schedule: float | None
    pull: float | None
    start: float | None
    run: float | None

    def __str__(self) -> str:
        parts = zip(("scheduled in", "pulled in", "started in", "ran"), self, strict=True)
        return ", ".join(f"{word} {value:.0f} s" for word, value in parts if value is not None)


class CudaError(NamedTuple):
    """An error as programs print it, the layer it is about, and what to do."""

    text: re.Pattern[str]
    layer: Layer
    cause: str
    fix: str
    action: Action


def _error(text: str, layer: Layer, cause: str, fix: str, action: Action) -> CudaError:
    return CudaError(re.compile(text, re.IGNORECASE), layer, cause, fix, action)


ERRORS: Final = (
    _error(
        r"driver version is insufficient",
        Layer.DRIVER,
        "the image's CUDA is newer than the driver runs, or no driver is in the container (S08)",
        "use an image of an older CUDA (--image), or upgrade the driver",
        Action.UPGRADE_COMPONENT,
    ),
    _error(
        r"system not yet initialized|SYSTEM_NOT_READY",
        Layer.FABRIC,
        "the fabric of an NVSwitch machine is not up: the fabric manager does not run (S29)",
        "see the fabric manager: nvidia-smi -q | grep -A3 Fabric, and its log on the node",
        Action.CHANGE_CONFIG,
    ),
    _error(
        r"no CUDA-capable device|CUDA_ERROR_NO_DEVICE|No devices were found",
        Layer.RUNTIME,
        "the container has no GPU: the runtime did not bring it in, or its device nodes are denied",
        "see the toolkit's pod and the runtime's configuration on the node",
        Action.CHANGE_CONFIG,
    ),
    _error(
        r"libcuda\.so|libnvidia-ml\.so|nvidia-smi: (?:command )?not found|NVML library",
        Layer.RUNTIME,
        "the driver's libraries are not in the container: the runtime injects none",
        "see the toolkit's pod, the runtime's configuration and the CDI specs on the node",
        Action.CHANGE_CONFIG,
    ),
    _error(
        r"version mismatch",
        Layer.DRIVER,
        "the driver's libraries are of another version than its kernel module",
        "reload the driver: delete its pod, or reboot the node",
        Action.DRAIN_AND_REBOOT,
    ),
    _error(
        r"uncorrectable|ECC|GPU is lost|Unable to determine the device handle",
        Layer.HARDWARE,
        "the GPU has a fault",
        "read the kernel log for Xid errors, then reset the GPU or reboot the node",
        Action.HARDWARE_INSPECTION,
    ),
    _error(
        r"couldn't communicate with the NVIDIA driver|not initialized|initialization error",
        Layer.DRIVER,
        "the driver is not loaded, or not whole",
        "see the driver's pod on the node",
        Action.RESTART_POD,
    ),
)
"""What programs print when CUDA fails, the most telling first."""


def times(pod: Object, events: Iterable[Object]) -> Times:
    """How long each part took."""
    created = _seconds(pod["metadata"].get("creationTimestamp"))
    status = pod.get("status") or {}
    scheduled = next(
        (
            _seconds(each.get("lastTransitionTime"))
            for each in status.get("conditions") or ()
            if each.get("type") == "PodScheduled" and each.get("status") == "True"
        ),
        None,
    )
    ended = _terminated(pod)
    started, finished = _seconds(ended.get("startedAt")), _seconds(ended.get("finishedAt"))
    pulled = (re.search(r"pulled image .* in (\d+(?:\.\d+)?)(ms|s)\b", str(each.get("message"))) for each in events)
    pull = next((float(each[1]) / (1000 if each[2] == "ms" else 1) for each in pulled if each), None)
    return Times(_between(created, scheduled), pull, _between(scheduled, started), _between(started, finished))


def _seconds(stamp: Any) -> float | None:
    return moment(str(stamp)) if stamp else None


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)


def _terminated(pod: Object) -> Mapping[str, Any]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if ended := (status.get("state") or {}).get("terminated"):
            found: Mapping[str, Any] = ended
            return found
    return {}


def over(pod: Object) -> bool:
    """Whether a pod has ended."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def unschedulable(pod: Object) -> str:
    """What the scheduler says of a pod that it found no place for; empty if it says nothing, or has found one."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return str(each.get("message") or each.get("reason") or "no reason given")
    return ""


def stuck(pod: Object) -> tuple[str, str] | None:
    """Reason and message of a container that will not start by waiting; None while there is hope."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason and reason not in causes.STARTING and reason != "ErrImagePull":  # which is tried again at once
            return reason, str(waiting.get("message") or "")
    return None


def pending(test: NodeTest, pod: Object, message: str) -> Finding:
    """A73: the scheduler has no place for the pod."""
    busy = bool(BUSY.search(message))
    return _failed(
        test,
        pod,
        "A73",
        "the test's pod cannot be scheduled" + (": the GPUs of the node are in use or unhealthy" if busy else ""),
        Evidence(f"pod/{pod['metadata']['name']} PodScheduled", message),
        layer=Layer.WORKLOAD,
        cause="the scheduler counts what pods ask for, whether they use it or not" if busy else "",
        fix=("see which pods hold GPUs: kubectl describe node",) if busy else ("mend what the scheduler names",),
    )


def not_started(test: NodeTest, pod: Object, reason: str, message: str, events: Iterable[Object]) -> Finding:
    """A73: the container is not started; its image, or the runtime."""
    image = reason in causes.PULLING
    said = [Evidence(f"pod/{pod['metadata']['name']}", f"{reason}: {causes.short(message)}".rstrip(": "))]
    said += [
        Evidence("event", f"{each.get('reason')}: {causes.short(str(each.get('message')))}")
        for each in _warnings(events)
    ]
    return _failed(
        test,
        pod,
        "A76" if image else "A73",
        "the test's image cannot be pulled" if image else f"the test's container cannot be started ({reason})",
        *said[:3],
        layer=Layer.WORKLOAD if image else Layer.RUNTIME,
        cause="the registry cannot be reached from the node, or asks for credentials" if image else "",
        fix=("give a mirror's image (--image, --smi-image) and its --pull-secret",)
        if image
        else ("see the toolkit's pod and the runtime's configuration on the node: groundplane doctor",),
        action=Action.CHANGE_CONFIG,
    )


def _warnings(events: Iterable[Object]) -> list[Object]:
    return [each for each in events if each.get("type") == "Warning"]


def timed_out(test: NodeTest, pod: Object, events: Iterable[Object], seconds: float) -> Finding:
    """A73: it has not ended in time; what it was at."""
    warnings = _warnings(events)
    if warnings and (pod.get("status") or {}).get("phase") == "Pending":
        return not_started(test, pod, str(warnings[-1].get("reason")), str(warnings[-1].get("message")), warnings[:-1])
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return _failed(
        test,
        pod,
        "A73",
        f"the test's pod has not ended within {seconds:g} s",
        Evidence(f"pod/{pod['metadata']['name']}", f"phase {phase}"),
        layer=Layer.DRIVER if phase == "Running" else Layer.RUNTIME,
        cause="the driver hangs" if phase == "Running" else "the container is not created; pulling may take longer",
        fix=("give more time (--timeout), or see the kernel log for Xid errors",),
    )


def began(test: NodeTest, pod: Object) -> list[Finding]:
    """A72, A73 and A76 of a pod that has ended: it was placed, its image was pulled, and its container has run."""
    told = [("A72", "the test's pod was placed on the node")]
    if _terminated(pod).get("startedAt"):
        told += [("A73", "the test's pod has ended"), ("A76", "the test's image was pulled")]
    return [finding(number, Outcome.PASS, title, node=test.node) for number, title in told]


def vector_add(test: NodeTest, pod: Object, log: str, took: Times) -> Finding:
    """A74: the sum was right: exit code 0 and both of the sample's last words."""
    code = _terminated(pod).get("exitCode")
    missing = [token for token in TOKENS if token not in log]
    if code == 0 and not missing:
        said = Evidence(f"node/{test.node}", f"{_asked(test)}: {took}")
        return finding("A74", Outcome.PASS, "vectorAdd has passed", said, node=test.node)
    return _ended_badly(test, pod, log, "A74", "vectorAdd", f"its log is without {' and '.join(missing)}")


def _asked(test: NodeTest) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in test.limits.items())


def _ended_badly(test: NodeTest, pod: Object, log: str, number: str, what: str, without: str) -> Finding:
    ended = _terminated(pod)
    status = pod.get("status") or {}
    reason = str(ended.get("reason") or status.get("reason") or "")
    if reason in ("StartError", "ContainerCannotRun", "UnexpectedAdmissionError") or (not ended and not log):
        message = str(ended.get("message") or status.get("message") or "")
        return not_started(test, pod, reason or "no container has run", message, ())
    if reason == "DeadlineExceeded":
        return timed_out(test, pod, (), float((pod.get("spec") or {}).get("activeDeadlineSeconds") or 0))
    tail = "\n".join(log.splitlines()[-LOG_LINES:]) or "nothing"
    known = next((each for each in ERRORS if each.text.search(log)), None)
    code = ended.get("exitCode")
    title = f"{what} failed with exit code {code}" if code else f"{what} ended with exit code 0, and {without}"
    return _failed(
        test,
        pod,
        number,
        title,
        Evidence("its log", tail),
        layer=known.layer if known else (Layer.DRIVER if code else Layer.WORKLOAD),
        cause=known.cause if known else ("" if code else "the image is not the CUDA sample"),
        fix=(known.fix,) if known else ("groundplane doctor --node " + test.node,) if code else ("see --image",),
        action=known.action if known else Action.NONE,
    )


class Smi(NamedTuple):
    """What nvidia-smi printed."""

    driver: str
    cuda: str
    uuids: tuple[str, ...]


def parse_smi(log: str) -> Smi:
    """Driver, CUDA version and UUIDs out of ``nvidia-smi`` and ``nvidia-smi -L``; empty where it does not tell."""
    driver = re.search(r"Driver Version: *([\w.]+)", log)
    cuda = re.search(r"CUDA Version: *(\d+\.\d+)", log)
    uuids = dict.fromkeys(re.findall(r"UUID: *((?:GPU|MIG)-[\w/-]+)", log))
    return Smi(driver[1] if driver else "", cuda[1] if cuda else "", tuple(uuids))


def smi(test: NodeTest, pod: Object, log: str, took: Times) -> list[Finding]:
    """A77 and A78: nvidia-smi ended well, shows a GPU and the driver that the node's labels tell of."""
    if _terminated(pod).get("exitCode") != 0:
        return [_ended_badly(test, pod, log, "A77", "nvidia-smi", "")]
    ran = finding("A77", Outcome.PASS, "nvidia-smi has run", Evidence(f"node/{test.node}", str(took)), node=test.node)
    shown = parse_smi(log)
    said = Evidence("nvidia-smi", f"driver {shown.driver or '?'}, CUDA {shown.cuda or '?'}, {', '.join(shown.uuids)}")
    if not shown.driver or not shown.uuids:
        tail = Evidence("its log", "\n".join(log.splitlines()[-LOG_LINES:]) or "nothing")
        return [ran, _failed(test, pod, "A78", "nvidia-smi shows no GPU or no driver", tail, layer=Layer.RUNTIME)]
    told = {
        "driver": (shown.driver, test.labels.get(f"{names.CUDA_DRIVER_VERSION}.full", "")),
        "CUDA": (shown.cuda, test.labels.get(f"{names.CUDA_RUNTIME_VERSION}.full", "")),
    }
    wrong = [
        f"{word} is {has}, the node's label says {label}"
        for word, (has, label) in told.items()
        if has and label and has != label
    ]
    if wrong:
        title = "nvidia-smi shows another driver than the node's labels"
        fix = "restart GPU feature discovery's pod on the node"
        extra: dict[str, Any] = {"cause": "; ".join(wrong), "fix": (fix,), "layer": Layer.LABELS}
        return [ran, _failed(test, pod, "A78", title, said, action=Action.RESTART_POD, **extra)]
    compared = "" if all(label for _, label in told.values()) else "; the node has no labels to compare with"
    title = f"nvidia-smi shows GPU and driver{compared}"
    return [ran, finding("A78", Outcome.PASS, title, said, node=test.node)]


def _failed(test: NodeTest, pod: Object, number: str, title: str, *said: Evidence, **more: Any) -> Finding:
    where = f"{pod['metadata']['name']} -n {pod['metadata'].get('namespace')}"
    more.setdefault("confirm", f"kubectl describe pod {where}  # with --keep")
    return finding(number, Outcome.FAIL, title, *said, node=test.node, **more)
