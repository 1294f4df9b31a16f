"""Pausing operands by their deploy labels, and letting them go on (contracts/driver-lifecycle.md 5.2). Pure.

A mark in the label's value keeps an operand's pods off the node and keeps the value: what a run that was killed has
paused, any later one lets go on.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ...api import names
from ...api.release import Release

PAUSED: Final = "paused-for-driver-upgrade"
_MARK: Final = re.compile(f"{PAUSED}_?")
VALUE_LIMIT: Final = 63
"""Characters that a label's value may have."""


class Key(msgspec.Struct, frozen=True):
    """A label that is paused.

    ``where_present``: it is written only where it has a value; else also where there is none. ``app`` names its pods
    if they are waited for, always or (``wait_if_set``) only where the label has a value. ``since`` is the first release
    that pauses it.
    """

    label: str
    app: str = ""
    where_present: bool = False
    wait_if_set: bool = False
    since: Release = Release.V26_3


KEYS: Final = (
    Key(names.DEPLOY_OPERATOR_VALIDATOR, "nvidia-operator-validator"),
    Key(names.DEPLOY_TOOLKIT, "nvidia-container-toolkit-daemonset"),
    Key(names.DEPLOY_DEVICE_PLUGIN, "nvidia-device-plugin-daemonset"),
    Key(names.DEPLOY_GFD, "gpu-feature-discovery"),
    Key(names.DEPLOY_DCGM_EXPORTER, "nvidia-dcgm-exporter"),
    Key(names.DEPLOY_DCGM, "nvidia-dcgm"),
    Key(names.DEPLOY_DCGM_EXPORTER_DRA, "nvidia-dcgm-exporter-dra", since=Release.V26_7),
    Key(names.DEPLOY_DCGM_DRA, "nvidia-dcgm-dra", since=Release.V26_7),
    Key(names.DEPLOY_MIG_MANAGER, "nvidia-mig-manager", where_present=True, wait_if_set=True),
    Key(names.DEPLOY_SANDBOX_VALIDATOR, "nvidia-sandbox-validator", wait_if_set=True),
    Key(names.DEPLOY_SANDBOX_DEVICE_PLUGIN, "nvidia-sandbox-device-plugin-daemonset", wait_if_set=True),
    Key(names.DEPLOY_VGPU_DEVICE_MANAGER, "nvidia-vgpu-device-manager", wait_if_set=True),
    Key(names.DEPLOY_NVSM),
    Key(names.DEPLOY_DRA_VALIDATOR, since=Release.V26_7),
    Key(names.DEPLOY_CLIENT, where_present=True, since=Release.V26_7),
)
"""The labels that are paused together, in the order in which their pods are waited for."""
DRA_PLUGIN: Final = Key(names.DEPLOY_DRA_DRIVER, "nvidia-dra-driver-kubelet-plugin", since=Release.V26_7)
"""Paused last and by itself, only where it has a value; written on restoring in any case (5.4)."""


def paused(value: str) -> str:
    """A label's value while its operand is paused."""
    if value in ("", "false") or PAUSED in value:
        return value
    return PAUSED if value == "true" else f"{value}_{PAUSED}"


def restored(value: str) -> str:
    """A label's value when its operand goes on, from the value that was found, paused or not."""
    return "true" if value == PAUSED else _MARK.sub("", value).strip("_") if PAUSED in value else value


def pause(labels: Mapping[str, str], release: Release, custom: str = "") -> dict[str, str]:
    """The labels to write so that operands go; ``custom`` is another label that does as ours do.

    Raises ValueError if a value is too long to be marked.
    """
    changes = {label: paused(labels.get(label, "")) for label in _ours(labels, release, custom)}
    for label, value in changes.items():
        if len(value) > VALUE_LIMIT:
            raise ValueError(
                f"label {label} has the value {labels[label]!r}, which is too long to be paused: with _{PAUSED} behind "
                f"it, it may have {VALUE_LIMIT} characters; use a shorter one"
            )
    return changes


def restore(labels: Mapping[str, str], release: Release, custom: str = "") -> dict[str, str]:
    """The labels to write so that operands go on; ``labels`` are those of the run's start, whoever had paused them."""
    keys = [*_ours(labels, release, custom), *([DRA_PLUGIN.label] if _has(DRA_PLUGIN, release) else [])]
    return {label: restored(labels.get(label, "")) for label in keys}


def pause_dra(labels: Mapping[str, str], release: Release) -> dict[str, str]:
    """The label to write so that the DRA plugin goes; nothing where it is not deployed."""
    value = labels.get(DRA_PLUGIN.label, "") if _has(DRA_PLUGIN, release) else ""
    return {DRA_PLUGIN.label: paused(value)} if value else {}


def apps(labels: Mapping[str, str], release: Release) -> list[str]:
    """The operands, by their pods' label ``app``, that must have gone, in order."""
    known = (key for key in KEYS if key.app and _has(key, release))
    return [key.app for key in known if not key.wait_if_set or labels.get(key.label)]


def clients(labels: Mapping[str, str], release: Release) -> bool:
    """Whether third parties' DaemonSets that select on our label are paused, and their pods must have gone."""
    return release is not Release.V26_3 and bool(labels.get(names.DEPLOY_CLIENT))


def _ours(labels: Mapping[str, str], release: Release, custom: str) -> Iterator[str]:
    yield from (key.label for key in KEYS if _has(key, release) and (not key.where_present or labels.get(key.label)))
    if custom and labels.get(custom):
        yield custom


def _has(key: Key, release: Release) -> bool:
    return key.since is Release.V26_3 or release is not Release.V26_3
