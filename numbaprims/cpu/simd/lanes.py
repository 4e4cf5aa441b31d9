"""Moving values between lanes: extract, reductions, transposes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.memory import I32
from numbaprims.cpu.simd.types import ELEMENTS, Vec, scalar_type


def shuffle_value(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """Lanes of a (0 ...) and b (from a's count on), in the order of `lanes`."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


@intrinsic
def extract(typingctx, v, i):  # type: ignore[no-untyped-def]
    """Lane i."""
    if not isinstance(v, Vec):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.extract_element(args[0], args[1])

    return scalar_type(v.elem)(v, types.int64), codegen


@intrinsic
def reduce_add(typingctx, v):  # type: ignore[no-untyped-def]
    """The sum of the lanes as a tree: the upper half is added to the lower half until one lane is left."""
    if not isinstance(v, Vec):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value, n = args[0], v.n
        add = builder.fadd if ELEMENTS[v.elem][1] == "f" else builder.add
        while n > 1:
            n //= 2
            low = shuffle_value(builder, value, value, list(range(n)))
            high = shuffle_value(builder, value, value, list(range(n, 2 * n)))
            value = add(low, high)
        return builder.extract_element(value, ir.Constant(I32, 0))

    return scalar_type(v.elem)(v), codegen


@intrinsic
def transpose(typingctx, rows):  # type: ignore[no-untyped-def]
    """Transpose a tuple of W vectors of W lanes: lane j of vector i becomes lane i of vector j (log2 W stages)."""
    if not isinstance(rows, types.UniTuple) or rows.count != rows.dtype.n:
        return None
    n = rows.count

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vectors = [builder.extract_value(args[0], i) for i in range(n)]
        # Each stage swaps the off-diagonal blocks of size `half` of every 2*half x 2*half block.
        half = n // 2
        while half:
            low = [lane if not lane & half else n + lane - half for lane in range(n)]
            high = [lane + half if not lane & half else n + lane for lane in range(n)]
            out = list(vectors)
            for i in range(n):
                if not i & half:
                    a, b = vectors[i], vectors[i + half]
                    out[i] = shuffle_value(builder, a, b, low)
                    out[i + half] = shuffle_value(builder, a, b, high)
            vectors = out
            half //= 2
        return context.make_tuple(builder, rows, vectors)

    return rows(rows), codegen
