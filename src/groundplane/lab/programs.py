"""Programs: what runs in the lab's containers, and what a program sees of its container.

A container's process is an async function of a `ContainerContext`. Which one is decided as on a real node: the image
gives a default command and the executables it contains, the pod may give another command, and the executable's name is
looked up. The table of images is in `images.py`; the programs are in `standins/` and `shell/`. Starting, restarting and
probing containers is the kubelet's part. `onnode` gives the same programs a context in a real container.
"""

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, Self

from ..cluster.config import Config
from ..node.hostroot import MAX_LINKS, HostRoot, parts, write_atomic
from .clock import LabClock
from .driverfiles import DRIVER_BIN
from .host import Gpu, SimulatedHost

_pids = (number for number in itertools.count(1) if number != os.getpid())
"""Numbers for the lab's processes; this process' own stands for the container runtimes of the nodes."""

Output = Callable[[bytes], None]
Program = Callable[["ContainerContext"], Awaitable[int]]
"""A process: runs until it ends by itself, returns its exit code, and may be cancelled (killed) at any await."""


class Response(NamedTuple):
    """A program's answer to an HTTP request on one of its ports."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[str], Awaitable[Response]]
"""Answers a GET of a path (with query). Raises OSError if no answer comes."""


class Programs(Protocol):
    """Where a container's commands are looked up."""

    def find(self, container: "Container", argv: tuple[str, ...]) -> "Program":
        """The program behind a command. CommandNotFoundError if there is none."""


class Signalled(Protocol):
    """A process that takes signals."""

    @property
    def argv(self) -> Iterable[str]:
        """Its command line."""

    def deliver(self, number: int) -> None:
        """Send it a signal."""


class CommandNotFoundError(LookupError):
    """The container has no such executable; the text is the container runtime's."""

    def __init__(self, name: str) -> None:
        super().__init__(f'exec: "{name}": executable file not found in $PATH')


@dataclass(frozen=True, slots=True)
class Mount:
    """`inside` of a tree appears at `at` in the container."""

    at: str
    root: HostRoot
    inside: str = "/"
    read_only: bool = False


class Image(NamedTuple):
    """An image: its entrypoint, the executables it brings besides a base system's, its environment and its command.

    The command is what runs when a pod says nothing; a pod's arguments take its place, as with any image. `files` are
    those that programs look for in it, path to content.
    """

    entrypoint: tuple[str, ...]
    executables: Mapping[str, Program]
    env: Mapping[str, str] = {}
    command: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


class Stdin:
    """A process' standard input: bytes that are there already, then those that still come."""

    def __init__(self, data: bytes = b"", source: AsyncIterator[bytes] | None = None) -> None:
        self._buffer = bytearray(data)
        self._source = source

    async def _more(self) -> bool:
        if self._source is None:
            return False
        try:
            self._buffer += await anext(self._source)
        except StopAsyncIteration:
            self._source = None
        return True

    async def line(self) -> bytes:
        """The next line with its end; empty at the end of input."""
        while b"\n" not in self._buffer and await self._more():
            pass
        end = self._buffer.find(b"\n") + 1 or len(self._buffer)
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    async def rest(self) -> bytes:
        """All that is left."""
        while await self._more():
            pass
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


