"""One cluster's values through an upgrade: its overrides between the old chart's defaults and the new chart's.

contracts/admin-workflow.md 5.2 and 16: a values file has the overrides of one site and never a chart's full defaults,
so each override is compared with both defaults, and what comes out is the least file that the new chart needs. The
table of changes is in ``value_changes``; reading values from Helm and printing is left to commands. Values may be
secret: texts name paths, and values of versions only.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from . import trees, value_changes
from .hops import Version, compare, component_numbers
from .matrix import Matrix
from .trees import Path, Tree
from .value_changes import Cluster, Level, Situation

Kind = Literal["refused", "change", "unknown", "drop", "pin", "list", "move", "add"]
State = Literal["old default", "new default", "default changed", "kept", "unknown"]

COMPONENTS: Final[Mapping[str, str]] = {
    "ccManager.version": "cc_manager",
    "dcgm.version": "dcgm",
    "dcgmExporter.version": "dcgm_exporter",
    "devicePlugin.version": "device_plugin",
    "draDriver.version": "dra_driver",
    "driver.manager.version": "driver_manager",
    "gdrcopy.version": "gdrcopy",
    "gds.version": "gds_driver",
    "gfd.version": "gpu_feature_discovery",
    "kataManager.version": "kata_manager",
    "kataSandboxDevicePlugin.version": "kata_sandbox_device_plugin",
    "migManager.version": "mig_manager",
    "nodeStatusExporter.version": "validator",
    "operator.version": "validator",
    "sandboxDevicePlugin.version": "kubevirt_device_plugin",
    "toolkit.version": "container_toolkit",
    "validator.version": "validator",
    "vfioManager.driverManager.version": "driver_manager",
    "vfioManager.version": "driver_manager",
    "vgpuDeviceManager.version": "vgpu_device_manager",
    "vgpuManager.driverManager.version": "driver_manager",
}
"""Values that name a version, each with the support matrix's name of the component (the validator and the operator
have one image)."""

_FREE: Final = (
    *("additionalLabels", "affinity", "annotations", "data", "featureGates", "labels", "limits", "nodeSelector"),
    *("requests", "resources", "livenessProbe", "readinessProbe", "startupProbe"),
)
"""Maps in which any key may stand."""
_OTHERS: Final = ("global", "node-feature-discovery", "fullnameOverride", "nameOverride", "groundplane")
"""Values at the top that belong to a subchart or to Helm, and so are in no chart's defaults."""
TEMPLATE_ONLY: Final = (
    *("*.args", "*.env", "*.version", "*.imagePullSecrets", "*.resources", "*.hostNetwork"),
    *("kataManager.image", "kataManager.repository", "dcgm.hostPort", "daemonsets.podSecurityContext"),
    *("dcgmExporter.config", "dcgmExporter.hpcJobMapping", "dcgmExporter.podLabelAllowlistRegex"),
    *("dcgmExporter.service.type", "driver.licensingConfig.configMapName", "driver.livenessProbe"),
    *("driver.readinessProbe", "hostPaths.kubeletRootDir", "operator.defaultGPUMode", "operator.labels"),
    *("operator.metrics", "operator.release", "validator.cuda", "validator.driver", "validator.toolkit"),
    *("validator.vfioPCI", "validator.vgpuDevices", "validator.vgpuManager"),
)
"""Values that charts read and have no default for. The first few are of sections only: an ``env`` of ``foo``, which the
chart has not, is still unknown."""


class Notice(NamedTuple):
    """Something to know of one value; not ``certain`` if the cluster's side of it was not known.

    ``release`` is the one that changed it, None for the generic rules. ``fix`` may be empty.
    """

    kind: Kind
    level: Level
    path: str
    text: str
    fix: str = ""
    release: Version | None = None
    certain: bool = True


class Difference(NamedTuple):
    """One overridden value beside both defaults, any of which may be missing (``None``)."""

    path: str
    state: State
    old: Any
    mine: Any
    new: Any


