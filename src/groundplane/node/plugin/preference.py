"""Which policy answers a question for preferred devices, and what the driver must be asked for it.

The policies are ``allocation``'s (contracts/device-plugin-gfd.md 4.2).
"""

import asyncio
from collections.abc import Sequence

from ...api.release import Release
from ..config import AllocationPolicy
from ..devices.source import DeviceError, Source
from ..resources import REPLICA, Offer
from . import allocation
from .allocation import AllocationError


class Preference:
    """Preferred devices of one resource."""

    def __init__(self, offer: Offer, policy: AllocationPolicy, release: Release, source: Source) -> None:
        self._offer = offer
        self._policy = policy
        self._least_picked = release is not Release.V26_3
        self._source = source
        self._known = frozenset(offer.ids())
        self._replicas = {device.id: offer.replicas for device in offer.devices}
        self._whole = all(device.gpu is not None and not device.is_mig for device in offer.devices)

    async def choose(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """The devices to take. Raises :class:`~.allocation.AllocationError`."""
        if not self._whole or any(REPLICA in name for name in available):
            return allocation.greedy(
                available, must, size, self._replicas, policy=self._policy.value, least_picked=self._least_picked
            )
        for name in (*available, *must):
            if name not in self._known:
                raise AllocationError(f"unknown device: {name}")
        return await asyncio.to_thread(self._aligned, available, must, size)

    def _aligned(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        try:
            pairs = self._source.topology(list(dict.fromkeys(available)))
        except DeviceError as error:
            raise AllocationError(f"how the GPUs are connected cannot be told: {error}") from error
        scores = {pair: allocation.score(found) for pair, found in pairs.items()}
        return allocation.aligned(available, must, size, lambda one, other: scores[frozenset((one, other))])
