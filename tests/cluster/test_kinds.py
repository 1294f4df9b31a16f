"""Resource paths and finding a manifest's kind."""

import pytest

from groundplane.cluster import kinds
from groundplane.cluster.kinds import Kind


@pytest.mark.parametrize(
    ("kind", "args", "path"),
    [
        (kinds.NODE, {}, "/api/v1/nodes"),
        (kinds.NODE, {"name": "a", "subresource": "status"}, "/api/v1/nodes/a/status"),
        (kinds.POD, {}, "/api/v1/pods"),
        (kinds.POD, {"namespace": "ns"}, "/api/v1/namespaces/ns/pods"),
        (kinds.POD, {"namespace": "ns", "name": "p"}, "/api/v1/namespaces/ns/pods/p"),
        (kinds.DAEMON_SET, {"namespace": "ns", "name": "d"}, "/apis/apps/v1/namespaces/ns/daemonsets/d"),
        (kinds.CLUSTER_POLICY, {"name": "p"}, "/apis/nvidia.com/v1/clusterpolicies/p"),
        (kinds.CLUSTER_ROLE, {"name": "system:node"}, "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node"),
        (kinds.CLUSTER_ROLE, {"name": "a b?c"}, "/apis/rbac.authorization.k8s.io/v1/clusterroles/a%20b%3Fc"),
        (kinds.NAMESPACE, {"name": "ns", "namespace": "ignored"}, "/api/v1/namespaces/ns"),
    ],
)
def test_paths(kind: Kind, args: dict[str, str], path: str) -> None:
    assert kind.path(**args) == path


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"name": "p"}, "Pod 'p' lives in a namespace"),
        ({"namespace": "ns", "subresource": "log"}, "belongs to one object"),
        ({"namespace": "ns", "name": ".."}, "is not a Kubernetes name"),
        ({"namespace": "ns", "name": "a/b"}, "is not a Kubernetes name"),
        ({"namespace": "ns", "name": ""}, "is not a Kubernetes name"),
    ],
)
def test_paths_that_make_no_sense(args: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kinds.POD.path(**args)


def test_every_constant_is_found_by_its_type() -> None:
    constants = {value for value in vars(kinds).values() if isinstance(value, Kind)}
    assert len(constants) > 30
    for kind in constants:
        assert kinds.of({"apiVersion": kind.api_version, "kind": kind.kind}) == kind


@pytest.mark.parametrize(
    "manifest",
    [{}, {"kind": "Pod"}, {"apiVersion": "v1", "kind": 3}, {"apiVersion": "v2", "kind": "Pod"}],
)
def test_unknown_kinds_say_what_they_are(manifest: dict[str, object]) -> None:
    with pytest.raises(kinds.UnknownKind) as caught:
        kinds.of(manifest)
    assert "Pod" in str(caught.value) or "not a Kubernetes manifest" in str(caught.value)


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_BY_TYPE", dict(kinds._BY_TYPE))
    widget = Kind("example.com", "v1", "Widget", "widgets", True)
    assert kinds.register(widget) is widget
    assert kinds.register(widget) is widget
    assert kinds.of({"apiVersion": "example.com/v1", "kind": "Widget"}) is widget
    assert widget.resource == "widgets.example.com"
    with pytest.raises(ValueError, match="registered already, differently"):
        kinds.register(Kind("example.com", "v1", "Widget", "widgetz", True))
