"""The Job controller: pods until enough have succeeded or too many have failed, and the conditions that tell of it."""

from __future__ import annotations

from typing import Any

from contract.ctrl_plane import Document, Plane, condition, counts

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


def job(plane: Plane, **spec: Any) -> Document:
    plane.node("a")
    template = {"metadata": {"labels": {"app": "j"}}, "spec": plane.here(restartPolicy="Never")}
    return plane.make("jobs", "j", spec={"template": template, **spec})


def pods(plane: Plane, number: int) -> list[Document]:
    """Wait until so many pods are bound and neither going nor ended; those pods."""

    def found() -> list[Document]:
        return [
            pod
            for pod in plane.owned("job-name=j")
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Failed", "Succeeded")
        ]

    plane.until(lambda: len(found()) == number, f"{number} pods")
    return found()


def end(plane: Plane, pod: Document, phase: str) -> None:
    plane.report(pod["metadata"]["name"], phase, exit_code=int(phase == "Failed"))


def says(plane: Plane, *wanted: int) -> Document:
    """Wait until active, ready, succeeded and failed are these."""

    def look() -> Document:
        found = plane.read("jobs", "j")
        seen = counts(found, "active", "ready", "succeeded", "failed")
        assert seen == wanted, f"{seen} is not {wanted}"
        return found

    return plane.until(look, "the Job's status")


def over(plane: Plane, kind: str) -> Document:
    """Wait until a Job has this final condition; the Job."""
    plane.until(
        lambda: (condition(plane.read("jobs", "j"), kind) or {}).get("status") == "True", f"the Job to be {kind}"
    )
    return plane.read("jobs", "j")


def verdicts(found: Document) -> list[tuple[str, str, str, str]]:
    return [(each["type"], each["status"], each["reason"], each["message"]) for each in found["status"]["conditions"]]


def test_completes(plane: Plane) -> None:
    made = job(plane)
    (pod,) = pods(plane, 1)
    uid = made["metadata"]["uid"]
    assert pod["metadata"]["generateName"] == "j-"
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert pod["metadata"]["labels"] == {
        "app": "j",
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }
    says(plane, 1, 0, 0, 0)
    plane.runs(pod["metadata"]["name"])
    says(plane, 1, 1, 0, 0)
    end(plane, pod, "Succeeded")
    done = over(plane, "Complete")
    said = "Reached expected number of succeeded pods"
    assert verdicts(done) == [
        ("SuccessCriteriaMet", "True", "CompletionsReached", said),
        ("Complete", "True", "CompletionsReached", said),
    ]
    status = done["status"]
    assert counts(done, "active", "ready", "succeeded", "failed", "terminating") == (0, 0, 1, 0, 0)
    assert status["completionTime"] >= status["startTime"]
    assert status["uncountedTerminatedPods"] == {}
    assert "finalizers" not in plane.read("pods", pod["metadata"]["name"])["metadata"]
    event = plane.until(lambda: next(iter(plane.events("Completed", "j")), None), "the event")
    assert event is not None
    assert (event["type"], event["message"]) == ("Normal", "Job completed")


def test_parallel(plane: Plane) -> None:
    job(plane, completions=3, parallelism=2)
    first, second = pods(plane, 2)
    end(plane, first, "Succeeded")
    says(plane, 2, 0, 1, 0)
    end(plane, second, "Succeeded")
    says(plane, 1, 0, 2, 0)
    (third,) = pods(plane, 1)
    end(plane, third, "Succeeded")
    over(plane, "Complete")
    says(plane, 0, 0, 3, 0)


def test_work_queue_ends_with_its_pods(plane: Plane) -> None:
    job(plane, parallelism=2)
    first, second = pods(plane, 2)
    end(plane, first, "Succeeded")
    says(plane, 1, 0, 1, 0)
    end(plane, second, "Succeeded")
    over(plane, "Complete")
    says(plane, 0, 0, 2, 0)


def test_fails_beyond_its_limit(plane: Plane) -> None:
    job(plane, backoffLimit=0)
    (pod,) = pods(plane, 1)
    end(plane, pod, "Failed")
    failed = over(plane, "Failed")
    said = "Job has reached the specified backoff limit"
    assert verdicts(failed) == [
        ("FailureTarget", "True", "BackoffLimitExceeded", said),
        ("Failed", "True", "BackoffLimitExceeded", said),
    ]
    assert counts(failed, "active", "ready", "succeeded", "failed") == (0, 0, 0, 1)
    assert "completionTime" not in failed["status"]
    event = plane.until(lambda: next(iter(plane.events("BackoffLimitExceeded", "j")), None), "the event")
    assert event is not None
    assert (event["type"], event["message"]) == ("Warning", said)


