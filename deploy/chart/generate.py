"""Write the parts of the chart that follow from the code: definitions, rights, monitoring, the schema of the values.

``python -m deploy.chart.generate`` writes them; with ``--check`` it writes nothing, names what is out of date and exits
with 1. A test does the same. Templates, values and their comments are written by hand.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.chart import alerts, counters, dashboard, values_schema
from groundplane.api import node_features
from groundplane.api.clusterpolicy import ClusterPolicySpec
from groundplane.api.release import Release
from groundplane.cli import output
from groundplane.cluster import kinds
from groundplane.lab.cluster import data
from groundplane.operands import operator_metrics, rbac
from groundplane.operands.facts import ClusterFacts, OpenShift
from groundplane.operator import manage_crds, openshift

CHART: Final = Path(__file__).parent
FEATURES: Final = "charts/node-feature-discovery"
Rule = dict[str, Any]

RBAC_HEADER: Final = """\
# Written by deploy/chart/generate.py: what the operator may do, and nothing else.
#   uses    what it does itself
#   grants  what it hands on to operands. Kubernetes lets nobody grant what he does not hold, so the operator holds it;
#           with "openshift" there, what it hands on only on that platform
#   diagnosis  what it does itself only with operator.diagnosis.enabled
# Each in the whole cluster, in the release's namespace, for events in the namespace default (events of cluster-wide
# objects live there), and on OpenShift in the namespace openshift.
"""


def files() -> dict[str, str]:
    """Content of every generated file by its path in the chart."""
    made = {f"crds/{_plural(each)}.yaml": definition(each) for each in manage_crds.shipped()}
    made |= {f"{FEATURES}/crds/{_plural(each)}.yaml": definition(each) for each in node_features.definitions()}
    made |= {
        "files/monitoring/alerts.yaml": alerts.HEADER + output.to_yaml({"groups": alerts.groups()}),
        "files/monitoring/counters.csv": counters.text(),
        "files/monitoring/dashboard.json": dashboard.text(),
    }
    schema = json.dumps(values_schema.values_schema(), indent=1) + "\n"
    return {**made, "files/rbac.yaml": RBAC_HEADER + rules_text(rights()), "values.schema.json": schema}


def _plural(document: dict[str, Any]) -> str:
    name: str = document["metadata"]["name"]
    return name.partition(".")[0]


def definition(document: dict[str, Any]) -> str:
    """A definition as text."""
    return "# Written by deploy/chart/generate.py.\n" + output.to_yaml(output.ordered(document))


# --- Rights ---------------------------------------------------------------------------------------------------------


def rights() -> dict[str, dict[str, list[Rule]]]:
    """The operator's rules: ``{cluster, namespace, events, openshift}``, each ``{uses, grants}`` and more as asked for.

    What it uses is what the lab grants it under access control, where a test sees that this suffices.
    """
    roles = [each for each in data("operator-rbac.yaml") if "rules" in each]
    used = {(role["kind"], role["metadata"]["name"]): role["rules"] for role in roles}
    diagnosing = [each for each in data("operator-diagnosis-rbac.yaml") if "rules" in each]
    diagnosis = {role["metadata"]["namespace"]: role["rules"] for role in diagnosing}
    accounts = rbac.ACCOUNTS.values()
    return {
        "cluster": {
            "uses": used["ClusterRole", "gpu-operator"],
            "grants": merged(rule.policy().to_dict() for account in accounts for rule in account.cluster),
        },
        "namespace": {
            "uses": used["Role", "gpu-operator"],
            "grants": [
                rbac.USE_PRIVILEGED.to_dict(),
                *merged(rule.policy().to_dict() for account in accounts for rule in account.role),
            ],
            "openshift": merged(monitoring_rights()),
            "diagnosis": diagnosis["gpu-operator"],
        },
        "events": {
            "uses": used["Role", "gpu-operator-events"],
            "grants": [],
            "diagnosis": diagnosis["default"],
        },
        "openshift": {"uses": [IMAGE_STREAMS], "grants": []},
    }


def rules_text(places: dict[str, dict[str, list[Rule]]]) -> str:
    """The rules as YAML, a line each where they fit."""
    lines = []
    for place, uses in places.items():
        lines.append(f"{place}:")
        for use, rules in uses.items():
            lines.append(f"  {use}:" if rules else f"  {use}: []")
            lines += [
                f"    - {yaml.safe_dump(rule, default_flow_style=True, sort_keys=True, width=1000).strip()}"
                for rule in rules
            ]
    return "\n".join(lines) + "\n"


def monitoring_rights() -> Iterator[Rule]:
    """What OpenShift's monitoring gets in the operator's namespace, and only there."""
    facts = ClusterFacts(namespace="gpu-operator", release=Release.DEFAULT, openshift=OpenShift(version="4.18"))
    for document in operator_metrics.render(ClusterPolicySpec(), facts):
        if document["kind"] == "Role":
            yield from document["rules"]


IMAGE_STREAMS: Final = {
    "apiGroups": [kinds.IMAGE_STREAM.group],
    "resources": [kinds.IMAGE_STREAM.plural],
    "resourceNames": [openshift.IMAGE_STREAM],
    "verbs": ["list", "watch"],
}
"""The images of OpenShift's driver toolkit."""

VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")


def merged(rules: Iterable[Rule]) -> list[Rule]:
    """One rule for every resource and, in turn, for all resources of a group that have the same verbs; in order."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs.setdefault((group, resource), set()).update(rule["verbs"])
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), allowed in sorted(verbs.items()):
        alike.setdefault((group, tuple(sorted(allowed, key=VERBS.index))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(allowed)}
        for (group, allowed), resources in alike.items()
    ]


# --- Command line -----------------------------------------------------------------------------------------------------


def outdated() -> list[str]:
    """Paths of generated files whose content on disk is another."""
    return [
        path for path, text in files().items() if not (CHART / path).is_file() or (CHART / path).read_text() != text
    ]


def main() -> int:
    """Write, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something is out of date")
    check = parser.parse_args().check
    stale = outdated()
    for path in stale:
        if not check:
            (CHART / path).parent.mkdir(parents=True, exist_ok=True)
            (CHART / path).write_text(files()[path])
        sys.stdout.write(
            f"deploy/chart/{path} {'is out of date: run python -m deploy.chart.generate' if check else 'written'}\n"
        )
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
