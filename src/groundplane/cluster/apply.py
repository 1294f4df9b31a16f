"""From wanted and live objects to writes: digest, plan, and carrying the plan out.

:func:`diff_set` is pure and decides; :func:`carry_out` writes, by server-side apply under one field manager. An object
is written when its digest annotation differs from the wanted one (we want something else than last time) or when the
live object drifted (``drift``). Which objects are wanted, and which live ones are ours, is the caller's to say.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from ..api import names
from . import errors, kinds
from .client import Client
from .drift import drift
from .kinds import Kind

__all__ = ["Failure", "Key", "Outcome", "Plan", "Update", "carry_out", "diff_set", "digest", "drift", "stamp"]

log = logging.getLogger(__name__)

Manifest = Mapping[str, Any]

TIERS: Final[tuple[tuple[Kind, ...], ...]] = (
    (kinds.NAMESPACE, kinds.CRD, kinds.PRIORITY_CLASS),
    (
        kinds.SERVICE_ACCOUNT,
        kinds.ROLE,
        kinds.CLUSTER_ROLE,
        kinds.SCC,
        kinds.CONFIG_MAP,
        kinds.SECRET,
        kinds.RUNTIME_CLASS,
    ),
    (kinds.ROLE_BINDING, kinds.CLUSTER_ROLE_BINDING),
    (kinds.SERVICE,),
    (kinds.DAEMON_SET, kinds.DEPLOYMENT, kinds.STATEFUL_SET, kinds.JOB, kinds.CRON_JOB),
)
"""The order of writing: what a pod needs to start comes before what starts pods; kinds not named come last.
Deletion goes the other way."""

IMMUTABLE: Final[Mapping[Kind, tuple[str, ...]]] = {
    kinds.DAEMON_SET: ("spec.selector",),
    kinds.DEPLOYMENT: ("spec.selector",),
    kinds.STATEFUL_SET: ("spec",),
    kinds.JOB: ("spec",),
    kinds.SERVICE: ("spec.clusterIP",),
    kinds.ROLE_BINDING: ("roleRef",),
    kinds.CLUSTER_ROLE_BINDING: ("roleRef",),
    kinds.RUNTIME_CLASS: ("handler",),
    kinds.PRIORITY_CLASS: ("value", "preemptionPolicy"),
    kinds.CONFIG_MAP: ("data", "binaryData", "immutable"),
    kinds.SECRET: ("data", "type", "immutable"),
}
"""Fields that cannot be changed in place: an object refused for one of them is deleted and made anew. Other kinds hold
state that deletion would lose (a Namespace, a CRD), so their refusal is an error."""
_IMMUTABLE_WORDS: Final = ("immutable", "cannot change", "may not change", "may not be changed", "can not change")

GONE_POLLS: Final = 20
GONE_POLL_S: Final = 0.25
"""How long a replaced object is waited for to be gone: finalizers and the server's own work take moments."""

BINDINGS: Final = (kinds.ROLE_BINDING, kinds.CLUSTER_ROLE_BINDING)
ROLE_POLLS: Final = 20
ROLE_POLL_S: Final = 0.1
"""How long a role that was written just now may take to reach the API server's access control, which looks it up in a
cache of its own before it lets anyone bind it."""


