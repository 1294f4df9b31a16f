"""What may happen to a cluster, as data: hypothesis draws it, a failing sequence prints as a list one can replay.

A happening is a tuple: the name of a function of this module's table and its arguments. :func:`finish` makes the last
wishes such that one end state follows from them: there is a policy (without one no node is touched,
contracts/control-plane.md 3.4), all policies can be carried out, and there is a GPU node (without one DaemonSets are
neither made nor touched, 4.1).
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from e2e.world import PCI_LABEL, POLICY, SECOND, World, policy_document
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.operator import policy as operator_policy

Happening = tuple[Any, ...]

NODES: Mapping[str, str] = {"gpu-a": "plain", "gpu-b": "mig", "gpu-c": "other-kernel", "cpu-a": "cpu"}
"""The machines there are, by the kind of each."""

SWITCHES = (
    *("driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "gfd", "migManager", "nodeStatusExporter"),
    *("cdi", "sandboxWorkloads", "vgpuManager", "vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin"),
    *("kataSandboxDevicePlugin", "ccManager", "kataManager"),
)
"""Sections with ``enabled``."""

EDITS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    *((section, "enabled", (True, False)) for section in SWITCHES),
    ("cdi", "nriPluginEnabled", (True, False)),
    ("operator", "runtimeClass", ("nvidia", "nvidia-renamed")),
    ("toolkit", "version", ("v1.20.0", "v1.19.0", "")),
    ("devicePlugin", "version", ("v0.20.0", "sha256:" + "0" * 64)),
    ("devicePlugin", "args", (None, ["--verbose"])),
    ("dcgmExporter", "env", (None, [{"name": "A", "value": "1"}], [{"name": "B", "value": "2"}])),
    ("driver", "version", ("595.91.07", "590.44.01")),
    ("driver", "usePrecompiled", (True, False)),
    ("driver", "repoConfig", (None, {"configMapName": "missing"})),
    ("daemonsets", "updateStrategy", ("RollingUpdate", "OnDelete")),
    ("daemonsets", "annotations", (None, {"example.com/note": "a"})),
    ("sandboxWorkloads", "defaultWorkload", ("container", "vm-passthrough", "vm-vgpu")),
    ("sandboxWorkloads", "mode", ("kubevirt", "kata")),
    ("migManager", "config", ({"default": "all-disabled"}, {"default": ""}, {"name": "own", "default": ""})),
    ("mig", "strategy", ("single", "mixed", "none")),
)
"""Edits that the API server takes; some of them the operator refuses, alone or together."""

REFUSED: tuple[tuple[str, str, Any], ...] = (
    ("mig", "strategy", "other"),
    ("toolkit", "enabled", "yes"),
    ("driver", "upgradePolicy", {"maxParallelUpgrades": -1}),
    ("sandboxWorkloads", "mode", "xen"),
)
"""Edits that the CRD's schema forbids."""

CHOSEN_KEYS = (names.DEPLOY_DRIVER, names.DEPLOY_DCGM_EXPORTER, names.DEPLOY_MIG_MANAGER, names.DEPLOY_VFIO_MANAGER)

FAULTED = ("nodes", "daemonsets", "configmaps", "clusterpolicies", "pods", "clusterroles", "leases", "*")
VERBS = ("list", "watch", "patch", "delete", "get", "*")
ANSWERS: tuple[int | str, ...] = (409, 429, 500, 503, "reset", "lost", 410)


# --- how each of them happens -----------------------------------------------------------------------------------------


async def _edit(world: World, section: str, field: str, value: Any) -> None:
    for name in list(world.policies)[:1]:
        world.edit_policy(name, section, field, value)


async def _edit_second(world: World, section: str, field: str, value: Any) -> None:
    if SECOND in world.policies:
        world.edit_policy(SECOND, section, field, value)


async def _refused(world: World, section: str, field: str, value: Any) -> None:
    for name in list(world.policies)[:1]:
        world.refused_edit(name, section, field, value)


async def _create_policy(world: World, name: str) -> None:
    if name not in world.policies:
        await world.create_policy(policy_document(name))


async def _delete_policy(world: World, name: str) -> None:
    if name in world.policies:
        world.delete_policy(name)


async def _pause(world: World, turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0.001)
        world.revive()


async def _settle(world: World) -> None:
    if world.operator_runs:
        await world.at_rest()


async def _kill(world: World) -> None:
    await world.kill_operator()


async def _stop(world: World) -> None:
    await world.stop_operator()


