"""Stand-in for the node-status exporter (COMPONENT=metrics): replaced by groundplane's node/validate."""

from ...api import names
from .. import resources
from ..amounts import exact as amount
from ..programs import ContainerContext, Response


def _metrics(ctx: ContainerContext) -> str:
    capacity = ctx.api.get(resources.NODES, ctx.node_name)["status"].get("capacity") or {}
    prefixes = (names.GPU_RESOURCE, "nvidia.com/mig-")
    values = {
        f"{component}_ready": int(ctx.exists(f"{names.VALIDATIONS_DIR}/{component}-ready"))
        for component in ("driver", "toolkit", "plugin", "cuda")
    }
    values["device_plugin_devices_total"] = sum(int(amount(v)) for k, v in capacity.items() if k.startswith(prefixes))
    lines = [f'gpu_operator_node_{name}{{node="{ctx.node_name}"}} {value}' for name, value in values.items()]
    lines.append(f'gpu_operator_nvidia_pci_devices_total{{node="{ctx.node_name}"}} {len(ctx.host.gpus)}')
    return "\n".join(lines) + "\n"


async def run(ctx: ContainerContext) -> int:
    """Serve `/metrics`."""
    port = int(ctx.env.get("METRICS_PORT", "0"))
    if port <= 0:
        ctx.error("Error: invalid metrics port; set METRICS_PORT to a number above 0")
        return 1
    ctx.serve(port, lambda path: Response(200, _metrics(ctx)) if path.startswith("/metrics") else Response(404, ""))
    await ctx.stopped()
    return 0
