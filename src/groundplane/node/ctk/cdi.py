"""`nvidia-ctk cdi`: writes a CDI specification of this machine, or changes the root of the paths in one.

contracts/toolkit-cdi.md 3.9: upstream's options, environment variables and defaults. What stands in a specification is
decided by ``node/cdi``; `cdi list` is in :mod:`.cdilist`.
"""

import asyncio
import posixpath
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .. import options
from ..cdi import generate as generation
from ..cdi import hooks, tegra, transform, write
from ..cdi.model import Spec, SpecError, check, parse_qualified
from ..cdi.options import HOOK_PATH, GenerateError, Libraries, Mode, Strategy, Wanted
from ..cdi.read import decode
from ..cdi.roots import Roots, simulated
from ..devices.source import DeviceError, Source
from ..options import BOOL, STRINGS, Option, OptionError, Values
from ..process import Process
from .cdilist import list_devices

__all__ = ["generate", "list_devices", "transform_root"]

_ENV: Final = "NVIDIA_CTK_CDI_GENERATE_"
CONFIG_ENV: Final = "NVIDIA_CTK_CONFIG_FILE_PATH"
CONFIG: Final = "nvidia-container-runtime/config.toml"
"""The toolkit's configuration, below ``/etc`` or the user's folder of configurations."""
_HOOK, _CTK = "nvidia-cdi-hook", "nvidia-ctk"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STDIN: Final = "-"


def _option(name: str, help: str, env: str = "", **more: Any) -> Option:
    return Option(name=name, flags=(name, *more.pop("also", ())), env=(env,) if env else (), help=help, **more)


GENERATE: Final = options.Command(
    name="nvidia-ctk cdi generate",
    about="Write a CDI specification of this machine's GPUs, for container runtimes that know CDI.",
    options=(
        _option("output", "the file to write; standard output if none is given", "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"),
        _option("format", "json or yaml; as the output's name ends, else yaml", f"{_ENV}OUTPUT_FORMAT"),
        _option(
            "mode",
            f"what to look for: {', '.join(each.value for each in Mode)}",
            f"{_ENV}MODE",
            default="auto",
            also=("discovery-mode",),
        ),
        _option(
            "device-name-strategy",
            f"how devices are named, each once for each strategy: {', '.join(each.value for each in Strategy)}",
            f"{_ENV}DEVICE_NAME_STRATEGIES",
            type=STRINGS,
            default=("index", "uuid"),
        ),
        _option(
            "driver-root",
            "where the driver is; nvidia-container-cli.root of the toolkit's configuration if not given, else /",
            "NVIDIA_CTK_DRIVER_ROOT",
        ),
        _option("dev-root", "where /dev is; the driver root if not given", "NVIDIA_CTK_DEV_ROOT"),
        _option(
            "nvidia-cdi-hook-path",
            f"the hooks' program; looked for in PATH if not given, else {HOOK_PATH}",
            "NVIDIA_CTK_CDI_HOOK_PATH",
            also=("nvidia-ctk-path",),
        ),
        _option("ldconfig-path", "the ldconfig that hooks are to run", f"{_ENV}LDCONFIG_PATH"),
        _option("vendor", "vendor of the devices", f"{_ENV}VENDOR", default="nvidia.com", also=("cdi-vendor",)),
        _option("class", "class of the devices", f"{_ENV}CLASS", default="gpu", also=("cdi-class",)),
        _option(
            "device-id",
            "only these devices: all, none, an index or a UUID",
            f"{_ENV}DEVICE_IDS",
            type=STRINGS,
            default=("all",),
            also=("device-ids", "device", "devices"),
        ),
        _option("no-all-device", "no device all", f"{_ENV}NO_ALL_DEVICE", type=BOOL, default=False),
        _option(
            "disable-hook",
            f"hooks to leave out, or all: {', '.join(hooks.NAMES)}",
            f"{_ENV}DISABLED_HOOKS",
            type=STRINGS,
            default=(),
            also=("disable-hooks",),
        ),
        _option(
            "enable-hook",
            "hooks to have even if they are disabled",
            f"{_ENV}ENABLED_HOOKS",
            type=STRINGS,
            default=(),
            also=("enable-hooks",),
        ),
        _option(
            "feature-flag",
            f"features to switch on: {', '.join(sorted(generation.FEATURES))}",
            f"{_ENV}FEATURE_FLAGS",
            type=STRINGS,
            default=(),
            also=("feature-flags",),
        ),
        _option(
            "libraries",
            "how libraries get into containers: hooks (as NVIDIA's toolkit has it) or hookless",
            "CDI_LIBRARIES",
            default=Libraries.HOOKS.value,
        ),
        _option(
            "config-search-path",
            "folders with the driver's configuration files, instead of the usual ones",
            f"{_ENV}CONFIG_SEARCH_PATHS",
            type=STRINGS,
            default=(),
        ),
        _option(
            "library-search-path",
            "folders with the driver's libraries, instead of the usual ones",
            f"{_ENV}LIBRARY_SEARCH_PATHS",
            type=STRINGS,
            default=(),
        ),
        _option(
            "csv.file", "lists of a Tegra's files, for mode csv", f"{_ENV}CSV_FILES", type=STRINGS, default=tegra.FILES
        ),
        _option(
            "csv.ignore-pattern",
            "links in the lists to leave out",
            f"{_ENV}CSV_IGNORE_PATTERNS",
            type=STRINGS,
            default=(),
        ),
        _option(
            "csv.compat-container-root",
            f"where an Orin's containers have CUDA's compatibility libraries; {tegra.COMPAT_ROOT} if not given",
            f"{_ENV}CSV_CONTAINER_COMPAT_ROOT",
        ),
    ),
)

