"""Stand-in for nvidia-validator: replaced by groundplane's node/validate.

Each component looks at the simulated host and writes its status file on success only
(contracts/mig-exporter-validator.md 6.1 to 6.5).
"""

import asyncio
from collections.abc import Awaitable, Callable

from ...api import names
from .. import driverfiles, resources
from ..programs import CommandNotFoundError, ContainerContext
from . import common, node_status_exporter, workload

RETRY_S = 5.0
PLUGIN_TRIES = 30


class NotValidError(RuntimeError):
    """A component is not there yet; the text says what is missing."""


Check = Callable[[ContainerContext], Awaitable[str | None]]
"""Returns the status file's content, or None when the component is skipped; NotValidError when it is not there."""


async def run(ctx: ContainerContext) -> int:
    """`nvidia-validator`, configured by its environment."""
    component = ctx.env.get("COMPONENT", "")
    if component == "metrics":
        return await node_status_exporter.run(ctx)
    if component not in _CHECKS:
        ctx.error(f"Error: invalid component {component!r}; expected one of {', '.join(_CHECKS)}, metrics")
        return 1
    check, file = _CHECKS[component]
    target = f"{ctx.env.get('OUTPUT_DIR', names.VALIDATIONS_DIR)}/{file}"
    ctx.remove(target)
    while True:
        try:
            content = await check(ctx)
        except NotValidError as error:
            ctx.error(f"Error: {component} validation: {error}")
            if not ctx.flag("WITH_WAIT"):
                return 1
            if await ctx.stopped(float(ctx.env.get("SLEEP_INTERVAL_SECONDS", RETRY_S))):
                return 1
            continue
        if content is None:
            ctx.log(f"{component} validation is skipped on this node")
            return 0
        ctx.write(target, content)
        ctx.log(f"{component} is ready")
        return 0


# --- driver -----------------------------------------------------------------------------------------------------------


async def _driver(ctx: ContainerContext) -> str:
    facts = host_driver(ctx) or _container_driver(ctx)
    return "".join(f"{key}={value}\n" for key, value in facts.items())


def host_driver(ctx: ContainerContext) -> dict[str, str] | None:
    """The facts of a driver on the host, or None if it has none that works."""
    tool = ctx.path("/host/usr/bin/nvidia-smi")
    if not tool.is_file() or not tool.stat().st_size or not ctx.host.has_host_driver():
        return None
    root = ctx.env.get("HOST_ROOT", "/")
    return _facts(True, root, "/host", root, "/host")


def _container_driver(ctx: ContainerContext) -> dict[str, str]:
    if _operator_managed(ctx) and not ctx.exists(names.VALIDATIONS_DIR + "/.driver-ctr-ready"):
        raise NotValidError("the driver container is not ready yet: .driver-ctr-ready is missing")
    at = ctx.env.get("DRIVER_INSTALL_DIR_CTR_PATH", names.DRIVER_ROOT)
    for path in (driverfiles.SMI, common.DRIVER_LIBRARIES[0]):
        if not ctx.exists(at + path):
            raise NotValidError(f"{path} is not in the driver root {at}; no driver is installed there")
    if not ctx.host.loaded("nvidia"):
        raise NotValidError("nvidia-smi failed: the kernel module nvidia is not loaded")
    root, host = ctx.env.get("DRIVER_INSTALL_DIR", names.DRIVER_ROOT), ctx.env.get("HOST_ROOT", "/")
    if ctx.path(at + "/dev").is_dir():
        return _facts(False, root, "/driver-root", root, "/driver-root")
    return _facts(False, root, "/driver-root", host, "/host")


def _facts(host: bool, driver: str, driver_at: str, dev: str, dev_at: str) -> dict[str, str]:
    return {
        "IS_HOST_DRIVER": str(host).lower(),
        "NVIDIA_DRIVER_ROOT": driver,
        "DRIVER_ROOT_CTR_PATH": driver_at,
        "NVIDIA_DEV_ROOT": dev,
        "DEV_ROOT_CTR_PATH": dev_at,
    }


def _operator_managed(ctx: ContainerContext) -> bool:
    selector = f"{names.COMPONENT_LABEL}=nvidia-driver"
    found = ctx.api.list(resources.DAEMON_SETS, ctx.env.get("OPERATOR_NAMESPACE", ctx.namespace), labels=selector)
    owners = [owner for item in found["items"] for owner in item["metadata"].get("ownerReferences") or ()]
    return any(owner["apiVersion"].startswith(names.GROUP + "/") for owner in owners)


# --- the layers above -------------------------------------------------------------------------------------------------


async def _toolkit(ctx: ContainerContext) -> str:
    try:
        code = await ctx.child(("nvidia-smi",)).run()
    except CommandNotFoundError as error:
        raise NotValidError(
            f"{error}: the container runtime did not inject the driver; see the container toolkit's pod on this node"
        ) from error
    if code != 0:
        raise NotValidError(f"nvidia-smi failed with exit code {code}")
    return ""


