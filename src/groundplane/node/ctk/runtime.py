"""`nvidia-ctk runtime configure`: adds a handler to a container runtime's configuration (contracts/toolkit-cdi.md 5.8).

It reads the options and says what a person should do next; what is written where, the toolkit's `runtimes` decide. The
runtime is not restarted, and nothing is remembered: what it adds, a person takes out.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from .. import options
from ..options import BOOL, Command, Leave, Option, Values
from ..process import Process
from ..toolkit import runtimes
from ..toolkit.runtimes.crio import hook_text
from ..toolkit.settings import Handler, RuntimeConfigError, RuntimeSettings


class Usual(msgspec.Struct, frozen=True):
    """A runtime's files, and the handler's executable, where nothing else is said."""

    config: str
    drop_in: str
    executable: str


EXECUTABLE: Final = "nvidia-container-runtime"
RUNTIMES: Final = {
    "containerd": Usual(
        "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml", f"/usr/bin/{EXECUTABLE}"
    ),
    "crio": Usual("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml", f"/usr/bin/{EXECUTABLE}"),
    "docker": Usual("/etc/docker/daemon.json", "", EXECUTABLE),
}
HOOK_MODES: Final = frozenset({"oci-hook", "hook"})
CONFIG_MODES: Final = frozenset({"", "config-file", "config"})
SOURCES: Final = frozenset({"command", "file"})

COMMAND: Final = Command(
    name="nvidia-ctk runtime configure",
    about="Adds NVIDIA's runtime to the configuration of a container runtime.",
    options=(
        Option(
            name="dry_run",
            type=BOOL,
            default=False,
            flags=("dry-run",),
            help="print what would be written instead of writing it",
        ),
        Option(
            name="runtime",
            default="docker",
            flags=("runtime",),
            help=f"the container runtime to configure: {', '.join(RUNTIMES)}",
        ),
        Option(name="config", flags=("config",), help="its configuration file; by default the usual one"),
        Option(
            name="drop_in",
            flags=("drop-in-config",),
            help="the file to write instead of changing the main one; by default the usual one, empty for none",
        ),
        Option(
            name="executable", flags=("executable-path",), help="the runtime's program, for --config-source=command"
        ),
        Option(
            name="source",
            default="file",
            flags=("config-source",),
            help="where the present configuration is read: command or file",
        ),
        Option(name="mode", flags=("config-mode",), help="config-file, or oci-hook for a hook file (deprecated)"),
        Option(
            name="hook_file",
            flags=("oci-hook-path",),
            help="the hook file to write with --config-mode=oci-hook; printed if not given",
        ),
        Option(name="name", default="nvidia", flags=("nvidia-runtime-name",), help="the name of the handler"),
        Option(
            name="path",
            default=EXECUTABLE,
            flags=("nvidia-runtime-path", "runtime-path"),
            help="the handler's executable",
        ),
        Option(
            name="hook_path",
            default=f"/usr/bin/{EXECUTABLE}-hook",
            flags=("nvidia-runtime-hook-path",),
            help="the executable that the hook file names",
        ),
        Option(
            name="default",
            type=BOOL,
            default=False,
            flags=("nvidia-set-as-default", "set-as-default"),
            help="make the handler the runtime's default",
        ),
        Option(
            name="cdi",
            type=BOOL,
            default=False,
            flags=("cdi.enabled", "cdi.enable", "enable-cdi"),
            help="enable CDI in the runtime",
        ),
    ),
)


async def configure(process: Process, arguments: Sequence[str]) -> int:
    """Run the subcommand; its exit code."""
    try:
        values = options.read(COMMAND, process, arguments)
        if values["mode"] in HOOK_MODES:
            return await _configure_hook(process, values)
        settings = _settings(process, values)
    except Leave as leave:
        return leave.tell(process)
    try:
        if values["dry_run"]:
            await _show(process, settings)
        else:
            await _write(process, settings)
    except RuntimeConfigError as error:
        process.log.error(f"unable to update config: {error}")
        return 1
    return 0


async def _show(process: Process, settings: RuntimeSettings) -> None:
    texts = await runtimes.preview(process, settings)
    for path, text in texts.items():
        if settings.drop_in:
            process.log.info(f"{'Drop-in' if path == settings.drop_in else 'Top-level'} config ({path}):")
        process.out(text if text.endswith("\n") else f"{text}\n")


async def _write(process: Process, settings: RuntimeSettings) -> None:
    where = settings.drop_in or settings.config
    if await runtimes.configure(process, settings):
        process.log.info(f"Wrote updated config to {where}")
        process.log.info(f"It is recommended that {settings.runtime} daemon be restarted.")
    else:
        process.log.info(f"{where} says so already: nothing to do")


async def _configure_hook(process: Process, values: Values) -> int:
    """Write the hook file, or print it where no file is named."""
    process.log.warning(f'The "{values["mode"]}" config-mode is deprecated')
    if not values["hook_path"].startswith("/"):
        raise values.mistake("hook_path", _not_absolute("NVIDIA runtime hook path", values["hook_path"]))
    if values["dry_run"] or not values["hook_file"]:
        process.out(hook_text(values["hook_path"]))
        return 0
    folder, _, name = values["hook_file"].rpartition("/")
    settings = RuntimeSettings(
        runtime="crio",
        config="",
        handlers=(),
        config_mode="hook",
        hooks_dir=folder or ("/" if values["hook_file"].startswith("/") else "."),
        hook_filename=name,
        hook_path=values["hook_path"],
    )
    try:
        await runtimes.configure(process, settings)
    except RuntimeConfigError as error:
        process.log.error(f"error creating OCI hook: {error}")
        return 1
    return 0


def _settings(process: Process, values: Values) -> RuntimeSettings:
    """What is to be configured. Raises OptionError."""
    runtime = values["runtime"]
    if values["mode"] not in CONFIG_MODES:
        process.log.warning(f'Ignoring unsupported config mode for {runtime}: "{values["mode"]}"')
    if runtime not in RUNTIMES:
        raise values.mistake("runtime", f"unrecognized runtime '{runtime}': expected one of {', '.join(RUNTIMES)}")
    usual = RUNTIMES[runtime]
    name = values["name"]
    return RuntimeSettings(
        runtime=runtime,
        config=values["config"] or usual.config,
        drop_in=_drop_in(values, usual),
        executable=_unless_docker(process, values, "executable", "executable-path"),
        sources=(_source(process, values),),
        host_root="",
        handlers=(Handler(name, _path(values, usual)),),
        default=name if values["default"] else "",
        name=name,
        enable_cdi=_cdi(process, values),
    )


def _path(values: Values, usual: Usual) -> str:
    path: str = values["path"] if values["path"] != EXECUTABLE else usual.executable
    if values["runtime"] != "docker" and not path.startswith("/"):
        raise values.mistake("path", _not_absolute("NVIDIA runtime path", path))
    return path


def _drop_in(values: Values, usual: Usual) -> str:
    drop_in: str = usual.drop_in if values.sources["drop_in"] == options.DEFAULT else values["drop_in"]
    if drop_in and values["runtime"] == "docker":
        raise values.mistake("drop_in", "runtime docker does not support drop-in configs")
    if drop_in and not drop_in.startswith("/"):
        raise values.mistake("drop_in", _not_absolute("drop-in-config path", drop_in))
    return drop_in


def _not_absolute(what: str, path: str) -> str:
    return f'the {what} "{path}" is not an absolute path'


def _unless_docker(process: Process, values: Values, name: str, flag: str) -> str:
    value: str = values[name]
    if value and values["runtime"] == "docker":
        process.log.warning(f'Ignoring {flag}="{value}" flag for docker')
        return ""
    return value


def _source(process: Process, values: Values) -> str:
    source: str = values["source"]
    if source not in SOURCES:
        raise values.mistake("source", f"unrecognized Config Source: {source}: expected command or file")
    if source == "command" and values["runtime"] == "docker":
        process.log.warning("A command Config Source is not supported for docker; using file")
        return "file"
    return source


def _cdi(process: Process, values: Values) -> bool:
    if values["cdi"] and values["runtime"] == "crio":
        process.log.warning("Ignoring cdi.enabled flag for crio: it has CDI enabled always")
        return False
    return bool(values["cdi"])
