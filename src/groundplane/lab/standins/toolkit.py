"""Stand-in for nvidia-toolkit (container toolkit): replaced by groundplane's node/toolkit and node/cdi.

Installs the toolkit's files, writes the management CDI spec and adds the runtime's handlers, then reverts the
configuration on its end (contracts/toolkit-cdi.md 4.4, 5). Configurations are made from scratch or by one import line;
merging into a person's configuration is left to the real program.
"""

import json
import posixpath
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from ..programs import ContainerContext
from . import common

HANDLERS = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-legacy": "nvidia-container-runtime.legacy",
}
FILES = (*HANDLERS.values(), "nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-cli", "nvidia-container-runtime-hook")
LOADED = "/sys/module/nvidia/refcnt"
NRI_NAME = "nvidia-container-toolkit"
_CRI_NAME = "io.containerd.cri.v1.runtime"
_CRI = f'plugins."{_CRI_NAME}"'


_TOOL = "#!/bin/sh\n# simulated %(name)s\n"
_RUNTIME = """\
#!/bin/sh
# simulated %(name)s: gives a container that asks for GPUs the driver's files, then lets runc do the work
bundle=. create= previous=
for word; do
    case "$previous" in --bundle | -b) bundle="$word" ;; esac
    [ "$word" != create ] || create=yes
    previous="$word"
done
if [ -n "$create" ] && [ -e '%(loaded)s' ]; then
    config="$bundle/config.json"
    visible="$(grep -o '"NVIDIA_VISIBLE_DEVICES=[^"]*"' "$config" | tail -n 1 | cut -d = -f 2 | tr -d '"')"
    case "$visible" in
        '' | void | none) ;;
        *) sed -i 's|"mounts":\\[|"mounts":[%(mounts)s|' "$config" ;;
    esac
fi
exec runc "$@"
"""


def _oci_mount(source: str, destination: str) -> str:
    mount = {"destination": destination, "type": "bind", "source": source, "options": common.MOUNT_OPTIONS}
    return json.dumps(mount, separators=(",", ":"))


class ToolkitError(RuntimeError):
    """A step failed; the text names it."""


async def run(ctx: ContainerContext) -> int:
    """`nvidia-toolkit`."""
    root = ctx.env.get("TOOLKIT_INSTALL_DIR") or ctx.env.get("ROOT") or "/usr/local/nvidia"
    pid_file = ctx.env.get("TOOLKIT_PID_FILE", "/run/nvidia/toolkit/toolkit.pid")
    ctx.write(pid_file, "1\n")
    nri, imported = ctx.flag("ENABLE_NRI_PLUGIN"), False
    try:
        _install(ctx, root)
        if ctx.flag("CDI_ENABLED"):
            _write_cdi(ctx)
        if not nri:
            imported = configure(ctx, root)
    except ToolkitError as error:
        ctx.error(f"nvidia-toolkit: {error}")
        return 1
    if nri:
        ctx.host.nri_plugins.add(NRI_NAME)
    ctx.log("nvidia-toolkit: set up; waiting for a signal")
    try:
        await ctx.stopped()
    finally:
        ctx.host.nri_plugins.discard(NRI_NAME)
    if not nri:
        revert(ctx, imported)
    ctx.remove(pid_file)
    return 0


def _install(ctx: ContainerContext, root: str) -> None:
    mounts, loaded = common.driver_mounts(ctx), str(ctx.host.root.path(LOADED))
    for name in FILES:
        text = runtime_script(name, mounts, loaded) if name in HANDLERS.values() else _TOOL % {"name": name}
        ctx.write(f"{root}/toolkit/{name}", text, mode=0o755)
    ctx.log(f"installed {len(FILES)} files in {root}/toolkit")


def runtime_script(name: str, mounts: Iterable[tuple[str, str]], loaded: str) -> str:
    """A runtime for the host that brings mounts, (host path, container path), to containers that ask for GPUs.

    It does so while `loaded`, a file of the host that stands for the driver's module, exists.
    """
    values = {"name": name, "mounts": "".join(_oci_mount(*each) + "," for each in mounts), "loaded": loaded}
    return _RUNTIME % values


def _write_cdi(ctx: ContainerContext) -> None:
    if not ctx.host.device_nodes():
        raise ToolkitError("no NVIDIA device nodes found; is the driver loaded? See the driver pod of this node")
    folder = ctx.env.get("CDI_OUTPUT_DIR", "/var/run/cdi")
    gpus = ctx.host.gpus
    devices = [("all", gpus), *((str(gpu.index), (gpu,)) for gpu in gpus), *((gpu.uuid, (gpu,)) for gpu in gpus)]
    text = common.cdi_spec("management.nvidia.com/gpu", devices, common.driver_mounts(ctx))
    ctx.write(f"{folder}/management.nvidia.com-gpu.json", text)


