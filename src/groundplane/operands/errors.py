"""The one error of rendering: a policy and a cluster from which an operand's objects cannot be made.

Every other exception out of this room is a bug. The operator turns a RenderError into the condition
``ReconcileFailed`` and stops the pass (contracts/control-plane.md 1.7 and 4.1).
"""


class RenderError(Exception):
    """An operand cannot be rendered.

    ``state`` is the operand state's name; helpers that do not know it leave it empty and
    :func:`groundplane.operands.stack.render` fills it in. ``message`` says which field, what was
    found and what to do.
    """

    def __init__(self, state: str, message: str) -> None:
        super().__init__(state, message)
        self.state = state
        self.message = message

    def at(self, state: str) -> "RenderError":
        """The same error, placed in ``state`` unless it already has a place."""
        return self if self.state else RenderError(state, self.message)

    def __str__(self) -> str:
        return f"{self.state}: {self.message}" if self.state else self.message


def problem(message: str) -> RenderError:
    """An error of a helper that serves several states; the stack adds the state's name."""
    return RenderError("", message)
