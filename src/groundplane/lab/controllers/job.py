"""The Job controller: pods run until enough of them have succeeded or too many have failed.

Every pod carries the tracking finalizer until its end is counted, so that none is lost or counted twice. Non-indexed
and indexed completion, `backoffLimit`, `activeDeadlineSeconds`, `suspend` and `ttlSecondsAfterFinished` are kept;
`podFailurePolicy`, `successPolicy` and per-index back-off limits are not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..resources import JOBS, PODS
from . import objects
from .cache import same
from .events import NORMAL, WARNING
from .loop import Loop
from .objects import Doc, Key, Obj
from .shared import PodControl, Shared, from_template

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_ENV = "JOB_COMPLETION_INDEX"
DEFAULT_BACKOFF_LIMIT = 6
FIRST_BACKOFF_S, LAST_BACKOFF_S = 10.0, 600.0
"""Between a pod's failure and its replacement, in cluster seconds; doubled with each failure."""


class Verdict(NamedTuple):
    """Why a Job is over: its final condition."""

    condition: str
    reason: str
    message: str


INTERIM: Mapping[str, str] = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}
"""What a Job says between the decision that it is over and the end of its last pod, by its final condition."""


def decided(status: Doc) -> Verdict | None:
    """The verdict that a Job's status already holds, if it does."""
    for final, interim in INTERIM.items():
        for each in status.get("conditions") or ():
            if each["type"] == interim and each["status"] == "True":
                return Verdict(final, each["reason"], each["message"])
    return None


def ended(job: Doc) -> bool:
    """Whether a Job is Complete or Failed."""
    found = (objects.condition(job, kind) for kind in ("Complete", "Failed"))
    return any(each is not None and each.get("status") == "True" for each in found)


def pods_wanted(spec: Doc, succeeded: int, running: int) -> int:
    """How many pods should run now, given how many have succeeded and how many run."""
    parallelism = int(spec.get("parallelism", 1))
    completions = spec.get("completions")
    if completions is None:
        return running if succeeded else parallelism
    return min(parallelism, max(0, int(completions) - succeeded))