@dataclass(eq=False)
class Container:
    """What all processes of one container share.

    `gpus` are the GPUs that the runtime made visible; `driver_injected` says whether it mounted the driver's libraries
    and tools (through the NVIDIA runtime or CDI). `stopping` is set when the container is asked to end (SIGTERM).
    """

    host: SimulatedHost
    clock: LabClock
    registry: Programs
    pod: Mapping[str, Any]
    spec: Mapping[str, Any]
    image: Image
    rootfs: HostRoot
    mounts: tuple[Mount, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    driver_injected: bool = False
    handler: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    ports: dict[int, Handler | None] = field(default_factory=dict)
    peers: Callable[[], Iterable["Container"]] = tuple
    """The containers whose processes this one sees besides its own."""
    identity: Callable[[], Config] | None = None
    """How the pod's service account reaches the API server over HTTP, where there is such a server."""
    device_rules: int = 0
    """How often the host's systemd had dropped GPUs when the container was made (`SimulatedHost.rules_dropped`)."""
    _running: dict[int, Signalled] = field(default_factory=dict)
    _mounted_at: dict[str, Mount] = field(init=False)

    def __post_init__(self) -> None:
        self._mounted_at = {mount.at.rstrip("/"): mount for mount in self.mounts}

    @property
    def cut_off(self) -> bool:
        """Whether its GPUs were taken from its device rules; a privileged container may use all devices."""
        privileged = bool((self.spec.get("securityContext") or {}).get("privileged"))
        return bool(self.gpus) and not privileged and self.host.rules_dropped > self.device_rules

    @contextlib.contextmanager
    def runs(self, process: Signalled) -> Iterator[None]:
        """Count a process among the container's as long as it runs."""
        pid = next(_pids)
        self._running[pid] = process
        try:
            yield
        finally:
            del self._running[pid]

    def namespace(self) -> dict[int, Signalled]:
        """The processes of the container's PID namespace, by number."""
        found = dict(self._running)
        for peer in self.peers():
            found |= peer._running
        return dict(sorted(found.items()))

    def path(self, path: str) -> Path:
        """The real path behind a container path; it need not exist.

        Links lead where they lead in the container. Only those below a mount of the whole host stay in it, as for a
        program that changes its root to there.
        """
        done, links = "", 0
        waiting = parts(path)
        while waiting:
            part = waiting.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{part}"
            mount, inside = self._mounted(here)
            if mount.inside == "/" and mount.root.base == self.host.root.base:
                return mount.root.path("/".join((inside, *waiting)))
            real = mount.root.path(inside, follow=False)
            if here == mount.at.rstrip("/") or not real.is_symlink():
                done = here
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, "too many levels of symbolic links", path)
            target = str(real.readlink())
            done = "" if target.startswith("/") else done
            waiting = parts(target) + waiting
        mount, inside = self._mounted(done)
        return mount.root.path(inside)

    def _mounted(self, path: str) -> tuple[Mount, str]:
        """What a path of the container lies in, and its path there; paths are texts, as this is asked all the time."""
        at = path
        while (mount := self._mounted_at.get(at)) is None:
            if not at:
                return Mount("/", self.rootfs, ""), path
            at = at.rpartition("/")[0]
        return mount, f"{mount.inside}{path[len(at) :]}"

    def names_in(self, folder: str) -> list[str]:
        """Names a program finds in a container folder, mount points included."""
        real = self.path(folder)
        found = {entry.name for entry in real.iterdir()} if real.is_dir() else set()
        parents = (PurePosixPath(mount.at) for mount in self.mounts)
        found.update(path.name for path in parents if path.parent == PurePosixPath(folder))
        return sorted(found)

    def listen(self, port: int, handler: Handler | None) -> None:
        """Listen on a port of the pod, as `ContainerContext.serve`."""
        self.ports[port] = handler

    def unmount(self, path: str) -> None:
        """Take away what was mounted on the host at a path that it shares with this container."""
        self.host.root.remove(path)

    def restart_runtime(self) -> None:
        """Make the host's container runtime read its configuration again. HostError if it is malformed."""
        self.host.restart_runtime()


class ContainerContext:
    """One process in a container: its arguments, environment and streams, and all it can reach."""

    def __init__(
        self,
        container: Container,
        argv: Iterable[str],
        *,
        out: Output,
        err: Output | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin | None = None,
    ) -> None:
        self.container = container
        self.argv = tuple(argv)
        self.env = dict(container.env if env is None else env)
        self.out = out
        self.err = out if err is None else err
        self.stdin = Stdin() if stdin is None else stdin
        self.interruptible = False
        """Whether SIGTERM ends this process at once: true below a shell that has a trap for it."""

    @property
    def host(self) -> SimulatedHost:
        """The simulated host, for what a process does through the kernel (modules, devices, signals)."""
        return self.container.host

    @property
    def clock(self) -> LabClock:
        """Cluster time."""
        return self.container.clock

    @property
    def pod(self) -> Mapping[str, Any]:
        """The pod as it was when the container started."""
        return self.container.pod

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The GPUs that the container sees."""
        return self.container.gpus

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the container is asked to end."""
        return self.container.stopping

    def path(self, path: str) -> Path:
        """The real path behind a container path."""
        return self.container.path(path)

    def exists(self, path: str) -> bool:
        """Whether a container path exists."""
        return self.path(path).exists()

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file in one step, making missing folders."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text, mode=mode, durable=False)

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        self.path(path).unlink(missing_ok=True)

    def symlink(self, path: str, target: str) -> None:
        """Make or replace a symbolic link, whose target is a path as its reader sees it."""
        folder, _, name = path.rpartition("/")
        HostRoot(self.path(folder)).symlink(name, target)

    def log(self, text: str) -> None:
        """Print a line on standard output."""
        self.out(text.encode() + b"\n")

    def error(self, text: str) -> None:
        """Print a line on standard error."""
        self.err(text.encode() + b"\n")

    def flag(self, name: str, default: bool = False) -> bool:
        """An environment variable as a boolean; other values than `true` and `false` count as the default."""
        return {"true": True, "false": False}.get(self.env.get(name, "").lower(), default)

    def serve(self, port: int, handler: Handler | None = None) -> None:
        """Listen on a port of the pod; without a handler connections succeed and nothing is answered."""
        self.container.listen(port, handler)

    async def stopped(self, after_s: float | None = None) -> bool:
        """Wait until asked to end, at most this many cluster seconds; whether it was asked."""
        if after_s is None:
            await self.stopping.wait()
            return True
        if self.stopping.is_set():
            return True
        waiter = asyncio.ensure_future(self.stopping.wait())
        try:
            await self.clock.wait({waiter}, after_s)
        finally:
            waiter.cancel()
        return self.stopping.is_set()

    def child(
        self,
        argv: Iterable[str],
        *,
        env: Mapping[str, str] | None = None,
        out: Output | None = None,
        err: Output | None = None,
        stdin: Stdin | None = None,
    ) -> "ContainerContext":
        """A process started by this one; what is not given is inherited."""
        return ContainerContext(
            self.container,
            argv,
            env=self.env if env is None else env,
            out=self.out if out is None else out,
            err=self.err if err is None else err,
            stdin=self.stdin if stdin is None else stdin,
        )

    async def run(self) -> int:
        """Run `argv` and return its exit code. CommandNotFoundError if the container has no such executable."""
        return await self.container.registry.find(self.container, self.argv)(self)


