"""What the rooms of the toolkit tell each other: the handlers of the host's runtime, and where its configuration is."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

HOST_PROGRAM: Final = "/usr/lib/groundplane/host/groundplane-host"
"""The one static executable for hosts, in the toolkit's image; it is installed under each of its names."""


class Handler(msgspec.Struct, frozen=True):
    """A runtime handler: its name and its binary, a path of the host."""

    name: str
    path: str


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a container runtime is to be configured (contracts/toolkit-cdi.md 4.3 and 5).

    Paths are those that the process sees, but for ``drop_in_host_path`` and the handlers'. An empty ``drop_in`` or
    ``default`` means none. ``state`` is a file in which what was there before is remembered across starts.
    """

    runtime: str
    config: str
    drop_in: str = ""
    drop_in_host_path: str = ""
    executable: str = ""
    """The runtime's program, relative to the host root; empty: its usual name."""
    sources: tuple[str, ...] = ("command", "file")
    host_root: str = "/host"
    handlers: tuple[Handler, ...]
    default: str = ""
    """The handler that is to be the runtime's default."""
    name: str = "nvidia"
    """The configured runtime name, even where it is not to be the default."""
    enable_cdi: bool = False
    annotation_prefixes: tuple[str, ...] = ()
    legacy_config: bool = False
    runtime_type: str = "io.containerd.runc.v2"
    override: Mapping[str, Any] = {}
    config_mode: str = "config"
    """CRI-O: ``config``, or ``hook`` for a hook file."""
    hooks_dir: str = "/usr/share/containers/oci/hooks.d"
    hook_filename: str = "oci-nvidia-hook.json"
    hook_path: str = ""
    """The executable that the hook file names, a path of the host."""
    state: str = ""


class RuntimeConfigError(RuntimeError):
    """The runtime's configuration cannot be read, changed or taken back; it is as it was. The text says what to do."""
