"""Carrying out what ``decide.py`` decided: one step's deletions and writes, with refusals taken note of.

Both loops that keep objects as they should be (``policy.py``, ``drivers.py``) write through here. What is missing by
permission does not end a pass; everything else that fails does, as :class:`Ended`.
"""

import logging
from typing import TYPE_CHECKING, Final

from ..api import names
from ..cluster import apply, kinds, permissions
from ..cluster.apply import Key
from ..cluster.client import Client
from ..cluster.errors import ClusterError, NotFound
from ..cluster.permissions import Denied
from . import metrics, takeover
from .caches import Caches
from .clock import Clock
from .takeover import Leftovers

if TYPE_CHECKING:  # what renders operands is imported by the first pass: node labelling need not wait for it
    from .decide import Deletion, Step, Write

log = logging.getLogger(__name__)

WRITES_IN_FLIGHT: Final = 8


class Ended(Exception):  # noqa: N818
    """A pass cannot go on, or did but in vain. ``error`` is the API's, when it is worth trying again by itself.

    ``figure`` is what ``reconciliation_status`` then says.
    """

    def __init__(
        self,
        message: str,
        *,
        state: str = "",
        error: ClusterError | None = None,
        figure: int = metrics.POLICY_UNAVAILABLE,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.error = error
        self.figure = metrics.NOT_READY if state else figure


class Refused:
    """What a pass may not do: it goes on without, and comes back to it. ``error`` is the last refusal."""

    def __init__(self) -> None:
        self.found: set[Denied] = set()
        self.error: ClusterError | None = None

    def take(self, error: ClusterError, about: str) -> bool:
        """Whether ``error`` says that a permission is missing; if so it is remembered, with what it is ``about``."""
        missing = permissions.missing(error)
        if missing:
            self.found.update(Denied(permission, about) for permission in missing)
            self.error = error
        return bool(missing)


class Writer:
    """Makes it so, object by object."""

    def __init__(self, client: Client, caches: Caches, leftovers: Leftovers, clock: Clock) -> None:
        self._client = client
        self._caches = caches
        self._leftovers = leftovers
        self._clock = clock

    async def carry_out(self, step: "Step", denied: Refused) -> None:
        """Delete and write what a step says. Raises :class:`Ended` for the state."""
        if step.error:
            raise Ended(step.error, state=step.state)
        order = {kinds.DAEMON_SET: 0}
        for deletion in sorted(step.deletions, key=lambda deletion: order.get(kinds.of(deletion.obj), 1)):
            await self._delete(step.state, deletion, denied)
        if step.writes:
            await self._write(step, denied)

    async def _delete(self, state: str, deletion: "Deletion", denied: Refused) -> None:
        key, meta = Key.of(deletion.obj), deletion.obj["metadata"]
        self._caches.objects.removing(deletion.obj)
        try:
            await self._client.delete(
                key.kind, key.name, key.namespace or None, uid=meta.get("uid"), propagation=deletion.propagation
            )
        except NotFound:
            log.debug("%s is gone already", key)
        except ClusterError as error:
            self._caches.objects.not_removed(key)
            if denied.take(error, f"{state}: {key}"):
                return
            raise Ended(f"{key} cannot be deleted: {error}", state=state, error=error) from error
        log.info("%s: deleted %s", state, key)
        self._leftovers.settled([key])

    async def _write(self, step: "Step", denied: Refused) -> None:
        now, objects = self._clock.monotonic(), self._caches.objects
        writes = [write for write in step.writes if write.former is None or await self._take_over(step, write, denied)]
        for write in writes:
            objects.writing(write.obj, now)
            log.info("%s: %s %s %s", step.state, "create" if write.new else "update", Key.of(write.obj), write.drift)
        plan = apply.Plan(create=[write.obj for write in writes])
        done = await apply.carry_out(
            self._client, plan, field_manager=names.FIELD_MANAGER, limit=WRITES_IN_FLIGHT, sleep=self._clock.sleep
        )
        for failure in done.errors:
            objects.not_written(failure.key)
        failed = [each for each in done.errors if not denied.take(each.error, f"{step.state}: {each.key}")]
        if failed and (len(failed) < len(done.errors) or self._caches.unreadable):
            log.warning("%s: not written, as what it needs may not be: %s", step.state, "; ".join(map(str, failed)))
            denied.error = denied.error or failed[0].error
        elif failed:
            first = failed[0]
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise Ended(f"{first}{more}", state=step.state, error=first.error)
        keys = done.written
        self._leftovers.settled(keys)
        step.waiting += [f"{key} has just been written" for key in keys if key.kind is kinds.DAEMON_SET]

    async def _take_over(self, step: "Step", write: "Write", denied: Refused) -> bool:
        """See to it that what NVIDIA's operator owns in an object is ours; says whether the object can be applied now.

        One of ours that went meanwhile waits for the watch to say so; one that we did not watch yet is made anew.
        """
        if write.former is None:
            return True
        key = Key.of(write.obj)
        try:
            taken = await takeover.take_over(self._client, write.former)
        except ClusterError as error:
            if denied.take(error, f"{step.state}: {key}"):
                return False
            raise Ended(f"{key} cannot be taken over: {error}", state=step.state, error=error) from error
        if taken:
            log.info("%s: took %s over from NVIDIA's operator", step.state, key)
        elif not write.new:
            step.waiting.append(f"{key} is being deleted")
        return taken or write.new
