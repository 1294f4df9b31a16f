"""One stand-in as this process: finds the program, makes its context, runs it until it ends or SIGTERM comes."""

import asyncio
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...node.hostroot import HostRoot
from ...node.programs import PROGRAMS
from .. import images
from ..clock import LabClock
from ..driver.container import SIGNALS
from ..host import HostError
from ..nodes import NodeFileError
from ..programs import ContainerContext, Image, Program
from . import FOLDER, FOLDER_ENV, IMAGE_ENV, REFERENCE_ENV, ROOT_ENV, SPEED_ENV, container, host

_MISUSE, _NOT_FOUND = 2, 127
_OWN: Mapping[str, Program] = images.INJECTED
"""Programs that belong to no image of the lab's."""

_SHOW_MODULES = "nvidia-driver"
_MS_BIND, _MS_REC = 0x1000, 0x4000


def main(argv: Sequence[str]) -> int:
    """Run the program that `argv` names; its exit code, 127 if there is none."""
    env = dict(os.environ)
    name = argv[0].rpartition("/")[2]
    found = _program(name, env)
    if found is None:
        return _fail(f"{name}: the lab has no stand-in of this name", _NOT_FOUND)
    image, program = found
    try:
        context = _context((name, *argv[1:]), env, image)
        if name == _SHOW_MODULES and ROOT_ENV not in env:
            _show_modules(context)
    except (HostError, NodeFileError, ValueError) as error:
        return _fail(f"{name}: {error}", _MISUSE)
    return asyncio.run(_run(program, context))


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


def _program(name: str, env: Mapping[str, str]) -> tuple[Image, Program] | None:
    """A stand-in and its image: that of the environment, else the first that has it."""
    if name in PROGRAMS:
        return None
    own = images.IMAGES.get(env.get(IMAGE_ENV, ""))
    for image in ([own] if own else []) + list(images.IMAGES.values()):
        if name in image.executables:
            return image, image.executables[name]
    return (Image((name,), {}), _OWN[name]) if name in _OWN else None


def _context(argv: tuple[str, ...], env: Mapping[str, str], image: Image) -> ContainerContext:
    root = HostRoot(env.get(ROOT_ENV) or "/")
    simulated = host.attach(Path(env.get(FOLDER_ENV) or FOLDER))
    made = container.NodeContainer(
        host=simulated,
        clock=LabClock(_speed(env)),
        registry=container.Commands(),
        pod={"metadata": {"name": container.hostname()}, "spec": {}},
        spec={"name": argv[0], "image": env.get(REFERENCE_ENV, "")},
        image=image,
        rootfs=root,
        gpus=container.visible_gpus(simulated, env, root),
        driver_injected=container.driver_injected(root),
        env=env,
    )
    return ContainerContext(made, argv, out=_writer(sys.stdout.buffer), err=_writer(sys.stderr.buffer))


def _speed(env: Mapping[str, str]) -> float:
    text = env.get(SPEED_ENV) or "1"
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{SPEED_ENV} is {text!r}; give a positive number such as 20") from error


def _writer(stream: Any) -> Any:
    def write(data: bytes) -> None:
        stream.write(data)
        stream.flush()

    return write


def _show_modules(ctx: ContainerContext) -> None:
    """Put the simulated modules over the machine's in this container, whose probe looks at /sys/module itself.

    HostError if the container is not privileged.
    """
    source = os.fsencode(ctx.host.root.path("/sys/module"))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, b"/sys/module", None, _MS_BIND | _MS_REC, None) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise HostError(f"cannot show the simulated kernel modules at /sys/module: {reason}; is the pod privileged?")


def _signalled(ctx: ContainerContext, number: int) -> None:
    """Ask the program to end; once it was asked, further signals are its own to judge."""
    if not ctx.stopping.is_set():
        ctx.stopping.set()
        return
    for process in ctx.container.namespace().values():
        process.deliver(number)


async def _run(program: Program, ctx: ContainerContext) -> int:
    loop = asyncio.get_running_loop()
    trapped = SIGNALS if ctx.argv[0] == _SHOW_MODULES else (signal.SIGTERM, signal.SIGINT)
    for number in trapped:
        loop.add_signal_handler(number, _signalled, ctx, number)
    try:
        return await program(ctx)
    except (HostError, OSError) as error:
        ctx.error(f"{ctx.argv[0]}: {error}")
    except Exception:  # noqa: BLE001 - a program's crash is its container's exit, with the traceback in its log
        ctx.error(traceback.format_exc().rstrip())
    return 1
