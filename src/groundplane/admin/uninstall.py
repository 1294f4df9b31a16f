"""Uninstalling: what goes, what stays, and who uses GPUs now (contracts/admin-workflow.md 2; docs/how-to/install.md).

Helm removes what its release owns. What it leaves - definitions, namespace, labels, files on hosts, the lease - stays,
and is listed, unless it is asked for. Custom resources go with their definitions only when nobody has one that the
release did not make, or when that is asked for by name.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..api import names
from ..cluster import errors, kinds
from ..cluster.client import PatchType
from ..diagnose import pods
from ..diagnose.evidence import name, namespace
from ..diagnose.survey import Survey
from . import plans, releases

if TYPE_CHECKING:
    from ..cluster.client import Client

KINDS: Final = (
    "nodes",
    "pods",
    "namespaces",
    "clusterpolicies",
    "nvidiadrivers",
    "customresourcedefinitions",
    "secrets",
)
DEFINITIONS: Final = ("clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com", "gpuclusters.nvidia.com")
LABELS: Final = ("nvidia.com/", "feature.node.kubernetes.io/pci-10de")
STAYS: Final = (
    "host files: drivers below /run/nvidia, the toolkit below /usr/local/nvidia, the runtime's drop-in configuration",
    f"the lease {names.LEASE_NAME}: the next operator takes it over",
)


class Removal(NamedTuple):
    """What is to go."""

    release: str
    namespace: str
    timeout_s: int = 300
    crds: bool = False
    namespace_too: bool = False
    node_labels: bool = False
    custom_resources: bool = False


class UninstallError(Exception):
    """It cannot be uninstalled like that; the message says why and what to do."""


def users(survey: Survey) -> list[str]:
    """Pods that have a GPU now, ``namespace/name`` and node; operands are none."""
    return sorted(
        f"{namespace(each)}/{name(each)} on {(each.get('spec') or {}).get('nodeName')}"
        for each in survey.of_kind("pods")
        if pods.layer_of(each) is None
        and (each.get("spec") or {}).get("nodeName")
        and (each.get("status") or {}).get("phase") in ("Pending", "Running")
        and any(pods.gpu_request(container) for container in pods.containers(each))
    )


def customs(survey: Survey) -> list[str]:
    """Custom resources of people: those that no release of Helm's made."""
    return [
        f"{each.get('kind') or plural} {name(each)}"
        for plural in ("clusterpolicies", "nvidiadrivers")
        for each in survey.of_kind(plural)
        if "meta.helm.sh/release-name" not in ((each.get("metadata") or {}).get("annotations") or {})
    ]


def check(removal: Removal, survey: Survey) -> None:
    """Raises :class:`UninstallError` for what would take away more than was asked for."""
    mine = customs(survey)
    if removal.crds and mine and not removal.custom_resources:
        raise UninstallError(
            f"deleting the definitions deletes {', '.join(mine)}, which no chart has made: save and remove them first, "
            "or give --custom-resources too"
        )
    unread = [each for each in ("clusterpolicies", "nvidiadrivers") if not survey.knows(each)]
    if removal.crds and unread and not removal.custom_resources:
        raise UninstallError(f"{survey.unread[unread[0]]}: it is not known what would go with the definitions")
    others = [
        name(each)
        for each in survey.of_kind("pods")
        if namespace(each) == removal.namespace and pods.layer_of(each) is None
    ]
    strangers = [each for each in others if "gpu-operator" not in each and "node-feature" not in each]
    if removal.namespace_too and strangers:
        raise UninstallError(f"namespace {removal.namespace} holds {', '.join(strangers[:5])} too: move them first")


def leftover_labels(node: Mapping[str, Any]) -> dict[str, list[str]]:
    """Labels and annotations of a node that nobody keeps up any more."""
    meta = node["metadata"]
    return {
        part: found
        for part in ("labels", "annotations")
        if (found := sorted(each for each in meta.get(part) or () if each.startswith(LABELS)))
    }


def plan(removal: Removal, survey: Survey) -> plans.Plan:
    """What goes and what stays."""
    where, space = f"{removal.namespace}/{removal.release}", removal.namespace
    history = releases.history(survey)
    last = history.last(where)
    helm = f"helm uninstall {removal.release} -n {space} --wait --timeout {removal.timeout_s}s"
    said = f"{last.chart} {last.chart_version}, {last.status}" if last else "no such release can be seen"
    again = "groundplane install, with the same values"
    steps = [
        plans.Step(id="helm", title=f"Uninstall {where} ({said})", changes="all that the release owns",
                   commands=(helm,), undo=again),
    ]  # fmt: skip
    labelled = [name(each) for each in survey.of_kind("nodes") if leftover_labels(each)]
    asked = {
        "crds": (removal.crds, "Delete the definitions, and with them every custom resource", DEFINITIONS),
        "labels": (removal.node_labels, f"Remove labels and annotations of {len(labelled)} nodes", LABELS),
        "namespace": (removal.namespace_too, f"Delete namespace {space}", (space,)),
    }
    steps += [
        plans.Step(id=key, title=title, changes=", ".join(what))
        for key, (wanted, title, what) in asked.items()
        if wanted
    ]
    stays = [
        *([] if removal.crds else ["the definitions (--crds), and with them custom resources that no release made"]),
        *([] if removal.namespace_too else [f"namespace {space} (--namespace-too)"]),
        *([] if removal.node_labels else [f"labels and annotations of {len(labelled)} nodes (--node-labels)"]),
        *STAYS,
    ]
    facts = {"server": survey.server, "removal": list(removal)}
    using = [f"uses a GPU now: {each}" for each in users(survey)]
    notes = (*using, *(f"stays: {each}" for each in stays))
    return plans.Plan(title=f"Uninstall {where}", steps=tuple(steps), notes=notes, facts=facts)


GONE_S: Final = 120.0
"""How long the API server may take to delete the custom resources of a definition, before it is told as stuck."""


async def delete_definitions(client: "Client", definitions: Sequence[str] = DEFINITIONS) -> list[str]:
    """Delete the definitions, and wait until they are gone; those that were there.

    Raises :class:`UninstallError` where something holds one: the next installation would find it half there.
    """
    found = []
    for each in definitions:
        try:
            await client.delete(kinds.CRD, each)
        except errors.NotFound:
            continue
        found.append(each)
    ends = time.monotonic() + GONE_S
    for each in found:
        while await _is_there(client, each):
            if time.monotonic() > ends:
                plural = each.partition(".")[0]
                raise UninstallError(
                    f"{each} is being deleted and does not go: a finalizer holds one of its objects "
                    f"(kubectl get {plural} -o jsonpath='{{.items[*].metadata.finalizers}}'); the same command goes on"
                )
            await asyncio.sleep(0.2)
    return found


async def _is_there(client: "Client", definition: str) -> bool:
    try:
        await client.get(kinds.CRD, definition)
    except errors.NotFound:
        return False
    return True


async def remove_labels(client: "Client", nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Take leftover labels and annotations off nodes; the nodes that had some."""
    changed = []
    for node in nodes:
        found = leftover_labels(node)
        if found:
            body = {"metadata": {part: dict.fromkeys(keys) for part, keys in found.items()}}
            await client.patch(
                kinds.NODE, name(node), body, type=PatchType.MERGE, field_manager="groundplane-uninstall"
            )
            changed.append(name(node))
    return changed


async def delete_namespace(client: "Client", space: str) -> None:
    """Delete the namespace, if it is there."""
    try:
        await client.delete(kinds.NAMESPACE, space)
    except errors.NotFound:
        return
