"""The driver: on the host or in a container, whether it works, and where its files and device nodes are.

contracts/mig-exporter-validator.md 6.4. :func:`check` only looks, as often as one likes; making the links in /dev/char,
by which containers keep their devices when systemd reloads, is :func:`link`'s.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from ...api import names
from ...api.release import Release
from .. import charlinks, controlnodes
from ..cdi.roots import simulated
from ..devices.nvml import LIBRARY_FOLDERS, SONAME
from ..hostroot import HostPathError, HostRoot
from ..process import Process
from .context import Context
from .errors import NotReady, ValidationError
from .settings import Settings
from .smi import TOOL
from .status import DRIVER_CONTAINER

HOST: Final = "/host"
"""Where the host's root is in this container."""
DRIVER_ROOT: Final = "/driver-root"
"""Where other operands have the driver container's installation."""
DEV_CHAR: Final = "/host-dev-char"
WSL: Final = "/usr/lib/wsl/lib/nvidia-smi"
HOST_TOOL: Final[Mapping[Release, tuple[str, ...]]] = {
    Release.V26_3: ("/usr/bin",),
    Release.V26_7: ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/lib/wsl/lib", "/opt/bin"),
}
"""Where the host may have the tool, by operator release, in order."""
TOOL_FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")
"""Where a driver container has it, beside its root."""
MODULE: Final = "/sys/module/nvidia/refcnt"
EXTRAS: Final[Mapping[str, str]] = {
    "GDRCOPY_ENABLED": "gdrcopy",
    "GDS_ENABLED": "nvidia-fs",
    "GPU_DIRECT_RDMA_ENABLED": "nvidia-peermem",
}
"""Components that the driver container says it has loaded, by its name of them; validated in this order."""
MANAGED_S, UNMANAGED_S = 300.0, 30.0
"""How long it counts that the operator runs driver containers, or that it does not: all nodes may wait at once."""
_OWNERS: Final = ("ClusterPolicy", "NVIDIADriver")
_VALIDATIONS: Final = f"{names.VALIDATIONS_DIR}/{DRIVER_CONTAINER}"

ADVICE: Final = """\
Without links in /dev/char to the NVIDIA devices, containers lose their GPUs when systemd reloads its units, where the
container runtime uses the systemd cgroup driver (https://github.com/NVIDIA/gpu-operator/issues/430).
If that driver is not in use, or something else makes the links, switch this off in the ClusterPolicy:

    validator:
      driver:
        env:
        - name: DISABLE_DEV_CHAR_SYMLINK_CREATION
          value: "true"
"""


class Driver(NamedTuple):
    """A driver that works: whether it is the host's, and its roots, each on the host and in other operands' containers.

    ``wsl``: the machine is a WSL guest, whose devices need no links.
    """

    host: bool
    root: str
    root_there: str
    dev_root: str
    dev_root_there: str
    wsl: bool = False
    extras: tuple[str, ...] = ()
    """Further components that the driver container says are loaded."""

    def text(self) -> str:
        """The content of the status file; scripts source it."""
        return (
            f"IS_HOST_DRIVER={str(self.host).lower()}\n"
            f"NVIDIA_DRIVER_ROOT={self.root}\n"
            f"DRIVER_ROOT_CTR_PATH={self.root_there}\n"
            f"NVIDIA_DEV_ROOT={self.dev_root}\n"
            f"DEV_ROOT_CTR_PATH={self.dev_root_there}\n"
        )


async def check(context: Context, *, quiet: bool = False) -> Driver:
    """Find a driver that works; ``quiet``: what its tool prints is dropped.

    Raises :class:`~.errors.NotReady`, or ValidationError where waiting does not help.
    """
    tell = _drop if quiet else context.process.out
    found, why_not = await _on_host(context, tell)
    if found is not None:
        context.note("host", "A driver is installed on the host")
        return found
    context.note("host", f"No driver is installed on the host: {why_not}")
    try:
        return await _in_container(context, tell)
    except NotReady as error:
        raise NotReady(
            f"no driver on the host ({why_not}), nor in a container: {error.cause}", error.awaited
        ) from error


def _drop(_text: str) -> None:
    pass


# --- on the host ------------------------------------------------------------------------------------------------------


async def _on_host(context: Context, tell: Callable[[str], None]) -> tuple[Driver | None, str]:
    process, root = context.process, context.settings.host_root
    driver = Driver(True, root, HOST, root, HOST)
    if _size(process, HOST + WSL):
        return driver._replace(wsl=True), ""
    tool = host_tool(process)
    if tool is None:
        return None, f"{HOST} has no {TOOL} that can be run in {', '.join(HOST_TOOL[process.release])}"
    try:
        tell(await context.smi.run(("chroot", HOST, tool, *arguments(context.settings))))
    except NotReady as error:
        return None, error.cause
    return driver, ""


def host_tool(process: Process) -> str | None:
    """The driver's tool as the host has it: a path, or in v26.3.3 a name; None if there is none that can be run."""
    for folder in HOST_TOOL[process.release]:
        path = f"{folder}/{TOOL}"
        if process.release is Release.V26_3:
            if _size(process, HOST + path):
                return TOOL
        elif _runs(HostRoot(process.path(HOST)), path):
            return path
    return None


def arguments(settings: Settings) -> tuple[str, ...]:
    """Arguments of the tool."""
    return ("--version",) if settings.skip_gpu_init else ()


