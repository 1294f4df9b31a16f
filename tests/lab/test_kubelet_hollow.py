"""Hollow nodes: realistic size, pods that count as running, deletions confirmed."""

import asyncio
from collections.abc import AsyncIterator

from lab.kubelet_bench import bench, container

from groundplane.lab import resources
from groundplane.lab.kubelet import HollowKubelet, NodePool


async def test_hollow_nodes_run_and_end_pods() -> None:
    async with bench() as b:
        task = asyncio.create_task(HollowKubelet(b.api, ["h1", "h2"], b.clock).run())
        b.others.append(task)
        await b.until(lambda: len(b.api.list(resources.NODES)["items"]) == 2, "the nodes")
        node = b.api.get(resources.NODES, "h1")
        assert len(node["metadata"]["labels"]) >= 50
        assert len(node["status"]["images"]) == 20
        b.pod("p", container(script="true"), initContainers=[container("init", "true")], node="h2")
        b.pod("other", container(script="true"), node="elsewhere")
        await b.until(lambda: b.ready("p"), "ready")
        assert b.status("p")["phase"] == "Running"
        assert not b.status("other").get("containerStatuses")
        b.api.delete(resources.PODS, "p", "default")
        await b.until(lambda: not b.get("p"), "the pod's end")


async def test_hollow_nodes_offer_gpus_and_boot_other_kernels() -> None:
    async with bench() as b:
        hollow = HollowKubelet(b.api, ["h1"], b.clock, gpus=8)
        b.others.append(asyncio.create_task(hollow.run()))
        await b.until(lambda: len(b.api.list(resources.NODES)["items"]) == 1, "the node")
        status = b.api.get(resources.NODES, "h1")["status"]
        assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == ("8", "8")
        b.pod("stays", container(script="true"), node="h1")
        b.pod("goes", container(script="true"), node="h1")
        await b.until(lambda: b.ready("stays") and b.ready("goes"), "ready")

        def ready() -> str:
            conditions = b.api.get(resources.NODES, "h1")["status"]["conditions"]
            return next(each["status"] for each in conditions if each["type"] == "Ready")

        reboot = asyncio.create_task(hollow.reboot("h1", kernel="6.8.0-99-generic"))
        b.others.append(reboot)
        await b.until(lambda: ready() == "False", "the node to be down")
        b.api.delete(resources.PODS, "goes", "default")
        assert b.get("goes"), "nobody confirms a deletion on a node that is down"
        await reboot
        node = b.api.get(resources.NODES, "h1")
        assert ready() == "True"
        assert node["metadata"]["labels"]["feature.node.kubernetes.io/kernel-version.full"] == "6.8.0-99-generic"
        assert node["status"]["nodeInfo"]["kernelVersion"] == "6.8.0-99-generic"
        assert [each["restartCount"] for each in b.status("stays")["containerStatuses"]] == [1]
        await b.until(lambda: not b.get("goes"), "the other pod's end")


async def test_a_pool_finds_the_kubelet_of_a_pod() -> None:
    async with bench() as b:
        pool = NodePool()
        for name in ("n1", "n2"):
            pool.add(name, b.node(name))
        b.pod("p", container(script="echo here; sleep infinity"), node="n2")
        await b.until(lambda: b.ready("p") and b.log("p", node="n2"), "ready, with something said")
        assert pool.of_pod("default", "p") is b.kubelets["n2"]
        assert [line async for line in pool.logs("default", "p")] == [b"here\n"]
        output = bytearray()
        assert await pool.exec("default", "p", "", ["cat"], _one(b"typed"), output.extend, output.extend) == 0
        assert output == b"typed"
        pool.remove("n2")
        assert [spec.name for spec in pool.specs()] == ["n1"]
        assert "n2" not in pool


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data
