"""The `config.toml` that the programs on the host read: what it says, and how it is written.

contracts/toolkit-cdi.md 4.6: keys sorted, tables nested and indented as NVIDIA's toolkit writes them. Where the file
goes is left to ``install``.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..cdi.registry import DIRS
from ..cdi.roots import simulated
from ..hostroot import HostRoot
from ..process import Process
from .options import Settings

FILE: Final = ".config/nvidia-container-runtime/config.toml"
"""Where it is below the toolkit's folder."""
CAPABILITIES: Final = "compat32,compute,display,graphics,ngx,utility,video"
LOW_LEVEL: Final = ("runc", "crun")
"""Low-level runtimes that are tried after all others."""
OS_RELEASE: Final = ("/etc/os-release", "/usr/lib/os-release")
SUSE: Final = frozenset({"suse", "opensuse"})
SUSE_USER: Final = "root:video"
"""Who owns the device nodes where not everybody may use them."""
LDCONFIG: Final = "/sbin/ldconfig"


class ConfigError(RuntimeError):
    """A config.toml cannot be read."""


def document(settings: Settings, runtimes: Sequence[str], *, ldconfig: str, user: str) -> dict[str, Any]:
    """What the file says; ``runtimes`` are the low-level runtimes, in the order in which they are tried."""
    folder = settings.folder
    said: dict[str, Any] = {
        "accept-nvidia-visible-devices-as-volume-mounts": settings.accept_mounts,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": settings.accept_env,
        "disable-require": False,
        "supported-driver-capabilities": CAPABILITIES,
        "swarm-resource": "",
        "nvidia-container-cli": {
            "debug": "",
            "environment": [],
            "ldcache": "",
            "ldconfig": f"@{ldconfig}",
            "load-kmods": True,
            "no-cgroups": False,
            "path": f"{folder}/nvidia-container-cli",
            "root": settings.roots.host_driver or "/",
            "user": user,
        },
        "nvidia-container-runtime": {
            "debug": "/dev/null",
            "log-level": "info",
            "mode": "auto",
            "runtimes": list(runtimes),
            "modes": {
                "cdi": {
                    "annotation-prefixes": ["cdi.k8s.io/"],
                    "default-kind": "nvidia.com/gpu",
                    "spec-dirs": list(DIRS),
                },
                "csv": {"mount-spec-path": "/etc/nvidia-container-runtime/host-files-for-container.d"},
                "legacy": {"cuda-compat-mode": "ldconfig"},
            },
        },
        "nvidia-container-runtime-hook": {
            "path": f"{folder}/nvidia-container-runtime-hook",
            "skip-mode-detection": settings.skip_mode_detection,
        },
        "nvidia-ctk": {"path": f"{folder}/nvidia-ctk"},
    }
    for path, value in settings.overrides.items():
        table = said
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = list(value) if isinstance(value, tuple) else value
    if settings.features:
        said["features"] = dict.fromkeys(settings.features, True)
    return said


def of_host(process: Process, settings: Settings, runtimes: Sequence[str]) -> str:
    """The file's text for this host. The driver's ldconfig is looked for where this container sees it."""
    driver = HostRoot(process.path(settings.roots.driver or "/"))
    real = ".real" if driver.exists(f"{LDCONFIG}.real") else ""
    said = document(
        settings,
        runtimes,
        ldconfig=f"{settings.roots.host_driver}{LDCONFIG}{real}",
        user=device_user(HostRoot(process.path(settings.host_root or "/"))),
    )
    if simulated(process):  # the host's program shall look at the simulated modules
        said["nvidia-container-runtime"]["modules-file"] = str(process.kernel.path("/proc/modules"))
    return render(said)


def device_user(host: HostRoot) -> str:
    """Who programs run as to use device nodes: of a SUSE the owners of the nodes, else nobody in particular."""
    for path in OS_RELEASE:
        try:
            text = host.read_text(path)
        except (OSError, ValueError):
            continue
        return SUSE_USER if SUSE.intersection(_like(text)) else ""
    return ""


def _like(os_release: str) -> list[str]:
    """The distributions that an os-release file says to be like."""
    for line in os_release.splitlines():
        key, _, value = line.strip().partition("=")
        if key == "ID_LIKE":
            return value.strip("\"'").split()
    return []


def installed_runtimes(path: Path) -> tuple[str, ...]:
    """The low-level runtimes that an installed file names. Raises :class:`ConfigError`."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the installed {path.name} cannot be read: {error}") from None
    table = said.get("nvidia-container-runtime")
    runtimes = table.get("runtimes") if isinstance(table, dict) else None
    if not isinstance(runtimes, list) or not all(isinstance(each, str) and each for each in runtimes):
        raise ConfigError(f"the installed {path.name} names no nvidia-container-runtime.runtimes")
    return tuple(runtimes)


# --- TOML -------------------------------------------------------------------------------------------------------------


def render(said: Mapping[str, Any]) -> str:
    """A document as TOML: values before tables, each sorted by key, tables indented by their depth."""
    return "".join(f"{line}\n" for line in _lines(said, ()))


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for key in sorted(table):
        if not isinstance(table[key], Mapping):
            yield f"{indent}{key} = {_value(table[key])}"
    for key in sorted(table):
        if isinstance(table[key], Mapping):
            below = (*path, key)
            yield ""
            yield f"{indent}[{'.'.join(below)}]"
            yield from _lines(table[key], below)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"no value of config.toml is a {type(value).__name__}")
