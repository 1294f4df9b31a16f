"""Does a live object still hold what we want?"""

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.cluster.drift import drift, quantity


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


HELD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults are added": (
        pod(containers=[{"name": "a", "ports": [{"containerPort": 80}]}]),
        pod(
            dnsPolicy="ClusterFirst",
            containers=[{"name": "a", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
        ),
    ),
    "sidecars and their volumes are added": (
        pod(containers=[{"name": "a"}], volumes=[{"name": "v", "hostPath": {"path": "/x"}}]),
        pod(
            containers=[{"name": "istio"}, {"name": "a"}],
            volumes=[{"name": "token"}, {"name": "v", "hostPath": {"path": "/x", "type": ""}}],
        ),
    ),
    "env, mounts and labels of others": (
        {"metadata": {"labels": {"a": "b"}}, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": ""}]},
        {
            "metadata": {"labels": {"a": "b", "c": "d"}},
            "env": [{"name": "X"}, {"name": "A", "value": "1"}, {"name": "Y"}, {"name": "B"}],
        },
    ),
    "empty things vanish": (
        {"a": "", "b": [], "c": {}, "d": None, "e": {"f": {"g": []}}, "hostPID": False, "initialDelaySeconds": 0},
        {},
    ),
    "quantities are rewritten": (
        {"resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}, "emptyDir": {"sizeLimit": "0.5Gi"}},
        {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "emptyDir": {"sizeLimit": "512Mi"}},
    ),
    "a numeric quantity becomes text": ({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "1"}}),
    "finalizers are a set": ({"finalizers": ["a", "b"]}, {"finalizers": ["c", "b", "a"]}),
    "two protocols of one port": (
        {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]},
        {"ports": [{"port": 53, "protocol": "TCP", "targetPort": 53}, {"port": 53, "protocol": "UDP"}]},
    ),
    "what the server keeps for itself": (
        {"metadata": {"creationTimestamp": None, "resourceVersion": "1", "uid": "x"}, "status": {"a": 1}},
        {"metadata": {"creationTimestamp": "now", "resourceVersion": "2", "uid": "y"}, "status": {"a": 2}},
    ),
    "the digest is compared elsewhere": ({"metadata": {"annotations": {names.LAST_APPLIED_HASH: "1"}}}, {}),
    "an owner among others": (
        {"metadata": {"ownerReferences": [{"uid": "1", "kind": "A"}]}},
        {"metadata": {"ownerReferences": [{"uid": "0", "kind": "B"}, {"uid": "1", "kind": "A"}]}},
    ),
    "items in lists of one writer get defaults": (
        {"tolerations": [{"key": "a"}], "rules": [{"verbs": ["get"]}]},
        {"tolerations": [{"key": "a", "operator": "Equal"}], "rules": [{"verbs": ["get"], "apiGroups": [""]}]},
    ),
}


@pytest.mark.parametrize("case", HELD)
def test_no_drift(case: str) -> None:
    desired, live = HELD[case]
    assert drift(desired, live) == []


DRIFTED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a value": (
        pod(containers=[{"name": "a", "image": "x"}]),
        pod(containers=[{"name": "a", "image": "y"}]),
        ["spec.template.spec.containers[a].image"],
    ),
    "a container is gone": (
        pod(containers=[{"name": "a"}, {"name": "b"}]),
        pod(containers=[{"name": "a"}]),
        ["spec.template.spec.containers[b]"],
    ),
    "everything is gone": (pod(containers=[{"name": "a"}]), {}, ["spec"]),
    "init containers in another order": (
        {"initContainers": [{"name": "a"}, {"name": "b"}]},
        {"initContainers": [{"name": "b"}, {"name": "x"}, {"name": "a"}]},
        ["initContainers[order]"],
    ),
    "a label is gone": ({"metadata": {"labels": {"nvidia.com/x": "1"}}}, {}, ["metadata"]),
    "a label changed": (
        {"metadata": {"labels": {"nvidia.com/x": "1", "app": "a"}}},
        {"metadata": {"labels": {"nvidia.com/x": "2", "app": "b"}}},
        ["metadata.labels[nvidia.com/x]", "metadata.labels.app"],
    ),
    "one of an atomic list": (
        {"tolerations": [{"key": "a"}]},
        {"tolerations": [{"key": "a"}, {"key": "b"}]},
        ["tolerations"],
    ),
    "args in another order": ({"args": ["a", "b"]}, {"args": ["b", "a"]}, ["args[0]", "args[1]"]),
    "false where it was not": ({"hostPID": False}, {"hostPID": True}, ["hostPID"]),
    "false where absent means true": (
        {"automountServiceAccountToken": False},
        {},
        ["automountServiceAccountToken"],
    ),
    "root where absent means the image's user": (
        {"securityContext": {"runAsUser": 0}},
        {"securityContext": {}},
        ["securityContext.runAsUser"],
    ),
    "true is not one": ({"a": True}, {"a": 1}, ["a"]),
    "text is not a number": ({"a": "1"}, {"a": 1}, ["a"]),
    "a quantity": ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, ["limits.cpu"]),
    "a list where a map was": ({"a": {"b": 1}}, {"a": [1]}, ["a"]),
    "a map where a list was": ({"a": [1]}, {"a": {"b": 1}}, ["a"]),
    "a finalizer is gone": ({"finalizers": ["a"]}, {"finalizers": ["b"]}, ["finalizers"]),
    "repeated keys fall back to positions": (
        {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "3"}]},
        ["env[1].value"],
    ),
    "empty where something is": ({"a": ""}, {"a": "x"}, ["a"]),
    "null where something is": ({"a": None}, {"a": "x"}, ["a"]),
}


