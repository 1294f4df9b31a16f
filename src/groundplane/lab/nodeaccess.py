"""What the API server asks of nodes: logs, commands and pages of containers. The lab's kubelets implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Protocol


class NodeAccess(Protocol):
    """The kubelets of all nodes behind one interface; methods raise `status.StatusError`."""

    def logs(
        self,
        ns: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        tail_lines: int | None = None,
        since: datetime | None = None,
        previous: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yield a container's log."""

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
        """Run a command in a container and return its exit code."""

    async def http_get(self, ns: str, pod: str, port: int, path: str) -> tuple[int, str]:
        """Ask a port of a pod for a page; its status and its text. A 503 if nothing listens there."""
