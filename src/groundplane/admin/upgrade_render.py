"""The driver DaemonSets and ClusterPolicies of two releases, so that an upgrade or a rollback can be told beforehand.

A release's policy is what Helm rendered or stored, or, where no chart is at hand, what its template would make of the
values. Driver DaemonSets are what the operator makes of it on this cluster's nodes, by its own rules (``expected``).
Comparing them is ``disruption``'s.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from ..api.clusterpolicy import ClusterPolicySpec
from ..api.release import Release
from ..diagnose.survey import Object, Survey
from . import releases, trees
from .expected import expected
from .hops import Version
from .releases import Revision
from .trees import Tree

POLICY: Final = "ClusterPolicy"
DRIVER: Final = "NVIDIADriver"
_PLURALS: Final = {POLICY: "clusterpolicies", DRIVER: "nvidiadrivers", "Deployment": "deployments"}
_SECTIONS: Final = tuple(field.encode_name for field in msgspec.structs.fields(ClusterPolicySpec))


def documents(manifest: str) -> list[Object]:
    """The objects of a stored manifest; what is no YAML is left out, as Helm stored it like that."""
    try:
        return [each for each in yaml.load_all(manifest, Loader=yaml.CSafeLoader) if isinstance(each, dict)]
    except yaml.YAMLError:
        return []


def policy_of(values: Tree, name: str = "cluster-policy") -> Object:
    """The ClusterPolicy that a chart's template makes of values: sections are called alike in both."""
    spec = {
        name: _without_nothing(dict(values[name]))
        for name in _SECTIONS
        if name in values and isinstance(values[name], Mapping)
    }
    driver = spec.get("driver")
    if driver is not None:
        driver.pop("nvidiaDriverCRD", None)
        if (by_crd := trees.get(values, "driver.nvidiaDriverCRD.enabled")) is not None:
            driver["useNvidiaDriverCRD"] = bool(by_crd)
        upgrade = driver.get("upgradePolicy") or {}
        if "gpuPodDeletion" in upgrade:
            upgrade["podDeletion"] = upgrade.pop("gpuPodDeletion")
    return {"apiVersion": "nvidia.com/v1", "kind": POLICY, "metadata": {"name": name}, "spec": spec}


def _without_nothing(value: Any) -> Any:
    """Without what says nothing: null, empty text, empty maps and lists."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_nothing(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if each is not None and each not in ("", {}, [])}


def planned(survey: Survey, objects: Iterable[Object]) -> Survey:
    """The survey as it will be with a release's objects: its ClusterPolicy, NVIDIADrivers and operator."""
    found: dict[str, list[Object]] = {plural: [] for plural in _PLURALS.values()}
    for each in objects:
        if plural := _PLURALS.get(str(each.get("kind"))):
            found[plural].append(each)
    kept = [each for each in survey.of_kind("nvidiadrivers") if not _of_release(each)]
    named = {each["metadata"]["name"] for each in found["nvidiadrivers"]}
    found["nvidiadrivers"] += [each for each in kept if each["metadata"]["name"] not in named]
    made = {plural: tuple(each) for plural, each in found.items()}
    return msgspec.structs.replace(survey, objects={**survey.objects, **made, "daemonsets": ()})


def _of_release(document: Object) -> bool:
    labels = (document.get("metadata") or {}).get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == "Helm"


def behaving_as(version: Version) -> Release:
    """The release whose rendering stands for another's: of older ones the oldest that there is."""
    try:
        return Release.parse(str(version))
    except ValueError:
        return Release.V26_3 if (version.year, version.month) < (26, 7) else Release.DEFAULT


def driver_sets(survey: Survey, version: Version, chart: str = "") -> tuple[list[Object], tuple[str, ...]]:
    """The driver DaemonSets that an operator of a release makes of a survey, and what it could not make.

    ``chart``, such as ``gpu-operator-v26.3.3``, is the label that NVIDIA's operator gives every pod's template.
    """
    found = expected(survey, behaving_as(version))
    made = [
        {"metadata": {"name": each.name}, "spec": {"template": _labelled(each.template, chart)}}
        for each in found.operands
        if each.driver and not each.live
    ]
    return made, found.problems


def _labelled(template: Mapping[str, Any], chart: str) -> Mapping[str, Any]:
    if not chart:
        return template
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), "helm.sh/chart": chart}
    return {**template, "metadata": {**metadata, "labels": labels}}


def chart_label(revision: Revision, version: Version) -> str:
    """What NVIDIA's operator of a release labels its pods with; ours does not."""
    return f"{releases.CHART}-{version}" if revision.maker == releases.NVIDIAS else ""


def edited(survey: Survey, revision: Revision) -> Iterator[str]:
    """Paths of ClusterPolicy and NVIDIADriver specs that somebody has changed past Helm: a change by Helm loses them.

    Names only, as values may be secret. What the API server has filled in is not in the manifest, and does not count.
    """
    for each in documents(revision.manifest):
        kind, name = str(each.get("kind")), str((each.get("metadata") or {}).get("name"))
        if kind not in (POLICY, DRIVER):
            continue
        live = next((it for it in survey.of_kind(_PLURALS[kind]) if it["metadata"]["name"] == name), None)
        if live is None:
            if survey.knows(_PLURALS[kind]):
                yield f"{kind} {name} (deleted)"
            continue
        there = live.get("spec") or {}
        for path, value in trees.leaves(each.get("spec") or {}):
            if value not in (None, {}, []) and not trees.same(value, trees.get(there, path)):
                yield f"{kind} {name}: spec.{trees.dotted(path)}"
