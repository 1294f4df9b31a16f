"""Releases of the GPU Operator: which upgrade is one step, which needs a chain, and which Kubernetes it needs.

contracts/admin-workflow.md 9.1, on the facts of the support matrix: reading it, and judging a platform by it, is left
to ``matrix`` and others. What an upgrade changes is left to ``value_changes`` and ``disruption``.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Self

import msgspec

from .matrix import Family, Matrix
from .versions import Minor, Minors, minor_text
from .versions import minor as minor_of

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_WORDS: Final = {"end_of_support": "end of support", "generally_available": "generally available", "eol": "end of life"}
"""Lifecycle words of the matrix that are written differently for a person."""
_BY_AGE: Final = ("supported", "deprecated")
"""Lifecycle by how many families are newer (contracts/admin-workflow.md 4); any older one has ended."""

Action = Literal["none", "upgrade", "rollback"]
StepKind = Literal["kubernetes", "operator", "outside", "blocked"]


class VersionError(ValueError):
    """A release is not one that a plan can be made for; the text says what was expected and what to do."""


class Version(msgspec.Struct, frozen=True, order=True):
    """A release ``YY.MM.PP``: its first two numbers are its family, the last is the patch."""

    year: int
    month: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a release, with or without ``v``. Raises VersionError."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise VersionError(f"{text!r} is not a release of the GPU Operator: write it like v26.3.3")
        return cls(*map(int, match.groups()))

    @property
    def family(self) -> str:
        """The major release, such as ``26.3``."""
        return f"{self.year}.{self.month}"

    @property
    def number(self) -> str:
        """Without ``v``, as ``max_by_patch`` of the matrix has it."""
        return f"{self.family}.{self.patch}"

    def __str__(self) -> str:
        """As the chart is versioned: with ``v``."""
        return f"v{self.number}"


def common(one: Minors, other: Minors) -> Minors | None:
    """The versions of Kubernetes that two ranges share; None if they share none."""
    low, high = max(one.low, other.low), min(one.high, other.high)
    return Minors(low, high) if low <= high else None


class Hop(NamedTuple):
    """One upgrade of the chart that is supported by itself.

    ``kubernetes`` is what the cluster may be while it is made: it fits source and target. None: no version does.
    """

    source: Version
    target: Version
    kubernetes: Minors | None

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


class Path(NamedTuple):
    """How to come from one release to another: ``hops`` in order, one for a rollback, none if nothing is to be done.

    ``notes`` are for a person: releases that the matrix does not list, what was shortened.
    """

    action: Action
    source: Version
    target: Version
    hops: tuple[Hop, ...]
    notes: tuple[str, ...] = ()


class Step(NamedTuple):
    """A line of a plan that interleaves upgrades of the operator and of the cluster.

    ``kubernetes``: upgrade the cluster; ``operator``: make the hop; ``outside``: make the hop, though the cluster is
    newer than the release that runs was validated with; ``blocked``: it cannot go on.
    """

    kind: StepKind
    text: str
    hop: Hop | None = None

    def __str__(self) -> str:
        return self.text


class Catalogue(msgspec.Struct, frozen=True):
    """What the support matrix says of releases.

    ``order`` are the families, oldest first; ``releases`` those published, oldest first; ``ranges`` the Kubernetes of
    each family by operating system, under ``""`` for all; ``last`` the newest Kubernetes of single patches.
    """

    as_of: str
    order: tuple[str, ...]
    releases: tuple[Version, ...]
    lifecycles: Mapping[str, str]
    ranges: Mapping[str, Mapping[str, Minors]]
    last: Mapping[str, Minor]

    @classmethod
    def of(cls, matrix: Matrix) -> Self:
        """From the support matrix."""
        caps = [family.kubernetes.max_by_patch for family in matrix.platforms.values()]
        return cls(
            as_of=str(matrix.data_as_of),
            order=matrix.family_order,
            releases=tuple(sorted(map(Version.parse, matrix.releases))),
            lifecycles=matrix.lifecycle,
            ranges={name: dict(_ranges(family)) for name, family in matrix.platforms.items()},
            last={patch: _minor(top) for each in caps for patch, top in each.items()},
        )

    def known(self, version: Version) -> bool:
        """Whether the release is listed."""
        return version in self.releases

    def newest(self, family: str) -> Version:
        """The newest patch of a family. Raises VersionError if none is listed."""
        patches = [each for each in self.releases if each.family == family]
        if not patches:
            raise VersionError(f"the support matrix of {self.as_of} lists no release of family {family}")
        return patches[-1]

    def lifecycle(self, version: Version) -> str:
        """How long a release's family has still to live, as a word: supported, deprecated, end of support."""
        family = version.family
        word = self.lifecycles.get(family)
        if word is None:
            newer = len(self.order) - 1 - self._place(family)
            word = _BY_AGE[newer] if newer < len(_BY_AGE) else "end_of_support"
        return _WORDS.get(word, word)

    def kubernetes(self, version: Version, system: str | None = None) -> Minors:
        """Which Kubernetes a release was validated with; with ``system`` (``ubuntu24.04``) the row of that system.

        A system without a row of its own has the family's. Patches may end earlier than their family.
        """
        rows = self.ranges.get(version.family)
        if rows is None:
            raise self._unknown(version.family)
        found = rows.get(system or "", rows[""])
        cap = self.last.get(version.number)
        return found if cap is None or cap >= found.high else Minors(found.low, max(cap, found.low))

    def path(self, source: Version, target: Version, system: str | None = None) -> Path:
        """How to come from ``source`` to ``target`` (contracts/admin-workflow.md 9.1).

        Raises VersionError if a family is not one the matrix knows.
        """
        for each in (source, target):
            self._place(each.family)
        notes = tuple(
            f"{each} is not listed in the support matrix of {self.as_of}: check that the chart exists, "
            "or give a newer matrix"
            for each in (source, target)
            if not self.known(each)
        )
        if source == target:
            return Path("none", source, target, (), notes)
        if target < source:
            back = (
                f"no way down is documented: going from {source} back to {target} is a rollback, which has its boundary"
            )
            return Path("rollback", source, target, (self._hop(source, target, system),), (*notes, back))
        stops = [source, *self._stops(source, target), target]
        hops = tuple(self._hop(a, b, system) for a, b in itertools.pairwise(stops))
        return Path("upgrade", source, target, hops, notes)

    def _stops(self, source: Version, target: Version) -> list[Version]:
        between = self.order[self._place(source.family) + 1 : self._place(target.family)]
        return [self.newest(family) for family in between]

    def _hop(self, source: Version, target: Version, system: str | None) -> Hop:
        return Hop(source, target, common(self.kubernetes(source, system), self.kubernetes(target, system)))

    def _place(self, family: str) -> int:
        if family not in self.order:
            raise self._unknown(family)
        return self.order.index(family)

    def _unknown(self, family: str) -> VersionError:
        return VersionError(
            f"the support matrix of {self.as_of} does not know family {family}, only {', '.join(self.order)}: "
            "use one of these, or give a newer matrix"
        )


