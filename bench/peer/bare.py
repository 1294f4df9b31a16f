"""The limit: a client that lists all nodes and patches each once, so many requests in flight, and does nothing else.

``python -m bench.peer.bare IN_FLIGHT`` with ``KUBECONFIG``. It is written on aiohttp alone, without our client, so that
what is gained there is a gain.
"""

import asyncio
import base64
import json
import os
import ssl
import sys
from pathlib import Path

import aiohttp
import yaml

LABELS = (
    "nvidia.com/gpu.present",
    *(
        f"nvidia.com/gpu.deploy.{operand}"
        for operand in (
            *("driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter"),
            *("node-status-exporter", "operator-validator", "mig-manager"),
        )
    ),
)
"""What both operators give a node with a GPU that can be split."""
PATCH = json.dumps({"metadata": {"labels": dict.fromkeys(LABELS, "true")}}).encode()


def connection(path: Path) -> tuple[str, str, ssl.SSLContext]:
    """Address, token and trust of a kubeconfig with one cluster and one user."""
    config = yaml.load(path.read_text(), yaml.CSafeLoader)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode("ascii"))
    return cluster["server"], user["token"], tls


async def patch_all(in_flight: int) -> None:
    """List, patch, and wait to be ended."""
    server, token, tls = connection(Path(os.environ["KUBECONFIG"]))
    connector = aiohttp.TCPConnector(ssl=tls, limit=in_flight)
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(server, connector=connector, headers=headers, raise_for_status=True) as session:
        async with session.get("/api/v1/nodes") as answer:
            waiting = [node["metadata"]["name"] for node in json.loads(await answer.read())["items"]]

        async def worker() -> None:
            kind = {"Content-Type": "application/merge-patch+json"}
            while waiting:
                async with session.patch(f"/api/v1/nodes/{waiting.pop()}", data=PATCH, headers=kind) as answer:
                    await answer.read()

        await asyncio.gather(*(worker() for _ in range(in_flight)))
    await asyncio.Event().wait()  # until the harness, which sees the writes, has measured and ends us


if __name__ == "__main__":
    asyncio.run(patch_all(int(sys.argv[1])))
