"""Something that is redrawn in place while it changes, for commands that tell a story in a terminal."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

S = TypeVar("S")


class Live(Generic[S]):
    """A picture on a console; ``draw`` makes it of what is shown and of the console's width in columns."""

    def __init__(self, console: "Console", draw: "Callable[[S, int], RenderableType]") -> None:
        import rich.live

        self._console = console
        self._draw = draw
        self._live = rich.live.Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, value, trace)

    def show(self, seen: S) -> None:
        """Draw anew."""
        self._live.update(self._draw(seen, self._console.width), refresh=True)
