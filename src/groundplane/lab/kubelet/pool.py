"""All kubelets of a lab behind one door: logs and commands go to the node that runs the pod."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime

from ..nodes import NodeSpec
from ..status import not_found
from .kubelet import Kubelet


class NodePool:
    """The lab's kubelets by node name; what the API server asks for logs and exec."""

    def __init__(self) -> None:
        self._kubelets: dict[str, Kubelet] = {}
        self.hollow_logs: dict[tuple[str, str], bytes] = {}
        """Logs of pods that only look as if they ran, by namespace and name; of all their containers and runs."""

    def __contains__(self, name: object) -> bool:
        return name in self._kubelets

    def __iter__(self) -> Iterator[Kubelet]:
        return iter(self._kubelets.values())

    def __getitem__(self, name: str) -> Kubelet:
        return self._kubelets[name]

    def add(self, name: str, kubelet: Kubelet) -> None:
        """Add a node."""
        self._kubelets[name] = kubelet

    def remove(self, name: str) -> None:
        """Remove a node; nothing happens if it is not there."""
        self._kubelets.pop(name, None)

    def specs(self) -> list[NodeSpec]:
        """The descriptions of all nodes."""
        return [kubelet.spec for kubelet in self._kubelets.values()]

    def of_pod(self, ns: str, pod: str) -> Kubelet:
        """The kubelet that runs a pod. StatusError 404 if none does."""
        for kubelet in self._kubelets.values():
            if kubelet.has_pod(ns, pod):
                return kubelet
        raise not_found("pods", "", pod)

    def logs(
        self,
        ns: str,
        pod: str,
        container: str = "",
        *,
        follow: bool = False,
        tail_lines: int | None = None,
        since: datetime | None = None,
        previous: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """A container's log."""
        if (written := self.hollow_logs.get((ns, pod))) is not None:
            return _written(written, tail_lines)
        return self.of_pod(ns, pod).logs(
            ns,
            pod,
            container,
            follow=follow,
            tail_lines=tail_lines,
            since=since,
            previous=previous,
            timestamps=timestamps,
        )

    async def exec(
        self,
        ns: str,
        pod: str,
        container: str,
        argv: list[str],
        stdin: AsyncIterator[bytes] | None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
    ) -> int:
        """Run a command in a container."""
        return await self.of_pod(ns, pod).exec(ns, pod, container, argv, stdin, stdout, stderr)

    async def http_get(self, ns: str, pod: str, port: int, path: str) -> tuple[int, str]:
        """Ask a port of a pod."""
        return await self.of_pod(ns, pod).http_get(ns, pod, port, path)


async def _written(text: bytes, tail_lines: int | None) -> AsyncIterator[bytes]:
    lines = text.splitlines(keepends=True)
    yield b"".join(lines if tail_lines is None else lines[max(0, len(lines) - tail_lines) :])