class Key(msgspec.Struct, frozen=True, order=False):
    """Which object: kind, namespace (empty for cluster-scoped) and name."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind.kind} {where}"

    @classmethod
    def of(cls, obj: Manifest) -> "Key":
        """The key of a manifest. Raises :class:`~.kinds.UnknownKind`, or :class:`ValueError` without a name."""
        kind, meta = kinds.of(obj), obj.get("metadata") or {}
        name, namespace = meta.get("name"), meta.get("namespace") or ""
        if not name:
            raise ValueError(f"a {kind.kind} has no metadata.name")
        if kind.namespaced and not namespace:
            raise ValueError(f"{kind.kind} {name!r} has no metadata.namespace")
        return cls(kind, namespace if kind.namespaced else "", name)


class Update(msgspec.Struct, frozen=True):
    """A live object that must be written, and why: ``paths`` that drifted, or none of them if only the wish changed."""

    desired: dict[str, Any]
    live: Manifest
    paths: list[str]


class Plan(msgspec.Struct, frozen=True):
    """What must happen so that the live objects are the wanted ones.

    ``create`` are stamped manifests, ``delete`` live objects, ``unchanged`` live objects that are right already.
    ``waiting`` are wanted objects whose old self is still being deleted: come back when it is gone.
    """

    create: list[dict[str, Any]] = []
    update: list[Update] = []
    delete: list[Manifest] = []
    unchanged: list[Manifest] = []
    waiting: list[dict[str, Any]] = []

    @property
    def empty(self) -> bool:
        """Nothing to write and nothing to delete."""
        return not (self.create or self.update or self.delete)


class Failure(msgspec.Struct, frozen=True):
    """One write or deletion that the API server did not take."""

    key: Key
    verb: Literal["apply", "delete"]
    error: errors.ClusterError

    def __str__(self) -> str:
        return f"{self.key}: {self.error}"


class Outcome(msgspec.Struct, frozen=True):
    """What :func:`carry_out` did: keys written (``recreated`` among them) and deleted, and what failed."""

    written: list[Key] = []
    deleted: list[Key] = []
    recreated: list[Key] = []
    errors: list[Failure] = []


# --- deciding ----------------------------------------------------------------------------------------------------


def digest(obj: Manifest) -> str:
    """32-bit digest of an object's content, in decimal; equal for equal content whatever the order of its maps.

    ``status`` and the digest annotation itself do not count (contracts/control-plane.md 4.1, DS change detection).
    """
    content = {key: value for key, value in obj.items() if key != "status"}
    meta = dict(content.get("metadata") or {})
    if meta.get("annotations"):
        meta["annotations"] = {k: v for k, v in meta["annotations"].items() if k != names.LAST_APPLIED_HASH}
    if not meta.get("annotations"):
        meta.pop("annotations", None)
    content["metadata"] = meta
    data = msgspec.json.encode(content, order="deterministic")
    return str(int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big"))


def stamp(obj: Manifest) -> dict[str, Any]:
    """A copy of ``obj`` that carries its digest; the rest is shared, not copied."""
    meta = dict(obj.get("metadata") or {})
    meta["annotations"] = {**(meta.get("annotations") or {}), names.LAST_APPLIED_HASH: digest(obj)}
    return {**obj, "metadata": meta}


def diff_set(desired: Iterable[Manifest], live: Iterable[Manifest]) -> Plan:
    """The plan that turns ``live`` (all objects that are ours) into ``desired``. Objects need apiVersion and kind.

    Raises :class:`ValueError` if two desired objects are the same one.
    """
    present = {Key.of(obj): obj for obj in live}
    plan = Plan([], [], [], [], [])
    wanted: set[Key] = set()
    for obj in desired:
        key = Key.of(obj)
        if key in wanted:
            raise ValueError(f"{key} is wanted twice")
        wanted.add(key)
        _place(plan, stamp(obj), present.get(key))
    plan.delete.extend(obj for key, obj in present.items() if key not in wanted and not _deleting(obj))
    return plan


def _place(plan: Plan, obj: dict[str, Any], live: Manifest | None) -> None:
    if live is None:
        plan.create.append(obj)
    elif _deleting(live):
        plan.waiting.append(obj)
    else:
        paths = drift(obj, live)
        if paths or _digest_of(obj) != _digest_of(live):
            plan.update.append(Update(obj, live, paths))
        else:
            plan.unchanged.append(live)


def _deleting(obj: Manifest) -> bool:
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def _digest_of(obj: Manifest) -> str | None:
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    found = annotations.get(names.LAST_APPLIED_HASH)
    return found if isinstance(found, str) else None


# --- doing -------------------------------------------------------------------------------------------------------


async def carry_out(
    client: Client,
    plan: Plan,
    *,
    field_manager: str = names.FIELD_MANAGER,
    limit: int = 8,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Outcome:
    """Delete and write what ``plan`` says, at most ``limit`` requests at a time; what was done and what failed.

    Deletions come first, DaemonSets before the accounts their pods use; then writes, tier by tier (:data:`TIERS`). One
    object's failure does not hold up the others. Wanted objects that are still being deleted are left for later.
    """
    done = Outcome([], [], [], [])
    worker = _Worker(client, field_manager, asyncio.Semaphore(limit), sleep, done)
    for group in reversed(_by_tier(plan.delete)):
        await _all(worker.delete(obj) for obj in group)
    for group in _by_tier([*plan.create, *(update.desired for update in plan.update)]):
        await _all(worker.write(obj) for obj in group)
    return done


def _by_tier(objects: Iterable[Manifest]) -> list[list[Manifest]]:
    order = {kind: number for number, tier in enumerate(TIERS) for kind in tier}
    groups: list[list[Manifest]] = [[] for _ in range(len(TIERS) + 1)]
    for obj in objects:
        groups[order.get(kinds.of(obj), len(TIERS))].append(obj)
    return groups


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Run side by side to the end; then the first unforeseen error is raised.

    Not a TaskGroup: before Python 3.13 one whose task fails in the tick of an outside cancellation loses the latter.
    """
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class _Worker:
    """One plan's requests: the client, the limit, and the outcome that is being filled."""

    def __init__(
        self,
        client: Client,
        field_manager: str,
        slots: asyncio.Semaphore,
        sleep: Callable[[float], Awaitable[None]],
        done: Outcome,
    ) -> None:
        self._client = client
        self._field_manager = field_manager
        self._slots = slots
        self._sleep = sleep
        self._done = done

    async def delete(self, obj: Manifest) -> None:
        key = Key.of(obj)
        async with self._slots:
            try:
                await self._client.delete(key.kind, key.name, key.namespace or None, uid=obj["metadata"].get("uid"))
            except errors.NotFound:
                log.debug("%s is gone already", key)
            except errors.ClusterError as error:
                self._done.errors.append(Failure(key, "delete", error))
                return
        self._done.deleted.append(key)

    async def write(self, obj: Manifest) -> None:
        key = Key.of(obj)
        async with self._slots:
            try:
                await self._apply_or_recreate(key, obj)
            except errors.ClusterError as error:
                self._done.errors.append(Failure(key, "apply", error))
                return
        self._done.written.append(key)

    async def _apply_or_recreate(self, key: Key, obj: Manifest) -> None:
        try:
            await self._apply(key, obj)
        except errors.Invalid as error:
            if not immutable(key.kind, error):
                raise
            log.info("%s: %s; replacing the object", key, error)
            await self._recreate(key, obj, error)

    async def _apply(self, key: Key, obj: Manifest) -> None:
        for _ in range(ROLE_POLLS):
            try:
                await self._client.apply(key.kind, obj, field_manager=self._field_manager)
            except errors.NotFound as error:
                # kube-apiserver names the role, but calls it by the kind of the binding.
                if key.kind not in BINDINGS or error.details.get("kind") == kinds.NAMESPACE.plural:
                    raise
                log.debug("%s: %s; waiting for the role to be known", key, error)
                await self._sleep(ROLE_POLL_S)
            else:
                return
        await self._client.apply(key.kind, obj, field_manager=self._field_manager)

    async def _recreate(self, key: Key, obj: Manifest, refusal: errors.Invalid) -> None:
        """Delete and make anew, but only once the server has said that it would take the new object."""
        await self._would_be_taken(key, obj)
        live = await self._client.get(key.kind, key.name, key.namespace or None)
        meta = live["metadata"]
        await self._client.delete(
            key.kind, key.name, key.namespace or None, uid=meta["uid"], propagation=propagation(obj, live)
        )
        if not await self._gone(key, meta["uid"]):
            raise refusal
        await self._apply(key, obj)
        self._done.recreated.append(key)

    async def _would_be_taken(self, key: Key, obj: Manifest) -> None:
        """A dry-run create passes validation and then finds the name taken, or raises what is wrong with ``obj``."""
        try:
            await self._client.create(key.kind, obj, dry_run=True)
        except errors.AlreadyExists:
            return

    async def _gone(self, key: Key, uid: str) -> bool:
        for _ in range(GONE_POLLS):
            try:
                live = await self._client.get(key.kind, key.name, key.namespace or None)
            except errors.NotFound:
                return True
            if live["metadata"].get("uid") != uid:
                return True
            await self._sleep(GONE_POLL_S)
        return False


