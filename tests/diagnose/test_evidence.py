"""The document of evidence: every field, every short form, and what is wrong told with its place."""

from typing import Any

import pytest

from groundplane.diagnose import evidence
from groundplane.diagnose.evidence import Command, Event, Evidence, EvidenceError, KernelLog, Log, load, loads


def test_all_fields_are_optional() -> None:
    assert loads("") == Evidence() and loads("{}") == Evidence()
    assert load(dict.fromkeys(evidence.FIELDS)) == Evidence()


def test_every_field_has_a_reader_and_a_line_of_reference() -> None:
    assert evidence._READERS.keys() == evidence.FIELDS.keys()


@pytest.mark.parametrize(
    ("logs", "read"),
    [
        ("text", [Log(text="text")]),
        ({"p/c": "text"}, [Log(text="text", pod="p", container="c")]),
        ({"ns/p/c": ["a", "b"]}, [Log(text="a\nb", namespace="ns", pod="p", container="c")]),
        ({"p": "text"}, [Log(text="text", pod="p")]),
        ([{"pod": "p", "container": "c", "node": "n", "previous": True, "when": "t", "lines": ["a", "b"]}],
         [Log(text="a\nb", pod="p", container="c", node="n", previous=True, when="t")]),
    ],
)  # fmt: skip
def test_logs(logs: Any, read: list[Log]) -> None:
    assert load({"logs": logs}).logs == tuple(read)


@pytest.mark.parametrize(
    ("event", "read"),
    [
        ("text", Event(message="text")),
        ({"pod": "p", "message": "m", "reason": "r"}, Event(message="m", reason="r", kind="Pod", name="p")),
        (
            {"involvedObject": {"kind": "Node", "name": "n"}, "message": "m", "count": 3, "lastTimestamp": "t"},
            Event(message="m", kind="Node", name="n", node="n", count=3, when="t"),
        ),
        (
            {
                "regarding": {"kind": "Pod", "name": "p", "namespace": "x"},
                "note": "m",
                "deprecatedSource": {"host": "n"},
            },
            Event(message="m", kind="Pod", name="p", namespace="x", node="n"),
        ),
    ],
)
def test_events(event: Any, read: Event) -> None:
    assert load({"events": [event]}).events == (read,)


def test_events_among_objects_are_events() -> None:
    found = load({"objects": [{"kind": "Event", "involvedObject": {"kind": "Pod", "name": "p"}, "message": "m"}]})
    assert found.objects == () and found.events[0].message == "m"


@pytest.mark.parametrize(
    ("kmsg", "read"),
    [
        ("a", [KernelLog(text="a")]),
        (["a", "b"], [KernelLog(text="a\nb")]),
        ({"n": ["a"], "m": "b"}, [KernelLog(text="a", node="n"), KernelLog(text="b", node="m")]),
    ],
)
def test_kernel_messages(kmsg: Any, read: list[KernelLog]) -> None:
    assert load({"kmsg": kmsg}).kernel == tuple(read)


def test_node_facts() -> None:
    node = {"name": "n", "kernel": "5.15", "commands": {"nvidia-smi": {"rc": 9}, "uname -r": "5.15"}}
    (facts,) = load({"node": node}).nodes
    assert facts.facts == {"kernel": "5.15"}
    assert facts.commands == {"nvidia-smi": Command(rc=9), "uname -r": Command(out="5.15")}


def test_labels_of_one_node_and_of_several() -> None:
    one = load({"node": {"name": "n"}, "labels": {"a": True, "b": 1, "c": None}})
    assert one.node_labels("n") == {"a": "true", "b": "1", "c": ""}
    several = load({"labels": {"n": {"a": "x"}, "m": {}}})
    assert several.node_labels("n") == {"a": "x"} and several.node_labels("m") == {}
    assert several.node_labels("z") is None


@pytest.mark.parametrize(
    ("status", "phase", "state"),
    [
        ("Running", "Running", {"running": {}}),
        ("CrashLoopBackOff", "Running", {"waiting": {"reason": "CrashLoopBackOff", "message": ""}}),
        ("ImagePullBackOff", "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": ""}}),
        ("Completed", "Succeeded", {"terminated": {"reason": "Completed", "exitCode": 0, "message": ""}}),
        ("OOMKilled", "Running", {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": ""}}),
    ],
)
def test_short_pods(status: str, phase: str, state: dict[str, Any]) -> None:
    (pod,) = load({"pods": [{"name": "p", "node": "n", "app": "a", "status": status}]}).objects
    assert pod["status"]["phase"] == phase and pod["metadata"]["labels"] == {"app": "a"}
    assert pod["status"]["containerStatuses"][0]["state"] == state


def test_a_pod_in_init() -> None:
    (pod,) = load({"pods": [{"name": "p", "status": "Init:0/4"}]}).objects
    assert pod["status"]["initContainerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    assert pod["status"]["conditions"] == [{"type": "Ready", "status": "False"}]


def test_whole_pods_stay_as_they_are() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}}
    assert load({"pods": [pod]}).objects == ({"apiVersion": "v1", "kind": "Pod", **pod},)


def test_lists_of_objects() -> None:
    inner = {"kind": "Node", "metadata": {"name": "n"}}
    assert load({"objects": {"kind": "List", "items": [inner]}}).objects == (inner,)
    assert load({"objects": [{"kind": "NodeList", "items": [inner, inner]}]}).objects == (inner, inner)


def test_what_names_no_node_is_the_only_ones() -> None:
    found = load({"node": {"name": "n"}, "logs": "x"})
    assert found.only == "n" and found.place("") == "n"
    assert load({"kmsg": {"a": "x", "b": "y"}}).only == ""


def test_a_log_is_on_its_pods_node() -> None:
    found = load({"pods": [{"name": "p", "namespace": "x", "node": "n"}], "kmsg": {"m": "x"}})
    assert found.place("", "x", "p") == "n" and found.place("", "", "p") == "n" and found.place("", "y", "p") == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "is not YAML"),
        ("- a", "must be a mapping"),
        ("log: x", "has no field log; its fields are ctx, pods"),
        ("pods: {a: b}", "field pods: it is a mapping, not a list"),
        ("pods: [{nam: b}]", "field pods: Object contains unknown field `nam`"),
        ("pods: [{name: 5}]", "field pods: Expected `str`"),
        ("pods: [x]", r"field pods: [0] is a text, not a mapping"),
        ("events: [{pod: x}]", "missing required field `message`"),
        ("logs: {a/b/c/d: x}", "none of POD, POD/CONTAINER"),
        ("logs: {a: {b: c}}", "a is a mapping, not a text"),
        ("kmsg: 5", "field kmsg: it is a number"),
        ("node: x", "[0] is a text"),
        ("node: {name: 5}", "name and when must be texts"),
        ("node: {commands: {a: {rcs: 1}}}", "unknown field `rcs`"),
        ("labels: {a: [b]}", "the label a is a list"),
        ("labels: x", "field labels: it is a text"),
        ("objects: [{metadata: {}}]", "[0] has no kind"),
        ("objects: [{kind: Pod, status: x}]", "[0]: status is a text"),
        ("ctx: [a]", "field ctx"),
        ("ctx: {missing: x}", "missing must be a list"),
        ("a: &a [x, x]\nb: *a\nc: {d: *z}", "is not YAML"),
    ],
)
def test_what_is_wrong_is_told(text: str, says: str) -> None:
    with pytest.raises(EvidenceError, match=r"^ev\.yaml") as error:
        loads(text, "ev.yaml")
    assert says in str(error.value)
