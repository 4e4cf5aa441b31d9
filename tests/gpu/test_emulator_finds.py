"""Planted mistakes: the emulator must name each of them, and must stay silent about their correct twins."""

import numpy as np
import ptx_emulator as emulator
import pytest
from ptx_emulator import launch

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
DECLARE = """
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b64 %rd<16>;
    .shared .align 16 .b8 tile[256];
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    xor.b32 %r5, %r3, 252;
    add.s32 %r6, %r2, %r5;
"""


def kernel(body: str) -> str:
    """A kernel of 64 threads: %rd3 is this thread's place in the array, %r4 in the tile, %r6 its mirror image."""
    return f"{HEAD}.visible .entry k(.param .u64 k_param_0)\n{{{DECLARE}{body}\n ret;\n}}\n"


MIRROR = (
    "ld.global.u32 %r7, [%rd3]; st.shared.u32 [%r4], %r7; BARRIER ld.shared.u32 %r8, [%r6]; st.global.u32 [%rd3], %r8;"
)


def test_barrier_missing():
    x = np.arange(64, dtype=np.uint32)
    good = kernel(MIRROR.replace("BARRIER", "bar.sync 0;"))
    launch(good, 1, 64, x)
    np.testing.assert_array_equal(x, np.arange(64)[::-1])
    with pytest.raises(emulator.DataRace, match=r"shared race: read of byte .* which thread .* wrote"):
        launch(good.replace("bar.sync 0;", ""), 1, 64, x)
    # the mirror image lies in the other warp: a syncwarp orders nothing
    with pytest.raises(emulator.DataRace):
        launch(good.replace("bar.sync 0;", "bar.warp.sync 0xffffffff;"), 1, 64, x)
