"""Stand-in for nvidia-toolkit (container toolkit): replaced by groundplane's node/toolkit and node/cdi.

Installs the toolkit's files, writes the management CDI spec and adds the runtime's handlers, then reverts the
configuration on its end (contracts/toolkit-cdi.md 4.4, 5). Configurations are made from scratch or by one import line;
merging into a person's configuration is left to the real program.
"""

import json
import posixpath
import tomllib

from ..programs import ContainerContext
from . import common

HANDLERS = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-legacy": "nvidia-container-runtime.legacy",
}
FILES = (*HANDLERS.values(), "nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-cli", "nvidia-container-runtime-hook")
NRI_NAME = "nvidia-container-toolkit"


class ToolkitError(RuntimeError):
    """A step failed; the text names it."""


async def run(ctx: ContainerContext) -> int:
    """`nvidia-toolkit`."""
    root = ctx.env.get("TOOLKIT_INSTALL_DIR") or ctx.env.get("ROOT") or "/usr/local/nvidia"
    pid_file = ctx.env.get("TOOLKIT_PID_FILE", "/run/nvidia/toolkit/toolkit.pid")
    ctx.write(pid_file, "1\n")
    nri = ctx.flag("ENABLE_NRI_PLUGIN")
    try:
        _install(ctx, root)
        if ctx.flag("CDI_ENABLED"):
            _write_cdi(ctx)
        if not nri:
            configure(ctx, root)
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
        revert(ctx)
    ctx.remove(pid_file)
    return 0


def _install(ctx: ContainerContext, root: str) -> None:
    for name in FILES:
        ctx.write(f"{root}/toolkit/{name}", f"#!/bin/sh\n# simulated {name}\n", mode=0o755)
    ctx.log(f"installed {len(FILES)} files in {root}/toolkit")


def _write_cdi(ctx: ContainerContext) -> None:
    if not ctx.host.device_nodes():
        raise ToolkitError("no NVIDIA device nodes found; is the driver loaded? See the driver pod of this node")
    folder = ctx.env.get("CDI_OUTPUT_DIR", "/var/run/cdi")
    gpus = ctx.host.gpus
    devices = [("all", gpus), *((str(gpu.index), (gpu,)) for gpu in gpus), *((gpu.uuid, (gpu,)) for gpu in gpus)]
    text = common.cdi_spec(
        "management.nvidia.com/gpu", devices, ctx.env.get("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver")
    )
    ctx.write(f"{folder}/management.nvidia.com-gpu.json", text)


def configure(ctx: ContainerContext, root: str) -> None:
    """Add the handlers to the configuration of the host's runtime and restart it."""
    runtime = ctx.env.get("RUNTIME", "docker")
    if runtime not in _WRITERS:
        raise ToolkitError(f"invalid runtime {runtime!r}; expected one of {', '.join(_WRITERS)}")
    binaries = {name: f"{root}/toolkit/{binary}" for name, binary in HANDLERS.items()}
    name = ctx.env.get("CONTAINERD_RUNTIME_CLASS") or "nvidia"
    if name not in binaries:
        binaries = {name: binaries["nvidia"], **{key: value for key, value in binaries.items() if key != "nvidia"}}
    _WRITERS[runtime](ctx, binaries)
    ctx.host.restart_runtime()
    ctx.log(f"configured {runtime} with handlers {', '.join(binaries)} and restarted it")


def revert(ctx: ContainerContext) -> None:
    """Take the handlers out again and restart the runtime."""
    runtime = ctx.env.get("RUNTIME", "docker")
    if runtime == "docker":
        _docker(ctx, {})
    else:
        ctx.remove(_drop_in(ctx, runtime))
        if runtime == "containerd":
            _write_imports(ctx, add=False)
    ctx.host.restart_runtime()
    ctx.log(f"removed the handlers from {runtime} and restarted it")


def _drop_in(ctx: ContainerContext, runtime: str) -> str:
    default = {"containerd": "/etc/containerd/conf.d/99-nvidia.toml", "crio": "/etc/crio/crio.conf.d/99-nvidia.toml"}
    return ctx.env.get("RUNTIME_DROP_IN_CONFIG") or default[runtime]


def _containerd(ctx: ContainerContext, binaries: dict[str, str]) -> None:
    lines = ["version = 3", "", '[plugins."io.containerd.cri.v1.runtime"]', "  enable_cdi = true"]
    for name, binary in binaries.items():
        table = f'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}'
        lines += [
            "",
            f"{table}]",
            '  runtime_type = "io.containerd.runc.v2"',
            f"{table}.options]",
            f'  BinaryName = "{binary}"',
        ]
    ctx.write(_drop_in(ctx, "containerd"), "\n".join(lines) + "\n")
    _write_imports(ctx, add=True)


def _write_imports(ctx: ContainerContext, *, add: bool) -> None:
    path = ctx.env.get("RUNTIME_CONFIG", "/etc/containerd/config.toml")
    real = ctx.path(path)
    text = real.read_text() if real.exists() else "version = 3\n"
    host_path = ctx.env.get("RUNTIME_DROP_IN_CONFIG_HOST_PATH", "/etc/containerd/conf.d/99-nvidia.toml")
    pattern = posixpath.dirname(host_path) + "/*.toml"
    try:
        imports = list(tomllib.loads(text).get("imports", []))
    except tomllib.TOMLDecodeError as error:
        raise ToolkitError(f"{path} is malformed: {error}; fix it, it was left as it is") from error
    if (pattern in imports) == add:
        return
    imports = [*imports, pattern] if add else [item for item in imports if item != pattern]
    lines = [line for line in text.splitlines() if not line.startswith("imports")]
    if imports:
        lines.insert(0, f"imports = {json.dumps(imports)}")
    ctx.write(path, "\n".join(lines) + "\n")


def _crio(ctx: ContainerContext, binaries: dict[str, str]) -> None:
    lines: list[str] = []
    for name, binary in binaries.items():
        lines += [f"[crio.runtime.runtimes.{name}]", f'runtime_path = "{binary}"', 'runtime_type = "oci"', ""]
    ctx.write(_drop_in(ctx, "crio"), "\n".join(lines))


def _docker(ctx: ContainerContext, binaries: dict[str, str]) -> None:
    path = ctx.env.get("RUNTIME_CONFIG", "/etc/docker/daemon.json")
    real = ctx.path(path)
    document = json.loads(real.read_text()) if real.exists() else {}
    runtimes = {name: table for name, table in document.get("runtimes", {}).items() if name not in HANDLERS}
    document["runtimes"] = runtimes | {name: {"path": binary, "args": []} for name, binary in binaries.items()}
    ctx.write(path, json.dumps(document, indent=4) + "\n")


_WRITERS = {"containerd": _containerd, "crio": _crio, "docker": _docker}
