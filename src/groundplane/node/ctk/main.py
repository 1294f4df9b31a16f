"""`nvidia-ctk`: finds the subcommand, which reads its own options; each is imported when it is run."""

import importlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ... import __version__
from ..process import Process

COMMANDS: Final[Mapping[tuple[str, ...], tuple[str, str]]] = {
    ("cdi", "generate"): ("cdi:generate", "write a CDI specification of this machine's GPUs"),
    ("cdi", "list"): ("cdi:list_devices", "list the CDI devices that this machine's specifications offer"),
    ("cdi", "transform", "root"): ("cdi:transform_root", "change the root of the paths in a CDI specification"),
    ("runtime", "configure"): ("runtime:configure", "add NVIDIA's runtime to a container runtime's configuration"),
    ("system", "create-dev-char-symlinks"): ("system:create_dev_char_symlinks", "link device nodes in /dev/char"),
    ("system", "create-device-nodes"): ("system:create_device_nodes", "make the driver's control device nodes"),
}
"""Words of a subcommand, and its function (`module:function` below this package, called with the process and the
arguments that follow) with what it is for."""


async def run(process: Process) -> int:
    """`nvidia-ctk`."""
    arguments = list(process.argv[1:])
    words: list[str] = []
    while arguments and not arguments[0].startswith("-"):
        words.append(arguments.pop(0))
        if tuple(words) in COMMANDS:
            module, _, name = COMMANDS[tuple(words)][0].partition(":")
            function: Callable[[Process, Sequence[str]], Awaitable[int]] = getattr(_imported(module), name)
            return await function(process, arguments)
    if arguments and arguments[0].lstrip("-") in ("version", "v"):
        process.out(f"nvidia-ctk version {__version__}, for GPU Operator {process.release}\n")
        return 0
    text = "\n".join(_usage(words))
    if not words or (arguments and arguments[0].lstrip("-") in ("help", "h")):
        process.out(text + "\n")
        return 0
    process.log.error(f"nvidia-ctk: unknown command {' '.join(words)!r}\n{text}")
    return 1


def _imported(module: str) -> Any:
    return importlib.import_module(f".{module}", __package__)


def _usage(words: Sequence[str]) -> Iterator[str]:
    """The commands that begin with some words, or else all."""
    known = [each for each in COMMANDS if each[: len(words)] == tuple(words)] or list(COMMANDS)
    yield "Usage: nvidia-ctk COMMAND [options]"
    yield ""
    for each in known:
        yield f"  {' '.join(each):<34} {COMMANDS[each][1]}"