class Releases(NamedTuple):
    """What is known of an upgrade's two releases.

    ``components``: versions of the target's components by the support matrix's names, ``drivers``: the drivers that
    it lists, ``driver``: its default.
    """

    source: Version
    target: Version
    components: Mapping[str, str] = {}
    drivers: Sequence[str] = ()
    driver: str = ""

    @classmethod
    def of(cls, matrix: Matrix, source: Version, target: Version) -> "Releases":
        """From the support matrix; a release that it does not list has no components."""
        row = matrix.releases.get(str(target))
        if row is None:
            return cls(source, target)
        return cls(source, target, row.components, row.drivers_listed, row.driver.default)


class Review(NamedTuple):
    """What an upgrade means for the overrides of a cluster.

    ``overrides`` is the least values file for the new chart; ``notices`` are worst first; ``differences`` has a line
    for each override, in order of the file. It can be used unless ``refused``.
    """

    overrides: dict[str, Any]
    notices: tuple[Notice, ...]
    differences: tuple[Difference, ...]

    @property
    def refused(self) -> bool:
        """The new chart would not accept the values."""
        return any(each.kind == "refused" for each in self.notices)


def review(
    overrides: Tree,
    old: Tree,
    new: Tree,
    releases: Releases,
    cluster: Cluster = value_changes.NOTHING_KNOWN,
    keep: Collection[str] = (),
) -> Review:
    """Three-way: overrides against the old chart's defaults and the new chart's (contracts/admin-workflow.md 5, 16).

    ``keep`` are paths whose overrides stay as they are, though dropping or adding is proposed.
    """
    compared = tuple(differences(overrides, old, new))
    moved, moves = _move(overrides, releases, new)
    obsolete = _removed(moved, releases)
    redundant = [each for each in compared if each.state in ("old default", "new default") and each.path not in keep]
    dropped = trees.without(moved, {trees.parse(each.path) for each in redundant} | obsolete)
    situation = Situation(dropped, trees.merge(old, overrides), trees.merge(new, dropped), cluster)
    hits = _hits(situation, overrides, releases)
    made, additions = _add(situation, hits, releases, keep)
    notices = [
        *_refusals(trees.merge(new, made), releases, cluster),
        *map(_of_hit, hits),
        *moves,
        *(_drop(each) for each in redundant if each.path not in {notice.path for notice in additions}),
        *additions,
        *_unknown(overrides, new, hits),
        *_pins(dropped, new, releases),
        *_lists(dropped, old, new),
    ]
    return Review(dict(made), tuple(sorted(notices, key=lambda each: (each.level, each.path))), compared)


def differences(overrides: Tree, old: Tree, new: Tree) -> Iterator[Difference]:
    """Each override beside both defaults: what a person compares, instead of two files of full defaults."""
    for path, mine in trees.leaves(overrides):
        before, after = trees.get(old, path), trees.get(new, path)
        yield Difference(trees.dotted(path), _state(path, mine, old, new), before, mine, after)


def _state(path: Path, mine: Any, old: Tree, new: Tree) -> State:
    if _without_effect(old, path, mine):
        return "old default"
    if _without_effect(new, path, mine):
        return "new default"
    before, after = trees.get(old, path, _NOTHING), trees.get(new, path, _NOTHING)
    if after is _NOTHING and not known(new, path):
        return "unknown"
    return "kept" if trees.same(before, after) else "default changed"


_NOTHING: Final = object()


def _without_effect(defaults: Tree, path: Path, mine: Any) -> bool:
    """Whether the chart's values are the same without this override."""
    default = trees.get(defaults, path, _NOTHING)
    if mine is None or default is _NOTHING:
        return mine is None and default is _NOTHING
    return isinstance(default, Mapping) if mine == {} else trees.same(mine, default)


# --- Unknown names ----------------------------------------------------------------------------------------------------


def known(defaults: Tree, path: Path) -> bool:
    """Whether a chart reads a value: it has a default, or is one of those that charts read without one."""
    if path[0] in _OTHERS:
        return True
    found: Any = defaults
    for depth, part in enumerate(path):
        if not isinstance(found, Mapping) or (depth and (not found or path[depth - 1] in _FREE)):
            return True
        if part not in found:
            return path[0] in defaults and _template_only(path[: depth + 1])
        found = found[part]
    return True


