"""The program at work: look at the machine, follow the node and its NodeFeature objects, and close the difference.

Whatever changes, one pass looks at all there is and writes what differs; a quiet node costs two watches and no
request. A patch names the version of the node that was judged, so that nothing is decided on an old picture: where it
is refused (409), the newer node is judged. What is decided is left to the pure modules beside this one.
"""

import asyncio
import contextlib
import random
from typing import Final

import msgspec

from ...api import names
from ...cluster import kinds
from ...cluster.client import Client, PatchType, Retry
from ...cluster.errors import AlreadyExists, ApiError, ClusterError, Conflict, NotFound
from ...cluster.informer import Change, Informer
from ...cluster.views import Meta, MetaView
from .. import watch
from ..process import ENDING, Process, wait_any
from . import labels, record, requests, rivals, worker
from .machine import PciSettings
from .worker import Document, Found

MANAGER: Final = "groundplane-node-features"
LEAST_PAUSE_S: Final = 1.0
"""Between two looks at the machine (contracts/device-plugin-gfd.md 9)."""
WITHOUT_CRD_S: Final = 300.0
"""Between two questions for NodeFeature objects where the API server knows none."""
AFTER_CONFLICT_S: Final = 2.0
_BACKOFF: Final = Retry(first_s=1.0, max_s=60.0)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the program was told.

    ``offer``: keep a NodeFeature object of what the worker finds. ``pod`` may be empty: the object has no owner then.
    """

    node: str
    namespace: str
    pod: str = ""
    interval_s: float = 60.0
    pci: PciSettings = PciSettings()
    extra_namespaces: tuple[str, ...] = ()
    offer: bool = True


class NodeFeatures:
    """One node's features, from its machine to its labels."""

    def __init__(self, process: Process, client: Client, settings: Settings) -> None:
        self._process = process
        self._client = client
        self._settings = settings
        self._found: Found | None = None
        self._node: Meta | None = None
        self._own: Document | None = None
        self._owners: list[Document] | None = None
        self._dispute = rivals.Dispute()
        self._said = ""
        self._complaints: frozenset[str] = frozenset()
        self._dirty = asyncio.Event()
        self._look_again = asyncio.Event()
        self._nodes = Informer(
            client,
            kinds.NODE,
            MetaView,
            fields=f"metadata.name={settings.node}",
            sleep=process.sleep,
            clock=process.monotonic,
        )
        self._features: Informer[Document] = Informer(
            client,
            kinds.NODE_FEATURE,
            dict,
            labels=requests.selector(settings.node),
            sleep=self._pause_features,
            clock=process.monotonic,
        )
        self._nodes.subscribe(self._node_changed)
        self._features.subscribe(self._feature_changed)
        for informer in (self._nodes, self._features):
            informer.on_trouble(self._dirty.set)

    async def run(self) -> int:
        """Work until a signal asks for the end, then 0; the node keeps its labels."""
        await wait_any(self._obey(), self._discover(), self._publish(), self._nodes.run(), self._features.run())
        return 0

    async def _obey(self) -> None:
        while await self._process.signal() not in ENDING:
            self._look_again.set()

    # --- what the machine is ------------------------------------------------------------------------------------------

    async def _discover(self) -> None:
        """Look at the machine at the interval, and when a local file changes, but not more than once a second."""
        async with watch.paths(self._process.path(names.FEATURES_DIR)) as changes:
            while True:
                started = self._process.monotonic()
                await self._look()
                nap = self._process.sleep(self._settings.interval_s)
                await wait_any(changes.next(), nap, self._look_again.wait())
                await self._process.sleep(max(0.0, started + LEAST_PAUSE_S - self._process.monotonic()))
                changes.drain()
                self._look_again.clear()

    async def _look(self) -> None:
        found = await asyncio.to_thread(worker.look, self._process, self._settings.pci)
        if found != self._found:
            for problem in found.problems if self._found is None else set(found.problems) - set(self._found.problems):
                self._process.log.warning(problem)
            self._process.log.info(f"this machine asks for {len(found.labels)} labels")
            self._found = found
            self._dirty.set()

    # --- what the cluster says ----------------------------------------------------------------------------------------

    def _node_changed(self, change: Change[MetaView]) -> None:
        old, new = self._node, change.new.metadata if change.new is not None else None
        self._node = new
        if old is None or new is None or (old.labels, old.annotations) != (new.labels, new.annotations):
            self._dirty.set()

    def _feature_changed(self, change: Change[Document]) -> None:
        meta = change.object["metadata"]
        if (meta.get("namespace"), meta["name"]) == (self._settings.namespace, self._settings.node):
            self._own = change.new
        self._dirty.set()

    async def _pause_features(self, seconds: float) -> None:
        if isinstance(self._features.last_error, NotFound):
            seconds = WITHOUT_CRD_S
            self._process.log.info(f"the API server knows no NodeFeature objects; looking again in {seconds:g} s")
        await self._process.sleep(seconds)

    def _documents(self) -> list[Document] | None:
        """The node's NodeFeature objects; None while they are not known."""
        if isinstance(self._features.last_error, NotFound):
            return []
        return list(self._features.values()) if self._features.synced else None

    # --- closing the difference ---------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """One pass whenever something has changed, from the moment on when all is known."""
        for informer in (self._nodes, self._features):
            await informer.wait_settled()
        self._dirty.set()
        failures, again_s = 0, None
        while True:
            await self._until_dirty(again_s)
            try:
                again_s = await self._pass()
                failures = 0
            except (Conflict, AlreadyExists):  # what we know is old; the news is on its way
                again_s = AFTER_CONFLICT_S
            except ClusterError as error:
                failures += 1
                wish = error.retry_after_s if isinstance(error, ApiError) else None
                again_s = _BACKOFF.delay(failures, wish, random.random)
                self._process.log.error(f"{error}; trying again in {again_s:.0f} s")

    async def _until_dirty(self, again_s: float | None) -> None:
        waits = [self._dirty.wait()] if again_s is None else [self._dirty.wait(), self._process.sleep(again_s)]
        await wait_any(*waits)
        self._dirty.clear()

    async def _pass(self) -> float | None:
        """Make the node and our object right; when to look again if nothing happens before."""
        found, node, documents = self._found, self._node, self._documents()
        if found is None or node is None or documents is None:
            self._tell_trouble()
            return None
        rival = rivals.evidence(node.name, self._settings.namespace, node.annotations, documents)
        if rival:
            self._dispute = rivals.Dispute()
            self._say(f"node feature discovery labels this node, which is left to it: {rival}")
            await self._withdraw()
            return None
        again_s = await self._label(node, self._wanted(found, node, documents))
        await (self._offer(found) if self._settings.offer else self._withdraw())
        return again_s

    def _wanted(self, found: Found, node: Meta, documents: list[Document]) -> dict[str, str]:
        """The labels that the node should have by all requests together, without those that another instance put on it.

        Our own object may be old, and one of ours elsewhere is a former installation's: what was found counts.
        """
        own = found.request(self._settings.namespace, self._settings.node)
        others = [requests.of(document) for document in documents if not rivals.is_ours(document)]
        together = requests.merged([own, *others], self._settings.namespace)
        accepted = labels.accept(together.labels, together.attributes, self._settings.extra_namespaces)
        taken = record.of_instances(node.annotations)
        complaints = [str(each) for each in accepted.refused]
        complaints += [f"label {key} is left to another instance of NFD" for key in accepted.labels if key in taken]
        self._complain(frozenset(complaints))
        return {key: value for key, value in accepted.labels.items() if key not in taken}

    async def _label(self, node: Meta, wanted: dict[str, str]) -> float | None:
        verdict = rivals.judge(
            self._dispute,
            foreign=record.is_foreign(node.annotations),
            missing=len(record.missing(node.labels, wanted)),
            now=self._process.monotonic(),
        )
        self._say(verdict.why)
        if verdict.act:
            await self._write_labels(node, wanted)
        self._dispute = verdict.dispute
        return verdict.again_s

    async def _write_labels(self, node: Meta, wanted: dict[str, str]) -> None:
        changes = record.changes(node.labels, node.annotations, wanted)
        if changes is None:
            return
        body = {"metadata": {"resourceVersion": node.resourceVersion, **changes}}
        patched = await self._client.patch(
            kinds.NODE, node.name, body, type=PatchType.STRATEGIC, field_manager=MANAGER, view=MetaView
        )
        self._node = patched.metadata
        put = changes.get("labels", {})
        removed = sum(value is None for value in put.values())
        self._process.log.info(f"node {node.name}: {len(put) - removed} labels set, {removed} removed")

    async def _offer(self, found: Found) -> None:
        """Keep our NodeFeature object as the machine is, where the API server knows such objects."""
        if isinstance(self._features.last_error, NotFound):
            return
        if self._owners is None:
            self._owners = await self._find_owners()
        wanted = worker.document(self._settings.node, self._settings.namespace, found, self._owners)
        if self._own is None:
            kind = {"apiVersion": kinds.NODE_FEATURE.api_version, "kind": kinds.NODE_FEATURE.kind}
            self._own = await self._client.create(kinds.NODE_FEATURE, {**kind, **wanted})
            return
        replacement = worker.over(self._own, wanted)
        if replacement is not None:
            self._own = await self._client.replace(kinds.NODE_FEATURE, replacement)

    async def _withdraw(self) -> None:
        """Take our NodeFeature object away, if there is one."""
        own = self._own
        if own is None or not rivals.is_ours(own):
            return
        meta = own["metadata"]
        with contextlib.suppress(NotFound):
            await self._client.delete(
                kinds.NODE_FEATURE,
                meta["name"],
                meta["namespace"],
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
            )
        self._own = None

    async def _find_owners(self) -> list[Document]:
        """Whom our NodeFeature object belongs to; nobody if that cannot be told, which is no reason to stop."""
        pod = self._settings.pod
        if not pod:
            return []
        try:
            found = await worker.owners(self._client, self._settings.namespace, pod)
        except ClusterError as error:
            self._process.log.warning(f"the NodeFeature object will outlive this program, it gets no owner: {error}")
            return []
        if not found:
            self._process.log.warning(f"the NodeFeature object gets no owner: pod {pod} is no DaemonSet's")
        return found

    # --- telling ------------------------------------------------------------------------------------------------------

    def _tell_trouble(self) -> None:
        troubles = [informer.trouble for informer in (self._nodes, self._features)]
        known = "; ".join(str(each) for each in troubles if each is not None)
        if known:
            self._say(f"the node's labels cannot be judged: {known}")
        elif self._nodes.synced and self._node is None:
            self._say(f"there is no node {self._settings.node!r}")

    def _say(self, text: str) -> None:
        """Log why nothing is done, or that it is done again: once, when it changes."""
        if text and text != self._said:
            self._process.log.warning(text)
        elif self._said and not text:
            self._process.log.info("the node's feature labels are kept by this program")
        self._said = text

    def _complain(self, complaints: frozenset[str]) -> None:
        """Log what is newly wrong with requests."""
        for each in sorted(complaints - self._complaints):
            self._process.log.warning(each)
        self._complaints = complaints
