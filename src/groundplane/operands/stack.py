"""The whole stack: every operand state, in the order in which it is applied.

Source: contracts/control-plane.md 4.1. A state that is not ready does not hold back the next one; an
error ends the pass. What a disabled state leaves behind is pruned by its label, so it renders nothing.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final, Protocol, cast

import msgspec

from ..api.clusterpolicy import ClusterPolicySpec
from . import (
    cc_manager,
    dcgm,
    dcgm_exporter,
    device_plugin,
    driver,
    gfd,
    kata_device_plugin,
    kata_manager,
    mig_manager,
    mps,
    node_status_exporter,
    operator_metrics,
    prerequisites,
    sandbox_device_plugin,
    sandbox_validator,
    toolkit,
    validator,
    vfio_manager,
    vgpu_device_manager,
    vgpu_manager,
)
from .build import Manifest
from .errors import RenderError
from .facts import ClusterFacts

Enabled = Callable[[ClusterPolicySpec, ClusterFacts], bool]
Render = Callable[[ClusterPolicySpec, ClusterFacts], list[Manifest]]
NotReady = Callable[[ClusterPolicySpec, ClusterFacts], str]


class Operand(Protocol):
    """What an operand module offers."""

    STATE: str
    enabled: Enabled
    render: Render


def _never(_spec: ClusterPolicySpec, _facts: ClusterFacts) -> str:
    return ""


class State(msgspec.Struct, frozen=True):
    """One operand state. ``not_ready`` tells why its objects alone cannot make it ready, mostly nothing."""

    name: str
    enabled: Enabled
    render: Render
    not_ready: NotReady = _never


def _state(module: ModuleType, not_ready: NotReady = _never) -> State:
    operand = cast(Operand, module)
    return State(operand.STATE, operand.enabled, operand.render, not_ready)


STATES: Final[tuple[State, ...]] = (
    _state(prerequisites),
    _state(operator_metrics),
    _state(driver),
    _state(toolkit),
    _state(validator),
    _state(device_plugin),
    _state(mps),
    _state(dcgm),
    _state(dcgm_exporter, dcgm_exporter.not_ready),
    _state(gfd),
    _state(mig_manager),
    _state(node_status_exporter),
    _state(vgpu_manager),
    _state(vgpu_device_manager),
    _state(sandbox_validator),
    _state(vfio_manager),
    _state(sandbox_device_plugin),
    _state(kata_device_plugin),
    _state(kata_manager),
    _state(cc_manager),
)


class Rendered(msgspec.Struct, frozen=True):
    """What one state comes to. ``not_ready`` is a reason that no object shows, mostly empty."""

    state: str
    enabled: bool
    objects: list[Manifest] = []
    error: RenderError | None = None
    not_ready: str = ""


def render(spec: ClusterPolicySpec, facts: ClusterFacts, states: Sequence[State] = STATES) -> list[Rendered]:
    """Every state in order, up to and including the first that cannot be rendered."""
    results: list[Rendered] = []
    for state in states:
        result = _render_state(state, spec, facts)
        results.append(result)
        if result.error:
            break
    return results


def _render_state(state: State, spec: ClusterPolicySpec, facts: ClusterFacts) -> Rendered:
    if not state.enabled(spec, facts):
        return Rendered(state.name, enabled=False)
    try:
        objects = state.render(spec, facts)
    except RenderError as error:
        return Rendered(state.name, enabled=True, error=error.at(state.name))
    return Rendered(state.name, enabled=True, objects=objects, not_ready=state.not_ready(spec, facts))
