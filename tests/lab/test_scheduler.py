"""The scheduler on the real Api: what it binds where, what it says otherwise, when it looks again."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.ctrl_world import World, nodes_of, template

from groundplane.lab import amounts, fitting, placement, scheduler
from groundplane.lab import resources as res
from groundplane.lab.controllers import objects
from groundplane.lab.status import StatusError

GPU = "nvidia.com/gpu"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def pod(world: World, name: str, *, labels: Any = None, **spec: Any) -> Any:
    made = template("x", **spec)
    return world.create(res.PODS, name, metadata={"labels": labels or {"app": "x"}}, spec=made["spec"])


def where(world: World, name: str) -> str:
    return objects.node_name(world.get(res.PODS, name))


def message(world: World, name: str) -> str:
    found = objects.condition(world.get(res.PODS, name), "PodScheduled")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    return str(found["message"]).partition(" preemption:")[0]


async def test_binds_and_says_so() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "p")
        await world.settle()
        assert where(world, "p") == "n1"
        found = objects.condition(world.get(res.PODS, "p"), "PodScheduled")
        assert found is not None
        assert found["status"] == "True"
        (event,) = world.events("Scheduled")
        assert event["message"] == "Successfully assigned default/p to n1"
        assert event["source"]["component"] == "default-scheduler"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {"zone": "c"}}, f"3 {fitting.NOT_SELECTED}"),
        ({"requests": {GPU: "1"}, "nodeSelector": {"zone": "a"}}, f"1 Insufficient {GPU}, 2 {fitting.NOT_SELECTED}"),
        ({"requests": {"cpu": "9", "memory": "1Ti"}}, "3 Insufficient cpu, 3 Insufficient memory"),
        ({"requests": {GPU: "9"}}, "3 Insufficient nvidia.com/gpu"),
    ],
)
async def test_says_why_not(spec: Any, expected: str) -> None:
    async with World() as world:
        world.node("n1", {"zone": "a"})
        world.node("n2", {"zone": "b"})
        world.node("n3", {"zone": "b"}, gpus=8)
        await world.settle()
        pod(world, "p", **spec)
        await world.settle()
        assert message(world, "p") == f"0/3 nodes are available: {expected}."
        (event,) = world.events("FailedScheduling")
        assert event["type"] == "Warning"
        assert event["message"].startswith(message(world, "p"))


async def test_says_each_kind_of_refusal() -> None:
    async with World() as world:
        world.node("tainted", taints=[TAINT])
        world.node("cordoned")
        world.patch(res.NODES, "cordoned", {"spec": {"unschedulable": True}})
        world.node("full", pods=0)
        world.node("small")
        await world.settle()
        pod(world, "p", requests={"cpu": "100"}, tolerations=[])
        await world.settle()
        assert message(world, "p") == (
            "0/4 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), "
            "1 node(s) were unschedulable, 2 Insufficient cpu."
        )


async def test_without_nodes() -> None:
    async with World() as world:
        pod(world, "p")
        await world.settle()
        assert message(world, "p") == "no nodes available to schedule pods"
        world.node("n1")
        await world.settle()
        assert where(world, "p") == "n1"


async def test_waits_for_devices_and_takes_them_once_registered() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "p", requests={GPU: "2"})
        await world.settle()
        assert message(world, "p") == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        world.node_status("n1", allocatable={"cpu": "8", "pods": "10", GPU: "2"})
        await world.settle()
        assert where(world, "p") == "n1"


@pytest.mark.parametrize("end", ["delete", "succeed"])
async def test_room_that_becomes_free_is_used(end: str) -> None:
    async with World() as world:
        world.node("n1", gpus=1)
        pod(world, "first", requests={GPU: "1"})
        await world.settle()
        pod(world, "second", requests={GPU: "1"})
        await world.settle()
        assert where(world, "second") == ""
        if end == "delete":
            world.api.delete(res.PODS, "first", "default")
        else:
            first = world.get(res.PODS, "first")
            status = {**first["status"], "phase": "Succeeded"}
            world.api.update(res.PODS, {**first, "status": status}, subresource="status")
        await world.settle()
        assert where(world, "second") == "n1"


async def test_higher_priority_comes_first() -> None:
    async with World() as world:
        world.create(res.PRIORITY_CLASSES, "high", value=1000)
        pod(world, "low", requests={GPU: "1"})
        pod(world, "high", requests={GPU: "1"}, priorityClassName="high")
        await world.settle()
        world.node("n1", gpus=1)
        await world.settle()
        assert (where(world, "high"), where(world, "low")) == ("n1", "")


async def test_preferred_affinity_and_soft_taints_order_nodes() -> None:
    async with World() as world:
        world.node("n1", taints=[{**TAINT, "effect": "PreferNoSchedule"}])
        world.node("n2")
        world.node("n3", {"disk": "fast"})
        await world.settle()
        pod(world, "plain")
        await world.settle()
        assert where(world, "plain") == "n2"
        preference = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
        terms = [{"weight": 1, "preference": preference}]
        wish = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
        pod(world, "wishing", affinity=wish)
        await world.settle()
        assert where(world, "wishing") == "n3"


def required(kind: str, app: str, key: str = "kubernetes.io/hostname") -> Any:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def test_anti_affinity_spreads_and_is_symmetric() -> None:
    async with World() as world:
        for name in ("n1", "n2"):
            world.node(name)
        for number in range(3):
            pod(world, f"p{number}", affinity=required("podAntiAffinity", "x"))
        await world.settle()
        assert sorted(where(world, f"p{number}") for number in range(3)) == ["", "n1", "n2"]
        lost = next(f"p{number}" for number in range(3) if not where(world, f"p{number}"))
        assert "2 node(s) didn't match pod anti-affinity rules" in message(world, lost)
        pod(world, "plain")
        await world.settle()
        assert "existing pods anti-affinity" in message(world, "plain")
        world.node("n3")
        await world.settle()
        assert where(world, lost) == "n3"


async def test_affinity_follows_and_the_first_of_a_group_may_start() -> None:
    async with World() as world:
        world.node("n1", {"zone": "a"})
        world.node("n2", {"zone": "b"})
        pod(world, "follower", labels={"app": "f"}, affinity=required("podAffinity", "leader", "zone"))
        await world.settle()
        assert "2 node(s) didn't match pod affinity rules" in message(world, "follower")
        pod(world, "leader", labels={"app": "leader"}, nodeSelector={"zone": "b"})
        await world.settle()
        assert where(world, "follower") == "n2"
        pod(world, "group1", labels={"app": "g"}, affinity=required("podAffinity", "g", "zone"))
        await world.settle()
        pod(world, "group2", labels={"app": "g"}, affinity=required("podAffinity", "g", "zone"))
        await world.settle()
        assert where(world, "group1") == where(world, "group2") != ""


async def test_gated_pod_waits_for_its_gate() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "p", schedulingGates=[{"name": "wait"}])
        await world.settle()
        found = objects.condition(world.get(res.PODS, "p"), "PodScheduled")
        assert found is not None
        assert found["reason"] == "SchedulingGated"
        world.patch(res.PODS, "p", {"spec": {"schedulingGates": None}})
        await world.settle()
        assert where(world, "p") == "n1"


async def test_runtime_class_overhead_and_selector_count() -> None:
    async with World() as world:
        world.node("n1")
        world.node("n2", {"kata": "yes"})
        world.create(
            res.RUNTIME_CLASSES,
            "kata",
            handler="kata",
            overhead={"podFixed": {"cpu": "6"}},
            scheduling={"nodeSelector": {"kata": "yes"}},
        )
        pod(world, "p", runtimeClassName="kata", requests={"cpu": "2"})
        await world.settle()
        assert where(world, "p") == "n2"
        pod(world, "q", runtimeClassName="kata", requests={"cpu": "1"})
        await world.settle()
        assert "1 Insufficient cpu" in message(world, "q")


async def test_leaves_pods_of_other_schedulers_alone() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "p", schedulerName="mine")
        await world.settle()
        assert where(world, "p") == ""
        assert objects.condition(world.get(res.PODS, "p"), "PodScheduled") is None


async def test_daemon_pod_that_does_not_fit_names_its_node_and_the_others() -> None:
    async with World() as world:
        world.node("n1", gpus=1)
        world.node("n2")
        world.daemon_set(requests={GPU: "1"})
        await world.settle()
        lost = next(each for each in world.pods() if not objects.node_name(each))
        assert message(world, lost["metadata"]["name"]) == (
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        )
        world.node_status("n2", allocatable={"cpu": "8", "pods": "10", GPU: "1"})
        await world.settle()
        assert nodes_of(world.pods()) == ["n1", "n2"]


async def test_sees_what_was_there_before_it() -> None:
    world = World()
    world.node("n1", gpus=1)
    pod(world, "bound", requests={GPU: "1"}, nodeName="n1")
    pod(world, "waiting", requests={GPU: "1"})
    later = scheduler.Scheduler(world.api, world.clock)
    world.scheduler = later
    async with world:
        await world.settle()
        assert where(world, "waiting") == ""
        assert "1 Insufficient nvidia.com/gpu" in message(world, "waiting")


@pytest.mark.parametrize(
    ("wanted", "taken", "clash"),
    [
        ((("TCP", "0.0.0.0", 80),), {}, False),
        ((("TCP", "0.0.0.0", 80),), {("TCP", "0.0.0.0", 80): 1}, True),
        ((("TCP", "0.0.0.0", 80),), {("TCP", "10.0.0.1", 80): 1}, True),
        ((("TCP", "10.0.0.2", 80),), {("TCP", "10.0.0.1", 80): 1}, False),
        ((("UDP", "0.0.0.0", 80),), {("TCP", "0.0.0.0", 80): 1}, False),
        ((("TCP", "0.0.0.0", 80),), {("TCP", "0.0.0.0", 80): 0}, False),
    ],
)
def test_host_ports(wanted: Any, taken: Any, clash: bool) -> None:
    assert fitting.ports_clash(wanted, taken) is clash


NODE = st.fixed_dictionaries(
    {"gpus": st.integers(0, 4), "pods": st.integers(0, 4), "zone": st.sampled_from("ab"), "tainted": st.booleans()}
)
POD = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 3),
        "cpu": st.sampled_from(["0", "1500m", "4", "8"]),
        "zone": st.sampled_from(["a", "b", ""]),
        "tolerates": st.booleans(),
        "ends": st.booleans(),
    }
)


@settings(max_examples=25, deadline=None)
@given(st.lists(NODE, max_size=4), st.lists(POD, max_size=10))
async def test_never_overcommits_nor_breaks_a_rule(nodes: list[Any], pods: list[Any]) -> None:
    async with World() as world:
        for number, shape in enumerate(nodes):
            taints = [TAINT] if shape["tainted"] else []
            world.node(f"n{number}", {"zone": shape["zone"]}, gpus=shape["gpus"], pods=shape["pods"], taints=taints)
        for number, shape in enumerate(pods):
            requests = {"cpu": shape["cpu"], **({GPU: str(shape["gpus"])} if shape["gpus"] else {})}
            tolerations = [{"key": TAINT["key"], "operator": "Exists"}] if shape["tolerates"] else []
            selector = {"zone": shape["zone"]} if shape["zone"] else {}
            pod(world, f"p{number}", requests=requests, tolerations=tolerations, nodeSelector=selector)
            if shape["ends"]:
                await world.settle()
                world.api.delete(res.PODS, f"p{number}", "default")
        await world.settle()
        check_invariants(world)


def check_invariants(world: World) -> None:
    by_name = {node["metadata"]["name"]: node for node in world.listed(res.NODES)}
    used: dict[str, Counter[str]] = {name: Counter() for name in by_name}
    waiting = []
    for each in world.pods():
        name = objects.node_name(each)
        if not name:
            waiting.append(each)
            continue
        node = by_name[name]
        assert placement.node_selected(each["spec"], node)
        assert placement.first_untolerated(each["spec"], placement.taints_of(node), ("NoSchedule", "NoExecute")) is None
        used[name].update({**amounts.pod_requests(each["spec"]), "pods": 1})
    free = {}
    for name, node in by_name.items():
        offered = amounts.amounts(node["status"]["allocatable"])
        free[name] = {kind: offered.get(kind, 0) - used[name][kind] for kind in {*offered, *used[name]}}
        assert all(left >= 0 for left in free[name].values()), (name, free[name])
    for each in waiting:
        needs = {**amounts.pod_requests(each["spec"]), "pods": 1}
        for name, node in by_name.items():
            admitted = placement.node_selected(each["spec"], node) and not placement.first_untolerated(
                each["spec"], placement.taints_of(node), ("NoSchedule", "NoExecute")
            )
            fits = all(need <= free[name].get(kind, 0) for kind, need in needs.items() if need)
            assert not (admitted and fits), f"{each['metadata']['name']} would fit on {name}"


async def test_anti_affinity_looks_into_the_namespaces_it_names() -> None:
    async with World() as world:
        world.node("n1")
        world.create(res.NAMESPACES, "other", metadata={"labels": {"team": "a"}})
        await world.settle()
        spec = template("x")["spec"]
        world.create(res.PODS, "there", "other", metadata={"labels": {"app": "x"}}, spec=spec)
        await world.settle()
        for name, reach, bound in (
            ("own", {}, True),
            ("named", {"namespaces": ["other"]}, False),
            ("labelled", {"namespaceSelector": {"matchLabels": {"team": "a"}}}, False),
            ("unlabelled", {"namespaceSelector": {"matchLabels": {"team": "b"}}}, True),
        ):
            affinity = required("podAntiAffinity", "x")
            affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0].update(reach)
            pod(world, name, labels={"app": name}, affinity=affinity)
            await world.settle()
            assert bool(where(world, name)) is bound, name


async def test_pod_is_tried_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as world:
        world.node("n1")
        bind = world.api.bind
        errors = iter([StatusError(500, "InternalError", "no"), RuntimeError("broken")])

        def failing(*args: Any) -> Any:
            error = next(errors, None)
            if error is not None:
                raise error
            return bind(*args)

        monkeypatch.setattr(world.api, "bind", failing)
        pod(world, "p")
        await world.until(lambda: where(world, "p") == "n1")


async def test_node_that_leaves_with_its_pods_offers_nothing() -> None:
    async with World() as world:
        world.node("n1", gpus=1)
        pod(world, "first", requests={GPU: "1"})
        await world.settle()
        world.api.delete(res.NODES, "n1")
        pod(world, "second")
        await world.settle()
        assert message(world, "second") == scheduler.NO_NODES
        world.node("n1", gpus=1)
        pod(world, "third", requests={GPU: "1"})
        await world.settle()
        assert where(world, "second") == "n1"
        assert "1 Insufficient nvidia.com/gpu" in message(world, "third")