TRANSFORM: Final = options.Command(
    name="nvidia-ctk cdi transform root",
    about="Change the root of the paths in a CDI specification.",
    options=(
        _option("from", "the root to be replaced"),
        _option("to", "the root to have instead; nothing changes if they are the same"),
        _option("input", "the specification's file; - for standard input", default=_STDIN),
        _option("output", "the file to write; standard output if none is given"),
        _option("relative-to", "whether the host's paths or the container's change: host or container", default="host"),
    ),
)


class _NotLoadedError(RuntimeError):
    """A specification cannot be read; the text says why."""


# --- generate ---------------------------------------------------------------------------------------------------------


async def generate(process: Process, arguments: Sequence[str]) -> int:
    """`nvidia-ctk cdi generate`: 0, or 1 if there is no specification; an earlier file is left as it is then."""
    try:
        values = options.read(GENERATE, process, arguments)
        wanted = _wanted(process, values)
        output, form = _output(process, values)
    except options.Leave as leave:
        return leave.tell(process)
    source = process.devices(wanted.roots.driver or "/")
    try:
        specs = await asyncio.to_thread(_generated, process, source, wanted)
        encoded = [(infix, write.encode(spec, form)) for infix, spec in specs.items()]
        for infix, content in encoded:
            _put(process, content, _with_infix(output, infix))
    except (GenerateError, SpecError, OSError) as error:
        process.log.error(f"failed to generate CDI spec: {error}")
        return 1
    finally:
        source.close()
    for spec in specs.values():
        process.log.info(f"Generated CDI spec of {spec.kind} with {len(spec.devices)} devices")
    return 0


def _generated(process: Process, source: Source, wanted: Wanted) -> Mapping[str, Spec]:
    """The specifications; whether the driver's library must answer depends on the mode."""
    try:
        source.open()
    except DeviceError as error:
        process.log.info(f"the driver's library cannot be asked: {error}")
    return generation.generate_all(process, source, wanted)


def _wanted(process: Process, values: Values) -> Wanted:
    """What is asked for. Raises :class:`OptionError`."""
    vendor, device_class = values["vendor"], values["class"]
    for option, name in (("vendor", f"{vendor}/gpu=all"), ("class", f"nvidia.com/{device_class}=all")):
        try:
            parse_qualified(name)
        except SpecError as error:
            raise values.mistake(option, f"invalid CDI {option} name: {error}") from None
    if hooks.EVERY in values["enable-hook"]:
        raise values.mistake("enable-hook", "enabling all hooks is not supported")
    features = _features(process, values)
    for name in (*values["disable-hook"], *values["enable-hook"]):
        if name not in (*hooks.NAMES, hooks.EVERY):
            process.log.warning(f"there is no hook {name}; known are {', '.join(hooks.NAMES)}")
    all_device = not values["no-all-device"]
    if all_device and "none" in values["device-id"]:
        process.log.warning("Disabling generation of 'all' device")
        all_device = False
    return Wanted(
        mode=_choice(values, "mode", Mode, "invalid discovery mode"),
        roots=Roots.of(values["driver-root"] or _configured_root(process) or "/", values["dev-root"]),
        kind=f"{vendor}/{device_class}",
        strategies=_strategies(values),
        libraries=_choice(values, "libraries", Libraries, "invalid way for libraries"),
        hook_path=_hook_path(process, values["nvidia-cdi-hook-path"]),
        ldconfig_path=values["ldconfig-path"],
        disabled_hooks=frozenset(values["disable-hook"]),
        enabled_hooks=frozenset(values["enable-hook"]),
        device_ids=values["device-id"] or ("all",),
        all_device=all_device,
        features=features,
        config_search_paths=values["config-search-path"],
        library_search_paths=values["library-search-path"],
        csv_files=values["csv.file"],
        csv_ignore_patterns=values["csv.ignore-pattern"],
        csv_compat_root=values["csv.compat-container-root"],
        null_devices=simulated(process),
    )


def _choice(values: Values, option: str, kind: Any, what: str) -> Any:
    try:
        return kind(values[option].lower())
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise values.mistake(option, f"{what}: {values[option]}; must be one of {known}") from None


