"""What NVIDIA's operator left behind in a cluster that ours takes over.

Its objects have the names that ours have, so most of them are adopted by the next apply, field managers included
(``cluster/managers.py``). Left over is what it made for components that are off by now: those objects bear no label of
ours, so no watch of ours shows them. They are looked for once a policy and process. Only what NVIDIA's operator
certainly made counts: of a kind that we manage, in our namespace or in none, controlled by this very ClusterPolicy, and
written in its name. Whatever a person made is left alone, even if it names the policy as its owner.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from ..api import names
from ..cluster import managers
from ..cluster.apply import Key
from ..cluster.client import Client
from ..cluster.errors import ClusterError, Conflict, NotFound
from ..cluster.kinds import Kind
from . import denials
from .denials import Denials
from .owned import state_of

log = logging.getLogger(__name__)

FORMER_MANAGERS: Final = frozenset({"gpu-operator"})
"""Field managers whose place we take: NVIDIA's operator writes as its executable's name."""
PAGE: Final = 50
TRIES: Final = 5
"""So often an object that changes under our hands is read again before the pass gives up."""

Object = Mapping[str, Any]


def is_left(obj: Object, owner_uid: str) -> bool:
    """Whether NVIDIA's operator made ``obj`` for the policy ``owner_uid`` and nobody has adopted it."""
    owners = obj["metadata"].get("ownerReferences") or ()
    controlled = any(each.get("uid") == owner_uid and each.get("controller") for each in owners)
    return controlled and not state_of(obj) and bool(managers.former_entries(obj, FORMER_MANAGERS))


async def take_over(client: Client, obj: Object) -> bool:
    """Make the fields ours that NVIDIA's operator owns in ``obj``: the apply that follows then removes the unwanted.

    This comes before the first apply whatever else changes in the object meanwhile (the status of a DaemonSet that is
    rolling out changes all the time): applied first and taken over later, its pods would be replaced twice. Says
    whether the object is there at all. Raises :class:`ClusterError`, a :class:`Conflict` if it never held still.
    """
    key, live = Key.of(obj), obj
    namespace = key.namespace or None
    for tries_left in reversed(range(TRIES)):
        fields = managers.handed_over(live, FORMER_MANAGERS, names.FIELD_MANAGER)
        body = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"], "managedFields": fields}}
        try:
            await client.patch(key.kind, key.name, body, namespace=namespace, field_manager=names.FIELD_MANAGER)
            return True
        except NotFound:
            return False
        except Conflict as conflict:
            if not tries_left:
                raise
            log.info("%s changes while it is taken over, reading it again: %s", key, conflict)
        try:
            live = await client.get(key.kind, key.name, namespace)
        except NotFound:
            return False
        if not managers.former_entries(live, FORMER_MANAGERS):
            break
    return True


class Leftovers:
    """The objects left for one policy, as they were found; a pass strikes off what it has seen to."""

    def __init__(self, client: Client, namespace: str, denials: Denials) -> None:
        self._client = client
        self._namespace = namespace
        self._denials = denials
        self._owner = ""
        self._found: dict[Key, dict[str, Any]] = {}

    async def of(self, owner_uid: str, wanted: Collection[Kind]) -> list[dict[str, Any]]:
        """What is left for ``owner_uid``, looked for among ``wanted`` kinds the first time it is asked for."""
        if owner_uid and owner_uid != self._owner:
            try:
                parts = await asyncio.gather(*(self._list(kind, owner_uid) for kind in wanted))
            except ClusterError as error:
                if not self._denials.note(denials.LEFTOVERS, error):
                    log.warning("what NVIDIA's operator left cannot be looked for: %s", error)
                return []
            self._denials.note(denials.LEFTOVERS, None)
            self._found = {Key.of(obj): obj for part in parts for obj in part}
            self._owner = owner_uid
            if self._found:
                log.info("NVIDIA's operator left %s", ", ".join(map(str, self._found)))
        return list(self._found.values())

    def settled(self, keys: Iterable[Key]) -> None:
        """These are adopted or gone."""
        for key in keys:
            self._found.pop(key, None)

    async def _list(self, kind: Kind, owner_uid: str) -> list[dict[str, Any]]:
        """Page by page: a namespace may hold many large ConfigMaps that are none of ours."""
        found: list[dict[str, Any]] = []
        more = ""
        unlabelled = f"!{names.STATE_LABEL}"
        while True:
            part = await self._client.page(
                kind, self._namespace if kind.namespaced else None, labels=unlabelled, limit=PAGE, more=more
            )
            found += [obj for obj in part.items if is_left(obj, owner_uid)]
            more = part.more
            if not more:
                return found
