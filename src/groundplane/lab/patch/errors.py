"""What a patch can fail with."""


class PatchError(ValueError):
    """The patch does not fit the document; the message says which operation or field, and why."""
