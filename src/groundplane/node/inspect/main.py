"""`groundplane-inspect`: one look at this node, printed as one JSON document.

The document has ``name``, ``when``, ``facts`` (diagnose.evidence.NODE_FACTS), ``commands`` (what the node's own
programs said) and ``missing`` (what could not be looked at, and why). It is bounded: what is too long is left out, and
that is told. It succeeds whatever the node is like; only wrong options make it fail.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from ...diagnose.evidence import Command as Said
from ..hostroot import HostRoot
from ..options import STRINGS, Command, Leave, Option, read
from ..process import Process
from . import commands, hardware, packages, reach, runtimes, system
from .view import View

NAME: Final = "groundplane-inspect"
LIMIT: Final = 2 << 20
"""Bytes of the document."""
HOST: Final = "/host"
"""Where pods mount the node's root."""
IN_POD: Final = "KUBERNETES_SERVICE_HOST"
NODE_NAME: Final = "NODE_NAME"

_COMMAND: Final = Command(
    name=NAME,
    about="Look at this node and print what is there as JSON. Nothing is changed.",
    options=(
        Option(name="root", flags=("root",), help=f"the node's root (default {HOST} in a pod, else /)"),
        Option(name="reach", type=STRINGS, default=[], flags=("reach",), help="an address to reach; may be repeated"),
        Option(
            name="pull",
            type=STRINGS,
            default=[],
            flags=("pull",),
            help="an image whose manifest is asked for; may be repeated",
        ),
        Option(name="name", flags=("name",), env=(NODE_NAME,), help="the node's name (default: its host name)"),
    ),
)


class Document(msgspec.Struct, omit_defaults=True):
    """What is printed."""

    name: str
    when: str
    facts: dict[str, Any]
    commands: dict[str, Said]
    missing: list[str] = []


async def run(process: Process) -> int:
    """`groundplane-inspect`."""
    try:
        values = read(_COMMAND, process)
    except Leave as leave:
        return leave.tell(process)
    root = values["root"] or default_root(process)
    document = await look(process, root, values["name"], reaching=values["reach"], pulling=values["pull"])
    process.out(encoded(document).decode() + "\n")
    return 0


def default_root(process: Process) -> str:
    """Where the node's root is: empty in a pod that has not got it."""
    if process.path(f"{HOST}/etc").is_dir() and process.path(f"{HOST}/proc").is_dir():
        return HOST
    return "" if IN_POD in process.env else "/"


async def look(
    process: Process, root: str, name: str = "", *, reaching: list[str] | None = None, pulling: list[str] | None = None
) -> Document:
    """Look at the node whose root is at ``root``; empty: the kernel only."""
    view = View(HostRoot(process.path(root)) if root else None, process.kernel)
    await asyncio.to_thread(_read, view)
    said = dict(await commands.look(process, view, root))
    lines = await asyncio.to_thread(_kernel_log, process, view, root)
    if lines is not None:
        said["dmesg"] = Said(out="\n".join(lines), rc=0)
    await reach.look(process, view, reaching or [], pulling or [])
    missing = [f"{what}: {why}" for what, why in view.missing.items()]
    called = name or (view.text("/etc/hostname") or "").strip()
    return Document(called, process.now().strftime("%Y-%m-%dT%H:%M:%SZ"), view.facts, said, missing)


def _read(view: View) -> None:
    """All that is in files. A part that fails says so, the others go on."""
    installed: list[packages.Package] | None = None
    if view.host is not None:
        with _told(view, "packages"):
            installed = packages.installed(view)
    with _told(view, "hardware"):
        hardware.look(view)
    with _told(view, "system"):
        system.look(view, installed)
    with _told(view, "runtimes"):
        runtimes.look(view)
    view.facts.update(packages.versions(installed, _VERSIONS))


_VERSIONS: Final = {
    "nvidia-container-toolkit": "toolkit_version",
    "nvidia-fabricmanager": "fabric_manager_version",
    "kubelet": "kubelet_version",
}
"""Fact by the package whose version it is."""


@contextmanager
def _told(view: View, part: str) -> Iterator[None]:
    """What goes wrong with files that nobody has thought of is told, and ends this part only."""
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        view.lacks(part, f"{type(error).__name__}: {error}")


def _kernel_log(process: Process, view: View, root: str) -> list[str] | None:
    """The kernel's log, or what the node has written of it; None if neither can be read (which is told)."""
    path = f"{root.rstrip('/')}{system.KMSG}"
    try:
        return system.kernel_log(str(process.path(path)))
    except OSError as error:
        view.lacks("kernel log", f"{system.KMSG}: {error.strerror or error}")
        return None


def encoded(document: Document, limit: int = LIMIT) -> bytes:
    """The document as JSON of at most so many bytes: the longest commands, then facts, are left out if need be."""
    data = msgspec.json.encode(document)
    while len(data) > limit and (document.commands or document.facts):
        group: dict[str, Any] = document.commands or document.facts
        longest = max(group, key=lambda key: len(msgspec.json.encode(group[key])))
        size = len(msgspec.json.encode(group.pop(longest)))
        document.missing.append(f"{longest}: left out, as it has {size} bytes")
        data = msgspec.json.encode(document)
    return data
