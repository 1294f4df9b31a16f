"""The notation and the small builders that all operand modules stand on."""

import pytest
from lightkube.models.core_v1 import Probe
from operands import rendering

from groundplane.api.clusterpolicy import ContainerProbe, EnvVar
from groundplane.operands import build
from groundplane.operands.errors import RenderError, problem
from groundplane.operands.facts import ClusterFacts, References, references


def test_environment_rows():
    literal, field, empty = build.env("A=b=c", "NODE_NAME<-spec.nodeName", "EMPTY=")
    assert literal.to_dict() == {"name": "A", "value": "b=c"}
    assert field.to_dict() == {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert empty.to_dict() == {"name": "EMPTY", "value": ""}


def test_mount_rows():
    plain, full, single = build.mounts("a:/x", "b:/y:ro:H", "c:/z:ro sub=z")
    assert plain.to_dict() == {"name": "a", "mountPath": "/x"}
    assert full.to_dict() == {
        "name": "b",
        "mountPath": "/y",
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }
    assert single.to_dict() == {"name": "c", "mountPath": "/z", "readOnly": True, "subPath": "z"}


def test_volume_rows():
    typed, untyped = build.host_volumes("a=/x(DC)", "b=/y(-)")
    assert typed.to_dict() == {"name": "a", "hostPath": {"path": "/x", "type": "DirectoryOrCreate"}}
    assert untyped.to_dict() == {"name": "b", "hostPath": {"path": "/y"}}


@pytest.mark.parametrize(
    ("parse", "row"),
    [
        (build.env, "NAME"),
        (build.env, "1A=b"),
        (build.mounts, "volume"),
        (build.mounts, "a:/x:rw"),
        (build.host_volumes, "a=/x"),
        (build.host_volumes, "a=/x(Z)"),
        (build.privileged, "U1"),
    ],
)
def test_a_mistyped_row_is_a_programmers_error(parse, row):
    with pytest.raises(ValueError, match=r"row|flags"):
        parse(row)


def test_set_env_overwrites_in_place_or_appends():
    variables = build.env("A=1", "B<-spec.nodeName", "C=3")
    build.set_env(variables, "B", "2")
    build.set_all(variables, "D=4", "A=x=y")
    build.user_env(variables, [EnvVar(name="C", value=None), EnvVar(name="E", value="5")])
    assert [(each.name, each.value) for each in variables] == [
        ("A", "x=y"),
        ("B", "2"),
        ("C", ""),
        ("D", "4"),
        ("E", "5"),
    ]
    assert all(each.valueFrom is None for each in variables)
    assert build.get_env(variables, "D") == "4"
    assert build.get_env(build.env("N<-spec.nodeName"), "N") == build.get_env([], "N") == ""


def test_probe_timing_keeps_what_the_policy_leaves_out():
    probe = Probe(initialDelaySeconds=60, timeoutSeconds=60, periodSeconds=10, failureThreshold=120)
    assert build.timed(probe, None) == probe
    given = ContainerProbe(initialDelaySeconds=0, periodSeconds=5)
    assert build.timed(probe, given).to_dict() == {
        "initialDelaySeconds": 60,
        "timeoutSeconds": 60,
        "periodSeconds": 5,
        "failureThreshold": 120,
    }


def test_finish_leaves_no_nulls_and_puts_identity_first():
    document = {"kind": "PrometheusRule", "spec": {"a": None, "b": [{"c": None}]}, "apiVersion": "v1"}
    finished = build.finish(document, "state-x", ClusterFacts(namespace="ns"))
    assert finished == {
        "apiVersion": "v1",
        "kind": "PrometheusRule",
        "metadata": {"namespace": "ns", "labels": {"nvidia.com/gpu-operator.state": "state-x"}},
        "spec": {"b": [{}]},
    }
    assert list(finished) == ["apiVersion", "kind", "metadata", "spec"]
    assert document["spec"] == {"a": None, "b": [{"c": None}]}, "the input is not touched"


def test_errors_know_their_place():
    error = problem("something is wrong")
    assert str(error) == "something is wrong"
    placed = error.at("state-x")
    assert str(placed) == "state-x: something is wrong"
    assert placed.at("state-y") is placed
    assert isinstance(placed, RenderError)


def test_references_name_what_must_be_looked_up():
    changes = {
        "driver": {
            "repoConfig": {"configMapName": "repo"},
            "certConfig": {"name": "certs"},
            "kernelModuleConfig": {"name": "modules"},
            "virtualTopology": {"config": "topology"},
            "licensingConfig": {"configMapName": "licence", "secretName": "licence-secret"},
            "secretEnv": "env-secret",
        },
        "vgpuManager": {"kernelModuleConfig": {"name": "vgpu-modules"}},
        "dcgmExporter": {"config": {"name": "mounted-whatever-its-keys"}},
    }
    assert references(rendering.spec(changes=changes)) == References(
        config_maps=frozenset({"repo", "certs", "modules", "topology", "licence", "vgpu-modules"}),
        secrets=frozenset({"licence-secret", "env-secret"}),
    )
    assert references(rendering.spec()) == References(config_maps=frozenset(), secrets=frozenset())
