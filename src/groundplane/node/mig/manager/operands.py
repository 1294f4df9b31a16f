"""Pausing operands by their deploy labels, and letting them go on (contracts/mig-exporter-validator.md 3.6). Pure.

What is paused is told by the labels alone, so that a run that was killed is undone by any later one.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ....api import names
from ....api.release import Release

PAUSED: Final = "paused-for-mig-change"
_MARK: Final = "paused-for-"
ALWAYS: Final = (
    names.DEPLOY_DEVICE_PLUGIN,
    names.DEPLOY_GFD,
    names.DEPLOY_DCGM_EXPORTER,
    names.DEPLOY_DCGM,
    names.DEPLOY_NVSM,
)
"""Labels that are written even where there are none."""
WHERE_PRESENT: Final[Mapping[Release, tuple[str, ...]]] = {Release.V26_3: (), Release.V26_7: (names.DEPLOY_CLIENT,)}
APPS: Final = ("nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-dcgm")
"""Operands, by their pods' label ``app``, that must have gone before MIG is changed."""
WORKLOADS: Final = ("nvidia-cuda-validator", "nvidia-device-plugin-validator")
"""Pods of the validator that use a GPU."""
VALIDATOR: Final = "nvidia-operator-validator"


def pause(labels: Mapping[str, str], release: Release) -> dict[str, str]:
    """The labels to write so that operands go. One that is off stays off, and another manager's mark stays."""
    return {name: PAUSED for name in _ours(labels, release) if labels.get(name) != PAUSED}


def restore(labels: Mapping[str, str], release: Release) -> dict[str, str]:
    """The labels to write so that operands come back."""
    return {name: "true" for name in _ours(labels, release) if labels.get(name) != "true"}


def paused(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels to write so that what a run has paused, and nothing else, comes back."""
    return {name: "true" for name, value in labels.items() if value == PAUSED}


def _ours(labels: Mapping[str, str], release: Release) -> Iterator[str]:
    yield from (name for name in ALWAYS if _may_change(labels.get(name, "")))
    yield from (name for name in WHERE_PRESENT[release] if labels.get(name) and _may_change(labels[name]))


def _may_change(value: str) -> bool:
    return value != "false" and (value == PAUSED or not value.startswith(_MARK))
