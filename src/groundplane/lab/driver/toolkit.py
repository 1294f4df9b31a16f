"""`ocp_dtk_entrypoint`: on OpenShift the driver's modules are built in the driver toolkit's container.

Both containers share a folder, where files say how far the other is. Source: contracts/driver-lifecycle.md 6.2 and 6.9,
contracts/control-plane.md 5.4.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from ..programs import ContainerContext
from . import container, packages, sidecars
from .install import Installation, Options, Package
from .modules import KindError

SHARED: Final = "/mnt/shared-nvidia-driver-toolkit"
PREPARED, STARTED, BUILT, BROKEN = (
    f"{SHARED}/{name}" for name in ("dir_prepared", "driver_build_started", "driver_built", "driver_toolkit_broken")
)
_MODULES: Final = f"{SHARED}/modules"
_HANDED_OVER: Final = f"{SHARED}/env"
"""What the toolkit's container has to know of the driver's: its image and its variables."""
POLL_S: Final = 15.0
_IMAGE: Final = "GROUNDPLANE_DRIVER_IMAGE"


async def entrypoint(ctx: ContainerContext) -> int:
    """`ocp_dtk_entrypoint VERB`; an unknown one shows the usage and ends with 1."""
    verb = ctx.argv[1] if len(ctx.argv) > 1 else ""
    if verb not in _VERBS:
        ctx.error(f"Usage: ocp_dtk_entrypoint {{{' | '.join(_VERBS)}}}")
        return 1
    return await _VERBS[verb](ctx)


async def _driver(ctx: ContainerContext) -> int:
    """The driver's container: hand over, wait for the modules, load them; build itself where that cannot be."""
    installation = Installation(ctx, Options())
    if ctx.flag("RHCOS_IMAGE_MISSING"):
        ctx.log(f"WARNING: there is no toolkit image for RHCOS {ctx.env.get('RHCOS_VERSION', '')}; building here")
        return await container.init(ctx, Options())
    if installation.is_loaded():
        return await container.init(ctx, Options())
    if not ctx.exists(PREPARED):
        handed = {**ctx.env, _IMAGE: str(ctx.container.spec["image"])}
        ctx.write(_HANDED_OVER, msgspec.json.encode(handed).decode())
        ctx.write(PREPARED, "")
    if not await _wait(ctx, STARTED, "the toolkit's container to start"):
        return 1
    if ctx.exists(BROKEN):
        ctx.log("WARNING: the driver toolkit is broken; building here")
        return await container.init(ctx, Options())
    if not await _wait(ctx, BUILT, "the toolkit's container to build the modules"):
        return 1
    try:
        installation.choose_kind()
    except KindError as error:
        ctx.error(str(error))
        return 1
    installation.keep(msgspec.json.decode(ctx.path(_MODULES).read_bytes(), type=Package))
    return await container.load(ctx, Options())


async def _wait(ctx: ContainerContext, file: str, what: str) -> bool:
    """Wait for a file in the shared folder, or for the news that the toolkit cannot build; False if asked to end."""
    while not (ctx.exists(file) or ctx.exists(BROKEN)):
        ctx.log(f"Waiting for {what}...")
        if await ctx.stopped(POLL_S):
            return False
    return True


async def _build(ctx: ContainerContext) -> int:
    """The toolkit's container: build with its own headers, then stay."""
    if ctx.flag("RHCOS_IMAGE_MISSING"):
        ctx.log("WARNING: there is no toolkit image for this RHCOS; nothing to do")
        await ctx.stopped()
        return 0
    if not packages.toolkit(ctx).has(ctx.host.kernel):
        ctx.log(f"WARNING: the driver toolkit image is not for kernel {ctx.host.kernel}; the driver builds without it")
        ctx.write(BROKEN, "")
        await ctx.stopped()
        return 0
    ctx.write(STARTED, "")
    if not ctx.exists(BUILT):
        ctx.log("Start building the modules...")
        handed = msgspec.json.decode(ctx.path(_HANDED_OVER).read_bytes(), type=dict[str, str])
        ctx.env |= {name: handed[name] for name in ("KERNEL_MODULE_TYPE",) if name in handed}
        installation = Installation(ctx, Options(), reference=handed[_IMAGE])
        try:
            installation.choose_kind()
        except KindError as error:
            ctx.error(str(error))
            return 1
        made = await installation.build(headers=False)
        ctx.write(_MODULES, msgspec.json.encode(made).decode())
        ctx.write(BUILT, "")
    await ctx.stopped()
    return 0


async def _beside(ctx: ContainerContext) -> int:
    """The containers beside the driver's: their modules are built with the driver's."""
    if not ctx.flag("RHCOS_IMAGE_MISSING") and not await _wait(ctx, BUILT, "the toolkit's container"):
        return 1
    return await sidecars.extra(ctx)


_VERBS: Final[Mapping[str, Callable[[ContainerContext], Awaitable[int]]]] = {
    "nv-ctr-run-with-dtk": _driver,
    "dtk-build-driver": _build,
    "nv-fs-ctr-run-with-dtk": _beside,
    "gdrcopy-ctr-run-with-dtk": _beside,
}
