"""Whether GPUs are as a layout wants them: what differs, a line each for a person. Pure.

A GPU that knows no MIG satisfies an entry for all devices, as applying leaves it alone, so that a node of both kinds
converges (contracts/mig-exporter-validator.md 1.10, 1.11).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..devices.model import Profile
from .errors import NotApplied
from .layout import Entry, Layout, targets
from .state import GpuState

NOT_APPLIED: Final = "selected configuration not currently applied"


def mode(layout: Layout, states: Sequence[GpuState]) -> tuple[str, ...]:
    """What differs in MIG mode, for the GPUs that the layout is about."""
    wanted = targets(layout, [state.gpu for state in states])
    return tuple(
        text for state in states if state.gpu.index in wanted for text in _mode(wanted[state.gpu.index], state)
    )


def config(layout: Layout, states: Sequence[GpuState]) -> tuple[str, ...]:
    """What differs in instances, for all GPUs: the layout must cover each."""
    wanted = targets(layout, [state.gpu for state in states])
    return tuple(text for state in states for text in _config(wanted.get(state.gpu.index), state))


def concerned(layout: Layout, states: Sequence[GpuState]) -> tuple[str, ...]:
    """What differs in instances on the GPUs that the layout is about, of which there must be one at least."""
    about = covered(layout, states)
    return config(layout, about) if about else uncovered(layout, states)


def covered(layout: Layout, states: Sequence[GpuState]) -> tuple[GpuState, ...]:
    """The GPUs that the layout is about."""
    wanted = targets(layout, [state.gpu for state in states])
    return tuple(state for state in states if state.gpu.index in wanted)


def uncovered(layout: Layout, states: Sequence[GpuState]) -> tuple[str, ...]:
    """The GPUs that the layout is not about, with which asserting it always fails, a line each."""
    wanted = targets(layout, [state.gpu for state in states])
    return tuple(_unmatched(state) for state in states if state.gpu.index not in wanted)


def require(differences: Sequence[str]) -> None:
    """Raise :class:`~.errors.NotApplied` if there are differences."""
    if differences:
        raise NotApplied(f"assertion failure: {NOT_APPLIED}", tuple(differences))


def _mode(entry: Entry, state: GpuState) -> Iterator[str]:
    if state.modes is None:
        if entry.enabled and entry.explicit:
            yield f"{state.named} knows no MIG, but {entry.where} enables it there; take its index out"
    elif state.enabled != entry.enabled:
        pending = "" if state.modes.pending != entry.enabled else " (pending until the GPU is reset)"
        yield f"{state.named}: MIG mode is {_on(state.enabled)}, wanted is {_on(entry.enabled)}{pending}"


def _config(entry: Entry | None, state: GpuState) -> Iterator[str]:
    if entry is None:
        yield _unmatched(state)
        return
    differing = list(_mode(entry, state))
    if differing or not state.enabled:
        yield from differing
        return
    if state.config != entry.instances:
        yield f"{state.named} has {counted(state.config)}, wanted is {counted(entry.instances)}"
    elif state.bare:
        yield f"{state.named} has {state.bare} GPU instances without compute instances, which are not wanted"


def _unmatched(state: GpuState) -> str:
    return f"{state.named} is matched by no entry of the layout; each GPU of the node needs one"


def counted(config: Mapping[Profile, int]) -> str:
    """Counts by profile, for a person."""
    return ", ".join(f"{profile}: {count}" for profile, count in sorted(config.items())) or "no instances"


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
