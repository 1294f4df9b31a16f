"""The components that can be validated, and how one is: file away, check, file there.

contracts/mig-exporter-validator.md 6.2 and 6.3. :data:`TABLE` says of each component what is checked, whether it
applies to the node at all, which status files it owns, and whether waiting for it goes on for ever.
"""

import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from .context import Context
from .errors import NotReady, ValidationError


class Ready(NamedTuple):
    """The status file that says so: one of the component's own, and its content."""

    file: str
    content: str = ""


async def _always(_context: Context) -> bool:
    return True


class Component(msgspec.Struct, frozen=True):
    """One component.

    ``check`` raises :class:`~.errors.ValidationError`; ``applies`` says whether the node needs it at all: if not, its
    files are left alone. ``files`` are deleted before each validation. ``waits``: with --with-wait, it is tried again
    until it is valid.
    """

    check: Callable[[Context], Awaitable[Ready]]
    files: tuple[str, ...]
    applies: Callable[[Context], Awaitable[bool]] = _always
    waits: bool = True


def _later(module: str, function: str) -> Callable[[Context], Awaitable[Any]]:
    """A function of a room beside this one, imported when it is called: a container pays for one check only."""

    async def call(context: Context) -> Any:
        return await getattr(importlib.import_module(f".{module}", __package__), function)(context)

    return call


def _simple(
    check: Callable[[Context], Awaitable[None]],
    file: str,
    *,
    applies: Callable[[Context], Awaitable[bool]] = _always,
    waits: bool = True,
) -> Component:
    """A component with one file, which is empty."""

    async def checked(context: Context) -> Ready:
        await check(context)
        return Ready(file)

    return Component(checked, (file,), applies, waits)


async def _driver(context: Context) -> Ready:
    from . import driver

    found = await driver.check(context)
    for extra in found.extras:  # one try each: what the driver brings may be another when it is looked at again
        try:
            await _attempt(context, extra, TABLE[extra])
        except NotReady as error:
            raise NotReady(f"{extra}: {error.cause}", error.awaited) from error
        except ValidationError as error:
            raise ValidationError(f"{extra} validation: {error}") from error
    await driver.link(context, found)
    return Ready("driver-ready", found.text())


async def _cuda(context: Context) -> None:
    if context.settings.with_workload:
        from . import workload

        await workload.run(context, workload.CUDA)


async def _plugin(context: Context) -> None:
    from . import layers

    await layers.plugin(context)
    if context.settings.with_workload:
        from . import workload

        await workload.run(context, workload.PLUGIN)


async def _vgpu_manager(context: Context) -> Ready:
    from . import sandbox

    return Ready("host-vgpu-manager-ready" if await sandbox.vgpu_manager(context) else "vgpu-manager-ready")


def _module(component: str) -> Callable[[Context], Awaitable[None]]:
    async def check(context: Context) -> None:
        from . import layers

        await layers.require_module(context, MODULES[component])

    return check


MODULES: Final[Mapping[str, str]] = {
    "nvidia-fs": "nvidia_fs",
    "gdrcopy": "gdrdrv",
    "nvidia-peermem": "nvidia_peermem",
}
"""Components that are nothing but a kernel module."""
_PASSES_THROUGH, _HAS_VGPUS = _later("sandbox", "passes_through"), _later("sandbox", "has_vgpus")

TABLE: Final[Mapping[str, Component]] = {
    "driver": Component(_driver, ("driver-ready",)),
    "toolkit": _simple(_later("layers", "toolkit"), "toolkit-ready"),
    "cuda": _simple(_cuda, "cuda-ready", waits=False),
    "plugin": _simple(_plugin, "plugin-ready", waits=False),
    "mofed": _simple(_later("layers", "mofed"), "mofed-ready", applies=_later("layers", "needs_mofed")),
    "vfio-pci": _simple(_later("sandbox", "vfio_pci"), "vfio-pci-ready", applies=_PASSES_THROUGH, waits=False),
    "vgpu-manager": Component(_vgpu_manager, ("vgpu-manager-ready", "host-vgpu-manager-ready"), _HAS_VGPUS),
    "vgpu-devices": _simple(_later("sandbox", "vgpu_devices"), "vgpu-devices-ready", applies=_HAS_VGPUS),
    "cc-manager": _simple(_later("layers", "cc_manager"), "cc-manager-ready"),
    **{name: _simple(_module(name), f"{name}-ready") for name in MODULES},
}


AGAIN_S: Final = 60.0
"""What has been said of a component that is not ready is said again after so many seconds, though nothing changed."""


async def run(context: Context, name: str) -> None:
    """Validate a component, waiting for it if that was asked for.

    Raises :class:`~.errors.ValidationError`, which then names the component.
    """
    component, process = TABLE[name], context.process
    waits = context.settings.with_wait and component.waits
    said = began = process.monotonic()
    last = ""
    while True:
        try:
            await _attempt(context, name, component)
        except NotReady as error:
            now = process.monotonic()
            if not waits:
                raise ValidationError(f"{name} validation: {error}") from error
            if str(error) != last or now - said >= AGAIN_S:
                said, last = now, str(error)
                every = f"looking every {context.settings.interval_s} s"
                process.log.warning(f"{name} is not ready after {now - began:.0f} s: {error}; {every}")
        except ValidationError as error:
            raise ValidationError(f"{name} validation: {error}") from error
        else:
            return
        await process.sleep(context.settings.interval_s)


async def _attempt(context: Context, name: str, component: Component) -> None:
    if not await component.applies(context):
        context.process.log.info(f"{name} validation is skipped on this node")
        return
    context.status.delete(*component.files)
    ready = await component.check(context)
    context.status.write(ready.file, ready.content)
    context.process.log.info(f"{name} is valid: {context.settings.folder}/{ready.file}")
