"""must-gather as a process on an API server that leaves some requests open: Ctrl-C leaves a valid archive."""

import asyncio
import json
import os
import signal
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

PODS = {
    "kind": "PodList",
    "apiVersion": "v1",
    "metadata": {"resourceVersion": "1"},
    "items": [
        {
            "metadata": {"name": "nvidia-driver-x", "namespace": "gpu-operator", "labels": {"app": "gpu-operator"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
        }
    ],
}
EMPTY = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}


class Server:
    """An API server; paths that end as ``stuck`` says are not answered."""

    def __init__(self) -> None:
        self.stuck: tuple[str, ...] = ()
        self.waiting = asyncio.Event()
        self.over = asyncio.Event()
        self.served = 0
        self.port = 0
        self.more = asyncio.Condition()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(self.stuck):
            self.waiting.set()
            await self.over.wait()
        self.served += 1
        async with self.more:
            self.more.notify_all()
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.33.1"})
        return web.json_response(PODS if request.path == "/api/v1/pods" else EMPTY)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_get("/{tail:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    server.over.set()
    await runner.cleanup()


@pytest.mark.parametrize("stuck", ["/api/v1/nodes", "/log"])
async def test_an_interruption_leaves_a_valid_archive(server: Server, stuck: str, tmp_path: Path) -> None:
    server.stuck = (stuck,)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    path = tmp_path / "it.tar.gz"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "groundplane.cli.main", "must-gather", "--no-exec", "--file", str(path)),
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        await server.waiting.wait()
        async with server.more:
            await server.more.wait_for(lambda: server.served >= 25)
        await asyncio.sleep(0.5)  # what has been answered is read; nothing more comes
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    with tarfile.open(path) as tar:
        files = {each.name.removeprefix("must-gather/"): file.read() for each in tar if (file := tar.extractfile(each))}
    manifest = json.loads(files["manifest.json"])
    assert any("interrupted" in each for each in manifest["missing"])
    assert b"nvidia-driver-x" in files["objects/pods.0000.jsonl"]
    if stuck == "/log":
        (row,) = (row for name, row in manifest["files"].items() if name.startswith("logs/gpu-operator_nvidia"))
        assert row["status"] == "timeout"
    else:
        assert "interrupted" in manifest["unread"]["nodes"]
        assert manifest["files"]["objects/nodes.0000.jsonl"]["bytes"] == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["it.tar.gz", "kubeconfig"]
