"""The plugin's life, end to end over real sockets (contracts/device-plugin-gfd.md 2.1, 3, 4.1, 12)."""

import asyncio
import signal
from typing import Any

import pytest
from node.fakeprocess import until

from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire

GPU = "nvidia.com/gpu"


async def test_3_registration(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    plugin = await node.kubelet.plugin()
    assert plugin.request.version == "v1beta1"
    assert plugin.request.endpoint == "nvidia-gpu.sock"
    assert plugin.request.resource_name == GPU
    assert plugin.request.options.pre_start_required is False
    assert plugin.request.options.get_preferred_allocation_available is True
    assert plugin.health == dict.fromkeys(node.uuids, "Healthy")
    options = await plugin.stub.GetDevicePluginOptions(wire.Empty())
    assert options == plugin.request.options
    assert await plugin.stub.PreStartContainer(wire.PreStartContainerRequest()) == wire.PreStartContainerResponse()
    assert node.sockets() == ["nvidia-gpu.sock"]
    assert '"migStrategy": "none"' in node.process.stderr  # the effective configuration is logged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_3_signals_that_end(node: Any, number: signal.Signals) -> None:
    await node.kubelet.start()
    task = node.run()
    plugin = await node.kubelet.plugin()
    node.process.send(number)
    assert await asyncio.wait_for(task, 20) == 0
    assert node.sockets() == []
    await until(lambda: not plugin.connected, "the end of the stream")
