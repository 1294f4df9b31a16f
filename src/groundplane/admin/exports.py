"""The same installation for those who run Helm or GitOps themselves: commands, or documents to commit.

Argo CD, Flux and Terraform want the values in the document. Documents are committed, so values that hold secrets are
refused: they belong into a Secret that the document names, or into the cluster by other ways.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..diagnose.redact import Redactor
from . import helm, install, trees
from .install import Wanted

Document = dict[str, Any]


class ExportError(ValueError):
    """The installation cannot be written in that form; the message says why and what to do."""


def secrets_in(values: Mapping[str, Any]) -> list[str]:
    """The paths of values that look like secrets."""
    masked = Redactor().document(dict(values))
    return [
        trees.dotted(path) for path, value in trees.leaves(values) if not trees.same(value, trees.get(masked, path))
    ]


def _checked(wanted: Wanted) -> None:
    if paths := secrets_in(wanted.values):
        raise ExportError(
            f"{', '.join(paths)} look like secrets, and this document is made to be committed: keep them in a Secret "
            "of the cluster, and leave them out here"
        )


def _remote(wanted: Wanted, form: str) -> helm.Chart:
    if wanted.chart.is_local:
        raise ExportError(
            f"{form} fetches the chart by itself, and {wanted.chart.reference} is on this machine: push it to a "
            "registry (helm push) and give --chart oci://..., or give --chart NAME --repository URL"
        )
    return wanted.chart


def commands(wanted: Wanted) -> list[str]:
    """What a person types, in order."""
    space = wanted.namespace
    return [
        f"kubectl create namespace {space} --dry-run=client -o yaml | kubectl apply -f -",
        f"kubectl label --overwrite namespace {space} {install.PSA}enforce=privileged",
        install.command(wanted),
        f"groundplane verify --namespace {space}",
    ]


def _namespace(wanted: Wanted) -> Document:
    labels = {f"{install.PSA}enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wanted.namespace, "labels": labels}}


def argocd(wanted: Wanted) -> list[Document]:
    """An Application of Argo CD."""
    _checked(wanted)
    chart = _remote(wanted, "Argo CD")
    address, _, name = chart.reference.removeprefix("oci://").rpartition("/") if chart.is_oci else ("", "", "")
    source = {
        "repoURL": address if chart.is_oci else chart.repository,
        "chart": name if chart.is_oci else chart.reference,
        "targetRevision": chart.version,
        "helm": {"releaseName": wanted.release, "valuesObject": dict(wanted.values)},
    }
    namespace = {"labels": {f"{install.PSA}enforce": "privileged"}}
    spec = {
        "project": "default",
        "source": source,
        "destination": {"server": "https://kubernetes.default.svc", "namespace": wanted.namespace},
        "syncPolicy": {
            "managedNamespaceMetadata": namespace,
            "syncOptions": ["CreateNamespace=true", "ServerSideApply=true"],
        },
    }
    metadata = {"name": wanted.release, "namespace": "argocd"}
    return [{"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": metadata, "spec": spec}]


def flux(wanted: Wanted) -> list[Document]:
    """Where the chart is, and a HelmRelease of Flux."""
    _checked(wanted)
    chart = _remote(wanted, "Flux")
    metadata = {"name": wanted.release, "namespace": wanted.namespace}
    where: Document
    if chart.is_oci:
        kind = {"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "OCIRepository"}
        where = {"interval": "1h", "url": chart.reference, "ref": {"tag": chart.version}}
        named: Document = {"chartRef": {"kind": "OCIRepository", "name": wanted.release}}
    else:
        kind = {"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "HelmRepository"}
        where = {"interval": "1h", "url": chart.repository}
        source = {"kind": "HelmRepository", "name": wanted.release}
        named = {"chart": {"spec": {"chart": chart.reference, "version": chart.version, "sourceRef": source}}}
    spec = {
        "interval": "1h",
        "releaseName": wanted.release,
        "timeout": f"{wanted.timeout_s}s",
        **named,
        "install": {"crds": "Create"},
        "upgrade": {"crds": "CreateReplace"},
        "values": dict(wanted.values),
    }
    release = {"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "metadata": metadata, "spec": spec}
    return [_namespace(wanted), {**kind, "metadata": metadata, "spec": where}, release]


def terraform(wanted: Wanted) -> str:
    """A ``helm_release`` of Terraform. Its strings are JSON's, in which ``${`` and ``%{`` are written doubled."""
    _checked(wanted)
    chart = wanted.chart
    rows: dict[str, Any] = {"name": wanted.release, "namespace": wanted.namespace, "chart": chart.reference}
    rows |= {"repository": chart.repository} if chart.repository else {}
    rows |= {} if chart.is_local else {"version": chart.version}
    rows |= {"create_namespace": True, "wait": True, "timeout": wanted.timeout_s}
    lines = [f"  {name:<16} = {_hcl(value)}" for name, value in rows.items()]
    values = json.dumps(wanted.values, sort_keys=True)
    name = "".join(letter if letter.isalnum() else "_" for letter in wanted.release)
    return "\n".join([f'resource "helm_release" "{name}" {{', *lines, f"  {'values':<16} = [{_hcl(values)}]", "}", ""])


def _hcl(value: Any) -> str:
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


DOCUMENTS: Final[Mapping[str, Callable[[Wanted], list[Document]]]] = {"argocd": argocd, "flux": flux}
FORMS: Final = ("helm", *DOCUMENTS, "terraform")
