"""NVIDIA's runtime on a simulated node, in place of the host's executable: which CDI devices a container asks it for.

It reads the configuration that the toolkit has installed beside the executable, and follows contracts/toolkit-cdi.md 6
for what pods of the lab can ask: the modes cdi and jit-cdi (and auto and legacy, which come to these), devices by
`NVIDIA_VISIBLE_DEVICES`. Requirements of images and gated devices are left to the real one.
"""

import tomllib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...node.cdi import model
from ...node.cdi.options import RUNTIME_KIND
from ...node.cdi.registry import DIRS
from ..host import HostError, SimulatedHost

PREFIX: Final = "nvidia-container-runtime"
CONFIG: Final = ".config/nvidia-container-runtime"
"""Folder of the configuration, beside the executable."""
_NOTHING: Final = frozenset({"", "void"})


class Request(NamedTuple):
    """CDI devices by qualified names, and the folders of the specs that they are in."""

    devices: tuple[str, ...]
    folders: tuple[str, ...]


NOTHING: Final = Request((), ())


def is_shim(binary: str) -> bool:
    """Whether a handler's binary is NVIDIA's runtime, whatever the handler is called."""
    return binary.rpartition("/")[2].startswith(PREFIX)


def request(host: SimulatedHost, binary: str, env: Mapping[str, str]) -> Request:
    """What a container gets from NVIDIA's runtime. HostError if its configuration is malformed.

    Without the driver's module it hands every container on as it is.
    """
    if not host.loaded("nvidia"):
        return NOTHING
    folder = f"{binary.rpartition('/')[0]}/{CONFIG}"
    config = _config(host, f"{folder}/config.toml")
    visible = _visible(env)
    if not visible:
        return NOTHING
    mode = {"cdi": "cdi", "legacy": "legacy"}.get(binary.rpartition(".")[2], config.get("mode", "auto"))
    cdi = config.get("modes", {}).get("cdi", {})
    if mode == "cdi" or (mode == "auto" and all(map(model.is_qualified, visible))):
        kind, folders = cdi.get("default-kind", "nvidia.com/gpu"), tuple(cdi.get("spec-dirs", DIRS))
    else:
        kind, folders = RUNTIME_KIND, (f"{folder}/cdi",)
    return Request(
        tuple(name if model.is_qualified(name) else model.qualified(kind, name) for name in visible), folders
    )


def _config(host: SimulatedHost, path: str) -> dict[str, Any]:
    if not host.root.exists(path):
        return {}
    try:
        table: dict[str, Any] = tomllib.loads(host.root.read_text(path)).get("nvidia-container-runtime", {})
    except tomllib.TOMLDecodeError as error:
        raise HostError(f"{path} is malformed: {error}; the toolkit's pod writes it at its start") from error
    return table


def _visible(env: Mapping[str, str]) -> list[str]:
    """The devices that the environment asks for: `all` or `none` alone, whichever comes first, or a list."""
    if "NVIDIA_VISIBLE_DEVICES" not in env:
        legacy = "CUDA_VERSION" in env and not env.get("NVIDIA_REQUIRE_CUDA")
        return ["all"] if legacy else []
    items = [item.strip() for item in env["NVIDIA_VISIBLE_DEVICES"].split(",")]
    items = [item for item in items if item]
    if not items or _NOTHING & set(items):
        return []
    return next(([item] for item in items if item in ("all", "none")), items)
