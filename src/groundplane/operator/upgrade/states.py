"""The states of a node whose driver is upgraded, as its label names them (contracts/driver-lifecycle.md 3.1)."""

import enum
from typing import Final


class State(enum.StrEnum):
    """A value of the label ``nvidia.com/gpu-driver-upgrade-state``; no label, or an empty one, is :attr:`UNKNOWN`."""

    UNKNOWN = ""
    UPGRADE_REQUIRED = "upgrade-required"
    CORDON_REQUIRED = "cordon-required"
    WAIT_FOR_JOBS_REQUIRED = "wait-for-jobs-required"
    POD_DELETION_REQUIRED = "pod-deletion-required"
    DRAIN_REQUIRED = "drain-required"
    NODE_MAINTENANCE_REQUIRED = "node-maintenance-required"
    POST_MAINTENANCE_REQUIRED = "post-maintenance-required"
    POD_RESTART_REQUIRED = "pod-restart-required"
    VALIDATION_REQUIRED = "validation-required"
    UNCORDON_REQUIRED = "uncordon-required"
    DONE = "upgrade-done"
    FAILED = "upgrade-failed"


MAINTENANCE: Final = frozenset({State.NODE_MAINTENANCE_REQUIRED, State.POST_MAINTENANCE_REQUIRED})
"""States of requestor mode (3.10), which the GPU operator does not use: nothing here enters or leaves them."""
AT_REST: Final = frozenset({State.UNKNOWN, State.DONE})
"""Nothing is under way."""
IN_PROGRESS: Final = frozenset(State) - MAINTENANCE - AT_REST - {State.UPGRADE_REQUIRED}
"""What counts against ``maxParallelUpgrades``; a failed node does (3.6)."""
CORDONED_BY_UPGRADE: Final = IN_PROGRESS - {State.CORDON_REQUIRED}
"""A node that is cordoned in one of these, and was not before, was cordoned for its upgrade."""
_BY_VALUE: Final = {state.value: state for state in State}


def parse(label: str) -> State | None:
    """The state that a label's value names, None for a value that no release writes."""
    return _BY_VALUE.get(label)
