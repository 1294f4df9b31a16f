"""The CUDA test: a pod that computes on every GPU node, watched to its end, and taken away whatever happens.

Which pods is ``cudatest_plan``'s, what they say ``cudatest_judge``'s. A pod that can never be scheduled is not waited
for. Pods carry the label of their run: one that was killed leaves pods that end by themselves, and that the next run
deletes.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..cluster import errors, kinds, permissions
from ..diagnose import survey
from ..diagnose.findings import Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object
from . import cudatest_judge as judge
from .cudatest_plan import (
    APP,
    KINDS,
    RUN_LABEL,
    NodeTest,
    Options,
    Planned,
    What,
    left_over,
    manifest,
    planned,
    pod_name,
)
from .verify_view import finding

if TYPE_CHECKING:
    from ..cluster.client import Client

__all__ = ["KINDS", "Options", "Planned", "clean", "cuda_test", "planned", "run", "run_name"]

LOOK_EVERY_S: Final = 0.5
PATIENCE_S: Final = 5.0
"""How long a pod may be without a place before that counts: device plugins and schedulers lag behind."""
LOG_MAX: Final = 2000
"""Lines of a log that are read."""

Tell = Callable[[str], None]


def run_name() -> str:
    """A name for a run that no other has."""
    return secrets.token_hex(3)


async def cuda_test(client: "Client", options: Options, tell: Tell = lambda _line: None) -> list[Finding]:
    """Plan the test of a cluster and carry it out. Raises ValueError for a node that is not there, and the client's."""
    options = options if options.run else msgspec.structs.replace(options, run=run_name())
    seen = await survey.live(client, KINDS, namespace=options.namespace)
    return await run(client, planned(seen, options), options, tell)


async def run(
    client: "Client",
    plan: Planned,
    options: Options,
    tell: Tell = lambda _line: None,
    durations: dict[str, float] | None = None,
) -> list[Finding]:
    """Carry out what was planned; ``options.run`` must be that of the plan. No pod is left when this ends, however.

    ``durations`` gets how long the CUDA program ran, by node, in seconds of the cluster's clock.
    """
    runner = _Runner(client, options, tell, {} if durations is None else durations)
    try:
        await clean(client, options)
        findings = await runner.all(plan.tests)
    finally:
        if not options.keep:
            await asyncio.shield(asyncio.ensure_future(runner.delete_all()))
    return [*plan.findings, *findings, runner.cleanliness()]


async def clean(client: "Client", options: Options, *, everything: bool = False) -> list[str]:
    """Delete pods of earlier runs that are over for certain; ``everything``: of any run. Their names.

    Only pods with the test's labels are ever touched.
    """
    pods = (await client.list(kinds.POD, options.namespace, labels=f"app={APP}")).items
    gone = []
    for pod in left_over(pods, options.run, time.time(), everything=everything):
        with contextlib.suppress(errors.NotFound):
            name = pod["metadata"]["name"]
            await client.delete(kinds.POD, name, options.namespace, uid=pod["metadata"].get("uid"))
            gone.append(name)
    return gone


class _Refused(Exception):  # noqa: N818 - an outcome
    """The API server does not take a test's pod."""

    def __init__(self, result: Finding) -> None:
        super().__init__(result.title)
        self.result = result


