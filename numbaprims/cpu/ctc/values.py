"""Values of a mantissa and an exponent for kernels: vectors of each."""

from __future__ import annotations

import functools
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp
from numbaprims.cpu.simd.math.functions import nearest
from numbaprims.cpu.simd.types import Vec
from numbaprims.formulas import paths

_INTS = {"f32": "i32", "f64": "i64"}


def _made(context: Any, builder: Any, results: Any, emit: Any, args: Any) -> Any:
    return context.make_tuple(builder, results, [x.value for x in emit(*(Value(builder, arg) for arg in args))])


def _of_two(emit: Any) -> Any:
    def typer(typingctx, am, ae, bm, be):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _made(context, builder, signature.return_type, emit, args)

        return types.Tuple((am, ae))(am, ae, bm, be), codegen

    typer.__name__, typer.__doc__ = emit.__name__, emit.__doc__
    return intrinsic(typer)


add, product = _of_two(paths.add), _of_two(paths.product)


@intrinsic
def normal(typingctx, m, e):  # type: ignore[no-untyped-def]
    """As `paths.normal`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _made(context, builder, signature.return_type, paths.normal, args)

    return types.Tuple((m, e))(m, e), codegen


@intrinsic
def split(typingctx, x):  # type: ignore[no-untyped-def]
    """As `paths.split`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emit = functools.partial(paths.split, exp=exp, nearest=nearest)
        return _made(context, builder, signature.return_type, emit, args)

    return types.Tuple((x, Vec(_INTS[x.elem], x.n)))(x), codegen


@intrinsic
def power(typingctx, d):  # type: ignore[no-untyped-def]
    """As `paths.power`."""
    elem = next(elem for elem, ints in _INTS.items() if ints == d.elem)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return paths.power(Value(builder, args[0])).value

    return Vec(elem, d.n)(d), codegen
