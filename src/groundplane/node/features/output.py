"""Where labels go: a file or an object that node feature discovery reads, or standard output.

Nothing is written that is there already, so a node whose GPUs stay as they are causes no work anywhere
(contracts/device-plugin-gfd.md 8.3). What the labels are is left to ``labels``.
"""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...api import names
from ..config import GfdConfig
from ..hostroot import write_atomic
from ..process import Process
from .labels import Labels

if TYPE_CHECKING:
    from ...cluster.client import Client

MODE: Final = 0o644
TEMPORARY: Final = "gfd-tmp"
"""A folder beside the output file, where it is made: node feature discovery reads no folders."""
OBJECT_PREFIX: Final = "nvidia-features-for-"
CONFLICTS: Final = 5
"""Writes in a row that others may come before, until that is an error."""

Object = dict[str, Any]


class OutputError(RuntimeError):
    """Labels cannot be handed over; the text says where and why."""


class Output(Protocol):
    """A place for labels."""

    async def write(self, labels: Labels) -> bool:
        """Make the place hold these labels and no others; whether that took a write. Raises :class:`OutputError`."""


class StandardOutput:
    """Prints the labels each time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def write(self, labels: Labels) -> bool:
        """Print a line a label."""
        self._process.out(lines(labels))
        return True


class File:
    """A file of ``features.d``, replaced in one step. ``place`` is where it really is, ``name`` what messages say."""

    def __init__(self, place: Path, name: str) -> None:
        self._place = place
        self._name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and other._place == self._place

    def __hash__(self) -> int:
        return hash(self._place)

    async def write(self, labels: Labels) -> bool:
        """Replace the file, unless it holds just these lines."""
        wanted = lines(labels).encode()
        try:
            if self._place.is_file() and self._place.read_bytes() == wanted:
                return False
            folder = self._place.parent / TEMPORARY
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            made = folder / self._place.name
            write_atomic(made, wanted, mode=MODE)
            made.replace(self._place)
        except OSError as error:
            raise OutputError(f"error writing labels to {self._name}: {error}") from error
        return True

    def remove(self) -> None:
        """Remove the file and the folder where it was made. Raises :class:`OutputError`."""
        try:
            self._place.unlink(missing_ok=True)
            if self._place.with_name(TEMPORARY).is_dir():
                shutil.rmtree(self._place.with_name(TEMPORARY))
        except OSError as error:
            raise OutputError(f"error removing {self._name}: {error}") from error


def lines(labels: Mapping[str, str]) -> str:
    """Labels as node feature discovery reads them: a line each, sorted."""
    return "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))


class Pace:
    """Holds requests to a rate: so many a second, and so many at once after a pause."""

    def __init__(self, process: Process, per_second: float, burst: int) -> None:
        self._process = process
        self._per_second = per_second
        self._burst = float(max(burst, 1))
        self._tokens = self._burst
        self._counted = process.monotonic()

    async def wait(self) -> None:
        """Wait for one's turn; not at all where the rate is not positive."""
        if self._per_second <= 0:
            return
        now = self._process.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._counted) * self._per_second) - 1
        self._counted = now
        if self._tokens < 0:
            await self._process.sleep(-self._tokens / self._per_second)