def immutable(kind: Kind, error: errors.Invalid) -> bool:
    """The refusal is for a field of :data:`IMMUTABLE`, and for nothing that making the object anew would not cure."""
    prefixes = IMMUTABLE.get(kind, ())
    if not prefixes:
        return False
    if error.causes:
        return all(field.startswith(prefixes) and _says_immutable(text) for field, text in error.causes)
    named = any(re.search(rf"\b{re.escape(prefix)}[\w.\[\]]*:", error.message) for prefix in prefixes)
    return named and _says_immutable(error.message)


def _says_immutable(text: str) -> bool:
    return any(word in text.lower() for word in _IMMUTABLE_WORDS)


def propagation(desired: Manifest, live: Manifest) -> str:
    """What becomes of a replaced object's dependents: ``Orphan`` if the new one will adopt them, else ``Background``.

    A workload adopts pods that its selector matches and that nobody controls, so running pods (a loaded driver) survive
    where the new selector still matches them; otherwise they must go, or two generations would run beside each other.
    """
    selector = _at(desired, "spec", "selector")
    wanted = selector.get("matchLabels")
    labels = _at(live, "spec", "template", "metadata", "labels")
    if not wanted or selector.get("matchExpressions") or kinds.of(desired) == kinds.JOB:
        return "Background"
    return "Orphan" if wanted.items() <= labels.items() else "Background"


def _at(obj: Any, *path: str) -> dict[str, Any]:
    for part in path:
        obj = obj.get(part) if isinstance(obj, Mapping) else None
    return dict(obj) if isinstance(obj, Mapping) else {}
