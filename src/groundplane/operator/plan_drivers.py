"""What NVIDIADrivers would lead to, without a cluster: for ``groundplane render``.

Nodes are labelled as under a ClusterPolicy that leaves drivers to NVIDIADriver objects, each gets its owner, and every
driver is rendered for the nodes that it then has; the same functions decide as in the loops.
"""

from collections.abc import Mapping, Sequence

from ..api import clusterpolicy as cp
from ..api import names, validate_driver
from ..api.nvidiadriver import NVIDIADriver
from ..api.release import Release
from ..cluster.views import NodeView
from ..operands import driver_owners, nvidiadriver
from ..operands.driver_owners import Nodes
from ..operands.errors import RenderError
from ..operands.facts import ClusterFacts
from ..operands.stack import Rendered
from . import plan, runtime
from .labels import NodeChange
from .plan import Offline

Keys = Mapping[str, tuple[str, ...] | None]

SHARED = "objects that all NVIDIADrivers share"
POLICY = cp.ClusterPolicy(spec=cp.ClusterPolicySpec(driver=cp.DriverSpec(useNvidiaDriverCRD=True)))
"""What the labels of nodes are for while there is no other policy to go by."""


def offline(
    drivers: Sequence[NVIDIADriver],
    nodes: Sequence[NodeView],
    *,
    namespace: str,
    release: Release,
    default_images: Mapping[str, str],
    config_maps: Keys,
    secrets: Keys,
) -> Offline:
    """Render ``drivers`` as for a cluster of ``nodes``: one state each, after one for what they share.

    Of the nodes, those labels must have been kept that the drivers select by (:func:`~groundplane.cluster.views.keep`).
    """
    fleet, found = plan.fleet_of(nodes, POLICY, release)
    changes = {change.name: change for change in found}
    before = {node.name: plan.labelled(node, changes.get(node.name)).labels for node in nodes}
    facts = ClusterFacts(
        namespace=namespace,
        release=release,
        runtime=runtime.detect(fleet.summary.runtimes),
        default_images=default_images,
        config_maps=config_maps,
        secrets=secrets,
    )
    owned = driver_owners.assign(drivers, before, release)
    if owned.conflict:
        return Offline(facts, (), tuple(found), (owned.conflict.message,))
    for name, owner in owned.changes.items():
        change = changes.get(name) or NodeChange(name, {}, {})
        changes[name] = NodeChange(name, {**change.labels, names.DRIVER_OWNER: owner}, change.annotations)
    after = {node.name: plan.labelled(node, changes.get(node.name)).labels for node in nodes}
    results = [_render(driver, after, facts) for driver in drivers]
    shared = Rendered(SHARED, enabled=True, objects=nvidiadriver.shared(drivers, facts))
    problems = [f"{each.state}: {each.error.message}" for each in results if each.error]
    warnings = [f"{each.state}: {each.not_ready}" for each in results if each.not_ready]
    ordered = tuple(changes[name] for name in sorted(changes))
    return Offline(facts, (shared, *results), ordered, tuple(problems), tuple(warnings))


def _render(driver: NVIDIADriver, nodes: Nodes, facts: ClusterFacts) -> Rendered:
    """One driver's objects, or the first thing that is wrong with it."""
    name = f"NVIDIADriver {driver.name}"
    wrong = validate_driver.problems(driver.spec, facts.release)
    if wrong:
        return Rendered(name, enabled=True, error=RenderError(name, wrong[0].message))
    try:
        made = nvidiadriver.render(driver, nodes, facts)
    except RenderError as error:
        return Rendered(name, enabled=True, error=error.at(name))
    skipped = "; ".join(f"node {node} is left out: {why}" for node, why in made.skipped.items())
    return Rendered(name, enabled=True, objects=made.objects, not_ready=skipped)
