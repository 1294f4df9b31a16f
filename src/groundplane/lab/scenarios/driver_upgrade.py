"""A new driver for a whole cluster, and everything that comes between: the story of ``lab scenario driver-upgrade``.

The operator upgrades some hundred nodes, a few at a time, while people and machines do what they do: budgets hold
pods, one of them for too long; a job never ends; a new driver does not come up; somebody has cordoned a node, or does
not want one upgraded; the operator is killed; nodes boot another kernel. Each of these is a chain of steps, and all run
side by side. Nothing is assumed: what is told was read from the API, from logs, or by the watch that looks at every
change of every node.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from ...api import names
from ...cluster.errors import ClusterError
from ...operator.upgrade.states import State
from .. import driverfaults, resources
from ..cluster import OPERATOR_NAMESPACE, Lab, data
from ..nodes import GpuSpec, NodeSpec
from . import objects
from .steps import LOOK_EVERY_S, Happening, Report, Step, StepError, Story
from .upgradewatch import Limits, Maxima, UpgradeWatch

GPUS: Final = 8
MODEL: Final = "H100"
OLD_VERSION, NEW_VERSION = "580.126.20", "595.91.07"
NEW_KERNEL: Final = "6.8.0-71-generic"
TRAINING: Final = {"example.com/kind": "training"}
"""The label of pods whose end is waited for."""
FAULT: Final = "no-kernel-headers"
EVICTION_S, DRAIN_S, JOBS_S = 600, 300, 900
"""Cluster seconds that the policy gives to evictions, a drain, and jobs."""
HELD_S: Final = 90.0
"""Cluster seconds that a budget holds its pod before somebody lifts it."""
ABSENT_S: Final = 60.0
"""Cluster seconds without an operator."""
EVENTS_S: Final = 300.0
"""Cluster seconds that an event is waited for."""
LEAST_NODES: Final = 12
REASON: Final = "GPUDriverUpgrade"


class Cast(msgspec.Struct, frozen=True):
    """Which node has which part. The first ``programs`` run the real node programs, the others are hollow."""

    programs: tuple[str, ...]
    hollow: tuple[str, ...]

    @classmethod
    def of(cls, nodes: int) -> "Cast":
        """The cast of a cluster of so many nodes. Raises ValueError for too few."""
        if nodes < LEAST_NODES:
            raise ValueError(f"the story needs {LEAST_NODES} nodes or more, not {nodes}")
        programs = 4 if nodes >= 50 else 2
        numbers = range(nodes - programs)
        return cls(
            tuple(f"gpu-{number + 1}" for number in range(programs)),
            tuple(f"hollow-{number:05d}" for number in numbers),
        )

    @property
    def fails(self) -> str:
        """Where the new driver does not come up at first."""
        return self.programs[0]

    @property
    def reboots(self) -> tuple[str, ...]:
        """Nodes with node programs that boot another kernel."""
        return self.programs[1:2]

    @property
    def busy(self) -> str:
        """The node with programs whose GPUs are in use."""
        return self.programs[-1]

    @property
    def cordoned(self) -> str:
        """The node that a person has cordoned before."""
        return self.hollow[0]

    @property
    def held_long(self) -> str:
        """Where a budget is not lifted in time."""
        return self.hollow[1]

    @property
    def held(self) -> str:
        """Where a budget is lifted in time."""
        return self.hollow[2]

    @property
    def endless(self) -> str:
        """Where a job never ends."""
        return self.hollow[3]

    @property
    def skipped(self) -> str:
        """The node that its administrator does not want upgraded now."""
        return self.hollow[4]

    @property
    def crowd(self) -> tuple[str, ...]:
        """The nodes without a part."""
        return self.hollow[5:]

    @property
    def all(self) -> tuple[str, ...]:
        """Every node."""
        return (*self.programs, *self.hollow)

    def specs(self) -> list[NodeSpec]:
        """The nodes that run programs."""
        return [NodeSpec(name, gpus=(GpuSpec(MODEL, GPUS),)) for name in self.programs]

    @property
    def first_limits(self) -> Limits:
        """At first few nodes may be unavailable, and that is what holds the others back."""
        size = len(self.all)
        return Limits(parallel=max(6, size // 6), unavailable=max(5, size // 10))

    @property
    def later_limits(self) -> Limits:
        """Later it is the number of upgrades side by side, and nodes that boot have room beside them."""
        parallel = self.first_limits.parallel
        return Limits(parallel=parallel, unavailable=parallel + 1 + len(self.reboots) + REBOOTS)


REBOOTS: Final = 3
"""So many hollow nodes boot another kernel."""


class Outcome(msgspec.Struct, frozen=True):
    """How the story ended: what happened, the most nodes seen in progress and unavailable, what was wrong.

    ``limits`` were in force one after the other, ``states`` and ``cordoned`` are those at the end, ``paths`` the states
    that each node went through. ``seconds`` are real ones from the new version to the end.
    """

    cast: Cast
    happened: tuple[Happening, ...]
    maxima: Maxima
    limits: tuple[Limits, Limits]
    states: dict[str, str]
    cordoned: tuple[str, ...]
    paths: dict[str, list[str]]
    seconds: float
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all came as it must."""
        return not self.problems


