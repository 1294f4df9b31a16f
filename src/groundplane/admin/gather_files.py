"""Files of an archive that people read: YAML of what matters, a folder for each node, tables of events, Helm's story.

Programs read the capture itself (``diagnose.archive``); these say the same in other words, or what no check asks for
(contracts/admin-workflow.md 13.3). Everything here is made of what was read; :func:`readable` takes what is redacted
already, the others give :class:`Extra` that is not. Who reads, and who redacts, are ``gather``'s and ``gather_pack``'s
parts.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import yaml

from ..diagnose import evidence as seen
from ..diagnose.archive import Captured
from ..diagnose.evidence import NodeFacts
from ..diagnose.survey import Survey
from . import releases, trees

OK: Final = "ok"
PARTIAL: Final = "partial"
DENIED: Final = "denied"
TIMEOUT: Final = "timeout"
TOO_LARGE: Final = "too-large"
SKIPPED: Final = "skipped"
"""How a file of an archive came about; all but the first two have no content."""


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """A file beside the capture, not yet redacted: a text, or documents that become YAML."""

    name: str
    text: str = ""
    documents: tuple[Any, ...] | None = None
    status: str = OK
    why: str = ""
    """Of a status that is not :data:`OK`: one sentence."""


class _Dumper(yaml.CSafeDumper):
    """YAML without anchors, texts of lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None),
)


def to_yaml(documents: Iterable[Any]) -> str:
    """Documents as one stream of YAML."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


def file_name(text: str) -> str:
    """A text as a part of a file's name: nothing that climbs or hides, of bounded length."""
    return re.sub(r"[^A-Za-z0-9._\-]+", "-", text).strip("-.")[:120] or "unnamed"


# --- Of what is redacted ----------------------------------------------------------------------------------------------

READABLE: Final = (
    *("clusterpolicies", "nvidiadrivers", "nodefeaturerules", "resourceclaims", "runtimeclasses", "resourcequotas"),
    *("poddisruptionbudgets", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "daemonsets"),
    *("deployments", "configmaps", "jobs", "services", "servicemonitors", "clusterversions", "nodes"),
)
"""Kinds that people read as YAML, beside the lines that programs read."""
NODES_READABLE: Final = 2000
"""Of a kind with more objects there are only the lines."""


def readable(captured: Captured) -> Iterator[tuple[str, str]]:
    """Name and text of the files that people read, made of a redacted capture."""
    survey = captured.survey
    for plural in READABLE:
        if 0 < len(survey.of_kind(plural)) <= NODES_READABLE:
            yield f"yaml/{plural}.yaml", to_yaml(survey.of_kind(plural))
    yield (
        "version.json",
        msgspec.json.format(msgspec.json.encode({"gitVersion": survey.version, "server": survey.server})).decode(),
    )
    if "namespaces" in survey.objects:
        yield "yaml/namespaces.yaml", to_yaml([_namespace(each) for each in survey.of_kind("namespaces")])
    if "events" in survey.objects:
        yield "events.txt", "".join(events(survey))
    taints = {seen.name(node): (node.get("spec") or {}).get("taints") for node in survey.of_kind("nodes")}
    yield "yaml/taints.yaml", to_yaml([{node: each for node, each in taints.items() if each}])
    for facts in captured.facts:
        yield from node_files(facts)


_SECURITY: Final = "pod-security.kubernetes.io/"


def _namespace(thing: Mapping[str, Any]) -> dict[str, Any]:
    """What of a namespace lets pods in or keeps them out."""
    labels = seen.labels(thing)
    security = {key.removeprefix(_SECURITY): value for key, value in labels.items() if key.startswith(_SECURITY)}
    return {"namespace": seen.name(thing), "podSecurity": security, "phase": (thing.get("status") or {}).get("phase")}


def events(survey: Survey) -> Iterator[str]:
    """Events as a table, oldest first."""
    rows = []
    for thing in survey.of_kind("events"):
        event = seen.event_of(thing)
        about = "/".join(filter(None, (event.namespace, event.kind, event.name)))
        rows.append((event.when, str(thing.get("type") or ""), event.reason, about, " ".join(event.message.split())))
    for when, kind, reason, about, message in sorted(rows):
        yield f"{when:<24} {kind:<8} {reason:<28} {about}  {message}\n"


_TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "hardware": ("pci", "gpus", "nvswitches", "firmware", "secure_boot", "lockdown"),
    "modules": ("modules", "module_uses", "module_type", "nouveau", "nouveau_denied", "nouveau_on_cmdline"),
    "kernel": ("kernel", "kernels", "newer_kernel", "headers", "headers_package", "os", "os_version", "selinux"),
    "driver": ("driver_version", "library_version", "host_tool", "device_holders", "fabric_state", "fabric_manager"),
    "runtime": ("containerd", "crio", "docker", "sockets", "nri_socket", "toolkit", "toolkit_version"),
    "cdi": ("cdi_specs", "cdi_errors"),
    "validations": ("validations", "driver_container"),
    "device-plugins": ("device_plugins", "kubelet_root", "kubelet_socket", "plugin_socket"),
    "services": ("services", "clock_service", "clock_skew_s"),
}
"""Facts of a node by the file that people look for them in; ``facts.yaml`` has all."""


