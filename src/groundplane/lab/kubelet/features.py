"""Node features on a lab's nodes: the shipped program `node-features`, beside the kubelet rather than in a pod.

So a lab's nodes have their labels before anything is installed, as a cluster with node feature discovery has. It runs
with the rights of an account of its own, where the lab has access control, and labels the node straight away.
"""

import asyncio
import sys
from typing import Any

from .. import nodeprograms, resources
from ..api import Api
from ..clock import LabClock
from ..host import SimulatedHost
from ..programs import Container, ContainerContext, Image, Mount, ProgramRegistry
from ..status import StatusError

PROGRAM = "node-features"
NAMESPACE = "kube-system"
AGAIN_S = 10.0
SWITCHED_OFF = "groundplane.dev/lab-no-node-features"
"""Annotation of a node on which it does not run, as where node feature discovery was uninstalled: its labels go too."""
FEATURES = "feature.node.kubernetes.io/"
_RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["nfd.k8s-sigs.io"], "resources": ["nodefeatures"], "verbs": ["get", "list", "watch"]},
]


def grant(api: Api) -> None:
    """Make the account and its rights, once a cluster."""
    group = "rbac.authorization.k8s.io"
    meta = {"name": PROGRAM}
    subject = {"kind": "ServiceAccount", "name": PROGRAM, "namespace": NAMESPACE}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": PROGRAM}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "namespace": NAMESPACE}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": meta, "rules": _RULES},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [subject],
        },
    ]
    for document in documents:
        try:
            api.create(
                api.of_kind(document["kind"], document["apiVersion"]), document, document["metadata"].get("namespace")
            )
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise


async def keep(api: Api, host: SimulatedHost, clock: LabClock, programs: ProgramRegistry) -> None:
    """Run the program, again if it ends, until cancelled. What it says goes to standard error if it fails."""
    grant(api)
    container = Container(
        host=host,
        clock=clock,
        registry=programs,
        pod={"metadata": {"name": PROGRAM, "namespace": NAMESPACE}, "spec": {}},
        spec={"name": PROGRAM},
        image=Image((PROGRAM,), {}),
        rootfs=host.root,
        mounts=(Mount("/host-etc", host.root, "/etc", read_only=True),),
        env={"NODE_NAME": host.spec.name, "NAMESPACE": NAMESPACE, "USE_NODE_FEATURE_API": "false"},
        identity=lambda: nodeprograms.identity(api, PROGRAM, NAMESPACE),
    )
    program = nodeprograms.program(PROGRAM)
    while True:
        said = bytearray()
        running = asyncio.ensure_future(program(ContainerContext(container, (PROGRAM,), out=said.extend)))
        try:
            ended = await _ended(running, api, host.spec.name, clock)
        finally:
            running.cancel()
        if not ended:
            await asyncio.wait({running})
            _prune(api, host.spec.name)
            while _switched_off(api, host.spec.name):
                await clock.sleep(AGAIN_S)
            continue
        code = running.result()
        sys.stderr.write(f"{PROGRAM} of node {host.spec.name} ended with {code}:\n{said.decode(errors='replace')}")
        await clock.sleep(AGAIN_S)


async def _ended(running: "asyncio.Future[int]", api: Api, node: str, clock: LabClock) -> bool:
    """Whether the program has ended by itself; False when it is not wanted on the node any more."""
    while not running.done():
        await clock.wait({running}, AGAIN_S)
        if _switched_off(api, node):
            return False
    return True


def _switched_off(api: Api, node: str) -> bool:
    found = api.find(resources.NODES, node) or {}
    return SWITCHED_OFF in ((found.get("metadata") or {}).get("annotations") or {})


def _prune(api: Api, node: str) -> None:
    """Take the labels away, when nothing writes them any more."""
    found = api.find(resources.NODES, node)
    if found is None:
        return
    labels = {label: None for label in found["metadata"].get("labels") or {} if label.startswith(FEATURES)}
    api.patch(resources.NODES, node, {"metadata": {"labels": labels}}, type="merge", manager="nfd")
