"""Stand-in for ordinary images (pause, a web server): replaced by nothing; people's pods need something to run."""

from ..programs import ContainerContext, Response


async def pause(ctx: ContainerContext) -> int:
    """Do nothing until asked to end."""
    await ctx.stopped()
    return 0


async def web(ctx: ContainerContext) -> int:
    """Answer every request on the container's declared ports, or on 80."""

    async def page(path: str) -> Response:
        return Response(200, f"{ctx.pod['metadata']['name']}{path}\n")

    ports = [int(port["containerPort"]) for port in ctx.container.spec.get("ports") or ()]
    for port in ports or [80]:
        ctx.serve(port, page)
    await ctx.stopped()
    return 0