def policy(cast: Cast, version: str, limits: Limits) -> dict[str, Any]:
    """The ClusterPolicy of the story."""
    found: dict[str, Any] = copy.deepcopy(data("guide-baseline.yaml"))
    driver = found["spec"]["driver"]
    driver["version"] = version
    driver["upgradePolicy"] = {
        "autoUpgrade": True,
        "maxParallelUpgrades": limits.parallel,
        "maxUnavailable": limits.unavailable,
        "waitForCompletion": {
            "podSelector": ",".join("=".join(each) for each in TRAINING.items()),
            "timeoutSeconds": JOBS_S,
        },
        "podDeletion": {"force": False, "timeoutSeconds": EVICTION_S, "deleteEmptyDir": False},
        "drain": {"enable": True, "force": False, "timeoutSeconds": DRAIN_S, "deleteEmptyDir": False},
    }
    return found


def lab(cast: Cast, speed: float) -> Lab:
    """The lab of the story, not yet started."""
    return Lab(cast.specs(), hollow=len(cast.hollow), hollow_gpus=GPUS, speed=speed, operator_on_cluster_time=True)


async def run(lab: Lab, cast: Cast, report: Callable[[Report], None], *, timeout_s: float = 120.0) -> Outcome:
    """Tell the story in a started lab, calling ``report`` several times a second.

    A step that does not come to its end in ``timeout_s`` real seconds ends the story, and the outcome names it. Raises
    :class:`~..cluster.LabError` when a part of the lab itself fails.
    """
    watch = UpgradeWatch(cast.first_limits)
    leave = watch.follow(lab.api)
    story = Story(lab, watch, report, timeout_s)
    try:
        return await _Upgrade(story, cast).tell()
    finally:
        leave()