def _template_only(path: Path) -> bool:
    return any(value_changes.matches(pattern, trees.dotted(path)) for pattern in TEMPLATE_ONLY) or path[-1] in _FREE


def nearest(defaults: Tree, path: Path) -> str:
    """The name that was meant, if one is near: in the same map first, then anywhere in the chart; else empty."""
    *above, last = path
    beside = trees.get(defaults, tuple(above))
    if isinstance(beside, Mapping) and (found := difflib.get_close_matches(last, list(beside), 1, 0.7)):
        return trees.dotted((*above, found[0]))
    everywhere = [trees.dotted(each) for each in _names(defaults)]
    close = [name for name in everywhere if name.rpartition(".")[2] == last] or everywhere
    return next(iter(difflib.get_close_matches(trees.dotted(path), close, 1, 0.7)), "")


def _names(tree: Tree, at: Path = ()) -> Iterator[Path]:
    for key, value in tree.items():
        yield (*at, key)
        if isinstance(value, Mapping):
            yield from _names(value, (*at, key))


def _unknown(overrides: Tree, new: Tree, hits: Iterable[value_changes.Hit]) -> Iterator[Notice]:
    told = {path for hit in hits if hit.change.removed for path in hit.paths}
    seen: set[Path] = set()
    for path, _ in trees.leaves(overrides):
        if known(new, path) or trees.dotted(path) in told:
            continue
        first = next(path[:depth] for depth in range(1, len(path) + 1) if not known(new, path[:depth]))
        if first not in seen:
            seen.add(first)
            near = nearest(new, first)
            fix = f"did you mean {near}?" if near else "remove it"
            yield Notice(
                "unknown", Level.WARN, trees.dotted(first), "the new chart does not know it; Helm ignores it", fix
            )


# --- Versions and lists -----------------------------------------------------------------------------------------------


def _pins(overrides: Tree, new: Tree, releases: Releases) -> Iterator[Notice]:
    for path, mine in trees.leaves(overrides):
        name = trees.dotted(path)
        if name != "driver.version" and name not in COMPONENTS:
            continue
        shipped = _shipped(name, new, releases)
        if mine and shipped and isinstance(mine, str | int | float):
            yield from _pin(name, str(mine), shipped)


def _shipped(name: str, new: Tree, releases: Releases) -> str:
    if name == "driver.version":
        return str(trees.get(new, name) or releases.driver)
    return str(trees.get(new, name) or releases.components.get(COMPONENTS[name], ""))


def _pin(name: str, mine: str, shipped: str) -> Iterator[Notice]:
    order = compare(mine, shipped)
    if order is None:
        text = f"pinned to {mine}, which cannot be compared with the release's {shipped}"
        yield Notice("pin", Level.INFO, name, text, "make sure that it is the image you want with this release")
    elif order < 0:
        text = f"pinned to {mine}, older than the release's {shipped}"
        yield Notice("pin", Level.WARN, name, text, "remove it, unless you need the older one")
    elif order > 0:
        yield Notice("pin", Level.INFO, name, f"pinned to {mine}, newer than the release's {shipped}")


def _lists(overrides: Tree, old: Tree, new: Tree) -> Iterator[Notice]:
    """Lists that hide entries which the new default has and the old one had not."""
    for path, mine in trees.leaves(overrides):
        before, after = trees.get(old, path) or [], trees.get(new, path)
        if not isinstance(mine, list) or not isinstance(after, list) or not isinstance(before, list):
            continue
        hidden = [each for each in after if not _among(each, mine)]
        if hidden and not trees.same(before, after):
            yield Notice(
                "list",
                Level.WARN,
                trees.dotted(path),
                f"the default list has changed, and yours replaces it: {len(hidden)} of its entries are not in yours",
                "lists replace, they are never merged: add what you need of the new default",
            )


def _among(entry: Any, entries: Iterable[Any]) -> bool:
    return any(trees.same(entry, each) for each in entries)


# --- What is proposed -------------------------------------------------------------------------------------------------


