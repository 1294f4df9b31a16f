"""NVIDIA's bug report of a node, taken apart: what its kernel, its modules and its driver said.

A report is a text of sections, each below a line of underscores with what it quotes as its first line. Sections that
no signature asks for are left out. Which node a report is of is said by its file's name or by its ``uname``.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from .evidence import Command, KernelLog, NodeFacts

_RULE: Final = re.compile(r"^_{20,}\s*$", re.M)
_TITLE: Final = re.compile(r"^(?:\*\*\* )?(?P<title>\S.*?):?\s*$")
_SAID: Final[tuple[tuple[str, str], ...]] = (
    ("/proc/cmdline", "cat /proc/cmdline"),
    ("/proc/modules", "cat /proc/modules"),
    ("/proc/driver/nvidia/version", "cat /proc/driver/nvidia/version"),
    ("lsmod", "lsmod"),
    ("nvidia-smi --query", "nvidia-smi -q"),
    ("nvidia-smi -q", "nvidia-smi -q"),
    ("nvidia-smi", "nvidia-smi"),
    ("lspci", "lspci"),
    ("dmesg", "dmesg"),
)
"""By what a title has: the command under whose name a section is kept. The first that fits."""
_KERNEL_LINE: Final = re.compile(r"^\[ *[0-9]+\.[0-9]+\]|\bkernel: |^<[0-9]>|\bNVRM: ")
"""What a report quotes of the kernel's log, from dmesg or from the journal."""
_UNAME: Final = re.compile(r"^(?:uname: )?Linux (?P<node>[a-z0-9][a-z0-9.\-]*) [0-9]+\.[0-9]", re.M)
_MODULE: Final = re.compile(r"Kernel Module.*?\s(?P<version>[0-9]{3}\.[0-9.]+)")
LONGEST: Final = 256 << 10
"""Characters of a section that are kept; of a longer one the end."""


class Report(NamedTuple):
    """What a report says."""

    facts: NodeFacts
    kernel: KernelLog


def read(text: str, node: str = "") -> Report | None:
    """A report, None if neither a section nor a line of the kernel is in it; ``node`` is whose it is, if known."""
    said = dict(_sections(text))
    kernel = [line for line in text.split("\n") if _KERNEL_LINE.search(line)]
    if not (said or kernel):
        return None
    if not node and (found := _UNAME.search(text)) is not None:
        node = found["node"]
    facts: dict[str, Any] = {}
    for name in ("cat /proc/modules", "lsmod"):
        if name in said:
            rows = [line.split()[0] for line in said[name].split("\n") if line.split() and line[:1].isalnum()]
            facts["modules"] = [row for row in rows if row != "Module"]
            break
    if (version := _MODULE.search(said.get("cat /proc/driver/nvidia/version", ""))) is not None:
        facts["driver_version"] = version["version"]
    commands = {name: Command(body, None) for name, body in said.items() if name != "dmesg"}
    return Report(NodeFacts(node, facts, commands), KernelLog("\n".join(kernel), node))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """The sections that are known, the first of a name, without what the report says of the files themselves."""
    seen: set[str] = set()
    for part in _RULE.split(text)[1:]:
        head, _, body = part.lstrip("\n").partition("\n")
        title = _TITLE.match(head)
        if title is None or len(head) > 400:
            continue
        name = next((name for sign, name in _SAID if sign in title["title"]), "")
        if name and name not in seen:
            seen.add(name)
            lines = (line for line in body[-LONGEST:].split("\n") if not line.startswith("*** "))
            yield name, "\n".join(lines).strip("\n")
