"""Events as the control plane's components write them: counted when they repeat, combined when they are alike, few.

The limits are client-go's: the eleventh similar event of ten minutes is combined with those after it, and one
component writes at most 25 events about one object, then one in five minutes.
"""

import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ..api import Api
from ..clock import LabClock, rfc3339
from ..resources import EVENTS
from ..status import StatusError
from .objects import Doc, Obj

log = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"
COMBINED = "(combined from similar events): "
SIMILAR_LIMIT, SIMILAR_WINDOW_S = 10, 600.0
BURST, REFILL_S = 25, 300.0
REMEMBERED = 4096


@dataclass(slots=True)
class _Similar:
    since: float
    messages: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Allowance:
    tokens: float
    at: float


class EventRecorder:
    """Writes one component's events."""

    def __init__(self, api: Api, clock: LabClock, component: str) -> None:
        self.component = component
        self._api = api
        self._clock = clock
        self._written: OrderedDict[tuple[str, ...], Obj] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    def event(self, about: Doc, kind: str, reason: str, message: str, *, action: str = "") -> None:
        """Write an event about the object a reference names; `kind` is Normal or Warning, `action` what was done.

        An event that cannot be written (its namespace is going) is dropped with a line in the log.
        """
        subject = f"{about.get('uid') or ''}/{about.get('namespace') or ''}/{about['name']}"
        message = self._combine((subject, kind, reason), message)
        if not self._allowed(subject):
            return
        identity = (subject, kind, reason, COMBINED if message.startswith(COMBINED) else message)
        try:
            self._remember(identity, self._write(identity, about, kind, reason, message, action))
        except StatusError as error:
            log.info("%s: event %s about %s not written: %s", self.component, reason, about["name"], error.message)

    def _combine(self, group: tuple[str, ...], message: str) -> str:
        now = self._clock.monotonic()
        similar = self._similar.get(group)
        if similar is None or now - similar.since > SIMILAR_WINDOW_S:
            similar = self._similar[group] = _Similar(now)
            _trim(self._similar)
        if message not in similar.messages and len(similar.messages) >= SIMILAR_LIMIT:
            return COMBINED + message
        similar.messages.add(message)
        return message

    def _allowed(self, subject: str) -> bool:
        now = self._clock.monotonic()
        allowance = self._allowances.get(subject)
        if allowance is None:
            allowance = self._allowances[subject] = _Allowance(BURST, now)
            _trim(self._allowances)
        allowance.tokens = min(BURST, allowance.tokens + (now - allowance.at) / REFILL_S)
        allowance.at = now
        if allowance.tokens < 1:
            return False
        allowance.tokens -= 1
        return True

    def _write(self, identity: tuple[str, ...], about: Doc, kind: str, reason: str, message: str, action: str) -> Obj:
        moment = self._clock.now()
        now = rfc3339(moment)
        known = self._written.get(identity)
        if known is not None:
            again = {**known, "count": known["count"] + 1, "lastTimestamp": now, "message": message}
            del again["metadata"]
            try:
                metadata = known["metadata"]
                again = {**again, "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]}}
                return self._api.update(EVENTS, again, manager=self.component)
            except StatusError as error:
                if error.code != 404:
                    raise
        namespace = about.get("namespace") or "default"
        return self._api.create(
            EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{about['name']}.{secrets.token_hex(8)}", "namespace": namespace},
                "involvedObject": dict(about),
                "type": kind,
                "reason": reason,
                "message": message,
                **({"action": action} if action else {}),
                "source": {"component": self.component},
                "reportingComponent": self.component,
                "reportingInstance": "",
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
            namespace,
            manager=self.component,
        )

    def _remember(self, identity: tuple[str, ...], written: Obj) -> None:
        self._written[identity] = written
        self._written.move_to_end(identity)
        _trim(self._written)


def _trim(memory: OrderedDict[Any, Any]) -> None:
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
