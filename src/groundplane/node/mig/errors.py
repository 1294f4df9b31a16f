"""What keeps a MIG layout from being read, planned or applied. The text says what, where and what to do."""


class MigError(Exception):
    """Something about MIG cannot be done as asked."""


class LayoutError(MigError):
    """A layout file cannot be used, or has no such layout; the text has a line for each problem."""


class PlanError(MigError):
    """No GPU of the kind can have these instances at once."""


class NotApplied(MigError):  # noqa: N818 - reads as a fact
    """The GPUs are not as the selected configuration wants them; ``differences`` says how, a line each."""

    def __init__(self, text: str, differences: tuple[str, ...]) -> None:
        super().__init__(text)
        self.differences = differences
