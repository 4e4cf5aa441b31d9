"""Bytes through a table of 256, by permutations of bytes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.emit import argument, declare, load_value, store_value
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import llvm_element

#: Bytes of a step.
STEP = 64


@intrinsic
def permuted_bytes(typingctx: Any, args: Any, table: Any, lo: Any, hi: Any) -> Any:
    """The bytes lo ... hi - 1, a multiple of `STEP`, of the first array of a block from those of the second one
    and a table at an address (AVX-512 VBMI)."""

    def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
        pointer, vector = llvm_element("u8").as_pointer(), ir.VectorType(ir.IntType(8), STEP)
        out, x = (argument(b, values[0], slot, pointer) for slot in (0, 1))
        entries = b.inttoptr(values[1], pointer)
        parts = [load_value(b, entries, STEP * k, vector) for k in range(4)]
        permute = declare(b, "llvm.x86.avx512.vpermi2var.qi.512", vector, [vector] * 3)

        def step(state: list[Any]) -> list[Any]:
            (i,) = state
            at = load_value(b, x, i, vector)
            lower, upper = (b.call(permute, [parts[k], at, parts[k + 1]]) for k in (0, 2))
            behind = b.icmp_signed("<", at, ir.Constant(vector, [0] * STEP))
            store_value(b, out, i, b.select(behind, upper, lower))
            return [i + STEP]

        lo, hi = Value(b, values[2]), Value(b, values[3])
        repeat(b, (hi - lo) // STEP, [lo], step, "bytes")
        return context.get_dummy_value()

    return types.void(args, types.int64, types.int64, types.int64), codegen
