"""The container runtime of a simulated node: sandboxes and running containers.

It stands where containerd or CRI-O stands, so containers outlive the kubelet: a kubelet that starts again finds them
here. It runs what it is told to run and remembers how it ended; when to start and restart is the kubelet's decision.
"""

import asyncio
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..clock import LabClock
from ..host import HostError
from ..programs import Container, ContainerContext, Output, Program, Stdin
from .logs import ContainerLog

KILLED = 137
LOST = 255
START_ERROR = 128
REVISIONS_KEPT = 2


class SandboxError(RuntimeError):
    """No sandbox can be made for a pod; the text is the runtime's."""


@dataclass(eq=False)
class Process:
    """One run of a container. `exit_code` and `finished_at` are set when it has ended."""

    name: str
    attempt: int
    sandbox: str
    container: Container
    argv: tuple[str, ...]
    image: str
    log: ContainerLog
    started_at: datetime
    id: str = field(default_factory=lambda: uuid.uuid4().hex * 2)
    finished_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    task: asyncio.Task[None] | None = None
    killed_as: tuple[int, str] = (KILLED, "")

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self.exit_code is None

    def end(self, exit_code: int, at: datetime, reason: str = "", message: str = "") -> None:
        """Record how it ended."""
        self.exit_code = exit_code
        self.finished_at = at
        self.reason = reason or ("Completed" if exit_code == 0 else "Error")
        self.message = message
        self.container.ports.clear()
        self.log.close()


class ContainerRuntime:
    """All sandboxes and containers of one node, by pod uid."""

    def __init__(self, clock: LabClock) -> None:
        self._clock = clock
        self._sandboxes: dict[str, str] = {}
        self._processes: dict[tuple[str, str], list[Process]] = {}
        self._listeners: dict[str, Callable[[], None]] = {}
        self.images: set[str] = set()

    def sandbox(self, pod_uid: str) -> str:
        """The id of a pod's sandbox, or an empty text."""
        return self._sandboxes.get(pod_uid, "")

    def create_sandbox(self, pod_uid: str, handler: str, handlers: dict[str, str]) -> str:
        """Make a pod's sandbox. SandboxError if the handler is not configured."""
        if handler and handler not in handlers:
            raise SandboxError(
                f'failed to get sandbox runtime: no runtime for "{handler}" is configured',
            )
        self._sandboxes[pod_uid] = uuid.uuid4().hex * 2
        return self._sandboxes[pod_uid]

    def listen(self, pod_uid: str, call: Callable[[], None] | None) -> None:
        """Call a function whenever one of the pod's containers ends; None stops that."""
        if call is None:
            self._listeners.pop(pod_uid, None)
        else:
            self._listeners[pod_uid] = call

    def pods(self) -> set[str]:
        """Uids of the pods that the runtime knows."""
        return set(self._sandboxes) | {uid for uid, _ in self._processes}

    def running(self, pod_uid: str = "") -> Iterator[Container]:
        """The containers that run, of one pod or of all."""
        for (uid, _), runs in self._processes.items():
            if runs[-1].running and pod_uid in ("", uid):
                yield runs[-1].container

    def last(self, pod_uid: str, name: str) -> Process | None:
        """The latest run of a container."""
        runs = self._processes.get((pod_uid, name))
        return runs[-1] if runs else None

    def previous(self, pod_uid: str, name: str) -> Process | None:
        """The run before the latest."""
        runs = self._processes.get((pod_uid, name), [])
        return runs[-2] if len(runs) > 1 else None

    def start(self, pod_uid: str, process: Process, program: Program) -> None:
        """Start a container."""
        self._remember(pod_uid, process)
        ctx = ContainerContext(process.container, process.argv, out=process.log.write)
        process.task = asyncio.create_task(
            self._run(pod_uid, process, program, ctx), name=f"container:{process.name}/{process.attempt}"
        )

    def record_failed_start(self, pod_uid: str, process: Process, message: str) -> None:
        """Remember a container that could not be started."""
        self._remember(pod_uid, process)
        process.end(START_ERROR, self._clock.now(), "StartError", message)

    def _remember(self, pod_uid: str, process: Process) -> None:
        runs = self._processes.setdefault((pod_uid, process.name), [])
        runs.append(process)
        del runs[:-REVISIONS_KEPT]

    async def _run(self, pod_uid: str, process: Process, program: Program, ctx: ContainerContext) -> None:
        code, reason = 1, ""
        try:
            with process.container.host.gpus_in_use(process.container.gpus):
                code = await program(ctx)
        except asyncio.CancelledError:
            code, reason = process.killed_as
        except MemoryError:
            code, reason = KILLED, "OOMKilled"
        except (HostError, OSError) as error:
            ctx.error(f"{process.argv[0]}: {error}")
        except Exception:  # noqa: BLE001 - a program's crash is its container's exit, never the lab's
            ctx.error(traceback.format_exc().rstrip())
        finally:
            if process.running:
                process.end(code, self._clock.now(), reason)
            listener = self._listeners.get(pod_uid)
            if listener:
                listener()

    async def stop(self, process: Process, grace_s: float, hurry: asyncio.Event | None = None) -> None:
        """Ask a container to end (SIGTERM), kill it after the grace period (cluster seconds) or when in a hurry."""
        task = process.task
        if task is None or task.done():
            return
        process.container.stopping.set()
        waits: set[asyncio.Future[Any]] = {task}
        impatient = asyncio.ensure_future(hurry.wait()) if hurry else None
        if impatient:
            waits.add(impatient)
        if grace_s > 0:
            await self._clock.wait(waits, grace_s)
        if impatient:
            impatient.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

    def forget(self, pod_uid: str) -> None:
        """Kill and drop everything of a pod."""
        self._sandboxes.pop(pod_uid, None)
        self._listeners.pop(pod_uid, None)
        for key in [key for key in self._processes if key[0] == pod_uid]:
            for process in self._processes.pop(key):
                if process.task is not None:
                    process.task.cancel()

    async def power_off(self) -> None:
        """End everything at once, as when the machine loses power; container records stay, as on a disk."""
        tasks = []
        for runs in self._processes.values():
            for process in runs:
                if process.running and process.task is not None:
                    process.killed_as = (LOST, "Unknown")
                    process.task.cancel()
                    tasks.append(process.task)
        self._sandboxes.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def execute(
        self, process: Process, argv: tuple[str, ...], *, out: Output, err: Output, stdin: Stdin | None = None
    ) -> int:
        """Run another command in a running container; its exit code. CommandNotFoundError as the container says."""
        return await ContainerContext(process.container, argv, out=out, err=err, stdin=stdin).run()
