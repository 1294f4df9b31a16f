"""What a person can do where this program may not go on by itself (contracts/driver-lifecycle.md 5.3, Failure path)."""

from typing import Final

SUPERSEDED: Final = "superseded by the GPU Operator's upgrade policy"
EVICTION_SUPERSEDED: Final = f"GPU pod eviction here is {SUPERSEDED}: the operator evicts this node's workloads"
DRAIN_SUPERSEDED: Final = f"draining the node here is {SUPERSEDED}: the operator drains it where it must be"

_POLICY_ON: Final = """\
Node {node} is not cleared from here: automatic driver upgrades are on, so evicting workloads is the operator's work.
This is tried again by itself. Any of these lets it go on:
- end the pods that use GPUs on this node;
- turn automatic upgrades off (upgradePolicy.autoUpgrade: false in the ClusterPolicy's section driver, or in the
  NVIDIADriver) and let this program evict: ENABLE_GPU_POD_EVICTION=true, and ENABLE_AUTO_DRAIN=true if need be, in
  the section's manager.env;
- have the operator clear this node now: kubectl label node {node} {label}=upgrade-required --overwrite
- wait until these pods have ended."""

_BOTH_OFF: Final = """\
Node {node} is not cleared from here: neither evicting GPU pods nor draining the node is enabled.
This is tried again by itself. Any of these lets it go on:
- set ENABLE_GPU_POD_EVICTION=true, or ENABLE_AUTO_DRAIN=true, in manager.env of the driver's section;
- end the pods that use GPUs on this node;
- wait until these pods have ended."""


def policy_on(node: str, label: str) -> str:
    """For a node whose workloads the operator evicts; ``label`` is that of its upgrade's state."""
    return _POLICY_ON.format(node=node, label=label)


def both_off(node: str) -> str:
    """For a node whose workloads nobody evicts."""
    return _BOTH_OFF.format(node=node)
