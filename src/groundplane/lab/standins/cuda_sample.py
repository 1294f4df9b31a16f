"""Stand-in for NVIDIA's CUDA sample: the shipped `vectorAdd`, which asks the container's own GPUs, and its last word.

The sample ends with `Done` after a sum that was right, and with its error otherwise.
"""

from ..nodeprograms import program
from ..programs import ContainerContext

_VECTOR_ADD = program("vectorAdd")


async def run(ctx: ContainerContext) -> int:
    """Add two vectors; the exit code is the check's."""
    code = await _VECTOR_ADD(ctx)
    if code == 0:
        ctx.log("Done")
    return code