def _ranges(family: Family) -> Iterator[tuple[str, Minors]]:
    """The Kubernetes of a family, and of each system with a row that names it."""
    yield "", Minors(_minor(family.kubernetes.min), _minor(family.kubernetes.max))
    yield from ((system, row.k8s) for system, row in family.os.items() if row.k8s is not None)


def _minor(text: str) -> Minor:
    found = minor_of(text)
    if found is None:
        raise VersionError(f"{text!r} is not a version of Kubernetes: expected one like 1.33")
    return found


_VERBS: Final[Mapping[Action, str]] = {"none": "leave", "upgrade": "upgrade", "rollback": "roll back"}


def interleave(catalogue: Catalogue, path: Path, cluster: Minor, system: str | None = None) -> tuple[Step, ...]:
    """The hops of a path with the upgrades of the cluster that must come between; stops where it cannot go on.

    The cluster is upgraded no further than the next hop needs, one minor version at a time, as Kubernetes asks.
    """
    steps: list[Step] = []
    for hop in path.hops:
        target = catalogue.kubernetes(hop.target, system)
        fits = hop.kubernetes
        if fits is not None and cluster < fits.low:
            steps.extend(_cluster_steps(cluster, fits.low, hop))
            cluster = fits.low
        steps.append(_step(_VERBS[path.action], hop, cluster, target))
        if steps[-1].kind == "blocked":
            break
    return tuple(steps)


def _cluster_steps(cluster: Minor, wanted: Minor, hop: Hop) -> Iterator[Step]:
    while cluster < wanted:
        after = (cluster[0], cluster[1] + 1) if cluster[0] == wanted[0] else wanted
        text = f"upgrade Kubernetes {minor_text(cluster)} -> {minor_text(after)} (operator stays at {hop.source})"
        yield Step("kubernetes", text)
        cluster = after


def _step(verb: str, hop: Hop, cluster: Minor, target: Minors) -> Step:
    fits, has = hop.kubernetes, minor_text(cluster)
    if fits is not None and cluster in fits:
        return Step("operator", f"{verb} the operator {hop} on Kubernetes {has} (both fit {fits})", hop)
    if cluster in target:
        text = (
            f"{verb} the operator {hop} on Kubernetes {has}: {hop.target} fits ({target}), but {hop.source} was "
            "not validated with it"
        )
        return Step("outside", text, hop)
    if cluster > target.high:
        text = (
            f"cannot {verb} the operator {hop}: {hop.target} was validated with Kubernetes {target}, the cluster "
            f"has {has}, and a cluster cannot go back"
        )
    else:
        text = (
            f"cannot {verb} the operator {hop}: no Kubernetes fits both, {hop.target} needs {target} and the cluster "
            f"has {has}"
        )
    return Step("blocked", text, hop)


def component_numbers(version: str) -> tuple[int, ...] | None:
    """The numbers of a component's version, without its image's base: ``4.5.2-1-ubuntu22.04`` is (4, 5, 2, 1).

    None if it has none, such as a digest.
    """
    match = re.match(r"v?(\d+(?:[.-]\d+)*)(?=$|[-+_.])", version.strip())
    return tuple(map(int, re.split(r"[.-]", match[1]))) if match is not None else None


def compare(version: str, other: str) -> int | None:
    """-1, 0 or 1 as a component's version is older than, like or newer than another; None if they cannot be compared.

    A bare branch is compared as a branch: 580 is as new as 580.126.20.
    """
    one, two = component_numbers(version), component_numbers(other)
    if one is None or two is None:
        return None
    length = min(len(one), len(two)) if 1 in (len(one), len(two)) else max(len(one), len(two))
    left, right = _padded(one, length), _padded(two, length)
    return (left > right) - (left < right)


def _padded(number: Sequence[int], length: int) -> tuple[int, ...]:
    return (*number[:length], *([0] * (length - len(number))))
