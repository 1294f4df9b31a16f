"""Which pods hold a GPU: those that ask for an extended resource of one, or have a ResourceClaim that was given one.

contracts/driver-lifecycle.md 3.11 and 5.3, of both who ask: the operator before it upgrades a node's driver, and the
driver manager on the node. Pods that reach GPUs by a runtime class alone cannot be told. Taking pods off is left to
``eviction``.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from ..api import names
from . import errors, kinds
from .eviction import Key, Pod

if TYPE_CHECKING:
    from .client import Client

DRA_DRIVER: Final = "gpu.nvidia.com"
"""The driver that allocates GPUs to ResourceClaims."""
_PREFIXES: Final = (names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)
_ACTIVE: Final = ("Running", "Pending")
_CLAIMS: Final = tuple(
    msgspec.structs.replace(kinds.RESOURCE_CLAIM, version=version) for version in ("v1", "v1beta2", "v1beta1")
)
"""ResourceClaims as API servers of different age serve them; what is read here looks the same in all."""


class Result(msgspec.Struct, frozen=True):
    """A device that was allocated; with ``adminAccess`` only to be looked at."""

    driver: str = ""
    adminAccess: bool | None = None


class Devices(msgspec.Struct, frozen=True):
    """``status.allocation.devices`` of a claim."""

    results: tuple[Result, ...] = ()


class Allocation(msgspec.Struct, frozen=True):
    """``status.allocation`` of a claim."""

    devices: Devices = Devices()


class ClaimStatus(msgspec.Struct, frozen=True):
    """``status`` of a claim; without an allocation it has no device yet."""

    allocation: Allocation | None = None


class Claim(msgspec.Struct, frozen=True):
    """A ResourceClaim, as far as it tells GPUs."""

    status: ClaimStatus = ClaimStatus()

    def gpu(self, *, admin: bool) -> bool:
        """Whether a GPU is allocated to it; ``admin``: also if only to be looked at."""
        results = self.status.allocation.devices.results if self.status.allocation is not None else ()
        return any(each.driver == DRA_DRIVER and (admin or not each.adminAccess) for each in results)


Claims = Mapping[Key, Claim | errors.ClusterError | None]
"""Claims by namespace and name: None is not there, an error could not be read."""


def asks_for_gpu(pod: Pod) -> bool:
    """Whether a container, other than those that run first, has a resource of a GPU in its limits or requests."""
    return any(
        name.startswith(_PREFIXES)
        for container in pod.spec.containers
        for name in (*container.resources.limits, *container.resources.requests)
    )


def claim_keys(pod: Pod) -> list[Key]:
    """The pod's ResourceClaims; one that has not been made yet has no name and is left out."""
    made = {each.name: each.resourceClaimName for each in pod.status.resourceClaimStatuses}
    named = (each.resourceClaimName or made.get(each.name) for each in pod.spec.resourceClaims)
    return [(pod.metadata.namespace, name) for name in named if name]


def may_hold(pod: Pod) -> bool:
    """Whether :func:`to_upgrade` may choose the pod, whatever its claims say."""
    return pod.status.phase in _ACTIVE and (asks_for_gpu(pod) or bool(claim_keys(pod)))


def to_upgrade(pods: Iterable[Pod], claims: Claims | None) -> list[Pod]:
    """GPU pods as the operator's upgrade counts them (3.11); ``claims`` are None where they do not count: 26.3.

    Pods that look at GPUs only do not count; one whose claim is not there or cannot be read does.
    """

    def holds(key: Key) -> bool:
        claim = (claims or {}).get(key)
        return claim.gpu(admin=False) if isinstance(claim, Claim) else True

    return [
        pod
        for pod in pods
        if pod.status.phase in _ACTIVE
        and (asks_for_gpu(pod) or (claims is not None and any(map(holds, claim_keys(pod)))))
    ]


def to_unload(pods: Iterable[Pod], claims: Claims | None) -> list[Pod]:
    """GPU pods as the driver manager counts them (5.3, step 6), in any phase; ``claims`` as for :func:`to_upgrade`.

    Pods that look at GPUs count, since they too have the driver's files open; one whose claim is not there does not.
    Raises the error of a claim that could not be read.
    """
    return [pod for pod in pods if asks_for_gpu(pod) or holds_claim(pod, claims or {})]


def holds_claim(pod: Pod, claims: Claims) -> bool:
    """Whether a pod has a claim with a GPU, even if only to be looked at. Raises the error of an unreadable one."""
    found = [claims.get(key) for key in claim_keys(pod)]
    for claim in found:
        if isinstance(claim, errors.ClusterError):
            raise claim
    return any(isinstance(claim, Claim) and claim.gpu(admin=True) for claim in found)


class ClaimReader:
    """Reads claims, in the version of the API that the server has."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._served = list(_CLAIMS)

    async def of(self, pods: Iterable[Pod]) -> Claims:
        """The claims of some pods; nothing is raised. Where the API server has no ResourceClaims, none has a device."""
        keys = sorted({key for pod in pods for key in claim_keys(pod)})
        first = [await self._read(key) for key in keys[:1]]  # alone, so that the version is known to the others
        return dict(zip(keys, [*first, *await asyncio.gather(*map(self._read, keys[1:]))], strict=True))

    async def _read(self, key: Key) -> Claim | errors.ClusterError | None:
        while self._served:
            kind = self._served[0]
            try:
                return await self._client.get(kind, key[1], key[0], view=Claim)
            except errors.NotFound as error:
                if error.details.get("name"):
                    return None
                self._served = [each for each in self._served if each is not kind]
            except errors.ClusterError as error:
                return error
        return Claim()