class ProgramRegistry:
    """The images that registries of the lab's world hold, and the executables that every container has.

    `missing` are image references (exact, or a repository without tag) that cannot be pulled although they are known.
    """

    def __init__(
        self,
        images: Mapping[str, Image],
        base: Mapping[str, Program],
        *,
        interpreter: Program,
        injected: Mapping[str, Program],
        missing: Iterable[str] = (),
    ) -> None:
        self._images = dict(images)
        self._base = dict(base)
        self._interpreter = interpreter
        self._injected = dict(injected)
        self.missing = set(missing)

    @classmethod
    def standard(cls, *, missing: Iterable[str] = ()) -> Self:
        """The programs of the lab: stand-ins for the operands, and a base system."""
        from . import images  # the table imports every program; they import this module

        return cls(
            images.IMAGES,
            images.BASE,
            interpreter=images.INTERPRETER,
            injected=images.INJECTED,
            missing=missing,
        )

    def add_image(self, repository: str, entrypoint: Iterable[str], executables: Mapping[str, Program]) -> None:
        """Add an image by the last component of its repository, for a test or a scenario of its own."""
        self._images[repository] = Image(tuple(entrypoint), dict(executables))

    def image(self, reference: str) -> Image | None:
        """The image of a reference, or None if no registry has it."""
        repository = repository_of(reference)
        if reference in self.missing or repository in self.missing:
            return None
        return self._images.get(repository.rsplit("/", 1)[-1])

    def find(self, container: Container, argv: tuple[str, ...]) -> Program:
        """The program behind a command in a container. CommandNotFoundError if there is none."""
        if not argv:
            raise CommandNotFoundError("")
        folder, _, name = argv[0].rpartition("/")
        injected = self._injected if container.driver_injected or folder == DRIVER_BIN else {}
        for table in (container.image.executables, self._base, injected):
            if name in table:
                return table[name]
        if "/" in argv[0] and _is_script(container.path(argv[0])):
            return self._interpreter
        raise CommandNotFoundError(argv[0])


def repository_of(reference: str) -> str:
    """An image reference without tag and digest."""
    repository = reference.split("@", 1)[0]
    head, slash, last = repository.rpartition("/")
    return head + slash + last.split(":", 1)[0]


def image_missing(reference: str, missing: Iterable[str]) -> bool:
    """Whether a list of references or bare repositories names this image."""
    return any(entry in (reference, repository_of(reference)) for entry in missing)


def _is_script(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:2] == b"#!"


def default_argv(image: Image, spec: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, ...]:
    """The command line of a container: the pod's command and arguments over the image's, `$(NAME)` filled in."""
    entrypoint = spec.get("command") or image.entrypoint
    arguments = spec.get("args") or (() if spec.get("command") else image.command)
    return tuple(expand(part, env) for part in itertools.chain(entrypoint, arguments))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; unknown names stay, `$$` is a dollar sign (the kubelet's rule)."""
    result: list[str] = []
    at = 0
    while at < len(text):
        start = text.find("$", at)
        if start < 0 or start == len(text) - 1:
            break
        result.append(text[at:start])
        end = text.find(")", start)
        if text[start + 1] == "$":
            result.append("$")
            at = start + 2
        elif text[start + 1] == "(" and end > 0:
            name = text[start + 2 : end]
            result.append(env.get(name, text[start : end + 1]))
            at = end + 1
        else:
            result.append(text[start : start + 2])
            at = start + 2
    return "".join(result) + text[at:]
