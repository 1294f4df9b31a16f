"""The cluster's facts, gathered from what is watched: a pass over known objects makes no request."""

import asyncio
import logging

from ..cluster import kinds
from ..cluster.informer import Informer
from ..cluster.kinds import Kind
from ..operands.facts import ClusterFacts, Owner, References
from . import openshift, runtime
from .caches import Caches, KeysView
from .fleet import Fleet
from .settings import Settings

log = logging.getLogger(__name__)

LOOK_UP_S = 10.0
"""How long a pass waits for the first listing of a referenced object."""


class Unknown(Exception):  # noqa: N818
    """A referenced object cannot be read; the message says which and why."""


class Observer:
    """Builds :class:`ClusterFacts` from the caches."""

    def __init__(self, caches: Caches, settings: Settings, fleet: Fleet) -> None:
        self._caches = caches
        self._settings = settings
        self._fleet = fleet
        self._referenced: dict[tuple[Kind, str], Informer[KeysView]] = {}

    def watch(self, wanted: References) -> None:
        """Watch the referenced objects, and no others any more."""
        keys = {(kinds.CONFIG_MAP, name) for name in wanted.config_maps}
        keys |= {(kinds.SECRET, name) for name in wanted.secrets}
        for key in self._referenced.keys() - keys:
            self._caches.stop(self._referenced.pop(key))
        for key in keys - self._referenced.keys():
            informer = self._caches.keys_of(*key)
            informer.subscribe(lambda _: self._caches.notify())
            self._referenced[key] = informer
            self._caches.start(informer)

    async def facts(self, wanted: References, owner: Owner | None) -> ClusterFacts:
        """The facts for rendering what refers to ``wanted`` and is for ``owner``. Raises :class:`Unknown`."""
        self.watch(wanted)
        for key, informer in self._referenced.items():
            await self._wait(key, informer)
        caches, settings, summary = self._caches, self._settings, self._fleet.summary
        on_openshift = openshift.facts(caches.cluster_version, caches.image_stream)
        return ClusterFacts(
            namespace=settings.namespace,
            release=settings.release,
            runtime=runtime.detect(summary.runtimes, openshift=on_openshift is not None),
            nodes=summary.nodes,
            service_monitor_crd=caches.served(kinds.SERVICE_MONITOR),
            default_images=settings.default_images,
            config_maps={name: self._keys(kinds.CONFIG_MAP, name) for name in sorted(wanted.config_maps)},
            secrets={name: self._keys(kinds.SECRET, name) for name in sorted(wanted.secrets)},
            openshift=on_openshift,
            proxies=openshift.proxies(caches.proxy),
            owner=owner,
        )

    async def _wait(self, key: tuple[Kind, str], informer: Informer[KeysView]) -> None:
        try:
            async with asyncio.timeout(LOOK_UP_S):
                await informer.wait_settled()
        except TimeoutError:
            log.debug("%s %s was not listed within %g s", key[0].kind, key[1], LOOK_UP_S)
        if not informer.synced:
            why = informer.last_error or "no answer from the API server"
            kind, name = key
            raise Unknown(f"cannot read {kind.kind} {name} in namespace {self._settings.namespace}: {why}")

    def _keys(self, kind: Kind, name: str) -> tuple[str, ...] | None:
        found = self._referenced[kind, name].get(name, self._settings.namespace)
        return found.keys if found is not None else None
