"""Names of MIG devices from before they had UUIDs of their own (contracts/device-plugin-gfd.md 5)."""

import re

from .model import Placed
from .source import DeviceError

_LEGACY = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{36})/([0-9]+)/([0-9]+)")


def legacy(mig_uuid: str, otherwise: DeviceError) -> Placed:
    """Read ``MIG-GPU-<uuid>/<gi>/<ci>``; for any other name, raise the error with which the driver was asked."""
    found = _LEGACY.fullmatch(mig_uuid)
    if not found:
        raise otherwise
    return Placed(found[1], int(found[2]), int(found[3]))
