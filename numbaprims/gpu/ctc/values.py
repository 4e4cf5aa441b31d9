"""Values of a mantissa and an exponent for kernels: numbers of one thread."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.formulas import paths
from numbaprims.formulas.value import nearest
from numbaprims.gpu.device.emit import intrinsic, types
from numbaprims.gpu.device.math import exp_value
from numbaprims.gpu.device.value import Value

#: Type that is computed in -> that of its exponents.
INTS = {types.float32: types.int32, types.float64: types.int64}


def _made(context: Any, builder: Any, results: Any, emit: Any, args: Any) -> Any:
    return context.make_tuple(builder, results, [x.value for x in emit(*(Value(builder, arg) for arg in args))])


def _of_two(emit: Any) -> Any:
    def typer(typingctx, am, ae, bm, be):  # type: ignore[no-untyped-def]
        e = INTS[am]

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _made(context, builder, signature.return_type, emit, args)

        return types.Tuple((am, e))(am, e, am, e), codegen

    typer.__name__, typer.__doc__ = emit.__name__, emit.__doc__
    return intrinsic(typer)


add, product = _of_two(paths.add), _of_two(paths.product)


@intrinsic
def normal(typingctx, m, e):  # type: ignore[no-untyped-def]
    """As `paths.normal`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _made(context, builder, signature.return_type, paths.normal, args)

    return types.Tuple((m, INTS[m]))(m, INTS[m]), codegen


@intrinsic
def split(typingctx, x):  # type: ignore[no-untyped-def]
    """As `paths.split`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emit = functools.partial(paths.split, exp=exp_value, nearest=nearest)
        return _made(context, builder, signature.return_type, emit, args)

    return types.Tuple((x, INTS[x]))(x), codegen


@intrinsic
def power(typingctx, d):  # type: ignore[no-untyped-def]
    """As `paths.power`."""
    number = next(number for number, ints in INTS.items() if ints == d)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return paths.power(Value(builder, args[0])).value

    return number(d), codegen
