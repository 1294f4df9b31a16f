"""`nvidia-mig-parted`: asserts, applies, exports, keeps, restores and generates MIG layouts of this machine.

Options, environment, messages and exit status are those of contracts/mig-exporter-validator.md 1.12. The driver's
library and its nvidia-smi are looked for in the folder that ``DRIVER_ROOT_CTR_PATH`` names, as the MIG manager's
environment has it, and else where the container has them.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from ..devices.mig import NvidiaSmi
from ..devices.source import DeviceError
from ..hostroot import HostPathError, write_atomic
from ..options import BOOL, STRING, Command, Leave, Option, OptionError, Values, read
from ..process import Completed, Process, unless_signalled
from . import change, checkpoint, compare, export, generate, hooks, layout, state
from .change import World
from .errors import LayoutError, MigError, NotApplied

ABOUT: Final = "Partition this machine's MIG-capable GPUs as layouts in a file say."


def _option(name: str, flag: str, env: str, about: str, default: object = "") -> Option:
    return Option(
        name=name.replace("-", "_"),
        type=BOOL if isinstance(default, bool) else STRING,
        flags=(name, flag),
        env=(f"MIG_PARTED_{env}",),
        help=about,
        default=default,
    )


_DEBUG = _option("debug", "d", "DEBUG", "tell what is done, and what hooks print", False)
_CONFIG = (
    _option("config-file", "f", "CONFIG_FILE", "file of layouts; - is standard input"),
    _option("selected-config", "c", "SELECTED_CONFIG", "name of the layout; may be left out if there is only one"),
)
_MODE_ONLY = _option("mode-only", "m", "MODE_CHANGE_ONLY", "concern MIG mode only, not instances", False)
_HOOKS = _option("hooks-file", "k", "HOOKS_FILE", "file of commands to run before and after")
_CHECKPOINT = _option("checkpoint-file", "f", "CHECKPOINT_FILE", "file that keeps the state of MIG")
_FORMAT = _option("output-format", "o", "OUTPUT_FORMAT", "yaml or json", "yaml")

_WORDS: Final = {
    "apply": "make the GPUs as a layout wants them, where they are not",
    "assert": "say whether the GPUs are as a layout wants them",
    "checkpoint": "keep the state of MIG in a file",
    "export": "print the layout that the GPUs have",
    "generate-config": "print the layouts that these GPUs allow",
    "restore": "make the GPUs as they were when a file was written",
}
_OPTIONS: Final[Mapping[str, tuple[Option, ...]]] = {
    "apply": (
        *_CONFIG,
        _HOOKS,
        _option("skip-reset", "s", "SKIP_RESET", "leave modes pending that need a reset of the GPU", False),
        _MODE_ONLY,
    ),
    "assert": (
        *_CONFIG,
        _MODE_ONLY,
        _option("valid-config", "a", "VALID_CONFIG", "only look whether the file is valid and has the layout", False),
    ),
    "checkpoint": (_CHECKPOINT,),
    "export": (
        _FORMAT,
        _option("config-label", "l", "CONFIG_LABEL", "name of the printed layout", "current"),
    ),
    "generate-config": (_option("output-file", "f", "OUTPUT_FILE", "write to a file, not standard output"), _FORMAT),
    "restore": (_CHECKPOINT, _HOOKS, _MODE_ONLY),
}
_REQUIRED: Final = ("config_file", "checkpoint_file")


async def run(process: Process) -> int:
    """`nvidia-mig-parted`."""
    arguments = list(process.argv[1:])
    at = next((at for at, each in enumerate(arguments) if not each.startswith("-")), len(arguments))
    try:
        about = Command(name="nvidia-mig-parted", about=ABOUT, options=(_DEBUG,), words=_WORDS)
        if not arguments:
            arguments = ["--help"]
        common = read(about, process, arguments[: at + 1])
        if not common.word:
            raise OptionError(f"nvidia-mig-parted: no command; it takes {', '.join(_WORDS)}")
        values = read(_command(common.word), process, arguments[at + 1 :])
        _check(values)
        invocation = _Invocation(process, values, debug=common["debug"])
        return await invocation.run(common.word)
    except Leave as leave:
        return leave.tell(process)


def _command(word: str) -> Command:
    return Command(name=f"nvidia-mig-parted {word}", about=f"{ABOUT} {word}: {_WORDS[word]}.", options=_OPTIONS[word])


def _check(values: Values) -> None:
    for option in values.options:
        if option.name in _REQUIRED and not values[option.name]:
            raise OptionError(f"missing required flags '{option.flags[0]}' (or ${option.env[0]})")
        if option is _FORMAT and values["output_format"] not in layout.FORMATS:
            raise values.mistake(
                "output_format", f"unrecognized 'output-format': {values['output_format']}; expected yaml or json"
            )


class _Invocation:
    """One run of a command."""

    def __init__(self, process: Process, values: Values, *, debug: bool) -> None:
        self._process = process
        self._values = values
        self._debug = debug

    async def run(self, word: str) -> int:
        """Run a command and return the exit status; a signal ends it between two steps."""
        commands: Mapping[str, Callable[[], Awaitable[None]]] = {
            "apply": self._apply,
            "assert": self._assert,
            "checkpoint": self._checkpoint,
            "export": self._export,
            "generate-config": self._generate,
            "restore": self._restore,
        }

        async def work() -> None:
            await commands[word]()

        try:
            number = await unless_signalled(self._process, work())
        except NotApplied as error:
            for line in error.differences:
                self._process.log.warning(line)
            self._process.log.error(str(error))
            return 1
        except (MigError, DeviceError, OSError) as error:
            self._process.log.error(str(error))
            return 1
        if number is not None:
            self._process.log.error(f"ended by {number.name}; run it again to bring it to its end")
            return 1
        return 0

    # --- commands -----------------------------------------------------------------------------------------------------

    async def _assert(self) -> None:
        selected = await self._selected()
        if self._values["valid_config"]:
            self._say("Selected MIG configuration is valid")
            return
        async with self._world() as world:
            states = state.read(world.control)
            self._warn(selected, states)
            compare.require(compare.mode(selected, states))
            if self._values["mode_only"]:
                self._say("Selected MIG mode settings from configuration currently applied")
                return
            compare.require(compare.config(selected, states))
            self._say("Selected MIG configuration currently applied")

    async def _apply(self) -> None:
        selected = await self._selected()
        around = self._hooks()
        async with self._world() as world:
            self._warn(selected, state.read(world.control))
            wanted = change.LayoutChange(world, selected, skip_reset=self._values["skip_reset"])
            await change.run(wanted, around, mode_only=self._values["mode_only"])
        self._say("MIG configuration applied successfully")

    async def _export(self) -> None:
        async with self._world() as world:
            found = {self._values["config_label"]: export.export(state.read(world.control))}
        self._process.out(layout.dump(found, self._values["output_format"]))

    async def _checkpoint(self) -> None:
        async with self._world() as world:
            kept = checkpoint.dump(state.read(world.control))
        self._write(self._values["checkpoint_file"], kept)
        self._say("MIG configuration checkpointed successfully")

    async def _restore(self) -> None:
        name = self._values["checkpoint_file"]
        kept = checkpoint.parse(self._read("checkpoint file", name), name)
        around = self._hooks()
        async with self._world() as world:
            wanted = checkpoint.CheckpointChange(world, kept)
            await change.run(wanted, around, mode_only=self._values["mode_only"])
        self._say("MIG configuration restored successfully")

    async def _generate(self) -> None:
        async with self._world() as world:
            found = layout.dump(generate.layouts(generate.discover(world.control)), self._values["output_format"])
        if self._values["output_file"]:
            self._write(self._values["output_file"], found)
        else:
            self._process.out(found)

    # --- what they need -----------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._process.out(f"{text}\n")

    def _tell(self, text: str) -> None:
        if self._debug:
            self._process.log.info(text)

    def _warn(self, selected: layout.Layout, states: Sequence[state.GpuState]) -> None:
        for text in layout.warnings(selected, [found.gpu for found in states]):
            self._process.log.warning(text)

    async def _selected(self) -> layout.Layout:
        name = self._values["config_file"]
        if name == "-":
            try:
                content, name = (await self._process.stdin()).decode(), "standard input"
            except UnicodeDecodeError as error:
                raise LayoutError(f"standard input is no text in UTF-8: {error}") from error
        else:
            content = self._read("config file", name)
        found = layout.select(layout.parse(content, name), self._values["selected_config"])
        if self._values.found.get("valid_config"):
            for text in layout.warnings(found):
                self._process.log.warning(text)
        return found

    def _hooks(self) -> hooks.Hooks:
        name = self._values["hooks_file"]
        found = hooks.parse(self._read("hooks file", name), name) if name else {}
        variables = {option.env[0]: _shown(self._values[option.name]) for option in self._values.options}
        return hooks.Hooks(self._process, found, variables, output=self._tell if self._debug else None)

    def _read(self, what: str, name: str) -> str:
        try:
            return self._process.path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, HostPathError) as error:
            raise MigError(f"{what} {name} cannot be read: {error}") from error

    def _write(self, name: str, content: str) -> None:
        try:
            file = self._process.path(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, content)
        except OSError as error:
            raise MigError(f"{name} cannot be written, and is as it was: {error}") from error

    @contextlib.asynccontextmanager
    async def _world(self) -> AsyncIterator[World]:
        if not module_loaded(self._process):
            raise MigError(
                "the NVIDIA driver is not loaded (/proc/modules has no module nvidia); MIG is read and changed through "
                "it: load the driver, and run this again"
            )
        root = self._process.env.get("DRIVER_ROOT_CTR_PATH", "") or "/"
        with self._process.devices(root) as source:
            yield World(source.mig(), nvidia_smi(self._process, root), self._tell, self._process.log.warning)


def module_loaded(process: Process) -> bool:
    """Whether the kernel has the driver's module, or does not say (contracts/mig-exporter-validator.md 1.10)."""
    try:
        modules = process.kernel.read_text("/proc/modules")
    except OSError:
        return True
    return any(line.split(" ", 1)[0] == "nvidia" for line in modules.splitlines())


def nvidia_smi(process: Process, driver_root: str) -> NvidiaSmi:
    """Runs the nvidia-smi of a driver root, which `/` or none leaves to the container's own PATH."""
    root = () if driver_root in ("", "/") else ("chroot", str(process.path(driver_root)))

    async def smi(arguments: Sequence[str]) -> Completed:
        return await process.execute((*root, "nvidia-smi", *arguments))

    return smi


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
