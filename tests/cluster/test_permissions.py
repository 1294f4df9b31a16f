"""What a refusal says is missing, and how several are told together."""

import pytest

from groundplane.cluster import permissions
from groundplane.cluster.errors import ApiError, Conflict, Forbidden
from groundplane.cluster.permissions import Denied, Permission

USER = "system:serviceaccount:ns:gpu-operator"


def forbidden(text: str) -> Forbidden:
    return Forbidden(403, "Forbidden", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f'list nodes: nodes is forbidden: User "{USER}" cannot list resource "nodes" in API group "" at the '
            "cluster scope",
            Permission(USER, "", "nodes", "list"),
        ),
        (
            f'patch x: clusterpolicies.nvidia.com "a" is forbidden: User "{USER}" cannot patch resource '
            '"clusterpolicies/status" in API group "nvidia.com" at the cluster scope: RBAC: clusterrole not found',
            Permission(USER, "nvidia.com", "clusterpolicies/status", "patch"),
        ),
        (
            f'apply x: daemonsets.apps "d" is forbidden: User "{USER}" cannot create resource "daemonsets" in API '
            'group "apps" in the namespace "ns"',
            Permission(USER, "apps", "daemonsets", "create", "ns"),
        ),
    ],
)
def test_a_refusal_of_rbac_names_one_permission(text: str, expected: Permission) -> None:
    assert permissions.missing(forbidden(text)) == (expected,)


def test_a_refused_grant_names_every_permission_that_is_not_held() -> None:
    text = (
        'apply namespaces/ns/roles/r: roles.rbac.authorization.k8s.io "r" is forbidden: user "u" (groups=["a" "b"]) is '
        "attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:["apps"], Resources:["daemonsets"], Verbs:["list" "watch"]}\n'
        '{APIGroups:["security.openshift.io"], Resources:["securitycontextconstraints"], '
        'ResourceNames:["privileged"], Verbs:["use"]}'
    )
    assert permissions.missing(forbidden(text)) == (
        Permission("u", "apps", "daemonsets", "list", "ns"),
        Permission("u", "apps", "daemonsets", "watch", "ns"),
        Permission("u", "security.openshift.io", "securitycontextconstraints", "use", "ns"),
    )
    cluster_wide = text.replace("namespaces/ns/roles/r", "clusterroles/r")
    assert {each.namespace for each in permissions.missing(forbidden(cluster_wide))} == {""}


@pytest.mark.parametrize(
    "error",
    [
        None,
        forbidden('pods "p" is forbidden: violates PodSecurity "restricted:latest"'),
        forbidden("unable to create new content in namespace ns because it is being terminated"),
        Conflict(409, "Conflict", 'User "u" cannot list resource "x" in API group "" at the cluster scope'),
        ApiError(418, "", "no"),
    ],
)
def test_other_refusals_are_about_no_permission(error: ApiError | None) -> None:
    assert permissions.missing(error) == ()


def test_several_are_told_together_in_one_order() -> None:
    one = Denied(Permission("u", "", "nodes", "patch"), "node a")
    two = Denied(Permission("u", "apps", "daemonsets", "create", "ns"), "state-x: DaemonSet ns/d")
    three = Denied(two.permission, "state-y: DaemonSet ns/e")
    assert permissions.tell([two, one, three]) == permissions.tell([one, three, two])
    assert permissions.tell([one, two, three]) == (
        'forbidden: user "u" lacks the permission to patch nodes in API group "" in the whole cluster (node a); '
        'create daemonsets in API group "apps" in namespace "ns" (state-x: DaemonSet ns/d, state-y: DaemonSet ns/e)'
    )
    assert permissions.tell([]) == ""


def test_the_text_is_bounded() -> None:
    many = [Denied(Permission("u", "", f"things{i:02}", "list"), f"object {j}") for i in range(50) for j in range(9)]
    text = permissions.tell(many)
    assert "things09" in text
    assert "things10" not in text
    assert text.endswith("; and 40 more")
    assert text.count("and 7 more)") == permissions.LISTED_MAX
    assert len(text) < 1000
