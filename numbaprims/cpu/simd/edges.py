"""The first vector of a row that is walked in aligned steps: its elements lie in the last lanes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.convert import compute_element, widen_value
from numbaprims.cpu.simd.emit import I32, masked_load_value, splat_value
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.types import Pointer, Vec


@intrinsic(prefer_literal=True)
def load_wide_last(typingctx, p, i, count, W):  # type: ignore[no-untyped-def]
    """Zeros, then elements i ... i + count - 1 in the last lanes, in their compute type; no other
    memory is touched.
    """
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    stored, result = Vec(p.elem, n), Vec(compute_element(p.elem), n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = ir.Constant(ir.VectorType(I32, n), list(range(n)))
        empty = builder.sub(ir.Constant(args[2].type, n), args[2])
        mask = builder.icmp_signed(">=", lanes, splat_value(builder, builder.trunc(empty, I32), n))
        start = builder.sub(args[1], empty)
        value: Any = masked_load_value(builder, args[0], start, mask, context.get_value_type(stored))
        return widen_value(builder, value, p.elem)

    return result(p, types.int64, types.int64, W), codegen
