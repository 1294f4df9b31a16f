"""EndpointSlices: which pods they name, ports, and how endpoints are spread over slices."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lab.ctrl_world import World

from groundplane.lab import resources as res
from groundplane.lab.controllers import endpointslice


def service(world: World, *, selector: Any = None) -> None:
    ports = [{"name": "metrics", "port": 9400, "targetPort": "metrics"}, {"name": "plain", "port": 80}]
    spec = {"ports": ports, **({"selector": selector} if selector else {})}
    world.create(res.SERVICES, "svc", spec=spec)


def slices(world: World) -> list[Any]:
    return world.listed(res.ENDPOINT_SLICES, "default", labels="kubernetes.io/service-name=svc")


def endpoints(world: World) -> list[Any]:
    return [point for each in slices(world) for point in each.get("endpoints") or ()]


async def test_ready_pods_of_a_service() -> None:
    async with World() as world:
        world.node("n1")
        world.node("n2")
        ports = [{"name": "metrics", "containerPort": 9400}]
        world.daemon_set("d", containers=[{"name": "c", "image": "i", "ports": ports}])
        service(world, selector={"app": "d"})
        await world.until(lambda: len(endpoints(world)) == 2)
        (found,) = slices(world)
        assert found["addressType"] == "IPv4"
        assert [(port["name"], port["port"]) for port in found["ports"]] == [("metrics", 9400), ("plain", 80)]
        assert {point["nodeName"] for point in found["endpoints"]} == {"n1", "n2"}
        assert all(point["conditions"]["ready"] for point in found["endpoints"])
        addresses = {point["addresses"][0] for point in found["endpoints"]}
        assert addresses == {pod["status"]["podIP"] for pod in world.pods()}
        world.api.delete(res.NODES, "n2")
        await world.until(lambda: len(endpoints(world)) == 1)
        world.api.delete(res.SERVICES, "svc", "default")
        await world.until(lambda: not slices(world))


async def test_service_without_selector_is_left_alone() -> None:
    async with World() as world:
        service(world)
        await world.settle()
        assert slices(world) == []


@given(
    st.sets(st.integers(0, 400).map(str), max_size=350),
    st.lists(st.lists(st.integers(0, 400).map(str), max_size=100, unique=True), max_size=4),
)
def test_every_endpoint_is_in_one_slice_and_none_is_too_big(wanted: set[str], held: list[list[str]]) -> None:
    slices = {f"s{number}": uids for number, uids in enumerate(held)}
    placed, more = endpointslice.distribute({uid: {} for uid in wanted}, slices)
    everything = [uid for uids in [*placed.values(), *more] for uid in uids]
    assert sorted(everything) == sorted(wanted)
    assert all(len(uids) <= endpointslice.MAX_ENDPOINTS for uids in [*placed.values(), *more])
    for name, uids in slices.items():
        first_holder = [uid for uid in uids if uid in wanted and not any(uid in slices[s] for s in slices if s < name)]
        assert placed[name][: len(first_holder)] == first_holder
