"""State ``pre-requisites``: the RuntimeClasses by which pods ask for the NVIDIA runtime.

Source: contracts/control-plane.md 5.1. With the NRI plugin no pod needs a RuntimeClass, and the state
is off; a class that is no longer rendered (switched off, or renamed) is pruned like any other object.
"""

from typing import Final

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build
from .facts import ClusterFacts

STATE: Final = "pre-requisites"
CDI_CLASSES: Final = ("nvidia-cdi", "nvidia-legacy")


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless the NRI plugin injects devices, whatever the toolkit's switch says."""
    return not build.nri_on(spec)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """One RuntimeClass for GPU pods, and two more for choosing a mode while CDI is on."""
    classes = [build.runtime_class(spec), *(CDI_CLASSES if build.cdi_on(spec) else ())]
    return [build.finish(_runtime_class(name), STATE, facts) for name in dict.fromkeys(classes)]


def _runtime_class(name: str) -> RuntimeClass:
    return RuntimeClass(metadata=ObjectMeta(name=name, labels={names.COMPONENT_LABEL: "gpu-operator"}), handler=name)