def test_failure_ends_the_other_pods(plane: Plane) -> None:
    job(plane, backoffLimit=0, completions=2, parallelism=2)
    first, second = pods(plane, 2)
    end(plane, first, "Failed")
    plane.until(
        lambda: plane.read("pods", second["metadata"]["name"])["metadata"].get("deletionTimestamp"), "the other to go"
    )
    waiting = over(plane, "FailureTarget")
    assert [each["type"] for each in waiting["status"]["conditions"]] == ["FailureTarget"]
    plane.until(lambda: counts(plane.read("jobs", "j"), "terminating") == (1,), "the other to be counted as going")
    plane.ends(second["metadata"]["name"])
    over(plane, "Failed")
    says(plane, 0, 0, 0, 2)


def test_indexed(plane: Plane) -> None:
    job(plane, completions=3, parallelism=3, completionMode="Indexed")
    by_index = {pod["metadata"]["annotations"][INDEX]: pod for pod in pods(plane, 3)}
    assert sorted(by_index) == ["0", "1", "2"]
    pod = by_index["1"]
    assert pod["metadata"]["generateName"] == "j-1-"
    assert pod["metadata"]["labels"][INDEX] == "1"
    assert pod["spec"]["hostname"] == "j-1"
    (env,) = [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "JOB_COMPLETION_INDEX"]
    assert env["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
    for index in ("0", "2"):
        end(plane, by_index[index], "Succeeded")
    says(plane, 1, 0, 2, 0)
    assert plane.read("jobs", "j")["status"]["completedIndexes"] == "0,2"
    end(plane, pod, "Succeeded")
    assert over(plane, "Complete")["status"]["completedIndexes"] == "0-2"


def test_suspended_and_resumed(plane: Plane) -> None:
    job(plane)
    (pod,) = pods(plane, 1)
    plane.change("jobs", "j", {"spec": {"suspend": True}})
    plane.until(lambda: plane.owned("job-name=j") == [], "the pod to go")
    plane.ends(pod["metadata"]["name"])
    found = over(plane, "Suspended")
    said = condition(found, "Suspended")
    assert said is not None
    assert (said["reason"], said["message"]) == ("JobSuspended", "Job suspended")
    plane.until(lambda: "startTime" not in plane.read("jobs", "j")["status"], "the start to be forgotten")
    says(plane, 0, 0, 0, 0)
    plane.change("jobs", "j", {"spec": {"suspend": False}})
    pods(plane, 1)
    said = condition(plane.read("jobs", "j"), "Suspended")
    assert said is not None
    assert (said["status"], said["reason"], said["message"]) == ("False", "JobResumed", "Job resumed")
    assert plane.until(lambda: plane.read("jobs", "j")["status"].get("startTime"), "the start")


def test_made_suspended(plane: Plane) -> None:
    job(plane, suspend=True)
    over(plane, "Suspended")
    assert plane.list("pods", "job-name=j") == []


def test_deleted_pod_counts_as_failed_and_is_replaced(plane: Plane) -> None:
    job(plane)
    (pod,) = pods(plane, 1)
    plane.remove("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
    says(plane, 1, 0, 0, 1)
    (other,) = pods(plane, 1)
    assert other["metadata"]["name"] != pod["metadata"]["name"]
    plane.gone("pods", pod["metadata"]["name"])


def test_deletion_takes_the_pods(plane: Plane) -> None:
    job(plane)
    (pod,) = pods(plane, 1)
    plane.remove("jobs", "j", propagationPolicy="Background")
    plane.gone("jobs", "j")
    with plane.kubelet():
        plane.gone("pods", pod["metadata"]["name"])


def test_orphaning_deletion_frees_the_pods(plane: Plane) -> None:
    job(plane)
    (pod,) = pods(plane, 1)
    plane.remove("jobs", "j", propagationPolicy="Orphan")
    plane.gone("jobs", "j")

    def free() -> bool:
        metadata = plane.read("pods", pod["metadata"]["name"])["metadata"]
        return "ownerReferences" not in metadata and "finalizers" not in metadata

    plane.until(free, "the pod to be free")
