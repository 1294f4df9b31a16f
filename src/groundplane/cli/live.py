"""Something that is redrawn in place while it changes, for commands that tell a story in a terminal."""

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

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


def fitted(
    forms: "Sequence[tuple[int, list[list[Text]]]]", width: int, *, right: Collection[str] = (), folded: Collection[str]
) -> "Table":
    """The first form that fits so many columns, widest first; in the last one the columns ``folded`` are folded.

    A table is never cut: cells of other columns stay whole. ``right`` names columns whose cells stand at the right.
    """
    from rich.cells import cell_len
    from rich.table import Table

    gap, cells = next((form for form in forms if _width(*form) <= width), forms[-1])
    view = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for heading, column in zip(cells[0], zip(*cells, strict=True), strict=True):
        least = None if heading.plain in folded else max(cell_len(cell.plain) for cell in column)
        justify: Literal["left", "right"] = "right" if heading.plain in right else "left"
        view.add_column(heading, justify=justify, overflow="fold", min_width=least)
    for row in cells[1:]:
        view.add_row(*row)
    return view


def _width(gap: int, cells: "list[list[Text]]") -> int:
    from rich.cells import cell_len

    widths = [max(cell_len(cell.plain) for cell in column) for column in zip(*cells, strict=True)]
    return sum(widths) + gap * (len(widths) - 1)
