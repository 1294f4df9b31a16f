"""Clearing a node, step by step (contracts/driver-lifecycle.md 5.3).

Whatever ends a run before its end, what it paused and cordoned goes on first; only a kill leaves something behind. A
run keeps nothing for the next one: what is paused is told by labels, who cordoned the node by an annotation, and what
is loaded by the kernel; so a run after a kill at any point comes to the right end.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from ...api import names
from ...api.release import Release
from ...cluster.errors import ClusterError
from ...cluster.eviction import EvictionError
from ..process import Process
from . import guidance, labels
from .cluster import Cluster, Node
from .errors import EXPECTED, DriverError
from .host import Host
from .settings import Settings

PRE_INSTALLED: Final = "pre-installed"
"""The deploy label's value on nodes that have a driver of their own."""
PRE_INSTALLED_S: Final = 60.0
"""How long the pod is given to be taken away where it is not needed."""


_AT_REST: Final = ("", "upgrade-done")
"""States of the operator's upgrade in which it does nothing with a node."""


class Parts(NamedTuple):
    """What a run is done with."""

    process: Process
    settings: Settings
    cluster: Cluster
    host: Host


async def uninstall(parts: Parts) -> None:
    """Clear the node. Raises one of :data:`~.errors.EXPECTED`; what was paused goes on then, and when cancelled."""
    log = parts.process.log
    version = await parts.host.installed_driver()
    if version:
        log.info(f"the host has a driver of its own, {version}: no driver container runs here")
        await parts.cluster.label({names.DEPLOY_DRIVER: PRE_INSTALLED})
        await parts.process.sleep(PRE_INSTALLED_S)
        raise DriverError(
            f"driver is pre-installed on host: version {version}; label {names.DEPLOY_DRIVER}={PRE_INSTALLED} keeps "
            "this pod off the node"
        )
    run = _Run(parts, await parts.cluster.node())
    try:
        await run.steps()
    except EXPECTED:
        await _surely(run.fail())
        raise
    except BaseException as error:
        what = "ended" if isinstance(error, asyncio.CancelledError) else f"{error!r}"
        log.warning(f"{what} before the node was cleared; the next run goes on")
        await _surely(run.fail())
        raise
    if not run.nothing_loaded:
        await parts.host.unload_nouveau()
    log.info("the node is cleared for a driver")


