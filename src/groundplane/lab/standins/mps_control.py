"""Stand-in for nvidia-cuda-mps-control: replaced by nothing, it belongs to the driver; a daemon is a file."""

from ..programs import ContainerContext

PIPES_ENV, LOGS_ENV = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


async def run(ctx: ContainerContext) -> int:
    """`nvidia-cuda-mps-control -d`, or commands for the daemon on standard input."""
    daemon = f"{ctx.env.get(PIPES_ENV, '/tmp/nvidia-mps')}/nvidia-cuda-mps-control.pid"
    if "-d" in ctx.argv:
        if ctx.exists(daemon):
            ctx.error("An instance of this daemon is already running")
            return 1
        ctx.write(daemon, "1\n")
        ctx.write(f"{ctx.env.get(LOGS_ENV, '/var/log/nvidia-mps')}/control.log", "Start\n")
        return 0
    while line := (await ctx.stdin.line()).decode().strip():
        if not ctx.exists(daemon):
            ctx.log("Cannot find MPS control daemon process")
            return 1
        if line.startswith("get_default_active_thread_percentage"):
            ctx.log("100.0")
        if line.startswith("quit"):
            ctx.remove(daemon)
    return 0
