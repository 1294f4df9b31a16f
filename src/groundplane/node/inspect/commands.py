"""What a node's own programs say: the driver's tool, the service manager, versions. Each within a time of its own.

On the node they are run as they are, in a container that has the node's root with ``chroot``. One that cannot be run is
told as missing; nothing that changes a node is run.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ...diagnose.evidence import Command
from ..process import Completed, Process
from .hardware import DRIVER_ROOT
from .view import View

TIMEOUT_S: Final = 20.0
OUTPUT: Final = 64 << 10
"""Characters that are kept of what a command prints; of a longer one the beginning and the end."""
SMI: Final = "nvidia-smi"
SERVICES: Final = (
    *("containerd", "crio", "docker", "kubelet", "nvidia-fabricmanager", "nvidia-persistenced"),
    *("k3s", "k3s-agent", "rke2-server", "rke2-agent", "snap.microk8s.daemon-containerd", "k0sworker"),
)
CANNOT_RUN: Final = frozenset({125, 126, 127})
"""How chroot and shells say that there is no such program."""


class Commands:
    """Runs a node's programs and keeps what they said, by command line."""

    def __init__(self, process: Process, view: View, root: str) -> None:
        self._process = process
        self._view = view
        self._root = root
        self.said: dict[str, Command] = {}

    async def run(self, argv: Sequence[str], *, root: str = "", keep: bool = True) -> Completed | None:
        """A command's end; None if it could not be run or did not end, which is told."""
        line = " ".join(argv)
        below = f"{self._root.rstrip('/')}{root}"
        whole = argv if below in ("", "/") else ("chroot", below, *argv)
        try:
            done = await asyncio.wait_for(self._process.execute(tuple(whole)), TIMEOUT_S)
        except TimeoutError:
            self._view.lacks(line, f"it did not end within {TIMEOUT_S:g} s")
            return None
        except OSError as error:
            self._view.lacks(line, f"it cannot be run: {error.strerror or error}")
            return None
        if done.code in CANNOT_RUN:
            self._view.lacks(line, "it cannot be run: " + (_last(done.err) or f"exit code {done.code}"))
            return None
        if keep:
            self.said[line] = Command(out=bounded(done.out + done.err), rc=done.code)
        return done


def bounded(text: str, limit: int = OUTPUT) -> str:
    """A text of at most so many characters, the middle of a longer one left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


async def look(process: Process, view: View, root: str) -> Mapping[str, Command]:
    """All that is asked; the facts go into the view, what was said is returned."""
    commands = Commands(process, view, root)
    if view.host is None:
        await _driver_tool(commands, view, "")
        return commands.said
    await _tools(commands, view)
    await _services(commands, view)
    await _versions(commands, view)
    return commands.said


async def _tools(commands: Commands, view: View) -> None:
    """The host's own tool, else the driver container's."""
    if view.facts.get("host_tool"):
        await _driver_tool(commands, view, "")
    elif view.exists(f"{DRIVER_ROOT}/usr/bin/{SMI}"):
        await _driver_tool(commands, view, DRIVER_ROOT)


async def _driver_tool(commands: Commands, view: View, root: str) -> None:
    plain = await commands.run((SMI,), root=root)
    if plain is None:
        return
    view.tell("nvidia_smi_rc", plain.code)
    queried = await commands.run((SMI, "-q"), root=root)
    if queried is not None and queried.code == 0:
        tell_query(view.facts, queried.out)


_QUERY: Final = {
    "fabric_state": r"^\s+Fabric\s*\n\s+State\s*:\s*(.+)$",
    "fabric_status": r"^\s+Fabric\s*\n\s+State\s*:.*\n\s+Status\s*:\s*(.+)$",
    "cuda_version": r"^CUDA Version\s*:\s*(.+)$",
}


def tell_query(facts: dict[str, Any], text: str) -> None:
    """Facts of what ``nvidia-smi -q`` prints: the worst fabric state, how many GPUs, their UUIDs and names."""
    for fact, pattern in _QUERY.items():
        found = [match.strip() for match in re.findall(pattern, text, re.MULTILINE)]
        found = [each for each in found if each not in ("N/A", "")]
        if found:
            facts.setdefault(fact, next((each for each in found if each not in ("Completed", "Success")), found[0]))
    if count := re.search(r"^Attached GPUs\s*:\s*(\d+)$", text, re.MULTILINE):
        facts.setdefault("driver_gpus", int(count.group(1)))
    for fact, name in (("gpu_uuids", "GPU UUID"), ("gpu_names", "Product Name"), ("vbios", "VBIOS Version")):
        if found := [each.strip() for each in re.findall(rf"^\s+{name}\s*:\s*(.+)$", text, re.MULTILINE)]:
            facts.setdefault(fact, found)


class Service(msgspec.Struct, omit_defaults=True):
    """A service as its manager shows it."""

    state: str = ""
    enabled: str = ""


async def _services(commands: Commands, view: View) -> None:
    units = [f"{name}.service" for name in SERVICES]
    done = await commands.run(
        ("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState", *units), keep=False
    )
    found = services(done.out) if done is not None and done.code == 0 else {}
    if not found:
        found = {name: Service(state=state) for name in SERVICES if (state := _of_cgroup(view, name))}
    if not found:
        view.lacks("services", "neither the service manager nor its control groups tell of any known service")
        return
    view.tell("services", {name: msgspec.to_builtins(each) for name, each in found.items()})
    view.tell("fabric_manager", found["nvidia-fabricmanager"].state if "nvidia-fabricmanager" in found else None)


def services(text: str) -> dict[str, Service]:
    """Of what ``systemctl show`` prints: those that are installed, by name."""
    found = {}
    for block in text.split("\n\n"):
        told = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if told.get("LoadState") == "loaded" and told.get("Id"):
            name = told["Id"].removesuffix(".service")
            found[name] = Service(told.get("ActiveState", ""), told.get("UnitFileState", ""))
    return found


def _of_cgroup(view: View, name: str) -> str:
    """``active`` if the service's control group has processes; nothing else can be told of one."""
    for folder in ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice"):
        if view.of_kernel(f"{folder}/{name}.service/cgroup.procs"):
            return "active"
    return ""


_VERSION: Final = re.compile(r"v?(\d+\.\d+(?:\.\d+)?[\w.+~-]*)")
_ASKED: Final = {
    "containerd": ("containerd", "--version"),
    "crio": ("crio", "--version"),
    "fabric_manager_version": ("nv-fabricmanager", "--version"),
}
"""Command by fact (of a runtime: by the fact whose ``version`` it is)."""
TOOLKIT_TOOL: Final = "nvidia-ctk"


async def _versions(commands: Commands, view: View) -> None:
    for fact, argv in _ASKED.items():
        runtime = view.facts.get(fact)
        if isinstance(runtime, dict) or (fact not in ("containerd", "crio") and view.facts.get("fabric_manager")):
            version = _version(await commands.run(argv, keep=False))
            if isinstance(runtime, dict) and version:
                runtime["version"] = version
            elif version:
                view.tell(fact, version)
    path = next((path for path in view.facts.get("toolkit", ()) if path.endswith(f"/{TOOLKIT_TOOL}")), None)
    if path is not None and "toolkit_version" not in view.facts:
        view.tell("toolkit_version", _version(await commands.run((path, "--version"), keep=False)))


def _version(done: Completed | None) -> str | None:
    if done is None or done.code != 0:
        return None
    match = _VERSION.search(done.out)
    return match.group(1) if match else None