class _Runner:
    """One run: what it has created, and how it sees its pods, all in one listing."""

    def __init__(self, client: "Client", options: Options, tell: Tell, durations: dict[str, float]) -> None:
        self._client = client
        self._durations = durations
        self._options = options
        self._tell = tell
        self._created: dict[str, str] = {}
        """Pods that may be there, with their UIDs; empty until that is known."""
        self._left: dict[str, str] = {}
        """Pods that could not be deleted, and why."""
        self._pods: dict[str, Object] = {}
        self._looked = asyncio.Condition()

    async def all(self, tests: tuple[NodeTest, ...]) -> list[Finding]:
        """Every test, some nodes at once."""
        slots = asyncio.Semaphore(max(1, self._options.parallel))
        done = 0

        async def one(test: NodeTest) -> list[Finding]:
            nonlocal done
            async with slots:
                found = await self._node(test)
            done += 1
            last = found[-1]
            self._tell(f"[{done}/{len(tests)}] {test.node}: {last.outcome}: {last.title}")
            return found

        watcher = asyncio.create_task(self._watch())
        work = asyncio.gather(*map(one, tests))
        try:
            waited: set[asyncio.Future[Any]] = {watcher, work}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if watcher.done():
                watcher.result()  # a lost server ends the run
            return [finding for found in await work for finding in found]
        finally:
            work.cancel()
            watcher.cancel()
            await asyncio.gather(work, watcher, return_exceptions=True)

    async def _watch(self) -> None:
        """Look at the run's pods over and over: one request for all of them."""
        selector = f"{RUN_LABEL}={self._options.run}"
        while True:
            if self._created:
                listed = await self._client.list(kinds.POD, self._options.namespace, labels=selector)
                async with self._looked:
                    self._pods = {pod["metadata"]["name"]: pod for pod in listed.items}
                    self._looked.notify_all()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _node(self, test: NodeTest) -> list[Finding]:
        found = await self._pod(test, "vectoradd")
        if self._options.smi and all(each.outcome is Outcome.PASS for each in found):
            found += await self._pod(test, "nvidia-smi")
        return found

    async def _pod(self, test: NodeTest, what: What) -> list[Finding]:
        """Create a pod, see it to its end, judge it and delete it."""
        name = pod_name(test, what, self._options)
        try:
            await self._create(test, what)
            ended = await self._end(test, name)
            if isinstance(ended, Finding):
                return [ended]
            log = await self._log(name)
            took = judge.times(ended, await self._events(name))
        except _Refused as refused:
            return [refused.result]
        finally:
            if not self._options.keep:
                await self._delete(name)
        if what == "nvidia-smi":
            return judge.smi(test, ended, log, took)
        if took.run is not None:
            self._durations[test.node] = took.run
        return [*judge.began(test, ended), judge.vector_add(test, ended, log, took)]

    async def _create(self, test: NodeTest, what: What) -> None:
        pod = manifest(test, what, self._options)
        name = pod["metadata"]["name"]
        self._created[name] = ""
        try:
            self._created[name] = (await self._client.create(kinds.POD, pod))["metadata"]["uid"]
        except (errors.Forbidden, errors.Invalid, errors.NotFound) as error:
            del self._created[name]
            raise _Refused(self._refusal(test, error)) from None

    def _refusal(self, test: NodeTest, error: errors.ClusterError) -> Finding:
        lacking = permissions.missing(error)
        if lacking:
            why = permissions.tell(permissions.Denied(each) for each in lacking)
            return finding("A72", Outcome.UNKNOWN, "the test's pods may not be created", cause=why, node=test.node)
        return finding(
            "A72",
            Outcome.FAIL,
            "the API server refuses the test's pod",
            Evidence(f"namespace {self._options.namespace}", str(error)),
            node=test.node,
            layer=Layer.WORKLOAD,
            cause="a quota, Pod Security or an admission webhook of the namespace, or there is no such namespace",
            fix=("choose another namespace (--test-namespace), or mend what the message names",),
        )

    async def _end(self, test: NodeTest, name: str) -> Object | Finding:
        """The pod once it has ended; a finding if it never will, as far as can be told, or not in time."""
        began = time.monotonic()
        homeless: float | None = None
        while True:
            pod = await self._seen(name)
            now = time.monotonic()
            if pod is not None and judge.over(pod):
                return pod
            message = judge.unschedulable(pod) if pod is not None else ""
            homeless = (homeless or now) if message else None
            if pod is not None and homeless is not None and now - homeless >= PATIENCE_S:
                return judge.pending(test, pod, message)
            if pod is not None and (why := judge.stuck(pod)) is not None:
                return judge.not_started(test, pod, *why, await self._events(name))
            if now - began >= self._options.timeout_s:
                gone: Object = {"metadata": {"name": name, "namespace": self._options.namespace}}
                return judge.timed_out(test, pod or gone, await self._events(name), self._options.timeout_s)

    async def _seen(self, name: str) -> Object | None:
        """The pod at the next look."""
        async with self._looked:
            await self._looked.wait()
            return self._pods.get(name)

    async def _log(self, name: str) -> str:
        try:
            logs = self._client.logs(name, self._options.namespace, tail_lines=LOG_MAX)
            return "\n".join([line async for line in logs])
        except errors.Forbidden as error:
            raise _Refused(
                finding("A74", Outcome.UNKNOWN, "the test's log may not be read", cause=str(error))
            ) from None
        except errors.ClusterError:
            return ""  # a container that never ran has none; its status says so

    async def _events(self, name: str) -> list[Object]:
        """Events about a pod; none if they may not be read, as they only say more of what is known."""
        try:
            found = await self._client.list(
                kinds.CORE_EVENT, self._options.namespace, fields=f"involvedObject.name={name}"
            )
        except errors.ClusterError:
            return []
        return found.items

    async def _delete(self, name: str) -> None:
        """Delete a pod that this run has created; one that cannot be is remembered."""
        if name not in self._created:
            return
        try:
            await self._client.delete(kinds.POD, name, self._options.namespace, uid=self._created[name] or None)
        except errors.NotFound:
            pass
        except errors.ClusterError as error:
            self._left[name] = str(error)
            return
        self._left.pop(name, None)
        self._created.pop(name, None)

    async def delete_all(self) -> None:
        """Delete what is left, in the end."""
        await asyncio.gather(*map(self._delete, list(self._created)))

    def cleanliness(self) -> Finding:
        """A75: no pod is left."""
        if self._options.keep:
            selector = f"kubectl delete pods -n {self._options.namespace} -l {RUN_LABEL}={self._options.run}"
            return finding("A75", Outcome.SKIP, f"the test's pods were kept; when done: {selector}")
        if self._left:
            name, why = next(iter(self._left.items()))
            return finding(
                "A75",
                Outcome.FAIL,
                f"{len(self._left)} of the test's pods could not be deleted",
                Evidence(f"pod/{name}", why),
                fix=(f"kubectl delete pods -n {self._options.namespace} -l app={APP}",),
            )
        return finding("A75", Outcome.PASS, "the test's pods are deleted")
