"""Whatever happened before: in the end the kubelet has every device, from one plugin, with the right health (3, 5)."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from node.fakeprocess import FakeProcess, until

STEPS = 10


class History:
    """A node, and what may happen on it. The kubelet is there in the end."""

    def __init__(self, node: Any, chance: random.Random) -> None:
        self.node = node
        self.chance = chance
        self.running: list[tuple[FakeProcess, Any]] = []
        self.told: list[str] = []

    async def step(self) -> None:
        """Let something happen, and the plugins maybe have time to notice."""
        happening = self.chance.choice(self.HAPPENINGS)
        self.told.append(happening.__name__)
        await happening(self)
        await self.node.process.sleep(self.chance.choice((0, 0, 0.01, 0.1)))

    async def start_plugin(self) -> None:
        if len(self.running) < 3:
            task = self.node.run(pace=50)
            self.running.append((self.node.process, task))

    async def end_plugin(self) -> None:
        if len(self.running) > 1:
            process, task = self.running.pop(self.chance.randrange(len(self.running)))
            process.send(signal.SIGTERM)
            assert await task == 0

    async def hangup(self) -> None:
        self.chance.choice(self.running)[0].send(signal.SIGHUP)

    async def remove_socket(self) -> None:
        (self.node.plugins / "nvidia-gpu.sock").unlink(missing_ok=True)

    async def restart_kubelet(self) -> None:
        await self.node.kubelet.stop()
        await self.node.kubelet.start()

    async def kubelet_away(self) -> None:
        await self.node.kubelet.vanish()

    async def refuse(self) -> None:
        self.node.kubelet.refuse = "" if self.node.kubelet.refuse else "not now"

    async def fault(self) -> None:
        self.node.machine.xid(self.chance.randrange(2), 79)

    HAPPENINGS: tuple[Callable[["History"], Awaitable[None]], ...] = (
        *(start_plugin, end_plugin, hangup, remove_socket, restart_kubelet, kubelet_away, refuse, fault),
    )


def served(node: Any) -> bool:
    """Whether a fault of a device is told to the kubelet by someone."""
    for plugin in [each for each in node.kubelet.registered if each.connected and each.lists]:
        if set(plugin.health) == set(node.uuids) and node.uuids[1] in plugin.unhealthy:
            return True
    return False


@pytest.mark.parametrize("seed", range(12))
async def test_any_history_ends_well(node: Any, seed: int) -> None:
    history = History(node, random.Random(seed))
    await node.kubelet.start()
    await history.start_plugin()
    for _ in range(STEPS):
        await history.step()
    what = f"a served device after {', '.join(history.told)}"
    node.kubelet.refuse = ""
    await history.restart_kubelet()
    deadline = asyncio.get_running_loop().time() + 20
    while not served(node):  # whoever serves tells a fault; one who begins only now begins with good health
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        node.machine.xid(1, 79)
        await asyncio.sleep(0.02)
    assert node.sockets() == ["nvidia-gpu.sock"]
    assert not any(task.done() for _, task in history.running), what
    await until(lambda: sum("stands by" in _since(each) for each, _ in history.running) == len(history.running) - 1)


def _since(process: FakeProcess) -> str:
    """What a plugin has said last, of serving or of standing by."""
    lines = [line for line in process.stderr.splitlines() if "stands by" in line or "serving" in line]
    return lines[-1] if lines else ""
