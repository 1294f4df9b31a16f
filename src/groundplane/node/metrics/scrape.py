"""Putting the answer to a scrape together: rows of what was sampled last, for whoever uses the devices now.

What changes only with a new sample is made once for all scrapes until the next, and an answer that would be the same is
not made again; so a scrape costs little more than asking the kubelet.
"""

from collections.abc import Mapping, Sequence

from ..process import Log, Process
from . import derived, families, jobs, mapping, pods, text
from .counters import Counters
from .families import Entity
from .history import History
from .mapping import PER_PROCESS, Users
from .sampler import Sampler, Snapshot
from .settings import Settings
from .text import Family


class Scrapes:
    """Makes the answers of one run of the exporter."""

    def __init__(
        self, process: Process, log: Log, wanted: Settings, sampler: Sampler, history: History, cluster: pods.Cluster
    ) -> None:
        self._process = process
        self._log = log
        self._settings = wanted
        self._sampler = sampler
        self._history = history
        self._cluster = cluster
        self._said: set[str] = set()
        self._answer: tuple[object, bytes] | None = None
        """The answer to the last scrape of the same rows, and who used the devices then."""
        self._made: tuple[tuple[int, int, int], Snapshot, Counters, list[Entity], list[Family]] | None = None

    def document(self, counters: Counters, uses: Sequence[mapping.Use]) -> bytes:
        """The whole output."""
        snapshot, wanted = self._sampler.snapshot, self._settings
        shown, plain = self._rows(snapshot, counters)
        facts, slices, jobs_of = self._cluster.facts, self._cluster.slices, self._jobs(shown)
        key = (uses, facts, slices, jobs_of)
        if self._answer is not None and self._answer[0] == key:
            return self._answer[1]
        world = derived.World(shown, snapshot, self._history, wanted, self._process.monotonic())
        of_windows = list(derived.families(counters, world))
        made = [*plain, *of_windows]
        users = None
        if uses:
            users = Users(uses, mapping.Places.of(self._sampler.gpus), wanted, facts, slices)
            if wanted.virtual_gpus:
                made = self._per_process(made, shown, users)
        found = text.document(render(made, shown, users, jobs_of))
        if not of_windows and not wanted.virtual_gpus:  # else it depends on the clock, and on processes
            self._answer = key, found
        return found

    def _rows(self, snapshot: Snapshot, counters: Counters) -> tuple[list[Entity], list[Family]]:
        """What changes only when samples were taken or an error came: made once for all scrapes until then."""
        key = (id(snapshot), id(counters), self._history.version)
        if self._made is None or self._made[0] != key:
            shown = families.entities(snapshot, counters, self._history, self._settings)
            if reason := families.without_profiling(snapshot, counters):
                self._say(reason)
            self._answer = None
            self._made = key, snapshot, counters, shown, list(families.plain(shown, counters, snapshot, self._history))
        return self._made[3], self._made[4]

    def _per_process(self, made: Sequence[Family], shown: Sequence[Entity], users: Users) -> list[Family]:
        pids = {process.pid for entity in shown for process in entity.sample.processes}
        pod_of = pods.pods_of(self._process, pids)
        return [
            mapping.per_process(family, shown, users, pod_of) if family.name in PER_PROCESS else family
            for family in made
        ]

    def _jobs(self, shown: Sequence[Entity]) -> Mapping[str, tuple[str, ...]]:
        if not self._settings.job_mapping_dir:
            return {}
        try:
            files = {jobs.file(entity) for entity in shown}
            return jobs.read(self._process.path, self._settings.job_mapping_dir, files)
        except jobs.JobsError as error:
            self._say(f"{error}; rows say nothing of jobs until it can")
            return {}

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log.warning(text)


def render(
    made: Sequence[Family], shown: Sequence[Entity], users: Users | None, jobs_of: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """The output: each row once for each who uses its device and each job on it; a series without rows is left out."""
    using = [users.of(entity) if users is not None else [] for entity in shown]
    working = [jobs.of(entity, jobs_of) for entity in shown]
    ready = [_variants(entity, using[at], working[at]) for at, entity in enumerate(shown)]
    parts: list[str] = []
    for family in made:
        if not family.rows:
            continue
        parts.append(text.head(family))
        name = family.name
        for row in family.rows:
            at = row.entity
            if not (row.labels or row.attributes or row.settled):
                labels = ready[at]
            else:
                labels = _variants(shown[at], [] if row.settled else using[at], working[at], row.labels, row.attributes)
            parts += [f"{name}{{{each}}} {row.value}\n" for each in labels]
    return parts


def _variants(
    entity: Entity,
    using: Sequence[mapping.User],
    working: Sequence[str],
    labels: Mapping[str, str] | None = None,
    attributes: Mapping[str, str] | None = None,
) -> list[str]:
    """The labels of a row, once for each user and job."""
    own_labels, own_attributes = {**entity.labels, **(labels or {})}, dict(attributes or {})
    found = []
    for user in using or (mapping.User({}),):
        for job in working or ("",):
            whole = {**own_attributes, **user.attributes, **({jobs.LABEL: job} if job else {})}
            found.append(text.labelled(entity.base, {**user.labels, **own_labels}, whole))
    return found
