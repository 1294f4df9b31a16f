"""Container logs: lines with their time, bounded, readable while they grow."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple

from ..clock import LabClock

LINE_LIMIT = 10_000
"""Lines kept of one container; older ones are dropped, as log rotation does."""


class Line(NamedTuple):
    """A line, with its end, and when it was written."""

    at: datetime
    text: bytes


class ContainerLog:
    """What one run of a container has printed."""

    def __init__(self, clock: LabClock, limit: int = LINE_LIMIT) -> None:
        self._clock = clock
        self._lines: deque[Line] = deque(maxlen=limit)
        self._written = 0
        self._partial = bytearray()
        self._news = asyncio.Event()
        self.closed = False

    def write(self, data: bytes) -> None:
        """Add output; a line counts when its end has come."""
        self._partial += data
        *lines, rest = self._partial.split(b"\n")
        self._partial = bytearray(rest)
        for line in lines:
            self._add(bytes(line) + b"\n")

    def close(self) -> None:
        """No more output will come; what is left without an end becomes a line."""
        if self._partial:
            self._add(bytes(self._partial))
            self._partial.clear()
        self.closed = True
        self._news.set()

    def _add(self, text: bytes) -> None:
        self._lines.append(Line(self._clock.now(), text))
        self._written += 1
        self._news.set()

    @property
    def text(self) -> str:
        """All that is kept, as text."""
        return b"".join(line.text for line in self._lines).decode(errors="replace")

    async def read(
        self, *, follow: bool = False, tail_lines: int | None = None, since: datetime | None = None
    ) -> AsyncIterator[Line]:
        """Yield kept lines, then with `follow` new ones until the container ends.

        `tail_lines` starts that many lines before the end, `since` at the first line written then or later.
        """
        start = [line for line in self._lines if since is None or line.at >= since]
        if tail_lines is not None:
            start = start[-tail_lines:] if tail_lines > 0 else []
        seen = self._written
        for line in start:
            yield line
        while follow:
            fresh = self._written - seen
            if fresh:
                seen = self._written
                for line in list(self._lines)[-fresh:]:
                    yield line
                continue
            if self.closed:
                return
            self._news.clear()
            await self._news.wait()