class NodeFeature:
    """The NodeFeature object of a node. It outlives the program, and goes when its owners go."""

    def __init__(self, client: "Client", pace: Pace, config: GfdConfig, warn: Callable[[str], None]) -> None:
        self._client = client
        self._pace = pace
        self._node = config.node_name
        self._namespace = config.namespace
        self._pod = config.pod_name
        self._warn = warn
        self._owners: list[Object] | None = None

    async def write(self, labels: Labels) -> bool:
        """Create the object, or update it if it differs. Raises :class:`OutputError`."""
        from ...cluster import errors

        what = f"NodeFeature {self._namespace}/{OBJECT_PREFIX}{self._node}"
        if self._owners is None:
            self._owners = await owners(self._client, self._pace, self._pod, self._namespace, self._warn)
        try:
            for _ in range(CONFLICTS):
                try:
                    return await self._attempt(labels)
                except (errors.Conflict, errors.AlreadyExists):
                    continue
        except errors.ClusterError as error:
            raise OutputError(f"error writing labels to {what}: {error}") from error
        raise OutputError(f"error writing labels to {what}: others changed it {CONFLICTS} times meanwhile")

    async def _attempt(self, labels: Labels) -> bool:
        from ...cluster import errors
        from ...cluster.kinds import NODE_FEATURE

        found = await self._find()
        if found is not None:
            wanted = self._wanted(found, labels)
            if wanted == found:
                return False
            await self._pace.wait()
            with contextlib.suppress(errors.NotFound):  # it was deleted meanwhile
                await self._client.replace(NODE_FEATURE, wanted)
                return True
        await self._pace.wait()
        await self._client.create(NODE_FEATURE, self._wanted({}, labels))
        return True

    async def _find(self) -> Object | None:
        from ...cluster import errors
        from ...cluster.kinds import NODE_FEATURE

        await self._pace.wait()
        try:
            return await self._client.get(NODE_FEATURE, f"{OBJECT_PREFIX}{self._node}", self._namespace)
        except errors.NotFound:
            return None

    def _wanted(self, found: Object, labels: Labels) -> Object:
        """The object as it should be; what others put into its metadata stays."""
        from ...cluster.kinds import NODE_FEATURE

        meta = dict(found.get("metadata", {}))
        meta |= {"name": f"{OBJECT_PREFIX}{self._node}", "namespace": self._namespace}
        meta["labels"] = {**(meta.get("labels") or {}), names.NFD_NODE_NAME: self._node}
        if self._owners:
            meta["ownerReferences"] = self._owners
        spec = {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": dict(labels)}
        head = {"apiVersion": NODE_FEATURE.api_version, "kind": NODE_FEATURE.kind}
        return {**found, **head, "metadata": meta, "spec": spec}


@contextlib.asynccontextmanager
async def node_feature(process: Process, config: GfdConfig) -> AsyncIterator[NodeFeature]:
    """The node's object, with a client that is open meanwhile. Raises :class:`OutputError`."""
    from ...cluster.errors import ConfigError

    missing = [name for name, value in (("NODE_NAME", config.node_name), ("NAMESPACE", config.namespace)) if not value]
    if missing:
        raise OutputError(
            f"the NodeFeature API needs {' and '.join(missing)}: set the environment variable or the flag, "
            "or write a file (useNodeFeatureAPI: false)"
        )
    try:
        client = process.client(config.kubeconfig)
    except ConfigError as error:
        raise OutputError(f"no API server to write labels to: {error}") from error
    async with client:
        pace = Pace(process, config.kube_api_qps, config.kube_api_burst)
        yield NodeFeature(client, pace, config, process.log.warning)


async def owners(client: "Client", pace: Pace, pod: str, namespace: str, warn: Callable[[str], None]) -> list[Object]:
    """Owner references to the DaemonSet that owns a pod and to the pod; none, with a warning, if they are not found."""
    from ...cluster import errors
    from ...cluster.kinds import DAEMON_SET, POD

    if not pod:
        warn("no pod name is given (POD_NAME): the NodeFeature object gets no owner and stays after an uninstallation")
        return []
    await pace.wait()
    try:
        found = await client.get(POD, pod, namespace)
    except errors.ClusterError as error:
        warn(f"the NodeFeature object gets no owner and stays after an uninstallation: {error}")
        return []
    meta = found["metadata"]
    held_by = [each for each in meta.get("ownerReferences") or [] if each.get("kind") == DAEMON_SET.kind]
    if not held_by:
        warn(f"pod {namespace}/{pod} is owned by no DaemonSet: the NodeFeature object gets no owner")
        return []
    of_set = {key: held_by[0][key] for key in ("apiVersion", "kind", "name", "uid")}
    of_pod = {"apiVersion": POD.api_version, "kind": POD.kind, "name": meta["name"], "uid": meta["uid"]}
    return [{**of_set, "controller": True}, of_pod]
