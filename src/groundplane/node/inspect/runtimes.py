"""What hands GPUs to containers on a node (A24, A29-A32, A38): container runtimes, CDI specs, toolkit and kubelet.

The configuration is read as the runtime would: the main file, then what it imports. A file that the runtime cannot read
is told with the reason. What of it is right for which release is left to preflight and the doctor.
"""

import fnmatch
import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ...api import names
from ..cdi.registry import DIRS, Registry
from ..toolkit.runtimes import containerd
from ..toolkit.runtimes.distributions import DISTRIBUTIONS, USUAL
from ..toolkit.runtimes.documents import ABSENT, Path, at
from ..toolkit.settings import RuntimeConfigError
from .view import View

SOCKETS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
)
CONTAINERD_FILES: Final = (
    USUAL,
    *(each.config for each in DISTRIBUTIONS if each.name in ("K3s", "RKE2")),
    "/run/k0s/containerd-cri.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)
DROP_INS: Final = ("/etc/containerd/conf.d/*.toml", "/etc/containerd/config.d/*.toml", "/etc/k0s/containerd.d/*.toml")
CRIO_FILES: Final = ("/usr/share/containers/crio.conf", "/etc/crio/crio.conf")
CRIO_DROP_INS: Final = ("/usr/share/crio/crio.conf.d/*", "/etc/crio/crio.conf.d/*")
NRI: Final = "io.containerd.nri.v1.nri"
NRI_SOCKET: Final = "/var/run/nri/nri.sock"
TOOLKIT_FOLDERS: Final = ("/usr/local/nvidia/toolkit", "/usr/bin", "/usr/local/bin", "/opt/nvidia/toolkit")
TOOLKIT: Final = ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-cli")
VALIDATIONS: Final = "/run/nvidia/validations"
PLUGIN_SOCKETS: Final = "nvidia-*.sock"
KUBELET_SOCKET: Final = "kubelet.sock"
_SPECS: Final = 64
_DEVICES: Final = 64
"""CDI specs, and devices of each, that are listed."""


class Configured(msgspec.Struct, omit_defaults=True):
    """A runtime's configuration as it is in force after a restart."""

    config: str
    config_version: int = 0
    imports: list[str] = []
    imported: list[str] = []
    cdi: bool | None = None
    """None where the configuration does not say, so that the runtime's own default counts."""
    cdi_spec_dirs: list[str] = []
    default_runtime: str = ""
    handlers: dict[str, str] = {}
    """Each handler's program; empty for the runtime's own."""
    nri: bool | None = None
    cgroup: str = ""
    errors: list[str] = []


def look(view: View) -> None:
    """All facts of this module."""
    if view.host is None:
        view.lacks("runtimes", "the node's root is not mounted in this container")
        return
    found = {"containerd": _containerd(view), "crio": _crio(view), "docker": _docker(view)}
    for name, configured in found.items():
        if configured is not None:
            view.tell(name, msgspec.to_builtins(configured))
    view.tell("sockets", [path for path in SOCKETS if view.exists(path)])
    view.tell("nri_socket", view.exists(NRI_SOCKET))
    inactive = _inactive(view, found["containerd"])
    view.tell("inactive_dropins", inactive)
    _cdi(view, [each for each in found.values() if each is not None])
    _toolkit(view)
    _kubelet(view)


# --- containerd -------------------------------------------------------------------------------------------------------


def _toml(view: View, path: str, errors: list[str]) -> dict[str, Any] | None:
    text = view.text(path)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        errors.append(f"{path}: {error}")
        return {}


def _containerd(view: View) -> Configured | None:
    path = next(filter(view.exists, CONTAINERD_FILES), None)
    if path is None:
        return None
    found = Configured(path)
    top = _toml(view, path, found.errors) or {}
    imports = top.get("imports", [])
    found.imports = [each for each in imports if isinstance(each, str)] if isinstance(imports, list) else []
    merged: dict[str, Any] = {}
    for document in (top, *_imported(view, path, found)):
        merged = containerd.merged(merged, _with_newest_names(document))
    try:
        found.config_version = containerd.version_of(top, path) or 0
    except RuntimeConfigError as error:
        found.errors.append(str(error))
    _containerd_settings(found, merged)
    return found


def _imported(view: View, path: str, found: Configured) -> Iterator[dict[str, Any]]:
    folder = path.rpartition("/")[0]
    for pattern in found.imports:
        for each in view.glob(pattern if pattern.startswith("/") else f"{folder}/{pattern}"):
            document = _toml(view, each, found.errors)
            if document is not None:
                found.imported.append(each)
                yield document


def _with_newest_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """The CRI plugin's table under the name it has since version 3, so that versions can be merged."""
    plugins = document.get("plugins")
    if not isinstance(plugins, Mapping):
        return dict(document)
    newest = containerd.table_name(containerd.NEWEST)
    renamed: dict[str, Any] = {}
    for name, table in plugins.items():
        key = newest if name in containerd.TABLES.values() else name
        renamed[key] = containerd.merged(renamed.get(key, {}), table)
    return {**document, "plugins": renamed}


def _containerd_settings(found: Configured, merged: Mapping[str, Any]) -> None:
    cri: Path = ("plugins", containerd.table_name(containerd.NEWEST))
    found.cdi = _of(bool, merged, (*cri, "enable_cdi"))
    dirs = _of(list, merged, (*cri, "cdi_spec_dirs")) or []
    found.cdi_spec_dirs = [each for each in dirs if isinstance(each, str)]
    found.default_runtime = _of(str, merged, (*cri, "containerd", "default_runtime_name")) or ""
    handlers = _of(dict, merged, (*cri, "containerd", "runtimes")) or {}
    found.handlers = {name: _of(str, table, ("options", "BinaryName")) or "" for name, table in handlers.items()}
    cgroup = _of(bool, merged, (*cri, "containerd", "runtimes", "runc", "options", "SystemdCgroup"))
    found.cgroup = "systemd" if cgroup else ""
    disabled = _of(bool, merged, ("plugins", NRI, "disable"))
    found.nri = None if disabled is None else not disabled


def _of(kind: type[Any], document: Any, path: Path) -> Any:
    """What is at a path, if it is of a kind; else None."""
    found = at(document, path)
    return found if found is not ABSENT and isinstance(found, kind) else None


def _inactive(view: View, found: Configured | None) -> list[str] | None:
    """Drop-ins in the usual folders that the main file does not import; None where there is no containerd."""
    if found is None:
        return None
    folder = found.config.rpartition("/")[0]
    patterns = [each if each.startswith("/") else f"{folder}/{each}" for each in found.imports]
    present = [path for pattern in DROP_INS for path in view.glob(pattern)]
    return [path for path in present if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]


# --- CRI-O and Docker -------------------------------------------------------------------------------------------------


def _crio(view: View) -> Configured | None:
    files = [*filter(view.exists, CRIO_FILES), *(path for pattern in CRIO_DROP_INS for path in view.glob(pattern))]
    if not files and not view.exists("/run/crio/crio.sock"):
        return None
    found = Configured(next((path for path in files if path in CRIO_FILES), ""))
    merged: dict[str, Any] = {}
    for path in files:
        merged = containerd.merged(merged, _toml(view, path, found.errors) or {})
    found.imported = [path for path in files if path != found.config]
    found.default_runtime = _of(str, merged, ("crio", "runtime", "default_runtime")) or ""
    dirs = _of(list, merged, ("crio", "runtime", "cdi_spec_dirs")) or []
    found.cdi, found.cdi_spec_dirs = True, [each for each in dirs if isinstance(each, str)]
    handlers = _of(dict, merged, ("crio", "runtime", "runtimes")) or {}
    found.handlers = {name: _of(str, table, ("runtime_path",)) or "" for name, table in handlers.items()}
    found.cgroup = _of(str, merged, ("crio", "runtime", "cgroup_manager")) or ""
    found.nri = _of(bool, merged, ("crio", "nri", "enable_nri"))
    return found


def _docker(view: View) -> Configured | None:
    path = "/etc/docker/daemon.json"
    text = view.text(path)
    if text is None:
        return None
    found = Configured(path)
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        found.errors.append(f"{path}: {error}")
        return found
    found.default_runtime = _of(str, document, ("default-runtime",)) or ""
    handlers = _of(dict, document, ("runtimes",)) or {}
    found.handlers = {name: _of(str, table, ("path",)) or "" for name, table in handlers.items()}
    found.cdi = _of(bool, document, ("features", "cdi"))
    return found


# --- CDI, toolkit, kubelet --------------------------------------------------------------------------------------------


def _cdi(view: View, configured: list[Configured]) -> None:
    if view.host is None:
        return
    dirs = list(dict.fromkeys((*DIRS, *(each for one in configured for each in one.cdi_spec_dirs))))
    registry = Registry.load(view.host.path, dirs)
    specs = [
        {"path": each.path, "kind": each.spec.kind, "devices": [device.name for device in each.spec.devices][:_DEVICES]}
        for each in registry.specs
    ]
    view.tell("cdi_specs", specs[:_SPECS])
    view.tell("cdi_errors", list(dict.fromkeys(registry.warnings()))[:_SPECS])


def _toolkit(view: View) -> None:
    view.tell(
        "toolkit", [path for folder in TOOLKIT_FOLDERS for name in TOOLKIT if view.exists(path := f"{folder}/{name}")]
    )
    view.tell("validations", [name for name in view.names(VALIDATIONS) or () if not name.startswith(".driver-ctr-")])
    view.tell("driver_container", view.exists(f"{VALIDATIONS}/.driver-ctr-ready"))


def kubelet_root(view: View) -> str:
    """The kubelet's folder: the usual one, or a distribution's."""
    known = (names.KUBELET_ROOT, "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet")
    return next((path for path in known if view.exists(f"{path}/device-plugins")), names.KUBELET_ROOT)


def _kubelet(view: View) -> None:
    root = kubelet_root(view)
    view.tell("kubelet_root", root)
    listed = view.names(f"{root}/device-plugins")
    if listed is None:
        view.lacks("device_plugins", f"{root}/device-plugins is not there or cannot be read")
        return
    view.tell("device_plugins", listed)
    view.tell("kubelet_socket", KUBELET_SOCKET in listed)
    view.tell("plugin_socket", any(fnmatch.fnmatchcase(name, PLUGIN_SOCKETS) for name in listed))