@pytest.mark.parametrize("case", DRIFTED)
def test_drift(case: str) -> None:
    desired, live, paths = DRIFTED[case]
    assert drift(desired, live) == paths


# --- properties -------------------------------------------------------------------------------------------------------

FIELDS = st.sampled_from(["image", "value", "hostPID", "path", "args", "labels", "spec", "runAsUser", "limits"])
SCALARS = st.one_of(st.booleans(), st.integers(-3, 9), st.text("abc", max_size=3))
NAMED = st.sampled_from(["containers", "env", "volumes", "initContainers"])


def documents() -> st.SearchStrategy[dict[str, Any]]:
    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        maps = st.dictionaries(FIELDS, inner, max_size=4)
        items = st.lists(st.tuples(st.sampled_from("abcd"), maps), max_size=3, unique_by=lambda t: t[0])
        named = items.map(lambda pairs: [{"name": name, **rest} for name, rest in pairs])
        lists = st.lists(SCALARS, max_size=3)
        with_named = st.tuples(maps, st.dictionaries(NAMED, named, max_size=2)).map(lambda t: {**t[0], **t[1]})
        return st.one_of(maps, lists, with_named)

    return st.recursive(SCALARS, grow, max_leaves=12).filter(lambda d: isinstance(d, dict))


def defaulted(value: Any, field: str, draw: Any) -> Any:
    """What a server may make of an object: defaults added, empty fields dropped, items of others added."""
    if isinstance(value, dict):
        out = {}
        for key, inner in value.items():
            empty = inner in ("", [], {}) or (not inner and key != "runAsUser")
            if not (empty and draw(st.booleans())):
                out[key] = defaulted(inner, key, draw)
        if draw(st.booleans()):
            out["serverDefault"] = "x"
        return out
    if isinstance(value, list):
        items = [defaulted(item, "", draw) for item in value]
        if field in ("containers", "env", "volumes", "initContainers") and value and draw(st.booleans()):
            items.insert(draw(st.integers(0, len(items))), {"name": "injected"})
        return items
    return value


@given(documents(), st.data())
@settings(max_examples=60, deadline=None)
def test_what_the_server_adds_and_drops_is_no_drift(desired: dict[str, Any], data: st.DataObject) -> None:
    assert drift(desired, desired) == []
    assert drift(desired, defaulted(desired, "", data.draw)) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, (*path, index))]
    return [path]


@given(documents(), st.data())
@settings(max_examples=60, deadline=None)
def test_every_changed_leaf_is_reported(desired: dict[str, Any], data: st.DataObject) -> None:
    paths = [p for p in leaves(desired) if p[-1] != "name"]
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    live = copy.deepcopy(desired)
    parent: Any = live
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = "changed"
    found = drift(desired, live)
    assert len(found) == 1
    assert found[0].endswith(f"[{path[-1]}]" if isinstance(path[-1], int) else path[-1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        (2, "2"),
        (0.5, "0.5"),
        ("100m", "0.1"),
        ("1.5Gi", "1610612736"),
        ("1e3", "1000"),
        ("1E", "1000000000000000000"),
        ("1k", "1000"),
        ("5u", "0.000005"),
        ("7n", "0.000000007"),
    ],
)
def test_quantities(text: object, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "a", "1Xi", "Ki", True, None, "1 Gi Gi"])
def test_no_quantities(text: object) -> None:
    assert quantity(text) is None
