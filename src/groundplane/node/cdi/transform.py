"""The paths of a spec, moved from one root to another (contracts/toolkit-cdi.md 3.7). Pure.

A path is below a root only if whole components say so: ``/run/drv`` is no root of ``/run/drv-old``.
"""

import posixpath
from collections.abc import Callable
from typing import Final

import msgspec

from .model import ContainerEdits, DeviceNode, Hook, Mount, Spec

HOST, CONTAINER = "host", "container"
RELATIVE_TO: Final = (HOST, CONTAINER)
_IN_CONTAINER: Final = frozenset({"createContainer", "startContainer"})
"""Hooks whose arguments are paths of the container."""
_FOUND_IN_CONTAINER: Final = "startContainer"
"""The hook whose program, too, is the container's."""

_Move = Callable[[str], str]


def root(spec: Spec, from_: str, to: str, relative_to: str = HOST) -> Spec:
    """The spec with all paths below one root moved below another; the same spec if the roots are the same.

    ``relative_to`` says which paths: the host's (of nodes, mounts, hooks) or the container's. A node's host path is
    written where the transformation concerns it, even if it ends up equal to the container's.
    """
    if relative_to not in RELATIVE_TO:
        raise ValueError(f"relative_to is {relative_to!r}, must be one of {', '.join(RELATIVE_TO)}")
    if from_ == to:
        return spec
    edit = _host_edits if relative_to == HOST else _container_edits
    source, target = from_.rstrip("/"), to

    def move(path: str) -> str:
        return moved(path, source, target)

    return msgspec.structs.replace(
        spec,
        container_edits=edit(spec.container_edits, move),
        devices=tuple(
            msgspec.structs.replace(device, container_edits=edit(device.container_edits, move))
            for device in spec.devices
        ),
    )


def moved(path: str, from_: str, to: str) -> str:
    """A path below another root, if it is below the first; ``/`` and an empty text are the root of all."""
    from_ = from_.rstrip("/")
    if not path.startswith("/") or (path != from_ and not path.startswith(f"{from_}/")):
        return path
    return posixpath.normpath(f"{to.rstrip('/')}/{path[len(from_) :].lstrip('/')}")


def _host_edits(edits: ContainerEdits, move: _Move) -> ContainerEdits:
    return msgspec.structs.replace(
        edits,
        device_nodes=tuple(_host_node(node, move) for node in edits.device_nodes),
        mounts=tuple(_host_mount(mount, move) for mount in edits.mounts),
        hooks=tuple(_host_hook(hook, move) for hook in edits.hooks),
    )


def _host_node(node: DeviceNode, move: _Move) -> DeviceNode:
    return msgspec.structs.replace(node, host_path=move(node.host_path or node.path))


def _host_mount(mount: Mount, move: _Move) -> Mount:
    return msgspec.structs.replace(mount, host_path=move(mount.host_path))


def _host_hook(hook: Hook, move: _Move) -> Hook:
    path = hook.path if hook.hook_name == _FOUND_IN_CONTAINER else move(hook.path)
    args = hook.args if hook.hook_name in _IN_CONTAINER else _arguments(hook.args, move)
    return msgspec.structs.replace(hook, path=path, args=args)


def _container_edits(edits: ContainerEdits, move: _Move) -> ContainerEdits:
    return msgspec.structs.replace(
        edits,
        device_nodes=tuple(_container_node(node, move) for node in edits.device_nodes),
        mounts=tuple(_container_mount(mount, move) for mount in edits.mounts),
        hooks=tuple(_container_hook(hook, move) for hook in edits.hooks),
    )


def _container_node(node: DeviceNode, move: _Move) -> DeviceNode:
    """A node whose host path is not given has the container's: it stays the same on the host."""
    path = move(node.path)
    host = node.host_path or (node.path if path != node.path else "")
    return msgspec.structs.replace(node, path=path, host_path=host)


def _container_mount(mount: Mount, move: _Move) -> Mount:
    return msgspec.structs.replace(mount, container_path=move(mount.container_path))


def _container_hook(hook: Hook, move: _Move) -> Hook:
    path = move(hook.path) if hook.hook_name == _FOUND_IN_CONTAINER else hook.path
    args = _arguments(hook.args, move) if hook.hook_name in _IN_CONTAINER else hook.args
    return msgspec.structs.replace(hook, path=path, args=args)


def _arguments(args: tuple[str, ...], move: _Move) -> tuple[str, ...]:
    """Both sides of ``target::link`` are paths."""
    return tuple("::".join(move(part) for part in arg.split("::", 1)) for arg in args)