def _strategies(values: Values) -> tuple[Strategy, ...]:
    known = {each.value: each for each in Strategy}
    for name in values["device-name-strategy"]:
        if name not in known:
            raise values.mistake(
                "device-name-strategy", f"invalid device name strategy: {name}; must be one of {', '.join(known)}"
            )
    return tuple(known[name] for name in values["device-name-strategy"]) or (Strategy.INDEX,)


_MISSPELT: Final = {"disable-nvsandbox-utils": "disable-nvsandboxutils"}
"""Features by a name that upstream once had."""


def _features(process: Process, values: Values) -> frozenset[str]:
    found = frozenset(_MISSPELT.get(each, each) for each in values["feature-flag"])
    for name in sorted(found - generation.FEATURES):
        process.log.warning(f"there is no feature {name}; known are {', '.join(sorted(generation.FEATURES))}")
    return found


def _configured_root(process: Process) -> str:
    """``nvidia-container-cli.root`` of the toolkit's configuration. Raises :class:`OptionError` if that is none."""
    name = process.env.get(CONFIG_ENV) or f"{process.env.get('XDG_CONFIG_HOME') or '/etc'}/{CONFIG}"
    try:
        document = tomllib.loads(process.path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{name} cannot be read: {error}; mend it, or give --driver-root") from error
    root = options.at(document, "nvidia-container-cli.root")
    if root is not None and not isinstance(root, str):
        raise OptionError(f"{name}: nvidia-container-cli.root must be a string")
    return root or ""


def _hook_path(process: Process, given: str) -> str:
    """The hooks' program: as given if that is a path, else found by its name in ``PATH``, else in ``/usr/bin``."""
    if given.startswith("/"):
        return given
    name = _CTK if posixpath.basename(given) == _CTK else _HOOK
    for folder in (process.env.get("PATH") or _PATH).split(":"):
        path = posixpath.join(folder, name)
        real = process.path(path) if folder.startswith("/") else None
        if real is not None and real.is_file() and real.stat().st_mode & 0o111:
            return path
    return posixpath.join(posixpath.dirname(HOOK_PATH), name)


_FORMATS: Final = {"json": write.Format.JSON, "yaml": write.Format.YAML}
_ENDS: Final = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def _output(process: Process, values: Values) -> tuple[str, write.Format]:
    """The file to write, empty for standard output, and its format: a file's name decides, as it does for readers."""
    asked, output = values["format"].lower(), values["output"]
    if asked and asked not in _FORMATS:
        raise values.mistake("format", f"invalid output format: {asked}; must be json or yaml")
    told = _ENDS.get(posixpath.splitext(output)[1].lower(), "")
    if asked and told and asked != told:
        process.log.warning(
            f'Requested output format "{asked}" does not match format implied by output file name: "{told}"'
        )
    form = _FORMATS[told or asked or "yaml"]
    return _file(process, output, form), form


def _file(process: Process, output: str, form: write.Format) -> str:
    """A file's whole path, with an end by which readers know it."""
    if not output:
        return ""
    whole = posixpath.join(process.env.get("PWD") or "/", output)
    return whole if write.Format.of(whole) is not None else whole + form.value


def _with_infix(path: str, infix: str) -> str:
    """A file's name with something before its end; standard output stays that."""
    if not path:
        return ""
    head, end = posixpath.splitext(path)
    return f"{head}{infix}{end}"


def _put(process: Process, content: bytes, path: str) -> None:
    if path:
        write.replace(path, content, process.path)
    else:
        process.out(content.decode())


# --- transform --------------------------------------------------------------------------------------------------------


async def transform_root(process: Process, arguments: Sequence[str]) -> int:
    """`nvidia-ctk cdi transform root`: 0, or 1 if the specification cannot be read or written."""
    try:
        values = options.read(TRANSFORM, process, arguments)
        if values["relative-to"] not in transform.RELATIVE_TO:
            raise values.mistake("relative-to", f"invalid --relative-to value: {values['relative-to']}")
    except options.Leave as leave:
        return leave.tell(process)
    try:
        spec = await _loaded(process, values["input"])
        moved = transform.root(spec, values["from"], values["to"], values["relative-to"])
        check(moved)
        form = write.Format.of(values["output"]) or write.Format.YAML
        _put(process, write.encode(moved, form), _file(process, values["output"], form))
    except (_NotLoadedError, SpecError, OSError) as error:
        process.log.error(str(error))
        return 1
    return 0


async def _loaded(process: Process, name: str) -> Spec:
    if name == _STDIN:
        return decode(await process.stdin(), "standard input")
    try:
        content = process.path(posixpath.join(process.env.get("PWD") or "/", name)).read_bytes()
    except OSError as error:
        raise _NotLoadedError(f"failed to load CDI specification: {name}: {error.strerror or error}") from error
    return decode(content, name)
