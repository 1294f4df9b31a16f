"""Renders policies for tests: the chart's documents of tests/data, with changes, on a plain cluster."""

import functools
from copy import deepcopy
from pathlib import Path

import yaml

from groundplane.api import codec
from groundplane.api.release import Release
from groundplane.operands import stack
from groundplane.operands.facts import ClusterFacts, GpuNode, Owner

POLICIES = Path(__file__).parent.parent / "data" / "clusterpolicy"
FILES = tuple(sorted(path.stem for path in POLICIES.glob("*.yaml")))
RELEASES = (Release.V26_3, Release.V26_7)
DEFAULTS = {release: f"{release.value}-default" for release in RELEASES}


@functools.cache
def _document(name):
    return yaml.safe_load((POLICIES / f"{name}.yaml").read_text())


def release_of(name):
    return Release.parse(name.partition("-")[0])


def merged(document, changes):
    """``document`` with ``changes`` laid over it; a None removes a key."""
    result = deepcopy(document)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def spec(name="26.7.0-default", changes=None):
    document = _document(name)
    return codec.load_cluster_policy({**document, "spec": merged(document["spec"], changes or {})}).policy.spec


def node(name="gpu-1", kernel="6.8.0-60-generic", os_id="ubuntu", os_version="24.04", **more):
    return GpuNode(name=name, kernel=kernel, os_id=os_id, os_version=os_version, **more)


def facts(release=Release.V26_7, **more):
    defaults = {
        "namespace": "gpu-operator",
        "release": release,
        "nodes": (node("gpu-1"), node("gpu-2")),
        "owner": Owner(name="cluster-policy", uid="7d6b0f4e-0000-4000-8000-000000000001"),
    }
    return ClusterFacts(**{**defaults, **more})


def states(name="26.7.0-default", changes=None, **more):
    """Every state's result for a file of tests/data with changes."""
    return stack.render(spec(name, changes), facts(release_of(name), **more))


def objects(name="26.7.0-default", changes=None, **more):
    """All rendered objects by (kind, name); fails on a rendering error."""
    found = {}
    for result in states(name, changes, **more):
        assert result.error is None, result.error
        for each in result.objects:
            key = each["kind"], each["metadata"]["name"]
            assert key not in found, f"{key} is rendered twice"
            found[key] = each
    return found


def daemon_set(ds_name, name="26.7.0-default", changes=None, **more):
    return objects(name, changes, **more)["DaemonSet", ds_name]


def error(changes, name="26.7.0-default", **more):
    """The error at which a pass ends."""
    last = states(name, changes, **more)[-1]
    assert last.error is not None, "rendered without an error"
    return last.error
