"""Service accounts of the operands and what each may do (contracts/control-plane.md 5.8).

One table row an account. Every Role may also use the SCC ``privileged``, on any platform. On OpenShift
most accounts have a SecurityContextConstraints of their own, named after the account.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from lightkube.models.core_v1 import ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject

from ..api.release import Release
from .build import Manifest, Model
from .facts import ClusterFacts

RBAC_GROUP: Final = "rbac.authorization.k8s.io"


class Rule(msgspec.Struct, frozen=True):
    """Verbs on resources of one API group; with ``only`` in one release alone."""

    group: str
    resources: str
    verbs: str
    only: Release | None = None

    def policy(self) -> PolicyRule:
        """The rule as Kubernetes has it."""
        return PolicyRule(apiGroups=[self.group], resources=self.resources.split(), verbs=self.verbs.split())


class Account(msgspec.Struct, frozen=True):
    """Rights of one service account; ``cluster_name`` names its ClusterRole where it differs.

    ``scc`` lists what its own SecurityContextConstraints allows of the host beyond volumes and
    privilege, ``None`` when it has none. ``labelled`` objects carry ``app: <account>``.
    """

    role: tuple[Rule, ...] = ()
    cluster: tuple[Rule, ...] = ()
    cluster_name: str = ""
    labelled: bool = False
    scc: str | None = None


READ: Final = "get list watch"
NODES_READ: Final = Rule("", "nodes", READ)
CLUSTER_VERSION: Final = Rule("config.openshift.io", "clusterversions", "get list")
SANDBOX_PLUGIN: Final = Account(
    role=(
        Rule("", "pods", "create get list watch delete"),
        Rule("nfd.k8s-sigs.io", "nodefeatures", "create get list watch update"),
    ),
    cluster=(CLUSTER_VERSION, Rule("", "nodes pods", "get")),
    scc="",
)

ACCOUNTS: Final[Mapping[str, Account]] = {
    "nvidia-driver": Account(
        cluster=(
            CLUSTER_VERSION,
            Rule("", "nodes", "get list patch update watch"),
            Rule("", "pods", READ),
            Rule("", "pods/eviction", "create"),
            Rule("resource.k8s.io", "resourceclaims", "get list", only=Release.V26_7),
            Rule("apps", "daemonsets", "get"),
        ),
        scc="HostPID",
    ),
    "nvidia-container-toolkit": Account(role=(Rule("apps", "daemonsets", "list"),)),
    "nvidia-operator-validator": Account(
        role=(Rule("", "pods", "create get list watch update patch delete"), Rule("apps", "daemonsets", READ)),
        cluster=(
            NODES_READ,
            Rule(
                "nvidia.com",
                "clusterpolicies/finalizers nvidiadrivers/finalizers",
                "create get list watch update patch delete",
            ),
        ),
        scc="HostPID",
    ),
    "nvidia-device-plugin": Account(cluster=(NODES_READ,)),
    "nvidia-device-plugin-mps-control-daemon": Account(cluster=(NODES_READ,)),
    "nvidia-dcgm": Account(scc="HostNetwork HostPorts"),
    "nvidia-dcgm-exporter": Account(
        role=(
            Rule("", "configmaps pods", "get list", only=Release.V26_3),
            Rule("", "configmaps", "get list", only=Release.V26_7),
        ),
        cluster=(Rule("", "pods", READ),),
        cluster_name="nvidia-dcgm-exporter-read-pods",
        labelled=True,
        scc="HostPorts",
    ),
    "nvidia-gpu-feature-discovery": Account(
        role=(Rule("nfd.k8s-sigs.io", "nodefeatures", "get list watch create update"), Rule("", "pods", "get")),
        cluster=(NODES_READ,),
        scc="HostPID",
    ),
    "nvidia-mig-manager": Account(
        role=(Rule("", "pods", "get list watch delete"), Rule("", "configmaps", "create get list update patch")),
        cluster=(Rule("", "nodes", "get list watch update patch"), Rule("", "pods", "list", only=Release.V26_7)),
        scc="HostIPC HostPID",
    ),
    "nvidia-node-status-exporter": Account(
        role=(Rule("", "pods", "get list"), Rule("apps", "daemonsets", READ)),
        cluster=(NODES_READ,),
        scc="",
    ),
    "nvidia-vgpu-manager": Account(
        cluster=(
            CLUSTER_VERSION,
            Rule("", "nodes", "get list patch watch"),
            Rule("", "pods", READ),
            Rule("", "pods/eviction", "create"),
            Rule("apps", "daemonsets", "get"),
        ),
        scc="HostPID",
    ),
    "nvidia-vgpu-device-manager": Account(
        role=(Rule("", "pods", READ),),
        cluster=(CLUSTER_VERSION, Rule("", "nodes", "get list watch update")),
        scc="",
    ),
    "nvidia-sandbox-validator": Account(cluster=(Rule("", "nodes", "get"),), scc=""),
    "nvidia-vfio-manager": Account(
        cluster=(
            CLUSTER_VERSION,
            Rule("", "nodes", "get list patch watch"),
            Rule("", "pods", READ),
            Rule("", "pods/eviction", "create"),
        ),
        scc="",
    ),
    "nvidia-sandbox-device-plugin": SANDBOX_PLUGIN,
    "nvidia-kata-sandbox-device-plugin": SANDBOX_PLUGIN,
    "nvidia-kata-manager": Account(
        role=(Rule("", "secrets", "get watch list"),),
        cluster=(CLUSTER_VERSION, Rule("", "nodes", "get list")),
        scc="",
    ),
    "nvidia-cc-manager": Account(
        role=(Rule("", "pods", READ),), cluster=(Rule("", "nodes", "get list patch watch"),), scc=""
    ),
}


def objects(rights: str, facts: ClusterFacts, *, cluster: bool = True, name: str = "") -> list[Model | Manifest]:
    """ServiceAccount, Role, RoleBinding, ClusterRole, ClusterRoleBinding and, on OpenShift, the SCC.

    ``rights`` is the row of the table, and the account's name unless ``name`` says another. ``cluster=False`` leaves
    out the ClusterRole and its binding, where they are optional.
    """
    entry, account = ACCOUNTS[rights], name or rights
    labels = {"app": account} if entry.labelled else None
    subjects = [Subject(kind="ServiceAccount", name=account, namespace=facts.namespace)]
    made: list[Model | Manifest] = [
        ServiceAccount(metadata=ObjectMeta(name=account, labels=labels)),
        Role(metadata=ObjectMeta(name=account, labels=labels), rules=[USE_PRIVILEGED, *_rules(entry.role, facts)]),
        RoleBinding(
            metadata=ObjectMeta(name=account, labels=labels),
            roleRef=RoleRef(apiGroup=RBAC_GROUP, kind="Role", name=account),
            subjects=subjects,
        ),
    ]
    if entry.cluster and cluster:
        cluster_name = entry.cluster_name or account
        made += [
            ClusterRole(metadata=ObjectMeta(name=cluster_name, labels=labels), rules=_rules(entry.cluster, facts)),
            ClusterRoleBinding(
                metadata=ObjectMeta(name=cluster_name, labels=labels),
                roleRef=RoleRef(apiGroup=RBAC_GROUP, kind="ClusterRole", name=cluster_name),
                subjects=subjects,
            ),
        ]
    if facts.openshift and entry.scc is not None:
        made.append(security_context_constraints(account, entry.scc.split(), facts.namespace))
    return made


USE_PRIVILEGED: Final = PolicyRule(
    apiGroups=["security.openshift.io"],
    resources=["securitycontextconstraints"],
    resourceNames=["privileged"],
    verbs=["use"],
)


def _rules(rules: tuple[Rule, ...], facts: ClusterFacts) -> list[PolicyRule]:
    return [rule.policy() for rule in rules if rule.only in (None, facts.release)]


HOST_ACCESS: Final = ("HostIPC", "HostNetwork", "HostPID", "HostPorts")


def security_context_constraints(account: str, host: list[str], namespace: str) -> Manifest:
    """OpenShift's permission for ``account`` to run privileged pods; ``host`` lists shared host namespaces."""
    anyone = {"type": "RunAsAny"}
    return {
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": account},
        "allowHostDirVolumePlugin": True,
        **{f"allow{access}": access in host for access in HOST_ACCESS},
        "allowPrivilegeEscalation": True,
        "allowPrivilegedContainer": True,
        "allowedCapabilities": ["*"],
        "allowedUnsafeSysctls": ["*"],
        "fsGroup": anyone,
        "groups": ["system:cluster-admins", "system:nodes", "system:masters"],
        "readOnlyRootFilesystem": False,
        "runAsUser": anyone,
        "seLinuxContext": anyone,
        "seccompProfiles": ["*"],
        "supplementalGroups": anyone,
        "users": [f"system:serviceaccount:{namespace}:{account}"],
        "volumes": ["*"],
    }
