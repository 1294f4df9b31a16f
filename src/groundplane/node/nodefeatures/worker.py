"""The worker's half: what was found on the machine, and the NodeFeature object that offers it to whoever labels nodes.

The object is as NFD's own worker writes it (contracts/device-plugin-gfd.md 9): named as the node, with the worker's
version in an annotation, which tells ours from others, and owned by the worker's pod and DaemonSet, so that it goes
with them. Pure, but for :func:`look`, which reads the machine, and :func:`owners`, which asks for the pod.
"""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ... import __version__
from ...api import names
from ..process import Process
from . import local, machine, requests, rivals
from .machine import Machine, PciSettings

if TYPE_CHECKING:
    from ...cluster.client import Client

Document = dict[str, Any]


class Found(msgspec.Struct, frozen=True):
    """What the node is: labels (keys with their namespaces), sets of named values, and PCI devices."""

    labels: dict[str, str]
    attributes: Mapping[str, Mapping[str, str]]
    pci: tuple[Mapping[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    def request(self, namespace: str, node: str) -> requests.Request:
        """The same as a NodeFeature object asks for it."""
        return requests.Request(namespace, node, self.labels, self.attributes)


def look(process: Process, pci: PciSettings) -> Found:
    """Read the machine and the local files as they are now. Blocks for some milliseconds."""
    read = machine.read(process.kernel, [process.path(path) for path in machine.OS_RELEASE], pci)
    return found(read, local.read(process.path(names.FEATURES_DIR), process.now()), pci)


def found(read: Machine, files: local.Local, pci: PciSettings) -> Found:
    """Machine and local files together; files win."""
    asked = machine.labels(read, pci) | requests.qualified(files.labels)
    sets = {**read.attributes, "local.label": files.labels, "local.feature": files.features}
    attributes = {name: values for name, values in sets.items() if values}
    return Found(asked, attributes, read.pci, read.problems + files.problems)


def document(node: str, namespace: str, what: Found, owner_references: list[Document]) -> Document:
    """The NodeFeature object of a node."""
    instances = {"pci.device": {"elements": [{"attributes": dict(each)} for each in what.pci]}} if what.pci else {}
    meta: Document = {
        "name": node,
        "namespace": namespace,
        "labels": {names.NFD_NODE_NAME: node},
        "annotations": {names.NFD_WORKER_VERSION: f"{rivals.OURS}{__version__}"},
    }
    if owner_references:
        meta["ownerReferences"] = owner_references
    return {
        "metadata": meta,
        "spec": {
            "features": {
                "attributes": {name: {"elements": dict(values)} for name, values in what.attributes.items()},
                "flags": {},
                "instances": instances,
            },
            "labels": what.labels,
        },
    }


def over(stored: Document, wanted: Document) -> Document | None:
    """The stored object with all that is wanted, to replace it; None if it has that already.

    What others have added to its labels and annotations stays.
    """
    new = copy.deepcopy(stored)
    meta, asked = new["metadata"], wanted["metadata"]
    for key in ("labels", "annotations"):
        meta[key] = {**(meta.get(key) or {}), **asked[key]}
    if "ownerReferences" in asked:
        meta["ownerReferences"] = asked["ownerReferences"]
    new["spec"] = wanted["spec"]
    return new if new != stored else None


async def owners(client: "Client", namespace: str, pod: str) -> list[Document]:
    """References to the DaemonSet that owns a pod, and to the pod; none if the pod is no DaemonSet's.

    Raises :class:`~groundplane.cluster.errors.ClusterError`.
    """
    from ...cluster import kinds

    meta = (await client.get(kinds.POD, pod, namespace))["metadata"]
    controllers = [each for each in meta.get("ownerReferences") or () if each.get("controller")]
    daemon_set = next((each for each in controllers if each.get("kind") == "DaemonSet"), None)
    if daemon_set is None:
        return []
    kept = ("apiVersion", "kind", "name", "uid", "controller")
    return [
        {key: daemon_set[key] for key in kept},
        {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": meta["uid"]},
    ]