def _size(process: Process, path: str) -> int:
    """The bytes of what is at a path, not followed if it is a link; 0 if there is nothing."""
    folder, _, name = path.rpartition("/")
    try:
        return (process.path(folder) / name).lstat().st_size
    except OSError:
        return 0


def _runs(host: HostRoot, path: str) -> bool:
    """Whether a regular file with something in it that can be executed is at a path, links resolved in the root."""
    try:
        status = host.path(path).stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0 and bool(status.st_mode & 0o111)


# --- in a container ---------------------------------------------------------------------------------------------------


async def _in_container(context: Context, tell: Callable[[str], None]) -> Driver:
    process, settings = context.process, context.settings
    managed = await context.remembered(
        "managed", partial(_is_managed, context), lambda known: MANAGED_S if known else UNMANAGED_S
    )
    if managed and not process.path(_VALIDATIONS).exists():
        raise NotReady(
            f"the driver container has not said that it is ready: {_VALIDATIONS} is not there",
            "the driver's pod on this node, which writes it when the driver is loaded; see that pod's log",
        )
    here = settings.driver_dir_here
    root = HostRoot(process.path(here or "/"))
    library = _required(root, here, SONAME, LIBRARY_FOLDERS)
    tool = _required(root, here, TOOL, TOOL_FOLDERS)
    preload = ":".join(filter(None, (library, process.env.get("LD_PRELOAD", ""))))
    tell(await context.smi.run((tool, *arguments(settings)), env={"LD_PRELOAD": preload}))
    own = process.path(f"{here}/dev").is_dir()
    return Driver(
        False,
        settings.driver_dir,
        DRIVER_ROOT,
        settings.driver_dir if own else settings.host_root,
        DRIVER_ROOT if own else HOST,
        extras=_extras(process) if managed else (),
    )


def _required(root: HostRoot, here: str, name: str, folders: Sequence[str]) -> str:
    """A file of the driver root as this container has it; links are resolved in the root."""
    for folder in ("", *folders):
        try:
            real = root.path(f"{folder}/{name}")
        except HostPathError:  # links that lead round in a circle
            continue
        if real.is_file():
            return here + root.host_path(real)
    raise NotReady(
        f"the driver root {here or '/'} has no {name} in {', '.join(('/', *folders))}",
        "an installation of the driver there, by the driver's pod on this node or by hand",
    )


class _Owner(msgspec.Struct):
    apiVersion: str = ""
    kind: str = ""
    controller: bool | None = None


class _Meta(msgspec.Struct):
    ownerReferences: list[_Owner] | None = None


class _Owned(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


async def _is_managed(context: Context) -> bool:
    """Whether the operator runs driver containers."""
    from ...cluster import kinds

    selector = f"{names.COMPONENT_LABEL}={names.DRIVER_COMPONENT}"
    async with context.api("looking for the operator's driver DaemonSets") as client:
        listing = await client.list(kinds.DAEMON_SET, context.settings.namespace or None, labels=selector, view=_Owned)
    owners = (owner for item in listing.items for owner in item.metadata.ownerReferences or ())
    return any(
        owner.controller and owner.apiVersion.startswith(f"{names.GROUP}/") and owner.kind in _OWNERS
        for owner in owners
    )


def _extras(process: Process) -> tuple[str, ...]:
    """Components that the driver container says it has loaded. Raises :class:`~.errors.ValidationError`."""
    from ...api import goyaml

    try:
        document = goyaml.loads(process.path(_VALIDATIONS).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, goyaml.DocumentError) as error:
        raise ValidationError(f"{_VALIDATIONS} of the driver container cannot be read: {error}") from error
    flags = {} if document is None else document
    if not isinstance(flags, dict):
        raise ValidationError(f"{_VALIDATIONS} of the driver container: expected a mapping of names, found {flags!r}")
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValidationError(f"{_VALIDATIONS} of the driver container: {name}: {value!r}; expected true or false")
    return tuple(component for name, component in EXTRAS.items() if flags.get(name))


# --- links in /dev/char -----------------------------------------------------------------------------------------------


async def link(context: Context, driver: Driver) -> None:
    """Make the missing device nodes, and links to all that there can be. Raises :class:`~.errors.ValidationError`."""
    process = context.process
    if driver.wsl or not context.settings.links or simulated(process):
        reason = "WSL" if driver.wsl else "the GPUs are simulated" if context.settings.links else "as asked"
        process.log.info(f"No links are made in /dev/char: {reason}")
        return
    try:
        problems = await _link(context, driver)
    except (controlnodes.NodeError, OSError) as error:
        problems = [str(error)]
    if problems:
        raise ValidationError("\n".join((*problems, "", ADVICE)))


async def _link(context: Context, driver: Driver) -> list[str]:
    process, settings = context.process, context.settings
    dev_root = HOST if driver.dev_root_there == HOST else settings.driver_dir_here
    if not process.kernel.exists(MODULE) and (driver.host or driver.dev_root == driver.root):
        root = HOST if driver.host else settings.driver_dir_here
        await charlinks.load_modules(process, root, dry_run=False)
    if os.access(process.path(f"{dev_root}/dev"), os.W_OK):
        controlnodes.create_control_nodes(process, dev_root)
    else:
        process.log.warning(f"{dev_root}/dev is read-only in this container: device nodes that are missing stay so")
    return charlinks.make(process, DEV_CHAR, driver.dev_root, list(charlinks.possible(process)))