def configure(ctx: ContainerContext, root: str) -> bool:
    """Add the handlers to the configuration of the host's runtime and restart it.

    Whether the person's own file had to be made to import the drop-in's folder.
    """
    runtime = ctx.env.get("RUNTIME", "docker")
    if runtime not in _WRITERS:
        raise ToolkitError(f"invalid runtime {runtime!r}; expected one of {', '.join(_WRITERS)}")
    binaries = {name: f"{root}/toolkit/{binary}" for name, binary in HANDLERS.items()}
    name = ctx.env.get("CONTAINERD_RUNTIME_CLASS") or "nvidia"
    if name not in binaries:
        binaries = {name: binaries["nvidia"], **{key: value for key, value in binaries.items() if key != "nvidia"}}
    imported = _WRITERS[runtime](ctx, binaries)
    ctx.container.restart_runtime()
    ctx.log(f"configured {runtime} with handlers {', '.join(binaries)} and restarted it")
    return imported


def revert(ctx: ContainerContext, imported: bool) -> None:
    """Take the handlers out again, and the import if `configure` put it there, and restart the runtime."""
    runtime = ctx.env.get("RUNTIME", "docker")
    if runtime == "docker":
        _docker(ctx, {})
    else:
        ctx.remove(_drop_in(ctx, runtime))
        if imported:
            _write_imports(ctx, add=False)
    ctx.container.restart_runtime()
    ctx.log(f"removed the handlers from {runtime} and restarted it")


def _drop_in(ctx: ContainerContext, runtime: str) -> str:
    default = {"containerd": "/etc/containerd/conf.d/99-nvidia.toml", "crio": "/etc/crio/crio.conf.d/99-nvidia.toml"}
    return ctx.env.get("RUNTIME_DROP_IN_CONFIG") or default[runtime]


def _containerd(ctx: ContainerContext, binaries: dict[str, str]) -> bool:
    ctx.write(_drop_in(ctx, "containerd"), containerd_drop_in(binaries, *_runc(ctx)))
    return _write_imports(ctx, add=True)


def containerd_drop_in(binaries: Mapping[str, str], runtime: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """A drop-in file that gives containerd handlers, each with its binary and otherwise as the runtime runc is."""
    lines = ["version = 3", "", f"[{_CRI}]", "  enable_cdi = true"]
    for name, binary in binaries.items():
        table = f"{_CRI}.containerd.runtimes.{name}"
        lines += ["", f"[{table}]", *_values({"runtime_type": "io.containerd.runc.v2", **runtime})]
        lines += [f"[{table}.options]", *_values({**options, "BinaryName": binary})]
    return "\n".join(lines) + "\n"


def _runc(ctx: ContainerContext) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and options of the runtime runc in the host's configuration, which the handlers take over."""
    table: Any = _containerd_config(ctx)
    for key in ("plugins", _CRI_NAME, "containerd", "runtimes", "runc"):
        table = table.get(key) or {}
    options = table.get("options") or {}
    return {key: value for key, value in table.items() if not isinstance(value, dict)}, options


def _values(table: Mapping[str, Any]) -> list[str]:
    """The lines of a TOML table of strings, numbers, truth values and lists of them, which JSON writes alike."""
    return [f"  {key} = {json.dumps(value)}" for key, value in table.items()]


def _containerd_config(ctx: ContainerContext) -> dict[str, Any]:
    path = ctx.env.get("RUNTIME_CONFIG", "/etc/containerd/config.toml")
    real = ctx.path(path)
    try:
        return tomllib.loads(real.read_text()) if real.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise ToolkitError(f"{path} is malformed: {error}; fix it, it was left as it is") from error


def _write_imports(ctx: ContainerContext, *, add: bool) -> bool:
    """Add or remove the import of the drop-in's folder; whether the file changed."""
    path = ctx.env.get("RUNTIME_CONFIG", "/etc/containerd/config.toml")
    real = ctx.path(path)
    text = real.read_text() if real.exists() else "version = 3\n"
    host_path = ctx.env.get("RUNTIME_DROP_IN_CONFIG_HOST_PATH", "/etc/containerd/conf.d/99-nvidia.toml")
    pattern = posixpath.dirname(host_path) + "/*.toml"
    imports = list(_containerd_config(ctx).get("imports", []))
    if (pattern in imports) == add:
        return False
    imports = [*imports, pattern] if add else [item for item in imports if item != pattern]
    lines = [line for line in text.splitlines() if not line.startswith("imports")]
    if imports:
        lines.insert(0, f"imports = {json.dumps(imports)}")
    ctx.write(path, "\n".join(lines) + "\n")
    return True


def _crio(ctx: ContainerContext, binaries: dict[str, str]) -> bool:
    lines: list[str] = []
    for name, binary in binaries.items():
        lines += [f"[crio.runtime.runtimes.{name}]", f'runtime_path = "{binary}"', 'runtime_type = "oci"', ""]
    ctx.write(_drop_in(ctx, "crio"), "\n".join(lines))
    return False


def _docker(ctx: ContainerContext, binaries: dict[str, str]) -> bool:
    path = ctx.env.get("RUNTIME_CONFIG", "/etc/docker/daemon.json")
    real = ctx.path(path)
    document = json.loads(real.read_text()) if real.exists() else {}
    runtimes = {name: table for name, table in document.get("runtimes", {}).items() if name not in HANDLERS}
    document["runtimes"] = runtimes | {name: {"path": binary, "args": []} for name, binary in binaries.items()}
    ctx.write(path, json.dumps(document, indent=4) + "\n")
    return False


_WRITERS = {"containerd": _containerd, "crio": _crio, "docker": _docker}