async def _surely(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, also if this is cancelled meanwhile."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise


class _Run:
    """One run; ``node`` is the node at its start."""

    def __init__(self, parts: Parts, node: Node) -> None:
        self._process, self._wanted, self._cluster, self._host = parts
        self._log = self._process.log
        self._release = self._process.release
        self._node = node
        self._custom = self._wanted.node_label_for_gpu_pod_eviction
        self._evicts = self._wanted.enable_gpu_pod_eviction and not node.policy
        self._drains = self._wanted.enable_auto_drain and not node.policy
        self._cordoned = node.cordoned_here
        self._upgrading = node.policy and node.labels.get(names.UPGRADE_STATE, "") not in _AT_REST
        self._dra = labels.pause_dra(node.labels, self._release)
        """The change that pauses the DRA plugin; nothing if it is not deployed."""
        self.nothing_loaded = False

    async def steps(self) -> None:
        """All steps. Raises one of :data:`~.errors.EXPECTED`."""
        self._say_policy()
        self.nothing_loaded = self._release is not Release.V26_3 and not self._host.loaded()
        if self.nothing_loaded:
            await self._clear_leftovers()
            return
        await self._pause_operands()
        if self._keeps_driver():
            await self._rotate_root()
            return
        await self._evict()
        await self._release_claims()
        await self._remove_driver()
        await self._finish()

    def _say_policy(self) -> None:
        if not self._node.policy:
            return
        if self._wanted.enable_gpu_pod_eviction:
            self._log.info(guidance.EVICTION_SUPERSEDED)
        if self._wanted.enable_auto_drain:
            self._log.info(guidance.DRAIN_SUPERSEDED)

    # --- steps 3 to 5 -------------------------------------------------------------------------------------------------

    async def _clear_leftovers(self) -> None:
        """No driver is loaded: nobody uses it, and only what its container has left is in the way."""
        self._log.info("no NVIDIA driver is loaded: nothing is evicted")
        await self._drain_dra_plugin()
        await self._host.remove_leftovers()
        await self._host.unload_nouveau()
        await self._finish()

    async def _pause_operands(self) -> None:
        try:
            changes = labels.pause(self._node.labels, self._release, self._custom)
        except ValueError as error:
            raise DriverError(str(error)) from error
        self._log.info("pausing the operands that use GPUs on this node, by their deploy labels")
        await self._cluster.label(changes)
        await self._cluster.operands_gone(self._node.labels)

    def _keeps_driver(self) -> bool:
        """Whether the loaded driver is the wanted one."""
        if self._wanted.force_reinstall:
            self._log.info("FORCE_REINSTALL is set: the driver is loaded anew, whatever is loaded")
            return False
        if not self._host.loaded():
            return False
        if not self._wanted.digest:
            self._log.warning("DRIVER_CONFIG_DIGEST is not set, so the driver is loaded anew")
            return False
        stored = self._host.stored_digest()
        if stored == self._wanted.digest:
            return True
        self._log.info(f"the loaded driver's configuration is {stored or 'unknown'}, wanted {self._wanted.digest}")
        return False

    async def _rotate_root(self) -> None:
        """The driver stays loaded; only its container's root goes, and comes back with the next container."""
        self._log.info("the loaded driver is the wanted one: it stays, and so do its users")
        await self._drain_dra_plugin()
        await self._host.remove_leftovers()
        await self._uncordon()
        await self._restore_operands()

    # --- steps 6 to 8 -------------------------------------------------------------------------------------------------

    async def _evict(self) -> None:
        if not (self._evicts or (self._dra and self._drains)):
            return
        self._cordoned = await self._cluster.cordon() or self._cordoned
        try:
            await self._cluster.evict_gpu_pods()
        except (EvictionError, ClusterError) as error:
            if not self._drains:
                raise DriverError(f"cannot proceed until all GPU pods are drained from the node: {error}") from error
            self._log.warning(f"pods that hold GPUs cannot be evicted, so the node is drained: {error}")
            await self._cluster.drain()

    async def _release_claims(self) -> None:
        """See that no pod has a claim any more; only then the plugin that would release it may go."""
        if not self._dra:
            return
        if holders := await self._cluster.claim_holders():
            raise DriverError(
                f"the DRA plugin cannot go: these pods still hold claims of GPUs: {', '.join(map(str, holders))}; end "
                "them"
            )
        await self._drain_dra_plugin()

    async def _drain_dra_plugin(self) -> None:
        if not self._dra:
            return
        self._log.info("pausing the DRA plugin, after all that have claims")
        await self._cluster.label(self._dra)
        await self._cluster.app_gone(labels.DRA_PLUGIN.app)

    async def _remove_driver(self) -> None:
        if not self._host.loaded():
            await self._host.remove_leftovers()
            return
        try:
            await self._host.remove_driver()
        except EXPECTED as error:
            await self._tell_holders()
            if not self._drains:
                raise
            self._log.warning(f"the driver cannot be removed, so the node is drained and it is tried again: {error}")
            await self._cluster.drain()
            await self._host.remove_driver()
        self._log.info("removed the NVIDIA driver")

    async def _tell_holders(self) -> None:
        """Say what holds GPUs, for a person who looks for what keeps the driver in use."""
        users = self._host.users()
        self._log.info(f"processes that have the driver's devices open: {', '.join(users) or 'none'}")
        try:
            holders = await self._cluster.gpu_pods()
        except ClusterError as error:
            self._log.warning(f"which pods hold GPUs cannot be told: {error}")
            return
        self._log.info(f"pods of this node that hold GPUs: {', '.join(map(str, holders)) or 'none'}")

    # --- steps 9 to 12, and the way out -------------------------------------------------------------------------------

    async def _finish(self) -> None:
        await self._host.unbind_vfio()
        if self._wanted.gpu_direct_rdma_enabled:
            await self._host.mofed_ready(on_host=self._wanted.use_host_mofed)
        await self._uncordon()
        await self._restore_operands()

    async def _uncordon(self) -> None:
        """Let pods come again, if it is us who keep them off; that it fails is only said.

        Not while the operator upgrades the node's driver, which keeps them off too.
        """
        if not self._cordoned or self._upgrading:
            return
        try:
            await self._cluster.uncordon()
        except ClusterError as error:
            self._log.warning(f"node {self._wanted.node_name} is still cordoned; run kubectl uncordon: {error}")

    async def _restore_operands(self) -> None:
        self._log.info("letting the operands of this node go on")
        await self._cluster.label(labels.restore(self._node.labels, self._release, self._custom))

    async def fail(self) -> None:
        """Undo what keeps others off the node, and say what a person can do."""
        if self._node.policy:
            self._log.warning(guidance.policy_on(self._wanted.node_name, names.UPGRADE_STATE))
        elif not (self._evicts or self._drains):
            self._log.warning(guidance.both_off(self._wanted.node_name))
        try:
            self._cordoned = (await self._cluster.node()).cordoned_here  # whatever came of an answer that was lost
        except ClusterError as error:
            self._log.warning(f"whether node {self._wanted.node_name} is cordoned cannot be told: {error}")
        await self._uncordon()
        try:
            await self._restore_operands()
        except ClusterError as error:
            self._log.error(f"the operands of node {self._wanted.node_name} stay paused until the next run: {error}")
