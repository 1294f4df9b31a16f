"""A lab in a thread of its own, so that commands under test can run their own loops."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from groundplane.lab.cluster import Lab


class LabThread:
    """A running lab; ``kubeconfig`` is how commands reach it."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.lab = lab
        self.do(self.up())

    async def up(self) -> None:
        """What has to be there before the first test."""
        await self.lab.__aenter__()
        self.lab.kubeconfig(self.kubeconfig)

    def do(self, work: Any, within_s: float = 120) -> Any:
        """Await something in the lab's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def close(self) -> None:
        """End the lab and its thread."""
        self.do(self.lab.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
