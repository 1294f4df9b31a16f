"""What a container runs: the image's entrypoint and command under the pod's, by the rule that every image follows."""

from __future__ import annotations

from typing import Any

import pytest

from groundplane.lab import images
from groundplane.lab.programs import Image, default_argv

WITH_BOTH = Image(("serve",), {}, command=("--all",))
COMMAND_ONLY = Image((), {}, command=("sh",))


@pytest.mark.parametrize(
    ("image", "spec", "argv"),
    [
        (WITH_BOTH, {}, ("serve", "--all")),
        (WITH_BOTH, {"args": ["--one"]}, ("serve", "--one")),
        (WITH_BOTH, {"command": ["other"]}, ("other",)),
        (WITH_BOTH, {"command": ["other"], "args": ["x"]}, ("other", "x")),
        (COMMAND_ONLY, {}, ("sh",)),
        (COMMAND_ONLY, {"args": ["cat", "file"]}, ("cat", "file")),
        (COMMAND_ONLY, {"args": ["echo", "$(WHO)"]}, ("echo", "me")),
    ],
)
def test_the_pods_words_over_the_images(image: Image, spec: dict[str, Any], argv: tuple[str, ...]) -> None:
    assert default_argv(image, spec, {"WHO": "me"}) == argv


@pytest.mark.parametrize("name", list(images.IMAGES))
def test_every_image_runs_something_that_it_holds(name: str) -> None:
    image = images.IMAGES[name]
    first = (*image.entrypoint, *image.command)[0]
    assert first in image.executables or first in images.BASE
