"""Options of config-manager (contracts/device-plugin-gfd.md 7)."""

import signal
from typing import Any, Final

import msgspec

from ...api import names
from .. import options
from ..options import Command, Option, OptionError, Values
from ..process import Process

COMMAND: Final = Command(
    name="config-manager",
    about="Point a program to the configuration that its node's label names, and tell it when that changes.",
    options=(
        Option(
            name="oneshot",
            type=options.BOOL,
            flags=("oneshot",),
            env=("ONESHOT",),
            default=False,
            help="choose once and end",
        ),
        Option(
            name="kubeconfig",
            flags=("kubeconfig",),
            env=("KUBECONFIG",),
            help="how to reach the API server; empty: as a pod of the cluster",
        ),
        Option(name="node_name", flags=("node-name",), env=("NODE_NAME",), help="the node's name; required"),
        Option(
            name="node_label",
            flags=("node-label",),
            env=("NODE_LABEL",),
            default=names.DEVICE_PLUGIN_CONFIG,
            help="the label of the node that names the configuration",
        ),
        Option(
            name="source",
            flags=("config-file-srcdir",),
            env=("CONFIG_FILE_SRCDIR",),
            help="folder of the configurations to choose from; required",
        ),
        Option(
            name="destination",
            flags=("config-file-dst",),
            env=("CONFIG_FILE_DST",),
            help="where the program expects its configuration; required",
        ),
        Option(
            name="default_config",
            flags=("default-config",),
            env=("DEFAULT_CONFIG",),
            help="the configuration of a node without the label",
        ),
        Option(
            name="fallbacks",
            type=options.STRINGS,
            flags=("fallback-strategies",),
            env=("FALLBACK_STRATEGIES",),
            default=(),
            help="what to choose without label and default, in order: named, single, empty",
        ),
        Option(
            name="send_signal",
            type=options.BOOL,
            flags=("send-signal",),
            env=("SEND_SIGNAL",),
            default=True,
            help="tell the program of a change",
        ),
        Option(
            name="signal",
            type=options.INT,
            flags=("signal",),
            env=("SIGNAL",),
            default=int(signal.SIGHUP),
            help="number of the signal that tells it",
        ),
        Option(
            name="process",
            flags=("process-to-signal",),
            env=("PROCESS_TO_SIGNAL",),
            default="nvidia-device-plugin",
            help="the program to tell, by the first word of its command line or that word's last path component",
        ),
        Option(
            name="watch_content",
            type=options.BOOL,
            flags=("watch-content",),
            env=("WATCH_CONTENT",),
            default=True,
            help="also tell the program when the chosen file was edited",
        ),
    ),
)
_REQUIRED: Final = ("node_name", "node_label", "source", "destination")
_SIGNALS: Final = range(1, 65)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What config-manager is asked to do; paths are those of its container."""

    oneshot: bool
    kubeconfig: str
    node_name: str
    node_label: str
    source: str
    destination: str
    default_config: str
    fallbacks: tuple[str, ...]
    send_signal: bool
    signal: int
    process: str
    watch_content: bool


def load(process: Process) -> Settings:
    """Read the options. Raises :class:`~..options.Leave`."""
    values = options.read(COMMAND, process)
    for name in _REQUIRED:
        if not values[name]:
            raise OptionError(f"{_named(values, name)} must not be empty: it has no default")
    if values["signal"] not in _SIGNALS:
        raise values.mistake("signal", f"{values['signal']} is not the number of a signal")
    if values["send_signal"] and not values["process"]:
        raise OptionError(f"{_named(values, 'process')} must not be empty while a signal is to be sent")
    found: dict[str, Any] = dict(values.found)
    return Settings(**found)


def _named(values: Values, name: str) -> str:
    option = next(each for each in values.options if each.name == name)
    return f"--{option.flags[0]} (${option.env[0]})"