def node_files(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """The files of a node's folder: what its programs said, what was found by topic, what could not be found."""
    folder = f"nodes/{file_name(facts.name)}"
    for topic, names in _TOPICS.items():
        if found := {name: facts.facts[name] for name in names if name in facts.facts}:
            yield f"{folder}/{topic}.yaml", to_yaml([found])
    yield f"{folder}/facts.yaml", to_yaml([dict(facts.facts)])
    for line, said in facts.commands.items():
        code = "" if said.rc == 0 else f"\n[exit code {said.rc}]\n"
        yield f"{folder}/{file_name(line)}.txt", said.out + code
    if facts.missing:
        yield f"{folder}/missing.txt", "\n".join(facts.missing) + "\n"


# --- Of what is not ---------------------------------------------------------------------------------------------------


def definitions(survey: Survey) -> Iterator[Extra]:
    """Every CustomResourceDefinition with the hash of each version's schema: equal hashes are equal schemas."""
    rows = []
    for thing in survey.of_kind("customresourcedefinitions"):
        versions = [each for each in (thing.get("spec") or {}).get("versions") or () if isinstance(each, dict)]
        rows.append(
            {
                "name": seen.name(thing),
                "versions": [
                    {
                        "name": each.get("name"),
                        "served": each.get("served"),
                        "storage": each.get("storage"),
                        "schema": schema_hash(each.get("schema")),
                    }
                    for each in versions
                ],
            }
        )
    if rows:
        yield Extra(name="yaml/customresourcedefinitions.yaml", documents=tuple(rows))


def schema_hash(schema: Any) -> str:
    """The SHA-256 of a schema, whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(schema, order="sorted")).hexdigest()


_OURS: Final = ("nvidia.com", "nfd.k8s-sigs.io", "monitoring.coreos.com")


def without_schemas(survey: Survey) -> Survey:
    """The same without the schemas of kinds that are not of the GPU stack: megabytes, and their hashes are kept."""

    def kept(thing: dict[str, Any]) -> dict[str, Any]:
        spec = thing.get("spec") or {}
        if str(spec.get("group") or "").endswith(_OURS):
            return thing
        versions = [
            {key: each[key] for key in each if key != "schema"}
            for each in spec.get("versions") or ()
            if isinstance(each, dict)
        ]
        return {**thing, "spec": {**spec, "versions": versions}}

    plural = "customresourcedefinitions"
    if plural not in survey.objects:
        return survey
    return msgspec.structs.replace(survey, objects={**survey.objects, plural: tuple(map(kept, survey.of_kind(plural)))})


MANIFESTS: Final = 2
"""Revisions of a release, newest first, whose manifest and computed values are kept; of all the users' values."""


def helm(survey: Survey) -> Iterator[Extra]:
    """What Helm has stored of the operator's releases: the history, values as given and as computed, manifests."""
    told = releases.history(survey)
    if told.unread:
        yield Extra(name="helm/history.yaml", status=DENIED, why=told.unread)
    for number, why in enumerate(told.broken):
        yield Extra(name=f"helm/unreadable-{number}.yaml", status=PARTIAL, why=why, documents=({"unreadable": why},))
    for where in told.releases:
        revisions = told.of(where)
        folder = f"helm/{file_name(where.replace('/', '_'))}"
        yield Extra(name=f"{folder}/history.yaml", documents=tuple(map(_row, revisions)))
        for place, each in enumerate(revisions):
            yield Extra(name=f"{folder}/{each.revision:03d}.values.yaml", documents=(dict(each.values),))
            if place < MANIFESTS:
                computed = trees.merge(each.defaults, each.values)
                yield Extra(name=f"{folder}/{each.revision:03d}.computed.yaml", documents=(computed,))
                yield _manifest(f"{folder}/{each.revision:03d}.manifest.yaml", each.manifest)
                hooks = "\n---\n".join(hook.manifest for hook in each.hooks)
                yield _manifest(f"{folder}/{each.revision:03d}.hooks.yaml", hooks)


def _row(revision: releases.Revision) -> dict[str, Any]:
    names = ("revision", "updated", "status", "chart", "chart_version", "app_version", "description", "maker")
    return {name: getattr(revision, name) for name in names} | {
        "hooks": [{"name": each.name, "kind": each.kind, "events": list(each.events)} for each in revision.hooks]
    }


def _manifest(name: str, text: str) -> Extra:
    """A manifest, as documents where it is YAML: their Secrets are known as such."""
    try:
        return Extra(name=name, documents=tuple(filter(None, yaml.load_all(text, Loader=yaml.CSafeLoader))))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Extra(name=name, text=text, status=PARTIAL, why=f"it is no YAML: {error}")


def namespaces(survey: Survey, pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Namespaces other than the operator's that have pods of the GPU stack."""
    return sorted({seen.namespace(pod) for pod in pods} - {survey.namespace, ""})
