"""A real container as a stand-in sees it: its own files, its GPUs, its ports, its commands."""

import asyncio
import os
import shutil
from collections.abc import Mapping

from ...node.hostroot import HostRoot
from .. import driverfiles
from ..host import Gpu, SimulatedHost
from ..programs import CommandNotFoundError, Container, ContainerContext, Handler, Program
from . import serving

_NOTHING = ("", "void", "none")


class NodeContainer(Container):
    """The container this process runs in: mounts are the kernel's business, so every path is below the one root."""

    def listen(self, port: int, handler: Handler | None) -> None:
        """Accept connections on a port until the process ends; what has pages is a shipped program, with a server."""
        serving.serve(port)
        self.ports[port] = handler

    def unmount(self, path: str) -> None:
        """Empty the folder, as one looks from which something was unmounted; other containers have it mounted."""
        folder = self.path(path)
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


class Commands:
    """The executables on the container's PATH."""

    def find(self, container: Container, argv: tuple[str, ...]) -> Program:
        """A program that runs an executable as a process of its own. CommandNotFoundError if there is none."""
        executable = shutil.which(argv[0], path=container.env.get("PATH")) if argv else None
        if executable is None:
            raise CommandNotFoundError(argv[0] if argv else "")
        return _execute


async def _execute(ctx: ContainerContext) -> int:
    process = await asyncio.create_subprocess_exec(
        *ctx.argv, env=ctx.env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    ctx.out(out)
    ctx.err(err)
    return process.returncode if process.returncode is not None else 1


def driver_injected(root: HostRoot) -> bool:
    """Whether the driver's libraries are among the container's own files, where only a mount can have put them."""
    folders = (driverfiles.CONTAINER_LIBRARIES, driverfiles.HOST_LIBRARIES)
    return any(root.exists(driverfiles.library("libcuda.so", folder)) for folder in folders)


def visible_gpus(host: SimulatedHost, env: Mapping[str, str], root: HostRoot) -> tuple[Gpu, ...]:
    """The GPUs that were given to the container: those with a device node, else those that the environment names.

    NVIDIA_VISIBLE_DEVICES counts only where the runtime has brought the driver (contracts/toolkit-cdi.md 1.2).
    """
    present = tuple(gpu for gpu in host.gpus if root.exists(gpu.device_node))
    if present or not driver_injected(root):
        return present
    value = env.get("NVIDIA_VISIBLE_DEVICES", "")
    if value in _NOTHING:
        return ()
    wanted = {name.rpartition("=")[2] for name in value.split(",")}
    return tuple(gpu for gpu in host.gpus if wanted & {"all", gpu.uuid, str(gpu.index)})


def hostname() -> str:
    """The pod's name, which is its host name unless it uses the node's network."""
    return os.environ.get("POD_NAME") or os.uname().nodename
