"""The kernel of a sequence: a block takes a patch of a plane, or of some neighbouring channels, through all passes.

Passes are entries of a table that a block loops over, and it holds the code of every distinct one once: what 40 equal
layers compile is what one does.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.memory import REGISTER
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import (
    STORAGE,
    ByValue,
    GpuKernel,
    block_index,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)
from numbaprims.gpu.stack import table
from numbaprims.gpu.stack.emit import header_of, run_pass


@functools.cache
def make_sequence(key: str, x: str, out: str, added: str, group: int, threads: int, shared: int) -> GpuKernel:
    """Of the kinds that `key` names (`emit.kinds_of`); dtypes of x, out and what is added; `group` channels a block."""
    number, I, dtypes = REGISTER[x], types.int32, f"{x} {out} {added}"  # noqa: E741
    more = types.CPointer(STORAGE[added])
    pointers = types.Tuple(
        (types.CPointer(STORAGE[out]), types.CPointer(STORAGE[x]), types.CPointer(number), *[more] * 4)
    )
    signature = types.void(pointers, ByValue(table.NBYTES, 8))
    PASSES, GROUPS, PATCHES, ACROSS = table.PASSES, table.GROUPS, table.PATCHES, table.ACROSS
    IMAGE, CHANNEL = table.IMAGE, table.CHANNEL

    most = 168 if x == "f64" else 128
    name = key if len(key) < 200 else hashlib.sha256(key.encode()).hexdigest()

    @gpu_kernel(
        "stack", signature, spec=(name, x, out, added, group, threads), threads=threads, shared=shared, registers=most
    )
    def sequence(pointers, place):  # type: ignore[no-untyped-def]
        buffers = shared_array(0, number)
        patches, across = types.uint32(header_of(place, PATCHES)), types.uint32(header_of(place, ACROSS))
        groups = types.uint32(header_of(place, GROUPS))
        plane = quotient(block_index(), patches)
        patch = types.uint32(block_index() - plane * patches)
        row = quotient(patch, across)
        column = types.uint32(patch - row * across)
        rest = quotient(plane, groups)
        image = I(I(rest) + header_of(place, IMAGE))
        channel = I(I(types.uint32(plane - rest * groups)) * group + header_of(place, CHANNEL))
        at, passes = I(0), header_of(place, PASSES)
        while at < passes:
            run_pass(
                key, dtypes, group, threads, pointers, place, buffers, at, I(row), I(column), image, channel,
                I(thread_index()),
            )  # fmt: skip
            barrier()
            at = I(at + 1)

    return sequence


_BLOCK = "max/3x3/1x1/1x1/1x1/1x1/0/1 batch_norm/3 relu/0"
_MEAN = "avg/3x3/2x2/1x1/1x1/1x1/1/0"
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (
        make_sequence,
        (f"load4:|buffer4:{_BLOCK}", "f32", "f32", "f32", 1, 128, 16384),
        ("LDS", "STS", "FMNMX.NAN", "LDC"),
    ),
    (
        make_sequence,
        (f"load4:|buffer4:{_BLOCK}|buffer4:{_MEAN}", "bf16", "f32", "bf16", 16, 128, 16384),
        ("LDS", "LDG.E.U16"),
    ),
    (make_sequence, (f"stream4:{_BLOCK}", "f32", "f16", "f16", 1, 128, 0), ("LDG.E", "STG.E.U16")),
    (make_sequence, ("stream4:scale/1 gelu/0 bias/1 add/0", "f32", "f32", "f32", 8, 128, 0), ("FMUL", "FADD")),
    (
        make_sequence,
        (f"load4:relu/0|buffer1:avg/7x7/1x1/3x3/3x3/1x1/0/1|buffer4:{_MEAN}", "f64", "f64", "f64", 4, 256, 32768),
        ("LDS.64", "STS.64"),
    ),
]
