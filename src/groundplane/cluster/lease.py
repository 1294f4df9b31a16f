"""One leader among several processes, by a ``coordination.k8s.io`` Lease.

The protocol is client-go's, so that replicas of either implementation respect each other: a holder renews; a candidate
takes the lease when it is free or when it has not seen it change for its whole duration *by the candidate's own clock*
(timestamps of other machines are never compared). What a leader does is the caller's.
"""

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from . import errors
from .client import Client, Object
from .kinds import LEASE

log = logging.getLogger(__name__)

R = TypeVar("R")

JITTER = 0.2
"""Candidates spread their attempts by up to this share of ``retry_s``."""


class LeaseLost(errors.ClusterError):
    """The lease could not be renewed in time, or somebody else holds it: stop acting as the leader at once."""


def utc_now() -> datetime.datetime:
    """The wall-clock time, in UTC."""
    return datetime.datetime.now(datetime.UTC)


class LeaderLease:
    """Candidacy of ``identity`` for the lease ``namespace/name``.

    Seconds: a lease unchanged for ``duration_s`` may be taken; a leader that could not renew for ``renew_deadline_s``
    gives up; attempts come every ``retry_s``. ``clock`` (monotonic), ``sleep`` and ``now`` (wall clock, only written
    into the Lease for people to read) belong together: a test or the lab passes its own. ``heard`` is told how each
    attempt ended.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        duration_s: float = 15,
        renew_deadline_s: float = 10,
        retry_s: float = 2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], datetime.datetime] = utc_now,
        rand: Callable[[], float] = random.random,
        heard: Callable[[errors.ClusterError | None], object] = lambda _: None,
    ) -> None:
        if not duration_s > renew_deadline_s > retry_s * (1 + JITTER):
            raise ValueError(
                f"lease times must be duration > renew deadline > {1 + JITTER} x retry, "
                f"they are {duration_s} s, {renew_deadline_s} s, {retry_s} s"
            )
        self.identity = identity
        self._client = client
        self._name = name
        self._namespace = namespace
        self._duration_s = duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_s = retry_s
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._rand = rand
        self._heard = heard
        self._lease: Object | None = None
        self._seen: object = None
        self._seen_at = 0.0
        self._leading = False

    @property
    def leading(self) -> bool:
        """We hold the lease, as far as we know."""
        return self._leading

    @property
    def holder(self) -> str:
        """Who held the lease when we last looked; empty if nobody."""
        return str(self._spec().get("holderIdentity") or "")

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until we lead, run ``lead()`` and renew meanwhile.

        Returns when ``lead`` returns, raises what it raises; in both cases, and when cancelled, the lease is released,
        so that another takes over at once. If the lease is lost ``lead`` is cancelled, waited for, and
        :class:`LeaseLost` is raised.
        """
        await self._acquire()
        work = asyncio.create_task(lead(), name=f"leader-{self._name}")
        renewal = asyncio.create_task(self._renew(), name=f"lease-{self._name}")
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.error("lease %s/%s is lost, stopping what the leader does", self._namespace, self._name)
        finally:
            try:
                await _stop(work)
            finally:
                await _stop(renewal)
                await asyncio.shield(self._within(self._release(), self._renew_deadline_s))
        if renewal.done() and not renewal.cancelled() and (lost := renewal.exception()) is not None:
            raise lost from (None if work.cancelled() else work.exception())
        work.result()

    # --- becoming and staying the leader ------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        log.info("waiting for lease %s/%s as %s", self._namespace, self._name, self.identity)
        while not await self._attempt():
            await self._sleep(self._retry_s * (1.0 + JITTER * self._rand()))
        self._leading = True
        log.info("%s leads: lease %s/%s is ours", self.identity, self._namespace, self._name)

    async def _renew(self) -> None:
        """Renew until that fails for too long. Raises :class:`LeaseLost`."""
        renewed_at = self._clock()
        try:
            while True:
                await self._sleep(self._retry_s)
                left_s = renewed_at + self._renew_deadline_s - self._clock()
                started = self._clock()
                if left_s > 0 and await self._within(self._attempt(), left_s):
                    renewed_at = started
                elif self._lease is not None and self.holder != self.identity:
                    raise LeaseLost(f"lease {self._namespace}/{self._name} was taken by {self.holder or 'nobody'!r}")
                elif self._clock() - renewed_at >= self._renew_deadline_s:
                    raise LeaseLost(
                        f"lease {self._namespace}/{self._name} could not be renewed for {self._renew_deadline_s:g} s"
                    )
        finally:
            self._leading = False

    async def _within(self, work: Coroutine[Any, Any, bool], seconds: float) -> bool:
        """``work``'s answer, or False if it takes longer by our clock."""
        task = asyncio.ensure_future(work)
        alarm = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else False
        finally:
            await _stop(alarm)
            await _stop(task)

    async def _attempt(self) -> bool:
        """One try to take or keep the lease. API errors count as a failed try."""
        try:
            held = await self._try()
        except errors.ClusterError as error:
            self._heard(error)
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            if isinstance(error, errors.Conflict | errors.NotFound | errors.AlreadyExists):
                await self._look_again()
            return False
        self._heard(None)
        return held

    async def _look_again(self) -> None:
        """Somebody else wrote: know what, so that a loss is noticed now and not at the deadline."""
        try:
            self._note(await self._client.get(LEASE, self._name, self._namespace))
        except errors.NotFound:
            self._lease = None
        except errors.ClusterError as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)

    async def _try(self) -> bool:
        if not (self._lease and self.holder == self.identity):
            try:
                self._note(await self._client.get(LEASE, self._name, self._namespace))
            except errors.NotFound:
                self._note(await self._client.create(LEASE, self._fresh()))
                return True
            if not self._free():
                return False
        self._note(await self._client.replace(LEASE, self._ours()))
        return True

    def _free(self) -> bool:
        """Nobody holds it, we do, or its holder has been silent for its whole duration."""
        if self.holder in ("", self.identity):
            return True
        duration = self._spec().get("leaseDurationSeconds") or self._duration_s
        return bool(self._clock() - self._seen_at >= duration)

    def _note(self, lease: Object) -> None:
        """Remember the lease, and since when it looks like this."""
        self._lease = lease
        if self._spec() != self._seen:
            self._seen, self._seen_at = self._spec(), self._clock()

    # --- the Lease object ---------------------------------------------------------------------------------------------

    def _spec(self) -> dict[str, Any]:
        return (self._lease or {}).get("spec") or {}

    def _fresh(self) -> Object:
        stamp = _micro_time(self._now())
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(1, round(self._duration_s)),
                "acquireTime": stamp,
                "renewTime": stamp,
                "leaseTransitions": 0,
            },
        }

    def _ours(self) -> Object:
        """The lease as last seen, with us as its holder; its resourceVersion makes the write fail if it changed."""
        old, spec = self._spec(), self._fresh()["spec"]
        transitions = old.get("leaseTransitions") or 0
        if self.holder == self.identity:
            spec["acquireTime"] = old.get("acquireTime") or spec["acquireTime"]
        else:
            transitions += 1
        return {**(self._lease or {}), "spec": {**old, **spec, "leaseTransitions": transitions}}

    async def _release(self) -> bool:
        """Give the lease back if it is still ours. A failure is logged: the lease then runs out by itself."""
        self._leading = False
        if self._lease is None or self.holder != self.identity:
            return False
        spec = {**self._spec(), "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time(self._now())}
        try:
            self._note(await self._client.replace(LEASE, {**self._lease, "spec": spec}))
        except errors.ClusterError as error:
            log.warning("lease %s/%s could not be released: %s", self._namespace, self._name, error)
            return False
        log.info("%s released lease %s/%s", self.identity, self._namespace, self._name)
        return True


def _micro_time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _stop(task: asyncio.Future[R]) -> None:
    """Cancel and wait; what the task ended with stays in it. Our own cancellation still arrives."""
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