async def _cuda(ctx: ContainerContext) -> str:
    await _workload(ctx, workload.CUDA)
    return ""


async def _plugin(ctx: ContainerContext) -> str:
    for _ in range(PLUGIN_TRIES):
        node = ctx.api.get(resources.NODES, ctx.node_name)
        found = workload.gpu_resources(node["status"].get("capacity") or {})
        if found:
            ctx.log(f"found {', '.join(f'{name}: {count}' for name, count in found.items())}")
            await _workload(ctx, workload.PLUGIN)
            return ""
        if await ctx.stopped(RETRY_S):
            break
    raise NotValidError(
        f"node {ctx.node_name} offers no {names.GPU_RESOURCE}; see the device plugin's pod on this node"
    )


async def _workload(ctx: ContainerContext, kind: workload.Kind) -> None:
    if not ctx.flag("WITH_WORKLOAD", default=True):
        return
    try:
        await workload.run(ctx, kind)
    except workload.WorkloadError as error:
        raise NotValidError(str(error)) from error


def _module(name: str) -> Check:
    async def check(ctx: ContainerContext) -> str:
        if not ctx.host.loaded(name):
            raise NotValidError(f"kernel module {name} is not loaded")
        return ""

    return check


async def _mofed(ctx: ContainerContext) -> str | None:
    label = common.node_labels(ctx).get(names.NFD_PREFIX + "pci-15b3.present")
    if not ctx.flag("GPU_DIRECT_RDMA_ENABLED") or label != "true":
        return None
    host = ctx.flag("USE_HOST_MOFED")
    if not (ctx.host.loaded("mlx5_core") if host else ctx.exists("/run/mellanox/drivers/.driver-ready")):
        raise NotValidError("the Mellanox driver is not ready")
    return ""


# --- virtual machines -------------------------------------------------------------------------------------------------


def _workload_type(ctx: ContainerContext) -> str:
    wanted = common.node_labels(ctx).get(names.WORKLOAD_CONFIG, "")
    valid = ("container", "vm-passthrough", "vm-vgpu")
    default = ctx.env.get("DEFAULT_GPU_WORKLOAD_CONFIG", "")
    kind = wanted if wanted in valid else default if default in valid else "vm-passthrough"
    ctx.write(names.VALIDATIONS_DIR + "/workload-type", kind + "\n")
    return kind


async def _vfio(ctx: ContainerContext) -> str | None:
    if _workload_type(ctx) != "vm-passthrough":
        return None
    bound = ctx.host.root.glob("/sys/bus/pci/drivers/vfio-pci/*")
    missing = [
        gpu.pci_address for gpu in ctx.host.gpus if f"/sys/bus/pci/drivers/vfio-pci/{gpu.pci_address}" not in bound
    ]
    if missing:
        raise NotValidError(f"GPUs not bound to vfio-pci: {', '.join(missing)}")
    return ""


async def _vgpu_manager(ctx: ContainerContext) -> str | None:
    if _workload_type(ctx) != "vm-vgpu":
        return None
    if not ctx.host.loaded("nvidia_vgpu_vfio"):
        raise NotValidError("the vGPU manager is not loaded (module nvidia_vgpu_vfio)")
    return ""


async def _vgpu_devices(ctx: ContainerContext) -> str | None:
    if _workload_type(ctx) != "vm-vgpu":
        return None
    if not ctx.host.root.glob("/sys/bus/mdev/devices/*"):
        raise NotValidError("there are no vGPU devices")
    return ""


async def _cc_manager(ctx: ContainerContext) -> str:
    capable = common.node_labels(ctx).get("nvidia.com/cc.capable") == "true"
    if capable and not ctx.exists(names.VALIDATIONS_DIR + "/.cc-manager-ctr-ready"):
        raise NotValidError("the confidential computing manager is not ready")
    await asyncio.sleep(0)
    return ""


_CHECKS: dict[str, tuple[Check, str]] = {
    "driver": (_driver, "driver-ready"),
    "toolkit": (_toolkit, "toolkit-ready"),
    "cuda": (_cuda, "cuda-ready"),
    "plugin": (_plugin, "plugin-ready"),
    "mofed": (_mofed, "mofed-ready"),
    "nvidia-fs": (_module("nvidia_fs"), "nvidia-fs-ready"),
    "gdrcopy": (_module("gdrdrv"), "gdrcopy-ready"),
    "nvidia-peermem": (_module("nvidia_peermem"), "nvidia-peermem-ready"),
    "vfio-pci": (_vfio, "vfio-pci-ready"),
    "vgpu-manager": (_vgpu_manager, "vgpu-manager-ready"),
    "vgpu-devices": (_vgpu_devices, "vgpu-devices-ready"),
    "cc-manager": (_cc_manager, "cc-manager-ready"),
}