class _Upgrade:
    """The steps."""

    def __init__(self, story: Story, cast: Cast) -> None:
        self._story = story
        self._cast = cast
        self._lab = story.lab
        self._watch = story.watch
        self._began = 0.0

    async def tell(self) -> Outcome:
        """All of it."""
        problems: list[str] = []
        try:
            async with self._story.told():
                await self._prepare()
                self._began = time.monotonic()
                async with asyncio.TaskGroup() as chains:
                    for chain in self._chains():
                        chains.create_task(chain)
                await self._end()
        except* StepError as group:
            problems += [str(error) for error in _leaves(group)]
        return self._outcome(problems)

    def _chains(self) -> Iterable[Any]:
        yield self._new_version()
        yield self._held_back()
        yield self._held_too_long()
        yield self._endless()
        yield self._driver_fails()
        yield self._people()

    # --- before -------------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        cast, story = self._cast, self._story
        await self._lab.apply([policy(cast, OLD_VERSION, cast.first_limits)])
        step = Step("the stack comes up on every node", "look at the pods of the operator's namespace")

        def up() -> bool:
            return self._lab.policy_state() == "ready" and self._watch.counted() == {State.DONE: len(cast.all)}

        await story.until(step, up, lambda: f"ClusterPolicy is {self._lab.policy_state() or 'without a state'}")
        story.note(f"{len(cast.all)} nodes run driver {OLD_VERSION}")
        await self._workloads()
        self._cordon(cast.cordoned)
        self._label(cast.skipped, {names.UPGRADE_SKIP: "true"})
        driverfaults.fault(FAULT).inject(self._lab.host(cast.fails))
        story.note(f"a person cordons {cast.cordoned}, and labels {cast.skipped} {names.UPGRADE_SKIP}=true")

    async def _workloads(self) -> None:
        cast = self._cast
        replicas = max(2, len(cast.crowd) // 2)
        await self._lab.apply(
            [
                objects.deployment("inference", replicas=replicas, gpus=4),
                objects.deployment("held", node=cast.held),
                objects.budget("held"),
                objects.deployment("held-long", node=cast.held_long),
                objects.budget("held-long"),
                objects.deployment("notebook", node=cast.busy),
                objects.job("endless", labels=TRAINING, node=cast.endless),
            ]
        )
        step = Step("workloads take their GPUs", "see the events of the pods that are not running")
        wanted = replicas + 4
        await self._story.until(step, lambda: len(self._running()) == wanted, lambda: f"{len(self._running())} run")
        self._story.note(f"{wanted} pods hold GPUs; no pod of held and held-long may be disrupted")

    # --- the chains ---------------------------------------------------------------------------------------------------

    async def _new_version(self) -> None:
        cast, limits = self._cast, self._cast.first_limits
        await self._lab.apply([policy(cast, NEW_VERSION, limits)])
        self._story.note(
            f"driver {NEW_VERSION} is wanted: {limits.parallel} upgrades side by side at most, {limits.unavailable} "
            "nodes unavailable at most"
        )

    async def _held_back(self) -> None:
        """A budget holds a pod back, for a while."""
        node = self._cast.held
        await self._reaches(node, State.POD_DELETION_REQUIRED)
        pod = self._pods("held")[0]["metadata"]["name"]
        await self._lab.clock.sleep(HELD_S)
        if self._watch.state(node) != State.POD_DELETION_REQUIRED or [pod] != self._names("held"):
            raise StepError(f"{node} moved on to {self._watch.state(node)} though a budget holds {pod}")
        self._story.note(f"{node} waits in {State.POD_DELETION_REQUIRED}: PodDisruptionBudget held holds {pod}")
        self._delete(resources.POD_DISRUPTION_BUDGETS, "held")
        self._story.note("a person deletes PodDisruptionBudget held")
        await self._done(node)
        self._story.note(f"{node} is upgraded")

    async def _held_too_long(self) -> None:
        """Another one holds a pod for longer than the policy allows: the drain that follows fails too."""
        node = self._cast.held_long
        await self._reaches(node, State.DRAIN_REQUIRED)
        await self._reaches(node, State.FAILED)
        why = await self._why(node, f"{State.DRAIN_REQUIRED} -> {State.FAILED}")
        self._story.note(f"{node} has failed: {why}")
        self._delete(resources.POD_DISRUPTION_BUDGETS, "held-long")
        self._label(node, {names.UPGRADE_STATE: State.UPGRADE_REQUIRED})
        self._story.note(f"a person deletes PodDisruptionBudget held-long and labels {node} {State.UPGRADE_REQUIRED}")
        await self._done(node)
        self._story.note(f"{node} is upgraded")

    async def _endless(self) -> None:
        """A job is waited for until its time is over."""
        node = self._cast.endless
        await self._reaches(node, State.WAIT_FOR_JOBS_REQUIRED)
        self._story.note(f"{node} waits for {self._names('endless')[0]}, for {JOBS_S} s at most")
        await self._reaches(node, State.POD_DELETION_REQUIRED)
        self._story.note(f"{node}: {await self._why(node, 'did not end within')}")
        await self._done(node)
        self._story.note(f"{node} is upgraded")

    async def _driver_fails(self) -> None:
        """A new driver does not come up; the node recovers by itself when the cause is gone."""
        node, fault = self._cast.fails, driverfaults.fault(FAULT)
        await self._reaches(node, State.FAILED)
        why = await self._why(node, f"{State.POD_RESTART_REQUIRED} -> {State.FAILED}")
        self._story.note(f"{node} has failed: {why}")
        shown = [line for line in await self._driver_log(node) if fault.shows in line]
        if not shown:
            raise StepError(f"the log of the driver on {node} does not say {fault.shows!r}")
        self._story.note(f"its driver's log says: {shown[-1].strip()}")
        fault.cure(self._lab.host(node))
        self._story.note(f"a person gives {node} the repository that it lacked")
        await self._done(node)
        self._story.note(f"{node} has recovered by itself: {await self._why(node, 'healthy after all')}")

    async def _people(self) -> None:
        """The operator is killed and started; more nodes may be unavailable; some boot another kernel."""
        await self._operator_restarts()
        limits = self._cast.later_limits
        self._watch.limits = limits
        await self._lab.apply([policy(self._cast, NEW_VERSION, limits)])
        self._story.note(f"a person allows {limits.unavailable} nodes to be unavailable")
        await self._kernel_update()

    async def _operator_restarts(self) -> None:
        some = len(self._cast.all) // 4
        step = Step("a quarter of the nodes gets the new driver", "groundplane driver plan says why nodes wait")
        await self._story.until(step, lambda: self._upgraded() >= some, lambda: f"{self._upgraded()} have it")
        await self._lab.kill_operator()
        before = self._watch.states()
        amid = sum(state not in ("", State.DONE, State.UPGRADE_REQUIRED) for state in before.values())
        self._story.note(f"the operator is killed while {amid} nodes are amid their upgrade")
        await self._lab.clock.sleep(ABSENT_S)
        if moved := [node for node, state in self._watch.states().items() if state != before[node]]:
            raise StepError(f"nodes moved without an operator: {', '.join(moved)}")
        self._lab.start_operator()
        self._story.note(f"it is started again after {ABSENT_S:g} s, in which no node moved")
        step = Step("the operator goes on where it was", "see the operator's log")
        await self._story.until(step, lambda: self._watch.states() != before, lambda: "no node has moved")

    async def _kernel_update(self) -> None:
        cast = self._cast
        for node in cast.reboots:
            await self._done(node)
        step = Step("nodes are done that may be booted", "groundplane driver plan says why nodes wait")

        def chosen() -> list[str]:
            return [node for node in cast.crowd if self._watch.upgraded(node)][:REBOOTS]

        await self._story.until(step, lambda: len(chosen()) == REBOOTS, lambda: f"{chosen()} are")
        hollow = chosen()
        self._story.note(f"kernel {NEW_KERNEL} is booted on {', '.join((*cast.reboots, *hollow))}")
        await asyncio.gather(
            *(self._lab.hollow.reboot(node, kernel=NEW_KERNEL) for node in hollow),
            *(self._lab.reboot_node(node, kernel=NEW_KERNEL) for node in cast.reboots),
        )
        step = Step("drivers run under the new kernel", "see the logs of the driver pods")
        nodes = (*cast.reboots, *hollow)
        await self._story.until(
            step,
            lambda: all(map(self._runs_new_kernel, nodes)),
            lambda: f"{[*filter(self._runs_new_kernel, nodes)]} do",
        )
        sets = {owner["name"] for pod in self._driver_pods() for owner in pod["metadata"]["ownerReferences"]}
        if len(sets) != 1:
            raise StepError(f"drivers of several DaemonSets run: {', '.join(sorted(sets))}")
        for node in cast.reboots:
            lines = [each for each in await self._driver_log(node) if NEW_KERNEL in each]
            if not lines:
                raise StepError(f"the log of the driver on {node} does not tell of kernel {NEW_KERNEL}")
            self._story.note(f"{node}: {lines[-1].strip()}")
        self._story.note("the drivers are built anew by the pods of the same DaemonSet; no node is upgraded for that")

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        cast = self._cast
        step = Step("all nodes are upgraded but the one that is skipped", "groundplane driver plan says why nodes wait")

        def late() -> list[str]:
            return [node for node in cast.all if node != cast.skipped and not self._watch.upgraded(node)]

        await self._story.until(step, lambda: not late(), lambda: f"{', '.join(late())} are not")
        rows = {row.node: row for row in (await self._story.plan()).rows}
        self._story.note(f"{cast.skipped} is {rows[cast.skipped].state}: {'; '.join(rows[cast.skipped].what)}")
        self._story.note(f"{cast.cordoned} is {State.DONE}, {'; '.join(rows[cast.cordoned].what)}")
        self._label(cast.skipped, {names.UPGRADE_SKIP: None})
        self._story.note(f"a person takes the label off {cast.skipped}")
        await self._done(cast.skipped)
        step = Step("the ClusterPolicy is ready, and all workloads are back", "kubectl describe clusterpolicy")
        wanted = max(2, len(cast.crowd) // 2) + 4

        def settled() -> bool:
            return self._lab.policy_state() == "ready" and len(self._running()) == wanted

        await self._story.until(
            step, settled, lambda: f"{self._lab.policy_state()}, {len(self._running())} of {wanted} pods run"
        )
        self._story.note(f"the ClusterPolicy is ready, all {wanted} pods hold their GPUs again")

    def _outcome(self, problems: list[str]) -> Outcome:
        cast = self._cast
        nodes = self._lab.api.list(resources.NODES)["items"]
        cordoned = tuple(node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable"))
        problems += [f"a limit was not kept: {each}" for each in self._watch.broken]
        if not problems:
            problems += [
                f"{node} ended in {state}" for node, state in self._watch.states().items() if state != State.DONE
            ]
            problems += [f"{node} stays cordoned" for node in cordoned if node != cast.cordoned]
            problems += (
                [] if cast.cordoned in cordoned else [f"{cast.cordoned} was cordoned by a person and is not now"]
            )
        return Outcome(
            cast=cast,
            happened=tuple(self._story.happened),
            maxima=self._watch.maxima,
            limits=(cast.first_limits, cast.later_limits),
            states=self._watch.states(),
            cordoned=cordoned,
            paths=self._watch.paths,
            seconds=time.monotonic() - self._began if self._began else 0.0,
            problems=tuple(problems),
        )

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _reaches(self, node: str, state: State) -> None:
        """Wait until a node has been in a state."""
        step = Step(f"{node} comes to {state}", "groundplane driver plan says why it waits")
        await self._story.until(step, lambda: state in self._watch.paths[node], lambda: self._where(node))

    async def _done(self, node: str) -> None:
        step = Step(f"{node} is upgraded", "groundplane driver plan says why it waits")
        await self._story.until(step, lambda: self._watch.upgraded(node), lambda: self._where(node))

    def _where(self, node: str) -> str:
        return f"{node} went through {', '.join(each or '(none)' for each in self._watch.paths[node])}"

    async def _why(self, node: str, text: str) -> str:
        """Why something happened to a node: the operator's event that has a text, else what the plan says of the node.

        An operator that is killed takes along the events that it has not written yet.
        """
        deadline = self._lab.clock.monotonic() + EVENTS_S
        while True:
            if found := [each for each in self._events(node) if text in each]:
                return found[-1].removeprefix("Driver upgrade: ")
            if self._lab.clock.monotonic() > deadline:
                row = next(each for each in (await self._story.plan()).rows if each.node == node)
                return "; ".join(row.what) or f"it is in {row.state} now"
            await asyncio.sleep(LOOK_EVERY_S)

    def _events(self, node: str) -> list[str]:
        events = self._lab.api.list(resources.EVENTS, objects.NAMESPACE)["items"]
        return [
            str(each["message"])
            for each in events
            if each["reason"] == REASON and each["involvedObject"]["name"] == node
        ]

    def _upgraded(self) -> int:
        return sum(map(self._watch.upgraded, self._cast.all))

    def _pods(self, app: str) -> list[dict[str, Any]]:
        found = self._lab.api.list(resources.PODS, objects.NAMESPACE, labels=f"app={app}")["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def _names(self, app: str) -> list[str]:
        return [str(pod["metadata"]["name"]) for pod in self._pods(app)]

    def _running(self) -> list[str]:
        """The workloads' pods that run."""
        pods = self._lab.api.list(resources.PODS, objects.NAMESPACE)["items"]
        return [
            str(pod["metadata"]["name"])
            for pod in pods
            if pod.get("status", {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]

    def _driver_pods(self, node: str = "") -> list[dict[str, Any]]:
        fields = f"spec.nodeName={node}" if node else None
        labels = f"{names.COMPONENT_LABEL}={names.DRIVER_COMPONENT}"
        found: list[dict[str, Any]] = self._lab.api.list(
            resources.PODS, OPERATOR_NAMESPACE, labels=labels, fields=fields
        )["items"]
        return found

    def _runs_new_kernel(self, node: str) -> bool:
        """Whether a node has booted the new kernel and its driver pod is ready since."""
        found = self._lab.api.get(resources.NODES, node)
        if found["status"]["nodeInfo"]["kernelVersion"] != NEW_KERNEL:
            return False
        if found["metadata"]["labels"].get(names.KERNEL_VERSION) != NEW_KERNEL:
            return False
        ready = [
            condition["status"] == "True"
            for each in (found, *self._driver_pods(node))
            for condition in each["status"].get("conditions") or ()
            if condition["type"] == "Ready"
        ]
        return len(ready) == 2 and all(ready)

    async def _driver_log(self, node: str) -> list[str]:
        """What the driver's container on a node says, in the run before too."""
        pods, found = self._driver_pods(node), list[str]()
        for previous in (True, False):
            try:
                found += await self._story.log(pods[0], "nvidia-driver-ctr", previous=previous)
            except (ClusterError, IndexError):
                continue  # no run before, or none yet
        return found

    # --- doing --------------------------------------------------------------------------------------------------------

    def _cordon(self, node: str) -> None:
        patch = {"spec": {"unschedulable": True}}
        self._lab.api.patch(resources.NODES, node, patch, type="merge", manager="kubectl-cordon")

    def _label(self, node: str, labels: dict[str, str | None]) -> None:
        patch = {"metadata": {"labels": labels}}
        self._lab.api.patch(resources.NODES, node, patch, type="merge", manager="kubectl-label")

    def _delete(self, resource: resources.Resource, name: str) -> None:
        self._lab.api.delete(resource, name, objects.NAMESPACE)


def _leaves(group: BaseExceptionGroup[StepError]) -> Iterable[StepError]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
