"""Stand-in for k8s-driver-manager: replaced by groundplane's node/driver (driver manager).

Follows contracts/driver-lifecycle.md 5.3 as far as the lab needs it: host driver, keeping an equal driver, pausing
operands, unloading. Eviction of GPU pods and draining are left to the real program.
"""

from ...api import names
from .. import resources
from ..programs import ContainerContext
from . import common

MARK = "paused-for-driver-upgrade"
OPERANDS = {
    names.DEPLOY_OPERATOR_VALIDATOR: "nvidia-operator-validator",
    names.DEPLOY_TOOLKIT: "nvidia-container-toolkit-daemonset",
    names.DEPLOY_DEVICE_PLUGIN: "nvidia-device-plugin-daemonset",
    names.DEPLOY_GFD: "gpu-feature-discovery",
    names.DEPLOY_DCGM_EXPORTER: "nvidia-dcgm-exporter",
    names.DEPLOY_DCGM: "nvidia-dcgm",
    names.DEPLOY_MIG_MANAGER: "nvidia-mig-manager",
}
"""The deploy labels that are paused and the `app` of the pods that must go."""

HOST_DRIVER_PAUSE_S = 60.0
POLL_S = 5.0
WAIT_S = 300.0
PID_FILE = "/run/nvidia/nvidia-driver.pid"
STATE_FILE = "/run/nvidia/nvidia-driver.state"


async def run(ctx: ContainerContext) -> int:
    """`driver-manager uninstall_driver` or `preflight_check`."""
    action = ctx.argv[1] if len(ctx.argv) > 1 else ""
    if action == "preflight_check":
        ctx.log("preflight check passed")
        return 0
    if action != "uninstall_driver":
        ctx.error(f"unknown command {action!r}; expected uninstall_driver or preflight_check")
        return 1
    if ctx.exists("/host/usr/bin/nvidia-smi") and ctx.host.has_host_driver():
        common.set_node_labels(ctx, {names.DEPLOY_DRIVER: "pre-installed"}, "k8s-driver-manager")
        ctx.log(f"NVIDIA driver is pre-installed on host: {ctx.host.driver_version}")
        await ctx.stopped(HOST_DRIVER_PAUSE_S)
        return 1
    if not ctx.host.loaded("nvidia"):
        ctx.log("no NVIDIA driver is loaded; nothing to uninstall")
        clear(ctx)
        return 0
    labels = common.node_labels(ctx)
    pause(ctx, labels)
    try:
        return await _uninstall(ctx)
    finally:
        restore(ctx, labels)


async def _uninstall(ctx: ContainerContext) -> int:
    for app in OPERANDS.values():
        if not await _gone(ctx, app):
            ctx.error(f"pods with app={app} did not end within {WAIT_S:g} s; see why they do not stop")
            return 1
    digest = ctx.env.get("DRIVER_CONFIG_DIGEST", "")
    state = ctx.path(STATE_FILE)
    if digest and not ctx.flag("FORCE_REINSTALL") and state.exists() and state.read_text().strip() == digest:
        ctx.log("the loaded driver has the wanted configuration; keeping it")
        return 0
    common.unload_modules(ctx)
    clear(ctx)
    state.unlink(missing_ok=True)
    ctx.log("unloaded the NVIDIA driver")
    return 0


async def _gone(ctx: ContainerContext, app: str) -> bool:
    deadline = ctx.clock.deadline(WAIT_S)
    while not deadline.passed:
        pods = ctx.api.list(
            resources.PODS, ctx.namespace, labels=f"app={app}", fields=f"spec.nodeName={ctx.node_name}"
        )["items"]
        if not pods:
            return True
        if await ctx.stopped(POLL_S):
            return False
    return False


def pause(ctx: ContainerContext, labels: dict[str, str]) -> None:
    """Mark the operands of this node as paused (contract 5.2)."""
    changes: dict[str, str | None] = {}
    for key in OPERANDS:
        value = labels.get(key, "")
        if value == "true":
            changes[key] = MARK
        elif value not in ("", "false") and MARK not in value:
            changes[key] = f"{value}_{MARK}"
    if changes:
        common.set_node_labels(ctx, changes, "k8s-driver-manager")


def restore(ctx: ContainerContext, labels: dict[str, str]) -> None:
    """Give the operands back the values they had, with marks of a crashed run removed."""
    changes: dict[str, str | None] = {}
    for key in OPERANDS:
        if key in labels:
            value = labels[key]
            rest = value.replace(MARK + "_", "").replace(MARK, "").strip("_") if MARK in value else value
            changes[key] = rest or ("true" if MARK in value else "")
    if changes:
        common.set_node_labels(ctx, changes, "k8s-driver-manager")


def clear(ctx: ContainerContext) -> None:
    """Unmount a stale driver root and forget the old driver's process."""
    ctx.container.unmount(names.DRIVER_ROOT)
    ctx.remove(PID_FILE)
