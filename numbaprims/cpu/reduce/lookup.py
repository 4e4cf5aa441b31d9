"""Bytes through a table of 256: 64 at a time by two permutations where the CPU has those of bytes, else one by one.

Of 16 entries each, pshufb would take 64 operations for 32 bytes, and one by one takes 3 each.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.form import ARGS
from numbaprims.cpu.simd import load_scalar, pointer_from_address, store_scalar
from numbaprims.cpu.simd.emit import argument, declare, load_value, store_value
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import llvm_element

#: Bytes of a step.
STEP = 64


@intrinsic
def _permuted(typingctx: Any, args: Any, table: Any, lo: Any, hi: Any) -> Any:
    """The bytes lo ... hi - 1, a multiple of `STEP`, of the first array from the second one."""

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


@functools.cache
def make_lookup(permutes: bool) -> RangeKernel:
    """The range kernel of contiguous bytes; the table's address is the call's first number."""

    @range_kernel("reduce_lookup", ARGS.types(), spec=(permutes,))
    def reduce_lookup(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        address = int(args.f0)
        table = pointer_from_address(address, "u8")
        out, x = args.a0, args.a1
        first, end = lo * args.tile, min(hi * args.tile, args.n)
        if permutes:
            whole = first + (end - first) // 64 * 64
            _permuted(args, address, first, whole)
            first = whole
        for i in range(first, end):
            store_scalar(out, i, load_scalar(table, load_scalar(x, i)))

    return reduce_lookup
