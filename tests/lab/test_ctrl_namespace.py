"""Namespaces: what they contain from the start, and how they are emptied."""

from lab.ctrl_world import World

from groundplane.lab import resources as res
from groundplane.lab.controllers import namespace, objects


async def test_every_namespace_is_furnished() -> None:
    async with World() as world:
        world.create(res.NAMESPACES, "gpu-operator")
        await world.settle()
        for name in ("default", "kube-system", "gpu-operator"):
            assert world.find(res.SERVICE_ACCOUNTS, "default", name) is not None
            assert world.get(res.CONFIG_MAPS, "kube-root-ca.crt", name)["data"] == {"ca.crt": "CA"}


async def test_furniture_comes_back() -> None:
    async with World() as world:
        world.api.delete(res.SERVICE_ACCOUNTS, "default", "default")
        world.patch(res.CONFIG_MAPS, namespace.ROOT_CA, {"data": {"ca.crt": "forged"}})
        await world.settle()
        assert world.find(res.SERVICE_ACCOUNTS, "default") is not None
        assert world.get(res.CONFIG_MAPS, namespace.ROOT_CA)["data"] == {"ca.crt": "CA"}


async def test_deleted_namespace_is_emptied_and_goes() -> None:
    async with World() as world:
        world.node("n1")
        world.create(res.NAMESPACES, "work")
        await world.settle()
        spec = {"containers": [{"name": "c", "image": "i"}]}
        world.create(res.PODS, "p", "work", spec=spec)
        world.create(res.CONFIG_MAPS, "c", "work")
        await world.settle()
        assert world.get(res.PODS, "p", "work")["status"]["phase"] == "Running"
        world.api.delete(res.NAMESPACES, "work")
        await world.settle()
        assert world.find(res.NAMESPACES, "work") is None
        assert not world.listed(res.PODS, "work")
        assert not world.listed(res.CONFIG_MAPS, "work")
        assert not world.listed(res.SERVICE_ACCOUNTS, "work")


async def test_says_what_holds_it() -> None:
    async with World() as world:
        world.create(res.NAMESPACES, "work")
        world.create(res.CONFIG_MAPS, "held", "work", metadata={"finalizers": ["example.com/hold"]})
        await world.settle()
        world.api.delete(res.NAMESPACES, "work")
        await world.settle()
        found = world.get(res.NAMESPACES, "work")
        assert found["status"]["phase"] == "Terminating"
        held = objects.condition(found, "NamespaceFinalizersRemaining")
        assert held is not None
        assert held["status"] == "True"
        assert held["message"].endswith("example.com/hold in 1 resource instances")
        remaining = objects.condition(found, "NamespaceContentRemaining")
        assert remaining is not None
        assert remaining["message"] == "Some resources are remaining: configmaps. has 1 resource instances"
        world.patch(res.CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, "work")
        await world.settle()
        assert world.find(res.NAMESPACES, "work") is None


async def test_workloads_do_not_come_back_in_a_namespace_that_goes() -> None:
    async with World() as world:
        world.node("n1")
        world.kubelet.ends = False
        world.daemon_set()
        world.create(res.NAMESPACES, "work")
        body = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}}}
        body["template"]["spec"] = {"containers": [{"name": "c", "image": "i"}]}
        world.create(res.DAEMON_SETS, "ds", "work", spec=body)
        await world.settle()
        world.api.delete(res.NAMESPACES, "work")
        await world.settle()
        assert world.find(res.NAMESPACES, "work") is not None
        world.kubelet.ends = True
        world.kubelet.look_again()
        await world.settle()
        assert world.find(res.NAMESPACES, "work") is None
        assert len(world.pods()) == 1
