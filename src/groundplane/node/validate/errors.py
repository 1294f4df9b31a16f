"""Why a component is not valid, in words for who reads the pod's log."""


class ValidationError(RuntimeError):
    """Validation fails, and waiting would not help; the text says what is wrong and what to do."""


class NotReady(ValidationError):  # noqa: N818 - reads as a fact
    """A component is not there yet: ``cause`` is what was found, ``awaited`` what would make it ready."""

    def __init__(self, cause: str, awaited: str) -> None:
        super().__init__(f"{cause}; awaited: {awaited}")
        self.cause = cause
        self.awaited = awaited
