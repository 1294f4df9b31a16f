"""The one error of the image builder; it is caught by the command and printed."""


class ImageError(RuntimeError):
    """The image cannot be built; the text says what failed and what to do."""
