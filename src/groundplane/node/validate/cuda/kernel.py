"""The program that a GPU runs, as PTX text: each thread adds one pair of numbers.

The driver compiles it for the GPU at hand. Its version and target are the oldest that every driver and GPU in use
takes (CUDA 9.0, Maxwell).
"""

from typing import Final

NAME: Final = "vectorAdd"
THREADS: Final = 256
"""Threads of a block."""

PTX: Final = b"""\
.version 6.0
.target sm_50
.address_size 64

.visible .entry vectorAdd(
    .param .u64 p_left,
    .param .u64 p_right,
    .param .u64 p_sum,
    .param .u32 p_count
)
{
    .reg .pred  %beyond;
    .reg .b32   %block, %size, %lane, %index, %count;
    .reg .b64   %left, %right, %sum, %offset;
    .reg .f32   %a, %b, %c;

    mov.u32        %block, %ctaid.x;
    mov.u32        %size, %ntid.x;
    mov.u32        %lane, %tid.x;
    mad.lo.u32     %index, %block, %size, %lane;
    ld.param.u32   %count, [p_count];
    setp.ge.u32    %beyond, %index, %count;
    @%beyond bra   END;

    mul.wide.u32   %offset, %index, 4;
    ld.param.u64   %left, [p_left];
    cvta.to.global.u64 %left, %left;
    add.u64        %left, %left, %offset;
    ld.global.f32  %a, [%left];

    ld.param.u64   %right, [p_right];
    cvta.to.global.u64 %right, %right;
    add.u64        %right, %right, %offset;
    ld.global.f32  %b, [%right];

    add.rn.f32     %c, %a, %b;

    ld.param.u64   %sum, [p_sum];
    cvta.to.global.u64 %sum, %sum;
    add.u64        %sum, %sum, %offset;
    st.global.f32  [%sum], %c;
END:
    ret;
}
\0"""
"""A text that ends with a NUL character, as the driver wants it."""


def blocks(elements: int) -> int:
    """Blocks for so many elements."""
    return (elements + THREADS - 1) // THREADS
