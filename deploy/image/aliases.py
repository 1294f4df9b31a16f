"""Archives for tests: the one image under the names of NVIDIA's images, each with its own default command.

Where a pod names no command its image's entrypoint decides what runs, and one image has one entrypoint. So each name
gets a configuration of its own over the same layers: entrypoint, command and environment as the lab's table of images
has them, root as user, and two variables by which a stand-in knows which image it is in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from groundplane.lab import images
from groundplane.lab.onnode import IMAGE_ENV, REFERENCE_ENV
from groundplane.lab.programs import repository_of

from . import contents, launcher
from .archive import Image
from .errors import ImageError

_OPERATOR = "gpu-operator"


def entrypoint_key(reference: str) -> str:
    """The lab's key for an image reference: the last component of its repository. ImageError if the lab has none."""
    key = repository_of(reference).rpartition("/")[2]
    if key not in images.IMAGES:
        raise ImageError(f"the lab has no stand-in for image {reference}; it has {', '.join(sorted(images.IMAGES))}")
    return key


def alias(image: Image, reference: str, key: str | None = None, environment: Mapping[str, str] | None = None) -> Image:
    """The image under another name, with the entrypoint of one of the lab's images (by default that of the name)."""
    key = key or entrypoint_key(reference)
    if key not in images.IMAGES:
        raise ImageError(f"unknown entrypoint {key!r}; the lab has {', '.join(sorted(images.IMAGES))}")
    return replace(image, references=(reference,), config=_config(image.config, reference, key, environment or {}))


def _config(config: Mapping[str, Any], reference: str, key: str, more: Mapping[str, str]) -> dict[str, Any]:
    wanted = images.IMAGES[key]
    if key == _OPERATOR:  # the operator's own image keeps its entrypoint and user
        entrypoint, user, own = list(config["Entrypoint"]), config["User"], {}
    else:
        entrypoint, user, own = list(wanted.entrypoint), "0:0", dict(wanted.env)
    environment = contents.ENVIRONMENT | own | {IMAGE_ENV: key, REFERENCE_ENV: reference} | dict(more)
    if set(contents.DRIVER_ONLY) & set(wanted.executables):
        environment["PATH"] = f"/{launcher.DRIVER_PATH}:{environment['PATH']}"
    changed = {
        "User": user,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Entrypoint": entrypoint,
        "Cmd": list(wanted.command),
    }
    return {name: value for name, value in {**config, **changed}.items() if value}


def aliases(
    image: Image,
    references: Iterable[str] | Mapping[str, str | None],
    *,
    environment: Mapping[str, str] | None = None,
) -> list[Image]:
    """Images for some references, or for references with the key of the entrypoint each shall have.

    `environment` is set in all of them, such as `onnode.SPEED_ENV`.
    """
    wanted = references if isinstance(references, Mapping) else dict.fromkeys(references)
    return [alias(image, reference, key, environment) for reference, key in wanted.items()]
