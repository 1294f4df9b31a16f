"""What is wrong with an NVIDIADriver by itself: values that cannot be, and fields that contradict each other.

Source: contracts/control-plane.md 2, 2.1 and 2.2. Checked on every reconcile, before anything is rendered: a driver
with a problem is not ready with reason ``ReconcileFailed`` until it is edited. What several drivers dispute, and node
selectors that may not be, is ``operands/driver_owners.py``'s; images and referenced objects are found out when
rendering.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from . import validate
from .nvidiadriver import NVIDIADriverSpec
from .release import Release
from .validate import Problem

OPEN_MODULES_SINCE: Final = "v2.17.5"
"""The first version of GPUDirect Storage that works with open kernel modules only."""


def problems(spec: NVIDIADriverSpec, release: Release = Release.DEFAULT) -> list[Problem]:
    """Everything wrong with ``spec``, single values first; empty when it can be carried out.

    In 26.3 an upgrade policy is not looked at: the field is not known there.
    """
    document = msgspec.to_builtins(spec)
    return [
        *validate.single_values(document, NVIDIADriverSpec),
        *_precompiled(spec),
        *_open_modules(spec),
        *_upgrade_policy(spec, release),
        *validate.tolerations("spec.tolerations", spec.tolerations or ()),
        *validate.amounts("spec.resources", spec.resources or {}),
    ]


def _precompiled(spec: NVIDIADriverSpec) -> Iterator[Problem]:
    """What is built on the node cannot be had together with a driver that is not."""
    for name, title, section in (("gds", "GPUDirect Storage", spec.gds), ("gdrcopy", "GDRCopy", spec.gdrcopy)):
        if spec.usePrecompiled and section is not None and section.enabled:
            fields = (f"spec.{name}.enabled", "spec.usePrecompiled")
            yield Problem(
                fields,
                f"{' and '.join(fields)}: {title} builds its module beside the driver and cannot do so with a "
                f"precompiled one: set {fields[0]} to false, or make another NVIDIADriver without usePrecompiled",
                "state-driver",
            )


def _open_modules(spec: NVIDIADriverSpec) -> Iterator[Problem]:
    """Newer GPUDirect Storage needs open kernel modules, and needs them to be asked for: ``auto`` is not enough."""
    gds = spec.gds
    if gds is None or not gds.enabled or spec.kernelModuleType == "open":
        return
    version = gds.version or ""
    if not version.startswith("sha256") and not _at_least(version, OPEN_MODULES_SINCE):
        return
    fields = ("spec.gds.version", "spec.kernelModuleType")
    which = "an image pinned by digest" if version.startswith("sha256") else f"version {version}"
    yield Problem(
        fields,
        f"{' and '.join(fields)}: GPUDirect Storage of {which} counts as {OPEN_MODULES_SINCE} or later, which works "
        f"with open kernel modules only, and spec.kernelModuleType is {spec.kernelModuleType or 'unset'}: set "
        "kernelModuleType: open",
        "state-driver",
    )


_VERSION: Final = re.compile(
    r"v?(0|[1-9][0-9]*)(?:\.(0|[1-9][0-9]*)(?:\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?)?)?", re.ASCII
)


def _at_least(version: str, least: str) -> bool:
    """Whether a semantic version, with or without its ``v``, is at least another; what is none is not.

    A pre-release comes before its release. Missing numbers are 0.
    """
    found, wanted = _VERSION.fullmatch(version), _VERSION.fullmatch(least)
    if found is None or wanted is None:
        return False
    numbers, limit = (tuple(int(each[place] or 0) for place in (1, 2, 3)) for each in (found, wanted))
    return numbers > limit or (numbers == limit and not found[4])


def _upgrade_policy(spec: NVIDIADriverSpec, release: Release) -> Iterator[Problem]:
    if spec.upgradePolicy is not None and release is not Release.V26_3:
        path = "spec.upgradePolicy.maxUnavailable"
        yield from validate.unavailable_limit(path, spec.upgradePolicy.maxUnavailable, 0, None)