def _plain(method: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    async def happen(world: World, *arguments: Any) -> None:
        method(world, *arguments)

    return happen


TABLE: Mapping[str, Callable[..., Awaitable[None]]] = {
    "edit": _edit,
    "edit second": _edit_second,
    "refused": _refused,
    "create policy": _create_policy,
    "delete policy": _delete_policy,
    "pause": _pause,
    "settle": _settle,
    "kill": _kill,
    "stop": _stop,
    "start": _plain(World.start_operator),
    "join": _plain(lambda world, name: world.join(name, NODES[name])),
    "leave": _plain(World.leave),
    "blink": _plain(World.blink),
    "choose": _plain(World.choose),
    "operands": _plain(World.switch_operands),
    "workload": _plain(World.set_workload),
    "delete object": _plain(World.delete_object),
    "edit object": _plain(World.edit_object),
    "fault": _plain(World.fault),
    "drop watches": _plain(World.drop_watches),
    "forget history": _plain(World.forget_history),
}


# --- drawing them -----------------------------------------------------------------------------------------------------


def _one(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Happening]:
    return st.tuples(st.just(name), *arguments)


def _edits(name: str) -> st.SearchStrategy[Happening]:
    choices = [(name, section, field, value) for section, field, values in EDITS for value in values]
    return st.sampled_from(choices)


_node = st.sampled_from(sorted(NODES))
_policy = st.sampled_from((POLICY, SECOND))
_number = st.integers(0, 79)

HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    _edits("edit"),
    _edits("edit"),
    _edits("edit"),
    _edits("edit second"),
    st.sampled_from([("refused", *each) for each in REFUSED]),
    _one("create policy", _policy),
    _one("delete policy", _policy),
    _one("pause", st.sampled_from((1, 5, 20, 100))),
    _one("pause", st.sampled_from((1, 5, 20, 100))),
    _one("settle"),
    st.sampled_from((("kill",), ("stop",), ("start",), ("start",))),
    _one("join", _node),
    _one("leave", _node),
    _one("blink", _node, st.sampled_from((None, "true"))),
    _one("choose", _node, st.sampled_from(CHOSEN_KEYS), st.sampled_from(("false", "paused-for-mig-change", None))),
    _one("operands", _node, st.sampled_from(("false", None))),
    _one("workload", _node, st.sampled_from(("container", "vm-passthrough", "vm-vgpu", "nonsense", None))),
    _one("delete object", _number),
    _one("edit object", _number),
    _one("fault", st.sampled_from(VERBS), st.sampled_from(FAULTED), st.sampled_from(ANSWERS), st.integers(1, 6)),
    _one("fault", st.sampled_from(VERBS), st.sampled_from(FAULTED), st.sampled_from(ANSWERS), st.integers(1, 6)),
    _one("drop watches"),
    _one("forget history"),
)


# --- carrying them out ------------------------------------------------------------------------------------------------


async def carry_out(happenings: Sequence[Happening], *, leader_elect: bool = False) -> None:
    """Start a cluster with a policy and nodes, let everything happen, and see that it ends as a fresh start does."""
    async with World(leader_elect=leader_elect) as world:
        for name in ("gpu-a", "gpu-b", "cpu-a"):
            world.join(name, NODES[name])
        world.start_operator()
        await world.create_policy(policy_document())
        for name, *arguments in happenings:
            await TABLE[name](world, *arguments)
            world.revive()
        await finish(world)
        await world.converged()


async def finish(world: World) -> None:
    """No more faults; an operator, a GPU node, and policies that can be carried out."""
    world.lab.faults.clear()
    world.start_operator()
    if not any(wished.get(PCI_LABEL, "true") == "true" for wished in world.nodes.values()):
        world.leave("gpu-a")
        world.join("gpu-a", NODES["gpu-a"])
    if not world.policies:
        await world.create_policy(policy_document())
    for name, document in world.policies.items():
        if problem := why_not(document):
            for section, field, value in REMEDIES:
                world.edit_policy(name, section, field, value)
            assert not why_not(document), problem


REMEDIES = (
    ("cdi", "nriPluginEnabled", False),
    ("cdi", "enabled", True),
    ("toolkit", "version", "v1.20.0"),
    ("driver", "repoConfig", None),
)
"""What makes every policy of :data:`EDITS` one that can be carried out."""


def why_not(document: Mapping[str, Any]) -> str:
    """Why a policy of :data:`EDITS` cannot be carried out, empty if it can."""
    decoded = operator_policy.decode(copy.deepcopy(dict(document)))
    if decoded.policy is None:
        return decoded.problem
    spec = decoded.policy.spec
    if refusals := operator_policy.refusals(spec, Release.DEFAULT):
        return str(refusals)
    if spec.toolkit.version == "":
        return "toolkit.version is empty"
    return "a ConfigMap is missing" if spec.driver.repoConfig.configMapName == "missing" else ""
