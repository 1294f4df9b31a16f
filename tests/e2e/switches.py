"""A switch of the policy thrown and thrown back in a running cluster, and what each throw must do, as a table's row.

Each row says everything that a throw may do, with the section of contracts/control-plane.md that says so: objects that
go and come, parts of other objects that are told, labels and annotations of nodes. Whatever a row does not name must
not be written at all.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from e2e.changes import Picture, Step, parts, picture, step, untouched
from e2e.world import POLICY, World, policy_document

from groundplane.api import names
from groundplane.api.release import Release

NODES = {"gpu-a": "plain", "gpu-b": "mig", "vm-a": "plain", "vm-b": "plain", "cpu-a": "cpu"}
GPU_NODES = ("gpu-a", "gpu-b", "vm-a", "vm-b")
WORKLOADS = {"vm-a": "vm-passthrough", "vm-b": "vm-vgpu"}
"""Asked for by labels, heeded with ``sandboxWorkloads.enabled`` only (3.2)."""
UPGRADE = f"@{names.DRIVER_UPGRADE_ENABLED}=true"
DONE = f"{names.UPGRADE_STATE}=upgrade-done"
NO_UPGRADES = frozenset({f"-{UPGRADE}", f"-{DONE}"})
"""What a node loses when its driver is no longer upgraded: node labelling's annotation, the upgrade's state."""

Spec = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Told:
    """Parts of an object of another state that a throw changes, and the contract's section that wants it."""

    section: str
    parts: frozenset[str]


def told(section: str, *parts: str) -> Told:
    """A :class:`Told`."""
    return Told(section, frozenset(parts))


@dataclasses.dataclass(frozen=True)
class Switch:
    """One edit: ``field`` of ``section`` becomes ``value`` on top of ``base``. Objects and parts as in a Step."""

    section: str
    field: str
    value: Any
    gone: frozenset[str] = frozenset()
    came: frozenset[str] = frozenset()
    told: Mapping[str, Told] = dataclasses.field(default_factory=dict)
    marks: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    base: Spec = dataclasses.field(default_factory=dict)
    release: Release = Release.V26_7
    variables: Mapping[tuple[str, str], tuple[str | None, str | None]] = dataclasses.field(default_factory=dict)
    """Values, before and after, of variables among the told parts, by object and part; ``None`` where there is none."""


def rights(name: str, *, cluster: bool = True) -> frozenset[str]:
    """The account of an operand and what binds it (4.1)."""
    plurals = [
        "serviceaccounts",
        "roles",
        "rolebindings",
        *(("clusterroles", "clusterrolebindings") if cluster else ()),
    ]
    return frozenset(f"{plural}/{name}" for plural in plurals)


def objects(*keys: str) -> frozenset[str]:
    """Keys of objects, ``plural/name``."""
    return frozenset(keys)


async def start(world: World, release: Release, base: Spec) -> None:
    """The cluster of the tables, at rest."""
    for name, kind in NODES.items():
        world.join(name, kind)
    for name, workload in WORKLOADS.items():
        world.wish(name, {names.WORKLOAD_CONFIG: workload})
    document = policy_document(file=f"{release}-default.yaml")
    for section, fields in base.items():
        document["spec"].setdefault(section, {}).update(copy.deepcopy(fields))
    world.start_operator()
    await world.create_policy(document)
    await world.at_rest()


async def throw(world: World, section: str, field: str, value: Any) -> Picture:
    """Edit the policy and wait until all is done."""
    world.edit_policy(POLICY, section, field, value)
    await world.at_rest()
    assert world.lab.policy_state() == "ready"
    return picture(world)


def patches(marks: frozenset[str] | set[str]) -> int:
    """How many patches change a node's marks: one of node labelling, one of the upgrade controller."""
    states = {mark for mark in marks if mark[1:] == DONE}
    return bool(states) + bool(marks - states)


def reverse(marks: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The marks of the way back."""
    sign = {"+": "-", "-": "+"}
    return {node: {sign[mark[0]] + mark[1:] for mark in changed} for node, changed in marks.items()}


async def check(switch: Switch) -> None:
    """Throw it and throw it back: each time exactly what the row says happens, and in the end all is as it was."""
    async with World(release=switch.release) as world:
        await start(world, switch.release, switch.base)
        original = (world.policies[POLICY]["spec"].get(switch.section) or {}).get(switch.field)
        before = picture(world)
        thrown = await throw(world, switch.section, switch.field, switch.value)
        await world.converged()
        back = await throw(world, switch.section, switch.field, copy.deepcopy(original))
        _assert_step(step(world, before, thrown), switch, gone=switch.gone, came=switch.came, marks=switch.marks)
        for (key, part), values in switch.variables.items():
            assert (_value(before, key, part), _value(thrown, key, part)) == values, (key, part)
        _assert_step(step(world, thrown, back), switch, gone=switch.came, came=switch.gone, marks=reverse(switch.marks))
        whole = step(world, before, back)
        assert (whole.gone, whole.came, whole.told, whole.marks) == (set(), set(), {}, {})
        assert untouched(before, back, before.objects.keys() - switch.gone - switch.told.keys()) == []


def _value(seen: Picture, key: str, part: str) -> str | None:
    found = parts(seen.objects[key]).get(part) or {}
    return str(found["value"]) if "value" in found else None


def _assert_step(
    done: Step,
    switch: Switch,
    *,
    gone: frozenset[str],
    came: frozenset[str],
    marks: Mapping[str, frozenset[str] | set[str]],
) -> None:
    assert done.gone == gone
    assert done.came == came
    assert done.told == {key: set(each.parts) for key, each in switch.told.items()}
    assert done.marks == marks
    assert done.written == {*gone, *came, *switch.told}
    wanted = {node: patches(changed) for node, changed in marks.items()}
    assert done.node_writes == wanted, f"needless patches: {done.node_writes}"
