"""What operations share: which operands go together, and operators that emit code where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global

from numbaprims.cpu.simd.emit import splat_value
from numbaprims.cpu.simd.types import ELEMENTS, Vec, scalar_type


def kind_of(v: Any) -> str:
    """The kind of a vector's elements: "f" float, "i" signed, "u" unsigned, "h" 16-bit storage of a float."""
    return ELEMENTS[v.elem][1]


def fits(scalar: Any, vec: Vec) -> bool:
    """Whether a scalar may stand for a vector: any number for floats, integers only for integers."""
    scalar = types.unliteral(scalar)
    if kind_of(vec) == "f":
        return isinstance(scalar, (types.Integer, types.Float))
    return kind_of(vec) in "iu" and isinstance(scalar, types.Integer)


def common(a: Any, b: Any) -> Vec | None:
    """The vector type of two operands, one of which may be a scalar; None where they don't go together."""
    if isinstance(a, Vec):
        return a if a == b or (not isinstance(b, Vec) and fits(b, a)) else None
    return b if isinstance(b, Vec) and fits(a, b) else None


def as_vector(context: Any, builder: Any, value: Any, given: Any, vec: Vec) -> Any:
    """An operand as a vector: a scalar takes the element type (0.5 is f32 beside f32) and is repeated."""
    if isinstance(given, Vec):
        return value
    scalar = context.cast(builder, value, types.unliteral(given), scalar_type(vec.elem))
    return splat_value(builder, scalar, vec.n)


def define_operator(ops: tuple[Any, ...], typer: Callable[..., Any], emit: Callable[..., Any], *accepts: Any) -> None:
    """Make Python operators work: `typer(*types)` gives the result's type or None, `emit` the value.

    An `overload` would do the same by compiling a function for every operator and every type that meets it.
    """

    class Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            result = typer(*args) if not kws and len(args) == len(accepts[0]) else None
            return None if result is None else signature(result, *(types.unliteral(a) for a in args))

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(context, builder, sig, args)

    for op in ops:
        infer_global(op)(Template)
        for pattern in accepts:
            lower_builtin(op, *pattern)(lower)
