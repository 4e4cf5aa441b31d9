"""Packs: the numbers of one 16-byte access, a tuple in registers, and what products of matrices with vectors do with
them.  Every operation on a pack goes from its first number to its last."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from numbaprims.formulas.value import mad
from numbaprims.gpu.device.emit import (
    I32,
    I64,
    element_type,
    int_literal,
    intrinsic,
    string_literal,
    tuple_of,
    types,
    unpack,
)
from numbaprims.gpu.device.memory import REGISTER, STORAGE, _load, _widen
from numbaprims.gpu.device.value import Value


def lanes(dtype: str) -> int:
    """Numbers of a pack."""
    return {"f64": 2, "f32": 4}.get(dtype, 8)


@intrinsic
def load_apart(typingctx, place, index, step, count, dtype):  # type: ignore[no-untyped-def]
    """A pack of `count` elements that lie `step` apart, loaded one by one."""
    n, name = int_literal(count), string_literal(dtype)
    if n is None or name is None or element_type(place) != STORAGE[name]:
        return None
    if types.unliteral(index) != types.int64 or types.unliteral(step) != types.int64:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = []
        for lane in range(n):
            where = builder.add(args[1], builder.mul(I64(lane), args[2]))
            element = _load(context, builder, (sig.args[0], args[0], types.int64, where), 1, readonly=False)[0]
            values.append(_widen(builder, element, name))
        return tuple_of(context, builder, sig.return_type, values)

    return types.UniTuple(REGISTER[name], n)(place, types.int64, types.int64, count, dtype), codegen


@intrinsic
def load_part(typingctx, place, index, step, left, count, dtype):  # type: ignore[no-untyped-def]
    """A pack of `count` elements that lie `step` apart, loaded one by one; zeros from the one numbered `left` >= 1 on.

    Nothing past those is read: the last of them is read again.
    """
    n, name = int_literal(count), string_literal(dtype)
    if n is None or name is None or element_type(place) != STORAGE[name]:
        return None
    if types.unliteral(index) != types.int64 or types.unliteral(step) != types.int64:
        return None
    if types.unliteral(left) not in (types.int32, types.uint32):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = []
        for lane in range(n):
            inside = builder.icmp_signed("<", I32(lane), args[3])
            last = builder.sub(args[3], I32(1))
            number = builder.sext(builder.select(inside, I32(lane), last), I64)
            where = builder.add(args[1], builder.mul(number, args[2]))
            element = _load(context, builder, (sig.args[0], args[0], types.int64, where), 1, readonly=False)[0]
            wide = _widen(builder, element, name)
            values.append(builder.select(inside, wide, wide.type(0.0)))
        return tuple_of(context, builder, sig.return_type, values)

    number = types.UniTuple(REGISTER[name], n)
    return number(place, types.int64, types.int64, types.int32, count, dtype), codegen


def _elementwise(name: str, doc: str, arity: int) -> Any:
    def operation(typingctx, number, first, second):  # type: ignore[no-untyped-def]
        if not isinstance(first, types.UniTuple):
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            parts = [[Value(builder, v) for v in unpack(builder, args[k], sig.args[k])] for k in range(1, arity)]
            scalar = Value(builder, args[0])
            if name == "dot":
                for x, y in zip(*parts, strict=True):
                    scalar = mad(x, y, scalar)
                return scalar.value
            if name == "scaled":
                values = [(scalar * x).value for x in parts[0]]
            else:
                values = [mad(scalar, x, y).value for x, y in zip(*parts, strict=True)]
            return tuple_of(context, builder, first, values)

        result = first.dtype if name == "dot" else first
        return result(first.dtype, first, first), codegen

    operation.__doc__ = doc
    return intrinsic(operation)


dot = _elementwise("dot", "number + the sum of the products of two packs, one after the other.", 3)
scaled_sum = _elementwise("scaled_sum", "number * first + second, each rounded once.", 3)
scaled = _elementwise("scaled", "number * first; `second` is not looked at.", 2)


def packwise(result: Any = None) -> Callable[[Callable[..., Value]], Any]:
    """Decorator: a function over Values becomes an intrinsic of packs, computed lane by lane.

    Numbers among its operands serve every lane.  The result is of the first operand's type, or a pack of `result`.
    """

    def decorate(function: Callable[..., Value]) -> Any:
        def typed(*operands: Any) -> Any:
            given = [types.unliteral(operand) for operand in operands]
            if not isinstance(given[0], types.UniTuple):
                return None
            count = len(given[0])
            made = given[0] if result is None else types.UniTuple(result, count)

            def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
                columns = [
                    [Value(builder, v) for v in unpack(builder, arg, t)] for arg, t in zip(args, sig.args, strict=True)
                ]
                columns = [column if len(column) == count else column * count for column in columns]
                values = [function(*lane).value for lane in zip(*columns, strict=True)]
                return tuple_of(context, builder, made, values)

            return made(*given), codegen

        forms: dict[int, Any] = {
            1: lambda typingctx, a: typed(a),
            2: lambda typingctx, a, b: typed(a, b),
            3: lambda typingctx, a, b, c: typed(a, b, c),
            4: lambda typingctx, a, b, c, d: typed(a, b, c, d),
            5: lambda typingctx, a, b, c, d, e: typed(a, b, c, d, e),
        }
        form: Any = functools.update_wrapper(forms[len(inspect.signature(function).parameters)], function, updated=())
        del form.__wrapped__  # Numba would ask it for the parameters
        return intrinsic(form)

    return decorate