def verdict(spec: Doc, succeeded: int, failed: int, running: int, running_for_s: float | None) -> Verdict | None:
    """Whether these numbers end a Job, and how."""
    if failed > int(spec.get("backoffLimit", DEFAULT_BACKOFF_LIMIT)):
        return Verdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and running_for_s is not None and running_for_s >= deadline:
        return Verdict("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    completions = spec.get("completions")
    enough = succeeded > 0 and not running if completions is None else succeeded >= int(completions)
    if enough:
        return Verdict("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
    return None


def format_indexes(indexes: Sequence[int]) -> str:
    """Completed indexes as the status has them: "0,2-4"."""
    runs: list[list[int]] = []
    for index in sorted(set(indexes)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_indexes(text: str) -> list[int]:
    """The inverse of `format_indexes`."""
    found: list[int] = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def index_of(pod: Doc) -> int | None:
    """The completion index of a pod, None if it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX)
    return int(text) if text is not None else None


class JobController:
    """Keeps every Job's pods."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._jobs = shared.owned(JOBS)
        self._recorder = shared.events("job-controller")
        self._control = PodControl(shared, self._recorder, JOBS)
        self._by_uid: dict[str, Key] = {}
        self._retry_at: dict[str, float] = {}
        self.loop: Loop[Key] = Loop("job", self._reconcile, shared.clock)
        self._jobs.subscribe(self._job_changed)
        shared.pods.subscribe(self._pod_changed)

    def _job_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and new is None:
            self._by_uid.pop(objects.uid(old), None)
            self._retry_at.pop(objects.uid(old), None)
            for pod in self._shared.pods.by_owner[objects.uid(old)]:
                self.loop.add(objects.key(pod))
        if new is not None and not same(old, new, "metadata.generation", "metadata.deletionTimestamp"):
            self._by_uid[objects.uid(new)] = objects.key(new)
            self.loop.add(objects.key(new))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        for pod in (old, new):
            if pod is None:
                continue
            key = self._by_uid.get(objects.controller_uid(pod))
            if key is not None:
                self.loop.add(key)
            elif pod is new and FINALIZER in (pod["metadata"].get("finalizers") or ()):
                self.loop.add(objects.key(pod))

    def _reconcile(self, key: Key) -> None:
        job = self._jobs.at(key)
        if job is not None:
            self._sync(job)
        pod = self._shared.pods.at(key)
        if pod is not None and objects.controller_uid(pod) not in self._by_uid:
            self._untrack(pod)

    def _untrack(self, pod: Obj) -> None:
        finalizers = pod["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            kept = [each for each in finalizers if each != FINALIZER]
            self._shared.edit_metadata(PODS, pod, finalizers=kept or None)

    # --- one Job ------------------------------------------------------------------------------------------------------

    def _sync(self, job: Obj) -> None:
        pods = self._pods(job)
        if ended(job) or objects.deleting(job):
            for pod in pods:
                self._untrack(pod)
            if ended(job) and not objects.deleting(job):
                self._expire(job)
            return
        status = dict(job.get("status") or {})
        self._count_ended(job, pods, status)
        running = [pod for pod in pods if objects.active(pod)]
        if job["spec"].get("suspend"):
            self._suspend(job, running, status)
        else:
            self._run(job, running, status)
        self._report(job, status)
        for pod in pods:
            if not objects.active(pod):
                self._untrack(pod)

    def _pods(self, job: Obj) -> list[Obj]:
        pods = self._shared.pods
        candidates = [*pods.by_owner[objects.uid(job)], *pods.orphans[job["metadata"]["namespace"]]]
        return self._shared.claim(pods, job, JOBS, job["spec"].get("selector"), candidates)

    def _count_ended(self, job: Obj, pods: Sequence[Obj], status: Obj) -> None:
        """Count pods that have ended, or are going, and still carry the finalizer."""
        indexes = parse_indexes(status.get("completedIndexes") or "")
        for pod in pods:
            if objects.active(pod) or FINALIZER not in (pod["metadata"].get("finalizers") or ()):
                continue
            index = index_of(pod)
            if objects.phase(pod) == "Succeeded":
                if index in indexes:
                    continue
                status["succeeded"] = int(status.get("succeeded") or 0) + 1
                indexes.extend([index] if index is not None else [])
            else:
                failed = int(status.get("failed") or 0) + 1
                status["failed"] = failed
                pause = min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failed - 1, 16))
                self._retry_at[objects.uid(job)] = self._shared.clock.monotonic() + pause
        if indexes:
            status["completedIndexes"] = format_indexes(indexes)

    def _suspend(self, job: Obj, running: Sequence[Obj], status: Obj) -> None:
        for pod in running:
            self._control.delete(job, pod)
            self._untrack_later(pod)
        status.pop("startTime", None)
        self._condition(job, status, "Suspended", "True", "JobSuspended", "Job suspended")
        self._numbers(job, status, [])

    def _untrack_later(self, pod: Obj) -> None:
        """A pod stopped by us, not by its own end, is no failure: it is let go uncounted."""
        present = self._shared.pods.at(objects.key(pod))
        if present is not None:
            self._untrack(present)

    def _run(self, job: Obj, running: list[Obj], status: Obj) -> None:
        spec, clock = job["spec"], self._shared.clock
        if "startTime" not in status:
            status["startTime"] = clock.timestamp()
        suspended = next((each for each in status.get("conditions") or () if each["type"] == "Suspended"), None)
        if suspended is not None and suspended["status"] == "True":
            self._condition(job, status, "Suspended", "False", "JobResumed", "Job resumed")
        running_for_s = clock.since(status["startTime"])
        numbers = int(status.get("succeeded") or 0), int(status.get("failed") or 0)
        over = decided(status) or verdict(spec, *numbers, len(running), running_for_s)
        if over is not None:
            self._finish(job, running, status, over)
            return
        if spec.get("activeDeadlineSeconds") is not None:
            self.loop.add_after(objects.key(job), max(1.0, spec["activeDeadlineSeconds"] - running_for_s))
        self._numbers(job, status, self._match(job, running, pods_wanted(spec, numbers[0], len(running)), status))

    def _match(self, job: Obj, running: list[Obj], wanted: int, status: Obj) -> list[Obj]:
        """Start or stop pods so that as many run as wanted; returns those that run."""
        surplus = running[wanted:]
        for pod in surplus:
            self._control.delete(job, pod)
            self._untrack_later(pod)
        running = running[:wanted]
        pause = self._retry_at.get(objects.uid(job), 0.0) - self._shared.clock.monotonic()
        if len(running) < wanted and pause > 0:
            self.loop.add_after(objects.key(job), pause)
            return running
        for index in self._free_indexes(job, running, wanted - len(running), status):
            made = self._control.create(job, self._pod(job, index))
            if made is None:
                break
            running.append(made)
        return running

    def _free_indexes(self, job: Obj, running: Sequence[Obj], count: int, status: Obj) -> list[int | None]:
        if job["spec"].get("completionMode") != "Indexed":
            return [None] * count
        taken = {*parse_indexes(status.get("completedIndexes") or ""), *(index_of(pod) for pod in running)}
        free = [index for index in range(int(job["spec"].get("completions") or 0)) if index not in taken]
        return list(free[:count])

    def _pod(self, job: Obj, index: int | None) -> Obj:
        name = job["metadata"]["name"]
        pod = from_template(job["spec"]["template"], f"{name}-" if index is None else f"{name}-{index}-")
        pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", ()), FINALIZER]
        if index is None:
            return pod
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), INDEX: str(index)}
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], INDEX: str(index)}
        pod["spec"] = {**pod["spec"], "hostname": f"{name}-{index}", **_with_index(pod["spec"])}
        return pod

    def _finish(self, job: Obj, running: Sequence[Obj], status: Obj, over: Verdict) -> None:
        """End a Job: its pods are stopped first, and only when none is left does it say that it is over.

        Pods of a Job that has failed are failures too; those that a successful one does not need are not counted.
        """
        for pod in running:
            self._control.delete(job, pod)
            self._untrack_later(pod)
        if over.condition == "Failed" and running:
            status["failed"] = int(status.get("failed") or 0) + len(running)
        self._retry_at.pop(objects.uid(job), None)
        self._numbers(job, status, [])
        self._condition(job, status, INTERIM[over.condition], "True", over.reason, over.message)
        if status["terminating"]:
            return
        self._condition(job, status, over.condition, "True", over.reason, over.message)
        about = self._control.reference(job)
        if over.condition == "Complete":
            status["completionTime"] = self._shared.clock.timestamp()
            self._recorder.event(about, NORMAL, "Completed", "Job completed")
        else:
            self._recorder.event(about, WARNING, over.reason, over.message)

    def _expire(self, job: Obj) -> None:
        """Delete a finished Job when its time to live is over."""
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        over = next(found for kind in ("Complete", "Failed") if (found := objects.condition(job, kind)) is not None)
        left = ttl - self._shared.clock.since(over["lastTransitionTime"])
        if left > 0:
            self.loop.add_after(objects.key(job), left)
        else:
            self._shared.delete(JOBS, job, propagation="Foreground")

    # --- status -------------------------------------------------------------------------------------------------------

    def _numbers(self, job: Obj, status: Obj, running: Sequence[Doc]) -> None:
        numbers = {"active": len(running), "ready": sum(objects.ready(pod) for pod in running)}
        for name, value in numbers.items():
            if value or name == "ready":
                status[name] = value
            else:
                status.pop(name, None)
        status["uncountedTerminatedPods"] = {}
        pods = self._shared.pods.by_owner[objects.uid(job)]
        status["terminating"] = sum(objects.deleting(pod) and not objects.finished(pod) for pod in pods)

    def _condition(self, job: Obj, status: Obj, kind: str, value: str, reason: str, message: str) -> None:
        now = self._shared.clock.timestamp()
        new: Mapping[str, Any] = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastProbeTime": now,
        }
        known = next((each for each in status.get("conditions") or () if each["type"] == kind), None)
        if known is None or known["status"] != value:
            status["conditions"] = objects.set_conditions(status.get("conditions") or (), new, now)
            if kind == "Suspended":
                reason = "Suspended" if value == "True" else "Resumed"
                self._recorder.event(self._control.reference(job), NORMAL, reason, message)

    def _report(self, job: Obj, status: Obj) -> None:
        present = self._jobs.at(objects.key(job))
        if present is not None and objects.uid(present) == objects.uid(job):
            written = self._shared.set_status(JOBS, present, status)
            if ended(written):
                self.loop.add(objects.key(job))


def _with_index(spec: Doc) -> dict[str, list[Obj]]:
    env = {"name": INDEX_ENV, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}
    return {
        group: [{**container, "env": [*(container.get("env") or ()), env]} for container in spec[group]]
        for group in ("initContainers", "containers")
        if spec.get(group)
    }
