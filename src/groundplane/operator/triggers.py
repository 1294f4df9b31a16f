"""Which change of a node is worth a look (contracts/control-plane.md 3.4).

Kubelets and feature discovery touch nodes all the time; only the keys in the tables below decide anything. Every key
that ``labels.py`` reads or writes is among them, so that a label somebody removed by hand is put back at once and a
running operator agrees with one that has just started.
"""

from collections.abc import Mapping
from typing import Final

from ..api import names
from ..api.release import Release
from ..cluster.views import NodeView
from . import labels

READ: Final = frozenset(
    {
        *names.PCI_GPU_LABELS,
        names.GPU_PRESENT,
        names.DEPLOY_OPERANDS,
        names.WORKLOAD_CONFIG,
        names.MIG_CAPABLE,
        names.GPU_PRODUCT,
        names.VGPU_HOST_DRIVER_VERSION,
        names.MIG_CONFIG,
        names.DRIVER_OWNER,
    }
)
"""Labels that node labelling reads."""

RELEVANT: Final = READ.union(*(labels.managed_keys(release) for release in Release))
"""Labels that node labelling reads or writes."""


def needs_labelling(old: NodeView | None, new: NodeView) -> bool:
    """Whether ``new`` may need other labels or annotations than ``old`` did; ``None`` is a node just seen."""
    if old is None:
        return True
    mark = names.DRIVER_UPGRADE_ENABLED
    return old.annotations.get(mark) != new.annotations.get(mark) or _differ(old.labels, new.labels)


def _differ(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    if old == new:
        return False
    return any(old.get(key) != new.get(key) for key in RELEVANT)
