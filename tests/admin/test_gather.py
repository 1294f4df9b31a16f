"""Gathering within limits: long logs, no time left, an interruption; what has been read is kept, the rest is told."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from groundplane.admin import gather, gather_pack
from groundplane.cluster.client import Client
from groundplane.diagnose import survey as surveys
from groundplane.diagnose.survey import Survey


def pod(name: str) -> dict[str, Any]:
    status = {"name": "c", "ready": True, "restartCount": 0, "state": {"running": {}}, "containerID": "x"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "gpu-operator"},
        "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


class Logs:
    """A client whose pods' logs are these lines; of the pod ``stuck`` there is never an end."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self.stuck = asyncio.Event()

        self.config = SimpleNamespace(server="https://there")
        self.now = time.time

    async def logs(self, pod: str, *_: Any, **__: Any) -> AsyncIterator[str]:
        for number in range(self._lines):
            yield f"line {number}"
        if pod == "stuck":
            self.stuck.set()
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def live(_: Any, plurals: Any, **__: Any) -> Survey:
        return Survey(objects={"pods": (pod("fine"), pod("stuck"))} if "pods" in plurals else {})

    monkeypatch.setattr(surveys, "live", live)


async def take(logs: Logs, **limits: Any) -> Any:
    return await gather.gather(cast("Client", logs), namespace="gpu-operator", limits=gather.Limits(**limits))


async def test_when_the_time_is_over_what_was_read_is_kept() -> None:
    found = (await take(Logs(3), timeout_s=0.2)).captured
    assert [each.pod for each in found.logs] == ["fine"]
    assert any("the time of" in each for each in found.missing)


async def test_an_interruption_leaves_what_was_read() -> None:
    logs = Logs(3)
    task = asyncio.create_task(take(logs))
    stuck = asyncio.create_task(logs.stuck.wait())
    await asyncio.wait({task, stuck}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    stuck.cancel()
    task.cancel()
    found = (await task).captured
    assert [each.pod for each in found.logs] == ["fine"]
    assert any("interrupted" in each for each in found.missing)


async def test_of_a_long_log_whole_lines_of_the_end_are_kept_and_that_is_told() -> None:
    found = (await take(Logs(500), timeout_s=0.2, file_bytes=100)).captured
    (log,) = (each for each in found.logs if each.pod == "fine")
    assert log.text.endswith("line 499") and len(log.text) <= 100 and log.text.startswith("line ")
    assert any("fine" in each and "only the last 100" in each for each in found.missing)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Any:
        yield "a", b"x"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        gather_pack.write(tmp_path / "it.tgz", broken(), 0)
    assert not list(tmp_path.iterdir())
