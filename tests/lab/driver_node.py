"""One simulated host on which driver containers run: what the tests of `lab/driver` share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import clock, host, images, nodes, programs
from groundplane.lab.api import Api
from groundplane.node.hostroot import HostRoot
from groundplane.operands import startup_probe

GPUS = (nodes.GpuSpec("A100", 2),)
DEADLINE_S = 20.0
WAITS = "Done, now waiting for signal"
BUILT, PRECOMPILED = "580.126.20-ubuntu24.04", "580-6.8.0-60-generic-ubuntu24.04"
_SAME = ("/proc", "/sys", "/dev", "/run/nvidia", "/run/nvidia-fabricmanager", "/run/kernel", "/run/mellanox")
_SEEN = {
    **{path: path for path in _SAME},
    "/mnt/shared-nvidia-driver-toolkit": "/shared",
    "/run/secrets/etc-pki-entitlement": "/etc/pki/entitlement",
    "/usr/local/bin/startup-probe.sh": "/probe/startup-probe.sh",
    "/host": "/",
}


class Pod:
    """A driver pod's container (or one beside it): its log, and a way to end it."""

    def __init__(self, node: "Node", image: str, tag: str, env: Mapping[str, str]) -> None:
        root = node.host.root
        node.made += 1
        self.output = bytearray()
        self.stopping = asyncio.Event()
        self.container = programs.Container(
            host=node.host,
            clock=clock.LabClock(2000),
            registry=programs.ProgramRegistry.standard(),
            pod={"metadata": {"name": f"p{node.made}", "namespace": "gpu-operator"}, "spec": {}},
            spec={"name": "c", "image": f"lab/{image}:{tag}"},
            image=images.IMAGES[image],
            rootfs=HostRoot(root.mkdir(f"/rootfs/{node.made}"), durable=False),
            mounts=tuple(programs.Mount(at, root, inside) for at, inside in _SEEN.items()),
            env=dict(env),
            stopping=self.stopping,
        )
        for path, text in self.container.image.files.items():
            self.container.rootfs.write_atomic(path, text)

    @property
    def text(self) -> str:
        return self.output.decode()

    async def run(self, *argv: str) -> int:
        """Run a command to its end; a refusal of the host ends it as the container runtime would."""
        ctx = programs.ContainerContext(self.container, argv, out=self.output.extend)
        try:
            return await ctx.run()
        except host.HostError as error:
            ctx.error(str(error))
            return 1

    async def until(self, text: str) -> None:
        """Wait for a text in the log."""
        async with asyncio.timeout(DEADLINE_S):
            while text not in self.text:
                await asyncio.sleep(0.001)


class Node:
    """The host, and what runs on it."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.api = Api()
        self.made = 0
        self.host = host.SimulatedHost(HostRoot(folder, durable=False), nodes.NodeSpec("n", **{"gpus": GPUS, **fields}))
        self.host.root.mkdir("/run/nvidia/validations")
        script = startup_probe.script(Release.V26_7)
        self.host.root.write_atomic("/probe/startup-probe.sh", script, mode=0o755)

    def pod(
        self, image: str = "driver", tag: str = BUILT, *, files: Mapping[str, str] | None = None, **env: str
    ) -> Pod:
        """A container; `files` are those that the policy's ConfigMaps put into it."""
        made = Pod(self, image, tag, env)
        for path, text in (files or {}).items():
            made.container.rootfs.write_atomic(path, text)
        return made

    @contextlib.asynccontextmanager
    async def driver(self, pod: Pod | None = None, *, kill: bool = False, **env: str) -> AsyncIterator[Pod]:
        """A driver that has come up; at the end of the block it is asked to end, or killed."""
        pod = pod or self.pod(**env)
        task = asyncio.create_task(pod.run("nvidia-driver", "init"))
        waiting = asyncio.create_task(pod.until(WAITS))
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            assert not task.done(), pod.text
            await waiting
            yield pod
        finally:
            waiting.cancel()
            if kill:
                task.cancel()
            pod.stopping.set()
            done, _ = await asyncio.wait({task}, timeout=DEADLINE_S)
            task.cancel()
            assert done, pod.text

    async def comes_up(self, pod: Pod | None = None, **env: str) -> str:
        """Bring a driver up and end it; its log."""
        async with self.driver(pod, **env) as running:
            pass
        return running.text

    def read(self, path: str) -> str:
        return self.host.root.read_text(path)

    def status(self) -> str:
        return self.read(f"{names.VALIDATIONS_DIR}/.driver-daemons-status").strip()
