"""Comparisons, masks, and what follows from them: `==`, `<`, ..., `& | ^ ~` on masks, select, any, all."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.emit import first_lanes_value
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.operands import as_vector, common, define_operator, kind_of
from numbaprims.cpu.simd.types import Mask, Vec


def compare_value(builder: Any, sense: str, a: Any, b: Any, kind: str) -> Any:
    """The mask of a comparison; with NaN every float comparison is false, but "!=" is true."""
    if kind == "f":
        return (builder.fcmp_unordered if sense == "!=" else builder.fcmp_ordered)(sense, a, b)
    return (builder.icmp_unsigned if kind == "u" else builder.icmp_signed)(sense, a, b)


def _define_comparison(op: Any, sense: str) -> None:
    def typer(a: Any, b: Any) -> Any:
        vec = common(a, b)
        return None if vec is None else Mask(vec.n)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vec = common(*sig.args)
        assert vec is not None
        a, b = (as_vector(context, builder, *operand, vec) for operand in zip(args, sig.args, strict=True))
        return compare_value(builder, sense, a, b, kind_of(vec))

    define_operator((op,), typer, emit, (Vec, Vec), (Vec, types.Number), (types.Number, Vec))


for _op, _sense in (
    (operator.eq, "=="), (operator.ne, "!="), (operator.lt, "<"),
    (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="),
):  # fmt: skip
    _define_comparison(_op, _sense)


def _define_mask_operator(ops: tuple[Any, ...], method: str) -> None:
    define_operator(
        ops,
        lambda a, b: a if isinstance(a, Mask) and a == b else None,
        lambda context, builder, sig, args: getattr(builder, method)(*args),
        (Mask, Mask),
    )


_define_mask_operator((operator.and_, operator.iand), "and_")
_define_mask_operator((operator.or_, operator.ior), "or_")
_define_mask_operator((operator.xor, operator.ixor), "xor")
define_operator(
    (operator.invert,),
    lambda a: a if isinstance(a, Mask) else None,
    lambda context, builder, sig, args: builder.not_(args[0]),
    (Mask,),
)


@intrinsic
def is_nan(typingctx, v):  # type: ignore[no-untyped-def]
    """The lanes that are NaN."""
    if not (isinstance(v, Vec) and kind_of(v) == "f"):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fcmp_unordered("uno", args[0], args[0])

    return Mask(v.n)(v), codegen


@intrinsic
def select(typingctx, mask, a, b):  # type: ignore[no-untyped-def]
    """a where the mask is set, else b; one of the two may be a scalar."""
    if not isinstance(mask, Mask):
        return None
    vec = a if isinstance(a, Vec) and a == b else common(a, b)
    if vec is None or vec.n != mask.n:
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        chosen = [as_vector(context, builder, args[i], signature.args[i], vec) for i in (1, 2)]
        return builder.select(args[0], *chosen)

    return vec(mask, types.unliteral(a), types.unliteral(b)), codegen


@intrinsic(prefer_literal=True)
def first_lanes(typingctx, count, W):  # type: ignore[no-untyped-def]
    """The mask of the lanes below `count`: all from W on, none at 0 and below."""
    n = int_literal(W)
    if n is None or not isinstance(types.unliteral(count), types.Integer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return first_lanes_value(builder, args[0], n)

    return Mask(n)(types.int64, W), codegen


def _lanes_as_integer(builder: Any, mask: Any) -> Any:
    return builder.bitcast(mask, ir.IntType(mask.type.count))


@intrinsic
def any_lane(typingctx, mask):  # type: ignore[no-untyped-def]
    """Whether any lane is set."""
    if not isinstance(mask, Mask):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = _lanes_as_integer(builder, args[0])
        return builder.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0))

    return types.boolean(mask), codegen


@intrinsic
def all_lanes(typingctx, mask):  # type: ignore[no-untyped-def]
    """Whether every lane is set."""
    if not isinstance(mask, Mask):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = _lanes_as_integer(builder, args[0])
        return builder.icmp_unsigned("==", lanes, ir.Constant(lanes.type, -1))

    return types.boolean(mask), codegen