def _move(overrides: Tree, releases: Releases, new: Tree) -> tuple[dict[str, Any], list[Notice]]:
    made, notices = dict(overrides), []
    for move in value_changes.MOVES:
        mine = trees.get(overrides, move.old)
        becomes = [value for before, value in move.becomes if trees.same(before, mine)]
        due = move.release <= releases.target and trees.get(overrides, move.new) is None
        if due and becomes and trees.get(new, move.new, _NOTHING) is not _NOTHING:
            made = trees.without(trees.put(made, trees.parse(move.new), becomes[0]), {trees.parse(move.old)})
            text = f"moved to {move.new}: {becomes[0]}"
            notices.append(Notice("move", Level.INFO, move.old, text, release=move.release))
    return made, notices


def _removed(overrides: Tree, releases: Releases) -> set[Path]:
    situation = Situation(overrides, {}, {})
    rows = [row for row in value_changes.between(releases.source, releases.target) if row.removed]
    return {trees.parse(path) for row in rows for pattern in row.paths for path in situation.sets(pattern)}


def _hits(situation: Situation, overrides: Tree, releases: Releases) -> list[value_changes.Hit]:
    """The rows that concern the cluster: of values that are gone and that it sets, before they are dropped."""
    before = Situation(overrides, situation.old, situation.new, situation.cluster)
    rows = value_changes.between(releases.source, releases.target)
    found = (value_changes.applies(row, before if row.removed else situation) for row in rows)
    return [hit for hit in found if hit is not None]


def _of_hit(hit: value_changes.Hit) -> Notice:
    row = hit.change
    text = f"{row.change}: {row.message}"
    return Notice("change", hit.level, ", ".join(hit.paths), text, release=row.release, certain=hit.certain)


def _drop(difference: Difference) -> Notice:
    which = "the old chart's default: dropped, so that the new default applies"
    if difference.state == "new default":
        which = "the new chart's default: dropped"
    return Notice("drop", Level.INFO, difference.path, f"the same as {which}")


def _refusals(values: Tree, releases: Releases, cluster: Cluster) -> Iterator[Notice]:
    for each in value_changes.refused(values, releases.target, cluster):
        text = each.text.partition(": ")
        yield Notice("refused", Level.BREAKS, each.paths[0], text[0], text[2], each.since)


def _add(
    situation: Situation, hits: Iterable[value_changes.Hit], releases: Releases, keep: Collection[str]
) -> tuple[Tree, list[Notice]]:
    """A driver that runs every GPU of the cluster, if the new default does not (contracts/admin-workflow.md 4).

    Where drivers are precompiled it is a branch, else a version (A41).
    """
    due = any("driver.version" in hit.paths and hit.level == Level.BREAKS and hit.certain for hit in hits)
    gpus = situation.cluster.gpus or {}
    old = value_changes.outlived(gpus, releases.driver)
    driver = newest_driver(releases.drivers, min(old.values())) if old else ""
    if not due or not driver or "driver.version" in keep:
        return situation.overrides, []
    if trees.get(situation.new, "driver.usePrecompiled"):
        driver = driver.partition(".")[0]
    text = f"set to {driver}: {', '.join(sorted(old))} GPUs are not run by {releases.driver}"
    others = "to give other nodes the new driver, describe drivers by NVIDIADriver objects"
    made = trees.put(situation.overrides, ("driver", "version"), driver)
    return made, [Notice("add", Level.WARN, "driver.version", text, "" if len(old) == len(gpus) else others)]


def newest_driver(drivers: Iterable[str], branch: int) -> str:
    """The newest of some drivers whose branch is not past ``branch``; empty if there is none."""
    fitting = [each for each in drivers if (value_changes.branch(each) or branch + 1) <= branch]
    return max(fitting, key=lambda each: component_numbers(each) or (), default="")


def chart_defaults(values: Tree, by_release: Mapping[str, Mapping[str, Any]], release: Version) -> dict[str, Any]:
    """The defaults of groundplane's own chart as of one release: ``values.yaml``, and under it ``files/releases.yaml``.

    Raises KeyError if the chart has no such release.
    """
    made = dict(values)
    for name, value in by_release[release.number].items():
        if trees.get(made, name, _NOTHING) is _NOTHING:
            made = trees.put(made, trees.parse(name), value)
    return made
